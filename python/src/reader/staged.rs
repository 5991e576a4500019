//! Versions that are staged: `prefetch` and `swap`.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use slackline::Error;

use super::PyReader;
use crate::errors::{Class, Failure};
use crate::reading::{Pulled, Pulling, Request, Shared};
use crate::snapshot::Snapshot;
use crate::wait::{Deadline, in_slices};

/// Whether there is a prefetch.
pub(super) enum Staging {
    None,
    There(Staged),
    /// A swap has taken it, and waits for its version.
    Awaited,
}

/// A prefetch.
pub(super) struct Staged {
    /// The connection of which the version is to be.
    connection: u64,
    request: Request,
    timeout: Duration,
    /// The slot in which its thread leaves the version: to take a finished version costs no more than a lock.
    version: Receiver<Brought>,
}

/// The end of a prefetch.
type Brought = Result<Pulled, Failure>;

const PREFETCHING: &str = "prefetching a version";
const SWAPPING: &str = "swapping a version in";

/// The pause in which a thread that prefetches lets another one have the reader, which looks twice as often.
const TURN: Duration = Duration::from_millis(1);

#[pymethods]
impl PyReader {
    /// Begins to fetch a version in a thread of the library, while this thread continues; `swap` hands it out. The
    /// arguments are as for `pull`: bounds hold, and staleness counts, at the moment at which the version is staged.
    /// A version that is not there within `timeout` seconds is asked for again by `swap`. Raises OutOfTurn during a
    /// pin, or if a version is staged already.
    #[pyo3(signature = (*, max_staleness=None, min_version=0, version=None, timeout=30.0))]
    fn prefetch(
        &self,
        py: Python<'_>,
        max_staleness: Option<u64>,
        min_version: u64,
        version: Option<u64>,
        timeout: f64,
    ) -> PyResult<()> {
        let deadline = Deadline::after(timeout)?;
        let request = Request::of(max_staleness, min_version, version)?;
        if !matches!(&*self.staged(), Staging::None) {
            return Err(occupied().into());
        }
        self.unpinned(py, PREFETCHING, deadline, |_reading| Ok(()))?;
        let mut staged = self.staged();
        // Another thread may have been first.
        let begun = match &*staged {
            Staging::None => self
                .begin_staging(self.shared.connection(), request, deadline)
                .map(|begun| *staged = Staging::There(begun)),
            Staging::There(_) | Staging::Awaited => Err(occupied()),
        };
        drop(staged);
        Ok(begun?)
    }

    /// Hands out the version that `prefetch` has fetched, waiting for it at most `timeout` seconds: if it is there,
    /// this takes microseconds at any size. Raises the errors of a pull.
    ///
    /// Bounds and staleness hold for the moment at which the version was staged: it may be older than a version that
    /// was pulled since. A prefetch whose own timeout has ended before is begun again, within this one's; after a
    /// DeadlineError call again. Raises OutOfTurn if no version is staged, as after `reconnect`, or if another thread
    /// waits for it.
    #[pyo3(signature = (*, timeout=30.0))]
    fn swap(&self, py: Python<'_>, timeout: f64) -> PyResult<Snapshot> {
        crate::fork::check(self.shared.guard, SWAPPING)?;
        let deadline = Deadline::after(timeout)?;
        let taken = self.take_staged()?;
        let connection = taken.connection;
        let (stays, pulled) = self.await_staged(py, taken, deadline);
        let has_connected = {
            let mut staged = self.staged();
            // `forget_staged` counts the connection first, and then drops what it finds.
            let has_connected = self.shared.connection() != connection;
            *staged = if has_connected { Staging::None } else { stays };
            has_connected
        };
        match pulled? {
            _ if has_connected => Err(connected_again().into()),
            pulled => Ok(self.snapshot(pulled)),
        }
    }
}

