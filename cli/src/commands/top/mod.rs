//! `slackline top`: what running nodes do, from the metrics that they serve.

mod row;
mod scrape;
mod screen;
mod table;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::failure::Failure;
use crate::metrics::Samples;
use crate::output::print;
use row::Row;
use scrape::Target;
use screen::Screen;

#[cfg(fuzzing)]
pub(crate) use scrape::{answer_samples, fuzz_answer};

/// Nodes are asked at least this rarely: a flood of questions would be a load of its own.
const INTERVAL_MIN: f64 = 0.1;
const INTERVAL_MAX: f64 = 3600.0;

/// Show the state of running nodes: versions, clocks, staleness, waiting, bytes, peers.
///
/// Asks each node for the metrics that it serves (--metrics), and shows a row for each. Rates are over the last
/// interval. A node that does not answer stays in the table and is asked again.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES, after_long_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Addresses at which nodes serve their metrics: HOST:PORT, or PORT of this machine
    #[arg(required = true, value_name = "ADDR", value_parser = Target::parse)]
    nodes: Vec<Target>,

    /// Seconds between two requests to each node
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,

    /// Measure one interval, print it, and end; without a terminal that is the default, but not of --json
    #[arg(long)]
    once: bool,

    /// Print a JSON object per interval instead of a table, on one line, until no program reads them
    #[arg(long)]
    json: bool,
}

const EXIT_CODES: &str =
    "Exit codes: 0 shown, 1 no node answered (--once) or the terminal failed, 2 wrong options.";

const EXAMPLES: &str = "Examples:
  slackline top 9100
      the node of this machine that runs with --metrics 9100; q or Ctrl-C ends it
  slackline top node1:9100 node1:9101 node2:9100 --interval 5
      every five seconds, nodes of two hosts
  slackline top 9100 --once --json | jq '.nodes[0].rate_per_s'

Exit codes: 0 shown, 1 no node answered (--once) or the terminal failed, 2 wrong options.";

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (INTERVAL_MIN..=INTERVAL_MAX).contains(&seconds) => Ok(seconds),
        _ => Err(format!("give seconds from {INTERVAL_MIN} to {INTERVAL_MAX}")),
    }
}

/// The answer of one node, or the reason that there is none; and the time of it.
pub(super) type Answer = (Result<Samples, String>, Instant);

/// One line of `--json`.
#[derive(Serialize)]
struct JsonLine<'a> {
    /// Seconds since 1970.
    time_s: f64,
    nodes: &'a [Row],
}

/// Runs `slackline top`.
pub(crate) fn run(args: &TopArgs) -> ExitCode {
    match show(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn show(args: &TopArgs) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(args.interval);
    if args.json && !args.once {
        return lines(args, interval);
    }
    let live = !args.once && io::stdout().is_terminal() && io::stdin().is_terminal();
    if !live {
        return once(args, interval);
    }
    let failed = |error| Failure::failed(format!("the terminal: {error}")).help("use --once");
    let screen = Screen::open().map_err(failed)?;
    let mut before: Vec<Answer> = Vec::new();
    let mut last;
    loop {
        let begun = Instant::now();
        let answers = scrape::all(&args.nodes, interval);
        last = table::draw(&rows(&args.nodes, &before, &answers));
        before = answers;
        screen.show(&last, args.interval).map_err(failed)?;
        if screen.quits_within(interval.saturating_sub(begun.elapsed())).map_err(failed)? {
            break;
        }
    }
    drop(screen);
    print(&last)
}

/// One measured interval.
fn once(args: &TopArgs, interval: Duration) -> Result<(), Failure> {
    let before = scrape::all(&args.nodes, interval);
    let mut rows = rows(&args.nodes, &[], &before);
    // Without any answer there is nothing to measure.
    if before.iter().any(|(answer, _)| answer.is_ok()) {
        std::thread::sleep(interval);
        let answers = scrape::all(&args.nodes, interval);
        rows = self::rows(&args.nodes, &before, &answers);
    }
    print(&if args.json { json(&rows)? } else { table::draw(&rows) })?;
    if rows.iter().any(Row::is_reachable) {
        return Ok(());
    }
    let all = if rows.len() == 1 { "the node did not answer" } else { "none of the nodes answered" };
    Err(Failure::failed(all).help("do they run, with --metrics, and is that where they listen?"))
}

/// Prints JSON, until the process that reads it closes the pipe.
fn lines(args: &TopArgs, interval: Duration) -> Result<(), Failure> {
    let mut before = scrape::all(&args.nodes, interval);
    loop {
        std::thread::sleep(interval);
        let answers = scrape::all(&args.nodes, interval);
        let line = json(&rows(&args.nodes, &before, &answers))?;
        before = answers;
        let mut stdout = io::stdout().lock();
        match stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            result => result.map_err(|error| Failure::failed(format!("stdout: {error}")))?,
        }
    }
}

fn rows(nodes: &[Target], before: &[Answer], now: &[Answer]) -> Vec<Row> {
    let row = |(index, (node, now))| Row::new(node, before.get(index), now);
    nodes.iter().zip(now).enumerate().map(row).collect()
}

fn json(rows: &[Row]) -> Result<String, Failure> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = serde_json::to_string(&JsonLine { time_s: time.as_secs_f64(), nodes: rows });
    line.map(|line| line + "\n").map_err(|error| Failure::failed(format!("JSON: {error}")))
}
