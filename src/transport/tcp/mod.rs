//! TCP: the one-sided contract, carried out by a thread at the target.
//!
//! A connection is made of *lanes*, each a TCP connection with one side that posts and one that serves, like half a
//! queue pair. Posting and polling are done wholly by the caller's thread: a batch leaves with one system call,
//! gathered straight from registered memory, and the bytes of reads arrive straight in it. The serving side of all
//! lanes belongs to one *progress thread* per [`Tcp`]: it receives payloads straight into the granted memory, after
//! one small function has checked the key, the epoch, the range, the right and the alignment. Newcomers are greeted
//! by one more thread per listener, so that a flood of connections holds up no lane.
//!
//! | lane | posts | carries |
//! | --- | --- | --- |
//! | forward data | connector | its requests; the connection of the handshake |
//! | forward heartbeat | connector | its [heartbeats](super::Endpoint::heartbeat_word), if it was granted something |
//! | reverse data | acceptor | its requests, if the connector granted something |
//! | reverse heartbeat | acceptor | its heartbeats, likewise |
//!
//! Heartbeats have lanes of their own so that a gigabyte on its way never stands before one. When one lane ends, the
//! connection ends.
//!
//! **Complete means applied**, as everywhere: the target tells so, and it tells it for signalled requests and for every
//! quarter of a queue of others. A peer that was killed is noticed at once, one whose host is gone within seconds.
//! Where a child that the peer had forked outlives it, the child keeps copies of its sockets open, and only the missing
//! heartbeats tell. A peer that only does not poll is left alone for as long as its heartbeats come.
//!
//! **Words.** An aligned word of 8 bytes never tears in a request of up to 4 KiB; longer payloads are copied by the
//! kernel, which may cut a word where a packet or a call ends. Announcing words are shorter.
//!
//! **Admission.** Each peer is accepted that proves that it knows the [secret](crate::channel::Secret); without a
//! secret, each peer on this host. Keys are random numbers made for one connection, and mean nothing on another;
//! they, and the tickets by which lanes join, are told over an encrypted channel. Requests and data are in the clear
//! unless both sides [encrypt](Secret::encrypting) them: then all bytes behind the handshake travel in records that
//! are encrypted and authenticated, and a peer that does not do so is refused. It costs a copy and a pass of AES on
//! either side.
//!
//! **Forked children.** An inherited connection is dead in a forked child, and only there; the progress thread stays
//! with the parent. A [`Tcp`] itself may be used in the child: it starts a thread of its own.
//!
//! ```
//! use std::task::Poll;
//! use slackline::internals::mem::Access;
//! use slackline::internals::transport::{Connecting, Endpoint, Incoming, Inline, Listener, Offer, Operation};
//! use slackline::internals::transport::WorkRequest;
//! use slackline::{Instant, Tcp, Transport};
//!
//! let tcp = Tcp::new();
//! let mut listener = tcp.listen(&"127.0.0.1:0".parse()?)?;
//! let mut connecting = tcp.connect(&listener.address(), Offer::default())?;
//! let region = tcp.allocate(4096, Access::REMOTE_WRITE)?;
//! let (mut server, mut client) = (None, None);
//! while client.is_none() {
//!     if let Some(incoming) = listener.poll(Instant::ORIGIN) {
//!         server = Some(incoming.accept(Offer { message: b"hello".into(), grants: vec![region.whole()] })?);
//!     }
//!     if let Poll::Ready(connected) = connecting.poll(Instant::ORIGIN) {
//!         client = Some(connected?);
//!     }
//! }
//! let (mut client, received) = client.unwrap();
//! let remote = received.grants[0].slice(8, 8)?;
//! client.post(&[WorkRequest::signalled(1, Operation::WriteInline { data: Inline::word(42), remote })])?;
//! while client.poll().is_none() {}
//! assert_eq!(region.as_volatile().load_u64(8), 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acceptor;
mod check;
mod connecting;
mod connection;
mod endpoint;
mod engine;
mod heartbeat;
mod hello;
mod initiator;
mod listener;
mod record;
mod socket;
#[cfg(feature = "cuda")]
mod staged;
mod target;
mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

pub use connecting::TcpConnecting;
pub use endpoint::TcpEndpoint;
#[cfg(any(test, fuzzing))]
pub(crate) use hello::{fuzz_hello, hello_samples};
pub use listener::{TcpIncoming, TcpListener};
#[cfg(any(test, fuzzing))]
pub(crate) use wire::{fuzz_headers, header_samples};

use self::engine::Engine;
use super::{
    Address, AtomicDomain, Capabilities, ConnectError, Doorbell, GpuPath, Offer, RegisterError, Transport,
    wireup,
};
use crate::channel::{self, Purpose, Secret};
use crate::cuda::Gpu;
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion};

/// Requests that may be outstanding on an endpoint, unless [`Tcp::with_queue_depth`] says otherwise.
const QUEUE_DEPTH: usize = 1024;

const NAME: &str = "tcp";

/// The way of payloads on a GPU.
static GPU_PATH: LazyLock<GpuPath> = LazyLock::new(|| {
    let reasons = [
        ("dma-buf", "a socket takes no memory of a device"),
        ("nvidia-peermem", "it is for RDMA devices, and a socket has none"),
    ];
    GpuPath::Staged { passed_over: reasons.map(|(way, reason)| (way, reason.to_owned())).into() }
});

/// The one-sided contract over TCP. Clones share one progress thread.
#[derive(Clone)]
pub struct Tcp {
    queue_depth: usize,
    secret: Option<Secret>,
    gpu: Option<Gpu>,
    /// The progress thread, once it was needed.
    engine: Arc<Mutex<Option<Arc<Engine>>>>,
    access_violations: Arc<AtomicU64>,
}

