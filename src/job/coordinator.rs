//! Rank 0's thread: it keeps the rendezvous and decides when the job is over.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::JobError;
use super::messages::{FromCoordinator, FromMember, SILENCE_LEAST, encode};
use super::plan::{JobPlan, Role};
use super::rendezvous::{self, Hub, HubEvent, MemberId, RendezvousError};
use super::roster::{RankState, Roster};
use super::served_workers::ServedWorkers;
use crate::channel::Secret;
use crate::mem::OwnThread;
use crate::time::Silence;

/// The longest time between two looks at the deadlines.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The longest time that the members may take to hear how the job ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The thread of rank 0. Dropping it ends the job.
pub(super) struct CoordinatorThread {
    abandoned: Arc<AtomicBool>,
    thread: Mutex<Option<OwnThread>>,
}

impl CoordinatorThread {
    pub(super) fn start(hub: Hub, attendance: Attendance) -> Result<CoordinatorThread, JobError> {
        let abandoned = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&abandoned);
        let thread = OwnThread::start("slackline-hub", move || run(hub, attendance, &flag))
            .map_err(rendezvous::RendezvousError::Thread)?;
        Ok(CoordinatorThread { abandoned, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the job if it has not ended.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// Waits until the job has ended and all members have heard how: a process that exits before that takes the
    /// thread with it, and the others are told no cause. Call it once this process knows the end.
    pub(super) fn wait(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there was reported by its thread; the members see the connection end.
            let _ended = thread.end(|| ());
        }
    }
}

impl Drop for CoordinatorThread {
    fn drop(&mut self) {
        self.abandon();
        self.wait();
    }
}

fn run(mut hub: Hub, mut attendance: Attendance, abandoned: &AtomicBool) {
    let end = loop {
        // Asked first: the server of rank 0 leaves with it, and is not the cause.
        if abandoned.load(Ordering::Relaxed) {
            break FromCoordinator::Abort("rank 0 ended before the job did; look at its output".into());
        }
        while let Some(event) = hub.poll() {
            attendance.take(event, Instant::now());
        }
        if let Some(end) = attendance.end(Instant::now()) {
            break end;
        }
        hub.wait(LOOK_EVERY);
    };
    match &end {
        FromCoordinator::Over => tracing::info!("the job is over"),
        FromCoordinator::Abort(why) => tracing::warn!(why, "the job has failed"),
    }
    let mut message = encode(&end);
    if message.len() > rendezvous::MAX_MESSAGE_BYTES {
        message = encode(&FromCoordinator::Abort("its cause is too long to be sent".into()));
    }
    // A process that is still being started hears the cause too, and not only that the port is closed.
    let deadline = Instant::now() + LAST_WORDS;
    let members: Vec<MemberId> = hub.members().map(|member| member.id).collect();
    members.into_iter().for_each(|member| hub.say(member, &message));
    while attendance.is_awaited() && Instant::now() < deadline {
        while let Some(event) = hub.poll() {
            if let HubEvent::Joined(member) = &event {
                hub.say(member.id, &message);
            }
            attendance.take(event, Instant::now());
        }
        hub.wait(LOOK_EVERY);
    }
    hub.close(&message, LAST_WORDS);
}

/// The processes of a job, and the decisions that follow from their presence.
pub(super) struct Attendance {
    plan: JobPlan,
    world: u32,
    roster: Roster,
    served: ServedWorkers,
    /// The workers that have run all their clocks.
    finished: Vec<bool>,
    /// The last failure that each worker told.
    causes: Vec<Option<String>>,
    /// How often each worker joined or said something, and for how long it was silent while this process listened.
    heard: Vec<(u64, Silence)>,
    /// The workers of a job without servers that say nothing any more.
    silent: Vec<bool>,
    /// The origin of the times of their silence.
    begun: Instant,
    /// The first failure that ends the job.
    failure: Option<String>,
}

impl Attendance {
    pub(super) fn new(plan: JobPlan, world: u32, now: Instant) -> Attendance {
        let workers = world.saturating_sub(plan.servers) as usize;
        let roster = Roster::new(plan.servers as usize, workers, now);
        let (served, finished, causes) =
            (ServedWorkers::new(workers, now), vec![false; workers], vec![None; workers]);
        let (heard, silent) = (vec![(0, Silence::default()); workers], vec![false; workers]);
        let (begun, failure) = (now, None);
        Attendance { plan, world, roster, served, finished, causes, heard, silent, begun, failure }
    }

