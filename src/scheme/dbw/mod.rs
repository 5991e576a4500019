//! Dynamic backup workers: each version waits for the fastest few, and learns how few are best.
//!
//! From Xu, Neglia and Sebastianelli, *Dynamic Backup Workers for Parallel Machine Learning*, arXiv 2004.14696. A
//! version is published; the server waits for `k` gradients computed on it, folds exactly these with weight `1/k`, and
//! drops those of earlier versions as they come. How large `k` should be follows from what an update out of `k`
//! gradients is worth ([`Gain`]) and from how long the `k`-th takes: [`best_k`] has the most gain per second.
//!
//! The bound on the gain and the choice are the paper's. The estimators are the natural unbiased ones, reconstructed;
//! how they are averaged and read, and what a loss that grows does, is our own: see
//! [`Choice::Dynamic`]. [`Choice::Published`] has the paper's, as far as they are known.

mod choice;
mod gain;
mod published;
mod step;
mod time;

pub use choice::{Choice, best_k, most_gradients_k};
pub use gain::Gain;
pub use step::StepRule;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::choice::Chooser;
use super::gate::GateMembers;
use super::{GradientId, ServerAction, ServerEvent, ServerScheme, Share, Statistics};
use crate::clock::{Clock, ClockTable, Version, WorkerId};
use crate::time::Instant;

/// The treatment of a worker that still computes when a new version is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Delivery {
    /// It is interrupted and begins again on the new version.
    Interrupt,
    /// It ends what it does, and goes on with the newest version, which was pushed to it meanwhile.
    Wait,
    /// It ends what it does, and then asks for the newest version.
    Pull,
}

/// Versions whose late gradients still tell how long they took.
const ROUNDS_MAX: usize = 64;

/// One version: the time at which it came out, and what came of it.
#[derive(Clone, Copy, Debug)]
struct VersionTime {
    published: Instant,
    /// Gradients that went into the update that made it.
    h: usize,
    arrived: usize,
}

/// Folds the first `k` gradients of the newest version, and drops those of earlier ones.
///
/// An event costs the logarithm of the workers. A version costs besides what the choice does: nothing where `k` is
/// static, a pass over the workers where they are interrupted, the square of their number (of at most 64) elsewhere;
/// and a pass over the workers to interrupt them.
///
/// The server ignores what no sane driver sends: a gradient that is not its worker's next, one of a worker that is
/// not in, joining twice, leaving twice, an `Applied` that it did not ask for.
#[derive(Debug)]
pub(super) struct DbwServer {
    delivery: Delivery,
    members: GateMembers,
    open: bool,
    folded: ClockTable,
    newest: Version,
    /// The number of gradients that the newest version waits for; clipped to the members when it counts.
    k: usize,
    chooser: Chooser,
    steps: StepRule,
    /// The last versions; the newest is the last.
    rounds: VecDeque<VersionTime>,
    /// By worker: the version of the last gradient that came from it.
    answered: Vec<Option<Version>>,
    /// Gradients of the newest version in order of arrival.
    admitted: Vec<GradientId>,
    /// The gradients that are being folded, and how many there were.
    taken: Vec<GradientId>,
    folding: Option<usize>,
    late: VecDeque<GradientId>,
    /// Workers from here on have still to be interrupted.
    to_interrupt: usize,
    push_is_due: bool,
}

impl DbwServer {
    pub(super) fn new(
        workers: usize,
        clock: Clock,
        newest: Version,
        delivery: Delivery,
        choice: Choice,
        steps: StepRule,
    ) -> DbwServer {
        let k = match choice {
            Choice::Static { k } => usize::from(k),
            // The fewest that tell a variance.
            Choice::Dynamic { .. } => 2,
            Choice::Blind { .. } | Choice::Published => usize::MAX,
        };
        DbwServer {
            delivery,
            members: GateMembers::new(workers),
            open: false,
            folded: ClockTable::at(clock),
            newest,
            k,
            chooser: Chooser::new(choice, steps, delivery != Delivery::Interrupt),
            steps,
            rounds: VecDeque::with_capacity(ROUNDS_MAX),
            answered: Vec::new(),
            admitted: Vec::new(),
            taken: Vec::new(),
            folding: None,
            late: VecDeque::new(),
            to_interrupt: usize::MAX,
            push_is_due: false,
        }
    }

    fn needed(&self) -> usize {
        self.k.clamp(1, self.members.len().max(1))
    }

    fn open(&mut self, now: Instant) {
        self.open = true;
        self.members.begin(&mut self.folded);
        self.publish(now, self.members.len());
    }

