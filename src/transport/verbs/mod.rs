//! Verbs: one-sided RDMA over InfiniBand and RoCE, in hardware or in the kernel (soft-RoCE).
//!
//! Reliable connections (RC) carry everything. The two sides find each other over TCP, where each proves that it
//! knows the [secret](crate::channel::Secret); there they tell each other their addresses, queue pairs and grants,
//! and agree on the size of packets and on how many READs may be under way. That conversation stays open, silent: its
//! end tells that a process is gone, long before the device has given up on it.
//!
//! Each direction has up to three queue pairs: one for requests, one for heartbeats, which no bulk data is ever
//! before, and one for READs of memory that the peer lets be read only. Where several devices carry a connection
//! ([`VerbsOptions::devices`]), each further one has a pair for its parts of long requests, and one for those of
//! READs.
//!
//! | queue pairs | in the protection domain | reach |
//! | --- | --- | --- |
//! | this side posts on | of the transport | all memory registered with it, by requests of this process only |
//! | serve the peer | of this connection | what it may write, with those rights; a word of each further device |
//! | serve its READs | of all readers | memory of the transport that peers may read, and do nothing else with |
//!
//! So what peers only read (control pages, frames) is registered once for each device, however many they are, and
//! joining costs no more than the memory that one peer writes. A key of that memory opens nothing for another peer,
//! nor for its own next connection. The keys of what is only read are those of all peers of this transport: a process
//! that must keep some of its peers from what others read opens a transport for each kind. A peer that was shut out
//! reads nothing: its queue pairs are reset at once, and destroyed later. Requests for anything else end the connection
//! of the peer that tried.
//! Peers name bytes by their offset in a region: addresses of this process do not travel.
//!
//! **Nothing waits for ever.** A device that gets no answer asks again for 1.9 s, unless [`VerbsOptions::timeout`]
//! and [`VerbsOptions::retries`] say otherwise; some take up to four times as long. Completion queues have room for
//! all that can be under way. Connections begin with random packet numbers. An attacker that can put packets on the
//! RoCE network itself is not kept out: keys are guessable, and requests and data are not encrypted.
//!
//! **Words.** An aligned word of 8 bytes never tears on its way into memory; writes of one connection become visible
//! in order, but for those into memory with [`Access::RELAXED`]. A device that keeps no such order
//! ([`VerbsOptions::in_order`]) is told by its owner in the handshake, and a READ then proves what was written before
//! each word. Atomics are those of the device: atomic among requests through it, and not against processors, unless
//! [`Capabilities::atomics`](super::Capabilities) says so, which it does only after trying.
//!
//! **GPUs.** Requests of a process that names its GPU ([`Verbs::with_gpu`](Verbs)) may have memory there, and so may
//! what it grants, where its devices register it. Where they do not, requests go through blocks of host memory.
//!
//! **Sleep.** A listener can wake its owner: peers then announce by WRITEs with immediate data
//! ([`Listener::be_notified`](super::Listener::be_notified)).
//!
//! **The library** (libibverbs) is opened at run time. Where there is none, or no device, [`Verbs::open`] says so.
//!
//! **Forked children.** What a forked child inherits is dead there, and only there; registered memory stays with the
//! parent. A child that wants RDMA opens the device itself.
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

use std::io;
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
pub use path::PathSettings;
pub use pci::{PciWay, pci_way};
#[cfg(feature = "cuda")]
pub use probe::{GpuTransfers, MeasuredTransfers};
pub use sys::LibraryError;

use self::direct::VerbsGpu;
use self::hearing::Hearing;
use self::initiator::Initiator;
use self::queue_pair::QueuePair;
use self::rail::Rail;
use self::region::Registered;
use self::unanswered::UnansweredWays;
use super::{
    Address, AtomicDomain, Capabilities, ConnectError, Doorbell, Offer, RegisterError, Transport, wireup,
};
use crate::channel::{self, Purpose, Secret};
use crate::cuda::Gpu;
#[cfg(feature = "cuda")]
use crate::cuda::GpuMemory;
#[cfg(feature = "cuda")]
use crate::cuda::RegisteredMemory;
use crate::mem::{Access, DeviceKeys, HostMemory, MAX_RAILS, MemoryError, MemoryRegion};

