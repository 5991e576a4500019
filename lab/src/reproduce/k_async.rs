//! K-async and ABS on time alone: how stale updates are, and that a bound on it is kept.

use crate::plot::{Axis, Figure, Panel, Series};
use serde::Deserialize;
use serde_json::json;
use slackline::sim::{Cluster, ClusterReport, Until};

use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::Interval;
use crate::table::Table;

pub(super) const RECIPE: Recipe = Recipe {
    name: "k-async",
    title: "K-async updates are M/K - 1 versions stale; a bound is kept",
    file: include_str!("settings/k-async.toml"),
    remarks: "The formula under a bound: exponential times have no memory, so that in each round each \
              worker is among the K of M with the probability K/M, whatever it computes on. The age of \
              what it computes on is therefore a with a probability in proportion to q^a, where q = 1 - \
              K/M, and a goes from 0 to the bound b: mean staleness is that of this distribution, and in \
              each round M q P(b) workers are older than the bound and begin again.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KAsyncGrid {
    workers: usize,
    compute: String,
    versions: u64,
    bound: u64,
    k: Vec<usize>,
}

/// The mean staleness of what is folded, and the forced restarts of a round, under a bound.
fn bounded_staleness(workers: usize, k: usize, bound: u64) -> (f64, f64) {
    let stays = 1.0 - k as f64 / workers as f64;
    let weights: Vec<f64> = (0..=bound).map(|age| stays.powf(age as f64)).collect();
    let sum: f64 = weights.iter().sum();
    let mean = (0..).zip(&weights).map(|(age, weight)| f64::from(age) * weight).sum::<f64>() / sum;
    (mean, workers as f64 * stays * weights[weights.len() - 1] / sum)
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<KAsyncGrid>()?;
    let KAsyncGrid { workers, compute, versions, bound, k } = &settings.grid;
    let seeds = settings.seeds(trial);
    let items: Vec<(usize, bool)> = k.iter().flat_map(|k| [(*k, false), (*k, true)]).collect();
    let runs: Vec<(usize, bool, u64)> =
        items.iter().flat_map(|(k, is_bounded)| seeds.iter().map(|seed| (*k, *is_bounded, *seed))).collect();
    let reports = simulate("k-async", &runs, |(k, is_bounded, seed)| {
        let scheme = scheme(&match is_bounded {
            false => format!("k-async({k})"),
            true => format!("abs(rule=fixed, k={k}, staleness={bound}, shrink=fixed)"),
        })?;
        let mut cluster = Cluster::new(scheme, *workers, *seed);
        cluster.compute = compute.parse()?;
        cluster.until = Until::Versions(*versions);
        Ok(cluster)
    })?;
    let figure = Figure::new("How stale are the gradients of an update")
        .subtitle("20 workers, exponential times; each update takes the first K gradients");
    let mut findings = Findings::new(figure.columns(2));
    let heading = ["K", "bound", "mean staleness", "expected", "largest", "restarts a round", "expected "];
    let mut table = Table::new(heading);
    let (mut free, mut bounded) = (Vec::new(), Vec::new());
    for (own, (k, is_bounded)) in reports.chunks(seeds.len()).zip(&items) {
        let (bounded_lag, expected_restarts) = bounded_staleness(*workers, *k, *bound);
        let of_each = |of: fn(&ClusterReport) -> f64| own.iter().map(of).collect::<Vec<f64>>();
        let lags = of_each(|report| report.lag.mean().unwrap_or(f64::NAN));
        let most = own.iter().filter_map(|report| report.lag.max()).max().unwrap_or(0);
        let restarts = of_each(|report| report.counts.interrupted as f64 / report.versions as f64);
        let expected = if *is_bounded { bounded_lag } else { *workers as f64 / *k as f64 - 1.0 };
        table.row([
            k.to_string(),
            if *is_bounded { bound.to_string() } else { "-".into() },
            thousandths(&lags),
            format!("{expected:.3}"),
            most.to_string(),
            if *is_bounded { thousandths(&restarts) } else { "-".into() },
            if *is_bounded { format!("{expected_restarts:.3}") } else { "-".into() },
        ]);
        findings.rows.push(json!({
            "workers": workers, "k": k, "bound": is_bounded.then_some(bound), "mean_staleness": lags,
            "expected_mean_staleness": expected, "max_staleness": most, "restarts_per_round": restarts,
            "expected_restarts_per_round": is_bounded.then_some(expected_restarts),
        }));
        let over = |values: &[f64], expected: f64| {
            Interval::of_mean(&values.iter().map(|value| value / expected).collect::<Vec<_>>())
        };
        let mut measure = |name: &str, value: Interval| findings.measure(name, format!("K = {k}"), value);
        let (name, first) = (format!("K = {k}"), points(&own[0]));
        if *is_bounded {
            measure("largest", Interval::exact(most as f64));
            measure("bounded", over(&lags, expected));
            measure("restarts", over(&restarts, expected_restarts));
            bounded.push(Series::bars(name, first));
        } else {
            measure("free", over(&lags, expected));
            free.push(Series::line(name, first));
        }
    }
    let panel = |x: Axis, series| Panel { series, ..Panel::new(x, Axis::linear("part of gradients, %")) };
    let x = || Axis::linear("staleness, versions");
    let left = panel(x().between(0.0, 40.0), free).titled("Without a bound");
    findings.figure = findings.figure.panel(left).panel(panel(x(), bounded).titled("With a bound of 2"));
    let caption =
        "Staleness in versions, with 95 % intervals over the seeds; the largest is that of all seeds";
    findings.tables.push((caption.into(), table));
    Ok(findings)
}

/// The mean of the seeds with its interval, in thousandths.
fn thousandths(values: &[f64]) -> String {
    let Interval { middle, low, high } = Interval::of_mean(values);
    format!("{middle:.3} ({low:.3} to {high:.3})")
}

/// The part of the gradients at each staleness, in per cent.
fn points(report: &ClusterReport) -> Vec<(f64, f64)> {
    let total = report.lag.total() as f64;
    report.lag.iter().map(|(value, count)| (value as f64, 100.0 * count as f64 / total)).collect()
}

#[cfg(test)]
mod tests {
    use slackline::sim::Random;

    use super::*;

    /// The rule itself, round by round, without times and without the simulator.
    #[test]
    fn the_formula_under_a_bound_is_that_of_workers_drawn_at_random() {
        const ROUNDS: usize = 20_000;
        for (workers, k, bound) in [(20, 2, 2), (20, 10, 2), (7, 3, 4)] {
            let (mut random, mut ages) = (Random::new(3), vec![0u64; workers]);
            let (mut sum, mut restarts) = (0, 0);
            for _ in 0..ROUNDS {
                let mut left: Vec<usize> = (0..workers).collect();
                let first: Vec<usize> =
                    (0..k).map(|_| left.swap_remove(random.below(left.len() as u64) as usize)).collect();
                sum += first.iter().map(|worker| ages[*worker]).sum::<u64>();
                ages.iter_mut().for_each(|age| *age += 1);
                first.iter().for_each(|worker| ages[*worker] = 0);
                restarts += ages.iter().filter(|age| **age > bound).count();
                ages.iter_mut().filter(|age| **age > bound).for_each(|age| *age = 0);
            }
            let drawn = (sum as f64 / (ROUNDS * k) as f64, restarts as f64 / ROUNDS as f64);
            let (mean, begun) = bounded_staleness(workers, k, bound);
            assert!((drawn.0 / mean - 1.0).abs() < 0.02 && (drawn.1 / begun - 1.0).abs() < 0.02, "{drawn:?}");
        }
    }
}
