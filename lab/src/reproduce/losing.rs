//! The setting of each scheme in which it must lose.

use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::Digits;
use serde::Deserialize;
use serde_json::json;
use slackline::optim::Optimizer;
use slackline::sim::{Cluster, ClusterReport, Distribution, Problem, Quadratic, Until};

use super::settings::LogisticSettings;
use super::tuned::{Tuned, missed};
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::statistics::{Interval, mean};
use crate::table::{Table, number};

pub(super) const RECIPE: Recipe = Recipe {
    name: "losing",
    title: "Where each scheme must lose",
    file: include_str!("settings/losing.toml"),
    remarks: "In the first eleven rows ASP and VAP are not told apart from lock step on even workers. ABS, which \
              waits for few at first, is ahead of it even there. The groups of DS-Sync lose nothing on data that \
              all workers share. DBW, which drops the gradients of the slow worker, is behind the schemes that \
              wait for it: with batches of 8 its estimates cost more than the waiting; that it is behind where \
              all are even is chance. The settings in which it surely loses are among those of dbw, against the \
              best static k. The seven rows below them follow from theory, and each is behind with these seeds: \
              BAP, SSP and ASP because late gradients bear smaller steps where nothing but the curvature limits \
              them, VAP and DS-Sync (far) because they wait for more messages one after the other, ABS because \
              it throws away gradients that cost no waiting, DS-Sync (sorted) because its workers drift apart \
              between two means of all. DS-Sync (far) has the least to lose, and is chance. A step of 2/17 was \
              expected as the limit of SSP(16), and its best one is a little beyond: not all of its workers read \
              the same copy.",
    run,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LosingGrid {
    workers: usize,
    compute: String,
    /// The factor by which a slow worker is slower.
    slow_by: f64,
    message_bytes: u64,
    /// Bytes per second of the narrow network.
    narrow: f64,
    logistic: LogisticSettings,
    /// The number of parameters of a quadratic.
    quadratic: usize,
    step_sizes: Vec<f32>,
    target: f64,
    within: f64,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Case {
    id: String,
    scheme: String,
    /// The simpler scheme that it loses to.
    other: String,
    #[serde(rename = "where")]
    setting: String,
    #[serde(default)]
    learns: Learns,
    /// Examples in a mini-batch; a quadratic has none.
    #[serde(default)]
    batch: usize,
    #[serde(default)]
    narrow: bool,
    #[serde(default)]
    slow: bool,
    /// Seconds that each message takes, one way.
    #[serde(default)]
    latency: f64,
    /// Of both schemes; none: plain SGD.
    #[serde(default)]
    momentum: Option<f32>,
    /// Where the row has others than the grid.
    #[serde(default)]
    step_sizes: Option<Vec<f32>>,
    #[serde(default)]
    target: Option<f64>,
    #[serde(default)]
    within: Option<f64>,
}

/// What a row learns.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Learns {
    /// Logistic regression on synthetic examples.
    #[default]
    Logistic,
    /// A quadratic with exact gradients, whose curvatures are between 1 and the inverse of this.
    Quadratic(f64),
    /// Softmax regression on the digits, sorted by label and dealt out, so that each worker sees one label or two.
    SortedDigits,
}

impl Case {
    fn step_sizes<'a>(&'a self, grid: &'a LosingGrid) -> &'a [f32] {
        self.step_sizes.as_ref().unwrap_or(&grid.step_sizes)
    }

    fn target(&self, grid: &LosingGrid) -> f64 {
        self.target.unwrap_or(grid.target)
    }

    fn within(&self, grid: &LosingGrid) -> f64 {
        self.within.unwrap_or(grid.within)
    }

    fn problem(&self, grid: &LosingGrid, seed: u64) -> Result<Box<dyn Problem>, Error> {
        Ok(match self.learns {
            Learns::Logistic => Box::new(grid.logistic.with_batches_of(self.batch).in_order(seed)),
            Learns::Quadratic(condition) => Box::new(Quadratic::new(grid.quadratic, condition, 0.0, seed)),
            Learns::SortedDigits => Box::new(Digits::sorted(grid.workers, self.batch, seed)?),
        })
    }

    fn cluster(&self, grid: &LosingGrid, text: &str, step_size: f32, seed: u64) -> Result<Cluster, Error> {
        let mut cluster = Cluster::new(scheme(text)?, grid.workers, seed);
        cluster.compute = grid.compute.parse()?;
        if self.slow {
            cluster.factors = vec![grid.slow_by];
        }
        if self.narrow {
            cluster.network.server_bandwidth = Some(grid.narrow);
            cluster.network.message_bytes = Some(grid.message_bytes);
        }
        cluster.network.latency = Distribution::Constant { seconds: self.latency };
        if let Some(momentum) = self.momentum {
            cluster.optimizer = Optimizer::Momentum { momentum, weight_decay: 0.0 };
        }
        cluster.problem = Some(self.problem(grid, seed)?);
        cluster.learning_rate = step_size;
        cluster.until = Until::Loss { target: self.target(grid), within: self.within(grid) };
        Ok(cluster)
    }
}

fn run(trial: &Trial) -> Result<Findings, Error> {
    let settings = trial.settings::<LosingGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let mut runs = Vec::new();
    for case in &grid.cases {
        for text in [&case.scheme, &case.other] {
            for step_size in case.step_sizes(grid) {
                runs.extend(seeds.iter().map(|seed| (case, text, *step_size, *seed)));
            }
        }
    }
    let reports =
        simulate("losing", &runs, |(case, text, step, seed)| case.cluster(grid, text, *step, *seed))?;
    let figure =
        Figure::new("Where each scheme must lose").subtitle("16 workers, each scheme at its best step size");
    let mut findings = Findings::new(figure);
    let heading =
        ["scheme", "where", "loss", "its time, s", "step", "against", "its time, s ", "step ", "behind by"];
    let mut table = Table::new(heading);
    let (mut bars, mut ends) = (Vec::new(), 0.0);
    let mut rest = &reports[..];
    for (index, case) in (0..).zip(&grid.cases) {
        let step_sizes = case.step_sizes(grid);
        let each = step_sizes.len() * seeds.len();
        let (own, later) = rest.split_at(2 * each);
        rest = later;
        let score = |report: &ClusterReport| report.reached.unwrap_or(case.within(grid));
        let [ours, other] = [&own[..each], &own[each..]].map(|own| Tuned::new(step_sizes, own, &score));
        let behind = other.over(&ours);
        findings.measure(&case.id, "", behind);
        let mut cells = vec![case.scheme.clone(), case.setting.clone(), case.target(grid).to_string()];
        for (at, tuned) in [&ours, &other].into_iter().enumerate() {
            cells.extend((at > 0).then(|| case.other.clone()));
            cells.push(number(mean(tuned.best_scores())) + &missed(tuned.best_runs()));
            cells.push(tuned.step_size().to_string());
            ends += tuned.ends();
        }
        cells.push(behind.to_string());
        table.row(cells);
        findings.rows.push(json!({
            "case": case.id, "scheme": case.scheme, "against": case.other,
            "times": ours.record_of_scores(), "times_against": other.record_of_scores(),
        }));
        bars.push((f64::from(index), behind.middle));
    }
    findings.measure("grid", "", Interval::exact(ends));
    let x = Axis::names("setting", grid.cases.iter().map(|case| case.id.clone()));
    let panel = Panel::new(x, Axis::log("time over the other scheme's")).with(Series::bars("behind", bars));
    findings.figure = findings.figure.panel(panel);
    findings.tables.push(("Time to the loss".into(), table));
    Ok(findings)
}
