//! Schedules: the step size as a function of the updates that were made.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, remedy_of};

/// The step size of each update, as a part of the first one's. It depends on the number of updates before, which is the
/// newest version: a job that goes on from a checkpoint goes on in its schedule.
///
/// No schedule ever grows, so the first step size bounds all.
///
/// ```
/// use slackline::optim::Schedule;
/// let schedule: Schedule = "steps(100, 0.1)".parse()?; // a tenth after 100 updates, a hundredth after 200
/// assert_eq!(schedule, Schedule::Steps { every: 100, factor: 0.1 });
/// # Ok::<(), slackline::optim::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Schedule {
    /// The same for all: `constant`.
    #[default]
    Constant,
    /// Smaller by `factor` after each `every` updates: `steps(EVERY, FACTOR)`, PyTorch's `StepLR`.
    Steps {
        /// The number of updates of one step size; at least 1.
        every: u64,
        /// Above 0, at most 1.
        factor: f32,
    },
    /// `1 / sqrt(1 + t / updates)` after `t` updates: `inverse-root(UPDATES)`. With 1 it is the `1 / sqrt(t)` of the
    /// theorems, counted from `t = 1`.
    InverseRoot {
        /// The number of updates after which it is `1 / sqrt(2)`; at least 1.
        updates: u64,
    },
    /// `(1 + cos(pi t / updates)) / 2` after `t` updates, and 0 from `updates` on, where nothing moves any more:
    /// `cosine(UPDATES)`, PyTorch's `CosineAnnealingLR` (Loshchilov and Hutter, 2017, without restarts).
    Cosine {
        /// The number of updates after which it is 0; at least 1.
        updates: u64,
    },
}

impl Schedule {
    /// The step size of the next update after `updates`, where that of the very first is `first`.
    pub(crate) fn rate(self, first: f32, updates: u64) -> f32 {
        let done = updates as f64;
        let part = match self {
            Schedule::Constant => return first,
            Schedule::Steps { every, factor } => f64::from(factor).powf((updates / every.max(1)) as f64),
            Schedule::InverseRoot { updates } => 1.0 / (1.0 + done / updates.max(1) as f64).sqrt(),
            Schedule::Cosine { updates: all } if updates >= all => 0.0,
            Schedule::Cosine { updates } => {
                f64::midpoint(1.0, (std::f64::consts::PI * done / updates as f64).cos())
            }
        };
        (f64::from(first) * part) as f32
    }

    /// An error that says what is wrong, if anything is.
    #[doc(hidden)]
    pub fn check(self) -> Result<(), ScheduleError> {
        let sound = match self {
            Schedule::Constant => true,
            Schedule::Steps { every, factor } => every > 0 && factor > 0.0 && factor <= 1.0,
            Schedule::InverseRoot { updates } | Schedule::Cosine { updates } => updates > 0,
        };
        if sound { Ok(()) } else { Err(ScheduleError { text: self.to_string() }) }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant => f.write_str("constant"),
            Schedule::Steps { every, factor } => write!(f, "steps({every}, {factor})"),
            Schedule::InverseRoot { updates } => write!(f, "inverse-root({updates})"),
            Schedule::Cosine { updates } => write!(f, "cosine({updates})"),
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Schedule, ScheduleError> {
        let unknown = || ScheduleError { text: text.trim().to_owned() };
        let (name, inside) = match text.trim().split_once('(') {
            None => (text.trim(), ""),
            Some((name, rest)) => (name.trim(), rest.strip_suffix(')').ok_or_else(unknown)?),
        };
        let count = |text: &str| text.trim().parse::<u64>().map_err(|_| unknown());
        let schedule = match (name, inside.split_once(',')) {
            ("constant", None) if inside.is_empty() => Schedule::Constant,
            ("steps", Some((every, factor))) => {
                let factor = factor.trim().parse().map_err(|_| unknown())?;
                Schedule::Steps { every: count(every)?, factor }
            }
            ("inverse-root", None) if inside.is_empty() => Schedule::InverseRoot { updates: 1 },
            ("inverse-root", None) => Schedule::InverseRoot { updates: count(inside)? },
            ("cosine", None) => Schedule::Cosine { updates: count(inside)? },
            _ => return Err(unknown()),
        };
        schedule.check().map(|()| schedule)
    }
}

/// A schedule that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no schedule of step sizes is written {text:?}: {}", remedy_of(self))]
pub struct ScheduleError {
    text: String,
}

const REMEDY: &str = "write constant, steps(EVERY, FACTOR) with a factor above 0 and at most 1, inverse-root(UPDATES) \
                      or cosine(UPDATES), with numbers of updates of at least 1";

impl ScheduleError {
    /// What may be written instead.
    pub(crate) const fn reason(&self) -> &'static str {
        REMEDY
    }
}

