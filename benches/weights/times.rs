//! The times of a reader's calls beside an idle publisher: for `python/bench/overhead.py`, which makes the same calls
//! from Python.

use std::time::Instant;

use slackline::Shm;
use slackline::weights::{Reader, ReaderOptions, Wanted};

use super::{PATIENCE, summary};

/// Calls of [`Reader::newest`].
const LOOKS: usize = 20_000;

/// Reads from the publisher at `address`, and prints the median nanoseconds of a pull into memory of its own and of a
/// look at the newest version, as a line of JSON.
pub(super) fn print(address: &str, pulls: usize) {
    let address = address.parse().expect("an address");
    let mut reader =
        Reader::connect(Shm::new(), &address, ReaderOptions::default(), PATIENCE).expect("a reader");
    let mut into = vec![0; reader.payload_bytes()];
    let mut times = Vec::with_capacity(LOOKS.max(pulls));
    for _ in 0..pulls {
        let begun = Instant::now();
        reader.pull_into(&mut into, Wanted::newest().max_staleness(0), PATIENCE).expect("a version");
        times.push(begun.elapsed().as_nanos() as f64);
    }
    let [pull, ..] = summary(std::mem::take(&mut times));
    for _ in 0..LOOKS {
        let begun = Instant::now();
        std::hint::black_box(reader.newest(PATIENCE).expect("a version"));
        times.push(begun.elapsed().as_nanos() as f64);
    }
    let [look, ..] = summary(times);
    println!("{{\"pull_ns\":{pull},\"look_ns\":{look}}}");
}
