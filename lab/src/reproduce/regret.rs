//! Regret on a convex problem under step sizes that fall as the inverse root, beside the bounds of the theorems.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};
use slackline::sim::{Cluster, Evaluation, Problem, Random, Until};

use super::{Error, Findings, Recipe, Trial, scheme};
use crate::parallel;
use crate::plot::{Axis, Figure, Panel, Series};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "regret",
    title: "Regret grows as the root of the updates",
    file: include_str!("settings/regret.toml"),
    remarks: "The constant for strong VAP: with s_t = sigma / sqrt(t), the sum of (x_t - z).g_t over the \
              versions x_t is at most (sigma L^2 + F^2 / sigma) sqrt(T), as for any gradient descent. A \
              gradient is that of an earlier version, and the versions between are all unseen by its \
              worker: their gradients, times 1/P, have largest elements of at most v / sqrt(c + 1) \
              together, c being the clock of the last of them, or it is one alone. No step is larger than \
              the first, so that the two versions differ by at most P sigma v / sqrt(c + 1) + sigma G / \
              sqrt(t - 1) in any element, where G is the largest element of a gradient. Each clock of each \
              worker is the last of them once; summed, that adds at most 2 L sqrt(d) sigma (P sqrt(P) v + \
              G) sqrt(T). The bounds are for the worst sequence of losses, and loose for examples that are \
              drawn.",
    run,
};

/// The Lipschitz constant of every loss, and the largest element of a gradient: features are of length 1.
const L: f64 = 1.0;
const G: f64 = 1.0;

