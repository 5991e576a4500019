//! A scripted device for unit tests, which keeps no more order than the specification requires.
//!
//! Its queue pairs execute requests in this process's memory. A WRITE is split into packets, and each packet gets
//! into memory at a random time: perhaps before the packets of earlier WRITEs, or after its own acknowledgement.
//! Until one of the two happens, its data stays in the poster's memory and is read from there, unless it is inline.
//! Only READs and atomics are executed after all WRITEs that were posted before them, and only requests with a fence
//! begin after earlier READs and atomics are complete. Immediate data completes a receive of the peer once its own
//! WRITE and all WRITEs that were posted before it are in memory, no earlier.
//!
//! It registers dma-bufs, in which it gets memory of a scripted GPU, by a mapping of its own. Data that it has
//! written there may *linger* on its way: a READ of host memory, a completion and a word do not show that it has
//! arrived. A READ of memory of a GPU pushes the data that came through the READ's own port, and a flush of the GPU
//! pushes all data.
//!
//! A port can be cut: no more answers come through it. Packets that were under way still get into memory, at a random
//! time, as long as their target queue pair lives. A port can also fall silent: requests that were posted there never
//! complete, as it sometimes happens on soft-RoCE.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use memmap2::{MmapOptions, MmapRaw};

use self::calls::{LIBRARY, Peermem, poll_cq, post_send};
use self::lateness::Lateness;
use self::ports::PortFaults;
use self::receives::{Channels, post_recv, req_notify_cq};
use self::undoing::Undoing;
use super::device::{Device, Limits, Port, lock};
use super::open::OpenedDevice;
use super::rail::Rail;
use super::scripted;
use super::sys::{self, Library};
use super::{Verbs, VerbsOptions, VerbsShared};
use crate::mem::PAGE_SIZE;
use crate::transport::AtomicDomain;

/// Bytes of one packet: a quarter of a page of parameters.
const PACKET_BYTES: usize = 1024;

/// Requests that may be outstanding on an endpoint, and READs among them.
const DEPTH: u32 = 64;
const READS: u8 = 16;

/// A device that takes random steps.
pub(crate) struct Unordered {
    // The library's handle is a pointer to it. It is never freed: objects that a test leaks may still name it.
    world: &'static World,
}

/// The target of the library's handle.
#[repr(C)]
struct World {
    context: sys::ibv_context,
    state: Mutex<DeviceState>,
}

// SAFETY: the context's pointers are null, and its functions do not change; all other state is behind the lock.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

struct DeviceState {
    /// The state of a generator of random numbers, SplitMix64.
    random: u64,
    /// The answer to a query about a pair that is ready to send.
    says_in_order: bool,
    /// The number of queries of a pair's state.
    state_queries: usize,
    pairs: Vec<ScriptedPair>,
    regions: HashMap<u32, Region>,
    completions: HashMap<usize, VecDeque<sys::ibv_wc>>,
    channels: Channels,
    lingers: Lingers,
    /// The data that is on its way to memory of a GPU.
    lingering: Vec<Lingering>,
    /// Whether requests of a pair are executed one after the other.
    keeps_order: bool,
    lateness: Lateness,
    ports: PortFaults,
    /// Packets whose senders have given up.
    late: Vec<LatePacket>,
    /// Events that are not taken yet.
    events: VecDeque<sys::ibv_async_event>,
    /// The addresses of the protection domains.
    domains: HashSet<usize>,
    undoing: Undoing,
    /// The error number with which queue pairs are destroyed; 0 is success.
    destroying: c_int,
    /// Whether the device reports that it is gone once a queue pair is destroyed.
    dies_with_a_pair: bool,
    /// The error number with which memory is registered; 0 is success.
    registering: c_int,
    /// Memory of GPUs as the module nvidia-peermem gives it to the device, by its addresses.
    peermem: Option<Peermem>,
    neighbour: Neighbour,
    /// Queue pairs that wait for a neighbour.
    waiting: usize,
    /// The number of the next pair or key.
    next: u32,
}

/// The way in which a peer's host answers the query for its hardware address, without which no queue pair gets to
/// RTR.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neighbour {
    Answers,
    /// Not yet.
    IsSilent,
    /// Not in time.
    IsGone,
}