impl Diagnostic for ScheduleError {
    fn operation(&self) -> &'static str {
        "reading a schedule of step sizes"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(REMEDY.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates<const N: usize>(text: &str, updates: [u64; N]) -> [f32; N] {
        let schedule: Schedule = text.parse().unwrap_or_else(|error| panic!("{error}"));
        updates.map(|updates| schedule.rate(0.8, updates))
    }

    #[test]
    fn the_step_size_changes_at_the_boundaries_and_not_beside_them() {
        assert_eq!(rates("constant", [0, 1, u64::MAX]), [0.8; 3]);
        assert_eq!(rates("steps(10, 0.5)", [0, 9, 10, 19, 20, 30]), [0.8, 0.8, 0.4, 0.4, 0.2, 0.1]);
        assert_eq!(rates("steps(10, 0.5)", [u64::MAX]), [0.0]);
        assert_eq!(rates("inverse-root", [0, 3, 15, 63]), [0.8, 0.4, 0.2, 0.1]);
        assert_eq!(rates("inverse-root(100)", [0, 300, 1500]), [0.8, 0.4, 0.2]);
        assert_eq!(rates("cosine(6)", [0, 6, 7, u64::MAX]), [0.8, 0.0, 0.0, 0.0]);
        // cos(pi / 3) = 1/2, cos(pi / 2) = 0, cos(2 pi / 3) = -1/2.
        for (found, expected) in rates("cosine(6)", [2, 3, 4]).into_iter().zip([0.6, 0.4, 0.2]) {
            assert!((found - expected).abs() < 1e-7, "{found} {expected}");
        }
    }

    #[test]
    fn text_is_read_as_it_is_written_and_what_cannot_be_is_refused() {
        for text in ["constant", "steps(10, 0.5)", "inverse-root(7)", "cosine(6)"] {
            assert_eq!(text.parse::<Schedule>().map(|schedule| schedule.to_string()), Ok(text.to_owned()));
        }
        for text in [
            "",
            "linear",
            "steps",
            "steps(10)",
            "steps(0, 0.5)",
            "steps(10, 0)",
            "steps(10, 1.5)",
            "steps(10, NaN)",
            "inverse-root(0)",
            "inverse-root(-1)",
            "cosine",
            "cosine(0)",
            "cosine(6",
            "constant(1)",
            "cosine(1, 2)",
        ] {
            let error = text.parse::<Schedule>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("inverse-root"), "{error}");
        }
    }

    #[test]
    fn the_text_of_a_refused_schedule_ends_in_the_remedy() {
        let error = "linear".parse::<Schedule>().unwrap_err();
        assert_eq!(error.remedy().as_deref(), Some(REMEDY));
        assert!(error.to_string().ends_with(REMEDY), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn no_schedule_grows(which in 0..4, updates in 1u64..1000, factor in 0.01f32..=1.0, at in 0u64..2000) {
            let schedule = match which {
                0 => Schedule::Constant,
                1 => Schedule::Steps { every: updates, factor },
                2 => Schedule::InverseRoot { updates },
                _ => Schedule::Cosine { updates },
            };
            let (before, after) = (schedule.rate(0.3, at), schedule.rate(0.3, at + 1));
            proptest::prop_assert!(0.0 <= after && after <= before && before <= 0.3);
        }
    }
}
