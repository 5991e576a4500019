//! Verbs: one-sided RDMA over InfiniBand and RoCE, in hardware or in the kernel (soft-RoCE).
//!
//! Reliable connections (RC) carry everything. The two sides find each other over TCP, where each proves that it
//! knows the [secret](crate::channel::Secret); there they exchange their addresses, queue pairs and grants, and agree
//! on the size of packets and on the number of READs under way. That TCP connection stays open, silent: its end shows
//! that a process is gone, long before the device gives up on it.
//!
//! Each direction has up to three queue pairs: one for requests, one for heartbeats, so that no bulk data is ever
//! queued before them, and one for READs of memory that the peer grants for reading only. If several devices carry a
//! connection ([`VerbsOptions::devices`]), each further device has one pair for its parts of long requests, and one
//! for its parts of READs.
//!
//! | queue pairs | in the protection domain | reach |
//! | --- | --- | --- |
//! | this side posts on | of the transport | all memory registered with it, by requests of this process only |
//! | serve the peer | of this connection | memory that it may write, with those rights; a word of each further device |
//! | serve its READs | of all readers | memory of the transport that peers may only read |
//!
//! So memory that peers only read (control pages, frames) is registered once for each device, however many peers
//! there are, and a new peer costs no more than the memory that this peer writes. The key of memory that one peer
//! writes opens no memory for another peer, nor for the same peer's next connection. The keys of memory that is only
//! read are the same for all peers of this transport: a process that must keep some of its peers from the memory that
//! others read opens a transport for each kind. A peer that was disconnected reads nothing: its queue pairs are reset
//! at once, and destroyed later. A request for any other memory ends the connection of the peer that posted it. Peers
//! name bytes by their offset in a region: addresses of this process do not travel.
//!
//! **Nothing waits for ever.** A device that gets no answer retries for 1.9 s, unless [`VerbsOptions::timeout`] and
//! [`VerbsOptions::retries`] say otherwise; some take up to four times as long. Completion queues have room for all
//! requests that can be under way. Connections begin with random packet numbers. There is no protection against an
//! attacker that can send packets on the RoCE network itself: keys are guessable, and requests and data are not
//! encrypted.
//!
//! **Words.** An aligned word of 8 bytes never tears on its way into memory; writes of one connection become visible
//! in order, except writes into memory with [`Access::RELAXED`]. If a device keeps no such order
//! ([`VerbsOptions::in_order`]), its owner says so in the handshake, and a READ then proves the earlier writes before
//! each word is written. The device executes the atomics: they are atomic among requests through it, and not against
//! processors, unless [`Capabilities::atomics`](super::Capabilities) says so, which it does only after a trial.
//!
//! **GPUs.** Requests of a process that names its GPU ([`Verbs::with_gpu`](Verbs)) may name memory of the GPU, and so
//! may its grants, if its devices register that memory. If they do not, requests go through blocks of host memory.
//!
//! **Sleep.** A listener can wake its owner: peers then announce by WRITEs with immediate data
//! ([`Listener::be_notified`](super::Listener::be_notified)).
//!
//! **The library** (libibverbs) is opened at run time. If the library or a device is missing, [`Verbs::open`] says
//! so.
//!
//! **Forked children.** Objects that a forked child inherits are unusable in the child, and only there; registered
//! memory stays with the parent. A child that wants RDMA opens the device itself.
//!
//! ```
//! use slackline::{OpenError, Verbs, VerbsOptions};
//! match Verbs::open(VerbsOptions::default()) {
//!     Ok(verbs) => println!("RDMA by {}: {}", verbs.device(), verbs.reason()),
//!     Err(error) => println!("no RDMA: {error}"),
//! }
//! ```
#![allow(unsafe_code)]

mod arrival_order;
mod chosen;
mod connecting;
mod device;
mod direct;
mod dma_buf;
mod endpoint;
mod error;
mod gid;
mod grants;
mod hearing;
mod heartbeat;
mod hello;
#[cfg(test)]
mod idle;
mod initiator;
mod listener;
mod open;
mod options;
mod pairs;
mod path;
mod pci;
mod probe;
mod queue_pair;
mod rail;
mod rails;
mod region;
#[cfg(test)]
mod scripted;
mod shared;
mod shares;
mod staged;
mod striper;
#[allow(dead_code, reason = "the library as its header has it")]
pub(crate) mod sys;
#[cfg(test)]
mod tests;
mod unanswered;
mod under_way;
#[cfg(test)]
pub(crate) mod unordered;
mod waker;

