//! When the thread of the engine looks again at once, and when it has seen all bytes that a question is about.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{EVENTS, ProgressShared};

/// A look that took so long was interrupted: there are more threads than processors.
const INTERRUPTED: Duration = Duration::from_micros(200);

/// The least and the most time for which the thread then does not spin. A thread that spins loses its processor for
/// whole time slices; a thread that sleeps is woken ahead of others. Measured with two processors and a load of
/// eight: round trips of 50 to 1,400 us with spinning, of 8 us without, where a bare blocking ping-pong took 4.5.
pub(super) const RESTRAINT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// Whether looking again at once beats sleeping.
pub(super) struct Spin {
    pub(super) allowed_from: Instant,
    /// The time for which it does not spin after the next interruption.
    pub(super) restraint: Duration,
}

/// The look at all sources that answers a question whether the thread has caught up.
#[derive(Default)]
pub(super) struct CatchUp {
    /// The question that it answers.
    pub(super) asked: u64,
    /// Events that it takes at most: the system hands them out by turns, so each source has had one by then.
    pub(super) left: usize,
}

impl Spin {
    pub(super) fn is_allowed(&self, now: Instant) -> bool {
        now >= self.allowed_from
    }

    /// A look that did not wait went from `begin` to `end`.
    pub(super) fn looked(&mut self, begin: Instant, end: Instant) {
        if end - begin >= INTERRUPTED {
            self.allowed_from = end + self.restraint;
            self.restraint = (2 * self.restraint).min(RESTRAINT.1);
        } else if begin - self.allowed_from > RESTRAINT.1 {
            // It has gone well for long.
            self.restraint = RESTRAINT.0;
        }
    }
}

impl CatchUp {
    /// True while there is a question: its answer waits for no event.
    pub(super) fn is_open(&self, shared: &ProgressShared) -> bool {
        shared.asked.load(Ordering::Acquire) != shared.answered.load(Ordering::Relaxed)
    }

    /// So many events were taken and dealt with, of so many sources.
    pub(super) fn advance(&mut self, shared: &ProgressShared, taken: usize, sources: usize) {
        if !self.is_open(shared) {
            return;
        }
        let asked = shared.asked.load(Ordering::Acquire);
        if self.asked != asked {
            // These events may be older than the question.
            *self = CatchUp { asked, left: sources };
            return;
        }
        self.left = self.left.saturating_sub(taken);
        if taken < EVENTS || self.left == 0 {
            shared.answered.store(asked, Ordering::Release);
        }
    }
}
