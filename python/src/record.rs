//! What reads were asked for, and when: of that, and of the bytes, their certificates are made.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{SystemTime, UNIX_EPOCH};

use slackline::Version;
use slackline::weights::Certificate;

use crate::errors::{Class, Failure};
use crate::reading::Request;
use crate::snapshot::Facts;
use crate::table::{Layout, Spec};

/// Reads that follow each other in time: to those who check them, the reads of one reader.
#[derive(Debug)]
pub(crate) struct Reads {
    /// A random number.
    reader: u64,
    begun: u64,
}

impl Reads {
    pub(crate) fn new() -> Reads {
        // The standard library has no other randomness: each state has keys of its own.
        Reads { reader: RandomState::new().build_hasher().finish(), begun: 0 }
    }

    /// The next read begins now.
    pub(crate) fn begin(&mut self, request: Request) -> Asked {
        self.begun += 1;
        let began_ns = time_of_day();
        // No load of the read comes before the clock's.
        fence(Ordering::SeqCst);
        Asked { reader: self.reader, sequence: self.begun, request, began_ns, ended_ns: 0 }
    }
}

/// Nanoseconds since 1970.
pub(crate) fn time_of_day() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// One read: what was asked, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    reader: u64,
    sequence: u64,
    request: Request,
    began_ns: u64,
    ended_ns: u64,
}

impl Asked {
    /// The read has ended now.
    pub(crate) fn ended(self) -> Asked {
        Asked { ended_ns: time_of_day(), ..self }
    }

    /// True if this is the same read.
    pub(crate) fn is(&self, other: &Asked) -> bool {
        (self.reader, self.sequence) == (other.reader, other.sequence)
    }
}

/// What a snapshot of a publisher's knows of its read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) asked: Asked,
    /// The publisher's table, of which the snapshot may have a part.
    pub(crate) whole: Arc<Layout>,
}

impl Read {
    /// True if a tensor of the snapshot is the publisher's whole tensor, and not a slice of it.
    pub(crate) fn is_whole(&self, spec: &Spec) -> bool {
        let published = self.whole.find(&spec.name).map(|index| &self.whole.specs[index]);
        published.is_some_and(|published| published.shape == spec.shape)
    }

    /// The record of the read, of whose tensors these are the digests.
    pub(crate) fn certificate(&self, facts: &Facts, digests: BTreeMap<String, [u8; 32]>) -> Certificate {
        let Asked { reader, sequence, request, began_ns, ended_ns } = self.asked;
        let Facts { version, epoch, origin, staleness, tag, published_ns } = *facts;
        let Request { max_staleness, at_least, exactly } = request;
        // What is asked for by its number may be of any age.
        let is_any = exactly.is_none();
        Certificate {
            reader,
            sequence,
            max_staleness: max_staleness.filter(|_| is_any),
            at_least: (is_any && at_least > 0).then_some(Version::new(at_least)),
            exactly: exactly.map(Version::new),
            began_ns,
            ended_ns,
            epoch,
            origin,
            version: Version::new(version),
            newest: Version::new(version + staleness),
            tag,
            published_ns,
            digests,
        }
    }
}

/// The error of a snapshot that no reader has read.
pub(crate) fn no_read() -> Failure {
    let cause = "these are parameters that a worker or a server lends, and no read of a Reader";
    Failure::new(Class::Unsupported, "recording a read", cause, "read them by a Reader")
}
