//! The display for a person while the run goes on: a bar where stderr is a terminal, else a line now and then.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use slackline_lab::model::Evaluation;
use slackline_lab::stderr;

use super::plan::Plan;

/// Least time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Least time over which versions are counted for their rate.
const RATE_OVER: Duration = Duration::from_millis(500);

/// The progress of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunProgress {
    /// Gradients published, by all workers together.
    pub(super) done: u64,
    pub(super) loss: Option<f64>,
    pub(super) evaluation: Option<Evaluation>,
    pub(super) version: u64,
    /// Gradients in the newest version, where that varies.
    pub(super) gradients: Option<u64>,
    /// Mean and largest.
    pub(super) staleness: Option<(f64, u64)>,
}

/// The display of the progress: a bar, or lines on stderr.
pub(super) struct Display {
    bar: Option<ProgressBar>,
    all: u64,
    epochs: u32,
    /// The time at which the last line was written.
    line: Option<Instant>,
    counted: (Instant, u64),
    rate: Option<f64>,
}

impl Display {
    pub(super) fn new(plan: &Plan) -> Display {
        let all = plan.gradients.unwrap_or(plan.steps * plan.workers as u64);
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(all);
            let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {percent:>3} %  {msg}");
            // The template is a constant: if it could not be read there would be indicatif's own.
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ "));
            bar
        });
        let (now, epochs) = (Instant::now(), plan.epochs);
        Display { bar, all, epochs, line: None, counted: (now, 0), rate: None }
    }

    /// Brings what is shown up to date; `last` says that the workers have ended.
    pub(super) fn show(&mut self, progress: &RunProgress, last: bool) {
        let (since, before) = self.counted;
        if since.elapsed() >= RATE_OVER {
            let versions = progress.version.saturating_sub(before) as f64;
            self.rate = Some(versions / since.elapsed().as_secs_f64());
            self.counted = (Instant::now(), progress.version);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(progress.done);
            bar.set_message(self.describe(progress));
            if last {
                bar.finish_and_clear();
            }
        } else if progress.done > 0 && self.line.is_none_or(|line| line.elapsed() >= LINE_EVERY) {
            self.line = Some(Instant::now());
            let part = progress.done as f64 / self.all as f64;
            let epoch = part * f64::from(self.epochs);
            let (percent, what) = (100.0 * part, self.describe(progress));
            stderr::tell(format_args!("epoch {epoch:.1} of {} ({percent:.0} %): {what}", self.epochs));
        }
    }

    fn describe(&self, progress: &RunProgress) -> String {
        let mut parts = Vec::with_capacity(5);
        if let Some(loss) = progress.loss {
            parts.push(format!("loss {loss:.4}"));
        }
        if let Some(accuracy) = progress.evaluation.and_then(|evaluation| evaluation.accuracy) {
            parts.push(format!("accuracy {:.1} %", 100.0 * accuracy));
        }
        if let Some(rate) = self.rate {
            parts.push(format!("{rate:.0} versions/s"));
        }
        if let Some(gradients) = progress.gradients {
            parts.push(format!("k {gradients}"));
        }
        if let Some((mean, most)) = progress.staleness {
            parts.push(format!("staleness {mean:.1} (max {most})"));
        }
        if parts.is_empty() { "starting".into() } else { parts.join("  ") }
    }

    /// Tells of something that should not happen but does not end the run.
    pub(super) fn warn(&self, what: &str) {
        self.tell(&format!("warning: {what}"));
    }

    /// Writes a line above the bar, without what a terminal would act on: other processes of the job have a say in it.
    pub(super) fn tell(&self, line: &str) {
        let line: String = line.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
        match &self.bar {
            Some(bar) => bar.suspend(|| stderr::tell(line)),
            None => stderr::tell(line),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
