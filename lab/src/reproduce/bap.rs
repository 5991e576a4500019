//! BAP: what running ahead buys under jitter, and that it buys nothing against one slow machine.

use crate::model::ModelKind;
use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde::Deserialize;
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, ClusterReport, Until};

use super::tuned::{Tuned, computing, missed};
use super::{Error, Findings, Recipe, Trial, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "bap",
    title: "BAP hides jitter",
    file: include_str!("settings/bap.toml"),
    remarks: "Exponential times, harsher than those of real machines, leave the most to win per clock; there is \
              no network, so that nothing is told of hiding communication. With one step size for all, small \
              enough for the largest run-ahead, the gain per clock carries over to the loss. But stale gradients \
              bear smaller steps only: where each has its own best step size, lock step takes so much larger \
              ones that it is there first.",
    run,
};

pub(super) const STRAGGLER: Recipe = Recipe {
    name: "bap-straggler",
    title: "No staleness hides a machine that is always slow",
    file: include_str!("settings/bap-straggler.toml"),
    remarks: "With exponential times there is jitter to hide as well: running ahead takes the time per clock \
              down to the 3 s of the slow worker, and never below.",
    run: straggler,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct BapGrid {
    compute: String,
    staleness: Vec<u64>,
    clocks: u64,
    /// The number of workers that learn the digits.
    learners: usize,
    /// It has no hidden layers.
    model: ModelKind,
    batch: usize,
    learning_staleness: Vec<u64>,
    step_sizes: Vec<f32>,
    /// The step size that all share.
    common: f32,
    target: f64,
    within: f64,
    expected: Vec<Expected>,
}

/// The mean time per clock at each staleness.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    workers: usize,
    times: Vec<f64>,
}

fn job(staleness: u64, workers: usize, compute: &str, seed: u64) -> Result<Cluster, Error> {
    let mut cluster = Cluster::new(SchemeConfig::Bap { staleness }, workers, seed);
    cluster.compute = compute.parse()?;
    Ok(cluster)
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<BapGrid>()?;
    let mut findings = Findings::new(Figure::new("BAP: running ahead hides jitter"));
    let clocks = time_per_clock(&settings.grid, &settings.seeds(trial), &mut findings)?;
    let learning = learn(&settings.grid, &settings.seeds(trial), &mut findings)?;
    findings.figure = findings
        .figure
        .subtitle("exponential times of mean 1 s; circles: the recurrence")
        .columns(2)
        .panel(clocks.titled("Time per clock"))
        .panel(learning.titled("The digits, N = 8, each at its best step size"));
    Ok(findings)
}

fn time_per_clock(grid: &BapGrid, seeds: &[u64], findings: &mut Findings) -> Result<Panel, Error> {
    // The longest first, so that no core is idle at the end.
    let runs: Vec<(usize, u64, u64)> = grid
        .expected
        .iter()
        .rev()
        .flat_map(|expected| grid.staleness.iter().map(move |staleness| (expected.workers, *staleness)))
        .flat_map(|(workers, staleness)| seeds.iter().map(move |seed| (workers, staleness, *seed)))
        .collect();
    let mut reports = simulate("bap: time per clock", &runs, |(workers, staleness, seed)| {
        let mut cluster = job(*staleness, *workers, &grid.compute, *seed)?;
        cluster.until = Until::Clocks(grid.clocks);
        Ok(cluster)
    })?;
    let names = grid.staleness.iter().map(|s| format!("s = {s}"));
    let mut table = Table::new(["N".to_owned()].into_iter().chain(names).chain(["best over BSP".to_owned()]));
    let x = Axis::names("staleness s", grid.staleness.iter().map(u64::to_string));
    let mut panel = Panel::new(x, Axis::linear("mean time per clock, s"));
    let mut circles = Vec::new();
    for Expected { workers, times: expected } in &grid.expected {
        let own = reports.split_off(reports.len() - grid.staleness.len() * seeds.len());
        let times: Vec<Vec<f64>> = own.chunks(seeds.len()).map(times_per_clock).collect();
        for ((staleness, times), expected) in grid.staleness.iter().zip(&times).zip(expected) {
            findings.rows.push(json!({
                "workers": workers, "staleness": staleness, "time_per_clock": times, "expected": expected,
            }));
        }
        let over = times.iter().zip(expected).map(|(times, expected)| {
            Interval::of_mean(&times.iter().map(|time| time / expected).collect::<Vec<_>>())
        });
        let least = over.clone().min_by(|one, other| one.low.total_cmp(&other.low));
        let most = over.max_by(|one, other| one.high.total_cmp(&other.high));
        for (label, end) in [("least", least), ("most", most)] {
            findings.measure(
                "recurrence",
                format!("{label}, N = {workers}"),
                end.unwrap_or(Interval::exact(f64::NAN)),
            );
        }
        let ours: Vec<Interval> = times.iter().map(|times| Interval::of_mean(times)).collect();
        let cells = ours
            .iter()
            .zip(expected)
            .map(|(ours, expected)| format!("{} [{expected:.3}]", thousandths(ours)));
        let gain = Interval::of_ratio(&times[0], &times[times.len() - 1]);
        table.row(std::iter::once(workers.to_string()).chain(cells).chain([gain.to_string()]));
        let middles = ours.iter().map(|ours| ours.middle);
        panel.series.push(Series::marked(format!("N = {workers}"), (0..).map(f64::from).zip(middles)));
        circles.extend((0..).map(f64::from).zip(expected.iter().copied()));
    }
    panel.series.push(Series::expected("expected", circles));
    let caption = "Mean time per clock, s, with its 95 % interval [expected]";
    findings.tables.push((caption.into(), table));
    Ok(panel)
}

