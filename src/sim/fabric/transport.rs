//! The simulated network as a transport.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};
use std::task::Poll;

use super::net::{HostId, Net, NetRules, SharedNet, lock};
use super::simulated_host::SimulatedHost;
use crate::mem::{Access, DeviceKeys, HostMemory, LocalSlice, MemoryRegion, RemoteSlice};
use crate::time::Instant;
use crate::transport::{
    Address, AtomicDomain, Capabilities, ConnectError, Connecting, Disconnected, Endpoint, HeartbeatWord,
    Incoming, Listener, Offer, PostError, Received, Refusal, RegisterError, Simulator, Transport,
    WorkCompletion, WorkRequest,
};

const NAME: &str = "sim";

/// A simulated transport: ordinary memory of this process, reached as roughly as the contract permits.
///
/// Each clone is the same node of the same network.
#[derive(Clone)]
pub struct SimTransport {
    net: SharedNet,
    host: HostId,
    /// Time passes as the fabric says, and not whenever the node looks.
    is_staged: bool,
}

impl SimTransport {
    /// A network of its own, with one node that talks to itself. Its time passes whenever the node looks: each poll,
    /// check and post lets one thing happen.
    pub fn new(seed: u64) -> SimTransport {
        let mut net = Net::new(seed, NetRules::plain(), true);
        let host = net.add_host(0);
        SimTransport { net: Arc::new(Mutex::new(net)), host, is_staged: false }
    }

    pub(super) fn of(net: &SharedNet, host: HostId) -> SimTransport {
        SimTransport { net: Arc::clone(net), host, is_staged: true }
    }
}

impl Transport for SimTransport {
    type Endpoint = SimEndpoint;
    type Listener = SimListener;
    type Connecting = SimConnecting;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            queue_depth: lock(&self.net).distribution.queue_depth,
            max_request_bytes: u32::MAX as usize,
            atomics: AtomicDomain::None,
            in_place: false,
        }
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        if access.is_local() {
            return Ok(MemoryRegion::new(memory, access, DeviceKeys::NONE, ()));
        }
        let mut net = lock(&self.net);
        let regions = &mut net.hosts[self.host].regions;
        let mut keys = DeviceKeys::NONE;
        keys.local[0] = regions.len() as u32 + 1;
        let region = MemoryRegion::new(memory, access, keys, ());
        regions.push(region.clone());
        Ok(region)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.register(HostMemory::anonymous(bytes)?, access)
    }

    fn listen(&self, address: &Address) -> Result<SimListener, ConnectError> {
        takes("listen", address)?;
        let acceptor = lock(&self.net).open_acceptor(address, self.host)?;
        Ok(SimListener { net: Arc::clone(&self.net), acceptor, address: address.clone() })
    }

    fn simulator(&self) -> Option<Arc<dyn Simulator>> {
        self.is_staged.then(|| Arc::new(SimulatedHost::new(&self.net, self.host)) as Arc<dyn Simulator>)
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<SimConnecting, ConnectError> {
        takes("connect", address)?;
        Net::check_offer(address, &offer)?;
        let attempt = lock(&self.net).attempt(self.host, address, offer);
        Ok(SimConnecting { net: Arc::clone(&self.net), attempt })
    }
}

fn takes(operation: &'static str, address: &Address) -> Result<(), ConnectError> {
    match address {
        Address::Abstract(_) => Ok(()),
        _ => Err(ConnectError::WrongAddress {
            operation,
            address: address.clone(),
            transport: NAME,
            takes: "@NAME",
        }),
    }
}

/// The listener at which simulated peers arrive.
pub struct SimListener {
    net: SharedNet,
    acceptor: usize,
    address: Address,
}

impl Listener for SimListener {
    type Endpoint = SimEndpoint;
    type Incoming = SimIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, _now: Instant) -> Option<SimIncoming> {
        let mut net = lock(&self.net);
        net.look();
        let (attempt, received) = net.greet(self.acceptor)?;
        let host = net.acceptors[self.acceptor].host;
        Some(SimIncoming {
            net: Arc::clone(&self.net),
            host,
            attempt,
            received,
            is_prepared: false,
            is_answered: false,
        })
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        lock(&self.net).close_acceptor(self.acceptor);
    }
}

