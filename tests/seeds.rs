//! The node protocol over a hostile network, ten thousand times: every promise holds, and every run comes to its end.
//!
//! `cargo xtask test seeds` runs it in release; `cargo xtask test mutants` runs it over deliberately broken variants of
//! the library (`--cfg slackline_mutants`, `SLACKLINE_MUTANT=name`), each of which must fail.

use std::ops::Range;

use slackline::sim::fabric::{self, Options};

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
    match fabric::run_all(seeds.clone(), &Options::default(), 0, &|_| {}) {
        Ok(summary) => {
            let seconds = begun.elapsed().as_secs_f64();
            println!("{summary:?}");
            println!("{seconds:.1} s, {:.0} events per second", summary.events as f64 / seconds);
            assert_eq!(summary.runs, seeds.end - seeds.start);
            assert!(summary.views > summary.runs && summary.errors > 0, "nothing happened: {summary:?}");
        }
        Err(failure) => panic!("{failure}"),
    }
}
