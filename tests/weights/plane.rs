//! A publisher in the background, and the snapshots, slices and statuses of its readers, over any transport.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slackline::internals::param::PullError;
use slackline::internals::scheme::Bound;
use slackline::weights::{BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{
    Address, ElementType, Error, Idle, Selection, ShardOptions, Shm, Table, Transport, Version, VersionTag,
};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A time after which a wait that cannot succeed has waited for long enough.
pub(crate) const SOON: Duration = Duration::from_millis(50);

/// A table with elements of one, two, four and eight bytes, and of half a byte.
pub(crate) fn table() -> Table {
    Table::builder()
        .tensor("flag", &[3], ElementType::Bool)
        .tensor("weight", &[6, 5], ElementType::Bf16)
        .tensor("scale", &[6], ElementType::F8E8M0Fnu)
        .tensor("packed", &[4, 6], ElementType::F4E2M1Fn)
        .tensor("steps", &[], ElementType::I64)
        .tensor("bias", &[2, 2, 3], ElementType::F64)
        .align(256)
        .build()
        .unwrap()
}

/// Bytes of which each says where it lies and of which version it is.
pub(crate) fn bytes(version: u64) -> Vec<u8> {
    (0..table().bytes()).map(|at| (at.wrapping_mul(31) ^ version.wrapping_mul(97)) as u8).collect()
}

/// An address for another owner beside the one at `at`, whose port, if it has one, may be the system's choice or taken.
pub(crate) fn beside(at: &Address) -> Address {
    match at {
        Address::Tcp(socket) => Address::Tcp((socket.ip(), 0).into()),
        Address::Verbs(socket) => Address::Verbs((socket.ip(), 0).into()),
        _ => Address::random(),
    }
}

pub(crate) fn publisher<T: Transport>(
    transport: T,
    at: &Address,
    options: PublisherOptions,
) -> BackgroundPublisher<T> {
    Publisher::new(transport, at, table(), options).unwrap().into_background().unwrap()
}

pub(crate) fn each_version_comes_with_its_tag_its_time_and_its_origin<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let mut reader =
        Reader::connect(transport, &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let none = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap();
    assert_eq!((none.fresh().version.get(), none.fresh().tag), (0, VersionTag::default()));
    assert_eq!(*none.table(), table());
    for number in 1..=9 {
        let tag = VersionTag { step: number * 100, label: [number as u8; 32] };
        let version = publisher.publish(&bytes(number), tag, TIMEOUT).unwrap();
        let fresh = *reader.snapshot(Wanted::newest().max_staleness(0), TIMEOUT).unwrap().fresh();
        assert_eq!((fresh.version, fresh.tag, fresh.behind), (version, tag, 0));
        assert_eq!((fresh.epoch, fresh.origin), (publisher.epoch(), publisher.epoch()));
        assert!(u128::from(fresh.published_ns) >= before.as_nanos(), "published before the test began");
        assert_eq!(reader.refresh(0, TIMEOUT).unwrap().tag, tag);
        let mut own = vec![0; bytes(0).len()];
        assert_eq!(
            (reader.pull_into(&mut own, Wanted::newest().max_staleness(0), TIMEOUT).unwrap().tag, &own),
            (tag, &bytes(number))
        );
    }
}

pub(crate) fn snapshots_stay_as_they_are_while_newer_ones_are_read<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let mut reader =
        Reader::connect(transport, &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let mut held = Vec::new();
    for number in 1..=8 {
        let version = publisher.publish(&bytes(number), VersionTag::step(number), TIMEOUT).unwrap();
        held.push(reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap());
        if number % 3 == 0 {
            held.remove(0); // Its memory is used again.
        }
        for snapshot in &held {
            let version = snapshot.fresh().version.get();
            assert_eq!(snapshot.bytes(), bytes(version));
            let scale = table().tensors()[2].range();
            let scale = scale.start as usize..scale.end as usize;
            assert_eq!(snapshot.tensor("scale").unwrap(), &bytes(version)[scale]);
        }
    }
    assert!(held[0].tensor("other").is_none());
}

pub(crate) fn a_snapshot_that_is_polled_is_the_one_that_was_wanted<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let mut reader =
        Reader::connect(transport, &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    assert!(matches!(reader.take_snapshot(), Err(Error::OutOfTurn { .. })));
    reader.begin_snapshot(Wanted::at_least(Version::new(1)));
    for _ in 0..100 {
        assert!(reader.poll(slackline::now()).unwrap().is_none(), "nothing was published");
    }
    assert!(matches!(reader.take_snapshot(), Err(Error::OutOfTurn { .. })));
    publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    let deadline = slackline::now() + TIMEOUT;
    let fresh = loop {
        if let Some(fresh) = reader.poll(slackline::now()).unwrap() {
            break fresh;
        }
        assert!(slackline::now().as_nanos() < deadline.as_nanos(), "no snapshot within a minute");
    };
    let snapshot = reader.take_snapshot().unwrap();
    assert_eq!((*snapshot.fresh(), snapshot.bytes()), (fresh, &bytes(1)[..]));
    assert!(matches!(reader.take_snapshot(), Err(Error::OutOfTurn { .. })), "it is taken");
}

pub(crate) fn a_version_is_read_by_its_number_until_no_frame_holds_it<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let mut reader =
        Reader::connect(transport, &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let late = reader.snapshot(Wanted::exactly(Version::new(1)), SOON).unwrap_err();
    assert!(matches!(late, Error::Deadline { .. }), "{late}");
    for number in 1..=4 {
        publisher.publish(&bytes(number), VersionTag::step(number), TIMEOUT).unwrap();
    }
    // Three frames hold the last three versions.
    for number in [4, 2, 3, 2] {
        let snapshot = reader.snapshot(Wanted::exactly(Version::new(number)), TIMEOUT).unwrap();
        assert_eq!((snapshot.fresh().version.get(), snapshot.fresh().behind), (number, 4 - number));
        assert_eq!((snapshot.bytes(), snapshot.fresh().tag.step), (&bytes(number)[..], number));
    }
    let gone = reader.snapshot(Wanted::exactly(Version::new(1)), TIMEOUT).unwrap_err();
    let Error::Pull { source: PullError::Gone { version, newest }, .. } = gone else { panic!("{gone}") };
    assert_eq!((version.get(), newest.get()), (1, 4));
    // An older version that was asked for by name does not make the next one older.
    assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().fresh().version.get(), 4);
}

