//! `cargo xtask bench`: the ratios that the project promises, each against a limit measured in the same minute.
//!
//! Every row is a number of ours and one of a limit or a peer: this machine's own memcpy, STREAM's triad, a
//! round in bare C ([`round.c`](../../bench/round.c)), a bare TCP connection ([`tcp.c`](../../bench/tcp.c)),
//! iperf3, UCX. Machines are noisy: each pair is measured several times, the rows by turns and the two sides of
//! a row next to each other, and the ratio is the median of the pairs' ratios.

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

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    arguments: "[--quick] [--only TEXT] [--json FILE|-]",
    about: "costs against the limits of this machine; --quick: rougher; --only: rows named so",
    run,
};

/// What was asked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    quick: bool,
    only: Option<String>,
    json: Option<String>,
}

fn run(site: &Site, arguments: &[String]) -> Result<(), Failure> {
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
    measure(&tools, &rows, if options.quick { 3 } else { 5 }, &mut outcomes);
    report(site, &options, &rows, &outcomes)?;
    let failed = outcomes.iter().filter(|outcome| outcome.failure.is_some()).count();
    if failed > 0 {
        let what = format!("{failed} measurements of `cargo xtask bench`, named in its table");
        return Err(Failure::Check { what, status: "no result".into() });
    }
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Options, Failure> {
    let mut options = Options::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => options.quick = true,
            "--only" => options.only = Some(value(argument, "a part of a row's name", arguments.next())?),
            "--json" => {
                options.json = Some(value(argument, "a file, or `-` for standard output", arguments.next())?);
            }
            other => {
                let text =
                    format!("`bench` has no option `{other}`; it has --quick, --only TEXT and --json FILE|-");
                return Err(Failure::Usage(text));
            }
        }
    }
    Ok(options)
}

fn value(option: &str, what: &str, value: Option<&String>) -> Result<String, Failure> {
    value.cloned().ok_or_else(|| Failure::Usage(format!("`{option}` needs {what}")))
}

/// Measures every row so many times, by turns.
fn measure(tools: &Tools<'_>, rows: &[Row], times: usize, outcomes: &mut [Outcome]) {
    for time in 0..times {
        for (row, outcome) in rows.iter().zip(outcomes.iter_mut()) {
            if outcome.failure.is_some() || outcome.missing.is_some() {
                continue;
            }
            eprintln!("== {} of {times}: {}", time + 1, row.name);
            match pair(tools, row, time) {
                Ok(pair) => outcome.pairs.push(pair),
                Err(failure) => outcome.failure = Some(failure.to_string()),
            }
        }
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

fn report(site: &Site, options: &Options, rows: &[Row], outcomes: &[Outcome]) -> Result<(), Failure> {
    if options.json.as_deref() != Some("-") {
        print!("{}", text(rows, outcomes));
    }
    let Some(file) = &options.json else { return Ok(()) };
    let rows: Vec<Value> = rows.iter().zip(outcomes).map(|(row, outcome)| outcome.json(row)).collect();
    let commit = Cmd::new("git", &["rev-parse", "HEAD"]).output(site);
    let value = json!({
        "commit": commit.map(|commit| commit.trim().to_string()),
        "quick": options.quick,
        "rows": rows,
    });
    let text = format!("{value:#}\n");
    if file == "-" {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(file, text).map_err(|error| Failure::Missing {
        what: format!("cannot write {file}: {error}"),
        remedy: "name a file in a folder that exists and that you may write".into(),
    })
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
        let expected = Options { quick: true, only: Some("round".into()), json: Some("-".into()) };
        assert_eq!(options, expected);
        for wrong in ["--json", "--only", "--slow", "write"] {
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
}
