//! The state of the library's nodes, as metrics.

use slackline::internals::job::coordinated::GroupWork;
use slackline::internals::node::LinkStatus;
use slackline::{Server, Transport, TransportKind, Worker};

use super::{NodeMetrics, NodeRole, PeerMetrics, PeerState, ServerMetrics, WorkerMetrics};

impl NodeMetrics {
    /// Brings up to date what is told of a server.
    pub fn of_server(&mut self, server: &Server<impl Transport>) {
        self.server = Some(ServerMetrics::from(server.status()));
        for peer in &mut self.peers {
            peer.state = PeerState::Lost;
        }
        for peer in server.peers() {
            let role = if peer.worker { NodeRole::Worker } else { NodeRole::Reader };
            let now = PeerMetrics {
                name: format!("{} {}", role.name(), peer.peer),
                role,
                state: PeerState::Up,
                path: peer.transport.parse().unwrap_or(TransportKind::Shm),
                bytes_in: peer.bytes_received,
                bytes_out: 0,
            };
            match self.peers.iter_mut().find(|known| known.name == now.name) {
                Some(known) => *known = now,
                None => self.peers.push(now),
            }
        }
    }

    /// Brings up to date what is told of a worker, which may have a new loss.
    pub fn of_worker(&mut self, worker: &Worker<impl Transport>, loss: Option<f64>) {
        let before = self.worker.take().and_then(|worker| worker.loss);
        let statistics = WorkerMetrics::from(worker.statistics());
        let clock = worker.clock().get();
        self.worker = Some(WorkerMetrics { clock, loss: loss.or(before), ..statistics });
        self.peers = worker.links().map(server).collect();
    }

    /// Brings up to date what is told of a worker of a job without servers.
    pub fn of_group(&mut self, work: &GroupWork, loss: f64) {
        let (trainer, member) = (work.trainer(), work.trainer().member());
        let statistics = member.statistics();
        self.worker = Some(WorkerMetrics {
            clock: trainer.clock().get(),
            compute: trainer.compute_time(),
            wait: statistics.wait,
            bytes_published: statistics.bytes,
            pull_retries: statistics.retries,
            loss: Some(loss),
            ..WorkerMetrics::default()
        });
        let peers = work.paths().iter().filter_map(|taken| Some((taken.worker?, taken.path)));
        let peer = |(peer, path): (u32, TransportKind)| {
            let is_here = member.absence(peer as usize).is_none();
            let state = if is_here { PeerState::Up } else { PeerState::Lost };
            let name = format!("worker {peer}");
            PeerMetrics { name, role: NodeRole::Worker, state, path, bytes_in: 0, bytes_out: 0 }
        };
        self.peers = peers.map(peer).collect();
    }
}

fn server(link: LinkStatus) -> PeerMetrics {
    PeerMetrics {
        name: format!("server {}", link.shard),
        role: NodeRole::Server,
        state: PeerState::Up,
        path: link.transport.parse().unwrap_or(TransportKind::Shm),
        bytes_in: link.bytes_pulled,
        bytes_out: link.bytes_published,
    }
}
