//! The connector's side of a handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use super::VerbsShared;
use super::chosen::ChosenRail;
use super::direct::VerbsGpu;
use super::endpoint::{FORKED, VerbsEndpoint};
use super::grants::grants_of;
use super::hello::{Hello, Note, Ports, Terms};
use super::pairs::{Requester, Responder, connect, rail_ports};
use crate::channel::Channel;
use crate::mem::ForkGuard;
use crate::time::Instant;
use crate::transport::doorbell::Doorbell;
use crate::transport::wireup::{WireError, check_offer};
use crate::transport::{Address, ConnectError, Connecting, MAKE_RDMA_CONNECTION, Offer, Received};

/// A connection in the making. It waits as long as it is polled: its owner decides how long. Dropping it gives up the
/// connection.
pub struct VerbsConnecting {
    shared: Arc<VerbsShared>,
    gpu: Option<VerbsGpu>,
    address: SocketAddr,
    /// The doorbell at which this side sleeps, if it wants to be woken.
    doorbell: Option<Arc<Doorbell>>,
    state: Option<Handshake>,
    guard: ForkGuard,
}

struct Handshake {
    link: Channel,
    /// The rails that are offered.
    rails: Vec<ChosenRail>,
    stage: Stage,
}

enum Stage {
    /// The peer's host has not accepted the connection. Until then it costs no queue pairs: a process that does not
    /// listen yet is dialled repeatedly.
    Dialling(Offer),
    Offered(Box<Offered>),
}

/// The offer of this side.
struct Offered {
    ours: Terms,
    requester: Requester,
    responder: Option<Responder>,
}

impl Offered {
    /// Makes the queue pairs, and registers the memory that they serve.
    fn new(shared: &VerbsShared, rails: &[ChosenRail], offer: &Offer) -> io::Result<Offered> {
        let indexes: Vec<usize> = rails.iter().map(|rail| rail.index).collect();
        // It is not yet known which of the rails the peer can use, and so which one leads.
        let requester = Requester::new(shared, &indexes, rails.len(), true)?;
        let responder = Responder::new(shared, &indexes, rails.len(), grants_of(offer, &[], None), None)?;
        let addresses = indexes.into_iter().zip(shared.port_addresses(rails));
        let ports = Ports {
            rails: rail_ports(addresses, Some(&requester), responder.as_ref()),
            receives: responder.as_ref().map_or(0, Responder::receives),
        };
        let ours = Terms { grants: responder.as_ref().map_or_else(Vec::new, Responder::grants), blob: ports };
        Ok(Offered { ours, requester, responder })
    }
}

impl VerbsConnecting {
    pub(super) fn new(
        shared: &Arc<VerbsShared>,
        gpu: Option<VerbsGpu>,
        address: SocketAddr,
        offer: Offer,
        doorbell: Option<Arc<Doorbell>>,
    ) -> Result<VerbsConnecting, ConnectError> {
        let at = Address::Verbs(address);
        shared.check_own("connect", &at)?;
        check_offer(&offer, &[]).map_err(|reason| ConnectError::Offer { address: at.clone(), reason })?;
        let towards = (0..shared.rails.len()).map(|index| (index, Some(address.ip())));
        let rails = shared.usable_rails(towards, &at)?;
        let link = Channel::connect(address, &shared.terms());
        let link = link.map_err(|error| ConnectError::from_channel(at, error))?;
        let state = Some(Handshake { link, rails, stage: Stage::Dialling(offer) });
        let (shared, guard) = (Arc::clone(shared), ForkGuard::new());
        Ok(VerbsConnecting { shared, gpu, address, doorbell, state, guard })
    }

