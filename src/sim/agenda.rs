//! The events to come, in order.

use std::collections::VecDeque;
use std::rc::Rc;

use super::model::ModelSnapshot;
use crate::scheme::Bound;

/// Something that will happen. Worker numbers are small, and incarnations tell a worker from the same worker before its
/// crash.
#[derive(Clone, Debug)]
pub(super) enum AgendaEvent {
    /// A worker that is in begins.
    Start { worker: u32, incarnation: u32 },
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
    /// A ring of an average begins or ends, unless the links were shared out again since.
    Flows { number: u64 },
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
    /// It should abandon computations on versions before this one.
    Interrupt { version: u64 },
}

/// A copy of the parameters in the hands of a worker.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) snapshot: Rc<ModelSnapshot>,
    /// The first clock of the worker whose gradient may not be in it.
    pub(super) consumed: u64,
}

/// All events to come, and the present time: a radix heap (Ahuja, Mehlhorn, Orlin and Tarjan, 1990).
///
/// Time never moves back, so that a later event need not be in order before its time has nearly come: it lies in the
/// list of the highest bit in which its time differs from the present one. When the lists before it are used up, the
/// time moves on to the first of a list, and the others of it fall into the lists before. Lists are read and written
/// in order, which costs the same with many workers as with few. Events of one instant come in the order in which they
/// were noted.
#[derive(Debug)]
pub(super) struct Agenda {
    now: u64,
    count: u64,
    /// Events at the present instant.
    at_once: VecDeque<AgendaEvent>,
    /// Later events with their times, by bit.
    later: [Vec<(u64, AgendaEvent)>; 64],
    /// The bits of the lists that hold something.
    filled: u64,
}

impl Default for Agenda {
    fn default() -> Agenda {
        let later = std::array::from_fn(|_| Vec::new());
        Agenda { now: 0, count: 0, at_once: VecDeque::new(), later, filled: 0 }
    }
}

impl Agenda {
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn put(&mut self, at: u64, event: AgendaEvent) {
        self.count += 1;
        self.sort_in(at, event);
    }

    fn sort_in(&mut self, at: u64, event: AgendaEvent) {
        if at <= self.now {
            self.at_once.push_back(event);
            return;
        }
        let bit = (at ^ self.now).ilog2();
        self.later[bit as usize].push((at, event));
        self.filled |= 1 << bit;
    }

    /// Takes the next event, unless it comes after `end`, and moves time on to it.
    pub(super) fn next(&mut self, end: u64) -> Option<AgendaEvent> {
        if self.at_once.is_empty() && self.filled != 0 {
            let bit = self.filled.trailing_zeros();
            let first = self.later[bit as usize].iter().map(|(at, _)| *at).min()?;
            if first > end {
                return None;
            }
            self.now = first;
            self.filled &= !(1 << bit);
            let mut list = std::mem::take(&mut self.later[bit as usize]);
            list.drain(..).for_each(|(at, event)| self.sort_in(at, event));
            self.later[bit as usize] = list;
        }
        if self.now > end { None } else { self.at_once.pop_front() }
    }

    /// True if nothing will ever happen again.
    pub(super) fn is_empty(&self) -> bool {
        self.filled == 0 && self.at_once.is_empty()
    }

    /// Moves time on to `end`, when no event before it is left: the run is over.
    pub(super) fn skip_to(&mut self, end: u64) {
        self.now = self.now.max(end);
    }

    /// Returns the number of events that were put in.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(event: &AgendaEvent) -> usize {
        let AgendaEvent::Change { index } = event else { panic!("{event:?}") };
        *index
    }

    proptest::proptest! {
        /// Against a list that is sorted for each event, with ties in the order in which they were noted.
        #[test]
        fn events_come_in_the_order_of_time_and_of_an_instant_as_they_were_noted(
            steps in proptest::collection::vec((0u64..4, 0u32..64, proptest::prelude::any::<u64>()), 1..300),
        ) {
            let (mut agenda, mut naive) = (Agenda::default(), Vec::new());
            for (noted, (take, bits, random)) in steps.into_iter().enumerate() {
                if take == 0 {
                    naive.sort_by_key(|(at, noted)| (*at, *noted));
                    let expected = (!naive.is_empty()).then(|| naive.remove(0));
                    let taken = agenda.next(u64::MAX).map(|event| (agenda.now(), index(&event)));
                    proptest::prop_assert_eq!(taken, expected);
                } else {
                    // Few bits make many ties.
                    let at = agenda.now().saturating_add(random >> bits);
                    agenda.put(at, AgendaEvent::Change { index: noted });
                    naive.push((at, noted));
                }
            }
            proptest::prop_assert_eq!(agenda.is_empty(), naive.is_empty());
        }
    }

    #[test]
    fn no_event_after_the_end_is_taken_and_time_stays_before_it() {
        let mut agenda = Agenda::default();
        agenda.put(5, AgendaEvent::WakeServer);
        agenda.put(9, AgendaEvent::WakeServer);
        assert!(agenda.next(4).is_none());
        assert_eq!(agenda.now(), 0);
        assert!(agenda.next(5).is_some());
        assert!(agenda.next(8).is_none());
        assert_eq!((agenda.now(), agenda.is_empty(), agenda.count()), (5, false, 2));
    }
}
