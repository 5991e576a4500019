//! A tree of relays that the publisher arranges.

use slackline::weights::{BackgroundPublisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted};
use slackline::{Address, Mixed, ShardOptions, Shm, Tcp, Transport, VersionTag};

use super::plane::{TIMEOUT, beside, bytes, publisher};
use super::relay::until;

/// The memory of an owner with this many peers, of which so many are relays.
fn options(peers: u16, branches: u16) -> PublisherOptions {
    let lease = std::time::Duration::from_millis(1500);
    let memory = ShardOptions { peers, lease, ..ShardOptions::default() };
    PublisherOptions { memory, branches, ..PublisherOptions::default() }
}

fn join<T: Transport + Clone>(transport: &T, root: &Address, options: PublisherOptions) -> Relay {
    Relay::join(transport.clone(), root, &beside(root), options, TIMEOUT).unwrap()
}

fn reader<T: Transport + Clone>(transport: &T, root: &Address) -> Reader<T> {
    let in_tree = ReaderOptions { in_tree: true, ..ReaderOptions::default() };
    Reader::connect(transport.clone(), root, in_tree, TIMEOUT).unwrap()
}

/// Waits until a relay has said that it has room: then readers are not all the publisher's.
fn until_readers_are_sent_to<T: Transport + Clone>(relays: &[&Relay], transport: &T, root: &Address) {
    let peers = || relays.iter().map(|relay| relay.readers().len()).sum::<usize>();
    let before = peers();
    until("a reader is sent to a relay", || {
        let _reader = reader(transport, root);
        // A relay tells of its readers every 10 ms.
        std::thread::sleep(std::time::Duration::from_millis(20));
        peers() > before
    });
}

/// Waits until as many peers read from the publisher as should: those that have left are noticed a little later.
fn expect_readers<T: Transport>(publisher: &BackgroundPublisher<T>, readers: usize) {
    until("the publisher has the peers that it should", || publisher.readers().len() == readers);
}

/// Waits until as many peers read from each as it should.
fn expect_peers(relays: &[&Relay], peers: &[usize]) {
    until("each relay has the peers that it should", || {
        relays.iter().zip(peers).all(|(relay, peers)| relay.readers().len() == *peers)
    });
}

pub(crate) fn relays_and_readers_go_where_the_publisher_says<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, options(64, 1));
    let root = publisher.address();
    publisher.publish(&bytes(1), VersionTag::step(1), TIMEOUT).unwrap();
    let relays = [0; 3].map(|_| join(&transport, &root, options(64, 1)));
    until("all relays have the version", || relays.iter().all(|relay| relay.version().get() == 1));
    // One branch each: a chain.
    expect_peers(&relays.each_ref(), &[1, 1, 0]);
    until_readers_are_sent_to(&relays.each_ref(), &transport, &root);
    let mut readers = [0; 6].map(|_| reader(&transport, &root));
    // Only the first relay reads from the publisher.
    expect_readers(&publisher, 1);
    let version = publisher.publish(&bytes(2), VersionTag::step(2), TIMEOUT).unwrap();
    for reader in &mut readers {
        let snapshot = reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        assert_eq!(snapshot.bytes(), bytes(2));
        assert_eq!((snapshot.fresh().origin, snapshot.fresh().tag.step), (publisher.epoch(), 2));
    }
}

pub(crate) fn a_tree_mends_itself_while_a_relay_dies_and_others_join<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, options(64, 1));
    let root = publisher.address();
    let first = join(&transport, &root, options(64, 1));
    let second = join(&transport, &root, options(64, 1));
    let third = join(&transport, &root, options(64, 1));
    let direct = ReaderOptions::default();
    let mut far = Reader::connect(transport.clone(), third.address(), direct, TIMEOUT).unwrap();
    let mut read = |number| {
        let version = publisher.publish(&bytes(number), VersionTag::step(number), TIMEOUT).unwrap();
        let snapshot = far.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        assert_eq!((snapshot.bytes(), snapshot.fresh().origin), (&bytes(number)[..], publisher.epoch()));
    };
    read(1);
    // The whole chain hangs on the first one; two more join at the moment when it dies.
    let (fourth, fifth) = std::thread::scope(|scope| {
        let joining = [0; 2].map(|_| scope.spawn(|| join(&transport, &root, options(64, 1))));
        drop(first);
        <(_, _)>::from(joining.map(|joining| joining.join().unwrap()))
    });
    // The last reader is connected to the same relay all the time.
    read(2);
    until("the chain is one again", || {
        let relays = [&second, &third, &fourth, &fifth];
        // One reads from the publisher, and each other one from another: only the last has no reader behind it.
        let ends = relays.iter().filter(|relay| relay.readers().is_empty()).count();
        publisher.readers().len() == 1 && ends <= 1
    });
    read(3);
    for relay in [&second, &third, &fourth, &fifth] {
        until("each has the last version", || relay.version().get() == 3);
        assert!(relay.failure().is_none());
    }
}

