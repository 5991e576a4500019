//! What can be wrong with a scheme's settings.

use super::{Config, text};

/// A scheme cannot be made as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No scheme has this name.
    #[error("no scheme is named {name:?}: use one of {}", Config::NAMES.join(", "))]
    UnknownName {
        /// The name.
        name: String,
    },
    /// A text that is not a name with settings.
    #[error(
        "cannot read {text:?} as a scheme: write a name, or a name with settings, such as ssp(3) or \
         abs(k=4, staleness=2)"
    )]
    Malformed {
        /// The text.
        text: String,
    },
    /// A setting was given to a scheme that does not take it.
    #[error("{scheme} takes no {setting}, and {value} was given: {}", text::remedy(scheme, setting))]
    UnknownSetting {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: String,
        /// What it was to be.
        value: String,
    },
    /// A setting was given twice.
    #[error("{setting} of {scheme} was given twice: give it once")]
    GivenTwice {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: String,
    },
    /// A setting cannot have this value.
    #[error("{setting} of {scheme} cannot be {value:?}: use {expected}")]
    BadValue {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: &'static str,
        /// What it was to be.
        value: String,
        /// What it can be.
        expected: &'static str,
    },
    /// A setting that does not fit the number of workers.
    #[error("{setting} of {scheme} cannot be {value} with {workers} workers: use {remedy}")]
    Workers {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: &'static str,
        /// What it is.
        value: u64,
        /// How many workers there are.
        workers: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// A server runs a scheme that this process cannot make.
    #[error("this process knows no scheme named {name:?}: add it to the registry in its options")]
    Unregistered {
        /// The name.
        name: String,
    },
    /// A scheme from outside of this crate cannot be made or run.
    #[error("scheme {scheme}: {reason}")]
    Custom {
        /// The scheme.
        scheme: String,
        /// What is wrong, and the remedy.
        reason: String,
    },
    /// A server was asked for, and the scheme has none.
    #[error("{scheme} has no server, its workers average among themselves: run it without one")]
    NoServer {
        /// The scheme.
        scheme: &'static str,
    },
}
