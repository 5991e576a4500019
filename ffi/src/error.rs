//! Status numbers, what library errors become in them, and the message of the last failure.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};

use slackline::param::{PinError, PublishError, PullError};
use slackline::transport::{AddressError, ConnectError, PostError, RegisterError};
use slackline::{Error, scheme, table};

/// What every function answers. Numbers are permanent: none is ever given another meaning, and the number of a
/// status that is retired stays reserved.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_status {
    /// It worked.
    Ok = 0,
    /// An argument cannot be: NULL, a wrong length, a wrong struct size, a name that is not UTF-8, an option out of
    /// range, tables or schemes that do not fit together. Nothing was done.
    BadArgument = 1,
    /// The call does not fit what the object is doing: another call has to come first. Nothing was done.
    OutOfTurn = 2,
    /// The time given has passed. What was waited for goes on: call again.
    Deadline = 3,
    /// The peer, or the rule that both must be the same user, turned this process away.
    Refused = 4,
    /// The peer is gone. Destroy the object and connect again once the peer is back.
    ServerLost = 5,
    /// The server took this worker or reader for dead, or found that it broke the protocol. Destroy the object and
    /// connect again.
    Evicted = 6,
    /// Readers pinned all other frames for the time given. Call again, or use more frames.
    Pinned = 7,
    /// The peer does not speak this protocol, or another version of it.
    Protocol = 8,
    /// What was read is not what its owner wrote.
    Damaged = 9,
    /// Memory could not be had or shared.
    Memory = 10,
    /// The system refused something else: a socket, a thread. Nobody listening at an address is this, too.
    System = 11,
    /// The transport cannot do this.
    Unsupported = 12,
    /// A bug in slackline that it noticed itself. Please report it.
    Internal = 13,
    /// A bug in slackline that it did not: a panic was stopped at the boundary. The object can only be destroyed.
    Panic = 14,
}

use slackline_status as Status;

impl Status {
    /// All of them, by number.
    const ALL: [Status; 15] = [
        Status::Ok,
        Status::BadArgument,
        Status::OutOfTurn,
        Status::Deadline,
        Status::Refused,
        Status::ServerLost,
        Status::Evicted,
        Status::Pinned,
        Status::Protocol,
        Status::Damaged,
        Status::Memory,
        Status::System,
        Status::Unsupported,
        Status::Internal,
        Status::Panic,
    ];

    fn name(self) -> &'static CStr {
        match self {
            Status::Ok => c"ok",
            Status::BadArgument => c"bad argument",
            Status::OutOfTurn => c"out of turn",
            Status::Deadline => c"deadline",
            Status::Refused => c"refused",
            Status::ServerLost => c"server lost",
            Status::Evicted => c"evicted",
            Status::Pinned => c"pinned",
            Status::Protocol => c"protocol",
            Status::Damaged => c"damaged",
            Status::Memory => c"memory",
            Status::System => c"system",
            Status::Unsupported => c"unsupported",
            Status::Internal => c"internal",
            Status::Panic => c"panic",
        }
    }
}

/// The name of a status number, whatever number it is.
pub(crate) fn name(status: u32) -> &'static CStr {
    Status::ALL.iter().find(|known| **known as u32 == status).map_or(c"unknown status", |known| known.name())
}

