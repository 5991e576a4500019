//! The metrics of the processes of a job that scrapers can read, and those that its coordinator has of its peers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use slackline::Role;
use slackline::internals::job::coordinated::{Members, Peer, Presence};

use crate::failure::Failure;
use crate::metrics::{self, MetricsServer, NodeMetrics, PeerMetrics, PeerState, Registry};

/// Least time between two updates of the metrics of this process.
const MEASURE_EVERY: Duration = Duration::from_millis(100);

/// Serves what a node tells of itself, if that is wanted.
pub(super) fn serve_metrics(
    address: Option<SocketAddr>,
    node: NodeMetrics,
) -> Result<(Option<Registry>, Option<MetricsServer>), Failure> {
    let Some(address) = address else { return Ok((None, None)) };
    let registry = Registry::new(node);
    let server = MetricsServer::start(address, registry.clone()).map_err(|error| Failure::of(&error))?;
    Ok((Some(registry), Some(server)))
}

/// The coordinator's metrics.
pub(super) struct Measure {
    registry: Registry,
    measured: Instant,
}

impl Measure {
    pub(super) fn new(registry: Registry) -> Measure {
        Measure { registry, measured: Instant::now() }
    }

    /// Brings up to date what is served of this process.
    pub(super) fn update(&mut self, members: &Members<'_>) {
        if self.measured.elapsed() < MEASURE_EVERY {
            return;
        }
        self.measured = Instant::now();
        let peers = members.peers().map(peer).collect();
        self.registry.update(|metrics| metrics.peers = peers);
    }
}

fn peer(peer: Peer) -> PeerMetrics {
    let (name, role) = match peer.role {
        Role::Server(shard) => (format!("server {shard}"), metrics::NodeRole::Server),
        Role::Worker(worker) => (format!("worker {worker}"), metrics::NodeRole::Worker),
    };
    let state = match peer.presence {
        Presence::Up => PeerState::Up,
        Presence::Absent | Presence::Joining => PeerState::Joining,
        Presence::Lost => PeerState::Lost,
    };
    PeerMetrics { name, role, state, path: peer.transport, bytes_in: 0, bytes_out: peer.bytes_told }
}
