//! Step sizes that depend on the number of gradients of an update.

use serde::{Deserialize, Serialize};

/// The part of the server's step size that an update out of `k` of `n` gradients is made with: the more gradients, the
/// less noise is in their mean, and the longer a step it bears.
///
/// ```
/// use slackline::scheme::StepRule;
/// assert_eq!([1, 4, 8].map(|k| StepRule::Constant.factor(k, 8)), [1.0, 1.0, 1.0]);
/// assert_eq!([1, 4, 8].map(|k| StepRule::Proportional.factor(k, 8)), [0.125, 0.5, 1.0]);
/// assert_eq!([1, 4, 8].map(|k| StepRule::Knee { gradients: 4 }.factor(k, 8)), [0.25, 1.0, 1.0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StepRule {
    /// All of it.
    Constant,
    /// `k / n`: all of it with the gradients of all workers.
    Proportional,
    /// In proportion up to so many gradients, and all of it from there on.
    Knee {
        /// The gradients at the knee, at least 1.
        gradients: u16,
    },
}

impl StepRule {
    /// The part for `k` of `n` gradients.
    #[doc(hidden)]
    pub fn factor(self, k: usize, n: usize) -> f64 {
        let part = |of: usize| (k as f64 / of.max(1) as f64).min(1.0);
        match self {
            StepRule::Constant => 1.0,
            StepRule::Proportional => part(n),
            StepRule::Knee { gradients } => part(usize::from(gradients)),
        }
    }
}
