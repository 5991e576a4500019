//! Schemes at the best step size of each, over the same seeds.

use serde_json::{Value, json};
use slackline::sim::ClusterReport;

use crate::statistics::{Interval, mean};

/// The runs of one scheme: for each step size of a grid, in order, one report for each seed, in order.
pub(super) struct Tuned<'a> {
    step_sizes: &'a [f32],
    reports: &'a [ClusterReport],
    /// The less, the better.
    score: &'a dyn Fn(&ClusterReport) -> f64,
}

impl<'a> Tuned<'a> {
    pub(super) fn new(
        step_sizes: &'a [f32],
        reports: &'a [ClusterReport],
        score: &'a dyn Fn(&ClusterReport) -> f64,
    ) -> Tuned<'a> {
        Tuned { step_sizes, reports, score }
    }

    /// The runs with a step size.
    pub(super) fn of(&self, at: usize) -> &'a [ClusterReport] {
        let seeds = self.reports.len() / self.step_sizes.len();
        &self.reports[at * seeds..][..seeds]
    }

    /// The scores with a step size.
    pub(super) fn scores(&self, at: usize) -> Vec<f64> {
        self.of(at).iter().map(self.score).collect()
    }

    /// The scores with the best step size.
    pub(super) fn best_scores(&self) -> Vec<f64> {
        self.scores(self.best())
    }

    /// The index of the step size with the least score on average; a run that diverged has none.
    fn best(&self) -> usize {
        let average = |at: &usize| {
            let average = mean(self.scores(*at));
            if average.is_nan() { f64::INFINITY } else { average }
        };
        (0..self.step_sizes.len()).min_by(|a, b| average(a).total_cmp(&average(b))).unwrap_or(0)
    }

    /// The best step size.
    pub(super) fn step_size(&self) -> f32 {
        self.step_sizes[self.best()]
    }

    /// The runs with the best step size.
    pub(super) fn best_runs(&self) -> &'a [ClusterReport] {
        self.of(self.best())
    }

    /// 1 if the best step size is an end of the grid, so that a better one may lie beyond it.
    pub(super) fn ends(&self) -> f64 {
        f64::from(u8::from([0, self.step_sizes.len() - 1].contains(&self.best())))
    }

    /// The score of another scheme over that of this one, each at its best step size.
    pub(super) fn over(&self, other: &Tuned) -> Interval {
        Interval::of_ratio(&other.best_scores(), &self.best_scores())
    }

    /// A value of each run, by step size: what the record keeps, whichever is the best.
    pub(super) fn record(&self, value: impl Fn(&ClusterReport) -> f64) -> Value {
        let cells = self.step_sizes.iter().enumerate().map(|(at, step_size)| {
            let values: Vec<f64> = self.of(at).iter().map(&value).collect();
            json!({ "step_size": step_size.to_string(), "values": values })
        });
        cells.collect()
    }

    /// The scores, by step size.
    pub(super) fn record_of_scores(&self) -> Value {
        self.record(self.score)
    }
}

/// Times to the loss; a run that is not there counts as `within`.
pub(super) fn times(reports: &[ClusterReport], within: f64) -> Vec<f64> {
    reports.iter().map(|report| report.reached.unwrap_or(within)).collect()
}

/// How many runs did not get there, as a remark.
pub(super) fn missed(reports: &[ClusterReport]) -> String {
    match reports.iter().filter(|report| report.reached.is_none()).count() {
        0 => String::new(),
        missed => format!(" ({missed} of {} not there)", reports.len()),
    }
}

/// The part of the time of all workers that they spent computing what was published.
pub(super) fn computing(report: &ClusterReport) -> f64 {
    let sum: f64 = report.of_workers.iter().map(|of| of.computing).sum();
    sum / (report.end * report.workers as f64)
}
