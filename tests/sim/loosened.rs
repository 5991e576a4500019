//! A worker that takes a copy one clock older than its scheme would.

use slackline::{
    Instant,
    scheme::{Bound, WorkerAction, WorkerEvent, WorkerScheme},
};

pub(crate) struct Loosened(pub(crate) Box<dyn WorkerScheme>);

impl WorkerScheme for Loosened {
    fn handle_event(&mut self, now: Instant, event: WorkerEvent) {
        // The scheme inside must take the looser copy for one that satisfies it.
        let event = match event {
            WorkerEvent::Holds { version, smallest_clock } => {
                WorkerEvent::Holds { version, smallest_clock: smallest_clock.next() }
            }
            other => other,
        };
        self.0.handle_event(now, event);
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        match self.0.poll_action()? {
            WorkerAction::Refresh { bound: Bound { smallest_clock, version } } => {
                let bound = Bound { smallest_clock: smallest_clock.needed(1), version };
                Some(WorkerAction::Refresh { bound })
            }
            other => Some(other),
        }
    }
}
