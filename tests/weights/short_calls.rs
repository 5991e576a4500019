//! A link whose round trip takes longer than each of the calls that wait over it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use slackline::scheme::SchemeConfig;
use slackline::weights::{PublisherOptions, Reader, ReaderOptions};
use slackline::{Address, ElementType, Error, Server, ServerOptions, Table, Tcp, Version, VersionTag};
use slackline::{Worker, WorkerOptions};

use super::plane::{TIMEOUT, bytes, publisher};

/// Half of the round trip.
const DELAY: Duration = Duration::from_millis(40);

/// Most time of one call.
const SLICE: Duration = Duration::from_millis(2);

/// An address from which all bytes go on to `to`, and back, later.
fn slow_way_to(to: &Address) -> Address {
    let Address::Tcp(to) = *to else { panic!("{to} is not of TCP") };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    thread::spawn(move || {
        for incoming in listener.incoming() {
            let near = incoming.unwrap();
            let far = TcpStream::connect(to).unwrap();
            for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                let (from, to) = (from.unwrap(), to.unwrap());
                thread::spawn(move || carry(from, to));
            }
        }
    });
    address
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        thread::sleep(DELAY);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _both_are_over = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn at() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn a_question_goes_on_from_one_short_call_to_the_next() {
    let publisher = publisher(Tcp::new(), &at(), PublisherOptions::default());
    publisher.publish(&bytes(1), VersionTag::default(), TIMEOUT).unwrap();
    let way = slow_way_to(&publisher.address());
    let mut reader = Reader::connect(Tcp::new(), &way, ReaderOptions::default(), TIMEOUT).unwrap();
    let (mut asked, deadline) = (None, Instant::now() + TIMEOUT);
    let newest = loop {
        if let Some(newest) = reader.newest_from(Version::new(0), &mut asked, SLICE).unwrap() {
            break newest;
        }
        assert!(Instant::now() < deadline, "it is never answered");
    };
    assert_eq!((newest, asked), (Version::new(1), None));
}

#[test]
fn a_flush_goes_on_from_one_short_call_to_the_next() {
    let table = Table::flat(4, ElementType::F32).unwrap();
    let options = ServerOptions::new(SchemeConfig::Asp, 1, 0.5);
    let mut server = Server::new(Tcp::new(), &at(), table, &[1.0; 4], options).unwrap();
    let way = slow_way_to(&server.address());
    let serving =
        thread::spawn(move || server.serve(1, TIMEOUT).map(|is_over| (is_over, server.parameters())));
    let mut worker = Worker::connect(Tcp::new(), &[way], WorkerOptions::default(), TIMEOUT).unwrap();
    let mut step = worker.step(TIMEOUT).unwrap();
    step.gradient().unwrap().fill(1.0);
    step.publish(None, TIMEOUT).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while let Err(error) = worker.flush(SLICE) {
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(Instant::now() < deadline, "it is never answered");
    }
    drop(worker);
    let (is_over, parameters) = serving.join().unwrap().unwrap();
    assert!(is_over);
    assert_eq!(parameters.unwrap(), [0.5; 4]);
}
