//! How much a relay reads at a time.

use crate::time::{Duration, Instant};

/// A relay reads as many bytes at a time as arrive in this time. It passes none of them on before the READ is complete,
/// and each READ costs a round trip in which no bytes arrive.
const BATCH_TIME: Duration = Duration::from_millis(10);

/// Copies whose speeds are remembered: the fastest counts, since other users of the link make a copy slower.
const COPIES: usize = 4;

/// A copy of fewer bytes says little of the link.
const MEASURED: u64 = 1 << 20;

const LEAST: u64 = 64 << 10;
const MOST: u64 = 2 << 20;

/// Bytes that are read at a time, by the speed at which the last ones came: few over a slow link, so that each relay of
/// a chain holds a version up for a moment only, and enough to keep a fast one busy.
#[derive(Debug, Default)]
pub(super) struct Pace {
    bytes: Option<u64>,
    /// The bytes of the present copy that are there, and the time since which they are.
    landed: Option<(u64, Instant)>,
    /// The first bytes of it that were there, and when.
    begun: Option<(u64, Instant)>,
    /// Bytes per second at which the last copies came.
    speeds: [u64; COPIES],
}

impl Pace {
    /// Bytes to read at a time from now on.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.unwrap_or(MOST)
    }

    /// So many bytes of a copy are there `now`; none if nothing is being copied.
    pub(super) fn note(&mut self, landed: Option<u64>, now: Instant) {
        let before = self.landed;
        match (landed, before) {
            (Some(landed), Some((same, _))) if landed == same => return,
            (Some(landed), Some((before, since))) if landed > before => {
                let took = (now - since).as_nanos().max(1);
                let speed = u128::from(landed - before) * BATCH_TIME.as_nanos() / took;
                self.bytes = Some(u64::try_from(speed).unwrap_or(MOST).clamp(LEAST, MOST));
            }
            // It begins, or begins again.
            (Some(landed), _) => self.begun = Some((landed, now)),
            (None, _) => self.begun = None,
        }
        self.landed = landed.map(|landed| (landed, now));
    }

    /// The copy is complete.
    pub(super) fn end(&mut self) {
        if let (Some((first, begun)), Some((last, ended))) = (self.begun.take(), self.landed)
            && last.saturating_sub(first) >= MEASURED
        {
            let nanos = (ended - begun).as_nanos().max(1);
            let speed = u128::from(last - first) * 1_000_000_000 / nanos;
            self.speeds.rotate_right(1);
            self.speeds[0] = u64::try_from(speed).unwrap_or(u64::MAX);
        }
    }

    /// Bytes per second at which versions come; 0 as long as that is not known.
    pub(super) fn speed(&self) -> u64 {
        self.speeds.iter().copied().max().unwrap_or(0)
    }

    /// They come over another link from now on.
    pub(super) fn forget(&mut self) {
        *self = Pace::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_much_is_read_at_a_time_as_comes_in_a_hundredth_of_a_second() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut pace = Pace::default();
        assert_eq!(pace.bytes(), MOST);
        pace.note(Some(0), at(1_000));
        pace.note(Some(0), at(1_150));
        assert_eq!(pace.bytes(), MOST, "nothing has come");
        pace.note(Some(4_000_000), at(1_200));
        assert_eq!(pace.bytes(), 200_000, "20 MB/s");
        pace.note(Some(4_200_000), at(1_201));
        assert_eq!(pace.bytes(), 2_000_000, "200 MB/s");
        // The next copy begins after a pause, which says nothing about the link.
        pace.note(None, at(1_202));
        pace.note(Some(0), at(9_000));
        pace.note(Some(2_000_000), at(9_010));
        assert_eq!(pace.bytes(), 2_000_000);
        // A copy that begins again has lost its chunks.
        pace.note(Some(64), at(9_500));
        assert_eq!(pace.bytes(), 2_000_000);
        pace.note(Some(128), at(9_600));
        assert_eq!(pace.bytes(), LEAST);
        pace.note(Some(1 << 40), at(9_600));
        assert_eq!(pace.bytes(), MOST);
    }

    #[test]
    fn the_speed_of_a_link_is_that_of_the_fastest_of_the_last_long_copies() {
        let mut pace = Pace::default();
        let mut copy = |bytes: u64, millis: u64| {
            pace.note(Some(0), Instant::from_nanos(0));
            pace.note(Some(bytes), Instant::from_nanos(millis * 1_000_000));
            pace.end();
            pace.note(None, Instant::from_nanos(millis * 1_000_000));
            pace.speed()
        };
        assert_eq!(copy(1000, 1), 0, "too short");
        assert_eq!(copy(20_000_000, 1000), 20_000_000);
        assert_eq!(copy(20_000_000, 4000), 20_000_000);
        assert_eq!(copy(20_000_000, 500), 40_000_000);
        for _ in 0..3 {
            assert_eq!(copy(20_000_000, 1000), 40_000_000);
        }
        assert_eq!(copy(20_000_000, 1000), 20_000_000, "it was four copies ago");
        pace.forget();
        assert_eq!(pace.speed(), 0);
    }
}
