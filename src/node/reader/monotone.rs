//! Tests that a reader gets no version older than before, by any mix of calls.

#[cfg(test)]
mod tests {
    use crate::clock::{Version, VersionTag};
    use crate::node::{
        BackgroundPublisher, DeltaOptions, Error, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted,
    };
    use crate::scheme::Bound;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::Address;
    use crate::transport::shm::Shm;

    const PATIENCE: Duration = Duration::from_secs(60);
    const SOON: Duration = Duration::from_millis(50);
    const BYTES: usize = 4096;

    fn publish(publisher: &BackgroundPublisher<Shm>, number: u8) {
        let mut bytes = [0; BYTES];
        bytes[7] = number;
        let version = publisher.publish(&bytes, VersionTag::default(), PATIENCE).unwrap();
        assert_eq!(version, Version::new(number.into()));
    }

    /// Lets a reader with a copy of version 0 read from a publisher of version 1, after it has got version 2 already,
    /// as a reader does that followed version 2 to its end just before its announcement. Then lets it read once more.
    fn expect_version_2(
        deltas: Option<DeltaOptions>,
        read: impl Fn(&mut Reader<Shm>) -> Result<Version, Error>,
    ) {
        let table = Table::flat(BYTES as u64, ElementType::U8).unwrap();
        let options = PublisherOptions { deltas, ..PublisherOptions::default() };
        let publisher = Publisher::new(Shm::new(), &Address::random(), table, options).unwrap();
        let publisher = publisher.into_background().unwrap();
        let address = publisher.address();
        let mut reader = Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).unwrap();
        assert_eq!(reader.refresh(0, PATIENCE).unwrap().version, Version::new(0));
        publish(&publisher, 1);
        reader.link.pull.raise_floor(Version::new(2));
        let early = read(&mut reader);
        assert!(matches!(early, Err(Error::Deadline { .. })), "{early:?}");
        publish(&publisher, 2);
        // A look may take longer than it is given.
        let read = (0..1000).find_map(|_| read(&mut reader).ok());
        assert_eq!(read, Some(Version::new(2)));
    }

    #[test]
    fn a_pin_is_no_older_than_what_its_reader_has_got() {
        expect_version_2(None, |reader| Ok(reader.pin(Bound::NONE, SOON)?.version()));
        expect_version_2(None, |reader| {
            Ok(reader.pull_into(&mut [0; BYTES], Wanted::newest().max_staleness(1), SOON)?.version)
        });
    }

    #[test]
    fn differences_lead_to_nothing_older_than_what_their_reader_has_got() {
        let deltas = Some(DeltaOptions { history: 4, most_bytes: None });
        expect_version_2(deltas, |reader| Ok(reader.refresh(0, SOON)?.version));
    }
}