struct ScriptedPair {
    /// The addresses of the library's structures for this pair, for the completion queues of its requests and its
    /// receives, and for its protection domain.
    address: usize,
    queue: usize,
    receive_queue: usize,
    domain: usize,
    number: u32,
    port: u8,
    state: sys::ibv_qp_state,
    /// The number of the pair to which it is connected.
    peer: u32,
    access: u32,
    /// Receives that are posted and not used up.
    receives: usize,
    /// The oldest first. A request leaves once it was reported and is completely executed.
    requests: VecDeque<ScriptedRequest>,
}

struct ScriptedRequest {
    number: u64,
    is_signalled: bool,
    is_fenced: bool,
    /// The local address that a READ or an atomic writes, and whether it is in memory of a GPU; none for a WRITE.
    reads_into: Option<(usize, bool)>,
    atomic: Option<ScriptedAtomic>,
    /// Whether the peer's memory is a GPU's.
    is_of_gpu: bool,
    bytes: usize,
    remote: u64,
    key: u32,
    /// The packets of a WRITE that are not in memory yet, each with its distance from the first byte.
    packets: Vec<(usize, ScriptedPacket)>,
    /// Whether a receive of the peer must still complete.
    is_to_notify: bool,
    /// Whether a READ or an atomic was executed.
    is_read: bool,
    is_told: bool,
}

/// The change that an atomic makes to its word.
#[derive(Clone, Copy)]
enum ScriptedAtomic {
    Add(u64),
    /// The expected value, and the value that replaces it.
    CompareSwap(u64, u64),
}

impl ScriptedAtomic {
    /// Makes the change; returns the previous value of the word.
    fn carry_out(self, at: usize) -> u64 {
        let word = std::ptr::with_exposed_provenance_mut::<u64>(at);
        // SAFETY: `find` has found the eight bytes (`post_send` accepts no atomic of another length) in registered
        // memory, `take` has checked that they are aligned, and all access to them is atomic.
        let word = unsafe { AtomicU64::from_ptr(word) };
        match self {
            ScriptedAtomic::Add(add) => word.fetch_add(add, Ordering::AcqRel),
            ScriptedAtomic::CompareSwap(compare, swap) => word
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|other| other),
        }
    }
}

/// The bytes of a packet.
enum ScriptedPacket {
    /// So many bytes at an address of the poster, which are not read yet.
    AtPoster(usize, usize),
    Sent(Vec<u8>),
}

impl ScriptedPacket {
    /// Its bytes, which are read from the poster now unless they were read before.
    fn send(self) -> Vec<u8> {
        match self {
            ScriptedPacket::AtPoster(address, bytes) => fetch(address, bytes),
            ScriptedPacket::Sent(data) => data,
        }
    }
}

/// The data that lingers on its way to memory of a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "there is none"))]
pub(crate) enum Lingers {
    Nothing,
    /// The data of WRITEs through further ports, as with a GPU that keeps the order of one device's writes.
    FurtherPorts,
    /// All data, as with a GPU that keeps no order.
    All,
}

/// Bytes that a device has written and that are not in memory yet.
struct Lingering {
    port: u8,
    at: usize,
    data: Vec<u8>,
}

/// A packet that is still in the network.
struct LatePacket {
    /// The number of its target pair.
    to: u32,
    key: u32,
    remote: u64,
    data: Vec<u8>,
}

#[derive(Clone)]
struct Region {
    /// The address of its protection domain.
    domain: usize,
    address: usize,
    /// The address by which requests name its first byte.
    first: u64,
    bytes: usize,
    access: u32,
    /// The memory of a dma-buf.
    mapping: Option<Arc<MmapRaw>>,
}

/// A step that the specification allows to a queue pair.
#[derive(Clone, Copy)]
enum DeviceStep {
    /// The packet of the request at this index gets into memory.
    Store(usize, usize),
    /// The READ or atomic is executed.
    Read(usize),
    /// The request completes a receive of the peer.
    Notify(usize),
    /// The request is acknowledged.
    Tell(usize),
    /// No answer to the request comes.
    GiveUp(usize),
}

/// The variable that names the device of `cargo xtask softroce`.
#[cfg(feature = "cuda")]
const RIG_DEVICE: &str = "SLACKLINE_RIG_DEVICE";

