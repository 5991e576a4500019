//! The contract between parameter memory and the backend that carries bytes: verbs, shared memory, TCP, a simulator.
//!
//! A [`Transport`] registers memory, listens and connects. A connected peer is an [`Endpoint`]: batches of one-sided
//! [`WorkRequest`]s go in, [`WorkCompletion`]s come out. Every backend makes these promises, and the layers above rely
//! on no others:
//!
//! 1. **Order of writes.** The writes of one endpoint become visible at the target in the order they were posted
//!    (one RC queue pair, announcing regions without relaxed ordering; where a device keeps no order among the writes
//!    of a queue pair, a READ proves the writes before each announcing one). Nothing orders the bytes *inside* one
//!    write, except that an aligned 8-byte word never tears. (Where the kernel copies, this holds for requests of up
//!    to 4 KiB: announcing words are short writes. Where memory of a GPU was mapped in pieces, a word that crosses
//!    two pieces may tear: only payloads come from there, never words.) Writes into memory that was granted with
//!    [`Access::RELAXED`] keep only half of this order: they are visible before any *later* write to other memory,
//!    but they may overtake each other and earlier requests.
//! 2. **Reads promise nothing** but whole aligned 8-byte words: a READ is not a snapshot, its bytes may be fetched in
//!    any order, and more than once. A READ posted after the completion of another sees memory no older than that
//!    one did. A WRITE posted after a READ waits for it only if it carries [`Flags::FENCE`].
//! 3. **Complete means done on this side.** A write is complete when its bytes have left the local memory and a later
//!    READ on the same connection sees them: the acknowledgement of a reliable connection says no more, and it may
//!    come before the target's memory has them. A processor or another connection sees them once it sees a later write.
//!    A read is complete when the local memory has it. A request in flight owns its local memory (it holds the
//!    [`LocalSlice`]) until its completion, or until its endpoint is dropped.
//! 4. **Full is not failed.** [`PostError::QueueFull`] means: poll, then post again. Nothing of the batch was posted.
//!    A posted request may wait on this side for an earlier one: `post`, `poll` and `check` drive it forward.
//! 5. **Errors stay where they happen.** A request that the target refuses completes in error; from then on that
//!    endpoint is [disconnected](Disconnected), and no other one notices.
//! 6. **No silent retry** of anything that is not idempotent. After an error neither side knows whether an atomic ran.
//! 7. **Words have one kind of writer.** [`Capabilities::atomics`] says within which scope fetch-add and compare-swap
//!    are atomic; nothing in this library needs them.
//! 8. **No process is owed a notification.** An owner that sleeps in [`Listener::wait`] is woken in general by a WRITE
//!    with [`Flags::NOTIFY`], a peer that sleeps at its doorbell by [`Endpoint::wake`]. Both must look for themselves
//!    now and then.
//! 9. **A node may come back** at its address, with other memory. Until that is noticed, READs of a connection to its
//!    earlier incarnation may return bytes of the new memory, if the keys are the same again; WRITEs never land there.

#[cfg(all(not(all(feature = "tcp", feature = "verbs")), not(loom)))]
pub(crate) mod absent;
mod address;
#[cfg(all(test, not(loom)))]
#[macro_use]
mod conformance;
pub(crate) mod doorbell;
mod error;
mod host;
mod kind;
mod local;
#[cfg(not(loom))]
pub mod mixed;
mod named;
mod park;
mod payload;
#[cfg(not(loom))]
pub mod shm;
mod simulator;
#[cfg(all(any(feature = "tcp", feature = "verbs", feature = "cuda"), not(loom)))]
#[cfg_attr(not(feature = "cuda"), path = "staging/absent.rs")]
mod staging;
#[cfg(all(feature = "tcp", not(loom)))]
pub mod tcp;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod verbs;
#[cfg(not(loom))]
pub(crate) mod wireup;
mod work;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Poll;

