//! Shared memory, RDMA and TCP side by side: a listener that is reached over all of them, and peers each over the one
//! that fits.
//!
//! The address says which: [`Address::Tcp`] is TCP, [`Address::Verbs`] is RDMA, names and paths are shared memory, and
//! [`Address::Several`] is for listening at more than one.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;

use smallvec::SmallVec;

#[cfg(not(feature = "tcp"))]
use super::absent::{
    Absent as Tcp, AbsentConnecting as TcpConnecting, AbsentEndpoint as TcpEndpoint,
    AbsentIncoming as TcpIncoming, AbsentListener as TcpListener,
};
#[cfg(not(feature = "verbs"))]
use super::absent::{
    Absent as Verbs, AbsentConnecting as VerbsConnecting, AbsentEndpoint as VerbsEndpoint,
    AbsentIncoming as VerbsIncoming, AbsentListener as VerbsListener,
};
use super::shm::{self, Shm, ShmConnecting, ShmEndpoint, ShmIncoming, ShmListener};
#[cfg(feature = "tcp")]
use super::tcp::{Tcp, TcpConnecting, TcpEndpoint, TcpIncoming, TcpListener};
#[cfg(feature = "verbs")]
use super::verbs::{Verbs, VerbsConnecting, VerbsEndpoint, VerbsIncoming, VerbsListener};
use super::{
    Address, ArrivalWatch, AtomicDomain, Capabilities, ConnectError, Connecting, Disconnected, Doorbell,
    Endpoint, GpuGrant, GpuPath, HeartbeatWord, Incoming, Listener, Offer, PostError, Received, Refusal,
    RegisterError, Remains, Transport, TransportKind, WorkCompletion, WorkRequest,
};
#[cfg(feature = "cuda")]
use crate::cuda::Tickets;
use crate::cuda::{Gpu, GpuMemory, GpuSlice};
use crate::mem::{Access, HostMemory, LocalSlice, MemoryRegion, RemoteSlice};
use crate::time::{Duration, Instant};

/// Shared memory on one host, RDMA or TCP between hosts. Memory is of the kind that all can serve.
#[derive(Clone, Debug)]
pub struct Mixed {
    shm: Shm,
    tcp: Option<Tcp>,
    verbs: Option<Verbs>,
}

impl Default for Mixed {
    /// Shared memory, and TCP if the library was built with it.
    fn default() -> Mixed {
        #[cfg(feature = "tcp")]
        let tcp = Some(Tcp::new());
        #[cfg(not(feature = "tcp"))]
        let tcp = None;
        Mixed { shm: Shm::new(), tcp, verbs: None }
    }
}

impl Mixed {
    /// Puts both side by side, without RDMA.
    pub fn new(shm: Shm, tcp: Tcp) -> Mixed {
        Mixed { shm, tcp: Some(tcp), verbs: None }
    }

    /// The same with a GPU for all of them. An owner has its payloads there unless there is RDMA beside the others
    /// whose devices do not reach the GPU: then they are in host memory, which all of them serve.
    #[cfg(feature = "cuda")]
    pub fn with_gpu(self, gpu: &Gpu) -> Mixed {
        let shm = self.shm.with_gpu(gpu);
        #[cfg(feature = "tcp")]
        let tcp = self.tcp.map(|tcp| tcp.with_gpu(gpu));
        #[cfg(not(feature = "tcp"))]
        let tcp = self.tcp;
        #[cfg(feature = "verbs")]
        let verbs = self.verbs.map(|verbs| verbs.with_gpu(gpu));
        #[cfg(not(feature = "verbs"))]
        let verbs = self.verbs;
        Mixed { shm, tcp, verbs }
    }

    /// The same with RDMA beside them. Where there is a GPU, it is given to all of them after that, or the same one to
    /// RDMA before.
    pub fn with_verbs(self, verbs: Verbs) -> Mixed {
        Mixed { verbs: Some(verbs), ..self }
    }

