//! Which workers are in at the servers of a job. Rank 0 hears of a process for as long as it lives; that its worker
//! hangs is seen by its servers alone, which go on without it after a lease.

use std::time::{Duration, Instant};

use super::plan::Role;

/// The workers that are in, as the processes that serve them said last.
pub(super) struct ServedWorkers {
    /// The workers at each process that serves some, in order of their numbers.
    said: Vec<(Role, Vec<u32>)>,
    workers: Vec<WorkerPresence>,
    /// The processes to whose servers a worker of this number has ever come.
    have_come: Vec<Vec<Role>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum WorkerPresence {
    /// It has joined then, and has not been in yet.
    Never(Instant),
    In,
    /// It is in at no server since then.
    Out(Instant),
}

impl ServedWorkers {
    pub(super) fn new(workers: usize, now: Instant) -> ServedWorkers {
        let (presence, have_come) = (vec![WorkerPresence::Never(now); workers], vec![Vec::new(); workers]);
        ServedWorkers { said: Vec::new(), workers: presence, have_come }
    }

    /// A process says which workers are in at its server, and which have ever come to it.
    pub(super) fn say(&mut self, who: Role, mut workers: Vec<u32>, come: &[u32], now: Instant) {
        workers.sort_unstable();
        for worker in come {
            if let Some(servers) = self.have_come.get_mut(*worker as usize)
                && !servers.contains(&who)
            {
                servers.push(who);
            }
        }
        self.said.retain(|(other, _)| *other != who);
        self.said.push((who, workers));
        self.look(now);
    }

    /// A process is lost: no worker is in at its server.
    pub(super) fn lose(&mut self, who: Role, now: Instant) {
        self.said.retain(|(other, _)| *other != who);
        self.look(now);
    }

    /// The server of `who` begins once all workers that are members now have come to it. Those that came to an earlier
    /// incarnation of it and are lost are not expected.
    pub(super) fn expect_at(&mut self, who: Role, is_member: impl Fn(u32) -> bool) {
        for (_, servers) in (0..).zip(&mut self.have_come).filter(|(worker, _)| is_member(*worker)) {
            servers.retain(|server| *server != who);
        }
    }

    /// A process has joined. A worker begins again; where a server comes back, workers that wait for it have their time
    /// from now on.
    pub(super) fn join(&mut self, who: Role, now: Instant) {
        match who {
            Role::Worker(worker) => {
                let presence = self.workers.get_mut(worker as usize);
                presence.into_iter().for_each(|it| *it = WorkerPresence::Never(now));
            }
            Role::Server(_) => self.workers.iter_mut().for_each(|worker| {
                if let WorkerPresence::Out(since) | WorkerPresence::Never(since) = worker {
                    *since = now;
                }
            }),
        }
    }

    fn look(&mut self, now: Instant) {
        let said = &self.said;
        for (worker, presence) in (0..).zip(&mut self.workers) {
            let is_in = said.iter().any(|(_, workers)| workers.binary_search(&worker).is_ok());
            *presence = match (is_in, *presence) {
                (true, _) => WorkerPresence::In,
                (false, WorkerPresence::In) => WorkerPresence::Out(now),
                (false, out) => out,
            };
        }
    }

    /// The number of processes to whose servers a worker of this number has ever come. A server begins nothing until
    /// all have come to it that it expects.
    pub(super) fn has_come_to(&self, worker: u32) -> usize {
        self.have_come.get(worker as usize).map_or(0, Vec::len)
    }

    /// The time for which a worker has been in at no server, if it was in before.
    pub(super) fn out_for(&self, worker: u32, now: Instant) -> Option<Duration> {
        match self.workers.get(worker as usize) {
            Some(WorkerPresence::Out(since)) => Some(now.saturating_duration_since(*since)),
            _ => None,
        }
    }

    /// The time for which a worker has joined and has been in at no server yet.
    pub(super) fn never_in_for(&self, worker: u32, now: Instant) -> Option<Duration> {
        match self.workers.get(worker as usize) {
            Some(WorkerPresence::Never(joined)) => Some(now.saturating_duration_since(*joined)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_out_once_no_server_has_it_any_more() {
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut presence = ServedWorkers::new(3, begun);
        let [first, last] = [Role::Server(0), Role::Server(1)];
        presence.say(first, vec![2, 0, 9], &[], begun);
        presence.say(last, vec![0], &[], begun);
        assert_eq!([0, 1, 2].map(|worker| presence.out_for(worker, begun)), [None; 3], "1 was never in");
        presence.say(first, vec![2], &[], begun);
        assert_eq!(presence.out_for(0, begun + second), None, "one server has it");
        presence.lose(last, begun + second);
        assert_eq!(presence.out_for(0, begun + 3 * second), Some(2 * second));
        // The server that was lost comes back: until then the worker could not be in there.
        presence.join(last, begun + 3 * second);
        assert_eq!(presence.out_for(0, begun + 4 * second), Some(second));
        presence.say(last, vec![0], &[], begun + 4 * second);
        assert_eq!(presence.out_for(0, begun + 9 * second), None);
        // Another process is the worker from now on.
        presence.say(last, Vec::new(), &[], begun);
        presence.join(Role::Worker(0), begun);
        assert_eq!(presence.out_for(0, begun + second), None);
        let never = [0, 1, 2].map(|worker| presence.never_in_for(worker, begun + 9 * second));
        assert_eq!(never, [Some(9 * second), Some(6 * second), None], "1 had no server for 3 seconds");
    }
}
