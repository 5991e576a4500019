//! The judgement of a run: how long readers waited, and what their traces show.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use slackline::internals::trace::{TraceChecker, TraceRecord, Verdict};

use super::faults::Tree;

/// The lease of all owners: the library's default.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// A reader that has read nothing for so long never will.
pub(crate) const NEVER: Duration = Duration::from_secs(60);

/// The times for which readers have waited, of one kind.
///
/// Time counts for a reader that runs on a host that is not cut off, while the publisher does. While the publisher does
/// not, time stands still. A reader that was killed, stopped or cut off itself begins again from zero.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// For each reader, the number that it had told by the last look, and its wait since.
    readers: Vec<(u64, Duration)>,
    pub(crate) longest: Duration,
    /// Waits for longer than twice the lease.
    pub(crate) late: u64,
}

impl Waits {
    /// Looks at a reader, `since` the last look; returns whether its wait is longer than twice the lease now.
    fn look(&mut self, reader: usize, told: u64, is_there: bool, since: Duration) -> bool {
        let (known, waited) = &mut self.readers[reader];
        if told != *known || !is_there {
            (*known, *waited) = (told, Duration::ZERO);
            return false;
        }
        let before = std::mem::replace(waited, *waited + since);
        let is_late = before <= 2 * LEASE && *waited > 2 * LEASE;
        self.late += u64::from(is_late);
        self.longest = self.longest.max(*waited);
        is_late
    }
}

/// What is measured of the readers while they run.
pub(crate) struct Watch {
    /// The times without any read.
    pub(crate) served: Waits,
    /// The times without a version that the reader had not read before.
    pub(crate) newer: Waits,
}

impl Watch {
    pub(crate) fn of(tree: &Tree) -> Watch {
        let waits = Waits { readers: vec![Default::default(); tree.readers().len()], ..Waits::default() };
        Watch { served: waits.clone(), newer: waits }
    }

    /// Looks at all readers, `since` the last look.
    pub(crate) fn look(&mut self, tree: &Tree, since: Duration) {
        let since = if tree.is_there(tree.publisher()) { since } else { Duration::ZERO };
        for (reader, node) in tree.readers().iter().enumerate() {
            let (told, is_there) = (node.told(), tree.is_there(node));
            assert_eq!(told.broken, None, "the {}", node.name);
            let within = 2 * LEASE.as_secs();
            if self.served.look(reader, told.reads, is_there, since) {
                println!("{} on host {}: no read within {within} s; {}", node.name, node.host, told.lost);
            }
            if self.newer.look(reader, told.news, is_there, since) {
                println!("{} on host {}: no newer version within {within} s", node.name, node.host);
            }
        }
        assert!(self.newer.longest < NEVER, "a reader reads nothing new any more");
    }

    /// Waits until each reader has read once more, after all faults are over.
    pub(crate) fn see_all_served(&self, tree: &Tree) {
        let before: Vec<u64> = tree.readers().iter().map(|node| node.told().news).collect();
        let deadline = Instant::now() + NEVER;
        for (node, before) in tree.readers().iter().zip(before) {
            while node.told().news == before {
                assert!(Instant::now() < deadline, "the {} is not served after all faults", node.name);
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// The judgement of all traces.
pub(crate) struct Judged {
    pub(crate) verdict: Verdict<(String, usize)>,
    pub(crate) bytes: usize,
    /// Last lines that their process had not finished.
    pub(crate) unfinished: usize,
}

/// Judges the traces of a folder as `slackline check` does.
pub(crate) fn judge(folder: &Path) -> Judged {
    let (mut checker, mut bytes, mut unfinished) = (TraceChecker::new(Duration::ZERO), 0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut file = BufReader::new(std::fs::File::open(&path).unwrap());
        for number in 1.. {
            let mut line = String::new();
            bytes += file.read_line(&mut line).unwrap();
            match line.strip_suffix('\n') {
                Some(record) => {
                    let record = record.parse::<TraceRecord>();
                    checker.add(
                        record.unwrap_or_else(|error| panic!("{name}:{number}: {error}")),
                        (name.clone(), number),
                    );
                }
                None => {
                    unfinished += usize::from(!line.is_empty());
                    break;
                }
            }
        }
    }
    Judged { verdict: checker.finish(), bytes, unfinished }
}
