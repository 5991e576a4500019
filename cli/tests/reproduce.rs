//! The reproductions: a part of each is computed again, and must agree with theory and with its record; the page must
//! tell what the records hold.

use std::collections::BTreeMap;
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
fn pair(record: &Value, again: &Value, path: &str, pairs: &mut BTreeMap<String, Vec<(f64, f64)>>) {
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
        // The largest of all seeds, which one seed alone does not exceed.
        (Value::Number(record), Value::Number(again)) if path.ends_with("/max_staleness") => {
            assert!(again.as_f64() <= record.as_f64(), "{path}: {again} of at most {record}");
        }
        (Value::Number(record), Value::Number(again)) => {
            let column = pairs.entry(path.to_owned()).or_default();
            column.extend(record.as_f64().zip(again.as_f64()));
        }
        _ => assert_eq!(record, again, "{path}"),
    }
}

/// Holds a part against its record, and returns its rows and its checks. Other machines round other last digits, from
/// which a run here and there goes another way: one number of twenty, and of each column no more than that or one.
fn agrees(name: &str, least: usize) -> Part {
    let again = recomputed(name);
    let mut columns = BTreeMap::new();
    pair(&recorded(name)["rows"], &again["rows"], name, &mut columns);
    let count: usize = columns.values().map(Vec::len).sum();
    assert!(count >= least, "{name}: {count} numbers");
    let is_off = |(record, again): &&(f64, f64)| (record - again).abs() > 0.02 * record.abs();
    let mut off_in_all = 0;
    for (column, pairs) in columns {
        let (off, all) = (pairs.iter().filter(is_off).count(), pairs.len());
        assert!(off <= all.div_ceil(20), "{column}: {off} of {all} numbers are more than 2 % off the record");
        off_in_all += off;
    }
    assert!(
        20 * off_in_all <= count,
        "{name}: {off_in_all} of {count} numbers are more than 2 % off the record"
    );
    let list = |key: &str| again[key].as_array().unwrap_or_else(|| panic!("{name}: no {key}")).clone();
    Part { rows: list("rows"), checks: list("checks") }
}

/// A reproduction that was computed again with one seed.
struct Part {
    rows: Vec<Value>,
    checks: Vec<Value>,
}

impl Part {
    fn with<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Value> {
        self.rows.iter().filter(move |row| !row[key].is_null())
    }

