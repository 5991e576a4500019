//! Readers of whom the link of their publisher carries a few: in turns, or all at once.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{ElementType, ShardOptions, Table, VersionTag};

use super::links::{LINK, Queue, at, hosts, transport};
use super::{PATIENCE, summary};

/// Bytes of a version: a fifth of a second of the link.
const BYTES: u64 = 4 << 20;

/// The time between two versions.
const EVERY: Duration = Duration::from_millis(500);

const READERS: usize = 16;
const READERS_PER_HOST: usize = 4;

/// Readers that the publisher takes at a time.
const PEERS: [u16; 4] = [1, 2, 4, 16];

const SECONDS: u64 = 30;

/// The reads of a reader: the seconds of each from the call that connects, and how many ended in an error.
#[derive(Default)]
struct Reads {
    seconds: Vec<f64>,
    stale: u64,
    failed: u64,
}

pub(super) fn measure() {
    println!(
        "{READERS} readers that connect, read the newest version of {} MiB and leave, again and again for {SECONDS} s, \
         over the publisher's cable of {} MB/s; a version each {} ms",
        BYTES >> 20,
        LINK / 1e6,
        EVERY.as_millis(),
    );
    println!(
        "peers  reads  errors  of the link  seconds of a read (least to most)  most versions behind  published"
    );
    for peers in PEERS {
        let begun = Instant::now();
        let (all, published) = run(peers);
        let took = begun.elapsed().as_secs_f64();
        let seconds: Vec<f64> = all.iter().flat_map(|reads| reads.seconds.iter().copied()).collect();
        let (reads, failed) = (seconds.len(), all.iter().map(|reads| reads.failed).sum::<u64>());
        let stale = all.iter().map(|reads| reads.stale).max().unwrap_or(0);
        let of_link = reads as f64 * BYTES as f64 / took / LINK;
        let [median, least, most] = if seconds.is_empty() { [f64::NAN; 3] } else { summary(seconds) };
        let told = format!("{median:.2} ({least:.2} to {most:.2})");
        println!("{peers:>5} {reads:>6} {failed:>7} {of_link:>12.2} {told:>34} {stale:>21} {published:>10}");
    }
}

/// The reads of each reader, and the versions that were published meanwhile.
fn run(peers: u16) -> (Vec<Reads>, u64) {
    let hosts = hosts(1 + READERS / READERS_PER_HOST, Queue::OneForAll);
    let address = at(&hosts[0]);
    let memory = ShardOptions { peers, ..ShardOptions::default() };
    let publisher = hosts[0].within(|| {
        let table = Table::flat(BYTES, ElementType::U8).expect("a table");
        let options = PublisherOptions { memory, ..PublisherOptions::default() };
        Publisher::new(transport(), &address, table, options)
            .and_then(Publisher::into_background)
            .expect("a publisher")
    });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (is_over, address, hosts) = (&is_over, &address, &hosts);
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let host = &hosts[1 + reader / READERS_PER_HOST];
                scope.spawn(move || {
                    host.within(|| {
                        let mut reads = Reads::default();
                        while !is_over.load(Relaxed) {
                            read(address, &mut reads);
                        }
                        reads
                    })
                })
            })
            .collect();
        let begun = Instant::now();
        let mut version = 0u64;
        while begun.elapsed() < Duration::from_secs(SECONDS) {
            version += 1;
            let values = vec![version as u8; BYTES as usize];
            publisher.publish(&values, VersionTag::step(version), PATIENCE).expect("a version");
            std::thread::sleep((EVERY * version as u32).saturating_sub(begun.elapsed()));
        }
        is_over.store(true, Relaxed);
        (readers.into_iter().map(|reader| reader.join().expect("a reader")).collect(), version)
    })
}

fn read(address: &slackline::Address, reads: &mut Reads) {
    let begun = Instant::now();
    let snapshot = Reader::connect(transport(), address, ReaderOptions::default(), PATIENCE)
        .and_then(|mut reader| reader.snapshot(Wanted::newest(), PATIENCE));
    match snapshot {
        Ok(snapshot) => {
            let fresh = snapshot.fresh();
            let expected = fresh.tag.step as u8;
            assert!(snapshot.bytes().iter().all(|byte| *byte == expected), "a torn version");
            reads.stale = reads.stale.max(fresh.behind);
            reads.seconds.push(begun.elapsed().as_secs_f64());
        }
        Err(error) => {
            eprintln!("{error}");
            reads.failed += 1;
        }
    }
}
