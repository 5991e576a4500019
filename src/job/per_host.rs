//! Jobs in which one worker of each host stands for all workers there: an aggregating proxy, which is a thread of the
//! host's first worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::member::{Conversation, JobMember, WaitError};
use super::rendezvous::{Host, Member, MemberRole};
use super::transports::flatten;
use super::{JobError, JobPlan};
use crate::mem::OwnThread;
use crate::node::{Error, Server, ShardOptions, Worker, WorkerOptions};
use crate::transport::TransportKind;
use crate::transport::mixed::Mixed;

/// The longest time for which the thread does not look whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The time that the other workers of a host have to leave once the job is over or the first worker is done.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// The thread of a host's server. Dropping it ends the server.
pub(super) struct HostThread {
    stop: Arc<AtomicBool>,
    thread: Option<OwnThread>,
}

impl HostThread {
    /// Serves the workers of this host, which are `workers` in number, until all have left or the job is over.
    fn start<C: Conversation>(
        member: Arc<JobMember<C>>,
        mut server: Server<Mixed>,
        workers: u64,
    ) -> Result<HostThread, JobError> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let serve = move || {
            let have_left = |server: &Server<Mixed>| {
                let status = server.status();
                status.joined >= workers && status.workers == 0
            };
            let mut deadline = None;
            loop {
                // Other workers of the host may still be at the end of their last step.
                if is_stopped.load(Ordering::Relaxed) || member.end().is_some() {
                    let now = Instant::now();
                    if now >= *deadline.get_or_insert(now + LAST_STEPS) {
                        break;
                    }
                }
                member.tell_workers(&server);
                match server.drive(have_left, LOOK_EVERY) {
                    Ok(false) => {}
                    Ok(true) => break,
                    // The workers lose this server, and rank 0 knows of the server that this one has lost.
                    Err(error) => {
                        tracing::warn!(%error, "the server of this host ends");
                        break;
                    }
                }
            }
            drop(server);
            member.tell(|conversation| conversation.serves(Vec::new(), Vec::new(), 0));
        };
        let thread = OwnThread::start("slackline-host", serve);
        let thread = thread.map_err(|source| Error::Thread { what: "the server of this host", source })?;
        Ok(HostThread { stop, thread: Some(thread) })
    }
}

impl Drop for HostThread {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic there was reported by its thread; the workers see the connection end.
            let _ended = thread.end(|| self.stop.store(true, Ordering::Relaxed));
        }
    }
}

impl JobPlan {
    /// Checks that nothing is asked for that does not go with a proxy on each host.
    pub(super) fn check_per_host(&self) -> Result<(), JobError> {
        let reason = match self {
            JobPlan { per_host: true, reconnect: true, .. } => "cannot have workers that reconnect",
            JobPlan { per_host: true, servers: 0, .. } => "needs a server",
            _ => return Ok(()),
        };
        Err(JobError::PerHost { reason })
    }
}

/// The workers on one host.
fn workers_of<'a>(host: &Host, workers: &'a [Member]) -> impl Iterator<Item = &'a Member> {
    workers.iter().filter(|member| member.host.shares_memory_with(host))
}

impl<C: Conversation> JobMember<C> {
    /// The number of workers that the servers of a job of so many workers see: with a proxy on each host the number of
    /// hosts, once all workers are here.
    pub(super) fn upstream_workers(&self, plan: &JobPlan, workers: usize) -> Result<usize, JobError> {
        if !plan.per_host {
            return Ok(workers);
        }
        let workers = self.all_workers(workers, plan.timeout)?;
        let is_first = |worker: &&Member| workers_of(&worker.host, &workers).next() == Some(worker);
        Ok(workers.iter().filter(is_first).count())
    }

    /// All workers of the job, in order of their numbers, once they are here.
    fn all_workers(&self, workers: usize, timeout: Duration) -> Result<Vec<Member>, JobError> {
        let is_worker = |member: &Member| member.role == MemberRole::Worker;
        Ok(self.members(timeout, "all workers to be here", workers, is_worker)?)
    }

    /// Connects this worker, of so many in the job, to the server of its host, at most the plan's timeout. The first
    /// worker there starts that server, with this memory, unless `host` has it.
    pub(super) fn connect_on_host(
        self: &Arc<Self>,
        plan: &JobPlan,
        workers: usize,
        host: &mut Option<HostThread>,
        memory: ShardOptions,
        options: WorkerOptions,
    ) -> Result<Worker<Mixed>, JobError> {
        let deadline = Instant::now() + plan.timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        let (number, workers) = (self.role_rank, self.all_workers(workers, left())?);
        let here: Vec<u32> = workers_of(&self.host, &workers).map(|worker| worker.role_rank).collect();
        let first = here.first().copied().unwrap_or(number);
        if first == number && host.is_none() {
            let plan = JobPlan { timeout: left(), ..plan.clone() };
            *host = Some(self.serve_host(&plan, here.len(), memory, &options)?);
        }
        let is_server = |member: &Member| {
            member.role == MemberRole::Worker && member.role_rank == first && !member.addresses.is_empty()
        };
        let servers = self.members(left(), "the server of this host to be up", 1, is_server)?;
        let choice = self.choose(&servers[0], None).map_err(WaitError::from)?;
        let address = std::slice::from_ref(&choice.address);
        let worker = Worker::connect(self.transports.open(), address, options, left())?;
        // The first worker of the host has reported already how it reaches the servers of the job.
        if first != number {
            self.tell(|conversation| conversation.connected(MemberRole::Worker, vec![(first, choice)]));
        }
        Ok(worker)
    }

    /// Starts the server of this host, which has so many workers, within the plan's timeout.
    fn serve_host(
        self: &Arc<Self>,
        plan: &JobPlan,
        workers: usize,
        memory: ShardOptions,
        options: &WorkerOptions,
    ) -> Result<HostThread, JobError> {
        let deadline = Instant::now() + plan.timeout;
        let upstream = WorkerOptions {
            scheme: options.scheme.clone(),
            schemes: options.schemes.clone(),
            checksums: options.checksums,
            identity: Some(self.role_rank),
            ..WorkerOptions::default()
        };
        let upstream = self.connect(plan, upstream)?;
        let address = self.transports.listen_at(&[TransportKind::Shm])?;
        let memory = ShardOptions { peers: memory.peers.max(workers as u16), ..memory };
        let left = deadline.saturating_duration_since(Instant::now());
        // Its sums are in host memory, also where this process has a GPU.
        let server = Server::for_host(upstream, Mixed::default(), &address, workers, memory, left)?;
        self.announce(flatten(server.address()), None);
        HostThread::start(Arc::clone(self), server, workers as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::Diagnostic;

    #[test]
    fn a_proxy_on_each_host_needs_a_server_and_workers_that_stay() {
        assert!(JobPlan::servers(1).per_host(true).check_per_host().is_ok());
        assert!(JobPlan::servers(0).reconnect(true).check_per_host().is_ok());
        for plan in [JobPlan::servers(1).reconnect(true), JobPlan::servers(0)] {
            let error = plan.per_host(true).check_per_host().expect_err("it is refused");
            assert!(error.to_string().ends_with(&*error.remedy().expect("there is one")), "{error}");
        }
    }
}