pub(crate) fn a_version_before_the_first_one_of_its_publisher_is_gone<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let begin_at = Version::new(9);
    let publisher =
        publisher(transport.clone(), at, PublisherOptions { begin_at, ..PublisherOptions::default() });
    let mut reader =
        Reader::connect(transport, &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let gone = reader.snapshot(Wanted::exactly(Version::new(0)), TIMEOUT).unwrap_err();
    let Error::Pull { source: PullError::Gone { version, newest }, .. } = gone else { panic!("{gone}") };
    assert_eq!((version, newest), (Version::new(0), begin_at));
}

pub(crate) fn a_selection_has_the_bytes_of_its_slices<T: Transport + Clone>(transport: T, at: &Address) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let mut reader =
        Reader::connect(transport, &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let tensor = |name: &str| table().tensors().iter().find(|tensor| tensor.name() == name).unwrap().clone();
    let part = |version: u64, name: &str, range: Range<u64>| {
        let begin = tensor(name).range().start;
        bytes(version)[(begin + range.start) as usize..(begin + range.end) as usize].to_vec()
    };
    let selection = Selection::of(reader.table())
        .slice("bias", &[1..2, 0..2, 1..3]) // two runs of two elements of eight bytes
        .tensor("flag")
        .slice("packed", &[1..3, 2..6]) // two runs of four elements of half a byte
        .slice("weight", &[2..4, 0..5]); // one run
    let selection = selection.build().unwrap();
    reader.select(Some(selection.clone())).unwrap();
    for number in 1..=5 {
        publisher.publish(&bytes(number), VersionTag::step(number), TIMEOUT).unwrap();
        let snapshot = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap();
        assert_eq!(snapshot.table(), selection.table());
        let bias = [part(number, "bias", 56..72), part(number, "bias", 80..96)].concat();
        assert_eq!(snapshot.tensor("bias").unwrap(), bias);
        assert_eq!(snapshot.tensor("flag").unwrap(), part(number, "flag", 0..3));
        let packed = [part(number, "packed", 4..6), part(number, "packed", 7..9)].concat();
        assert_eq!(snapshot.tensor("packed").unwrap(), packed);
        assert_eq!(snapshot.tensor("weight").unwrap(), part(number, "weight", 20..40));
        let mut own = vec![0; selection.table().bytes() as usize];
        reader.pull_into(&mut own, Wanted::newest().max_staleness(0), TIMEOUT).unwrap();
        reader.refresh(0, TIMEOUT).unwrap();
        for tensor in selection.table().tensors() {
            let range = tensor.range().start as usize..tensor.range().end as usize;
            let expected = snapshot.tensor(tensor.name()).unwrap();
            assert_eq!((&own[range.clone()], &reader.bytes().unwrap()[range]), (expected, expected));
        }
    }
    let other = Table::flat(3, ElementType::U8).unwrap();
    let other = Selection::of(&other).tensor("parameters").build().unwrap();
    assert!(matches!(reader.select(Some(other)), Err(Error::Option { option: "selection", .. })));
    reader.select(None).unwrap();
    assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(5));
}

