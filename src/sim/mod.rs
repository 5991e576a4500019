//! Whole jobs in virtual time: any scheme, any number of workers, any network, on real learning problems or on time
//! alone.
//!
//! A [`Cluster`] describes a simulation; [`Cluster::run`] runs it and returns a [`ClusterReport`]. The halves of the
//! scheme are the very objects that run beside real servers and workers, gradients are real gradients of a [`Problem`],
//! and they are folded in by the kernel that real servers use, so that simulated and real parameters agree bit for bit.
//! Only time is not real: a [`Distribution`] gives the time of a computation, the [`Network`] the time of a message,
//! and everything follows from one seed. The same cluster gives the same [`ClusterReport::trace_hash`].
//!
//! ```
//! use slackline::scheme::SchemeConfig;
//! use slackline::sim::{Cluster, Quadratic, Until};
//!
//! let run = |scheme| {
//!     let mut cluster = Cluster::new(scheme, 8, 1);
//!     cluster.compute = "exp(1)".parse()?;
//!     cluster.problem = Some(Box::new(Quadratic::new(32, 10.0, 1.0, 1)));
//!     cluster.until = Until::Clocks(200);
//!     Ok::<_, Box<dyn std::error::Error>>(cluster.run()?)
//! };
//! let (bsp, ssp) = (run(SchemeConfig::Bsp)?, run(SchemeConfig::Ssp { staleness: 4 })?);
//! assert!(ssp.end < bsp.end / 1.5, "staleness hides jitter");
//! assert!(ssp.curve.last().unwrap().loss < 0.1 * ssp.curve[0].loss);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is simulated
//!
//! A worker's request for a copy goes to the server, waits there until a version satisfies it, and the newest comes
//! back; pushed copies come unasked, the newest once the last has arrived. A gradient goes up while its worker goes on,
//! as long as it has free slots; a slot is free again once word of its being consumed is back. Folding takes no time.
//! A worker that crashes leaves no trace but what the server had taken in, and comes back with nothing.
//!
//! Beside each run stands a judge. It holds the scheme to its promises at every event (how stale a copy may be that is
//! computed on, what may be folded together, that clocks and versions never move back and that clocks tell the truth),
//! and a broken promise ends the run as [`SimError::Broken`], with the seed that replays it.
//!
//! [`fabric`] is the other simulator: few workers, but the real nodes and the real memory protocol, over a network that
//! is as hostile as the transport contract permits.
#![forbid(unsafe_code)]

mod agenda;
mod bounds;
mod cluster;
mod distribution;
mod engine;
mod error;
pub mod fabric;
mod faults;
mod group;
mod histogram;
mod judge;
mod model;
mod network;
mod problem;
mod racks;
mod random;
mod report;
mod server;
mod transit;
mod updates;
mod worker;

pub use cluster::{Change, Cluster, Until};
pub use distribution::{Distribution, DistributionError, Sampler, Trace, TraceError};
pub use error::SimError;
pub use faults::{Crash, Direction, Faults, NetworkPartition};
pub use histogram::CountHistogram;
pub use network::Network;
pub use problem::{Evaluation, Factorisation, Logistic, Problem, Quadratic, Shape};
pub use racks::{Collective, Racks};
pub use random::Random;
pub use report::{ClusterReport, Counts, OfWorker, Point, WaitedFor};

/// The most workers that a [`Cluster`] can have. Each takes some 1.5 KiB of memory.
pub const MAX_WORKERS: usize = 1_000_000;

/// Purposes of random streams.
const COMPUTE: u64 = 1;
const LATENCY: u64 = 2;
const FAULTS: u64 = 3;
const LIFETIME: u64 = 4;
const DOWNTIME: u64 = 5;

/// Saturates: what takes longer than time has never happens.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
