//! A grid over any options.
//!
//! Each point of the grid is a command line of its own: that of the user with the options of the point in place of
//! `--sweep`. So every option can be swept, and each point is checked as if a user had typed it.

use std::ffi::OsString;

use clap::Parser;
use serde_json::{Value, json};
use slackline::sim::ClusterReport;
use slackline_lab::parallel;
use slackline_lab::table::Table;

use super::args::{ProblemName, SimArgs};
use super::give::give;
use super::setup::simulate;
use super::{parse, report, setup};
use crate::failure::Failure;

/// Most runs of one sweep: no user waits for more.
const RUNS_MAX: usize = 100_000;

/// `slackline sim` alone, whose options may be given again: the last counts.
#[derive(Parser)]
#[command(name = "slackline sim", args_override_self = true, disable_help_flag = true)]
struct CommandLine {
    #[command(flatten)]
    args: SimArgs,
}

/// A swept option and its values.
struct Axis {
    option: String,
    values: Vec<String>,
}

pub(super) fn run(args: &SimArgs) -> Result<(), Failure> {
    let axes: Vec<Axis> = args.sweep.iter().map(|text| axis(text)).collect::<Result<_, _>>()?;
    let count = axes.iter().try_fold(1usize, |count, axis| count.checked_mul(axis.values.len()));
    let count = count.filter(|count| *count <= RUNS_MAX).ok_or_else(|| {
        Failure::usage(format!("--sweep asks for more than {RUNS_MAX} runs")).help("give fewer values")
    })?;
    let given = given(std::env::args_os().skip(2));
    let mut points = Vec::with_capacity(count);
    for index in 0..count {
        let values = values(&axes, index);
        let own = axes.iter().zip(&values).map(|(axis, value)| format!("--{}={value}", axis.option).into());
        let line = std::iter::once("slackline sim".into()).chain(given.iter().cloned()).chain(own);
        let parsed = CommandLine::try_parse_from(line).map_err(|error| told(&axes, &values, &error))?;
        points.push((values, parsed.args));
    }
    for (values, args) in &points {
        prepare(args).map_err(|failure| failure.at(point(&axes, values)))?;
    }
    let schemes: Vec<_> = points.iter().map(|(_, args)| args.config()).collect::<Result<_, _>>()?;
    for (values, args) in &points {
        setup::check_server(args, &schemes).map_err(|failure| failure.at(point(&axes, values)))?;
    }
    let reports = parallel::map("runs", &points, |(values, args)| {
        prepare(args).and_then(simulate).map_err(|failure| failure.at(point(&axes, values)))
    })?;
    let learns = points.iter().any(|(_, args)| args.problem != ProblemName::None);
    let has_target = points.iter().any(|(_, args)| args.target_loss.is_some());
    let mut table = Table::new(
        axes.iter().map(|axis| axis.option.as_str()).chain(report::summary_heading(learns, has_target)),
    );
    for ((values, _), report) in points.iter().zip(&reports) {
        table.row(values.iter().cloned().chain(report::summary(report, learns, has_target)));
    }
    let rows =
        || points.iter().zip(&reports).map(|((values, args), report)| row(&axes, values, args, report));
    let options: Vec<_> = axes.iter().map(|axis| &axis.option).collect();
    let json = || json!({ "sweep": options, "rows": rows().collect::<Vec<_>>() });
    // A plot of a grid is not one picture: clap refuses it.
    give(args, &table.text(), json, || report::figure(args, &[]))
}

fn prepare(args: &SimArgs) -> Result<slackline::sim::Cluster, Failure> {
    let scheme = args.config()?;
    setup::cluster(args, scheme, setup::until(args, &[scheme]))
}

