//! Owners whose transport is behind: words that have arrived are not in memory yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use slackline::internals::mem::{Access, HostMemory, MemoryRegion};
use slackline::internals::transport::shm::{ShmConnecting, ShmEndpoint, ShmIncoming, ShmListener};
use slackline::internals::transport::{Capabilities, HANDSHAKE_TIMEOUT, Listener, Offer, RegisterError};
use slackline::{
    Address, ConnectError, Instant, Server, ServerOptions, Shm, Transport, now, scheme::SchemeConfig,
};

use super::raw::{Raw, worker_role};
use super::second::table;

/// Shared memory, of which a test says whether it has caught up.
struct Behind(Shm, Arc<AtomicBool>);

impl Transport for Behind {
    type Endpoint = ShmEndpoint;
    type Listener = BehindListener;
    type Connecting = ShmConnecting;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.allocate(bytes, access)
    }

    fn listen(&self, address: &Address) -> Result<BehindListener, ConnectError> {
        Ok(BehindListener(self.0.listen(address)?, Arc::clone(&self.1)))
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<ShmConnecting, ConnectError> {
        self.0.connect(address, offer)
    }
}

struct BehindListener(ShmListener, Arc<AtomicBool>);

impl Listener for BehindListener {
    type Endpoint = ShmEndpoint;
    type Incoming = ShmIncoming;

    fn address(&self) -> Address {
        self.0.address()
    }

    fn poll(&mut self, now: Instant) -> Option<ShmIncoming> {
        self.0.poll(now)
    }

    fn has_caught_up(&mut self) -> bool {
        self.1.load(SeqCst)
    }
}

#[test]
fn a_server_whose_transport_is_behind_takes_no_worker_for_silent() {
    let lease = Duration::from_secs(3);
    let caught_up = Arc::new(AtomicBool::new(true));
    let mut options = ServerOptions::new(SchemeConfig::Asp, 1, 1.0);
    options.memory.lease = lease;
    let transport = Behind(Shm::new(), Arc::clone(&caught_up));
    let mut server = Server::new(transport, &Address::random(), table(100), &[0.0; 100], options).unwrap();
    let address = server.address();
    let mut silent = Raw::join(&address, worker_role(SchemeConfig::Asp), || {
        server.poll(now()).unwrap();
    });
    silent.beat_once();
    let mut time = now();
    let mut listen = |listened: Duration| {
        let begun = time;
        while server.status().left == 0 && time - begun < listened {
            time = time + Duration::from_millis(20);
            server.poll(time).unwrap();
        }
        time - begun
    };
    caught_up.store(false, SeqCst);
    assert_eq!(listen(20 * lease), 20 * lease, "it was evicted though its heartbeat may have arrived");
    caught_up.store(true, SeqCst);
    assert!(listen(lease) < lease, "it is silent, and the server would know of a heartbeat");
}

#[test]
fn a_newcomer_has_the_time_of_a_handshake_until_its_first_heartbeat() {
    let lease = Duration::from_secs(1);
    let mut options = ServerOptions::new(SchemeConfig::Asp, 1, 1.0);
    options.memory.lease = lease;
    let mut server = Server::new(Shm::new(), &Address::random(), table(100), &[0.0; 100], options).unwrap();
    let address = server.address();
    let mut time = now();
    for beats in [false, true] {
        let mut silent = Raw::join(&address, worker_role(SchemeConfig::Asp), || {
            time = time + Duration::from_micros(200);
            server.poll(time).unwrap();
        });
        if beats {
            silent.beat_once();
        }
        let left = server.status().left;
        let begun = time;
        while server.status().left == left && time - begun < 10 * lease {
            time = time + Duration::from_millis(20);
            server.poll(time).unwrap();
        }
        let waited = time - begun;
        let allowed = if beats { lease } else { lease + HANDSHAKE_TIMEOUT };
        assert!(waited > allowed, "it was evicted after {waited:?}, and beats: {beats}");
        assert!(waited < allowed + lease, "a dead newcomer is found, too: {waited:?}, and beats: {beats}");
    }
}
