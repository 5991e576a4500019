//! Metrics of a node while it runs: a snapshot that its loop refreshes, served as Prometheus text.
//!
//! ```text
//! node's loop ── update ──> Registry ── snapshot ──> render ──> MetricsServer ──HTTP──> Prometheus
//!                                                                               └─────> slackline top: parse
//! ```
//!
//! The node never waits for a client: it holds a lock only while it stores numbers, and so does the server while it
//! copies them.

mod address;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod observe;
mod parse;
mod render;
mod server;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline::{ServerStatus, TransportKind, WorkerStatistics};

pub use address::{MetricsArgs, listen_address};
pub use parse::{ParseError, Sample, Samples, parse};
pub use render::render;
pub use server::{MetricsServer, ServeError};

/// The role of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeRole {
    /// Holds a shard of the parameters.
    #[default]
    Server,
    /// Computes gradients.
    Worker,
    /// Only takes parameters.
    Reader,
    /// Holds a shard, and the job together.
    Coordinator,
}

impl NodeRole {
    /// As it is written in labels.
    pub fn name(self) -> &'static str {
        match self {
            NodeRole::Server => "server",
            NodeRole::Worker => "worker",
            NodeRole::Reader => "reader",
            NodeRole::Coordinator => "coordinator",
        }
    }
}

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// It is awaited, or has been met and is not in yet.
    Joining,
    /// It is in.
    Up,
    /// It was in.
    Lost,
}

impl PeerState {
    /// As it is written in labels.
    pub fn name(self) -> &'static str {
        match self {
            PeerState::Joining => "joining",
            PeerState::Up => "up",
            PeerState::Lost => "lost",
        }
    }
}

/// Metrics of a node. Parts that a node does not have are none, and not shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMetrics {
    /// The role of the node.
    pub role: NodeRole,
    /// The rank of the process in its job.
    pub rank: u32,
    /// As a holder of parameters.
    pub server: Option<ServerMetrics>,
    /// As a source of gradients.
    pub worker: Option<WorkerMetrics>,
    /// The peers that it talks to.
    pub peers: Vec<PeerMetrics>,
}

/// Metrics of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerMetrics {
    /// The newest version.
    pub version: u64,
    /// All gradients of clocks before this one are in it.
    pub smallest_clock: u64,
    /// Workers that are in.
    pub workers: u64,
    /// Readers that are in.
    pub readers: u64,
    /// Workers that ever joined.
    pub joined: u64,
    /// Workers that left or were evicted.
    pub left: u64,
    /// Peers that were refused.
    pub refused: u64,
    /// Access violations: times that peers reached for memory that they were not granted, which ended their
    /// connections.
    pub access_violations: u64,
    /// RDMA devices side by side that connections have lost, and gone on over the others.
    pub rails_lost: u64,
    /// Gradients that were folded in, in all incarnations of the server that its checkpoint tells of.
    pub folded: u64,
    /// Gradients that were consumed without being folded in.
    pub dropped: u64,
    /// Gradients that were announced, and void because their worker left first.
    pub voided: u64,
    /// Gradients that held a NaN or an infinity.
    pub non_finite: u64,
    /// Gradients in the newest version.
    pub gradients: u64,
    /// Times that workers were asked to abandon what they compute.
    pub interrupts: u64,
    /// Gradients that the next version waits for, where the scheme chooses that.
    pub waits_for: Option<u64>,
    /// Versions that a gradient may be behind by now, where the scheme bounds that.
    pub staleness_bound: Option<u64>,
    /// Squared norm of the mean gradient, where it is measured.
    pub mean_norm_squared: Option<f64>,
    /// Variance of one gradient, where it is measured.
    pub variance: Option<f64>,
    /// The newest version whose checkpoint is on the disk.
    pub checkpointed: Option<u64>,
    /// Checkpoints that could not be written.
    pub checkpoints_failed: u64,
    /// Mean of the losses that came with the newest version.
    pub loss: Option<f64>,
}

