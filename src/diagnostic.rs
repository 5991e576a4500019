//! The properties of errors for programs.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::time::Duration;

/// The properties of an error for programs; its text tells the same to people. All public errors of this library
/// implement it.
///
/// ```
/// use slackline::{Diagnostic, ElementType, Table};
/// let error = Table::flat(0, ElementType::F32).unwrap_err();
/// assert_eq!(error.operation(), "laying out the table");
/// assert_eq!(error.remedy().as_deref(), Some("give it at least one tensor with at least one element"));
/// assert!(!error.is_retryable());
/// ```
pub trait Diagnostic: std::error::Error {
    /// The operation that failed, in a few words.
    fn operation(&self) -> &'static str;

    /// The remedy in a few words, which the text of the error ends in, where there is one.
    fn remedy(&self) -> Option<Cow<'_, str>>;

    /// True if the same may succeed later with the same program and the same options.
    fn is_retryable(&self) -> bool {
        false
    }

    /// The time after which to try again, where another process has refused for a reason that passes by itself: a
    /// publisher that has as many readers as it takes, for example.
    fn retry_after(&self) -> Option<Duration> {
        None
    }
}

/// The remedy of an error, for the format string of its own text.
pub(crate) fn remedy_of(error: &impl Diagnostic) -> Cow<'_, str> {
    error.remedy().unwrap_or_default()
}

/// The text of an error without the remedy that it ends in.
pub(crate) fn cause_of(error: &dyn Diagnostic) -> String {
    let (text, remedy) = (error.to_string(), error.remedy());
    let cause = remedy.as_deref().and_then(|remedy| text.strip_suffix(remedy)).map(str::trim_end);
    cause.map_or(&*text, |cause| cause.strip_suffix([':', ';']).unwrap_or(cause)).to_owned()
}
