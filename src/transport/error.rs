//! Errors between peers, one narrow type per operation.

use std::borrow::Cow;
use std::io;

use super::{Address, GpuPath, NotBuilt, Refusal};
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::mem::MemoryError;
use crate::time::Duration;

/// The operation that fails where this side's device does not make its part of an RDMA connection.
pub(crate) const MAKE_RDMA_CONNECTION: &str = "make an RDMA connection";

/// Memory could not be registered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The memory itself could not be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The transport cannot let peers reach memory of this kind.
    #[error("cannot register private memory for remote access over {transport}: {}", remedy_of(self))]
    NotShareable {
        /// The transport's name.
        transport: &'static str,
        /// The memory to use instead.
        use_instead: &'static str,
    },
    /// The device does not take it.
    #[error("cannot register {bytes} bytes with the RDMA device {device}: {source}; {remedy}")]
    Device {
        /// Bytes of the region.
        bytes: usize,
        /// The device's name.
        device: String,
        /// The error that the system reported.
        source: io::Error,
        /// A remedy that the user can try.
        remedy: String,
    },
    /// The driver of a GPU does not pass its memory to peers.
    #[error("cannot let peers reach memory of a GPU over {transport}: {reason}")]
    GpuMemory {
        /// The transport's name.
        transport: &'static str,
        /// The driver's error, with the remedy.
        reason: String,
    },
}

impl Diagnostic for RegisterError {
    fn operation(&self) -> &'static str {
        "registering memory"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            RegisterError::Memory(error) => return error.remedy(),
            RegisterError::NotShareable { use_instead, .. } => format!("use {use_instead}").into(),
            RegisterError::Device { remedy, .. } => remedy.into(),
            // Its reason ends in one.
            RegisterError::GpuMemory { .. } => return None,
        })
    }

    fn is_retryable(&self) -> bool {
        matches!(self, RegisterError::Memory(error) if error.is_retryable())
    }
}

/// A connection could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is of a kind that the transport does not speak.
    #[error("cannot {operation} at {address} over {transport}: {}", remedy_of(self))]
    WrongAddress {
        /// "listen" or "connect".
        operation: &'static str,
        /// The address.
        address: Address,
        /// The transport's name.
        transport: &'static str,
        /// The kind of address that the transport takes.
        takes: &'static str,
    },
    /// The library was built without the transport of the address.
    #[error("cannot {operation} at {address}: {source}")]
    NotBuilt {
        /// "listen" or "connect".
        operation: &'static str,
        /// The address.
        address: Address,
        /// The transport, with the remedy.
        source: NotBuilt,
    },
    /// The system refused.
    #[error("cannot {operation} at {address}: {source}; {remedy}")]
    System {
        /// "listen", "connect", "accept", ...
        operation: &'static str,
        /// The address.
        address: Address,
        /// The error that the system reported.
        source: io::Error,
        /// A remedy that the user can try.
        remedy: &'static str,
    },
    /// The socket belongs to another user.
    #[error(
        "the peer at {address} runs as user {theirs}, this process as user {ours}: shared memory is passed \
         only between processes of one user; {}",
        remedy_of(self)
    )]
    AnotherUser {
        /// The address.
        address: Address,
        /// The peer's user id.
        theirs: u32,
        /// This process's user id.
        ours: u32,
    },
    /// Without a secret, the listener could be reached by processes that it must not let in.
    #[error(
        "cannot listen at {address}: without a secret only loopback addresses are served; {}",
        remedy_of(self)
    )]
    NeedsSecret {
        /// The address.
        address: Address,
    },
    /// A reader's secret opens reading only: readers would not accept a publisher that serves with it.
    #[error("cannot listen at {address}: the secret opens reading only; {}", remedy_of(self))]
    ReadingSecret {
        /// The address.
        address: Address,
    },
    /// The peer turned us away.
    #[error("the peer at {address} refused: {reason}")]
    Refused {
        /// The address.
        address: Address,
        /// The time after which this process may ask again, if the reason passes by itself.
        retry_after: Option<Duration>,
        /// The reason that the peer gave.
        reason: String,
    },
    /// The transport cannot make this connection, between whichever programs: another transport may.
    #[error("no path of this transport leads to the peer at {address}: {reason}")]
    NoPath {
        /// The address.
        address: Address,
        /// The time after which this process may ask again, if the reason may pass by itself.
        retry_after: Option<Duration>,
        /// The difference between the two sides, or the lack of one of them, with the remedy.
        reason: String,
    },
    /// The peer is not a slackline process, or one of another wire version.
    #[error("the peer at {address} does not speak this protocol: {reason}")]
    Protocol {
        /// The address.
        address: Address,
        /// The fault that this side found in the handshake.
        reason: String,
    },
    /// The memory that goes with the connection could not be mapped or granted.
    #[error("cannot share memory with the peer at {address}: {source}")]
    Memory {
        /// The address.
        address: Address,
        /// The error of the memory.
        source: MemoryError,
    },
    /// Memory of a GPU that goes with the connection could not be mapped or granted.
    #[error("cannot share memory of a GPU with the peer at {address}: {reason}")]
    GpuMemory {
        /// The address.
        address: Address,
        /// The reason, with its remedy.
        reason: String,
    },
    /// Payloads on this process's GPU would be staged through host memory, and the GPU requires a direct way.
    #[error(
        "cannot {operation} at {address}: GPUDirect is required, and payloads of the GPU would take {path}; {}",
        remedy_of(self)
    )]
    Staged {
        /// "listen" or "connect".
        operation: &'static str,
        /// The address.
        address: Address,
        /// The path that they would take, and why the better paths are not in use.
        path: GpuPath,
    },
    /// This side's offer cannot be made: its message or its memory is unfit.
    #[error("cannot make this offer to the peer at {address}: {reason}")]
    Offer {
        /// The address.
        address: Address,
        /// The fault of the offer.
        reason: &'static str,
    },
    /// There is no authenticated channel to the peer: no common secret, another version, no slackline process at all.
    #[cfg(not(loom))]
    #[error("cannot connect to {address}: {source}")]
    Channel {
        /// The address.
        address: Address,
        /// The error of the channel.
        source: crate::channel::ChannelError,
    },
    /// The peer went away in the middle of the handshake.
    #[error("the peer at {address} closed the connection during the handshake; {}", remedy_of(self))]
    Closed {
        /// The address.
        address: Address,
    },
}