const NAME: &str = "verbs";

const INHERITED: &str = "the device was opened before this process was forked";

/// Requests that may be outstanding on an endpoint, unless asked otherwise or the device has less.
const QUEUE_DEPTH: usize = 1024;

/// Longest data that a request carries in itself, unless asked otherwise: a header of 64 bytes.
const INLINE_BYTES: u32 = 64;

/// Longest single request that a device is given, whatever it says it can do.
const PIECE_BYTES_MAX: u32 = 1 << 30;

/// Settings of RDMA. The default is right for most: the best device and port of this host.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The devices, by their names, or `NAME:PORT`; the best one if none is named. Where several are, up to
    /// [`MAX_RAILS`](crate::mem::MAX_RAILS), long requests of each connection are striped by their speeds over those
    /// that are up on both sides when it is made, the first with the peer's first and so on; each of these must have a
    /// way to the peer's, and one at least is to be up when they are opened. A port may be named several times: each
    /// time is a queue pair more, for links that give one queue pair one of several ways. Memory is pinned, and
    /// counted, once for each. Best where a process has a host to itself: several do better with a device for each.
    pub devices: Vec<String>,
    /// The port where a name has none, counted from 1; the first that carries data if none is given.
    pub port: Option<u8>,
    /// The entry of the port's GID table to speak from; the best one towards each peer if none is named.
    pub gid_index: Option<u16>,
    /// The variable that says so, if one does. What NCCL's says of RoCE is not taken for InfiniBand, as by NCCL.
    #[doc(hidden)]
    pub gid_index_from: Option<&'static str>,
    /// Largest packet in bytes: 256, 512, 1024, 2048 or 4096; what both ports carry if none is given.
    pub mtu: Option<u16>,
    /// Requests that may be outstanding on an endpoint: 1024, or half as many as the device takes.
    pub queue_depth: Option<usize>,
    /// READs and atomics that may be under way on a connection at once, each way: 16, or as many as the devices of
    /// both sides take. No more than the device has under way and answers; the side with less decides, and a number
    /// between two powers of two counts as the lesser one. For tests: few.
    #[doc(hidden)]
    pub read_depth: Option<u8>,
    /// Longest data that a request carries in itself, in bytes: 64, or as much as the device takes.
    pub inline_bytes: u32,
    /// The address on the PCI bus of a GPU that payloads are on, as in `/sys/bus/pci/devices`: of devices on the way to
    /// the peer the nearest to it are preferred.
    pub near: Option<String>,
    /// A peer, if one is known beforehand: devices on the way to it are preferred, unless another has twice the speed.
    pub peer: Option<IpAddr>,
    /// This process's number among those of its job on this host. Of several devices that are equally good each local
    /// rank takes another.
    pub local_rank: usize,
    /// The service level of packets, 0 to 15: on InfiniBand the lane that they take, on Ethernet their priority,
    /// where no DSCP says it.
    pub service_level: u8,
    /// The traffic class of packets with a global route header, which RoCE v2 has always: DSCP in the upper six bits,
    /// ECN in the others. Networks without loss often want 104 or 106.
    pub traffic_class: u8,
    /// The partition, by the value of its key, with or without the bit of full members; the first of the port's table
    /// if none is given. Both sides must be in it, one of them as a full member, as which a port is taken where it has
    /// both keys. On Ethernet there is one, 0xFFFF.
    pub partition_key: Option<u16>,
    /// The variable that says so, if one does. What UCX's says is not taken for Ethernet, as by UCX.
    #[doc(hidden)]
    pub partition_key_from: Option<&'static str>,
    /// The time after which a device asks again: 4.096 us times 2 to this power, 1 to 31. 16 (268 ms) if none is
    /// given.
    pub timeout: Option<u8>,
    /// The number of times that a device asks again before the connection is over, 0 to 7 (soft-RoCE: 6). 6 if none
    /// is given: with the time of 16 a peer is lost after 1.9 s, and some devices take four times as long.
    pub retries: Option<u8>,
    /// Whether this process's devices are taken to apply what peers write in the order of their requests (true), or
    /// in any order (false); the device is asked if nothing is said. Where they may be in any order, a peer has a
    /// READ prove what it wrote before each word that announces it: one round trip more. A device that is wrongly
    /// taken to keep the order corrupts data without a sign.
    pub in_order: Option<bool>,
    /// Whether devices are asked to write payloads, and the answers to READs, in relaxed order: true unless it is set.
    /// Words that announce are never written so. A device or host that gains nothing by it loses nothing, either: this
    /// is for measurements, and for hosts on which it is known to fail.
    pub relaxed_ordering: bool,
    /// The number of the first packet of each connection, modulo 2^24; random if none is given. For tests: numbers
    /// wrap around.
    #[doc(hidden)]
    pub first_packet: Option<u32>,
    /// The secret that all peers know; without one only peers on this host are let in.
    pub secret: Option<Secret>,
}