    fn tcp(&self, operation: &'static str, address: &Address) -> Result<&Tcp, ConnectError> {
        find(&self.tcp, TransportKind::Tcp, operation, address)
    }

    fn verbs(&self, operation: &'static str, address: &Address) -> Result<&Verbs, ConnectError> {
        find(&self.verbs, TransportKind::Verbs, operation, address)
    }
}

impl Transport for Mixed {
    type Endpoint = MixedEndpoint;
    type Listener = MixedListener;
    type Connecting = MixedConnecting;

    fn capabilities(&self) -> Capabilities {
        let shm = self.shm.capabilities();
        let tcp = self.tcp.as_ref().map(Transport::capabilities);
        let verbs = self.verbs.as_ref().map(Transport::capabilities);
        let others = || tcp.into_iter().chain(verbs);
        Capabilities {
            name: "mixed",
            queue_depth: others().map(|it| it.queue_depth).fold(shm.queue_depth, usize::min),
            max_request_bytes: others()
                .map(|it| it.max_request_bytes)
                .fold(shm.max_request_bytes, usize::min),
            // Shared memory and TCP carry atomics out on the target's CPUs; a device's atomics are not atomic with
            // them.
            atomics: if verbs.is_some() { AtomicDomain::None } else { AtomicDomain::Host },
            in_place: false,
        }
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        match &self.verbs {
            // Memory that is registered with a device serves the other transports as well.
            Some(verbs) => {
                shm::check_shareable(&memory, access)?;
                verbs.register(memory, access)
            }
            None => self.shm.register(memory, access),
        }
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register(shm::memory_for(bytes, access)?, access)
    }

    fn gpu(&self) -> Option<&Gpu> {
        // A peer that connects by RDMA reads memory that the devices reach.
        let reaches = |gpu: &Gpu, verbs: &Verbs| verbs.gpu().is_some_and(|of| of.ordinal() == gpu.ordinal());
        self.shm.gpu().filter(|gpu| self.verbs.as_ref().is_none_or(|verbs| reaches(gpu, verbs)))
    }

    fn register_on_gpu(&self, memory: &GpuMemory) -> Result<(), RegisterError> {
        self.shm.register_on_gpu(memory)?;
        self.verbs.as_ref().map_or(Ok(()), |verbs| verbs.register_on_gpu(memory))
    }

    fn listen(&self, address: &Address) -> Result<MixedListener, ConnectError> {
        let addresses = match address {
            Address::Several(addresses) => addresses.as_slice(),
            one => std::slice::from_ref(one),
        };
        let (shm, tcp, verbs) = (Vec::new(), Vec::new(), Vec::new());
        let mut listener = MixedListener { shm, tcp, verbs, doorbell: None, over_tcp: self.tcp.clone() };
        for address in addresses {
            match address {
                Address::Tcp(_) => listener.tcp.push(self.tcp("listen", address)?.listen(address)?),
                Address::Verbs(_) => {
                    listener.verbs.push(self.verbs("listen", address)?.listen(address)?);
                }
                _ => listener.shm.push(self.shm.listen(address)?),
            }
        }
        Ok(listener)
    }

    fn access_violations(&self) -> u64 {
        self.tcp.as_ref().map_or(0, Transport::access_violations)
            + self.verbs.as_ref().map_or(0, Transport::access_violations)
    }

