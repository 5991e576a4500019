//! Attempts to reach the owner of a table at one of several addresses.

use std::time::{Duration, Instant};

use slackline::{Address, Diagnostic as _, Error};

use crate::errors::{Class, Failure};
use crate::names::Search;
use crate::wait::{Deadline, SLICE};

/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(10);

/// The time for which an owner is asked, at first and at most: twice as long each time.
const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

/// The addresses of an owner, each of which is asked until one answers.
pub(super) struct Attempts {
    addresses: Vec<Asked>,
    /// The one whose turn it is.
    next: usize,
    deadline: Deadline,
    patience: Duration,
    /// Why one has not answered that may answer later.
    last: Option<Failure>,
}

/// One of the addresses.
struct Asked {
    search: Search,
    /// What the search has found.
    found: Option<Address>,
    /// Why it can never answer, and when it is asked once more nevertheless.
    never: Option<(Failure, Instant)>,
}

impl Attempts {
    /// Fails if the text has no addresses with commas between them.
    pub(super) fn of(text: &str, deadline: Deadline) -> Result<Attempts, Failure> {
        let addresses =
            text.split(',').map(|one| Ok(Asked { search: Search::of(one)?, found: None, never: None }));
        let addresses = addresses.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Attempts { addresses, next: 0, deadline, patience: PATIENCE[0], last: None })
    }

    /// Has an owner that is the only one be asked once, for all of the time.
    pub(super) fn undivided(mut self) -> Attempts {
        if self.addresses.len() == 1 {
            self.patience = self.deadline.left();
        }
        self
    }

    pub(super) fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Makes one attempt, at the next address; after the deadline one at each that is left of the round, since each is
    /// asked at least once. `attempt` is told its number, and for how long it may wait; its outer error is of this
    /// process alone.
    ///
    /// Neither an address that says nothing, nor one that can never answer, ends the search at the other ones. Fails if
    /// none of them may answer later, or if an owner has answered that has another table.
    pub(super) fn go_on<R>(
        &mut self,
        mut attempt: impl FnMut(usize, &Address, Duration) -> Result<Result<R, Error>, Failure>,
    ) -> Result<Option<R>, Failure> {
        loop {
            let brought = self.ask_next(&mut attempt)?;
            if brought.is_some() || self.next == 0 || !self.deadline.left().is_zero() {
                return Ok(brought);
            }
        }
    }

    fn ask_next<R>(
        &mut self,
        attempt: &mut impl FnMut(usize, &Address, Duration) -> Result<Result<R, Error>, Failure>,
    ) -> Result<Option<R>, Failure> {
        let number = self.next;
        let is_round_over = number + 1 == self.addresses.len();
        self.next = if is_round_over { 0 } else { number + 1 };
        let asked = &mut self.addresses[number];
        if asked.found.is_none() {
            let found = asked.search.go_on(self.deadline.left().min(SLICE))?;
            asked.found = found.and_then(|mut found| found.pop());
        }
        let is_left_alone = asked.never.as_ref().is_some_and(|(_, again)| Instant::now() < *again);
        if let Some(address) = asked.found.as_ref().filter(|_| !is_left_alone) {
            let never = match attempt(number, address, self.patience.min(self.deadline.left())) {
                Ok(Ok(brought)) => return Ok(Some(brought)),
                Ok(Err(error @ Error::AnotherTable { .. })) => return Err(error.into()),
                Ok(Err(error)) if error.is_retryable() => {
                    self.keep(error);
                    None
                }
                Ok(Err(error)) => Some(error.into()),
                Err(failure) => Some(failure),
            };
            let again = Instant::now() + self.patience.min(PATIENCE[1]);
            self.addresses[number].never = never.map(|failure| (failure, again));
            if self.addresses.iter().all(|asked| asked.never.is_some())
                && let Some((failure, _)) = self.addresses[number].never.take()
            {
                return Err(failure);
            }
        }
        if is_round_over {
            self.patience = self.patience.max(PATIENCE[1].min(2 * self.patience));
            std::thread::sleep(RETRY.min(self.deadline.left()));
        }
        Ok(None)
    }

    /// Keeps the reason of an attempt, unless it says less than that of the one before.
    fn keep(&mut self, error: Error) {
        self.last = Some(match error {
            // The reason for which it was refused says more than that the time is over.
            Error::Deadline { .. } if self.last.as_ref().is_some_and(Failure::is_for_now) => return,
            // An attempt that the deadline has cut short does not know whether the host answers.
            Error::Connect(_) if self.last.is_some() && self.deadline.left().is_zero() => return,
            // The time that was waited in all, and not the last attempt's.
            Error::Deadline { operation, needed, seen, awaited, .. } => {
                Error::Deadline { operation, waited: self.deadline.timeout, needed, seen, awaited }.into()
            }
            error => error.into(),
        });
    }

    /// The error of attempts whose time is over.
    pub(super) fn late(mut self) -> Failure {
        let mut searches = self.addresses.iter_mut().filter(|asked| asked.found.is_none());
        let not_found = || searches.next().map(|asked| asked.search.late());
        self.last.or_else(not_found).unwrap_or_else(|| {
            Failure::new(Class::BadOption, "connecting", "there is no address", "give that of a publisher")
        })
    }
}
