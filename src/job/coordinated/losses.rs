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
                return Err(self.lost_server(shard, None));
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
        let how = entry.process.as_mut().map_or_else(|| reason.to_owned(), Process::wait);
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
                self.workers[worker].state = ProcessState::Starting;
                self.workers[worker].heard += 1;
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
        entry.state = ProcessState::Starting;
        entry.lost = None;
        entry.earlier = entry.report.clone();
    }

    /// A server's connection has ended: it is started again, or waited for, if it can go on from a checkpoint.
    pub(super) fn lose_server(&mut self, shard: usize, reason: &str) -> Result<(), C::Error> {
        let keeps_checkpoints = self.keeps_checkpoints();
        let entry = &mut self.servers[shard];
        let own = entry.process.is_some();
        // What the next incarnation tells is counted from nothing.
        entry.report.lost_updates = None;
        if !keeps_checkpoints || (own && entry.restarts >= self.plan.restarts) {
            return Err(self.lost_server(shard, Some(reason)));
        }
        let how = entry.process.as_mut().map_or_else(|| reason.to_owned(), Process::wait);
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

    /// Ends workers that are neither heard of nor counted by the servers: the job cannot wait for them.
    pub(super) fn let_go_of_the_silent(&mut self) {
        let (now, longest) = (crate::node::now(), SILENT_FOR.max(self.plan.worker.lease));
        let silent = |entry: &mut WorkerEntry| entry.silence.observe(now, entry.heard, longest);
        let silent: Vec<bool> = self.workers.iter_mut().map(silent).collect();
        let lost =
            self.workers.iter().filter(|entry| matches!(entry.state, ProcessState::Lost { .. })).count();
        if self.evicted().is_some_and(|evicted| evicted <= lost as u64) {
            return;
        }
        for (worker, silent) in silent.into_iter().enumerate() {
            let entry = &mut self.workers[worker];
            if silent && entry.state == ProcessState::Running && entry.lost.is_none() {
                let why = format!("was silent for {} s", longest.as_secs());
                entry.lost = Some(Loss::Ended(why));
                // A process that is started again after it was stopped reads this first.
                if let Some(member) = self.roster.member(Role::Worker(worker as u32)) {
                    let why = format!(
                        "worker {worker} was evicted: it was silent for longer than {} s; start it again to rejoin",
                        longest.as_secs()
                    );
                    self.hub.say(member, &json(&Order::Refuse(why)));
                }
                self.let_go(worker);
            }
        }
    }

    /// Returns the number of workers that all servers have let go; `None` where there are no servers.
    fn evicted(&self) -> Option<u64> {
        self.servers.iter().map(|shard| shard.report.left).min()
    }

    /// Tells of lost workers once the servers have let them go. How many are still to be told of.
    pub(super) fn announce_losses(&mut self, regardless: bool) -> usize {
        let left = self.evicted().unwrap_or(u64::MAX);
        let lost =
            self.workers.iter().filter(|entry| matches!(entry.state, ProcessState::Lost { .. })).count()
                as u64;
        let remaining = self.plan.workers() - lost as usize;
        let is_new = |entry: &WorkerEntry| entry.state == ProcessState::Lost { announced: false };
        if left < lost && !regardless {
            return self.workers.iter().filter(|entry| is_new(entry)).count();
        }
        let unknown = Loss::ended("ended");
        let new = self.workers.iter().enumerate().filter(|(_, entry)| is_new(entry));
        let new = new.map(|(worker, entry)| (worker, entry.lost.as_ref().unwrap_or(&unknown)));
        for cause in causes(new) {
            self.caller.warn(&format!("{cause}; evicted, {remaining} of {} go on", self.plan.workers()));
        }
        for entry in self.workers.iter_mut().filter(|entry| is_new(entry)) {
            entry.state = ProcessState::Lost { announced: true };
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

    /// A run without one of its shards cannot go on. What the workers saw of it is told with it.
    pub(super) fn lost_server(&mut self, shard: usize, reason: Option<&str>) -> C::Error {
        let how = self.servers[shard].process.as_mut().map(Process::wait);
        let mut how = how.or(reason.map(str::to_owned)).unwrap_or_else(|| "is gone".into());
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

    /// Listens to the members for a while: one that has just been lost may still tell why.
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

/// True if the coordinator started a process that has ended.
fn has_ended(process: &mut Option<Process>) -> bool {
    process.as_mut().is_some_and(|process| process.ended().is_some())
}
