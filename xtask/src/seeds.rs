//! `cargo xtask seeds`: the simulated runs of the step `seeds`, many more of them. It goes on where it was interrupted,
//! and sums up what it ran.

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::site::Site;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) const COMMAND: Command = Command {
    name: "seeds",
    arguments: "[--count N] [--record FILE]",
    about: "simulates the node protocol under N seeds (1000000), and goes on where it was interrupted",
    run,
};

/// The seeds that are run, where no option says it.
const COUNT: u64 = 1_000_000;

/// Seeds of one process: what an interruption loses at most.
const PIECE: u64 = 10_000;

/// The test that runs them, and the begin of the line in which it says what came of it.
const TEST: &str = "ten_thousand_seeds_keep_every_promise";
const TOLD: &str = "SEEDS ";

/// What is summed up.
const COUNTS: &[&str] = &["runs", "events", "versions", "views", "errors"];

#[derive(Debug, PartialEq)]
struct SeedsCall {
    count: u64,
    record: Option<PathBuf>,
}

fn plan(arguments: &[String]) -> Result<SeedsCall, Failure> {
    let mut plan = SeedsCall { count: COUNT, record: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments.next().ok_or_else(|| Failure::Usage(format!("`{argument}` takes a value: see --help")))
        };
        match argument.as_str() {
            "--count" => {
                let count = value()?.parse().ok().filter(|count| *count > 0);
                plan.count =
                    count.ok_or_else(|| Failure::Usage("--count takes a whole number from 1 on".into()))?;
            }
            "--record" => plan.record = Some(value()?.into()),
            other => {
                let has = "it has --count and --record";
                return Err(Failure::Usage(format!("`seeds` has no option `{other}`; {has}")));
            }
        }
    }
    Ok(plan)
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let plan = plan(arguments)?;
    let sources = sources(site)?;
    let folder = site.target.join("seeds").join(&sources);
    std::fs::create_dir_all(&folder).map_err(|error| cannot("make", &folder, &error))?;
    let (program, done) = (folder.join("seeds"), folder.join("done.jsonl"));
    if !program.exists() {
        let built = build(site)?;
        std::fs::copy(&built, &program).map_err(|error| cannot("make", &program, &error))?;
    }
    let (before, mut pieces) = (read(&done), Vec::new());
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&done)
        .map_err(|error| cannot("open", &done, &error))?;
    for from in (0..plan.count).step_by(PIECE as usize) {
        let to = plan.count.min(from + PIECE);
        // Pieces of a run to another count may lie across these: they count for that one alone.
        if let Some(piece) = before.iter().find(|piece| piece["from"] == from && piece["to"] == to) {
            pieces.push(piece.clone());
            continue;
        }
        let piece = run_piece(site, &program, from, to)?;
        writeln!(file, "{piece}").map_err(|error| cannot("write", &done, &error))?;
        pieces.push(piece);
        let sum = sum(&pieces);
        let per_second = sum["runs"].as_f64().unwrap_or(0.0) / sum["seconds"].as_f64().unwrap_or(1.0);
        let left = (plan.count - to) as f64 / per_second;
        println!("seeds to {to}: all promises kept; {per_second:.0} seeds a second, {left:.0} s left");
    }
    let mut record = sum(&pieces);
    record["sources"] = json!(sources);
    record["processor"] = json!(processor());
    record["command"] = json!(format!("cargo xtask seeds --count {}", plan.count));
    println!("{record:#}");
    match &plan.record {
        Some(path) => {
            std::fs::write(path, format!("{record:#}\n")).map_err(|error| cannot("write", path, &error))
        }
        None => Ok(()),
    }
}

/// The name of what is simulated: the hash that git has of the library's sources.
fn sources(site: &Site) -> Result<String, Failure> {
    let changed = Cmd::new("git", &["status", "--porcelain", "--", "src", "tests/seeds.rs"]).answer(site)?;
    if !changed.trim().is_empty() {
        return Err(Failure::Missing {
            what: "the sources of the library are not committed, and a record names a commit's".into(),
            remedy: "commit them first".into(),
        });
    }
    let trees = Cmd::new("git", &["rev-parse", "HEAD:src", "HEAD:tests/seeds.rs"]).answer(site)?;
    Ok(trees.split_whitespace().collect::<Vec<_>>().join("-"))
}