/// Purposes of random streams.
const OPTIMUM: u64 = 1;
const EXAMPLE: u64 = 2;
const TEST: u64 = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegretGrid {
    workers: usize,
    compute: String,
    schedule: String,
    dimensions: usize,
    /// The distance of the optimum.
    distance: f64,
    noise: f64,
    updates: Vec<u64>,
    cases: Vec<RegretCase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RegretCase {
    scheme: String,
    staleness: u64,
    /// Of VAP.
    #[serde(default)]
    value_bound: Option<f64>,
}

impl RegretGrid {
    fn length(&self) -> u64 {
        self.updates.last().copied().unwrap_or(1)
    }

    /// The theorem's step size: that of the first update.
    fn sigma(&self, case: &RegretCase) -> f64 {
        self.distance / (L * (2.0 * (case.staleness + 1) as f64 * self.workers as f64).sqrt())
    }

    /// The bound on the regret after so many updates.
    fn bound(&self, case: &RegretCase, updates: u64) -> f64 {
        let (workers, sigma, distance) = (self.workers as f64, self.sigma(case), self.distance);
        let root = (updates as f64).sqrt();
        let Some(v) = case.value_bound else {
            return 4.0 * distance * L * (2.0 * (case.staleness + 1) as f64 * workers).sqrt() * root;
        };
        let stale = 2.0 * L * (self.dimensions as f64).sqrt() * sigma * (workers * workers.sqrt() * v + G);
        (sigma * L * L + distance * distance / sigma + stale) * root
    }

    fn try_once(&self, case: &RegretCase, seed: u64) -> Result<Tally, Error> {
        let mut cluster = Cluster::new(scheme(&case.scheme)?, self.workers, seed);
        cluster.compute = self.compute.parse()?;
        // Each gradient has a weight of one part in the number of workers.
        cluster.learning_rate = (self.sigma(case) * self.workers as f64) as f32;
        cluster.schedule = self.schedule.parse()?;
        cluster.until = Until::Versions(self.length());
        // Nothing is read off the curve.
        cluster.evaluate_every = Some(1e6);
        let tally = Arc::new(Mutex::new(Tally::default()));
        cluster.problem = Some(Box::new(Online::new(self, seed, Arc::clone(&tally))));
        cluster.run()?;
        let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(tally.clone())
    }
}

/// What was counted while workers learned.
#[derive(Clone, Debug, Default)]
struct Tally {
    gradients: u64,
    regret: f64,
    /// The regret at each point of the curve.
    curve: Vec<f64>,
    /// The largest half of a squared distance from the optimum.
    farthest: f64,
}

/// Absolute errors of a linear model on examples that are drawn as they are needed.
struct Online {
    seed: u64,
    optimum: Vec<f64>,
    noise: f64,
    points: Vec<u64>,
    tally: Arc<Mutex<Tally>>,
}

impl Online {
    fn new(grid: &RegretGrid, seed: u64, tally: Arc<Mutex<Tally>>) -> Online {
        let towards = direction(&mut Random::stream(seed, OPTIMUM, 0), grid.dimensions);
        let optimum = towards.into_iter().map(|element| grid.distance * element).collect();
        Online { seed, optimum, noise: grid.noise, points: grid.updates.clone(), tally }
    }

    /// An example: its features, and by how much its value differs from that of the optimum.
    fn example(&self, random: &mut Random) -> (Vec<f64>, f64) {
        let features = direction(random, self.optimum.len());
        let size = self.noise * random.exponential();
        (features, if random.unit() < 0.5 { size } else { -size })
    }

    /// The error on an example, with its sign.
    fn error(&self, parameters: &[f32], features: &[f64], noise: f64) -> f64 {
        let off = |((parameter, own), feature): ((&f32, &f64), &f64)| (f64::from(*parameter) - own) * feature;
        parameters.iter().zip(&self.optimum).zip(features).map(off).sum::<f64>() - noise
    }
}

/// Uniform on the unit sphere.
fn direction(random: &mut Random, dimensions: usize) -> Vec<f64> {
    let normal: Vec<f64> = (0..dimensions).map(|_| random.normal()).collect();
    let length = normal.iter().map(|element| element * element).sum::<f64>().sqrt();
    normal.into_iter().map(|element| element / length).collect()
}

impl Problem for Online {
    fn parameters(&self) -> usize {
        self.optimum.len()
    }

    fn initial(&self, _seed: u64) -> Vec<f32> {
        vec![0.0; self.optimum.len()]
    }

    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let mut random = Random::stream(self.seed ^ (EXAMPLE << 32), worker as u64, step);
        let (features, noise) = self.example(&mut random);
        let error = self.error(parameters, &features, noise);
        for (gradient, feature) in gradient.iter_mut().zip(&features) {
            *gradient = (error.signum() * feature) as f32;
        }
        let off = parameters.iter().zip(&self.optimum).map(|(own, best)| (f64::from(*own) - best).powi(2));
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.gradients += 1;
        tally.regret += error.abs() - noise.abs();
        tally.farthest = tally.farthest.max(0.5 * off.sum::<f64>());
        if self.points.contains(&tally.gradients) {
            let regret = tally.regret;
            tally.curve.push(regret);
        }
        error.abs() as f32
    }

    /// The mean error on examples that nobody learns from.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let mut random = Random::stream(self.seed, TEST, 0);
        let errors = (0..500).map(|_| {
            let (features, noise) = self.example(&mut random);
            self.error(parameters, &features, noise).abs()
        });
        Evaluation { loss: mean(errors), accuracy: None }
    }
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<RegretGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let items: Vec<(&RegretCase, u64)> =
        grid.cases.iter().flat_map(|case| seeds.iter().map(move |seed| (case, *seed))).collect();
    let tallies = parallel::map("regret", &items, |(case, seed)| grid.try_once(case, *seed))?;
    let figure = Figure::new("Regret under step sizes that fall as the inverse root")
        .subtitle("8 workers, absolute errors of a linear model");
    let mut findings = Findings::new(figure);
    let last = grid.updates.len() - 1;
    let (length, quarter) = (grid.length(), last.saturating_sub(2));
    let mut table =
        Table::new(["scheme", "sigma", "regret", "bound", "part of it", "growth by 4", "farthest"]);
    let mut panel = Panel::new(Axis::log("updates"), Axis::log("regret"));
    for (case, own) in grid.cases.iter().zip(tallies.chunks(seeds.len())) {
        let at = |point: usize| own.iter().map(|tally| tally.curve[point]).collect::<Vec<_>>();
        let largest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::NEG_INFINITY, f64::max);
        let bound = grid.bound(case, length);
        let part = largest(&mut at(last).into_iter()) / bound;
        let growth = Interval::of_ratio(&at(last), &at(quarter));
        let farthest = largest(&mut own.iter().map(|tally| tally.farthest)) / grid.distance.powi(2);
        let name = case.scheme.split('(').next().unwrap_or_default();
        let label = format!("s = {}", case.staleness);
        let label = if case.value_bound.is_some() { String::new() } else { label };
        findings.measure(name, &label, Interval::exact(part));
        let whole = case.scheme.clone();
        findings.measure("domain", &whole, Interval::exact(farthest));
        findings.measure("growth", &whole, growth);
        table.row([
            whole.clone(),
            number(grid.sigma(case)),
            Interval::of_mean(&at(last)).to_string(),
            number(bound),
            number(part),
            growth.to_string(),
            number(farthest),
        ]);
        let points = grid.updates.iter().enumerate();
        let curve: Vec<(f64, f64)> =
            points.map(|(point, updates)| (*updates as f64, mean(at(point)))).collect();
        let of_point = |point: usize| json!({ "updates": grid.updates[point], "values": at(point) });
        let regrets: Vec<Value> = (0..=last).map(of_point).collect();
        findings.rows.push(json!({
            "scheme": whole, "bound": bound,
            "regrets": regrets,
            "farthest": own.iter().map(|tally| tally.farthest).collect::<Vec<_>>(),
        }));
        panel.series.push(Series::line(whole, curve));
    }
    findings.figure = findings.figure.panel(panel);
    findings.tables.push((format!("Regret after {length} updates"), table));
    Ok(findings)
}