    /// Opens the rendezvous of these processes.
    pub(super) fn listen(&self, address: SocketAddr, secret: Option<Secret>) -> Result<Hub, RendezvousError> {
        // Their lease is known to the servers alone.
        self.roster.listen(address, secret, Duration::ZERO)
    }

    fn take(&mut self, event: HubEvent, now: Instant) {
        let Some((who, event)) = self.roster.take(event, now) else { return };
        if let Role::Worker(worker) = who {
            self.heard[worker as usize].0 += 1;
        }
        match event {
            HubEvent::Joined(_) => {
                // It runs its clocks again.
                if let Role::Worker(worker) = who {
                    self.finished[worker as usize] = false;
                    self.causes[worker as usize] = None;
                }
                self.served.join(who, now);
            }
            HubEvent::Announced(_) => {
                if let Role::Server(_) = who {
                    // It has counted the workers that it expects: they have to come to it, too.
                    let is_here = |worker| self.roster.member(Role::Worker(worker)).is_some();
                    self.served.expect_at(who, is_here);
                }
            }
            HubEvent::Said(_, message) => self.receive(who, &message, now),
            HubEvent::Left { member, reason } => {
                self.served.lose(who, now);
                if self.has_finished(who) {
                    return;
                }
                tracing::warn!(%who, reason, "lost");
                if matches!(who, Role::Server(_)) && !self.plan.reconnect {
                    self.fail(format!(
                        "{who} on {} is lost ({reason}); start the job again, or keep checkpoints and let workers \
                         reconnect",
                        member.host
                    ));
                }
            }
        }
    }

    fn has_finished(&self, who: Role) -> bool {
        matches!(who, Role::Worker(worker) if self.finished[worker as usize])
    }

    fn receive(&mut self, who: Role, message: &[u8], now: Instant) {
        match (postcard::from_bytes(message), who) {
            (Ok(FromMember::Workers { workers, come }), _) => self.served.say(who, workers, &come, now),
            (Ok(FromMember::Alive), _) => {}
            _ if self.has_finished(who) => {}
            (Ok(FromMember::Plan(plan, world)), _)
                if plan.agrees_with(&self.plan) && world == self.world => {}
            (Ok(FromMember::Plan(plan, world)), _) => self.fail(format!(
                "{who} was started with another plan than rank 0 ({world} processes and {plan:?} instead of {} and \
                 {:?}); start the same program with the same arguments everywhere",
                self.world, self.plan
            )),
            (Ok(FromMember::Finished), Role::Worker(worker)) => self.finished[worker as usize] = true,
            (Ok(FromMember::Finished), Role::Server(_)) => {}
            (Ok(FromMember::Failed(why)), Role::Server(_)) => self.fail(format!("{who}: {why}")),
            // In a job without a server it is rank 0, and the job ends with it.
            (Ok(FromMember::Failed(why)), Role::Worker(0)) if self.plan.servers == 0 => {
                self.fail(format!("{who}: {why}"));
            }
            (Ok(FromMember::Failed(why)), Role::Worker(worker)) => {
                tracing::warn!(%who, why, "failed");
                self.causes[worker as usize] = Some(why);
            }
            (Err(error), _) => self.fail(format!(
                "{who} sent a message that this version does not understand ({error}); run the same slackline \
                 everywhere"
            )),
        }
    }

    fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    /// True while a process has never joined.
    fn is_awaited(&self) -> bool {
        self.roster.all().any(|(_, state)| matches!(state, RankState::Absent { lost: false, .. }))
    }

    /// The silence after which a worker of a job without servers counts as lost.
    fn silence_max(&self) -> Duration {
        self.plan.timeout.max(SILENCE_LEAST)
    }

