//! Relays: readers that serve what they read.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slackline::internals::param::PullError;
use slackline::weights::{PublisherOptions, Reader, ReaderOptions, Relay, Wanted};
use slackline::{Address, Diagnostic, Error, Transport, Version, VersionTag};

use super::plane::{TIMEOUT, beside, bytes, publisher};

fn relay<T: Transport + Clone>(transport: &T, upstream: &[Address], at: &Address) -> Relay {
    Relay::start(transport.clone(), upstream, &beside(at), PublisherOptions::default(), TIMEOUT).unwrap()
}

/// An address whose port no owner of another test is given by the system after its owner has ended.
fn alone(at: &Address) -> Address {
    match at {
        Address::Tcp(_) => "127.0.0.77:0".parse().unwrap(),
        _ => at.clone(),
    }
}

fn reader<T: Transport + Clone>(transport: &T, at: &Address) -> Reader<T> {
    Reader::connect(transport.clone(), at, ReaderOptions::default(), TIMEOUT).unwrap()
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = slackline::now() + TIMEOUT;
    while !is_so() {
        assert!(slackline::now() < deadline, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn a_version_is_the_same_behind_a_chain_of_relays<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let first = relay(&transport, &[publisher.address()], at);
    let second = relay(&transport, &[first.address().clone()], at);
    let (mut near, mut far) =
        (reader(&transport, &publisher.address()), reader(&transport, second.address()));
    for number in 1..=10 {
        let tag = VersionTag { step: 7 * number, label: [number as u8; 32] };
        let version = publisher.publish(&bytes(number), tag, TIMEOUT).unwrap();
        let behind = far.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        let direct = near.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
        let (behind_fresh, direct_fresh) = (behind.fresh(), direct.fresh());
        assert_eq!((behind.bytes(), behind_fresh.version), (&bytes(number)[..], version));
        assert_eq!((behind_fresh.tag, behind_fresh.origin), (tag, publisher.epoch()));
        assert_eq!(behind_fresh.published_ns, direct_fresh.published_ns);
        assert_ne!(behind_fresh.epoch, direct_fresh.epoch, "the memory is the relay's own");
    }
    until("the publisher knows that the first relay holds the last version", || {
        publisher.readers().iter().filter(|reader| reader.behind == 0).count() == 2
    });
    until("the second relay tells what its reader holds", || {
        second.readers().iter().any(|reader| reader.behind == 0 && reader.holds.is_some())
    });
}

pub(crate) fn a_version_that_a_relay_has_not_copied_is_gone<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    let relay = relay(&transport, &[publisher.address()], at);
    let mut reader = reader(&transport, relay.address());
    assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
    let gone = reader.snapshot(Wanted::exactly(Version::new(0)), TIMEOUT).map(|zeros| *zeros.fresh());
    assert!(matches!(gone, Err(Error::Pull { source: PullError::Gone { .. }, .. })), "{gone:?}");
}

pub(crate) fn what_a_relay_passes_on_is_whole_while_its_publisher_never_pauses<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let first = relay(&transport, &[publisher.address()], at);
    let second = relay(&transport, &[first.address().clone()], at);
    let mut far = reader(&transport, second.address());
    let is_over = AtomicBool::new(false);
    let read = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if is_over.load(Relaxed) {
                    return;
                }
                publisher.publish(&bytes(number), VersionTag::step(number), TIMEOUT).unwrap();
            }
        });
        let mut read = || {
            let mut last = 0;
            for _ in 0..300 {
                let next = Wanted::at_least(slackline::Version::new(last + 1));
                let snapshot = far.snapshot(next, Duration::from_secs(20))?;
                last = snapshot.fresh().version.get();
                assert_eq!(snapshot.bytes(), bytes(last), "a mixture, or the bytes of another version");
                assert_eq!(snapshot.fresh().tag.step, last);
            }
            Ok::<_, Error>(())
        };
        let read = read();
        is_over.store(true, Relaxed);
        read
    });
    read.unwrap();
}

pub(crate) fn a_relay_whose_owner_is_lost_goes_on_with_the_next<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), at, PublisherOptions::default());
    let first = relay(&transport, &[publisher.address()], at);
    let upstream = [first.address().clone(), publisher.address()];
    let second = relay(&transport, &upstream, at);
    let mut far = reader(&transport, second.address());
    let version = publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    far.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
    drop(first);
    // What it has stays there, and its readers stay connected.
    assert_eq!(far.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
    let version = publisher.publish(&bytes(2), VersionTag::default(), TIMEOUT).unwrap();
    assert_eq!(far.snapshot(Wanted::at_least(version), TIMEOUT).unwrap().bytes(), bytes(2));
    assert!(second.failure().is_none());
}

pub(crate) fn a_relay_without_any_owner_goes_on_serving_what_it_has<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let publisher = publisher(transport.clone(), &alone(at), PublisherOptions::default());
    let relay = relay(&transport, &[publisher.address()], at);
    let mut far = reader(&transport, relay.address());
    let version = publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    far.snapshot(Wanted::at_least(version), TIMEOUT).unwrap();
    drop(publisher);
    // Several attempts to connect again, each of which is given up after a second.
    let over = slackline::now() + Duration::from_secs(3);
    while slackline::now() < over {
        let failure = relay.failure();
        assert!(failure.is_none(), "{failure:?}");
        assert_eq!(far.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn a_relay_ends_rather_than_pass_on_the_versions_of_another_publisher<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    let first = publisher(transport.clone(), &alone(at), PublisherOptions::default());
    let address = first.address();
    let relay = relay(&transport, std::slice::from_ref(&address), at);
    let mut far = reader(&transport, relay.address());
    for number in 1..=3 {
        first.publish(&bytes(number), VersionTag::default(), TIMEOUT).unwrap();
    }
    until("the relay has the third version", || relay.version().get() == 3);
    drop(first);
    let second = publisher(transport, &address, PublisherOptions::default());
    second.publish(&bytes(9), VersionTag::default(), TIMEOUT).unwrap();
    until("the relay has ended", || relay.failure().is_some());
    let failure = relay.failure().unwrap();
    assert!(matches!(&*failure, Error::AnotherPublisher), "{failure}");
    assert_eq!(failure.remedy().as_deref(), Some("start the relay again"));
    assert!(relay.readers().is_empty(), "their connections have ended");
    let lost = loop {
        match far.snapshot(Wanted::newest(), TIMEOUT) {
            Ok(snapshot) => assert_eq!(snapshot.bytes(), bytes(3), "its memory outlives it for a moment"),
            Err(lost) => break lost,
        }
    };
    assert!(lost.is_loss(), "{lost}");
}
