//! What an object of Python owns until it is closed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use slackline::internals::mem::ForkGuard;

use crate::errors::Failure;
use crate::wait::detached;

/// A value of the library's, until it is closed, in the process that made it.
pub(crate) struct Owned<T: Send> {
    value: Mutex<Option<T>>,
    guard: ForkGuard,
    /// What is said of a call that comes later, and its remedy.
    closed: (&'static str, &'static str),
}

impl<T: Send> Owned<T> {
    pub(crate) fn new(value: T, closed: (&'static str, &'static str)) -> Owned<T> {
        Owned { value: Mutex::new(Some(value)), guard: ForkGuard::new(), closed }
    }

    /// The process that made it.
    pub(crate) fn guard(&self) -> ForkGuard {
        self.guard
    }

    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the value; a lock is held for as long as that takes, which never waits for a peer. Fails if it is closed,
    /// or if this process is a fork of the one that made it.
    pub(crate) fn ask<R>(&self, operation: &str, question: impl FnOnce(&T) -> R) -> Result<R, Failure> {
        crate::fork::check(self.guard, operation)?;
        let (cause, remedy) = self.closed;
        let closed = || Failure::out_of_turn(operation, cause, remedy);
        Ok(question(self.lock().as_ref().ok_or_else(closed)?))
    }

    /// Closes it: the caller drops the value, if it was not closed before.
    pub(crate) fn take(&self, operation: &str) -> Result<Option<T>, Failure> {
        crate::fork::check(self.guard, operation)?;
        Ok(self.lock().take())
    }
}

impl<T: Send> Drop for Owned<T> {
    fn drop(&mut self) {
        // A fork may have left the lock to a thread that the child does not have.
        let value = self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        match self.guard.is_inherited() {
            // In a forked child its threads are not there, and its connections are the parent's.
            true => std::mem::forget(value),
            false => detached(|| drop(value)),
        }
    }
}

/// Makes a class with `close` a context manager: the end of the block closes it.
macro_rules! closed_by_block {
    ($class:ident) => {
        #[pymethods]
        impl $class {
            fn __enter__(slf: Py<Self>) -> Py<Self> {
                slf
            }

            fn __exit__(
                &self,
                py: Python<'_>,
                class: &Bound<'_, PyAny>,
                _error: &Bound<'_, PyAny>,
                _traceback: &Bound<'_, PyAny>,
            ) -> PyResult<()> {
                match self.close(py) {
                    // The exception of the block comes first, and may hold arrays that are still looked at.
                    Err(_) if !class.is_none() => Ok(()),
                    closed => closed,
                }
            }
        }
    };
}
pub(crate) use closed_by_block;
