//! Tests of relays whose owners are not as they should be.

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::super::*;
    use crate::mem::{Access, HostMemory, MemoryRegion};
    use crate::node::runtime::complete;
    use crate::node::{BackgroundPublisher, Relay, Server, ServerOptions, ShardOptions, Wanted};
    use crate::param::FrameLabel;
    use crate::scheme::SchemeConfig;
    use crate::table::ElementType;
    use crate::transport::shm::Shm;
    use crate::transport::{Capabilities, Offer, RegisterError};

    type ShmLink = Link<<Shm as Transport>::Endpoint>;

    const PATIENCE: Duration = Duration::from_secs(60);

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
        // It has copied the landed chunks by then.
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
            // The relay that takes the only branch of the publisher is in truth this other publisher.
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
    /// Shared memory that counts the connections that are begun.
    #[derive(Clone, Default)]
    struct Counted(Shm, Arc<AtomicUsize>);

    impl Transport for Counted {
        type Endpoint = <Shm as Transport>::Endpoint;
        type Listener = <Shm as Transport>::Listener;
        type Connecting = <Shm as Transport>::Connecting;

        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }

        fn register(&self, memory: HostMemory, access: Access) -> Result<MemoryRegion, RegisterError> {
            self.0.register(memory, access)
        }

        fn allocate(&self, bytes: usize, access: Access) -> Result<MemoryRegion, RegisterError> {
            self.0.allocate(bytes, access)
        }

        fn listen(&self, address: &Address) -> Result<Self::Listener, ConnectError> {
            self.0.listen(address)
        }

        fn connect(&self, address: &Address, offer: Offer) -> Result<Self::Connecting, ConnectError> {
            self.1.fetch_add(1, Relaxed);
            self.0.connect(address, offer)
        }
    }

    /// Has a relay take turns until one ends with an error.
    fn until_error<T: Transport>(relay: &mut Passing<T>) -> Error {
        let deadline = crate::node::now() + PATIENCE;
        loop {
            if let Err(error) = relay.turn() {
                return error;
            }
            assert!(crate::node::now() < deadline, "no error comes");
            std::thread::yield_now();
        }
    }

    /// Has a relay take turns until it has this version.
    fn until_version<T: Transport>(relay: &mut Passing<T>, version: u64) {
        let deadline = crate::node::now() + PATIENCE;
        while relay.unknown == Some(Version::new(0)) || relay.publisher.version() < Version::new(version) {
            relay.turn().unwrap();
            assert!(crate::node::now() < deadline, "the version never comes");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_relay_without_an_owner_takes_in_all_readers_between_two_attempts() {
        const READERS: usize = 4;
        let (publisher, transport) = (publisher(8192, 1024), Counted::default());
        let (upstream, own) = ([publisher.address(), Address::random()], Address::random());
        let begin = Passing::begin(transport.clone(), &upstream, &own, PublisherOptions::default(), PATIENCE);
        let mut relay = complete(begin).unwrap();
        until_version(&mut relay, 0);
        drop(publisher);
        let lost = until_error(&mut relay);
        assert!(is_loss(&lost), "{lost}");
        // Each is asked once, however long it has for its answer: no process listens there.
        transport.1.store(0, Relaxed);
        for asked in 1..=upstream.len() {
            assert_eq!(relay.rests_until, Instant::ORIGIN);
            complete(relay.reconnect(Some(&lost))).unwrap();
            assert_eq!(transport.1.load(Relaxed), asked);
        }
        // Then it rests: for longer here, since this machine may be slow.
        assert!(relay.rests_until > Instant::ORIGIN, "it asks for ever");
        relay.rests_until = relay.runtime.now() + 2 * PATIENCE;
        std::thread::scope(|scope| {
            let connect = || Reader::connect(Shm::new(), &own, ReaderOptions::default(), PATIENCE).map(drop);
            let readers = [0; READERS].map(|_| scope.spawn(connect));
            while readers.iter().any(|reader| !reader.is_finished()) {
                relay.turn().unwrap();
                std::thread::yield_now();
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap().unwrap());
        });
        assert_eq!(transport.1.load(Relaxed), upstream.len());
        // After it the owners are asked again.
        relay.rests_until = Instant::ORIGIN;
        assert!(is_loss(&until_error(&mut relay)));
    }

    /// A server in a thread of its own until its address is dropped. It begins with these parameters, as version 0.
    fn server(address: &Address, value: f32) -> (OwnServer, Address) {
        let table = Table::flat(16, ElementType::F32).unwrap();
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
        let mut server = Server::new(Shm::new(), address, table, &[value; 16], options).unwrap();
        let (address, is_over) = (server.address(), Arc::new(AtomicBool::new(false)));
        let told = is_over.clone();
        let serving = std::thread::spawn(move || {
            while !told.load(Relaxed) {
                server.poll(crate::node::now()).unwrap();
                std::thread::yield_now();
            }
        });
        (OwnServer { is_over, serving: Some(serving) }, address)
    }

    struct OwnServer {
        is_over: Arc<AtomicBool>,
        serving: Option<std::thread::JoinHandle<()>>,
    }

    impl Drop for OwnServer {
        fn drop(&mut self) {
            self.is_over.store(true, Relaxed);
            self.serving.take().into_iter().for_each(|serving| drop(serving.join()));
        }
    }

    /// The outcome of a relay that goes to another owner, as [`Passing::run`] does.
    fn outcome_after_loss(relay: &mut Passing<Shm>) -> Result<(), Error> {
        let deadline = crate::node::now() + PATIENCE;
        while relay.unknown != Some(Version::new(0)) {
            let lost = until_error(relay);
            if !is_loss(&lost) {
                return Err(lost);
            }
            complete(relay.reconnect(Some(&lost)))?;
            assert!(crate::node::now() < deadline, "no owner lets it in");
        }
        while relay.unknown == Some(Version::new(0)) {
            relay.turn()?;
            assert!(crate::node::now() < deadline, "it copies nothing");
            std::thread::yield_now();
        }
        Ok(())
    }

    #[test]
    fn a_relay_of_a_server_ends_if_that_has_restarted() {
        let own = Address::random();
        for is_restarted in [true, false] {
            let (first, address) = server(&Address::random(), 1.0);
            let through = relay_of(&address);
            let upstream = match is_restarted {
                true => vec![address.clone()],
                false => vec![address.clone(), through.address().clone()],
            };
            let begin = Passing::begin(Shm::new(), &upstream, &own, options(), PATIENCE);
            let mut relay = complete(begin).unwrap();
            until_version(&mut relay, 0);
            drop(first);
            let _second = is_restarted.then(|| server(&address, 2.0));
            let outcome = outcome_after_loss(&mut relay);
            match is_restarted {
                true => assert!(matches!(outcome, Err(Error::AnotherPublisher)), "{outcome:?}"),
                false => outcome.unwrap(),
            }
        }
    }

    /// A relay of the server, which has a version.
    fn relay_of(server: &Address) -> Relay {
        let upstream = std::slice::from_ref(server);
        let relay = Relay::start(Shm::new(), upstream, &Address::random(), options(), PATIENCE).unwrap();
        // It lets a reader in once it has one.
        drop(Reader::connect(Shm::new(), relay.address(), ReaderOptions::default(), PATIENCE).unwrap());
        relay
    }

    #[test]
    fn a_relay_behind_a_relay_ends_if_their_server_has_restarted() {
        let (first, address) = server(&Address::random(), 1.0);
        let through = relay_of(&address);
        let (upstream, own) = ([through.address().clone(), address.clone()], Address::random());
        let begin = Passing::begin(Shm::new(), &upstream, &own, options(), PATIENCE);
        let mut relay = complete(begin).unwrap();
        until_version(&mut relay, 0);
        drop((through, first));
        let _second = server(&address, 2.0);
        let outcome = outcome_after_loss(&mut relay);
        assert!(matches!(outcome, Err(Error::AnotherPublisher)), "{outcome:?}");
    }

    #[test]
    fn versions_of_a_server_have_its_epoch_for_their_origin_behind_any_relays() {
        let (_server, address) = server(&Address::random(), 1.0);
        let near = relay_of(&address);
        let far = relay_of(near.address());
        let fresh = |owner: &Address| {
            let mut reader = Reader::connect(Shm::new(), owner, ReaderOptions::default(), PATIENCE).unwrap();
            *reader.snapshot(Wanted::newest(), PATIENCE).unwrap().fresh()
        };
        let own = fresh(&address);
        assert_eq!(own.origin, 0);
        for relay in [&near, &far] {
            let passed = fresh(relay.address());
            assert_eq!(passed.origin, own.epoch);
            assert_ne!(passed.epoch, own.epoch);
        }
    }

    #[test]
    fn a_relay_of_a_publisher_takes_no_version_of_a_server() {
        let table = Table::flat(16, ElementType::F32).unwrap();
        let publisher = Publisher::new(Shm::new(), &Address::random(), table, options()).unwrap();
        let publisher = publisher.into_background().unwrap();
        let (_server, address) = server(&Address::random(), 1.0);
        let (upstream, own) = ([publisher.address(), address], Address::random());
        let begin = Passing::begin(Shm::new(), &upstream, &own, options(), PATIENCE);
        let mut relay = complete(begin).unwrap();
        until_version(&mut relay, 0);
        drop(publisher);
        let outcome = outcome_after_loss(&mut relay);
        assert!(matches!(outcome, Err(Error::AnotherPublisher)), "{outcome:?}");
    }

    fn options() -> PublisherOptions {
        PublisherOptions::default()
    }
}
