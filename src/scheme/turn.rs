//! The turns of a worker's half: a clock begins with the copy and ends with the gradient announced.

use super::{Bound, WorkerAction, WorkerEvent, WorkerScheme};
use crate::clock::{Clock, Version};
use crate::time::Instant;

/// The step of a worker within its clock. Answers to questions that were not asked change nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TurnStep {
    Out,
    RefreshIsDue,
    Refreshing,
    ComputeIsDue,
    Computing,
    /// Nothing is asked; something else must happen first.
    Waiting,
}

impl TurnStep {
    /// Asks for the due version.
    pub(super) fn poll(&mut self, bound: Bound) -> Option<WorkerAction> {
        match self {
            TurnStep::RefreshIsDue => {
                *self = TurnStep::Refreshing;
                Some(WorkerAction::Refresh { bound })
            }
            TurnStep::ComputeIsDue => {
                *self = TurnStep::Computing;
                Some(WorkerAction::Compute)
            }
            TurnStep::Out | TurnStep::Refreshing | TurnStep::Computing | TurnStep::Waiting => None,
        }
    }

    /// True from the moment a copy is good to be computed on until the gradient is announced.
    pub(super) fn is_on_a_copy(self) -> bool {
        matches!(self, TurnStep::ComputeIsDue | TurnStep::Computing)
    }
}

/// The version after this one, also at the end of all numbers.
pub(super) fn after(version: Version) -> Version {
    Version::new(version.get().saturating_add(1))
}

/// Computes at most once on each version: after a gradient, and when it is interrupted, it asks for a later one.
/// Workers of DBW and of delayed updates do.
#[derive(Debug)]
pub(super) struct OncePerVersion {
    /// The version it computed on last.
    used: Option<Version>,
    held: Option<Version>,
    step: TurnStep,
}

impl OncePerVersion {
    pub(super) fn new() -> OncePerVersion {
        OncePerVersion { used: None, held: None, step: TurnStep::Out }
    }

    fn wanted(&self) -> Bound {
        self.used.map_or(Bound::NONE, |used| Bound::version(after(used)))
    }
}

impl WorkerScheme for OncePerVersion {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { .. } => {
                // Another incarnation of the server may have made its version.
                *self = OncePerVersion { step: TurnStep::RefreshIsDue, ..OncePerVersion::new() };
            }
            WorkerEvent::Holds { version, .. } => {
                self.held = Some(version);
                if self.step == TurnStep::Refreshing {
                    let enough = version >= self.wanted().version;
                    self.step = if enough { TurnStep::ComputeIsDue } else { TurnStep::RefreshIsDue };
                }
            }
            WorkerEvent::Published { .. } if self.step == TurnStep::Computing => {
                self.step = TurnStep::RefreshIsDue
            }
            WorkerEvent::Interrupted if self.step.is_on_a_copy() => {
                self.used = self.held;
                self.step = TurnStep::RefreshIsDue;
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        if self.step == TurnStep::ComputeIsDue {
            self.used = self.held;
        }
        let wanted = self.wanted();
        self.step.poll(wanted)
    }
}

/// Computes again once its own gradient is in the copy that it pulls. Workers of ABS do.
#[derive(Debug)]
pub(super) struct OwnConsumed {
    clock: Clock,
    /// Its gradients of earlier clocks are consumed.
    consumed: Clock,
    held: Option<Version>,
    bound: Bound,
    step: TurnStep,
}

impl OwnConsumed {
    pub(super) fn new() -> OwnConsumed {
        OwnConsumed {
            clock: Clock::new(0),
            consumed: Clock::new(0),
            held: None,
            bound: Bound::NONE,
            step: TurnStep::Out,
        }
    }

    fn go_on(&mut self) {
        self.step = if self.consumed >= self.clock { TurnStep::RefreshIsDue } else { TurnStep::Waiting };
    }
}

impl WorkerScheme for OwnConsumed {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => {
                *self = OwnConsumed { clock, consumed: clock, ..OwnConsumed::new() };
                self.go_on();
            }
            WorkerEvent::Holds { version, smallest_clock } => {
                self.held = Some(version);
                if self.step == TurnStep::Refreshing {
                    let enough = self.bound.is_met_by(version, smallest_clock);
                    self.step = if enough { TurnStep::ComputeIsDue } else { TurnStep::RefreshIsDue };
                }
            }
            WorkerEvent::Published { .. } if self.step == TurnStep::Computing => {
                self.clock = self.clock.next();
                self.bound = Bound::NONE;
                self.go_on();
            }
            WorkerEvent::Consumed { clock } => {
                self.consumed = self.consumed.max(clock);
                if self.step == TurnStep::Waiting {
                    self.go_on();
                }
            }
            WorkerEvent::Interrupted if self.step.is_on_a_copy() => {
                // The server that interrupts has a later version.
                self.bound = self.held.map_or(Bound::NONE, |held| Bound::version(after(held)));
                self.step = TurnStep::RefreshIsDue;
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        let bound = self.bound;
        self.step.poll(bound)
    }
}