    /// Looks which workers say nothing any more. Without servers the members of its group alone go on without a worker,
    /// and it says itself that it lives. Where this process was stopped as well, with its host or with all others, that
    /// time says nothing of them.
    fn listen_to_workers(&mut self, now: Instant) {
        if self.plan.servers > 0 {
            return;
        }
        let since = now.saturating_duration_since(self.begun);
        let (now, longest) = (crate::time::Instant::ORIGIN + since, self.silence_max());
        for ((heard, silence), silent) in self.heard.iter_mut().zip(&mut self.silent) {
            *silent = silence.observe(now, *heard, longest);
        }
    }

    /// The end of the job, if `now` is its end. Asked at every look, since silence is measured by looks.
    fn end(&mut self, now: Instant) -> Option<FromCoordinator> {
        self.listen_to_workers(now);
        self.judge(now)
    }

    fn judge(&self, now: Instant) -> Option<FromCoordinator> {
        if let Some(why) = &self.failure {
            return Some(FromCoordinator::Abort(why.clone()));
        }
        let finished = self.finished.iter().filter(|finished| **finished).count();
        let has_servers = self.roster.here().filter(|(role, _)| matches!(role, Role::Server(_))).count()
            == self.plan.servers as usize;
        // A process may live on while its worker hangs or is stopped: it is lost once it had the time to come back. A
        // process that never came to the servers is lost as well, but only where another one is done or lost: until
        // then it may still load its data.
        let out = |worker: u32| {
            let out = self.served.out_for(worker, now).filter(|_| has_servers);
            out.filter(|out| *out >= self.plan.timeout)
        };
        let is_gone = |worker: u32| {
            let role = Role::Worker(worker);
            self.has_finished(role) || self.roster.lost_since(role).is_some() || out(worker).is_some()
        };
        let never_in = |worker: u32| {
            let never =
                self.served.never_in_for(worker, now).filter(|_| has_servers && self.plan.servers > 0);
            let mut others = (0..self.finished.len() as u32).filter(|other| *other != worker);
            never.filter(|never| *never >= self.plan.timeout && others.any(is_gone))
        };
        let silent = |worker: u32| self.silent[worker as usize].then(|| self.silence_max());
        let hangs = |worker: u32| out(worker).or_else(|| never_in(worker)).or_else(|| silent(worker));
        // The processes that have something to do and are not here, how long, and whether they were here before.
        let absent = || {
            self.roster.all().filter_map(|(role, state)| match (role, state) {
                (Role::Worker(worker), _) if self.finished[worker as usize] => None,
                (_, RankState::Absent { since, lost }) => {
                    Some((role, now.saturating_duration_since(since), lost))
                }
                (Role::Worker(worker), RankState::Here(_)) => Some((role, hangs(worker)?, true)),
                (Role::Server(_), RankState::Here(_)) => None,
            })
        };
        let is_worker = |role: &Role| matches!(role, Role::Worker(_));
        let lost = absent().filter(|(role, _, lost)| is_worker(role) && *lost).count();
        // Lost workers do not hold up the finished ones. A lost server that may come back does: without its last
        // versions the job has no result.
        if finished > 0 && finished + lost == self.finished.len() && has_servers {
            return Some(FromCoordinator::Over);
        }
        let all_lost = lost == self.finished.len();
        // The time without any worker begins when the last one is lost.
        let latest = absent().filter(|(role, ..)| is_worker(role)).map(|(_, time, _)| time).min();
        // A server begins once each worker has come to it: a worker that was lost before holds up all others. With a
        // proxy on each host, workers come to the proxy.
        let holds_up = |worker: u32| {
            let is_lost = self.roster.lost_since(Role::Worker(worker)).is_some();
            let servers = if self.plan.per_host { 1.min(self.plan.servers) } else { self.plan.servers };
            is_lost && has_servers && self.served.has_come_to(worker) < servers as usize
        };
        for (role, waited, was_lost) in absent() {
            let (waited, cause) = match role {
                Role::Server(_) => (waited, None),
                // The others go on without a worker that was lost, and take it back when it comes.
                Role::Worker(worker) if was_lost && !all_lost && !holds_up(worker) => continue,
                Role::Worker(worker) => {
                    let waited = latest.filter(|_| all_lost).unwrap_or(waited);
                    (waited, self.causes[worker as usize].as_ref())
                }
            };
            if waited >= self.plan.timeout {
                let is_never_in = matches!(role, Role::Worker(worker) if never_in(worker).is_some());
                let is_silent = self.plan.servers == 0 && self.roster.member(role).is_some();
                let what = match (was_lost, self.roster.member(role)) {
                    _ if is_silent => "said nothing",
                    (true, Some(_)) if is_never_in => "joined and did not come to the servers",
                    (true, Some(_)) => "was evicted by the servers and did not come back",
                    (true, None) if is_worker(&role) && !all_lost => {
                        "was lost before it came to the servers and did not come back"
                    }
                    (true, None) => "was lost and did not come back",
                    (false, _) => "did not join",
                };
                let timeout = if is_silent { self.silence_max() } else { self.plan.timeout };
                return Some(FromCoordinator::Abort(match cause {
                    Some(cause) => format!("{role} {what} within {timeout:?}: {cause}"),
                    None => {
                        format!(
                            "{role} {what} within {timeout:?}; look at its output, or use a longer timeout"
                        )
                    }
                }));
            }
        }
        None
    }
}

/// Gives arbitrary `bytes` to rank 0 of a job of a server and two workers, as a message of either of them.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_message(bytes: &[u8]) {
    let now = Instant::now();
    for who in [Role::Server(0), Role::Worker(1)] {
        let mut attendance = Attendance::new(JobPlan::servers(1).clocks(9), 3, now);
        attendance.receive(who, bytes, now);
        let _end = attendance.end(now);
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Conversation;
    use super::super::messages::EndOnly;
    use super::super::rendezvous::{Host, Member, MemberRole};
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn member(id: u64, role: MemberRole, role_rank: u32) -> Member {
        let host = Host::named("host");
        let addresses = Vec::new();
        Member {
            id: MemberId(id),
            role,
            role_rank,
            generation: 0,
            rank: None,
            host,
            process: 1,
            addresses,
            gpu: None,
        }
    }

    fn plan() -> JobPlan {
        JobPlan::servers(1).timeout(TIMEOUT)
    }

    /// A job of one server and two workers that are here: members 1, 2 and 3.
    fn complete(plan: JobPlan, now: Instant) -> Attendance {
        let mut attendance = Attendance::new(plan, 3, now);
        let members = [(1, MemberRole::Server, 0), (2, MemberRole::Worker, 0), (3, MemberRole::Worker, 1)];
        for (id, role, role_rank) in members {
            attendance.take(HubEvent::Joined(member(id, role, role_rank)), now);
        }
        attendance
    }

    fn said(id: u64, message: &FromMember) -> HubEvent {
        HubEvent::Said(MemberId(id), encode(message))
    }

    fn left(id: u64, role: MemberRole, role_rank: u32) -> HubEvent {
        HubEvent::Left { member: member(id, role, role_rank), reason: "killed".into() }
    }

    fn abort(end: Option<FromCoordinator>) -> String {
        match end {
            Some(FromCoordinator::Abort(why)) => why,
            other => panic!("{other:?} is no abort"),
        }
    }

    #[test]
    fn a_job_is_over_when_all_workers_have_finished() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(said(2, &FromMember::Finished), now);
        assert_eq!(attendance.end(now), None);
        attendance.take(said(3, &FromMember::Finished), now);
        assert_eq!(attendance.end(now), Some(FromCoordinator::Over));
    }