/// The transport over a device that all processes of a test share: in a guest the rig's device, and otherwise a
/// scripted device, which takes its steps by itself. Scripted devices of different worlds do not reach each other.
#[cfg(feature = "cuda")]
pub(crate) fn common() -> Verbs {
    if let Ok(device) = std::env::var(RIG_DEVICE) {
        let options = VerbsOptions { devices: vec![device], ..VerbsOptions::default() };
        return Verbs::open(options).expect("the rig has the device");
    }
    static COMMON: LazyLock<Unordered> = LazyLock::new(|| Unordered::new(0, false).that_steps());
    COMMON.verbs(None)
}

/// The device that all transports of a test share if the device accesses their GPUs directly. Data that it writes
/// there lingers.
#[cfg(feature = "cuda")]
pub(crate) fn lingering() -> &'static Unordered {
    static COMMON: LazyLock<Unordered> = LazyLock::new(|| {
        let device = Unordered::new(0, false);
        device.linger(Lingers::All);
        device.that_steps()
    });
    &COMMON
}

impl Unordered {
    /// Devices of the same seed take the same steps in a single thread.
    pub(crate) fn new(seed: u64, says_in_order: bool) -> Unordered {
        let state = DeviceState {
            random: seed,
            says_in_order,
            state_queries: 0,
            pairs: Vec::new(),
            regions: HashMap::new(),
            completions: HashMap::new(),
            channels: Channels::default(),
            lingers: Lingers::Nothing,
            lingering: Vec::new(),
            keeps_order: false,
            lateness: Lateness::default(),
            ports: PortFaults::default(),
            late: Vec::new(),
            events: VecDeque::new(),
            domains: HashSet::new(),
            undoing: Undoing::default(),
            destroying: 0,
            dies_with_a_pair: false,
            registering: 0,
            peermem: None,
            neighbour: Neighbour::Answers,
            waiting: 0,
            next: 1,
        };
        // SAFETY: null pointers, null functions, numbers, and a mutex that is never locked.
        let mut context: sys::ibv_context = unsafe { std::mem::zeroed() };
        context.ops.poll_cq = Some(poll_cq);
        context.ops.post_send = Some(post_send);
        context.ops.post_recv = Some(post_recv);
        context.ops.req_notify_cq = Some(req_notify_cq);
        Unordered { world: Box::leak(Box::new(World { context, state: Mutex::new(state) })) }
    }

    /// The transport over the device. `in_order` overrules the device's own answer.
    pub(crate) fn verbs(&self, in_order: Option<bool>) -> Verbs {
        self.verbs_over(1, DEPTH as usize, in_order)
    }

    /// The same over so many rails, and with queues for so many requests.
    pub(crate) fn verbs_over(&self, rails: usize, queue_depth: usize, in_order: Option<bool>) -> Verbs {
        self.verbs_at(&vec![1; rails], queue_depth, in_order)
    }

    /// The same over a rail for each of these speeds.
    fn verbs_at(&self, speeds: &[u32], queue_depth: usize, in_order: Option<bool>) -> Verbs {
        self.verbs_on(false, 1, speeds, queue_depth, in_order)
    }

    /// The transport over the device as an InfiniBand device, which has no path to Ethernet devices.
    #[cfg(feature = "tcp")]
    pub(crate) fn verbs_on_infiniband(&self) -> Verbs {
        self.verbs_on(true, 1, &[1], DEPTH as usize, None)
    }

