//! The updates that not all workers have seen, for schemes that weigh updates.

use std::collections::VecDeque;
use std::rc::Rc;

use super::SimError;
use super::engine::SimEngine;
use super::model::Payload;
use crate::clock::{Clock, ClockTable, WorkerId};
use crate::scheme::{ServerEvent, Share};

/// The updates that were made and that not all workers are known to have seen.
#[derive(Debug, Default)]
pub(super) struct Updates {
    /// For each gradient that was folded in: the version that it made, its worker, and by how much parameters moved.
    made: VecDeque<(u64, WorkerId, Rc<[f64]>)>,
    /// Each worker's newest version, as far as it is known, where others have clocks.
    seen: ClockTable,
}

/// By how much parameters moved.
pub(super) fn moved(before: &[f32], after: &[f32]) -> Rc<[f64]> {
    before.iter().zip(after).map(|(before, after)| f64::from(*after) - f64::from(*before)).collect()
}

/// The largest magnitude in a sum of vectors.
pub(super) fn largest<'a>(vectors: impl Iterator<Item = &'a [f64]> + Clone) -> f64 {
    let elements = vectors.clone().next().map_or(0, <[f64]>::len);
    let sum = |at: usize| vectors.clone().map(|vector| vector[at]).sum::<f64>().abs();
    // A sum that has diverged is as large as can be.
    let greater = |most: f64, sum: f64| if sum.is_nan() { f64::INFINITY } else { most.max(sum) };
    (0..elements).map(sum).fold(0.0, greater)
}

impl Updates {
    pub(super) fn joined(&mut self, worker: usize, version: u64) {
        self.seen.join_at(WorkerId(worker as u32), Clock::new(version));
    }

    pub(super) fn left(&mut self, worker: usize) {
        self.seen.leave(WorkerId(worker as u32));
    }

    pub(super) fn saw(&mut self, worker: usize, version: u64) {
        self.seen.advance(WorkerId(worker as u32), Clock::new(version));
    }

    /// A version was made of these.
    pub(super) fn made(&mut self, version: u64, shares: &[Share], update: &Rc<[f64]>) {
        let seen = self.seen.smallest().get();
        while self.made.front().is_some_and(|(version, ..)| *version <= seen) {
            self.made.pop_front();
        }
        self.made.extend(shares.iter().map(|share| (version, share.gradient.worker, Rc::clone(update))));
    }

    /// The largest magnitude in the sum of a worker's updates in versions after `since`, and of `next`.
    fn weigh(&self, worker: WorkerId, since: u64, next: &[f64]) -> f64 {
        let own = self.made.iter().filter(|(version, own, _)| *own == worker && *version > since);
        largest(own.map(|(.., update)| &**update).chain([next]))
    }
}

impl SimEngine<'_> {
    /// Tells the server's scheme how large the updates of a worker are in sum, with the one that its gradient would
    /// make.
    pub(super) fn weigh(&mut self, since: u64, shares: &[Share]) -> Result<(), SimError> {
        let [Share { gradient, weight }] = *shares else {
            return Err(self.broken(format!("{} gradients are weighed at once", shares.len())));
        };
        let account = self.server.accounts.get(gradient.worker.index());
        let found = account
            .and_then(|account| account.gradients.iter().find(|one| one.clock == gradient.clock.get()));
        let Some(found) = found else {
            return Err(self.broken(format!("{gradient:?} is weighed and is not there")));
        };
        let payload: Option<Payload> = found.payload.clone();
        let version = self.server.version + 1;
        let largest = match (&self.server.model, payload) {
            (Some(model), Some(payload)) => {
                let mut next = model.clone();
                let share = [(payload, weight)];
                next.fold(version, &share, false).map_err(|source| SimError::Fold { version, source })?;
                let next = moved(&model.values(), &next.values());
                self.server.updates.weigh(gradient.worker, since, &next)
            }
            // Time alone is simulated: an unknown magnitude is as large as possible.
            _ => f64::INFINITY,
        };
        self.tell_server(ServerEvent::Weighed { gradient, largest });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::GradientId;

    #[test]
    fn a_sum_is_of_one_worker_and_of_versions_after_the_one_that_is_named() {
        let mut updates = Updates::default();
        (0..2).for_each(|worker| updates.joined(worker, 0));
        let share = |worker| Share {
            gradient: GradientId { worker: WorkerId(worker), clock: Clock::new(0) },
            weight: 1.0,
        };
        for (version, worker, update) in [(1, 0, [1.0, -3.0]), (2, 1, [9.0, 9.0]), (3, 0, [1.0, 4.0])] {
            updates.made(version, &[share(worker)], &Rc::from(update));
        }
        let weigh = |since| updates.weigh(WorkerId(0), since, &[0.5, 0.0]);
        // (2.5, 1), (1.5, 4) and the next one alone.
        assert_eq!([weigh(0), weigh(1), weigh(3)], [2.5, 4.0, 0.5]);
        assert_eq!(largest([&[1.0, f64::NAN][..]].into_iter()), f64::INFINITY);
    }
}
