//! Reports of servers on their checkpoints, and the last checkpoints before the end.

use std::time::{Duration, Instant};

use super::super::plan::Role;
use super::super::rendezvous::{HubEvent, MemberId};
use super::LAST_CHECKPOINT_WITHIN;
use super::caller::{Caller, CoordinatorError, Wish};
use super::coordinator::Coordinator;
use super::entries::{Members, ServerEntry};
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
    /// Its incarnation has begun: it has something to keep.
    serves: bool,
    /// A checkpoint was asked for, of this version or a newer one, and is not known to be written.
    wanted: Option<u64>,
    /// The server has written its last checkpoint.
    closed: bool,
}

impl Disk {
    /// Another incarnation has joined, and is still to begin.
    pub(super) fn begin_again(&mut self) {
        self.serves = false;
    }

    /// The server has told the newest version that is on disk.
    pub(super) fn hear_written(&mut self, newest: Option<u64>) {
        self.wanted = self.wanted.filter(|wanted| newest.is_none_or(|newest| newest < *wanted));
    }
}

impl<C: Caller> Coordinator<C> {
    pub(super) fn keeps_checkpoints(&self) -> bool {
        self.plan.server.as_ref().is_some_and(|order| order.checkpoint.is_some())
    }

    pub(super) fn ask_for_checkpoints(&mut self) {
        if !self.keeps_checkpoints() {
            return self.caller.warn("asked for a checkpoint, and the servers of this job keep none");
        }
        // A server that has not begun gets the order once it has.
        self.order_servers(&Order::Checkpoint, |disk| disk.serves);
        for server in &mut self.servers {
            server.disk.wanted = Some(server.report.version);
        }
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

    fn order_servers(&mut self, order: &Order, is_meant: impl Fn(&Disk) -> bool) {
        let order = json(order);
        let meant = self.open_servers().filter(|(shard, _)| is_meant(&self.servers[*shard].disk));
        let members: Vec<MemberId> = meant.map(|(_, member)| member).collect();
        members.into_iter().for_each(|member| self.hub.say(member, &order));
    }

    /// A server tells the checkpoint that it begins with, if any.
    pub(super) fn hear_origin(&mut self, shard: usize, origin: Option<Origin>) {
        let server = &mut self.servers[shard];
        (server.disk.serves, server.disk.closed) = (true, false);
        server.disk.began = origin.as_ref().map(|origin| origin.version);
        let begins_again = server.disk.first.is_some();
        server.disk.first.get_or_insert(server.disk.began);
        if let Some(wanted) = &mut server.disk.wanted {
            // The incarnation that was asked for it is gone, and so are its versions.
            *wanted = server.disk.began.map_or(0, |began| began.min(*wanted));
            if let Some(member) = self.roster.member(Role::Server(shard as u32)) {
                self.hub.say(member, &json(&Order::Checkpoint));
            }
        }
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
        disk.wanted = None;
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

    /// The longest wait for last checkpoints where the job is to end soon.
    pub(super) fn last_checkpoint_within(&self) -> Duration {
        self.plan.timeout().min(LAST_CHECKPOINT_WITHIN)
    }

    /// Whether servers of a job that fails have something to keep that is worth it: versions that this run has made. Of
    /// a job that diverged the checkpoints from before are better.
    pub(super) fn has_learned(&self) -> bool {
        let made = |server: &ServerEntry| server.report.version > server.disk.began.unwrap_or(0);
        self.servers.iter().any(made) && self.servers.iter().all(|server| server.report.diverged.is_none())
    }

    /// The servers that still have a last checkpoint to write. A server that has not begun has nothing to keep.
    fn still_to_close(&self) -> impl Iterator<Item = usize> {
        self.open_servers().map(|(shard, _)| shard).filter(|shard| self.servers[*shard].disk.serves)
    }

    /// Has all servers write their last checkpoint, and waits for that, at most `within`, or [`LAST_CHECKPOINT_WITHIN`]
    /// after the caller wishes [`Wish::Stop`]. Checkpoints that are not written count as failed. A second call does
    /// nothing.
    pub fn close(&mut self, within: Duration) {
        if !self.keeps_checkpoints() || std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        self.order_servers(&Order::Close, |_| true);
        let (mut deadline, mut told) = (Instant::now() + within, within);
        let mut is_hurried = false;
        while self.still_to_close().next().is_some() && Instant::now() < deadline {
            self.hub.wait(LOOK_EVERY);
            let members = Members { roster: &self.roster, servers: &self.servers, workers: &self.workers };
            if !is_hurried && matches!(self.caller.turn(&members), Ok(Wish::Stop) | Err(_)) {
                is_hurried = true;
                let hurried = Instant::now() + self.last_checkpoint_within();
                if hurried < deadline {
                    (deadline, told) = (hurried, self.last_checkpoint_within());
                }
            }
            while let Some((who, event)) = self.roster.poll(&mut self.hub) {
                self.hear_closing(who, event);
            }
        }
        for shard in self.still_to_close().collect::<Vec<_>>() {
            let wrote = self.newest_on_disk(shard);
            let error = format!("the last checkpoint was not written within {told:?}; {wrote}");
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
                Ok(Body::Json(Message::Began(origin))) if !self.servers[shard].disk.closed => {
                    self.hear_origin(shard, origin);
                }
                Ok(Body::Json(Message::Failed(error))) => {
                    self.roster.forget(who, Instant::now());
                    self.hear_failure(shard, 1, &error.to_string());
                }
                _ => {}
            },
            HubEvent::Left { reason, .. } if !self.servers[shard].disk.closed => {
                self.hear_failure(shard, 1, &format!("gone before its last checkpoint: {reason}"));
            }
            HubEvent::Joined(_) => {
                self.servers[shard].disk.begin_again();
            }
            _ => {}
        }
    }

    /// The caller wishes the end: servers write their last checkpoints first.
    pub(super) fn stopped(&mut self) -> C::Error {
        self.close(self.last_checkpoint_within());
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
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::super::fixture::{TIMEOUT, Watches, coordination};
    use super::super::reports::ServerReport;
    use super::super::{CheckpointOrder, CoordinatedMember, MemberOptions};
    use super::*;
    use crate::job::member::End;
    use crate::job::rendezvous::MemberRole;
    use crate::job::{JobPlan, Resume};

    /// A job whose server keeps checkpoints, and that is not there yet.
    fn keeping(timeout: Duration) -> Coordinator<Watches> {
        keeping_shards(1, timeout)
    }

    /// The same with so many servers.
    fn keeping_shards(shards: u32, timeout: Duration) -> Coordinator<Watches> {
        let mut plan = coordination(16 * shards as usize, 1);
        plan.worker.plan = JobPlan::servers(shards).timeout(timeout);
        let order = plan.server.as_mut().unwrap();
        order.checkpoint = Some(CheckpointOrder::new("folder".into(), 1, Resume::Never));
        Coordinator::open(plan, Watches::default()).unwrap()
    }

    /// The settings of the server of this shard.
    fn server(shard: u32) -> MemberOptions {
        let (role, checkpoint) = (MemberRole::Server, Arc::new(AtomicBool::new(false)));
        MemberOptions { role, role_rank: Some(shard), rank: None, secret: None, checkpoint, timeout: TIMEOUT }
    }

    /// Lets the server join, which does nothing by itself.
    fn join(job: &mut Coordinator<Watches>, shard: u32) -> CoordinatedMember {
        let address = job.hub.address().to_string();
        let member = std::thread::scope(|scope| {
            let joining = scope.spawn(|| CoordinatedMember::join(&address, server(shard)).unwrap());
            turn_until(job, |_| joining.is_finished());
            joining.join().unwrap()
        });
        turn_until(job, |job| job.roster.member(Role::Server(shard)).is_some());
        member
    }

    /// Lets the server join and begin.
    fn serve(job: &mut Coordinator<Watches>) -> CoordinatedMember {
        serve_shard(job, 0)
    }

    fn serve_shard(job: &mut Coordinator<Watches>, shard: u32) -> CoordinatedMember {
        let member = join(job, shard);
        member.say(Message::Began(None));
        turn_until(job, |job| job.servers[shard as usize].disk.serves);
        member
    }

    fn turn_until(job: &mut Coordinator<Watches>, until: impl Fn(&Coordinator<Watches>) -> bool) {
        let deadline = Instant::now() + TIMEOUT;
        while !until(job) {
            assert!(Instant::now() < deadline, "it does not happen");
            job.turn().unwrap();
        }
    }

    #[test]
    fn a_job_that_fails_has_its_servers_write_their_last_checkpoints() {
        let mut job = keeping(TIMEOUT);
        let member = &serve(&mut job);
        job.hear_server(0, ServerReport { version: 7, ..ServerReport::default() });
        std::thread::scope(|scope| {
            let serving = scope.spawn(move || {
                while !member.closes() {
                    assert_eq!(member.end(), None, "the end was told first");
                    std::thread::sleep(LOOK_EVERY);
                }
                member.say(Message::Closed(Some(7)));
                member.wait_for_the_end()
            });
            job.abort("no reason");
            assert_eq!(serving.join().unwrap(), End::Told("the job failed: no reason".into()));
        });
    }

    #[test]
    fn a_job_that_has_learned_nothing_or_diverged_writes_no_checkpoints() {
        for (version, diverged) in [(0, None), (7, Some(7))] {
            let mut job = keeping(TIMEOUT);
            let member = &serve(&mut job);
            job.hear_server(0, ServerReport { version, diverged, ..ServerReport::default() });
            std::thread::scope(|scope| {
                let serving = scope.spawn(move || (member.wait_for_the_end(), member.closes()));
                job.abort("no reason");
                assert_eq!(serving.join().unwrap(), (End::Told("the job failed: no reason".into()), false));
            });
        }
    }

    #[test]
    fn last_checkpoints_are_waited_for_once() {
        let mut job = keeping(TIMEOUT);
        let _silent = serve(&mut job);
        job.close(Duration::ZERO);
        assert_eq!(job.failed_checkpoints().0, 1);
        job.close(Duration::ZERO);
        assert_eq!(job.failed_checkpoints().0, 1, "it is not asked again");
    }

    #[test]
    fn each_last_checkpoint_that_is_not_written_counts() {
        let mut job = keeping_shards(2, TIMEOUT);
        let _silent = [0, 1].map(|shard| serve_shard(&mut job, shard));
        job.close(Duration::ZERO);
        assert_eq!(job.failed_checkpoints().0, 2);
        let tells =
            |shard: u32| job.caller.warned.iter().any(|line| line.starts_with(&format!("shard {shard}: ")));
        assert!(tells(0) && tells(1), "{:?}", job.caller.warned);
    }

    #[test]
    fn a_server_that_has_not_begun_has_no_last_checkpoint_to_wait_for() {
        let mut job = keeping(TIMEOUT);
        let member = join(&mut job, 0);
        job.close(Duration::ZERO);
        assert_eq!(job.failed_checkpoints(), (0, None));
        // Nor has a server that is started again.
        drop(member);
        let mut job = keeping(TIMEOUT);
        drop(serve(&mut job));
        turn_until(&mut job, |job| job.roster.member(Role::Server(0)).is_none());
        let _again = join(&mut job, 0);
        job.close(Duration::ZERO);
        assert_eq!(job.failed_checkpoints(), (0, None));
    }

    #[test]
    fn a_server_that_comes_back_meanwhile_has_no_last_checkpoint() {
        let mut job = keeping(TIMEOUT);
        drop(serve(&mut job));
        turn_until(&mut job, |job| job.roster.member(Role::Server(0)).is_none());
        let address = job.hub.address().to_string();
        // It has begun, as far as is known, until it is seen to have joined.
        job.servers[0].disk.serves = true;
        let began = Instant::now();
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| CoordinatedMember::join(&address, server(0)).unwrap());
            while job.roster.member(Role::Server(0)).is_none() {
                assert!(began.elapsed() < TIMEOUT, "it does not join");
                job.hub.wait(LOOK_EVERY);
                while let Some((who, event)) = job.roster.poll(&mut job.hub) {
                    job.hear_closing(who, event);
                }
            }
            drop(joining.join().unwrap());
        });
        assert!(!job.servers[0].disk.serves);
    }

    #[test]
    fn a_wish_to_stop_cuts_the_wait_for_last_checkpoints() {
        let mut job = keeping(Duration::from_millis(100));
        let _silent = serve(&mut job);
        job.caller.stops = true;
        job.close(Duration::from_secs(20));
        let error = job.failed_checkpoints().1.unwrap();
        assert!(error.contains("the last checkpoint was not written within 100ms"), "{error}");
    }

    #[test]
    fn a_server_that_was_away_is_told_of_the_checkpoint_that_was_asked_for() {
        let mut job = keeping(TIMEOUT);
        job.ask_for_checkpoints();
        wait_for_the_wish(&serve(&mut job));
    }

    #[test]
    fn a_checkpoint_is_asked_for_until_one_incarnation_has_written_it() {
        let mut job = keeping(TIMEOUT);
        let member = serve(&mut job);
        job.hear_server(0, ServerReport { version: 7, checkpointed: Some(5), ..ServerReport::default() });
        job.ask_for_checkpoints();
        wait_for_the_wish(&member);
        // It dies before it has written that.
        drop(member);
        turn_until(&mut job, |job| job.roster.member(Role::Server(0)).is_none());
        let member = join(&mut job, 0);
        member.say(Message::Began(Some(Origin { version: 5, clock: 5, instead_of: None })));
        turn_until(&mut job, |_| member.wants_checkpoint());
        job.hear_server(0, ServerReport { version: 6, checkpointed: Some(6), ..ServerReport::default() });
        // A checkpoint that is written is not asked of the next incarnation.
        assert_eq!(job.servers[0].disk.wanted, None);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_is_asked_for_once() {
        let mut job = keeping(TIMEOUT);
        job.ask_for_checkpoints();
        job.hear_failure(0, 1, "the disk is full");
        assert_eq!(job.servers[0].disk.wanted, None);
    }

    /// Waits until the server has read that a checkpoint is asked for.
    fn wait_for_the_wish(member: &CoordinatedMember) {
        let deadline = Instant::now() + TIMEOUT;
        while !member.wants_checkpoint() {
            assert!(Instant::now() < deadline, "it is not told");
            std::thread::sleep(LOOK_EVERY);
        }
    }

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
