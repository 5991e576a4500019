//! Adaptive bounded staleness: each version waits for `K` updates that are not too stale, and a worker that computes
//! on something too old begins again.
//!
//! From Tan, Zhu and Zhang, arXiv 2301.08895. That `K` grows with training, that the bound on staleness may shrink with
//! it, and that stale workers are restarted are the paper's; both formulas are reconstructed, and therefore parameters
//! ([`WaitFor`], [`Shrink`]). With no bound it is K-async SGD, with a bound of 0 it is K-sync SGD (Dutta et al.,
//! AISTATS 2018), with all workers waited for it is synchronous.

mod learned;

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::gate::GateMembers;
use super::{GradientId, ServerAction, ServerEvent, ServerScheme, Share};
use crate::clock::{Clock, ClockTable, Version, WorkerId};
use crate::time::Instant;

/// The number of updates that a version waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WaitFor {
    /// Always this number.
    Fixed(u16),
    /// This number at the beginning, and more as the loss `F` falls: `ceil(K sqrt(F0 / F))`, never fewer than before
    /// and never more than there are workers. The rule of AdaSync, made monotone; the paper's own is not known. A
    /// server that continues from a checkpoint has the number and `F0` of the server that wrote it.
    LossRatio(u16),
    /// The same with the mean loss of all gradients of an interval of time, taken at its end, as AdaSync has it; then
    /// it may also fall. The loss of one update is the loss of a few mini-batches: its noise alone makes a number grow
    /// that never falls.
    LossOverTime {
        /// The number at the beginning, and while the first interval runs.
        k: u16,
        /// The interval in milliseconds; at least 1.
        millis: u32,
    },
}

impl WaitFor {
    /// Returns the number at the beginning.
    #[doc(hidden)]
    pub const fn k(self) -> u16 {
        match self {
            WaitFor::Fixed(k) | WaitFor::LossRatio(k) | WaitFor::LossOverTime { k, .. } => k,
        }
    }
}

/// The change of the bound on staleness as a version waits for more updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Shrink {
    /// The bound stays.
    Fixed,
    /// The bound falls in proportion, rounded up: updates that wait for twice as many are half as stale by nature. A
    /// reconstruction; the paper says only that the bound changes.
    WithK,
}

/// The settings that its server needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) wait_for: WaitFor,
    pub(super) staleness: Option<u64>,
    pub(super) shrink: Shrink,
}

/// Folds the first `K` admissible gradients in order of arrival, each with weight `1/K`, drops gradients that are more
/// versions behind than the bound, and interrupts workers that compute on such a version.
///
/// An event costs the logarithm of the workers, and a version the number of gradients that wait.
///
/// The server ignores events that no sane driver sends: a gradient that is not its worker's next, a gradient of a
/// worker that is not in, joining twice, leaving twice, an `Applied` that it did not ask for.
#[derive(Debug)]
pub(super) struct AbsServer {
    rules: Rules,
    members: GateMembers,
    folded: ClockTable,
    newest: Version,
    k: u64,
    first_loss: Option<f64>,
    interval: LossInterval,
    /// By worker: the version of the last gradient that came from it.
    answered: Vec<Option<Version>>,
    /// The workers that compute, and for each a version that it is not behind.
    computing: VersionOrder,
    /// Gradients that were not too stale when they came, in order of arrival.
    admitted: VecDeque<(GradientId, Version)>,
    taken: Vec<GradientId>,
    folding: bool,
    late: VecDeque<GradientId>,
}

impl AbsServer {
    pub(super) fn new(workers: usize, clock: Clock, newest: Version, rules: Rules) -> AbsServer {
        AbsServer {
            rules,
            members: GateMembers::new(workers),
            folded: ClockTable::at(clock),
            newest,
            k: u64::from(rules.wait_for.k()),
            first_loss: None,
            interval: LossInterval::default(),
            answered: Vec::new(),
            computing: VersionOrder::default(),
            admitted: VecDeque::new(),
            taken: Vec::new(),
            folding: false,
            late: VecDeque::new(),
        }
    }

    fn is_too_stale(&self, base: Version) -> bool {
        self.staleness_bound().is_some_and(|bound| base.behind(self.newest) > bound)
    }

    /// Returns the number of updates to wait for, at least one and at most as many as there are members.
    fn needed(&self) -> u64 {
        self.k.clamp(1, self.members.len().max(1) as u64)
    }

