//! Workers and servers that are lost or come back, and the end of the run that follows from it.

use std::time::{Duration, Instant};

use super::super::error_report::ErrorReport;
use super::super::plan::Role;
use super::super::rendezvous::HubEvent;
use super::caller::{Caller, CoordinatorError};
use super::causes::{Loss, causes, could_not_join, sentence};
use super::child::Process;
use super::coordinator::{Coordinator, LAST_WORDS};
use super::entries::{ProcessState, WorkerEntry};
use super::orders::{Order, json};

/// Workers report ten times a second; one silent for so long, or for a lease if that is longer, and evicted by the
/// servers, is stopped or hangs.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The time between two looks at members that are only listened to.
const LOOK_EVERY: Duration = Duration::from_millis(10);

impl<C: Caller> Coordinator<C> {
    /// Notices children that ended before they joined, or whose connection outlives them.
    pub(super) fn reap(&mut self) -> Result<(), C::Error> {
        for shard in 0..self.servers.len() {
            let who = Role::Server(shard as u32);
            if self.roster.lost_since(who).is_some_and(|since| since.elapsed() > self.plan.timeout()) {
                return Err(self.lost_server(shard, Some("did not come back in time")));
            }
            if self.roster.member(who).is_none() && has_ended(&mut self.servers[shard].process) {
                match self.roster.lost_since(who) {
                    // It was in before: this process was to replace it.
                    Some(_) => self.lose_server(shard, "ended before it joined")?,
                    None => return Err(self.lost_server(shard, None)),
                }
            }
        }
        for worker in 0..self.workers.len() {
            let is_here = self.roster.member(Role::Worker(worker as u32)).is_some();
            let entry = &mut self.workers[worker];
            if entry.is_open() && !is_here && has_ended(&mut entry.process) {
                self.close_worker(worker, "ended");
            }
        }
        Ok(())
    }

    /// Has nothing more to do with a worker.
    pub(super) fn let_go(&mut self, worker: usize) {
        let entry = &mut self.workers[worker];
        if let Some(process) = &mut entry.process {
            process.kill();
        }
        if let Some(member) = self.roster.member(Role::Worker(worker as u32)) {
            self.hub.dismiss(member);
        }
    }

    /// A worker's connection has ended.
    pub(super) fn close_worker(&mut self, worker: usize, reason: &str) {
        let entry = &mut self.workers[worker];
        entry.serves.clear();
        let how = end_of(&mut entry.process, reason);
        entry.lost.get_or_insert(Loss::Ended(how));
        // A worker that has finished stays until it is told to leave, but its gradients are in already.
        entry.state = if entry.state == ProcessState::Finished {
            entry.lost = None;
            ProcessState::Finished
        } else {
            ProcessState::Lost { announced: false }
        };
        let again = entry.state != ProcessState::Finished
            && entry.process.is_some()
            && entry.restarts < self.plan.restarts;
        if again {
            self.restart_worker(worker);
        }
    }

    pub(super) fn restart_worker(&mut self, worker: usize) {
        let entry = &mut self.workers[worker];
        entry.restarts += 1;
        let why = entry.lost.take().unwrap_or_else(|| Loss::ended("ended"));
        let why = sentence([(worker, &why)].into_iter()).cause;
        self.caller.warn(&format!("{why}; start {} of {} again", entry.restarts, self.plan.restarts));
        match self.start_process(Role::Worker(worker as u32)) {
            Ok(process) => {
                self.workers[worker].process = process;
                let entry = &mut self.workers[worker];
                (entry.state, entry.starting) = (ProcessState::Starting, None);
                entry.heard += 1;
            }
            Err(error) => self.workers[worker].lost = Some(Loss::Said(ErrorReport::of(&error))),
        }
    }

    /// Takes back a worker that was lost and is there again, whichever process started it.
    pub(super) fn take_back(&mut self, worker: usize) {
        let entry = &mut self.workers[worker];
        if matches!(entry.state, ProcessState::Lost { .. }) {
            self.caller.tell(&format!("worker {worker} is back"));
        }
        entry.returns += 1;
        (entry.state, entry.starting) = (ProcessState::Starting, None);
        entry.lost = None;
        entry.earlier = entry.report.clone();
    }

