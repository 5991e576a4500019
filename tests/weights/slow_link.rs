//! A tree with a relay to which versions come over a slow link. A proxy stands for the link.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use slackline::weights::{BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Relay};
use slackline::{Address, ElementType, ShardOptions, Table, Tcp, VersionTag};

use super::plane::TIMEOUT;
use super::relay::until;

const BYTES: usize = 2 << 20;

/// Bytes that a link carries at once, and the time that they take over one on which a version takes half a second.
const PIECE: (usize, Duration) = (16 << 10, Duration::from_millis(4));

/// A publisher with so many branches, and how relays join it at an address.
fn publisher(branches: u16, lease: Duration) -> (BackgroundPublisher<Tcp>, impl Fn(&Address) -> Relay) {
    let memory = ShardOptions { lease, ..ShardOptions::default() };
    let options = PublisherOptions { memory, branches, ..PublisherOptions::default() };
    let (any, table) = ("127.0.0.1:0".parse().unwrap(), Table::flat(BYTES as u64, ElementType::U8).unwrap());
    let publisher = Publisher::new(Tcp::new(), &any, table, options.clone()).unwrap();
    let join = move |root: &Address| Relay::join(Tcp::new(), root, &any, options.clone(), TIMEOUT).unwrap();
    (publisher.into_background().unwrap(), join)
}

#[test]
fn a_relay_leaves_an_owner_behind_a_slow_link_for_another_one() {
    let (publisher, join) = publisher(2, Duration::from_millis(1500));
    let slow = join(&behind_a_link(&publisher.address(), PIECE.1));
    let fast = join(&publisher.address());
    // Both are as near to the publisher, so that it reads from the one that came first.
    let last = join(&publisher.address());
    until("the last relay reads over the fast link", || {
        let step = publisher.version().get() + 1;
        publisher.publish(&vec![step as u8; BYTES], VersionTag::step(step), TIMEOUT).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        slow.readers().is_empty() && fast.readers().len() == 1
    });
    until("the last relay has the last version", || last.version() == publisher.version());
}

/// It copies each version as it comes, and does nothing in the pauses between them.
#[test]
fn a_relay_behind_another_is_not_slow_where_versions_are_far_apart() {
    let lease = Duration::from_millis(900);
    let (publisher, join) = publisher(1, lease);
    // A tenth of a second for each version, and half a second between two.
    let root = behind_a_link(&publisher.address(), PIECE.1 / 5);
    let (first, second) = (join(&root), join(&root));
    for step in 1..=6 {
        publisher.publish(&vec![step as u8; BYTES], VersionTag::step(step), TIMEOUT).unwrap();
        until("the second relay has it", || second.version() == publisher.version());
        std::thread::sleep(Duration::from_millis(500));
    }
    // Each has told its speed since.
    std::thread::sleep(lease);
    let options = ReaderOptions { in_tree: true, ..ReaderOptions::default() };
    let connect = || Reader::connect(Tcp::new(), &root, options, TIMEOUT).unwrap();
    let readers: Vec<_> = (0..4).map(|_| connect()).collect();
    until("readers are at both", || first.readers().len() > 1 && !second.readers().is_empty());
    drop(readers);
}

/// An address at which the owner at `to` is reached, and sends slowly.
fn behind_a_link(to: &Address, pause: Duration) -> Address {
    let Address::Tcp(to) = *to else { panic!("{to} is no address of TCP") };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(to) else { continue };
            let (asking, asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || carry(asking, asked, Duration::ZERO));
            std::thread::spawn(move || carry(far, near, pause));
        }
    });
    Address::Tcp(at)
}

/// Carries what comes from one side to the other, until either is closed.
fn carry(mut from: TcpStream, mut to: TcpStream, pause: Duration) {
    let mut bytes = [0; PIECE.0];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
        std::thread::sleep(pause.mul_f64(count as f64 / PIECE.0 as f64));
    }
    // It may be closed already.
    let _closed = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
