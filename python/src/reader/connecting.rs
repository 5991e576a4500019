//! Attempts to reach the owner of a table at one of several addresses.

use std::time::Duration;

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
    /// The search for each, and what it has found.
    addresses: Vec<(Search, Option<Address>)>,
    deadline: Deadline,
    patience: Duration,
    /// Why one has not answered that may answer later.
    last: Option<Failure>,
}

impl Attempts {
    /// Fails if the text has no addresses with commas between them.
    pub(super) fn of(text: &str, deadline: Deadline) -> Result<Attempts, Failure> {
        let addresses = text.split(',').map(|one| Ok((Search::of(one)?, None)));
        let addresses = addresses.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Attempts { addresses, deadline, patience: PATIENCE[0], last: None })
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

    /// Makes one attempt at each address, until one brings something. `attempt` is told the number of the address, and
    /// for how long it may wait; its outer error is of this process alone.
    ///
    /// Neither an address that says nothing, nor one that can never answer, ends the search at the other ones. Fails if
    /// none of them may answer later, or if an owner has answered that has another table.
    pub(super) fn round<R>(
        &mut self,
        mut attempt: impl FnMut(usize, &Address, Duration) -> Result<Result<R, Error>, Failure>,
    ) -> Result<Option<R>, Failure> {
        let (mut may_come, mut never) = (false, None);
        for number in 0..self.addresses.len() {
            let (search, found) = &mut self.addresses[number];
            if found.is_none() {
                *found = search.go_on(self.deadline.left().min(SLICE))?.and_then(|mut found| found.pop());
            }
            let Some(address) = found else {
                may_come = true;
                continue;
            };
            match attempt(number, address, self.patience.min(self.deadline.left())) {
                Ok(Ok(brought)) => return Ok(Some(brought)),
                Ok(Err(error @ Error::AnotherTable { .. })) => return Err(error.into()),
                Ok(Err(error)) if error.is_retryable() => {
                    may_come = true;
                    self.keep(error);
                }
                Ok(Err(error)) => never = Some(error.into()),
                Err(failure) => never = Some(failure),
            }
        }
        if let Some(never) = never.filter(|_| !may_come) {
            return Err(never);
        }
        self.patience = self.patience.max(PATIENCE[1].min(2 * self.patience));
        std::thread::sleep(RETRY.min(self.deadline.left()));
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
        let mut searches = self.addresses.iter_mut().filter(|(_, found)| found.is_none());
        let not_found = || searches.next().map(|(search, _)| search.late());
        self.last.or_else(not_found).unwrap_or_else(|| {
            Failure::new(Class::BadOption, "connecting", "there is no address", "give that of a publisher")
        })
    }
}
