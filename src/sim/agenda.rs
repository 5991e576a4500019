//! The events to come, in order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::rc::Rc;

use super::model::ModelSnapshot;
use crate::scheme::Bound;

/// Something that will happen. Worker numbers are small, and incarnations tell a worker from the same worker before its
/// crash.
#[derive(Clone, Debug)]
pub(super) enum AgendaEvent {
    /// A worker comes back.
    Join { worker: u32 },
    /// A worker crashes, if it is still in this incarnation; `None`: in whichever it is.
    Crash { worker: u32, incarnation: Option<u32>, back: Option<u64> },
    /// The server notices that a worker is gone.
    Noticed { worker: u32, incarnation: u32 },
    /// A computation is done.
    Computed { worker: u32, attempt: u64 },
    /// A message is at the server's link.
    Reached { worker: u32, incarnation: u32, last: u64, message: Up },
    /// A message has arrived at the server.
    Up { worker: u32, incarnation: u32, message: Up },
    /// A message has arrived at a worker.
    Down { worker: u32, incarnation: u32, message: Down },
    /// A group has its mean.
    Averaged { round: u64, first: u32 },
    /// Some workers change their pace.
    Change { index: usize },
    /// The server's scheme asked to be woken.
    WakeServer,
    /// A worker's scheme asked to be woken.
    WakeWorker { worker: u32, incarnation: u32 },
}

/// A message from a worker.
#[derive(Clone, Debug)]
pub(super) enum Up {
    /// Its gradient of this clock.
    Gradient { clock: u64 },
    /// It wants a copy.
    Request { number: u64, bound: Bound },
    /// It holds this version.
    Seen { version: u64 },
}

/// A message to a worker.
#[derive(Clone, Debug)]
pub(super) enum Down {
    /// A copy that it asked for.
    Copy { number: u64, copy: Held },
    /// A copy that it did not ask for.
    Pushed { copy: Held },
    /// Its gradients of clocks before this one are consumed.
    Consumed { clock: u64 },
    /// It should abandon what it computes on versions before this one.
    Interrupt { version: u64 },
}

/// A copy of the parameters in the hands of a worker.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) snapshot: Rc<ModelSnapshot>,
    /// The first clock of the worker whose gradient may not be in it.
    pub(super) consumed: u64,
}

/// All events to come, and the present time.
///
/// What happens at the present instant, which is most of it where the network takes no time, waits in a queue of its
/// own. The heap holds small keys, and the events lie beside it: with many workers the cost of a step is that of the
/// memory that it moves.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    now: u64,
    order: u64,
    /// Events at the present instant, in the order they were noted. What the heap holds for this instant was noted
    /// before the instant came, and so before these.
    at_once: VecDeque<AgendaEvent>,
    /// Time, order and slot of each later event.
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    later: Vec<Option<AgendaEvent>>,
    free: Vec<u32>,
}

impl Agenda {
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn put(&mut self, at: u64, event: AgendaEvent) {
        self.order += 1;
        if at <= self.now {
            self.at_once.push_back(event);
            return;
        }
        let slot = self.free.pop().unwrap_or(self.later.len() as u32);
        match self.later.get_mut(slot as usize) {
            Some(empty) => *empty = Some(event),
            None => self.later.push(Some(event)),
        }
        self.heap.push(Reverse((at, self.order, slot)));
    }

    /// Takes the next event, unless it comes after `end`, and moves time on to it.
    pub(super) fn next(&mut self, end: u64) -> Option<AgendaEvent> {
        let first = self.heap.peek().map(|Reverse((at, ..))| *at);
        if first != Some(self.now)
            && self.now <= end
            && let Some(event) = self.at_once.pop_front()
        {
            return Some(event);
        }
        if first? > end {
            return None;
        }
        let Reverse((at, _, slot)) = self.heap.pop()?;
        self.now = at;
        self.free.push(slot);
        self.later.get_mut(slot as usize)?.take()
    }

    /// True if nothing will ever happen again.
    pub(super) fn is_empty(&self) -> bool {
        self.heap.is_empty() && self.at_once.is_empty()
    }

    /// Moves time on to `end`, with no event before it.
    pub(super) fn skip_to(&mut self, end: u64) {
        self.now = self.now.max(end);
    }

    /// Returns the number of events that were put in.
    pub(super) fn count(&self) -> u64 {
        self.order
    }
}