pub use address::{Address, AddressError};
#[cfg(any(test, fuzzing))]
pub(crate) use address::{address_samples, fuzz_address};
pub use doorbell::{ArrivalWatch, Doorbell};
#[cfg(all(feature = "verbs", not(loom)))]
pub(crate) use error::MAKE_RDMA_CONNECTION;
pub use error::{CompletionError, ConnectError, Disconnected, PostError, RegisterError};
pub use host::Host;
pub use kind::{NotBuilt, TransportKind, UnknownTransport};
pub use local::LocalEndpoint;
pub(crate) use named::NAMED;
pub use named::{Named, NamedIncoming, NamedListener, Tables};
#[cfg(any(test, fuzzing))]
pub(crate) use named::{fuzz_name, name_samples};
pub use park::ParkWord;
pub use payload::{GpuGrant, GpuPath, PayloadMemory, PayloadSlice};
pub use simulator::Simulator;
#[cfg(all(feature = "oracle", not(loom)))]
#[doc(hidden)] // for tests/oracle.rs, which holds them against other people's
pub use verbs::sys::bindings as verbs_bindings;
pub use work::{Flags, Inline, Operation, WorkCompletion, WorkRequest, WorkRequestId};

#[cfg(all(feature = "cuda", not(loom)))]
use crate::cuda::Tickets;
use crate::cuda::{Gpu, GpuMemory, GpuSlice};
use crate::mem::{Access, HostMemory, LocalSlice, MemoryRegion, RemoteSlice};
use crate::time::{Duration, Instant};

/// Longest message that may travel in a handshake, in bytes. Checked before anything is allocated.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Most regions that may be granted in one handshake.
pub const MAX_GRANTS: usize = 16;

/// Most handshakes that a listener keeps pending; more wait in the system's queue.
pub const MAX_PENDING_HANDSHAKES: usize = 64;

/// Longest time that a newcomer may take over its handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The scope within which remote atomics are atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicDomain {
    /// There are none.
    None,
    /// Among requests through one device; a CPU's own atomics race with them.
    Device,
    /// Among all CPUs of the host and requests alike.
    Host,
}

/// The abilities of a transport. Ask, never assume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The transport's name as the command line spells it.
    pub name: &'static str,
    /// Requests that may be outstanding on one endpoint.
    pub queue_depth: usize,
    /// Longest single request in bytes.
    pub max_request_bytes: usize,
    /// The scope within which atomics are atomic.
    pub atomics: AtomicDomain,
    /// True if a peer's memory can be reached by loads and stores ([`Endpoint::map`]).
    pub in_place: bool,
}

/// The message and the memory that one side offers in a handshake.
#[derive(Debug, Default)]
pub struct Offer {
    /// Bytes for the layer above.
    pub message: Vec<u8>,
    /// Memory that the peer may use from now on, as its region's [`Access`] says.
    pub grants: Vec<LocalSlice>,
}

/// The message and the memory that the other side offered in a handshake. Untrusted until the layer above has
/// checked it.
#[derive(Debug, Default)]
pub struct Received {
    /// Bytes for the layer above.
    pub message: Vec<u8>,
    /// The memory that it granted, in its order.
    pub grants: Vec<RemoteSlice>,
}

