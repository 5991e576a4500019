//! The same run on real processes and in the simulator.
//!
//! A twin is words for `slackline train`, whose steps sleep; the simulator then draws the same times from the same
//! seed, and what is left between the two figures is what it does not know: computing, messages, the kernel. Where
//! that is much of a step, it can be told by a second run, whose steps sleep for other times.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackline::sim::{Cluster, ClusterReport, CountHistogram, Distribution, Until};

use super::{Error, scheme};
use crate::data;
use crate::model::{HIDDEN_DEFAULT, ModelKind, ModelSpec, Shards};
use crate::problem::{Digits, DigitsError};

const BATCH: usize = 32;

/// A run on real processes, as a recipe's file has it: batches of 32 and plain SGD with step size 0.5; softmax
/// regression on the digits that all workers share, where the file says nothing else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Twin {
    scheme: String,
    workers: usize,
    /// The distribution of the time that a step sleeps.
    jitter: String,
    epochs: u64,
    /// What is compared.
    figure: Measure,
    /// The first worker's times are longer by this factor.
    #[serde(default)]
    straggler: Option<f64>,
    #[serde(default = "softmax")]
    model: ModelKind,
    /// Of a model that has hidden layers.
    #[serde(default)]
    hidden: Option<usize>,
    /// What `--data` takes.
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    shards: Option<String>,
    #[serde(default)]
    schedule: Option<String>,
    #[serde(default = "seed")]
    seed: u64,
    /// The distribution of the time that a step of a second run sleeps, which measures the rest that a version takes:
    /// the simulator is told that as the latency of messages. For schemes that interrupt: four messages lie between two
    /// of their versions.
    #[serde(default)]
    calibrated_by: Option<String>,
    /// One of the few that CI runs.
    #[serde(default)]
    ci: bool,
}

fn seed() -> u64 {
    1
}

fn softmax() -> ModelKind {
    ModelKind::Softmax
}

/// A figure that real processes and the simulator both tell.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Measure {
    /// Seconds of a worker over its clocks.
    TimePerClock,
    /// Seconds over the versions made meanwhile.
    TimePerVersion,
    /// The mean age of what is read, in clocks, from 0.
    Staleness,
    /// The part of reads that are as fresh as can be without waiting: one clock old at most.
    FreshPart,
    /// What the histograms of the ages of what is read have in common: 1 less their total variation distance. Of the
    /// real histogram with itself that is 1.
    StalenessHistogram,
    /// The mean number of versions between the one that a gradient was computed on and the one that it is in.
    Lag,
    /// The part of the gradients for which that is 0.
    FreshGradients,
    /// The part of the test examples that the parameters at the end get right.
    Accuracy,
}

/// A figure on real processes beside the simulator's.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Comparison {
    /// The recipe.
    pub recipe: String,
    /// Words for `slackline train` that repeat it.
    pub words: String,
    /// What is compared.
    pub figure: String,
    /// On real processes.
    pub real: f64,
    /// In the simulator.
    pub simulated: f64,
    /// The day of the run, and the machine.
    pub made: String,
}

impl Twin {
    /// True if CI runs it.
    pub fn is_quick(&self) -> bool {
        self.ci
    }

    /// The words for `slackline train`.
    pub fn words(&self) -> Vec<String> {
        self.words_with(&self.jitter)
    }

    /// The words of the run that measures what a version takes besides sleep, where the twin wants one.
    pub fn words_of_calibration(&self) -> Option<Vec<String>> {
        Some(self.words_with(self.calibrated_by.as_deref()?))
    }

