//! Updates that arrive late on purpose: a model of staleness, to see what it does to training.
//!
//! From Dai, Zhou, Dong, Zhang and Xing, *Toward Understanding the Impact of Staleness in Distributed Machine
//! Learning*, arXiv 1810.03264. There each worker has a cache, and an update reaches each cache so many rounds late,
//! drawn uniformly from `0..=s` for every pair of an update and a reader. Here there is one copy of the parameters, so
//! the delay is drawn per update: all readers, its own worker among them, see it at the same time. That is what one
//! server can do exactly; the distribution of what one reader sees of one update is the same.

use std::collections::{BTreeMap, VecDeque};

use super::gate::GateMembers;
use super::{GradientId, ServerAction, ServerEvent, ServerScheme, Share};
use crate::clock::{Clock, Version};
use crate::time::Instant;

/// Makes a version a round: once every member's gradient on the newest version is there, those are folded that are
/// due, each with the weight that its own round gave it. A gradient is due `r` rounds after it came, `r` uniform in
/// `0..=staleness` and a function of seed, worker and clock alone. A round that nothing is due in makes a version too.
///
/// Gradients of one worker overtake each other; one on an earlier version than the newest came too late for its round
/// and is dropped. An event costs the logarithm of the clocks that are outstanding.
#[derive(Debug)]
pub(super) struct DelayServer {
    staleness: u64,
    seed: u64,
    members: GateMembers,
    newest: Version,
    /// This round's gradients.
    arrived: Vec<GradientId>,
    /// The gradients of earlier rounds that are not due yet, by the rounds that are still to pass before they are
    /// due.
    due: VecDeque<Vec<Share>>,
    taken: Vec<GradientId>,
    folding: bool,
    late: VecDeque<GradientId>,
    /// The number of outstanding gradients of each clock; one that has yet to come counts as well.
    outstanding: BTreeMap<Clock, usize>,
    smallest: Clock,
}

impl DelayServer {
    pub(super) fn new(
        workers: usize,
        clock: Clock,
        newest: Version,
        staleness: u64,
        seed: u64,
    ) -> DelayServer {
        DelayServer {
            staleness,
            seed,
            members: GateMembers::new(workers),
            newest,
            arrived: Vec::new(),
            due: VecDeque::new(),
            taken: Vec::new(),
            folding: false,
            late: VecDeque::new(),
            outstanding: BTreeMap::new(),
            smallest: clock,
        }
    }

    /// Returns the number of rounds by which this gradient is late.
    fn delay(&self, gradient: GradientId) -> u64 {
        let drawn = mix(mix(mix(0, self.seed), u64::from(gradient.worker.0)), gradient.clock.get());
        // The high half of a product is uniform up to one part in 2^64 / (s + 1).
        ((u128::from(drawn) * (u128::from(self.staleness) + 1)) >> 64) as u64
    }

    fn count(&mut self, clock: Clock) {
        *self.outstanding.entry(clock).or_default() += 1;
    }

    fn discount(&mut self, clock: Clock) {
        if let Some(count) = self.outstanding.get_mut(&clock) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&clock);
            }
        }
    }

    fn settle(&mut self) {
        if let (true, Some((smallest, _))) = (self.members.complete(), self.outstanding.first_key_value()) {
            self.smallest = self.smallest.max(*smallest);
        }
    }

    fn leave(&mut self, worker: crate::clock::WorkerId) {
        let Some(member) = self.members.leave(worker) else { return };
        self.discount(member.next);
        let others = |gradient: &GradientId| gradient.worker != worker;
        let due = self.due.iter().flatten().map(|share| share.gradient);
        let own: Vec<_> = self
            .arrived
            .iter()
            .chain(&self.taken)
            .chain(&self.late)
            .copied()
            .chain(due)
            .filter(|gradient| !others(gradient))
            .collect();
        own.into_iter().for_each(|gradient| self.discount(gradient.clock));
        self.arrived.retain(others);
        self.taken.retain(others);
        self.late.retain(others);
        self.due.iter_mut().for_each(|shares| shares.retain(|share| others(&share.gradient)));
    }

    /// The round is complete: deals its gradients out over the rounds to come, and hands out what is due now.
    fn close(&mut self, shares: &mut Vec<Share>) {
        let weight = 1.0 / self.arrived.len() as f32;
        for index in 0..self.arrived.len() {
            let gradient = self.arrived[index];
            let delay = self.delay(gradient) as usize;
            while self.due.len() <= delay {
                self.due.push_back(Vec::new());
            }
            self.due[delay].push(Share { gradient, weight });
        }
        self.arrived.clear();
        shares.clear();
        if let Some(mut due) = self.due.pop_front() {
            due.sort_unstable_by_key(|share| share.gradient);
            shares.extend_from_slice(&due);
            self.taken.extend(due.iter().map(|share| share.gradient));
            due.clear();
            self.due.push_back(due); // Its memory serves a later round.
        }
        self.folding = true;
    }
}

impl ServerScheme for DelayServer {
    fn handle_event(&mut self, _now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Joined { worker, clock, returns } => {
                // The smallest clock never moves back: a worker that joins behind it counts from it.
                if self.members.join(worker, clock, returns) {
                    self.count(clock);
                }
            }
            ServerEvent::Left { worker } => self.leave(worker),
            ServerEvent::Arrived { gradient, base, .. } => {
                if self.members.arrive(gradient.worker, gradient.clock).is_none() {
                    return;
                }
                self.count(gradient.clock.next());
                if base == self.newest && !self.folding {
                    self.arrived.push(gradient);
                } else {
                    self.late.push_back(gradient);
                }
            }
            ServerEvent::Seen { .. } | ServerEvent::Weighed { .. } => {}
            ServerEvent::Applied { version, .. } => {
                if std::mem::take(&mut self.folding) {
                    self.newest = version;
                    for index in 0..self.taken.len() {
                        self.discount(self.taken[index].clock);
                    }
                    self.taken.clear();
                }
            }
        }
        self.settle();
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if !self.members.complete() || self.folding {
            return None;
        }
        if let Some(gradient) = self.late.pop_front() {
            self.discount(gradient.clock);
            self.settle();
            return Some(ServerAction::Drop { gradient });
        }
        if self.arrived.is_empty() || self.arrived.len() < self.members.len() {
            return None;
        }
        self.close(shares);
        Some(ServerAction::Apply)
    }

    fn smallest_clock(&self) -> Clock {
        self.smallest
    }
}

/// A random number that belongs to a state and a word: SplitMix64.
pub(super) fn mix(state: u64, word: u64) -> u64 {
    let mut z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::WorkerId;

    #[test]
    fn delays_are_uniform_and_belong_to_the_seed() {
        let drawn = |seed: u64, staleness: u64| {
            let server = DelayServer::new(1, Clock::new(0), Version::new(0), staleness, seed);
            let gradient = |index: u64| GradientId {
                worker: WorkerId((index % 10) as u32),
                clock: Clock::new(index / 10),
            };
            (0..20_000).map(|index| server.delay(gradient(index))).collect::<Vec<_>>()
        };
        assert!(drawn(3, 0).iter().all(|delay| *delay == 0));
        assert_eq!(drawn(3, 4), drawn(3, 4));
        assert_ne!(drawn(3, 4), drawn(4, 4));
        for delay in 0..=4 {
            let part = drawn(3, 4).iter().filter(|drawn| **drawn == delay).count() as f64 / 20_000.0;
            assert!((part - 0.2).abs() < 0.02, "{delay}: {part}");
        }
    }
}