pub(crate) fn a_reader_goes_past_a_full_relay_to_the_next_owner<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, options(64, 1));
    let root = publisher.address();
    publisher.publish(&bytes(1), VersionTag::step(1), TIMEOUT).unwrap();
    let relay = join(&transport, &root, options(1, 1));
    until_readers_are_sent_to(&[&relay], &transport, &root);
    // Past the tree, so that the publisher sends others there until it hears of this one.
    let direct = ReaderOptions::default();
    let only = Reader::connect(transport.clone(), relay.address(), direct, TIMEOUT).unwrap();
    let mut readers = [only, reader(&transport, &root), reader(&transport, &root)];
    for reader in &mut readers {
        assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
    }
    expect_peers(&[&relay], &[1]);
    // The relay, and two readers for which it has no room.
    expect_readers(&publisher, 3);
}

pub(crate) fn a_tree_goes_on_with_the_successor_of_its_publisher<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let first = publisher(transport.clone(), at, options(64, 1));
    let root = first.address();
    let (near, far) = (join(&transport, &root, options(64, 1)), join(&transport, &root, options(64, 1)));
    first.publish(&bytes(1), VersionTag::step(1), TIMEOUT).unwrap();
    until("the far relay has it", || far.version().get() == 1);
    drop(first);
    let second = publisher(transport.clone(), &root, options(64, 1));
    second.publish(&bytes(8), VersionTag::step(8), TIMEOUT).unwrap();
    let version = second.publish(&bytes(9), VersionTag::step(9), TIMEOUT).unwrap();
    until("both have the successor's versions", || {
        [&near, &far].iter().all(|relay| relay.version() == version)
    });
    let direct = ReaderOptions::default();
    let mut reader = Reader::connect(transport, far.address(), direct, TIMEOUT).unwrap();
    let snapshot = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap();
    assert_eq!((snapshot.bytes(), snapshot.fresh().origin), (&bytes(9)[..], second.epoch()));
    assert!(near.failure().is_none() && far.failure().is_none());
}

/// Over TCP between hosts, and over shared memory where the relay is.
#[test]
fn a_reader_that_asks_over_tcp_reads_from_its_hosts_relay_in_memory() {
    let listen = || format!("{},127.0.0.1:0", Address::random()).parse::<Address>().unwrap();
    let transport = Mixed::new(Shm::new(), Tcp::new());
    let publisher = publisher(transport.clone(), &listen(), options(64, 1));
    let Address::Several(roots) = publisher.address() else { panic!("two addresses") };
    let over_tcp = &roots[1];
    let relay = Relay::join(transport.clone(), over_tcp, &listen(), options(64, 1), TIMEOUT).unwrap();
    publisher.publish(&bytes(1), VersionTag::step(1), TIMEOUT).unwrap();
    until("the relay has it", || relay.version().get() == 1);
    until_readers_are_sent_to(&[&relay], &transport, over_tcp);
    let mut reader = reader(&transport, over_tcp);
    // In place: it is the relay's memory.
    reader.hold(slackline::internals::scheme::Bound::NONE, TIMEOUT).unwrap();
    assert!(reader.held().is_some());
    // The relay alone.
    expect_readers(&publisher, 1);
    expect_peers(&[&relay], &[1]);
}

#[test]
fn a_relay_that_others_cannot_reach_is_refused_a_position() {
    let root: Address = "127.0.0.1:9".parse().unwrap();
    for at in ["0.0.0.0:0", "[::]:7000", "@x,0.0.0.0:7"] {
        let joined =
            Relay::join(Mixed::default(), &root, &at.parse().unwrap(), PublisherOptions::default(), TIMEOUT);
        let refused = joined.err().unwrap().to_string();
        assert!(refused.contains("one of this host's interfaces"), "{refused}");
    }
}
