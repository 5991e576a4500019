//! Processes of a run killed in the middle of it: those that are left go on or say what happened, and nothing stays.
//!
//! Only processes that a test itself started are ever signalled. Sockets and memory are told by what these processes
//! held, so other runs on the same machine are not in the way.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

mod common;
use common::{Run, is_ours, kill};

const SCHEMES: [&str; 4] = ["bsp", "asp", "ssp", "essp"];

/// Runs at a time: they sleep most of the time.
const TOGETHER: usize = 8;

/// A lease by which no process is evicted while a run lasts.
const LONG_LEASE: [&str; 2] = ["--lease", "600"];

/// A timeout that no run of any machine reaches.
const PATIENT: [&str; 2] = ["--timeout", "60"];

#[test]
fn survivors_of_a_killed_worker_finish_100_times() {
    let _alone = alone();
    repeat(100, |index, random| {
        let workers = 2 + index % 2;
        let run = start(SCHEMES[index % 4], workers, 1 + index / 4 % 2, &[PATIENT, LONG_LEASE].concat());
        run.wait_for("epoch");
        let held = held(&run);
        random.pause();
        let victim = random.below(workers);
        kill(run.worker(victim), Signal::KILL);
        run.wait_for(&format!("warning: worker {victim} was killed by signal 9; evicted"));
        let (code, json, said) = run.end();
        assert_eq!(code, Some(0), "{said}");
        let json: Value = serde_json::from_str(&json).expect("stdout holds JSON");
        assert_eq!(json["evicted"], 1);
        let clocks = |worker: usize| json["workers"][worker]["clocks"].as_u64().unwrap();
        for worker in 0..workers {
            assert_eq!(json["workers"][worker]["evicted"], worker == victim, "{json}");
            let survivor = (0..workers).find(|other| *other != victim).unwrap();
            assert!(
                worker == victim || clocks(worker) == clocks(survivor),
                "survivors do all their work: {json}"
            );
            assert!(worker != victim || clocks(worker) < clocks(survivor), "killed in the middle: {json}");
        }
        held.is_gone();
    });
}

#[test]
fn survivors_of_a_killed_server_say_which_shard_is_lost_20_times() {
    let _alone = alone();
    repeat(20, |index, random| {
        let servers = 1 + index % 2;
        let run = start(SCHEMES[index / 2 % 4], 2, servers, &PATIENT);
        run.wait_for("epoch");
        let held = held(&run);
        random.pause();
        let shard = random.below(servers);
        let killed = Instant::now();
        kill(run.server(shard), Signal::KILL);
        let (code, json, said) = run.end();
        assert!(killed.elapsed() < Duration::from_secs(60), "by the deadline of the run");
        assert_eq!(code, Some(1), "{said}");
        assert!(json.is_empty(), "{json}");
        let error =
            format!("error: lost shard {shard} of {servers}: its server was killed by signal 9 (worker ");
        assert!(said.contains(&error), "{said}");
        assert!(said.contains(&format!(": lost shard {shard} of {servers} at @slackline-")), "{said}");
        assert!(said.contains("help: start the run again"), "{said}");
        held.is_gone();
    });
}

#[test]
fn a_killed_or_terminated_coordinator_takes_all_its_processes_along() {
    let _alone = alone();
    repeat(20, |index, random| {
        let run = start(SCHEMES[index / 2 % 4], 2, 1 + index % 2, &PATIENT);
        run.wait_for("epoch");
        let held = held(&run);
        random.pause();
        kill(run.pid(), [Signal::KILL, Signal::TERM][index % 2]);
        let (code, json, said) = run.end();
        assert_eq!((code, json.as_str()), (None, ""), "ended by the signal: {said}");
        held.is_gone();
    });
}

#[test]
fn a_worker_that_hangs_is_let_go_of() {
    let _alone = alone();
    let run = start("bsp", 2, 2, &PATIENT);
    run.wait_for("epoch");
    let held = held(&run);
    kill(run.worker(1), Signal::STOP);
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: worker 1 was silent for 5 s; evicted"), "{said}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["workers"][0]["evicted"], &json["workers"][1]["evicted"]),
        (&false.into(), &true.into())
    );
    held.is_gone();
}

#[test]
fn a_server_that_hangs_is_told_by_the_deadline() {
    let _alone = alone();
    let run = start("ssp", 2, 1, &["--timeout", "12"]);
    run.wait_for("epoch");
    let held = held(&run);
    kill(run.server(0), Signal::STOP);
    let (code, _, said) = run.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("error: all workers are lost") && said.contains("did not end within 12s"),
        "{said}"
    );
    held.is_gone();
}

// ---------------------------------------------------------------------- a run

