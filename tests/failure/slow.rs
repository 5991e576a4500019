//! Joining where memory takes long to register, and where listeners drop the first newcomers: a shared-memory transport
//! that takes as long as it is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::sleep;
use std::time::Duration;

use slackline::internals::mem::{Access, HostMemory, LocalSlice, MemoryRegion};
use slackline::internals::transport::shm::{ShmConnecting, ShmEndpoint, ShmIncoming, ShmListener};
use slackline::internals::transport::{
    Capabilities, Incoming, Listener, Offer, Received, Refusal, RegisterError,
};
use slackline::{
    Address, ConnectError, Instant, Server, ServerOptions, Shm, Transport, scheme::SchemeConfig,
};

use super::at_once::at_once;
use super::second::{PATIENCE, table, train, wait_for, worker};

/// Slow memory: anything that a peer is granted takes time to be made.
#[derive(Default)]
struct Slowness {
    milliseconds: AtomicU64,
    /// Whether some of it has been begun.
    is_felt: AtomicBool,
}

impl Slowness {
    fn set(&self, time: Duration) {
        self.milliseconds.store(time.as_millis() as u64, SeqCst);
    }

    fn tarry(&self) {
        let milliseconds = self.milliseconds.load(SeqCst);
        self.is_felt.fetch_or(milliseconds > 0, SeqCst);
        sleep(Duration::from_millis(milliseconds));
    }

    /// Waits until memory is being made for a newcomer.
    fn wait_until_felt(&self) {
        wait_for("memory to be made", || self.is_felt.load(SeqCst).then_some(()));
    }
}

/// Number of newcomers that are dropped before one is let in.
const DROPPED: u64 = 3;

struct Slow(Shm, Arc<Slowness>);

impl Transport for Slow {
    type Endpoint = ShmEndpoint;
    type Listener = SlowListener;
    type Connecting = ShmConnecting;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        if access.contains(Access::REMOTE_WRITE) {
            self.1.tarry();
        }
        self.0.allocate(bytes, access)
    }

    fn listen(&self, address: &Address) -> Result<SlowListener, ConnectError> {
        Ok(SlowListener(self.0.listen(address)?, Arc::clone(&self.1), 0))
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<ShmConnecting, ConnectError> {
        self.0.connect(address, offer)
    }
}

struct SlowListener(ShmListener, Arc<Slowness>, u64);

impl Listener for SlowListener {
    type Endpoint = ShmEndpoint;
    type Incoming = SlowIncoming;

    fn address(&self) -> Address {
        self.0.address()
    }

    fn poll(&mut self, now: Instant) -> Option<SlowIncoming> {
        let incoming = self.0.poll(now)?;
        self.2 += 1;
        (self.2 > DROPPED).then(|| SlowIncoming(incoming, Arc::clone(&self.1)))
    }
}

struct SlowIncoming(ShmIncoming, Arc<Slowness>);

impl Incoming for SlowIncoming {
    type Endpoint = ShmEndpoint;

    fn received(&self) -> &Received {
        self.0.received()
    }

    fn prepare(&mut self, grants: &[LocalSlice]) {
        assert_eq!(grants.len(), 4, "control page, frames, inbox, slots");
        self.1.tarry();
        self.0.prepare(grants);
    }

    fn accept(self, offer: Offer) -> Result<ShmEndpoint, ConnectError> {
        self.0.accept(offer)
    }

    fn refuse(self, refusal: Refusal) {
        self.0.refuse(refusal);
    }
}

/// Longer than a busy machine keeps a heartbeat from its turn.
const LEASE: Duration = Duration::from_secs(1);

/// Drives a server with room for `peers` in this thread while `then` runs in another, which may change how slow its
/// memory is. Returns what that returns, too: workers that are still in.
fn serve<R: Send>(
    scheme: SchemeConfig,
    peers: u16,
    then: impl FnOnce(&Address, &Slowness) -> R + Send,
) -> (Server<Slow>, R) {
    let slowness = Arc::<Slowness>::default();
    let mut options = ServerOptions::new(scheme, 1, 0.001);
    (options.memory.lease, options.memory.peers) = (LEASE, peers);
    let transport = Slow(Shm::new(), Arc::clone(&slowness));
    let mut server = Server::new(transport, &Address::random(), table(100), &[0.0; 100], options).unwrap();
    let address = server.address();
    let returned = std::thread::scope(|scope| {
        let running = scope.spawn(|| then(&address, &slowness));
        assert!(server.drive(|_| running.is_finished(), PATIENCE).unwrap(), "waited in vain");
        running.join().unwrap()
    });
    (server, returned)
}

