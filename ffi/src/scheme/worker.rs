//! The worker's half of a scheme in C.

use slackline::scheme::{Bound, WorkerAction, WorkerEvent, WorkerScheme};
use slackline::{Clock, Instant, Version};

use super::half::Half;
use super::{slackline_action, slackline_scheme_event};

/// A half whose answers are checked: it computes on a copy that it holds, and does one thing at a time.
pub(super) struct WorkerHalf {
    half: Half,
    turn: WorkerTurn,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WorkerTurn {
    /// It has no copy.
    Empty,
    /// It has asked for a copy.
    Refreshing,
    /// It has a copy.
    Holding,
    Computing,
}

impl WorkerHalf {
    pub(super) fn new(half: Half) -> WorkerHalf {
        WorkerHalf { half, turn: WorkerTurn::Empty }
    }

    /// The action that the half asks for; an error if it cannot be done.
    fn ask(&mut self) -> Result<Option<WorkerAction>, String> {
        let asked = self.half.ask()?;
        let is = |kind: slackline_action| asked.kind == kind as u32;
        let action = if is(slackline_action::None) {
            return Ok(None);
        } else if is(slackline_action::Refresh) {
            let (smallest_clock, version) = (Clock::new(asked.clock), Version::new(asked.version));
            WorkerAction::Refresh { bound: Bound { smallest_clock, version } }
        } else if is(slackline_action::Compute) {
            WorkerAction::Compute
        } else {
            return Err(format!("its worker asks for action {}, which no worker does", asked.kind));
        };
        self.turn = match (self.turn, &action) {
            (WorkerTurn::Computing, _) => {
                return Err(
                    "its worker asks for an action while it computes: wait for PUBLISHED or INTERRUPTED"
                        .into(),
                );
            }
            (_, WorkerAction::Refresh { .. }) => WorkerTurn::Refreshing,
            (WorkerTurn::Holding, _) => WorkerTurn::Computing,
            _ => {
                return Err(
                    "its worker asks to compute without a copy: refresh first, and wait for HOLDS".into()
                );
            }
        };
        Ok(Some(action))
    }
}

impl WorkerScheme for WorkerHalf {
    fn handle_event(&mut self, now: Instant, event: WorkerEvent) {
        self.turn = match event {
            WorkerEvent::Joined { .. } => WorkerTurn::Empty,
            WorkerEvent::Holds { .. } if self.turn == WorkerTurn::Refreshing => WorkerTurn::Holding,
            WorkerEvent::Published { .. } | WorkerEvent::Interrupted
                if self.turn == WorkerTurn::Computing =>
            {
                WorkerTurn::Holding
            }
            _ => self.turn,
        };
        if let Some(event) = slackline_scheme_event::at_worker(now, event) {
            self.half.tell(event);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.half.timeout(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.half.wake
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        self.ask().unwrap_or_else(|reason| {
            self.half.fail(reason.clone());
            Some(WorkerAction::Fail { reason })
        })
    }
}
