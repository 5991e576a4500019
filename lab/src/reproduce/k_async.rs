//! K-async and ABS on time alone: how stale updates are, and that a bound on it is kept.

use crate::plot::{Axis, Figure, Panel, Series};
use serde_json::json;
use slackline::sim::{Cluster, Distribution, Until};

use super::{Check, Error, Findings, Recipe, scheme, simulate};
use crate::table::Table;

const WORKERS: usize = 20;
const VERSIONS: u64 = 20_000;

/// K, then with a bound of 2: the mean staleness, and forced restarts in each round.
const EXPECTED: [(usize, f64, f64, f64); 3] =
    [(2, 8.99, 0.92, 5.4), (5, 3.0, 0.81, 3.6), (10, 1.0, 0.57, 1.4)];

pub(super) const RECIPE: Recipe = Recipe {
    name: "k-async",
    title: "K-async updates are M/K - 1 versions stale; a bound is kept",
    claim: "With M workers and updates out of the first K gradients, the mean staleness is M/K - 1. With a \
            bound on it and forced restarts no update is staler than the bound.",
    source: "Dutta et al., AISTATS 2018 (K-async); Tan, Zhu, Zhang, arXiv 2301.08895 (the bound); figures from an \
             event simulation of our own",
    setup: "20 workers, exponential times of mean 1 s, no network, 20,000 versions, time alone.",
    remarks: "",
    run,
};

fn run(seed: u64) -> Result<Findings, Error> {
    let cells: Vec<(usize, Option<u64>)> =
        EXPECTED.iter().flat_map(|expected| [(expected.0, None), (expected.0, Some(2))]).collect();
    let reports = simulate("k-async", &cells, |(k, bound)| {
        let scheme = scheme(&match bound {
            None => format!("k-async({k})"),
            Some(bound) => format!("abs(rule=fixed, k={k}, staleness={bound}, shrink=fixed)"),
        })?;
        let mut cluster = Cluster::new(scheme, WORKERS, seed);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.until = Until::Versions(VERSIONS);
        Ok(cluster)
    })?;
    let heading = ["K", "bound", "mean staleness", "expected", "largest", "restarts a round", "expected "];
    let mut table = Table::new(heading);
    let (mut rows, mut checks) = (Vec::new(), Vec::new());
    let (mut free, mut bounded) = (Vec::new(), Vec::new());
    for (report, (k, bound)) in reports.iter().zip(&cells) {
        let expected = EXPECTED.iter().find(|expected| expected.0 == *k).copied().unwrap_or(EXPECTED[0]);
        let lag = report.lag.mean().unwrap_or(f64::NAN);
        let most = report.lag.max().unwrap_or(0);
        let restarts = report.counts.interrupted as f64 / report.versions as f64;
        let (expected_lag, expected_restarts) = match bound {
            None => (expected.1, "-".into()),
            Some(_) => (expected.2, format!("{:.1}", expected.3)),
        };
        table.row([
            k.to_string(),
            bound.map_or("-".into(), |bound| bound.to_string()),
            format!("{lag:.2}"),
            format!("{expected_lag:.2}"),
            most.to_string(),
            format!("{restarts:.2}"),
            expected_restarts,
        ]);
        let points = report
            .lag
            .iter()
            .map(|(value, count)| (value as f64, 100.0 * count as f64 / report.lag.total() as f64));
        match bound {
            None => {
                rows.push(json!({
                    "workers": WORKERS, "k": k, "mean_staleness": lag, "max_staleness": most,
                    "expected_mean_staleness": WORKERS as f64 / *k as f64 - 1.0,
                }));
                let expected = WORKERS as f64 / *k as f64 - 1.0;
                checks.push(Check::near(format!("mean staleness, K = {k}"), expected, lag, 0.03));
                free.push(Series::line(format!("K = {k}"), points));
            }
            Some(bound) => {
                rows.push(json!({
                    "workers": WORKERS, "k": k, "bound": bound, "mean_staleness": lag, "max_staleness": most,
                    "restarts_per_round": restarts,
                }));
                let what = format!("largest staleness, K = {k}, bound {bound}");
                let holds = most <= *bound as i64;
                checks.push(Check::new(what, format!("at most {bound}"), most.to_string(), holds));
                let what = format!("mean staleness, K = {k}, bound {bound}");
                checks.push(Check::near(what, expected.2, lag, 0.05));
                checks.push(Check::near(
                    format!("restarts a round, K = {k}, bound {bound}"),
                    expected.3,
                    restarts,
                    0.05,
                ));
                bounded.push(Series::bars(format!("K = {k}"), points));
            }
        }
    }
    let axes = || (Axis::linear("staleness, versions"), Axis::linear("part of gradients, %"));
    let (x, y) = axes();
    let left = Panel { series: free, ..Panel::new(x.between(0.0, 40.0), y) }.titled("Without a bound");
    let (x, y) = axes();
    let right = Panel { series: bounded, ..Panel::new(x, y) }.titled("With a bound of 2");
    let figure = Figure::new("How stale are the gradients of an update")
        .subtitle("20 workers, exponential times; each update takes the first K gradients")
        .columns(2)
        .panel(left)
        .panel(right);
    Ok(Findings { tables: vec![("Staleness in versions".into(), table)], rows, checks, figure })
}
