//! The gradients that an owner has taken, by the names of their workers.
//!
//! A worker can come back at an earlier clock than it had reached: a restarted process begins at the smallest clock,
//! and a publish that reached one shard of two is repeated. An owner therefore remembers how far it has taken the
//! gradients of each identity, and lets it begin no earlier. So no clock of one identity is applied twice, in any
//! incarnation that goes on from a checkpoint with these clocks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;

/// Identities that are remembered without being connected. More of them than a job has workers are past the smallest
/// clock only where workers have random identities.
const DEPARTED_MAX: usize = 1 << 14;

/// For each worker, how far its gradients are in the parameters. Part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) struct Applied {
    /// By identity: the clock after the latest applied one, where it is past the smallest clock.
    pub(in crate::node) workers: BTreeMap<u64, Clock>,
    /// As much may hold for every other identity.
    pub(in crate::node) others: Clock,
}

#[derive(Clone, Copy, Debug, Default)]
struct TakenClocks {
    /// The clock after the latest one that was taken, that is, bound into a fold that counts and may not have ended.
    taken: Clock,
    /// The clock after the latest one that is in the newest version.
    applied: Clock,
    /// Connected.
    present: bool,
}

/// The clocks up to which an owner has taken gradients of each worker. Workers are kept here that are connected, or
/// that were and went past the smallest clock.
#[derive(Debug)]
pub(super) struct Taken {
    workers: BTreeMap<u64, TakenClocks>,
    /// Identities that are not in the map begin here at the earliest: some of them were forgotten to bound it.
    others: Clock,
    departed_max: usize,
}

impl Taken {
    pub(super) fn new(before: &Applied) -> Taken {
        let entry = |clock: &Clock| TakenClocks { taken: *clock, applied: *clock, present: false };
        let workers = before.workers.iter().map(|(identity, clock)| (*identity, entry(clock))).collect();
        Taken { workers, others: before.others, departed_max: DEPARTED_MAX }
    }

    /// The earliest clock at which a worker may begin.
    pub(super) fn begin(&self, identity: u64) -> Clock {
        self.workers.get(&identity).map_or(self.others, |entry| entry.taken)
    }

    /// A worker is connected. Departed identities are forgotten if the clock `announced` implies as much about them: it
    /// is the smallest clock that a checkpoint would hold now, which may be behind the clock at which workers begin.
    pub(super) fn join(&mut self, identity: u64, announced: Clock) {
        self.entry(identity).present = true;
        self.workers.retain(|_, entry| entry.present || entry.taken > announced);
        let mut departed: Vec<_> =
            self.workers.iter().filter(|(_, entry)| !entry.present).map(|(id, e)| (e.taken, *id)).collect();
        let excess = departed.len().saturating_sub(self.departed_max);
        // The identities with the smallest clocks go first, so that the others begin as early as possible.
        departed.sort_unstable();
        for (taken, identity) in departed.into_iter().take(excess) {
            self.workers.remove(&identity);
            self.others = self.others.max(taken);
        }
    }

    /// A worker is not connected any more.
    pub(super) fn leave(&mut self, identity: u64) {
        if let Some(entry) = self.workers.get_mut(&identity) {
            entry.present = false;
        }
    }

    /// The gradient of `clock` is part of a fold that counts. Its worker may be gone and forgotten: a server that
    /// follows another one learns of a decision later.
    pub(super) fn take(&mut self, identity: u64, clock: Clock) {
        let entry = self.entry(identity);
        entry.taken = entry.taken.max(clock.next());
    }

    fn entry(&mut self, identity: u64) -> &mut TakenClocks {
        let others = self.others;
        let entry = self.workers.entry(identity);
        entry.or_insert(TakenClocks { taken: others, applied: others, present: false })
    }

    /// The gradients of all workers of clocks before this one are in the parameters, or were dropped.
    pub(super) fn pass(&mut self, clock: Clock) {
        self.others = self.others.max(clock);
        for entry in self.workers.values_mut() {
            (entry.taken, entry.applied) = (entry.taken.max(clock), entry.applied.max(clock));
        }
    }