impl Default for VerbsOptions {
    fn default() -> Self {
        VerbsOptions {
            devices: Vec::new(),
            port: None,
            gid_index: None,
            gid_index_from: None,
            mtu: None,
            queue_depth: None,
            read_depth: None,
            inline_bytes: INLINE_BYTES,
            near: None,
            peer: None,
            local_rank: 0,
            service_level: 0,
            traffic_class: 0,
            partition_key: None,
            partition_key_from: None,
            timeout: None,
            retries: None,
            in_order: None,
            relaxed_ordering: true,
            first_packet: None,
            secret: None,
        }
    }
}

impl VerbsOptions {
    /// The entry of the GID table that is to be spoken from at this port, if one is asked for.
    #[doc(hidden)]
    pub fn gid_index_at(&self, port: &Port) -> Option<u16> {
        let is_of_nccl = self.gid_index_from.is_some_and(|variable| variable.starts_with("NCCL_"));
        self.gid_index.filter(|_| !(port.is_infiniband && is_of_nccl))
    }

    /// The key of the partition that is to be used at this port, if one is asked for.
    #[doc(hidden)]
    pub fn partition_key_at(&self, port: &Port) -> Option<u16> {
        let is_of_ucx = self.partition_key_from.is_some_and(|variable| variable.starts_with("UCX_"));
        self.partition_key.filter(|_| port.is_infiniband || !is_of_ucx)
    }
}

/// RDMA through one port of one device, or through several side by side. Clones share it.
#[derive(Clone)]
pub struct Verbs {
    shared: Arc<VerbsShared>,
    /// The GPU that payloads of this process may be on.
    gpu: Option<VerbsGpu>,
    /// The kind of memory that is allocated.
    memory: fn(usize) -> Result<HostMemory, MemoryError>,
}

/// The state that all connections of one [`Verbs`] have in common.
struct VerbsShared {
    /// The ports that are used, side by side: at least one.
    rails: Vec<Rail>,
    queue_depth: usize,
    inline_bytes: u32,
    first_packet: Option<u32>,
    atomics: AtomicDomain,
    /// The fault that was found when they were tried.
    atomics_fault: Option<String>,
    secret: Option<Secret>,
    access_violations: AtomicU64,
    /// Rails that connections have lost.
    rails_lost: AtomicU64,
    unanswered: UnansweredWays,
    hearing: Arc<Hearing>,
    /// Memory of GPUs that is registered in the domains of these rails.
    #[cfg(feature = "cuda")]
    on_gpus: RegisteredMemory,
}

impl Verbs {
    /// Opens the device and port that `options` ask for, or the best ones, and tries whether its atomics work.
    ///
    /// # Errors
    /// Something is missing: the library, a device, the right to use it, a port that is up, or an address. The
    /// error says what, and how to repair it.
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