    /// Advances the handshake; returns its result once it is complete.
    fn advance(&mut self) -> Result<Option<(VerbsEndpoint, Received)>, ConnectError> {
        let at = Address::Verbs(self.address);
        let Some(state) = &mut self.state else { return Ok(None) };
        let failed = |error| ConnectError::from_channel(at.clone(), error);
        // Registering may take longer than the listener allows a connection that has begun to send its offer.
        if let Stage::Dialling(offer) = &state.stage {
            if !state.link.is_taken().map_err(failed)? {
                return Ok(None);
            }
            let offered = Offered::new(&self.shared, &state.rails, offer);
            let offered = offered.map_err(|error| device_failed(&at, error))?;
            let said = Hello::Offer(offered.ours.clone()).encode(&offer.message);
            state.link.send(&said).map_err(failed)?;
            state.stage = Stage::Offered(Box::new(offered));
        }
        let Some(heard) = state.link.poll().map_err(failed)? else { return Ok(None) };
        let (theirs, message) = match Hello::decode(&heard).map_err(|error| protocol(&at, &error))? {
            (Hello::Accept(theirs), message) => (theirs, message),
            (Hello::Refuse(refusal), _) => {
                if refusal.no_path {
                    // The paths that were left out may be the only ones.
                    self.shared.unanswered.forget(self.address.ip());
                }
                return Err(ConnectError::refused(at, refusal));
            }
            _ => return Err(protocol(&at, &WireError::Rule("it answered out of turn"))),
        };
        let Some(Handshake { mut link, mut rails, stage: Stage::Offered(offered) }) = self.state.take()
        else {
            return Err(protocol(&at, &WireError::Rule("it answered out of turn")));
        };
        let Offered { mut ours, mut requester, mut responder } = *offered;
        if !theirs.blob.indexes().all(|index| ours.blob.has(index)) {
            return Err(protocol(&at, &WireError::Rule("it answers on rails that it was not offered")));
        }
        // Rails that the other side cannot use are not used.
        rails.retain(|rail| theirs.blob.has(rail.index));
        ours.keep_rails(|index| theirs.blob.has(index));
        requester.keep_served(&theirs.blob);
        responder.iter_mut().for_each(|responder| responder.keep_used(&theirs.blob));
        let granted_reads = ours.blob.serves_reads();
        if granted_reads.is_some() && granted_reads != theirs.blob.posts_reads() {
            return Err(protocol(&at, &WireError::Rule("it takes grants and has nothing to use them by")));
        }
        let addresses = ours.port_addresses();
        let paths = self.shared.paths(&rails, addresses, &theirs).map_err(|reason| no_path(&at, reason))?;
        connect(&paths, Some(&requester), responder.as_mut(), &theirs.blob)
            .map_err(|error| device_failed(&at, error))?;
        let sentinel = responder.as_ref().and_then(Responder::sentinel);
        link.send(&Hello::Note(Note::Ready(sentinel)).encode(&[]))
            .map_err(|error| ConnectError::from_channel(at, error))?;
        let received = theirs.received(message);
        let requester = theirs.blob.serves_reads().is_some().then_some(requester);
        let shared = Arc::clone(&self.shared);
        let mut endpoint = VerbsEndpoint::new(shared, link, requester, responder, theirs, true);
        endpoint.know_ways(&rails);
        self.gpu.iter().for_each(|gpu| endpoint.use_gpu(gpu));
        if let Some(doorbell) = self.doorbell.take() {
            endpoint.set_doorbell(doorbell);
        }
        Ok(Some((endpoint, received)))
    }
}

pub(super) fn protocol(address: &Address, error: &WireError) -> ConnectError {
    ConnectError::Protocol { address: address.clone(), reason: error.to_string() }
}

/// The error if the ports of the two sides do not fit together.
pub(super) fn no_path(address: &Address, reason: &str) -> ConnectError {
    ConnectError::NoPath { address: address.clone(), retry_after: None, reason: reason.into() }
}

/// The error if the device refuses to make the objects of a connection.
pub(super) fn device_failed(address: &Address, source: io::Error) -> ConnectError {
    let remedy = match source.raw_os_error() {
        Some(libc::ENOMEM) => {
            "raise the limit on locked memory (ulimit -l unlimited, systemd: LimitMEMLOCK=infinity), or free queue \
             pairs and regions of the device"
        }
        Some(libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "no way leads to the peer's RDMA address: check addresses and routes of both interfaces, or choose \
             another entry of the GID table; processes of one host use one port (SLACKLINE_RDMA_DEVICE), or set \
             net.ipv4.conf.all.accept_local=1"
        }
        Some(libc::ENODEV) => {
            "no interface of this network namespace has the RDMA address: choose an entry of the GID table that a \
             container's own address is in (SLACKLINE_RDMA_GID_INDEX)"
        }
        _ => "see the kernel's log (dmesg), and `slackline doctor`",
    };
    ConnectError::System { operation: MAKE_RDMA_CONNECTION, address: address.clone(), source, remedy }
}

impl Connecting for VerbsConnecting {
    type Endpoint = VerbsEndpoint;

    fn poll(&mut self, _now: Instant) -> Poll<Result<(VerbsEndpoint, Received), ConnectError>> {
        assert!(self.state.is_some(), "polled after it was ready");
        if self.guard.is_inherited() {
            let (address, source) = (Address::Verbs(self.address), io::Error::other(FORKED));
            let remedy = "connect in the child itself";
            return Poll::Ready(Err(ConnectError::System { operation: "connect", address, source, remedy }));
        }
        match self.advance() {
            Ok(None) => Poll::Pending,
            Ok(Some(connected)) => Poll::Ready(Ok(connected)),
            Err(error) => {
                self.state = None;
                Poll::Ready(Err(error))
            }
        }
    }

    fn is_accepted(&self) -> bool {
        match &self.state {
            Some(Handshake { link, .. }) => link.peer_address().is_ok(),
            None => true,
        }
    }
}
