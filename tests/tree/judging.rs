//! The judgement of a run: how long readers waited, and what their traces show.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::{Duration, Instant};

use slackline::internals::trace::{TraceChecker, TraceRecord, Verdict};

use super::faults::Tree;
use crate::{LEASE, NEVER};

/// The times for which readers have waited for a version that they had not read before.
///
/// Time counts for a reader that runs on a host that is not cut off, while the publisher does. While the publisher does
/// not, time stands still. A reader that was killed, stopped or cut off itself begins again from zero.
pub(crate) struct Waits {
    /// For each reader, the versions that it had read by the last look, and its wait since.
    readers: Vec<(u64, Duration)>,
    pub(crate) longest: Duration,
    /// Waits for longer than twice the lease.
    pub(crate) late: u64,
}

impl Waits {
    pub(crate) fn of(tree: &Tree) -> Waits {
        let readers = vec![(0, Duration::ZERO); tree.readers().len()];
        Waits { readers, longest: Duration::ZERO, late: 0 }
    }

    /// Looks at all readers, `since` the last look.
    pub(crate) fn look(&mut self, tree: &Tree, since: Duration) {
        let counts = tree.is_there(tree.publisher());
        for (node, (news, waited)) in tree.readers().iter().zip(&mut self.readers) {
            let told = node.told();
            assert_eq!(told.broken, None, "the {}", node.name);
            if told.news != *news || !tree.is_there(node) {
                (*news, *waited) = (told.news, Duration::ZERO);
            } else if counts {
                let before = std::mem::replace(waited, *waited + since);
                if before <= 2 * LEASE && *waited > 2 * LEASE {
                    self.late += 1;
                    println!(
                        "{} on host {} waits for more than twice the lease; {}",
                        node.name, node.host, told.lost
                    );
                }
                self.longest = self.longest.max(*waited);
                assert!(*waited < NEVER, "the {} reads nothing any more", node.name);
            }
        }
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