    /// The same with another kind of memory where it [allocates](Transport::allocate) some:
    /// [in dma-bufs](HostMemory::in_dma_buf), as a GPU's comes to the devices.
    #[doc(hidden)]
    pub fn with_memory(self, memory: fn(usize) -> Result<HostMemory, MemoryError>) -> Verbs {
        Verbs { memory, ..self }
    }

    /// The same with a GPU. A peer publishes out of memory of its GPU and pulls into it, and an owner that serves over
    /// it has its payloads there.
    ///
    /// Where all devices of the transport register memory of the GPU, which is tried here, they read and write it
    /// themselves: as a dma-buf, or by its address where the module nvidia-peermem is loaded. Where one does not, a
    /// peer's payloads pass the host: the GPU copies them into and out of blocks of locked and registered memory, 8 of
    /// 2 MiB for each connection that needs them, while others are written and read. The other side, and what travels,
    /// is as without a GPU. An owner has its payloads in host memory then, since no device reads them on the GPU, and a
    /// server folds by processors. With a GPU that [requires](Gpu::require_gpudirect) a direct way it neither listens
    /// nor connects then.
    #[cfg(feature = "cuda")]
    pub fn with_gpu(self, gpu: &Gpu) -> Verbs {
        self.with_gpu_where(gpu, direct::PEERMEM_FOLDER.as_ref())
    }

    /// The same where the module nvidia-peermem has this folder when it is loaded.
    #[cfg(feature = "cuda")]
    fn with_gpu_where(self, gpu: &Gpu, peermem: &Path) -> Verbs {
        let gpu = VerbsGpu::new(&self.shared, gpu, peermem);
        Verbs { gpu: Some(gpu), ..self }
    }

    /// Checks that payloads of the GPU may take the way that there is.
    fn check_gpu(&self, operation: &'static str, address: &Address) -> Result<(), ConnectError> {
        self.gpu.iter().try_for_each(|gpu| gpu.path.check_allowed(Some(&gpu.gpu), operation, address))
    }

    /// The device's name. Where there are several, this and the following tell of the first.
    #[doc(hidden)]
    pub fn device(&self) -> &str {
        &self.shared.first().info.name
    }

    /// The names of all devices that are used, and the port of each.
    #[doc(hidden)]
    pub fn rails(&self) -> impl Iterator<Item = (&str, u8)> {
        self.shared.rails.iter().map(|rail| (rail.info.name.as_str(), rail.port.number))
    }

    /// Returns what the device is and has.
    #[doc(hidden)]
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.first().info
    }

    /// The port that is used.
    #[doc(hidden)]
    pub fn port(&self) -> &Port {
        &self.shared.first().port
    }

    /// Returns the reason why this device and port were chosen, for people.
    #[doc(hidden)]
    pub fn reason(&self) -> &str {
        &self.shared.first().reason
    }

    /// Largest packet in bytes; less towards a peer that carries less.
    #[doc(hidden)]
    pub fn mtu(&self) -> u16 {
        self.shared.first().mtu()
    }

    /// The settings of the way that packets take, as they were when the device was opened.
    #[doc(hidden)]
    pub fn path_settings(&self) -> &PathSettings {
        &self.shared.first().settings
    }

    /// The address that is spoken from towards `peer`, and why, as the port was when the device was opened.
    #[doc(hidden)]
    pub fn gid_towards(&self, peer: Option<IpAddr>) -> Option<GidChoice> {
        self.shared.first().choose_gid(peer)
    }

    /// Whether the device applies what peers write in order: as the options say, as is known of it, or as it says of
    /// a connection of this process with itself. The error says why there is no such connection.
    #[doc(hidden)]
    pub fn arrival_order(&self) -> Result<ArrivalOrder, String> {
        probe::arrival_order(&self.shared)
    }

    /// Longest data that a request carries in itself, in bytes, as the device grants it when it is asked for what the
    /// options say. The error says why it makes no queue pair.
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

    /// Returns the reason why atomics are not used although the device says that it has them: the fault that was
    /// found when they were tried.
    #[doc(hidden)]
    pub fn atomics_fault(&self) -> Option<&str> {
        self.shared.atomics_fault.as_deref()
    }
}

