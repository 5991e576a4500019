//! `cargo xtask bench`: the ratios that the project promises, each against a limit measured in the same minute.
//!
//! Every row is a number of ours and one of a limit or a peer: this machine's own memcpy, STREAM's triad, a
//! round in bare C ([`round.c`](../../bench/round.c)), a bare TCP connection ([`tcp.c`](../../bench/tcp.c)),
//! iperf3, UCX. Machines are noisy: each pair is measured several times, the rows by turns and the two sides of
//! a row next to each other, and the ratio is the median of the pairs' ratios. Each row is printed, and its file
//! written, whenever a pair of it was measured: to stop the command loses nothing.

mod iperf;
mod probe;
mod row;
mod schemes;
mod ucx;

use crate::Command;
use crate::cmd::Cmd;
use crate::failure::Failure;
use crate::needs;
use crate::site::Site;
use crate::table;
use probe::Tools;
use row::{Outcome, Row};
use serde_json::{Value, json};
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    arguments: "[--quick] [--only TEXT] [--minutes N] [--json FILE|-]",
    about: "costs against the limits of this machine; --quick: rougher; --only: rows named so; --minutes: begins \
            nothing that would end later (10)",
    run,
};

/// Time that the measurements may take, where no option says it.
const MINUTES: u64 = 10;

/// The options of one call.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    quick: bool,
    only: Option<String>,
    minutes: u64,
    json: Option<String>,
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
    let begin = Instant::now();
    let options = parse(arguments)?;
    let mut rows = row::all(options.quick);
    if let Some(text) = &options.only {
        rows.retain(|row| row.name.contains(text));
        if rows.is_empty() {
            let names: Vec<String> = row::all(options.quick).into_iter().map(|row| row.name).collect();
            let text = format!("no row has `{text}` in its name; there are: {}", names.join("; "));
            return Err(Failure::Usage(text));
        }
    }
    let tools = Tools::build(site)?;
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
    let budget = Budget { begin, limit: Duration::from_secs(60 * options.minutes), longest: Duration::ZERO };
    let times = if options.quick { 3 } else { 5 };
    let mut saved = Ok(());
    measure(
        &rows,
        times,
        &mut outcomes,
        budget,
        |row, time| pair(&tools, row, time),
        |at, outcomes| {
            tell(&options, &rows[at], &outcomes[at], times);
            saved = save(&options, commit.as_deref(), &rows, outcomes);
            saved.is_ok()
        },
    );
    saved?;
    report(&options, commit.as_deref(), &rows, &outcomes);
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    if failed > 0 {
        let what = format!("{failed} measurements of `cargo xtask bench`, named in its table");
        return Err(Failure::Check { what, status: "no result".into() });
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Options, Failure> {
    let mut options = Options { quick: false, only: None, minutes: MINUTES, json: None };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => options.quick = true,
            "--only" => options.only = Some(value(argument, "a part of a row's name", arguments.next())?),
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
                return Err(Failure::Usage(format!(
                    "`bench` has no option `{other}`; it has --quick, --only TEXT, --minutes N and --json FILE|-"
                )));
            }
        }
    }
    Ok(options)
}

fn value(option: &str, what: &str, value: Option<&String>) -> Result<String, Failure> {
    value.cloned().ok_or_else(|| Failure::Usage(format!("`{option}` needs {what}")))
}

/// The time that all measurements may take together.
#[derive(Clone, Copy, Debug)]
struct Budget {
    begin: Instant,
    limit: Duration,
    /// The longest pair so far.
    longest: Duration,
}

impl Budget {
    /// Returns true if a pair that takes as long as the longest one, or as long as this one took before, still fits.
    fn allows(&self, before: Option<Duration>) -> bool {
        self.begin.elapsed() + before.unwrap_or(self.longest) <= self.limit
    }
}

/// Measures every row so many times, by turns, as long as there is time; after each pair it tells the index of its row.
/// The end is also where `tell` returns false.
fn measure(
    rows: &[Row],
    times: usize,
    outcomes: &mut [Outcome],
    mut budget: Budget,
    mut pair: impl FnMut(&Row, usize) -> Result<(f64, f64), Failure>,
    mut tell: impl FnMut(usize, &[Outcome]) -> bool,
) {
    let mut took = vec![None; rows.len()];
    for time in 0..times {
        for (at, row) in rows.iter().enumerate() {
            let closed = outcomes[at].failure.is_some() || outcomes[at].missing.is_some();
            if closed || !budget.allows(took[at]) {
                continue;
            }
            let begin = Instant::now();
            match pair(row, time) {
                Ok(pair) => outcomes[at].pairs.push(pair),
                Err(failure) => outcomes[at].failure = Some(failure.to_string()),
            }
            took[at] = Some(begin.elapsed());
            budget.longest = budget.longest.max(begin.elapsed());
            if !tell(at, outcomes) {
                return;
            }
        }
    }
}

