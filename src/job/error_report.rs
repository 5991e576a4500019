//! The report of an error, which one process makes to another.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::diagnostic::Diagnostic;

/// The cause and the remedy of an error, apart: the process that hears of several puts the causes into one sentence,
/// and one remedy behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReport {
    /// The cause.
    pub cause: String,
    /// The remedy, where there is one.
    pub remedy: Option<String>,
    /// The error is the loss of a peer, which others may know more of.
    pub is_loss: bool,
}

impl ErrorReport {
    /// A cause without a remedy.
    pub fn cause(cause: impl Into<String>) -> ErrorReport {
        ErrorReport { cause: cause.into(), ..ErrorReport::default() }
    }

    /// The two parts of an error, whose text ends in its remedy.
    pub fn of(error: &dyn Diagnostic) -> ErrorReport {
        let (text, remedy) = (error.to_string(), error.remedy());
        let cause = remedy.as_deref().and_then(|remedy| text.strip_suffix(remedy));
        let cause = cause.map_or(&*text, |cause| cause.trim_end_matches([' ', ':', ';', '\n']));
        ErrorReport { cause: cause.to_owned(), remedy: remedy.map(Into::into), is_loss: false }
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
        let told = ErrorReport::of(&error);
        assert_eq!(told.cause, "`a; b` is no address");
        assert_eq!(told.remedy.as_deref(), error.remedy().as_deref());
        assert_eq!(
            ErrorReport::cause("x; y"),
            ErrorReport { cause: "x; y".into(), remedy: None, is_loss: false }
        );
    }
}
