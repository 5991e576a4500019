//! The servers of a job.

use std::time::{Duration, Instant};

use super::error_report::ErrorReport;
use super::member::End;
use super::plan::deadline_after;
use super::rendezvous::Member;
use super::server_loop::resume_from;
use super::transports::flatten;
use super::{Job, JobError, MemberRole, Resume, Role};
use crate::clock::Version;
use crate::node::{self, Checkpoint, Server, ServerOptions, ServerStatus};
use crate::table::Table;
use crate::transport::mixed::Mixed;

/// The result of a server.
#[derive(Clone, Debug)]
pub struct Served {
    /// The parameters of this server's shard at its last version.
    pub parameters: Vec<f32>,
    /// The elements of the table that the shard holds.
    pub elements: std::ops::Range<u64>,
    /// The last status of the server.
    pub status: ServerStatus,
    /// The version of the checkpoint with which this server began, if it did.
    pub resumed_from: Option<Version>,
}

impl Job {
    /// Serves this process's shard of `table` until the job is over, however long that takes: [`server`](Self::server),
    /// then [`drive`](Self::drive).
    ///
    /// # Errors
    /// [`JobError::Failed`] with the cause if the job failed, [`JobError::OtherRole`] if this process is a worker.
    pub fn serve(&self, table: Table, initial: &[f32], options: ServerOptions) -> Result<Served, JobError> {
        let (mut server, resumed_from) = self.server(table, initial, options)?;
        while !self.drive(&mut server, self.plan.timeout)? {}
        let range = server.range();
        Ok(Served {
            parameters: server.parameters()?,
            elements: range.start / 4..range.end / 4,
            status: server.status(),
            resumed_from,
        })
    }

    /// Makes the server of this process's shard of `table`, and tells the workers where it listens. It works while
    /// [`drive`](Self::drive) runs. Beside it comes the version of the checkpoint with which it begins, if it does.
    ///
    /// `initial` holds the values of the whole table, one for each element, in the order of its tensors. The number of
    /// workers (of hosts, with [`per_host`](super::JobPlan::per_host)) and the shard in `options` are taken from the
    /// job, and there is room for all of its workers and servers, even if `options.memory.peers` is smaller. With
    /// `options.checkpoint` the server begins with the checkpoint if the plan's [`resume`](super::JobPlan::resume)
    /// says so, and in any case if this process replaces a lost one that had announced its address; give each shard a
    /// file of its own.
    ///
    /// # Errors
    /// The options, the values or the checkpoint do not fit the table, RDMA is required and missing, or this process is
    /// a worker ([`JobError::OtherRole`]). The job fails with the same cause.
    #[doc(hidden)]
    pub fn server(
        &self,
        table: Table,
        initial: &[f32],
        options: ServerOptions,
    ) -> Result<(Server<Mixed>, Option<Version>), JobError> {
        let Role::Server(shard) = self.role else { return Err(self.other_role("serving", "server")) };
        let started = self.start(shard, table, initial, options).inspect_err(|error| self.fail(error))?;
        self.member.announce(flatten(started.0.address()), self.member.transports.serves_from());
        Ok(started)
    }

