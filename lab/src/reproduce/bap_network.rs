//! BAP beside a network: what is won by computing while parameters and gradients travel.

use serde::Deserialize;
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, ClusterReport, Until};

use super::settings::LogisticSettings;
use super::tuned::{Tuned, computing, missed};
use super::{Error, Findings, Recipe, Trial, simulate};
use crate::plot::{Axis, Figure, Panel, Series};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "bap-network",
    title: "BAP hides communication",
    file: include_str!("settings/bap-network.toml"),
    remarks: "Where workers are even and the network is no slower than they are, one clock of run-ahead hides \
              nearly all of it, and more hides next to nothing more: so the rule is s = communication over \
              computing, rounded up. Perfect overlap of the two gives at most twice the clocks, which is the \
              upper end of the paper's range. What is left of that at the loss depends on the step size, which \
              stale gradients bear less of.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct NetworkGrid {
    workers: usize,
    compute: String,
    /// Bytes of a gradient, and of the parameters.
    message_bytes: u64,
    /// Communication (a gradient up and a copy down) over computing.
    ratios: Vec<f64>,
    staleness: Vec<u64>,
    clocks: u64,
    learning_ratios: Vec<f64>,
    logistic: LogisticSettings,
    batch: usize,
    step_sizes: Vec<f32>,
    target: f64,
    within: f64,
}

impl NetworkGrid {
    /// BSP at staleness 0, else BAP, on links that carry a message in half of `ratio` seconds.
    fn job(&self, staleness: u64, ratio: f64, seed: u64) -> Result<Cluster, Error> {
        let scheme = if staleness == 0 { SchemeConfig::Bsp } else { SchemeConfig::Bap { staleness } };
        let mut cluster = Cluster::new(scheme, self.workers, seed);
        cluster.compute = self.compute.parse()?;
        cluster.network.worker_bandwidth = Some(self.message_bytes as f64 / (ratio / 2.0));
        cluster.network.message_bytes = Some(self.message_bytes);
        Ok(cluster)
    }
}

/// The mean, and the least and the largest of all: what arithmetic says holds for every seed.
fn of_each(values: &[f64]) -> Interval {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Interval { middle: mean(values.iter().copied()), low, high }
}

/// The staleness that hides the network where workers are even.
fn rule(ratio: f64) -> u64 {
    ratio.ceil() as u64
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<NetworkGrid>()?;
    let figure = Figure::new("BAP beside a network").columns(2).subtitle(
        "8 even workers, 1 s of computing; gradients go up and copies come down while they compute",
    );
    let mut findings = Findings::new(figure);
    let seeds = settings.seeds(trial);
    let clocks = time_per_clock(&settings.grid, &seeds, &mut findings)?;
    let learning = learn(&settings.grid, &seeds, &mut findings)?;
    findings.figure =
        findings.figure.panel(clocks.titled("Time per clock")).panel(learning.titled("Time to the loss"));
    Ok(findings)
}

fn time_per_clock(grid: &NetworkGrid, seeds: &[u64], findings: &mut Findings) -> Result<Panel, Error> {
    let cells: Vec<(f64, u64, u64)> = grid
        .ratios
        .iter()
        .flat_map(|ratio| grid.staleness.iter().map(move |staleness| (*ratio, *staleness)))
        .flat_map(|(ratio, staleness)| seeds.iter().map(move |seed| (ratio, staleness, *seed)))
        .collect();
    let reports = simulate("bap-network: time per clock", &cells, |(ratio, staleness, seed)| {
        Ok(Cluster { until: Until::Clocks(grid.clocks), ..grid.job(*staleness, *ratio, *seed)? })
    })?;
    let mut table = Table::new([
        "communication",
        "staleness",
        "time per clock, s",
        "BSP's over it",
        "computing",
        "over BSP's",
    ]);
    let mut panel =
        Panel::new(Axis::linear("communication over computing"), Axis::linear("time per clock, s"));
    let mut lines: Vec<Vec<(f64, f64)>> = vec![Vec::new(); grid.staleness.len()];
    let times =
        |own: &[ClusterReport]| own.iter().map(|report| report.mean_time_per_clock).collect::<Vec<_>>();
    let parts = |own: &[ClusterReport]| own.iter().map(computing).collect::<Vec<_>>();
    let of_ratio = grid.staleness.len() * seeds.len();
    for (ratio, own) in grid.ratios.iter().zip(reports.chunks(of_ratio)) {
        let bsp = &own[..seeds.len()];
        for ((staleness, line), own) in grid.staleness.iter().zip(&mut lines).zip(own.chunks(seeds.len())) {
            let time = mean(times(own));
            let (gain, more) =
                (Interval::of_ratio(&times(bsp), &times(own)), Interval::of_ratio(&parts(own), &parts(bsp)));
            if *staleness == rule(*ratio) {
                findings.measure("speed-up", format!("{ratio}"), gain);
                findings.measure("computing", format!("{ratio}"), more);
                findings.measure("rule-hides", format!("{ratio}"), of_each(&times(own)));
            }
            if *staleness == 0 {
                let serial: Vec<f64> = times(own).iter().map(|time| time / (1.0 + ratio)).collect();
                findings.measure("serial", format!("{ratio}"), of_each(&serial));
            }
            table.row([
                ratio.to_string(),
                staleness.to_string(),
                format!("{time:.3}"),
                number(gain.middle),
                format!("{:.0} %", 100.0 * mean(parts(own))),
                number(more.middle),
            ]);
            findings.rows.push(json!({
                "communication": ratio, "staleness": staleness, "time_per_clock": times(own), "computing": parts(own),
            }));
            line.push((*ratio, time));
        }
    }
    for (staleness, line) in grid.staleness.iter().zip(lines) {
        panel.series.push(Series::marked(format!("s = {staleness}"), line));
    }
    findings.tables.push(("Time per clock".into(), table));
    Ok(panel)
}