impl ConnectError {
    /// The refusal of the peer at this address.
    pub(crate) fn refused(address: Address, refusal: Refusal) -> ConnectError {
        let Refusal { retry_after, reason, no_path } = refusal;
        match no_path {
            true => ConnectError::NoPath { address, retry_after, reason },
            false => ConnectError::Refused { address, retry_after, reason },
        }
    }
}

impl Diagnostic for ConnectError {
    fn operation(&self) -> &'static str {
        match self {
            ConnectError::WrongAddress { operation, .. }
            | ConnectError::NotBuilt { operation, .. }
            | ConnectError::Staged { operation, .. }
            | ConnectError::System { operation, .. } => operation,
            ConnectError::NeedsSecret { .. } | ConnectError::ReadingSecret { .. } => "listen",
            _ => "connect",
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ConnectError::System { remedy, .. } => (*remedy).into(),
            ConnectError::WrongAddress { takes, .. } => format!("it takes {takes}").into(),
            ConnectError::NotBuilt { source, .. } => return source.remedy(),
            ConnectError::Staged { .. } => {
                "put both processes on one host and use shared memory, or leave `Gpu::require_gpudirect` out"
                    .into()
            }
            ConnectError::AnotherUser { .. } => "start both as the same user".into(),
            ConnectError::ReadingSecret { .. } => "give this process the secret of the job".into(),
            ConnectError::NeedsSecret { .. } => {
                "give all processes of the job one secret, a file of mode 600 (SLACKLINE_SECRET_FILE)".into()
            }
            ConnectError::Closed { .. } => "look at its log for the reason".into(),
            ConnectError::Memory { source, .. } => return source.remedy(),
            #[cfg(not(loom))]
            ConnectError::Channel { source, .. } => return source.remedy(),
            ConnectError::Refused { .. }
            | ConnectError::NoPath { .. }
            | ConnectError::Protocol { .. }
            | ConnectError::GpuMemory { .. }
            | ConnectError::Offer { .. } => return None,
        })
    }

    /// True if the other side may be there later, or let this one in.
    fn is_retryable(&self) -> bool {
        match self {
            ConnectError::System { operation, source, .. } => !is_mistake(operation, source.kind()),
            ConnectError::Memory { source, .. } => source.is_retryable(),
            ConnectError::Closed { .. } => true,
            ConnectError::Refused { retry_after, .. } | ConnectError::NoPath { retry_after, .. } => {
                retry_after.is_some()
            }
            _ => false,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            // The link of a device is down: it may come back.
            ConnectError::System { source, .. } if source.kind() == io::ErrorKind::NetworkDown => {
                Some(Duration::from_secs(1))
            }
            ConnectError::Refused { retry_after, .. } | ConnectError::NoPath { retry_after, .. } => {
                *retry_after
            }
            _ => None,
        }
    }
}

