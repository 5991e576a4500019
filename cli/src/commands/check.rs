//! `slackline check`: judges traces of publishers and readers.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use slackline::internals::trace::{TraceChecker, TraceRecord, Verdict, Violation};
use slackline_lab::parallel::Progress;
use slackline_lab::table::Table;

use crate::failure::{Failure, one_line};
use crate::output;

/// Check, from traces alone, that readers got the published bytes and the versions that they asked for.
///
/// A trace is a file of lines of JSON: publications, as publishers record their versions, and certificates, as readers
/// record their snapshots. Lines of all processes may come in any order, in one file or in several. Each read is
/// compared with the publication of its version, with its bound and with the earlier reads of the same reader. A read
/// whose version has no record of its publication is judged by the rest, and counts as unverified.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES, after_long_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Files with traces; - for standard input
    #[arg(required = true, value_name = "TRACE|-")]
    traces: Vec<PathBuf>,

    /// Most by which the clocks of two hosts differ, in milliseconds; processes of one host have one clock
    #[arg(long, value_name = "MS", default_value_t = 0)]
    clock_error: u64,

    /// Print the verdict as JSON
    #[arg(long)]
    json: bool,
}

const EXIT_CODES: &str =
    "Exit codes: 0 no violation, 1 violations, 2 wrong options, an unreadable trace, or no record at all.";

const EXAMPLES: &str = "Examples:
  slackline check trainer.jsonl rollout-*.jsonl
  slackline check --clock-error 5 host-a.jsonl host-b.jsonl
      of hosts whose clocks differ by up to 5 ms
  cat *.jsonl | slackline check - --json | jq '.violations[].found'

Exit codes: 0 no violation, 1 violations, 2 wrong options, an unreadable trace, or no record at all.";

/// Longest line: the record of a table with as many tensors as there can be, with long names.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// Violations that are told to people; JSON has all of them.
const VIOLATIONS_TOLD: usize = 100;

/// A line of a trace: the index of the trace, and its number from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    trace: usize,
    number: u64,
}

/// Runs `slackline check`.
pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    match check(args) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let mut reading = Reading {
        checker: TraceChecker::new(Duration::from_millis(args.clock_error)),
        records: 0,
        unfinished: Vec::new(),
        progress: Progress::new("KiB of traces", (bytes(&args.traces) >> 10) as usize),
        done: 0,
    };
    for (index, path) in args.traces.iter().enumerate() {
        reading.trace(index, path)?;
    }
    let Reading { checker, records, unfinished, progress, .. } = reading;
    let verdict = checker.finish();
    drop(progress);
    let names: Vec<_> = args.traces.iter().map(|path| path.display().to_string()).collect();
    if records == 0 {
        return Err(Failure::usage(format!("there is no record in {}", names.join(", ")))
            .help("give the files to which publishers and readers write their records"));
    }
    output::print(&match args.json {
        true => format!("{:#}\n", as_json(&verdict, &unfinished, &names)),
        false => as_text(&verdict, &unfinished, &names),
    })?;
    Ok(ExitCode::from(u8::from(!verdict.violations.is_empty())))
}

/// The bytes of the files, as far as they are known.
fn bytes(traces: &[PathBuf]) -> u64 {
    traces.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// What was read.
struct Reading {
    checker: TraceChecker<Line>,
    /// The number of records.
    records: u64,
    /// The last lines of traces whose processes ended while they wrote them.
    unfinished: Vec<Line>,
    progress: Progress,
    /// Bytes.
    done: u64,
}

impl Reading {
    fn trace(&mut self, index: usize, path: &Path) -> Result<(), Failure> {
        let failed = |error: io::Error| {
            Failure::usage(format!("{}: {error}", path.display())).help("name a trace that can be read")
        };
        let file: Box<dyn Read> = match path == Path::new("-") {
            true => Box::new(io::stdin().lock()),
            false => Box::new(File::open(path).map_err(failed)?),
        };
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        let before = self.records;
        for number in 1.. {
            line.clear();
            let read = file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
            if read == 0 {
                break;
            }
            self.done += read as u64;
            self.progress.show((self.done >> 10) as usize);
            let at = Line { trace: index, number };
            match record(&line) {
                Ok(Some(record)) => {
                    self.records += 1;
                    self.checker.add(record, at);
                }
                Ok(None) => {}
                // A process that is killed leaves the beginning of a record, a host that crashes may leave anything.
                Err(_)
                    if !line.ends_with(b"\n")
                        && (read as u64) < LINE_BYTES_MAX
                        && (self.records > before || is_beginning(&line)) =>
                {
                    self.unfinished.push(at)
                }
                Err(failure) => return Err(failure.at(format!("{}:{number}", path.display()))),
            }
        }
        Ok(())
    }
}

/// The record of a line, unless it is blank.
fn record(line: &[u8]) -> Result<Option<TraceRecord>, Failure> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let text = str::from_utf8(line).map_err(|error| {
        Failure::usage(format!("the line is no text: {error}")).help("give traces, which are lines of JSON")
    })?;
    text.parse().map(Some).map_err(|error| Failure::refused(&error))
}

/// Whether more bytes could make a record of this line.
fn is_beginning(line: &[u8]) -> bool {
    // It may end within a character.
    String::from_utf8_lossy(line).parse::<TraceRecord>().is_err_and(|error| error.is_beginning())
}

fn as_text(verdict: &Verdict<Line>, unfinished: &[Line], names: &[String]) -> String {
    let at = |line: &Line| format!("{}:{}", names[line.trace], line.number);
    let mut table = Table::new(["publications", "reads", "verified", "unverified", "violations"]);
    let violations = verdict.violations.len();
    let Verdict { publications, reads, verified, unverified, .. } = *verdict;
    let counts = [publications, reads, verified, unverified, violations as u64];
    table.row(counts.map(|count| count.to_string()));
    let mut text = table.text();
    if violations > 0 {
        text.push('\n');
    }
    for Violation { property, at: line, against, found } in verdict.violations.iter().take(VIOLATIONS_TOLD) {
        let against = against.as_ref().map_or(String::new(), |other| format!(" ({})", at(other)));
        text += &one_line(format!("{}: not {property}: {found}{against}", at(line)));
        text.push('\n');
    }
    if violations > VIOLATIONS_TOLD {
        text += &format!("and {} more\n", violations - VIOLATIONS_TOLD);
    }
    for line in unfinished {
        text += &format!("\n{}: the last line is not finished, and is left out\n", at(line));
    }
    text
}

fn as_json(verdict: &Verdict<Line>, unfinished: &[Line], names: &[String]) -> Value {
    let at = |line: &Line| json!({ "file": names[line.trace], "line": line.number });
    let violation = |violation: &Violation<Line>| {
        json!({
            "property": violation.property.to_string(),
            "at": at(&violation.at),
            "against": violation.against.as_ref().map(at),
            "found": violation.found,
        })
    };
    json!({
        "publications": verdict.publications,
        "reads": verdict.reads,
        "verified": verdict.verified,
        "unverified": verdict.unverified,
        "violations": verdict.violations.iter().map(violation).collect::<Vec<_>>(),
        "unfinished": unfinished.iter().map(at).collect::<Vec<_>>(),
    })
}