/// Each staleness at the best step size of the grid.
fn learn(grid: &NetworkGrid, seeds: &[u64], findings: &mut Findings) -> Result<Panel, Error> {
    let mut runs = Vec::new();
    for ratio in &grid.learning_ratios {
        for staleness in &grid.staleness {
            for step_size in &grid.step_sizes {
                runs.extend(seeds.iter().map(|seed| (*ratio, *staleness, *step_size, *seed)));
            }
        }
    }
    let reports = simulate("bap-network: learning", &runs, |(ratio, staleness, step_size, seed)| {
        let mut cluster = grid.job(*staleness, *ratio, *seed)?;
        cluster.problem = Some(Box::new(grid.logistic.with_batches_of(grid.batch).in_order(*seed)));
        cluster.learning_rate = *step_size;
        cluster.until = Until::Loss { target: grid.target, within: grid.within };
        Ok(cluster)
    })?;
    let score = |report: &ClusterReport| report.reached.unwrap_or(grid.within);
    let mut table =
        Table::new(["communication", "staleness", "best step size", "time to the loss, s", "BSP's over it"]);
    let mut panel =
        Panel::new(Axis::linear("communication over computing"), Axis::log("time to the loss, s"));
    let mut lines: Vec<Vec<(f64, f64)>> = vec![Vec::new(); grid.staleness.len()];
    let (each, mut ends) = (grid.step_sizes.len() * seeds.len(), 0.0);
    for (ratio, own) in grid.learning_ratios.iter().zip(reports.chunks(grid.staleness.len() * each)) {
        let tuned: Vec<Tuned> =
            own.chunks(each).map(|own| Tuned::new(&grid.step_sizes, own, &score)).collect();
        let best = tuned.iter().min_by(|a, b| mean(a.best_scores()).total_cmp(&mean(b.best_scores())));
        for ((staleness, line), own) in grid.staleness.iter().zip(&mut lines).zip(&tuned) {
            ends += own.ends();
            let gain = own.over(&tuned[0]);
            if *staleness == rule(*ratio) {
                findings.measure("to-a-loss", format!("{ratio}"), gain);
                if let Some(best) = best {
                    findings.measure("rule-best", format!("{ratio}"), best.over(own));
                }
            }
            let time = mean(own.best_scores());
            table.row([
                ratio.to_string(),
                staleness.to_string(),
                own.step_size().to_string(),
                number(time) + &missed(own.best_runs()),
                gain.to_string(),
            ]);
            findings.rows.push(json!({
                "learning": true, "communication": ratio, "staleness": staleness, "times": own.record_of_scores(),
            }));
            line.push((*ratio, time));
        }
    }
    findings.measure("grid", "", Interval::exact(ends));
    for (staleness, line) in grid.staleness.iter().zip(lines) {
        panel.series.push(Series::marked(format!("s = {staleness}"), line));
    }
    findings.tables.push((format!("Time to a loss of {}", grid.target), table));
    Ok(panel)
}
