//! Owners that were away for longer than the lease: stopped, starved, or busy with something else.

use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::process::Signal;
use slackline::internals::param::PeerRole;
use slackline::internals::transport::Inline;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, Error, Instant, RendezvousEndpoint, ServerOptions, ShardOptions, Shm, Tcp, Transport, Version,
    now, scheme::SchemeConfig,
};

use super::at_once::at_once;
use super::raw::{HEARTBEAT, Raw, worker_role};
use super::second::{EVICTED, PATIENCE, Second, retry, server, table, told};

const LEASE: Duration = Duration::from_secs(3);

/// Polls an owner every 20 ms of virtual time, `since` being the moment of its last poll, until `stop` or the end of
/// `listened`. Returns how much time passed.
fn listen(since: &mut Instant, listened: Duration, mut poll: impl FnMut(Instant) -> bool) -> Duration {
    let begun = *since;
    while *since - begun < listened {
        *since = *since + Duration::from_millis(20);
        if poll(*since) {
            break;
        }
    }
    *since - begun
}

#[test]
fn a_server_that_was_away_for_many_leases_evicts_nobody() {
    let mut server = server(100, ServerOptions::new(SchemeConfig::Asp, 2, 1.0));
    let address = server.address();
    let mut join = || {
        let poll = || {
            server.poll(now()).unwrap();
        };
        Raw::join(&address, worker_role(SchemeConfig::Asp), poll)
    };
    let (mut alive, mut dead) = (join(), join());
    dead.beat_once();
    let mut time = now();
    let mut left = |at: Instant| {
        server.poll(at).unwrap();
        server.status().left
    };
    assert_eq!(left(time), 0);
    // Neither beats meanwhile: over TCP it is the owner's own thread that would hear of it.
    for _ in 0..3 {
        time = time + 20 * LEASE;
        assert_eq!(left(time), 0, "the server takes its own pause for theirs");
    }
    for beat in 1..=10 {
        alive.write(HEARTBEAT, Inline::word(beat));
        listen(&mut time, LEASE / 10, |at| left(at) > 0);
    }
    // The dead one is found a lease of listening later, and no other.
    alive.write(HEARTBEAT, Inline::word(11));
    let took = listen(&mut time, LEASE / 2, |at| left(at) > 0);
    assert!(took < LEASE / 2, "the dead worker is still in");
    alive.write(HEARTBEAT, Inline::word(12));
    assert_eq!(listen(&mut time, LEASE / 2, |at| left(at) > 1), LEASE / 2, "the living one is evicted");
    let took = listen(&mut time, LEASE, |at| left(at) > 1);
    assert!(took < LEASE, "a worker that falls silent is evicted while the server listens");
}

#[test]
fn a_publisher_that_computed_for_many_leases_evicts_nobody() {
    let mut publisher =
        Publisher::new(Shm::new(), &Address::random(), table(64), PublisherOptions::default()).unwrap();
    let address = publisher.address();
    let poll = || {
        publisher.poll(now());
    };
    let mut reader = Raw::join(&address, PeerRole::Reader, poll);
    reader.beat_once();
    publisher.poll(now());
    assert_eq!(publisher.readers().len(), 1);
    let mut time = now();
    for _ in 0..3 {
        time = time + 20 * LEASE;
        publisher.poll(time);
        assert_eq!(publisher.readers().len(), 1, "the publisher takes its own pause for its reader's");
    }
    let took = listen(&mut time, 2 * LEASE, |at| {
        publisher.poll(at);
        publisher.readers().is_empty()
    });
    assert!((LEASE / 2..=LEASE).contains(&took), "a dead reader left after {took:?}");
}

/// Listens at an address of its own, and publishes until it is ended.
fn publish_for_ever<T: Transport>(transport: T, address: &Address) -> ! {
    let options = PublisherOptions {
        memory: ShardOptions { lease: SHORT, ..ShardOptions::default() },
        ..PublisherOptions::default()
    };
    let mut publisher = Publisher::new(transport, address, table(64), options).unwrap();
    for round in 0.. {
        publisher.publish(&[round as u8; 256], PATIENCE).unwrap();
        publisher.drive(|_| false, Duration::from_millis(5)).unwrap();
    }
    unreachable!("it is ended before that")
}

/// Longer than a busy machine keeps a heartbeat from its turn.
const SHORT: Duration = Duration::from_secs(1);

fn reads_on<T: Transport>(transport: impl Fn() -> T, address: &Address, publisher: &Second) {
    let options = ReaderOptions::default();
    let mut readers = [(); 3].map(|()| retry(|| Reader::connect(transport(), address, options, PATIENCE)));
    let mut read = || {
        readers.each_mut().map(|reader| {
            let newest = reader.refresh(0, PATIENCE).unwrap().version;
            reader.refresh_to(Version::new(newest.get() + 3), PATIENCE).unwrap().version
        })
    };
    let before = read();
    publisher.signal(Signal::STOP);
    std::thread::sleep(3 * SHORT);
    publisher.signal(Signal::CONT);
    let after = read();
    assert!(after.iter().zip(before).all(|(after, before)| *after > before), "{after:?}");
    std::thread::sleep(2 * SHORT);
    read();
}

#[test]
fn a_publisher_that_was_stopped_for_longer_than_the_lease_keeps_its_readers() {
    let claim = a_publisher_that_was_stopped_for_longer_than_the_lease_keeps_its_readers;
    if let Some(words) = told() {
        match words[0].parse().unwrap() {
            address @ Address::Tcp(_) => publish_for_ever(Tcp::new(), &address),
            address => publish_for_ever(Shm::new(), &address),
        }
    }
    let host = Ipv4Addr::LOCALHOST;
    let RendezvousEndpoint { port, .. } = RendezvousEndpoint::free(host.into()).unwrap();
    at_once([Address::random(), Address::Tcp((host, port).into())], |address| {
        let publisher = Second::start(claim, &[address.to_string()]);
        match address {
            Address::Tcp(_) => reads_on(Tcp::new, &address, &publisher),
            _ => reads_on(Shm::new, &address, &publisher),
        }
    });
}

#[test]
fn a_reader_stopped_for_longer_than_the_lease_is_told_when_it_wakes() {
    if let Some(words) = told() {
        let (address, options) = (words[0].parse().unwrap(), ReaderOptions::default());
        let mut reader = Reader::connect(Shm::new(), &address, options, PATIENCE).unwrap();
        loop {
            match reader.refresh(0, PATIENCE) {
                Ok(_) => std::thread::sleep(Duration::from_millis(5)),
                Err(Error::Evicted { .. }) => std::process::exit(EVICTED),
                Err(error) => panic!("{error}"),
            }
        }
    }
    let options = PublisherOptions {
        memory: ShardOptions { lease: SHORT, ..ShardOptions::default() },
        ..PublisherOptions::default()
    };
    let mut publisher = Publisher::new(Shm::new(), &Address::random(), table(64), options).unwrap();
    let claim = a_reader_stopped_for_longer_than_the_lease_is_told_when_it_wakes;
    let mut reader = Second::start(claim, &[publisher.address().to_string()]);
    let mut drive = |readers: usize| {
        let until =
            |publisher: &Publisher<Shm>| publisher.joined() == 1 && publisher.readers().len() == readers;
        assert!(publisher.drive(until, PATIENCE).unwrap(), "there are never {readers} readers");
    };
    drive(1);
    reader.signal(Signal::STOP);
    drive(0);
    reader.signal(Signal::CONT);
    assert_eq!(reader.wait().code(), Some(EVICTED));
}
