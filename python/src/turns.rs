//! An object at which the threads of Python take turns.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::{Class, Failure};
use crate::wait::{Deadline, SLICE};

/// What one thread uses at a time, which may wait for its peer meanwhile.
pub(crate) struct Turns<T> {
    value: Mutex<T>,
    /// The thread of Python whose turn it is.
    holder: Mutex<Option<ThreadId>>,
    /// The threads of Python that wait, in the order in which they came.
    queue: Mutex<VecDeque<ThreadId>>,
}

/// A thread in the queue, which leaves it with this.
struct Queued<'a> {
    queue: &'a Mutex<VecDeque<ThreadId>>,
    own: ThreadId,
}

impl Queued<'_> {
    fn is_next(&self) -> bool {
        locked(self.queue).front() == Some(&self.own)
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        locked(self.queue).retain(|thread| *thread != self.own);
    }
}

/// The turn of a thread of Python.
pub(crate) struct Turn<'a, T> {
    value: MutexGuard<'a, T>,
    holder: &'a Mutex<Option<ThreadId>>,
}

impl<T> Turns<T> {
    pub(crate) fn new(value: T) -> Turns<T> {
        Turns { value: Mutex::new(value), holder: Mutex::new(None), queue: Mutex::default() }
    }

    /// Waits until other threads have left it, in the order of their calls; without a deadline for as long as these
    /// take. Fails at once in a thread whose turn it is already: a handler of a signal runs in the call that it
    /// interrupts. Fails, too, once the interpreter ends: threads that have not left it by then never do.
    ///
    /// No thread whose turn it is waits for the interpreter while it holds another lock.
    pub(crate) fn wait(
        &self,
        py: Python<'_>,
        operation: &str,
        deadline: Option<Deadline>,
    ) -> PyResult<Turn<'_, T>> {
        let own = std::thread::current().id();
        let mut looked = Instant::now();
        let queued = self.enter(own);
        loop {
            let is_next = queued.as_ref().is_none_or(Queued::is_next);
            if is_next && let Some(value) = self.take() {
                *locked(&self.holder) = Some(own);
                return Ok(Turn { value, holder: &self.holder });
            }
            if *locked(&self.holder) == Some(own) {
                let cause = "this thread is in another call of this object, which a handler of a signal or the \
                             collector of garbage has interrupted";
                let remedy = "call it when that has ended: the handler can set a flag, or raise";
                return Err(Failure::out_of_turn(operation, cause, remedy).into());
            }
            if deadline.is_some_and(|deadline| deadline.left().is_zero()) {
                let remedy = "use a longer timeout, or an object for each thread";
                let cause = "another thread is in a call of this object";
                return Err(Failure::new(Class::Deadline, operation, cause, remedy).into());
            }
            py.detach(|| std::thread::sleep(Duration::from_micros(500)));
            if looked.elapsed() >= SLICE {
                py.check_signals()?;
                if is_ending(py) {
                    let cause = "the interpreter ends, and another thread was in a call of this object";
                    let remedy = "end and join threads before the program ends";
                    return Err(Failure::out_of_turn(operation, cause, remedy).into());
                }
                looked = Instant::now();
            }
        }
    }

    /// Joins the queue. `None` in a thread that waits there already, in a call which the handler of a signal
    /// interrupts: that call goes on after this one, which therefore takes any moment.
    fn enter(&self, own: ThreadId) -> Option<Queued<'_>> {
        let mut queue = locked(&self.queue);
        if queue.contains(&own) {
            return None;
        }
        queue.push_back(own);
        Some(Queued { queue: &self.queue, own })
    }

    /// Takes it if no thread has it, for less than a call of Python.
    pub(crate) fn take(&self) -> Option<MutexGuard<'_, T>> {
        match self.value.try_lock() {
            Ok(value) => Some(value),
            // What a panic left is as whole as the library leaves it after an error.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits in a thread of the library, which has no interpreter.
    pub(crate) fn block(&self) -> MutexGuard<'_, T> {
        locked(&self.value)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the interpreter is ending, and runs no other thread any more.
fn is_ending(py: Python<'_>) -> bool {
    let asked = || py.import("sys")?.call_method0("is_finalizing")?.extract::<bool>();
    asked().unwrap_or(true)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        *locked(self.holder) = None;
    }
}
