//! Copies that end with an error, and what their reader does next.

use std::time::Duration;

use slackline::internals::param::PullError;
use slackline::weights::{
    BackgroundPublisher, DeltaOptions, Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted,
};
use slackline::{Address, ElementType, Error, ShardOptions, Table, Tcp, Version, VersionTag};

use super::counting::Counting;
use super::plane::{TIMEOUT, bytes, publisher};

fn at() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// Owners that make checksums.
fn checking() -> PublisherOptions {
    let memory = ShardOptions { checksums: true, ..ShardOptions::default() };
    PublisherOptions { memory, ..PublisherOptions::default() }
}

fn is_damaged(error: &Error, of: Version) -> bool {
    matches!(error, Error::Pull { source: PullError::Checksum { version }, .. } if *version == of)
}

#[test]
fn the_error_of_a_copy_is_its_own_and_not_that_of_another_question() {
    let publisher = publisher(Tcp::new(), &at(), PublisherOptions::default());
    let mut reader =
        Reader::connect(Tcp::new(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    for number in 1..=10 {
        publisher.publish(&bytes(number), VersionTag::default(), TIMEOUT).unwrap();
    }
    let (first, newest) = (Version::new(1), publisher.version());
    reader.begin_snapshot(Wanted::exactly(first));
    // As a rule the copy has only begun after this. If the answer is there at once, its error is told at once.
    let gone = reader.poll(slackline::now()).err();
    for _ in 0..20 {
        assert_eq!(reader.newest(TIMEOUT).unwrap(), newest);
    }
    let gone = gone.unwrap_or_else(|| reader.poll(slackline::now()).unwrap_err());
    assert!(
        matches!(gone, Error::Pull { source: PullError::Gone { version, .. }, .. } if version == first),
        "{gone}"
    );
    // It has ended the copy, and nothing else.
    assert_eq!(reader.poll(slackline::now()).unwrap(), None);
    assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(10));
}

#[test]
fn a_version_by_its_number_is_that_one_or_an_error_at_once_if_it_is_too_old() {
    let publisher = publisher(Tcp::new(), &at(), PublisherOptions::default());
    let mut reader =
        Reader::connect(Tcp::new(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    for number in 1..=8 {
        publisher.publish(&bytes(number), VersionTag::default(), TIMEOUT).unwrap();
    }
    let (before, newest) = (Version::new(7), Version::new(8));
    assert_eq!(reader.refresh(0, TIMEOUT).unwrap().version, newest);
    let (mut own, wanted) = (bytes(0), Wanted::exactly(before));
    let fresh = reader.pull_into(&mut own, wanted.max_staleness(5), TIMEOUT).unwrap();
    assert_eq!((fresh.version, fresh.behind, own), (before, 1, bytes(7)));
    // The copy of the refresh is still there, and the publisher still counts this reader among those that hold it.
    assert_eq!(reader.refresh(5, TIMEOUT).unwrap().version, newest);
    publisher.wait(newest, 1, TIMEOUT).unwrap();
    let too_old = reader.snapshot(wanted.max_staleness(0), Duration::from_secs(5)).unwrap_err();
    let Error::Pull { source: PullError::TooOld { version, newest: seen, most_behind: 0 }, .. } = too_old
    else {
        panic!("{too_old}")
    };
    assert_eq!((version, seen), (before, newest));
}

/// More than a reader reads between two looks, each of which proves what has come before.
const LARGE: u64 = 80 << 20;

fn large(number: u8) -> Vec<u8> {
    vec![number; LARGE as usize]
}

fn publisher_of_large(number: u8) -> (BackgroundPublisher<Tcp>, Version) {
    let table = Table::flat(LARGE, ElementType::U8).unwrap();
    let publisher = Publisher::new(Tcp::new(), &at(), table, checking()).unwrap().into_background().unwrap();
    let version = publisher.publish(&large(number), VersionTag::default(), TIMEOUT).unwrap();
    (publisher, version)
}

#[test]
fn a_copy_that_was_damaged_does_not_go_on_with_its_damaged_part() {
    let (publisher, version) = publisher_of_large(7);
    let transport = Counting::new(Tcp::new());
    let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
    let mut reader = Reader::connect(transport.clone(), &publisher.address(), options, TIMEOUT).unwrap();
    for reconnects in [false, true] {
        transport.damage(0);
        let damaged = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap_err();
        assert!(transport.has_damaged() && is_damaged(&damaged, version), "{damaged}");
        if reconnects {
            reader.reconnect(&publisher.address(), TIMEOUT).unwrap();
        }
        assert!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes() == large(7));
    }
}

/// A relay over a transport that damages what it reads, and a reader from it.
fn relay_and_reader(transport: &Counting<Tcp>, from: &BackgroundPublisher<Tcp>) -> (Relay, Reader<Tcp>) {
    let upstream = [from.address()];
    let relay = Relay::start(transport.clone(), &upstream, &at(), checking(), TIMEOUT).unwrap();
    let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
    let reader = Reader::connect(Tcp::new(), relay.address(), options, TIMEOUT).unwrap();
    (relay, reader)
}

#[test]
fn a_relay_passes_no_bit_on_that_has_flipped_on_its_way_to_it() {
    let (transport, publisher) = (Counting::new(Tcp::new()), publisher(Tcp::new(), &at(), checking()));
    let (relay, mut reader) = relay_and_reader(&transport, &publisher);
    for number in 1..=20 {
        transport.damage(0);
        let version = publisher.publish(&bytes(number), VersionTag::default(), TIMEOUT).unwrap();
        let snapshot = reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        assert_eq!((snapshot.fresh().version, snapshot.bytes()), (version, &bytes(number)[..]));
        assert!(transport.has_damaged() && relay.failure().is_none(), "{:?}", relay.failure());
    }
}

#[test]
fn a_relay_that_a_damaged_difference_has_led_astray_reads_the_whole() {
    const BYTES: usize = 100_000;
    let transport = Counting::new(Tcp::new());
    let options =
        PublisherOptions { deltas: Some(DeltaOptions { history: 8, most_bytes: None }), ..checking() };
    let table = Table::flat(BYTES as u64, ElementType::U8).unwrap();
    let publisher = Publisher::new(Tcp::new(), &at(), table, options).unwrap().into_background().unwrap();
    let (relay, mut reader) = relay_and_reader(&transport, &publisher);
    let mut bytes = vec![0; BYTES];
    for number in 1..=20 {
        bytes.iter_mut().step_by(50).for_each(|byte| *byte = number);
        // The headers of differences are shorter, and differences are longer.
        transport.damage(2048);
        transport.take_read();
        let version = publisher.publish(&bytes, VersionTag::default(), TIMEOUT).unwrap();
        let snapshot = reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        assert!(snapshot.fresh().version == version && snapshot.bytes() == bytes, "version {number}");
        assert!(transport.has_damaged() && relay.failure().is_none(), "{:?}", relay.failure());
        assert!(transport.take_read() > BYTES as u64, "the whole was not read");
    }
}
