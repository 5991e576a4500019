//! `cargo xtask bench`: the ratios that the project promises, each against a limit measured in the same minute.
//!
//! Every row is a number of ours and one of a limit or a peer: this machine's own memcpy, STREAM's triad, a
//! round in bare C ([`round.c`](../../bench/round.c)), a bare TCP connection ([`tcp.c`](../../bench/tcp.c)),
//! iperf3, UCX. The rows are measured by turns (see [`harness`]). Each row is printed, and its file
//! written, whenever a pair of it was measured: to stop the command loses nothing. With `--before` the peer is the
//! command line of an earlier commit.

mod iperf;
mod probe;
mod row;
mod schemes;
mod ucx;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::harness::{self, Budget, Outcome, Side};
use crate::needs;
use crate::site::Site;
use crate::table;
use probe::Tools;
use row::Row;
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    arguments: "[--quick] [--only TEXT] [--before COMMIT] [--minutes N] [--json FILE|-]",
    about: "costs against the limits of this machine; --quick: rougher; --only: rows named so; --before: ours against \
            ours of that commit; --minutes: begins nothing that would end later (10)",
    run,
};

/// Time that the measurements may take, where no option says it.
const MINUTES: u64 = 10;

/// The options of one call.
#[derive(Debug, PartialEq, Eq)]
struct BenchOptions {
    quick: bool,
    only: Option<String>,
    before: Option<String>,
    minutes: u64,
    json: Option<String>,
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let begin = Instant::now();
    let options = parse(arguments)?;
    let all = match options.before {
        None => row::all,
        Some(_) => |quick| row::against_before(row::all(quick)),
    };
    let mut rows = all(options.quick);
    if let Some(text) = &options.only {
        rows.retain(|row| row.name.contains(text));
        if rows.is_empty() {
            let names: Vec<String> = all(options.quick).into_iter().map(|row| row.name).collect();
            let text = format!("no row has `{text}` in its name; there are: {}", names.join("; "));
            return Err(Failure::Usage(text));
        }
    }
    let tools = Tools::build(site, options.before.as_deref())?;
    let mut outcomes: Vec<Outcome> = rows.iter().map(|_| Outcome::default()).collect();
    for (row, outcome) in rows.iter().zip(&mut outcomes) {
        // Without one peer the other rows are still worth having.
        outcome.missing = match row.peer.need().map(|need| needs::ensure(site, &[need])) {
            None | Some(Ok(())) => None,
            Some(Err(Failure::Missing { what, remedy })) => Some(format!("{what}; {remedy}")),
            Some(Err(other)) => return Err(other),
        };
    }
    let commit = Cmd::new("git", &["rev-parse", "HEAD"]).output(site);
    let commit = commit.map(|commit| commit.trim().to_string());
    let budget = Budget::new(begin, Duration::from_secs(60 * options.minutes));
    let times = if options.quick { 3 } else { 5 };
    let mut saved = Ok(());
    let side = |at: usize, time: usize, side: Side| match side {
        Side::Ours => rows[at].ours.run(&tools, time),
        Side::Peer => rows[at].peer.run(&tools, time),
    };
    harness::measure(times, &mut outcomes, budget, side, |at, outcomes| {
        tell(&options, &rows[at], &outcomes[at], times);
        saved = save(&options, commit.as_deref(), &rows, outcomes);
        saved.is_ok()
    });
    saved?;
    report(&options, commit.as_deref(), &rows, &outcomes);
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    if failed > 0 {
        let what = format!("{failed} measurements of `cargo xtask bench`, named in its table");
        return Err(Failure::Check { what, status: "no result".into() });
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<BenchOptions, Failure> {
    let mut options = BenchOptions { quick: false, only: None, before: None, minutes: MINUTES, json: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => options.quick = true,
            "--only" => options.only = Some(value(argument, "a part of a row's name", arguments.next())?),
            "--before" => options.before = Some(value(argument, "a commit", arguments.next())?),
            "--minutes" => {
                let minutes = value(argument, "a whole number from 1 on", arguments.next())?;
                options.minutes = minutes.parse().ok().filter(|minutes| *minutes > 0).ok_or_else(|| {
                    Failure::Usage(format!("`--minutes` takes a whole number from 1 on, not `{minutes}`"))
                })?;
            }
            "--json" => {
                options.json = Some(value(argument, "a file, or `-` for standard output", arguments.next())?);
            }
            other => {
                let known = "--quick, --only TEXT, --before COMMIT, --minutes N and --json FILE|-";
                return Err(Failure::Usage(format!("`bench` has no option `{other}`; it has {known}")));
            }
        }
    }
    Ok(options)
}

fn value(option: &str, what: &str, value: Option<&String>) -> Result<String, Failure> {
    value.cloned().ok_or_else(|| Failure::Usage(format!("`{option}` needs {what}")))
}

/// Prints a row as it stands: on standard error where standard output is kept for JSON.
fn tell(options: &BenchOptions, row: &Row, outcome: &Outcome, times: usize) {
    let numbers = outcome.medians().map_or(String::new(), |(ours, peer, ratio)| {
        let (ours, peer) = (row.unit.show(ours), row.unit.show(peer));
        format!("{ours}, {} {peer}, ratio {ratio:.2}, target {}: ", row.against, row.target)
    });
    let count = outcome.pairs.len();
    let line = format!("{count} of {times}  {}: {numbers}{}", row.name, outcome.verdict(row.target));
    if options.json.as_deref() == Some("-") {
        eprintln!("{line}");
    } else {
        println!("{line}");
        // Into a file or a pipe, too, before this is stopped.
        let _ = std::io::stdout().flush();
    }
}

/// Replaces the file that was asked for by one with all that is known now.
fn save(
    options: &BenchOptions,
    commit: Option<&str>,
    rows: &[Row],
    outcomes: &[Outcome],
) -> Result<(), Failure> {
    let Some(file) = options.json.as_deref().filter(|file| *file != "-") else { return Ok(()) };
    // Whole or not at all: this may be stopped at any time.
    let partial = format!("{file}.partial");
    let written = std::fs::write(&partial, json(options, commit, rows, outcomes));
    written.and_then(|()| std::fs::rename(&partial, file)).map_err(|error| Failure::Missing {
        what: format!("cannot write {file}: {error}"),
        remedy: "name a file in a folder that exists and that you may write".into(),
    })
}

/// Prints all rows at the end.
fn report(options: &BenchOptions, commit: Option<&str>, rows: &[Row], outcomes: &[Outcome]) {
    match options.json.as_deref() {
        Some("-") => print!("{}", json(options, commit, rows, outcomes)),
        _ => print!("\n{}", text(rows, outcomes)),
    }
}

fn json(options: &BenchOptions, commit: Option<&str>, rows: &[Row], outcomes: &[Outcome]) -> String {
    let rows: Vec<Value> = rows.iter().zip(outcomes).map(|(row, outcome)| row.json(outcome)).collect();
    format!("{:#}\n", json!({ "commit": commit, "quick": options.quick, "rows": rows }))
}

fn text(rows: &[Row], outcomes: &[Outcome]) -> String {
    let heading = ["what", "ours", "against", "its", "ratio", "target", "verdict"];
    let mut cells = vec![heading.map(String::from)];
    for (row, outcome) in rows.iter().zip(outcomes) {
        let numbers = outcome
            .medians()
            .map(|(ours, peer, ratio)| [row.unit.show(ours), row.unit.show(peer), format!("{ratio:.2}")]);
        let [ours, peer, ratio] = numbers.unwrap_or_default();
        let (name, against, target) = (row.name.clone(), row.against.into(), row.target.to_string());
        cells.push([name, ours, against, peer, ratio, target, outcome.verdict(row.target)]);
    }
    let ratios =
        "ours and its are medians; the ratio is the median of the ratios of pairs measured side by side\n";
    table::layout(&cells) + ratios
}

#[cfg(test)]
mod tests {
    use super::row::Unit;
    use super::*;
    use crate::harness::Target;

