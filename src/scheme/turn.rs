//! The turns of a worker's half: a clock begins with the copy and ends with the gradient announced.

use super::{Bound, WorkerAction, WorkerEvent, WorkerScheme};
use crate::clock::{Clock, Version};
use crate::time::Instant;

/// The step of a worker within its clock. Answers to questions that were not asked change nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Out,
    RefreshIsDue,
    Refreshing,
    ComputeIsDue,
    Computing,
    /// Nothing is asked; something else must happen first.
    Waiting,
}

impl Step {
    /// Asks for what is due.
    pub(super) fn poll(&mut self, bound: Bound) -> Option<WorkerAction> {
        match self {
            Step::RefreshIsDue => {
                *self = Step::Refreshing;
                Some(WorkerAction::Refresh { bound })
            }
            Step::ComputeIsDue => {
                *self = Step::Computing;
                Some(WorkerAction::Compute)
            }
            Step::Out | Step::Refreshing | Step::Computing | Step::Waiting => None,
        }
    }

    /// True from the moment a copy is good to be computed on until the gradient is announced.
    pub(super) fn is_on_a_copy(self) -> bool {
        matches!(self, Step::ComputeIsDue | Step::Computing)
    }
}

/// The version after this one, also at the end of all numbers.
pub(super) fn after(version: Version) -> Version {
    Version(version.0.saturating_add(1))
}

/// Computes at most once on each version: after a gradient, and when it is interrupted, it asks for a later one.
/// Workers of DBW and of delayed updates do.
#[derive(Debug)]
pub(super) struct OncePerVersion {
    /// The version it computed on last.
    used: Option<Version>,
    held: Option<Version>,
    step: Step,
}

impl OncePerVersion {
    pub(super) fn new() -> OncePerVersion {
        OncePerVersion { used: None, held: None, step: Step::Out }
    }

    fn wanted(&self) -> Bound {
        self.used.map_or(Bound::NONE, |used| Bound::version(after(used)))
    }
}

impl WorkerScheme for OncePerVersion {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { .. } => {
                // Another life of the server may have made what it held.
                *self = OncePerVersion { step: Step::RefreshIsDue, ..OncePerVersion::new() };
            }
            WorkerEvent::Holds { version, .. } => {
                self.held = Some(version);
                if self.step == Step::Refreshing {
                    let enough = version >= self.wanted().version;
                    self.step = if enough { Step::ComputeIsDue } else { Step::RefreshIsDue };
                }
            }
            WorkerEvent::Published { .. } if self.step == Step::Computing => self.step = Step::RefreshIsDue,
            WorkerEvent::Interrupted if self.step.is_on_a_copy() => {
                self.used = self.held;
                self.step = Step::RefreshIsDue;
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        if self.step == Step::ComputeIsDue {
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
    step: Step,
}

impl OwnConsumed {
    pub(super) fn new() -> OwnConsumed {
        OwnConsumed { clock: Clock(0), consumed: Clock(0), held: None, bound: Bound::NONE, step: Step::Out }
    }

    fn go_on(&mut self) {
        self.step = if self.consumed >= self.clock { Step::RefreshIsDue } else { Step::Waiting };
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
                if self.step == Step::Refreshing {
                    let enough = self.bound.is_met_by(version, smallest_clock);
                    self.step = if enough { Step::ComputeIsDue } else { Step::RefreshIsDue };
                }
            }
            WorkerEvent::Published { .. } if self.step == Step::Computing => {
                self.clock = self.clock.next();
                self.bound = Bound::NONE;
                self.go_on();
            }
            WorkerEvent::Consumed { clock } => {
                self.consumed = self.consumed.max(clock);
                if self.step == Step::Waiting {
                    self.go_on();
                }
            }
            WorkerEvent::Interrupted if self.step.is_on_a_copy() => {
                // The server that interrupts has a later version.
                self.bound = self.held.map_or(Bound::NONE, |held| Bound::version(after(held)));
                self.step = Step::RefreshIsDue;
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        let bound = self.bound;
        self.step.poll(bound)
    }
}