impl VerbsShared {
    /// The first rail. Its domain stands for those of all in the keys of memory, and atomics go through its device.
    fn first(&self) -> &Rail {
        &self.rails[0]
    }

    /// Returns those of these rights that peers have: no atomics where those of the first device do not work.
    fn served(&self, access: Access) -> Access {
        match self.atomics {
            AtomicDomain::None => access.difference(Access::REMOTE_ATOMIC),
            AtomicDomain::Device | AtomicDomain::Host => access,
        }
    }

    /// The first device as it says it is, its domain and the settings, without the secret and the count: for trying
    /// things.
    fn fresh(&self) -> VerbsShared {
        VerbsShared {
            rails: vec![self.first().clone()],
            atomics: self.first().info.limits.atomics,
            atomics_fault: None,
            secret: None,
            access_violations: AtomicU64::new(0),
            rails_lost: AtomicU64::new(0),
            unanswered: UnansweredWays::default(),
            hearing: Arc::clone(&self.hearing),
            #[cfg(feature = "cuda")]
            on_gpus: RegisteredMemory::new(self.first().domain.serial),
            ..*self
        }
    }

    /// Longest single request that each of the devices is given, in bytes.
    fn piece_bytes(&self) -> usize {
        self.rails.iter().map(Rail::piece_bytes).min().unwrap_or(1)
    }

    /// A queue pair to post so many requests on through one of the rails, with what it takes. Its queue has room for
    /// so many of the device.
    fn initiator(&self, rail: usize, depth: usize, room: usize) -> io::Result<Initiator> {
        let at = &self.rails[rail];
        let pair = QueuePair::to_post(&at.domain, room as u32, self.inline_bytes, self.first_packet)?;
        let memory = HostMemory::anonymous(Initiator::cells_bytes(room)).map_err(io::Error::other)?;
        let cells = self.register(memory, Access::LOCAL)?;
        let mut initiator = Initiator::new(pair, &self.first().domain, cells, depth, self.piece_bytes());
        initiator.rail = rail;
        // A port that is there several times is shared by as many rails.
        let is_same =
            |other: &&Rail| (&other.info.name, other.port.number) == (&at.info.name, at.port.number);
        initiator.speed = at.speed() / self.rails.iter().filter(is_same).count() as u32;
        initiator.gives_up_after = at.settings.gives_up_after();
        initiator.has_atomics = self.atomics != AtomicDomain::None && rail == 0;
        // Soft-RoCE never sends a READ with a fence again: at the second try the READ counts itself among those that
        // it is to wait for, and nothing ends that. It answers requests one after the other, whatever they ask for.
        initiator.fences_reads = !at.info.is_soft_roce;
        Ok(initiator)
    }

    /// Registers memory for requests of this process, and for READs of all peers if they may do nothing else.
    fn register(&self, memory: HostMemory, access: Access) -> io::Result<MemoryRegion> {
        self.register_on_rails(memory, access).map_err(|(_, error)| error)
    }

    /// The same for the user, who is told which device refused.
    fn register_or_tell(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        let bytes = memory.len();
        self.register_on_rails(memory, access).map_err(|(rail, source)| {
            let (device, remedy) = (rail.info.name.clone(), registration_remedy(&source));
            RegisterError::Device { bytes, device, source, remedy }
        })
    }

