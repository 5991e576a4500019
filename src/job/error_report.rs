//! The report of an error, which one process makes to another.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, cause_of};

/// The cause and the remedy of an error, apart: the process that hears of several puts the causes into one sentence,
/// and one remedy behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// The cause.
    pub cause: String,
    /// The remedy, where there is one.
    pub remedy: Option<String>,
    /// The error is the loss of a server, as this process saw it.
    pub lost_server: bool,
}

impl ErrorReport {
    /// A cause without a remedy.
    pub fn of_cause(cause: impl Into<String>) -> ErrorReport {
        ErrorReport { cause: cause.into(), ..ErrorReport::default() }
    }

    /// The two parts of an error, whose text ends in its remedy.
    pub fn of(error: &dyn Diagnostic) -> ErrorReport {
        let remedy = error.remedy().map(Into::into);
        ErrorReport { cause: cause_of(error), remedy, lost_server: false }
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        self.remedy.iter().try_for_each(|remedy| write!(f, "; {remedy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_two_parts_whatever_its_text_holds() {
        let error = "a; b".parse::<crate::Address>().unwrap_err();
        let (report, remedy) = (ErrorReport::of(&error), error.remedy().unwrap());
        assert_eq!((&*report.cause, report.remedy.as_deref()), ("`a; b` is no address", Some(&*remedy)));
        assert_eq!(report.to_string(), format!("`a; b` is no address; {remedy}"));
    }

    #[test]
    fn an_error_without_a_remedy_is_a_cause_alone() {
        #[derive(Debug, thiserror::Error)]
        #[error("no way to fd00::")]
        struct Bare;
        impl Diagnostic for Bare {
            fn operation(&self) -> &'static str {
                "reaching"
            }
            fn remedy(&self) -> Option<std::borrow::Cow<'_, str>> {
                None
            }
        }
        assert_eq!(ErrorReport::of(&Bare), ErrorReport::of_cause("no way to fd00::"));
        assert_eq!(ErrorReport::of(&Bare).to_string(), "no way to fd00::");
    }
}
