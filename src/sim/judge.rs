//! The judge, which holds schemes to their promises.

use std::ops::RangeInclusive;
use std::rc::Rc;

use super::Cluster;
use super::bounds::{behind_most, counts};
use super::model::ModelSnapshot;
use super::transit::Transit;
use crate::clock::{Clock, ClockTable, WorkerId};
use crate::scheme::{Damping, GradientId, SchemeConfig, Share};

/// Watches one run from outside: it knows what the scheme promises, not how it is kept.
#[derive(Debug)]
pub(super) struct Judge {
    /// A scheme from outside of this crate is held to the promises of its [`Needs`](crate::scheme::Needs) alone.
    scheme: Option<SchemeConfig>,
    /// A gradient of clock `c` is computed on a copy that holds all clocks before `c - bound`.
    clocks: Option<u64>,
    /// A gradient of clock `c` is computed on a version in `c - bound ..= c`.
    versions: Option<u64>,
    /// All gradients of an update are of one clock.
    is_bulk: bool,
    /// No gradient is consumed without being folded in.
    folds_all: bool,
    is_damped: bool,
    /// Each gradient counts whole.
    is_additive: bool,
    /// A gradient of whole rounds is added to a version at most so many after the one it was computed on.
    lag: Option<u64>,
    /// An update is made of so many gradients.
    counts: RangeInclusive<usize>,
    /// Gradients of one worker may overtake each other.
    overtakes: bool,
    /// The gradients that the server has consumed, as a clock of each worker.
    consumed: ClockTable,
    smallest: u64,
    /// The values in transit, where they are bounded.
    pub(super) transit: Option<Transit>,
}

impl Judge {
    pub(super) fn new(cluster: &Cluster) -> Judge {
        let (needs, scheme) = (cluster.scheme.needs(), cluster.scheme.built_in());
        // A worker that comes back begins at a clock, and versions are not clocks any more once a clock belonged to no
        // worker.
        let stays = cluster.faults.crashes.is_empty() && cluster.faults.lifetime.is_none();
        Judge {
            scheme,
            clocks: needs.staleness,
            versions: match scheme {
                Some(SchemeConfig::Bsp) if stays => Some(0),
                Some(SchemeConfig::Bap { staleness }) if stays => Some(staleness),
                _ => None,
            },
            is_bulk: matches!(scheme, Some(SchemeConfig::Bsp) | Some(SchemeConfig::Bap { .. })),
            folds_all: stays
                && (needs.folds_all_in_order
                    || matches!(
                        scheme,
                        Some(SchemeConfig::Abs { staleness: None, .. }) | Some(SchemeConfig::Delay { .. })
                    )),
            is_damped: cluster.damping != Damping::None,
            is_additive: cluster.additive,
            lag: match scheme {
                Some(SchemeConfig::Bsp) if stays => Some(0),
                Some(SchemeConfig::Bap { staleness }) | Some(SchemeConfig::Delay { staleness, .. })
                    if stays =>
                {
                    Some(staleness)
                }
                _ => None,
            },
            counts: match scheme {
                Some(SchemeConfig::Bsp) | Some(SchemeConfig::Bap { .. }) if stays => {
                    cluster.workers..=cluster.workers
                }
                _ if stays => counts(scheme, cluster.workers),
                _ => 0..=usize::MAX,
            },
            overtakes: matches!(scheme, Some(SchemeConfig::Delay { .. })),
            transit: match scheme {
                // Weights follow from how many workers there are.
                Some(SchemeConfig::Vap { bound, strength }) if stays => {
                    Some(Transit::new(bound, strength, cluster.workers))
                }
                _ => None,
            },
            consumed: ClockTable::default(),
            smallest: 0,
        }
    }

    pub(super) fn joined(&mut self, worker: usize, clock: u64, version: u64) {
        if let Some(transit) = &mut self.transit {
            transit.joined(worker, version);
        }
        self.consumed.join_at(WorkerId(worker as u32), Clock::new(clock));
    }

    pub(super) fn left(&mut self, worker: usize) {
        if let Some(transit) = &mut self.transit {
            transit.left(worker);
        }
        self.consumed.leave(WorkerId(worker as u32));
    }

