//! Versions never go back, whatever calls they come by, and what is left of a copy that was given up.

use super::*;
use crate::node::{BackgroundPublisher, DeltaOptions, Publisher, PublisherOptions};
use crate::table::ElementType;
use crate::transport::shm::Shm;

const PATIENCE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(50);
const BYTES: usize = 4096;

/// A publisher of version 1, and a reader that has got version 2 from it: as one that has followed it to its end, just
/// before it is announced.
fn publisher_and_reader(deltas: Option<DeltaOptions>) -> (BackgroundPublisher<Shm>, Reader<Shm>) {
    let table = Table::flat(BYTES as u64, ElementType::U8).unwrap();
    let options = PublisherOptions { deltas, ..PublisherOptions::default() };
    let publisher = Publisher::new(Shm::new(), &Address::random(), table, options).unwrap();
    let publisher = publisher.into_background().unwrap();
    let address = publisher.address();
    let mut reader = Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap();
    assert_eq!(reader.refresh(0, PATIENCE).unwrap().version, Version::new(0));
    publish(&publisher, 1);
    reader.link.pull.raise_floor(Version::new(2));
    (publisher, reader)
}

fn publish(publisher: &BackgroundPublisher<Shm>, number: u8) {
    let mut bytes = [0; BYTES];
    bytes[7] = number;
    let version = publisher.publish(&bytes, VersionTag::default(), PATIENCE).unwrap();
    assert_eq!(version, Version::new(number.into()));
}

/// Reads once before version 2 is announced, and once after.
fn expect_version_2(deltas: Option<DeltaOptions>, read: impl Fn(&mut Reader<Shm>) -> Result<Version, Error>) {
    let (publisher, mut reader) = publisher_and_reader(deltas);
    let early = read(&mut reader);
    assert!(matches!(early, Err(Error::Deadline { .. })), "{early:?}");
    publish(&publisher, 2);
    let read = (0..).find_map(|_| read(&mut reader).ok());
    assert_eq!(read, Some(Version::new(2)));
}

#[test]
fn a_pin_is_no_older_than_what_its_reader_has_got() {
    expect_version_2(None, |reader| Ok(reader.pin(Bound::NONE, SOON)?.version()));
    expect_version_2(None, |reader| Ok(reader.pull_into(&mut [0; BYTES], 1, SOON)?.version));
}

#[test]
fn differences_lead_to_nothing_older_than_what_their_reader_has_got() {
    let deltas = Some(DeltaOptions { history: 4, most_bytes: None });
    expect_version_2(deltas, |reader| Ok(reader.refresh(0, SOON)?.version));
}

#[test]
fn a_relay_that_is_given_up_before_it_copies_keeps_the_part_it_had() {
    let (_publisher, mut reader) = publisher_and_reader(None);
    let partial = Some((Destination::Relay, PartialCopy::unlabelled(Version::new(1), 64)));
    reader.partial = partial;
    reader.give_up_relay();
    assert_eq!(reader.partial, partial);
}
