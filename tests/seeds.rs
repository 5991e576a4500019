//! The node protocol over a hostile network, ten thousand times: every promise holds, and every run comes to its end.
//! And a job of ten thousand workers, which the simulator of whole clusters takes to its end.
//!
//! `cargo xtask test seeds` runs it in release; `cargo xtask test mutants` runs it over deliberately broken variants of
//! the library (`--cfg slackline_mutants`, `SLACKLINE_MUTANT=name`), each of which must fail.

use std::ops::Range;

use slackline::scheme::SchemeConfig;
use slackline::sim::fabric::{self, FabricOptions};
use slackline::sim::{Cluster, Distribution, Until};

/// All of them, unless `SLACKLINE_SEEDS` says otherwise: `FROM..TO`.
fn seeds() -> Range<u64> {
    let chosen = std::env::var("SLACKLINE_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    chosen.unwrap_or(0..10_000)
}

#[test]
fn ten_thousand_seeds_keep_every_promise() {
    let (seeds, begun) = (seeds(), std::time::Instant::now());
    match fabric::run_all(seeds.clone(), &FabricOptions::default(), 0, &|_| {}) {
        Ok(summary) => {
            let seconds = begun.elapsed().as_secs_f64();
            let fabric::FabricSummary { runs, events, versions, views, errors, .. } = summary;
            // `cargo xtask seeds` reads it.
            print!("SEEDS {{\"runs\":{runs},\"events\":{events},\"versions\":{versions},");
            println!("\"views\":{views},\"errors\":{errors}}}");
            println!("{seconds:.1} s, {:.0} events per second", summary.events as f64 / seconds);
            assert_eq!(summary.runs, seeds.end - seeds.start);
            assert!(summary.views > summary.runs && summary.errors > 0, "nothing happened: {summary:?}");
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn ten_thousand_workers_come_to_their_hundredth_clock() {
    let (workers, clocks, staleness) = (10_000, 100, 3);
    let mut cluster = Cluster::new(SchemeConfig::Ssp { staleness }, workers, 1);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.network.latency = Distribution::Exponential { mean: 0.1 };
    cluster.until = Until::Clocks(clocks);
    let begun = std::time::Instant::now();
    let report = cluster.run().unwrap_or_else(|error| panic!("{error}"));
    let (events, seconds) = (report.counts.events, begun.elapsed().as_secs_f64());
    println!("{events} events in {seconds:.1} s, {:.0} ns each", 1e9 * seconds / events as f64);
    assert!(report.of_workers.iter().all(|worker| worker.clocks >= clocks));
    // A worker that began its last clock had all that the bound demands.
    assert!(report.versions >= workers as u64 * (clocks - 1 - staleness), "{} versions", report.versions);
}