    fn words_with(&self, jitter: &str) -> Vec<String> {
        let Twin { scheme, workers, epochs, seed, model, .. } = self;
        let given = [
            ("--model", model.to_string()),
            ("--optimizer", "sgd".to_owned()),
            ("--scheme", scheme.clone()),
            ("--workers", workers.to_string()),
            ("--jitter", jitter.to_owned()),
            ("--epochs", epochs.to_string()),
            ("--seed", seed.to_string()),
        ];
        let also = [
            ("--straggler", self.straggler.map(|factor| format!("0={factor}"))),
            ("--hidden", self.hidden.map(|units| units.to_string())),
            ("--data", self.data.clone()),
            ("--shards", self.shards.clone()),
            ("--schedule", self.schedule.clone()),
        ];
        let also = also.into_iter().filter_map(|(option, value)| Some((option, value?)));
        given.into_iter().chain(also).flat_map(|(option, value)| [option.to_owned(), value]).collect()
    }

    /// Sets the JSON of the run on real processes beside a simulation of it, which is told what the run of
    /// [`words_of_calibration`](Self::words_of_calibration) measured.
    ///
    /// # Errors
    ///
    /// If the simulator refuses the run.
    pub fn compare(
        &self,
        recipe: &str,
        run: &Value,
        calibration: Option<&Value>,
        made: &str,
    ) -> Result<Comparison, Error> {
        Ok(Comparison {
            recipe: recipe.to_owned(),
            made: made.to_owned(),
            words: self.typed(),
            figure: self.named(),
            real: self.figure.of_run(run),
            simulated: self
                .figure
                .of_report(&self.simulate(&self.jitter, run, self.rest(calibration)?)?, run),
        })
    }

    /// Its words as they are typed.
    pub(super) fn typed(&self) -> String {
        let quoted = |word: String| if word.contains('(') { format!("'{word}'") } else { word };
        self.words().into_iter().map(quoted).collect::<Vec<_>>().join(" ")
    }

    /// The name of what is compared.
    pub(super) fn named(&self) -> String {
        let told = if self.calibrated_by.is_some() { ", the rest told" } else { "" };
        self.figure.name().to_owned() + told
    }

    /// The seconds of a version in the second run that the simulator knows nothing of.
    fn rest(&self, calibration: Option<&Value>) -> Result<f64, Error> {
        let Some((jitter, run)) = self.calibrated_by.as_deref().zip(calibration) else { return Ok(0.0) };
        let simulated = self.simulate(jitter, run, 0.0)?;
        let real = Measure::TimePerVersion.of_run(run);
        Ok((real - Measure::TimePerVersion.of_report(&simulated, run)).max(0.0))
    }

    /// As many clocks, or versions, as the real run made, each of which takes the `rest` besides sleep.
    fn simulate(&self, jitter: &str, run: &Value, rest: f64) -> Result<ClusterReport, Error> {
        let scheme = scheme(&self.scheme)?;
        let mut cluster = Cluster::new(scheme, self.workers, self.seed);
        cluster.compute = jitter.parse::<Distribution>()?;
        // A gradient goes up, an interrupt comes down, a request goes up, and the copy comes down.
        cluster.network.latency = Distribution::Constant { seconds: rest / 4.0 };
        cluster.factors = self.straggler.into_iter().collect();
        if self.figure == Measure::FreshPart {
            cluster.starts = lost(run);
        }
        cluster.learning_rate = 0.5;
        cluster.schedule = self.schedule.as_deref().unwrap_or("constant").parse()?;
        let split = match &self.data {
            Some(name) => data::load(Path::new(name))?,
            None => data::digits(),
        };
        let (examples, hidden) = (split.train.rows(), self.hidden.unwrap_or(HIDDEN_DEFAULT));
        let spec = ModelSpec::new(self.model, split.train.columns, split.train.classes, &[hidden]);
        let spec = spec.map_err(DigitsError::from)?;
        let shards = self.shards.as_deref().unwrap_or("iid").parse::<Shards>();
        let shards = shards.map_err(|error| DigitsError::Batches(error.into()))?;
        let problem = Digits::of(split.into(), spec, shards, self.workers, BATCH, self.seed)?;
        cluster.problem = Some(Box::new(problem));
        // At the beginning and at the end.
        cluster.evaluate_every = Some(1e6);
        cluster.until = match scheme.counts_versions() {
            true => Until::Versions(run["versions"].as_u64().unwrap_or(1)),
            false => Until::Clocks(self.epochs * (examples / (BATCH * self.workers)) as u64),
        };
        Ok(cluster.run()?)
    }
}

