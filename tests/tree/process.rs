//! The processes of the tree: the test binary runs itself again.

use std::fs::File;
use std::io::{Read, Write};
use std::time::Duration;

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay, Snapshot, Wanted};
use slackline::{
    Address, ElementType, Error, Mixed, Secret, ShardOptions, Shm, Table, Tcp, Verbs, VerbsOptions, Version,
    VersionTag,
};

/// The variable that tells a second process what it is.
pub(crate) const CHILD: &str = "SLACKLINE_TREE_CHILD";

/// The variable that tells it the file of its trace.
pub(crate) const TRACE: &str = "SLACKLINE_TREE_TRACE";

const WORDS: u64 = 8192;

/// Longest time that a reader waits for one owner before it asks the next.
const PATIENCE: Duration = Duration::from_secs(2);

/// The bound that readers ask for, in versions.
const STALENESS: u64 = 100;

/// Whether this is a second process; then it does what it was told, and never returns.
pub(crate) fn is_told() {
    let Ok(told) = std::env::var(CHILD) else { return };
    // Not to outlive the test: its end of the pipe closes with it. One that is stopped would not notice.
    let killed = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    killed.expect("a signal at the end of the test");
    std::thread::spawn(|| {
        let _ended = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let words: Vec<&str> = told.split(' ').collect();
    let address = |word: &str| word.parse::<Address>().expect("an address");
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match &words[..] {
        ["publish", at, begin_at] => publish(&address(at), number(begin_at), trace()),
        ["relay", at, root] => relay(&address(at), &address(root)),
        ["read", root, every] => read(&address(root), Duration::from_micros(number(every)), trace()),
        _ => panic!("{told}"),
    }
}

fn trace() -> File {
    let path = std::env::var_os(TRACE).expect("the file of its trace");
    File::create_new(path).expect("a new file")
}

/// Writes a record at once: what is before it stays, whenever this process is killed.
fn put(trace: &mut File, record: impl std::fmt::Display) {
    trace.write_all(format!("{record}\n").as_bytes()).expect("the trace");
}

/// Shared memory or TCP, or RDMA if that is the way to this address.
fn transport(root: &Address) -> Mixed {
    let secret = Secret::from_text("all of the tree know this", "this test").expect("a secret");
    let near = Mixed::new(Shm::new(), Tcp::with_secret(secret.clone()));
    let Address::Verbs(_) = root else { return near };
    let options = VerbsOptions { secret: Some(secret), ..VerbsOptions::default() };
    near.with_verbs(Verbs::open(options).unwrap_or_else(|error| panic!("this test needs RDMA: {error}")))
}

/// The word of a version at an index: another one for each, so that a mixture shows.
fn word(version: u64, index: u64) -> u64 {
    (version << 20 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn options() -> PublisherOptions {
    let memory = ShardOptions { peers: 512, frames: 4, chunk_bytes: 16 << 10, ..ShardOptions::default() };
    PublisherOptions { memory, ..PublisherOptions::default() }
}

/// Tells the test something, and ends with it.
fn tell(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

fn publish(at: &Address, begin_at: u64, mut trace: File) -> ! {
    let table = Table::flat(WORDS, ElementType::U64).expect("a table");
    let options = PublisherOptions { begin_at: Version::new(begin_at), ..options() };
    let publisher = Publisher::new(transport(at), at, table, options).expect("a publisher");
    let publisher = publisher.into_background().expect("a thread");
    tell(format_args!("at {}", publisher.address()));
    loop {
        let version = publisher.version().get() + 1;
        let words: Vec<u8> = (0..WORDS).flat_map(|index| word(version, index).to_le_bytes()).collect();
        let mut draft = publisher.draft(Duration::from_secs(30)).expect("a free frame");
        draft.write(0, &words).expect("as many words");
        let publication = draft.commit_recorded(VersionTag::step(version)).expect("the next version");
        assert_eq!(publication.version.get(), version);
        put(&mut trace, publication);
        tell(format_args!("published {:x} {version}", publisher.epoch()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn relay(at: &Address, root: &Address) -> ! {
    let transport = transport(root);
    loop {
        let Ok(relay) = Relay::join(transport.clone(), root, at, options(), PATIENCE) else { continue };
        tell(format_args!("at {}", relay.address()));
        while relay.failure().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn read(root: &Address, every: Duration, mut trace: File) -> ! {
    let in_tree = ReaderOptions { in_tree: true, ..ReaderOptions::default() };
    let transport = transport(root);
    let mut reader = persist(|| Reader::connect(transport.clone(), root, in_tree, PATIENCE));
    loop {
        let mut last = (0, 0);
        let lost = loop {
            match reader.snapshot(Wanted::newest().max_staleness(STALENESS), PATIENCE) {
                // What an owner begins with: it has published or copied no version yet.
                Ok(snapshot) if is_begin(&snapshot) => {}
                Ok(snapshot) => {
                    if let Err(found) = check(&snapshot, &mut last) {
                        tell(format_args!("broken: {found}"));
                        std::process::exit(3);
                    }
                    put(&mut trace, snapshot.certificate());
                    let from = if snapshot.fresh().epoch == last.0 { "publisher" } else { "relay" };
                    tell(format_args!("read {:x} {} from {from}", last.0, last.1));
                }
                Err(error) => break error,
            }
            std::thread::sleep(every);
        };
        tell(format_args!("lost: {lost}"));
        persist(|| reader.reconnect(root, PATIENCE));
    }
}

/// Connects, however often it takes.
fn persist<R>(mut connect: impl FnMut() -> Result<R, Error>) -> R {
    loop {
        match connect() {
            Ok(connected) => return connected,
            Err(error) => tell(format_args!("lost: no owner: {error}")),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether these are the zeros at which a publisher or a relay begins. All versions that are published have a tag.
fn is_begin(snapshot: &Snapshot) -> bool {
    snapshot.fresh().tag == VersionTag::default() && snapshot.bytes().iter().all(|byte| *byte == 0)
}

/// Holds a version to what was asked, to its words, and to the last one of this connection.
fn check(snapshot: &Snapshot, last: &mut (u64, u64)) -> Result<(), String> {
    let fresh = snapshot.fresh();
    let version = fresh.version.get();
    let mut words = snapshot.bytes().as_chunks::<8>().0.iter().zip(0..);
    let is_whole = words.all(|(bytes, index)| u64::from_le_bytes(*bytes) == word(version, index));
    if !is_whole || fresh.tag.step != version || fresh.behind > STALENESS {
        let (tag, behind) = (fresh.tag.step, fresh.behind);
        return Err(format!("version {version} with tag {tag}, {behind} behind, whole: {is_whole}"));
    }
    if fresh.origin == last.0 && version < last.1 {
        return Err(format!("version {version} after {}", last.1));
    }
    *last = (fresh.origin, version);
    Ok(())
}
