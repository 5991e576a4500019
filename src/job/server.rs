//! The servers of a job.

use std::path::Path;
use std::time::{Duration, Instant};

use super::member::End;
use super::transports::flatten;
use super::{Job, JobError, MemberRole, Resume, Role};
use crate::clock::Version;
use crate::node::{self, Checkpoint, Server, ServerOptions, ServerStatus};
use crate::table::Table;
use crate::transport::mixed::Mixed;

/// The longest time for which a server waits for one event before it looks whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest time that one attempt to reach the server that decides may take.
const FOLLOW_TRY: Duration = Duration::from_millis(500);

/// The longest time that the last message of a process may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
    /// workers and the shard in `options` are those of the job. With `options.checkpoint` the server begins with the
    /// checkpoint if the plan's [`resume`](super::JobPlan::resume) says so, and in any case if this process replaces
    /// one that was lost; give each shard a file of its own.
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
        let Role::Server(shard) = self.role else { return Err(self.other_role("Job::serve", "server")) };
        let started = self.start(shard, table, initial, options).inspect_err(|error| self.fail(error))?;
        self.member.announce(flatten(started.0.address()));
        Ok(started)
    }

    /// Drives a server of this job until the job is over, at most `timeout`: false if it is not over by then, and the
    /// call can be repeated. At the end of the job the server writes its last checkpoint, if it keeps any.
    ///
    /// # Errors
    /// [`JobError::Failed`] with the cause if the job failed, [`JobError::Lost`] if rank 0 is gone; the error of the
    /// server if it cannot go on, with which the job fails.
    #[doc(hidden)]
    pub fn drive(&self, server: &mut Server<Mixed>, timeout: Duration) -> Result<bool, JobError> {
        let deadline = Instant::now() + timeout;
        let end = loop {
            if let Some(end) = self.member.end() {
                break end;
            }
            let time = deadline.saturating_duration_since(Instant::now());
            if time.is_zero() {
                return Ok(false);
            }
            if !server.is_following() {
                self.follow(server, time)?;
            }
            let left = server.status().left;
            match server.drive(|server| server.status().left != left, time.min(LOOK_EVERY)) {
                // The job is over, or that server comes back, or rank 0 tells that it is lost.
                Err(node::Error::ServerLost { .. } | node::Error::Evicted { .. }) if server.follows() => {}
                driven => {
                    driven.map_err(JobError::from).inspect_err(|error| self.fail(error))?;
                }
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

    /// Connects a server to the one that decides for it, if that one is up within a moment.
    fn follow(&self, server: &mut Server<Mixed>, left: Duration) -> Result<(), JobError> {
        let attempt = left.min(FOLLOW_TRY);
        let Ok(addresses) = self.reach(MemberRole::Server, self.plan.servers as usize, attempt) else {
            return Ok(());
        };
        match server.follow(&addresses[0], attempt) {
            Err(error @ (node::Error::AnotherIncarnation { .. } | node::Error::Shards { .. })) => {
                let error = JobError::from(error);
                self.fail(&error);
                Err(error)
            }
            // It may still be about to listen, or be gone.
            Err(error) => {
                tracing::debug!(%error, "not following yet");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Tells rank 0 why this process gives up.
    pub(super) fn fail(&self, error: &JobError) {
        self.member.fail(error.to_string());
        self.member.flush(LAST_WORDS);
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
        let address = self.member.transports.listen_at(&self.plan.transports()).map_err(JobError::NoRdma)?;
        let shards = table.shards(self.plan.servers as usize).map_err(node::Error::from)?;
        // A range of a shard counts four bytes for each element.
        let own = shards[shard as usize].start as usize / 4..shards[shard as usize].end as usize / 4;
        let elements = shards.last().map_or(0, |last| last.end / 4);
        if initial.len() as u64 != elements {
            return Err(JobError::InitialValues { elements, values: initial.len() });
        }
        let mut options = ServerOptions {
            workers: self.workers(),
            shard: (shard as u16, self.plan.servers as u16),
            ..options
        };
        let file = options.checkpoint.as_ref().map(|checkpoint| checkpoint.path.clone());
        let transports = self.member.transports.open();
        // A process that replaces one that was lost goes on where that one was.
        let resume = match self.plan.resume {
            Resume::Never if self.member.generation > 0 => Resume::IfThere,
            resume => resume,
        };
        match file.map(|file| resume_from(&file, resume)).transpose()?.flatten() {
            Some(checkpoint) => {
                // Workers that are lost for good never join: those that are here are all that it can wait for.
                options.workers = self.member.count(MemberRole::Worker).clamp(1, self.workers());
                let version = checkpoint.version();
                tracing::info!(version = version.0, "goes on from its checkpoint");
                let server = Server::resume(transports, &address, table, checkpoint, options)?;
                Ok((server, Some(version)))
            }
            None => Ok((Server::new(transports, &address, table, &initial[own], options)?, None)),
        }
    }
}

/// The checkpoint to begin with, if any.
pub(super) fn resume_from(file: &Path, resume: Resume) -> Result<Option<Checkpoint>, JobError> {
    let (name, exists) = (file.display(), Checkpoint::exists(file));
    match resume {
        Resume::Never if exists => Err(JobError::Resume(format!(
            "an earlier run left {name}; resume from it, or name another folder"
        ))),
        Resume::Required if !exists => Err(JobError::Resume(format!(
            "there is no checkpoint {name} to go on from; use the folder and the number of servers of the run that \
             wrote it, or do not resume"
        ))),
        Resume::Never | Resume::IfThere | Resume::Required => {
            Ok(exists.then(|| Checkpoint::read(file)).transpose().map_err(node::Error::from)?)
        }
    }
}
