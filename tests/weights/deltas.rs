//! Versions as differences of those before.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slackline::weights::{
    BackgroundPublisher, DeltaOptions, Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted,
};
use slackline::{Address, ElementType, ShardOptions, Table, Tcp, Transport, Version, VersionTag};

use super::counting::Counting;
use super::plane::{TIMEOUT, beside};

/// bf16 values of the table.
const VALUES: usize = 200_000;
const BYTES: u64 = 2 * VALUES as u64;

fn keeping(history: u8) -> PublisherOptions {
    let deltas = Some(DeltaOptions { history, most_bytes: None });
    let memory =
        ShardOptions { frames: 4, chunk_bytes: 64 << 10, checksums: true, ..ShardOptions::default() };
    PublisherOptions { memory, deltas, ..PublisherOptions::default() }
}

fn publisher<T: Transport>(transport: T, at: &Address, options: PublisherOptions) -> BackgroundPublisher<T> {
    let table = Table::flat(VALUES as u64, ElementType::Bf16).unwrap();
    Publisher::new(transport, at, table, options).unwrap().into_background().unwrap()
}

fn reader<T: Transport + Clone>(transport: &T, at: &Address) -> Reader<T> {
    let options = ReaderOptions { checksums: true, ..ReaderOptions::default() };
    Reader::connect(transport.clone(), at, options, TIMEOUT).unwrap()
}

/// Draws numbers of which nothing else is asked.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// Weights of which each version changes one value in fifty, to any bits: zeros of both signs and NaNs of any payload.
struct Weights {
    bytes: Vec<u8>,
    random: u64,
}

impl Weights {
    fn new(seed: u64) -> Weights {
        let mut weights = Weights { bytes: vec![0; 2 * VALUES], random: seed };
        weights.change(1);
        weights
    }

    fn change(&mut self, one_in: u64) {
        for value in self.bytes.as_chunks_mut::<2>().0 {
            if next(&mut self.random).is_multiple_of(one_in) {
                *value = match next(&mut self.random) % 4 {
                    0 => [[0, 0], [0, 0x80]][(next(&mut self.random) % 2) as usize],
                    1 => [next(&mut self.random) as u8 | 1, 0x7f | (next(&mut self.random) as u8 & 0x80)],
                    _ => (next(&mut self.random) as u16).to_le_bytes(),
                };
            }
        }
    }
}

fn publish<T: Transport>(publisher: &BackgroundPublisher<T>, weights: &Weights) -> Version {
    let step = publisher.version().next().get() * 10;
    publisher.publish(&weights.bytes, VersionTag::step(step), TIMEOUT).unwrap()
}

pub(crate) fn a_reader_by_differences_has_the_bytes_of_the_whole<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let counting = Counting::new(transport.clone());
    let publisher = publisher(transport, at, keeping(8));
    let mut weights = Weights::new(1);
    publish(&publisher, &weights);
    let (mut copies, mut snapshots) =
        (reader(&counting, &publisher.address()), reader(&counting, &publisher.address()));
    copies.refresh(0, TIMEOUT).unwrap();
    let mut held = vec![(snapshots.snapshot(Wanted::newest(), TIMEOUT).unwrap(), weights.bytes.clone())];
    counting.take_read();
    for round in 0..12 {
        for _ in 0..=round % 3 {
            weights.change(50);
            publish(&publisher, &weights);
        }
        let version = publisher.version();
        let fresh = copies.refresh_to(version, TIMEOUT).unwrap();
        assert_eq!((fresh.version, fresh.behind, fresh.tag.step), (version, 0, version.get() * 10));
        assert!(copies.bytes().unwrap() == weights.bytes, "version {version:?} by refresh");
        let again = copies.refresh_to(version, TIMEOUT).unwrap();
        assert_eq!((fresh.copied, again.copied, again.version), (true, false, version));
        if round % 2 == 0 {
            let wanted =
                if round % 4 == 0 { Wanted::exactly(version) } else { Wanted::newest().max_staleness(0) };
            let snapshot = snapshots.snapshot(wanted, TIMEOUT).unwrap();
            assert_eq!((snapshot.fresh().version, snapshot.fresh().tag.step), (version, version.get() * 10));
            held.push((snapshot, weights.bytes.clone()));
        }
        for (snapshot, bytes) in &held {
            assert!(snapshot.bytes() == bytes, "version {:?} was changed", snapshot.fresh().version);
        }
        if round % 5 == 4 {
            held.remove(0);
        }
    }
    let whole = (12 + 6) * BYTES;
    let read = counting.take_read();
    assert!(read < whole / 2, "{read} bytes were read, and 18 whole copies are {whole}");
}