#[test]
fn memory_that_takes_longer_than_the_lease_to_register_evicts_nobody() {
    at_once([1, 2], |workers| {
        let (server, _workers) = serve(SchemeConfig::Asp, 2, |address, slowness| {
            let mut all: Vec<_> = (1..workers).map(|_| worker(address, SchemeConfig::Asp)).collect();
            // The last one comes when all others are in.
            slowness.set(3 * LEASE);
            all.push(worker(address, SchemeConfig::Asp));
            for _ in 0..20 {
                all.iter_mut().for_each(|worker| _ = train(worker, 1.0).unwrap());
                sleep(LEASE / 10);
            }
            all.iter_mut().for_each(|worker| worker.flush(PATIENCE).unwrap());
            all
        });
        let status = server.status();
        let expected = (workers, 0, 0);
        assert_eq!((status.joined, status.left, status.refused), expected, "each joins at its first attempt");
    });
}

#[test]
fn a_server_serves_the_others_while_it_registers_memory_for_a_newcomer() {
    at_once([SchemeConfig::Asp, SchemeConfig::Bsp], |scheme| {
        let (server, _worker) = serve(scheme, 2, |address, slowness| {
            let mut first = worker(address, scheme);
            train(&mut first, 1.0).unwrap();
            slowness.set(Duration::from_secs(1000));
            let address = address.clone();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let gone = slackline::Worker::connect(
                        Shm::new(),
                        std::slice::from_ref(&address),
                        slackline::WorkerOptions::new(scheme),
                        4 * LEASE,
                    );
                    assert!(gone.is_err(), "it takes a quarter of an hour to register");
                });
                slowness.wait_until_felt();
                for _ in 0..100 {
                    train(&mut first, 1.0).unwrap();
                }
                first.flush(PATIENCE).unwrap();
            });
            first
        });
        let status = server.status();
        assert_eq!((status.joined, status.left, status.folded), (1, 0, 101), "{scheme:?}");
    });
}

#[test]
fn a_peer_that_is_being_prepared_counts_as_one() {
    let (server, _worker) = serve(SchemeConfig::Asp, 1, |address, slowness| {
        slowness.set(LEASE);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| worker(address, SchemeConfig::Asp));
            slowness.wait_until_felt();
            let options = slackline::WorkerOptions::new(SchemeConfig::Asp);
            let second =
                slackline::Worker::connect(Shm::new(), std::slice::from_ref(address), options, PATIENCE);
            let refusal = second.err().expect("there is room for one peer").to_string();
            assert!(refusal.contains("as many peers as `peers` allows (1)"), "{refusal}");
            first.join().unwrap()
        })
    });
    assert_eq!(server.status().joined, 1);
    assert!(server.status().refused >= 1, "it asks again until the first one is in");
}

#[test]
fn a_newcomer_that_a_busy_listener_drops_asks_again() {
    let (server, _worker) = serve(SchemeConfig::Asp, 1, |address, _| worker(address, SchemeConfig::Asp));
    assert_eq!((server.status().joined, server.status().refused), (1, 0));
    let asks_again = |leases| dropped_within(leases * LEASE) > 1;
    assert!([1, 4, 16].into_iter().any(asks_again), "it asks once");
}

/// Counts how often a newcomer asks a listener that drops it each time.
fn dropped_within(timeout: Duration) -> u32 {
    let address = Address::random();
    let mut listening = Shm::new().listen(&address).unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let options = slackline::WorkerOptions::new(SchemeConfig::Asp);
            slackline::Worker::connect(Shm::new(), std::slice::from_ref(&address), options, timeout)
        });
        let mut dropped = 0;
        while !asking.is_finished() {
            dropped += u32::from(listening.poll(slackline::now()).is_some());
        }
        // The deadline may cut the last time short.
        let error = asking.join().unwrap().err().expect("no listener lets it in");
        let is_expected = matches!(
            error,
            slackline::Error::Connect(ConnectError::Closed { .. }) | slackline::Error::Deadline { .. }
        );
        assert!(is_expected, "{error}");
        dropped
    })
}