    fn verbs_on(
        &self,
        is_infiniband: bool,
        first_port: u8,
        speeds: &[u32],
        queue_depth: usize,
        in_order: Option<bool>,
    ) -> Verbs {
        let context = (&raw const *self.world).cast_mut().cast();
        let device = Device::of_library(&LIBRARY, NonNull::new(context).expect("a reference is not null"));
        let mut info = scripted::info("unordered0", true, vec![scripted::gid()]);
        (info.is_soft_roce, info.breaks_silently) = (false, false);
        info.ports[0].is_infiniband = is_infiniband;
        info.limits = Limits {
            queue_depth: 2 * DEPTH,
            completions: 2 * DEPTH,
            reads_served: READS,
            reads_posted: READS,
            ..info.limits
        };
        let options = VerbsOptions { in_order, ..VerbsOptions::default() };
        let at_port = |(number, speed): (u8, &u32)| {
            let (device, info, reason) = (Arc::clone(&device), info.clone(), String::new());
            let port = Port { number, speed: *speed, ..info.ports[0].clone() };
            Rail::new(OpenedDevice { device, info, port, reason }, &options).unwrap()
        };
        let rails: Vec<Rail> = (first_port..).zip(speeds).map(at_port).collect();
        #[cfg(feature = "cuda")]
        let serial = rails[0].domain.serial;
        Verbs::new(VerbsShared {
            rails,
            queue_depth,
            inline_bytes: 64,
            first_packet: None,
            atomics: AtomicDomain::Device,
            atomics_fault: None,
            secret: None,
            access_violations: AtomicU64::new(0),
            rails_lost: AtomicU64::new(0),
            unanswered: super::unanswered::UnansweredWays::default(),
            hearing: super::Hearing::new().unwrap(),
            #[cfg(feature = "cuda")]
            on_gpus: crate::cuda::RegisteredMemory::new(serial),
        })
    }

    /// The same device, which takes its steps by itself.
    #[cfg(feature = "cuda")]
    pub(crate) fn that_steps(self) -> Unordered {
        let world = Unordered { world: self.world };
        std::thread::spawn(move || {
            loop {
                if !world.step() {
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            }
        });
        self
    }

    /// From now on this data lingers.
    #[cfg(feature = "cuda")]
    pub(crate) fn linger(&self, lingers: Lingers) {
        lock(&self.world.state).lingers = lingers;
    }

    /// From now on the device executes requests of a pair one after the other.
    #[cfg(feature = "cuda")]
    fn keep_order(&self) {
        lock(&self.world.state).keeps_order = true;
    }

    /// The function that a flush of a GPU calls.
    #[cfg(feature = "cuda")]
    pub(crate) fn flush(&self) -> Arc<dyn Fn() + Send + Sync> {
        let world = self.world;
        Arc::new(move || lock(&world.state).push(None))
    }

    /// Makes the device raise this event for the queue pair of this index, the oldest first.
    fn tell_of_pair(&self, event_type: sys::ibv_event_type, pair: usize) {
        let mut state = lock(&self.world.state);
        let mut event = sys::ibv_async_event { event_type, ..Default::default() };
        event.element.qp = std::ptr::with_exposed_provenance_mut(state.pairs[pair].address);
        state.events.push_back(event);
    }

    /// From now on, queue pairs on their way to RTR find this neighbour, and so do pairs that already wait for it.
    pub(crate) fn set_neighbour(&self, neighbour: Neighbour) {
        lock(&self.world.state).neighbour = neighbour;
    }

    /// Queue pairs that wait for a neighbour.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.world.state).waiting
    }

    /// The number of existing registrations.
    pub(crate) fn regions(&self) -> usize {
        lock(&self.world.state).regions.len()
    }

    /// Takes all memory from peers while the queue pairs live, as the system does with the memory of a process that
    /// ends.
    pub(crate) fn deregister(&self) {
        lock(&self.world.state).regions.values_mut().for_each(|region| region.access = 0);
    }

    /// The number of existing registrations of dma-bufs.
    fn of_dma_bufs(&self) -> usize {
        lock(&self.world.state).regions.values().filter(|region| region.mapping.is_some()).count()
    }

    /// Takes a step of any queue pair; false if no step is possible.
    pub(crate) fn step(&self) -> bool {
        lock(&self.world.state).step()
    }
}

