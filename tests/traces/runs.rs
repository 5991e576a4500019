//! Runs of a publisher that never pauses and a reader, and the verdict on their traces.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use slackline::internals::param::Consistency;
use slackline::internals::trace::{TraceChecker, TraceRecord, Verdict};
use slackline::weights::{BackgroundPublisher, Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, ElementType, ShardOptions, Table, Transport, Version, VersionTag};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Reads of a run that is to be accepted.
pub(crate) const READS: usize = 400;

/// The bytes that a publisher writes at a time: a reader that looks without care finds it in between.
const PART_BYTES: usize = 4 << 10;

pub(crate) fn publisher<T: Transport>(transport: T, at: &Address, table: Table) -> BackgroundPublisher<T> {
    let memory = ShardOptions { frames: 2, ..ShardOptions::default() };
    let options = PublisherOptions { memory, ..PublisherOptions::default() };
    Publisher::new(transport, at, table, options).unwrap().into_background().unwrap()
}

/// Publishes version after version until it is told to stop, and returns the trace.
fn publish_without_a_pause<T: Transport>(publisher: &BackgroundPublisher<T>, stop: &AtomicBool) -> String {
    let mut trace = String::new();
    let bytes = publisher.table().bytes();
    for number in 1.. {
        if stop.load(Relaxed) {
            break;
        }
        let mut draft = publisher.draft(TIMEOUT).unwrap();
        for offset in (0..bytes).step_by(PART_BYTES) {
            let part = [number as u8; PART_BYTES];
            draft.write(offset, &part[..PART_BYTES.min((bytes - offset) as usize)]).unwrap();
        }
        let publication = draft.commit_recorded(VersionTag::step(number)).unwrap();
        assert_eq!(publication.version.get(), number);
        trace += &format!("{publication}\n");
    }
    trace
}

pub(crate) fn judge(traces: &[&str]) -> Verdict<usize> {
    let mut checker = TraceChecker::new(Duration::ZERO);
    for (at, line) in traces.iter().flat_map(|trace| trace.lines()).enumerate() {
        checker.add(line.parse::<TraceRecord>().unwrap(), at);
    }
    checker.finish()
}

/// Runs a publisher that never pauses and a reader for so many reads of it, and judges their traces.
pub(crate) fn run<T: Transport + Clone + Send + Sync>(
    transport: &T,
    at: &Address,
    consistency: Consistency,
    reads: usize,
) -> Verdict<usize> {
    let table = Table::builder()
        .tensor("embed", &[200, 1000], ElementType::U8)
        .tensor("head", &[57, 1001], ElementType::U8)
        .build()
        .unwrap();
    let publisher = publisher(transport.clone(), at, table);
    let mut reader =
        Reader::connect(transport.clone(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    reader.set_consistency(consistency);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let publishing = scope.spawn(|| publish_without_a_pause(&publisher, &stop));
        let mut trace = String::new();
        let mut last = reader.snapshot(Wanted::at_least(Version::new(1)), TIMEOUT).unwrap().fresh().version;
        for read in 0..reads {
            let wanted = match read % 3 {
                0 => Wanted::newest(),
                1 => Wanted::at_least(Version::new(last.get() + 1)),
                _ => Wanted::newest().max_staleness(2),
            };
            let snapshot = reader.snapshot(wanted, TIMEOUT).unwrap();
            last = snapshot.fresh().version;
            trace += &format!("{}\n", snapshot.certificate());
        }
        stop.store(true, Relaxed);
        let published = publishing.join().unwrap();
        judge(&[&published, &trace])
    })
}

pub(crate) fn a_run_is_accepted_and_each_read_verified<T: Transport + Clone + Send + Sync>(
    transport: T,
    at: &Address,
) {
    let verdict = run(&transport, at, Consistency::Whole, READS);
    assert_eq!(verdict.violations, []);
    assert_eq!((verdict.reads, verdict.verified, verdict.unverified), (READS as u64, READS as u64, 0));
    assert!(verdict.publications > 10, "the publisher stood still: {verdict:?}");
}
