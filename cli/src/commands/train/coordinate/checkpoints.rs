//! What servers tell of their checkpoints, and the last ones before the end.

use std::time::{Duration, Instant};

use slackline::job::rendezvous::{HubEvent, MemberRole};

use super::{Body, Coordinator, Message, Order, TICK, json, read};
use crate::commands::train::messages::Origin;
use crate::commands::train::stop::{self, LAST_CHECKPOINT_WITHIN};
use crate::failure::Failure;

/// What is known of one server's checkpoints.
#[derive(Default)]
pub(super) struct Disk {
    /// The version that its life began at, from a checkpoint.
    began: Option<u64>,
    /// Checkpoints that could not be written, in all its lives, how many of them were told, and why the last could not.
    failed: u64,
    told: u64,
    error: Option<String>,
    /// It has written its last.
    closed: bool,
}

impl Coordinator<'_> {
    pub(super) fn ask_for_checkpoints(&mut self) {
        if self.plan.checkpoint.is_none() {
            return self
                .display
                .warn("asked for a checkpoint (SIGUSR1), and this run was given no --checkpoint");
        }
        let order = json(&Order::Checkpoint);
        for member in self.servers.iter().filter_map(|shard| shard.member) {
            self.hub.say(member, &order);
        }
        self.display.tell("checkpoints are written, as was asked for (SIGUSR1)");
    }

    /// A server says what it begins with.
    pub(super) fn hear_origin(&mut self, shard: usize, origin: Option<Origin>) {
        let server = &mut self.servers[shard];
        server.disk.closed = false;
        server.disk.began = origin.as_ref().map(|origin| origin.version);
        match origin {
            Some(Origin { version, clock, instead_of }) => {
                if let Some(error) = instead_of {
                    self.display.warn(&format!("{error}; shard {shard} takes the checkpoint before it"));
                }
                self.display.tell(&format!(
                    "shard {shard} goes on from its checkpoint at version {version} (clock {clock})"
                ));
            }
            None if server.restarts > 0 => self.display.warn(&format!(
                "shard {shard} begins again from the initial values: no checkpoint of it was written"
            )),
            None => {}
        }
    }

    pub(super) fn tell_lost_updates(&self, shard: usize, lost: u64) {
        let from = match self.servers[shard].disk.began {
            Some(version) => format!("after version {version}"),
            None => "after the initial values".into(),
        };
        let (s, are) = if lost == 1 { ("", "is") } else { ("s", "are") };
        self.display.tell(&format!("shard {shard}: at least {lost} update{s} {from} {are} lost"));
    }

    /// A server could not write checkpoints. The first is told at once, and then each time that they have doubled.
    pub(super) fn hear_failure(&mut self, shard: usize, count: u64, error: &str) {
        let disk = &mut self.servers[shard].disk;
        disk.failed += count;
        disk.error = Some(format!("shard {shard}: {error}"));
        if disk.failed >= 2 * disk.told {
            disk.told = disk.failed;
            let times = if disk.failed == 1 { String::new() } else { format!(" ({} times)", disk.failed) };
            self.display.warn(&format!("shard {shard}{times}: {error}"));
        }
    }

    /// A server has written its last checkpoint; `newest` is the newest version on the disk.
    pub(super) fn hear_close(&mut self, shard: usize, newest: Option<u64>) {
        let server = &mut self.servers[shard];
        server.disk.closed = true;
        server.status.checkpointed = newest;
    }

    /// An error if a checkpoint could not be written and that is to end the run.
    pub(super) fn strict_checkpoints(&self) -> Result<(), Failure> {
        match self.failed_checkpoints() {
            (_, Some(error)) if self.plan.strict_checkpoints => Err(Failure::failed(error)),
            _ => Ok(()),
        }
    }

    /// The version that this run began at: 0, unless it goes on from checkpoints.
    pub(super) fn first_version(&self) -> u64 {
        let of_this_run = self.servers.iter().filter(|server| server.restarts == 0);
        of_this_run.filter_map(|server| server.disk.began).min().unwrap_or(0)
    }

    /// How many checkpoints could not be written, and why one of the last could not.
    pub(super) fn failed_checkpoints(&self) -> (u64, Option<String>) {
        let disks = || self.servers.iter().map(|server| &server.disk);
        (disks().map(|disk| disk.failed).sum(), disks().find_map(|disk| disk.error.clone()))
    }

    /// Has all servers write their last checkpoint, and waits for that.
    pub(super) fn close_servers(&mut self, within: Duration) {
        if self.plan.checkpoint.is_none() {
            return;
        }
        let order = json(&Order::Close);
        for member in
            self.servers.iter().filter(|server| !server.disk.closed).filter_map(|server| server.member)
        {
            self.hub.say(member, &order);
        }
        let deadline = Instant::now() + within;
        let open =
            |run: &Self| run.servers.iter().position(|server| server.member.is_some() && !server.disk.closed);
        while open(self).is_some() && Instant::now() < deadline {
            self.hub.wait(TICK);
            while let Some(event) = self.hub.poll() {
                self.hear_closing(event);
            }
        }
        if let Some(shard) = open(self) {
            let wrote = self.newest_on_disk(shard);
            let error = format!("the last checkpoint was not written within {within:?}; {wrote}");
            self.hear_failure(shard, 1, &error);
        }
    }

    /// Takes an event while only servers are listened to.
    fn hear_closing(&mut self, event: HubEvent) {
        match event {
            HubEvent::Said(id, message) => {
                let shard = self.servers.iter().position(|server| server.member == Some(id));
                match (shard, read(&message)) {
                    (Some(shard), Ok(Body::Json(Message::CheckpointFailed { count, error }))) => {
                        self.hear_failure(shard, count, &error);
                    }
                    (Some(shard), Ok(Body::Json(Message::Closed(newest)))) => self.hear_close(shard, newest),
                    (Some(shard), Ok(Body::Json(Message::Failed { message }))) => {
                        self.servers[shard].member = None;
                        self.hear_failure(shard, 1, &message);
                    }
                    _ => {}
                }
            }
            HubEvent::Left { member, reason } if member.role == MemberRole::Server => {
                let shard = member.place as usize;
                if self.servers[shard].member == Some(member.id) {
                    self.servers[shard].member = None;
                    if !self.servers[shard].disk.closed {
                        self.hear_failure(shard, 1, &format!("gone before its last checkpoint: {reason}"));
                    }
                }
            }
            _ => {}
        }
    }

    /// A signal asked this process to end: servers write their last checkpoints first.
    pub(super) fn stopped(&mut self, signal: i32) -> Failure {
        self.close_servers(self.plan.timeout.min(LAST_CHECKPOINT_WITHIN));
        let disks: Vec<_> = (0..self.servers.len()).map(|shard| self.newest_on_disk(shard)).collect();
        let remedy = match self.can_resume() {
            true => "start the run again with --resume to go on from there",
            false => "start the run again without --resume",
        };
        Failure::stopped(signal, format!("stopped by {}: {}; {remedy}", stop::name(signal), disks.join(", ")))
    }

    /// True if every shard has a checkpoint, as far as is known.
    pub(super) fn can_resume(&self) -> bool {
        let known = |server: &super::Shard| server.status.checkpointed.or(server.disk.began).is_some();
        self.plan.checkpoint.is_some() && self.servers.iter().all(known)
    }

    fn newest_on_disk(&self, shard: usize) -> String {
        let server = &self.servers[shard];
        match server.status.checkpointed.or(server.disk.began) {
            Some(version) => format!("the newest checkpoint of shard {shard} is of version {version}"),
            None => format!("no checkpoint of shard {shard} was written"),
        }
    }
}