    /// Records the end of that fold: the gradient is applied.
    pub(super) fn apply(&mut self, identity: u64, clock: Clock) {
        let entry = self.entry(identity);
        entry.taken = entry.taken.max(clock.next());
        entry.applied = entry.applied.max(clock.next());
    }

    /// Returns the clocks for a checkpoint of the newest version, whose smallest clock is `smallest`.
    pub(super) fn applied(&self, smallest: Clock) -> Applied {
        let past = self.workers.iter().filter(|(_, entry)| entry.applied > smallest);
        let workers = past.map(|(identity, entry)| (*identity, entry.applied)).collect();
        Applied { workers, others: self.others }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that went after its gradient of `clock` was applied.
    fn pass_through(taken: &mut Taken, identity: u64, clock: u64) {
        taken.join(identity, Clock::new(0));
        taken.take(identity, Clock::new(clock));
        taken.apply(identity, Clock::new(clock));
        taken.leave(identity);
    }

    #[test]
    fn a_worker_begins_after_the_latest_clock_that_was_taken_of_it() {
        let mut taken = Taken::new(&Applied::default());
        pass_through(&mut taken, 3, 8);
        taken.join(3, Clock::new(0));
        taken.take(3, Clock::new(5));
        assert_eq!((taken.begin(3), taken.begin(4)), (Clock::new(9), Clock::new(0)));
        assert_eq!(Taken::new(&taken.applied(Clock::new(8))).begin(3), Clock::new(9));
        assert_eq!(
            Taken::new(&taken.applied(Clock::new(9))).begin(3),
            Clock::new(0),
            "the smallest clock says as much"
        );
    }

    #[test]
    fn a_checkpoint_does_not_claim_a_fold_that_has_not_ended() {
        let mut taken = Taken::new(&Applied::default());
        pass_through(&mut taken, 3, 7);
        taken.join(3, Clock::new(0));
        taken.take(3, Clock::new(8));
        assert_eq!(
            (taken.begin(3), taken.applied(Clock::new(0)).workers[&3]),
            (Clock::new(9), Clock::new(8))
        );
    }

    #[test]
    fn what_the_smallest_clock_has_passed_is_forgotten() {
        let mut taken = Taken::new(&Applied::default());
        pass_through(&mut taken, 3, 7);
        taken.join(4, Clock::new(7));
        assert_eq!(taken.begin(3), Clock::new(8));
        taken.join(4, Clock::new(8));
        assert_eq!(taken.workers.len(), 1);
    }

    #[test]
    fn an_owner_that_is_put_back_takes_no_clock_again_that_it_has_passed() {
        let mut taken = Taken::new(&Applied::default());
        for (identity, clock) in [(1, 3), (2, 8)] {
            pass_through(&mut taken, identity, clock);
        }
        taken.pass(Clock::new(6));
        // Its smallest clock is an earlier one from now on, also in its checkpoint.
        let again = Taken::new(&taken.applied(Clock::new(2)));
        for taken in [taken, again] {
            assert_eq!([1, 2, 3].map(|identity| taken.begin(identity).get()), [6, 9, 6]);
        }
    }

    #[test]
    fn a_full_map_forgets_no_clock_that_could_be_applied_again() {
        let mut taken = Taken { departed_max: 2, ..Taken::new(&Applied::default()) };
        for (identity, clock) in [(1, 9), (2, 3), (3, 5)] {
            pass_through(&mut taken, identity, clock);
        }
        taken.join(9, Clock::new(0));
        assert_eq!(taken.workers.len(), 3, "two that are gone, and one that is not");
        assert_eq!([1, 2, 3].map(|identity| taken.begin(identity).get()), [10, 4, 6]);
        assert_eq!(taken.begin(8), Clock::new(4), "it may be the one that was forgotten");
        let again = Taken::new(&taken.applied(Clock::new(0)));
        assert_eq!([1, 2, 3, 8].map(|identity| again.begin(identity).get()), [10, 4, 6, 4]);
    }
}