use std::net::{IpAddr, SocketAddr};
#[cfg(feature = "cuda")]
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use arrival_order::{ArrivalOrder, ArrivalOrderSource};
pub use connecting::VerbsConnecting;
pub use device::{DeviceInfo, ForkSafety, Limits, Port, fork_safety};
pub use endpoint::VerbsEndpoint;
pub use error::OpenError;
pub use gid::{Gid, GidChoice, GidKind};
#[cfg(any(test, fuzzing))]
pub(crate) use hello::{fuzz_hello, hello_samples};
pub use listener::{VerbsIncoming, VerbsListener};
pub use open::devices;
pub use options::VerbsOptions;
pub use path::PathSettings;
pub use pci::{PciWay, pci_way};
#[cfg(feature = "cuda")]
pub use probe::{GpuTransfers, MeasuredTransfers};
use shared::{VerbsShared, power_of_two_below, registration_remedy};
pub use sys::LibraryError;

use self::direct::VerbsGpu;
use self::hearing::Hearing;
use self::rail::Rail;
use self::unanswered::UnansweredWays;
use super::{Address, AtomicDomain, Capabilities, ConnectError, Doorbell, Offer, RegisterError, Transport};
use crate::channel::Secret;
use crate::cuda::Gpu;
#[cfg(feature = "cuda")]
use crate::cuda::GpuMemory;
#[cfg(feature = "cuda")]
use crate::cuda::RegisteredMemory;
use crate::mem::{Access, HostMemory, MemoryError, MemoryRegion};

const NAME: &str = "verbs";

const INHERITED: &str = "the device was opened before this process was forked";

/// Requests that may be outstanding on an endpoint, unless the options say otherwise or the device supports fewer.
const QUEUE_DEPTH: usize = 1024;

/// Longest inline data of a request, unless the options say otherwise: a header of 64 bytes.
const INLINE_BYTES: u32 = 64;

/// Longest single request that a device gets, whatever limit it reports.
const PIECE_BYTES_MAX: u32 = 1 << 30;

/// RDMA through one port of one device, or through several ports in parallel. Clones share them.
#[derive(Clone)]
pub struct Verbs {
    shared: Arc<VerbsShared>,
    /// The GPU whose memory may hold payloads of this process.
    gpu: Option<VerbsGpu>,
    /// The kind of memory that is allocated.
    memory: fn(usize) -> Result<HostMemory, MemoryError>,
}

impl Verbs {
    /// Opens the device and port that `options` name, or the best ones, and tries whether the device's atomics work.
    ///
    /// # Errors
    /// Something is missing: the library, a device, the permission to use it, a port that is up, or an address. The
    /// error says what is missing, and how to repair it.
    pub fn open(options: VerbsOptions) -> Result<Verbs, OpenError> {
        if options.secret.as_ref().is_some_and(Secret::encrypts) {
            return Err(OpenError::Encryption);
        }
        let opened = open::open(&options)?.into_iter();
        let rails = opened.map(|opened| Rail::new(opened, &options)).collect::<Result<Vec<_>, _>>()?;
        let queue_depth = queue_depth(&rails, options.queue_depth)?;
        let hearing = Hearing::new().map_err(|source| OpenError::System {
            operation: "make an epoll descriptor",
            device: rails[0].info.name.clone(),
            source,
            remedy: "raise the limit on open files (ulimit -n)",
        })?;
        #[cfg(feature = "cuda")]
        let on_gpus = RegisteredMemory::new(rails[0].domain.serial);
        let mut shared = VerbsShared {
            rails,
            queue_depth,
            inline_bytes: options.inline_bytes,
            first_packet: options.first_packet,
            atomics: AtomicDomain::None,
            atomics_fault: None,
            secret: options.secret,
            access_violations: AtomicU64::new(0),
            rails_lost: AtomicU64::new(0),
            unanswered: UnansweredWays::default(),
            hearing,
            #[cfg(feature = "cuda")]
            on_gpus,
        };
        let said = shared.first().info.limits.atomics;
        if said != AtomicDomain::None {
            let tried = match shared.first().device.is_port_active(shared.first().port.number) {
                Ok(false) => Err("its port is down, so that they cannot be tried".into()),
                _ => probe::atomics(&Arc::new(shared.fresh())),
            };
            match tried {
                Ok(()) => shared.atomics = said,
                Err(error) => {
                    tracing::warn!(
                        device = shared.first().info.name,
                        error,
                        "atomics of this device do not work: not used"
                    );
                    shared.atomics_fault = Some(error);
                }
            }
        }
        let verbs = Verbs::new(shared);
        for rail in &verbs.shared.rails {
            tracing::info!(
                device = rail.info.name,
                port = rail.port.number,
                reason = rail.reason,
                mtu = rail.mtu(),
                atomics = ?verbs.shared.atomics,
                "RDMA device chosen"
            );
        }
        Ok(verbs)
    }

