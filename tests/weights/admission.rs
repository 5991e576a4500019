//! Who is let in, and who waits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slackline::Diagnostic as _;
use slackline::scheme::SchemeConfig;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Wanted};
use slackline::{
    Address, ConnectError, ElementType, Error, Secret, Server, ServerOptions, ShardOptions, Table, Tcp,
    Transport, VersionTag, Worker, WorkerOptions, now,
};

use super::plane::{SOON, TIMEOUT, bytes, publisher};

pub(crate) fn a_reader_too_many_waits_in_line_and_is_told_when_to_ask_again<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let memory = ShardOptions { peers: 2, ..ShardOptions::default() };
    let publisher =
        publisher(transport.clone(), at, PublisherOptions { memory, ..PublisherOptions::default() });
    publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    let connect =
        |timeout| Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), timeout);
    let (first, mut second) = (connect(TIMEOUT).unwrap(), connect(TIMEOUT).unwrap());
    let refused = connect(SOON).err().unwrap();
    let after = refused.retry_after().unwrap_or_else(|| panic!("{refused}"));
    assert!(refused.is_retryable() && !after.is_zero() && after <= Duration::from_secs(1), "{after:?}");
    assert!(refused.to_string().contains("`peers` allows (2)"), "{refused}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(TIMEOUT)?.snapshot(Wanted::newest(), TIMEOUT));
        std::thread::sleep(2 * after);
        assert!(!waiting.is_finished(), "there is no room");
        assert_eq!(second.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
        drop(first);
        assert_eq!(waiting.join().unwrap().unwrap().bytes(), bytes(1));
    });
    // The one that waited has left.
    connect(TIMEOUT).unwrap();
}

pub(crate) fn readers_that_wait_are_let_in_in_the_order_in_which_they_came<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let memory = ShardOptions { peers: 1, ..ShardOptions::default() };
    let publisher =
        publisher(transport.clone(), at, PublisherOptions { memory, ..PublisherOptions::default() });
    let connect =
        |timeout| Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), timeout);
    // One that does not wait is told how many do.
    let until_so_many_wait = |count: usize| {
        let deadline = now() + TIMEOUT;
        loop {
            let refused = connect(SOON).err().expect("there is no room").to_string();
            if refused.contains(&format!("{count} wait before this one")) {
                return;
            }
            assert!(now() < deadline, "{refused}");
        }
    };
    let holder = connect(TIMEOUT).unwrap();
    let (let_in, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        for number in 1..=3 {
            waiting.push(scope.spawn({
                let (connect, let_in) = (&connect, &let_in);
                move || {
                    let reader = connect(TIMEOUT).unwrap();
                    let_in.lock().unwrap().push(number);
                    drop(reader);
                }
            }));
            until_so_many_wait(number);
        }
        // Another one asks again and again, and would find the room before those that wait for their time.
        scope.spawn(|| {
            while !over.load(Relaxed) {
                if let Ok(_reader) = connect(SOON) {
                    let_in.lock().unwrap().push(0);
                }
            }
        });
        drop(holder);
        waiting.into_iter().for_each(|waiting| waiting.join().unwrap());
        over.store(true, Relaxed);
    });
    assert_eq!(let_in.into_inner().unwrap()[..3], [1, 2, 3]);
}

#[test]
fn a_readers_secret_opens_reading_and_nothing_else() {
    let job = Secret::random().unwrap();
    let reading = job.reading();
    let at: Address = "127.0.0.1:0".parse().unwrap();
    for (of_job, of_reader) in [(job.clone(), reading.clone()), (job.encrypting(), reading.encrypting())] {
        let (owner, peer) = (Tcp::with_secret(of_job.clone()), Tcp::with_secret(of_reader));
        let publisher = publisher(owner.clone(), &at, PublisherOptions::default());
        publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
        let connect = |transport: &Tcp, timeout| {
            Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), timeout)
        };
        let mut reader = connect(&peer, TIMEOUT).unwrap();
        assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
        let other = Secret::random().unwrap().reading();
        let other = if of_job.encrypts() { other.encrypting() } else { other };
        let refused = connect(&Tcp::with_secret(other), TIMEOUT).err().unwrap();
        assert!(refused.to_string().contains("the same secret"), "{refused}");

        // It serves nothing, neither as a publisher nor as a relay.
        let table = Table::flat(4, ElementType::F32).unwrap();
        let serving = Publisher::new(peer.clone(), &at, table.clone(), PublisherOptions::default()).err();
        assert!(matches!(serving, Some(Error::Connect(ConnectError::ReadingSecret { .. }))), "{serving:?}");
        let serving =
            Relay::start(peer.clone(), &[publisher.address()], &at, PublisherOptions::default(), TIMEOUT)
                .err();
        assert!(matches!(serving, Some(Error::Connect(ConnectError::ReadingSecret { .. }))), "{serving:?}");

        // A server has it read, and takes no gradient of it.
        let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.1);
        let mut server = Server::new(owner, &at, table, &[1.0; 4], options).unwrap();
        let address = server.address();
        std::thread::scope(|scope| {
            let trying = scope.spawn(|| {
                let mut reader = Reader::connect(peer.clone(), &address, ReaderOptions::default(), TIMEOUT)?;
                reader.refresh(0, TIMEOUT)?;
                let options = WorkerOptions::new(SchemeConfig::Asp);
                let worker = Worker::connect(peer, std::slice::from_ref(&address), options, TIMEOUT);
                Ok::<_, Error>(worker.err().map(|refused| refused.to_string()))
            });
            assert!(server.drive(|_| trying.is_finished(), TIMEOUT).unwrap());
            let refused = trying.join().unwrap().unwrap().expect("a reader was taken as a worker");
            assert!(refused.contains("opens reading only"), "{refused}");
        });
        assert_eq!(server.status().refused, 1);
    }
}
