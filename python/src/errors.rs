//! What the library's errors become in Python: classes of `slackline._errors`, chosen by kind and never by text.

use std::fmt::Display;
use std::io::ErrorKind;
use std::time::Duration;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use slackline::gpu::GpuError;
use slackline::internals::channel::ChannelError;
use slackline::internals::job::member::WaitError;
use slackline::internals::job::rendezvous::RendezvousError;
use slackline::internals::mem::MemoryError;
use slackline::internals::node::Awaited;
use slackline::internals::param::{PinError, PublishError, PullError};
use slackline::internals::transport::RegisterError;
use slackline::scheme::Bound;
use slackline::{
    AddressError, ConnectError, Diagnostic, Error, JobError, OpenError, SecretError, TableError,
};

/// A class of `slackline._errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Error,
    Deadline,
    FramesPinned,
    EpochChanged,
    Stale,
    DigestMismatch,
    PeerGone,
    Refused,
    LayoutMismatch,
    BadOption,
    OutOfTurn,
    Unsupported,
    JobFailed,
}

impl Class {
    const fn name(self) -> &'static str {
        match self {
            Class::Error => "Error",
            Class::Deadline => "DeadlineError",
            Class::FramesPinned => "FramesPinned",
            Class::EpochChanged => "EpochChanged",
            Class::Stale => "StaleError",
            Class::DigestMismatch => "DigestMismatch",
            Class::PeerGone => "PeerGone",
            Class::Refused => "Refused",
            Class::LayoutMismatch => "LayoutMismatch",
            Class::BadOption => "BadOption",
            Class::OutOfTurn => "OutOfTurn",
            Class::Unsupported => "Unsupported",
            Class::JobFailed => "JobFailed",
        }
    }
}

/// A call that failed, before it is an exception: it is made without the interpreter.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    class: Class,
    message: String,
    operation: String,
    remedy: Option<String>,
    is_retryable: bool,
    retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn of(class: Class, error: &impl Diagnostic) -> Failure {
        Failure {
            class,
            message: error.to_string(),
            operation: error.operation().into(),
            remedy: error.remedy().map(Into::into),
            is_retryable: error.is_retryable(),
            retry_after: error.retry_after(),
        }
    }

    /// The same failure, with words before its message that say where it is.
    pub(crate) fn at(self, position: impl Display) -> Failure {
        Failure { message: format!("{position}: {}", self.message), ..self }
    }

    /// The same failure with another remedy, with which its message ends.
    fn remedied(self, remedy: &str) -> Failure {
        let known = self.remedy.unwrap_or_default();
        let cause = self.message.strip_suffix(known.as_str()).unwrap_or(&self.message);
        Failure { message: format!("{cause}{remedy}"), remedy: Some(remedy.into()), ..self }
    }

    /// A failure that this crate noticed: the operation, the cause, and the remedy.
    pub(crate) fn new(class: Class, operation: &str, cause: impl Display, remedy: &str) -> Failure {
        Failure {
            class,
            message: format!("{operation}: {cause}; {remedy}"),
            operation: operation.into(),
            remedy: Some(remedy.into()),
            is_retryable: class == Class::Deadline,
            retry_after: None,
        }
    }

    /// The timeout of a wait of this crate has passed; the cause names the awaited event.
    pub(crate) fn late(operation: &str, waited: Duration, cause: impl Display, remedy: &str) -> Failure {
        let message = format!("{operation} did not end within {waited:?}: {cause}; {remedy}");
        Failure { message, ..Failure::new(Class::Deadline, operation, cause, remedy) }
    }

    /// The object was closed, or another call has to come first.
    pub(crate) fn out_of_turn(operation: &str, cause: &str, remedy: &str) -> Failure {
        Failure::new(Class::OutOfTurn, operation, cause, remedy)
    }

    /// True if the time was over, so that the same call may succeed later.
    pub(crate) fn is_late(&self) -> bool {
        self.class == Class::Deadline
    }

    /// True if the peer has refused, and says when to ask again.
    pub(crate) fn is_for_now(&self) -> bool {
        self.retry_after.is_some()
    }

    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let details = PyDict::new(py);
        details.set_item("operation", self.operation)?;
        details.set_item("remedy", self.remedy)?;
        details.set_item("is_retryable", self.is_retryable)?;
        details.set_item("retry_after", self.retry_after.map(|after| after.as_secs_f64()))?;
        let class = py.import("slackline._errors")?.getattr(self.class.name())?;
        let message = self.message.into_py_any(py)?;
        Ok(PyErr::from_value(class.call((message,), Some(&details))?))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        Python::attach(|py| failure.raise(py).unwrap_or_else(|error| error))
    }
}