/// A way to reach peers.
pub trait Transport: Send + Sync + 'static {
    /// One connected peer.
    #[doc(hidden)]
    type Endpoint: Endpoint;
    /// The listener at which peers arrive.
    #[doc(hidden)]
    type Listener: Listener<Endpoint = Self::Endpoint>;
    /// A connection in the making.
    #[doc(hidden)]
    type Connecting: Connecting<Endpoint = Self::Endpoint>;

    /// Returns the capabilities of this transport.
    #[doc(hidden)]
    fn capabilities(&self) -> Capabilities;

    /// Registers memory, so that requests may use it and, as `access` allows, peers may reach it once it is granted.
    #[doc(hidden)]
    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError>;

    /// Allocates `bytes` of zeroed memory of the kind this transport serves best, and registers it.
    #[doc(hidden)]
    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError>;

    /// Returns the GPU on which owners that serve over this transport have their payloads.
    #[doc(hidden)]
    fn gpu(&self) -> Option<&Gpu> {
        None
    }

    /// Registers memory of that GPU which peers are to read, ahead of the first of them. A transport that registers
    /// nothing has nothing to do.
    ///
    /// # Errors
    /// A device does not register it, and no peer would reach it.
    #[doc(hidden)]
    fn register_on_gpu(&self, _memory: &GpuMemory) -> Result<(), RegisterError> {
        Ok(())
    }

    /// Begins to listen at `address`.
    #[doc(hidden)]
    fn listen(&self, address: &Address) -> Result<Self::Listener, ConnectError>;

    /// Returns how often peers have reached for memory that they were not granted, as far as this side was told.
    /// Each time it was the end of their connection. Always 0 where a processor carries requests out without asking.
    #[doc(hidden)]
    fn access_violations(&self) -> u64 {
        0
    }

    /// Returns how often a connection has lost one of several devices side by side and has gone on over the others.
    #[doc(hidden)]
    fn rails_lost(&self) -> u64 {
        0
    }

    /// Begins to connect to a listener, with the message and the grants of `offer`. Never blocks; poll the result.
    #[doc(hidden)]
    fn connect(&self, address: &Address, offer: Offer) -> Result<Self::Connecting, ConnectError>;

    /// The same for a peer that sleeps at `doorbell` while it waits: the other side rings it by [`Endpoint::wake`].
    #[doc(hidden)]
    fn connect_to_be_woken(
        &self,
        address: &Address,
        offer: Offer,
        _doorbell: &Arc<Doorbell>,
    ) -> Result<Self::Connecting, ConnectError> {
        self.connect(address, offer)
    }

    /// Returns the simulator that this transport belongs to, if any: all nodes over it then use the simulator's clock.
    #[doc(hidden)]
    fn simulator(&self) -> Option<Arc<dyn Simulator>> {
        None
    }
}

/// The listening side of a transport, at which peers arrive.
pub trait Listener: Send {
    /// One connected peer.
    type Endpoint: Endpoint;
    /// A peer whose offer has arrived and that waits for an answer.
    type Incoming: Incoming<Endpoint = Self::Endpoint>;

    /// Returns the address at which others reach this listener.
    fn address(&self) -> Address;

    /// Drives pending handshakes forward and returns the next one that is ready. Never blocks. At most
    /// [`MAX_PENDING_HANDSHAKES`] are kept, each for [`HANDSHAKE_TIMEOUT`]. The time limit is for the peer's offer: a
    /// peer whose offer has arrived waits until this is called, and may be gone by then. Over TCP a thread drives
    /// handshakes, and at most [`MAX_PENDING_HANDSHAKES`] more wait so. A handshake in which the peer made a mistake is
    /// dropped and logged, never returned.
    fn poll(&mut self, now: Instant) -> Option<Self::Incoming>;

    /// Lets requests with [`Flags::NOTIFY`] of peers that are accepted from now on end [`wait`](Self::wait). False if
    /// this transport cannot do that.
    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        Ok(false)
    }

    /// Returns a watch at which another thread sleeps until a peer arrives, for an owner that no longer waits here:
    /// peers that are accepted from now on send it no notifications. `None` if [`be_notified`](Self::be_notified) has
    /// not returned true, or the process has no descriptors left.
    fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        None
    }

    /// True if all bytes that had arrived at this process at the previous call are in its memory by now. A device, or
    /// the peer's own processor, writes there at once. A transport whose writes are carried out by a thread of this
    /// process asks that thread for a sign, and returns false until the sign has come: on a starved machine the thread
    /// may not run for seconds, during which an owner must not take the peers for silent. Never blocks.
    fn has_caught_up(&mut self) -> bool {
        true
    }

    /// Sleeps until a WRITE with [`Flags::NOTIFY`] is done, or a peer arrives, but no longer than `timeout`. A WRITE or
    /// an arrival since the last call ends it at once; it may also end for no reason. A caller that waits for memory to
    /// change looks at it after each call, and at least every `timeout`: a notification is never owed. Returns at
    /// once unless [`be_notified`](Self::be_notified) has returned true.
    fn wait(&mut self, _timeout: Duration) {}
}