/// The seconds that each worker has lost beside the one that lost the least: by a late start, by pauses, by a busy
/// machine. Even workers of which none waits never make up for it, so that it decides who reads what is fresh; to the
/// simulator all of it is told as a late start.
fn lost(run: &Value) -> Vec<f64> {
    let workers = run["workers"].as_array().map_or(&[][..], Vec::as_slice);
    let spent = || workers.iter().map(|worker| worker["compute_s"].as_f64().unwrap_or(0.0));
    let least = spent().fold(f64::INFINITY, f64::min);
    spent().map(|seconds| seconds - least).collect()
}

/// How often workers read what was how old, in clocks from 0.
fn ages(run: &Value) -> Vec<f64> {
    let workers = run["workers"].as_array().map_or(&[][..], Vec::as_slice);
    let mut ages = Vec::new();
    for counts in workers.iter().filter_map(|worker| worker["staleness_histogram"].as_array()) {
        ages.resize(ages.len().max(counts.len()), 0.0);
        for (sum, count) in ages.iter_mut().zip(counts) {
            *sum += count.as_f64().unwrap_or(0.0);
        }
    }
    ages
}

/// What two histograms have in common, each as a part of its whole; the simulator's -1 is an age of 0.
fn in_common(real: &[f64], simulated: &CountHistogram) -> f64 {
    let all: f64 = real.iter().sum();
    let part_of = |value: i64| simulated.part(value..=value);
    (0..).zip(real).map(|(age, count)| part_of(-1 - age).min(count / all)).sum()
}

impl Measure {
    const fn name(self) -> &'static str {
        match self {
            Measure::TimePerClock => "seconds per clock",
            Measure::TimePerVersion => "seconds per version",
            Measure::Staleness => "mean staleness, clocks",
            Measure::FreshPart => "part of reads at most one clock old",
            Measure::StalenessHistogram => "histogram of staleness, part in common",
            Measure::Lag => "mean staleness, versions",
            Measure::FreshGradients => "part of gradients on the newest version",
            Measure::Accuracy => "accuracy at the end",
        }
    }

    fn of_run(self, run: &Value) -> f64 {
        let workers = run["workers"].as_array().map_or(&[][..], Vec::as_slice);
        let sum = |key: &str| workers.iter().filter_map(|worker| worker[key].as_f64()).sum::<f64>();
        let seconds = sum("compute_s") + sum("wait_s");
        let reads = |weigh: fn(usize) -> f64| {
            let ages = ages(run);
            let weighed: f64 = ages.iter().enumerate().map(|(age, count)| weigh(age) * count).sum();
            weighed / ages.iter().sum::<f64>()
        };
        // All servers fold the same gradients.
        let server = &run["server_status"][0];
        let of_folded =
            |key: &str| server[key].as_f64().unwrap_or(f64::NAN) / server["folded"].as_f64().unwrap_or(0.0);
        match self {
            Measure::TimePerClock => seconds / sum("clocks"),
            Measure::TimePerVersion => {
                seconds / workers.len() as f64 / run["versions"].as_f64().unwrap_or(f64::NAN)
            }
            Measure::Staleness => reads(|age| age as f64),
            Measure::FreshPart => reads(|age| f64::from(age <= 1)),
            Measure::StalenessHistogram => 1.0,
            Measure::Lag => of_folded("versions_behind"),
            Measure::FreshGradients => of_folded("fresh"),
            Measure::Accuracy => run["final_accuracy"].as_f64().unwrap_or(f64::NAN),
        }
    }

    /// Of the simulation of a run.
    fn of_report(self, report: &ClusterReport, run: &Value) -> f64 {
        match self {
            Measure::TimePerClock => report.mean_time_per_clock,
            Measure::TimePerVersion => report.end / report.versions as f64,
            // The simulator's -1 is an age of 0.
            Measure::Staleness => report.staleness.mean().map_or(f64::NAN, |mean| -1.0 - mean),
            Measure::FreshPart => report.staleness.part(-2..=-1),
            Measure::StalenessHistogram => in_common(&ages(run), &report.staleness),
            Measure::Lag => report.lag.mean().unwrap_or(f64::NAN),
            Measure::FreshGradients => report.lag.part(0..=0),
            Measure::Accuracy => report.curve.last().and_then(|point| point.accuracy).unwrap_or(f64::NAN),
        }
    }
}

