//! Reports of servers on their checkpoints, and the last checkpoints before the end.

use std::time::{Duration, Instant};

use super::super::plan::Role;
use super::super::rendezvous::{HubEvent, MemberId};
use super::LAST_CHECKPOINT_WITHIN;
use super::caller::{Caller, CoordinatorError};
use super::coordinator::Coordinator;
use super::entries::ServerEntry;
use super::orders::{Body, Message, Order, json, read};
use super::reports::Origin;

/// The time between two looks at servers that write their last checkpoints.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The coordinator's knowledge of one server's checkpoints.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// The version that its incarnation began at, from a checkpoint, and that its first one began at.
    began: Option<u64>,
    pub(super) first: Option<Option<u64>>,
    /// Checkpoints that could not be written, in all its incarnations, how many of them were told, and why the last
    /// could not.
    failed: u64,
    told: u64,
    error: Option<String>,
    /// The server has written its last checkpoint.
    closed: bool,
}

impl<C: Caller> Coordinator<C> {
    pub(super) fn keeps_checkpoints(&self) -> bool {
        self.plan.server.as_ref().is_some_and(|order| order.checkpoint.is_some())
    }

    pub(super) fn ask_for_checkpoints(&mut self) {
        if !self.keeps_checkpoints() {
            return self.caller.warn("asked for a checkpoint, and the servers of this job keep none");
        }
        self.order_servers(&Order::Checkpoint);
        self.caller.tell("checkpoints are written, as was asked for");
    }

    /// The servers that are here and have not written their last checkpoint.
    fn open_servers(&self) -> impl Iterator<Item = (usize, MemberId)> {
        self.roster.here().filter_map(|(role, member)| match role {
            Role::Server(shard) if !self.servers[shard as usize].disk.closed => {
                Some((shard as usize, member))
            }
            _ => None,
        })
    }

    fn order_servers(&mut self, order: &Order) {
        let order = json(order);
        let members: Vec<MemberId> = self.open_servers().map(|(_, member)| member).collect();
        members.into_iter().for_each(|member| self.hub.say(member, &order));
    }

    /// A server says what it begins with.
    pub(super) fn hear_origin(&mut self, shard: usize, origin: Option<Origin>) {
        let server = &mut self.servers[shard];
        server.disk.closed = false;
        server.disk.began = origin.as_ref().map(|origin| origin.version);
        let begins_again = server.disk.first.is_some();
        server.disk.first.get_or_insert(server.disk.began);
        match origin {
            Some(Origin { version, clock, instead_of }) => {
                if let Some(error) = instead_of {
                    self.caller.warn(&format!("{error}; shard {shard} takes the checkpoint before it"));
                }
                self.caller.tell(&format!(
                    "shard {shard} goes on from its checkpoint at version {version} (clock {clock})"
                ));
            }
            None if begins_again => self.caller.warn(&format!(
                "shard {shard} begins again from the initial values: no checkpoint of it was written"
            )),
            None => {}
        }
    }

    pub(super) fn tell_lost_updates(&mut self, shard: usize, lost: u64) {
        let from = match self.servers[shard].disk.began {
            Some(version) => format!("after version {version}"),
            None => "after the initial values".into(),
        };
        let (s, are) = if lost == 1 { ("", "is") } else { ("s", "are") };
        self.caller.tell(&format!("shard {shard}: at least {lost} update{s} {from} {are} lost"));
    }

    /// A server could not write checkpoints. The first is told at once, and then each time that they have doubled.
    pub(super) fn hear_failure(&mut self, shard: usize, count: u64, error: &str) {
        let disk = &mut self.servers[shard].disk;
        disk.failed = disk.failed.saturating_add(count);
        disk.error = Some(format!("shard {shard}: {error}"));
        if disk.failed / 2 >= disk.told {
            disk.told = disk.failed;
            let times = if disk.failed == 1 { String::new() } else { format!(" ({} times)", disk.failed) };
            self.caller.warn(&format!("shard {shard}{times}: {error}"));
        }
    }

    /// A server has written its last checkpoint; `newest` is the newest version on the disk.
    pub(super) fn hear_close(&mut self, shard: usize, newest: Option<u64>) {
        let server = &mut self.servers[shard];
        server.disk.closed = true;
        server.report.checkpointed = newest;
    }

    /// An error if a checkpoint could not be written and that is to end the job.
    pub(super) fn strict_checkpoints(&mut self) -> Result<(), C::Error> {
        match self.failed_checkpoints() {
            (_, Some(error)) if self.plan.strict_checkpoints => {
                Err(self.caller.explain(CoordinatorError::Checkpoint(error)))
            }
            _ => Ok(()),
        }
    }

