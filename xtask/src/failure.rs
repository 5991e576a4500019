//! The ways in which a chore fails, sorted by their causes: the call, the code under check, the machine.

use std::fmt;

/// The reason for which a command did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The caller asked for something that does not exist.
    Usage(String),
    /// A check failed; its own output, already shown, says where.
    Check { what: String, status: String },
    /// A check was ended, since its time was up.
    Late { what: String, minutes: u64 },
    /// Something that a check needs is not there.
    Missing { what: String, remedy: String },
}

impl Failure {
    /// The exit status of the process: 2 for a wrong call, 1 for the rest.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Check { .. } | Failure::Late { .. } | Failure::Missing { .. } => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(message) => write!(f, "{}", message.trim_end()),
            Failure::Check { what, status } => write!(f, "failed ({status}): {what}"),
            Failure::Late { what, minutes } => write!(f, "ended after {minutes} minutes: {what}"),
            Failure::Missing { what, remedy } => write!(f, "{what}\n  to fix it: {remedy}"),
        }
    }
}
