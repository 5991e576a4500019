//! A publisher, a tree of relays and many readers over TCP, while processes are killed and paused at random.
//!
//! `SLACKLINE_TREE=READERS,SECONDS` makes it larger or longer; the line `MEASURED` has what came of it.

mod tree {
    pub(super) mod process;
}

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tree::process::{CHILD, STALENESS, is_told};

/// The lease of all owners: the library's default.
const LEASE: Duration = Duration::from_secs(3);

/// A reader that has read nothing for so long never will.
const NEVER: Duration = Duration::from_secs(60);

/// What a process has told.
#[derive(Debug)]
struct Told {
    address: Option<String>,
    /// The newest version that it has published or read, and when it said so.
    version: u64,
    at: Instant,
    reads: u64,
    broken: Option<String>,
}

/// A process of the tree.
struct Node {
    /// What it is told to be, without the versions at which a publisher begins.
    task: String,
    told: Arc<Mutex<Told>>,
    child: Option<Child>,
    paused_until: Option<Instant>,
    back_at: Option<Instant>,
}

impl Node {
    fn new(task: String) -> Node {
        let told = Told { address: None, version: 0, at: Instant::now(), reads: 0, broken: None };
        let told = Arc::new(Mutex::new(told));
        Node { task, told, child: None, paused_until: None, back_at: None }
    }

    fn start(&mut self, task: String) {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", TEST, "--nocapture"]).env(CHILD, task);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("this program");
        let lines = BufReader::new(child.stdout.take().expect("its pipe")).lines();
        let told = self.told.clone();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| hear(&told, &line)));
        self.told.lock().unwrap().at = Instant::now();
        self.child = Some(child);
    }

    fn signal(&self, signal: i32) {
        if let Some(child) = &self.child {
            let process = rustix::process::Pid::from_child(child);
            let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
            rustix::process::kill_process(process, signal).expect("it is there");
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it is there");
            child.wait().expect("it is there");
        }
        self.paused_until = None;
    }

    fn runs(&self) -> bool {
        self.child.is_some() && self.paused_until.is_none()
    }

    fn version(&self) -> u64 {
        self.told.lock().unwrap().version
    }

    fn address(&self, what: &str) -> String {
        let deadline = Instant::now() + NEVER;
        loop {
            if let Some(address) = self.told.lock().unwrap().address.clone() {
                return address;
            }
            assert!(Instant::now() < deadline, "{what} does not listen");
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
        ["published", version] | ["read", _, version] => {
            told.version = version.parse().expect("a version");
            told.at = Instant::now();
            told.reads += 1;
        }
        ["broken:", ..] => told.broken = Some(line.into()),
        _ => {}
    }
}

/// A small generator of random numbers, seeded by the run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

const TEST: &str = "readers_of_a_tree_read_whole_versions_though_anybody_dies";

#[test]
fn readers_of_a_tree_read_whole_versions_though_anybody_dies() {
    is_told();
    let size = std::env::var("SLACKLINE_TREE").unwrap_or_else(|_| "24,30".into());
    let (readers, seconds) = size.split_once(',').expect("READERS,SECONDS");
    let (readers, seconds): (usize, u64) = (readers.parse().unwrap(), seconds.parse().unwrap());
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut random = Random(seed);

    let mut publisher = Node::new("publish".into());
    publisher.start("publish 127.0.0.1:0 0".into());
    let root = publisher.address("the publisher");
    let mut nodes = Vec::new();
    // The publisher says from whom each reads: two relays from it, two from each of them.
    let relays = (readers / 12).max(3);
    for _ in 0..relays {
        let mut relay = Node::new(String::new());
        relay.start(format!("relay 127.0.0.1:0 {root}"));
        relay.task = format!("relay {} {root}", relay.address("a relay"));
        nodes.push(relay);
    }
    for _ in 0..readers {
        let mut reader = Node::new(format!("read {root}"));
        reader.start(reader.task.clone());
        nodes.push(reader);
    }

    let (began, mut next_fault, mut published_at) = (Instant::now(), Instant::now(), Instant::now());
    let (mut kills, mut pauses, mut longest, mut begin_at) = (0, 0, Duration::ZERO, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_millis(50));
        let now = Instant::now();
        for node in nodes.iter_mut().chain([&mut publisher]) {
            if node.paused_until.is_some_and(|until| until <= now) {
                node.signal(18); // SIGCONT
                node.paused_until = None;
                node.told.lock().unwrap().at = now;
            }
        }
        if publisher.back_at.is_some_and(|at| at <= now) {
            publisher.back_at = None;
            begin_at += 1_000_000; // past all that the last one may have published
            publisher.start(format!("publish {root} {begin_at}"));
        }
        for node in nodes.iter_mut().filter(|node| node.back_at.is_some_and(|at| at <= now)) {
            node.back_at = None;
            node.start(node.task.clone());
        }
        // Time in which nothing is published counts against no reader.
        if publisher.runs() && publisher.told.lock().unwrap().at.elapsed() < Duration::from_millis(500) {
            let since = published_at;
            let starved = nodes[relays..].iter().filter(|node| node.runs()).map(|reader| {
                let told = reader.told.lock().unwrap();
                assert_eq!(told.broken, None, "{}", reader.task);
                now.saturating_duration_since(told.at.max(since))
            });
            let starved = starved.max().unwrap_or_default();
            assert!(starved < NEVER, "a reader reads nothing any more");
            longest = longest.max(starved);
        } else {
            published_at = now;
        }
        if now < next_fault {
            continue;
        }
        next_fault = now + Duration::from_secs(1);
        // One fault in twenty hits the publisher, one in four a relay.
        let victim = match random.below(20) {
            0 => &mut publisher,
            1..=5 => &mut nodes[random.below(relays)],
            _ => &mut nodes[relays + random.below(readers)],
        };
        if !victim.runs() {
            continue;
        }
        if random.below(3) == 0 {
            victim.signal(19); // SIGSTOP
            victim.paused_until = Some(now + Duration::from_secs(5));
            pauses += 1;
        } else {
            victim.kill();
            victim.back_at = Some(now + Duration::from_millis(200 + random.below(1500) as u64));
            kills += 1;
        }
    }
    let newest = publisher.version();
    let told: Vec<_> = nodes[relays..].iter().map(|node| node.told.clone()).collect();
    let reads: u64 = told.iter().map(|told| told.lock().unwrap().reads).sum();
    assert!(told.iter().all(|told| told.lock().unwrap().broken.is_none()));
    assert!(reads > readers as u64 && newest > 0, "{reads} reads");
    println!(
        "MEASURED {readers} readers behind {relays} relays, {seconds} s, {kills} kills, {pauses} pauses of 5 s: \
         {reads} reads, none torn, none more than {STALENESS} versions stale; longest time without a read {:.1} s \
         (lease {} s)",
        longest.as_secs_f64(),
        LEASE.as_secs()
    );
}