/// Begins a run that sleeps most of the time and takes about two seconds, however fast the machine is.
fn start(scheme: &str, workers: usize, servers: usize, more: &[&str]) -> Run {
    let (count, servers) = (workers.to_string(), servers.to_string());
    let mut arguments = vec!["train", "--model", "softmax", "--epochs", "80", "--json", "-"];
    arguments.extend(["--scheme", scheme, "--workers", &count, "--servers", &servers]);
    arguments.extend(["--jitter", "constant(0.001)"]);
    arguments.extend(more);
    Run::of(&arguments)
}

/// All that a run holds of the system now.
fn held(run: &Run) -> Held {
    let mut held = Held::default();
    held.processes.extend(run.children("serve").into_iter().chain(run.children("work")));
    assert!(held.processes.len() >= 3, "servers and workers are there");
    let sockets = sockets();
    for pid in held.processes.iter().chain([&run.pid()]) {
        for (link, identity) in descriptors(&format!("/proc/{pid}/fd")) {
            if link.starts_with("/memfd:") {
                held.memory.insert(identity);
            }
            let inode = link.strip_prefix("socket:[").and_then(|link| link.strip_suffix(']'));
            let listens = |socket: &&Vec<String>| Some(socket[6].as_str()) == inode && socket.len() > 7;
            held.names.extend(sockets.iter().find(listens).map(|socket| socket[7].clone()));
        }
    }
    assert!(!held.memory.is_empty() && !held.names.is_empty(), "the look at /proc sees them");
    held
}

// ---------------------------------------------------------------------- what it holds

#[derive(Debug, Default)]
struct Held {
    processes: BTreeSet<u32>,
    /// Memory files, by device and inode.
    memory: BTreeSet<(u64, u64)>,
    /// Names in the abstract namespace.
    names: BTreeSet<String>,
}

impl Held {
    /// Asserts that nothing of it is left. Processes whose parent was killed take a moment.
    fn is_gone(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let is_role = |pid: &&u32| is_ours(**pid, "serve") || is_ours(**pid, "work");
        left.extend(self.processes.iter().filter(is_role).map(|pid| format!("process {pid}")));
        left.extend(sockets().into_iter().filter_map(|mut socket| {
            let name = (socket.len() > 7).then(|| socket.swap_remove(7))?;
            self.names.contains(&name).then_some(name)
        }));
        for process in fs::read_dir("/proc").unwrap().flatten() {
            if process.file_name().to_string_lossy().starts_with(|c: char| c.is_ascii_digit()) {
                for (link, identity) in descriptors(&process.path().join("fd").to_string_lossy()) {
                    if self.memory.contains(&identity) {
                        left.push(format!("{link} in {}", process.path().display()));
                    }
                }
            }
        }
        left
    }
}

/// The lines of /proc/net/unix, as words: the inode is the seventh, a name the eighth.
fn sockets() -> Vec<Vec<String>> {
    let text = fs::read_to_string("/proc/net/unix").unwrap();
    text.lines().skip(1).map(|line| line.split_whitespace().map(String::from).collect()).collect()
}

/// Returns the targets of a process's descriptors, and the device and inode of each. There are none for processes that
/// are gone or another user's.
fn descriptors(folder: &str) -> Vec<(String, (u64, u64))> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let look = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned();
        let metadata = fs::metadata(entry.path()).ok()?;
        Some((link, (metadata.dev(), metadata.ino())))
    };
    entries.filter_map(look).collect()
}

// ---------------------------------------------------------------------- many runs

/// One test at a time, and what it must leave as it was.
struct Alone<'a> {
    _turn: MutexGuard<'a, ()>,
    shared: BTreeSet<String>,
    descriptors: usize,
}

fn alone<'a>() -> Alone<'a> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Alone { _turn: turn, shared: shared(), descriptors: descriptors("/proc/self/fd").len() }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(descriptors("/proc/self/fd").len(), self.descriptors, "descriptors are left open");
            let new: Vec<_> = shared().difference(&self.shared).cloned().collect();
            assert!(new.is_empty(), "left behind in /dev/shm: {new:?}");
        }
    }
}

fn shared() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Does something many times, a few at a time; says which one failed.
fn repeat(times: usize, once: impl Fn(usize, &mut Random) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= times {
                        return;
                    }
                    // The seed is the index: a run that fails can be had again, as far as scheduling allows.
                    let named = Named(index);
                    once(index, &mut Random(index as u64));
                    drop(named);
                }
            });
        }
    });
}

struct Named(usize);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed at number {}", self.0);
        }
    }
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % bound as u64) as usize
    }

    /// 50 to 300 ms.
    fn pause(&mut self) {
        std::thread::sleep(Duration::from_millis(50 + self.below(251) as u64));
    }
}