    /// Asserts that the checks against theory came out as expected, which are so many.
    fn follows_theory(&self, count: usize) {
        let mut theory = self.checks.iter().filter(|check| check["against"] == "theory");
        assert_eq!(theory.clone().count(), count, "{:?}", self.checks);
        assert!(theory.all(|check| check["verdict"] == "yes"), "{:?}", self.checks);
    }
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// The value of the one seed.
fn first(row: &Value, key: &str) -> f64 {
    row[key][0].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

/// The values by step size, of the one seed.
fn by_step_size(row: &Value, key: &str) -> Vec<f64> {
    let cells = row[key].as_array().unwrap_or_else(|| panic!("{key} of {row}"));
    cells.iter().map(|cell| cell["values"][0].as_f64().expect("a value")).collect()
}

#[test]
fn bap_takes_the_time_of_the_recurrence_within_2_per_cent() {
    let bap = agrees("bap", 18 + 4 * 9);
    let mut cells = Vec::new();
    for row in bap.with("time_per_clock") {
        let (workers, staleness) = (number(row, "workers") as u64, number(row, "staleness") as u64);
        assert!((first(row, "time_per_clock") / number(row, "expected") - 1.0).abs() < 0.02, "{row}");
        cells.push((workers, staleness));
    }
    let all = |workers| [0, 1, 2, 4, 8, 16].map(|staleness| (workers, staleness));
    assert_eq!(cells, [all(4), all(8), all(16)].concat());
}

#[test]
fn bap_hides_a_network_that_is_no_slower_than_its_workers() {
    let network = agrees("bap-network", 5 * 4 * 2 + 3 * 4 * 7);
    network.follows_theory(2);
    for row in network.with("time_per_clock") {
        let time = first(row, "time_per_clock");
        let (ratio, staleness) = (number(row, "communication"), number(row, "staleness"));
        // BSP goes up, down and computes by turns; one clock of run-ahead leaves the computing alone.
        let expected = if staleness == 0.0 { 1.0 + ratio } else { 1.0 };
        assert!((time / expected - 1.0).abs() < 0.03, "{row}");
    }
}

#[test]
fn no_staleness_hides_a_worker_that_is_always_slow() {
    let straggler = agrees("bap-straggler", 8);
    assert_eq!(straggler.rows.len(), 8);
    for row in &straggler.rows {
        let (time, is_constant) = (first(row, "time_per_clock"), row["times"] == "constant");
        assert!(time > if is_constant { 2.97 } else { 2.95 }, "{row}");
        assert!(!is_constant || time < 3.0 + 1e-9, "{row}");
    }
}

/// The paper's 1.1 is a check of the record, whatever came of it.
#[test]
fn dbw_agrees_with_its_record_and_is_held_against_every_static_k() {
    let dbw = agrees("dbw", 92 * 18);
    assert_eq!(dbw.rows.len(), 92);
    for row in &dbw.rows {
        let fixed = row["static"].as_array().expect("times by k");
        assert_eq!(fixed.len(), 16);
        let least = fixed.iter().filter_map(|k| k[0].as_f64()).fold(f64::INFINITY, f64::min);
        let (dynamic, blind) = (row["dbw"][0].as_f64().expect("a time"), row["blind"][0].as_f64());
        assert!(dynamic > 0.0 && blind > Some(0.0) && least > 0.0, "{row}");
    }
    let within = dbw
        .checks
        .iter()
        .filter(|check| check["name"].as_str().is_some_and(|name| name.starts_with("within")));
    let expected =
        within.map(|check| check["expected"].as_str().unwrap_or_default().contains("at most 1.10"));
    assert_eq!(expected.collect::<Vec<_>>(), [true; 3]);
}

/// The oracle is set beside the k that the record of DBW has as the best of each setting.
#[test]
fn the_oracle_agrees_with_its_record_and_is_held_against_the_best_static_k() {
    let oracle = agrees("dbw-oracle", 92 * 5);
    let dbw = recorded("dbw");
    let settings = dbw["rows"].as_array().expect("rows");
    assert_eq!((oracle.rows.len(), settings.len()), (92, 92));
    for (row, setting) in oracle.rows.iter().zip(settings) {
        for key in ["grid", "times", "learning_rate", "batch"] {
            assert_eq!(row[key], setting[key]);
        }
        let sum =
            |times: &Value| times.as_array().expect("times").iter().filter_map(Value::as_f64).sum::<f64>();
        let sums: Vec<f64> = setting["static"].as_array().expect("times by k").iter().map(sum).collect();
        let k = number(row, "k") as usize;
        assert!(sums.iter().all(|other| sums[k - 1] <= *other), "{row}");
    }
}

#[test]
fn dbw_as_published_agrees_with_its_record() {
    let published = agrees("dbw-published", 2 * 60);
    assert_eq!(published.rows.len(), 60);
}

#[test]
fn k_async_is_as_stale_as_theory_has_it_and_never_staler_than_its_bound() {
    let k_async = agrees("k-async", 6);
    for row in &k_async.rows {
        let bound = row["bound"].as_f64();
        if bound.is_some() {
            let over = first(row, "restarts_per_round") / number(row, "expected_restarts_per_round");
            assert!((over - 1.0).abs() < 0.05, "{row}");
        }
        let off = first(row, "mean_staleness") / number(row, "expected_mean_staleness") - 1.0;
        assert!(off.abs() < if bound.is_some() { 0.05 } else { 0.03 }, "{row}");
        assert!(bound.is_none_or(|bound| number(row, "max_staleness") <= bound), "{row}");
    }
}

#[test]
fn abs_is_never_staler_than_its_bound_and_needs_less_time_than_lock_step() {
    let abs = agrees("abs", 11 * 8 * 4);
    assert_eq!(abs.rows.len(), 11);
    let of = |scheme: &str| abs.rows.iter().find(|row| row["scheme"] == scheme).expect("a row of the scheme");
    for scheme in ["abs", "abs-interval", "abs-local"] {
        for (key, allowed) in
            [("largest", 0.0..=4.0), ("messages", 1.0..=f64::MAX), ("restarts", 1.0..=f64::MAX)]
        {
            let values = by_step_size(of(scheme), key);
            assert!(values.iter().all(|value| allowed.contains(value)), "{scheme}: {key} {values:?}");
        }
    }
    let (ours, lock_step) = (by_step_size(of("abs"), "times"), by_step_size(of("bsp"), "times"));
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    // Of the step sizes 1 is the fifth, which all share.
    assert!(ours[4] < lock_step[4] && least(&ours) < least(&lock_step), "{ours:?} {lock_step:?}");
}

#[test]
fn essp_reads_what_is_fresh_and_ssp_what_the_bound_allows() {
    let essp = agrees("essp", 8 * 7);
    for staleness in [2, 4, 8, 16] {
        let of = |scheme: &str| {
            let row = essp.rows.iter().find(|row| row["scheme"] == scheme && row["staleness"] == staleness);
            by_step_size(row.unwrap_or_else(|| panic!("{scheme}({staleness})")), "ages")
        };
        assert!(of("essp").iter().all(|mean| *mean > -2.5), "pushed copies are fresh at any bound");
        // Evenly over -2, which is the freshest without waiting, to -(s + 1).
        let spread = -(staleness as f64 + 3.0) / 2.0;
        let ages = of("ssp");
        assert!(ages.iter().all(|mean| (mean / spread - 1.0).abs() < 0.05), "copies of every age: {ages:?}");
    }
}

/// What ends here agrees with its record; the settings in which each must lose are among its claims.
#[test]
fn vap_waits_for_all_and_essp_is_tried_on_uneven_workers_and_shared_links() {
    let vap = agrees("vap", 4 * 5 * 7 * 2);
    let of = |case: &str, scheme: &str, key: &str| {
        let row = vap.rows.iter().find(|row| row["case"] == case && row["scheme"] == scheme);
        by_step_size(row.unwrap_or_else(|| panic!("{case}, {scheme}")), key)
    };
    // A bound that lets one update through at a time is lock step; one that lets all through costs a round trip.
    let pairs = |left: &str, right: &str| {
        of("uneven", left, "waiting").into_iter().zip(of("uneven", right, "waiting"))
    };
    assert!(pairs("vap-tight", "essp").all(|(vap, essp)| vap > essp + 0.05));
    assert!(pairs("vap-wide", "vap-tight").all(|(wide, tight)| wide <= tight));
    agrees("essp-settings", 6 * 4 * 8 * 2);
    agrees("abs-sorted", 7 * 8 * 4);
}

/// The theorems hold for every seed; the growth is told of all seeds together.
#[test]
fn regret_stays_below_the_bounds_of_the_theorems() {
    let regret = agrees("regret", 5 * 9);
    assert_eq!(regret.rows.len(), 5);
    for row in &regret.rows {
        let regrets = row["regrets"].as_array().expect("a curve");
        assert_eq!(regrets.len(), 7);
        let last = regrets[6]["values"][0].as_f64().expect("a value");
        assert!(0.0 < last && last < number(row, "bound"), "{row}");
        assert!(row["farthest"][0].as_f64().is_some_and(|half_square| half_square <= 1.0), "{row}");
    }
}

/// A ring of n makes 2 (n - 1) steps of an n-th of the bytes and a latency each: 100 MB over 10 Gbit/s take 80 ms.
#[test]
fn ds_sync_takes_what_rings_of_its_groups_take_and_learns() {
    let ds_sync = agrees("ds-sync", 4 * 6);
    for row in ds_sync.with("accuracies") {
        let best = by_step_size(row, "accuracies").into_iter().fold(0.0, f64::max);
        assert!(best > 95.0, "{row}");
    }
    assert_eq!(ds_sync.with("accuracies").count(), 4);
    let ring = |members: f64| 2.0 * (members - 1.0) * (0.08 / members + 20e-6);
    assert_eq!(ds_sync.with("ring_s").count(), 4);
    for row in ds_sync.with("ring_s") {
        let workers = number(row, "workers");
        for (key, members) in [("ring_s", workers), ("ds_sync_s", workers.sqrt())] {
            assert!((number(row, key) / ring(members) - 1.0).abs() < 1e-6, "{row}");
        }
        // Copies leave the server one after the other, and the last one's gradient is alone on its link.
        let served = 0.08 * (workers + 1.0) + 2.0 * 20e-6;
        assert!((number(row, "bsp_s") / served - 1.0).abs() < 1e-5, "{row}");
    }
}

/// The record's times by hand are in the recipe's file: a fluid on the links of workers and racks.
#[test]
fn on_racks_averages_take_as_long_as_by_hand() {
    let racks = agrees("ds-sync-network", 5 * 7 + 5 * 7 * 7);
    racks.follows_theory(1);
    assert_eq!(racks.with("communication_s").count(), 35);
}

/// With one step size for all, deeper networks suffer more; at the best one of each case they do not.
#[test]
fn delay_costs_more_rounds_and_deeper_networks_suffer_at_one_step_size() {
    let dai = agrees("dai", 24 * 5);
    let rounds = |network: &str, delay: u64, step_size: Option<&str>| {
        let row = dai.rows.iter().find(|row| row["network"] == network && row["delay"] == delay);
        let cells = row.and_then(|row| row["rounds"].as_array()).unwrap_or_else(|| panic!("{network}"));
        let cells = cells.iter().filter(|cell| step_size.is_none_or(|own| cell["step_size"] == own));
        cells.filter_map(|cell| cell["values"][0].as_f64()).fold(f64::INFINITY, f64::min)
    };
    let deep = ["1 hidden layer", "3 hidden layers", "6 hidden layers"];
    let common = deep.map(|network| rounds(network, 16, Some("0.1")) / rounds(network, 0, Some("0.1")));
    assert!(common.is_sorted() && common[2] > 2.0 * common[0], "{common:?}");
    for network in deep.into_iter().chain(["softmax"]) {
        let each = [0, 4, 8, 16].map(|delay| rounds(network, delay, None));
        assert!(each.is_sorted() && each[3] > 2.0 * each[0], "{network}: {each:?}");
    }
}

#[test]
fn shards_agree_with_their_record() {
    agrees("shards", 15 * 7);
}

/// It takes Debian's package dataset-fashion-mnist, which `cargo xtask test reproduce` installs.
#[test]
fn fashion_agrees_with_its_record() {
    agrees("fashion", 6 * 5);
}

#[test]
fn losing_agrees_with_its_record() {
    agrees("losing", 2 * (12 * 7 + 3 * 16 + 8 + 9));
}

/// The README has the table of all schemes on real processes, whose command writes the page.
#[test]
fn the_readme_has_the_table_of_all_schemes_that_the_page_has() {
    let page = fs::read_to_string(docs().join("reproductions-real.md")).expect("the page");
    let readme = fs::read_to_string(docs().join("../README.md")).expect("the README");
    let (_, table) = page.split_once("## All schemes").expect("a section of all schemes");
    let rows: Vec<&str> =
        table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), 2 + 8, "{rows:?}");
    assert!(rows.iter().all(|row| readme.contains(row)), "{rows:?}");
}

/// Records whose rows are no checks: comparisons on real processes, other seeds, and the records of `cargo xtask seeds`
/// and of the test `tree`.
const WITHOUT_CHECKS: [&str; 5] = ["real", "all-schemes", "again", "seeds", "tree"];

#[test]
fn the_page_tells_every_check_of_every_record_as_it_came_out() {
    let page = fs::read_to_string(docs().join("reproductions.md")).expect("the page");
    let mut checks = 0;
    for file in fs::read_dir(docs().join("records")).expect("records") {
        let name = file.expect("a file").path().file_stem().expect("a name").to_string_lossy().into_owned();
        if WITHOUT_CHECKS.contains(&name.as_str()) {
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