    fn publish(&mut self, now: Instant, h: usize) {
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        self.rounds.push_back(VersionTime { published: now, h, arrived: 0 });
    }

    fn arrive(&mut self, now: Instant, gradient: GradientId, base: Version) {
        let answered = &mut self.answered[gradient.worker.index()];
        // A worker takes no older version than it has had. One that says so would have this gradient dropped before its
        // earlier one is folded in, and the smallest clock would pass both.
        let base = answered.map_or(base, |before| base.max(before));
        *answered = Some(base);
        let age = self.newest.get().saturating_sub(base.get());
        let index =
            usize::try_from(age).ok().and_then(|age| self.rounds.len().checked_sub(age.saturating_add(1)));
        if let Some(round) = index.and_then(|index| self.rounds.get_mut(index)) {
            round.arrived += 1;
            let seconds = (now - round.published).as_secs_f64();
            self.chooser.add_time(round.h, round.arrived, seconds);
        }
        if base == self.newest && self.folding.is_none() {
            self.admitted.push(gradient);
        } else {
            self.late.push_back(gradient);
        }
    }

    fn applied(&mut self, now: Instant, version: Version, measured: &Statistics) {
        let Some(k) = self.folding.take() else { return };
        for gradient in self.taken.drain(..) {
            self.folded.advance(gradient.worker, gradient.clock.next());
        }
        self.newest = version;
        // What came too late to be among the first.
        self.late.extend(self.admitted.drain(..));
        self.chooser.make_room(self.members.len());
        self.k = self.chooser.next(self.members.len(), k, measured);
        self.publish(now, k);
        match self.delivery {
            Delivery::Interrupt => self.to_interrupt = 0,
            Delivery::Wait => self.push_is_due = true,
            Delivery::Pull => {}
        }
    }

    /// Returns the next interrupt that is due. A worker that has not answered the version before the newest computes
    /// on that one, or on an earlier one.
    fn next_to_interrupt(&mut self) -> Option<ServerAction> {
        while let Some(answered) = self.answered.get(self.to_interrupt) {
            let worker = WorkerId(self.to_interrupt as u32);
            self.to_interrupt += 1;
            let has_answered =
                answered.is_some_and(|answered| answered.get().saturating_add(1) >= self.newest.get());
            if self.members.contains(worker) && !has_answered {
                return Some(ServerAction::Interrupt { worker });
            }
        }
        None
    }
}

impl ServerScheme for DbwServer {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Joined { worker, clock, returns } => {
                if !self.members.join(worker, clock, returns) {
                    return;
                }
                let index = worker.index();
                if self.answered.len() <= index {
                    self.answered.resize(index + 1, None);
                }
                self.answered[index] = None;
                if self.open {
                    self.folded.join_at(worker, clock);
                } else if self.members.complete() {
                    self.open(now);
                }
                self.chooser.make_room(self.members.len());
                self.push_is_due = self.delivery == Delivery::Wait;
            }
            ServerEvent::Left { worker } => {
                if self.members.leave(worker).is_none() {
                    return;
                }
                let others = |gradient: &GradientId| gradient.worker != worker;
                self.admitted.retain(others);
                self.late.retain(others);
                self.taken.retain(others);
                self.folded.leave(worker);
            }
            ServerEvent::Arrived { gradient, base, .. } => {
                if self.members.arrive(gradient.worker, gradient.clock).is_some() {
                    self.arrive(now, gradient, base);
                }
            }
            ServerEvent::Seen { .. } | ServerEvent::Weighed { .. } => {}
            ServerEvent::Applied { version, statistics } => self.applied(now, version, &statistics),
        }
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if std::mem::take(&mut self.push_is_due) {
            return Some(ServerAction::Push);
        }
        if !self.open || self.folding.is_some() {
            return None;
        }
        if let Some(action) = self.next_to_interrupt() {
            return Some(action);
        }
        if let Some(gradient) = self.late.pop_front() {
            self.folded.advance(gradient.worker, gradient.clock.next());
            return Some(ServerAction::Drop { gradient });
        }
        let k = self.needed();
        if self.admitted.len() < k {
            return None;
        }
        self.taken.extend(self.admitted.drain(..k));
        self.taken.sort_unstable();
        self.folding = Some(k);
        Share::each(&self.taken, shares);
        // The step is that much shorter.
        let factor = self.steps.factor(k, self.members.len()) as f32;
        shares.iter_mut().for_each(|share| share.weight *= factor);
        Some(ServerAction::Apply)
    }

    fn smallest_clock(&self) -> Clock {
        self.folded.smallest()
    }

    fn waits_for(&self) -> Option<u64> {
        Some(self.needed() as u64)
    }
}