impl Default for Tcp {
    fn default() -> Self {
        Tcp::new()
    }
}

impl Tcp {
    /// TCP between processes of one host, over its loopback addresses, with queues of 1024.
    pub fn new() -> Self {
        Tcp {
            queue_depth: QUEUE_DEPTH,
            secret: None,
            gpu: None,
            engine: Arc::default(),
            access_violations: Arc::default(),
        }
    }

    /// Makes a transport over TCP between all processes that know `secret`, on any hosts. If the secret
    /// [encrypts](Secret::encrypting), all bytes after the handshake are encrypted, and a peer that does not encrypt is
    /// refused.
    pub fn with_secret(secret: Secret) -> Self {
        Tcp { secret: Some(secret), ..Tcp::new() }
    }

    /// The same with a GPU. Payloads of an owner that serves over it, frames and slots, are in memory of that GPU, and
    /// a server folds there. A peer publishes straight out of memory of its GPU and pulls straight into it, whether the
    /// owner has a GPU or not. On the way the bytes pass the host: a GPU copies them into and out of blocks of locked
    /// memory, 8 of 2 MiB for each connection that needs them, while others are sent and received. With a GPU that
    /// [requires](Gpu::require_gpudirect) a direct way it neither listens nor connects.
    #[cfg(feature = "cuda")]
    pub fn with_gpu(self, gpu: &Gpu) -> Self {
        Tcp { gpu: Some(gpu.clone()), ..self }
    }

    /// The same with queues of `queue_depth` requests.
    #[doc(hidden)]
    pub fn with_queue_depth(self, queue_depth: usize) -> Self {
        Tcp { queue_depth, ..self }
    }

    /// The progress thread, started if it does not run in this process.
    fn engine(&self, operation: &'static str, address: &Address) -> Result<Arc<Engine>, ConnectError> {
        let mut engine = connection::lock(&self.engine);
        if let Some(running) = engine.as_ref().filter(|engine| engine.is_running()) {
            return Ok(Arc::clone(running));
        }
        let started =
            Engine::start(Arc::clone(&self.access_violations)).map_err(|source| ConnectError::System {
                operation,
                address: address.clone(),
                source,
                remedy: "check the limits on open files (ulimit -n) and processes (ulimit -u)",
            })?;
        Ok(Arc::clone(engine.insert(Arc::new(started))))
    }

    fn dial(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: Option<Arc<Doorbell>>,
    ) -> Result<TcpConnecting, ConnectError> {
        let socket = takes("connect", address)?;
        GPU_PATH.check_allowed(self.gpu.as_ref(), "connect", address)?;
        let engine = if offer.grants.is_empty() { None } else { Some(self.engine("connect", address)?) };
        let given = (offer, doorbell);
        TcpConnecting::new(socket, engine, self.terms(), self.queue_depth, self.gpu.clone(), given)
    }

    /// As [`Listener::has_caught_up`](super::Listener::has_caught_up), also for the peers of outgoing connections.
    pub(super) fn has_caught_up(&self) -> bool {
        connection::lock(&self.engine).as_ref().is_none_or(|engine| engine.has_caught_up())
    }

    fn encrypts(&self) -> bool {
        self.secret.as_ref().is_some_and(Secret::encrypts)
    }

    fn terms(&self) -> channel::ChannelTerms {
        let purpose = if self.encrypts() { Purpose::EncryptedTransport } else { Purpose::Transport };
        let terms = channel::ChannelTerms::new(purpose);
        channel::ChannelTerms { secret: self.secret.clone(), limit: wireup::LIMIT, ..terms }
    }
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let has_secret = self.secret.is_some();
        f.debug_struct("Tcp")
            .field("queue_depth", &self.queue_depth)
            .field("has_secret", &has_secret)
            .field("encrypts", &self.encrypts())
            .field("gpu", &self.gpu)
            .finish()
    }
}

impl Transport for Tcp {
    type Endpoint = TcpEndpoint;
    type Listener = TcpListener;
    type Connecting = TcpConnecting;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            queue_depth: self.queue_depth,
            max_request_bytes: isize::MAX as usize,
            atomics: AtomicDomain::Host,
            in_place: false,
        }
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        Ok(MemoryRegion::new(memory, access, DeviceKeys::NONE, ()))
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register(HostMemory::anonymous(bytes)?, access)
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    fn listen(&self, address: &Address) -> Result<TcpListener, ConnectError> {
        let socket = takes("listen", address)?;
        GPU_PATH.check_allowed(self.gpu.as_ref(), "listen", address)?;
        TcpListener::new(
            socket,
            self.engine("listen", address)?,
            self.terms(),
            self.queue_depth,
            self.gpu.clone(),
        )
    }

    fn access_violations(&self) -> u64 {
        self.access_violations.load(Ordering::Relaxed)
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<TcpConnecting, ConnectError> {
        self.dial(address, offer, None)
    }

    fn connect_to_be_woken(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: &Arc<Doorbell>,
    ) -> Result<TcpConnecting, ConnectError> {
        self.dial(address, offer, Some(Arc::clone(doorbell)))
    }
}

fn takes(operation: &'static str, address: &Address) -> Result<SocketAddr, ConnectError> {
    match address {
        Address::Tcp(socket) => Ok(*socket),
        _ => {
            let address = address.clone();
            Err(ConnectError::WrongAddress { operation, address, transport: NAME, takes: "IP:PORT" })
        }
    }
}
