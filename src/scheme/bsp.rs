//! Bulk synchronous: one update per clock, out of the gradients of all workers; and BAP's server, which pushes each.

use std::collections::VecDeque;

use super::gate::{GateMember, GateMembers};
use super::{GradientId, ServerAction, ServerEvent, ServerScheme, Share};
use crate::clock::Clock;
use crate::time::Instant;

/// Folds the gradients of clock `r` of all members at once, each with weight `1/k` for `k` gradients.
///
/// A worker belongs to every round from the clock it joins at. A worker that leaves takes its gradient out of the
/// round, and if all others are there the round goes on without it. Once a round is handed out for folding it is
/// closed: one that joins at that clock before the fold is done gets its gradient of that clock dropped.
///
/// With `pushes`, a push follows whenever the round moves on, and whenever a worker joins, so that the new worker gets
/// a copy: workers find the newest version in memory of their own.
///
/// The server ignores events that no sane driver sends: a gradient that is not its worker's next, a gradient of a
/// worker that is not in, joining twice, leaving twice, an `Applied` that it did not ask for.
#[derive(Debug)]
pub(super) struct BspServer {
    members: GateMembers,
    round: Clock,
    /// Members of this round whose gradient has arrived.
    arrived: usize,
    /// Members of this round whose gradient has not.
    missing: usize,
    /// This round was handed out and is not applied yet.
    folding: bool,
    /// The members of this round have changed since the last `Expect`.
    changed: bool,
    late: VecDeque<GradientId>,
    pushes: bool,
    push_is_due: bool,
}

impl BspServer {
    pub(super) fn new(workers: usize, pushes: bool, clock: Clock) -> BspServer {
        BspServer {
            members: GateMembers::new(workers),
            round: clock,
            arrived: 0,
            missing: 0,
            folding: false,
            changed: false,
            late: VecDeque::new(),
            pushes,
            push_is_due: false,
        }
    }

    /// Counts the members of this round; once a round, or when its members change.
    fn count(&mut self) {
        if !self.members.complete() || self.folding {
            return;
        }
        if self.members.iter().all(|(_, member)| member.start > self.round) {
            // No worker is in this round: go on to the first round that has a member.
            if let Some(start) = self.members.iter().map(|(_, member)| member.start).min() {
                self.round = start;
            }
        }
        (self.arrived, self.missing) = (0, 0);
        for (_, member) in self.members.iter().filter(|(_, member)| member.start <= self.round) {
            match member.next > self.round {
                true => self.arrived += 1,
                false => self.missing += 1,
            }
        }
        self.changed = true;
    }

    fn arrive(&mut self, gradient: GradientId, before: GateMember) {
        if !self.members.complete() {
            return; // Counted when the gate opens.
        }
        // All gradients of a round that is being folded had arrived: this one came too late to be in it.
        let closed = if self.folding { self.round.next() } else { self.round };
        if gradient.clock < closed {
            self.late.push_back(gradient);
        } else if !self.folding && before.next == self.round {
            self.missing -= 1;
            self.arrived += 1;
        }
    }

    fn hand_out(&self, shares: &mut Vec<Share>) {
        let weight = 1.0 / (self.arrived + self.missing) as f32;
        shares.clear();
        shares.extend(
            self.members
                .iter()
                .filter(|(_, member)| member.start <= self.round)
                .map(|(worker, _)| Share { gradient: GradientId { worker, clock: self.round }, weight }),
        );
    }
}

impl ServerScheme for BspServer {
    fn handle_event(&mut self, _now: Instant, event: ServerEvent) {
        let before = self.round;
        match event {
            ServerEvent::Joined { worker, clock, returns } => {
                if self.members.join(worker, clock, returns) {
                    self.push_is_due = self.pushes;
                    self.count();
                }
            }
            ServerEvent::Left { worker } => {
                if self.members.leave(worker).is_some() {
                    self.late.retain(|gradient| gradient.worker != worker);
                    self.count();
                }
            }
            ServerEvent::Arrived { gradient, .. } => {
                if let Some(before) = self.members.arrive(gradient.worker, gradient.clock) {
                    self.arrive(gradient, before);
                }
            }
            ServerEvent::Seen { .. } | ServerEvent::Weighed { .. } => {}
            ServerEvent::Applied { .. } => {
                if self.folding {
                    self.folding = false;
                    self.round = self.round.next();
                    self.count();
                }
            }
        }
        self.push_is_due |= self.pushes && self.round != before;
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if std::mem::take(&mut self.push_is_due) {
            return Some(ServerAction::Push);
        }
        if let Some(gradient) = self.late.pop_front() {
            return Some(ServerAction::Drop { gradient });
        }
        if !self.members.complete() || self.folding {
            return None;
        }
        if self.missing == 0 && self.arrived > 0 {
            self.hand_out(shares);
            self.folding = true;
            return Some(ServerAction::Apply);
        }
        if self.changed && self.missing > 0 {
            self.changed = false;
            self.hand_out(shares);
            return Some(ServerAction::Expect);
        }
        None
    }

    fn smallest_clock(&self) -> Clock {
        self.round
    }
}
