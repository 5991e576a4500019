//! `slackline sim` as a user meets it: the program is run, and judged by its exit code, its output and its files.

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("sim").args(arguments).env_remove("RUST_LOG");
    command.output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("messages are text")
}

fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).expect("results are text")
}

/// Runs to the end and gives the JSON of stdout, which holds nothing else.
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout(&[arguments, &["--json", "-"]].concat())).expect("stdout is one JSON value")
}

/// Asserts that arguments that cannot be used are refused with what is wrong and what to do, and nothing is computed.
fn misused(arguments: &[&str], error: &str, help: &str) {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
    assert!(output.stdout.is_empty(), "{arguments:?}: stdout is for results");
    assert!(text.starts_with("error: ") && text.contains(error), "{arguments:?}: {text}");
    assert!(text.contains(help), "{arguments:?}: {text}");
}

fn rows(reproduction: &str) -> Vec<Value> {
    json(&["--reproduce", reproduction])["rows"].as_array().expect("rows").clone()
}

#[test]
fn a_plot_that_cannot_be_written_keeps_no_other_result_back() {
    let folder = TempDir::new().unwrap();
    let limited =
        "trap '' XFSZ; ulimit -f 8; exec \"$0\" sim --clocks 20 --plot \"$1/a.svg\" --json \"$1/b.json\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_slackline")]).arg(folder.path());
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.starts_with("error: --plot ") && text.contains("a.svg: cannot be written"), "{text}");
    assert!(!output.stdout.is_empty(), "the text is printed");
    let json: Value = serde_json::from_slice(&std::fs::read(folder.path().join("b.json")).unwrap()).unwrap();
    assert!(json.is_object(), "{json}");
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_one_another() {
    let options = ["--problem", "softmax", "--clocks", "20"];
    let [one, same, other] = ["1", "1", "2"].map(|seed| json(&[&options[..], &["--seed", seed]].concat()));
    assert_eq!(one, same);
    assert_ne!(one["trace_hash"], other["trace_hash"]);
    assert_eq!(one["trace_hash"].as_str().unwrap().len(), 16);
    assert!(one["curve"].as_array().unwrap().len() > 5);
    assert_eq!((&one["scheme"], &one["workers"]), (&"ssp(3)".into(), &8.into()));
}

#[test]
fn schemes_side_by_side_give_a_table_a_plot_and_json() {
    let folder = TempDir::new().unwrap();
    let plot = folder.path().join("plot.svg");
    let options = ["--compare", "bsp,bap(4),ssp(4)", "--problem", "logistic", "--clocks", "50"];
    let whole = json(&[&options[..], &["--plot", plot.to_str().unwrap()]].concat());
    let runs = whole["runs"].as_array().unwrap();
    let schemes: Vec<_> = runs.iter().map(|run| run["scheme"].as_str().unwrap()).collect();
    assert_eq!(schemes, ["bsp", "bap(4)", "ssp(4)"]);
    let time = |run: &Value| run["mean_time_per_clock"].as_f64().unwrap();
    assert!(time(&runs[0]) > 1.5 * time(&runs[1]), "running ahead hides jitter");
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && schemes.iter().all(|scheme| svg.contains(scheme)));
    let text = stdout(&options);
    assert!(schemes.iter().all(|scheme| text.contains(scheme)), "{text}");
}

