//! The library's log, kept until a thread of Python takes it: no thread of the library waits for the interpreter.

use std::collections::VecDeque;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;

use slackline::internals::log::{LogLine, set_log_level, take_log as give_log_to};
use slackline::internals::mem::ForkGuard;

use crate::fork;

/// Lines that are kept; lines that find no room are only counted.
const LINES_MAX: usize = 1024;

/// The longest time that the thread of Python waits for a line before it is asked whether it is to end.
const WAIT: Duration = Duration::from_secs(1);

static LOG: LazyLock<KeptLog> = LazyLock::new(KeptLog::default);

struct KeptLog {
    kept: Mutex<KeptLines>,
    changed: Condvar,
    /// In a forked child the lock may be held for ever.
    guard: ForkGuard,
}

#[derive(Default)]
struct KeptLines {
    /// Each with the time, in seconds since 1970.
    lines: VecDeque<(f64, LogLine)>,
    lost: u64,
    is_given: bool,
    is_over: bool,
}

/// A line as Python gets it: the number of its level, its module, its text, and the time in seconds since 1970.
type Line = (u32, &'static str, String, f64);

impl Default for KeptLog {
    fn default() -> KeptLog {
        KeptLog { kept: Mutex::default(), changed: Condvar::new(), guard: ForkGuard::new() }
    }
}

impl KeptLog {
    fn kept(&self) -> MutexGuard<'_, KeptLines> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, line: LogLine) {
        if self.guard.is_inherited() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut kept = self.kept();
        if kept.lines.len() == LINES_MAX || kept.is_over {
            kept.lost += 1;
            return;
        }
        kept.lines.push_back((now, line));
        drop(kept);
        self.changed.notify_one();
    }
}

/// Keeps the lines of the levels 1 (errors) to `last` from now on, for `take_log`.
#[pyfunction]
pub(crate) fn start_log(py: Python<'_>, last: u32) -> PyResult<()> {
    fork::check(LOG.guard, "logging")?;
    py.detach(|| {
        let is_given = std::mem::replace(&mut LOG.kept().is_given, true);
        // It has no other subscriber: the package's own copy of `tracing` is known to nothing else.
        if is_given || give_log_to(|line| LOG.keep(line)) {
            set_log_level(last);
        }
    });
    Ok(())
}

/// Takes the lines that are kept, waiting a second at most for the first one, and the number of lines that were lost
/// since. None after `stop_log`, once all are taken.
#[pyfunction]
pub(crate) fn take_log(py: Python<'_>) -> Option<(Vec<Line>, u64)> {
    py.detach(|| {
        let has_none = |kept: &mut KeptLines| kept.lines.is_empty() && !kept.is_over;
        let waited = LOG.changed.wait_timeout_while(LOG.kept(), WAIT, has_none);
        let (mut kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if kept.lines.is_empty() && kept.is_over {
            return None;
        }
        let lines = kept.lines.drain(..).map(|(time, line)| (line.level, line.module, line.text, time));
        let lines = lines.collect();
        Some((lines, std::mem::take(&mut kept.lost)))
    })
}

/// Ends the log: the interpreter is about to end.
#[pyfunction]
pub(crate) fn stop_log(py: Python<'_>) {
    if LOG.guard.is_inherited() {
        return;
    }
    py.detach(|| {
        set_log_level(0);
        LOG.kept().is_over = true;
        LOG.changed.notify_all();
    });
}
