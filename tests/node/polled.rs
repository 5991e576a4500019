//! Refreshes of a reader that nothing waits for.

use slackline::{Fresh, now};

use super::super::*;

/// Connects a reader beside a publisher of 64 bytes, which one thread polls from then on.
fn pair<T>(transport: &T, address: &Address) -> (Publisher<T>, Reader<T>)
where
    T: Transport + Clone + Send + 'static,
    Reader<T>: Send,
{
    let table = Table::flat(16, ElementType::F32).unwrap();
    let mut publisher =
        Publisher::new(transport.clone(), address, table, PublisherOptions::default()).unwrap();
    let (transport, at) = (transport.clone(), publisher.address());
    let connecting =
        std::thread::spawn(move || Reader::connect(transport, &at, ReaderOptions::default(), TIMEOUT));
    while !connecting.is_finished() {
        publisher.poll(now());
    }
    (publisher, connecting.join().unwrap().unwrap())
}

/// Polls both in turn until the refresh has ended.
fn polled<T: Transport>(publisher: &mut Publisher<T>, reader: &mut Reader<T>) -> Fresh {
    let deadline = std::time::Instant::now() + TIMEOUT;
    while std::time::Instant::now() < deadline {
        publisher.poll(now());
        if let Some(fresh) = reader.poll(now()).unwrap() {
            return fresh;
        }
    }
    panic!("the refresh has not ended");
}

fn one_thread_is_enough<T>(transport: &T, address: &Address)
where
    T: Transport + Clone + Send + 'static,
    Reader<T>: Send,
{
    let (mut publisher, mut reader) = pair(transport, address);
    for version in 1..=20u8 {
        publisher.publish(&[version; 64], TIMEOUT).unwrap();
        reader.begin_refresh(0);
        let fresh = polled(&mut publisher, &mut reader);
        let Fresh { behind, copied, .. } = fresh;
        assert_eq!((fresh.version.get(), behind, copied), (u64::from(version), 0, true));
        assert_eq!(reader.bytes().unwrap(), [version; 64]);
        assert_eq!(reader.poll(now()).unwrap(), None, "it has ended");
        // The copy at hand is kept if it is fresh enough.
        reader.begin_refresh(0);
        assert!(!polled(&mut publisher, &mut reader).copied);
    }
}

#[test]
fn one_thread_polls_a_publisher_and_its_reader_over_shm() {
    one_thread_is_enough(&Shm::new(), &Address::random());
}

#[test]
fn one_thread_polls_a_publisher_and_its_reader_over_tcp() {
    one_thread_is_enough(&Tcp::new(), &"127.0.0.1:0".parse().unwrap());
}

#[test]
fn a_call_that_reads_abandons_the_refresh_that_was_begun() {
    let (mut publisher, mut reader) = pair(&Shm::new(), &Address::random());
    publisher.publish(&[1; 64], TIMEOUT).unwrap();
    reader.begin_refresh(0);
    assert_eq!(reader.refresh_to(Version::new(1), TIMEOUT).unwrap().version, Version::new(1));
    assert_eq!(reader.poll(now()).unwrap(), None);
    assert_eq!(reader.bytes().unwrap(), [1; 64]);
}