impl From<Error> for Failure {
    /// In the words of Python, where Rust has other names or other remedies.
    fn from(error: Error) -> Failure {
        let error = match error {
            Error::Option { option: "peers", value, reason } => {
                Error::Option { option: "readers", value, reason }
            }
            Error::Option { option: "most_bytes", value, reason } => {
                Error::Option { option: "delta_bytes", value, reason }
            }
            error => error,
        };
        let failure = Failure::of(class_of(&error), &error);
        match error {
            Error::Deadline { awaited: Awaited::Answer, seen, .. } if seen == Bound::NONE => {
                failure.remedied(SILENT)
            }
            _ => failure,
        }
    }
}

/// The remedy where a peer has not answered at all. In Python a thread of the library answers.
const SILENT: &str =
    "see that its process runs (in Rust and C it calls what serves), or use a longer timeout";

impl From<JobError> for Failure {
    fn from(error: JobError) -> Failure {
        let class = match &error {
            JobError::Node(error) => class_of(error),
            JobError::Failed(_) | JobError::Lost(_) => Class::JobFailed,
            JobError::Refused(_) => Class::Refused,
            JobError::Rendezvous(error) => rendezvous_class(error),
            JobError::NotBack { .. } => Class::PeerGone,
            JobError::Late { .. } => Class::Deadline,
            JobError::InitialValues { .. } => Class::LayoutMismatch,
            JobError::OtherRole { .. } | JobError::NotLaunched => Class::OutOfTurn,
            JobError::Wait(WaitError::Deadline { .. }) => Class::Deadline,
            JobError::Wait(WaitError::Path(_)) => Class::Unsupported,
            JobError::Wait(WaitError::Ended(_)) => Class::JobFailed,
            JobError::Secret(_) => Class::Refused,
            JobError::NoRdma(_) | JobError::NotBuilt(_) => Class::Unsupported,
            JobError::Launch(_)
            | JobError::NoWorker { .. }
            | JobError::NoSuchRank { .. }
            | JobError::NoServer
            | JobError::HasServers { .. }
            | JobError::OtherServers { .. }
            | JobError::PerHost { .. }
            | JobError::TooLarge { .. } => Class::BadOption,
            _ => Class::Error,
        };
        Failure::of(class, &error)
    }
}

fn rendezvous_class(error: &RendezvousError) -> Class {
    match error {
        RendezvousError::NeedsSecret { .. } | RendezvousError::Refused { .. } => Class::Refused,
        RendezvousError::Channel { source, .. } => channel_class(source),
        RendezvousError::OnlyHere { .. } | RendezvousError::TooLong { .. } => Class::BadOption,
        RendezvousError::Timeout { .. } => Class::Deadline,
        _ => Class::Error,
    }
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Failure {
        Failure::of(Class::LayoutMismatch, &error)
    }
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Failure {
        Failure::of(Class::BadOption, &error)
    }
}

impl From<SecretError> for Failure {
    fn from(error: SecretError) -> Failure {
        Failure::of(Class::Refused, &error)
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        Failure::of(Class::Unsupported, &error)
    }
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Failure {
        Failure::of(gpu_class(&error), &error)
    }
}