/// True if the system answers the same however often it is asked: the address, a name or the rights are wrong. A device
/// that fails a later step of a connection with the same kind of error says nothing of these.
fn is_mistake(operation: &str, kind: io::ErrorKind) -> bool {
    match kind {
        io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::PermissionDenied => matches!(operation, "listen" | "connect"),
        // A listener creates the file that a connector misses, but not the folder of the file. Its address belongs to
        // this host, while connectors run out of ports.
        io::ErrorKind::NotFound | io::ErrorKind::AddrNotAvailable => operation == "listen",
        _ => false,
    }
}

#[cfg(not(loom))]
impl ConnectError {
    /// Makes the error for `address` from the error of a channel to it.
    pub(super) fn from_channel(address: Address, error: crate::channel::ChannelError) -> ConnectError {
        match error {
            crate::channel::ChannelError::Closed { .. } => ConnectError::Closed { address },
            crate::channel::ChannelError::System { operation, source } => {
                let remedy = match source.kind() {
                    io::ErrorKind::ConnectionRefused => {
                        "no process listens there: start the listener first, and check the address"
                    }
                    io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable => {
                        "the host does not answer: check the address, the network and its firewalls"
                    }
                    _ => "check the address, and the limit on open files (ulimit -n)",
                };
                ConnectError::System { operation, address, source, remedy }
            }
            source => ConnectError::Channel { address, source },
        }
    }

    /// True if the peer was reached, and the connection ended before it had answered: it may be asked again.
    pub(crate) fn is_lost_handshake(&self) -> bool {
        match self {
            ConnectError::Closed { .. } => true,
            ConnectError::System { operation, source, .. } => {
                *operation != "connect" && source.kind() == io::ErrorKind::TimedOut
            }
            _ => false,
        }
    }

    /// The address of a peer to which no path of this transport leads, and the reason, where that is the error: another
    /// transport may lead there.
    pub(crate) fn no_path(&self) -> Option<(&Address, String)> {
        match self {
            ConnectError::NoPath { address, reason, .. } => Some((address, reason.clone())),
            ConnectError::System { operation: MAKE_RDMA_CONNECTION, address, source, remedy } => {
                Some((address, format!("cannot {MAKE_RDMA_CONNECTION}: {source}; {remedy}")))
            }
            _ => None,
        }
    }

    /// A host that has not answered by the deadline, or a process of this host that has taken no connection by then.
    pub(crate) fn no_answer(address: Address) -> ConnectError {
        let timed_out = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        if let Address::Abstract(_) | Address::Path(_) = address {
            let remedy = "the process that listens there takes no connections, and those that wait fill its queue: \
                look whether it hangs or is stopped";
            return ConnectError::System { operation: "connect", address, source: timed_out, remedy };
        }
        ConnectError::from_channel(
            address,
            crate::channel::ChannelError::System { operation: "connect", source: timed_out },
        )
    }

    /// Makes the error for `address` where the system does not let this process listen there.
    pub(super) fn cannot_listen(address: Address, source: io::Error) -> ConnectError {
        let remedy = match source.kind() {
            io::ErrorKind::AddrInUse => "another process listens there: choose another port, or 0 for any",
            io::ErrorKind::AddrNotAvailable => "listen at an address of this host, or at 0.0.0.0 for all",
            io::ErrorKind::PermissionDenied => "choose a port from 1024 on: those below are for root",
            _ => "check the address, and the limit on open files (ulimit -n)",
        };
        ConnectError::System { operation: "listen", address, source, remedy }
    }
}

/// The connection to a peer is gone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection to the peer is gone: {reason}")]
pub struct Disconnected {
    /// The reason, as far as this side can tell.
    pub reason: &'static str,
}

impl Diagnostic for Disconnected {
    fn operation(&self) -> &'static str {
        "talking to a peer"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        None
    }
}