    fn rails_lost(&self) -> u64 {
        self.verbs.as_ref().map_or(0, Transport::rails_lost)
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<MixedConnecting, ConnectError> {
        match address {
            Address::Tcp(_) => {
                self.tcp("connect", address)?.connect(address, offer).map(MixedConnecting::Tcp)
            }
            Address::Verbs(_) => {
                let verbs = self.verbs("connect", address)?;
                verbs.connect(address, offer).map(|made| MixedConnecting::Verbs(Box::new(made)))
            }
            _ => self.shm.connect(address, offer).map(MixedConnecting::Shm),
        }
    }

    fn connect_to_be_woken(
        &self,
        address: &Address,
        offer: Offer,
        doorbell: &Arc<Doorbell>,
    ) -> Result<MixedConnecting, ConnectError> {
        match address {
            Address::Tcp(_) => {
                let tcp = self.tcp("connect", address)?;
                tcp.connect_to_be_woken(address, offer, doorbell).map(MixedConnecting::Tcp)
            }
            Address::Verbs(_) => {
                let made = self.verbs("connect", address)?.connect_to_be_woken(address, offer, doorbell);
                made.map(|made| MixedConnecting::Verbs(Box::new(made)))
            }
            _ => self.shm.connect_to_be_woken(address, offer, doorbell).map(MixedConnecting::Shm),
        }
    }
}

/// The transport of an address, if it is there.
fn find<'a, T>(
    transport: &'a Option<T>,
    kind: TransportKind,
    operation: &'static str,
    address: &Address,
) -> Result<&'a T, ConnectError> {
    transport.as_ref().ok_or_else(|| match kind.check_built() {
        Err(source) => ConnectError::NotBuilt { operation, address: address.clone(), source },
        Ok(()) => ConnectError::WrongAddress {
            operation,
            address: address.clone(),
            transport: "mixed",
            takes: "no such address, as no RDMA device was opened",
        },
    })
}

/// The listeners at which peers arrive, over all transports.
pub struct MixedListener {
    shm: Vec<ShmListener>,
    tcp: Vec<TcpListener>,
    verbs: Vec<VerbsListener>,
    /// All connections over TCP, also the outgoing ones, have one thread.
    over_tcp: Option<Tcp>,
    /// The doorbell by which peers wake the owner, if it is to be woken; peers over RDMA have their own.
    doorbell: Option<Arc<Doorbell>>,
}

impl Listener for MixedListener {
    type Endpoint = MixedEndpoint;
    type Incoming = MixedIncoming;

    fn address(&self) -> Address {
        let shm = self.shm.iter().map(Listener::address);
        let mut addresses: Vec<_> = shm
            .chain(self.verbs.iter().map(Listener::address))
            .chain(self.tcp.iter().map(Listener::address))
            .collect();
        if addresses.len() == 1 { addresses.remove(0) } else { Address::Several(addresses) }
    }

    fn poll(&mut self, now: Instant) -> Option<MixedIncoming> {
        let shm = self.shm.iter_mut().find_map(|listener| listener.poll(now));
        let shm = shm.map(|incoming| MixedIncoming::Shm(Box::new(incoming)));
        shm.or_else(|| {
            let incoming = self.verbs.iter_mut().find_map(|listener| listener.poll(now));
            incoming.map(|incoming| MixedIncoming::Verbs(Box::new(incoming)))
        })
        .or_else(|| {
            let incoming = self.tcp.iter_mut().find_map(|listener| listener.poll(now));
            incoming.map(|incoming| MixedIncoming::Tcp(Box::new(incoming)))
        })
    }

