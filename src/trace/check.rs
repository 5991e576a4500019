//! The checker of traces.

mod read;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{Certificate, Publication, TraceRecord};
use crate::clock::Version;
use read::{FirstReads, Past, ReadJudge};

/// A property that every trace has if the library keeps its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Property {
    /// The bytes that were read equal the bytes that were published under this number.
    Whole,
    /// One origin and number name one version, one reader and sequence number one read.
    Unique,
    /// No reader goes back, in the version that it gets or in the newest one that it sees.
    Monotone,
    /// The version meets the request, also in freshness.
    Bounded,
    /// The version came with the origin, the tag and the time of its publication.
    Tagged,
    /// No version was read or seen before it was published, and successive actions of one process have times in that
    /// order.
    Timely,
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Property::Whole => "whole",
            Property::Unique => "unique",
            Property::Monotone => "monotone",
            Property::Bounded => "bounded",
            Property::Tagged => "tagged",
            Property::Timely => "timely",
        })
    }
}

/// A record that cannot be true if the property holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation<L> {
    /// The property that is violated.
    pub property: Property,
    /// The record.
    pub at: L,
    /// The other record that it contradicts, if there is one.
    pub against: Option<L>,
    /// The finding, as a sentence without its stop.
    pub found: String,
}

/// The judgement of a trace.
///
/// A read is verified, or unverified, or has a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict<L> {
    /// Versions with a record of their publication.
    pub publications: u64,
    /// Reads with a record.
    pub reads: u64,
    /// Reads without a violation, of which at least one tensor was compared with its publication.
    pub verified: u64,
    /// Reads without a violation whose bytes nothing vouches for: their version has no record of its publication, or no
    /// tensor was read whole.
    pub unverified: u64,
    /// All findings.
    pub violations: Vec<Violation<L>>,
}

/// Judges the records of any number of traces, which come in any order. Each has a location `L` of the caller's, by
/// which violations name it.
///
/// Memory grows with the number of records: each may contradict any other.
#[derive(Clone, Debug)]
pub struct TraceChecker<L> {
    /// The most by which the clocks of two hosts differ.
    clock_error_ns: u64,
    /// By origin and number.
    publications: BTreeMap<(u64, Version), (L, Publication)>,
    /// By reader and sequence number.
    reads: BTreeMap<(u64, u64), (L, Certificate)>,
    violations: Vec<Violation<L>>,
}

impl<L: Clone> TraceChecker<L> {
    /// A checker without records. Times of different processes are compared as times of clocks that differ by at most
    /// `clock_error`, which is zero if all ran on one host. Times of one process have one clock.
    pub fn new(clock_error: Duration) -> TraceChecker<L> {
        TraceChecker {
            clock_error_ns: u64::try_from(clock_error.as_nanos()).unwrap_or(u64::MAX),
            publications: BTreeMap::new(),
            reads: BTreeMap::new(),
            violations: Vec::new(),
        }
    }

    /// Takes a record. The same record once more, as from two copies of a trace, changes nothing.
    pub fn add(&mut self, record: TraceRecord, at: L) {
        match record {
            TraceRecord::Publication(publication) => {
                let key = (publication.origin, publication.version);
                let (other, first) =
                    self.publications.entry(key).or_insert_with(|| (at.clone(), publication.clone()));
                if *first != publication {
                    let found = format!("{} was published before as something else", name(key));
                    let against = Some(other.clone());
                    self.violations.push(Violation { property: Property::Unique, at, against, found });
                }
            }
            TraceRecord::Certificate(read) => {
                let key = (read.reader, read.sequence);
                let (other, first) = self.reads.entry(key).or_insert_with(|| (at.clone(), read.clone()));
                if *first != read {
                    let (reader, sequence) = key;
                    let found = format!("reader {reader:016x} has another read of number {sequence}");
                    let against = Some(other.clone());
                    self.violations.push(Violation { property: Property::Unique, at, against, found });
                }
            }
        }
    }