    fn new(shared: VerbsShared) -> Verbs {
        Verbs { shared: Arc::new(shared), gpu: None, memory: HostMemory::anonymous }
    }

    /// Returns the transport with another kind of memory for its [allocations](Transport::allocate): [in
    /// dma-bufs](HostMemory::in_dma_buf), as devices import GPU memory.
    #[doc(hidden)]
    pub fn with_memory(self, memory: fn(usize) -> Result<HostMemory, MemoryError>) -> Verbs {
        Verbs { memory, ..self }
    }

    /// Returns the transport with a GPU. A peer publishes from memory of its GPU and pulls into it, and an owner that
    /// serves over this transport has its payloads there.
    ///
    /// If all devices of the transport register memory of the GPU, which is tried here, they read and write it
    /// themselves: as a dma-buf, or by its address if the module nvidia-peermem is loaded. If a device does not, a
    /// peer's payloads pass through the host: the GPU copies them into and out of blocks of locked and registered
    /// memory, 8 of 2 MiB for each connection that needs them, while other blocks are written and read. The other
    /// side and the data on the wire are the same as without a GPU. An owner then has its payloads in host memory,
    /// since no device reads them on the GPU, and a server folds by processors. With a GPU that
    /// [requires](Gpu::require_gpudirect) a direct path, the transport then neither listens nor connects.
    #[cfg(feature = "cuda")]
    pub fn with_gpu(self, gpu: &Gpu) -> Verbs {
        self.with_gpu_where(gpu, direct::PEERMEM_FOLDER.as_ref())
    }

    /// The same, where a loaded module nvidia-peermem has this folder.
    #[cfg(feature = "cuda")]
    fn with_gpu_where(self, gpu: &Gpu, peermem: &Path) -> Verbs {
        let gpu = VerbsGpu::new(&self.shared, gpu, peermem);
        Verbs { gpu: Some(gpu), ..self }
    }

    /// Checks that payloads of the GPU may take the available path.
    fn check_gpu(&self, operation: &'static str, address: &Address) -> Result<(), ConnectError> {
        self.gpu.iter().try_for_each(|gpu| gpu.path.check_allowed(Some(&gpu.gpu), operation, address))
    }

    /// The device's name. If the transport has several devices, this method and the following ones describe the
    /// first.
    #[doc(hidden)]
    pub fn device(&self) -> &str {
        &self.shared.first().info.name
    }

    /// The names of all devices in use, and the port of each.
    #[doc(hidden)]
    pub fn rails(&self) -> impl Iterator<Item = (&str, u8)> {
        self.shared.rails.iter().map(|rail| (rail.info.name.as_str(), rail.port.number))
    }

    /// Returns the attributes of the device and its ports.
    #[doc(hidden)]
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.first().info
    }

    /// The port that is used.
    #[doc(hidden)]
    pub fn port(&self) -> &Port {
        &self.shared.first().port
    }

    /// Returns the reason why this device and port were chosen, as readable text.
    #[doc(hidden)]
    pub fn reason(&self) -> &str {
        &self.shared.first().reason
    }

    /// Largest packet in bytes; smaller towards a peer whose packets are smaller.
    #[doc(hidden)]
    pub fn mtu(&self) -> u16 {
        self.shared.first().mtu()
    }

    /// The settings of the packets' path, as they were when the device was opened.
    #[doc(hidden)]
    pub fn path_settings(&self) -> &PathSettings {
        &self.shared.first().settings
    }

    /// The local address for packets to `peer`, and the reason for the choice, as the port was when the device was
    /// opened.
    #[doc(hidden)]
    pub fn gid_towards(&self, peer: Option<IpAddr>) -> Option<GidChoice> {
        self.shared.first().choose_gid(peer)
    }

    /// Whether the device applies the peers' writes in order: by the options, by known facts about the device, or by
    /// the device's answer for a connection of this process with itself. The error says why there is no such
    /// connection.
    #[doc(hidden)]
    pub fn arrival_order(&self) -> Result<ArrivalOrder, String> {
        probe::arrival_order(&self.shared)
    }

    /// Longest inline data of a request, in bytes: the size that the device grants when the size in the options is
    /// requested. The error says why the device creates no queue pair.
    #[doc(hidden)]
    pub fn inline_bytes(&self) -> Result<u32, String> {
        probe::inline_bytes(&self.shared)
    }

    fn dial(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: Option<Arc<Doorbell>>,
    ) -> Result<VerbsConnecting, ConnectError> {
        let socket = takes("connect", address)?;
        self.check_gpu("connect", address)?;
        VerbsConnecting::new(&self.shared, self.gpu.clone(), socket, offer, doorbell)
    }

    /// Returns the reason why atomics are not used although the device reports them: the fault that their trial
    /// found.
    #[doc(hidden)]
    pub fn atomics_fault(&self) -> Option<&str> {
        self.shared.atomics_fault.as_deref()
    }
}