    /// Works where this process listens at no more than one RDMA address.
    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        if self.verbs.len() > 1 {
            return Ok(false);
        }
        let doorbell = match &self.doorbell {
            Some(doorbell) => doorbell.clone(),
            None => Doorbell::new(&self.address())?,
        };
        self.shm.iter_mut().for_each(|listener| listener.set_doorbell(Some(doorbell.clone())));
        self.tcp.iter_mut().for_each(|listener| listener.set_doorbell(Some(doorbell.clone())));
        for listener in &mut self.verbs {
            listener.be_notified()?;
        }
        self.doorbell = Some(doorbell);
        Ok(true)
    }

    fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        self.shm.iter_mut().for_each(|listener| listener.set_doorbell(None));
        self.tcp.iter_mut().for_each(|listener| listener.set_doorbell(None));
        self.verbs.iter_mut().for_each(VerbsListener::end_notices);
        let sockets = self.shm.iter().map(ShmListener::socket);
        let sockets = sockets.chain(self.verbs.iter().map(VerbsListener::socket));
        ArrivalWatch::new(self.doorbell.take()?, sockets)
    }

    fn has_caught_up(&mut self) -> bool {
        self.over_tcp.as_ref().is_none_or(Tcp::has_caught_up)
    }

    fn wait(&mut self, timeout: Duration) {
        let Some(doorbell) = &self.doorbell else { return };
        let (mut sources, mut shortest) = (SmallVec::<[BorrowedFd<'_>; 4]>::new(), timeout);
        for listener in &self.shm {
            let (socket, timeout) = listener.arrivals(timeout);
            sources.extend(socket);
            shortest = shortest.min(timeout);
        }
        let _is_rung = match self.verbs.first() {
            None => doorbell.wait(&sources, shortest),
            Some(verbs) => {
                sources.push(doorbell.as_fd());
                doorbell.around(|| verbs.wait_with(&sources, shortest))
            }
        };
    }
}

/// A peer that has said its part, over one of them.
pub enum MixedIncoming {
    /// Over shared memory.
    Shm(Box<ShmIncoming>),
    /// Over TCP.
    Tcp(Box<TcpIncoming>),
    /// By RDMA.
    Verbs(Box<VerbsIncoming>),
}

impl Incoming for MixedIncoming {
    type Endpoint = MixedEndpoint;

    fn received(&self) -> &Received {
        match self {
            MixedIncoming::Shm(incoming) => incoming.received(),
            MixedIncoming::Tcp(incoming) => incoming.received(),
            MixedIncoming::Verbs(incoming) => incoming.received(),
        }
    }

    fn reads_only(&self) -> bool {
        match self {
            MixedIncoming::Shm(incoming) => incoming.reads_only(),
            MixedIncoming::Tcp(incoming) => incoming.reads_only(),
            MixedIncoming::Verbs(incoming) => incoming.reads_only(),
        }
    }

    fn prepare(&mut self, grants: &[LocalSlice]) {
        match self {
            MixedIncoming::Shm(incoming) => incoming.prepare(grants),
            MixedIncoming::Tcp(incoming) => incoming.prepare(grants),
            MixedIncoming::Verbs(incoming) => incoming.prepare(grants),
        }
    }

    fn grant_gpu(&mut self, grants: Vec<GpuGrant>) -> Result<(), &'static str> {
        match self {
            MixedIncoming::Shm(incoming) => incoming.grant_gpu(grants),
            MixedIncoming::Tcp(incoming) => incoming.grant_gpu(grants),
            MixedIncoming::Verbs(incoming) => incoming.grant_gpu(grants),
        }
    }

    fn accept(self, offer: Offer) -> Result<MixedEndpoint, ConnectError> {
        match self {
            MixedIncoming::Shm(incoming) => incoming.accept(offer).map(MixedEndpoint::Shm),
            MixedIncoming::Tcp(incoming) => incoming.accept(offer).map(MixedEndpoint::Tcp),
            MixedIncoming::Verbs(incoming) => {
                incoming.accept(offer).map(|endpoint| MixedEndpoint::Verbs(Box::new(endpoint)))
            }
        }
    }

    fn refuse(self, refusal: Refusal) {
        match self {
            MixedIncoming::Shm(incoming) => incoming.refuse(refusal),
            MixedIncoming::Tcp(incoming) => incoming.refuse(refusal),
            MixedIncoming::Verbs(incoming) => incoming.refuse(refusal),
        }
    }
}

/// A connection in the making over one of them.
#[allow(clippy::large_enum_variant, reason = "TCP, if the library has it, is as large as shared memory")]
pub enum MixedConnecting {
    /// Over shared memory.
    Shm(ShmConnecting),
    /// Over TCP.
    Tcp(TcpConnecting),
    /// By RDMA.
    Verbs(Box<VerbsConnecting>),
}

