//! The listening side, which accepts and answers peers.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::VerbsShared;
use super::chosen::{ChosenRail, check_atomics};
use super::connecting::{device_failed, no_path};
use super::direct::VerbsGpu;
use super::endpoint::VerbsEndpoint;
use super::grants::grants_of;
use super::hello::{Hello, PortAddress, Ports, Terms};
use super::pairs::{Requester, Responder, connect, rail_ports};
use super::rail::Rail;
use super::waker::{Waker, wait};
use crate::channel::{Channel, Secret, listen};
use crate::mem::{Access, ForkGuard, LocalSlice};
use crate::time::Instant;
use crate::transport::wireup::{Newcomer, Newcomers, WireError, accept, check_offer};
use crate::transport::{
    Address, ArrivalWatch, ConnectError, Doorbell, GpuGrant, Incoming, Listener, Offer, Received, Refusal,
};

/// The listener for peers. Handshakes go over TCP.
pub struct VerbsListener {
    shared: Arc<VerbsShared>,
    gpu: Option<VerbsGpu>,
    socket: TcpListener,
    address: Address,
    newcomers: Newcomers<Pending>,
    /// The wakers that peers ring, one for each rail, once the owner wants to sleep.
    wakers: Vec<Arc<Waker>>,
    guard: ForkGuard,
}

/// Longest time that the owner sleeps while a peer is in the middle of a handshake, or the system accepts none.
const HANDSHAKE_NAP: Duration = Duration::from_millis(1);

/// The time after which a peer without a path tries again: the system takes as long to find this out.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl VerbsListener {
    pub(super) fn new(
        shared: &Arc<VerbsShared>,
        gpu: Option<VerbsGpu>,
        address: SocketAddr,
    ) -> Result<VerbsListener, ConnectError> {
        shared.check_own("listen", &Address::Verbs(address))?;
        if !shared.terms().allow(address) {
            return Err(ConnectError::NeedsSecret { address: Address::Verbs(address) });
        }
        if shared.terms().secret.as_ref().is_some_and(Secret::is_reading) {
            return Err(ConnectError::ReadingSecret { address: Address::Verbs(address) });
        }
        let failed = |source: io::Error| ConnectError::cannot_listen(Address::Verbs(address), source);
        let socket = listen(address).map_err(failed)?;
        let address = Address::Verbs(socket.local_addr().map_err(failed)?);
        if let Some(VerbsGpu { gpu, path, .. }) = gpu.as_ref().filter(|gpu| !gpu.is_direct()) {
            let path = path.to_string();
            tracing::info!(gpu = gpu.ordinal(), path, "payloads that peers reach by RDMA are in host memory");
        }
        Ok(VerbsListener {
            shared: Arc::clone(shared),
            gpu,
            socket,
            address,
            newcomers: Newcomers::default(),
            wakers: Vec::new(),
            guard: ForkGuard::new(),
        })
    }
}

/// A newcomer that has not sent its offer yet.
struct Pending(Channel);

impl Newcomer for Pending {
    type Said = (Terms, Vec<u8>);

    fn hear(&mut self) -> Result<Option<(Terms, Vec<u8>)>, String> {
        let Some(bytes) = self.0.poll().map_err(|error| error.to_string())? else { return Ok(None) };
        match Hello::decode(&bytes) {
            Ok((Hello::Offer(terms), message)) => Ok(Some((terms, message))),
            Ok(_) => Err("it answered without a question".into()),
            Err(error) => {
                if let WireError::Version { .. } = error {
                    // A peer that is already gone does not need the refusal.
                    let _unheard = self.0.send(&Hello::refuse(error.to_string().into()).encode(&[]));
                }
                Err(error.to_string())
            }
        }
    }

    fn messages(&self) -> u8 {
        self.0.greetings()
    }
}

impl VerbsListener {
    /// Ends the notices: peers that are admitted from now on wake no thread.
    pub(in crate::transport) fn end_notices(&mut self) {
        self.wakers.clear();
    }

