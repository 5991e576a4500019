//! Value-bounded asynchronous parallel: a bound on the size of the updates in transit.
//!
//! From Dai et al., *High-Performance Distributed ML at Scale through Parameter Server Consistency Models*, AAAI 2015,
//! arXiv 1410.8043, after arXiv 1312.7869, which tells weak from strong. These two are counted in a form of our own:
//! the magnitude of a gradient is the magnitude of its largest element, times the weight that it is folded with,
//! magnitudes are added, and the bound of clock `c` is `bound / sqrt(c + 1)`. One gradient alone is always let through,
//! however large it is, so the updates in transit are at most as large as the bound or one gradient, whichever is
//! larger. The published form, with sums of updates instead, is in `published`.

mod published;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::turn::{TurnStep, after};
use super::{Bound, GradientId, WorkerAction, WorkerEvent, WorkerScheme};
use crate::clock::{Clock, ClockTable, Version, WorkerId};
use crate::time::Instant;

pub(super) use published::{Admission, OwnSums};

/// The gradients that count as in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Strength {
    /// A worker's own gradients that the server has not consumed: the worker waits.
    Weak,
    /// A worker's own, and all gradients that are folded in and not yet seen by every worker: the server waits too.
    Strong,
    /// As published: each worker's own updates that some worker has not yet seen, counted by the largest element of
    /// their sum. The server holds an update back that would take the sum beyond the bound, and its worker waits for
    /// it; the bound of update `t` of the server is `bound / sqrt(t)`. For plain SGD, in the simulator alone: a real
    /// server keeps no updates to add up.
    Published,
}

/// The bound of a clock.
fn bound_at(bound: f32, clock: Clock) -> f64 {
    f64::from(bound) / (clock.get() as f64 + 1.0).sqrt()
}

/// Magnitudes in the order in which they came, and their sum.
#[derive(Debug)]
struct InTransit<T> {
    entries: VecDeque<(T, f64)>,
    sum: f64,
}

impl<T: Copy + PartialOrd> InTransit<T> {
    fn new() -> InTransit<T> {
        InTransit { entries: VecDeque::new(), sum: 0.0 }
    }

    fn push(&mut self, at: T, magnitude: f64) {
        self.entries.push_back((at, magnitude));
        self.sum += magnitude;
    }

    /// Removes the finished entries at the front.
    fn forget(&mut self, is_done: impl Fn(T) -> bool) {
        while let Some((_, magnitude)) = self.entries.front().filter(|(at, _)| is_done(*at)) {
            self.sum -= magnitude;
            self.entries.pop_front();
        }
        if self.entries.is_empty() || !self.sum.is_finite() {
            // Rounding errors do not add up, and an infinite sum ends.
            self.sum = self.entries.iter().map(|(_, magnitude)| magnitude).sum();
        }
    }

    /// True if one more may come.
    fn admits(&self, magnitude: f64, bound: f64) -> bool {
        self.entries.is_empty() || self.sum + magnitude <= bound
    }
}

/// A magnitude that was not measured, or is no number, is as large as can be: it goes alone.
fn magnitude_of(measured: Option<f32>, weight: f64) -> f64 {
    match measured {
        Some(magnitude) if magnitude >= 0.0 => f64::from(magnitude) * weight,
        _ => f64::INFINITY,
    }
}

/// The strong server's book: the gradients that were folded in and are not yet seen by all workers.
#[derive(Debug)]
pub(super) struct Unseen {
    bound: f32,
    /// Each worker's newest version, as far as it is known, where others have clocks.
    seen: ClockTable,
    newest: Version,
    folded: InTransit<Version>,
    /// The magnitude of the fold that is under way.
    folding: f64,
}

impl Unseen {
    /// Makes the book of a server that begins with the version `newest`.
    pub(super) fn new(bound: f32, newest: Version) -> Unseen {
        Unseen { bound, seen: ClockTable::default(), newest, folded: InTransit::new(), folding: 0.0 }
    }

