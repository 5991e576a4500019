//! A run: a fault each second, and what came of it.

use std::io::Write;
use std::time::{Duration, Instant};

use slackline::sim::Random;

use super::faults::Tree;
use super::judging::{LEASE, NEVER, Watch, judge};
use super::node::Node;
use super::wire::Wire;

/// Time between two looks at all processes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Readers, and seconds.
pub(crate) fn size(usual: &str) -> (usize, u64) {
    let size = std::env::var("SLACKLINE_TREE").unwrap_or_else(|_| usual.into());
    let (readers, seconds) = size.split_once(',').expect("READERS,SECONDS");
    (readers.parse().unwrap(), seconds.parse().unwrap())
}

fn seed() -> u64 {
    match std::env::var("SLACKLINE_TREE_SEED") {
        Ok(seed) => seed.parse().expect("SLACKLINE_TREE_SEED is a number"),
        Err(_) => std::process::id().into(),
    }
}

/// Runs a tree with so many readers for so long, on behalf of the test of this name.
pub(crate) fn run(test: &'static str, (readers, seconds): (usize, u64), wire: Wire) {
    let mut tree = Tree::grow(test, readers, wire);
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
    let (reads, relayed) = tree
        .readers()
        .iter()
        .map(Node::told)
        .fold((0, 0), |(reads, relayed), told| (reads + told.reads, relayed + told.relayed));
    let (relays, hosts, faults) = (tree.relays().len(), tree.hosts(), tree.faults);
    let judged = judge(tree.into_traces().path());
    let verdict = &judged.verdict;
    let ([kills, pauses, cuts], Watch { served, newer }) = (faults, watch);
    let (longest, longest_newer) = (served.longest.as_secs_f64(), newer.longest.as_secs_f64());
    // For the table of `cargo xtask softroce`: libtest keeps what `println!` says of a test that passes.
    writeln!(
        std::io::stdout(),
        "\nMEASURED {readers} readers, relays: {relays}, hosts: {hosts}, {seconds} s, {kills} kills, {pauses} \
         pauses and {cuts} cuts of 5 s: {} reads, {relayed} of them from relays, {} verified, {} unverified, {} \
         violations; each survivor served within twice the lease ({} s): {}, longest time {longest:.1} s, {} times \
         beyond; longest time without a newer version {longest_newer:.1} s, {} times beyond; {:.1} s went into \
         faults; {} MiB of traces",
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
    )
    .expect("standard output");
    let record = serde_json::json!({
        "readers": readers, "relays": relays, "hosts": hosts, "seconds": seconds, "seed": seed,
        "kills": kills, "pauses": pauses, "cuts": cuts,
        "publications": verdict.publications, "reads": verdict.reads, "reads_from_relays": relayed,
        "verified": verdict.verified, "unverified": verdict.unverified, "violations": verdict.violations.len(),
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
    assert!(relayed > 0, "none of {reads} reads was from a relay");
    assert!(verdict.verified > 10 * readers as u64 && newest > 0, "{} reads", verdict.verified);
}
