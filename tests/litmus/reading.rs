//! The process that reads, and what it makes of what it reads.

use std::io::Write;
use std::time::{Duration, Instant};

use slackline::weights::Reader;
use slackline::{Fresh, Transport, Version};

use super::writing::TIMEOUT;

pub(crate) fn pull<T: Transport>(reader: &mut Reader<T>, tally: &mut Tally) {
    pull_to(Version::new(0), reader, tally);
}

/// Pulls what is not older than `least`.
pub(crate) fn pull_to<T: Transport>(least: Version, reader: &mut Reader<T>, tally: &mut Tally) {
    let Fresh { version, retries, .. } = reader.refresh_to(least, TIMEOUT).unwrap();
    assert!(version >= least);
    let bytes = reader.bytes().unwrap();
    assert!(all_are(bytes, version.get()), "version {version:?} is torn");
    tally.count(bytes.len(), version, retries);
}

/// Whether every word is `value`.
pub(crate) fn all_are(bytes: &[u8], value: u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    // Blocks without a branch inside, so that the compiler compares many words at once.
    let same =
        |block: &[[u8; 8]]| block.iter().fold(0, |or, word| or | (u64::from_le_bytes(*word) ^ value)) == 0;
    rest.is_empty() && words.chunks(512).all(same)
}

pub(crate) fn check_floats(bytes: &[u8], version: Version) {
    let (words, rest) = bytes.as_chunks::<4>();
    let value = (version.get() as f32).to_bits();
    let differing = words.iter().fold(0, |or, word| or | (u32::from_le_bytes(*word) ^ value));
    assert!(rest.is_empty() && differing == 0, "version {version:?} is torn");
}

/// Counts of what was read so far, which it prints every few seconds.
pub(crate) struct Tally {
    what: String,
    wanted: u64,
    pulls: u64,
    bytes: u64,
    retries: u64,
    pub(crate) newest: Version,
    /// Number of pulls that brought another version than the one before.
    pub(crate) versions: u64,
    begun: Instant,
    said: Instant,
}

impl Tally {
    pub(crate) fn new(what: impl Into<String>, wanted: u64) -> Tally {
        let now = Instant::now();
        let (what, newest) = (what.into(), Version::new(0));
        Tally { what, wanted, pulls: 0, bytes: 0, retries: 0, newest, versions: 0, begun: now, said: now }
    }

    pub(crate) fn count(&mut self, bytes: usize, version: Version, retries: u64) {
        assert!(version >= self.newest, "{version:?} after {:?}", self.newest);
        self.versions += u64::from(version != self.newest);
        self.newest = version;
        self.pulls += 1;
        self.bytes += bytes as u64;
        self.retries += retries;
        if self.pulls.is_multiple_of(64) && self.said.elapsed() > Duration::from_secs(5) {
            self.said = Instant::now();
            self.say();
        }
    }

    /// Another writer begins at 0 again; within one incarnation versions only grow.
    pub(crate) fn next_writer(&mut self) {
        self.newest = Version::new(0);
    }

    fn say(&self) {
        let Tally { what, wanted, pulls, retries, versions, .. } = self;
        let (seconds, gigabytes) = (self.begun.elapsed().as_secs_f64(), self.bytes as f64 / 1e9);
        say(&format!(
            "{what}: {pulls} of {wanted} pulls, {gigabytes:.1} GB, {versions} versions, {retries} retries, \
             {seconds:.1} s"
        ));
    }

    /// True after a minute with at least a thousand pulls. That is enough where both processes wait for each other at
    /// every step: a busy machine makes steps of milliseconds.
    pub(crate) fn is_late(&self) -> bool {
        self.pulls >= 1000 && self.begun.elapsed() > Duration::from_secs(60)
    }

    pub(crate) fn end(&self) {
        self.say();
        assert!(self.pulls == self.wanted || self.is_late());
        assert!(self.versions > 10, "the writer stood still");
    }
}

/// Past the test harness, which keeps what `eprintln!` says to itself.
pub(crate) fn say(text: &str) {
    let _unheard = writeln!(std::io::stderr(), "litmus: {text}");
}
