//! The errors in a scheme's settings.

use std::borrow::Cow;

use super::{SchemeConfig, text};
use crate::diagnostic::{Diagnostic, remedy_of};

/// A scheme cannot be made as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeConfigError {
    /// No scheme has this name.
    #[error("no scheme is named {name:?}: {}", remedy_of(self))]
    UnknownName {
        /// The name.
        name: String,
    },
    /// A text that is not a name with settings.
    #[error("cannot read {text:?} as a scheme: {}", remedy_of(self))]
    Malformed {
        /// The text.
        text: String,
    },
    /// A setting was given to a scheme that does not take it.
    #[error("{scheme} takes no {setting}, and {value} was given: {}", remedy_of(self))]
    UnknownSetting {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: String,
        /// The value that was given.
        value: String,
    },
    /// A setting was given twice.
    #[error("{setting} of {scheme} was given twice: {}", remedy_of(self))]
    GivenTwice {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: String,
    },
    /// A setting cannot have this value.
    #[error("{setting} of {scheme} cannot be {value:?}: {}", remedy_of(self))]
    BadValue {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: &'static str,
        /// The value that was given.
        value: String,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// A setting that does not fit the number of workers.
    #[error("{setting} of {scheme} cannot be {value} with {workers} workers: {}", remedy_of(self))]
    Workers {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: &'static str,
        /// The value of the setting.
        value: u64,
        /// The number of workers.
        workers: usize,
        /// The remedy.
        remedy: &'static str,
    },
    /// A server runs a scheme that this process cannot make.
    #[error("this process knows no scheme named {name:?}: {}", remedy_of(self))]
    Unregistered {
        /// The name.
        name: String,
    },
    /// A scheme from outside of this crate cannot be made or run.
    #[error("scheme {scheme}: {reason}")]
    Custom {
        /// The scheme.
        scheme: String,
        /// The cause, and the remedy.
        reason: String,
    },
    /// A server was asked for, and the scheme has none.
    #[error("{scheme} has no server, its workers average among themselves: {}", remedy_of(self))]
    NoServer {
        /// The scheme.
        scheme: &'static str,
    },
}

impl Diagnostic for SchemeConfigError {
    fn operation(&self) -> &'static str {
        "making the scheme"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            SchemeConfigError::UnknownName { .. } => {
                format!("use one of {}", SchemeConfig::NAMES.join(", ")).into()
            }
            SchemeConfigError::UnknownSetting { scheme, setting, .. } => text::remedy(scheme, setting).into(),
            SchemeConfigError::BadValue { expected, .. } => format!("use {expected}").into(),
            SchemeConfigError::Workers { remedy, .. } => format!("use {remedy}").into(),
            SchemeConfigError::Malformed { .. } => {
                "write a name, or a name with settings, such as ssp(3) or abs(k=4, staleness=2)".into()
            }
            SchemeConfigError::GivenTwice { .. } => "give it once".into(),
            SchemeConfigError::Unregistered { .. } => {
                "add it to the registry in its options, in C by slackline_scheme_register".into()
            }
            SchemeConfigError::NoServer { .. } => "run it without one".into(),
            SchemeConfigError::Custom { .. } => return None,
        })
    }
}
