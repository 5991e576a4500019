//! What examples that are dealt out unevenly cost each scheme.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use slackline::sim::{Cluster, ClusterReport, Until};

use super::tuned::Tuned;
use super::{Error, Findings, Recipe, Trial, scheme, simulate};
use crate::data::{self, Split};
use crate::model::{ModelKind, ModelSpec, Shards};
use crate::plot::{Axis, Figure, Panel, Series};
use crate::problem::{Digits, DigitsError};
use crate::statistics::Interval;
use crate::table::Table;

pub(super) const DIGITS: Recipe = Recipe {
    name: "shards",
    title: "What uneven shards cost each scheme",
    file: include_str!("settings/shards.toml"),
    remarks: "Each scheme sees as many examples whatever the shards. Accuracy is that of the parameters \
              that all share, or of the mean of all workers' parameters; the ConvNet's uses the means and \
              variances that it remembers.",
    run: |trial| run(trial, "shards", "What uneven shards cost"),
};

pub(super) const FASHION: Recipe = Recipe {
    name: "fashion",
    title: "The same on Fashion-MNIST",
    file: include_str!("settings/fashion.toml"),
    remarks: "A point of accuracy is a hundred of the 10,000 test images. It takes Debian's package \
              dataset-fashion-mnist.",
    run: |trial| run(trial, "fashion", "What uneven shards cost on Fashion-MNIST"),
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ShardsGrid {
    /// What `--data` takes; the digits if there is none.
    #[serde(default)]
    data: Option<String>,
    /// Examples to learn from, the first of the training part; all if there is no number.
    #[serde(default)]
    examples: Option<usize>,
    workers: usize,
    compute: String,
    batch: usize,
    step_sizes: Vec<f32>,
    /// The first is what the others are compared with.
    shards: Vec<String>,
    kinds: Vec<Kind>,
}

/// A scheme and a model.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    id: String,
    name: String,
    scheme: String,
    model: ModelKind,
    hidden: Vec<usize>,
    /// Gradients of each worker.
    gradients: u64,
    /// The name of the check that compares it with the first, where both see all examples.
    #[serde(default)]
    even: Option<String>,
}

impl ShardsGrid {
    fn split(&self) -> Result<Split, Error> {
        let mut split = match &self.data {
            Some(name) => data::load(Path::new(name))?,
            None => data::digits(),
        };
        if let Some(examples) = self.examples {
            split.train.labels.truncate(examples);
            split.train.features.truncate(examples * split.train.columns);
        }
        Ok(split)
    }

    fn cluster(
        &self,
        kind: &Kind,
        split: &Arc<Split>,
        shards: Shards,
        step_size: f32,
        seed: u64,
    ) -> Result<Cluster, Error> {
        let scheme = scheme(&kind.scheme)?;
        let mut cluster = Cluster::new(scheme, self.workers, seed);
        let spec = ModelSpec::new(kind.model, split.train.columns, split.train.classes, &kind.hidden);
        let spec = spec.map_err(DigitsError::from)?;
        let problem = Digits::of(Arc::clone(split), spec, shards, self.workers, self.batch, seed)?;
        cluster.problem = Some(Box::new(problem));
        cluster.compute = self.compute.parse()?;
        cluster.learning_rate = step_size;
        let rounds = kind.gradients / u64::from(scheme.local_steps());
        cluster.until =
            if scheme.counts_versions() { Until::Versions(rounds) } else { Until::Clocks(rounds) };
        // At the beginning and at the end.
        cluster.evaluate_every = Some(1e6);
        Ok(cluster)
    }
}

fn run(trial: &Trial, name: &str, title: &str) -> Result<Findings, Error> {
    let settings = trial.settings::<ShardsGrid>()?;
    let (grid, seeds) = (&settings.grid, settings.seeds(trial));
    let split = Arc::new(grid.split()?);
    let ways = grid.shards.iter().map(|text| text.parse::<Shards>());
    let ways: Vec<Shards> =
        ways.collect::<Result<_, _>>().map_err(|error| DigitsError::Batches(error.into()))?;
    let mut runs = Vec::new();
    for kind in &grid.kinds {
        for shards in &ways {
            for step_size in &grid.step_sizes {
                runs.extend(seeds.iter().map(|seed| (kind, *shards, *step_size, *seed)));
            }
        }
    }
    let reports = simulate(name, &runs, |(kind, shards, step_size, seed)| {
        grid.cluster(kind, &split, *shards, *step_size, *seed)
    })?;
    let figure = Figure::new(title).subtitle("test errors, each scheme and each way at its best step size");
    let mut findings = Findings::new(figure);
    let mut table = Table::new(["scheme", "shards", "step size", "accuracy", "points lost"]);
    let x = Axis::names("shards", grid.shards.iter().cloned());
    let mut panel = Panel::new(x, Axis::log("test examples that are wrong, %"));
    let missed = |report: &ClusterReport| {
        100.0 * (1.0 - report.curve.last().and_then(|point| point.accuracy).unwrap_or(f64::NAN))
    };
    let each = grid.step_sizes.len() * seeds.len();
    let (mut ends, mut even) = (0.0, Vec::new());
    for (kind, own) in grid.kinds.iter().zip(reports.chunks(each * ways.len())) {
        let tuned: Vec<Tuned> =
            own.chunks(each).map(|own| Tuned::new(&grid.step_sizes, own, &missed)).collect();
        let base = tuned[0].best_scores();
        if let Some(name) = &kind.even {
            findings.measure(name, "", Interval::of_difference(&even, &base));
        } else if even.is_empty() {
            even.clone_from(&base);
        }
        let mut points = Vec::new();
        for (index, (text, tuned)) in (0..).zip(grid.shards.iter().zip(&tuned)) {
            let scores = tuned.best_scores();
            let lost = Interval::of_difference(&scores, &base);
            let Interval { middle, low, high } = Interval::of_mean(&scores);
            table.row([
                kind.name.clone(),
                text.clone(),
                tuned.step_size().to_string(),
                format!("{:.2} ({:.2} to {:.2}) %", 100.0 - middle, 100.0 - high, 100.0 - low),
                if index == 0 { String::new() } else { lost.to_string() },
            ]);
            if index > 0 {
                findings.measure(&kind.id, text, lost);
            }
            ends += tuned.ends();
            points.push((f64::from(index), middle));
            findings.rows.push(json!({
                "scheme": kind.id, "shards": text,
                "accuracies": tuned.record(|report| 100.0 - missed(report)),
            }));
        }
        panel.series.push(Series::marked(&kind.name, points));
    }
    findings.measure("grid", "", Interval::exact(ends));
    findings.figure = findings.figure.panel(panel);
    findings.tables.push(("Accuracy on the test part, each at its best step size".into(), table));
    Ok(findings)
}
