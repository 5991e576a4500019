//! Connecting to an owner that may be reached at several addresses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use slackline::{Diagnostic as _, Error};

use crate::errors::{Class, Failure};
use crate::fabric::may_come;

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(10);

/// The time for which an owner is asked, at first and at most: twice as long each time.
pub(crate) const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

/// Connects by the first of so many ways that leads there, once one does. One on which nothing is said does not take
/// the time of the others.
pub(crate) fn first_to_answer<R>(
    ways: usize,
    deadline: Instant,
    is_given_up: &AtomicBool,
    mut attempt: impl FnMut(usize, Duration) -> Result<R, Error>,
) -> Result<R, Failure> {
    let mut last: Option<Error> = None;
    let [mut patience, most] = PATIENCE;
    loop {
        for way in 0..ways {
            let left = deadline.saturating_duration_since(Instant::now());
            match attempt(way, if ways == 1 { left } else { left.min(patience) }) {
                Ok(connected) => return Ok(connected),
                // The reason for which it was refused says more than that the time is over.
                Err(Error::Deadline { .. }) if last.as_ref().is_some_and(is_refused_for_now) => {}
                Err(error) => last = Some(error),
            }
        }
        let is_over = Instant::now() + RETRY >= deadline || is_given_up.load(Ordering::Relaxed);
        if is_over || !last.as_ref().is_some_and(may_come) {
            return Err(last.map_or_else(no_address, Failure::from));
        }
        std::thread::sleep(RETRY);
        patience = most.min(2 * patience);
    }
}

pub(crate) fn is_refused_for_now(error: &Error) -> bool {
    error.retry_after().is_some()
}

pub(crate) fn no_address() -> Failure {
    Failure::new(Class::BadOption, "connecting", "there is no address", "give that of a publisher")
}
