//! The simulator is held to real processes.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_simulator_agrees_with_real_processes_within_5_per_cent() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["sim", "--reproduce", "all", "--real", "--quick", "--json", "-"]).env_remove("RUST_LOG");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON value");
    let comparisons = record["comparisons"].as_array().expect("comparisons");
    for recipe in ["bap", "dbw", "k-async", "essp"] {
        assert!(comparisons.iter().any(|comparison| comparison["recipe"] == recipe), "none of {recipe}");
    }
    for comparison in comparisons {
        let [real, simulated] = ["real", "simulated"].map(|key| comparison[key].as_f64().expect(key));
        assert!((simulated / real - 1.0).abs() <= 0.05, "{comparison}");
    }
}
