//! The errors of a simulation.

use std::borrow::Cow;

use super::distribution::DistributionError;
use crate::diagnostic::Diagnostic;
use crate::kernel::FoldError;
use crate::scheme::SchemeConfigError;

/// A simulation that cannot be run, or that went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// A setting out of its range.
    #[error("{setting} cannot be {value}: {remedy}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A distribution out of its range.
    #[error(transparent)]
    Distribution(#[from] DistributionError),
    /// A scheme that does not fit the job.
    #[error(transparent)]
    Scheme(#[from] SchemeConfigError),
    /// The gradients of an update cannot be folded in.
    #[error("update {version} cannot be made: {source}")]
    Fold {
        /// The version that the update would have made.
        version: u64,
        /// The cause.
        source: FoldError,
    },
    /// A scheme broke one of its promises: a bug in the scheme.
    #[error("{scheme}, seed {seed}, after {seconds} s: {what}")]
    Broken {
        /// The scheme.
        scheme: String,
        /// The seed that replays it.
        seed: u64,
        /// Virtual time.
        seconds: f64,
        /// The promise, and the breach of it.
        what: String,
    },
    /// Nothing will ever happen again, and the end is not reached.
    #[error("{scheme}, seed {seed}: stuck after {seconds} s: {what}")]
    Stuck {
        /// The scheme.
        scheme: String,
        /// The seed that replays it.
        seed: u64,
        /// Virtual time.
        seconds: f64,
        /// The workers that wait, and what each waits for.
        what: String,
    },
}

impl Diagnostic for SimError {
    fn operation(&self) -> &'static str {
        match self {
            SimError::Setting { .. } | SimError::Distribution(_) => "checking the settings",
            SimError::Scheme(error) => error.operation(),
            SimError::Fold { .. } | SimError::Broken { .. } | SimError::Stuck { .. } => "simulating",
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            SimError::Setting { remedy, .. } => Some((*remedy).into()),
            SimError::Distribution(error) => error.remedy(),
            SimError::Scheme(error) => error.remedy(),
            SimError::Broken { .. } => Some("repair the scheme; the same seed replays the run".into()),
            SimError::Fold { .. } | SimError::Stuck { .. } => None,
        }
    }
}