/// A time with its interval, if it has one, in thousandths.
fn thousandths(Interval { middle, low, high }: &Interval) -> String {
    match high - low < 1e-9 {
        true => format!("{middle:.3}"),
        false => format!("{middle:.3} ({low:.3} to {high:.3})"),
    }
}

fn times_per_clock(reports: &[ClusterReport]) -> Vec<f64> {
    reports.iter().map(|report| report.mean_time_per_clock).collect()
}

/// Each staleness at the best step size of the grid.
fn learn(grid: &BapGrid, seeds: &[u64], findings: &mut Findings) -> Result<Panel, Error> {
    let mut runs = Vec::new();
    for staleness in &grid.learning_staleness {
        for step_size in &grid.step_sizes {
            runs.extend(seeds.iter().map(|seed| (*staleness, *step_size, *seed)));
        }
    }
    let reports = simulate("bap: learning", &runs, |(staleness, step_size, seed)| {
        let mut cluster = job(*staleness, grid.learners, &grid.compute, *seed)?;
        cluster.problem = Some(Box::new(Digits::new(grid.model, 0, grid.learners, grid.batch, *seed)?));
        cluster.learning_rate = *step_size;
        cluster.until = Until::Loss { target: grid.target, within: grid.within };
        Ok(cluster)
    })?;
    let mut panel = Panel::new(Axis::linear("virtual time, s"), Axis::log("loss"));
    let mut table = Table::new([
        "staleness",
        "best step size",
        "time to the loss, s",
        "BSP's time over it",
        "computing",
        "over BSP's",
        "BSP's time over it, step size 0.5",
    ]);
    let of_scheme = grid.step_sizes.len() * seeds.len();
    let score = |report: &ClusterReport| report.reached.unwrap_or(grid.within);
    let tuned: Vec<Tuned> =
        reports.chunks(of_scheme).map(|own| Tuned::new(&grid.step_sizes, own, &score)).collect();
    let parts = |own: &Tuned| own.best_runs().iter().map(computing).collect::<Vec<_>>();
    let common = grid.step_sizes.iter().position(|size| *size == grid.common).unwrap_or(0);
    let mut ends = 0.0;
    for (staleness, own) in grid.learning_staleness.iter().zip(&tuned) {
        let times = own.best_scores();
        let (gain, part) = (own.over(&tuned[0]), Interval::of_mean(&parts(own)));
        let more = Interval::of_ratio(&parts(own), &parts(&tuned[0]));
        let with_one = Interval::of_ratio(&tuned[0].scores(common), &own.scores(common));
        ends += own.ends();
        if *staleness > 0 {
            findings.measure("speed-up", format!("s = {staleness}"), gain);
            findings.measure("speed-up-common", format!("s = {staleness}"), with_one);
            findings.measure("computing", format!("s = {staleness}"), more);
        }
        table.row([
            staleness.to_string(),
            own.step_size().to_string(),
            number(Interval::of_mean(&times).middle) + &missed(own.best_runs()),
            gain.to_string(),
            format!("{:.0} %", 100.0 * part.middle),
            number(more.middle),
            with_one.to_string(),
        ]);
        findings.rows.push(json!({
            "learning": true, "staleness": staleness, "times": own.record_of_scores(),
            "computing": own.record(computing),
        }));
        let ClusterReport { curve, .. } = &own.best_runs()[0];
        let name = if *staleness == 0 { "bsp".into() } else { format!("bap({staleness})") };
        panel.series.push(Series::line(name, curve.iter().map(|point| (point.time, point.loss))));
    }
    findings.measure("grid", "", Interval::exact(ends));
    findings.tables.push(("8 workers on the digits".into(), table));
    Ok(panel)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SlowGrid {
    workers: usize,
    /// Distributions of time, each after its name.
    times: Vec<(String, String)>,
    staleness: Vec<u64>,
    clocks: u64,
    factor: f64,
}

fn straggler(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<SlowGrid>()?;
    let SlowGrid { workers, times, staleness, clocks, factor } = &settings.grid;
    let seeds = settings.seeds(trial);
    let runs: Vec<_> = times
        .iter()
        .flat_map(|(_, compute)| staleness.iter().map(move |staleness| (compute, *staleness)))
        .flat_map(|(compute, staleness)| seeds.iter().map(move |seed| (compute, staleness, *seed)))
        .collect();
    let reports = simulate("bap-straggler", &runs, |(compute, staleness, seed)| {
        let mut cluster = job(*staleness, *workers, compute, *seed)?;
        cluster.factors = vec![*factor];
        cluster.until = Until::Clocks(*clocks);
        Ok(cluster)
    })?;
    let mut table = Table::new(["times", "staleness", "mean time per clock, s", "times as fast as BSP"]);
    let x = Axis::names("staleness s", staleness.iter().map(u64::to_string));
    let mut panel = Panel::new(x, Axis::linear("mean time per clock, s"));
    let figure = Figure::new("One worker is three times slower");
    let mut findings = Findings::new(figure.subtitle("BAP, 8 workers, 4,000 clocks"));
    let mut means: Vec<(String, Interval)> = Vec::new();
    for ((name, _), own) in times.iter().zip(reports.chunks(staleness.len() * seeds.len())) {
        let times: Vec<Vec<f64>> = own.chunks(seeds.len()).map(times_per_clock).collect();
        for (staleness, times_here) in staleness.iter().zip(&times) {
            let (time, gain) = (Interval::of_mean(times_here), Interval::of_ratio(&times[0], times_here));
            findings
                .rows
                .push(json!({ "times": name, "staleness": staleness, "time_per_clock": times_here }));
            table.row([name.clone(), staleness.to_string(), thousandths(&time), thousandths(&gain)]);
            means.push((format!("{name}, s = {staleness}"), time));
        }
        let middles = times.iter().map(|times| mean(times.iter().copied()));
        panel.series.push(Series::bars(name, (0..).map(f64::from).zip(middles)));
        if name == "constant" {
            findings.measure("constant", "", Interval::of_ratio(&times[0], &times[times.len() - 1]));
        }
    }
    panel.series.push(Series::guide("the slow worker alone", [(-0.5, *factor), (3.5, *factor)]));
    let floor = times_per_clock(&reports).into_iter().fold(f64::INFINITY, f64::min);
    findings.measure("floor", "", Interval::exact(floor));
    if let Some((label, least)) =
        means.into_iter().min_by(|(_, one), (_, other)| one.low.total_cmp(&other.low))
    {
        findings.measure("floor-mean", label, least);
    }
    findings.figure = findings.figure.panel(panel);
    let caption = "Mean time per clock, with the 95 % interval over the seeds; constant times are the same for each \
                   seed, and have none";
    findings.tables.push((caption.into(), table));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use slackline::sim::Random;

    use super::super::settings::Settings;
    use super::*;

    /// A worker begins a clock when it has ended the one before, and all have ended that of s clocks before.
    fn recurrence(workers: usize, staleness: usize, clocks: usize) -> f64 {
        let mut random = Random::new(5);
        let mut ends = vec![0.0f64; workers];
        // When all had ended each of the last clocks, the latest last.
        let mut all = vec![0.0f64; staleness + 1];
        for _ in 0..clocks {
            let from = all.remove(0);
            ends.iter_mut().for_each(|end| *end = end.max(from) + random.exponential());
            all.push(ends.iter().copied().fold(0.0, f64::max));
        }
        ends.iter().sum::<f64>() / (workers * clocks) as f64
    }

    #[test]
    fn the_expected_times_are_those_of_the_recurrence_and_of_the_largest_of_n() {
        let grid = Settings::<BapGrid>::read(RECIPE.file).unwrap().grid;
        for Expected { workers, times } in &grid.expected {
            let largest: f64 = (1..=*workers).map(|n| 1.0 / n as f64).sum();
            assert!((times[0] - largest).abs() < 0.0006, "{}: not {largest}", times[0]);
            for (staleness, expected) in grid.staleness.iter().zip(times) {
                let time = recurrence(*workers, *staleness as usize, 40_000);
                assert!((time / expected - 1.0).abs() < 0.02, "N = {workers}, s = {staleness}: {time}");
            }
        }
    }
}
