//! Each property has a trace that violates it alone; histories of a small model have none.

use std::time::Duration;

use super::*;

mod model;

const ORIGIN: u64 = 0xabc;

/// The digest of a tensor of a version, as far as these tests are concerned.
fn digest(origin: u64, version: u64) -> [u8; 32] {
    let mut digest = [7; 32];
    digest[..8].copy_from_slice(&origin.to_le_bytes());
    digest[8..16].copy_from_slice(&version.to_le_bytes());
    digest
}

/// Version `version`, published at 100 times its number and complete 10 later.
fn publication(version: u64) -> Publication {
    let digests = ["w", "b"].map(|name| (name.to_string(), digest(ORIGIN, version)));
    Publication {
        origin: ORIGIN,
        version: Version::new(version),
        tag: VersionTag { step: 10 * version, label: [version as u8; 32] },
        published_ns: 100 * version,
        complete_ns: 100 * version + 10,
        digests: digests.into(),
    }
}

/// A read of that version as the newest, from 50 to 60 after its publication.
fn read(sequence: u64, version: u64) -> Certificate {
    let Publication { origin, version, tag, published_ns, digests, .. } = publication(version);
    Certificate {
        reader: 1,
        sequence,
        max_staleness: None,
        at_least: None,
        exactly: None,
        began_ns: published_ns + 50,
        ended_ns: published_ns + 60,
        epoch: origin,
        origin,
        version,
        newest: version,
        tag,
        published_ns,
        digests,
    }
}

/// A trace of eight versions and a reader of all of them.
#[derive(Clone)]
struct Trace {
    publications: Vec<Publication>,
    reads: Vec<Certificate>,
}

fn trace() -> Trace {
    let publications = (1..=8).map(publication).collect();
    Trace { publications, reads: (1..=8).map(|version| read(version, version)).collect() }
}

impl Trace {
    fn judged(&self, clock_error: Duration) -> Verdict<String> {
        let mut checker = TraceChecker::new(clock_error);
        // A reader's trace may come before the publisher's.
        for read in &self.reads {
            let line = read.to_string();
            checker.add(line.parse().unwrap(), format!("read {}", read.sequence));
        }
        for publication in &self.publications {
            let line = publication.to_string();
            checker.add(line.parse().unwrap(), format!("version {}", publication.version.get()));
        }
        checker.finish()
    }

    /// Asserts that one violation is found, of this property, at this record, against that one.
    fn violates(&self, property: Property, at: &str, against: Option<&str>) {
        let verdict = self.judged(Duration::ZERO);
        let found: Vec<_> = verdict
            .violations
            .iter()
            .map(|violation| (violation.property, &*violation.at, violation.against.as_deref()))
            .collect();
        assert_eq!(found, [(property, at, against)], "{:?}", verdict.violations);
        let of_reads = u64::from(at.starts_with("read"));
        assert_eq!(verdict.verified + verdict.unverified + of_reads, verdict.reads, "{verdict:?}");
    }

    fn is_accepted(&self) {
        let verdict = self.judged(Duration::ZERO);
        assert_eq!(verdict.violations, [], "nothing is wrong with it");
        assert_eq!(verdict.verified, self.reads.len() as u64);
    }
}

#[test]
fn a_trace_that_keeps_all_promises_is_accepted_in_any_order() {
    trace().is_accepted();
    let mut reversed = trace();
    reversed.reads.reverse();
    reversed.publications.reverse();
    reversed.is_accepted();
}

#[test]
fn bytes_that_were_not_published_are_found() {
    let mut torn = trace();
    torn.reads[4].digests.insert("w".into(), digest(ORIGIN, 4));
    torn.violates(Property::Whole, "read 5", Some("version 5"));
    let mut unknown = trace();
    unknown.reads[4].digests.insert("other".into(), digest(ORIGIN, 5));
    unknown.violates(Property::Whole, "read 5", Some("version 5"));
}

#[test]
fn a_version_of_two_meanings_is_found() {
    let changes: [fn(&mut Publication); 3] = [
        |again| *again.digests.get_mut("b").unwrap() = [0; 32],
        |again| again.tag.label[31] ^= 1,
        |again| again.published_ns += 1,
    ];
    for change in changes {
        let mut twice = trace();
        let mut again = publication(5);
        change(&mut again);
        twice.publications.push(again);
        twice.violates(Property::Unique, "version 5", Some("version 5"));
    }
    let mut copied = trace();
    copied.publications.push(publication(5));
    copied.is_accepted();
}

#[test]
fn two_reads_of_one_name_are_found() {
    let mut twice = trace();
    twice.reads.push(read(5, 6));
    let verdict = twice.judged(Duration::ZERO);
    let found: Vec<_> = verdict.violations.iter().map(|violation| violation.property).collect();
    assert_eq!((found, verdict.reads), (vec![Property::Unique], 8));
}

