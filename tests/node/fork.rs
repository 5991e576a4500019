//! Forked children, which inherit the mapped memory of owners and readers, and must leave it alone.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use slackline::checkpoint::CheckpointOptions;
use slackline::internals::mem::{Access, HostMemory, MemoryRegion};
use slackline::internals::transport::tcp::{TcpConnecting, TcpEndpoint, TcpIncoming, TcpListener};
use slackline::internals::transport::{Capabilities, Listener, Offer, RegisterError};
use slackline::scheme::{Bound, SchemeConfig};
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay};
use slackline::{
    Address, ConnectError, ElementType, Error, Idle, Instant, Server, ServerOptions, ShardOptions, Shm,
    Table, Tables, Tcp, Transport, Version,
};

use crate::only_worker::TIMEOUT;

const BYTES: usize = 4096;

/// Runs `child` in a forked child, all of whose claims must hold. The child drops nothing that it does not name, calls
/// nothing that takes a lock, and leaves without running what belongs to its parent.
fn in_a_child(child: impl FnOnce() -> Vec<bool>) {
    // SAFETY: what the child calls takes no lock but that of the allocator, which a fork leaves open; it leaves by
    // `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let claims = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        let failed = claims.map_or(Some(254), |claims| claims.iter().position(|holds| !holds));
        let failed = failed.map_or(0, |index| index + 1);
        // SAFETY: as above.
        unsafe { libc::_exit(failed as i32) };
    }
    let mut status = 0;
    // SAFETY: the pid is that of our child; `status` is live.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "the child ended by {status:#x}");
    assert_eq!(
        libc::WEXITSTATUS(status),
        0,
        "the number of the claim that did not hold in the child; 255 is a panic"
    );
}

/// Drops a copy of `owner` in a forked child, and `owner` itself afterwards.
fn drop_in_a_child<T>(owner: T) {
    in_a_child(|| {
        // SAFETY: the parent's value is another; this one is a copy that is dropped here alone.
        drop(unsafe { std::ptr::read(&raw const owner) });
        Vec::new()
    });
}

/// A child has only the thread that forked it, and joining another one that it inherited panics.
#[test]
fn a_child_that_drops_what_has_threads_leaves_them_to_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let table = || Table::flat(BYTES as u64 / 4, ElementType::F32).unwrap();
    let server = |threads, checkpoint| {
        let options = ServerOptions { threads, checkpoint, ..ServerOptions::new(SchemeConfig::Asp, 1, 0.1) };
        Server::new(Shm::new(), &Address::random(), table(), &[0.0; BYTES / 4], options).unwrap()
    };
    drop_in_a_child(server(2, None));
    drop_in_a_child(server(1, Some(CheckpointOptions::new(folder.path().join("shard.safetensors")))));
    let options = PublisherOptions::default();
    let publisher = Publisher::new(Shm::new(), &Address::random(), table(), options).unwrap();
    drop_in_a_child(publisher.into_background().unwrap());
}

/// Their locks may be held by a thread that a child does not have.
#[test]
fn a_child_asks_no_thread_of_its_parents_for_relays_and_tables() {
    let tables = Tables::listen(Shm::new(), &Address::random()).unwrap();
    let table = Table::flat(BYTES as u64 / 4, ElementType::F32).unwrap();
    let publish = |number| {
        let options = PublisherOptions { begin_at: Version::new(number), ..PublisherOptions::default() };
        Publisher::new(tables.named("base"), tables.address(), table.clone(), options)
    };
    let publisher = publish(7).unwrap().into_background().unwrap();
    let named = slackline::Named::new(Shm::new(), "base");
    let (upstream, at) = ([tables.address().clone()], Address::random());
    let relay = Relay::start(named, &upstream, &at, PublisherOptions::default(), TIMEOUT).unwrap();
    let deadline = std::time::Instant::now() + TIMEOUT;
    while relay.version() != Version::new(7) {
        assert!(std::time::Instant::now() < deadline, "the relay has no version");
        std::thread::yield_now();
    }
    in_a_child(|| {
        let refused = matches!(publish(8), Err(Error::Connect(ConnectError::System { .. })));
        vec![
            relay.version() == Version::new(0),
            tables.names().is_empty(),
            relay.failure().is_none(),
            refused,
        ]
    });
    assert_eq!((tables.names(), publisher.version()), (vec!["base".to_owned()], Version::new(7)));
}

/// A publisher and a reader of it in this process.
fn pair() -> (Publisher<Shm>, Reader<Shm>) {
    let table = Table::flat(BYTES as u64 / 4, ElementType::F32).unwrap();
    let address = Address::random();
    let mut publisher = Publisher::new(Shm::new(), &address, table, PublisherOptions::default()).unwrap();
    let connect = move || Reader::connect(Shm::new(), &address, ReaderOptions::default(), TIMEOUT).unwrap();
    let connecting = std::thread::spawn(connect);
    assert!(publisher.drive(|publisher| publisher.readers().len() == 1, TIMEOUT).unwrap());
    (publisher, connecting.join().unwrap())
}

