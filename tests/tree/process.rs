//! The processes of the tree: the test binary runs itself again.

use std::io::{Read, Write};
use std::time::Duration;

use slackline::{
    Address, ElementType, Publisher, PublisherOptions, Reader, ReaderOptions, Relay, ShardOptions, Table,
    Tcp, Version, VersionTag, Wanted,
};

/// The variable that tells a second process what it is.
pub(crate) const CHILD: &str = "SLACKLINE_TREE_CHILD";

const WORDS: u64 = 8192;

/// Longest time that a reader waits for one owner before it asks the next.
const PATIENCE: Duration = Duration::from_secs(2);

/// The bound that readers ask for, in versions.
pub(crate) const STALENESS: u64 = 100;

/// Whether this is a second process; then it does what it was told, and never returns.
pub(crate) fn is_told() {
    let Ok(told) = std::env::var(CHILD) else { return };
    // Not to outlive the test: its end of the pipe closes with it.
    std::thread::spawn(|| {
        let _ended = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let words: Vec<&str> = told.split(' ').collect();
    let address = |word: &str| word.parse::<Address>().expect("an address");
    match &words[..] {
        ["publish", at, begin_at] => publish(&address(at), begin_at.parse().expect("a version")),
        ["relay", at, root] => relay(&address(at), &address(root)),
        ["read", root] => read(&address(root)),
        _ => panic!("{told}"),
    }
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

fn publish(at: &Address, begin_at: u64) -> ! {
    let table = Table::flat(WORDS, ElementType::U64).expect("a table");
    let options = PublisherOptions { begin_at: Version::new(begin_at), ..options() };
    let publisher = Publisher::new(Tcp::new(), at, table, options).expect("a publisher");
    let publisher = publisher.into_background().expect("a thread");
    tell(format_args!("at {}", publisher.address()));
    loop {
        let version = publisher.version().get() + 1;
        let words: Vec<u8> = (0..WORDS).flat_map(|index| word(version, index).to_le_bytes()).collect();
        let published = publisher.publish(&words, VersionTag::step(version), Duration::from_secs(30));
        assert_eq!(published.expect("a free frame").get(), version);
        tell(format_args!("published {version}"));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn relay(at: &Address, root: &Address) -> ! {
    loop {
        let Ok(relay) = Relay::join(Tcp::new(), root, at, options(), PATIENCE) else { continue };
        tell(format_args!("at {}", relay.address()));
        while relay.failure().is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn read(root: &Address) -> ! {
    let in_tree = ReaderOptions { in_tree: true, ..ReaderOptions::default() };
    loop {
        let Ok(mut reader) = Reader::connect(Tcp::new(), root, in_tree, PATIENCE) else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        let (mut origin, mut newest) = (0, 0);
        while let Ok(snapshot) = reader.snapshot(Wanted::newest().max_staleness(STALENESS), PATIENCE) {
            let fresh = *snapshot.fresh();
            let version = fresh.version.get();
            if fresh.origin != 0 {
                let mut words = snapshot.bytes().as_chunks::<8>().0.iter().zip(0..);
                let is_whole = words.all(|(bytes, index)| u64::from_le_bytes(*bytes) == word(version, index));
                if !is_whole || fresh.tag.step != version || fresh.behind > STALENESS {
                    tell(format_args!(
                        "broken: version {version} with tag {}, whole: {is_whole}",
                        fresh.tag.step
                    ));
                    std::process::exit(3);
                }
                if fresh.origin == origin && version < newest {
                    tell(format_args!("broken: version {version} after {newest}"));
                    std::process::exit(3);
                }
                (origin, newest) = (fresh.origin, version);
                tell(format_args!("read {:x} {version}", fresh.origin));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
