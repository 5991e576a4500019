//! A publisher, a tree of relays and many readers over TCP, each a process on one of several hosts (network name
//! spaces), while every second one is killed or stopped, or its host is cut off.
//!
//! `SLACKLINE_TREE=READERS,SECONDS` makes it larger or longer, `SLACKLINE_TREE_SEED` chooses the faults of an earlier
//! run; the line `MEASURED` and the line of JSON after it have what came of it. It takes `ip`, and root or user name
//! spaces: `cargo xtask test tree`.

#[expect(dead_code, reason = "used by other tests")]
#[path = "network/namespaces.rs"]
mod namespaces;
mod tree {
    pub(super) mod faults;
    pub(super) mod judging;
    pub(super) mod node;
    pub(super) mod process;
}

use std::time::{Duration, Instant};

use slackline::sim::Random;

use tree::faults::Tree;
use tree::judging::{Watch, judge};
use tree::process::is_told;

/// The lease of all owners: the library's default.
const LEASE: Duration = Duration::from_secs(3);

/// A reader that has read nothing for so long never will.
const NEVER: Duration = Duration::from_secs(60);

/// Time between two looks at all processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

const TEST: &str = "readers_of_a_tree_read_whole_versions_though_anybody_dies";

fn seed() -> u64 {
    match std::env::var("SLACKLINE_TREE_SEED") {
        Ok(seed) => seed.parse().expect("SLACKLINE_TREE_SEED is a number"),
        Err(_) => std::process::id().into(),
    }
}

#[test]
fn readers_of_a_tree_read_whole_versions_though_anybody_dies() {
    is_told();
    let size = std::env::var("SLACKLINE_TREE").unwrap_or_else(|_| "24,30".into());
    let (readers, seconds) = size.split_once(',').expect("READERS,SECONDS");
    let (readers, seconds): (usize, u64) = (readers.parse().unwrap(), seconds.parse().unwrap());
    let mut tree = Tree::grow(readers);
    let seed = seed();
    println!("SLACKLINE_TREE_SEED={seed}");
    let (mut random, mut watch) = (Random::new(seed), Watch::of(&tree));

    let began = Instant::now();
    // The time that pulling cables and ending processes takes, in which no one looks, counts for no reader.
    let (mut looked, mut next_fault, mut unseen) = (began, began, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(LOOK_EVERY);
        let now = Instant::now();
        watch.look(&tree, now - looked);
        tree.recover(now);
        if now >= next_fault {
            next_fault += Duration::from_secs(1);
            println!("{:6.2} s: {}", (now - began).as_secs_f64(), tree.strike(&mut random, now));
        }
        looked = Instant::now();
        unseen += looked - now;
    }
    tree.recover(Instant::now() + NEVER);
    watch.see_all_served(&tree);
    let newest = tree.publisher().version();
    let (relays, hosts, faults) = (tree.relays().len(), tree.hosts(), tree.faults);
    let judged = judge(tree.into_traces().path());
    let verdict = &judged.verdict;
    let ([kills, pauses, cuts], Watch { served, newer }) = (faults, watch);
    let (longest, longest_newer) = (served.longest.as_secs_f64(), newer.longest.as_secs_f64());
    println!(
        "MEASURED {readers} readers behind {relays} relays on {hosts} hosts, {seconds} s, {kills} kills, {pauses} \
         pauses and {cuts} cuts of 5 s: {} reads, {} verified, {} unverified, {} violations; each survivor served \
         within twice the lease ({} s): {}, longest time {longest:.1} s, {} times beyond; longest time without a newer \
         version {longest_newer:.1} s, {} times beyond; {:.1} s went into faults; {} MiB of traces",
        verdict.reads,
        verdict.verified,
        verdict.unverified,
        verdict.violations.len(),
        2 * LEASE.as_secs(),
        if served.late == 0 { "kept" } else { "missed" },
        served.late,
        newer.late,
        unseen.as_secs_f64(),
        judged.bytes >> 20,
    );
    let record = serde_json::json!({
        "readers": readers, "relays": relays, "hosts": hosts, "seconds": seconds, "seed": seed,
        "kills": kills, "pauses": pauses, "cuts": cuts,
        "publications": verdict.publications, "reads": verdict.reads, "verified": verdict.verified,
        "unverified": verdict.unverified, "violations": verdict.violations.len(),
        "trace_bytes": judged.bytes, "unfinished_lines": judged.unfinished, "lease_s": LEASE.as_secs(),
        "longest_without_a_read_s": longest, "times_beyond_twice_the_lease": served.late,
        "seconds_of_faults": unseen.as_secs_f64(),
        "longest_without_a_newer_version_s": longest_newer, "times_newer_beyond_twice_the_lease": newer.late,
    });
    println!("{record}");
    for violation in verdict.violations.iter().take(5) {
        println!("{violation:?}");
    }
    assert!(verdict.violations.is_empty(), "{} violations", verdict.violations.len());
    assert!(verdict.verified > 10 * readers as u64 && newest > 0, "{} reads", verdict.verified);
}
