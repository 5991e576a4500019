//! Who is let in, and who waits.

use std::time::Duration;

use slackline::Diagnostic as _;
use slackline::{
    Address, Error, PublisherOptions, Reader, ReaderOptions, ShardOptions, Transport, VersionTag, Wanted,
};

use crate::{SOON, TIMEOUT, bytes, publisher};

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
    assert!(refused.is_retryable() && after > SOON && after <= Duration::from_secs(1), "{after:?}");
    assert!(refused.to_string().contains("`peers` allows (2)"), "{refused}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(TIMEOUT)?.snapshot(Wanted::newest(), TIMEOUT));
        std::thread::sleep(2 * after);
        assert!(!waiting.is_finished(), "there is no room");
        assert_eq!(second.snapshot(Wanted::newest(), TIMEOUT).unwrap().bytes(), bytes(1));
        drop(first);
        assert_eq!(waiting.join().unwrap().unwrap().bytes(), bytes(1));
    });
    assert!(!matches!(connect(TIMEOUT), Err(Error::Connect(_))), "the one that waited has left");
}