    /// Takes a worker in. It holds nothing that could be too old: what it will pull is the newest version.
    fn join(&mut self, worker: WorkerId) {
        self.seen.join_at(worker, Clock::new(self.newest.get()));
    }

    fn leave(&mut self, worker: WorkerId) {
        self.seen.leave(worker);
        self.forget();
    }

    fn see(&mut self, worker: WorkerId, version: Version) {
        self.seen.advance(worker, Clock::new(version.min(self.newest).get()));
        self.forget();
    }

    fn forget(&mut self) {
        let seen = self.seen.smallest();
        let nobody = self.seen.is_empty();
        self.folded.forget(|version| nobody || version.get() <= seen.get());
    }

    /// Returns true if this gradient may be folded in now; if so, the next version is made of it.
    pub(super) fn admit(&mut self, clock: Clock, measured: Option<f32>, weight: f32) -> bool {
        let magnitude = magnitude_of(measured, f64::from(weight));
        let admitted = self.folded.admits(magnitude, bound_at(self.bound, clock));
        if admitted {
            self.folding = magnitude;
        }
        admitted
    }

    fn applied(&mut self, version: Version) {
        self.newest = version;
        self.folded.push(version, self.folding);
        self.forget();
    }
}

/// What holds gradients back at a server, if anything does.
#[derive(Debug)]
pub(super) enum HoldBack {
    Unseen(Unseen),
    OwnSums(OwnSums),
}

impl HoldBack {
    pub(super) fn join(&mut self, worker: WorkerId) {
        match self {
            HoldBack::Unseen(unseen) => unseen.join(worker),
            HoldBack::OwnSums(sums) => sums.join(worker),
        }
    }

    pub(super) fn leave(&mut self, worker: WorkerId) {
        match self {
            HoldBack::Unseen(unseen) => unseen.leave(worker),
            HoldBack::OwnSums(sums) => sums.leave(worker),
        }
    }

    pub(super) fn see(&mut self, worker: WorkerId, version: Version) {
        match self {
            HoldBack::Unseen(unseen) => unseen.see(worker, version),
            HoldBack::OwnSums(sums) => sums.see(worker, version),
        }
    }

    pub(super) fn weighed(&mut self, gradient: GradientId, largest: f64) {
        if let HoldBack::OwnSums(sums) = self {
            sums.weighed(gradient, largest);
        }
    }

    /// A version was made of a gradient of `worker`, if it is still in.
    pub(super) fn applied(&mut self, version: Version, worker: Option<WorkerId>) {
        match self {
            HoldBack::Unseen(unseen) => unseen.applied(version),
            HoldBack::OwnSums(sums) => sums.applied(version, worker),
        }
    }
}

/// The worker's half: it begins a clock only if what it has in transit leaves room for one more gradient, which it
/// takes to be as large as its last, for how large it will be is known only when it is computed.
///
/// While it waits it asks for each newer version, so that the server learns that it has seen it: without that, one
/// that waits for the server and a server that waits for it would wait for ever. It also waits while all its slots
/// are taken, lest it wait for a slot where it cannot ask.
#[derive(Debug)]
pub(super) struct VapWorker {
    bound: f32,
    refreshes: bool,
    /// Gradients in transit at most.
    room: usize,
    /// The weight of a gradient now; 1 until it is told how many workers there are, which is stricter.
    weight: f64,
    clock: Clock,
    /// Magnitudes of whole gradients: each is folded in with the weight of that time, which grows as workers leave.
    transit: InTransit<Clock>,
    last: f64,
    held: Option<Version>,
    step: TurnStep,
    /// It waits for its own gradients.
    is_blocked: bool,
}

impl VapWorker {
    pub(super) fn new(bound: f32, strength: Strength, slots: u16) -> VapWorker {
        VapWorker {
            bound,
            refreshes: strength == Strength::Strong,
            room: usize::from(slots.max(1)),
            weight: 1.0,
            clock: Clock::new(0),
            transit: InTransit::new(),
            last: 0.0,
            held: None,
            step: TurnStep::Out,
            is_blocked: false,
        }
    }

