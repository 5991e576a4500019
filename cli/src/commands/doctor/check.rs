//! Results of checks, and messages about the check that runs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use slackline::Diagnostic;
use slackline_lab::stderr;

use crate::commands::bench::{duration, rate, size};
use crate::failure;

/// Silence that is too long to bear.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// From this length on a figure says how many bytes a second it makes.
const BANDWIDTH_FROM: usize = 64 << 10;

/// An error and its remedy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Problem {
    pub(super) error: String,
    pub(super) help: String,
}

impl Problem {
    pub(super) fn new(error: impl Into<String>, help: impl Into<String>) -> Problem {
        Problem { error: error.into(), help: help.into() }
    }

    /// The same, after where it came up.
    pub(super) fn at(&self, location: &str) -> Problem {
        Problem { error: format!("{location}: {}", self.error), help: self.help.clone() }
    }
}

impl<E: Diagnostic> From<E> for Problem {
    fn from(error: E) -> Problem {
        let (error, help) = failure::explained(&error);
        let otherwise = "look at the kernel's log (dmesg), and at what RUST_LOG=debug makes this command say";
        Problem { error, help: help.unwrap_or_else(|| otherwise.into()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Ok,
    Failed,
    /// There is nothing here to try, which stops nothing.
    Unavailable,
}

/// One figure of a check: the time that it took (the median if it was repeated), and the bytes, if any.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    ns: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth_bytes_per_s: Option<f64>,
}

impl Figure {
    pub(super) fn took(ns: f64) -> Figure {
        Figure { bytes: None, ns, bandwidth_bytes_per_s: None }
    }

    pub(super) fn registered(bytes: usize, ns: f64) -> Figure {
        Figure { bytes: Some(bytes as u64), ns, bandwidth_bytes_per_s: None }
    }

    pub(super) fn moved(bytes: usize, ns: f64) -> Figure {
        let registered = Figure::registered(bytes, ns);
        let bandwidth = (bytes >= BANDWIDTH_FROM).then(|| rate(bytes as u64, ns));
        Figure { bandwidth_bytes_per_s: bandwidth, ..registered }
    }

    fn text(&self) -> String {
        let took = duration(self.ns);
        match (self.bytes, self.bandwidth_bytes_per_s) {
            (None, _) => format!("took {took}"),
            (Some(bytes), None) => format!("{} bytes in {took}", size(bytes)),
            (Some(bytes), Some(rate)) => {
                format!("{} bytes in {took} ({:.2} GB/s)", size(bytes), rate / 1e9)
            }
        }
    }
}

/// One thing that was done, with its data checked.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Check {
    pub(super) check: &'static str,
    pub(super) status: Status,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Figure>,
    #[serde(flatten)]
    pub(super) problem: Option<Problem>,
}

impl Check {
    pub(super) fn ok(check: &'static str, figures: impl IntoIterator<Item = Figure>) -> Check {
        Check { check, status: Status::Ok, figures: figures.into_iter().collect(), problem: None }
    }

    pub(super) fn failed(check: &'static str, problem: Problem) -> Check {
        Check { check, status: Status::Failed, figures: Vec::new(), problem: Some(problem) }
    }

    pub(super) fn unavailable(check: &'static str, problem: Problem) -> Check {
        Check { check, status: Status::Unavailable, figures: Vec::new(), problem: Some(problem) }
    }

    /// Returns the result of the check as text for people.
    pub(super) fn text(&self) -> String {
        match &self.problem {
            Some(problem) => problem.error.clone(),
            None => self.figures.iter().map(Figure::text).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Says on standard error what is being tried, if it takes longer than one likes to wait without a word; from a thread
/// of its own, since much of it is calls that return when they are done.
pub(super) struct CheckProgress {
    shared: Arc<CurrentCheck>,
    thread: Option<JoinHandle<()>>,
}

struct CurrentCheck {
    /// The check that runs now and the time at which it began; none once all are done.
    now: Mutex<Option<(String, Instant)>>,
    is_done: Condvar,
}

impl CheckProgress {
    pub(super) fn begin(what: &str) -> CheckProgress {
        let now = Mutex::new(Some((what.to_owned(), Instant::now())));
        let shared = Arc::new(CurrentCheck { now, is_done: Condvar::new() });
        let told = Arc::clone(&shared);
        // Without the thread, it is only silent.
        let thread = std::thread::Builder::new().spawn(move || told.tell()).ok();
        CheckProgress { shared, thread }
    }

    pub(super) fn go_on(&self, what: impl Into<String>) {
        *self.shared.lock() = Some((what.into(), Instant::now()));
    }
}

impl CurrentCheck {
    fn lock(&self) -> MutexGuard<'_, Option<(String, Instant)>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        let mut now = self.lock();
        loop {
            let waited = self.is_done.wait_timeout(now, TELL_EVERY);
            let timeout;
            (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            match &*now {
                None => return,
                Some((what, begun)) if timeout.timed_out() => match begun.elapsed().as_secs() {
                    0 => stderr::tell(format_args!("slackline doctor: {what}")),
                    seconds => stderr::tell(format_args!("slackline doctor: {what}, {seconds} s")),
                },
                Some(_) => {}
            }
        }
    }
}

impl Drop for CheckProgress {
    fn drop(&mut self) {
        *self.shared.lock() = None;
        self.shared.is_done.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does nothing that could panic.
            let _ended = thread.join();
        }
    }
}
