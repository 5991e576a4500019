//! Stale synchronous parallel and its relatives: ASP below it, ESSP above it.
//!
//! SSP is from Ho et al., *More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server*, NIPS
//! 2013; ESSP from Dai et al., *High-Performance Distributed ML at Scale through Parameter Server Consistency Models*,
//! AAAI 2015, arXiv 1410.8043. A reader at clock `c` under staleness `s` sees every gradient of clocks before `c - s`,
//! and possibly newer ones.

use std::collections::VecDeque;

use super::gate::GateMembers;
use super::turn::TurnStep;
use super::vap::{Admission, HoldBack};
use super::{
    Bound, GradientId, ServerAction, ServerEvent, ServerScheme, Share, WorkerAction, WorkerEvent,
    WorkerScheme,
};
use crate::clock::{Clock, ClockTable, Version};
use crate::time::Instant;

/// Folds each gradient alone, in order of arrival, with weight `1/members`, so that one clock of all workers moves
/// the parameters as far as one of BSP does.
///
/// The smallest clock counts applied gradients, not arrived ones. With `pushes`, a push follows
/// whenever it moves, after all updates of the clocks before it, and whenever a worker joins, so that the new worker
/// gets a copy; moves and joins between two polls share one push.
///
/// The server ignores events that no sane driver sends: a gradient that is not its worker's next, a gradient of a
/// worker that is not in, joining twice, leaving twice, an `Applied` that it did not ask for.
#[derive(Debug)]
pub(super) struct SspServer {
    members: GateMembers,
    /// The clocks of the members, counted by applied gradients; filled when the gate opens.
    folded: ClockTable,
    queue: VecDeque<(GradientId, Option<f32>)>,
    /// The rule that holds gradients back, under strong and published VAP.
    held: Option<HoldBack>,
    fold: FoldState,
    expected: Option<GradientId>,
    pushes: bool,
    push_is_due: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FoldState {
    Idle,
    Running(GradientId),
    /// Running, but the worker has left: its clock belongs to no worker now, even if the worker comes back before the
    /// end.
    Orphaned,
}

impl SspServer {
    /// Makes the server hold gradients back as long as too many folded updates are not yet seen by all workers.
    pub(super) fn holding_back(self, held: HoldBack) -> SspServer {
        SspServer { held: Some(held), ..self }
    }

    pub(super) fn new(workers: usize, pushes: bool, clock: Clock) -> SspServer {
        SspServer {
            members: GateMembers::new(workers),
            folded: ClockTable::at(clock),
            queue: VecDeque::new(),
            held: None,
            fold: FoldState::Idle,
            expected: None,
            pushes,
            push_is_due: false,
        }
    }

    fn weight(&self) -> f32 {
        1.0 / self.members.len() as f32
    }

    /// Returns the index in the queue of the gradient that may be folded next, or of one to ask about first.
    fn choose(&mut self) -> Option<(usize, Admission)> {
        let weight = self.weight();
        match &mut self.held {
            None => Some((0, Admission::Fold)),
            Some(HoldBack::Unseen(unseen)) => {
                let (gradient, magnitude) = self.queue.front()?;
                unseen.admit(gradient.clock, *magnitude, weight).then_some((0, Admission::Fold))
            }
            // A gradient that is held back does not hold up gradients of other workers: it may wait for one of these.
            Some(HoldBack::OwnSums(sums)) => {
                let gradients = self.queue.iter().map(|(gradient, _)| gradient).enumerate();
                gradients
                    .filter(|(_, gradient)| self.folded.get(gradient.worker) == Some(gradient.clock))
                    .map(|(index, gradient)| (index, sums.admit(gradient.worker)))
                    .find(|(_, admission)| *admission != Admission::Wait)
            }
        }
    }

