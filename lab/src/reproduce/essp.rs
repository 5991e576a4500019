//! ESSP: the bound of SSP over copies that are pushed.

use crate::plot::{Axis, Figure, Panel, Series, staleness};
use serde::Deserialize;
use serde_json::json;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, ClusterReport, Distribution, Factorisation, Shape, Until};

use super::settings::FactorisationSettings;
use super::tuned::Tuned;
use super::{Error, Findings, Recipe, Trial, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "essp",
    title: "ESSP's copies are fresh, whatever the bound",
    file: include_str!("settings/essp.toml"),
    remarks: "In our count -1 is a copy that holds the last clock of everybody at the moment when one begins the \
              next: only lock step has that. -2 is as fresh as anybody can be who does not wait. Pushed copies \
              arrive long before the next clock here, pushing costs nothing, and no worker ever waits: with one \
              step size the four bounds of ESSP are one and the same run, so that \"whatever the bound\" says no \
              more than that. Where times are uneven or paces differ the bound of ESSP does something: [there its \
              workers wait longer with a bound of 2 than with one of 8](#essp-settings). The profile needs workers \
              of about equal pace, as in the paper's cluster: with exponential times the slowest worker, and not \
              the age of the copy, decides.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct EsspGrid {
    workers: usize,
    compute: String,
    latency: f64,
    read_my_writes: bool,
    #[serde(with = "FactorisationSettings")]
    factorisation: Shape,
    staleness: Vec<u64>,
    clocks: u64,
    /// The clock, and the second, at which losses are compared: in the middle of the descent.
    at_clock: u64,
    step_sizes: Vec<f32>,
}

impl EsspGrid {
    fn cluster(&self, scheme: SchemeConfig, step_size: f32, seed: u64) -> Result<Cluster, Error> {
        let mut cluster = Cluster::new(scheme, self.workers, seed);
        cluster.compute = self.compute.parse()?;
        cluster.network.latency = Distribution::Constant { seconds: self.latency };
        cluster.read_my_writes = self.read_my_writes;
        cluster.problem = Some(Box::new(Factorisation::new(self.factorisation, seed)));
        cluster.learning_rate = step_size;
        cluster.until = Until::Clocks(self.clocks);
        Ok(cluster)
    }

    fn at_clock(&self, report: &ClusterReport) -> f64 {
        loss(report, |point| point.clock >= self.at_clock)
    }

    fn at_time(&self, report: &ClusterReport) -> f64 {
        loss(report, |point| point.time >= self.at_clock as f64)
    }
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<EsspGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let ssp = grid.staleness.iter().map(|staleness| SchemeConfig::Ssp { staleness: *staleness });
    let essp = grid.staleness.iter().map(|staleness| SchemeConfig::Essp { staleness: *staleness });
    let schemes: Vec<SchemeConfig> = ssp.chain(essp).collect();
    let mut runs = Vec::new();
    for scheme in &schemes {
        for step_size in &grid.step_sizes {
            runs.extend(seeds.iter().map(|seed| (*scheme, *step_size, *seed)));
        }
    }
    let reports =
        simulate("essp", &runs, |(scheme, step_size, seed)| grid.cluster(*scheme, *step_size, *seed))?;
    let of_scheme = grid.step_sizes.len() * seeds.len();
    let score = |report: &ClusterReport| grid.at_clock(report);
    let tuned = |own| Tuned::new(&grid.step_sizes, own, &score);
    let bests: Vec<Best> = schemes.into_iter().zip(reports.chunks(of_scheme).map(tuned)).collect();
    let mut findings = Findings::new(figure(grid, &bests));
    tell(grid, &bests, &mut findings);
    Ok(findings)
}

/// A scheme at one staleness, with its runs.
type Best<'a> = (SchemeConfig, Tuned<'a>);