    fn arrive(&mut self, gradient: GradientId, base: Version) {
        self.computing.remove(gradient.worker);
        let answered = &mut self.answered[gradient.worker.index()];
        // A worker takes no older version than it has had. If a worker claimed one, this gradient would be dropped
        // before its earlier one is folded in, and the smallest clock would pass both.
        let base = answered.map_or(base, |before| base.max(before));
        *answered = Some(base);
        if self.is_too_stale(base) {
            self.late.push_back(gradient);
        } else {
            self.admitted.push_back((gradient, base));
        }
    }

    fn applied(&mut self, now: Instant, version: Version, loss: Option<f64>) {
        if !std::mem::take(&mut self.folding) {
            return;
        }
        self.newest = version;
        self.adapt(now, loss);
        for gradient in self.taken.drain(..) {
            self.folded.advance(gradient.worker, gradient.clock.next());
            self.computing.join(gradient.worker, version);
        }
        // Waiting gradients may have become too stale.
        for _ in 0..self.admitted.len() {
            let Some((gradient, base)) = self.admitted.pop_front() else { break };
            if self.is_too_stale(base) {
                self.late.push_back(gradient);
            } else {
                self.admitted.push_back((gradient, base));
            }
        }
    }

    fn adapt(&mut self, now: Instant, loss: Option<f64>) {
        // One that is none of a falling loss says nothing, and nothing is measured against it.
        let Some(loss) = loss.filter(|loss| loss.is_finite() && *loss > 0.0) else { return };
        // The first update is made of gradients on the first version alone.
        self.first_loss.get_or_insert(loss);
        match self.rules.wait_for {
            WaitFor::Fixed(_) => {}
            WaitFor::LossRatio(k) => self.k = self.wanted(k, loss).max(self.k),
            WaitFor::LossOverTime { k, millis } => {
                let length = Duration::from_millis(millis.into());
                if let Some(mean) = self.interval.add(now, length, loss, self.taken.len()) {
                    self.k = self.wanted(k, mean);
                }
            }
        }
    }

    /// `ceil(K sqrt(F0 / F))`, at most the members; the loss of the first update is `F0`.
    fn wanted(&self, k: u16, loss: f64) -> u64 {
        let first = self.first_loss.unwrap_or(loss);
        let wanted = (f64::from(k) * (first / loss).sqrt()).ceil();
        (wanted as u64).min(self.members.len() as u64)
    }
}

/// The losses of an interval of time.
#[derive(Debug, Default)]
struct LossInterval {
    ends: Option<Instant>,
    sum: f64,
    gradients: usize,
}

impl LossInterval {
    /// Adds the mean loss of some gradients; returns the mean of the interval once it is over.
    fn add(&mut self, now: Instant, length: Duration, loss: f64, gradients: usize) -> Option<f64> {
        self.sum += loss * gradients as f64;
        self.gradients += gradients;
        // One whose gradients all left with their workers tells nothing, and goes on.
        if now < *self.ends.get_or_insert(now + length) || self.gradients == 0 {
            return None;
        }
        let mean = self.sum / self.gradients as f64;
        *self = LossInterval { ends: Some(now + length), ..LossInterval::default() };
        Some(mean)
    }
}