impl From<ServerStatus> for ServerMetrics {
    fn from(status: ServerStatus) -> Self {
        ServerMetrics {
            version: status.version.get(),
            smallest_clock: status.smallest_clock.get(),
            workers: status.workers as u64,
            readers: status.readers as u64,
            joined: status.joined,
            left: status.left,
            refused: status.refused,
            access_violations: status.access_violations,
            rails_lost: status.rails_lost,
            folded: status.folded,
            dropped: status.dropped,
            voided: status.voided,
            non_finite: status.non_finite,
            gradients: status.gradients,
            interrupts: status.interrupts,
            waits_for: status.waits_for,
            staleness_bound: status.staleness_bound,
            mean_norm_squared: status.mean_norm_squared,
            variance: status.variance,
            checkpointed: status.checkpointed.map(|version| version.get()),
            checkpoints_failed: status.checkpoints_failed,
            loss: status.loss,
        }
    }
}

/// Metrics of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// Its clock: gradients published.
    pub clock: u64,
    /// Time spent on gradients.
    pub compute: Duration,
    /// Time spent waiting for servers.
    pub wait: Duration,
    /// Bytes of gradients written to servers.
    pub bytes_published: u64,
    /// Bytes of parameters copied from servers.
    pub bytes_pulled: u64,
    /// Copies begun again because the frame changed under them.
    pub pull_retries: u64,
    /// Number of gradients that were computed from parameters so many clocks behind: the first entry is for 0 clocks.
    pub staleness: Vec<u64>,
    /// Deadlines that passed.
    pub timeouts: u64,
    /// Times that a lost server was found again.
    pub reconnects: u64,
    /// Computations that were abandoned because a server asked for that.
    pub interrupts: u64,
    /// The mean loss of the gradients since the last update of these figures.
    pub loss: Option<f64>,
}

impl From<&WorkerStatistics> for WorkerMetrics {
    /// The loss is not told there, and stays to be filled in.
    fn from(statistics: &WorkerStatistics) -> Self {
        WorkerMetrics {
            clock: statistics.clocks,
            compute: statistics.compute,
            wait: statistics.wait,
            bytes_published: statistics.bytes_published,
            bytes_pulled: statistics.bytes_pulled,
            pull_retries: statistics.pull_retries,
            staleness: statistics.staleness.clone(),
            timeouts: statistics.timeouts,
            reconnects: statistics.reconnects,
            interrupts: statistics.abandoned,
            loss: None,
        }
    }
}

/// Metrics of a node about one peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerMetrics {
    /// The name of the peer, which is unique within a node.
    pub name: String,
    /// The role of the peer.
    pub role: NodeRole,
    /// The state of the peer.
    pub state: PeerState,
    /// The transport over which its bytes travel.
    pub path: TransportKind,
    /// Bytes that came from it.
    pub bytes_in: u64,
    /// Bytes that went to it.
    pub bytes_out: u64,
}

/// The latest metrics of a node. Clones share them.
#[derive(Clone, Debug)]
pub struct Registry {
    latest: Arc<Mutex<(NodeMetrics, Instant)>>,
}

impl Registry {
    /// Holds these metrics until the first update.
    pub fn new(metrics: NodeMetrics) -> Registry {
        Registry { latest: Arc::new(Mutex::new((metrics, Instant::now()))) }
    }

    /// Brings what is told up to date: some ten times a second.
    pub fn update(&self, update: impl FnOnce(&mut NodeMetrics)) {
        let mut latest = self.lock();
        update(&mut latest.0);
        latest.1 = Instant::now();
    }

    /// Returns what was told last, and the time since then.
    pub fn snapshot(&self) -> (NodeMetrics, Duration) {
        let latest = self.lock();
        (latest.0.clone(), latest.1.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, (NodeMetrics, Instant)> {
        // Numbers that a panic left half updated are still numbers.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