/// A simulated peer that waits for an answer.
pub struct SimIncoming {
    net: SharedNet,
    host: HostId,
    attempt: usize,
    received: Received,
    /// Its grants were registered ahead.
    is_prepared: bool,
    is_answered: bool,
}

impl SimIncoming {
    /// Registers the grants for the peer while its owner waits.
    fn register_at_once(&self) {
        let mut net = lock(&self.net);
        let nanos = net.registers_for();
        if nanos > 0 {
            net.registrations.push(nanos);
            net.keep_busy(self.host, nanos);
        }
    }
}

impl Incoming for SimIncoming {
    type Endpoint = SimEndpoint;

    fn received(&self) -> &Received {
        &self.received
    }

    fn prepare(&mut self, _grants: &[LocalSlice]) {
        self.is_prepared = true;
    }

    fn accept(mut self, offer: Offer) -> Result<SimEndpoint, ConnectError> {
        if !self.is_prepared && !offer.grants.is_empty() {
            self.register_at_once();
        }
        let connection = lock(&self.net).accept(self.attempt, &self.received.grants, offer)?;
        self.is_answered = true;
        Ok(SimEndpoint { net: Arc::clone(&self.net), connection, end: 1 })
    }

    fn refuse(mut self, refusal: Refusal) {
        self.is_answered = true;
        lock(&self.net).refuse(self.attempt, refusal);
    }
}

impl Drop for SimIncoming {
    fn drop(&mut self) {
        if !self.is_answered {
            lock(&self.net).turn_away(self.attempt);
        }
    }
}

/// A simulated connection in the making.
pub struct SimConnecting {
    net: SharedNet,
    attempt: usize,
}

impl Connecting for SimConnecting {
    type Endpoint = SimEndpoint;

    fn poll(&mut self, _now: Instant) -> Poll<Result<(SimEndpoint, Received), ConnectError>> {
        let mut net = lock(&self.net);
        net.look();
        let Some(answer) = net.take_answer(self.attempt) else { return Poll::Pending };
        let endpoint = |connection| SimEndpoint { net: Arc::clone(&self.net), connection, end: 0 };
        Poll::Ready(answer.map(|(connection, received)| (endpoint(connection), received)))
    }
}

impl Drop for SimConnecting {
    fn drop(&mut self) {
        lock(&self.net).abandon_attempt(self.attempt);
    }
}

/// One end of a simulated connection.
pub struct SimEndpoint {
    net: SharedNet,
    connection: usize,
    end: usize,
}

impl Endpoint for SimEndpoint {
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        let mut net = lock(&self.net);
        net.look();
        net.post(self.connection, self.end, batch)
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        let mut net = lock(&self.net);
        net.look();
        net.poll_completion(self.connection, self.end)
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        let mut net = lock(&self.net);
        net.look();
        net.check(self.connection, self.end)
    }

    fn map(&self, _remote: &RemoteSlice) -> Option<LocalSlice> {
        None
    }

    fn transport(&self) -> &'static str {
        NAME
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        let mut net = lock(&self.net);
        if let Some(gone) = &net.connections[self.connection].ends[self.end].failed {
            return Err(gone.clone().into());
        }
        let reason = "a heartbeat word is one granted, aligned, writable word";
        let light = net.light(self.connection, self.end, word);
        let light = light.ok_or(PostError::Malformed { index: 0, reason })?;
        Ok(Box::new(SimHeartbeatWord { net: Arc::clone(&self.net), light }))
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        let mut net = lock(&self.net);
        let notice = net.latency();
        net.end(self.connection, self.end, notice);
    }
}

struct SimHeartbeatWord {
    net: SharedNet,
    light: usize,
}

impl HeartbeatWord for SimHeartbeatWord {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        let mut net = lock(&self.net);
        net.shine(self.light, value)?;
        if net.moves_itself {
            // No other call may look at the network while the word is on its way.
            let arrival = net.lights[self.light].last;
            while net.now < arrival {
                net.look();
            }
        }
        Ok(())
    }
}
