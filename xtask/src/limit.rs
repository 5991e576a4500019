//! The longest time that one command of a step may take: a suite that hangs fails its step by name, and the steps after
//! it still run.

use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// The limit of every command. The longest one, which builds and runs all tests of the workspace, takes 12 minutes on
/// two busy processors.
pub(crate) const COMMAND_MAX: Duration = Duration::from_secs(30 * 60);

/// Ends a process with all its descendants when its time is up, unless it is dropped or asked before.
#[derive(Debug)]
pub(crate) struct Limit {
    ended: Sender<()>,
    watch: JoinHandle<bool>,
}

impl Limit {
    /// Watches a child that has just been started.
    pub(crate) fn start(child: &Child, time: Duration) -> Limit {
        let root = child.id();
        let (ended, end) = mpsc::channel();
        let watch = std::thread::spawn(move || {
            let late = end.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            if late {
                kill(&with_descendants(root, &parents()));
            }
            late
        });
        Limit { ended, watch }
    }

    /// Stops watching, after the child has ended; true if its time was up.
    pub(crate) fn was_reached(self) -> bool {
        // An error means that the watch has ended, because the time was up.
        let _over = self.ended.send(());
        self.watch.join().unwrap_or(false)
    }
}

/// Each process and its parent.
fn parents() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| parent(&std::fs::read_to_string(entry.path().join("stat")).ok()?)).collect()
}

/// The process and its parent out of `/proc/PID/stat`: `PID (NAME) STATE PARENT ...`, where the name may hold anything.
fn parent(stat: &str) -> Option<(u32, u32)> {
    let (process, rest) = stat.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    Some((process.parse().ok()?, rest.split(' ').nth(1)?.parse().ok()?))
}

fn with_descendants(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(process) = found.get(next).copied() {
        let children = parents.iter().filter(|(_, parent)| *parent == process).map(|(child, _)| *child);
        found.extend(children);
        next += 1;
    }
    found
}

fn kill(processes: &[u32]) {
    let numbers = processes.iter().map(u32::to_string);
    // It fails for those that have ended meanwhile.
    let _status = Command::new("kill").arg("-9").args(numbers).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_hangs_is_ended_with_its_children() {
        // The grandchild keeps the pipe open for as long as it lives.
        let mut child = Command::new("sh");
        let child = child.args(["-c", "sleep 600 & wait"]).stdout(Stdio::piped()).spawn().unwrap();
        let limit = Limit::start(&child, Duration::from_millis(100));
        assert!(!child.wait_with_output().unwrap().status.success());
        assert!(limit.was_reached());
    }

    #[test]
    fn a_process_that_ends_in_time_is_left_alone() {
        let mut child = Command::new("true").spawn().unwrap();
        let limit = Limit::start(&child, Duration::from_secs(600));
        assert!(child.wait().unwrap().success());
        assert!(!limit.was_reached());
    }

    #[test]
    fn the_parent_is_found_whatever_the_name_of_the_process_is() {
        assert_eq!(parent("7 (a) b (c) S 3 7 7"), Some((7, 3)));
        assert_eq!(parent("7"), None);
        assert_eq!(with_descendants(2, &[(3, 2), (5, 4), (4, 3), (6, 1)]), [2, 3, 4, 5]);
    }
}
