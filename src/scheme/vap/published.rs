//! VAP as published: the largest element of the sum of each worker's updates in transit is bounded.
//!
//! In transit is an update that its worker has made and not all workers have seen. In Wei et al., arXiv 1312.7869, a
//! worker waits before an update that would take the sum of its own beyond the bound; in Dai et al., AAAI 2015, arXiv
//! 1410.8043, the bound falls as the step sizes do: update `t` may make it `v_t = v_0 / sqrt(t)`. One update alone is
//! let through however large it is: the earlier paper's bound is the larger of `v` and one update.
//!
//! Here an update is made when the server folds it in. The server holds it back until it may be made, and its worker,
//! which has no other in transit to the server, waits for that. Which updates a worker has seen is told by the version
//! that it holds; sums of updates are vectors, which the driver knows: the server asks for their size.

use super::bound_at;
use crate::clock::{Clock, ClockTable, Version, WorkerId};
use crate::scheme::GradientId;

/// The size of a sum of updates, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum SumSize {
    #[default]
    Unknown,
    Asked,
    Known(f64),
}

/// The permission for a waiting gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::scheme) enum Admission {
    Fold,
    /// Ask how large the sum of its worker's updates after this version would be with it.
    Weigh(Version),
    Wait,
}

/// The server's book: which updates of each worker are not yet seen by all.
#[derive(Debug)]
pub(in crate::scheme) struct OwnSums {
    bound: f32,
    newest: Version,
    /// Each worker's newest version, as far as it is known, where others have clocks.
    seen: ClockTable,
    /// By worker: the version of its last update. For a worker that has joined, the version that it found: it may have
    /// come back, with a last update that not all have seen yet.
    last: Vec<Version>,
    /// By worker: the size of the sum with its next update.
    sizes: Vec<SumSize>,
}

impl OwnSums {
    /// Makes the book of a server that begins with the version `newest`.
    pub(in crate::scheme) fn new(bound: f32, newest: Version) -> OwnSums {
        OwnSums { bound, newest, seen: ClockTable::default(), last: Vec::new(), sizes: Vec::new() }
    }

    /// Adds a worker. It will pull the newest version.
    pub(super) fn join(&mut self, worker: WorkerId) {
        self.seen.join_at(worker, Clock::new(self.newest.get()));
        let rows = self.last.len().max(worker.index() + 1);
        self.last.resize(rows, self.newest);
        self.sizes.resize(rows, SumSize::Unknown);
        self.last[worker.index()] = self.newest;
        self.sizes.fill(SumSize::Unknown);
    }

    pub(super) fn leave(&mut self, worker: WorkerId) {
        self.seen.leave(worker);
        self.sizes.fill(SumSize::Unknown);
    }

    pub(super) fn see(&mut self, worker: WorkerId, version: Version) {
        let before = self.seen.smallest();
        self.seen.advance(worker, Clock::new(version.min(self.newest).get()));
        if self.seen.smallest() != before {
            self.sizes.fill(SumSize::Unknown);
        }
    }

    /// The driver's answer.
    pub(super) fn weighed(&mut self, gradient: GradientId, largest: f64) {
        if let Some(size) =
            self.sizes.get_mut(gradient.worker.index()).filter(|size| **size == SumSize::Asked)
        {
            *size = SumSize::Known(largest);
        }
    }

    /// Returns the permission for the next gradient of a worker.
    pub(in crate::scheme) fn admit(&mut self, worker: WorkerId) -> Admission {
        let seen = Version::new(self.seen.smallest().get());
        let (Some(last), Some(size)) = (self.last.get(worker.index()), self.sizes.get_mut(worker.index()))
        else {
            return Admission::Wait;
        };
        match *size {
            _ if *last <= seen => Admission::Fold,
            SumSize::Unknown => {
                *size = SumSize::Asked;
                Admission::Weigh(seen)
            }
            // The version that it would make is update `newest + 1`, which `bound_at` counts from 0.
            SumSize::Known(largest) if largest <= bound_at(self.bound, Clock::new(self.newest.get())) => {
                Admission::Fold
            }
            SumSize::Known(_) | SumSize::Asked => Admission::Wait,
        }
    }

    /// A version was made of a gradient of `worker`, if it is still in.
    pub(super) fn applied(&mut self, version: Version, worker: Option<WorkerId>) {
        self.newest = version;
        self.sizes.fill(SumSize::Unknown);
        if let Some(last) = worker.and_then(|worker| self.last.get_mut(worker.index())) {
            *last = version;
        }
    }
}
