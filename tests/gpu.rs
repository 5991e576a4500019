//! The claims about GPU memory, on the first GPU of this machine: `cargo xtask gpu` runs them by name. They fail where
//! there is no GPU.

#[path = "gpu/claims.rs"]
mod claims;
#[path = "gpu/digits.rs"]
mod digits;
#[path = "gpu/dma_bufs.rs"]
mod dma_bufs;
#[path = "gpu/folds.rs"]
mod folds;
#[path = "gpu/groups.rs"]
mod groups;
#[path = "gpu/litmus.rs"]
mod litmus;
#[path = "gpu/measures.rs"]
mod measures;
#[path = "kernels/numbers.rs"]
mod numbers;
#[path = "gpu/peer.rs"]
mod peer;
#[path = "gpu/streams.rs"]
mod streams;

use std::process::Command;
use std::time::Duration;

use claims::Scene;
use slackline::gpu::Gpu;

claims::tests_of_claims!(scene);

/// A million reads of a publisher that never pauses, over half a minute at least and two minutes at most.
const READS: (u64, Duration, Duration) = (1_000_000, Duration::from_secs(30), Duration::from_secs(120));

/// Folds that take about a second: fewer than a stream takes before a call has to wait.
const BUSY: (usize, usize) = (250_000_000, 700);

/// The longest time of a call that must not wait.
const CALL: Duration = Duration::from_millis(1);

fn scene() -> Scene {
    let gpu = Gpu::open(0).unwrap_or_else(|error| panic!("these tests are for a GPU: {error}"));
    Scene {
        gpu,
        peer: other_process,
        reads: READS,
        folds: 60,
        clocks: 200,
        busy: BUSY,
        call: Some(CALL),
        _working: Box::new(()),
    }
}

fn other_process() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "the_other_process", "--ignored", "--nocapture"]);
    command
}

#[test]
#[ignore = "it is a process of the tests here"]
fn the_other_process() {
    assert!(peer::serve(&Gpu::open(0).unwrap()).unwrap(), "no test has started it");
}
