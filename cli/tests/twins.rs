//! The simulator is held to real processes.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

/// Times that the real runs of a recipe are made: what else a machine does makes some of them slower, and none of them
/// faster. The first time all recipes run at once, since their workers sleep nearly all the time; then each that missed
/// runs alone.
const ATTEMPTS: usize = 3;

/// The part of itself by which a figure of the simulator may be away from that of real processes.
const AWAY_MAX: f64 = 0.05;

#[test]
fn the_simulator_agrees_with_real_processes_within_5_per_cent() {
    let recipes = ["bap", "dbw", "k-async", "essp"];
    let first: Vec<_> = std::thread::scope(|scope| {
        let running = recipes.map(|recipe| scope.spawn(move || comparisons(recipe)));
        running.into_iter().map(|run| run.join().expect("the recipe runs")).collect()
    });
    let mut missed = BTreeMap::new();
    for (recipe, first) in recipes.into_iter().zip(first) {
        let mut closest: BTreeMap<String, f64> = first.into_iter().collect();
        assert!(!closest.is_empty(), "{recipe} has no run for CI");
        for _ in 1..ATTEMPTS {
            if closest.values().all(|away| is_close(*away)) {
                break;
            }
            println!("{recipe} runs alone, after {closest:#?}");
            for (name, away) in comparisons(recipe) {
                let least: &mut f64 = closest.entry(name).or_insert(away);
                *least = least.min(away);
            }
        }
        missed.extend(closest.into_iter().filter(|(_, away)| !is_close(*away)));
    }
    assert!(missed.is_empty(), "in {ATTEMPTS} runs the simulator was never within 5 % of these: {missed:#?}");
}

/// What is no number is not close.
fn is_close(away: f64) -> bool {
    away <= AWAY_MAX
}

/// Makes the real runs of a recipe, and returns for each figure which part of itself the simulated one is away from it.
fn comparisons(recipe: &str) -> Vec<(String, f64)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["sim", "--reproduce", recipe, "--real", "--quick", "--json", "-"]).env_remove("RUST_LOG");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let record: Value = serde_json::from_slice(&output.stdout).expect("stdout is one JSON value");
    let away = |comparison: &Value| {
        let [real, simulated] = ["real", "simulated"].map(|key| comparison[key].as_f64().expect(key));
        let name = format!("{} of {}", comparison["figure"], comparison["words"]);
        (name, (simulated / real - 1.0).abs())
    };
    record["comparisons"].as_array().expect("comparisons").iter().map(away).collect()
}