    pub(in crate::transport) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// As [`wait`](Listener::wait), but also ends if one of `others` can be read.
    pub(in crate::transport) fn wait_with(&self, others: &[BorrowedFd<'_>], timeout: Duration) {
        if self.guard.is_inherited() {
            // No more events arrive in a forked child.
            std::thread::sleep(timeout);
        } else if !self.wakers.is_empty() {
            // A socket that cannot accept would be ready all the time.
            let cannot_accept = self.newcomers.cannot_accept();
            let is_short = cannot_accept || self.newcomers.iter().len() > 0;
            let timeout = if is_short { timeout.min(HANDSHAKE_NAP) } else { timeout };
            let mut sources: SmallVec<[BorrowedFd<'_>; 4]> = SmallVec::from_slice(others);
            sources.extend((!cannot_accept).then_some(self.socket.as_fd()));
            wait(&self.wakers, &sources, timeout);
        }
    }
}

impl Listener for VerbsListener {
    type Endpoint = VerbsEndpoint;
    type Incoming = VerbsIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        self.shared.check_own("be notified", &self.address)?;
        if self.wakers.is_empty() {
            let of_rail = |rail: &Rail| Waker::new(&rail.device, rail.info.limits.completions);
            let wakers = self.shared.rails.iter().map(of_rail).collect::<io::Result<_>>();
            self.wakers = wakers.map_err(|source| ConnectError::System {
                operation: "be notified",
                address: self.address.clone(),
                source,
                remedy: "raise the limit on open files (ulimit -n), see the kernel's log (dmesg), or poll",
            })?;
        }
        Ok(true)
    }

    fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        if self.wakers.is_empty() {
            return None;
        }
        self.wakers.clear();
        ArrivalWatch::new(Doorbell::new(&self.address).ok()?, [self.socket()])
    }

    fn wait(&mut self, timeout: Duration) {
        self.wait_with(&[], timeout);
    }

    fn poll(&mut self, now: Instant) -> Option<VerbsIncoming> {
        if self.guard.is_inherited() {
            return None;
        }
        self.shared.look();
        let terms = self.shared.terms();
        self.newcomers.admit(&self.address, now, || Ok(accept(&self.socket, &terms)?.map(Pending)));
        let (Pending(link), (mut theirs, message)) = self.newcomers.next(&self.address, now)?;
        // The path of the packets, which need not be the path of the handshake.
        let peer = |theirs: &PortAddress| match theirs.is_infiniband {
            true => link.peer_address().ok().map(|address| address.ip()),
            false => Some(std::net::Ipv6Addr::from(theirs.gid).to_canonical()),
        };
        let towards = theirs.blob.indexes().zip(theirs.port_addresses().map(peer));
        let (rails, made) = match self.shared.usable_rails(towards, &self.address) {
            Ok(rails) => (rails, None),
            Err(error) => (Vec::new(), Some(Err(error))),
        };
        let lead = rails.first().map(|rail| rail.index);
        if lead.is_some() {
            theirs.keep_rails(|index| rails.iter().any(|rail| rail.index == index));
        }
        Some(VerbsIncoming {
            shared: Arc::clone(&self.shared),
            gpu: self.gpu.clone(),
            on_gpu: Vec::new(),
            link,
            received: theirs.received(message),
            theirs,
            rails,
            address: self.address.clone(),
            waker: lead.and_then(|lead| self.wakers.get(lead)).cloned(),
            made,
        })
    }
}

impl Drop for VerbsListener {
    fn drop(&mut self) {
        if !self.guard.is_inherited() {
            // Frees the port at once, even if other processes hold copies of the descriptor.
            let _never_connected = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        }
    }
}

/// A peer that has sent its offer and waits for an answer.
pub struct VerbsIncoming {
    shared: Arc<VerbsShared>,
    gpu: Option<VerbsGpu>,
    /// The grants of GPU memory for the peer.
    on_gpu: Vec<GpuGrant>,
    link: Channel,
    received: Received,
    theirs: Terms,
    /// The rails that both sides can use, to which the peer's terms refer.
    rails: Vec<ChosenRail>,
    address: Address,
    /// The waker of the leading rail, if the owner wants to sleep.
    waker: Option<Arc<Waker>>,
    /// This side of the connection, once it was made, or was found to be impossible.
    made: Option<Result<Made, ConnectError>>,
}

/// The answer to a peer for which this side of the connection could not be made. A path to the peer that is missing
/// now may exist later.
fn refusal(error: &ConnectError) -> Refusal {
    const REASON: &str = "the listener could not make its side of the connection; look at its log";
    match error {
        ConnectError::Offer { reason, .. } => (*reason).into(),
        ConnectError::NoPath { reason, .. } => Refusal { no_path: true, ..reason.as_str().into() },
        ConnectError::System { source, .. } => match source.kind() {
            io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable => {
                let reason =
                    format!("the listener's RDMA device finds no way here ({source}); look at its log");
                Refusal { no_path: true, ..Refusal::temporary(ASK_AGAIN_AFTER, reason) }
            }
            _ => Refusal { no_path: true, ..REASON.into() },
        },
        _ => REASON.into(),
    }
}