pub(crate) fn a_publisher_that_sleeps_takes_readers_in_and_knows_what_they_hold<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let mut options = PublisherOptions::default();
    options.memory.idle = Idle::Sleep;
    let publisher = publisher(transport.clone(), at, options);
    for number in 1..=3 {
        // Longer than it stays awake.
        std::thread::sleep(3 * SOON);
        let mut reader =
            Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), TIMEOUT)
                .unwrap();
        std::thread::sleep(3 * SOON);
        let version = publisher.publish(&bytes(number), VersionTag::step(number), TIMEOUT).unwrap();
        assert_eq!(
            reader.snapshot(Wanted::at_least(version), TIMEOUT).unwrap().bytes(),
            bytes(version.get())
        );
        assert!(publisher.wait(version, 1, TIMEOUT).unwrap().iter().any(|status| status.behind == 0));
    }
}

pub(crate) fn a_publisher_knows_what_its_readers_hold<T: Transport + Clone>(transport: T, at: &Address) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let connect =
        || Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), TIMEOUT);
    let (mut one, mut other) = (connect().unwrap(), connect().unwrap());
    assert!(publisher.wait(Version::new(7), 0, Duration::ZERO).is_ok(), "no reader is waited for");
    let late = publisher.wait(Version::new(0), 1, SOON).unwrap_err();
    assert!(matches!(late, Error::NotHeld { .. }), "a reader that has read nothing holds no version: {late}");
    let first = publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    one.snapshot(Wanted::at_least(first), TIMEOUT).unwrap();
    other.refresh(0, TIMEOUT).unwrap();
    publisher.wait(first, 2, TIMEOUT).unwrap();
    let second = publisher.publish(&bytes(2), VersionTag::default(), TIMEOUT).unwrap();
    let late = publisher.wait(second, 1, SOON).unwrap_err();
    let Error::NotHeld { version, readers: 1, holding: 0, .. } = &late else { panic!("{late}") };
    assert_eq!(*version, second);
    one.snapshot(Wanted::at_least(second), TIMEOUT).unwrap();
    let readers = publisher.wait(second, 1, TIMEOUT).unwrap();
    let mut held: Vec<_> = readers.iter().map(|reader| (reader.holds, reader.behind)).collect();
    held.sort();
    assert_eq!(held, [(Some(first), 1), (Some(second), 0)]);
    if transport.capabilities().in_place {
        other.hold(Bound::version(second), TIMEOUT).unwrap();
        let readers = publisher.wait(second, 2, TIMEOUT).unwrap();
        assert!(readers.iter().any(|reader| reader.pins == Some(second) && reader.holds == Some(first)));
    }
}

pub(crate) fn readers_come_and_read_while_their_owner_computes_past_the_lease<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    // Longer than a busy machine keeps a heartbeat from its turn.
    let lease = Duration::from_millis(1500);
    let memory = ShardOptions { lease, ..ShardOptions::default() };
    let publisher =
        publisher(transport.clone(), at, PublisherOptions { memory, ..PublisherOptions::default() });
    let connect =
        || Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), TIMEOUT);
    let mut reader = connect().unwrap();
    publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    // The thread that publishes calls nothing meanwhile, and others come.
    std::thread::sleep(3 * lease);
    assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
    assert_eq!(connect().unwrap().snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
}