    /// True if what is in transit leaves room for one more gradient.
    fn has_room(&self) -> bool {
        let bound = bound_at(self.bound, self.clock) / self.weight;
        self.transit.entries.len() < self.room && self.transit.admits(self.last, bound)
    }

    /// Begins the clock, or waits.
    fn begin(&mut self) {
        self.is_blocked = !self.has_room();
        let waits = self.is_blocked && !self.refreshes;
        self.step = if waits { TurnStep::Waiting } else { TurnStep::RefreshIsDue };
    }
}

impl WorkerScheme for VapWorker {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => {
                (self.clock, self.held, self.last) = (clock, None, 0.0);
                self.transit = InTransit::new();
                self.begin();
            }
            WorkerEvent::Holds { version, .. } => {
                self.held = Some(version);
                if self.step == TurnStep::Refreshing {
                    self.step = if self.is_blocked { TurnStep::RefreshIsDue } else { TurnStep::ComputeIsDue };
                }
            }
            WorkerEvent::Published { magnitude } if self.step == TurnStep::Computing => {
                self.last = magnitude_of(magnitude, 1.0);
                self.transit.push(self.clock, self.last);
                self.clock = self.clock.next();
                self.begin();
            }
            WorkerEvent::Consumed { clock } => {
                self.transit.forget(|published| published < clock);
                if self.is_blocked {
                    // A refresh that still waits for a newer version may wait for ever: this one replaces it.
                    self.begin();
                }
            }
            WorkerEvent::Interrupted if self.step.is_on_a_copy() => self.step = TurnStep::RefreshIsDue,
            WorkerEvent::Membership { workers } => {
                self.weight = 1.0 / workers.max(1) as f64;
                // What was admitted and is not yet begun may be too much now, or what waits may go.
                let has_begun = self.step == TurnStep::Out || self.step.is_on_a_copy();
                if !has_begun && self.is_blocked == self.has_room() {
                    self.begin();
                }
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        let newer = self.held.filter(|_| self.is_blocked);
        self.step.poll(newer.map_or(Bound::NONE, |held| Bound::version(after(held))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker of four that has published three gradients of 0.1, and was then told how many are left before it began
    /// clock 3. True if it still computes.
    fn computes(bound: f32, told: &[usize]) -> bool {
        let mut worker = VapWorker::new(bound, Strength::Weak, 9);
        let mut tell = |event| {
            worker.handle_event(Instant::ORIGIN, event);
            std::iter::from_fn(|| worker.poll_action()).last()
        };
        tell(WorkerEvent::Membership { workers: 4 });
        tell(WorkerEvent::Joined { clock: Clock::new(0) });
        let holds = WorkerEvent::Holds { version: Version::new(0), smallest_clock: Clock::new(0) };
        for _ in 0..3 {
            assert_eq!(tell(holds), Some(WorkerAction::Compute));
            let asks = tell(WorkerEvent::Published { magnitude: Some(0.1) });
            assert_eq!(asks, Some(WorkerAction::Refresh { bound: Bound::NONE }));
        }
        for workers in told {
            tell(WorkerEvent::Membership { workers: *workers });
        }
        tell(holds) == Some(WorkerAction::Compute)
    }

    /// Four quarters of 0.1 are what `0.2 / sqrt(4)` lets through; of two workers they are twice as much. Weighed as
    /// they were when they were published, they would be `3 * 0.1 / 4 + 0.1 = 0.175` of one.
    #[test]
    fn what_is_in_transit_weighs_more_once_other_workers_have_left() {
        assert_eq!([&[][..], &[4], &[2], &[1]].map(|told| computes(0.2, told)), [true, true, false, false]);
        assert_eq!([&[2][..], &[1]].map(|told| computes(0.4, told)), [true, false]);
        // One that comes instead lets it go on.
        assert_eq!([&[1, 4][..], &[1, 3]].map(|told| computes(0.2, told)), [true, false]);
    }
}
