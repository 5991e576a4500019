//! K-async and ABS on time alone: how stale updates are, and that a bound on it is kept.

use crate::plot::{Axis, Figure, Panel, Series};
use serde::Deserialize;
use serde_json::json;
use slackline::sim::{Cluster, ClusterReport, Distribution, Until};

use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::Interval;
use crate::table::Table;

pub(super) const RECIPE: Recipe = Recipe {
    name: "k-async",
    title: "K-async updates are M/K - 1 versions stale; a bound is kept",
    file: include_str!("settings/k-async.toml"),
    remarks: "",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KAsyncGrid {
    workers: usize,
    versions: u64,
    bound: u64,
    cells: Vec<Cell>,
}

/// What is expected of one K.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    k: usize,
    /// Mean staleness without a bound, and with it.
    free: f64,
    bounded: f64,
    /// Forced restarts in each round.
    restarts: f64,
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let KAsyncGrid { workers, versions, bound, cells } = trial.settings()?.grid;
    let items: Vec<(&Cell, bool)> = cells.iter().flat_map(|cell| [(cell, false), (cell, true)]).collect();
    let reports = simulate("k-async", &items, |(cell, is_bounded)| {
        let k = cell.k;
        let scheme = scheme(&match is_bounded {
            false => format!("k-async({k})"),
            true => format!("abs(rule=fixed, k={k}, staleness={bound}, shrink=fixed)"),
        })?;
        let mut cluster = Cluster::new(scheme, workers, trial.seed);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.until = Until::Versions(versions);
        Ok(cluster)
    })?;
    let figure = Figure::new("How stale are the gradients of an update")
        .subtitle("20 workers, exponential times; each update takes the first K gradients");
    let mut findings = Findings::new(figure.columns(2));
    let heading = ["K", "bound", "mean staleness", "expected", "largest", "restarts a round", "expected "];
    let mut table = Table::new(heading);
    let (mut free, mut bounded) = (Vec::new(), Vec::new());
    for (report, (cell, is_bounded)) in reports.iter().zip(&items) {
        let k = cell.k;
        let lag = report.lag.mean().unwrap_or(f64::NAN);
        let most = report.lag.max().unwrap_or(0);
        let restarts = report.counts.interrupted as f64 / report.versions as f64;
        let expected = if *is_bounded { cell.bounded } else { cell.free };
        table.row([
            k.to_string(),
            if *is_bounded { bound.to_string() } else { "-".into() },
            format!("{lag:.2}"),
            format!("{expected:.2}"),
            most.to_string(),
            format!("{restarts:.2}"),
            if *is_bounded { format!("{:.1}", cell.restarts) } else { "-".into() },
        ]);
        findings.rows.push(json!({
            "workers": workers, "k": k, "bound": is_bounded.then_some(bound), "mean_staleness": lag,
            "expected_mean_staleness": expected, "max_staleness": most, "restarts_per_round": restarts,
        }));
        let mut measure = |name: &str, value: f64| {
            findings.measure(name, format!("K = {k}"), Interval::exact(value));
        };
        if *is_bounded {
            measure("largest", most as f64);
            measure("bounded", lag / expected);
            measure("restarts", restarts / cell.restarts);
            bounded.push(Series::bars(format!("K = {k}"), points(report)));
        } else {
            measure("free", lag / expected);
            free.push(Series::line(format!("K = {k}"), points(report)));
        }
    }
    let panel = |x: Axis, series| Panel { series, ..Panel::new(x, Axis::linear("part of gradients, %")) };
    let x = || Axis::linear("staleness, versions");
    let left = panel(x().between(0.0, 40.0), free).titled("Without a bound");
    findings.figure = findings.figure.panel(left).panel(panel(x(), bounded).titled("With a bound of 2"));
    findings.tables.push(("Staleness in versions".into(), table));
    Ok(findings)
}

/// The part of the gradients at each staleness, in per cent.
fn points(report: &ClusterReport) -> Vec<(f64, f64)> {
    let total = report.lag.total() as f64;
    report.lag.iter().map(|(value, count)| (value as f64, 100.0 * count as f64 / total)).collect()
}
