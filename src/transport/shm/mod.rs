//! Shared memory: peers on one host, whose CPUs do each other's loads and stores.
//!
//! A Unix socket carries the handshake, in which each side passes descriptors of sealed memory files. From then on
//! requests are loads, stores and atomics on the mapped memory (a [`LocalEndpoint`](super::LocalEndpoint)), and the
//! socket tells only whether the peer still lives.
//!
//! **Admission.** Only processes of the same user are accepted: the kernel says which user is on the other side
//! (`SO_PEERCRED`), and both sides ask before a byte is read. Memory has no name that others could open. A range
//! granted for reading only is sealed, so that its receiver cannot map it writable in any way; sizes are sealed, so
//! that no process can kill a reader by shrinking a file. There is no defence against two things: a process of the
//! same user may write anywhere in the regions that it was granted for writing, as the processor checks no offsets.
//! And it may block a thread that wakes it, or that it wakes: an eventfd is the same open file in both processes, so
//! a peer can clear its `O_NONBLOCK` and fill or empty it. To ask before each write or read whether it blocks would
//! cost a second system call, and the peer could do both right after the answer.
//!
//! **Forked children.** An endpoint, a listener or a handshake that a forked child inherited is dead there, and only
//! there: the child says [`Disconnected`](super::Disconnected) instead of mixing its requests with its parent's.
//! A child that outlives a killed parent keeps the socket open, though: heartbeats notice that, `check` does not.
//!
//! ```
//! use std::task::Poll;
//! use slackline::internals::mem::Access;
//! use slackline::internals::transport::{Connecting, Endpoint, Incoming, Inline, Listener, Offer, Operation};
//! use slackline::internals::transport::WorkRequest;
//! use slackline::{Address, Instant, Shm, Transport};
//!
//! let shm = Shm::new();
//! let mut listener = shm.listen(&Address::random())?;
//! let mut connecting = shm.connect(&listener.address(), Offer::default())?;
//! let region = shm.allocate(4096, Access::REMOTE_WRITE)?;
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
//! client.post(&[WorkRequest::unsignalled(1, Operation::WriteInline { data: Inline::word(42), remote })])?;
//! assert_eq!(region.as_volatile().load_u64(8), 42);
//!
//! drop(client);
//! assert!(server.unwrap().check().is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connecting;
#[allow(unsafe_code)]
mod credentials;
mod endpoint;
mod file;
#[cfg_attr(not(feature = "cuda"), path = "gpu/absent.rs")]
mod gpu;
mod handshake;
mod listener;
mod socket;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use connecting::ShmConnecting;
pub use endpoint::ShmEndpoint;
pub use listener::{ShmIncoming, ShmListener};
#[cfg(any(test, fuzzing))]
pub(crate) use wire::{fuzz_handshake, handshake_samples};

use super::{Address, AtomicDomain, Capabilities, ConnectError, Doorbell, Offer, RegisterError, Transport};
use crate::cuda::{Gpu, GpuMemory};
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryError, MemoryRegion};

/// Completions that an endpoint holds until they are polled, unless [`Shm::with_queue_depth`] says otherwise.
const QUEUE_DEPTH: usize = 1024;

const NAME: &str = "shm";

/// Shared memory between processes of one user on one host.
#[derive(Clone, Debug)]
pub struct Shm {
    queue_depth: usize,
    /// The user that this process runs as, and that its peers must run as.
    user: u32,
    gpu: Option<Gpu>,
}

impl Default for Shm {
    fn default() -> Self {
        Shm::new()
    }
}

impl Shm {
    /// Shared memory with queues of 1024.
    pub fn new() -> Self {
        Shm::with_queue_depth(QUEUE_DEPTH)
    }

    /// Shared memory whose endpoints hold up to `queue_depth` completions that were not polled yet.
    #[doc(hidden)]
    pub fn with_queue_depth(queue_depth: usize) -> Self {
        Shm { queue_depth, user: rustix::process::geteuid().as_raw(), gpu: None }
    }

    /// The same with a GPU. Payloads of an owner that serves over it, frames and slots, are in memory of that GPU, and
    /// a server folds there. A peer that connects over it reaches payloads of an owner's GPU: the same one, or another
    /// one that this process sees. The copy engines of this process's GPU copy, also from and to host memory; from and
    /// to a GPU without peer access, both GPUs copy by way of blocks of host memory.
    #[cfg(feature = "cuda")]
    pub fn with_gpu(self, gpu: &Gpu) -> Self {
        Shm { gpu: Some(gpu.clone()), ..self }
    }
}

impl Transport for Shm {
    type Endpoint = ShmEndpoint;
    type Listener = ShmListener;
    type Connecting = ShmConnecting;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            queue_depth: self.queue_depth,
            max_request_bytes: isize::MAX as usize,
            atomics: AtomicDomain::Host,
            in_place: true,
        }
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        check_shareable(&memory, access)?;
        Ok(MemoryRegion::new(memory, access, DeviceKeys::NONE, ()))
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register(memory_for(bytes, access)?, access)
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    fn register_on_gpu(&self, memory: &GpuMemory) -> Result<(), RegisterError> {
        gpu::expect_exported(memory)
    }

    fn listen(&self, address: &Address) -> Result<ShmListener, ConnectError> {
        takes("listen", address)?;
        ShmListener::new(address, self.queue_depth, self.user, self.gpu.clone())
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<ShmConnecting, ConnectError> {
        self.dial(address, &offer, None)
    }

    fn connect_to_be_woken(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: &Arc<Doorbell>,
    ) -> Result<ShmConnecting, ConnectError> {
        self.dial(address, &offer, Some(Arc::clone(doorbell)))
    }
}

impl Shm {
    fn dial(
        &self,
        address: &Address,
        offer: &Offer,
        doorbell: Option<Arc<Doorbell>>,
    ) -> Result<ShmConnecting, ConnectError> {
        takes("connect", address)?;
        ShmConnecting::new(address, offer, self.queue_depth, self.user, self.gpu.clone(), doorbell)
    }
}

/// Whether peers on this host could reach it as `access` allows.
pub(super) fn check_shareable(memory: &HostMemory, access: Access) -> Result<(), RegisterError> {
    if !access.is_local() && memory.shared_file().is_none() {
        return Err(RegisterError::NotShareable { transport: NAME, use_instead: "HostMemory::shared" });
    }
    Ok(())
}

/// Memory of the kind that peers on this host can reach as `access` allows.
pub(super) fn memory_for(bytes: usize, access: Access) -> Result<HostMemory, MemoryError> {
    if access.is_local() { HostMemory::anonymous(bytes) } else { HostMemory::shared(bytes) }
}

fn takes(operation: &'static str, address: &Address) -> Result<(), ConnectError> {
    match address {
        Address::Abstract(_) | Address::Path(_) => Ok(()),
        _ => {
            let address = address.clone();
            Err(ConnectError::WrongAddress { operation, address, transport: NAME, takes: "@NAME or a path" })
        }
    }
}
