//! The roster of a job at its rendezvous: which of its processes are here, which have left and which never came.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::plan::Role;
use super::rendezvous::{Hub, HubEvent, HubOptions, Member, MemberId, MemberRole, RendezvousError};
use crate::channel::Secret;

/// The presence of the process of one role rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum RankState {
    /// The process is not here since then: it has not joined yet, or it was lost.
    Absent { since: Instant, lost: bool },
    /// A member.
    Here(MemberId),
}

/// The processes of a job, of which each has a role of its own.
pub(super) struct Roster {
    servers: Vec<RankState>,
    workers: Vec<RankState>,
}

impl Roster {
    /// The roster of a job that no process has joined.
    pub(super) fn new(servers: usize, workers: usize, now: Instant) -> Roster {
        let absent = RankState::Absent { since: now, lost: false };
        Roster { servers: vec![absent; servers], workers: vec![absent; workers] }
    }

    /// Opens the rendezvous of these processes, which may each be silent for so long.
    pub(super) fn listen(
        &self,
        address: SocketAddr,
        secret: Option<Secret>,
        silence: Duration,
    ) -> Result<Hub, RendezvousError> {
        let ranks = vec![
            (MemberRole::Server, self.servers.len() as u32),
            (MemberRole::Worker, self.workers.len() as u32),
            (MemberRole::Reader, 0),
        ];
        Hub::listen(address, HubOptions { secret, ranks, silence })
    }

    /// Takes an event of the rendezvous. Returns it with the role of its process, unless that process was replaced
    /// or forgotten before.
    pub(super) fn take(&mut self, event: HubEvent, now: Instant) -> Option<(Role, HubEvent)> {
        let role = match &event {
            HubEvent::Joined(member) => {
                let role = role(member)?;
                *self.state_mut(role)? = RankState::Here(member.id);
                role
            }
            HubEvent::Announced(member) => self.role(member.id)?,
            HubEvent::Said(id, _) => self.role(*id)?,
            HubEvent::Left { member, .. } => {
                let role = self.role(member.id)?;
                *self.state_mut(role)? = RankState::Absent { since: now, lost: true };
                role
            }
        };
        Some((role, event))
    }

    /// Takes the next event of the rendezvous that concerns a process of the job, with its role.
    pub(super) fn poll(&mut self, hub: &mut Hub) -> Option<(Role, HubEvent)> {
        loop {
            let event = hub.poll()?;
            if let Some(known) = self.take(event, Instant::now()) {
                return Some(known);
            }
        }
    }

    /// Counts a present process as lost: its connection is about to end, and it sends nothing more.
    pub(super) fn forget(&mut self, role: Role, now: Instant) {
        if let Some(state) = self.state_mut(role) {
            *state = RankState::Absent { since: now, lost: true };
        }
    }

    /// The presence of a process. A process that is not of the job was never here.
    fn state(&self, role: Role) -> Option<RankState> {
        match role {
            Role::Server(shard) => self.servers.get(shard as usize).copied(),
            Role::Worker(worker) => self.workers.get(worker as usize).copied(),
        }
    }

    fn state_mut(&mut self, role: Role) -> Option<&mut RankState> {
        match role {
            Role::Server(shard) => self.servers.get_mut(shard as usize),
            Role::Worker(worker) => self.workers.get_mut(worker as usize),
        }
    }

    /// The presence of all processes, servers first.
    pub(super) fn all(&self) -> impl Iterator<Item = (Role, RankState)> {
        let servers = (0..).map(Role::Server).zip(self.servers.iter().copied());
        servers.chain((0..).map(Role::Worker).zip(self.workers.iter().copied()))
    }

    /// The processes that are here, servers first.
    pub(super) fn here(&self) -> impl Iterator<Item = (Role, MemberId)> {
        self.all().filter_map(|(role, state)| match state {
            RankState::Here(member) => Some((role, member)),
            RankState::Absent { .. } => None,
        })
    }

    /// The process of this role, if it is here.
    pub(super) fn member(&self, role: Role) -> Option<MemberId> {
        match self.state(role) {
            Some(RankState::Here(member)) => Some(member),
            _ => None,
        }
    }

    /// The time since which a process is lost, if it was here before.
    pub(super) fn lost_since(&self, role: Role) -> Option<Instant> {
        match self.state(role) {
            Some(RankState::Absent { since, lost: true }) => Some(since),
            _ => None,
        }
    }

    fn role(&self, id: MemberId) -> Option<Role> {
        self.here().find(|(_, member)| *member == id).map(|(role, _)| role)
    }
}

/// The role of a member. Readers have no ranks in a job.
fn role(member: &Member) -> Option<Role> {
    match member.role {
        MemberRole::Server => Some(Role::Server(member.role_rank)),
        MemberRole::Worker => Some(Role::Worker(member.role_rank)),
        MemberRole::Reader => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::rendezvous::Host;
    use super::*;

    fn worker(id: u64) -> Member {
        let (role, host) = (MemberRole::Worker, Host::named("host"));
        let addresses = Vec::new();
        Member {
            id: MemberId(id),
            role,
            role_rank: 0,
            generation: 0,
            rank: None,
            host,
            process: 1,
            addresses,
            gpu: None,
        }
    }

    #[test]
    fn a_process_that_was_replaced_is_neither_heard_nor_missed() {
        let now = Instant::now();
        let mut roster = Roster::new(1, 1, now);
        assert_eq!(roster.lost_since(Role::Worker(0)), None, "it was never here");
        for id in [1, 2] {
            assert!(roster.take(HubEvent::Joined(worker(id)), now).is_some());
        }
        assert_eq!(roster.take(HubEvent::Said(MemberId(1), Vec::new()), now), None);
        assert_eq!(roster.take(HubEvent::Left { member: worker(1), reason: String::new() }, now), None);
        assert_eq!(roster.here().collect::<Vec<_>>(), [(Role::Worker(0), MemberId(2))]);
        let left = HubEvent::Left { member: worker(2), reason: String::new() };
        assert_eq!(roster.take(left.clone(), now), Some((Role::Worker(0), left)));
        assert_eq!((roster.member(Role::Worker(0)), roster.lost_since(Role::Worker(0))), (None, Some(now)));
    }
}
