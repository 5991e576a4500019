//! The effect of delay on training, by depth and by optimiser.

use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde::Deserialize;
use serde_json::json;
use slackline::optim::{AdamParameters, Optimizer};
use slackline::sim::{Cluster, ClusterReport, Until};

use super::tuned::{Tuned, missed};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "dai",
    title: "Depth and momentum suffer from delay",
    file: include_str!("settings/dai.toml"),
    remarks: "The paper draws a delay for every pair of an update and a reader; here one is drawn for each \
              update, the same for all readers. Softmax regression is convex. With one step size for all, \
              depth decides, as the paper has it: 0.1 is a small part of what a shallow network bears without \
              delay, and the best step size of the deepest. Where each case has its own best step size the \
              shallow ones are slowed down no less. Momentum and Adam suffer more either way. A run that does \
              not get there counts as one that does at the last round, so that large slowdowns are told too \
              small.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DaiGrid {
    workers: usize,
    /// The time of a round.
    compute: String,
    batch: usize,
    evaluate_every: f64,
    /// From 0 on.
    delays: Vec<u64>,
    width: usize,
    target: f64,
    rounds: f64,
    /// By depth, then the other optimisers.
    kinds: Vec<Network>,
}

/// One curve: a network and an optimiser.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Network {
    id: String,
    name: String,
    depth: usize,
    optimizer: Rule,
    step_sizes: Vec<f32>,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rule {
    Sgd,
    Momentum,
    Adam,
}

impl Rule {
    fn optimizer(self) -> Optimizer {
        match self {
            Rule::Sgd => Optimizer::Sgd { weight_decay: 0.0 },
            Rule::Momentum => Optimizer::Momentum { momentum: 0.9, weight_decay: 0.0 },
            Rule::Adam => Optimizer::Adam(AdamParameters::default()),
        }
    }
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<DaiGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let mut runs = Vec::new();
    for kind in &grid.kinds {
        for delay in &grid.delays {
            for step_size in &kind.step_sizes {
                runs.extend(seeds.iter().map(|seed| (kind, *delay, *step_size, *seed)));
            }
        }
    }
    let reports = simulate("dai", &runs, |(kind, delay, step_size, seed)| {
        let name = format!("delay(staleness={delay}, seed={seed})");
        let mut cluster = Cluster::new(scheme(&name)?, grid.workers, *seed);
        cluster.compute = grid.compute.parse()?;
        let tower = Digits::tower(kind.depth, grid.width, grid.workers, grid.batch, *seed)?;
        cluster.problem = Some(Box::new(tower));
        cluster.optimizer = kind.optimizer.optimizer();
        cluster.learning_rate = *step_size;
        cluster.until = Until::Loss { target: grid.target, within: grid.rounds };
        cluster.evaluate_every = Some(grid.evaluate_every);
        Ok(cluster)
    })?;
    let figure = Figure::new("What delay costs")
        .subtitle("4 workers on the digits; rounds to a loss of 0.3, times those without delay");
    let mut findings = Findings::new(figure.columns(2));
    let slowdowns = tell(grid, &reports, seeds.len(), &mut findings);
    compare(grid, &slowdowns, &mut findings);
    Ok(findings)
}

/// The table and the plots, each case at its best step size; returns the slowdown of each kind at the largest delay,
/// for each seed.
fn tell(grid: &DaiGrid, reports: &[ClusterReport], seeds: usize, findings: &mut Findings) -> Vec<Vec<f64>> {
    let heading = grid.delays.iter().map(|delay| format!("s = {delay}"));
    let mut table = Table::new(std::iter::once("network".to_owned()).chain(heading));
    let panel = || {
        let x = Axis::names("delay s", grid.delays.iter().map(u64::to_string));
        Panel::new(x, Axis::linear("rounds, times those without delay"))
    };
    let mut by_depth = panel().titled("By depth, SGD");
    let mut by_optimizer = panel().titled("By optimiser, 1 hidden layer");
    let (mut slowdowns, mut ends, mut rest) = (Vec::new(), 0.0, reports);
    let score = |report: &ClusterReport| report.reached.unwrap_or(grid.rounds);
    for kind in &grid.kinds {
        let each = kind.step_sizes.len() * seeds;
        let (own, later) = rest.split_at(grid.delays.len() * each);
        rest = later;
        let cases: Vec<Tuned> =
            own.chunks(each).map(|own| Tuned::new(&kind.step_sizes, own, &score)).collect();
        let text = cases.iter().map(|case| {
            let (rounds, slower) = (mean(case.best_scores()), cases[0].over(case));
            let missed = missed(case.best_runs());
            format!("{} ({:.2}x) at {}{missed}", number(rounds), slower.middle, case.step_size())
        });
        table.row(std::iter::once(kind.name.clone()).chain(text));
        for (delay, case) in grid.delays.iter().zip(&cases) {
            let (name, rounds) = (&kind.name, case.record_of_scores());
            findings.rows.push(json!({ "network": name, "delay": delay, "rounds": rounds }));
        }
        ends += cases.iter().map(Tuned::ends).sum::<f64>();
        let points = || (0..).map(f64::from).zip(cases.iter().map(|case| cases[0].over(case).middle));
        match kind.optimizer {
            Rule::Sgd => by_depth.series.push(Series::marked(&kind.name, points())),
            _ => by_optimizer.series.push(Series::marked(&kind.name, points())),
        }
        if kind.id == "one" {
            by_optimizer.series.push(Series::marked("1 hidden layer, SGD", points()));
        }
        let last = cases[cases.len() - 1].best_scores();
        slowdowns.push(last.iter().zip(cases[0].best_scores()).map(|(late, base)| late / base).collect());
    }
    findings.measure("grid", "", Interval::exact(ends));
    let caption = format!("Rounds to a loss of {}, each case at its best step size", grid.target);
    findings.tables.push((caption, table));
    let figure = std::mem::replace(&mut findings.figure, Figure::new(""));
    findings.figure = figure.panel(by_depth).panel(by_optimizer);
    slowdowns
}

fn compare(grid: &DaiGrid, slowdowns: &[Vec<f64>], findings: &mut Findings) {
    let of_sgd = grid.kinds.iter().take_while(|kind| kind.optimizer == Rule::Sgd).count();
    for deeper in 1..of_sgd {
        let ratio = Interval::of_ratio(&slowdowns[deeper], &slowdowns[deeper - 1]);
        findings.measure("depth", &grid.kinds[deeper].name, ratio);
    }
    let one = grid.kinds.iter().position(|kind| kind.id == "one").unwrap_or(0);
    for (kind, slower) in grid.kinds.iter().zip(slowdowns).skip(of_sgd) {
        findings.measure(&kind.id, "", Interval::of_ratio(slower, &slowdowns[one]));
    }
}