/// A call that failed: the number, and what a person reads.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into() }
    }

    pub(crate) fn bad_argument(message: impl Into<String>) -> Failure {
        Failure::new(Status::BadArgument, message)
    }

    pub(crate) fn null(what: &str) -> Failure {
        Failure::bad_argument(format!("{what} is NULL"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(status_of(&error), error.to_string())
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Failure {
        Failure::bad_argument(error.to_string())
    }
}

impl From<table::TableError> for Failure {
    fn from(error: table::TableError) -> Failure {
        Failure::bad_argument(error.to_string())
    }
}

impl From<scheme::ConfigError> for Failure {
    fn from(error: scheme::ConfigError) -> Failure {
        Failure::bad_argument(error.to_string())
    }
}

/// Errors of the library are not exhaustive: one that is not known here yet is `Internal`, with its own message.
fn status_of(error: &Error) -> Status {
    match error {
        Error::Register(RegisterError::Memory(_)) => Status::Memory,
        Error::Register(RegisterError::NotShareable { .. }) => Status::Unsupported,
        Error::Connect(error) => connect_status(error),
        Error::Handshake { .. } => Status::Protocol,
        Error::Deadline { .. } => Status::Deadline,
        Error::ServerLost { .. } => Status::ServerLost,
        Error::Evicted { .. } => Status::Evicted,
        Error::Pull { source, .. } => pull_status(source),
        Error::Publish { source, .. } => publish_status(source),
        Error::Pin { source, .. } => pin_status(source),
        Error::Post { source, .. } => post_status(source),
        Error::Pinned { .. } => Status::Pinned,
        Error::Thread { .. } => Status::System,
        Error::Table(_)
        | Error::Shards { .. }
        | Error::NotF32
        | Error::Length { .. }
        | Error::Encoding { .. }
        | Error::Scheme { .. }
        | Error::SchemeConfig(_)
        | Error::Option { .. } => Status::BadArgument,
        Error::InFlight { .. } | Error::OutOfTurn { .. } => Status::OutOfTurn,
        Error::Bounds(_) => Status::Protocol,
        _ => Status::Internal,
    }
}

fn connect_status(error: &ConnectError) -> Status {
    match error {
        ConnectError::WrongAddress { .. } => Status::BadArgument,
        ConnectError::System { .. } => Status::System,
        ConnectError::AnotherUser { .. } | ConnectError::Refused { .. } => Status::Refused,
        ConnectError::Protocol { .. } => Status::Protocol,
        ConnectError::Memory { .. } => Status::Memory,
        ConnectError::Closed { .. } => Status::ServerLost,
        _ => Status::Internal,
    }
}

fn pull_status(error: &PullError) -> Status {
    match error {
        PullError::Epoch { .. } | PullError::Disconnected(_) | PullError::Completion(_) => Status::ServerLost,
        PullError::Damaged { .. } | PullError::Checksum { .. } => Status::Damaged,
        PullError::Busy => Status::OutOfTurn,
        PullError::Post(error) => post_status(error),
        _ => Status::Internal,
    }
}

fn publish_status(error: &PublishError) -> Status {
    match error {
        PublishError::Disconnected(_) | PublishError::Completion(_) => Status::ServerLost,
        PublishError::Busy => Status::OutOfTurn,
        PublishError::Post(error) => post_status(error),
        PublishError::Grants(_) => Status::Protocol,
        _ => Status::Internal,
    }
}

fn pin_status(error: &PinError) -> Status {
    match error {
        PinError::NotMapped => Status::Unsupported,
        PinError::Epoch { .. } => Status::ServerLost,
        PinError::Damaged { .. } => Status::Damaged,
        _ => Status::Internal,
    }
}

fn post_status(error: &PostError) -> Status {
    match error {
        PostError::Disconnected(_) => Status::ServerLost,
        _ => Status::Internal,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the message for [`last_message`] and hands the status on.
pub(crate) fn remember(failure: Failure) -> Status {
    let mut message = failure.message;
    // A message that quotes what it was given may hold anything; C reads up to the first zero.
    message.retain(|character| character != '\0');
    let message = CString::new(message).unwrap_or_default();
    // While the thread ends there is nowhere left to keep it.
    let _ = LAST.try_with(|last| last.replace(message));
    failure.status
}

/// The message of this thread's last failure; empty if there was none.
pub(crate) fn last_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_permanent_and_every_one_has_a_name() {
        let numbers: Vec<u32> = Status::ALL.iter().map(|status| *status as u32).collect();
        assert_eq!(numbers, (0..15).collect::<Vec<_>>());
        assert_eq!((Status::BadArgument as u32, name(1)), (1, c"bad argument"));
        assert_eq!((Status::Panic as u32, name(14)), (14, c"panic"));
        assert_eq!(name(15), c"unknown status");
        assert_eq!(name(u32::MAX), c"unknown status");
    }

    #[test]
    fn a_message_with_a_zero_in_it_is_kept_whole_but_for_the_zero() {
        assert_eq!(remember(Failure::bad_argument("one\0two")), Status::BadArgument);
        // SAFETY: the message was set just above and nothing on this thread has failed since.
        assert_eq!(unsafe { CStr::from_ptr(last_message()) }, c"onetwo");
    }
}
