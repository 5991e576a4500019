//! The node protocol over a hostile network under each scheme: `seeds` draws the scheme from the seed, so that a rare
//! one has a few hundred runs there. Here each has as many.
//!
//! `cargo xtask test seeds_by_scheme` runs it in release.

use slackline::scheme::SchemeConfig;
use slackline::sim::fabric::{self, FabricOptions};

/// Seeds of each scheme.
const SEEDS: u64 = 2_000;

/// Every scheme that has a server, and each form of it that the protocol treats in another way.
const SCHEMES: &[&str] = &[
    "bsp",
    "asp",
    "ssp(2)",
    "essp(2)",
    "bap(2)",
    "vap",
    "vap(strength=strong)",
    "dbw",
    "dbw(delivery=wait)",
    "dbw(choice=static, k=2)",
    "abs(k=2, staleness=2)",
    "k-async(2)",
    "delay(2)",
];

#[test]
fn each_scheme_keeps_every_promise_under_seeds_of_its_own() {
    for text in SCHEMES {
        let scheme: SchemeConfig = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        let options = FabricOptions { scheme: Some(scheme.into()), ..FabricOptions::default() };
        let begun = std::time::Instant::now();
        match fabric::run_all(0..SEEDS, &options, 0, &|_| {}) {
            Ok(summary) => {
                println!("{text}: {} events in {:.1} s", summary.events, begun.elapsed().as_secs_f64());
                assert_eq!(summary.runs, SEEDS);
                assert!(summary.views > SEEDS && summary.errors > 0, "{text}: nothing happened: {summary:?}");
            }
            Err(failure) => panic!("{text}: {failure}"),
        }
    }
}