#[test]
fn a_reader_that_goes_back_is_found() {
    let mut back = trace();
    // It may be behind, and sees the same newest version as before; but it has had a newer version already.
    back.reads[5] = Certificate {
        max_staleness: Some(2),
        newest: Version::new(6),
        began_ns: 650,
        ended_ns: 660,
        ..read(6, 4)
    };
    back.violates(Property::Monotone, "read 6", Some("read 5"));
    back.reads[5].exactly = Some(Version::new(4));
    back.is_accepted();
    let mut other = back;
    (other.reads[5].exactly, other.reads[5].reader) = (None, 2);
    other.is_accepted();
}

#[test]
fn a_newest_version_that_goes_back_is_found() {
    let mut back = trace();
    back.publications.truncate(5);
    back.reads.truncate(5);
    // No publication says that there was a sixth.
    back.reads[3] = Certificate { newest: Version::new(6), ended_ns: 519, ..read(4, 4) };
    (back.reads[4].began_ns, back.reads[4].max_staleness) = (520, Some(1));
    back.violates(Property::Monotone, "read 5", Some("read 4"));
}

#[test]
fn a_version_that_was_not_asked_for_is_found() {
    let mut early = trace();
    early.reads[4].at_least = Some(Version::new(6));
    early.violates(Property::Bounded, "read 5", None);
    early.reads[4].at_least = Some(Version::new(5));
    early.is_accepted();
    let mut other = trace();
    other.reads[4].exactly = Some(Version::new(6));
    other.violates(Property::Bounded, "read 5", None);
    let mut ahead = trace();
    (ahead.reads[4].newest, ahead.reads[4].began_ns) = (Version::new(4), 505);
    ahead.violates(Property::Bounded, "read 5", None);
}

#[test]
fn a_version_that_is_staler_than_was_asked_for_is_found() {
    let stale = |version: u64, newest: u64, most: u64| {
        let mut stale = trace();
        let times = publication(newest);
        stale.reads[4] = Certificate {
            reader: 2,
            max_staleness: Some(most),
            newest: Version::new(newest),
            began_ns: times.published_ns + 5, // Its publication is not complete.
            ended_ns: times.published_ns + 60,
            ..read(5, version)
        };
        stale
    };
    stale(3, 5, 2).is_accepted();
    stale(3, 5, 1).violates(Property::Bounded, "read 5", None);
    stale(5, 5, 0).is_accepted();
}

#[test]
fn a_version_older_than_the_newest_at_the_call_is_found() {
    let late = |began_ns: u64, most: Option<u64>, newest: u64| {
        let mut late = trace();
        late.reads[4] = Certificate {
            reader: 2,
            began_ns,
            ended_ns: began_ns + 10,
            max_staleness: most,
            newest: Version::new(newest),
            ..read(5, 5)
        };
        late
    };
    // Version 6 is complete at 610, and readers may see it before.
    late(610, None, 6).is_accepted();
    late(611, None, 6).violates(Property::Bounded, "read 5", Some("version 6"));
    late(611, Some(1), 6).is_accepted();
    let verdict = late(711, Some(1), 7).judged(Duration::ZERO);
    let is_late = |violation: &Violation<String>| violation.against.as_deref() == Some("version 7");
    assert!(verdict.violations.iter().any(is_late), "{verdict:?}");
    // Its age is part of the record, also where any age is allowed.
    late(611, Some(9), 5).violates(Property::Bounded, "read 5", Some("version 6"));
    let mut named = late(711, None, 7);
    named.reads[4].exactly = Some(Version::new(5));
    named.is_accepted();
    // A version that an owner passes on is as fresh as that owner had it.
    let mut relayed = late(711, None, 5);
    relayed.reads[4].epoch = 7;
    relayed.is_accepted();
}

#[test]
fn a_version_older_than_one_that_the_reader_knew_of_is_found() {
    let mut stale = trace();
    stale.publications.retain(|publication| publication.version.get() < 6);
    stale.reads.truncate(6);
    stale.reads[4].newest = Version::new(6);
    stale.reads[5] = Certificate { newest: Version::new(6), began_ns: 580, ended_ns: 590, ..read(6, 5) };
    stale.violates(Property::Bounded, "read 6", Some("read 5"));
    stale.reads[5].max_staleness = Some(1);
    stale.is_accepted();
}

#[test]
fn a_tag_that_is_not_the_publications_is_found() {
    let changes: [fn(&mut Certificate); 3] =
        [|read| read.tag.step += 1, |read| read.tag.label[0] ^= 1, |read| read.published_ns += 1];
    for change in changes {
        let mut other = trace();
        change(&mut other.reads[4]);
        other.violates(Property::Tagged, "read 5", Some("version 5"));
    }
}

