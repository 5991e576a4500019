//! The readers for which there was no room, in the order in which they came.

use std::collections::VecDeque;

use crate::param::WaitsInLine;
use crate::time::{Duration, Instant};

/// Most readers in a line. One more is told to come back, and has no place.
const PLACES_MAX: usize = 1024;

/// The time after which the first in line is to ask again. Each one behind it asks that much later.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Longest time after which a reader is to ask again, where the lease is long.
const ASK_MAX: Duration = Duration::from_secs(1);

/// The readers that wait for room. Each names its place by a number of its own, and keeps it for as long as it asks
/// again in time.
#[derive(Debug, Default)]
pub(super) struct WaitingLine {
    places: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    /// A reader that has not asked again by then has given up.
    until: Instant,
}

impl WaitingLine {
    /// The number of readers that come before this one: all of them, if it has no place.
    pub(super) fn ahead(&mut self, asks: Option<&WaitsInLine>, now: Instant) -> usize {
        self.places.retain(|place| now < place.until);
        let own = asks.and_then(|asks| self.places.iter().position(|place| place.number == asks.place));
        own.unwrap_or(self.places.len())
    }

    /// The time after which a reader with so many before it is to ask again.
    pub(super) fn ask_after(ahead: usize, lease: Duration) -> Duration {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        ASK_EVERY.saturating_mul(ahead.saturating_add(1)).min(ASK_MAX).min((lease / 4).max(super::SOON))
    }

    /// A reader was told to ask again after so long: it has a place at the end, or keeps the one that it has. A reader
    /// that will not ask again gets none. One that does not, though it said so, is waited for that much longer at most.
    pub(super) fn stay(&mut self, asks: &WaitsInLine, after: Duration, grace: Duration, now: Instant) {
        let left = Duration::from_nanos(asks.left_ns);
        let until = now + after + grace.min(left);
        let has_room = self.places.len() < PLACES_MAX;
        match self.places.iter_mut().find(|place| place.number == asks.place) {
            Some(place) => place.until = until,
            None if left > after && has_room => {
                self.places.push_back(Place { number: asks.place, until });
            }
            None => {}
        }
    }

    /// A reader is let in, and needs no place any more.
    pub(super) fn leave(&mut self, asks: Option<&WaitsInLine>) {
        self.places.retain(|place| asks.is_none_or(|asks| asks.place != place.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(3);

    fn reader(place: u64) -> WaitsInLine {
        WaitsInLine { place, left_ns: 60_000_000_000 }
    }

    /// A line of these readers, which all came at once.
    fn line(places: impl IntoIterator<Item = u64>) -> WaitingLine {
        let mut line = WaitingLine::default();
        places.into_iter().for_each(|place| line.stay(&reader(place), ASK_EVERY, GRACE, Instant::ORIGIN));
        line
    }

    #[test]
    fn readers_keep_the_order_in_which_they_came() {
        let (mut line, now) = (line([7, 3, 5]), Instant::ORIGIN);
        line.stay(&reader(7), ASK_EVERY, GRACE, now);
        assert_eq!([7, 3, 5, 9].map(|place| line.ahead(Some(&reader(place)), now)), [0, 1, 2, 3]);
        assert_eq!(line.ahead(None, now), 3, "who does not wait comes behind those that do");
        line.leave(Some(&reader(7)));
        line.leave(None);
        assert_eq!([3, 5].map(|place| line.ahead(Some(&reader(place)), now)), [0, 1]);
    }

    #[test]
    fn a_reader_that_asks_no_more_loses_its_place_after_the_grace() {
        let mut line = line([1, 2]);
        let later = Instant::ORIGIN + ASK_EVERY;
        line.stay(&reader(2), ASK_EVERY, GRACE, later);
        assert_eq!(line.ahead(Some(&reader(2)), later), 1);
        assert_eq!(line.ahead(Some(&reader(2)), Instant::ORIGIN + ASK_EVERY + GRACE), 0);
    }

    #[test]
    fn a_reader_is_not_waited_for_longer_than_it_waits() {
        let mut line = WaitingLine::default();
        let asks = WaitsInLine { place: 1, left_ns: 2 * ASK_EVERY.as_nanos() as u64 };
        line.stay(&asks, ASK_EVERY, GRACE, Instant::ORIGIN);
        assert_eq!(line.ahead(None, Instant::ORIGIN + 2 * ASK_EVERY), 1);
        assert_eq!(line.ahead(None, Instant::ORIGIN + 3 * ASK_EVERY), 0);
        line.stay(&WaitsInLine { left_ns: 1, ..asks }, ASK_EVERY, GRACE, Instant::ORIGIN);
        assert_eq!(line.ahead(None, Instant::ORIGIN), 0, "it will not ask again");
    }

    #[test]
    fn a_line_is_bounded_and_its_end_asks_seldom() {
        let mut line = line(0..PLACES_MAX as u64 + 5);
        assert_eq!(line.ahead(None, Instant::ORIGIN), PLACES_MAX);
        let lease = Duration::from_secs(60);
        assert_eq!(
            [0, 1, PLACES_MAX].map(|ahead| WaitingLine::ask_after(ahead, lease)),
            [ASK_EVERY, 2 * ASK_EVERY, ASK_MAX]
        );
        assert_eq!(WaitingLine::ask_after(9, Duration::from_millis(80)), Duration::from_millis(20));
    }
}
