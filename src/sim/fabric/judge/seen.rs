//! The judge's memory of a run: each incarnation of a server, and each worker as it is seen from outside.

use std::collections::{BTreeMap, BTreeSet};

use crate::clock::WorkerId;
use crate::scheme::{GradientId, Share};

/// One incarnation of a server.
pub(super) struct JudgedServer {
    pub(super) epoch: u64,
    pub(super) shard: usize,
    /// The bytes of each version, from the first that it had.
    pub(super) versions: Vec<Vec<u8>>,
    pub(super) first: u64,
    /// The gradients that came in with each version after the first: worker and number.
    pub(super) made: Vec<BTreeSet<(usize, usize)>>,
    /// The incarnation whose decisions it follows.
    pub(super) decider: Option<u64>,
    /// The last of them is being written: a peer may see it already.
    pub(super) is_writing: bool,
    /// The smallest clock of its newest version.
    pub(super) smallest_clock: u64,
    /// It was said that all gradients of earlier clocks are in.
    pub(super) claimed: u64,
    /// The gradients that are in it, by worker and number.
    pub(super) applied: BTreeMap<(usize, usize), u64>,
    /// The same by name, worker and clock: a worker's clock is in it once, even if the worker was lost.
    pub(super) names: BTreeMap<(usize, u64), u64>,
    /// Gradients that were consumed without being folded, by peer and clock.
    pub(super) dropped: BTreeSet<(WorkerId, u64)>,
    /// For each version after the first: its change of a value, and the clock of the last gradient in it.
    pub(super) moved: Vec<(f64, u64)>,
    /// Its server is gone: its memory is lost, and no process is behind it any more.
    pub(super) is_over: bool,
}

/// A gradient that a worker computed.
pub(in crate::sim::fabric) struct Computed {
    pub(super) clock: u64,
    pub(super) bases: Vec<Base>,
    /// Its worker computed no other in that session before.
    pub(super) is_first: bool,
}

/// The version from which a gradient was computed, in one incarnation of a server.
#[derive(Clone, Copy)]
pub(in crate::sim::fabric) struct Base {
    /// The incarnation.
    pub(in crate::sim::fabric) epoch: u64,
    pub(in crate::sim::fabric) version: u64,
    /// Its worker's index there.
    pub(in crate::sim::fabric) peer: u16,
}

impl JudgedServer {
    /// The number of its newest version.
    pub(super) fn newest(&self) -> u64 {
        self.first + self.versions.len() as u64 - 1
    }

    pub(super) fn bytes(&self, version: u64) -> Option<&Vec<u8>> {
        self.versions.get(usize::try_from(version.checked_sub(self.first)?).ok()?)
    }

    /// The gradients that came in with a version.
    pub(super) fn made(&self, version: u64) -> Option<&BTreeSet<(usize, usize)>> {
        self.made.get(usize::try_from(version.checked_sub(self.first + 1)?).ok()?)
    }
}

impl Computed {
    pub(super) fn base(&self, epoch: u64) -> Option<Base> {
        self.bases.iter().find(|base| base.epoch == epoch).copied()
    }

    /// Whether the share agrees with this incarnation's record.
    pub(in crate::sim::fabric) fn is_named(&self, epoch: u64, share: &Share) -> bool {
        let GradientId { worker, clock } = share.gradient;
        self.clock == clock.get() && self.base(epoch).is_some_and(|base| worker == base.peer.into())
    }

    pub(super) fn of_incarnation(&self, epoch: u64) -> bool {
        self.base(epoch).is_some()
    }
}

/// A worker as it is seen from outside.
#[derive(Default)]
pub(in crate::sim::fabric) struct Seen {
    pub(in crate::sim::fabric) gradients: Vec<Computed>,
    /// The number of the first gradient of its session.
    pub(super) first: usize,
    /// The numbers of the gradients of its session that it was told are out.
    pub(super) announced: Vec<usize>,
    /// The versions that its session holds, by epoch.
    pub(super) held: BTreeMap<u64, u64>,
    /// It computes on its version.
    pub(super) is_computing: bool,
    /// Its session abandoned its computation on the version it holds.
    pub(super) has_abandoned: bool,
    pub(super) has_reached: bool,
    pub(super) is_expected: bool,
    /// All indices that it ever had as a peer, each with the epoch of its owner.
    pub(super) indices: BTreeSet<(u64, u16)>,
}

impl Seen {
    /// True if a share may be this worker's.
    pub(in crate::sim::fabric) fn has_had(&self, epoch: u64, share: &Share) -> bool {
        share.gradient.worker.peer().is_some_and(|peer| self.indices.contains(&(epoch, peer)))
    }
}
