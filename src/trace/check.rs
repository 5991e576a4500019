//! The checker of traces.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::{Certificate, Publication, TraceRecord};
use crate::clock::Version;

/// A property that every trace has if the library keeps its promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Property {
    /// The bytes that were read are those that were published under this number.
    Whole,
    /// One origin and number name one version, one reader and sequence number one read.
    Unique,
    /// No reader goes back, in the version that it gets or in the newest one that it sees.
    Monotone,
    /// The version is one that was asked for, and as fresh as was asked for.
    Bounded,
    /// The version came with the tag and the time of its publication.
    Tagged,
    /// Nothing was read before it was published, and what one process did one after the other has times in that order.
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
    /// What was found, as a sentence without its stop.
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
    /// All that was found.
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
    /// A checker that has seen nothing. Times are compared as those of clocks that differ by at most `clock_error`;
    /// processes of one host have one clock.
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

    /// Judges all that was taken.
    pub fn finish(self) -> Verdict<L> {
        let TraceChecker { clock_error_ns, publications, reads, mut violations } = self;
        let histories = histories(&publications, clock_error_ns, &mut violations);
        let mut verdict = Verdict {
            publications: publications.len() as u64,
            reads: reads.len() as u64,
            verified: 0,
            unverified: 0,
            violations,
        };
        let mut past = Past::default();
        for (at, read) in reads.values() {
            if past.reader != Some(read.reader) {
                past = Past { reader: Some(read.reader), ..Past::default() };
            }
            let mut judge = ReadJudge { at, read, clock_error_ns, violations: &mut verdict.violations };
            let before = judge.violations.len();
            judge.alone();
            let is_compared = publications
                .get(&(read.origin, read.version))
                .is_some_and(|(other, publication)| judge.with_publication(other, publication));
            if let Some(history) = histories.get(&read.origin) {
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
    clock_error_ns: u64,
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
        if is_later(*published_ns, *complete_ns, clock_error_ns) {
            untimely(None, "was complete before it was published");
        }
        if let Some((other, earlier)) = before.filter(|(_, earlier)| earlier.origin == *origin)
            && is_later(earlier.complete_ns, *published_ns, clock_error_ns)
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

/// True if the first time is later than the second, whatever clocks they are by.
fn is_later(one: u64, other: u64, clock_error_ns: u64) -> bool {
    one > other.saturating_add(clock_error_ns)
}

/// What a reader did before.
struct Past<'a, L> {
    reader: Option<u64>,
    last: Option<(&'a L, &'a Certificate)>,
    /// By origin, the newest version that it got.
    got: BTreeMap<u64, (Version, &'a L)>,
    /// By owner, the newest version that it saw.
    seen: BTreeMap<u64, (Version, &'a L)>,
}

impl<L> Default for Past<'_, L> {
    fn default() -> Self {
        Past { reader: None, last: None, got: BTreeMap::new(), seen: BTreeMap::new() }
    }
}

/// Judges one read.
struct ReadJudge<'a, 'b, L> {
    at: &'a L,
    read: &'a Certificate,
    clock_error_ns: u64,
    violations: &'b mut Vec<Violation<L>>,
}

impl<'a, L: Clone> ReadJudge<'a, '_, L> {
    fn violates(&mut self, property: Property, against: Option<&L>, found: String) {
        let (at, against) = (self.at.clone(), against.cloned());
        self.violations.push(Violation { property, at, against, found });
    }

    /// The most versions that the read may be behind one that the owner had when it began; `None` for any number.
    fn allowance(&self) -> Option<u64> {
        // One that is asked for by its number may be any number of versions old.
        self.read.max_staleness.or(self.read.exactly.is_none().then_some(0))
    }

    /// By its own words.
    fn alone(&mut self) {
        let Certificate { version, newest, max_staleness, at_least, exactly, .. } = *self.read;
        let (got, seen) = (version.get(), newest.get());
        if newest < version {
            let found = format!("version {got} is newer than version {seen}, the newest at that time");
            self.violates(Property::Bounded, None, found);
        }
        if let Some(wanted) = exactly.filter(|wanted| *wanted != version) {
            let found =
                format!("version {} and no other was asked for, and version {got} given", wanted.get());
            self.violates(Property::Bounded, None, found);
        }
        if let Some(least) = at_least.filter(|least| version < *least) {
            let found =
                format!("version {} or a newer one was asked for, and version {got} given", least.get());
            self.violates(Property::Bounded, None, found);
        }
        if let Some(most) = max_staleness.filter(|most| version.behind(newest) > *most) {
            let found = format!("version {got} is more than {most} behind version {seen}, the newest");
            self.violates(Property::Bounded, None, found);
        }
        if is_later(self.read.began_ns, self.read.ended_ns, self.clock_error_ns) {
            self.violates(Property::Timely, None, "the read ended before it began".into());
        }
        if is_later(self.read.published_ns, self.read.ended_ns, self.clock_error_ns) {
            let found = format!("version {got} was published after the read had ended");
            self.violates(Property::Timely, None, found);
        }
    }

    /// Against the publication of the version. True if any bytes were compared.
    fn with_publication(&mut self, other: &L, publication: &Publication) -> bool {
        let read = self.read;
        let subject = name((read.origin, read.version));
        for (tensor, digest) in &read.digests {
            match publication.digests.get(tensor) {
                Some(published) if published == digest => {}
                Some(_) => {
                    let found = format!("the bytes of `{tensor}` are not those of {subject}");
                    self.violates(Property::Whole, Some(other), found);
                }
                None => {
                    let found = format!("{subject} has no tensor `{tensor}`");
                    self.violates(Property::Whole, Some(other), found);
                }
            }
        }
        if (read.tag, read.published_ns) != (publication.tag, publication.published_ns) {
            let what = if read.tag == publication.tag { "time" } else { "tag" };
            let found = format!("the {what} is not the one that {subject} was published with");
            self.violates(Property::Tagged, Some(other), found);
        }
        !read.digests.is_empty()
    }

    /// Against all that the version's publisher had published when the read began.
    fn within_history(&mut self, history: &History<'_, L>) {
        let read = self.read;
        // An owner that passes on the versions of another one has each of them at a later time.
        if read.epoch != read.origin {
            return;
        }
        let by_then = history
            .partition_point(|(complete_ns, ..)| is_later(read.began_ns, *complete_ns, self.clock_error_ns));
        let Some((_, newest, other)) = by_then.checked_sub(1).map(|last| history[last]) else { return };
        self.is_fresh(newest, other, "was published before the read began");
        if read.newest < newest {
            let (seen, published) = (read.newest.get(), newest.get());
            let found = format!(
                "version {seen} was said to be the newest, and version {published} was published before the read \
                 began"
            );
            self.violates(Property::Bounded, Some(other), found);
        }
    }

    /// Holds the read to its bound, given a version that the owner had when it began.
    fn is_fresh(&mut self, newest: Version, other: &L, why: &str) {
        let version = self.read.version;
        if let Some(most) = self.allowance().filter(|most| version.behind(newest) > *most) {
            let (got, newer) = (version.get(), newest.get());
            let found = format!("version {got} is more than {most} behind version {newer}, which {why}");
            self.violates(Property::Bounded, Some(other), found);
        }
    }

    /// Against the earlier reads of the same reader.
    fn after(&mut self, past: &mut Past<'a, L>) {
        let read = self.read;
        let version = read.version;
        if let Some((other, last)) = past.last
            && is_later(last.ended_ns, read.began_ns, self.clock_error_ns)
        {
            self.violates(
                Property::Timely,
                Some(other),
                "the read began before an earlier one had ended".into(),
            );
        }
        past.last = Some((self.at, read));
        // Versions of a server have no origin but the server.
        let origin = if read.origin == 0 { read.epoch } else { read.origin };
        let got = past.got.get(&origin).copied();
        if let Some((newest, other)) = got.filter(|(newest, _)| read.exactly.is_none() && version < *newest) {
            let found = format!("version {} was read after version {}", version.get(), newest.get());
            self.violates(Property::Monotone, Some(other), found);
        }
        if got.is_none_or(|(newest, _)| version > newest) {
            past.got.insert(origin, (version, self.at));
        }
        let seen = past.seen.get(&read.epoch).copied();
        if let Some((newest, other)) = seen {
            if read.newest < newest {
                let (now, before) = (read.newest.get(), newest.get());
                let found = format!("version {now} was said to be the newest, after version {before}");
                self.violates(Property::Monotone, Some(other), found);
            }
            self.is_fresh(newest, other, "this reader saw before");
        }
        if seen.is_none_or(|(newest, _)| read.newest > newest) {
            past.seen.insert(read.epoch, (read.newest, self.at));
        }
    }
}
