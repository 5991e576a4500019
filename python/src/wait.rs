//! Waits without the interpreter, in slices, so that other threads of Python run and signals are seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use slackline::{Error, Idle};

use crate::errors::{Class, Failure};

/// The longest that a wait goes without looking for a signal, such as Ctrl-C.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// The longest timeout: a deadline that is further off cannot be computed.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Reads a timeout in seconds.
pub(crate) fn timeout(seconds: f64) -> Result<Duration, Failure> {
    time("timeout", seconds)
}

/// Reads the option of this name, a time in seconds.
pub(crate) fn time(option: &str, seconds: f64) -> Result<Duration, Failure> {
    if seconds.is_nan() || seconds < 0.0 {
        let cause = format_args!("`{option}` cannot be {seconds}");
        return Err(Failure::new(Class::BadOption, "reading a time", cause, "give seconds, 0 or more"));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(YEAR).min(YEAR))
}

/// The end of the time that a call has, for all of its waits together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Instant,
    /// The time that it had at the begin.
    pub(crate) timeout: Duration,
}

impl Deadline {
    /// The time begins now.
    pub(crate) fn of(timeout: Duration) -> Deadline {
        Deadline { end: Instant::now() + timeout, timeout }
    }

    /// Reads a timeout in seconds, of a call that begins now.
    pub(crate) fn after(seconds: f64) -> Result<Deadline, Failure> {
        Ok(Deadline::of(timeout(seconds)?))
    }

    pub(crate) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// Reads how an object waits: "poll" or "sleep".
pub(crate) fn idle(name: &str) -> Result<Idle, Failure> {
    match name {
        "poll" => Ok(Idle::Poll),
        "sleep" => Ok(Idle::Sleep),
        other => {
            let cause = format_args!("there is no way to idle called {other:?}");
            Err(Failure::new(Class::BadOption, "waiting", cause, "use poll or sleep"))
        }
    }
}

/// Calls `attempt` without the interpreter until it brings something or the time is over; `attempt` is told for how
/// long it may wait. A signal whose handler raises ends the wait.
pub(crate) fn in_slices<R: Send>(
    py: Python<'_>,
    deadline: Deadline,
    mut attempt: impl FnMut(Duration) -> Result<Option<R>, Failure> + Send,
) -> PyResult<Option<R>> {
    loop {
        let left = deadline.left();
        let slice = left.min(SLICE);
        if let Some(done) = py.detach(|| attempt(slice))? {
            return Ok(Some(done));
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

/// The number of threads that close an object, or have closed it, while others may wait in calls of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing(Arc<AtomicUsize>);

impl Closing {
    pub(crate) fn begin(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// This thread has not closed it after all.
    pub(crate) fn give_up(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// As [`in_slices`] for a call of the object, which ends when the object is being closed.
    pub(crate) fn in_slices<R: Send>(
        &self,
        py: Python<'_>,
        operation: &str,
        deadline: Deadline,
        mut attempt: impl FnMut(Duration) -> Result<Option<R>, Failure> + Send,
    ) -> PyResult<Option<R>> {
        in_slices(py, deadline, |slice| {
            if self.0.load(Ordering::SeqCst) > 0 {
                let cause = "it is closed by another thread meanwhile";
                return Err(Failure::out_of_turn(operation, cause, "make a new one"));
            }
            attempt(slice)
        })
    }

    /// The same with calls of the library, each of which waits by itself. At the deadline it is the last one's error
    /// that is raised, with the time that was waited in all.
    pub(crate) fn until<R: Send>(
        &self,
        py: Python<'_>,
        operation: &str,
        deadline: Deadline,
        mut attempt: impl FnMut(Duration) -> Result<R, Error> + Send,
    ) -> PyResult<R> {
        let mut late = None;
        let ended = self.in_slices(py, operation, deadline, |slice| match attempt(slice) {
            Err(Error::Deadline { operation, needed, seen, awaited, .. }) => {
                late = Some(Error::Deadline { operation, waited: deadline.timeout, needed, seen, awaited });
                Ok(None)
            }
            ended => Ok(Some(ended?)),
        })?;
        ended.ok_or_else(|| Failure::from(late.expect("an attempt has met its deadline")).into())
    }
}

/// Does in a destructor what waits for threads: without the interpreter, so that other threads of Python run meanwhile.
pub(crate) fn detached(work: impl FnOnce() + Send) {
    let mut work = Some(work);
    let mut end = || work.take().into_iter().for_each(|work| work());
    if Python::try_attach(|py| py.detach(&mut end)).is_none() {
        // The interpreter is ending.
        end();
    }
}

/// Calls `work`, which waits in one piece, in a thread of its own, so that signals are seen meanwhile. `work` can ask
/// whether its result is still wanted.
pub(crate) fn in_thread<R: Send + 'static>(
    py: Python<'_>,
    operation: &'static str,
    work: impl FnOnce(&AtomicBool) -> Result<R, Failure> + Send + 'static,
) -> PyResult<R> {
    let is_given_up = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&is_given_up);
    let thread = std::thread::Builder::new().name("slackline-wait".into()).spawn(move || work(&shared));
    let thread = thread.map_err(|source| Failure::from(Error::Thread { what: operation, source }))?;
    let finished = |slice: Duration| {
        let deadline = Instant::now() + slice;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(thread.is_finished().then_some(()))
    };
    if let Err(signal) = in_slices(py, Deadline::of(YEAR), finished) {
        is_given_up.store(true, Ordering::Relaxed);
        return Err(signal);
    }
    let panicked = |_| Failure::new(Class::Error, operation, "the thread panicked", "please report it");
    Ok(py.detach(|| thread.join()).map_err(panicked)??)
}