    #[test]
    fn a_job_that_has_lost_a_server_is_not_over_before_that_is_back() {
        let now = Instant::now();
        let finished = || {
            let mut attendance = complete(plan().reconnect(true), now);
            attendance.take(in_at_the_server(&[0, 1]), now);
            attendance.take(said(2, &FromMember::Finished), now);
            attendance.take(left(1, MemberRole::Server, 0), now);
            attendance.take(left(3, MemberRole::Worker, 1), now);
            assert_eq!(attendance.end(now), None);
            attendance
        };
        let mut attendance = finished();
        attendance.take(HubEvent::Joined(member(4, MemberRole::Server, 0)), now);
        assert_eq!(attendance.end(now), Some(FromCoordinator::Over));
        let why = abort(finished().end(now + TIMEOUT));
        assert!(why.starts_with("the server of shard 0 was lost and did not come back"), "{why}");
    }

    #[test]
    fn a_worker_that_never_comes_to_a_server_that_is_back_ends_the_job() {
        let now = Instant::now();
        let mut attendance = complete(plan().reconnect(true), now);
        attendance.take(HubEvent::Announced(member(1, MemberRole::Server, 0)), now);
        attendance.take(in_at_the_server(&[0, 1]), now);
        attendance.take(left(1, MemberRole::Server, 0), now);
        attendance.take(HubEvent::Joined(member(4, MemberRole::Server, 0)), now);
        attendance.take(HubEvent::Announced(member(4, MemberRole::Server, 0)), now);
        let come = |workers: &[u32]| {
            said(4, &FromMember::Workers { workers: workers.to_vec(), come: workers.to_vec() })
        };
        attendance.take(come(&[0]), now);
        attendance.take(left(3, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now + TIMEOUT / 2), None);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(why.starts_with("worker 1 was lost before it came to the servers"), "{why}");
    }