pub(crate) fn differences_are_not_applied_to_the_version_of_another_publisher<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let first = publisher(transport.clone(), at, keeping(8));
    let mut weights = Weights::new(1);
    let mut reader = reader(&transport, &first.address());
    for _ in 0..3 {
        weights.change(50);
        publish(&first, &weights);
    }
    assert_eq!(reader.refresh(0, TIMEOUT).unwrap().version.get(), 3);
    drop(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap());
    let address = first.address();
    drop(first);
    for (begin_at, seed) in [(2, 2), (3, 3)] {
        let options = PublisherOptions { begin_at: Version::new(begin_at), ..keeping(8) };
        let second = publisher(transport.clone(), &address, options);
        reader.reconnect(&second.address(), TIMEOUT).unwrap();
        // A number that the reader holds, of the other publisher; then the next.
        let mut others = Weights::new(seed);
        for version in begin_at.max(3)..=4 {
            if version > begin_at {
                others.change(50);
                publish(&second, &others);
            }
            let expected = if version > begin_at { others.bytes.clone() } else { vec![0; 2 * VALUES] };
            let fresh = reader.refresh_to(Version::new(version), TIMEOUT).unwrap();
            assert_eq!((fresh.version.get(), fresh.origin), (version, second.epoch()));
            assert!(reader.bytes().unwrap() == expected, "version {version} of the successor");
            let snapshot = reader.snapshot(Wanted::at_least(Version::new(version)), TIMEOUT).unwrap();
            assert!(snapshot.bytes() == expected, "version {version} of the successor");
        }
        drop(second);
    }
}

pub(crate) fn no_mixture_is_read_while_differences_are_overwritten<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, keeping(2));
    let relay = Relay::start(transport.clone(), &[publisher.address()], &beside(at), keeping(2), TIMEOUT);
    let relay = relay.unwrap();
    let (mut near, mut far) = (reader(&transport, &publisher.address()), reader(&transport, relay.address()));
    let is_over = AtomicBool::new(false);
    // A version is told from all others by each of its values that changed, and a row of them by their sum.
    let publish = || {
        let mut values = vec![0u16; VALUES];
        for version in 1u64.. {
            if is_over.load(Relaxed) {
                return;
            }
            (0..VALUES).step_by(64).for_each(|at| values[at + (version % 64) as usize] = version as u16);
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            publisher.publish(&bytes, VersionTag::step(version), TIMEOUT).unwrap();
        }
    };
    let check = |bytes: &[u8], version: u64| {
        let values = bytes.as_chunks::<2>().0.iter().map(|value| u16::from_le_bytes(*value));
        for (at, value) in values.enumerate() {
            let back = (version + 64 - at as u64 % 64) % 64;
            assert_eq!(u64::from(value), (version.saturating_sub(back)) & 0xffff, "value {at} of {version}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(publish);
        let mut read = || {
            for _ in 0..60 {
                let fresh = near.refresh(1_000_000, Duration::from_secs(20))?;
                check(near.bytes()?, fresh.version.get());
                let next = Wanted::at_least(fresh.version.next());
                let fresh = near.refresh_to(fresh.version.next(), Duration::from_secs(20))?;
                check(near.bytes()?, fresh.version.get());
                let snapshot = far.snapshot(next, Duration::from_secs(20))?;
                check(snapshot.bytes(), snapshot.fresh().version.get());
            }
            Ok::<_, slackline::Error>(())
        };
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut read));
        is_over.store(true, Relaxed);
        read.unwrap().unwrap();
    });
    assert!(relay.failure().is_none(), "{:?}", relay.failure());
}

