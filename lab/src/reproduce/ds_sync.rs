//! DS-Sync: the mean after m rounds, the accuracy, and the time that communication takes.

use crate::model::ModelKind;
use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde::Deserialize;
use serde_json::json;
use slackline::optim::Optimizer;
use slackline::{
    scheme::{Groups, Partition},
    sim::{Cluster, ClusterReport, Collective, Distribution, Racks, Random, Until},
};

use super::tuned::Tuned;
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const MEAN: Recipe = Recipe {
    name: "ds-sync-mean",
    title: "After m rounds everybody has the mean",
    file: include_str!("settings/ds-sync-mean.toml"),
    remarks: "In f32 the error is the rounding of numbers of size 1, a few units of 6e-8 for each round. This is \
              arithmetic, which one draw of the numbers shows as well as ten; `tests/group.rs` averages on real \
              members.",
    run: means,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MeanGrid {
    /// Values that each worker begins with.
    values: usize,
    shapes: Vec<Shape>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    workers: usize,
    group: u16,
    partition: Partition,
}

fn means(trial: &Trial) -> Result<Findings, Error> {
    let MeanGrid { values, shapes } = trial.settings()?.grid;
    let mut table = Table::new(["N", "g", "partition", "rounds", "error in f64", "error in f32"]);
    let mut panel = Panel::new(Axis::linear("rounds"), Axis::log("largest distance from the mean"));
    let figure = Figure::new("Averages within groups reach the mean of all")
        .subtitle("10,000 numbers of each worker, in f32: what is left is rounding");
    let mut findings = Findings::new(figure);
    for Shape { workers, group, partition } in shapes {
        let name = format!("{partition:?}").to_lowercase();
        let groups = Groups::new(workers, group, partition)?;
        let errors = averaged(&groups, workers, values, trial.seed, |value| value);
        let single = averaged(&groups, workers, values, trial.seed, |value| f64::from(value as f32));
        let (error, error_single) = (errors[errors.len() - 1], single[single.len() - 1]);
        let label = format!("N = {workers}, g = {group}, {name}");
        findings.measure("double", &label, Interval::exact(error));
        findings.measure("single", &label, Interval::exact(error_single));
        table.row([
            workers.to_string(),
            group.to_string(),
            name.clone(),
            groups.rounds().to_string(),
            format!("{error:.1e}"),
            format!("{error_single:.1e}"),
        ]);
        findings.rows.push(json!({
            "workers": workers, "group": group, "partition": name, "rounds": groups.rounds(),
            "error": error, "error_f32": error_single,
        }));
        let points = single.iter().enumerate().map(|(round, error)| (round as f64, *error));
        panel.series.push(Series::marked(format!("{workers} workers, g = {group}, {name}"), points));
    }
    findings.figure = findings.figure.panel(panel);
    findings.tables.push(("Distance from the mean of all".into(), table));
    Ok(findings)
}

/// The largest distance from the mean, at the beginning and after each round; `round` is the precision.
fn averaged(
    groups: &Groups,
    workers: usize,
    values: usize,
    seed: u64,
    round: impl Fn(f64) -> f64,
) -> Vec<f64> {
    let mut random = Random::stream(seed, 0x6d65_616e, workers as u64);
    let mut held: Vec<Vec<f64>> =
        (0..workers).map(|_| (0..values).map(|_| round(random.normal())).collect()).collect();
    let exact: Vec<f64> = (0..values).map(|at| mean(held.iter().map(|own| own[at]))).collect();
    let distance = |held: &[Vec<f64>]| {
        let all =
            held.iter().flat_map(|own| own.iter().zip(&exact).map(|(value, exact)| (value - exact).abs()));
        all.fold(0.0, f64::max)
    };
    let mut distances = vec![distance(&held)];
    for number in 0..u64::from(groups.rounds()) {
        let next = (0..workers).map(|rank| {
            let members: Vec<usize> = groups.members(rank, number).collect();
            let sum = |at: usize| members.iter().fold(0.0, |sum, member| round(sum + held[*member][at]));
            (0..values).map(|at| round(sum(at) / members.len() as f64)).collect()
        });
        held = next.collect();
        distances.push(distance(&held));
    }
    distances
}

pub(super) const RECIPE: Recipe = Recipe {
    name: "ds-sync",
    title: "DS-Sync trains as well as BSP, and talks less",
    file: include_str!("settings/ds-sync.toml"),
    remarks: "Bytes hardly differ between small groups and a ring of all: each worker moves 2 (g - 1) / g \
              messages instead of 2 (N - 1) / N, so against a ring the gain falls towards the latency of the \
              longer ring as N grows. Against one server, whose link takes N messages each way at every \
              clock, it grows with N. All are in one rack here; `ds-sync-network` has several.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DsSyncGrid {
    /// Hidden units of the perceptron.
    hidden: usize,
    batch: usize,
    momentum: f32,
    evaluate_every: f64,
    step_sizes: Vec<f32>,
    epochs: u64,
    /// BSP and DS-Sync by turns.
    kinds: Vec<Pairing>,
    bytes: u64,
    bandwidth: f64,
    latency: f64,
    counts: Vec<usize>,
    /// Seconds of computing in a run that is timed.
    computing: f64,
    /// Of each run that is timed.
    rounds: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pairing {
    workers: usize,
    scheme: String,
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<DsSyncGrid>()?;
    let figure = Figure::new("DS-Sync: averages within small groups")
        .subtitle("100 MB messages on 10 Gbit/s links; a perceptron on the digits");
    let mut findings = Findings::new(figure.columns(2));
    let curves = learn(&settings.grid, &settings.seeds(trial), &mut findings)?;
    let panel = talk(&settings.grid, trial.seed, &mut findings)?;
    findings.figure = findings.figure.panel(panel.titled("Communication")).panel(curves);
    Ok(findings)
}

fn learn(grid: &DsSyncGrid, seeds: &[u64], findings: &mut Findings) -> Result<Panel, Error> {
    let mut runs = Vec::new();
    for kind in &grid.kinds {
        for step_size in &grid.step_sizes {
            runs.extend(seeds.iter().map(|seed| (kind, *step_size, *seed)));
        }
    }
    let reports = simulate("ds-sync: learning", &runs, |(kind, step_size, seed)| {
        let Pairing { workers, scheme: text } = kind;
        let mut cluster = Cluster::new(scheme(text)?, *workers, *seed);
        let problem = Digits::new(ModelKind::Mlp, grid.hidden, *workers, grid.batch, *seed)?;
        cluster.until = Until::Clocks(grid.epochs * (problem.examples() / (grid.batch * *workers)) as u64);
        cluster.problem = Some(Box::new(problem));
        cluster.optimizer = Optimizer::Momentum { momentum: grid.momentum, weight_decay: 0.0 };
        cluster.learning_rate = *step_size;
        cluster.evaluate_every = Some(grid.evaluate_every);
        Ok(cluster)
    })?;
    let mut table = Table::new(["workers", "scheme", "step size", "accuracy", "loss"]);
    let mut curves = Panel::new(Axis::linear("clock"), Axis::log("loss")).titled("The digits, 16 workers");
    let (mut reached, mut ends) = (Vec::new(), 0.0);
    for (kind, own) in grid.kinds.iter().zip(reports.chunks(grid.step_sizes.len() * seeds.len())) {
        let missed = |report: &ClusterReport| 100.0 * (1.0 - accuracy(report));
        let tuned = Tuned::new(&grid.step_sizes, own, &missed);
        ends += tuned.ends();
        let accuracies: Vec<f64> = tuned.best_scores().iter().map(|missed| 100.0 - missed).collect();
        let loss = mean(tuned.best_runs().iter().filter_map(|report| Some(report.curve.last()?.loss)));
        let Interval { middle, low, high } = Interval::of_mean(&accuracies);
        table.row([
            kind.workers.to_string(),
            kind.scheme.clone(),
            tuned.step_size().to_string(),
            format!("{middle:.2} ({low:.2} to {high:.2}) %"),
            number(loss),
        ]);
        findings.rows.push(json!({
            "workers": kind.workers, "scheme": kind.scheme,
            "accuracies": tuned.record(|report| 100.0 * accuracy(report)),
        }));
        if kind.workers == 16 {
            let points = tuned.best_runs()[0].curve.iter().map(|point| (point.clock as f64, point.loss));
            curves.series.push(Series::line(kind.scheme.split('(').next().unwrap_or_default(), points));
        }
        reached.push(accuracies);
    }
    for (kind, pair) in grid.kinds.chunks(2).zip(reached.chunks(2)) {
        let label = format!("{} workers", kind[0].workers);
        findings.measure("level", label, Interval::of_difference(&pair[1], &pair[0]));
    }
    findings.measure("grid", "", Interval::exact(ends));
    findings.tables.push(("Accuracy on the test part, each at its best step size".into(), table));
    Ok(curves)
}

fn talk(grid: &DsSyncGrid, seed: u64, findings: &mut Findings) -> Result<Panel, Error> {
    let mut cells = Vec::new();
    for workers in &grid.counts {
        let side = (*workers as f64).sqrt().round() as usize;
        let names = ["bsp".to_owned(), format!("ds-sync({workers})"), format!("ds-sync({side})")];
        cells.extend(names.map(|name| (*workers, name)));
    }
    let timed = simulate("ds-sync: time", &cells, |(workers, name)| {
        let mut cluster = Cluster::new(scheme(name)?, *workers, seed);
        cluster.compute = Distribution::Constant { seconds: grid.computing };
        cluster.network.latency = Distribution::Constant { seconds: grid.latency };
        cluster.network.worker_bandwidth = Some(grid.bandwidth);
        cluster.network.server_bandwidth = Some(grid.bandwidth);
        cluster.network.message_bytes = Some(grid.bytes);
        // Rings run on the links of one rack, which its workers alone share.
        cluster.network.racks = (name != "bsp").then(|| Racks {
            size: *workers,
            uplink: grid.bandwidth,
            links: Vec::new(),
            others: Vec::new(),
            average: Collective::Ring,
        });
        cluster.until = Until::Versions(grid.rounds);
        Ok(cluster)
    })?;
    let heading = [
        "workers",
        "BSP, one server, s",
        "ring of all, s",
        "DS-Sync, g = sqrt(N), s",
        "gain over BSP",
        "over the ring",
    ];
    let mut table = Table::new(heading);
    // To the end of the last round, with all that it moves.
    let talk = |report: &ClusterReport| report.end / grid.rounds as f64 - grid.computing;
    let mut panel = Panel::new(Axis::log("workers"), Axis::log("communication per clock, s"));
    let mut series: [Vec<(f64, f64)>; 3] = Default::default();
    let mut before: Option<f64> = None;
    for (workers, own) in grid.counts.iter().zip(timed.chunks(3)) {
        let [bsp, ring, ours] = [talk(&own[0]), talk(&own[1]), talk(&own[2])];
        for (points, time) in series.iter_mut().zip([bsp, ring, ours]) {
            points.push((*workers as f64, time));
        }
        let cells = [bsp, ring, ours].map(|time| format!("{time:.3}"));
        let gains = [bsp / ours, ring / ours];
        if let Some(before) = before.replace(gains[0]) {
            findings.measure("in-cast", format!("{workers} workers"), Interval::exact(gains[0] / before));
        }
        if workers == grid.counts.last().unwrap_or(workers) {
            findings.measure("ring", "", Interval::exact(gains[1]));
        }
        let gains = gains.map(|gain| format!("{gain:.2}"));
        table.row(std::iter::once(workers.to_string()).chain(cells).chain(gains));
        findings.rows.push(json!({ "workers": workers, "bsp_s": bsp, "ring_s": ring, "ds_sync_s": ours }));
    }
    for (name, points) in ["bsp", "ring of all", "ds-sync"].into_iter().zip(series) {
        panel.series.push(Series::marked(name, points));
    }
    findings.tables.push(("Communication per clock".into(), table));
    Ok(panel)
}

fn accuracy(report: &ClusterReport) -> f64 {
    report.curve.last().and_then(|point| point.accuracy).unwrap_or(f64::NAN)
}