/// A peer whose offer has arrived and that waits for an answer.
pub trait Incoming: Send {
    /// The endpoint that the answer makes.
    type Endpoint: Endpoint;

    /// Returns the peer's message and grants. Untrusted.
    fn received(&self) -> &Received;

    /// True if the peer has proved that it knows a reader's secret, and not the job's: it may read, and do nothing
    /// else.
    fn reads_only(&self) -> bool {
        false
    }

    /// Registers `grants` for the peer and makes this side of the connection, ahead of [`accept`](Self::accept), which
    /// then grants exactly these. A device takes seconds to register memory of many gigabytes: an owner that serves
    /// others calls this in a thread of its own. An error here makes `accept` fail.
    fn prepare(&mut self, _grants: &[LocalSlice]) {}

    /// Grants memory of a GPU with the offer that [`accept`](Self::accept) makes, ahead of
    /// [`prepare`](Self::prepare). Only a transport with a [GPU](Transport::gpu) can.
    ///
    /// # Errors
    /// It cannot; the reason names the remedy.
    fn grant_gpu(&mut self, _grants: Vec<GpuGrant>) -> Result<(), &'static str> {
        Err("this transport passes no memory of a GPU: use shared memory on one host")
    }

    /// Accepts the peer, and answers with the message and the grants of `offer`. Never blocks after
    /// [`prepare`](Self::prepare): [`Endpoint::poll`] and [`Endpoint::check`] send the rest of an answer that is too
    /// long for the system's buffer.
    fn accept(self, offer: Offer) -> Result<Self::Endpoint, ConnectError>;

    /// Refuses the peer, which receives the reason ([`ConnectError::Refused`]).
    fn refuse(self, refusal: Refusal);
}

/// The answer to a peer that is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Refusal {
    /// The time after which the peer may ask again, if the reason passes by itself.
    pub retry_after: Option<Duration>,
    /// The reason, in a sentence for the user of the peer.
    pub reason: String,
    /// The transport cannot make this connection for any program on these two hosts: another transport may.
    pub no_path: bool,
}

impl Refusal {
    /// A refusal whose reason passes by itself, probably within so long.
    pub fn temporary(retry_after: Duration, reason: impl Into<String>) -> Refusal {
        Refusal { retry_after: Some(retry_after), reason: reason.into(), no_path: false }
    }
}

/// A permanent refusal.
impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { retry_after: None, reason, no_path: false }
    }
}

/// A permanent refusal.
impl From<&str> for Refusal {
    fn from(reason: &str) -> Refusal {
        reason.to_owned().into()
    }
}

/// A connection in the making.
pub trait Connecting: Send {
    /// The endpoint that it becomes.
    type Endpoint: Endpoint;

    /// Drives the handshake forward. Never blocks. After `Ready` it must not be polled again.
    fn poll(&mut self, now: Instant) -> Poll<Result<(Self::Endpoint, Received), ConnectError>>;

    /// True once the peer's host has accepted the connection: only the answer of the listening process is missing then.
    /// False while the host has not answered at all.
    fn is_accepted(&self) -> bool {
        true
    }

    /// The reason why nothing was sent to the peer so far, if this side's system does not allow it at the moment. Each
    /// poll tries again.
    fn held_up(&self) -> Option<ConnectError> {
        None
    }
}

/// The resources of a connection that was [closed](Endpoint::close). To drop them may take long, in any thread.
pub type Remains = Box<dyn Send>;

/// One connected peer. Dropping it ends the connection and frees the memory that requests still owned.
pub trait Endpoint: Send {
    /// Posts a batch, in order, all or nothing. If the queue is full, nothing was posted: poll and try again.
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError>;

