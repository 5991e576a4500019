//! The judgement of one read.

use std::collections::BTreeMap;

use super::super::{Certificate, Publication};
use super::{History, Property, Violation, is_later, name};
use crate::clock::Version;

/// The earlier reads of a reader.
pub(super) struct Past<'a, L> {
    pub(super) reader: u64,
    last: Option<(&'a L, &'a Certificate)>,
    /// By origin, the newest version that it got.
    got: BTreeMap<u64, (Version, &'a L)>,
    /// By owner, the newest version that it saw.
    seen: BTreeMap<u64, (Version, &'a L)>,
}

impl<L> Past<'_, L> {
    /// Of a reader that has done nothing yet.
    pub(super) fn of(reader: u64) -> Self {
        Past { reader, last: None, got: BTreeMap::new(), seen: BTreeMap::new() }
    }
}

/// The results of reads of versions whose bytes no publication has: the first read of each, and the first digest of
/// each tensor.
pub(super) struct FirstReads<'a, L> {
    versions: BTreeMap<MadeVersion, (&'a L, &'a Certificate)>,
    bytes: BTreeMap<(MadeVersion, &'a str), (&'a L, &'a [u8; 32])>,
}

/// The incarnation that made a version, and its number.
type MadeVersion = (u64, Version);

impl<L> FirstReads<'_, L> {
    /// Of no version yet.
    pub(super) const fn nothing() -> Self {
        FirstReads { versions: BTreeMap::new(), bytes: BTreeMap::new() }
    }
}

/// Judges one read.
pub(super) struct ReadJudge<'a, 'b, L> {
    pub(super) at: &'a L,
    pub(super) read: &'a Certificate,
    pub(super) clock_error_ns: u64,
    pub(super) violations: &'b mut Vec<Violation<L>>,
}

impl<'a, L: Clone> ReadJudge<'a, '_, L> {
    fn violates(&mut self, property: Property, against: Option<&L>, found: String) {
        let (at, against) = (self.at.clone(), against.cloned());
        self.violations.push(Violation { property, at, against, found });
    }

    /// The most versions that the read may be behind a version that the owner had when it began; `None` for any number.
    fn allowance(&self) -> Option<u64> {
        // A version that is requested by its number may be any number of versions old.
        self.read.max_staleness.or(self.read.exactly.is_none().then_some(0))
    }

    /// By its own words.
    pub(super) fn alone(&mut self) {
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
        if self.read.began_ns > self.read.ended_ns {
            self.violates(Property::Timely, None, "the read ended before it began".into());
        }
        if is_later(self.read.published_ns, self.read.ended_ns, self.clock_error_ns) {
            let found = format!("version {got} was published after the read had ended");
            self.violates(Property::Timely, None, found);
        }
    }

    /// Against the publication of the version. True if any bytes were compared.
    pub(super) fn with_publication(&mut self, other: &L, publication: &Publication) -> bool {
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

    /// Against earlier reads of the same version, where no publication has any of its bytes.
    pub(super) fn with_others(&mut self, told: &mut FirstReads<'a, L>) {
        let read = self.read;
        let key = (maker(read), read.version);
        let what = format!("version {} of {:016x}", read.version.get(), key.0);
        let (other, first) = *told.versions.entry(key).or_insert((self.at, read));
        if (read.tag, read.published_ns) != (first.tag, first.published_ns) {
            let found = format!("{what} came to another read with another tag or time");
            self.violates(Property::Tagged, Some(other), found);
        }
        for (tensor, digest) in &read.digests {
            let (other, first) = *told.bytes.entry((key, tensor)).or_insert((self.at, digest));
            if digest != first {
                let found = format!("the bytes of `{tensor}` of {what} are not those that another read got");
                self.violates(Property::Whole, Some(other), found);
            }
        }
    }

    /// Against a publication of the owner or the origin whose number is at most the number that was read or seen: it
    /// was published before the read had ended.
    pub(super) fn not_before(&mut self, other: &L, publication: &Publication) {
        // The time of the version itself came with it, and is judged alone.
        let is_other = (publication.origin, publication.version) != (self.read.origin, self.read.version);
        if is_other && is_later(publication.published_ns, self.read.ended_ns, self.clock_error_ns) {
            let found = format!(
                "version {} was said to be there, and version {} published after the read had ended",
                self.read.newest.get(),
                publication.version.get()
            );
            self.violates(Property::Timely, Some(other), found);
        }
    }

    /// Against all versions that the owner had published when the read began. An owner that passes on the versions of
    /// another, each of which it has at a later time, publishes none of its own.
    pub(super) fn within_history(&mut self, history: &History<'_, L>) {
        let read = self.read;
        if let Some((_, _, other)) = history.first().filter(|_| read.origin != read.epoch) {
            let found = format!(
                "origin {:016x} is said to have made it, and {:016x} has versions of its own",
                read.origin, read.epoch
            );
            return self.violates(Property::Tagged, Some(other), found);
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
            let found = match most {
                0 => format!("version {got} is older than version {newer}, which {why}"),
                most => format!("version {got} is more than {most} behind version {newer}, which {why}"),
            };
            self.violates(Property::Bounded, Some(other), found);
        }
    }

    /// Against the earlier reads of the same reader.
    pub(super) fn after(&mut self, past: &mut Past<'a, L>) {
        let read = self.read;
        let version = read.version;
        if let Some((other, _)) = past.last.filter(|(_, last)| last.ended_ns > read.began_ns) {
            let found = "the read began before an earlier one had ended".into();
            self.violates(Property::Timely, Some(other), found);
        }
        past.last = Some((self.at, read));
        let origin = maker(read);
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

/// The incarnation that made the version: versions of a server have no origin but the server.
fn maker(read: &Certificate) -> u64 {
    if read.origin == 0 { read.epoch } else { read.origin }
}