#[test]
fn an_origin_that_is_not_the_owner_who_publishes_is_found() {
    let mut other = trace();
    other.reads[4].origin ^= 1;
    other.violates(Property::Tagged, "read 5", Some("version 1"));
    // An owner that publishes nothing passes on versions of others.
    for read in &mut other.reads {
        read.epoch = 7;
    }
    let verdict = other.judged(Duration::ZERO);
    assert_eq!((verdict.violations.len(), verdict.verified, verdict.unverified), (0, 7, 1), "{verdict:?}");
}

#[test]
fn a_newest_version_that_was_not_published_yet_is_found() {
    let mut early = trace();
    // The reader's last: it does not see the newest go back.
    early.reads.truncate(5);
    (early.reads[4].newest, early.reads[4].max_staleness) = (Version::new(6), Some(1));
    early.violates(Property::Timely, "read 5", Some("version 6"));
    early.reads[4].ended_ns = 600;
    early.is_accepted();
}

#[test]
fn a_version_without_a_record_before_it_could_be_there_is_found() {
    let mut early = trace();
    early.publications.remove(6);
    early.reads.truncate(5);
    // Version 7 has no record, and comes after 6, which was published after this read.
    (early.reads[4].newest, early.reads[4].max_staleness) = (Version::new(7), Some(2));
    early.violates(Property::Timely, "read 5", Some("version 6"));
    early.reads[4].ended_ns = 600;
    early.is_accepted();
    // The same where another owner passed version 7 on.
    let relayed = |ended_ns: u64| {
        let mut relayed = early.clone();
        let times = (550, ended_ns, 551);
        let mut last = Certificate { reader: 2, epoch: 7, ..read(5, 7) };
        (last.began_ns, last.ended_ns, last.published_ns) = times;
        relayed.reads[4] = last;
        relayed
    };
    relayed(599).violates(Property::Timely, "read 5", Some("version 6"));
    let verdict = relayed(600).judged(Duration::ZERO);
    assert_eq!((verdict.violations.len(), verdict.unverified), (0, 1), "{verdict:?}");
    // Where it was read from the publisher itself, the newest version is the same one: it is told once.
    let mut direct = relayed(599);
    direct.reads[4].epoch = direct.reads[4].origin;
    direct.violates(Property::Timely, "read 5", Some("version 6"));
}

#[test]
fn reads_that_contradict_each_other_are_found_without_a_publication() {
    let two = |change: fn(&mut Certificate)| {
        let mut two = trace();
        two.publications.remove(4);
        two.reads.truncate(5);
        let mut other = Certificate { sequence: 6, reader: 2, ..read(6, 5) };
        change(&mut other);
        two.reads.push(other);
        two
    };
    let verdict = two(|_| {}).judged(Duration::ZERO);
    assert_eq!((verdict.violations.len(), verdict.verified, verdict.unverified), (0, 4, 2), "{verdict:?}");
    let torn: fn(&mut Certificate) = |read| *read.digests.get_mut("b").unwrap() = [0; 32];
    two(torn).violates(Property::Whole, "read 6", Some("read 5"));
    two(|read| read.tag.step += 1).violates(Property::Tagged, "read 6", Some("read 5"));
    two(|read| read.published_ns -= 1).violates(Property::Tagged, "read 6", Some("read 5"));
    // A server publishes nothing, and each of its incarnations has versions of its own.
    let served = |epoch: u64, digest: u8| {
        let mut served = two(|_| {});
        for read in &mut served.reads {
            (read.origin, read.epoch, read.published_ns) = (0, 7, 0);
        }
        let last = served.reads.last_mut().unwrap();
        last.epoch = epoch;
        *last.digests.get_mut("b").unwrap() = [digest; 32];
        served
    };
    served(7, 0).violates(Property::Whole, "read 6", Some("read 5"));
    assert_eq!(served(8, 0).judged(Duration::ZERO).violations, []);
}

#[test]
fn a_read_of_what_was_not_published_yet_is_found() {
    let mut early = trace();
    (early.reads[4].began_ns, early.reads[4].ended_ns) = (480, 499);
    early.violates(Property::Timely, "read 5", None);
    early.reads[4].ended_ns = 500;
    early.is_accepted();
}