/// Prints a row as it stands: on standard error where standard output is kept for JSON.
fn tell(options: &Options, row: &Row, outcome: &Outcome, times: usize) {
    let numbers = outcome.medians().map_or(String::new(), |(ours, peer, ratio)| {
        let (ours, peer) = (row.unit.show(ours), row.unit.show(peer));
        format!("{ours}, {} {peer}, ratio {ratio:.2}, target {}: ", row.against, row.target)
    });
    let count = outcome.pairs.len();
    let line = format!("{count} of {times}  {}: {numbers}{}", row.name, outcome.verdict(row));
    if options.json.as_deref() == Some("-") {
        eprintln!("{line}");
    } else {
        println!("{line}");
        // Into a file or a pipe, too, before this is stopped.
        let _ = std::io::stdout().flush();
    }
}

/// Our number and the peer's; every other time the peer's first.
fn pair(tools: &Tools<'_>, row: &Row, time: usize) -> Result<(f64, f64), Failure> {
    if time % 2 == 1 {
        let peer = row.peer.run(tools, time)?;
        return Ok((row.ours.run(tools, time)?, peer));
    }
    Ok((row.ours.run(tools, time)?, row.peer.run(tools, time)?))
}

/// Replaces the file that was asked for by one with all that is known now.
fn save(options: &Options, commit: Option<&str>, rows: &[Row], outcomes: &[Outcome]) -> Result<(), Failure> {
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
fn report(options: &Options, commit: Option<&str>, rows: &[Row], outcomes: &[Outcome]) {
    match options.json.as_deref() {
        Some("-") => print!("{}", json(options, commit, rows, outcomes)),
        _ => print!("\n{}", text(rows, outcomes)),
    }
}

fn json(options: &Options, commit: Option<&str>, rows: &[Row], outcomes: &[Outcome]) -> String {
    let rows: Vec<Value> = rows.iter().zip(outcomes).map(|(row, outcome)| outcome.json(row)).collect();
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
        cells.push([name, ours, against, peer, ratio, target, outcome.verdict(row)]);
    }
    let ratios =
        "ours and its are medians; the ratio is the median of the ratios of pairs measured side by side\n";
    table::layout(&cells) + ratios
}

#[cfg(test)]
mod tests {
    use super::row::{Target, Unit};
    use super::*;

    #[test]
    fn options_are_read_and_unknown_ones_refused() {
        let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let options = parse(&words("--json - --quick --only round")).unwrap();
        let (only, json) = (Some("round".into()), Some("-".into()));
        assert_eq!(options, Options { quick: true, only, minutes: MINUTES, json });
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

    fn budget(limit: Duration) -> Budget {
        Budget { begin: Instant::now(), limit, longest: Duration::ZERO }
    }

    #[test]
    fn each_pair_is_told_with_what_is_known_before_the_next_is_measured() {
        let rows = &row::all(true)[..2];
        let mut outcomes = [Outcome::default(), Outcome::default()];
        let log = std::cell::RefCell::new(Vec::new());
        let pair = |row: &Row, time: usize| {
            log.borrow_mut().push(format!("measure {} {time}", row.name));
            if row.name == rows[1].name { Err(Failure::Usage("no".into())) } else { Ok((1.0, 2.0)) }
        };
        measure(rows, 2, &mut outcomes, budget(Duration::MAX), pair, |at, outcomes| {
            let Outcome { pairs, failure, .. } = &outcomes[at];
            log.borrow_mut().push(format!("tell {at}: {} {}", pairs.len(), failure.is_some()));
            true
        });
        let (one, other) = (&rows[0].name, &rows[1].name);
        let expected = [
            format!("measure {one} 0"),
            "tell 0: 1 false".into(),
            format!("measure {other} 0"),
            "tell 1: 0 true".into(),
            format!("measure {one} 1"),
            "tell 0: 2 false".into(),
        ];
        assert_eq!(log.into_inner(), expected);
    }

    #[test]
    fn nothing_is_begun_that_would_end_after_the_time_that_was_given() {
        let rows = &row::all(true)[..2];
        let pause = Duration::from_secs(1);
        let pair = |_: &Row, _: usize| {
            std::thread::sleep(pause);
            Ok((1.0, 1.0))
        };
        let mut outcomes = [Outcome::default(), Outcome::default()];
        // The first pair is tried, since how long one takes is not known; a second one would take too long.
        measure(rows, 5, &mut outcomes, budget(pause * 3 / 2), pair, |_, _| true);
        assert_eq!(outcomes.each_ref().map(|outcome| outcome.pairs.len()), [1, 0]);
        assert_eq!(outcomes[1].verdict(&rows[1]), "not measured: no time was left; --minutes N gives more");
    }

    #[test]
    fn the_file_holds_all_that_is_known_after_each_pair() {
        let file = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let json = Some(file.to_string_lossy().into_owned());
        let options = Options { quick: true, only: None, minutes: MINUTES, json };
        let rows = &row::all(true)[..1];
        let mut outcomes = [Outcome::default()];
        let mut seen = Vec::new();
        measure(
            rows,
            2,
            &mut outcomes,
            budget(Duration::MAX),
            |_, _| Ok((1.0, 2.0)),
            |_, outcomes| {
                save(&options, None, rows, outcomes).unwrap();
                let value: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
                seen.push(value["rows"][0]["pairs"].as_array().unwrap().len());
                true
            },
        );
        assert_eq!(seen, [1, 2]);
        std::fs::remove_file(file).unwrap();
    }
}
