//! The coordinator's knowledge of each of its members.

use super::super::plan::Role;
use super::super::roster::Roster;
use super::WorkerOutcome;
use super::causes::Loss;
use super::checkpoints::Disk;
use super::child::Process;
use super::reports::{PathTaken, ServerReport, WorkerReport};
use crate::time::{Instant, Silence};
use crate::transport::{Address, TransportKind};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum ProcessState {
    #[default]
    Starting,
    Running,
    Finished,
    Lost {
        announced: bool,
    },
}

/// A worker.
#[derive(Default)]
pub(super) struct WorkerEntry {
    /// Its process, if the coordinator started it.
    pub(super) process: Option<Process>,
    /// Initial values that were told to it, where there are no servers.
    pub(super) told: usize,
    /// The address of its own parameters, where there are no servers.
    pub(super) address: Option<Address>,
    /// Starts after the first, and returns, whichever process started it.
    pub(super) restarts: u32,
    pub(super) returns: u32,
    /// Counters of its earlier incarnations.
    pub(super) earlier: WorkerReport,
    pub(super) state: ProcessState,
    /// The first look at it since it began to start, while the job went on.
    pub(super) starting: Option<Instant>,
    pub(super) report: WorkerReport,
    pub(super) lost: Option<Loss>,
    pub(super) paths: Vec<PathTaken>,
    /// The workers that are in at the server of its host, if it has that, as it said last.
    pub(super) serves: Vec<u32>,
    /// Messages from it, and the time without any while this process listened.
    pub(super) heard: u64,
    pub(super) silence: Silence,
}

impl WorkerEntry {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ProcessState::Starting | ProcessState::Running)
    }

    pub(super) fn never_joined(&self) -> bool {
        self.lost.is_some() && self.paths.is_empty()
    }

    pub(super) fn outcome(&self) -> WorkerOutcome {
        WorkerOutcome {
            report: self.report.clone(),
            lost: self.lost.as_ref().map(Loss::text),
            paths: self.paths.clone(),
            returns: self.returns,
        }
    }
}

/// A server.
#[derive(Default)]
pub(super) struct ServerEntry {
    pub(super) process: Option<Process>,
    /// Initial values that were told to it.
    pub(super) told: usize,
    pub(super) address: Option<Address>,
    pub(super) report: ServerReport,
    /// The workers that are in at it, as it said last. While it is gone they may come back to it.
    pub(super) workers: Vec<u32>,
    pub(super) restarts: u32,
    pub(super) lost_updates: Option<u64>,
    pub(super) disk: Disk,
}

/// The members of a job as its coordinator knows them.
#[derive(Clone, Copy)]
pub struct Members<'a> {
    pub(super) roster: &'a Roster,
    pub(super) servers: &'a [ServerEntry],
    pub(super) workers: &'a [WorkerEntry],
}

/// The presence of a member at the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It was never here.
    Absent,
    /// It was here, and is no more.
    Lost,
    /// It has joined and is not ready.
    Joining,
    /// It serves, or trains.
    Up,
}

/// One member as its coordinator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its part.
    pub role: Role,
    /// Its presence.
    pub presence: Presence,
    /// The transport of its first address; for a worker the transport of the control channel.
    pub transport: TransportKind,
    /// Bytes of initial values that were sent to it.
    pub bytes_told: u64,
}

/// The transport of an address, or of the first one of several.
fn first_transport(address: &Address) -> TransportKind {
    match address {
        Address::Tcp(_) => TransportKind::Tcp,
        Address::Verbs(_) => TransportKind::Verbs,
        Address::Several(all) => all.first().map_or(TransportKind::Shm, first_transport),
        _ => TransportKind::Shm,
    }
}

impl<'a> Members<'a> {
    /// The last report of each server, by shard.
    pub fn server_reports(&self) -> impl Iterator<Item = &'a ServerReport> + use<'a> {
        self.servers.iter().map(|entry| &entry.report)
    }

    /// The last report of each worker, by number, with the counters of its earlier incarnations.
    pub fn worker_reports(&self) -> impl Iterator<Item = &'a WorkerReport> + use<'a> {
        self.workers.iter().map(|entry| &entry.report)
    }

    /// The ways that workers have taken, as they told.
    pub fn paths(&self) -> impl Iterator<Item = &'a PathTaken> + use<'a> {
        self.workers.iter().flat_map(|entry| &entry.paths)
    }

    /// All members, servers first.
    pub fn peers(&self) -> impl Iterator<Item = Peer> + use<'a> {
        let roster = self.roster;
        let presence = move |role, up: bool| match (roster.member(role), up) {
            (Some(_), true) => Presence::Up,
            (Some(_), false) => Presence::Joining,
            (None, _) if roster.lost_since(role).is_some() => Presence::Lost,
            (None, _) => Presence::Absent,
        };
        let server = move |(shard, entry): (u32, &ServerEntry)| Peer {
            role: Role::Server(shard),
            presence: presence(Role::Server(shard), entry.address.is_some()),
            transport: entry.address.as_ref().map_or(TransportKind::Shm, first_transport),
            bytes_told: 4 * entry.told as u64,
        };
        let worker = move |(worker, entry): (u32, &WorkerEntry)| Peer {
            role: Role::Worker(worker),
            presence: presence(
                Role::Worker(worker),
                matches!(entry.state, ProcessState::Running | ProcessState::Finished),
            ),
            transport: TransportKind::Tcp,
            bytes_told: 4 * entry.told as u64,
        };
        (0..).zip(self.servers).map(server).chain((0..).zip(self.workers).map(worker))
    }
}

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use super::super::Coordinator;
    use super::super::fixture::{WORKERS, Watches, coordination};
    use super::*;

    #[test]
    fn a_member_that_never_came_is_not_among_the_lost() {
        let mut job = Coordinator::open(coordination(4, 1), Watches::default()).unwrap();
        let presences = |job: &mut Coordinator<Watches>| {
            job.parts().1.peers().map(|peer| peer.presence).collect::<Vec<_>>()
        };
        assert_eq!(presences(&mut job), [Presence::Absent; 1 + WORKERS]);
        job.roster.forget(Role::Server(0), std::time::Instant::now());
        assert_eq!(presences(&mut job), [Presence::Lost, Presence::Absent, Presence::Absent]);
    }
}
