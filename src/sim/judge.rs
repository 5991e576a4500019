//! Who holds schemes to their promises.

use crate::clock::{Clock, ClockTable, WorkerId};
use crate::scheme::{Config, Share};

/// Watches one run from outside: it knows what the scheme promises, not how it is kept.
#[derive(Debug)]
pub(super) struct Judge {
    /// A gradient of clock `c` is computed on a copy that holds all clocks before `c - bound`.
    clocks: Option<u64>,
    /// A gradient of clock `c` is computed on a version in `c - bound ..= c`.
    versions: Option<u64>,
    /// All gradients of an update are of one clock, and of everybody.
    is_bulk: bool,
    /// What the server has consumed of each worker.
    consumed: ClockTable,
    smallest: u64,
}

impl Judge {
    pub(super) fn new(scheme: &Config) -> Judge {
        Judge {
            clocks: scheme.staleness(),
            versions: match *scheme {
                Config::Bsp => Some(0),
                Config::Bap { staleness } => Some(staleness),
                _ => None,
            },
            is_bulk: matches!(scheme, Config::Bsp | Config::Bap { .. }),
            consumed: ClockTable::default(),
            smallest: 0,
        }
    }

    pub(super) fn joined(&mut self, worker: usize, clock: u64) {
        self.consumed.join_at(WorkerId(worker as u16), Clock(clock));
    }

    pub(super) fn left(&mut self, worker: usize) {
        self.consumed.leave(WorkerId(worker as u16));
    }

    /// A worker of some clock computes on a copy.
    pub(super) fn computes(&self, worker: usize, clock: u64, smallest: u64) -> Result<(), String> {
        let behind = clock.saturating_sub(smallest);
        match self.clocks {
            Some(bound) if behind > bound => Err(format!(
                "worker {worker} computes clock {clock} on a copy {behind} clocks behind, and the bound is {bound}"
            )),
            _ => Ok(()),
        }
    }

    /// An update is made of these.
    pub(super) fn folds(&self, shares: &[Share], members: usize) -> Result<(), String> {
        let key = |share: &Share| (share.gradient.worker, share.gradient.clock);
        if !shares.is_sorted_by(|one, next| key(one) < key(next)) {
            return Err(format!("the shares of an update are out of order or double: {shares:?}"));
        }
        if let Some(share) = shares.iter().find(|share| !share.weight.is_finite()) {
            return Err(format!("a gradient is to be folded in with weight {}", share.weight));
        }
        let mut clocks = shares.iter().map(|share| share.gradient.clock);
        let first = clocks.next();
        if self.is_bulk && (clocks.any(|clock| Some(clock) != first) || shares.len() > members) {
            return Err(format!("an update of one clock is made of {shares:?}, by {members} workers"));
        }
        Ok(())
    }

    /// The server has consumed a gradient.
    pub(super) fn consumed(&mut self, worker: usize, clock: u64) {
        self.consumed.advance(WorkerId(worker as u16), Clock(clock + 1));
    }

    /// The server says so of its smallest clock.
    pub(super) fn smallest_clock(&mut self, smallest: u64) -> Result<(), String> {
        if smallest < self.smallest {
            return Err(format!("the smallest clock moved back from {} to {smallest}", self.smallest));
        }
        self.smallest = smallest;
        let least = self.consumed.smallest().0;
        if !self.consumed.is_empty() && smallest > least {
            return Err(format!("the smallest clock is said to be {smallest}, and somebody's is {least}"));
        }
        Ok(())
    }
}