impl PyReader {
    /// Held by no thread that waits, or that makes an exception: that runs code of Python, which lets other threads
    /// have the interpreter, and they wait with it for this lock.
    fn staged(&self) -> MutexGuard<'_, Staging> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of a prefetch, which is over once the reader has another connection than this.
    fn begin_staging(
        &self,
        connection: u64,
        request: Request,
        deadline: Deadline,
    ) -> Result<Staged, Failure> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("slackline-prefetch".into());
        let (leave, version) = mpsc::sync_channel(1);
        let started = thread.spawn(move || drop(leave.send(stage(&shared, connection, request, deadline))));
        started.map_err(|source| Error::Thread { what: "a prefetch", source })?;
        Ok(Staged { connection, request, timeout: deadline.timeout, version })
    }

    /// Takes the prefetch for a swap.
    fn take_staged(&self) -> Result<Staged, Failure> {
        let mut staged = self.staged();
        match std::mem::replace(&mut *staged, Staging::Awaited) {
            Staging::There(there) => Ok(there),
            Staging::Awaited => {
                let cause = "another call waits for the version that is staged";
                Err(Failure::out_of_turn(SWAPPING, cause, "use what that call returns"))
            }
            Staging::None => {
                *staged = Staging::None;
                Err(none_staged("no version is staged"))
            }
        }
    }

    /// Waits for the version of a prefetch that a swap has taken, and returns what stays staged.
    fn await_staged(
        &self,
        py: Python<'_>,
        mut staged: Staged,
        deadline: Deadline,
    ) -> (Staging, PyResult<Pulled>) {
        loop {
            let Staged { connection, request, timeout, version } = staged;
            let brought = match version.try_recv() {
                Ok(brought) => brought,
                Err(_) => {
                    let waiting = Mutex::new(version);
                    let waited = in_slices(py, deadline, |slice| Ok(received(&waiting, slice)));
                    let version = waiting.into_inner().unwrap_or_else(PoisonError::into_inner);
                    match waited {
                        Ok(Some(brought)) => brought,
                        over => {
                            let cause = "the version is not there yet";
                            let late = || Failure::new(Class::Deadline, SWAPPING, cause, "call again").into();
                            let stays = Staged { connection, request, timeout, version };
                            return (Staging::There(stays), Err(over.err().unwrap_or_else(late)));
                        }
                    }
                }
            };
            let late = match brought {
                // The program has had this memory from a pull, too, and may have written it.
                Ok(pulled) if pulled.1.written().may_be() => None,
                Ok(pulled) => return (Staging::None, Ok(pulled)),
                // The prefetch had less time than this call has.
                Err(late) if late.is_late() => Some(late),
                Err(failure) => return (Staging::None, Err(failure.into())),
            };
            let is_over = deadline.left().is_zero();
            let again = if is_over { Deadline::of(timeout) } else { deadline };
            staged = match self.begin_staging(connection, request, again) {
                Ok(again) => Staged { timeout, ..again },
                Err(failure) => return (Staging::None, Err(failure.into())),
            };
            if let Some(late) = late.filter(|_| is_over) {
                return (Staging::There(staged), Err(late.into()));
            }
        }
    }

    /// Drops versions that were staged before the reader connected again.
    pub(super) fn forget_staged(&self) {
        self.shared.has_connected();
        let mut staged = self.staged();
        if let Staging::There(_) = &*staged {
            *staged = Staging::None;
        }
    }

    /// Waits for the thread of a prefetch, which ends as the reader does.
    pub(super) fn end_staging(&self) {
        let staging = std::mem::replace(&mut *self.staged(), Staging::None);
        if let Staging::There(staged) = staging {
            // What it has brought is not asked for any more.
            drop(staged.version.recv());
        }
    }
}

fn occupied() -> Failure {
    Failure::out_of_turn(PREFETCHING, "a version is staged already", "swap it in first")
}

fn none_staged(cause: &str) -> Failure {
    Failure::out_of_turn(SWAPPING, cause, "call prefetch first")
}

fn connected_again() -> Failure {
    none_staged("the reader has connected again since the prefetch")
}

/// The result that the thread of a prefetch has left, if it has ended.
fn received(version: &Mutex<Receiver<Brought>>, slice: Duration) -> Option<Brought> {
    match version.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(slice) {
        Ok(brought) => Some(brought),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => {
            Some(Err(Failure::new(Class::Error, SWAPPING, "the thread panicked", "please report it")))
        }
    }
}

/// Pulls in a thread of its own, for `prefetch`.
fn stage(shared: &Shared, connection: u64, request: Request, deadline: Deadline) -> Brought {
    let mut pulling = Pulling::prefetch(request);
    loop {
        let left = deadline.left();
        let pulled = {
            let mut reading = shared.reading.block();
            let Some(reading) = reading.as_mut().filter(|_| !shared.closes.load(Ordering::SeqCst)) else {
                return Err(Failure::out_of_turn(PREFETCHING, "the reader is closed", "make a new one"));
            };
            if shared.connection() != connection {
                return Err(connected_again());
            }
            match shared.is_pinned.load(Ordering::SeqCst) {
                // A copy would let go of the pin.
                true => Ok(None),
                false => {
                    let pulled = pulling.go_on(reading, left.min(Duration::from_millis(20)));
                    if pulled.is_err() || left.is_zero() {
                        pulling.end(reading);
                    }
                    pulled
                }
            }
        };
        shared.settle();
        let is_pinned = shared.is_pinned.load(Ordering::SeqCst);
        if is_pinned || shared.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::sleep(TURN);
        }
        match pulled? {
            Some(pulled) => return Ok(pulled),
            None if left.is_zero() => return Err(request.late(deadline.timeout, pulling.newest)),
            None => {}
        }
    }
}