/// Requests that may be outstanding on an endpoint.
fn queue_depth(rails: &[Rail], wanted: Option<usize>) -> Result<usize, OpenError> {
    // Each write may need a READ.
    let limit = |rail: &Rail| rail.info.limits.queue_depth.min(rail.info.limits.completions) as usize / 2;
    let limits = rails.iter().map(|rail| (limit(rail), rail.info.name.as_str()));
    let (limit, least) = limits.min().unwrap_or((0, ""));
    match wanted {
        Some(depth) if depth == 0 || depth > limit => Err(OpenError::Setting {
            device: least.into(),
            what: format!("queues of {depth}"),
            remedy: format!("choose 1 to {limit}"),
        }),
        Some(depth) => Ok(depth),
        None => Ok(QUEUE_DEPTH.min(limit).max(1)),
    }
}

impl std::fmt::Debug for Verbs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verbs")
            .field("rails", &self.rails().collect::<Vec<_>>())
            .field("queue_depth", &self.shared.queue_depth)
            .field("has_secret", &self.shared.secret.is_some())
            .field("gpu", &self.gpu.as_ref().map(|gpu| &gpu.gpu))
            .finish()
    }
}

impl Transport for Verbs {
    type Endpoint = VerbsEndpoint;
    type Listener = VerbsListener;
    type Connecting = VerbsConnecting;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            queue_depth: self.shared.queue_depth,
            // Requests that are too long for the device are split, and each part takes an entry of the queue.
            max_request_bytes: self.shared.piece_bytes().saturating_mul(self.shared.queue_depth),
            atomics: self.shared.atomics,
            in_place: false,
        }
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.shared.register_or_tell(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register((self.memory)(bytes)?, access)
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref().filter(|gpu| gpu.is_direct()).map(|gpu| &gpu.gpu)
    }

    #[cfg(feature = "cuda")]
    fn register_on_gpu(&self, memory: &GpuMemory) -> Result<(), RegisterError> {
        let registrations = self.gpu.as_ref().and_then(|gpu| gpu.registrations.as_ref());
        let registered =
            registrations.map(|registrations| direct::readers(&self.shared, registrations, memory));
        registered.transpose().map(|_| ()).map_err(|source| {
            let (bytes, remedy) = (memory.bytes(), direct::registration_help(&source));
            RegisterError::Device { bytes, device: self.device().into(), source, remedy }
        })
    }

    fn listen(&self, address: &Address) -> Result<VerbsListener, ConnectError> {
        let socket = takes("listen", address)?;
        self.check_gpu("listen", address)?;
        VerbsListener::new(&self.shared, self.gpu.clone(), socket)
    }

    fn access_violations(&self) -> u64 {
        self.shared.access_violations.load(Ordering::Relaxed)
    }

    fn rails_lost(&self) -> u64 {
        self.shared.rails_lost.load(Ordering::Relaxed)
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<VerbsConnecting, ConnectError> {
        self.dial(address, offer, None)
    }

    fn connect_to_be_woken(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: &Arc<Doorbell>,
    ) -> Result<VerbsConnecting, ConnectError> {
        self.dial(address, offer, Some(Arc::clone(doorbell)))
    }
}

fn takes(operation: &'static str, address: &Address) -> Result<SocketAddr, ConnectError> {
    match address {
        Address::Verbs(socket) => Ok(*socket),
        _ => {
            let address = address.clone();
            Err(ConnectError::WrongAddress { operation, address, transport: NAME, takes: "verbs:IP:PORT" })
        }
    }
}