    /// A server's connection has ended: it is started again, or waited for, if it can go on from a checkpoint.
    pub(super) fn lose_server(&mut self, shard: usize, reason: &str) -> Result<(), C::Error> {
        let keeps_checkpoints = self.keeps_checkpoints();
        let entry = &mut self.servers[shard];
        let own = entry.process.is_some();
        // The next incarnation counts from zero.
        entry.report.lost_updates = None;
        if !keeps_checkpoints || (own && entry.restarts >= self.plan.restarts) {
            return Err(self.lost_server(shard, Some(reason)));
        }
        let how = end_of(&mut entry.process, reason);
        entry.address = None;
        entry.restarts += 1;
        let server = Role::Server(shard as u32);
        if !own {
            self.caller.warn(&format!("{server}: {how}; waiting for it to be started again"));
            return Ok(());
        }
        let which = format!("start {} of {} again", entry.restarts, self.plan.restarts);
        self.caller.warn(&format!("{server} {how}; {which}"));
        let process = self.start_process(server).map_err(|error| self.caller.explain(error))?;
        self.servers[shard].process = process;
        Ok(())
    }

    /// Ends workers that are silent and not in at a server, and restarted workers that do not come to the servers in
    /// time: the job cannot wait for them.
    pub(super) fn let_go_of_the_silent(&mut self, now: crate::time::Instant) {
        let (longest, timeout) = (SILENT_FOR.max(self.plan.worker.lease), self.plan.timeout());
        for worker in 0..self.workers.len() {
            let is_in = self.is_in(worker);
            let entry = &mut self.workers[worker];
            let silent = entry.silence.observe(now, entry.heard, longest);
            let how = match entry.state {
                _ if entry.lost.is_some() => continue,
                ProcessState::Running if silent && !is_in => {
                    format!("was silent for {} s", longest.as_secs())
                }
                ProcessState::Starting if now - *entry.starting.get_or_insert(now) >= timeout => {
                    format!("did not come to the servers within {timeout:?}")
                }
                _ => continue,
            };
            // A process that is started again after it was stopped reads this first.
            if let Some(member) = self.roster.member(Role::Worker(worker as u32)) {
                let why = format!("worker {worker} was evicted: it {how}; start it again to rejoin");
                self.hub.say(member, &json(&Order::Refuse(why)));
            }
            self.workers[worker].lost = Some(Loss::Ended(how));
            self.let_go(worker);
        }
    }

    /// True if a worker is in at any server, of the job or of a host, as the servers said last.
    fn is_in(&self, worker: usize) -> bool {
        let of_the_job = self.servers.iter().map(|entry| &entry.workers);
        let mut all = of_the_job.chain(self.workers.iter().map(|entry| &entry.serves));
        all.any(|workers| workers.contains(&(worker as u32)))
    }

    /// Tells of lost workers once no server has any of them. How many are still to be told of.
    pub(super) fn announce_losses(&mut self, regardless: bool) -> usize {
        let is_new = |entry: &WorkerEntry| entry.state == ProcessState::Lost { announced: false };
        let new: Vec<usize> = (0..self.workers.len()).filter(|at| is_new(&self.workers[*at])).collect();
        if !regardless && new.iter().any(|worker| self.is_in(*worker)) {
            return new.len();
        }
        let is_lost = |entry: &&WorkerEntry| matches!(entry.state, ProcessState::Lost { .. });
        let remaining = self.plan.workers() - self.workers.iter().filter(is_lost).count();
        let unknown = Loss::ended("ended");
        let told =
            new.iter().map(|worker| (*worker, self.workers[*worker].lost.as_ref().unwrap_or(&unknown)));
        for cause in causes(told) {
            self.caller.warn(&format!("{cause}; evicted, {remaining} of {} go on", self.plan.workers()));
        }
        for worker in new {
            self.workers[worker].state = ProcessState::Lost { announced: true };
        }
        0
    }

    pub(super) fn losses(&self) -> impl Iterator<Item = (usize, &Loss)> {
        let entries = self.workers.iter().enumerate();
        entries.filter_map(|(worker, entry)| Some((worker, entry.lost.as_ref()?)))
    }

    pub(super) fn lost_at_start(&mut self) -> C::Error {
        let causes = could_not_join(self.losses());
        self.caller.explain(CoordinatorError::NeverJoined(causes))
    }

    pub(super) fn all_lost(&mut self) -> C::Error {
        let causes = sentence(self.losses());
        self.caller.explain(CoordinatorError::AllLost(causes))
    }