impl DeviceState {
    fn random(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % below.max(1) as u64) as usize
    }

    fn step(&mut self) -> bool {
        let mut steps = Vec::new();
        for (index, pair) in self.pairs.iter().enumerate() {
            if self.ports.silent.contains(&pair.port) {
                continue;
            }
            let allowed = pair.steps(self.is_answered(pair), self.keeps_order).into_iter();
            let taken = allowed.filter(|step| !pair.holds(*step, self.lateness));
            steps.extend(taken.map(|step| (index, step)));
        }
        // Late packets arrive one at a time, from time to time, even if there are many.
        let has_more = !self.late.is_empty() || !self.lingering.is_empty();
        let all = steps.len() + usize::from(has_more);
        if all == 0 {
            return false;
        }
        match steps.get(self.random(all)) {
            Some((pair, step)) if self.puts_off(*pair, *step) => {}
            Some((pair, step)) => self.take(*pair, *step),
            None => {
                let late = self.random(self.late.len() + self.lingering.len());
                match late.checked_sub(self.late.len()) {
                    None => self.arrive(late),
                    Some(lingering) => {
                        let Lingering { at, data, .. } = self.lingering.swap_remove(lingering);
                        store(at, &data);
                    }
                }
            }
        }
        true
    }

    /// Puts the lingering data, of this port or of all, into memory.
    fn push(&mut self, port: Option<u8>) {
        for Lingering { at, data, .. } in
            self.lingering.extract_if(.., |one| port.is_none_or(|port| one.port == port))
        {
            store(at, &data);
        }
    }

    /// Ends a registration. Lingering data gets into its memory before: no device writes there afterwards.
    fn end_region(&mut self, key: u32) {
        let Some(region) = self.regions.remove(&key) else { return };
        let within = region.address..region.address + region.bytes;
        for Lingering { at, data, .. } in self.lingering.extract_if(.., |one| within.contains(&one.at)) {
            store(at, &data);
        }
    }

    /// The address of local memory that a request names by a key, and whether it is a GPU's.
    fn local(&self, piece: &sys::ibv_sge) -> Option<(usize, bool)> {
        let region = self.regions.get(&piece.lkey)?;
        let offset = usize::try_from(piece.addr.checked_sub(region.first)?).ok()?;
        let is_inside = offset.checked_add(piece.length as usize)? <= region.bytes;
        is_inside.then(|| (region.address + offset, region.mapping.is_some()))
    }

    /// Whether a pair gets answers to its requests.
    fn is_answered(&self, pair: &ScriptedPair) -> bool {
        let serves = |other: &ScriptedPair| other.number == pair.peer && other.is_receiving();
        !self.ports.cut.contains(&pair.port) && self.pairs.iter().any(serves)
    }

    /// Delivers a late packet to its queue pair, if the pair lives.
    fn arrive(&mut self, late: usize) {
        let LatePacket { to, key, remote, data } = self.late.swap_remove(late);
        let server = self.pairs.iter().find(|pair| pair.number == to && pair.is_receiving());
        let region = self.regions.get(&key).filter(|_| server.is_some());
        let offset = region.and_then(|region| usize::try_from(remote.checked_sub(region.first)?).ok());
        if let (Some(region), Some(offset)) = (region, offset) {
            store(region.address + offset, &data);
        }
    }

    /// Makes the packets late that a queue pair has sent and that are not in memory yet.
    fn leave_late(&mut self, pair: usize) {
        let ScriptedPair { requests, peer, .. } = &mut self.pairs[pair];
        let mut is_reading = false;
        for request in requests {
            if request.is_fenced && is_reading {
                // Neither this request nor the requests behind it were sent.
                break;
            }
            is_reading |= request.reads_into.is_some() && !request.is_read;
            let ScriptedRequest { remote, key, packets, .. } = request;
            let (to, key, remote) = (*peer, *key, *remote);
            let late = std::mem::take(packets).into_iter().map(|(offset, packet)| {
                let (remote, data) = (remote + offset as u64, packet.send());
                LatePacket { to, key, remote, data }
            });
            self.late.extend(late);
        }
    }

    fn take(&mut self, pair: usize, step: DeviceStep) {
        let request = match step {
            DeviceStep::Store(request, _) | DeviceStep::Read(request) | DeviceStep::Tell(request) => request,
            DeviceStep::Notify(request) => {
                if !self.use_receive(self.pairs[pair].peer) {
                    return self.fail(pair, request, sys::IBV_WC_RNR_RETRY_EXC_ERR);
                }
                self.pairs[pair].requests[request].is_to_notify = false;
                return self.pairs[pair].let_go();
            }
            DeviceStep::GiveUp(request) => {
                self.leave_late(pair);
                let failure = self.ports.failure_of(self.pairs[pair].port);
                return self.fail(pair, request, failure);
            }
        };
        let ScriptedRequest { remote, key, bytes, reads_into, atomic, .. } =
            self.pairs[pair].requests[request];
        let right = match (reads_into, atomic) {
            (_, Some(_)) => sys::IBV_ACCESS_REMOTE_ATOMIC,
            (Some(_), None) => sys::IBV_ACCESS_REMOTE_READ,
            (None, None) => sys::IBV_ACCESS_REMOTE_WRITE,
        };
        let Some(at) = self.find(pair, key, remote, bytes, right) else {
            return self.fail(pair, request, sys::IBV_WC_REM_ACCESS_ERR);
        };
        if atomic.is_some() && !at.is_multiple_of(8) {
            return self.fail(pair, request, sys::IBV_WC_REM_INV_REQ_ERR);
        }
        let ScriptedPair { port, requests, .. } = &self.pairs[pair];
        if matches!(step, DeviceStep::Read(_)) && requests[request].is_of_gpu {
            self.push(Some(*port));
        }
        let pair = &mut self.pairs[pair];
        let asked = &mut pair.requests[request];
        match step {
            DeviceStep::Store(_, packet) => {
                let (offset, packet) = asked.packets.swap_remove(packet);
                let (at, data, port) = (at + offset, packet.send(), pair.port);
                let lingers = match self.lingers {
                    Lingers::Nothing => false,
                    Lingers::FurtherPorts => port > 1,
                    Lingers::All => true,
                };
                match asked.is_of_gpu && lingers {
                    true => self.lingering.push(Lingering { port, at, data }),
                    false => store(at, &data),
                }
            }
            DeviceStep::Read(_) => {
                asked.is_read = true;
                let data = match atomic {
                    Some(atomic) => atomic.carry_out(at).to_ne_bytes().to_vec(),
                    None => fetch(at, bytes),
                };
                match reads_into {
                    Some((at_poster, true)) if self.lingers == Lingers::All => {
                        self.lingering.push(Lingering { port: pair.port, at: at_poster, data });
                    }
                    Some((at_poster, _)) => store(at_poster, &data),
                    None => {}
                }
            }
            DeviceStep::Tell(_) => {
                asked.is_told = true;
                // From here on the memory belongs to the poster again.
                let sent = std::mem::take(&mut asked.packets).into_iter();
                asked.packets = sent.map(|(at, packet)| (at, ScriptedPacket::Sent(packet.send()))).collect();
                if asked.is_signalled {
                    let wr_id = asked.number;
                    let told = sys::ibv_wc { wr_id, status: sys::IBV_WC_SUCCESS, ..Default::default() };
                    self.completions.entry(pair.queue).or_default().push_back(told);
                }
            }
            DeviceStep::Notify(_) | DeviceStep::GiveUp(_) => {}
        }
        pair.let_go();
    }

    /// The address of memory that this key opens for a request: in a region of the domain of the serving pair, if
    /// both region and pair have the right. For a request of no bytes, the right of the pair is enough.
    fn find(&self, pair: usize, key: u32, remote: u64, bytes: usize, right: u32) -> Option<usize> {
        let peer = self.pairs[pair].peer;
        let serves = |pair: &&ScriptedPair| pair.is_receiving() && pair.access & right != 0;
        let server = self.pairs.iter().find(|pair| pair.number == peer && serves(pair))?;
        if bytes == 0 {
            return Some(0);
        }
        let is_open = |region: &&Region| region.access & right != 0 && region.domain == server.domain;
        let region = self.regions.get(&key).filter(is_open)?;
        let offset = usize::try_from(remote.checked_sub(region.first)?).ok()?;
        (offset.checked_add(bytes)? <= region.bytes).then(|| region.address + offset)
    }

    /// Ends a queue pair: the request at this index fails with this status, and all other unreported requests are
    /// flushed.
    fn fail(&mut self, pair: usize, failed: usize, failure: sys::ibv_wc_status) {
        self.flush_receives(pair);
        let pair = &mut self.pairs[pair];
        pair.state = sys::IBV_QPS_ERR;
        for (index, request) in std::mem::take(&mut pair.requests).into_iter().enumerate() {
            // A refusal comes behind the answers to all earlier requests.
            let is_answered = index < failed && failure == sys::IBV_WC_REM_ACCESS_ERR;
            let status = match index == failed {
                true => failure,
                false if is_answered && (request.reads_into.is_none() || request.is_read) => {
                    sys::IBV_WC_SUCCESS
                }
                false => sys::IBV_WC_WR_FLUSH_ERR,
            };
            let is_silent = status == sys::IBV_WC_SUCCESS && !request.is_signalled;
            if !request.is_told && !is_silent {
                let told = sys::ibv_wc { wr_id: request.number, status, ..Default::default() };
                self.completions.entry(pair.queue).or_default().push_back(told);
            }
        }
    }

    fn pair(&mut self, qp: *mut sys::ibv_qp) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.address == qp.addr())
    }
}

