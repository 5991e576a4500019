//! Time as everything in this library is told it: nanoseconds since an origin that the driver chose.
//!
//! There is no `now()` here. A driver reads a clock once a turn and hands the result down, so the same code
//! runs under a wall clock and under a simulator's virtual time.

mod silence;

use core::ops::{Add, Sub};
pub use core::time::Duration;

pub use silence::Silence;

/// A moment, in nanoseconds since an origin that the driver chose. Only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin itself.
    #[doc(hidden)]
    pub const ORIGIN: Instant = Instant(0);
    /// The end of time: a deadline that is never reached.
    #[doc(hidden)]
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// The moment `nanos` nanoseconds after the origin.
    #[doc(hidden)]
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the origin.
    #[doc(hidden)]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to here; zero if `earlier` lies later.
    #[doc(hidden)]
    pub fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at [`Instant::FAR_FUTURE`].
    fn add(self, rhs: Duration) -> Instant {
        let nanos = u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Same as [`Instant::saturating_since`].
    fn sub(self, rhs: Instant) -> Duration {
        self.saturating_since(rhs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_past_the_end_of_time_saturates() {
        assert_eq!(Instant::from_nanos(5) + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(Instant::from_nanos(5) - Instant::from_nanos(7), Duration::ZERO);
    }
}