    /// Takes the next completion, if there is one. Never blocks.
    ///
    /// Requests complete in order of posting. Unsignalled requests have a completion only if they fail.
    fn poll(&mut self) -> Option<WorkCompletion>;

    /// Asks whether the peer is still there, as far as this side can tell at once. May cost a system call: for
    /// waits, not for the data path.
    fn check(&mut self) -> Result<(), Disconnected>;

    /// The peer's memory itself, where this transport shares it; `None` elsewhere, or if the slice was not granted.
    fn map(&self, remote: &RemoteSlice) -> Option<LocalSlice>;

    /// The same for memory on a GPU, where this process's GPU has it mapped.
    fn map_on_gpu(&self, _remote: &RemoteSlice) -> Option<GpuSlice> {
        None
    }

    /// Returns the name of the transport that carries it, as [`Capabilities::name`] spells it.
    fn transport(&self) -> &'static str;

    /// The way that payloads of this process's GPU take, where the transport has one.
    fn gpu_path(&self) -> Option<GpuPath> {
        None
    }

    /// The copies by GPUs of this process that its requests wait for, while nothing else holds them up.
    #[cfg(all(feature = "cuda", not(loom)))]
    fn awaited_copies(&self) -> Option<&Tickets> {
        None
    }

    /// A handle that sets one granted word from another thread: for heartbeats, which must not wait for the thread
    /// that computes.
    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError>;

    /// Sets the time of silence after which the owner evicts a peer. A transport that ends connections to silent peers
    /// by itself waits as long from now on, up to a bound of its own within which it notices that a host is gone.
    fn allow_silence(&mut self, _lease: Duration) {}

    /// Lets the transport count the peer's heartbeats as they arrive, if it can. It may then store them later, several
    /// at once, and the last ones not at all.
    fn count_arrivals(&mut self) {}

    /// A number that changes when heartbeats of the peer arrive, and only then, where the transport counts them. A
    /// heartbeat that arrives before [`Listener::has_caught_up`] is asked is counted by the time that it returns true.
    fn arrivals(&self) -> Option<u64> {
        None
    }

    /// Wakes a peer that has connected by [`Transport::connect_to_be_woken`]. Never waits for the peer, and cannot
    /// fail.
    fn wake(&mut self) {}

    /// The descriptor at which a wake-up by the peer arrives, where the peer does not reach the doorbell itself. A
    /// sleep at the doorbell waits for this one, too, and calls [`hear_wake`](Self::hear_wake) once it can be read.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Reads the wake-ups that have arrived at [`wake_fd`](Self::wake_fd). [`poll`](Self::poll) may do it as well, and
    /// then rings the doorbell.
    fn hear_wake(&mut self) {}

    /// Ends the connection as dropping it does, and first sends the peer a code of the layer above that gives the
    /// reason. The code arrives before the end of the connection does, unless the network loses it. A transport over
    /// which the peer can still read the reason in memory sends nothing.
    ///
    /// By RDMA the peer reaches no memory from then on. Over TCP it reaches none once the thread that serves it has
    /// noticed the end, for which this does not wait. Over shared memory the peer's process reaches the granted memory
    /// for as long as it has it mapped. So memory that one peer may write is never granted to another peer later. The
    /// resources that take long to free are returned: the caller drops them in a thread that serves no other peer.
    fn close(self, _code: u64) -> Option<Remains>
    where
        Self: Sized,
    {
        None
    }

    /// The code with which the peer has closed the connection, once the end was seen here. Untrusted.
    fn close_code(&self) -> Option<u64> {
        None
    }
}

/// Sets one word at a peer. See [`Endpoint::heartbeat_word`].
pub trait HeartbeatWord: Send {
    /// Sets the word. Never blocks: one thread sets the words of all connections.
    fn set(&mut self, value: u64) -> Result<(), Disconnected>;
}
