//! A job as its coordinator sees it: where it is met, and which processes it starts itself.

use std::net::SocketAddr;

use slackline::{Role, Secret, TransportKind};

use super::args::TrainArgs;
use crate::failure::Failure;

/// A job as its coordinator sees it.
#[derive(Debug)]
pub(super) struct Job {
    /// The address at which the others meet this process.
    pub(super) listen: SocketAddr,
    pub(super) secret: Option<Secret>,
    pub(super) starts: Starts,
}

/// The processes that the coordinator starts itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Starts {
    /// All of them.
    All,
    /// The first server, or the first worker where there is none; the others are started elsewhere, and this host has
    /// at most so many ranks.
    First { workers: usize, local_world: u32 },
    /// None.
    None,
}

impl Job {
    /// True if all processes are this one's children.
    pub(super) fn is_local(&self) -> bool {
        self.starts == Starts::All
    }

    /// Returns the number of workers.
    pub(super) fn workers(&self, args: &TrainArgs) -> Result<usize, Failure> {
        match (self.starts, args.workers) {
            (Starts::First { workers, .. }, Some(told)) if workers != told => Err(Failure::usage(format!(
                "--workers {told} contradicts the launcher: --servers {} leaves {workers} of its processes",
                args.servers()?
            ))
            .help("leave --workers out")),
            (Starts::First { workers, .. }, _) => Ok(workers),
            (Starts::All | Starts::None, told) => Ok(told.unwrap_or(2)),
        }
    }

    /// Whether the coordinator of so many servers starts this process itself.
    pub(super) fn starts(&self, role: Role, servers: usize) -> bool {
        match (self.starts, role) {
            (Starts::All, _) => true,
            (Starts::First { .. }, Role::Server(shard)) => shard == 0,
            (Starts::First { .. }, Role::Worker(worker)) => servers == 0 && worker == 0,
            (Starts::None, _) => false,
        }
    }

    /// Returns the distance from the coordinator's metrics port up to that of a process that it starts.
    pub(super) fn metrics_offset(&self, servers: usize, role: Role) -> u32 {
        match (self.starts, role) {
            // The ranks of this host have taken those in between.
            (Starts::First { local_world, .. }, _) => local_world,
            (_, Role::Server(shard)) => 1 + shard,
            (_, Role::Worker(worker)) => 1 + servers as u32 + worker,
        }
    }

    /// Returns the transports over which servers are to be reached.
    pub(super) fn listen_over(&self, require: Option<TransportKind>) -> Vec<TransportKind> {
        match require {
            Some(path) => vec![path],
            None if self.is_local() => vec![TransportKind::Shm],
            None => vec![TransportKind::Shm, TransportKind::Verbs, TransportKind::Tcp],
        }
    }
}
