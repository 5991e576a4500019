//! Readers that write a pin, and whose end or silence comes before they take it back.

use std::task::Poll;
use std::time::Duration;

use slackline::internals::mem::RemoteSlice;
use slackline::internals::param::{PeerHello, PeerRole};
use slackline::internals::transport::{
    Connecting as _, Endpoint as _, HeartbeatWord, Inline, Offer, Operation, WorkRequest,
};
use slackline::weights::{PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, Error, ShardOptions, Transport, VersionTag};

use super::at_once::at_once;
use super::plane::{SOON, TIMEOUT, bytes, publisher};

/// Offsets of words in a reader's page.
const HEARTBEAT: u64 = 64;
const PIN: u64 = 128;

/// In the pin of a reader that copies the frame.
const COPIES: u64 = 1 << 63;

/// A reader that has no thread for its heartbeat, and its page at the publisher.
struct BareReader<T: Transport> {
    endpoint: T::Endpoint,
    heartbeat: Box<dyn HeartbeatWord>,
    page: RemoteSlice,
}

fn connect<T: Transport>(transport: &T, address: &Address) -> BareReader<T> {
    let offer = Offer { message: PeerHello::from(PeerRole::Reader).encode(), grants: Vec::new() };
    let mut connecting = transport.connect(address, offer).unwrap();
    let deadline = slackline::now() + TIMEOUT;
    loop {
        if let Poll::Ready(connected) = connecting.poll(slackline::now()) {
            let (endpoint, received) = connected.unwrap();
            let page = received.grants[2];
            let heartbeat = endpoint.heartbeat_word(&page.slice(HEARTBEAT, 8).unwrap()).unwrap();
            return BareReader { endpoint, heartbeat, page };
        }
        assert!(slackline::now() < deadline, "no answer within a minute");
        std::thread::yield_now();
    }
}

impl<T: Transport> BareReader<T> {
    /// Says that it copies a frame.
    fn pin(&mut self, frame: u64) {
        let (data, remote) = (Inline::word(COPIES | (frame + 1)), self.page.slice(PIN, 8).unwrap());
        let write = Operation::WriteInline { data, remote };
        self.endpoint.post(&[WorkRequest::unsignalled(0, write)]).unwrap();
        while self.endpoint.poll().is_some() {}
    }
}

pub(crate) fn a_reader_that_is_gone_or_silent_keeps_its_pin_for_a_lease_at_most<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    at_once([(2, false), (3, false), (2, true), (3, true)], |(frames, is_gone)| {
        a_pin_is_kept_for_a_lease_at_most(&transport, &of_its_own(at), frames, is_gone);
    });
}

/// An address beside the given one.
fn of_its_own(at: &Address) -> Address {
    match at {
        Address::Abstract(_) => Address::random(),
        _ => at.clone(), // its port is any
    }
}

/// Readers pin all frames but one, as those do that were lapped four times over a network, and then are silent, or are
/// gone. Their publisher has to wait for them until it lets them go, and no longer.
fn a_pin_is_kept_for_a_lease_at_most<T: Transport + Clone>(
    transport: &T,
    at: &Address,
    frames: u8,
    is_gone: bool,
) {
    let short = ShardOptions::default().lease;
    // The publisher learns of a closed connection long before this one has passed.
    let lease = if is_gone { 10 * TIMEOUT } else { short };
    let memory = ShardOptions { lease, frames, ..ShardOptions::default() };
    let options = PublisherOptions { memory, ..PublisherOptions::default() };
    let publisher = publisher(transport.clone(), at, options);
    let address = publisher.address();
    let mut reader = Reader::connect(transport.clone(), &address, ReaderOptions::default(), TIMEOUT).unwrap();
    let mut version = 0;
    let mut publish = |timeout| {
        let published = publisher.publish(&bytes(version + 1), VersionTag::default(), timeout)?;
        version = published.get();
        Ok::<_, Error>(version)
    };
    publish(TIMEOUT).unwrap();
    let mut pinning: Vec<_> = (1..frames).map(|_| connect(transport, &address)).collect();
    for (frame, peer) in (0..).zip(&mut pinning) {
        peer.pin(frame);
    }
    let deadline = slackline::now() + TIMEOUT;
    for beat in 1.. {
        pinning.iter_mut().for_each(|peer| peer.heartbeat.set(beat).unwrap());
        match publish(SOON) {
            Ok(_) => assert!(slackline::now() < deadline, "the pins hold no frame"),
            Err(Error::Pinned { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let silent = slackline::now();
    if is_gone {
        pinning.clear();
    }
    publish(TIMEOUT).unwrap();
    let took = slackline::now() - silent;
    // The rest is for a machine that is busy.
    assert!(took < short + Duration::from_secs(10), "{frames} frames: it waited for {took:?}");
    for _ in 0..10 {
        let version = publish(TIMEOUT).unwrap();
        assert_eq!(reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(version));
    }
    // The last heartbeats may have been seen in different looks at the peers.
    while publisher.readers().len() > 1 {
        assert!(slackline::now() < deadline, "one that is gone or silent is still listed");
        std::thread::sleep(SOON);
    }
    assert_eq!(publisher.readers().len(), 1, "the other reader stays");
}
