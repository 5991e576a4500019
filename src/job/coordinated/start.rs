//! The beginning of a job: the processes that a coordinator starts itself, and the wait for all.

use std::time::Instant;

use super::super::plan::Role;
use super::caller::{Caller, CoordinatorError};
use super::child::Process;
use super::coordinator::{Coordinator, LAST_WORDS};
use super::entries::{ProcessState, WorkerEntry};

/// Workers that are started before the first of them have joined. Listeners keep 64 handshakes and drop others: more
/// at a time would push each other out, again and again where each waits long for its turn of a processor.
const JOINING_MAX: usize = 32;

impl<C: Caller> Coordinator<C> {
    /// Starts the servers and then the workers that the caller has commands for, and waits until all have joined,
    /// also those that other programs start.
    ///
    /// # Errors
    /// A process cannot be started or does not join within the plan's timeout, or ends before.
    pub fn start(&mut self) -> Result<(), C::Error> {
        for shard in 0..self.servers.len() {
            self.servers[shard].process =
                self.start_process(Role::Server(shard as u32)).map_err(|e| self.caller.explain(e))?;
        }
        // Servers that see hosts know how many there are once all workers are here.
        if !self.plan.worker.plan.per_host {
            self.wait_for("the servers to listen", |job| {
                job.servers.iter().all(|entry| entry.address.is_some())
            })?;
        }
        for worker in 0..self.workers.len() {
            if self.joining() >= JOINING_MAX {
                self.wait_for("the workers to join", |job| job.joining() < JOINING_MAX)?;
            }
            self.workers[worker].process =
                self.start_process(Role::Worker(worker as u32)).map_err(|e| self.caller.explain(e))?;
        }
        self.wait_for("the workers to join", |job| {
            job.workers.iter().all(|entry| entry.state != ProcessState::Starting)
        })
    }

    /// Starts a process, if the caller has a command for it.
    pub(super) fn start_process(&mut self, role: Role) -> Result<Option<Process>, CoordinatorError> {
        let command = self.caller.command(role, self.hub.address()).map_err(CoordinatorError::Command)?;
        let start = |command| Process::start(role, command);
        command.map(start).transpose().map_err(|source| CoordinatorError::Start { role, source })
    }

    /// Counts the workers that were started and are in the middle of a handshake.
    fn joining(&self) -> usize {
        // Without servers, and with a proxy on each host, all say that they have joined once the last one is there.
        let at_once = self.plan.server.is_none() || self.plan.worker.plan.per_host;
        let joining = |(who, entry): &(Role, &WorkerEntry)| match at_once {
            true => self.roster.member(*who).is_none(),
            false => entry.state == ProcessState::Starting,
        };
        let workers = (0..).map(Role::Worker).zip(&self.workers);
        workers.filter(|(_, entry)| entry.process.is_some()).filter(joining).count()
    }

    fn wait_for(&mut self, what: &'static str, until: impl Fn(&Self) -> bool) -> Result<(), C::Error> {
        let deadline = Instant::now() + self.plan.timeout();
        if self.plan.awaits_others && !until(self) {
            let line = format!("waiting at {} for {what}{}", self.hub.address(), self.missing());
            self.caller.tell(&line);
        }
        while !until(self) {
            if Instant::now() >= deadline {
                let (waited, missing) = (self.plan.timeout(), self.missing());
                return Err(self.caller.explain(CoordinatorError::Waited { waited, what, missing }));
            }
            self.turn()?;
            // A worker that had joined and is lost, maybe because others are missing, is no reason to stop waiting.
            if self.workers.iter().any(WorkerEntry::never_joined) {
                // The others may fail for a cause of their own, and have it to tell.
                self.listen_on(LAST_WORDS, |job| {
                    let is_settled =
                        |entry: &WorkerEntry| entry.state != ProcessState::Starting || entry.never_joined();
                    job.workers.iter().all(is_settled)
                })?;
                if self.workers.iter().any(WorkerEntry::never_joined) {
                    return Err(self.lost_at_start());
                }
            }
        }
        Ok(())
    }
}
