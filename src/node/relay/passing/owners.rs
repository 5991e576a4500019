//! Tests of relays whose owners are not as they should be.

#[cfg(test)]
mod tests {
    use super::super::*;
    use crate::node::runtime::complete;
    use crate::node::{BackgroundPublisher, Relay, ShardOptions, Wanted};
    use crate::param::FrameLabel;
    use crate::table::ElementType;
    use crate::transport::shm::Shm;

    type ShmLink = Link<<Shm as Transport>::Endpoint>;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn publisher(bytes: u64, chunk_bytes: u64) -> BackgroundPublisher<Shm> {
        let memory = ShardOptions { chunk_bytes, ..ShardOptions::default() };
        let options = PublisherOptions { memory, branches: 1, ..PublisherOptions::default() };
        let table = Table::flat(bytes, ElementType::U8).unwrap();
        Publisher::new(Shm::new(), &Address::random(), table, options).unwrap().into_background().unwrap()
    }

    #[test]
    fn a_relay_behind_one_that_has_copied_nothing_yet_has_no_room_for_readers() {
        for is_behind_another in [false, true] {
            let publisher = publisher(8192, 1024);
            let (transport, root) = (Shm::new(), publisher.address());
            let memory = ShardOptions { chunk_bytes: 1024, ..ShardOptions::default() };
            let options = PublisherOptions { memory, ..PublisherOptions::default() };
            let table = Table::flat(8192, ElementType::U8).unwrap();
            let mut empty = Publisher::new(Shm::new(), &Address::random(), table, options.clone()).unwrap();
            if is_behind_another {
                let address = empty.address();
                let notice =
                    RelayNotice { number: None, address, branches: 1, room: 0, reads_from: None, speed: 0 };
                let joiner = Joiner { host: Host::own(), lost: None, relay: Some(notice) };
                let position = complete(ShmLink::ask_position(&transport, &root, joiner, PATIENCE)).unwrap();
                empty.begin_as_relay(position.origin);
            }
            let _empty = empty.into_background().unwrap();
            let tree = InTree { transport, publisher: root, address: Address::random(), options };
            let mut relay = complete(tree.begin(PATIENCE)).unwrap();
            let deadline = relay.runtime.now() + PATIENCE;
            while relay.unknown.is_some() {
                relay.turn().unwrap();
                assert!(relay.runtime.now() < deadline, "it has copied nothing");
            }
            assert_eq!(relay.has_copied, !is_behind_another);
        }
    }

    /// Bytes that were damaged on their way are read once more, under the same number.
    #[test]
    fn followers_keep_nothing_of_an_attempt_that_begins_again() {
        let memory = ShardOptions { chunk_bytes: 1024, ..ShardOptions::default() };
        let options = PublisherOptions { memory, ..PublisherOptions::default() };
        let table = Table::flat(8192, ElementType::U8).unwrap();
        let mut relay = Publisher::new(Shm::new(), &Address::random(), table, options).unwrap();
        relay.begin_as_relay(7);
        let (address, version) = (relay.address(), Version::new(1));
        let options = ReaderOptions { follow: true, ..ReaderOptions::default() };
        let mut reader = std::thread::scope(|scope| {
            let connecting =
                scope.spawn(|| Reader::connect(Shm::new(), &address, options, PATIENCE).unwrap());
            while !connecting.is_finished() {
                relay.poll(crate::node::now());
            }
            connecting.join().unwrap()
        });
        let copy = relay.begin_relayed().unwrap().unwrap();
        copy.as_volatile().write(&[1; 8192]);
        relay.relay_landed(version, 4, false);
        reader.begin_snapshot(Wanted::at_least(version));
        // It has copied what has landed by then.
        for _ in 0..1000 {
            assert!(reader.poll(crate::node::now()).unwrap().is_none());
        }
        copy.as_volatile().write(&[2; 8192]);
        relay.relay_landed(version, 8, true);
        relay.commit_relayed(version, FrameLabel { origin: 7, ..FrameLabel::default() }, false).unwrap();
        let deadline = crate::node::now() + PATIENCE;
        while reader.poll(crate::node::now()).unwrap().is_none() {
            assert!(crate::node::now() < deadline, "it ends with the version");
        }
        let snapshot = reader.take_snapshot().unwrap();
        assert!(snapshot.bytes().iter().all(|byte| *byte == 2), "a mixture of two attempts");
    }

    #[cfg(feature = "tcp")]
    #[test]
    fn a_reader_waits_for_room_though_a_relay_elsewhere_is_dead() {
        use crate::transport::tcp::Tcp;
        let memory = ShardOptions { peers: 1, ..ShardOptions::default() };
        let options = PublisherOptions { memory, ..PublisherOptions::default() };
        let table = Table::flat(8, ElementType::U8).unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let publisher = Publisher::new(Tcp::new(), &at, table, options).unwrap().into_background().unwrap();
        let root = publisher.address();
        let connect = |in_tree| {
            let options = ReaderOptions { in_tree, ..ReaderOptions::default() };
            Reader::connect(Tcp::new(), &root, options, PATIENCE)
        };
        let first = connect(false).unwrap();
        // No process listens at the address of the relay, which said that it has room and was killed then.
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = gone.to_string().parse().unwrap();
        let notice = RelayNotice { number: None, address, branches: 1, room: 8, reads_from: None, speed: 0 };
        let joiner = Joiner { host: Host::named("elsewhere"), lost: None, relay: Some(notice) };
        complete(Link::<<Tcp as Transport>::Endpoint>::ask_position(&Tcp::new(), &root, joiner, PATIENCE))
            .unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| connect(true).map(drop));
            std::thread::sleep(Duration::from_millis(300));
            drop(first);
            second.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_relay_begins_with_the_first_owner_that_answers() {
        let publisher = publisher(8192, 1024);
        let owners = [Address::random(), publisher.address()];
        // A timeout that is shorter than the time for which one owner is asked leaves some for the next.
        for timeout in [PATIENCE, ASK_FOR * 9 / 10] {
            let begin = |_| {
                let (own, options) = (Address::random(), PublisherOptions::default());
                Relay::start(Shm::new(), &owners, &own, options, timeout).ok()
            };
            let relay = (0..20).find_map(begin).expect("an owner answers");
            assert!(relay.failure().is_none());
        }
    }

    #[test]
    fn a_relay_joins_no_tree_whose_owner_has_another_table_or_other_chunks() {
        for (bytes, chunk_bytes) in [(8192, 4096), (4096, 1024), (8192, 1024)] {
            let (publisher, other) = (publisher(8192, 1024), publisher(bytes, chunk_bytes));
            // What takes the only branch of the publisher says that it is a relay, and is this other publisher.
            let address = other.address();
            let notice =
                RelayNotice { number: None, address, branches: 1, room: 0, reads_from: None, speed: 0 };
            let joiner = Joiner { host: Host::own(), lost: None, relay: Some(notice) };
            let (transport, root) = (Shm::new(), publisher.address());
            complete(ShmLink::ask_position(&transport, &root, joiner, PATIENCE)).unwrap();
            let (own, options) = (Address::random(), PublisherOptions::default());
            let joined = Relay::join(transport, &root, &own, options, PATIENCE);
            let fits = (bytes, chunk_bytes) == (8192, 1024);
            match joined {
                Err(Error::AnotherTable { reason, .. }) => assert!(!fits, "{reason}"),
                joined => assert!(fits && joined.is_ok(), "{joined:?}"),
            }
        }
    }
}
