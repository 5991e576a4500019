//! The error of a reader that has received no answer before its deadline.

#[cfg(test)]
mod tests {
    use crate::clock::{Version, VersionTag};
    use crate::mem::Access;
    use crate::node::{BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
    use crate::scheme::Bound;
    use crate::table::{ElementType, Table};
    use crate::time::Duration;
    use crate::transport::shm::Shm;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Address, Transport};

    const PATIENCE: Duration = Duration::from_secs(60);
    const BYTES: usize = 4096;
    const NEXT: Version = Version::new(4);

    /// The publisher of so many versions, and a reader that has just connected to it.
    fn pair<T: Transport + Clone + 'static>(
        transport: T,
        address: &Address,
        versions: u64,
    ) -> (BackgroundPublisher<T>, Reader<T>) {
        let (table, options) =
            (Table::flat(BYTES as u64, ElementType::U8).unwrap(), PublisherOptions::default());
        let publisher = Publisher::new(transport.clone(), address, table, options).unwrap();
        let publisher = publisher.into_background().unwrap();
        for _ in 0..versions {
            publisher.publish(&[7; BYTES], VersionTag::default(), PATIENCE).unwrap();
        }
        let address = publisher.address();
        let reader = Reader::connect(transport, &address, ReaderOptions::default(), PATIENCE).unwrap();
        (publisher, reader)
    }

    #[test]
    fn a_pin_knows_the_newest_version_where_it_is_mapped() {
        for versions in [0, 3] {
            let (_publisher, mut reader) = pair(Shm::new(), &Address::random(), versions);
            let text = reader.pin(Bound::version(NEXT), Duration::ZERO).unwrap_err().to_string();
            let expected = format!("needed version 4, the newest is {versions}; it may not be published yet");
            assert!(text.contains(&expected), "{text}");
        }
    }

    #[test]
    fn an_owner_that_was_not_heard_yet_is_not_said_to_be_at_version_0() {
        for into_slice in [false, true] {
            let (_publisher, mut reader) = pair(Tcp::new(), &"127.0.0.1:0".parse().unwrap(), 3);
            let late = if into_slice {
                reader.pull_into(&mut [0; BYTES], Wanted::at_least(NEXT), Duration::ZERO).unwrap_err()
            } else {
                let memory = reader.transport.allocate(BYTES, Access::LOCAL).unwrap();
                reader.pull(&memory.whole(), Bound::version(NEXT), Duration::ZERO).unwrap_err()
            };
            // The answer may be there with the first look.
            let text = late.to_string();
            assert!(
                text.contains("does not answer; see that") || text.contains("newest is 3; it may"),
                "{text}"
            );
        }
    }
}