impl ServerScheme for AbsServer {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Joined { worker, clock, returns } => {
                if self.members.join_into(worker, clock, returns, &mut self.folded) {
                    let index = worker.index();
                    if self.answered.len() <= index {
                        self.answered.resize(index + 1, None);
                    }
                    self.answered[index] = None;
                    self.computing.join(worker, self.newest);
                }
            }
            ServerEvent::Left { worker } => {
                if self.members.leave(worker).is_none() {
                    return;
                }
                self.computing.remove(worker);
                self.admitted.retain(|(gradient, _)| gradient.worker != worker);
                self.late.retain(|gradient| gradient.worker != worker);
                self.taken.retain(|gradient| gradient.worker != worker);
                self.folded.leave(worker);
            }
            ServerEvent::Arrived { gradient, base, .. } => {
                if self.members.arrive(gradient.worker, gradient.clock).is_some() {
                    self.arrive(gradient, base);
                }
            }
            ServerEvent::Seen { .. } | ServerEvent::Weighed { .. } => {}
            ServerEvent::Applied { version, statistics } => self.applied(now, version, statistics.loss),
        }
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if !self.members.complete() || self.folding {
            return None;
        }
        if let Some(gradient) = self.late.pop_front() {
            self.folded.advance(gradient.worker, gradient.clock.next());
            self.computing.join(gradient.worker, self.newest);
            return Some(ServerAction::Drop { gradient });
        }
        if let Some((worker, base)) = self.computing.first()
            && self.is_too_stale(base)
        {
            self.computing.join(worker, self.newest);
            return Some(ServerAction::Interrupt { worker });
        }
        let k = self.needed() as usize;
        if self.admitted.len() < k {
            return None;
        }
        self.taken.extend(self.admitted.drain(..k).map(|(gradient, _)| gradient));
        self.taken.sort_unstable();
        self.folding = true;
        Share::each(&self.taken, shares);
        Some(ServerAction::Apply)
    }

    fn smallest_clock(&self) -> Clock {
        self.folded.smallest()
    }

    fn learned(&self) -> Option<String> {
        self.to_text()
    }

    fn recall(&mut self, learned: &str) {
        self.take_up(learned);
    }

    fn waits_for(&self) -> Option<u64> {
        Some(self.needed())
    }

    fn staleness_bound(&self) -> Option<u64> {
        let mut bound = self.rules.staleness?;
        if self.rules.shrink == Shrink::WithK {
            let (first, now) = (u128::from(self.rules.wait_for.k()), u128::from(self.k.max(1)));
            bound = u64::try_from((u128::from(bound) * first).div_ceil(now)).unwrap_or(bound).min(bound);
        }
        Some(bound)
    }
}

/// Workers in the order of the versions they compute on. Versions only grow, so a worker that joins goes to the end,
/// and the first is the stalest; every step costs the same for any length.
#[derive(Debug, Default)]
struct VersionOrder {
    /// The position of each worker, by its id.
    positions: Vec<Option<Position>>,
    first: Option<WorkerId>,
    last: Option<WorkerId>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    base: Version,
    before: Option<WorkerId>,
    after: Option<WorkerId>,
}

impl VersionOrder {
    fn join(&mut self, worker: WorkerId, base: Version) {
        self.remove(worker);
        let index = worker.index();
        if self.positions.len() <= index {
            self.positions.resize(index + 1, None);
        }
        self.positions[index] = Some(Position { base, before: self.last, after: None });
        match self.last.replace(worker) {
            Some(last) => self.set(last, |position| position.after = Some(worker)),
            None => self.first = Some(worker),
        }
    }

    fn remove(&mut self, worker: WorkerId) {
        let Some(position) = self.positions.get_mut(worker.index()).and_then(Option::take) else {
            return;
        };
        match position.before {
            Some(before) => self.set(before, |before| before.after = position.after),
            None => self.first = position.after,
        }
        match position.after {
            Some(after) => self.set(after, |after| after.before = position.before),
            None => self.last = position.before,
        }
    }

    fn set(&mut self, worker: WorkerId, change: impl FnOnce(&mut Position)) {
        if let Some(position) = &mut self.positions[worker.index()] {
            change(position);
        }
    }