impl Connecting for MixedConnecting {
    type Endpoint = MixedEndpoint;

    fn poll(&mut self, now: Instant) -> Poll<Result<(MixedEndpoint, Received), ConnectError>> {
        match self {
            MixedConnecting::Shm(connecting) => connecting
                .poll(now)
                .map(|result| result.map(|(endpoint, received)| (MixedEndpoint::Shm(endpoint), received))),
            MixedConnecting::Tcp(connecting) => connecting
                .poll(now)
                .map(|result| result.map(|(endpoint, received)| (MixedEndpoint::Tcp(endpoint), received))),
            MixedConnecting::Verbs(connecting) => connecting.poll(now).map(|result| {
                result.map(|(endpoint, received)| (MixedEndpoint::Verbs(Box::new(endpoint)), received))
            }),
        }
    }

    fn is_accepted(&self) -> bool {
        match self {
            MixedConnecting::Shm(connecting) => connecting.is_accepted(),
            MixedConnecting::Tcp(connecting) => connecting.is_accepted(),
            MixedConnecting::Verbs(connecting) => connecting.is_accepted(),
        }
    }

    fn held_up(&self) -> Option<ConnectError> {
        match self {
            MixedConnecting::Shm(connecting) => connecting.held_up(),
            MixedConnecting::Tcp(connecting) => connecting.held_up(),
            MixedConnecting::Verbs(connecting) => connecting.held_up(),
        }
    }
}

/// One connected peer, over one of them.
#[cfg_attr(
    not(feature = "tcp"),
    allow(clippy::large_enum_variant, reason = "the endpoint over TCP, which is as large, is not there")
)]
pub enum MixedEndpoint {
    /// Over shared memory.
    Shm(ShmEndpoint),
    /// Over TCP.
    Tcp(TcpEndpoint),
    /// By RDMA.
    Verbs(Box<VerbsEndpoint>),
}

