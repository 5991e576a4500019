//! Results of simulations: tables for people, JSON for programs, a plot for both.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use slackline::sim::{ClusterReport, CountHistogram};
use slackline_lab::plot::{Axis, Figure, Panel, Series, staleness};
use slackline_lab::table::{Table, bars, number};

use super::args::{ProblemName, SimArgs};

/// Workers that have a row of their own; of more, only the sums are told.
const ROWS_MAX: usize = 16;

/// Staleness further apart than this is a line and no longer bars.
const BARS_MAX: i64 = 16;

/// One run for people.
pub(super) fn one(args: &SimArgs, report: &ClusterReport) -> String {
    let mut text = format!("{}: {}\n\n", report.scheme, setup(args));
    if report.of_workers.len() <= ROWS_MAX {
        let mut table = Table::new(["worker", "clocks", "computing", "abandoned", "waiting"]);
        for (worker, of) in report.of_workers.iter().enumerate() {
            let times = [of.computing, of.wasted, of.waiting].map(|time| format!("{} s", number(time)));
            table.row([worker.to_string(), of.clocks.to_string()].into_iter().chain(times));
        }
        text += &table.text();
        text.push('\n');
    }
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "{name:<12}{what}");
    };
    let clock = format!("{} s, {} s a clock", number(report.end), number(report.mean_time_per_clock));
    line("time", format!("{clock}, {:.1} % of it computing", 100.0 * busy(report)));
    line("updates", format!("{} versions out of {} gradients", report.versions, report.gradients));
    line("staleness", clocks_behind(&report.staleness));
    line("lag", histogram(&report.lag, "versions between computing and folding"));
    if let (Some(first), Some(last)) = (report.curve.first(), report.curve.last()) {
        let accuracy =
            last.accuracy.map_or(String::new(), |part| format!(", accuracy {:.1} %", 100.0 * part));
        let reached =
            report.reached.map_or(String::new(), |at| format!(", target reached at {} s", number(at)));
        line("loss", format!("{} to {}{accuracy}{reached}", number(first.loss), number(last.loss)));
    }
    let counts = &report.counts;
    let bytes =
        if counts.bytes > 0 { format!(", {} MB", number(counts.bytes as f64 / 1e6)) } else { String::new() };
    line("traffic", format!("{} uploads, {} downloads{bytes}", counts.uploads, counts.downloads));
    let trouble = [
        (counts.averages, "averages"),
        (counts.interrupted, "interrupted"),
        (counts.dropped, "dropped"),
        (counts.crashes, "crashes"),
        (counts.lost, "messages lost"),
        (counts.replayed, "messages twice"),
    ];
    let trouble: Vec<_> = trouble
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !trouble.is_empty() {
        line("besides", trouble.join(", "));
    }
    line("trace", format!("{:016x}, {} events", report.trace_hash, counts.events));
    text
}

/// Several runs for people, a row each.
pub(super) fn many(args: &SimArgs, reports: &[ClusterReport]) -> String {
    let learns = reports.iter().any(|report| !report.curve.is_empty());
    let mut heading = vec!["scheme"];
    heading.extend(summary_heading(learns, args.target_loss.is_some()));
    let mut table = Table::new(heading);
    for report in reports {
        let cells = summary(report, learns, args.target_loss.is_some());
        table.row(std::iter::once(report.scheme.clone()).chain(cells));
    }
    format!("{}\n\n{}", setup(args), table.text())
}

/// Returns the headings of the columns that [`summary`] fills for a run.
pub(super) fn summary_heading(learns: bool, has_target: bool) -> Vec<&'static str> {
    let mut heading =
        vec!["time, s", "s/clock", "versions", "computing", "staleness", "least", "lag", "most"];
    if learns {
        heading.extend(["loss", "accuracy"]);
    }
    if has_target {
        heading.push("target at, s");
    }
    heading.extend(["interrupted", "trace"]);
    heading
}

pub(super) fn summary(report: &ClusterReport, learns: bool, has_target: bool) -> Vec<String> {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let mean = |histogram: &CountHistogram| or_dash(histogram.mean().map(|mean| format!("{mean:.2}")));
    let mut cells = vec![
        number(report.end),
        number(report.mean_time_per_clock),
        report.versions.to_string(),
        format!("{:.1} %", 100.0 * busy(report)),
        mean(&report.staleness),
        or_dash(report.staleness.min().map(|value| value.to_string())),
        mean(&report.lag),
        or_dash(report.lag.max().map(|value| value.to_string())),
    ];
    let last = report.curve.last();
    if learns {
        cells.push(or_dash(last.map(|point| number(point.loss))));
        cells.push(or_dash(
            last.and_then(|point| point.accuracy).map(|part| format!("{:.1} %", 100.0 * part)),
        ));
    }
    if has_target {
        cells.push(or_dash(report.reached.map(number)));
    }
    cells.push(report.counts.interrupted.to_string());
    cells.push(format!("{:016x}", report.trace_hash));
    cells
}

