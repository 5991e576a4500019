//! Explanations of evictions: only causes that kept a peer's own words from the owner count, never acts of the owner.
#![forbid(unsafe_code)]

use crate::time::{Duration, Instant};

/// Events so far that can make an owner take a node for dead.
pub(super) struct Causes {
    lease: Duration,
    /// By node: the end of the last outage.
    outages: Vec<Option<Instant>>,
    /// Times in which owners did not run: they find things out that much later.
    pauses: Vec<(Instant, Instant)>,
}

impl Causes {
    pub(super) fn new(lease: Duration, nodes: usize) -> Causes {
        Causes { lease, outages: vec![None; nodes], pauses: Vec::new() }
    }

    /// A node cannot be heard for a while. A time that is much shorter than the lease explains nothing.
    pub(super) fn outage(&mut self, node: usize, from: Instant, until: Instant) {
        if until - from >= self.lease / 4 {
            self.lost(node, until);
        }
    }

    /// A node's connections were lost.
    pub(super) fn lost(&mut self, node: usize, at: Instant) {
        self.outages[node] = self.outages[node].max(Some(at));
    }

    /// The connections of all nodes were lost.
    pub(super) fn all_lost(&mut self, at: Instant) {
        for node in 0..self.outages.len() {
            self.lost(node, at);
        }
    }

    /// An owner does not run for a while.
    pub(super) fn pause(&mut self, from: Instant, until: Instant) {
        self.pauses.push((from, until));
    }

    /// True if a node may learn in a call that it made at `since` that it was evicted.
    pub(super) fn explain(&self, node: usize, since: Instant) -> bool {
        self.outages[node].is_some_and(|until| {
            let overlap = |(begin, end): &(Instant, Instant)| (*end).min(since) - (*begin).max(until);
            let late: Duration = self.pauses.iter().map(overlap).sum();
            until + self.lease + self.lease + late >= since
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_kept_a_peer_from_being_heard_explains_its_eviction() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut causes = Causes::new(Duration::from_millis(100), 3);
        causes.pause(at(0), at(1_000));
        assert!(!causes.explain(1, at(1_001)), "its owner's pause");
        causes.outage(1, at(1_000), at(1_010));
        assert!(!causes.explain(1, at(1_011)), "a moment of its own");
        causes.outage(1, at(1_000), at(1_090));
        assert!(causes.explain(1, at(1_290)) && !causes.explain(2, at(1_100)));
        assert!(!causes.explain(1, at(1_291)), "too long ago");
        causes.pause(at(1_200), at(1_250));
        assert!(causes.explain(1, at(1_340)), "the owner found out late");
        causes.all_lost(at(2_000));
        assert!(causes.explain(2, at(2_200)));
    }
}
