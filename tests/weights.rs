//! The weights plane: a publisher in the background, and the snapshots, slices and statuses of its readers.

#[macro_use]
mod weights {
    #[macro_use]
    pub(super) mod claims;

    pub(super) mod admission;
    #[path = "../failure/at_once.rs"]
    mod at_once;
    pub(super) mod counting;
    pub(super) mod deltas;
    mod failing;
    pub(super) mod monotone;
    pub(super) mod plane;
    pub(super) mod relay;
    mod resume;
    mod short_calls;
    pub(super) mod silence;
    mod slow_link;
    pub(super) mod tables;
    pub(super) mod tree;
}

use slackline::weights::{PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, ElementType, Error, Shm, Table, TableError, Version, VersionTag};

use weights::plane::{TIMEOUT, bytes, publisher, table};

weights!(shm, slackline::Shm::new(), slackline::Address::random());
weights!(tcp, slackline::Tcp::new(), "127.0.0.1:0".parse().unwrap());

#[test]
fn a_draft_that_is_dropped_is_never_published_and_only_one_is_open() {
    let publisher = publisher(Shm::new(), &Address::random(), PublisherOptions::default());
    let mut reader =
        Reader::connect(Shm::new(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    for number in 1..=5 {
        for _ in 0..3 {
            let mut draft = publisher.draft(TIMEOUT).unwrap();
            draft.write(0, &[0xff; 100]).unwrap();
            assert!(matches!(draft.write(draft_end(), &[0]), Err(Error::Bounds(_))));
            assert!(matches!(draft.write(u64::MAX, &[0]), Err(Error::Bounds(_))));
            let second = publisher.draft(TIMEOUT).unwrap_err();
            assert!(matches!(second, Error::OutOfTurn { .. }), "{second}");
            drop(draft);
            assert_eq!(publisher.version().get(), number - 1);
        }
        let mut draft = publisher.draft(TIMEOUT).unwrap();
        draft.write(0, &bytes(number)).unwrap();
        assert_eq!(draft.commit(VersionTag::default()).unwrap().get(), number);
        assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(number));
    }
    let short = publisher.publish(&[1, 2, 3], VersionTag::default(), TIMEOUT).unwrap_err();
    assert!(matches!(short, Error::Length { given: 3, .. }), "{short}");
    assert!(short.to_string().contains("3 bytes were given for"), "{short}");
    assert_eq!(publisher.version().get(), 5);
    // Three frames hold three versions still.
    assert_eq!(reader.snapshot(Wanted::exactly(Version::new(3)), TIMEOUT).unwrap().bytes(), bytes(3));
}

#[test]
fn a_draft_whose_publisher_was_dropped_is_not_published() {
    let publisher = publisher(Shm::new(), &Address::random(), PublisherOptions::default());
    let draft = publisher.draft(TIMEOUT).unwrap();
    drop(publisher);
    let gone = draft.commit(VersionTag::default()).unwrap_err();
    assert!(gone.to_string().contains("the publisher was dropped"), "{gone}");
}

fn draft_end() -> u64 {
    table().bytes()
}

#[test]
fn servers_take_no_table_with_gaps_or_with_elements_that_they_cannot_sum() {
    use slackline::{Server, ServerOptions, scheme::SchemeConfig};
    let serve = |table: Table| {
        let values = vec![0.0; (table.bytes() / 4) as usize];
        let options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.1);
        Server::new(Shm::new(), &Address::random(), table, &values, options).map(drop)
    };
    let two = || Table::builder().tensor("a", &[3], ElementType::F32).tensor("b", &[1], ElementType::F32);
    assert!(serve(two().build().unwrap()).is_ok());
    assert!(matches!(serve(two().align(64).build().unwrap()), Err(Error::NotF32)));
    assert!(matches!(serve(Table::flat(4, ElementType::I32).unwrap()), Err(Error::NotF32)));
    assert_eq!(Table::flat(0, ElementType::I32), Err(TableError::Empty));
}