/// One side of a connection, and its description for the other side.
type Made = (Option<Requester>, Option<Responder>, Terms);

impl VerbsIncoming {
    fn check(&self, offer: &Offer) -> Result<(), ConnectError> {
        let address = || self.address.clone();
        check_offer(offer, &self.on_gpu).map_err(|reason| ConnectError::Offer { address: address(), reason })
    }

    /// Makes this side of the connection, and connects it to the other side.
    fn make(&self, offer: &Offer) -> Result<Made, ConnectError> {
        self.check(offer)?;
        let at = &self.address;
        let indexes: Vec<usize> = self.rails.iter().map(|rail| rail.index).collect();
        let grants_atomics = |slice: &LocalSlice| slice.region().access().contains(Access::REMOTE_ATOMIC);
        let grants_atomics = self.theirs.grants_atomics() || offer.grants.iter().any(grants_atomics);
        check_atomics(&self.rails, grants_atomics, at)?;
        let addresses = self.shared.port_addresses(&self.rails);
        let paths = self.shared.paths(&self.rails, addresses.iter(), &self.theirs);
        let paths = paths.map_err(|reason| no_path(at, reason))?;
        let granted = grants_of(offer, &self.on_gpu, self.gpu.as_ref());
        let make = || {
            let requester = |reads: bool| Requester::new(&self.shared, &indexes, 1, reads);
            let requester = self.theirs.blob.serves_reads().map(requester).transpose()?;
            let waker = self.waker.as_ref();
            let mut responder = Responder::new(&self.shared, &indexes, 1, granted.clone(), waker)?;
            connect(&paths, requester.as_ref(), responder.as_mut(), &self.theirs.blob)?;
            io::Result::Ok((requester, responder))
        };
        let (requester, responder) = { make }().map_err(|error| device_failed(at, error))?;
        let addresses = indexes.iter().copied().zip(addresses);
        let ports = Ports {
            rails: rail_ports(addresses, requester.as_ref(), responder.as_ref()),
            receives: responder.as_ref().map_or(0, Responder::receives),
        };
        let grants = responder.as_ref().map_or_else(Vec::new, Responder::grants);
        Ok((requester, responder, Terms { grants, blob: ports }))
    }
}

impl Incoming for VerbsIncoming {
    type Endpoint = VerbsEndpoint;

    fn received(&self) -> &Received {
        &self.received
    }

    fn reads_only(&self) -> bool {
        self.link.reads_only()
    }

    fn grant_gpu(&mut self, grants: Vec<GpuGrant>) -> Result<(), &'static str> {
        if !self.gpu.as_ref().is_some_and(VerbsGpu::is_direct) {
            return Err("no RDMA device of this process reaches memory of its GPU: use host memory");
        }
        self.on_gpu = grants;
        Ok(())
    }

    fn prepare(&mut self, grants: &[LocalSlice]) {
        if self.made.is_none() {
            self.made = Some(self.make(&Offer { message: Vec::new(), grants: grants.to_vec() }));
        }
    }

    fn accept(mut self, offer: Offer) -> Result<VerbsEndpoint, ConnectError> {
        let made = match self.made.take() {
            Some(made) => self.check(&offer).and(made),
            None => self.make(&offer),
        };
        let (requester, responder, ours) = match made {
            Ok(made) => made,
            Err(error) => {
                self.refuse(refusal(&error));
                return Err(error);
            }
        };
        match self.link.send(&Hello::Accept(ours).encode(&offer.message)) {
            Ok(()) => {
                let (shared, theirs) = (self.shared, self.theirs);
                let mut endpoint = VerbsEndpoint::new(shared, self.link, requester, responder, theirs, false);
                endpoint.know_ways(&self.rails);
                self.gpu.iter().for_each(|gpu| endpoint.use_gpu(gpu));
                Ok(endpoint)
            }
            Err(error) => {
                tracing::debug!(%error, "a peer was gone before it was accepted");
                Err(ConnectError::Closed { address: self.address })
            }
        }
    }

    fn refuse(mut self, refusal: Refusal) {
        // A refusal fits into the buffer of a socket to which only a greeting was sent.
        if let Err(error) = self.link.send(&Hello::refuse(refusal).encode(&[])) {
            tracing::debug!(%error, "a refused peer was gone already");
        }
    }
}