fn gpu_class(error: &GpuError) -> Class {
    match error {
        GpuError::NoDriver { .. }
        | GpuError::OldDriver { .. }
        | GpuError::StubDriver
        | GpuError::NoSymbol { .. }
        | GpuError::NoDevice { .. }
        | GpuError::NotDirect { .. }
        | GpuError::OnGpu { .. } => Class::Unsupported,
        GpuError::NotOnDevice { .. }
        | GpuError::OtherDevice { .. }
        | GpuError::BeyondAllocation { .. }
        | GpuError::Empty => Class::LayoutMismatch,
        GpuError::OtherContext { .. } => Class::BadOption,
        GpuError::Capturing | GpuError::Forked => Class::OutOfTurn,
        GpuError::NotCopied { .. } => Class::Deadline,
        _ => Class::Error,
    }
}

pub(crate) fn class_of(error: &Error) -> Class {
    match error {
        Error::Deadline { .. } | Error::NotHeld { .. } => Class::Deadline,
        Error::Pinned { .. } => Class::FramesPinned,
        Error::ServerLost { .. } | Error::Evicted { .. } | Error::Post { .. } => Class::PeerGone,
        Error::Pull { source: PullError::Epoch { .. }, .. }
        | Error::Pin { source: PinError::Epoch { .. } | PinError::Inherited, .. }
        | Error::AnotherIncarnation { .. }
        | Error::AnotherPublisher => Class::EpochChanged,
        Error::Pull { source: PullError::Disconnected(_) | PullError::Completion(_), .. }
        | Error::Publish { source: PublishError::Disconnected(_) | PublishError::Completion(_), .. } => {
            Class::PeerGone
        }
        Error::Pull { source: PullError::Gone { .. } | PullError::TooOld { .. }, .. } => Class::Stale,
        Error::Pull { source: PullError::Checksum { .. }, .. } => Class::DigestMismatch,
        Error::Pin { source: PinError::NotMapped | PinError::OnGpu, .. } => Class::Unsupported,
        Error::Connect(error) => connect_class(error),
        Error::Gpu(error) => gpu_class(error),
        Error::Table(_)
        | Error::NotF32
        | Error::Length { .. }
        | Error::Shards { .. }
        | Error::AnotherTable { .. } => Class::LayoutMismatch,
        Error::Register(RegisterError::Memory(
            MemoryError::Unaligned { .. } | MemoryError::Length { .. },
        )) => Class::LayoutMismatch,
        Error::Register(RegisterError::GpuMemory { .. }) => Class::Unsupported,
        Error::Option { .. } | Error::Scheme { .. } | Error::SchemeConfig(_) | Error::Encoding { .. } => {
            Class::BadOption
        }
        Error::InFlight { .. } | Error::OutOfTurn { .. } => Class::OutOfTurn,
        _ => Class::Error,
    }
}

/// A peer that answers in another way than this process speaks is not gone.
fn channel_class(error: &ChannelError) -> Class {
    match error {
        ChannelError::Secret
        | ChannelError::ReadingOnly
        | ChannelError::NeedsSecret { .. }
        | ChannelError::Encryption { .. } => Class::Refused,
        ChannelError::System { .. } | ChannelError::Closed { .. } => Class::PeerGone,
        _ => Class::Error,
    }
}

fn connect_class(error: &ConnectError) -> Class {
    match error {
        ConnectError::AnotherUser { .. }
        | ConnectError::NeedsSecret { .. }
        | ConnectError::ReadingSecret { .. }
        | ConnectError::Refused { .. } => Class::Refused,
        ConnectError::Channel { source, .. } => channel_class(source),
        ConnectError::System { operation: "connect", source, .. }
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            Class::Refused
        }
        ConnectError::System { .. } if !error.is_retryable() => Class::BadOption,
        ConnectError::System { .. } | ConnectError::Closed { .. } => Class::PeerGone,
        ConnectError::WrongAddress { .. } => Class::BadOption,
        ConnectError::NotBuilt { .. }
        | ConnectError::Staged { .. }
        | ConnectError::GpuMemory { .. }
        | ConnectError::NoPath { .. } => Class::Unsupported,
        _ => Class::Error,
    }
}