pub(crate) fn the_successor_of_a_publisher_goes_on_with_its_numbers<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let first = publisher(transport.clone(), at, PublisherOptions::default());
    let mut reader =
        Reader::connect(transport.clone(), &first.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let last = first.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    let (address, epoch) = (first.address(), first.epoch());
    drop(first);
    let lost = loop {
        match reader.snapshot(Wanted::newest(), TIMEOUT) {
            Ok(snapshot) => assert_eq!(snapshot.bytes(), bytes(1), "its memory outlives it for a moment"),
            Err(lost) => break lost,
        }
    };
    assert!(lost.is_loss(), "{lost}");
    let options = PublisherOptions { begin_at: last, ..PublisherOptions::default() };
    let second = publisher(transport, &address, options);
    assert_eq!(second.publish(&bytes(2), VersionTag::default(), TIMEOUT).unwrap(), last.next());
    reader.reconnect(&second.address(), TIMEOUT).unwrap();
    let snapshot = reader.snapshot(Wanted::at_least(last.next()), TIMEOUT).unwrap();
    assert_eq!((snapshot.bytes(), snapshot.fresh().epoch), (&bytes(2)[..], second.epoch()));
    assert_ne!(second.epoch(), epoch);
    let end = PublisherOptions { begin_at: Version::new(u64::MAX), ..PublisherOptions::default() };
    let past = Publisher::new(Shm::new(), &Address::random(), table(), end).err();
    assert!(matches!(past, Some(Error::LastVersion { .. })));
}

/// A copy of a large frame takes longer than its owner, which changes a few bytes of each version, needs to write all
/// frames again. A reader that has been lapped says which frame is to stay as it is.
pub(crate) fn a_publisher_that_hardly_pauses_does_not_lap_a_slow_reader<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    const BYTES: u64 = 32 << 20;
    const MARKS: [u64; 3] = [0, BYTES / 2, BYTES - 8];
    let table = Table::flat(BYTES, ElementType::U8).unwrap();
    let publisher = Publisher::new(transport.clone(), at, table, PublisherOptions::default());
    let publisher = publisher.unwrap().into_background().unwrap();
    let address = publisher.address();
    let mut reader = Reader::connect(transport, &address, ReaderOptions::default(), TIMEOUT).unwrap();
    let is_over = AtomicBool::new(false);
    let publish = || {
        let mut has_pinned = false;
        while !is_over.load(Relaxed) {
            let mut draft = publisher.draft(TIMEOUT).unwrap();
            let version = publisher.version().get() + 1;
            has_pinned |= publisher.readers().iter().any(|reader| reader.pins.is_some());
            MARKS.iter().for_each(|at| draft.write(*at, &version.to_le_bytes()).unwrap());
            draft.commit(VersionTag::default()).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
        has_pinned
    };
    let (retries, has_pinned) = std::thread::scope(|scope| {
        let publishing = scope.spawn(publish);
        let read = (0..10).map(|_| {
            let snapshot = reader.snapshot(Wanted::newest(), Duration::from_secs(10))?;
            for at in MARKS.map(|at| at as usize) {
                let version = snapshot.fresh().version.get();
                assert_eq!(snapshot.bytes()[at..at + 8], version.to_le_bytes(), "a mixture was handed out");
            }
            Ok(snapshot.fresh().retries)
        });
        let read = read.collect::<Result<Vec<_>, Error>>();
        is_over.store(true, Relaxed);
        (read, publishing.join().unwrap())
    });
    // It pins after it was lapped four times, and some pins come too late.
    let retries = retries.unwrap();
    assert!(retries.iter().all(|retries| *retries < 100), "{retries:?}");
    assert!(retries.iter().any(|retries| *retries > 0), "the reader was never lapped: {retries:?}");
    assert!(has_pinned, "the publisher saw that it was lapped and pinned a frame");
    let deadline = slackline::now() + TIMEOUT;
    while publisher.readers().iter().any(|reader| reader.pins.is_some()) {
        assert!(slackline::now() < deadline, "the pin stays");
        std::thread::yield_now();
    }
}
