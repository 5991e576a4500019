//! What is served of the coordinator for scrapers of metrics.

use std::time::{Duration, Instant};

use slackline::job::rendezvous::MemberId;
use slackline::transport::Address;
use slackline::transport::TransportKind;

use super::{Coordinator, State};
use crate::metrics::{self, PeerMetrics, PeerState};

/// How often what is served of this process is brought up to date.
const MEASURE_EVERY: Duration = Duration::from_millis(100);

impl Coordinator<'_> {
    /// Brings up to date what is served of this process.
    pub(super) fn measure(&mut self) {
        let Some(registry) = &self.metrics else { return };
        if self.measured.elapsed() < MEASURE_EVERY {
            return;
        }
        self.measured = Instant::now();
        let state = |member: Option<MemberId>, up: bool| match (member, up) {
            (Some(_), true) => PeerState::Up,
            (Some(_), false) => PeerState::Joining,
            (None, _) => PeerState::Lost,
        };
        let servers = self.servers.iter().enumerate().map(|(shard, server)| PeerMetrics {
            name: format!("server {shard}"),
            role: metrics::Role::Server,
            state: state(server.member, server.address.is_some()),
            path: match server.address {
                Some(Address::Tcp(_)) => TransportKind::Tcp,
                _ => TransportKind::Shm,
            },
            bytes_in: 0,
            bytes_out: 4 * server.told as u64,
        });
        let workers = self.workers.iter().enumerate().map(|(worker, place)| PeerMetrics {
            name: format!("worker {worker}"),
            role: metrics::Role::Worker,
            state: state(place.member, matches!(place.state, State::Running | State::Finished)),
            path: TransportKind::Tcp,
            bytes_in: 0,
            bytes_out: 0,
        });
        let peers = servers.chain(workers).collect();
        registry.update(|metrics| metrics.peers = peers);
    }
}
