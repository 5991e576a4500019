//! Traces of real runs: what a publisher and its reader put on record, judged by someone who saw neither.

mod traces {
    pub(super) mod runs;
}

use std::time::Instant;

use slackline::internals::param::Consistency;
use slackline::internals::trace::Property;
use slackline::weights::{Reader, ReaderOptions, Wanted};
use slackline::{Address, ElementType, Selection, Shm, Table, Tcp, Transport, Version, VersionTag};

use traces::runs::{READS, TIMEOUT, a_run_is_accepted_and_each_read_verified, judge, publisher, run};

/// The same run, with a reader that takes whatever is there.
fn a_run_with_torn_reads_is_rejected<T: Transport + Clone + Send + Sync>(transport: T, at: &Address) {
    let begun = Instant::now();
    let mut most = READS;
    loop {
        let verdict = run(&transport, at, Consistency::Mixture, most);
        if verdict.violations.iter().any(|violation| violation.property == Property::Whole) {
            assert!(verdict.verified < verdict.reads);
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "none of {most} reads was torn: this checker would find nothing");
        most *= 2;
    }
}

#[test]
fn a_run_over_shared_memory_is_accepted_and_each_read_verified() {
    a_run_is_accepted_and_each_read_verified(Shm::new(), &Address::random());
}

#[test]
fn a_run_over_tcp_is_accepted_and_each_read_verified() {
    a_run_is_accepted_and_each_read_verified(Tcp::new(), &"127.0.0.1:0".parse().unwrap());
}

#[test]
fn a_run_over_shared_memory_with_torn_reads_is_rejected() {
    a_run_with_torn_reads_is_rejected(Shm::new(), &Address::random());
}

#[test]
fn a_run_over_tcp_with_torn_reads_is_rejected() {
    a_run_with_torn_reads_is_rejected(Tcp::new(), &"127.0.0.1:0".parse().unwrap());
}

#[test]
fn digests_are_sha256_of_tensors_that_were_read_whole() {
    // FIPS 180-2, appendix B.1.
    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let table = Table::builder()
        .tensor("text", &[3], ElementType::U8)
        .tensor("other", &[2, 2], ElementType::U8)
        .align(256)
        .build()
        .unwrap();
    let publisher = publisher(Shm::new(), &Address::random(), table);
    let mut reader =
        Reader::connect(Shm::new(), &publisher.address(), ReaderOptions::default(), TIMEOUT).unwrap();
    let mut draft = publisher.draft(TIMEOUT).unwrap();
    draft.write(0, b"abc").unwrap();
    let tag = VersionTag { step: 1 << 63, label: [0xc3; 32] };
    let publication = draft.commit_recorded(tag).unwrap();
    assert!(publication.to_string().contains(&format!("\"text\":\"{OF_ABC}\"")), "{publication}");
    let certificate = reader.snapshot(Wanted::newest(), TIMEOUT).unwrap().certificate();
    assert_eq!((&certificate.digests, certificate.tag), (&publication.digests, tag));
    assert_eq!((certificate.origin, certificate.epoch), (publisher.epoch(), publisher.epoch()));

    let part = Selection::of(reader.table()).slice("other", &[0..1, 0..2]).tensor("text").build().unwrap();
    reader.select(Some(part)).unwrap();
    let wanted = Wanted::exactly(Version::new(1)).max_staleness(7);
    let partial = reader.snapshot(wanted, TIMEOUT).unwrap().certificate();
    assert_eq!(partial.digests.keys().collect::<Vec<_>>(), ["text"], "of the other there is a slice");
    assert_eq!(partial.digests["text"], publication.digests["text"]);
    assert_eq!((partial.exactly, partial.at_least), (Some(Version::new(1)), None));
    assert_eq!((partial.max_staleness, partial.newest), (Some(7), Version::new(1)));
    assert_eq!((partial.reader, partial.sequence), (certificate.reader, certificate.sequence + 1));
    let verdict =
        judge(&[&publication.to_string(), &format!("{certificate}\n{partial}"), &certificate.to_string()]);
    assert_eq!((verdict.reads, verdict.verified, verdict.violations), (2, 2, vec![]));
}
