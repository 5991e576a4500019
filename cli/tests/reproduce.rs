//! The reproductions: a part of each is computed again, and must agree with its record; the page must tell what the
//! records hold.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn recorded(name: &str) -> Value {
    let path = docs().join("records").join(format!("{name}.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a record is one JSON value")
}

/// The same with the first seed only.
fn recomputed(name: &str) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["sim", "--reproduce", name, "--seeds", "1", "--json", "-"]).env_remove("RUST_LOG");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON value")
}

/// Pairs the numbers of a record with those that were computed again: of a list that has one for each seed, the first.
fn pair(record: &Value, again: &Value, path: &str, pairs: &mut Vec<(f64, f64)>) {
    match (record, again) {
        (Value::Object(record), Value::Object(again)) => {
            assert!(record.keys().eq(again.keys()), "{path}: other keys");
            record.iter().for_each(|(key, value)| pair(value, &again[key], &format!("{path}/{key}"), pairs));
        }
        (Value::Array(record), Value::Array(again)) => {
            // A run that diverged has no loss, which is null.
            let is_of_seeds = again.len() == 1 && (again[0].is_number() || again[0].is_null());
            assert!(is_of_seeds || record.len() == again.len(), "{path}: {} items", record.len());
            record.iter().zip(again).for_each(|(record, again)| pair(record, again, path, pairs));
        }
        (Value::Number(record), Value::Number(again)) => {
            pairs.extend(record.as_f64().zip(again.as_f64()));
        }
        _ => assert_eq!(record, again, "{path}"),
    }
}

/// Other machines round other last digits, from which a run here and there goes another way.
fn agrees(name: &str, least: usize) {
    let mut pairs = Vec::new();
    pair(&recorded(name)["rows"], &recomputed(name)["rows"], name, &mut pairs);
    assert!(pairs.len() >= least, "{name}: {} numbers", pairs.len());
    let off = pairs.iter().filter(|(record, again)| (record - again).abs() > 0.02 * record.abs()).count();
    assert!(
        20 * off <= pairs.len(),
        "{name}: {off} of {} numbers are more than 2 % off the record",
        pairs.len()
    );
}

#[test]
fn bap_agrees_with_its_record() {
    agrees("bap", 18 + 4 * 9);
    agrees("bap-straggler", 8);
}

#[test]
fn dbw_agrees_with_its_record() {
    agrees("dbw", 92 * 18);
}

#[test]
fn k_async_and_abs_agree_with_their_records() {
    agrees("k-async", 6);
    agrees("abs", 10 * 8);
}

#[test]
fn essp_agrees_with_its_record() {
    agrees("essp", 8 * 7);
}

#[test]
fn ds_sync_agrees_with_its_record() {
    agrees("ds-sync", 4 * 6);
}

#[test]
fn dai_agrees_with_its_record() {
    agrees("dai", 24);
}

#[test]
fn losing_agrees_with_its_record() {
    agrees("losing", 22 * 7);
}

#[test]
fn the_page_tells_every_check_of_every_record_as_it_came_out() {
    let page = fs::read_to_string(docs().join("reproductions.md")).expect("the page");
    let mut checks = 0;
    for file in fs::read_dir(docs().join("records")).expect("records") {
        let name = file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned();
        if name == "real" {
            continue;
        }
        for check in recorded(&name)["checks"].as_array().expect("checks") {
            let cell = |key: &str| check[key].as_str().expect("text").to_owned();
            let row = ["claim", "against", "expected", "ours", "verdict"].map(cell).join(" | ");
            assert!(page.contains(&format!("| {row} |")), "{name}: no row {row}");
            checks += 1;
        }
    }
    assert!(checks > 40, "{checks}");
}

/// A ring of n makes 2 (n - 1) steps of an n-th of the bytes and a latency each: 100 MB over 10 Gbit/s take 80 ms.
#[test]
fn communication_of_ds_sync_takes_what_rings_take() {
    let ring = |members: f64| 2.0 * (members - 1.0) * (0.08 / members + 20e-6);
    let rows = recorded("ds-sync")["rows"].as_array().expect("rows").clone();
    let timed: Vec<&Value> = rows.iter().filter(|row| row["ring_s"].is_number()).collect();
    assert_eq!(timed.len(), 4);
    for row in timed {
        let [workers, all, ours] =
            ["workers", "ring_s", "ds_sync_s"].map(|key| row[key].as_f64().expect(key));
        assert!((all / ring(workers) - 1.0).abs() < 1e-6, "{row}");
        assert!((ours / ring(workers.sqrt()) - 1.0).abs() < 1e-6, "{row}");
    }
}