#[test]
fn a_pin_that_a_child_lets_go_of_still_holds_the_frame_for_its_parent() {
    let (mut publisher, mut reader) = pair();
    publisher.publish(&[1; BYTES], TIMEOUT).unwrap();
    let pinned = reader.pin(Bound::version(Version::new(1)), TIMEOUT).unwrap();
    let bytes = pinned.bytes().unwrap();
    in_a_child(|| {
        // SAFETY: the parent's value is another; this one is a copy that is dropped here alone.
        drop(unsafe { std::ptr::read(&raw const pinned) });
        Vec::new()
    });
    for value in 2..7 {
        publisher.publish(&[value; BYTES], TIMEOUT).unwrap();
    }
    let mut seen = vec![0; BYTES];
    bytes.read(&mut seen);
    assert!(seen == [1; BYTES] && pinned.is_intact());
    drop(pinned);

    in_a_child(|| vec![reader.hold(Bound::NONE, TIMEOUT).is_err()]);
    reader.hold(Bound::NONE, TIMEOUT).unwrap();
    in_a_child(|| {
        reader.release();
        Vec::new()
    });
    for value in 7..12 {
        publisher.publish(&[value; BYTES], TIMEOUT).unwrap();
    }
    assert!(reader.is_intact());
}

#[test]
fn an_owner_in_a_child_writes_nothing_and_evicts_no_peer_of_its_parent() {
    let (mut publisher, mut reader) = pair();
    publisher.publish_begin(TIMEOUT).unwrap().write(&[1; BYTES]);
    let before = reader.newest(TIMEOUT).unwrap();
    in_a_child(|| {
        // Long enough for it to ask after the reader's connection.
        let polled = publisher.drive(|publisher| publisher.readers().is_empty(), Duration::from_millis(50));
        let begun = publisher.publish(&[9; BYTES], TIMEOUT);
        let committed = publisher.publish_commit();
        publisher.publish_abort();
        let is_out_of_turn = |error| matches!(error, Err(Error::OutOfTurn { .. }));
        vec![matches!(polled, Ok(false)), is_out_of_turn(begun), is_out_of_turn(committed)]
    });
    let version = publisher.publish_commit().unwrap();
    assert_eq!(version, before.next());
    let pinned = reader.pin(Bound::version(version), TIMEOUT).unwrap();
    let mut seen = vec![0; BYTES];
    pinned.bytes().unwrap().read(&mut seen);
    assert!(seen == [1; BYTES] && pinned.version() == version);
    drop(pinned);
    assert_eq!(reader.newest(TIMEOUT).unwrap(), version);
}

#[test]
fn a_server_in_a_child_says_that_it_belongs_to_its_parent() {
    let table = Table::flat(BYTES as u64 / 4, ElementType::F32).unwrap();
    let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.1);
    let mut server =
        Server::new(Shm::new(), &Address::random(), table, &vec![0.0; BYTES / 4], options).unwrap();
    in_a_child(|| {
        let polled = server.serve(1, TIMEOUT);
        vec![polled.is_err_and(|error| error.to_string().contains("forked"))]
    });
}

/// TCP, or a listener of it, and how often an owner has slept there.
struct Sleeping<T>(T, Arc<AtomicU64>);

impl Transport for Sleeping<Tcp> {
    type Endpoint = TcpEndpoint;
    type Listener = Sleeping<TcpListener>;
    type Connecting = TcpConnecting;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.register(memory, access)
    }

    fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.allocate(bytes, access)
    }

    fn listen(&self, address: &Address) -> Result<Sleeping<TcpListener>, ConnectError> {
        Ok(Sleeping(self.0.listen(address)?, Arc::clone(&self.1)))
    }

    fn connect(&self, address: &Address, offer: Offer) -> Result<TcpConnecting, ConnectError> {
        self.0.connect(address, offer)
    }
}

impl Listener for Sleeping<TcpListener> {
    type Endpoint = TcpEndpoint;
    type Incoming = TcpIncoming;

    fn address(&self) -> Address {
        self.0.address()
    }

    fn poll(&mut self, now: Instant) -> Option<TcpIncoming> {
        self.0.poll(now)
    }

    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        self.0.be_notified()
    }

    fn wait(&mut self, timeout: Duration) {
        self.1.fetch_add(1, Relaxed);
        self.0.wait(timeout);
    }
}

/// A child that slept where its parent does would take its wake-ups.
#[test]
fn an_owner_in_a_child_does_not_sleep_where_its_parent_does() {
    let (sleeps, table) = (Arc::new(AtomicU64::new(0)), Table::flat(16, ElementType::F32).unwrap());
    let (tcp, address) = (Sleeping(Tcp::new(), Arc::clone(&sleeps)), "127.0.0.1:0".parse().unwrap());
    let memory = ShardOptions { idle: Idle::Sleep, ..ShardOptions::default() };
    let options = PublisherOptions { memory, ..PublisherOptions::default() };
    let mut publisher = Publisher::new(tcp, &address, table, options).unwrap();
    assert!(publisher.drive(|_| sleeps.load(Relaxed) > 0, TIMEOUT).unwrap(), "it sleeps in its own process");
    let before = sleeps.load(Relaxed);
    in_a_child(|| {
        let polled = publisher.drive(|_| false, Duration::from_millis(50));
        vec![matches!(polled, Ok(false)), sleeps.load(Relaxed) == before]
    });
}