    #[test]
    fn a_lost_worker_does_not_hold_up_the_end_and_may_come_back() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(in_at_the_server(&[0, 1]), now);
        attendance.take(left(3, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now + 2 * TIMEOUT), None, "the other one goes on");
        attendance.take(HubEvent::Joined(member(4, MemberRole::Worker, 1)), now);
        attendance.take(said(2, &FromMember::Finished), now);
        assert_eq!(attendance.end(now), None, "it came back and has not finished");
        attendance.take(left(4, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now), Some(FromCoordinator::Over));
    }

    #[test]
    fn a_job_whose_workers_are_all_lost_fails_after_the_timeout() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(left(2, MemberRole::Worker, 0), now);
        attendance.take(left(3, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now), None);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(why.starts_with("worker 0 was lost and did not come back within 10s"), "{why}");
    }

    #[test]
    fn a_job_without_a_server_ends_when_rank_0_gives_up_and_others_hear_why() {
        let now = Instant::now();
        let mut attendance = Attendance::new(JobPlan::servers(0).timeout(TIMEOUT), 2, now);
        for worker in 0..2 {
            let joined = member(u64::from(worker), MemberRole::Worker, worker);
            attendance.take(HubEvent::Joined(joined), now);
        }
        attendance.take(said(1, &FromMember::Failed("no memory".into())), now);
        assert_eq!(attendance.end(now), None, "rank 0 goes on");
        attendance.take(said(0, &FromMember::Failed("no transport".into())), now);
        assert_eq!(abort(attendance.end(now)), "worker 0: no transport");
    }

    #[test]
    fn the_time_without_any_worker_begins_when_the_last_is_lost() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(said(2, &FromMember::Failed("no transport".into())), now);
        attendance.take(left(2, MemberRole::Worker, 0), now);
        let later = now + 2 * TIMEOUT;
        attendance.take(left(3, MemberRole::Worker, 1), later);
        assert_eq!(attendance.end(later + TIMEOUT / 2), None);
        let why = abort(attendance.end(later + TIMEOUT));
        assert_eq!(why, "worker 0 was lost and did not come back within 10s: no transport");
    }

    #[test]
    fn a_worker_that_is_lost_before_it_comes_to_the_servers_ends_the_job() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(in_at_the_server(&[0]), now);
        attendance.take(said(3, &FromMember::Failed("no data".into())), now);
        attendance.take(left(3, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now + TIMEOUT / 2), None, "another process may take its part");
        let why = abort(attendance.end(now + TIMEOUT));
        let expected =
            "worker 1 was lost before it came to the servers and did not come back within 10s: no data";
        assert_eq!(why, expected);
        attendance.take(HubEvent::Joined(member(4, MemberRole::Worker, 1)), now + TIMEOUT);
        attendance.take(in_at_the_server(&[0, 1]), now + TIMEOUT);
        attendance.take(left(4, MemberRole::Worker, 1), now + TIMEOUT);
        assert_eq!(attendance.end(now + 3 * TIMEOUT), None, "the servers have begun, and go on without it");
        attendance.take(HubEvent::Joined(member(5, MemberRole::Worker, 1)), now + 3 * TIMEOUT);
        attendance.take(left(5, MemberRole::Worker, 1), now + 3 * TIMEOUT);
        assert_eq!(attendance.end(now + 5 * TIMEOUT), None, "they have begun before");
        // It was there for so short a time that no message said that it is in.
        let mut attendance = complete(plan(), now);
        attendance.take(come(&[0], &[0, 1]), now);
        attendance.take(left(3, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now + TIMEOUT), None, "it came to the server");
    }

    #[test]
    fn a_worker_that_is_lost_between_two_servers_ends_the_job() {
        let now = Instant::now();
        let mut attendance = Attendance::new(JobPlan::servers(2).timeout(TIMEOUT), 4, now);
        let (server, worker) = (MemberRole::Server, MemberRole::Worker);
        for (id, role, role_rank) in [(1, server, 0), (2, server, 1), (3, worker, 0), (4, worker, 1)] {
            attendance.take(HubEvent::Joined(member(id, role, role_rank)), now);
        }
        for (id, come) in [(1, vec![0, 1]), (2, vec![0])] {
            attendance.take(said(id, &FromMember::Workers { workers: come.clone(), come }), now);
        }
        attendance.take(left(4, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now + TIMEOUT / 2), None);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(why.starts_with("worker 1 was lost before it came to the servers"), "{why}");
    }

    fn in_at_the_server(workers: &[u32]) -> HubEvent {
        come(workers, workers)
    }

    /// The message of a server where the workers `workers` are in and the workers `come` have ever come.
    fn come(workers: &[u32], come: &[u32]) -> HubEvent {
        said(1, &FromMember::Workers { workers: workers.to_vec(), come: come.to_vec() })
    }

    #[test]
    fn a_worker_that_the_servers_evicted_holds_up_the_end_for_the_timeout() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(in_at_the_server(&[0, 1]), now);
        attendance.take(said(2, &FromMember::Finished), now);
        assert_eq!(attendance.end(now + 2 * TIMEOUT), None, "the other one computes on");
        attendance.take(in_at_the_server(&[0]), now);
        assert_eq!(attendance.end(now + TIMEOUT / 2), None, "it may come back");
        assert_eq!(attendance.end(now + TIMEOUT), Some(FromCoordinator::Over));
        attendance.take(in_at_the_server(&[0, 1]), now);
        assert_eq!(attendance.end(now + TIMEOUT), None, "it came back");
    }

    #[test]
    fn a_job_whose_workers_were_all_evicted_fails_after_the_timeout() {
        let now = Instant::now();
        let mut attendance = complete(plan().reconnect(true), now);
        attendance.take(in_at_the_server(&[0, 1]), now);
        attendance.take(in_at_the_server(&[]), now);
        attendance.take(left(3, MemberRole::Worker, 1), now);
        assert_eq!(attendance.end(now + TIMEOUT / 2), None);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(
            why.starts_with("worker 0 was evicted by the servers and did not come back within 10s"),
            "{why}"
        );
        // Without its server no worker can be in.
        attendance.take(left(1, MemberRole::Server, 0), now);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(why.starts_with("the server of shard 0 was lost"), "{why}");
        attendance.take(HubEvent::Joined(member(5, MemberRole::Server, 0)), now + TIMEOUT);
        assert_eq!(attendance.end(now + TIMEOUT), None);
    }

    #[test]
    fn a_worker_that_never_comes_to_the_servers_holds_up_no_end() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(in_at_the_server(&[0]), now);
        assert_eq!(attendance.end(now + 2 * TIMEOUT), None, "it loads data, and the other one computes");
        attendance.take(said(2, &FromMember::Finished), now);
        assert_eq!(attendance.end(now + TIMEOUT / 2), None, "it may still come");
        assert_eq!(attendance.end(now + TIMEOUT), Some(FromCoordinator::Over));
        // It is started again, and has its time again.
        attendance.take(HubEvent::Joined(member(4, MemberRole::Worker, 1)), now + TIMEOUT);
        assert_eq!(attendance.end(now + TIMEOUT), None);
        attendance.take(in_at_the_server(&[0, 1]), now + TIMEOUT);
        assert_eq!(attendance.end(now + 3 * TIMEOUT), None, "it is in");
    }

    /// A job without servers, whose two workers are here: members 2 and 3.
    fn group(timeout: Duration, now: Instant) -> Attendance {
        let mut attendance = Attendance::new(JobPlan::servers(0).timeout(timeout), 2, now);
        for id in [2, 3] {
            attendance.take(HubEvent::Joined(member(id, MemberRole::Worker, id as u32 - 2)), now);
        }
        attendance
    }

    /// The end of a job at which rank 0 looks for so long as often as it does.
    fn watch(attendance: &mut Attendance, from: Instant, time: Duration) -> Option<FromCoordinator> {
        let looks = time.as_nanos() / LOOK_EVERY.as_nanos();
        (0..=looks as u32).find_map(|look| attendance.end(from + look * LOOK_EVERY))
    }

    #[test]
    fn a_worker_that_falls_silent_holds_up_no_end_of_a_job_without_servers() {
        let now = Instant::now();
        let mut attendance = group(TIMEOUT, now);
        assert_eq!(watch(&mut attendance, now, TIMEOUT), None);
        let later = now + TIMEOUT;
        attendance.take(said(2, &FromMember::Finished), later);
        attendance.take(said(3, &FromMember::Alive), later);
        assert_eq!(watch(&mut attendance, later, TIMEOUT), None, "it computes on");
        assert_eq!(watch(&mut attendance, later + TIMEOUT, 2 * LOOK_EVERY), Some(FromCoordinator::Over));
        attendance.take(said(3, &FromMember::Alive), later + 2 * TIMEOUT);
        assert_eq!(attendance.end(later + 2 * TIMEOUT), None, "it was stopped, and goes on");
        // Its own timeout may be longer than rank 0's: then it says so once a second.
        let mut hasty = group(SILENCE_LEAST / 40, now);
        hasty.take(said(2, &FromMember::Finished), now);
        assert_eq!(watch(&mut hasty, now, SILENCE_LEAST), None, "it computes on");
        assert_eq!(watch(&mut hasty, now + SILENCE_LEAST, 2 * LOOK_EVERY), Some(FromCoordinator::Over));
    }

    #[test]
    fn time_in_which_all_processes_were_stopped_is_no_silence_of_workers() {
        let now = Instant::now();
        let mut attendance = group(TIMEOUT, now);
        assert_eq!(watch(&mut attendance, now, TIMEOUT / 2), None);
        // Rank 0 looks first when the host goes on, and hears the others a moment later.
        let later = now + 100 * TIMEOUT;
        assert_eq!(attendance.end(later), None, "none is lost");
        attendance.take(said(2, &FromMember::Finished), later);
        assert_eq!(watch(&mut attendance, later, TIMEOUT / 4), None, "the other one computes on");
    }

    #[test]
    fn a_job_without_servers_whose_workers_are_silent_says_that() {
        let now = Instant::now();
        let end = watch(&mut group(TIMEOUT, now), now, 2 * TIMEOUT);
        let expected = "worker 0 said nothing within 10s; look at its output, or use a longer timeout";
        assert_eq!(abort(end), expected);
        // Each worker is given more than so short a timeout.
        let end = watch(&mut group(SILENCE_LEAST / 40, now), now, 2 * SILENCE_LEAST);
        let expected = "worker 0 said nothing within 4s; look at its output, or use a longer timeout";
        assert_eq!(abort(end), expected);
    }

    #[test]
    fn a_worker_that_is_lost_and_back_between_two_reports_is_in() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        let mut server = EndOnly::default();
        let mut report = |joined| {
            let message = server.serves(vec![0, 1], vec![0, 1], joined);
            message.map(|message| HubEvent::Said(MemberId(1), message))
        };
        attendance.take(report(2).unwrap(), now);
        assert_eq!(report(2), None, "rank 0 knows that");
        attendance.take(left(3, MemberRole::Worker, 1), now);
        attendance.take(HubEvent::Joined(member(4, MemberRole::Worker, 1)), now);
        // The server has let the old one go and the new one in since.
        attendance.take(report(3).expect("a worker has joined"), now);
        attendance.take(said(2, &FromMember::Finished), now);
        assert_eq!(attendance.end(now + 2 * TIMEOUT), None, "the other one computes on");
        attendance.take(said(4, &FromMember::Finished), now + 2 * TIMEOUT);
        assert_eq!(attendance.end(now + 2 * TIMEOUT), Some(FromCoordinator::Over));
    }

    #[test]
    fn a_job_whose_last_worker_never_comes_to_the_servers_fails_and_says_so() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(left(3, MemberRole::Worker, 1), now + TIMEOUT);
        assert_eq!(attendance.end(now + TIMEOUT), None, "it may still come");
        let why = abort(attendance.end(now + 2 * TIMEOUT));
        assert!(why.starts_with("worker 0 joined and did not come to the servers within 10s"), "{why}");
        attendance.take(HubEvent::Joined(member(4, MemberRole::Worker, 1)), now + TIMEOUT);
        assert_eq!(attendance.end(now + 2 * TIMEOUT - TIMEOUT / 2), None, "the other one is back");
        attendance.take(said(4, &FromMember::Finished), now + TIMEOUT);
        assert_eq!(attendance.end(now + 2 * TIMEOUT), Some(FromCoordinator::Over));
    }

    #[test]
    fn a_process_that_never_joins_is_named() {
        let now = Instant::now();
        let mut attendance = Attendance::new(plan(), 3, now);
        attendance.take(HubEvent::Joined(member(1, MemberRole::Server, 0)), now);
        attendance.take(HubEvent::Joined(member(2, MemberRole::Worker, 0)), now);
        assert_eq!(attendance.end(now), None);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(why.starts_with("worker 1 did not join within 10s"), "{why}");
    }

    #[test]
    fn a_lost_server_ends_the_job_at_once_unless_workers_reconnect() {
        let now = Instant::now();
        let mut attendance = complete(plan(), now);
        attendance.take(left(1, MemberRole::Server, 0), now);
        let why = abort(attendance.end(now));
        assert!(why.starts_with("the server of shard 0 on host is lost (killed)"), "{why}");
        let mut attendance = complete(plan().reconnect(true), now);
        attendance.take(left(1, MemberRole::Server, 0), now);
        assert_eq!(attendance.end(now), None);
        let why = abort(attendance.end(now + TIMEOUT));
        assert!(why.starts_with("the server of shard 0 was lost and did not come back"), "{why}");
    }

    #[test]
    fn processes_with_another_plan_end_the_job_with_the_difference() {
        let now = Instant::now();
        let others = [(plan(), 4), (JobPlan::servers(2), 3), (plan().reconnect(true), 3)];
        for message in others.map(|(plan, world)| FromMember::Plan(plan, world)) {
            let mut attendance = complete(plan(), now);
            attendance.take(said(3, &message), now);
            let why = abort(attendance.end(now));
            assert!(why.starts_with("worker 1 was started with another plan"), "{why}");
        }
        let mut attendance = complete(plan(), now);
        attendance.take(said(3, &FromMember::Plan(plan().clocks(7), 3)), now);
        attendance.take(HubEvent::Said(MemberId(9), vec![255]), now);
        assert_eq!(attendance.end(now), None);
        attendance.take(HubEvent::Said(MemberId(2), vec![255]), now);
        assert!(abort(attendance.end(now)).contains("does not understand"));
    }
}