    fn first(&self) -> Option<(WorkerId, Version)> {
        let first = self.first?;
        Some((first, self.positions[first.index()]?.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::Statistics;

    #[test]
    fn the_line_is_in_order_whoever_leaves_it() {
        let mut line = VersionOrder::default();
        for (version, worker) in [3, 0, 2, 1].into_iter().enumerate() {
            line.join(WorkerId(worker), Version::new(version as u64));
        }
        line.remove(WorkerId(0));
        line.remove(WorkerId(0));
        line.remove(WorkerId(9));
        line.join(WorkerId(3), Version::new(7));
        let mut seen = Vec::new();
        while let Some((worker, base)) = line.first() {
            seen.push((worker.0, base.get()));
            line.remove(worker);
        }
        assert_eq!(seen, [(2, 2), (1, 3), (3, 7)]);
        assert!(line.last.is_none());
    }

    fn with(workers: usize, rules: Rules) -> AbsServer {
        let mut server = AbsServer::new(workers, Clock::new(0), Version::new(0), rules);
        for worker in 0..workers as u32 {
            let event =
                ServerEvent::Joined { worker: WorkerId(worker), clock: Clock::new(0), returns: false };
            server.handle_event(Instant::ORIGIN, event);
        }
        server
    }

    #[test]
    fn k_grows_with_the_root_of_the_loss_and_never_falls() {
        let rules = Rules { wait_for: WaitFor::LossRatio(2), staleness: Some(6), shrink: Shrink::WithK };
        let mut server = with(8, rules);
        let bound_at = |server: &mut AbsServer| {
            server.newest = Version::new(100);
            (0..=100).find(|behind| server.is_too_stale(Version::new(100 - behind))).unwrap() - 1
        };
        let expected = [(4.0, 2, 6), (2.0, 3, 4), (1.0, 4, 3), (3.0, 4, 3), (f64::NAN, 4, 3), (-1.0, 4, 3)];
        for (loss, k, bound) in expected.into_iter().chain([(1e-9, 8, 2)]) {
            server.adapt(Instant::ORIGIN, Some(loss));
            assert_eq!((server.k, bound_at(&mut server)), (k, bound), "at {loss}");
            assert_eq!((server.waits_for(), server.staleness_bound()), (Some(k), Some(bound)), "it says so");
        }
        server.adapt(Instant::ORIGIN, None);
        assert_eq!(server.k, 8);
    }

    #[test]
    fn a_base_before_the_workers_last_one_moves_no_clock_past_what_waits() {
        let rules = Rules { wait_for: WaitFor::Fixed(2), staleness: Some(1), shrink: Shrink::Fixed };
        let mut server = with(2, rules);
        server.newest = Version::new(9);
        let mut arrive = |worker, clock, base| {
            let gradient = GradientId { worker: WorkerId(worker), clock: Clock::new(clock) };
            let base = Version::new(base);
            let event = ServerEvent::Arrived { gradient, base, loss: None, magnitude: None };
            server.handle_event(Instant::ORIGIN, event);
        };
        // The first worker uses both of its slots, and the other one is past both clocks.
        for (worker, clock, base) in [(0, 0, 9), (0, 1, 0)] {
            arrive(worker, clock, base);
        }
        server.folded.advance(WorkerId(1), Clock::new(5));
        server.computing.join(WorkerId(1), Version::new(9));
        let mut shares = Vec::new();
        assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply), "none is dropped first");
        assert_eq!(server.smallest_clock(), Clock::new(0), "neither is folded in yet");
        let applied = ServerEvent::Applied { version: Version::new(10), statistics: Statistics::default() };
        server.handle_event(Instant::ORIGIN, applied);
        assert_eq!(server.smallest_clock(), Clock::new(2));
    }

    #[test]
    fn a_first_loss_that_is_none_is_not_what_later_ones_are_measured_against() {
        let rules = Rules { wait_for: WaitFor::LossRatio(2), staleness: None, shrink: Shrink::Fixed };
        let mut server = with(8, rules);
        for (loss, k) in [(f64::NAN, 2), (f64::INFINITY, 2), (0.0, 2), (-1.0, 2), (4.0, 2), (1.0, 4)] {
            server.adapt(Instant::ORIGIN, Some(loss));
            assert_eq!(server.k, k, "at {loss}");
        }
    }

    #[test]
    fn the_mean_of_all_gradients_of_an_interval_decides_and_k_may_fall() {
        let wait_for = WaitFor::LossOverTime { k: 2, millis: 1000 };
        let mut server = with(8, Rules { wait_for, staleness: None, shrink: Shrink::Fixed });
        let mut at = |millis: u64, loss: f64, gradients: u32| {
            let gradient = |worker| GradientId { worker: WorkerId(worker), clock: Clock::new(0) };
            server.taken = (0..gradients).map(gradient).collect();
            server.adapt(Instant::from_nanos(millis * 1_000_000), Some(loss));
            server.k
        };
        // The first interval has the mean (1 * 8 + 1 * 0.5 + 3 * 4) / 5 = 4.1: one small loss moves little.
        assert_eq!([at(0, 8.0, 1), at(500, 0.5, 1), at(1000, 4.0, 3)], [2, 2, 3]);
        assert_eq!([at(1500, 2.0, 1), at(2000, 2.0, 1)], [3, 4], "sqrt(8 / 2) is 2");
        assert_eq!([at(2500, 8.0, 1), at(3000, 8.0, 1)], [4, 2]);
        // One of which no gradient is left goes on until there is one.
        assert_eq!([at(4000, 2.0, 0), at(4500, 2.0, 1)], [2, 4]);
    }
}
