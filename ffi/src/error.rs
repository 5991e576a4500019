//! Status numbers, the mapping of library errors to them, and the message of the last failure.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char};
use std::time::Duration;

use slackline::checkpoint::CheckpointError;
use slackline::group::GroupError;
use slackline::internals::channel::ChannelError;
use slackline::internals::mem::MemoryError;
use slackline::internals::param::{PinError, PublishError, PullError};
use slackline::internals::transport::{PostError, RegisterError};
use slackline::scheme::SchemeConfigError;
use slackline::sim::{DistributionError, SimError};
use slackline::{AddressError, ConnectError, Diagnostic, Error, TableError};

/// The result of every function that can fail. Numbers are permanent: none is ever given another meaning, and the
/// number of a status that is retired stays reserved.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_status {
    /// It worked.
    Ok = 0,
    /// An argument cannot be: NULL, a wrong length, a wrong struct size, a name that is not UTF-8, an option out of
    /// range, tables or schemes that do not fit together. Nothing was done.
    BadArgument = 1,
    /// The call does not fit the state of the object: another call has to come first. Nothing was done.
    OutOfTurn = 2,
    /// The timeout has passed. The operation continues, or did not begin: call again, unless
    /// `slackline_last_error_is_retryable` is 0, for an object that can only be destroyed.
    Deadline = 3,
    /// The peer turned this process away, or a rule that both sides follow: the same user over shared memory, the same
    /// secret over TCP and RDMA, data that both encrypt or neither, and no peer beyond this host without a secret.
    Refused = 4,
    /// The peer is gone. Connect a worker or a reader again, by its `..._reconnect`, once the peer is back; destroy any
    /// other object and make it again.
    ServerLost = 5,
    /// The server took this worker or reader for dead, or found that it broke the protocol. Connect it again, by its
    /// `..._reconnect`.
    Evicted = 6,
    /// Readers pinned all other frames for the time given. Call again, or use more frames.
    Pinned = 7,
    /// The peer does not speak this protocol, or another version of it.
    Protocol = 8,
    /// The data that was read differs from the owner's.
    Damaged = 9,
    /// Memory could not be had or shared.
    Memory = 10,
    /// The system refused something else: a socket, a thread. That no process listens at an address is this, too.
    System = 11,
    /// The transport cannot do this.
    Unsupported = 12,
    /// A bug in slackline that it noticed itself. Please report it.
    Internal = 13,
    /// A bug in slackline that it did not: a panic was stopped at the boundary. The object can only be destroyed.
    Panic = 14,
    /// The job has failed, its rank 0 is gone, or it was over before this process was in. The message has the cause.
    JobFailed = 15,
    /// A scheme of `slackline_scheme_register` failed, asked for something impossible, or does not know such
    /// settings; or, in a simulation, any scheme broke a promise or waits for ever. The message has the cause.
    Scheme = 16,
    /// The version that was asked for by its number is overwritten. Ask for a newer one, or give its publisher more
    /// frames.
    VersionGone = 17,
}

use slackline_status as Status;

impl Status {
    /// All of them, by number.
    const ALL: [Status; 18] = [
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
        Status::JobFailed,
        Status::Scheme,
        Status::VersionGone,
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
            Status::JobFailed => c"job failed",
            Status::VersionGone => c"version gone",
            Status::Scheme => c"scheme",
        }
    }
}

/// The name of a status number, for any number.
pub(crate) fn name(status: u32) -> &'static CStr {
    Status::ALL.iter().find(|known| **known as u32 == status).map_or(c"unknown status", |known| known.name())
}