impl ScriptedPair {
    /// Whether it accepts packets.
    fn is_receiving(&self) -> bool {
        [sys::IBV_QPS_RTR, sys::IBV_QPS_RTS].contains(&self.state)
    }

    /// All steps that the specification allows next.
    fn steps(&self, is_answered: bool, keeps_order: bool) -> Vec<DeviceStep> {
        let (mut steps, mut is_reading, mut is_storing) = (Vec::new(), false, false);
        let (mut is_telling, mut is_notifying) = (false, false);
        for (index, request) in self.requests.iter().enumerate() {
            if request.is_fenced && is_reading || keeps_order && is_storing {
                // No request behind it begins before it.
                break;
            }
            steps.extend((0..request.packets.len()).map(|packet| DeviceStep::Store(index, packet)));
            let is_done = request.reads_into.is_none() || request.is_read;
            let is_oldest = !is_telling && !request.is_told;
            if is_oldest && !is_answered {
                steps.push(DeviceStep::GiveUp(index));
            }
            if is_answered && !is_done && !is_storing {
                steps.push(DeviceStep::Read(index));
            }
            if is_answered && is_done && is_oldest {
                steps.push(DeviceStep::Tell(index));
            }
            is_reading |= !is_done;
            is_storing |= !request.packets.is_empty();
            if is_answered && request.is_to_notify && !is_storing && !is_notifying {
                steps.push(DeviceStep::Notify(index));
            }
            is_notifying |= request.is_to_notify;
            is_telling |= !request.is_told;
        }
        steps
    }

