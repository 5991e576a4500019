//! The promises of schemes, in numbers.
#![forbid(unsafe_code)]

use crate::scheme::{AnyScheme, SchemeConfig};

/// Returns the most versions that a gradient that is folded may be behind, where a scheme bounds that.
pub(super) fn behind_most(scheme: &AnyScheme) -> Option<u64> {
    match scheme.built_in()? {
        SchemeConfig::Dbw { .. } => Some(0),
        SchemeConfig::Abs { staleness, .. } => staleness,
        // Each is in the round of the newest version, and so many rounds late.
        SchemeConfig::Delay { staleness, .. } => Some(staleness),
        _ => None,
    }
}

/// The bound of VAP on values in a clock, with room for rounding.
pub(super) fn value_bound(bound: f32, clock: u64) -> f64 {
    f64::from(bound) / (clock as f64 + 1.0).sqrt() * 1.001
}