fn tell(grid: &EsspGrid, bests: &[Best], findings: &mut Findings) {
    let (at, seconds) = (grid.at_clock, grid.at_clock);
    let mut table = Table::new(
        ["scheme", "staleness", "step size", "mean", "at -1 or -2", "waiting"]
            .map(String::from)
            .into_iter()
            .chain([format!("loss at clock {at}"), format!("loss at {seconds} s")]),
    );
    for (scheme, tuned) in bests {
        let (step_size, runs) = (tuned.step_size(), tuned.best_runs());
        let part: Vec<f64> = runs.iter().map(|report| report.staleness.part(-2..=-1)).collect();
        let age: Vec<f64> = runs.iter().filter_map(|report| report.staleness.mean()).collect();
        let waits = mean(runs.iter().map(waiting));
        let losses = tuned.best_scores();
        let at_time = Interval::of_mean(&runs.iter().map(|report| grid.at_time(report)).collect::<Vec<_>>());
        let bound = scheme.staleness().unwrap_or_default();
        table.row([
            scheme.name().to_owned(),
            bound.to_string(),
            step_size.to_string(),
            format!("{:.2}", mean(age.iter().copied())),
            format!("{:.1} %", 100.0 * mean(part.iter().copied())),
            format!("{:.1} %", 100.0 * waits),
            Interval::of_mean(&losses).to_string(),
            number(at_time.middle),
        ]);
        let age_of = |report: &ClusterReport| report.staleness.mean().unwrap_or(f64::NAN);
        findings.rows.push(json!({
            "scheme": scheme.name(), "staleness": bound, "losses": tuned.record_of_scores(),
            "ages": tuned.record(age_of),
        }));
        if matches!(scheme, SchemeConfig::Essp { .. }) {
            findings.measure("fresh", format!("s = {bound}"), Interval::of_mean(&part));
        }
    }
    let half = bests.len() / 2;
    let (ssp, essp) = bests.split_at(half);
    let (first, last) = (0, half - 1);
    let ages: Vec<f64> =
        ssp[last].1.best_runs().iter().filter_map(|report| report.staleness.mean()).collect();
    findings.measure("spread", "", Interval::of_mean(&ages));
    let ratio = |left: &Best, right: &Best, of: fn(&EsspGrid, &ClusterReport) -> f64| {
        let all = |best: &Best| best.1.best_runs().iter().map(|report| of(grid, report)).collect::<Vec<_>>();
        Interval::of_ratio(&all(left), &all(right))
    };
    findings.measure("factorisation", "", ratio(&ssp[last], &essp[last], EsspGrid::at_time));
    findings.measure("per-clock", "", ratio(&ssp[last], &essp[last], EsspGrid::at_clock));
    findings.measure("ssp-worsens", "", ratio(&ssp[last], &ssp[first], EsspGrid::at_clock));
    findings.measure("essp-stays", "", ratio(&essp[last], &essp[first], EsspGrid::at_clock));
    let ends = bests.iter().map(|best| best.1.ends()).sum();
    findings.measure("grid", "", Interval::exact(ends));
    findings.tables.push(("What is read, and what it does, each at its best step size".into(), table));
}

fn figure(grid: &EsspGrid, bests: &[Best]) -> Figure {
    let mut figure = Figure::new("SSP and ESSP: how old is what workers read")
        .subtitle("16 workers of about equal pace, matrix factorisation");
    let (ssp, essp) = bests.split_at(bests.len() / 2);
    for ((bound, ssp), essp) in grid.staleness.iter().zip(ssp).zip(essp).skip(2) {
        let mut panel =
            Panel::new(Axis::linear("data's clock less reader's"), Axis::linear("part of reads, %"));
        for (name, best) in [("ssp", ssp), ("essp", essp)] {
            panel.series.push(staleness(name, &best.1.best_runs()[0].staleness, false));
        }
        figure = figure.panel(panel.titled(format!("Staleness, s = {bound}")));
    }
    let mut panel = Panel::new(Axis::linear("clock"), Axis::log("loss").between(0.02, 3.0));
    for (name, best) in [("ssp", ssp.last()), ("essp", essp.last())] {
        let points = best.into_iter().flat_map(|best| &best.1.best_runs()[0].curve);
        panel.series.push(Series::line(name, points.map(|point| (point.clock as f64, point.loss))));
    }
    figure.panel(panel.titled("Convergence, s = 16"))
}

fn waiting(report: &ClusterReport) -> f64 {
    let sum: f64 = report.of_workers.iter().map(|of| of.waiting).sum();
    sum / (report.end * report.workers as f64)
}

fn loss(report: &ClusterReport, is_there: impl Fn(&slackline::sim::Point) -> bool) -> f64 {
    report.curve.iter().find(|point| is_there(point)).map_or(f64::NAN, |point| point.loss)
}
