//! Who is lost, who comes back, and when that is the end of the run.

use std::time::{Duration, Instant};

use slackline::job::rendezvous::{HubEvent, MemberRole};

use super::causes::{Loss, causes, could_not_join, sentence};
use super::{Coordinator, LAST_WORDS, Place, SILENT_FOR, State, TICK, who};
use crate::commands::train::Who;
use crate::commands::train::messages::{Order, json};
use crate::commands::train::process::Process;
use crate::failure::{Failure, split};

impl Coordinator<'_> {
    /// Children that ended before they joined, or whose connection outlives them.
    pub(super) fn reap(&mut self) -> Result<(), Failure> {
        for shard in 0..self.servers.len() {
            let place = &mut self.servers[shard];
            if place.gone.is_some_and(|since| since.elapsed() > self.plan.timeout) {
                return Err(self.lost_server(shard, Some("did not come back in time")));
            }
            if place.member.is_none()
                && place.process.as_mut().is_some_and(|process| process.ended().is_some())
            {
                return Err(self.lost_server(shard, None));
            }
        }
        for worker in 0..self.workers.len() {
            let place = &mut self.workers[worker];
            let open = matches!(place.state, State::Starting | State::Running);
            if open
                && place.member.is_none()
                && place.process.as_mut().is_some_and(|process| process.ended().is_some())
            {
                self.close(worker, "ended");
            }
        }
        Ok(())
    }

    /// Has nothing more to do with a worker.
    pub(super) fn let_go(&mut self, worker: usize) {
        let place = &mut self.workers[worker];
        if let Some(process) = &mut place.process {
            process.kill();
        }
        if let Some(member) = place.member {
            self.hub.dismiss(member);
        }
    }

    /// A worker's connection has ended.
    pub(super) fn close(&mut self, worker: usize, reason: &str) {
        let place = &mut self.workers[worker];
        let how = place.process.as_mut().map_or_else(|| reason.to_owned(), Process::wait);
        place.outcome.lost.get_or_insert(Loss::Ended(how));
        // A worker that has finished stays until it is told to leave, but its gradients are in already.
        place.state = if place.state == State::Finished {
            place.outcome.lost = None;
            State::Finished
        } else {
            State::Lost { announced: false }
        };
        let again =
            place.state != State::Finished && place.process.is_some() && place.restarts < self.plan.restarts;
        if again {
            self.restart_worker(worker);
        }
    }

    pub(super) fn restart_worker(&mut self, worker: usize) {
        let place = &mut self.workers[worker];
        place.restarts += 1;
        let why = place.outcome.lost.take().unwrap_or_else(|| Loss::ended("ended"));
        let (why, _) = split(&sentence([(worker, &why)].into_iter()));
        self.display.warn(&format!("{why}; start {} of {} again", place.restarts, self.plan.restarts));
        match self.start(Who::Worker(worker)) {
            Ok(process) => {
                self.workers[worker].process = Some(process);
                self.workers[worker].state = State::Starting;
                self.workers[worker].heard += 1;
            }
            Err(error) => self.workers[worker].outcome.lost = Some(Loss::Said(error.text())),
        }
    }

    /// A worker that was lost is there again, whoever started it.
    pub(super) fn take_back(&mut self, worker: usize) {
        let place = &mut self.workers[worker];
        if matches!(place.state, State::Lost { .. }) {
            self.display.tell(&format!("worker {worker} is back"));
        }
        place.returns += 1;
        place.state = State::Starting;
        place.outcome.lost = None;
        place.earlier = place.outcome.report.clone();
    }

    /// A server's connection has ended: it is started again, or waited for, if it can go on from a checkpoint.
    pub(super) fn lose_server(&mut self, shard: usize, reason: &str) -> Result<(), Failure> {
        let place = &mut self.servers[shard];
        let own = place.process.is_some();
        // What the next life tells is counted from nothing.
        place.status.lost_updates = None;
        if self.plan.checkpoint.is_none() || (own && place.restarts >= self.plan.restarts) {
            return Err(self.lost_server(shard, Some(reason)));
        }
        let how = place.process.as_mut().map_or_else(|| reason.to_owned(), Process::wait);
        (place.address, place.gone) = (None, Some(Instant::now()));
        place.restarts += 1;
        let server = Who::Server(shard);
        if !own {
            self.display.warn(&format!("{server}: {how}; waiting for it to be started again"));
            return Ok(());
        }
        let which = format!("start {} of {} again", place.restarts, self.plan.restarts);
        self.display.warn(&format!("{server} {how}; {which}"));
        self.servers[shard].process = Some(self.start(server)?);
        Ok(())
    }

    /// Workers that are neither heard of nor counted by the servers are ended: nobody can wait for them.
    pub(super) fn let_go_of_the_silent(&mut self) {
        let now = slackline::node::now();
        let silent = |place: &mut Place| place.silence.observe(now, place.heard, SILENT_FOR);
        let silent: Vec<bool> = self.workers.iter_mut().map(silent).collect();
        let lost = self.workers.iter().filter(|place| matches!(place.state, State::Lost { .. })).count();
        if self.evicted().is_some_and(|evicted| evicted <= lost as u64) {
            return;
        }
        for (worker, silent) in silent.into_iter().enumerate() {
            let place = &mut self.workers[worker];
            if silent && place.state == State::Running && place.outcome.lost.is_none() {
                let why = format!("was silent for {} s", SILENT_FOR.as_secs());
                place.outcome.lost = Some(Loss::Ended(why));
                // A process that is started again after it was stopped reads this first.
                if let Some(member) = place.member {
                    let why = format!(
                        "worker {worker} was evicted: it was silent for longer than {} s; start it again to rejoin",
                        SILENT_FOR.as_secs()
                    );
                    self.hub.say(member, &json(&Order::Refuse(why)));
                }
                self.let_go(worker);
            }
        }
    }

    /// How many workers all servers have let go; none where there are no servers.
    fn evicted(&self) -> Option<u64> {
        self.servers.iter().map(|shard| shard.status.left).min()
    }

    /// Tells of lost workers once the servers have let them go. How many are still to be told of.
    pub(super) fn announce_losses(&mut self, regardless: bool) -> usize {
        let left = self.evicted().unwrap_or(u64::MAX);
        let lost =
            self.workers.iter().filter(|place| matches!(place.state, State::Lost { .. })).count() as u64;
        let remaining = self.plan.workers - lost as usize;
        let is_new = |place: &Place| place.state == State::Lost { announced: false };
        if left < lost && !regardless {
            return self.workers.iter().filter(|place| is_new(place)).count();
        }
        let unknown = Loss::ended("ended");
        let new = self.workers.iter().enumerate().filter(|(_, place)| is_new(place));
        let new = new.map(|(worker, place)| (worker, place.outcome.lost.as_ref().unwrap_or(&unknown)));
        for cause in causes(new) {
            self.display.warn(&format!("{cause}; evicted, {remaining} of {} go on", self.plan.workers));
        }
        for place in self.workers.iter_mut().filter(|place| is_new(place)) {
            place.state = State::Lost { announced: true };
        }
        0
    }

    pub(super) fn losses(&self) -> impl Iterator<Item = (usize, &Loss)> {
        let places = self.workers.iter().enumerate();
        places.filter_map(|(worker, place)| Some((worker, place.outcome.lost.as_ref()?)))
    }

    pub(super) fn lost_at_start(&self) -> Failure {
        Failure::failed(could_not_join(self.losses()))
    }

    pub(super) fn all_lost(&self) -> Failure {
        Failure::failed(format!("all workers are lost: {}", sentence(self.losses())))
    }

    /// A run without one of its shards cannot go on. What the workers saw of it is told with it.
    pub(super) fn lost_server(&mut self, shard: usize, reason: Option<&str>) -> Failure {
        let how = self.servers[shard].process.as_mut().map(Process::wait);
        let how = how.or(reason.map(str::to_owned)).unwrap_or_else(|| "is gone".into());
        let told = |run: &Self| {
            let done = |place: &Place| place.state == State::Finished || place.outcome.lost.is_some();
            run.workers.iter().all(done)
        };
        // A second server that is gone adds nothing.
        let _ = self.listen_on(LAST_WORDS, told);
        let mut message = format!("lost shard {shard} of {}: its server {how}", self.plan.servers);
        let said = self.workers.iter().enumerate().find_map(|(worker, place)| {
            let said = place.outcome.lost.as_ref()?.text();
            Some((worker, Some(said).filter(|said| said.starts_with("lost shard"))?))
        });
        if let Some((worker, said)) = said {
            let said = said.rsplit_once("; ").map_or(said, |(said, _)| said);
            message.push_str(&format!(" (worker {worker}: {said})"));
        }
        message.push_str(match self.can_resume() {
            true => "; start the run again with --resume to go on from its checkpoints",
            false => "; start the run again, with --load if there is a saved model to go on from",
        });
        Failure::failed(message)
    }

    /// Takes events for a while, or until `until`. Servers that are gone and results that come meanwhile add nothing.
    pub(super) fn listen_on(&mut self, time: Duration, until: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + time;
        while !until(self) && Instant::now() < deadline {
            self.hub.wait(TICK);
            while let Some(event) = self.hub.poll() {
                match &event {
                    HubEvent::Left { member, .. } if member.role == MemberRole::Server => {
                        let Who::Server(shard) = who(member) else { continue };
                        self.servers[shard].member = None;
                        return Err(self.lost_server(shard, None));
                    }
                    _ => self.meet(event)?,
                }
            }
        }
        Ok(())
    }
}