#[test]
fn a_sweep_runs_every_combination() {
    let whole = json(&["--sweep", "workers=2,4", "--sweep", "scheme=bsp,ssp(2),asp", "--clocks", "10"]);
    let rows = whole["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!((&rows[4]["scheme"], &rows[4]["workers"]), (&"ssp(2)".into(), &4.into()));
    let alone = json(&["--workers", "4", "--scheme", "ssp", "--staleness", "2", "--clocks", "10"]);
    assert_eq!(rows[4]["trace_hash"], alone["trace_hash"], "a point of the grid is a run of its own");
}

/// Worker 0 of this run never waits.
#[test]
fn no_worker_waits_for_less_than_no_time() {
    let run = json(&["--workers", "2", "--clocks", "3"]);
    let waiting: Vec<_> =
        run["of_workers"].as_array().unwrap().iter().map(|worker| &worker["waiting"]).collect();
    assert_eq!(waiting, [0.0, 0.0]);
}

#[test]
fn every_problem_is_learnt() {
    for problem in ["quadratic", "softmax", "mlp", "factorisation", "logistic"] {
        let run = json(&["--problem", problem, "--workers", "4", "--clocks", "60"]);
        let curve = run["curve"].as_array().unwrap();
        let loss = |point: &Value| point["loss"].as_f64().unwrap();
        assert!(loss(&curve[curve.len() - 1]) < 0.7 * loss(&curve[0]), "{problem}: {curve:?}");
    }
}

/// Of four workers a sum is four times the mean, exactly.
#[test]
fn gradients_that_add_up_are_those_of_a_larger_step_size_bit_for_bit() {
    let run = |own: &[&str], rate: &str| {
        let job = ["--scheme", "ssp(2)", "--problem", "logistic", "--workers", "4", "--clocks", "30"];
        json(&[&job[..], &["--learning-rate", rate], own].concat())
    };
    let (sum, mean) = (run(&["--additive"], "0.0625"), run(&[], "0.25"));
    assert_eq!((&sum["additive"], &mean["additive"]), (&true.into(), &false.into()));
    assert_eq!(sum["curve"], mean["curve"]);
    assert_ne!(sum["curve"], run(&[], "0.0625")["curve"]);
}

#[test]
fn every_option_of_time_network_and_faults_is_taken() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    std::fs::write(&trace, "0.5 # seconds\n1.5\n").unwrap();
    let trace = format!("trace:{}", trace.display());
    let network = ["--latency", "uniform(0.01, 0.02)", "--bandwidth", "125M", "--server-bandwidth", "1G"];
    let more = ["--message-bytes", "1M", "--loss", "0.01", "--replay", "0.01", "--cut", "0:up@3-4"];
    let faults = ["--crash", "1@5-8", "--detection", "0.5", "--factor", "2-3=2", "--change", "10:0-1=3"];
    let run = json(&[&["--compute", &trace, "--clocks", "20"][..], &network, &more, &faults].concat());
    assert_eq!(run["counts"]["crashes"], 1);
    assert!(run["counts"]["lost"].as_u64().unwrap() > 0 && run["counts"]["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn what_cannot_be_is_told_with_its_option_and_its_mend() {
    misused(&["--scheme", "forest"], "no scheme is named", "use one of bsp");
    misused(&["--scheme", "ssp(-1)"], "staleness", "such as 3");
    misused(&["--staleness", "-1"], "--staleness", "such as 3");
    misused(&["--scheme", "bsp", "--staleness", "3"], "--staleness", "leave it out");
    misused(&["--scheme", "dbw", "--k", "9"], "--k", "8");
    misused(&["--scheme", "k-async(9)"], "--k: k of k-async", "8");
    misused(&["--scheme", "dbw", "--read-my-writes"], "--read-my-writes", "use bsp");
    misused(&["--scheme", "ds-sync", "--damping", "inverse"], "--damping", "leave it out");
    for scheme in ["k-async(2)", "vap", "ds-sync"] {
        misused(&["--scheme", scheme, "--additive"], "--additive cannot be used with", "use bsp, asp");
    }
    misused(&["--scheme", "ds-sync", "--group", "3"], "--group", "power");
    misused(&["--compute", "gauss(1)"], "--compute", "exp(MEAN)");
    misused(&["--compute", "exp(-1)"], "--compute", "at least 0");
    misused(&["--compute", "trace:/nowhere/at/all"], "/nowhere/at/all", "one number of seconds");
    misused(&["--compute", "trace:/dev/null"], "not a regular file", "one number of seconds");
    misused(&["--compute", "constant(0)"], "--compute", "mean above 0");
    for workers in ["0", "1000001", "1000000000000", "18446744073709551615"] {
        misused(&["--workers", workers], "--workers", "1 to 1000000");
    }
    misused(&["--factor", "8=2"], "--factor 8=2:", "0 to 7");
    misused(&["--factor", "6-8=2"], "--factor 6-8=2:", "0 to 7");
    misused(&["--factor", "0=0"], "--factor", "above 0");
    misused(&["--change", "5"], "--change", "TIME:WORKERS=FACTOR");
    misused(
        &["--change", "5:9=2"],
        "--change: the workers of a change cannot be 9\n",
        "workers count from 0",
    );
    misused(&["--change", "5:0=0"], "--change", "above 0");
    misused(&["--crash", "9@1"], "--crash", "workers count from 0");
    misused(&["--crash", "18446744073709551615@1"], "--crash", "workers count from 0");
    misused(&["--lifetime", "0", "--downtime", "0"], "--lifetime", "mean above 0");
    misused(&["--loss", "1"], "--loss", "probability");
    misused(&["--latency", "-1"], "--latency", "at least 0");
    misused(&["--bandwidth", "fast"], "--bandwidth", "125M");
    misused(&["--problem", "softmax", "--batch", "1000"], "--batch", "smaller batch");
    misused(&["--learning-rate", "0"], "--learning-rate", "above 0");
    misused(&["--hidden", "8"], "--hidden", "--problem mlp");
    for given in [
        &["--batch", "8"][..],
        &["--learning-rate", "0.1"],
        &["--optimizer", "momentum"],
        &["--schedule", "cosine(9)"],
        &["--damping", "inverse"],
        &["--additive"],
        &["--read-my-writes"],
    ] {
        misused(given, &format!("{}: time alone is simulated", given[0]), "use --problem quadratic");
        assert!(json(&[given, &["--problem", "quadratic", "--clocks", "2"]].concat())["versions"].is_u64());
    }
    for given in [["--server-bandwidth", "1G"], ["--replay", "0.1"]] {
        let error = format!("{}: ds-sync has no server", given[0]);
        misused(&[&["--scheme", "ds-sync"][..], &given].concat(), &error, "another scheme");
        misused(&[&["--compare", "ds-sync,ds-sync(8)"][..], &given].concat(), &error, "another scheme");
        assert!(
            json(&[&["--compare", "bsp,ds-sync", "--clocks", "2"][..], &given].concat())["runs"].is_array()
        );
    }
    misused(&["--target-loss", "0.1"], "there is no loss", "set one");
    misused(&["--clocks", "1", "--versions", "1"], "--clocks", "--versions");
    misused(
        &["--compare", "bsp,ssp", "--staleness", "2"],
        "--staleness",
        "parentheses, such as --compare 'bsp,ssp(",
    );
    misused(&["--compare", "bsp,dbw", "--delivery", "wait"], "--delivery", "'bsp,dbw(delivery=wait)'");
    misused(&["--compare", "bsp", "--window", "7"], "--window", "'bsp,dbw(window=7)'");
    misused(&["--compare", "bsp,dbw", "--clocks", "10"], "10 clocks under dbw", "use versions");
    misused(&["--compare", ","], "--compare", "such as bsp");
    misused(&["--sweep", "workers"], "--sweep", "OPTION=VALUE");
    let error = "error: --sweep, at workers=0: --workers cannot be 0\nhelp: ";
    misused(&["--sweep", "workers=4,0"], error, "1 to 1000000");
    misused(&["--sweep", "colour=red"], "colour", "--help");
    let groups = ["--scheme", "ds-sync", "--workers", "4", "--sweep", "replay=0.1,0.2"];
    misused(&groups, "--replay: ds-sync has no server", "another scheme");
    misused(&["--reproduce", "everything"], "--reproduce", "bap");
    misused(&["--json", "/nowhere/x.json"], "--json", "mkdir");
}

#[test]
fn the_real_nodes_keep_their_promises_over_the_hostile_fabric() {
    let one = json(&["--fabric", "--seed", "7"]);
    assert_eq!(one, json(&["--fabric", "--seed", "7"]));
    assert!(one["versions"].is_u64() && one["trace_hash"].is_string());
    let many = json(&["--fabric", "--seeds", "20", "--scheme", "ssp(2)"]);
    assert_eq!(many["seeds"], 20);
    misused(&["--fabric", "--scheme", "ds-sync"], "no server", "choose another");
    misused(&["--fabric", "--seeds", "0"], "--seeds", "1 or more");
    misused(&["--fabric", "--staleness", "2"], "--staleness", "--scheme");
    misused(&["--fabric", "--scheme", "dbw(k=9)"], "--k", "4 workers");
    assert!(json(&["--fabric", "--spare-nodes"])["versions"].is_u64());
    misused(&["--spare-nodes"], "--fabric", "--fabric");
    assert!(json(&["--fabric", "--seed", "3", "--only", "liars"])["versions"].is_u64());
    misused(&["--fabric", "--only", "ghosts"], "ghosts", "frozen-threads");
}

#[test]
fn what_brings_its_own_jobs_refuses_the_options_of_a_job() {
    for mode in [&["--fabric"][..], &["--reproduce", "k-async"]] {
        for option in [
            &["--workers", "4"][..],
            &["--loss", "0.1"],
            &["--damping", "none"],
            &["--additive"],
            &["--clocks", "9"],
        ] {
            misused(&[mode, option].concat(), mode[0], option[0]);
        }
    }
    misused(&["--reproduce", "k-async", "--scheme", "bsp"], "--scheme", "--reproduce");
    misused(&["--reproduce", "k-async", "--delay-seed", "2"], "--delay-seed", "leave it out");
}

#[cfg(unix)]
#[test]
fn a_file_of_a_sweep_may_have_any_name() {
    use std::os::unix::ffi::OsStrExt;

    let folder = TempDir::new().unwrap();
    let file = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["sim", "--sweep", "workers=2,4", "--clocks", "5", "--json"]).arg(&file);
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    let whole: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(whole["rows"].as_array().map(Vec::len), Some(2));
}

#[test]
fn the_help_shows_what_to_type() {
    let help = stdout(&["--help"]);
    for what in
        ["Examples:", "Scheme:", "Network:", "Faults:", "Exit codes:", "--compare", "--reproduce", "--fabric"]
    {
        assert!(help.contains(what), "{what} in {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 112), "{help}");
    assert!(stdout(&["--reproduce", "list"]).contains("dbw-argmax"));
}

#[test]
fn the_table_of_best_k_comes_out_exactly() {
    let rows = rows("dbw-argmax");
    assert_eq!(rows.len(), 24);
    for row in &rows {
        assert!(row["eta_l"].is_f64() && row["ratio"].is_f64(), "{row}");
        assert_eq!(row["k"], row["expected"], "{row}");
    }
}

#[test]
fn k_async_is_as_stale_as_it_should_be() {
    let rows = rows("k-async");
    for row in rows.iter().filter(|row| row["bound"].is_null()) {
        let [workers, k] = ["workers", "k"].map(|key| row[key].as_f64().unwrap());
        let means = row["mean_staleness"].as_array().unwrap();
        let off = means.iter().map(|mean| mean.as_f64().unwrap() / (workers / k - 1.0) - 1.0);
        assert_eq!(off.filter(|off| off.abs() < 0.03).count(), 10, "{row}");
        assert!(row["max_staleness"].is_u64());
    }
    let bounded: Vec<_> = rows.iter().filter(|row| !row["bound"].is_null()).collect();
    assert_eq!((rows.len(), bounded.len()), (6, 3));
    assert!(bounded.iter().all(|row| row["max_staleness"].as_u64() <= row["bound"].as_u64()), "{bounded:?}");
}

#[test]
fn groups_reach_the_mean() {
    for row in rows("ds-sync-mean") {
        assert!(row["workers"].is_u64() && row["group"].is_u64());
        assert!(row["error"].as_f64().unwrap() <= 1e-15, "{row}");
        assert!(row["error_f32"].as_f64().unwrap() <= 1e-6, "{row}");
    }
}

/// Runs with other seeds may be stopped: those that are on record are not made again, unless the first run, which they
/// belong to, has come out otherwise.
#[test]
fn runs_with_other_seeds_continue_after_those_on_record() {
    let docs = TempDir::new().unwrap();
    let again = |times: &str| {
        let folder = docs.path().to_str().unwrap();
        let output = run(&["--reproduce", "ds-sync-mean", "--again", times, "--docs", folder]);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output).lines().find(|line| line.contains("on record")).map(str::to_owned)
    };
    let on_record = |runs: u64| Some(format!("ds-sync-mean: {runs} runs are on record, 2 are asked for"));
    let record = docs.path().join("records/again/ds-sync-mean.json");
    let read = || std::fs::read_to_string(&record).unwrap();
    assert_eq!(again("2"), None);
    let whole = read();
    std::fs::remove_file(&record).unwrap();
    assert_eq!(again("1"), None);
    let one = read();
    assert_eq!(again("2"), on_record(1));
    assert_eq!(read(), whole);
    assert_eq!(again("2"), on_record(2), "nothing is left to do");
    assert_eq!(read(), whole);
    let other = one.replacen("\"ours\":\"", "\"ours\":\"9", 1);
    assert_ne!(other, one);
    std::fs::write(&record, other).unwrap();
    assert_eq!(again("2"), None, "these runs are those of another first run");
    assert_eq!(read(), whole);
}
