//! A process of the tree, as the test sees it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::judging::NEVER;
use super::process::{CHILD, TRACE};
use super::wire::Wire;

/// What a process has told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    address: Option<String>,
    /// The last version that it has published or read, with its origin.
    version: (String, u64),
    /// The number of reads, and of those that were not of the version before.
    pub(crate) reads: u64,
    pub(crate) news: u64,
    /// The number of reads from a relay.
    pub(crate) relayed: u64,
    /// Its last word about an owner that it has lost.
    pub(crate) lost: String,
    pub(crate) broken: Option<String>,
}

/// A process of the tree.
pub(crate) struct Node {
    /// The test that such a process runs.
    test: &'static str,
    pub(crate) name: String,
    /// The host that it runs on.
    pub(crate) host: usize,
    /// What it is told to be.
    pub(crate) task: String,
    /// The file of its trace, without the number of the process that writes it.
    trace: PathBuf,
    starts: u32,
    told: Arc<Mutex<Told>>,
    child: Option<Child>,
    pub(crate) paused_until: Option<Instant>,
    pub(crate) back_at: Option<Instant>,
}

impl Node {
    pub(crate) fn new(test: &'static str, name: String, host: usize, task: String, folder: &Path) -> Node {
        let (trace, told) = (folder.join(name.replace(' ', "-")), Arc::default());
        Node {
            test,
            name,
            host,
            task,
            trace,
            starts: 0,
            told,
            child: None,
            paused_until: None,
            back_at: None,
        }
    }

    pub(crate) fn start(&mut self, wire: &Wire) {
        self.starts += 1;
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", self.test, "--nocapture"]).env(CHILD, &self.task);
        command.env(TRACE, self.trace.with_extension(format!("{}.jsonl", self.starts)));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = wire.within(self.host, || command.spawn()).expect("this program");
        let lines = BufReader::new(child.stdout.take().expect("its pipe")).lines();
        let told = self.told.clone();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| hear(&told, &line)));
        (self.child, self.back_at) = (Some(child), None);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(child) = &self.child {
            let process = rustix::process::Pid::from_child(child);
            rustix::process::kill_process(process, signal).expect("it is there");
        }
    }

    /// Stops it.
    pub(crate) fn pause(&mut self, until: Instant) {
        self.signal(rustix::process::Signal::STOP);
        self.paused_until = Some(until);
    }

    pub(crate) fn go_on(&mut self) {
        self.signal(rustix::process::Signal::CONT);
        self.paused_until = None;
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it is there");
            child.wait().expect("it is there");
        }
        self.paused_until = None;
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.is_some() && self.paused_until.is_none()
    }

    pub(crate) fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }

    pub(crate) fn version(&self) -> u64 {
        self.told().version.1
    }

    pub(crate) fn address(&self) -> String {
        let deadline = Instant::now() + NEVER;
        loop {
            if let Some(address) = self.told().address.clone() {
                return address;
            }
            assert!(Instant::now() < deadline, "the {} does not listen", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

fn hear(told: &Mutex<Told>, line: &str) {
    let mut told = told.lock().unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["at", address] => told.address = Some(address.into()),
        ["published", origin, version] | ["read", origin, version, "from", _] => {
            let version = (origin.to_owned(), version.parse().expect("a version"));
            told.reads += 1;
            told.relayed += u64::from(words.last() == Some(&"relay"));
            told.news += u64::from(version != told.version);
            told.version = version;
        }
        ["lost:", ..] => told.lost = line.into(),
        ["broken:", ..] => told.broken = Some(line.into()),
        _ => {}
    }
}