    /// A run without one of its shards cannot continue. The error includes the workers' view of the loss.
    pub(super) fn lost_server(&mut self, shard: usize, reason: Option<&str>) -> C::Error {
        let mut how = end_of(&mut self.servers[shard].process, reason.unwrap_or("is gone"));
        let told = |job: &Self| {
            let done = |entry: &WorkerEntry| entry.state == ProcessState::Finished || entry.lost.is_some();
            job.workers.iter().all(done)
        };
        // A second server that is gone adds nothing.
        let _ = self.listen_on(LAST_WORDS, told);
        let mut said = self.workers.iter().enumerate().filter_map(|(worker, entry)| match &entry.lost {
            Some(Loss::Said(told)) if told.lost_server => Some((worker, &told.cause)),
            _ => None,
        });
        if let Some((worker, cause)) = said.next() {
            how.push_str(&format!(" (worker {worker}: {cause})"));
        }
        let (shards, resumable) = (self.plan.servers(), self.can_resume());
        self.caller.explain(CoordinatorError::LostServer { shard, shards, how, resumable })
    }

    /// Listens to the members for a while: a member that has just been lost may still tell why.
    ///
    /// # Errors
    /// A server is lost.
    pub fn hear_out(&mut self, time: Duration) -> Result<(), C::Error> {
        self.listen_on(time, |_| false)
    }

    /// Takes events for a while, or until `until`. Servers that are gone and results that come meanwhile add nothing.
    pub(super) fn listen_on(
        &mut self,
        time: Duration,
        until: impl Fn(&Self) -> bool,
    ) -> Result<(), C::Error> {
        let deadline = Instant::now() + time;
        while !until(self) && Instant::now() < deadline {
            self.hub.wait(LOOK_EVERY);
            while let Some((who, event)) = self.roster.poll(&mut self.hub) {
                match (who, &event) {
                    (Role::Server(shard), HubEvent::Left { .. }) => {
                        return Err(self.lost_server(shard as usize, None));
                    }
                    _ => self.meet(who, event)?,
                }
            }
        }
        Ok(())
    }
}

/// The end of a process as a predicate; `reason` says why it is lost. The coordinator kills a process of its own that
/// does not end, and that is not the cause.
fn end_of(process: &mut Option<Process>, reason: &str) -> String {
    match process.as_mut().map(Process::wait) {
        None => reason.to_owned(),
        Some(Some(how)) => how,
        Some(None) => format!("was lost and did not end by itself ({reason})"),
    }
}

/// True if the coordinator started a process that has ended.
fn has_ended(process: &mut Option<Process>) -> bool {
    process.as_mut().is_some_and(Process::has_ended)
}

#[cfg(all(test, feature = "tcp"))]
mod tests {
    use super::super::CheckpointOrder;
    use super::super::fixture::{WORKERS, Watches, coordination};
    use super::super::reports::Origin;
    use super::*;
    use crate::job::Resume;

    /// A job of which all members are in and all is known.
    fn running() -> Coordinator<Watches> {
        let mut job = Coordinator::open(coordination(4, 1), Watches::default()).unwrap();
        for entry in &mut job.workers {
            entry.state = ProcessState::Running;
        }
        job.servers[0].workers = (0..WORKERS as u32).collect();
        job
    }

    /// Seconds of listening in which worker 1 alone is heard.
    fn listen(job: &mut Coordinator<Watches>, seconds: std::ops::Range<u64>) {
        for tick in seconds.start * 10..seconds.end * 10 {
            job.workers[1].heard += 1;
            job.let_go_of_the_silent(crate::time::Instant::from_nanos(tick * 100_000_000));
        }
    }

    #[test]
    fn a_silent_worker_is_let_go_once_no_server_has_it_in() {
        let mut job = running();
        // Worker 1 came back after it was evicted: more workers have left in all than are lost now.
        job.servers[0].report.left = 1;
        listen(&mut job, 0..10);
        assert_eq!(job.workers[0].lost, None, "the server has it in");
        job.servers[0].workers = vec![1];
        listen(&mut job, 10..11);
        assert_eq!(job.workers[0].lost, Some(Loss::ended("was silent for 5 s")));
        assert_eq!(job.workers[1].lost, None);
    }

    #[test]
    fn a_worker_that_the_server_of_its_host_has_in_is_out_once_that_is_gone() {
        let mut job = running();
        job.servers[0].workers.clear();
        job.workers[0].serves = vec![0, 1];
        assert_eq!([0, 1].map(|worker| job.is_in(worker)), [true; 2]);
        job.close_worker(0, "was killed");
        assert_eq!([0, 1].map(|worker| job.is_in(worker)), [false; 2]);
    }

    #[test]
    fn a_worker_that_is_started_again_and_never_comes_to_the_servers_is_let_go() {
        let mut job = running();
        job.servers[0].workers = vec![1];
        job.workers[0].state = ProcessState::Lost { announced: true };
        job.take_back(0);
        let timeout = job.plan.timeout().as_secs();
        listen(&mut job, 1..1 + timeout);
        assert_eq!(job.workers[0].lost, None);
        listen(&mut job, 1 + timeout..2 + timeout);
        assert_eq!(job.workers[0].lost, Some(Loss::ended("did not come to the servers within 30s")));
    }