    fn register_on_rails(
        &self,
        memory: HostMemory,
        access: Access,
    ) -> Result<MemoryRegion, (&Rail, io::Error)> {
        if self.is_inherited() {
            return Err((self.first(), io::Error::other(INHERITED)));
        }
        // No peer reaches it by this: that takes what is registered in the domain of the readers or of one peer. What
        // the device writes here are answers to READs and atomics, at which no one looks before their completion.
        let own = Access::RELAXED;
        let (first, all) = (memory.as_volatile().as_ptr().expose_provenance() as u64, 0..memory.len());
        let mut keys = DeviceKeys { domain: self.first().domain.serial, ..DeviceKeys::NONE };
        let mut registered = Vec::with_capacity(2 * self.rails.len());
        for (rail, key) in self.rails.iter().zip(&mut keys.local) {
            let here = Registered::of_host(&rail.domain, &memory, all.clone(), first, own);
            let here = here.map_err(|error| (rail, error))?;
            *key = here.local_key();
            registered.push(here);
        }
        if access.is_read_only() {
            let readers = keys.readers.insert([0; MAX_RAILS]);
            for (rail, key) in self.rails.iter().zip(readers) {
                // Peers name bytes by their offset in the region: no address of this process ever travels.
                let here = Registered::of_host(&rail.read_domain, &memory, all.clone(), 0, access);
                let here = here.map_err(|error| (rail, error))?;
                *key = here.remote_key();
                registered.push(here);
            }
        }
        Ok(MemoryRegion::new(memory, access, keys, registered))
    }

    fn is_inherited(&self) -> bool {
        self.rails.iter().any(|rail| rail.device.is_inherited())
    }

    /// Hears what the devices and the peers' conversations have to tell, without waiting, now and then and for all
    /// connections at once. Returns the rails whose devices are gone, a bit for each.
    fn look(&self) -> u8 {
        if self.hearing.is_due() {
            self.rails.iter().for_each(|rail| rail.device.take_events());
            self.hearing.listen();
        }
        let gone = |(index, rail): (usize, &Rail)| u8::from(rail.device.is_gone()) << index;
        self.rails.iter().enumerate().map(gone).fold(0, |all, rail| all | rail)
    }

    /// Nothing is made of a device in a forked child: it is the parent's.
    fn check_own(&self, operation: &'static str, address: &Address) -> Result<(), ConnectError> {
        if !self.is_inherited() {
            return Ok(());
        }
        let (address, source) = (address.clone(), io::Error::other(INHERITED));
        Err(ConnectError::System {
            operation,
            address,
            source,
            remedy: "open the device in the child itself",
        })
    }

    fn terms(&self) -> channel::ChannelTerms {
        let terms = channel::ChannelTerms::new(Purpose::Verbs);
        channel::ChannelTerms { secret: self.secret.clone(), limit: wireup::LIMIT, ..terms }
    }
}

/// Requests that may be outstanding on an endpoint.
fn queue_depth(rails: &[Rail], wanted: Option<usize>) -> Result<usize, OpenError> {
    // A READ may go with each write.
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

/// Devices round such numbers up to a power of two, and would post more than the other side serves.
fn power_of_two_below(number: u8) -> u8 {
    number.checked_ilog2().map_or(0, |log| 1 << log)
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
            // Longer ones than the device takes are cut, each part taking an entry of the queue.
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

/// Returns a remedy where memory could not be registered.
fn registration_remedy(error: &io::Error) -> String {
    remedy_within(rustix::process::getrlimit(rustix::process::Resource::Memlock).current, error)
}

/// The same where so many bytes may be locked, if there is a limit.
fn remedy_within(limit: Option<u64>, error: &io::Error) -> String {
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM | libc::EAGAIN), None) => {
            "the device or the host has no room for more registrations: register less, or free regions (see the row \
             `room` of `slackline doctor`)"
                .into()
        }
        (Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM), Some(bytes)) => format!(
            "the limit on locked memory is {} KiB: raise it (ulimit -l unlimited, systemd: LimitMEMLOCK=infinity, \
             Slurm: PropagateResourceLimitsExcept=MEMLOCK)",
            bytes / 1024
        ),
        (Some(libc::EFAULT), _) => "the memory is not all mapped for writing".into(),
        (Some(libc::EOPNOTSUPP), _) => "the device cannot register memory of this kind".into(),
        _ => "see the kernel's log (dmesg), and `slackline doctor`".into(),
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