impl Endpoint for MixedEndpoint {
    #[inline]
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.post(batch),
            MixedEndpoint::Tcp(endpoint) => endpoint.post(batch),
            MixedEndpoint::Verbs(endpoint) => endpoint.post(batch),
        }
    }

    #[inline]
    fn poll(&mut self) -> Option<WorkCompletion> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.poll(),
            MixedEndpoint::Tcp(endpoint) => endpoint.poll(),
            MixedEndpoint::Verbs(endpoint) => endpoint.poll(),
        }
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.check(),
            MixedEndpoint::Tcp(endpoint) => endpoint.check(),
            MixedEndpoint::Verbs(endpoint) => endpoint.check(),
        }
    }

    fn map(&self, remote: &RemoteSlice) -> Option<LocalSlice> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.map(remote),
            MixedEndpoint::Tcp(endpoint) => endpoint.map(remote),
            MixedEndpoint::Verbs(endpoint) => endpoint.map(remote),
        }
    }

    fn map_on_gpu(&self, remote: &RemoteSlice) -> Option<GpuSlice> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.map_on_gpu(remote),
            MixedEndpoint::Tcp(endpoint) => endpoint.map_on_gpu(remote),
            MixedEndpoint::Verbs(endpoint) => endpoint.map_on_gpu(remote),
        }
    }

    fn wake(&mut self) {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.wake(),
            MixedEndpoint::Tcp(endpoint) => endpoint.wake(),
            MixedEndpoint::Verbs(endpoint) => endpoint.wake(),
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.wake_fd(),
            MixedEndpoint::Tcp(endpoint) => endpoint.wake_fd(),
            MixedEndpoint::Verbs(endpoint) => endpoint.wake_fd(),
        }
    }

    fn hear_wake(&mut self) {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.hear_wake(),
            MixedEndpoint::Tcp(endpoint) => endpoint.hear_wake(),
            MixedEndpoint::Verbs(endpoint) => endpoint.hear_wake(),
        }
    }

    fn transport(&self) -> &'static str {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.transport(),
            MixedEndpoint::Tcp(endpoint) => endpoint.transport(),
            MixedEndpoint::Verbs(endpoint) => endpoint.transport(),
        }
    }

    fn gpu_path(&self) -> Option<GpuPath> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.gpu_path(),
            MixedEndpoint::Tcp(endpoint) => endpoint.gpu_path(),
            MixedEndpoint::Verbs(endpoint) => endpoint.gpu_path(),
        }
    }

    #[cfg(feature = "cuda")]
    fn awaited_copies(&self) -> Option<&Tickets> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.awaited_copies(),
            MixedEndpoint::Tcp(endpoint) => endpoint.awaited_copies(),
            MixedEndpoint::Verbs(endpoint) => endpoint.awaited_copies(),
        }
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.heartbeat_word(word),
            MixedEndpoint::Tcp(endpoint) => endpoint.heartbeat_word(word),
            MixedEndpoint::Verbs(endpoint) => endpoint.heartbeat_word(word),
        }
    }

    fn count_arrivals(&mut self) {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.count_arrivals(),
            MixedEndpoint::Tcp(endpoint) => endpoint.count_arrivals(),
            MixedEndpoint::Verbs(endpoint) => endpoint.count_arrivals(),
        }
    }

    fn arrivals(&self) -> Option<u64> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.arrivals(),
            MixedEndpoint::Tcp(endpoint) => endpoint.arrivals(),
            MixedEndpoint::Verbs(endpoint) => endpoint.arrivals(),
        }
    }

    fn allow_silence(&mut self, lease: Duration) {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.allow_silence(lease),
            MixedEndpoint::Tcp(endpoint) => endpoint.allow_silence(lease),
            MixedEndpoint::Verbs(endpoint) => endpoint.allow_silence(lease),
        }
    }

    fn close(self, code: u64) -> Option<Remains> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.close(code),
            MixedEndpoint::Tcp(endpoint) => endpoint.close(code),
            MixedEndpoint::Verbs(endpoint) => endpoint.close(code),
        }
    }

    fn close_code(&self) -> Option<u64> {
        match self {
            MixedEndpoint::Shm(endpoint) => endpoint.close_code(),
            MixedEndpoint::Tcp(endpoint) => endpoint.close_code(),
            MixedEndpoint::Verbs(endpoint) => endpoint.close_code(),
        }
    }
}

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use super::*;

    fn loopback() -> Address {
        "127.0.0.1:0".parse().unwrap()
    }

    #[test]
    fn one_that_listens_over_shared_memory_asks_the_thread_of_those_it_dials() {
        let (mixed, owner) = (Mixed::default(), Tcp::new());
        let mut listener = mixed.listen(&Address::random()).unwrap();
        assert!(listener.has_caught_up() && listener.has_caught_up(), "nothing is reached over TCP");
        let region = mixed.allocate(8, Access::REMOTE_WRITE).unwrap();
        let at = owner.listen(&loopback()).unwrap();
        let offer = Offer { message: Vec::new(), grants: vec![region.whole()] };
        let _connecting = mixed.connect(&at.address(), offer).unwrap();
        // The thread takes its time to answer, and a second call comes before the answer.
        assert!((0..1000).any(|_| !listener.has_caught_up()), "no thread is asked");
    }

    #[test]
    fn one_that_listens_at_two_addresses_over_tcp_catches_up() {
        let mut listener = Mixed::default().listen(&Address::Several(vec![loopback(), loopback()])).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        for _ in 0..10 {
            while !listener.has_caught_up() {
                assert!(std::time::Instant::now() < deadline, "a question is put and never answered");
                std::thread::yield_now();
            }
        }
    }
}
