//! The decisions of the server that decides for all shards, on their way to the servers that follow.

use std::collections::VecDeque;

use crate::clock::Version;
use crate::mem::LocalSlice;
use crate::param::{DecidedFrom, Decision, Decisions, Epoch, Followed};

pub(in crate::node) struct Decider {
    decisions: Decisions,
    /// Decisions that wait for room in the ring.
    waiting: VecDeque<Decision>,
    /// The version that they have decided.
    version: Version,
    /// For each shard but the first: the entry before which all entries are taken. Kept while its server is away,
    /// so that it goes on where it was. `None` before it has come for the first time.
    taken: Vec<Option<u64>>,
}

impl Decider {
    pub(super) fn new(decisions: Decisions, version: Version, shards: u16) -> Decider {
        let taken = vec![None; usize::from(shards).saturating_sub(1)];
        Decider { decisions, waiting: VecDeque::new(), version, taken }
    }

    pub(super) fn region(&self) -> LocalSlice {
        self.decisions.region().whole()
    }

    /// The entry after all that were decided.
    fn end(&self) -> u64 {
        self.decisions.end() + self.waiting.len() as u64
    }

    /// Returns the entry and the version from which the server of `shard` follows. A server that has followed this
    /// incarnation goes on where it was.
    pub(super) fn begin(&self, shard: u16, followed: Option<Followed>, epoch: Epoch) -> DecidedFrom {
        let kept = self.index(shard).and_then(|index| self.taken[index]);
        let goes_on = followed.filter(|followed| {
            followed.epoch == epoch && kept.is_some_and(|kept| (kept..=self.end()).contains(&followed.next))
        });
        let next = goes_on.map_or(self.end(), |followed| followed.next);
        DecidedFrom { next, version: self.version, goes_on: goes_on.is_some() }
    }

    /// The server of `shard` follows from the entry `next` on.
    pub(super) fn follow(&mut self, shard: u16, next: u64) {
        if let Some(index) = self.index(shard) {
            self.taken[index] = Some(next);
        }
    }

    fn index(&self, shard: u16) -> Option<usize> {
        usize::from(shard).checked_sub(1).filter(|index| *index < self.taken.len())
    }

    /// Takes note of how many entries the server of `shard` says it has taken; a new page says 0. False if that cannot
    /// be.
    pub(in crate::node) fn learn(&mut self, shard: u16, taken: u64) -> bool {
        let end = self.decisions.end();
        let known = self.index(shard).and_then(|index| self.taken[index].as_mut());
        let Some(known) = known.filter(|_| taken <= end) else { return false };
        *known = taken.max(*known);
        true
    }

    /// Decides. What there is no room for waits.
    pub(in crate::node) fn say(&mut self, decision: Decision) {
        if let Decision::Apply { version, .. } = decision {
            self.version = version;
        }
        self.waiting.push_back(decision);
    }

    /// Moves what waits into the ring as far as there is room, and announces it.
    pub(in crate::node) fn flush(&mut self) -> bool {
        let taken = self.taken.iter().flatten().copied().min().unwrap_or(self.end());
        let mut moved = false;
        while let Some(decision) = self.waiting.front() {
            if !self.decisions.append(*decision, taken) {
                break;
            }
            self.waiting.pop_front();
            moved = true;
        }
        if moved {
            self.decisions.announce();
        }
        moved
    }

    /// True if nothing waits for room.
    pub(in crate::node) fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the number of servers that follow when all are there.
    pub(in crate::node) fn followers(&self) -> usize {
        self.taken.len()
    }
}