    /// Drops the oldest requests that are reported and completely executed.
    fn let_go(&mut self) {
        let is_over =
            |oldest: &ScriptedRequest| oldest.is_told && oldest.packets.is_empty() && !oldest.is_to_notify;
        while self.requests.front().is_some_and(is_over) {
            self.requests.pop_front();
        }
    }
}

/// Puts data into memory, whole words as whole words.
fn store(at: usize, data: &[u8]) {
    let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
    let words = if at.addr().is_multiple_of(8) { data.len() / 8 } else { 0 };
    for (index, word) in data.chunks_exact(8).take(words).enumerate() {
        let value = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        // SAFETY: `find` has found the range in registered memory, or it is the local memory of a request, which its
        // poster keeps; it is aligned, and all access to it is atomic.
        unsafe { AtomicU64::from_ptr(at.add(index * 8).cast()) }.store(value, Ordering::Release);
    }
    for (index, byte) in data.iter().enumerate().skip(words * 8) {
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(at.add(index)) }.store(*byte, Ordering::Release);
    }
}

fn fetch(at: usize, bytes: usize) -> Vec<u8> {
    let at = std::ptr::with_exposed_provenance_mut::<u8>(at);
    let words = if at.addr().is_multiple_of(8) { bytes / 8 } else { 0 };
    // SAFETY: as in `store`; of a request's local memory, it is registered and its poster keeps it.
    let word =
        |index: usize| unsafe { AtomicU64::from_ptr(at.add(index * 8).cast()) }.load(Ordering::Acquire);
    let mut data: Vec<u8> = (0..words).flat_map(|index| word(index).to_le_bytes()).collect();
    // SAFETY: as above.
    data.extend(
        (words * 8..bytes).map(|index| unsafe { AtomicU8::from_ptr(at.add(index)) }.load(Ordering::Acquire)),
    );
    data
}

mod calls;
#[cfg(test)]
mod conformance;
#[cfg(all(test, feature = "cuda"))]
mod gpu;
#[cfg(all(test, feature = "cuda"))]
mod gpudirect;
mod lateness;
#[cfg(test)]
mod lost_rails;
mod ports;
#[cfg(test)]
mod rails_left_out;
mod receives;
#[cfg(test)]
mod tests;
mod undoing;
