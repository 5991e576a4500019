//! The errors in a scheme's settings.

use std::borrow::Cow;

use super::{SchemeConfig, text};

/// A scheme cannot be made as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeConfigError {
    /// No scheme has this name.
    #[error("no scheme is named {name:?}: {}", self.remedy().unwrap_or_default())]
    UnknownName {
        /// The name.
        name: String,
    },
    /// A text that is not a name with settings.
    #[error("cannot read {text:?} as a scheme: {}", self.help())]
    Malformed {
        /// The text.
        text: String,
    },
    /// A setting was given to a scheme that does not take it.
    #[error("{scheme} takes no {setting}, and {value} was given: {}", self.remedy().unwrap_or_default())]
    UnknownSetting {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: String,
        /// The value that was given.
        value: String,
    },
    /// A setting was given twice.
    #[error("{setting} of {scheme} was given twice: {}", self.help())]
    GivenTwice {
        /// The scheme.
        scheme: &'static str,
        /// The setting.
        setting: String,
    },
    /// A setting cannot have this value.
    #[error("{setting} of {scheme} cannot be {value:?}: {}", self.remedy().unwrap_or_default())]
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
    #[error("{setting} of {scheme} cannot be {value} with {workers} workers: {}", self.remedy().unwrap_or_default())]
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
    #[error("this process knows no scheme named {name:?}: {}", self.help())]
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
    #[error("{scheme} has no server, its workers average among themselves: {}", self.help())]
    NoServer {
        /// The scheme.
        scheme: &'static str,
    },
}

impl SchemeConfigError {
    /// The remedy in a few words, which the text of the error ends in.
    pub fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            SchemeConfigError::UnknownName { .. } => {
                Some(format!("use one of {}", SchemeConfig::NAMES.join(", ")).into())
            }
            SchemeConfigError::UnknownSetting { scheme, setting, .. } => {
                Some(text::remedy(scheme, setting).into())
            }
            SchemeConfigError::BadValue { expected, .. } => Some(format!("use {expected}").into()),
            SchemeConfigError::Workers { remedy, .. } => Some(format!("use {remedy}").into()),
            error => Some(error.help()).filter(|text| !text.is_empty()).map(Cow::from),
        }
    }

    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            SchemeConfigError::Malformed { .. } => {
                "write a name, or a name with settings, such as ssp(3) or abs(k=4, staleness=2)"
            }
            SchemeConfigError::GivenTwice { .. } => "give it once",
            SchemeConfigError::Unregistered { .. } => "add it to the registry in its options",
            SchemeConfigError::NoServer { .. } => "run it without one",
            _ => "",
        }
    }
}