/// A call that failed: the number, the message for people, whether the same call may succeed later, and when.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
    is_retryable: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Into<String>) -> Failure {
        let is_retryable = status == Status::Deadline;
        Failure { status, message: message.into(), is_retryable, retry_after: None }
    }

    /// Makes the failure of an error of the library.
    pub(crate) fn of(status: Status, error: &impl Diagnostic) -> Failure {
        let (message, is_retryable) = (error.to_string(), error.is_retryable());
        Failure { status, message, is_retryable, retry_after: error.retry_after() }
    }

    /// The same, after which no call can succeed: its object can only be destroyed.
    pub(crate) fn for_good(self) -> Failure {
        Failure { is_retryable: false, retry_after: None, ..self }
    }

    /// Makes the failure of an error of a node.
    pub(crate) fn of_node(error: &Error) -> Failure {
        Failure::of(status_of(error), error)
    }

    /// Makes the failure of a call that names a range: a range that does not fit is the caller's mistake, not a peer's.
    pub(crate) fn of_own_range(error: Error) -> Failure {
        match error {
            Error::Bounds(_) => Failure::of(Status::BadArgument, &error),
            error => error.into(),
        }
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
        Failure::of_node(&error)
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Failure {
        Failure::of(Status::BadArgument, &error)
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Error::from(error).into()
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Failure {
        Failure::of(Status::BadArgument, &error)
    }
}

impl From<SchemeConfigError> for Failure {
    fn from(error: SchemeConfigError) -> Failure {
        Failure::of(scheme_status(&error), &error)
    }
}

impl From<SimError> for Failure {
    fn from(error: SimError) -> Failure {
        let status = match &error {
            SimError::Setting { .. } | SimError::Distribution(_) | SimError::Fold { .. } => {
                Status::BadArgument
            }
            SimError::Scheme(error) => scheme_status(error),
            SimError::Broken { .. } | SimError::Stuck { .. } => Status::Scheme,
            _ => Status::Internal,
        };
        Failure::of(status, &error)
    }
}

impl From<DistributionError> for Failure {
    fn from(error: DistributionError) -> Failure {
        Failure::of(Status::BadArgument, &error)
    }
}

/// Errors of the library are not exhaustive: an error that is not known here yet is `Internal`, with its own message.
fn status_of(error: &Error) -> Status {
    match error {
        Error::Register(RegisterError::Memory(
            MemoryError::Unaligned { .. } | MemoryError::Length { .. },
        )) => Status::BadArgument,
        Error::Register(RegisterError::Memory(_)) => Status::Memory,
        Error::Register(RegisterError::Device { .. }) => Status::Memory,
        Error::Register(RegisterError::NotShareable { .. } | RegisterError::GpuMemory { .. }) => {
            Status::Unsupported
        }
        Error::Connect(error) => connect_status(error),
        Error::Handshake { .. } => Status::Protocol,
        Error::Deadline { .. } | Error::NotHeld { .. } => Status::Deadline,
        Error::ServerLost { .. } | Error::AnotherIncarnation { .. } | Error::AnotherPublisher => {
            Status::ServerLost
        }
        Error::Evicted { .. } => Status::Evicted,
        Error::Pull { source, .. } => pull_status(source),
        Error::Publish { source, .. } => publish_status(source),
        Error::Pin { source, .. } => pin_status(source),
        Error::Post { source, .. } => post_status(source),
        Error::Pinned { .. } => Status::Pinned,
        Error::Thread { .. } => Status::System,
        Error::LastVersion { .. } => Status::Unsupported,
        Error::Table(_)
        | Error::Shards { .. }
        | Error::AnotherTable { .. }
        | Error::NotF32
        | Error::Length { .. }
        | Error::Encoding { .. }
        | Error::Scheme { .. }
        | Error::Option { .. } => Status::BadArgument,
        Error::SchemeConfig(error) => scheme_status(error),
        Error::InFlight { .. } | Error::OutOfTurn { .. } => Status::OutOfTurn,
        Error::Checkpoint(error) => checkpoint_status(error),
        Error::Bounds(_) => Status::Protocol,
        Error::Group(error) => group_status(error),
        Error::Gpu(error) => crate::gpu::gpu_status(error),
        _ => Status::Internal,
    }
}

/// Only schemes from outside of the library fail as `Custom`.
fn scheme_status(error: &SchemeConfigError) -> Status {
    match error {
        SchemeConfigError::Custom { .. } => Status::Scheme,
        _ => Status::BadArgument,
    }
}

fn group_status(error: &GroupError) -> Status {
    match error {
        GroupError::Absent { .. } | GroupError::Deadline { .. } | GroupError::Unheard { .. } => {
            Status::Deadline
        }
        GroupError::CutOff { .. } => Status::Evicted,
        GroupError::NotCopied { .. } => Status::System,
        GroupError::Foreign { .. } | GroupError::Disagree { .. } => Status::BadArgument,
        _ => Status::Internal,
    }
}

fn checkpoint_status(error: &CheckpointError) -> Status {
    match error {
        CheckpointError::Write { .. }
        | CheckpointError::Locked { .. }
        | CheckpointError::Unreadable { .. }
        | CheckpointError::Gpu { .. } => Status::System,
        CheckpointError::Superseded { .. } => Status::Refused,
        CheckpointError::Memory { .. } => Status::Memory,
        CheckpointError::Damaged { .. } | CheckpointError::Foreign { .. } => Status::Damaged,
        CheckpointError::Format { .. } | CheckpointError::Header { .. } => Status::Unsupported,
        CheckpointError::NoName { .. }
        | CheckpointError::Missing { .. }
        | CheckpointError::NotFinite { .. }
        | CheckpointError::OtherJob { .. } => Status::BadArgument,
        _ => Status::Internal,
    }
}

fn connect_status(error: &ConnectError) -> Status {
    match error {
        ConnectError::WrongAddress { .. }
        | ConnectError::NeedsSecret { .. }
        | ConnectError::ReadingSecret { .. } => Status::BadArgument,
        ConnectError::System { .. } => Status::System,
        ConnectError::AnotherUser { .. } | ConnectError::Refused { .. } => Status::Refused,
        ConnectError::Protocol { .. } => Status::Protocol,
        ConnectError::Memory { .. } => Status::Memory,
        ConnectError::Closed { .. } => Status::ServerLost,
        ConnectError::Channel { source, .. } => channel_status(source),
        ConnectError::Offer { .. } => Status::Protocol,
        ConnectError::NotBuilt { .. }
        | ConnectError::Staged { .. }
        | ConnectError::GpuMemory { .. }
        | ConnectError::NoPath { .. } => Status::Unsupported,
        _ => Status::Internal,
    }
}

pub(crate) fn channel_status(error: &ChannelError) -> Status {
    match error {
        ChannelError::Secret
        | ChannelError::ReadingOnly
        | ChannelError::NeedsSecret { .. }
        | ChannelError::Encryption { .. } => Status::Refused,
        ChannelError::Closed { .. } => Status::ServerLost,
        ChannelError::System { .. } | ChannelError::NoRandom(_) => Status::System,
        ChannelError::Foreign
        | ChannelError::Version { .. }
        | ChannelError::Purpose { .. }
        | ChannelError::Oversized { .. }
        | ChannelError::Damaged => Status::Protocol,
        _ => Status::Internal,
    }
}

fn pull_status(error: &PullError) -> Status {
    match error {
        PullError::Epoch { .. } | PullError::Disconnected(_) | PullError::Completion(_) => Status::ServerLost,
        PullError::Damaged { .. } | PullError::Checksum { .. } => Status::Damaged,
        PullError::Busy => Status::OutOfTurn,
        PullError::Gone { .. } | PullError::TooOld { .. } => Status::VersionGone,
        PullError::ChecksumOnGpu => Status::Unsupported,
        PullError::Post(error) => post_status(error),
        _ => Status::Internal,
    }
}

fn publish_status(error: &PublishError) -> Status {
    match error {
        PublishError::Disconnected(_) | PublishError::Completion(_) => Status::ServerLost,
        PublishError::Busy => Status::OutOfTurn,
        PublishError::Evicted { .. } => Status::Evicted,
        PublishError::LastClock { .. } => Status::Unsupported,
        PublishError::Post(error) => post_status(error),
        PublishError::Grants(_) => Status::Protocol,
        _ => Status::Internal,
    }
}

fn pin_status(error: &PinError) -> Status {
    match error {
        PinError::NotMapped | PinError::OnGpu => Status::Unsupported,
        PinError::Epoch { .. } | PinError::Inherited => Status::ServerLost,
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

/// Bytes that the message of a failure may have, with the zero at its end; a longer one is cut.
const MESSAGE_BYTES: usize = 2048;

thread_local! {
    // It has no destructor, so that C may read it until the thread's very end, and it never moves: a pointer that was
    // handed out shows the newest message, in whichever order a caller evaluates its arguments.
    static LAST: UnsafeCell<[u8; MESSAGE_BYTES]> = const { UnsafeCell::new([0; MESSAGE_BYTES]) };
    static IS_RETRYABLE: Cell<bool> = const { Cell::new(false) };
    static RETRY_AFTER: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Keeps the message for [`last_message`] and hands the status on.
pub(crate) fn remember(failure: Failure) -> Status {
    let mut message = failure.message;
    // A message that quotes an argument may hold any byte; C reads up to the first zero.
    message.retain(|character| character != '\0');
    let mut len = message.len().min(MESSAGE_BYTES - 1);
    while !message.is_char_boundary(len) {
        len -= 1;
    }
    LAST.with(|last| {
        // SAFETY: only this function makes a reference to the buffer, it runs no foreign code while it has one, and
        // other threads have buffers of their own.
        let buffer = unsafe { &mut *last.get() };
        buffer[..len].copy_from_slice(&message.as_bytes()[..len]);
        buffer[len] = 0;
    });
    IS_RETRYABLE.set(failure.is_retryable);
    RETRY_AFTER.set(failure.retry_after);
    failure.status
}

/// True if the call of this thread that failed last may succeed later.
pub(crate) fn last_is_retryable() -> bool {
    IS_RETRYABLE.get()
}

/// The time after which the peer that refused the call of this thread that failed last asks for it again.
pub(crate) fn last_retry_after() -> Option<Duration> {
    RETRY_AFTER.get()
}

/// The message of this thread's last failure; empty if there was none. The same pointer for as long as the thread is.
pub(crate) fn last_message() -> *const c_char {
    LAST.with(|last| last.get().cast_const().cast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use slackline::internals::mem::OutOfBounds;

    #[test]
    fn numbers_are_permanent_and_every_one_has_a_name() {
        let numbers: Vec<u32> = Status::ALL.iter().map(|status| *status as u32).collect();
        assert_eq!(numbers, (0..18).collect::<Vec<_>>());
        assert_eq!((Status::BadArgument as u32, name(1)), (1, c"bad argument"));
        assert_eq!((Status::Panic as u32, name(14)), (14, c"panic"));
        assert_eq!((Status::JobFailed as u32, name(15)), (15, c"job failed"));
        assert_eq!((Status::Scheme as u32, name(16)), (16, c"scheme"));
        assert_eq!((Status::VersionGone as u32, name(17)), (17, c"version gone"));
        assert_eq!(name(18), c"unknown status");
        assert_eq!(name(u32::MAX), c"unknown status");
    }

    #[test]
    fn a_wrong_or_missing_secret_is_refused_and_no_bug() {
        let address: slackline::Address = "192.0.2.1:7".parse().unwrap();
        let failure = |source| {
            Failure::from(Error::Connect(ConnectError::Channel { address: address.clone(), source }))
        };
        let wrong = failure(ChannelError::Secret);
        assert_eq!(wrong.status, Status::Refused);
        assert!(wrong.message.contains("do not know the same secret"), "{}", wrong.message);
        let needs = ChannelError::NeedsSecret { address: "192.0.2.1:7".parse().unwrap() };
        assert_eq!(failure(needs).status, Status::Refused);
        assert_eq!(failure(ChannelError::Foreign).status, Status::Protocol);
        assert!(!wrong.is_retryable);
    }

    #[test]
    fn a_device_that_registers_no_more_is_no_bug() {
        let source = std::io::Error::from_raw_os_error(12);
        let error =
            RegisterError::Device { bytes: 8, device: "mlx5_0".into(), remedy: "raise it".into(), source };
        assert_eq!(Failure::from(Error::Register(error)).status, Status::Memory);
    }

    #[test]
    fn a_range_beyond_the_end_is_the_mistake_of_the_call_that_names_it() {
        let beyond = || Error::Bounds(OutOfBounds { offset: 8, len: 4, available: 8 });
        assert_eq!(Failure::of_own_range(beyond()).status, Status::BadArgument);
        assert_eq!(Failure::from(beyond()).status, Status::Protocol, "a peer has named it");
        assert_eq!(Failure::of_own_range(Error::NotF32).status, Failure::from(Error::NotF32).status);
    }

    #[test]
    fn what_a_gpu_cannot_do_or_has_failed_at_is_no_bug_of_the_library() {
        let checksum = Error::Pull { shard: 0, source: PullError::ChecksumOnGpu };
        assert_eq!(Failure::from(checksum).status, Status::Unsupported);
        let (file, reason) = ("shard".into(), "the driver gives none".into());
        assert_eq!(Failure::from(CheckpointError::Gpu { file, reason }).status, Status::System);
    }

    #[test]
    fn a_message_with_a_zero_in_it_is_kept_whole_but_for_the_zero() {
        assert_eq!(remember(Failure::bad_argument("one\0two")), Status::BadArgument);
        // SAFETY: the message was set just above and nothing on this thread has failed since.
        assert_eq!(unsafe { CStr::from_ptr(last_message()) }, c"onetwo");
    }

    #[test]
    fn a_pointer_to_the_message_stays_and_shows_the_newest_one() {
        remember(Failure::bad_argument("the first"));
        let early = last_message();
        remember(Failure::bad_argument("the second"));
        // SAFETY: the buffer lives as long as this thread.
        assert_eq!((early, unsafe { CStr::from_ptr(early) }), (last_message(), c"the second"));
    }

    #[test]
    fn a_message_that_is_too_long_is_cut_between_characters() {
        remember(Failure::bad_argument(format!("x{}", "é".repeat(MESSAGE_BYTES))));
        // SAFETY: the message was set just above and nothing on this thread has failed since.
        let kept = unsafe { CStr::from_ptr(last_message()) }.to_str().unwrap();
        assert_eq!((kept.len(), kept.chars().count()), (MESSAGE_BYTES - 1, MESSAGE_BYTES / 2));
    }
}
