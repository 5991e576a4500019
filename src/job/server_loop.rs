//! The server loop of every job: a server begins with its checkpoint or with initial values, follows the server that
//! decides for it, and works until the job is over.

use std::path::Path;
use std::time::Duration;

use super::JobError;
use super::choose::TransportChoice;
use super::member::{Conversation, JobMember, WaitError};
use super::plan::{JobPlan, Resume};
use super::rendezvous::MemberRole;
use crate::node::{Checkpoint, CheckpointError, Error, Server, ServerOptions};
use crate::table::Table;
use crate::transport::TransportKind;
use crate::transport::mixed::Mixed;

/// The longest time for which a server waits for one event before its process looks whether the job is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The longest time that one attempt to reach the server that decides may take.
const FOLLOW_TRY: Duration = Duration::from_millis(500);

/// The same by RDMA: a host takes a second to find that its neighbour does not answer, and says so then.
const FOLLOW_TRY_BY_RDMA: Duration = Duration::from_secs(2);

/// The checkpoint to begin with, if any.
pub(super) fn resume_from(file: &Path, resume: Resume) -> Result<Option<Checkpoint>, JobError> {
    let name = file.display();
    if resume == Resume::Never {
        return match Checkpoint::try_exists(file).map_err(Error::from)? {
            true => Err(JobError::Resume(format!(
                "an earlier run left {name}; resume from it, or name another folder"
            ))),
            false => Ok(None),
        };
    }
    match Checkpoint::read(file) {
        Ok(checkpoint) => Ok(Some(checkpoint)),
        Err(CheckpointError::Missing { .. }) if resume == Resume::Required => Err(JobError::Resume(format!(
            "there is no checkpoint {name} to go on from; use the folder and the number of servers of the run that \
             wrote it, or do not resume"
        ))),
        Err(CheckpointError::Missing { .. }) => Ok(None),
        Err(error) => Err(Error::from(error).into()),
    }
}

/// The numbers of workers of these identities, in order.
fn numbers(identities: impl Iterator<Item = u64>) -> Vec<u32> {
    // A worker of another job may be among them: its identity is no number.
    let mut workers: Vec<u32> = identities.filter_map(|word| word.try_into().ok()).collect();
    workers.sort_unstable();
    workers
}

impl<C: Conversation> JobMember<C> {
    /// Tells rank 0 which workers are in at a server of this process, and which have ever come to it, if these are
    /// others than it was told the last time, or a worker has joined since.
    pub(super) fn tell_workers(&self, server: &Server<Mixed>) {
        let (workers, come) = (numbers(server.worker_identities()), numbers(server.joined_identities()));
        let joined = server.status().joined;
        let message = self.with(|conversation| conversation.serves(workers, come, joined));
        message.flatten().into_iter().for_each(|message| self.send(message));
    }

    /// Makes the server of one shard, which is reached over `kinds` and begins with the checkpoint, or else with the
    /// values of its shard.
    pub(super) fn make_server(
        &self,
        kinds: &[TransportKind],
        table: Table,
        values: &[f32],
        checkpoint: Option<Checkpoint>,
        options: ServerOptions,
    ) -> Result<Server<Mixed>, JobError> {
        // Before the transports are opened: it opens the device, where RDMA is taken.
        let address = self.transports.listen_at(kinds)?;
        let transports = self.transports.open();
        Ok(match checkpoint {
            Some(checkpoint) => Server::resume(transports, &address, table, checkpoint, options)?,
            None => Server::new(transports, &address, table, values, options)?,
        })
    }

    /// Lets a server work for a moment, at most `time`, once it is connected to the server that decides for it. Returns
    /// the answer of `until`. An attempt to connect to that server has its own time, however short `time` is: a
    /// handshake that is given up begins from nothing.
    ///
    /// # Errors
    /// The server cannot go on; the deciding server is another incarnation than before.
    pub(super) fn drive(
        &self,
        plan: &JobPlan,
        server: &mut Server<Mixed>,
        until: impl Fn(&Server<Mixed>) -> bool,
        time: Duration,
    ) -> Result<bool, JobError> {
        if !server.is_following() {
            self.follow(plan, server, time)?;
        }
        match server.drive(until, time.min(LOOK_EVERY)) {
            // The job is over, or the deciding server comes back, or rank 0 ends a job that has lost it.
            Err(Error::ServerLost { .. } | Error::Evicted { .. }) if server.follows() => Ok(false),
            driven => Ok(driven?),
        }
    }

    /// Connects a server to the deciding server, if that is up within the time.
    fn follow(&self, plan: &JobPlan, server: &mut Server<Mixed>, time: Duration) -> Result<(), JobError> {
        let servers = plan.servers as usize;
        let choices = match self.reach(MemberRole::Server, servers, plan.transport, time.min(FOLLOW_TRY)) {
            Ok(choices) => choices,
            Err(error @ WaitError::Path(_)) => return Err(error.into()),
            // They may come up later.
            Err(_) => return Ok(()),
        };
        let TransportChoice { kind, address, .. } = &choices[0];
        let within = if *kind == TransportKind::Verbs { FOLLOW_TRY_BY_RDMA } else { FOLLOW_TRY };
        match server.follow(address, within) {
            Err(error @ (Error::AnotherIncarnation { .. } | Error::Shards { .. })) => Err(error.into()),
            Err(Error::Connect(error)) if self.pass_over(plan, &error).is_some() => Ok(()),
            // It may still be about to listen, or be gone.
            Err(error) => {
                tracing::debug!(%error, "not following yet");
                Ok(())
            }
            Ok(()) => {
                self.no_paths().forget_passing();
                Ok(())
            }
        }
    }
}

#[cfg(all(test, feature = "checkpoint"))]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_the_system_does_not_read_is_not_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shard");
        assert!(matches!(resume_from(&file, Resume::IfThere), Ok(None)));
        assert!(matches!(resume_from(&file, Resume::Never), Ok(None)));
        assert!(matches!(resume_from(&file, Resume::Required), Err(JobError::Resume(_))));
        // The system gives up on a link to itself.
        std::os::unix::fs::symlink(&file, &file).unwrap();
        for resume in [Resume::Never, Resume::IfThere, Resume::Required] {
            let error = resume_from(&file, resume).expect_err("nothing says that there is none");
            assert!(matches!(error, JobError::Node(Error::Checkpoint(_))), "{resume:?}: {error}");
        }
    }
}
