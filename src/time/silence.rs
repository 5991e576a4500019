//! The silence of a peer, as far as this process listened meanwhile.

use super::{Duration, Instant};

/// Looks that a silent peer is given at least before it is taken for dead.
const LOOKS: u32 = 16;

/// The silence of one peer, measured at the looks that its observer takes at the peer's heartbeat.
///
/// Only time in which the observer listened counts: between two looks at most a sixteenth of the lease. An observer
/// that computed, was starved or swapped out, or was stopped with its own receiving threads, does not know its peer's
/// actions meanwhile. It therefore takes no peer for dead before it has listened sixteen times after such a pause.
///
/// A newcomer has still to make its connections and to start its heartbeat, which takes time where its host is
/// starved: until its first beat it may be silent for longer, by the allowance that [`newcomer`](Self::newcomer) takes.
///
/// ```
/// use slackline::internals::time::{Duration, Silence};
/// use slackline::Instant;
///
/// let (lease, mut silence) = (Duration::from_secs(3), Silence::newcomer(7, Duration::from_secs(5)));
/// let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
/// assert!(!silence.observe(at(1), 7, lease), "the first look only begins to listen");
/// assert!(!silence.observe(at(100), 7, lease), "the observer itself was away");
/// assert!(!silence.observe(at(101), 8, lease), "the peer has beaten");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Silence {
    beat: u64,
    silent: Duration,
    /// The time at which the observer looked last.
    looked: Option<Instant>,
    /// The time that is allowed beside the lease until the first beat.
    allowance: Duration,
}

impl Silence {
    /// A peer whose heartbeat word was `beat` when it was let in, and which has `allowance` to finish joining. Its
    /// lease begins at its first beat, or once the allowance has passed.
    pub const fn newcomer(beat: u64, allowance: Duration) -> Silence {
        Silence { beat, silent: Duration::ZERO, looked: None, allowance }
    }

    /// Looks at the heartbeat: true if it has not changed for longer than `lease` while the observer listened.
    pub fn observe(&mut self, now: Instant, beat: u64, lease: Duration) -> bool {
        let since = self.skip(now, beat);
        let counts = if mutant!("silence") { since } else { since.min(lease / LOOKS) };
        self.silent = self.silent.saturating_add(counts);
        self.silent > lease.saturating_add(self.allowance)
    }

    /// Looks at the heartbeat where words that have arrived may not be seen yet: a beat ends the silence, and the time
    /// since the last look does not count. Returns that time, or nothing if the peer has beaten.
    pub fn skip(&mut self, now: Instant, beat: u64) -> Duration {
        let since = now - self.looked.replace(now).unwrap_or(now);
        if beat == self.beat {
            return since;
        }
        (self.beat, self.silent, self.allowance) = (beat, Duration::ZERO, Duration::ZERO);
        Duration::ZERO
    }

    /// True if half of `lease` has been counted: an observer should now make sure that it sees all that has arrived.
    pub fn is_long(&self, lease: Duration) -> bool {
        self.silent > lease / 2
    }

    /// Returns the time within which an observer should look again: with fewer looks a dead peer is kept for longer
    /// than the lease.
    pub fn look_every(lease: Duration) -> Duration {
        lease / (2 * LOOKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(1600);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_peer_that_is_listened_to_all_the_time_is_silent_after_its_lease() {
        let mut silence = Silence::default();
        let silent = (0..).step_by(20).find(|millis| silence.observe(at(*millis), 0, LEASE));
        assert_eq!(silent, Some(1620));
    }

    #[test]
    fn time_in_which_nobody_listened_counts_as_one_look() {
        let mut silence = Silence::default();
        for look in 0..=16 {
            assert!(!silence.observe(at(look * 10_000), 0, LEASE), "after {look} pauses");
        }
        assert!(silence.observe(at(170_000), 0, LEASE), "a peer that is dead is found in the end");
    }

    #[test]
    fn time_that_is_skipped_does_not_count_and_a_beat_is_taken() {
        let mut silence = Silence::default();
        for millis in (0..1000).step_by(20) {
            silence.observe(at(millis), 0, LEASE);
        }
        assert!(silence.is_long(LEASE));
        for millis in (1000..100_000).step_by(20) {
            silence.skip(at(millis), 0);
        }
        assert!(!silence.observe(at(100_000), 0, LEASE), "it was skipped");
        silence.skip(at(100_020), 1);
        assert!(!silence.is_long(LEASE), "it has beaten");
    }

    #[test]
    fn a_beat_ends_the_silence_whatever_came_before() {
        let mut silence = Silence::default();
        let mut listen = |from: u64, beat| {
            (from..from + 1600).step_by(20).any(|millis| silence.observe(at(millis), beat, LEASE))
        };
        assert!(!listen(0, 0));
        assert!(!listen(1600, 1));
        assert!(!listen(3200, 2));
        assert!(listen(4800, 2), "the same beat again is none");
    }

    #[test]
    fn the_lease_of_a_newcomer_begins_at_its_first_beat() {
        let mut silence = Silence::newcomer(0, 3 * LEASE);
        let mut listen = |from: u64, until: u64, beat| {
            (from..until).step_by(20).find(|millis| silence.observe(at(*millis), beat, LEASE))
        };
        assert_eq!(listen(0, 6400, 0), None, "it is still making its connections");
        assert_eq!(listen(6400, 10_000, 1), Some(8020), "it has beaten, and then no more");
        let mut dead = Silence::newcomer(0, 3 * LEASE);
        let silent = (0..).step_by(20).find(|millis| dead.observe(at(*millis), 0, LEASE));
        assert_eq!(silent, Some(6420), "one that never beats is found, too");
    }

    #[test]
    fn an_observer_that_looks_as_often_as_it_should_loses_none_of_the_silence() {
        let mut silence = Silence::default();
        let every = Silence::look_every(LEASE);
        let mut now = Instant::ORIGIN;
        while !silence.observe(now, 0, LEASE) {
            now = now + every;
        }
        assert!(now - Instant::ORIGIN <= LEASE + every, "{now:?}");
    }
}