/// A batch was not posted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No room for the whole batch: poll completions, then post it again. Not a failure.
    #[error("the queue has room for {free} more requests, the batch has {batch}: {}", remedy_of(self))]
    QueueFull {
        /// Requests that would still fit.
        free: usize,
        /// Requests in the batch.
        batch: usize,
    },
    /// A batch longer than the queue itself can never be posted.
    #[error("a batch of {batch} requests can never fit a queue of {depth}: {}", remedy_of(self))]
    BatchTooLong {
        /// Requests in the batch.
        batch: usize,
        /// Depth of the queue.
        depth: usize,
    },
    /// A request whose local and remote lengths differ, or an atomic that is not one aligned word.
    #[error("request {index} of the batch is malformed: {reason}")]
    Malformed {
        /// The index of the request in its batch.
        index: usize,
        /// The fault of the request.
        reason: &'static str,
    },
    /// The peer is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
}

impl Diagnostic for PostError {
    fn operation(&self) -> &'static str {
        "posting requests"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            PostError::QueueFull { .. } => Some("poll completions and post again".into()),
            PostError::BatchTooLong { .. } => Some("cut it".into()),
            PostError::Malformed { .. } | PostError::Disconnected(_) => None,
        }
    }

    fn is_retryable(&self) -> bool {
        matches!(self, PostError::Disconnected(_) | PostError::QueueFull { .. })
    }
}

/// A request failed. The endpoint is disconnected from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionError {
    /// The key is unknown to the target, the range lies outside of its grant, or the right is missing.
    #[error(
        "the target refused access: unknown key, range outside of the grant, or a right that was not granted"
    )]
    RemoteAccess,
    /// The request was posted behind a failed one, or the connection ended before it ran.
    #[error("the request was flushed: the connection failed before it ran")]
    Flushed,
    /// The peer's device did not answer in time, often as it was asked.
    #[error("the peer's device does not answer: its process or host is gone, or the network between is down")]
    Unreachable,
    /// A GPU did not make the copy; the log says why.
    #[error("a GPU did not copy what was asked for: the log of this process says why")]
    Gpu,
    /// This side's device failed the request for a reason of its own.
    #[error("the device failed the request with status {status} (vendor error {vendor_error:#x})")]
    Device {
        /// The status of its completion (`enum ibv_wc_status`).
        status: u32,
        /// The maker's own code for this error.
        vendor_error: u32,
    },
}

impl CompletionError {
    /// The failure to report, out of this one and an `earlier` one of the same connection: the last one, except for a
    /// failed copy of a GPU. The requests behind that copy were flushed, and flushed requests alone would look like the
    /// loss of the peer.
    pub(crate) fn after(self, earlier: Option<CompletionError>) -> CompletionError {
        earlier.filter(|earlier| *earlier == CompletionError::Gpu).unwrap_or(self)
    }
}

impl Diagnostic for CompletionError {
    fn operation(&self) -> &'static str {
        "reaching a peer's memory"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_retryable(operation: &'static str, errno: i32) -> bool {
        let (source, remedy) = (io::Error::from_raw_os_error(errno), "look at it");
        ConnectError::System { operation, address: Address::random(), source, remedy }.is_retryable()
    }

    #[test]
    fn a_device_that_fails_is_no_mistake_in_the_address() {
        for errno in [libc::EINVAL, libc::EACCES, libc::EPERM] {
            for operation in [MAKE_RDMA_CONNECTION, "be notified", "look at a doorbell"] {
                assert!(is_retryable(operation, errno), "{operation}: {errno}");
            }
            assert!(!is_retryable("listen", errno) && !is_retryable("connect", errno), "{errno}");
        }
    }

    #[test]
    fn a_port_below_1024_is_said_to_be_for_root() {
        let denied = io::Error::from_raw_os_error(libc::EACCES);
        let error = ConnectError::cannot_listen("0.0.0.0:80".parse().unwrap(), denied);
        assert!(
            error.to_string().ends_with("; choose a port from 1024 on: those below are for root"),
            "{error}"
        );
    }

    #[test]
    fn memory_that_is_short_for_the_moment_may_be_had_later() {
        let is_retryable = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            let source = MemoryError::Map { bytes: 8, kind: "shared", source, remedy: "wait" };
            ConnectError::Memory { address: Address::random(), source }.is_retryable()
        };
        assert!(is_retryable(libc::EMFILE) && is_retryable(libc::ENOMEM) && !is_retryable(libc::EFBIG));
    }

    #[test]
    fn an_address_of_another_host_is_no_error_to_try_again() {
        assert!(!is_retryable("listen", libc::EADDRNOTAVAIL));
        assert!(is_retryable("connect", libc::EADDRNOTAVAIL) && is_retryable("listen", libc::EADDRINUSE));
    }
}