    /// Drives a server of this job until the job is over, at most `timeout`: false if it is not over by then, and the
    /// call can be repeated. A server that connects to the one that decides for it takes up to 2 s for each attempt,
    /// also where that is longer than `timeout`. At the end of the job the server writes its last checkpoint, if it
    /// keeps any, and rank 0 waits until the others have heard of the end: that takes longer than `timeout`, and at
    /// most the plan's [`timeout`](super::JobPlan::timeout) and 10 s.
    ///
    /// # Errors
    /// [`JobError::Failed`] with the cause if the job failed, [`JobError::Lost`] if rank 0 is gone; the error of the
    /// server if it cannot go on, with which the job fails.
    #[doc(hidden)]
    pub fn drive(&self, server: &mut Server<Mixed>, timeout: Duration) -> Result<bool, JobError> {
        let deadline = deadline_after(timeout);
        let end = loop {
            if let Some(end) = self.member.end() {
                break end;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let driven = self.member.drive(&self.plan, server, |_server| false, left);
            driven.inspect_err(|error| self.fail(error))?;
            // With a proxy on each host, the servers of the hosts have the workers.
            if !self.plan.per_host {
                self.member.tell_workers(server);
            }
            if left.is_zero() {
                return Ok(false);
            }
        };
        let written = match server.keeps_checkpoints() {
            true => server.finish_checkpoint(self.plan.timeout).map(|_version| ()),
            false => Ok(()),
        };
        self.wait_for_the_others();
        if let (Err(error), false) = (&written, end == End::Dismissed) {
            // The cause of the end comes first.
            tracing::error!(%error, "the last checkpoint is not written");
        }
        end.into_result()?;
        written?;
        Ok(true)
    }

    /// Fails the job, for a server whose options [`server`](Self::server) would not accept. Does nothing in a process
    /// that is no server. At rank 0 it waits until the others have received the error, as `server` does.
    #[doc(hidden)]
    pub fn give_up_serving(&self, why: &str) {
        if let Role::Server(_) = self.role {
            self.fail_for(ErrorReport::of_cause(why));
        }
    }

    /// Tells rank 0 why this process gives up.
    pub(super) fn fail(&self, error: &JobError) {
        self.fail_for(ErrorReport::of(error));
    }

    fn fail_for(&self, why: ErrorReport) {
        self.member.fail(why);
        self.member.flush();
        self.wait_for_the_others();
    }

    /// At rank 0, waits until all members have heard how the job has ended.
    pub(super) fn wait_for_the_others(&self) {
        if let Some(coordinator) = &self.coordinator {
            coordinator.wait();
        }
    }

    fn start(
        &self,
        shard: u32,
        table: Table,
        initial: &[f32],
        options: ServerOptions,
    ) -> Result<(Server<Mixed>, Option<Version>), JobError> {
        let shards = table.shards(self.plan.servers as usize).map_err(node::Error::from)?;
        // A range of a shard counts four bytes for each element.
        let own = shards[shard as usize].start as usize / 4..shards[shard as usize].end as usize / 4;
        let elements = shards.last().map_or(0, |last| last.end / 4);
        if initial.len() as u64 != elements {
            return Err(JobError::InitialValues { elements, values: initial.len() });
        }
        let workers = self.member.upstream_workers(&self.plan, self.workers())?;
        let mut options =
            ServerOptions { workers, shard: (shard as u16, self.plan.servers as u16), ..options };
        // Servers that follow the deciding server are peers of it, too.
        let peers = u16::try_from(workers + self.plan.servers as usize).unwrap_or(u16::MAX);
        options.memory.peers = options.memory.peers.max(peers);
        // A process that replaces a lost one continues from its checkpoint. If the lost one was never up, it had
        // written nothing: a file that exists is of another run.
        let resume = match self.plan.resume {
            Resume::Never if self.member.was_up => Resume::IfThere,
            resume => resume,
        };
        let file = options.checkpoint.as_ref().map(|checkpoint| checkpoint.path.as_path());
        let checkpoint = file.map(|file| resume_from(file, resume)).transpose()?.flatten();
        let version = checkpoint.as_ref().map(Checkpoint::version);
        if self.member.was_up {
            // Workers that are lost permanently never join: the server can only wait for the present ones. The first
            // list of members has this server in it.
            let is_own = |member: &Member| member.role == MemberRole::Server && member.role_rank == shard;
            self.member.members(self.plan.timeout, "the list of members", 1, is_own)?;
            options.workers = self.member.count(MemberRole::Worker).clamp(1, workers);
        }
        if let Some(version) = version {
            tracing::info!(version = version.get(), "goes on from its checkpoint");
        }
        let kinds = self.plan.transports();
        let server = self.member.make_server(&kinds, table, &initial[own], checkpoint, options)?;
        Ok((server, version))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::job::JobPlan;
    use crate::job::env::{Placement, RendezvousEndpoint};
    use crate::scheme::SchemeConfig;
    use crate::table::ElementType;

    #[test]
    fn a_server_of_a_job_has_room_for_each_worker_and_each_server() {
        let rendezvous = Some(RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap());
        let placement = Placement { world: 102, rendezvous, ..Placement::default() };
        let job = Job::join(JobPlan::servers(2), &placement, None).unwrap();
        let table = Table::flat(32, ElementType::F32).unwrap();
        // Under DBW the first server decides for the second.
        let options = ServerOptions::new("dbw".parse::<SchemeConfig>().unwrap(), 1, 0.1);
        job.server(table, &[0.0; 32], options).map(drop).unwrap();
        // Its end would wait five seconds for the processes that never join.
        std::mem::forget(job);
    }
}