impl Comparison {
    /// How far the simulator is off, as a part of the real figure.
    pub fn off(&self) -> f64 {
        self.simulated / self.real - 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run on real processes that read what the simulator's workers read, and one in which a tenth of the reads is a
    /// clock older.
    #[test]
    fn what_histograms_have_in_common_falls_by_what_is_read_otherwise() {
        let twin: Twin = toml::from_str(
            "scheme = 'essp(4)'\nworkers = 8\njitter = 'constant(0.1)'\nepochs = 40\n\
             figure = 'staleness-histogram'",
        )
        .unwrap();
        // The first clock reads the first copy, of age 0; the other 199 wait for nothing and are one clock behind.
        let run = |counts: [u64; 3]| serde_json::json!({ "workers": [{ "staleness_histogram": counts }] });
        let compared = |counts| twin.compare("essp", &run(counts), None, "today").unwrap();
        let same = compared([1, 199, 0]);
        assert!(same.off().abs() < 0.01, "{same:?}");
        let older = compared([1, 179, 20]);
        assert!((older.off() + 0.1).abs() < 0.01, "{older:?}");
    }

    /// Of eight even workers one loses a clock and a half: the other seven read what is a clock older.
    #[test]
    fn time_that_a_worker_loses_makes_what_the_others_read_older() {
        let twin: Twin = toml::from_str(
            "scheme = 'essp(4)'\nworkers = 8\njitter = 'constant(0.1)'\nepochs = 40\nfigure = 'fresh-part'",
        )
        .unwrap();
        let run = |lost: f64| {
            let worker =
                |seconds: f64| serde_json::json!({ "compute_s": seconds, "staleness_histogram": [0, 1] });
            let workers: Vec<Value> =
                (0..8).map(|id| worker(if id == 3 { 20.0 + lost } else { 20.0 })).collect();
            twin.compare("essp", &serde_json::json!({ "workers": workers }), None, "today").unwrap().simulated
        };
        assert_eq!(run(0.0), 1.0);
        let fresh = run(0.15);
        assert!((fresh - 1.0 / 8.0).abs() < 0.02, "{fresh}");
    }

    /// A version of the second run takes 2 ms beside the 10 ms that its steps sleep, and so does one of the simulated
    /// run, unless the worker that made the last version is the first again: it waits for no interrupt and asks for no
    /// copy. Of sixteen workers that is one version in sixteen.
    #[test]
    fn a_simulation_is_told_the_rest_of_a_version_as_four_messages() {
        let twin: Twin = toml::from_str(
            "scheme = 'dbw(choice=static, k=1)'\nworkers = 16\njitter = 'exp(40)'\nepochs = 1\n\
             figure = 'time-per-version'\ncalibrated-by = 'constant(0.01)'",
        )
        .unwrap();
        assert!(twin.words_of_calibration().unwrap().contains(&"constant(0.01)".to_owned()));
        let workers = vec![serde_json::json!({ "compute_s": 1.2, "wait_s": 0.0 }); 16];
        let run = serde_json::json!({ "workers": workers, "versions": 100 });
        let compared = |calibration| twin.compare("dbw", &run, calibration, "today").unwrap();
        let added = compared(Some(&run)).simulated - compared(None).simulated;
        assert!((0.0018..=0.00201).contains(&added), "{added}");
    }
}
