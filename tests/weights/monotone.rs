//! The versions that a reader gets one after the other, whatever calls it gets them by.

use std::time::Duration;

use slackline::internals::trace::{TraceChecker, TraceRecord};
use slackline::weights::{BackgroundPublisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, Transport, Version, VersionTag, VolatileSlice, scheme::Bound};

use super::plane::{TIMEOUT, bytes, publisher};

fn publish<T: Transport>(publisher: &BackgroundPublisher<T>, number: u64) -> String {
    let mut draft = publisher.draft(TIMEOUT).unwrap();
    draft.write(0, &bytes(number)).unwrap();
    format!("{}\n", draft.commit_recorded(VersionTag::default()).unwrap())
}

/// A pull into memory of the caller's, which may be so many versions behind, and its record.
fn pull<T: Transport>(reader: &mut Reader<T>, max_staleness: u64) -> (Version, String) {
    let mut memory = vec![0; bytes(0).len()];
    let asked = reader.begin_record(Wanted::newest().max_staleness(max_staleness), false);
    let fresh =
        reader.pull_into(&mut memory, Wanted::newest().max_staleness(max_staleness), TIMEOUT).unwrap();
    let asked = reader.end_record(asked);
    let certificate = reader.certify(asked, &fresh, VolatileSlice::from_ref(&memory));
    assert_eq!(memory, bytes(fresh.version.get()));
    (fresh.version, format!("{certificate}\n"))
}

pub(crate) fn no_read_goes_back_behind_another_of_the_same_reader<T: Transport + Clone>(
    transport: T,
    at: &Address,
) {
    for checksums in [false, true] {
        let publisher = publisher(transport.clone(), at, PublisherOptions::default());
        let options = ReaderOptions { checksums, ..ReaderOptions::default() };
        let mut reader = Reader::connect(transport.clone(), &publisher.address(), options, TIMEOUT).unwrap();
        let mut trace = publish(&publisher, 1);
        let (first, record) = pull(&mut reader, 0);
        trace += &record;
        trace += &publish(&publisher, 2);
        let snapshot = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap();
        trace += &format!("{}\n", snapshot.certificate());
        let (second, record) = pull(&mut reader, 5);
        trace += &record;
        assert_eq!((first, snapshot.fresh().version, second), (Version::new(1), second, Version::new(2)));
        // What is fresh enough, and no older than any other read, is kept.
        let (same, record) = pull(&mut reader, 5);
        trace += &record;
        assert_eq!(same, second);
        // A version that was read in place counts as well.
        trace += &publish(&publisher, 3);
        if let Ok(pinned) = reader.pin(Bound::NONE, TIMEOUT).map(|frame| frame.version()) {
            let (third, record) = pull(&mut reader, 5);
            trace += &record;
            assert_eq!((pinned, third), (Version::new(3), pinned));
        }
        let mut checker = TraceChecker::new(Duration::ZERO);
        for (at, line) in trace.lines().enumerate() {
            checker.add(line.parse::<TraceRecord>().unwrap(), at);
        }
        let verdict = checker.finish();
        assert!(verdict.violations.is_empty(), "{:?}", verdict.violations);
        assert_eq!(verdict.verified, verdict.reads);
    }
}
