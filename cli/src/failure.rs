//! The end of a command that cannot do what was asked: one line with what is wrong, one with what to do.

use std::fmt;
use std::process::ExitCode;

use slackline::Diagnostic;
use slackline::internals::job::ErrorReport;
use slackline_lab::stderr;

/// The reason that a command gives up.
#[derive(Debug, PartialEq, Eq)]
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
    pub(crate) fn usage(message: impl fmt::Display) -> Failure {
        Failure::new(2, message)
    }

    /// Makes the failure for a request that was begun, or could have been, and failed.
    pub(crate) fn failed(message: impl fmt::Display) -> Failure {
        Failure::new(1, message)
    }

    /// A signal asked for the end, and what was to be done before it is done.
    pub(crate) fn stopped(signal: i32, message: impl fmt::Display) -> Failure {
        Failure { signal: Some(signal), ..Failure::new(1, message) }
    }

    /// As [`usage`](Self::usage), with the text and the remedy of an error.
    pub(crate) fn refused(error: &dyn Diagnostic) -> Failure {
        let (cause, help) = explained(error);
        Failure { help, ..Failure::usage(cause) }
    }

    /// As [`failed`](Self::failed), with the text and the remedy of an error.
    pub(crate) fn of(error: &dyn Diagnostic) -> Failure {
        let (cause, help) = explained(error);
        Failure { help, ..Failure::failed(cause) }
    }

    /// The same, with the line that says what to do.
    pub(crate) fn help(self, remedy: impl fmt::Display) -> Failure {
        Failure { help: Some(one_line(remedy)), ..self }
    }

    /// The same, after where it came up.
    pub(crate) fn at(self, location: impl fmt::Display) -> Failure {
        Failure { message: format!("{location}: {}", self.message), ..self }
    }

    /// The same, after the option that names the file which the message begins with.
    pub(crate) fn after(self, option: &str) -> Failure {
        Failure { message: format!("{option} {}", self.message), ..self }
    }

    fn new(code: u8, message: impl fmt::Display) -> Failure {
        Failure { message: one_line(message), help: None, code, signal: None }
    }

    /// The same for another process to tell.
    pub(crate) fn told(&self) -> ErrorReport {
        ErrorReport { remedy: self.help.clone(), ..ErrorReport::of_cause(&*self.message) }
    }

    /// Tells the user, and gives the exit code. A process that a signal asked to end does so by that signal, as its
    /// parent expects.
    pub(crate) fn report(&self) -> ExitCode {
        stderr::tell(self);
        if let Some(signal) = self.signal {
            // An error leaves the exit code.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        ExitCode::from(self.code)
    }
}

/// The text as one line, whatever a file name or a process may have put into it.
pub(crate) fn one_line(text: impl fmt::Display) -> String {
    text.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The cause and the remedy of an error.
pub(crate) fn explained(error: &dyn Diagnostic) -> (String, Option<String>) {
    let ErrorReport { cause, remedy, .. } = ErrorReport::of(error);
    (one_line(cause), remedy.map(one_line))
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
    fn the_remedy_of_an_error_is_the_help_whatever_its_text_holds() {
        let error = "a; b".parse::<slackline::Address>().unwrap_err();
        let told = Failure::refused(&error).at("--x").to_string();
        assert!(told.starts_with("error: --x: `a; b` is no address\nhelp: write @NAME"), "{told}");
        let failure = Failure::usage("a: cannot be read: x; y").help("check it");
        assert_eq!(failure.to_string(), "error: a: cannot be read: x; y\nhelp: check it");
        assert_eq!(Failure::failed("no\nremedy; at all").to_string(), "error: no remedy; at all");
    }
}