/// Builds the test, and returns its program. It is copied, so that the sources may change while it runs.
fn build(site: &Site) -> Result<PathBuf, Failure> {
    let arguments = ["test", "--release", "-p", "slackline", "--test", "seeds", "--no-run"];
    let answer = Cmd::new("cargo", &arguments).arg("--message-format=json").answer(site)?;
    let messages = answer.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_test = |message: &Value| message["target"]["name"] == "seeds" && message["executable"].is_string();
    let built =
        messages.filter(is_test).find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    built.ok_or_else(|| Failure::Missing {
        what: "cargo does not say where the program of the test `seeds` is".into(),
        remedy: "run `cargo test --release --test seeds --no-run` and look".into(),
    })
}

fn run_piece(site: &Site, program: &Path, from: u64, to: u64) -> Result<Value, Failure> {
    let begun = Instant::now();
    let cmd = Cmd::new(&program.to_string_lossy(), &["--exact", TEST, "--nocapture"]);
    let cmd = cmd.env("SLACKLINE_SEEDS", &format!("{from}..{to}"));
    let output = cmd.outcome(site)?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        println!("{text}{}", String::from_utf8_lossy(&output.stderr));
        let what = format!("one of the seeds {from} to {to} breaks a promise: {cmd}");
        return Err(Failure::Check { what, status: output.status.to_string() });
    }
    let mut piece = told(&text).ok_or_else(|| Failure::Missing {
        what: format!("the test does not say what it ran: {cmd}"),
        remedy: format!("its line begins with `{TOLD}`"),
    })?;
    (piece["from"], piece["to"]) = (json!(from), json!(to));
    piece["seconds"] = json!(begun.elapsed().as_secs_f64());
    Ok(piece)
}

/// What the test says that it ran.
fn told(text: &str) -> Option<Value> {
    text.lines().find_map(|line| serde_json::from_str(line.split_once(TOLD)?.1).ok())
}

/// The pieces that were run before. One that was not written whole is run again.
fn read(done: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(done).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn sum(pieces: &[Value]) -> Value {
    let mut sum = json!({});
    for name in COUNTS {
        sum[*name] = json!(pieces.iter().filter_map(|piece| piece[*name].as_u64()).sum::<u64>());
    }
    sum["seconds"] = json!(pieces.iter().filter_map(|piece| piece["seconds"].as_f64()).sum::<f64>().round());
    sum
}

/// The name of the processor, as the kernel tells it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores", line.map_or("unknown", |(_, name)| name.trim()))
}

fn cannot(operation: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Missing {
        what: format!("cannot {operation} {}: {error}", path.display()),
        remedy: "make the folder writable".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_is_understood_or_refused() {
        let plan = |words: &[&str]| plan(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>());
        assert_eq!(plan(&[]).unwrap(), SeedsCall { count: COUNT, record: None });
        let given = plan(&["--count", "20000", "--record", "x.json"]).unwrap();
        assert_eq!(given, SeedsCall { count: 20_000, record: Some("x.json".into()) });
        for bad in [&["--count"][..], &["--count", "0"], &["--count", "x"], &["7"]] {
            assert!(matches!(plan(bad), Err(Failure::Usage(_))), "{bad:?}");
        }
    }

    #[test]
    fn pieces_are_read_again_and_summed_up() {
        let line =
            "running 1 test\nSEEDS {\"runs\":3,\"events\":50,\"versions\":7,\"views\":9,\"errors\":1}\n";
        let mut one = told(line).unwrap();
        one["seconds"] = json!(1.5);
        let folder = std::env::temp_dir().join(format!("slackline-seeds-{}", std::process::id()));
        std::fs::write(&folder, format!("{one}\n{one}\n{{\"runs\":")).unwrap();
        let pieces = read(&folder);
        std::fs::remove_file(&folder).unwrap();
        assert_eq!(pieces, [one.clone(), one], "the last line is cut off");
        let all = json!({"runs": 6, "events": 100, "versions": 14, "views": 18, "errors": 2, "seconds": 3.0});
        assert_eq!(sum(&pieces), all);
        assert_eq!(told("running 1 test\n"), None);
    }
}
