//! Several tables behind one address.

use std::time::Duration;

use slackline::Diagnostic as _;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted};
use slackline::{Address, ElementType, Error, Named, Table, Tables, Transport, Version, VersionTag};

use super::plane::{SOON, TIMEOUT, beside};

fn connect<T: Transport + Clone>(
    transport: &T,
    at: &Address,
    name: &str,
    timeout: Duration,
) -> Result<Reader<Named<T>>, Error> {
    Reader::connect(Named::new(transport.clone(), name), at, ReaderOptions::default(), timeout)
}

pub(crate) fn each_of_many_tables_has_versions_and_readers_of_its_own<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let tables = Tables::listen(transport.clone(), at).unwrap();
    let serve = |name: &str, elements: u64| {
        let table = Table::flat(elements, ElementType::U8).unwrap();
        let publisher = Publisher::new(tables.named(name), at, table, PublisherOptions::default());
        publisher.and_then(Publisher::into_background)
    };
    let adapters: Vec<_> =
        (1..=5).map(|number| serve(&format!("adapter-{number}"), 100 * number).unwrap()).collect();
    let unnamed = serve("", 7).unwrap();
    assert_eq!(tables.names(), ["", "adapter-1", "adapter-2", "adapter-3", "adapter-4", "adapter-5"]);
    assert!(adapters.iter().all(|adapter| adapter.address() == *tables.address()));
    for (number, adapter) in (1u8..).zip(&adapters) {
        for version in 1..=number {
            let bytes = vec![16 * number + version; 100 * usize::from(number)];
            adapter.publish(&bytes, VersionTag::default(), TIMEOUT).unwrap();
        }
    }
    unnamed.publish(&[99; 7], VersionTag::default(), TIMEOUT).unwrap();
    let mut readers = Vec::new();
    for number in 1u8..=5 {
        let mut reader =
            connect(&transport, tables.address(), &format!("adapter-{number}"), TIMEOUT).unwrap();
        let snapshot = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap();
        assert_eq!(snapshot.fresh().version, Version::new(number.into()));
        assert_eq!(snapshot.bytes(), vec![17 * number; 100 * usize::from(number)]);
        assert_eq!(snapshot.fresh().epoch, adapters[usize::from(number) - 1].epoch());
        readers.push(reader);
    }
    assert!(adapters.iter().all(|adapter| adapter.readers().len() == 1));
    // A reader without a name finds the table without one.
    let options = ReaderOptions::default();
    let mut plain = Reader::connect(transport.clone(), tables.address(), options, TIMEOUT).unwrap();
    assert_eq!(plain.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), [99; 7]);

    let taken = serve("adapter-2", 1).err().unwrap().to_string();
    assert!(taken.contains("`adapter-2` is served there already"), "{taken}");
    // Long enough for an answer on a machine that is busy.
    let absent = connect(&transport, tables.address(), "adapter-6", 20 * SOON).err().unwrap();
    assert!(
        absent.retry_after().is_some() && absent.to_string().contains("adapter-1, adapter-2"),
        "{absent}"
    );
    // One that comes later is waited for, and one that has gone leaves its name.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(&transport, tables.address(), "adapter-6", TIMEOUT));
        std::thread::sleep(SOON);
        let _late = serve("adapter-6", 1).unwrap();
        waiting.join().unwrap().unwrap();
    });
    drop(adapters);
    let again = serve("adapter-2", 1).unwrap();
    assert!(readers[1].reconnect(tables.address(), TIMEOUT).is_err(), "it is another table");
    connect(&transport, tables.address(), "adapter-2", TIMEOUT).unwrap();
    assert_eq!(again.joined(), 2);
}

pub(crate) fn a_relay_passes_one_of_many_tables_on<T: Transport + Clone>(transport: T, at: &Address) {
    let tables = Tables::listen(transport.clone(), at).unwrap();
    let relayed = Tables::listen(transport.clone(), &beside(at)).unwrap();
    let table = Table::flat(100, ElementType::U8).unwrap();
    let serve = |name: &str| {
        let publisher = Publisher::new(tables.named(name), at, table.clone(), PublisherOptions::default());
        publisher.and_then(Publisher::into_background).unwrap()
    };
    let (one, other) = (serve("one"), serve("other"));
    let pass = |name: &str| {
        let upstream = [tables.address().clone()];
        Relay::start(relayed.named(name), &upstream, at, PublisherOptions::default(), TIMEOUT).unwrap()
    };
    let relays = [pass("one"), pass("other")];
    for (publisher, value) in [(&one, 1), (&other, 2)] {
        publisher.publish(&[value; 100], VersionTag::default(), TIMEOUT).unwrap();
    }
    for (name, value) in [("one", 1), ("other", 2)] {
        let mut reader = connect(&transport, relayed.address(), name, TIMEOUT).unwrap();
        let snapshot = reader.snapshot(Wanted::at_least(Version::new(1)), TIMEOUT).unwrap();
        assert_eq!(snapshot.bytes(), [value; 100], "{name}");
    }
    assert!(relays.iter().all(|relay| relay.failure().is_none()));
}

#[test]
fn a_table_without_a_name_is_not_found_by_one() {
    let table = Table::flat(1, ElementType::U8).unwrap();
    let publisher =
        Publisher::new(slackline::Shm::new(), &Address::random(), table, PublisherOptions::default())
            .unwrap();
    let publisher = publisher.into_background().unwrap();
    let refused = connect(&slackline::Shm::new(), &publisher.address(), "adapter", TIMEOUT).err().unwrap();
    assert!(refused.to_string().contains("connect without a name"), "{refused}");
    let long =
        connect(&slackline::Shm::new(), &publisher.address(), &"x".repeat(256), TIMEOUT).err().unwrap();
    assert!(long.to_string().contains("at most 255 bytes"), "{long}");
}