    /// Returns the gradient to expect, unless it was returned before. With one member only, its next gradient is the
    /// next to be folded.
    fn expect(&mut self) -> Option<GradientId> {
        if self.members.len() != 1 {
            return None;
        }
        let (worker, member) = self.members.iter().next()?;
        let gradient = GradientId { worker, clock: member.next };
        (self.expected.replace(gradient) != Some(gradient)).then_some(gradient)
    }
}

impl ServerScheme for SspServer {
    fn handle_event(&mut self, _now: Instant, event: ServerEvent) {
        let before = self.folded.smallest();
        match event {
            ServerEvent::Joined { worker, clock, returns } => {
                if !self.members.join_into(worker, clock, returns, &mut self.folded) {
                    return;
                }
                if let Some(held) = &mut self.held {
                    held.join(worker);
                }
                self.push_is_due = self.pushes;
            }
            ServerEvent::Left { worker } => {
                if self.members.leave(worker).is_none() {
                    return;
                }
                self.queue.retain(|(gradient, _)| gradient.worker != worker);
                if matches!(self.fold, FoldState::Running(gradient) if gradient.worker == worker) {
                    self.fold = FoldState::Orphaned;
                }
                self.expected = None;
                self.folded.leave(worker);
                if let Some(held) = &mut self.held {
                    held.leave(worker);
                }
            }
            ServerEvent::Arrived { gradient, base, magnitude, .. } => {
                if self.members.arrive(gradient.worker, gradient.clock).is_some() {
                    self.queue.push_back((gradient, magnitude));
                    if let Some(held) = &mut self.held {
                        held.see(gradient.worker, base);
                    }
                }
            }
            ServerEvent::Seen { worker, version } => {
                if let Some(held) = &mut self.held {
                    held.see(worker, version);
                }
            }
            ServerEvent::Weighed { gradient, largest } => {
                if let Some(held) = &mut self.held {
                    held.weighed(gradient, largest);
                }
            }
            ServerEvent::Applied { version, .. } => {
                let fold = std::mem::replace(&mut self.fold, FoldState::Idle);
                let folded = match fold {
                    FoldState::Running(gradient) => Some(gradient),
                    FoldState::Idle | FoldState::Orphaned => None,
                };
                if let Some(held) = self.held.as_mut().filter(|_| fold != FoldState::Idle) {
                    held.applied(version, folded.map(|gradient| gradient.worker));
                }
                if let Some(gradient) = folded {
                    self.folded.advance(gradient.worker, gradient.clock.next());
                }
            }
        }
        self.push_is_due |= self.pushes && self.folded.smallest() != before;
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if std::mem::take(&mut self.push_is_due) {
            return Some(ServerAction::Push);
        }
        if !self.members.complete() || self.fold != FoldState::Idle {
            return None;
        }
        let weight = self.weight();
        if !self.queue.is_empty() {
            let (index, admission) = self.choose()?;
            let (gradient, _) = self.queue[index];
            shares.clear();
            shares.push(Share { gradient, weight });
            if let Admission::Weigh(since) = admission {
                return Some(ServerAction::Weigh { since });
            }
            self.queue.remove(index);
            self.fold = FoldState::Running(gradient);
            return Some(ServerAction::Apply);
        }
        let gradient = self.expect()?;
        shares.clear();
        shares.push(Share { gradient, weight });
        Some(ServerAction::Expect)
    }

    fn smallest_clock(&self) -> Clock {
        self.folded.smallest()
    }
}

/// The worker's half of all four: it keeps a bound on the copy that it computes on, and differs only in how large the
/// bound is and in whether a copy that still satisfies it is used again.
///
/// A clock begins with the copy and ends with the gradient announced; an interruption begins it again. `Joined` begins
/// everything again. Answers to questions that were not asked are ignored, save that a copy counts whenever it comes.
#[derive(Debug)]
pub(super) struct SspReader {
    /// `None`: unbounded.
    staleness: Option<u64>,
    reuses: bool,
    clock: Clock,
    copy: Option<(Version, Clock)>,
    step: TurnStep,
}

impl SspReader {
    /// Takes the newest copy at every clock: BSP at staleness 0, ASP with none, ESSP over pushed copies.
    pub(super) fn fresh(staleness: Option<u64>) -> SspReader {
        SspReader { staleness, reuses: false, clock: Clock::new(0), copy: None, step: TurnStep::Out }
    }

    /// Uses its copy as long as that satisfies the bound: SSP.
    pub(super) fn reusing(staleness: u64) -> SspReader {
        SspReader { reuses: true, ..SspReader::fresh(Some(staleness)) }
    }

    fn bound(&self) -> Bound {
        self.staleness.map_or(Bound::NONE, |staleness| Bound::clock(self.clock.needed(staleness)))
    }

    fn holds_enough(&self) -> bool {
        self.copy.is_some_and(|(version, smallest_clock)| self.bound().is_met_by(version, smallest_clock))
    }

    fn begin(&mut self) {
        self.step =
            if self.reuses && self.holds_enough() { TurnStep::ComputeIsDue } else { TurnStep::RefreshIsDue };
    }
}

impl WorkerScheme for SspReader {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => {
                self.clock = clock;
                self.copy = None; // Another incarnation of the server may have made it.
                self.begin();
            }
            WorkerEvent::Holds { version, smallest_clock } => {
                self.copy = Some((version, smallest_clock));
                if self.step == TurnStep::Refreshing {
                    self.step =
                        if self.holds_enough() { TurnStep::ComputeIsDue } else { TurnStep::RefreshIsDue };
                }
            }
            WorkerEvent::Published { .. } if self.step == TurnStep::Computing => {
                self.clock = self.clock.next();
                self.begin();
            }
            WorkerEvent::Interrupted if self.step.is_on_a_copy() => {
                self.step = TurnStep::RefreshIsDue;
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        let bound = self.bound();
        self.step.poll(bound)
    }
}