    /// A process that ends at once.
    fn ended() -> Process {
        let mut process = Process::start(Role::Server(0), std::process::Command::new("true")).unwrap();
        process.wait();
        process
    }

    /// A process that would go on for long.
    fn sleeping() -> Process {
        let mut command = std::process::Command::new("sleep");
        command.arg("1000");
        Process::start(Role::Worker(0), command).unwrap()
    }

    #[test]
    fn a_process_that_the_coordinator_had_to_kill_is_not_lost_for_that() {
        let mut job = running();
        job.workers[0].process = Some(sleeping());
        job.close_worker(0, "its connection was closed");
        let how = "was lost and did not end by itself (its connection was closed)";
        assert_eq!(job.workers[0].lost, Some(Loss::ended(how)));
        let mut process = sleeping();
        process.kill();
        assert_eq!(process.wait(), None);
        let mut command = std::process::Command::new("sh");
        let mut other = Process::start(Role::Worker(0), {
            command.args(["-c", "kill -9 $$"]);
            command
        })
        .unwrap();
        assert_eq!(other.wait().as_deref(), Some("was killed by signal 9"), "by another process");
    }

    #[test]
    fn a_server_that_ends_before_it_is_back_is_started_again() {
        let mut job = running();
        let order = job.plan.server.as_mut().unwrap();
        order.checkpoint = Some(CheckpointOrder::new("folder".into(), 1, Resume::Never));
        job.plan.restarts = 2;
        job.roster.forget(Role::Server(0), Instant::now());
        (job.servers[0].process, job.servers[0].restarts) = (Some(ended()), 1);
        job.reap().unwrap();
        assert!(job.caller.warned[0].ends_with("start 2 of 2 again"), "{:?}", job.caller.warned);
        job.servers[0].process = Some(ended());
        assert!(job.reap().is_err(), "no starts are left");
    }

    #[test]
    fn a_server_that_returns_takes_up_no_checkpoint_of_another_run() {
        let mut job = running();
        let order = job.plan.server.as_mut().unwrap();
        order.checkpoint = Some(CheckpointOrder::new("folder".into(), 1, Resume::Never));
        let resume = |job: &Coordinator<Watches>| match job.serve_order(0, true) {
            Order::Serve(order) => order.checkpoint.unwrap().resume,
            order => panic!("{order:?} is no order of a server"),
        };
        assert_eq!(resume(&job), Resume::Never, "none of this run has begun");
        job.hear_origin(0, None);
        assert_eq!(resume(&job), Resume::IfThere);
    }

    #[test]
    fn a_worker_may_be_silent_for_a_lease_that_is_longer_than_usual() {
        let mut job = running();
        job.plan.worker.lease = Duration::from_secs(8);
        job.servers[0].workers = vec![1];
        listen(&mut job, 0..7);
        assert_eq!(job.workers[0].lost, None);
        listen(&mut job, 7..10);
        assert_eq!(job.workers[0].lost, Some(Loss::ended("was silent for 8 s")));
    }

    #[test]
    fn a_loss_is_told_once_no_server_has_the_worker_in() {
        let mut job = running();
        // The server has come back from a checkpoint, and counts the workers that leave from zero.
        job.servers[0].report.left = 0;
        job.workers[0].state = ProcessState::Lost { announced: false };
        job.workers[0].lost = Some(Loss::ended("was killed by signal 9"));
        assert_eq!(job.announce_losses(false), 1);
        assert_eq!(job.caller.warned, [""; 0]);
        job.servers[0].workers = vec![1];
        assert_eq!(job.announce_losses(false), 0);
        assert_eq!(job.caller.warned.len(), 1);
        assert!(job.caller.warned[0].ends_with("evicted, 1 of 2 go on"), "{:?}", job.caller.warned);
    }

    #[test]
    fn a_server_that_returns_does_not_wait_for_a_finished_worker_that_is_gone() {
        let mut job = running();
        // It has no member, as after its process has ended.
        job.workers[0].state = ProcessState::Finished;
        let Order::Serve(order) = job.serve_order(0, true) else { panic!("no order of a server") };
        assert_eq!(order.workers, 1);
    }

    #[test]
    fn a_run_that_resumes_began_there_though_its_server_came_back_later() {
        let mut job = running();
        let origin = |version| Origin { version, clock: 0, instead_of: None };
        job.hear_origin(0, Some(origin(1000)));
        job.servers[0].restarts = 1;
        job.hear_origin(0, Some(origin(1200)));
        assert_eq!(job.first_version(), 1000);
    }
}
