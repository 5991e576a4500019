//! The reproductions that take a while: their keys, and that what is exact comes out.

use std::process::Command;

use serde_json::Value;

fn rows(name: &str) -> Vec<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["sim", "--reproduce", name, "--json", "-"]).env_remove("RUST_LOG");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let whole: Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON value");
    whole["rows"].as_array().expect("rows").clone()
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn bap_takes_the_time_of_the_recurrence_within_2_per_cent() {
    let rows = rows("bap");
    let mut cells = Vec::new();
    for row in rows {
        let (workers, staleness) = (number(&row, "workers") as u64, number(&row, "staleness") as u64);
        let ours = number(&row, "mean_time_per_clock");
        assert!((ours / number(&row, "expected") - 1.0).abs() < 0.02, "{row}");
        cells.push((workers, staleness));
    }
    let all = |workers| [0, 1, 2, 4, 8, 16].map(|staleness| (workers, staleness));
    assert_eq!(cells, [all(4), all(8), all(16)].concat());
}

#[test]
fn no_staleness_hides_a_worker_that_is_always_slow() {
    for row in rows("bap-straggler") {
        assert!(number(&row, "mean_time_per_clock") > 2.95, "{row}");
    }
}

#[test]
fn essp_reads_what_is_fresh_and_ssp_what_the_bound_allows() {
    let rows = rows("essp");
    for staleness in [2, 4, 8, 16] {
        let of = |scheme: &str| {
            let row = rows.iter().find(|row| row["scheme"] == scheme && row["staleness"] == staleness);
            let row = row.unwrap_or_else(|| panic!("{scheme}({staleness})"));
            assert!(!row["histogram"].as_array().expect("a histogram").is_empty());
            number(row, "mean")
        };
        assert!(of("essp") > -2.5, "pushed copies are fresh at any bound");
        // Evenly over -2, which is the freshest without waiting, to -(s + 1).
        let spread = -(staleness as f64 + 3.0) / 2.0;
        assert!((of("ssp") / spread - 1.0).abs() < 0.05, "copies of every age up to {staleness}");
    }
}