#[test]
fn times_against_the_order_of_one_process_are_found_under_any_clock_error() {
    let violates = |trace: &Trace, at: &str, against: Option<&str>| {
        trace.violates(Property::Timely, at, against);
        let found = trace.judged(Duration::from_millis(5)).violations;
        assert!(found.iter().any(|found| found.property == Property::Timely && found.at == at), "{found:?}");
    };
    let mut crossed = trace();
    crossed.reads[4].began_ns = 459;
    violates(&crossed, "read 5", Some("read 4"));
    let mut back = trace();
    (back.reads[4].began_ns, back.reads[4].ended_ns) = (561, 560);
    violates(&back, "read 5", None);
    let mut overlapping = trace();
    overlapping.publications[3].complete_ns = 501;
    violates(&overlapping, "version 5", Some("version 4"));
    let mut before = trace();
    before.publications[4].complete_ns = 499;
    violates(&before, "version 5", None);
}

#[test]
fn times_of_several_hosts_are_compared_with_a_tolerance() {
    let mut skewed = trace();
    for read in &mut skewed.reads {
        (read.began_ns, read.ended_ns) = (read.began_ns + 61, read.ended_ns + 61);
    }
    assert_eq!(skewed.judged(Duration::from_nanos(1)).violations, []);
    assert_eq!(
        skewed.judged(Duration::ZERO).violations.len(),
        14,
        "fresh, and its age told, but for the last"
    );
}

#[test]
fn a_read_that_nothing_vouches_for_is_unverified_and_never_verified() {
    let mut unrecorded = trace();
    unrecorded.publications.remove(4);
    unrecorded.reads[6].digests.clear();
    let verdict = unrecorded.judged(Duration::ZERO);
    assert_eq!((verdict.publications, verdict.reads, verdict.verified, verdict.unverified), (7, 8, 6, 2));
    assert_eq!(verdict.violations, []);
    // It is judged by its bound all the same.
    unrecorded.reads[4].at_least = Some(Version::new(6));
    let verdict = unrecorded.judged(Duration::ZERO);
    assert_eq!((verdict.verified, verdict.unverified, verdict.violations.len()), (6, 1, 1));
    let none = Trace { publications: Vec::new(), ..trace() }.judged(Duration::ZERO);
    assert_eq!((none.verified, none.unverified), (0, 8));
}

#[test]
fn records_are_lines_of_json_as_documented() {
    let label = format!("{}ff", "0".repeat(62));
    let digest = "a5".repeat(32);
    let line = format!(
        "{{\"certificate\":{{\"reader\":\"0000000000000001\",\"sequence\":2,\"max_staleness\":3,\
         \"began_ns\":4,\"ended_ns\":5,\"epoch\":\"00000000000000ab\",\"origin\":\"fedcba9876543210\",\
         \"version\":6,\"newest\":7,\"tag\":{{\"step\":8,\"label\":\"{label}\"}},\"published_ns\":9,\
         \"digests\":{{\"w\":\"{digest}\"}}}}}}"
    );
    let mut ends_in_ff = [0; 32];
    ends_in_ff[31] = 0xff;
    let certificate = Certificate {
        reader: 1,
        sequence: 2,
        max_staleness: Some(3),
        at_least: None,
        exactly: None,
        began_ns: 4,
        ended_ns: 5,
        epoch: 0xab,
        origin: 0xfedc_ba98_7654_3210,
        version: Version::new(6),
        newest: Version::new(7),
        tag: VersionTag { step: 8, label: ends_in_ff },
        published_ns: 9,
        digests: [("w".to_string(), [0xa5; 32])].into(),
    };
    assert_eq!(certificate.to_string(), line);
    assert_eq!(line.parse(), Ok(TraceRecord::Certificate(certificate)));
}

#[test]
fn the_samples_of_the_fuzz_target_are_records() {
    for sample in fuzz::trace_samples() {
        for line in String::from_utf8(sample).unwrap().lines() {
            line.parse::<TraceRecord>().unwrap();
        }
    }
}

#[test]
fn lines_that_are_no_records_are_errors_that_say_why() {
    let good = publication(5).to_string();
    for (from, to, why) in [
        ("\"origin\":\"0000", "\"origin\":\"000", "expected 16 hexadecimal digits"),
        ("\"origin\":\"0000", "\"origin\":\"000G", "expected 16 hexadecimal digits"),
        ("\"step\":50,", "", "missing field `step`"),
        ("\"version\":5", "\"version\":-5", "invalid value"),
        ("\"version\":5", "\"version\":5,\"colour\":1", "unknown field `colour`"),
        ("{\"publication\"", "{\"lease\"", "unknown variant `lease`"),
        ("}}}", "}}", "EOF"),
        ("}}}", "}}} x", "trailing characters"),
    ] {
        assert!(good.contains(from), "{good}");
        let error = good.replacen(from, to, 1).parse::<TraceRecord>().unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        assert!(error.to_string().ends_with(&*error.remedy().unwrap()), "{error}");
    }
}