    #[test]
    fn options_are_read_and_unknown_ones_refused() {
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let options = parse(&words("--json - --quick --only round")).unwrap();
        let (only, json) = (Some("round".into()), Some("-".into()));
        assert_eq!(options, BenchOptions { quick: true, only, before: None, minutes: MINUTES, json });
        assert_eq!(parse(&words("--minutes 45")).unwrap().minutes, 45);
        for wrong in ["--json", "--only", "--slow", "write", "--minutes", "--minutes 0", "--minutes soon"] {
            assert_eq!(parse(&words(wrong)).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_every_row_and_says_what_is_missing() {
        let rows = row::all(true);
        let mut outcomes: Vec<Outcome> = rows.iter().map(|_| Outcome::default()).collect();
        outcomes[0].missing = Some("no such tool".into());
        let text = text(&rows, &outcomes);
        assert_eq!(text.lines().count(), rows.len() + 2);
        assert!(text.contains("not measured: no such tool"), "{text}");
        assert!(!text.contains(" met"), "{text}");
    }

    #[test]
    fn the_units_fit_the_targets() {
        for row in row::all(false) {
            match (row.unit, row.target) {
                (Unit::BytesPerSecond, Target::AtLeast(_)) => {}
                (Unit::Nanoseconds | Unit::Seconds, Target::AtMost(_)) | (_, Target::None) => {}
                _ => panic!("{}: more is better for bandwidth, less for time", row.name),
            }
        }
    }

    #[test]
    fn the_file_holds_all_that_is_known_after_each_pair() {
        let file = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let json = Some(file.to_string_lossy().into_owned());
        let options = BenchOptions { quick: true, only: None, before: None, minutes: MINUTES, json };
        let rows = &row::all(true)[..1];
        let mut outcomes = [Outcome::default()];
        let mut seen = Vec::new();
        let budget = Budget::new(Instant::now(), Duration::MAX);
        let side = |_, _, _| Ok::<_, Failure>(1.0);
        harness::measure(2, &mut outcomes, budget, side, |_, outcomes| {
            save(&options, None, rows, outcomes).unwrap();
            let value: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            seen.push(value["rows"][0]["pairs"].as_array().unwrap().len());
            true
        });
        assert_eq!(seen, [1, 2]);
        std::fs::remove_file(file).unwrap();
    }
}
