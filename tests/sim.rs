//! Results of the simulator on schemes, distributions and networks, compared with what is known without it.

#[path = "sim/faults.rs"]
mod faults;
#[path = "sim/inputs.rs"]
mod inputs;
#[path = "sim/judge.rs"]
mod judge;
#[path = "sim/limits.rs"]
mod limits;
#[path = "sim/loosened.rs"]
mod loosened;
#[path = "sim/racks.rs"]
mod racks;
#[path = "sim/times.rs"]
mod times;
#[path = "sim/versions.rs"]
mod versions;

use slackline::sim::{Cluster, ClusterReport};

fn run(cluster: Cluster) -> ClusterReport {
    cluster.run().unwrap_or_else(|error| panic!("{error}"))
}

fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= tolerance, "{what}: {found}, expected {expected} within {}%", 100.0 * tolerance);
}
