//! A version through a chain of relays, one on each host, beside a reader of the publisher's own.

use std::time::{Duration, Instant};

use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Relay};
use slackline::{ElementType, ShardOptions, Table, VersionTag};

use super::links::{LINK, Queue, at, hosts, transport};
use super::{PATIENCE, summary};

/// Bytes of a version: one and a half and seven seconds of a link, so that a constant cost of each relay shows.
const BYTES: [u64; 2] = [32 << 20, 128 << 20];

/// Relays between the publisher and the reader, and the chunks of a version.
const DEPTHS: [usize; 3] = [1, 2, 4];
const CHUNKS: [u64; 2] = [32, 256];

/// The most that a chain may take, in what it takes by hand: the goal.
const GOAL: f64 = 1.1;

pub(super) fn measure(repeat: usize) {
    let repeat = repeat.min(5);
    println!(
        "a version over cables of {} MB/s, medians (least to most) of {repeat}; by hand a chain of d relays takes",
        LINK / 1e6
    );
    println!("1 + d / c times as long as one copy of c chunks, and may take {GOAL} times that");
    for queue in [Queue::OneForAll, Queue::Bands] {
        println!();
        println!("what a host sends waits in a {} of its own", queue.name());
        println!("     MiB  chunks  relays              seconds   of one copy  by hand  real / by hand");
        rows(queue, repeat);
    }
}

fn rows(queue: Queue, repeat: usize) {
    for (bytes, chunks) in BYTES.into_iter().flat_map(|bytes| CHUNKS.map(|chunks| (bytes, chunks))) {
        let [alone, least, most] = summary(seconds(queue, bytes, 0, chunks, repeat));
        let mib = bytes >> 20;
        println!("{mib:>8} {chunks:>7} {:>7} {alone:>9.2} ({least:.2} to {most:.2})", 0);
        for depth in DEPTHS {
            let [median, least, most] = summary(seconds(queue, bytes, depth, chunks, repeat));
            let by_hand = 1.0 + depth as f64 / chunks as f64;
            let (of_one, ratio) = (median / alone, median / alone / by_hand);
            let verdict = if ratio <= GOAL { "" } else { "  missed" };
            let told = format!("{median:.2} ({least:.2} to {most:.2})");
            println!(
                "{mib:>8} {chunks:>7} {depth:>7} {told:>22} {of_one:>10.3} {by_hand:>8.3} {ratio:>15.3}{verdict}"
            );
        }
    }
}

/// The seconds from the call that publishes until the reader behind `depth` relays has the version, of each version.
fn seconds(queue: Queue, bytes: u64, depth: usize, chunks: u64, repeat: usize) -> Vec<f64> {
    let hosts = hosts(depth + 2, queue);
    let memory = ShardOptions { chunk_bytes: bytes / chunks, lease: PATIENCE, ..ShardOptions::default() };
    let options = PublisherOptions { memory, ..PublisherOptions::default() };
    let at = |host: usize| at(&hosts[host]);
    let table = Table::flat(bytes, ElementType::U8).expect("a table");
    let publisher = hosts[0].within(|| {
        let publisher = Publisher::new(transport(), &at(0), table, options.clone()).expect("a publisher");
        publisher.into_background().expect("a thread")
    });
    let relays: Vec<Relay> = (1..=depth)
        .map(|host| {
            hosts[host].within(|| {
                Relay::start(transport(), &[at(host - 1)], &at(host), options.clone(), PATIENCE)
                    .expect("a relay")
            })
        })
        .collect();
    let follow = ReaderOptions { follow: true, ..ReaderOptions::default() };
    let mut reader = hosts[depth + 1]
        .within(|| Reader::connect(transport(), &at(depth), follow, PATIENCE).expect("a reader"));
    let mut seconds = Vec::new();
    // The first version opens the connections' windows.
    for round in 0..=repeat {
        let values = vec![round as u8; bytes as usize];
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        let version = publisher.publish(&values, VersionTag::default(), PATIENCE).expect("a version");
        let fresh = reader.refresh_to(version, PATIENCE).expect("the version");
        let took = begun.elapsed().as_secs_f64();
        assert_eq!(fresh.version, version);
        assert!(reader.bytes().expect("a copy") == values, "the copy is another");
        if round > 0 {
            seconds.push(took);
        }
    }
    drop((reader, relays));
    seconds
}
