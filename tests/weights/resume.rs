//! Copies that go on at another owner.

use std::time::Duration;

use slackline::scheme::SchemeConfig;
use slackline::weights::{
    BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted,
};
use slackline::{Address, ElementType, Server, ServerOptions, Table, Tcp, Transport, Version, VersionTag};

use super::counting::Counting;
use super::plane::TIMEOUT;

/// Three quarters of it are more than a reader reads between two looks, and much more than a relay does.
const BYTES: u64 = 128 << 20;

fn at() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn publisher(begin_at: u64) -> BackgroundPublisher<Tcp> {
    let table = Table::flat(BYTES / 8, ElementType::U64).unwrap();
    let options = PublisherOptions { begin_at: Version::new(begin_at), ..PublisherOptions::default() };
    Publisher::new(Tcp::new(), &at(), table, options).unwrap().into_background().unwrap()
}

/// Words that each say where they lie and of which publisher and version they are.
fn words(publisher: u64, version: u64) -> Vec<u8> {
    let word = |at: u64| (publisher << 60 | version << 40 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BYTES / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn publish(to: &BackgroundPublisher<Tcp>, bytes: &[u8]) -> Version {
    to.publish(bytes, VersionTag::step(7), TIMEOUT).unwrap()
}

fn relay<T: Transport + Clone>(transport: T, upstream: &[Address]) -> Relay {
    Relay::start(transport, upstream, &at(), PublisherOptions::default(), TIMEOUT).unwrap()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = slackline::now() + TIMEOUT;
    while !is_so() {
        assert!(slackline::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_reader_goes_on_where_it_stopped_if_the_next_owner_has_the_version() {
    let (transport, first) = (Counting::new(Tcp::new()), publisher(0));
    let second = relay(Tcp::new(), &[first.address()]);
    let bytes = words(1, 1);
    let version = publish(&first, &bytes);
    until("the relay has the version", || second.version() == version);
    let mut reader =
        Reader::connect(transport.clone(), &first.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    for is_snapshot in [false, true] {
        reader.reconnect(&first.address(), TIMEOUT).unwrap();
        transport.take_read();
        transport.break_after(BYTES * 3 / 4);
        let read = |reader: &mut Reader<_>| match is_snapshot {
            true => reader.snapshot(Wanted::at_least(version), TIMEOUT).map(|it| it.bytes() == bytes),
            false => reader.refresh_to(version, TIMEOUT).map(|_| reader.bytes().unwrap() == bytes),
        };
        let lost = read(&mut reader).unwrap_err();
        assert!(lost.is_loss(), "{lost}");
        transport.take_read();
        reader.reconnect(second.address(), TIMEOUT).unwrap();
        assert!(read(&mut reader).unwrap(), "not the bytes of the version");
        let again = transport.take_read();
        assert!(again < BYTES * 3 / 4, "{again} of {BYTES} bytes were read again");
    }
}

#[test]
fn a_copy_does_not_go_on_with_the_same_number_of_another_publisher() {
    let (transport, first, other) = (Counting::new(Tcp::new()), publisher(0), publisher(0));
    let (bytes, others) = (words(1, 1), words(2, 1));
    let version = publish(&first, &bytes);
    assert_eq!(publish(&other, &others), version);
    let mut reader =
        Reader::connect(transport.clone(), &first.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    transport.take_read();
    transport.break_after(BYTES * 3 / 4);
    assert!(reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap_err().is_loss());
    reader.reconnect(&other.address(), TIMEOUT).unwrap();
    let snapshot = reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
    assert_eq!((snapshot.fresh().version, snapshot.fresh().origin), (version, other.epoch()));
    assert!(snapshot.bytes() == others, "a mixture of two publishers' versions");
}

/// Serves so many parameters of this value until the test ends.
fn server(value: f32) -> Address {
    let (table, options) =
        (Table::flat(BYTES / 4, ElementType::F32), ServerOptions::new(SchemeConfig::Bsp, 1, 0.1));
    let initial = vec![value; (BYTES / 4) as usize];
    let mut server = Server::new(Tcp::new(), &at(), table.unwrap(), &initial, options).unwrap();
    let address = server.address();
    std::thread::spawn(move || server.serve(1, 10 * TIMEOUT));
    address
}

#[test]
fn a_copy_does_not_go_on_with_the_same_number_of_another_server() {
    let (transport, first, next) = (Counting::new(Tcp::new()), server(1.0), server(2.0));
    let mut reader = Reader::connect(transport.clone(), &first, ReaderOptions::default(), TIMEOUT).unwrap();
    transport.take_read();
    transport.break_after(BYTES * 3 / 4);
    let initial = Wanted::exactly(Version::new(0));
    assert!(reader.snapshot(initial, TIMEOUT).unwrap_err().is_loss());
    reader.reconnect(&next, TIMEOUT).unwrap();
    let snapshot = reader.snapshot(initial, TIMEOUT).unwrap();
    let is_next = |word: &[u8; 4]| f32::from_le_bytes(*word) == 2.0;
    assert!(snapshot.bytes().as_chunks().0.iter().all(is_next), "a mixture of two servers' versions");
}

#[test]
fn a_relay_lets_readers_in_once_it_has_the_first_version_of_its_owner() {
    let relay = relay(Tcp::new(), &[server(3.0)]);
    let mut reader = Reader::connect(Tcp::new(), relay.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let snapshot = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap();
    assert_eq!(snapshot.fresh().version, Version::new(0));
    let is_initial = |word: &[u8; 4]| f32::from_le_bytes(*word) == 3.0;
    assert!(snapshot.bytes().as_chunks().0.iter().all(is_initial), "no version that the server has");
}

#[test]
fn a_relay_goes_on_where_it_lost_its_owner_and_so_do_its_readers() {
    let (transport, first) = (Counting::new(Tcp::new()), publisher(0));
    let between = relay(Tcp::new(), &[first.address()]);
    let bytes = words(1, 1);
    let version = publish(&first, &bytes);
    until("the relay has the version", || between.version() == version);
    transport.break_after(BYTES * 3 / 4);
    let last = relay(transport.clone(), &[between.address().clone(), first.address()]);
    let mut reader = Reader::connect(Tcp::new(), last.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let snapshot = reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
    assert!(snapshot.bytes() == bytes && last.failure().is_none());
    // Three quarters before, one after, and what was not proved yet: four reads of 2 MiB in flight, and as many that
    // have come since the look before them was posted.
    let read = transport.take_read();
    assert!(read <= BYTES + (16 << 20), "{read} bytes were read of {BYTES}");
    assert!(transport.has_broken(), "the first owner was never lost");
}