fn row(axes: &[Axis], values: &[String], args: &SimArgs, report: &ClusterReport) -> Value {
    let options: serde_json::Map<_, _> =
        axes.iter().zip(values).map(|(axis, value)| (axis.option.clone(), value.clone().into())).collect();
    let last = report.curve.last();
    json!({
        "options": options,
        "scheme": report.scheme,
        "workers": args.workers,
        "seed": args.seed,
        "end": report.end,
        "mean_time_per_clock": report.mean_time_per_clock,
        "versions": report.versions,
        "gradients": report.gradients,
        "mean_staleness": report.staleness.mean(),
        "mean_lag": report.lag.mean(),
        "max_lag": report.lag.max(),
        "loss": last.map(|point| point.loss),
        "accuracy": last.and_then(|point| point.accuracy),
        "reached": report.reached,
        "counts": report.counts,
        "trace_hash": format!("{:016x}", report.trace_hash),
    })
}

fn axis(text: &str) -> Result<Axis, Failure> {
    let wrong = |what: &str| {
        Failure::usage(format!("--sweep {text}: {what}"))
            .help("write OPTION=VALUE,VALUE, such as workers=4,8")
    };
    let (option, values) = text.split_once('=').ok_or_else(|| wrong("there is no ="))?;
    let option = option.trim().trim_start_matches("--").to_owned();
    if ["sweep", "compare", "reproduce", "json", "plot", "docs"].contains(&option.as_str()) {
        return Err(wrong("this option has one value for all runs"));
    }
    let values = parse::list(values);
    if option.is_empty() || values.is_empty() {
        return Err(wrong("there is nothing to run"));
    }
    Ok(Axis { option, values })
}

/// The values of a point; the last option changes the fastest.
fn values(axes: &[Axis], mut index: usize) -> Vec<String> {
    let mut values: Vec<String> = Vec::with_capacity(axes.len());
    for axis in axes.iter().rev() {
        values.push(axis.values[index % axis.values.len()].clone());
        index /= axis.values.len();
    }
    values.reverse();
    values
}

/// Names the point of the grid where something is wrong.
fn point(axes: &[Axis], values: &[String]) -> String {
    let parts: Vec<_> =
        axes.iter().zip(values).map(|(axis, value)| format!("{}={value}", axis.option)).collect();
    format!("--sweep, at {}", parts.join(" "))
}

/// The user's options without what is about all runs together.
fn given(line: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let (mut kept, mut line) = (Vec::new(), line);
    while let Some(word) = line.next() {
        // A file may be named by bytes that are no text.
        let mut parts = word.as_encoded_bytes().splitn(2, |byte| *byte == b'=');
        let is_ours = parts.next().is_some_and(|name| name == b"--sweep" || name == b"--json");
        match (is_ours, parts.next()) {
            (true, None) => drop(line.next()),
            (true, Some(_)) => {}
            (false, _) => kept.push(word),
        }
    }
    kept
}

/// Turns clap's error about a point into a failure in our form.
fn told(axes: &[Axis], values: &[String], error: &clap::Error) -> Failure {
    let text = error.to_string();
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let what = lines.join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what);
    Failure::usage(what).help("see slackline sim --help for what each option takes").at(point(axes, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_has_every_combination_once() {
        let axes = [axis("workers=4,8").unwrap(), axis("scheme=bsp,dbw(delivery=wait, k=2),asp").unwrap()];
        let points: Vec<_> = (0..6).map(|index| values(&axes, index).join(" ")).collect();
        assert_eq!(points[0], "4 bsp");
        assert_eq!(points[4], "8 dbw(delivery=wait, k=2)");
        assert_eq!(points.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
    }

    #[test]
    fn what_is_about_all_runs_is_left_out_of_each() {
        let line = ["--sweep", "seed=1,2", "--workers", "4", "--sweep=k=1,2", "--json", "-", "--json=x"];
        assert_eq!(given(line.into_iter().map(OsString::from)), ["--workers", "4"]);
    }

    #[test]
    fn what_cannot_be_swept_is_told() {
        for text in ["workers", "=1", "workers=", "json=a,b"] {
            assert!(axis(text).is_err(), "{text}");
        }
    }
}
