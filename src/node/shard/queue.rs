//! The readers for which there was no room, in the order in which they came.

use std::collections::VecDeque;

use super::SOON;
use crate::param::{PeerRole, QueueTicket};
use crate::time::{Duration, Instant};
use crate::transport::Refusal;

/// Most readers in the queue. One more is told to come back, and is not in it.
const LENGTH_MAX: usize = 1024;

/// The time after which the first in the queue is to ask again. Each one behind it asks that much later.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Longest time after which a reader is to ask again, where the lease is long.
const ASK_MAX: Duration = Duration::from_secs(1);

/// The readers that wait for room. Each has a ticket, and is in the queue for as long as it asks again in time.
#[derive(Debug, Default)]
pub(super) struct ReaderQueue {
    readers: VecDeque<QueuedReader>,
}

#[derive(Debug)]
struct QueuedReader {
    ticket: u64,
    /// A reader that has not asked again by then has given up.
    until: Instant,
}

impl ReaderQueue {
    /// The number of readers that come before this one: all of them, if it is not in the queue.
    pub(super) fn ahead(&mut self, ticket: Option<&QueueTicket>, now: Instant) -> usize {
        self.readers.retain(|reader| now < reader.until);
        let own = ticket.and_then(|own| self.readers.iter().position(|reader| reader.ticket == own.number));
        own.unwrap_or(self.readers.len())
    }

    /// A reader was refused: temporarily, or permanently if the refusal has no time to ask again.
    pub(super) fn refuse(
        &mut self,
        own: Option<&QueueTicket>,
        after: Option<Duration>,
        grace: Duration,
        now: Instant,
    ) {
        match (own, after) {
            (Some(own), Some(after)) => self.stay(own, after, grace, now),
            _ => self.leave(own),
        }
    }

    /// A reader was told to ask again after so long: it joins the end of the queue, or keeps its position. A reader
    /// that will not ask again does not join. For a reader that does not ask again although it said so, room is kept
    /// for at most `grace` longer.
    fn stay(&mut self, own: &QueueTicket, after: Duration, grace: Duration, now: Instant) {
        let left = Duration::from_nanos(own.left_ns);
        let until = now + after + grace.min(left);
        let has_room = self.readers.len() < LENGTH_MAX;
        match self.readers.iter_mut().find(|reader| reader.ticket == own.number) {
            Some(reader) => reader.until = until,
            None if left > after && has_room => {
                self.readers.push_back(QueuedReader { ticket: own.number, until });
            }
            None => {}
        }
    }

    /// A reader is accepted, or refused permanently.
    pub(super) fn leave(&mut self, ticket: Option<&QueueTicket>) {
        self.readers.retain(|reader| ticket.is_none_or(|own| own.number != reader.ticket));
    }
}

/// The refusal where there is no room beside the `allowed` peers, of which so many are still being accepted. A reader,
/// with so many ahead of it, is to ask again. So is a worker while peers are being accepted, since it may be the
/// restart of one of them; otherwise one worker too many is a mistake in the job's settings.
pub(super) fn no_room(
    role: &PeerRole,
    allowed: usize,
    (joining, ahead): (usize, usize),
    lease: Duration,
) -> Refusal {
    let reason =
        format!("there are as many peers as `peers` allows ({allowed}); raise it (`readers` in Python)");
    match role {
        PeerRole::Reader if ahead == 0 => {
            Refusal::temporary(ask_after(ahead, lease), reason + ", or read from a relay")
        }
        PeerRole::Reader => Refusal::temporary(
            ask_after(ahead, lease),
            format!("{ahead} wait before this one, and {reason}, or read from a relay"),
        ),
        PeerRole::Worker { .. } if joining > 0 => Refusal::temporary(SOON, reason),
        _ => reason.into(),
    }
}

/// The time after which a reader with so many ahead of it is to ask again.
fn ask_after(ahead: usize, lease: Duration) -> Duration {
    let turns = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
    ASK_EVERY.saturating_mul(turns).min(ASK_MAX).min((lease / 4).max(SOON))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    fn ticket(number: u64) -> QueueTicket {
        QueueTicket { number, left_ns: 60_000_000_000 }
    }

    /// A queue of these readers, which all came at once.
    fn queue(tickets: impl IntoIterator<Item = u64>) -> ReaderQueue {
        let mut queue = ReaderQueue::default();
        tickets.into_iter().for_each(|number| queue.stay(&ticket(number), ASK_EVERY, GRACE, Instant::ORIGIN));
        queue
    }

    #[test]
    fn readers_keep_the_order_in_which_they_came() {
        let (mut queue, now) = (queue([7, 3, 5]), Instant::ORIGIN);
        queue.stay(&ticket(7), ASK_EVERY, GRACE, now);
        assert_eq!([7, 3, 5, 9].map(|number| queue.ahead(Some(&ticket(number)), now)), [0, 1, 2, 3]);
        assert_eq!(queue.ahead(None, now), 3, "one that does not wait comes behind those that do");
        queue.leave(Some(&ticket(7)));
        queue.leave(None);
        assert_eq!([3, 5].map(|number| queue.ahead(Some(&ticket(number)), now)), [0, 1]);
    }

    #[test]
    fn a_reader_that_asks_no_more_is_out_of_the_queue_after_the_grace() {
        let mut queue = queue([1, 2]);
        let later = Instant::ORIGIN + ASK_EVERY;
        queue.stay(&ticket(2), ASK_EVERY, GRACE, later);
        assert_eq!(queue.ahead(Some(&ticket(2)), later), 1);
        assert_eq!(queue.ahead(Some(&ticket(2)), Instant::ORIGIN + ASK_EVERY + GRACE), 0);
    }

    #[test]
    fn room_is_kept_for_a_reader_for_as_long_as_it_waits() {
        let mut queue = ReaderQueue::default();
        let own = QueueTicket { number: 1, left_ns: 2 * ASK_EVERY.as_nanos() as u64 };
        queue.stay(&own, ASK_EVERY, GRACE, Instant::ORIGIN);
        assert_eq!(queue.ahead(None, Instant::ORIGIN + 2 * ASK_EVERY), 1);
        assert_eq!(queue.ahead(None, Instant::ORIGIN + 3 * ASK_EVERY), 0);
        queue.stay(&QueueTicket { left_ns: 1, ..own }, ASK_EVERY, GRACE, Instant::ORIGIN);
        assert_eq!(queue.ahead(None, Instant::ORIGIN), 0, "it will not ask again");
    }

    #[test]
    fn a_queue_is_bounded_and_its_end_asks_seldom() {
        let mut queue = queue(0..LENGTH_MAX as u64 + 5);
        assert_eq!(queue.ahead(None, Instant::ORIGIN), LENGTH_MAX);
        let lease = Duration::from_secs(60);
        let asked = [0, 1, LENGTH_MAX].map(|ahead| ask_after(ahead, lease));
        assert_eq!(asked, [ASK_EVERY, 2 * ASK_EVERY, ASK_MAX]);
        assert_eq!(ask_after(9, Duration::from_millis(80)), Duration::from_millis(20));
    }
}