    /// The version that this run began at: 0, unless it goes on from checkpoints.
    pub(super) fn first_version(&self) -> u64 {
        self.servers.iter().filter_map(|server| server.disk.first.flatten()).min().unwrap_or(0)
    }

    /// Returns the number of checkpoints that could not be written, and the error of one of the last of them.
    pub(super) fn failed_checkpoints(&self) -> (u64, Option<String>) {
        let disks = || self.servers.iter().map(|server| &server.disk);
        (
            disks().map(|disk| disk.failed).fold(0, u64::saturating_add),
            disks().find_map(|disk| disk.error.clone()),
        )
    }

    /// Has all servers write their last checkpoint, and waits for that, at most `within`. Checkpoints that are not
    /// written count as failed.
    pub fn close(&mut self, within: Duration) {
        if !self.keeps_checkpoints() {
            return;
        }
        self.order_servers(&Order::Close);
        let deadline = Instant::now() + within;
        while self.open_servers().next().is_some() && Instant::now() < deadline {
            self.hub.wait(LOOK_EVERY);
            while let Some((who, event)) = self.roster.poll(&mut self.hub) {
                self.hear_closing(who, event);
            }
        }
        let first = self.open_servers().next();
        if let Some((shard, _)) = first {
            let wrote = self.newest_on_disk(shard);
            let error = format!("the last checkpoint was not written within {within:?}; {wrote}");
            self.hear_failure(shard, 1, &error);
        }
    }

    /// Takes an event while only servers are listened to.
    fn hear_closing(&mut self, who: Role, event: HubEvent) {
        let Role::Server(shard) = who else { return };
        let shard = shard as usize;
        match event {
            HubEvent::Said(_, message) => match read(&message) {
                Ok(Body::Json(Message::CheckpointFailed { count, error })) => {
                    self.hear_failure(shard, count, &error);
                }
                Ok(Body::Json(Message::Closed(newest))) => self.hear_close(shard, newest),
                Ok(Body::Json(Message::Failed(error))) => {
                    self.roster.forget(who, Instant::now());
                    self.hear_failure(shard, 1, &error.to_string());
                }
                _ => {}
            },
            HubEvent::Left { reason, .. } if !self.servers[shard].disk.closed => {
                self.hear_failure(shard, 1, &format!("gone before its last checkpoint: {reason}"));
            }
            _ => {}
        }
    }

    /// The caller wishes the end: servers write their last checkpoints first.
    pub(super) fn stopped(&mut self) -> C::Error {
        self.close(self.plan.timeout().min(LAST_CHECKPOINT_WITHIN));
        let disks: Vec<_> = (0..self.servers.len()).map(|shard| self.newest_on_disk(shard)).collect();
        let (newest, resumable) = (disks.join(", "), self.can_resume());
        self.caller.explain(CoordinatorError::Stopped { newest, resumable })
    }

    /// True if every shard has a checkpoint, as far as is known.
    pub(super) fn can_resume(&self) -> bool {
        let known = |server: &ServerEntry| server.report.checkpointed.or(server.disk.began).is_some();
        self.keeps_checkpoints() && self.servers.iter().all(known)
    }

    fn newest_on_disk(&self, shard: usize) -> String {
        let server = &self.servers[shard];
        match server.report.checkpointed.or(server.disk.began) {
            Some(version) => format!("the newest checkpoint of shard {shard} is of version {version}"),
            None => format!("no checkpoint of shard {shard} was written"),
        }
    }
}

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use super::super::fixture::{Watches, coordination};
    use super::super::reports::ServerReport;
    use super::*;

    #[test]
    fn counters_that_a_server_tells_twice_never_overflow() {
        let mut job = Coordinator::open(coordination(4, 1), Watches::default()).unwrap();
        for _ in 0..2 {
            // An incarnation counts from nothing.
            job.servers[0].report.lost_updates = None;
            job.hear_server(0, ServerReport { lost_updates: Some(u64::MAX), ..ServerReport::default() });
            job.hear_failure(0, u64::MAX, "the disk is full");
        }
        let outcome = job.outcome();
        assert_eq!((outcome.lost_updates, outcome.checkpoints_failed), (u64::MAX, u64::MAX));
        assert_eq!(job.caller.warned.len(), 1, "{:?}", job.caller.warned);
    }

    #[test]
    fn a_server_that_begins_again_without_a_checkpoint_is_told_of() {
        let mut job = Coordinator::open(coordination(4, 1), Watches::default()).unwrap();
        job.hear_origin(0, None);
        assert_eq!(job.caller.warned, [""; 0], "its first begin");
        // In its own process, as a server does whose decider was started again.
        job.hear_origin(0, None);
        assert_eq!(job.caller.warned.len(), 1);
        assert!(job.caller.warned[0].starts_with("shard 0 begins again from the initial values"));
    }
}
