//! The end of a command that cannot do what was asked: one line with what is wrong, one with what to do.

use std::fmt;
use std::process::ExitCode;

/// The reason that a command gives up.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    help: Option<String>,
    code: u8,
    /// The signal that this process was asked to end by.
    signal: Option<i32>,
}

impl Failure {
    /// Makes the failure for a request that cannot be met: bad options, or files that cannot be used. Nothing was
    /// begun.
    ///
    /// Our errors read "what is wrong; what to do": what follows the last semicolon becomes the help line.
    pub(crate) fn usage(text: impl fmt::Display) -> Failure {
        Failure::new(2, &text.to_string())
    }

    /// Makes the failure for a request that was begun, or could have been, and failed.
    pub(crate) fn failed(text: impl fmt::Display) -> Failure {
        Failure::new(1, &text.to_string())
    }

    /// A signal asked for the end, and what was to be done before it is done.
    pub(crate) fn stopped(signal: i32, text: impl fmt::Display) -> Failure {
        Failure { signal: Some(signal), ..Failure::new(1, &text.to_string()) }
    }

    /// The same, after where it came up.
    pub(crate) fn at(self, location: impl fmt::Display) -> Failure {
        Failure { message: format!("{location}: {}", self.message), ..self }
    }

    fn new(code: u8, text: &str) -> Failure {
        let (message, help) = split(text);
        Failure { message, help, code, signal: None }
    }

    /// The text that it was made of, for another process to tell.
    pub(crate) fn text(&self) -> String {
        match &self.help {
            Some(help) => format!("{}; {help}", self.message),
            None => self.message.clone(),
        }
    }

    /// Tells the user, and gives the exit code. A process that a signal asked to end does so by that signal, as its
    /// parent expects.
    pub(crate) fn report(&self) -> ExitCode {
        eprintln!("{self}");
        if let Some(signal) = self.signal {
            // An error leaves the exit code.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        ExitCode::from(self.code)
    }
}

/// Splits a text into what is wrong and what to do about it, which follows the last semicolon.
pub(crate) fn split(text: &str) -> (String, Option<String>) {
    // One line each, whatever a file name or a process may have put into it.
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match text.rsplit_once("; ") {
        Some((message, help)) => (message.to_owned(), Some(help.to_owned())),
        None => (text, None),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if let Some(help) = &self.help {
            write!(f, "\nhelp: {help}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_last_semicolon_is_the_help() {
        let failure = Failure::usage("a: cannot be read: x; y; check it");
        assert_eq!(failure.to_string(), "error: a: cannot be read: x; y\nhelp: check it");
        assert_eq!(Failure::failed("no\nremedy").to_string(), "error: no remedy");
    }
}