    /// A worker of some clock computes on a copy.
    pub(super) fn computes(&self, worker: usize, clock: u64, copy: &ModelSnapshot) -> Result<(), String> {
        if let Some(bound) = self.versions
            && !(clock.saturating_sub(bound)..=clock).contains(&copy.version)
        {
            return Err(format!(
                "worker {worker} computes clock {clock} on version {}, and the bound is {bound}",
                copy.version
            ));
        }
        let behind = clock.saturating_sub(copy.smallest_clock);
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
        if !self.counts.contains(&shares.len()) {
            return Err(format!("an update is made of {} gradients, not {:?}", shares.len(), self.counts));
        }
        let mut clocks = shares.iter().map(|share| share.gradient.clock);
        let first = clocks.next();
        if self.is_bulk && (clocks.any(|clock| Some(clock) != first) || shares.len() > members) {
            return Err(format!("an update of one clock is made of {shares:?}, by {members} workers"));
        }
        let weight = match self.scheme {
            _ if self.is_damped => return Ok(()),
            _ if self.is_additive => 1.0,
            Some(SchemeConfig::Bsp) | Some(SchemeConfig::Bap { .. }) | Some(SchemeConfig::Abs { .. }) => {
                1.0 / shares.len() as f32
            }
            Some(SchemeConfig::Dbw { steps, .. }) => {
                1.0 / shares.len() as f32 * steps.factor(shares.len(), members) as f32
            }
            Some(SchemeConfig::Asp)
            | Some(SchemeConfig::Ssp { .. })
            | Some(SchemeConfig::Essp { .. })
            | Some(SchemeConfig::Vap { .. }) => 1.0 / members as f32,
            _ => return Ok(()),
        };
        match shares.iter().find(|share| share.weight.to_bits() != weight.to_bits()) {
            Some(Share { gradient, weight: wrong }) => {
                Err(format!("{gradient:?} counts {wrong} in an update where each counts {weight}"))
            }
            None => Ok(()),
        }
    }

    /// The server consumes a gradient without folding it in.
    pub(super) fn drops(&self, gradient: GradientId) -> Result<(), String> {
        match self.folds_all {
            true => Err(format!("{gradient:?} is dropped, and every gradient is to be folded in")),
            false => Ok(()),
        }
    }

    /// Returns the number of versions by which one of so many gradients of an update may be late.
    fn lag_of(&self, gradients: usize) -> Option<u64> {
        match self.scheme {
            Some(SchemeConfig::Dbw { .. } | SchemeConfig::Abs { .. }) => behind_most(self.scheme, gradients),
            _ => self.lag,
        }
    }

    /// The update of `version`, made of these, moved the parameters by so much.
    pub(super) fn moves(&mut self, version: u64, shares: &[Share], update: &Rc<[f64]>) -> Result<(), String> {
        let (Some(transit), [share]) = (&mut self.transit, shares) else { return Ok(()) };
        transit.moves(version, share.gradient.worker, update)
    }

    /// A gradient is one of `of` in the update of `version`.
    pub(super) fn adds(
        &self,
        gradient: GradientId,
        base: u64,
        version: u64,
        of: usize,
    ) -> Result<(), String> {
        let lag = version.saturating_sub(base);
        match self.lag_of(of) {
            _ if base > version => Err(format!("{gradient:?} is of version {base}, after {version}")),
            Some(bound) if lag > bound => {
                Err(format!("{gradient:?} is added {lag} versions late, and the bound is {bound}"))
            }
            _ => Ok(()),
        }
    }

    /// A group replaces its members' parameters by their mean: the mean of all stays where it was.
    pub(super) fn averages(&self, parts: &[Vec<f32>], mean: &[f32]) -> Result<(), String> {
        for (at, mean) in mean.iter().enumerate() {
            let sum: f64 = parts.iter().map(|part| f64::from(part[at])).sum();
            let size: f64 = parts.iter().map(|part| f64::from(part[at].abs())).sum();
            let off = (sum - parts.len() as f64 * f64::from(*mean)).abs();
            // Rounding of so many additions, and of a mean below the smallest normal number, which is off by up to the
            // smallest of all; divergence is no breach.
            let rounding = size * f64::from(f32::EPSILON) + f64::from(f32::from_bits(1));
            if size.is_finite() && off > parts.len() as f64 * rounding {
                return Err(format!("averaging moved the sum of parameter {at} from {sum} by {off}"));
            }
        }
        Ok(())
    }

    /// The server consumes a gradient while so many earlier ones of its worker are outstanding.
    pub(super) fn takes(&self, gradient: GradientId, earlier: usize) -> Result<(), String> {
        if earlier > 0 && !self.overtakes {
            return Err(format!("{gradient:?} is consumed before {earlier} earlier ones"));
        }
        Ok(())
    }

    /// The server has consumed all gradients of a worker of clocks before this one.
    pub(super) fn consumed(&mut self, worker: usize, clock: u64) {
        self.consumed.advance(WorkerId(worker as u32), Clock::new(clock));
    }

    /// The server says so of its smallest clock.
    pub(super) fn smallest_clock(&mut self, smallest: u64) -> Result<(), String> {
        if smallest < self.smallest {
            return Err(format!("the smallest clock moved back from {} to {smallest}", self.smallest));
        }
        self.smallest = smallest;
        let least = self.consumed.smallest().get();
        if !self.consumed.is_empty() && smallest > least {
            return Err(format!("the smallest clock is said to be {smallest}, and a worker's is {least}"));
        }
        Ok(())
    }
}