/// Each version is read by a refresh, by a snapshot, and by a relay, from which a reader of its own reads it.
#[test]
fn two_percent_of_changed_values_move_at_most_five_percent_of_the_bytes() {
    let at: Address = "127.0.0.1:0".parse().unwrap();
    let publisher = publisher(Tcp::new(), &at, keeping(8));
    let ways = [(); 4].map(|()| Counting::new(Tcp::new()));
    let [refreshing, taking, relaying, behind] = &ways;
    let mut weights = Weights::new(1);
    publish(&publisher, &weights);
    let (mut copies, mut snapshots) =
        (reader(refreshing, &publisher.address()), reader(taking, &publisher.address()));
    let relay = Relay::start(relaying.clone(), &[publisher.address()], &at, keeping(8), TIMEOUT).unwrap();
    let mut far = reader(behind, relay.address());
    const VERSIONS: u64 = 5;
    for number in 0..=VERSIONS {
        if number > 0 {
            weights.change(50);
            publish(&publisher, &weights);
        }
        let version = publisher.version();
        far.refresh_to(version, TIMEOUT).unwrap();
        copies.refresh_to(version, TIMEOUT).unwrap();
        let snapshot = snapshots.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        let all = [far.bytes().unwrap(), copies.bytes().unwrap(), snapshot.bytes()];
        assert!(all.iter().all(|bytes| *bytes == weights.bytes), "{version:?}");
        if number == 0 {
            assert!(ways.iter().all(|way| way.take_read() >= BYTES), "the first is read whole");
        }
    }
    let most = BYTES / 20;
    for (way, name) in ways.iter().zip(["refresh", "snapshot", "relay", "behind the relay"]) {
        let read = way.take_read() / VERSIONS;
        println!("{name}: {read} of {BYTES} bytes, {:.2} %", 100.0 * read as f64 / BYTES as f64);
        assert!(read <= most, "{name}: {read} of {BYTES} bytes for each version");
    }
}

#[test]
fn a_snapshot_whose_base_is_forgotten_is_read_whole_into_the_memory_at_hand() {
    let at: Address = "127.0.0.1:0".parse().unwrap();
    let counting = Counting::new(Tcp::new());
    let publisher = publisher(Tcp::new(), &at, keeping(8));
    let mut weights = Weights::new(1);
    publish(&publisher, &weights);
    let mut reader = reader(&counting, &publisher.address());
    let mut memory = Vec::new();
    let mut others = Vec::new();
    for is_whole in [true, false, true, true] {
        if is_whole {
            reader.forget_base();
            // Memory that was given back to the system would go to this.
            others.push(vec![1u8; BYTES as usize]);
        }
        weights.change(50);
        publish(&publisher, &weights);
        counting.take_read();
        let snapshot = reader.snapshot(Wanted::at_least(publisher.version()), TIMEOUT).unwrap();
        assert!(snapshot.bytes() == weights.bytes);
        assert_eq!(counting.take_read() >= BYTES, is_whole);
        memory.push(snapshot.bytes().as_ptr());
    }
    // One snapshot is made out of another, and later ones in the memory of either.
    assert!(memory[2..].iter().all(|at| memory[..2].contains(at)), "{memory:?}");
}

#[test]
fn a_version_is_read_whole_where_no_differences_lead_to_it() {
    let at: Address = "127.0.0.1:0".parse().unwrap();
    let counting = Counting::new(Tcp::new());
    let publisher = publisher(Tcp::new(), &at, keeping(3));
    let mut weights = Weights::new(1);
    publish(&publisher, &weights);
    let mut reader = reader(&counting, &publisher.address());
    let mut read = |weights: &Weights, version: Version| {
        reader.refresh_to(version, TIMEOUT).unwrap();
        assert!(reader.bytes().unwrap() == weights.bytes, "{version:?}");
        counting.take_read() >= BYTES
    };
    assert!(read(&weights, Version::new(1)), "there is no copy yet");
    // Of the last three versions there are differences.
    for (versions, is_whole) in [(3, false), (4, true), (1, false)] {
        for _ in 0..versions {
            weights.change(50);
            publish(&publisher, &weights);
        }
        assert_eq!(read(&weights, publisher.version()), is_whole, "{versions} versions behind");
    }
    // One that does not fit.
    weights.change(3);
    publish(&publisher, &weights);
    assert!(read(&weights, publisher.version()));
    weights.change(50);
    publish(&publisher, &weights);
    assert!(!read(&weights, publisher.version()));
    // What equals the version before differs by nothing.
    publish(&publisher, &weights);
    assert!(!read(&weights, publisher.version()));
}

#[test]
fn settings_of_differences_that_cannot_be_are_errors() {
    let table = || Table::flat(8, ElementType::F32).unwrap();
    for (option, deltas) in [
        ("history", DeltaOptions { history: 0, most_bytes: None }),
        ("most_bytes", DeltaOptions { history: 1, most_bytes: Some(0) }),
    ] {
        let options = PublisherOptions { deltas: Some(deltas), ..PublisherOptions::default() };
        let error = Publisher::new(slackline::Shm::new(), &Address::random(), table(), options).err();
        assert!(matches!(error, Some(slackline::Error::Option { option: named, .. }) if named == option));
    }
}