/// Returns the part of the workers' time that was spent on gradients that were published.
fn busy(report: &ClusterReport) -> f64 {
    let sum = |part: fn(&slackline::sim::OfWorker) -> f64| report.of_workers.iter().map(part).sum::<f64>();
    let computing = sum(|of| of.computing);
    computing / (computing + sum(|of| of.wasted) + sum(|of| of.waiting)).max(f64::MIN_POSITIVE)
}

fn histogram(histogram: &CountHistogram, unit: &str) -> String {
    shape(histogram.iter(), unit)
}

/// Mean, range and shape of values and how often each occurred.
fn shape(values: impl Iterator<Item = (i64, u64)>, unit: &str) -> String {
    let values: Vec<_> = values.collect();
    let all = || values.iter().map(|(value, _)| *value);
    let (Some(low), Some(high)) = (all().min(), all().max()) else {
        return "none".into();
    };
    let total: u64 = values.iter().map(|(_, count)| count).sum();
    let sum: f64 = values.iter().map(|(value, count)| *value as f64 * *count as f64).sum();
    let mean = sum / total as f64;
    let mut counts = vec![0; (high - low + 1) as usize];
    values.iter().for_each(|(value, count)| counts[(value - low) as usize] = *count);
    format!("mean {mean:.2}  {low}|{}|{high}  {unit}", bars(&counts, 24))
}

/// Describes how many clocks a worker is ahead of the parameters that it computes on, as `train` counts it: 0 where
/// they hold the gradients of all clocks before its own.
fn clocks_behind(staleness: &CountHistogram) -> String {
    shape(staleness.iter().map(|(newest, count)| (-1 - newest, count)), "clocks behind the worker")
}

/// The job in a few words.
pub(super) fn setup(args: &SimArgs) -> String {
    let mut parts = vec![format!("{} workers, {} s a gradient", args.workers, args.compute)];
    if args.problem != ProblemName::None {
        parts.push(format!("{} by {}", name(args.problem), name(args.optimizer)));
    }
    parts.push(format!("seed {}", args.seed));
    parts.join(", ")
}

/// As it is written on the command line.
pub(super) fn name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// A run for programs: what was asked for, and all that came of it.
pub(super) fn json_one(args: &SimArgs, report: &ClusterReport, learning_rate: f32) -> Value {
    let mut whole = json!({
        "compute": args.compute.to_string(),
        "latency": args.latency.to_string(),
        "bandwidth": args.bandwidth,
        "server_bandwidth": args.server_bandwidth,
        "problem": name(args.problem),
        "optimizer": name(args.optimizer),
        "additive": args.settings.additive,
        "schedule": args.schedule.to_string(),
        "learning_rate": learning_rate.to_string().parse::<f64>().ok(),
    });
    if let (Value::Object(whole), Ok(Value::Object(report))) = (&mut whole, serde_json::to_value(report)) {
        whole.extend(report);
        // More digits than many programs keep of a number.
        rename_hash(whole);
    }
    whole
}

fn rename_hash(report: &mut Map<String, Value>) {
    if let Some(hash) = report.get("trace_hash").and_then(Value::as_u64) {
        report.insert("trace_hash".into(), format!("{hash:016x}").into());
    }
}

/// Loss against time, time per clock, staleness.
pub(super) fn figure(args: &SimArgs, reports: &[ClusterReport]) -> Figure {
    let title = match reports {
        [one] => format!("{} in virtual time", one.scheme),
        _ => "Schemes side by side".into(),
    };
    let mut figure = Figure::new(title).subtitle(setup(args));
    if reports.iter().any(|report| !report.curve.is_empty()) {
        let mut panel = Panel::new(Axis::linear("virtual time, s"), Axis::log("loss")).titled("Loss");
        for report in reports {
            let points = report.curve.iter().map(|point| (point.time, point.loss));
            panel.series.push(Series::line(&report.scheme, points));
        }
        figure = figure.panel(panel);
    }
    let mut panel = Panel::new(Axis::names("", [""]), Axis::linear("mean time per clock, s"));
    for report in reports {
        panel.series.push(Series::bars(&report.scheme, [(0.0, report.mean_time_per_clock)]));
    }
    figure = figure.panel(panel.titled("Time per clock"));
    let least = reports.iter().filter_map(|report| report.staleness.min()).min().unwrap_or(0);
    let is_wide = least < -BARS_MAX;
    let mut x = Axis::linear("data's clock less reader's");
    if is_wide {
        // What nothing bounds goes on for ever; the others are to be seen.
        x = x.between(least.max(-2 * BARS_MAX) as f64, 0.0);
    }
    let panel = Panel::new(x, Axis::linear("part of reads, %"));
    let series = reports.iter().map(|report| staleness(&report.scheme, &report.staleness, is_wide));
    let series = series.collect();
    figure.panel(Panel { series, ..panel }.titled("Staleness"))
}
