//! The promises of schemes, in numbers.

use std::ops::RangeInclusive;

use crate::scheme::{Choice, SchemeConfig, Shrink, WaitFor};

/// Returns the most versions that one of so many gradients that are folded together may be behind, where a scheme
/// bounds that.
pub(super) fn behind_most(scheme: Option<SchemeConfig>, gradients: usize) -> Option<u64> {
    match scheme? {
        SchemeConfig::Dbw { .. } => Some(0),
        // An update of as many gradients as are awaited tells their number.
        SchemeConfig::Abs { staleness: Some(most), wait_for, shrink: Shrink::WithK, .. } => {
            let shrunk = (u128::from(most) * u128::from(wait_for.k())).div_ceil(gradients.max(1) as u128);
            Some(u64::try_from(shrunk).unwrap_or(most).min(most))
        }
        SchemeConfig::Abs { staleness, .. } => staleness,
        // Each is in the round of the newest version, and so many rounds late.
        SchemeConfig::Delay { staleness, .. } => Some(staleness),
        _ => None,
    }
}

/// Returns of how many gradients an update may be made, where the scheme says and so many workers are in all the time.
pub(super) fn counts(scheme: Option<SchemeConfig>, workers: usize) -> RangeInclusive<usize> {
    let exactly = |k: u16| usize::from(k)..=usize::from(k);
    match scheme {
        Some(SchemeConfig::Dbw { choice: Choice::Static { k }, .. })
        | Some(SchemeConfig::Abs { wait_for: WaitFor::Fixed(k), .. }) => exactly(k),
        Some(SchemeConfig::Abs { wait_for: WaitFor::LossRatio(k), .. }) => usize::from(k)..=workers,
        Some(SchemeConfig::Abs { wait_for: WaitFor::LossOverTime { .. }, .. })
        | Some(SchemeConfig::Dbw { .. }) => 1..=workers,
        _ => 0..=usize::MAX,
    }
}

/// The bound of VAP on values in a clock, with room for rounding.
pub(super) fn value_bound(bound: f32, clock: u64) -> f64 {
    f64::from(bound) / (clock as f64 + 1.0).sqrt() * 1.001
}
