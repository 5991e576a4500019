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
    /// For each shard but the first: where a server begins that has come and has taken nothing yet, and that the one
    /// before it does not go on as. It may be one by mistake, which leaves again: the other keeps its position until
    /// this one has taken an entry, or until its own entries need the room.
    beginning: Vec<Option<u64>>,
}

impl Decider {
    pub(super) fn new(decisions: Decisions, version: Version, shards: u16) -> Decider {
        let taken = vec![None; usize::from(shards).saturating_sub(1)];
        let beginning = taken.clone();
        Decider { decisions, waiting: VecDeque::new(), version, taken, beginning }
    }

    pub(super) fn region(&self) -> LocalSlice {
        self.decisions.region().whole()
    }

    /// The entry after the last decision.
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

    /// The server of `shard` follows from here on.
    pub(super) fn follow(&mut self, shard: u16, from: &DecidedFrom) {
        let Some(index) = self.index(shard) else { return };
        if from.goes_on || self.taken[index].is_none() {
            self.taken[index] = Some(from.next);
        } else {
            self.beginning[index] = Some(from.next);
        }
    }

    /// The server of `shard` is gone. A server that had taken no decision was never the shard's.
    pub(super) fn leave(&mut self, shard: u16) {
        if let Some(index) = self.index(shard) {
            self.beginning[index] = None;
        }
    }

    fn index(&self, shard: u16) -> Option<usize> {
        usize::from(shard).checked_sub(1).filter(|index| *index < self.taken.len())
    }

    /// Takes note of how many entries the server of `shard` says it has taken; a new page says 0. False if that cannot
    /// be.
    pub(in crate::node) fn learn(&mut self, shard: u16, taken: u64) -> bool {
        let end = self.decisions.end();
        let Some(index) = self.index(shard) else { return false };
        let Some(known) = self.taken[index].as_mut().filter(|_| taken <= end) else { return false };
        *known = taken.max(*known);
        if self.beginning[index].is_some_and(|begin| taken > begin) {
            self.beginning[index] = None;
        }
        true
    }

    /// Adds a decision. It waits if the ring has no room for it.
    pub(in crate::node) fn say(&mut self, decision: Decision) {
        if let Decision::Apply { version, .. } = decision {
            self.version = version;
        }
        self.waiting.push_back(decision);
    }

    /// Moves waiting decisions into the ring as far as there is room, and announces them.
    pub(in crate::node) fn flush(&mut self) -> bool {
        let (mut taken, mut moved) = (self.taken_by_all(), false);
        while let Some(decision) = self.waiting.front() {
            if !self.decisions.append(*decision, taken) {
                // The servers that have come wait for this entry, or for a later one.
                if !self.begin_all() {
                    break;
                }
                taken = self.taken_by_all();
                continue;
            }
            self.waiting.pop_front();
            moved = true;
        }
        if moved {
            self.decisions.announce();
        }
        moved
    }

    /// The entry before which all servers have taken all entries.
    fn taken_by_all(&self) -> u64 {
        self.taken.iter().flatten().copied().min().unwrap_or(self.end())
    }

    /// Gives up the positions of servers for whose shards others have come. True if there were any.
    fn begin_all(&mut self) -> bool {
        let mut any = false;
        for (taken, beginning) in self.taken.iter_mut().zip(&mut self.beginning) {
            if let Some(begin) = beginning.take() {
                (*taken, any) = (Some(begin), true);
            }
        }
        any
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::mem::Access;
    use crate::param::DECISIONS_BYTES;
    use crate::transport::Transport;
    use crate::transport::shm::Shm;

    const EPOCH: Epoch = 7;
    const SHARD: u16 = 1;

    fn decider() -> Decider {
        let region = Shm::new().allocate(DECISIONS_BYTES, Access::REMOTE_READ).unwrap();
        Decider::new(Decisions::new(region), Version::new(0), 2)
    }

    fn decide(decider: &mut Decider, decisions: u64) {
        (0..decisions).for_each(|clock| decider.say(Decision::Clock { clock: Clock::new(clock) }));
        decider.flush();
    }

    /// Lets a server in, which has followed up to this entry if it has followed before.
    fn come(decider: &mut Decider, next: Option<u64>) -> DecidedFrom {
        let from = decider.begin(SHARD, next.map(|next| Followed { epoch: EPOCH, next }), EPOCH);
        decider.follow(SHARD, &from);
        from
    }

    /// A server that comes meanwhile finds that the table is not its own, and leaves.
    #[test]
    fn a_server_that_is_let_in_by_mistake_leaves_the_real_one_its_position() {
        let mut decider = decider();
        come(&mut decider, None);
        decide(&mut decider, 3);
        assert!(decider.learn(SHARD, 2));
        decider.leave(SHARD);
        let by_mistake = come(&mut decider, None);
        assert_eq!((by_mistake.next, by_mistake.goes_on), (3, false));
        assert!(decider.learn(SHARD, 0), "its page is a new one");
        decider.leave(SHARD);
        decide(&mut decider, 1 << 11);
        let real = come(&mut decider, Some(2));
        assert_eq!((real.next, real.goes_on), (2, true));
    }

    #[test]
    fn a_server_that_takes_an_entry_is_the_one_that_follows_from_then_on() {
        let mut decider = decider();
        come(&mut decider, None);
        decide(&mut decider, 3);
        decider.leave(SHARD);
        assert!(!come(&mut decider, None).goes_on);
        decide(&mut decider, 1);
        assert!(decider.learn(SHARD, 4));
        decider.leave(SHARD);
        assert!(!come(&mut decider, Some(2)).goes_on, "another one has its position");
        assert!(come(&mut decider, Some(4)).goes_on);
    }

    #[test]
    fn a_server_that_begins_does_not_wait_for_room_that_the_one_before_keeps() {
        let mut decider = decider();
        come(&mut decider, None);
        decide(&mut decider, 1 << 11);
        assert!(!decider.has_room(), "the first one has taken nothing");
        decider.leave(SHARD);
        let from = come(&mut decider, None);
        assert_eq!(from.next, 1 << 11);
        decide(&mut decider, 1);
        assert!(decider.has_room());
        assert!(decider.learn(SHARD, from.next + 1));
    }
}