    /// Judges all records.
    pub fn finish(self) -> Verdict<L> {
        let TraceChecker { clock_error_ns, publications, reads, mut violations } = self;
        let histories = histories(&publications, &mut violations);
        let mut verdict = Verdict {
            publications: publications.len() as u64,
            reads: reads.len() as u64,
            verified: 0,
            unverified: 0,
            violations,
        };
        let (mut past, mut told) = (Past::of(0), FirstReads::nothing());
        for (at, read) in reads.values() {
            if past.reader != read.reader {
                past = Past::of(read.reader);
            }
            let mut judge = ReadJudge { at, read, clock_error_ns, violations: &mut verdict.violations };
            let before = judge.violations.len();
            judge.alone();
            let is_compared = publications
                .get(&(read.origin, read.version))
                .is_some_and(|(other, publication)| judge.with_publication(other, publication));
            if !is_compared {
                judge.with_others(&mut told);
            }
            // An owner numbers its versions in the order in which it publishes them.
            let by_then =
                |owner, version| publications.range((owner, Version::new(0))..=(owner, version)).next_back();
            let newest = by_then(read.epoch, read.newest);
            let own = by_then(read.origin, read.version)
                .filter(|(made, _)| newest.is_none_or(|(other, _)| other != *made));
            for (_, (other, publication)) in newest.into_iter().chain(own) {
                judge.not_before(other, publication);
            }
            if let Some(history) = histories.get(&read.epoch) {
                judge.within_history(history);
            }
            judge.after(&mut past);
            match (verdict.violations.len() == before, is_compared) {
                (true, true) => verdict.verified += 1,
                (true, false) => verdict.unverified += 1,
                (false, _) => {}
            }
        }
        verdict
    }
}

fn name((origin, version): (u64, Version)) -> String {
    format!("version {} of origin {origin:016x}", version.get())
}

/// For each time at which a publication of an origin was complete, the newest version by then, in the order of time.
type History<'a, L> = Vec<(u64, Version, &'a L)>;

/// The histories of all origins, whose publications are held against each other.
fn histories<'a, L: Clone>(
    publications: &'a BTreeMap<(u64, Version), (L, Publication)>,
    violations: &mut Vec<Violation<L>>,
) -> BTreeMap<u64, History<'a, L>> {
    let mut histories: BTreeMap<u64, History<'a, L>> = BTreeMap::new();
    let mut before: Option<&(L, Publication)> = None;
    for (key, entry) in publications {
        let (at, Publication { origin, version, published_ns, complete_ns, .. }) = entry;
        let mut untimely = |against: Option<&L>, what: &str| {
            let (found, against) = (format!("{} {what}", name(*key)), against.cloned());
            violations.push(Violation { property: Property::Timely, at: at.clone(), against, found });
        };
        if published_ns > complete_ns {
            untimely(None, "was complete before it was published");
        }
        if let Some((other, earlier)) = before.filter(|(_, earlier)| earlier.origin == *origin)
            && earlier.complete_ns > *published_ns
        {
            untimely(Some(other), "was published before an earlier one was complete");
        }
        histories.entry(*origin).or_default().push((*complete_ns, *version, at));
        before = Some(entry);
    }
    for history in histories.values_mut() {
        history.sort_by_key(|(complete_ns, version, _)| (*complete_ns, *version));
        let mut newest: Option<(Version, &L)> = None;
        for (_, version, at) in history {
            let (most, its) = newest.filter(|(most, _)| most > version).unwrap_or((*version, *at));
            (*version, *at) = (most, its);
            newest = Some((most, its));
        }
    }
    histories
}

/// True if the first time is later than the second, by whichever of two hosts' clocks each was taken.
fn is_later(one: u64, other: u64, clock_error_ns: u64) -> bool {
    one > other.saturating_add(clock_error_ns)
}
