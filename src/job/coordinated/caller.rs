//! The caller of a coordinator, and the errors that it is to explain.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use super::super::error_report::ErrorReport;
use super::super::plan::Role;
use super::super::rendezvous;
use super::super::transports::NoRdma;
use super::entries::Members;
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::table::TableError;

/// The program that runs a [`Coordinator`](super::Coordinator): it starts processes, tells people how the job gets on,
/// and puts errors into the words of its own options.
pub trait Caller {
    /// The error with which the coordinator's calls fail.
    type Error;

    /// Puts an error of the coordinator into the caller's words.
    fn explain(&mut self, error: CoordinatorError) -> Self::Error;

    /// The command that starts the process which is to have this role and meets the others at `rendezvous`;
    /// `None` if another program starts it.
    ///
    /// # Errors
    /// There can be no such command.
    fn command(&mut self, role: Role, rendezvous: SocketAddr) -> Result<Option<Command>, ErrorReport>;

    /// Tells people something, in one line.
    fn tell(&mut self, line: &str);

    /// Tells people of something that should not happen but does not end the job, in one line.
    fn warn(&mut self, line: &str);

    /// Called about a hundred times a second, with the known state of the members.
    ///
    /// # Errors
    /// The caller gives up, and the job fails.
    fn turn(&mut self, members: &Members<'_>) -> Result<Wish, Self::Error>;
}

/// The wish of a caller at the end of its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing changes.
    GoOn,
    /// The job has reached its aim: workers need not finish.
    Enough,
    /// Servers write a checkpoint now.
    Checkpoint,
    /// Servers write their last checkpoints, and the job ends with [`CoordinatorError::Stopped`].
    Stop,
}

/// A job has failed at its coordinator.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinatorError {
    /// The rendezvous cannot be opened.
    #[error(transparent)]
    Rendezvous(#[from] rendezvous::RendezvousError),
    /// The table cannot be cut into the shards of the plan.
    #[error(transparent)]
    Table(#[from] TableError),
    /// RDMA is required, and this process has none.
    #[error("{0}")]
    NoRdma(#[from] NoRdma),
    /// The caller has no command for a process that it should have one for: the cause, as it told.
    #[error("{0}")]
    Command(ErrorReport),
    /// A process cannot be started.
    #[error("cannot start {role}: {source}; {}", remedy_of(self))]
    Start {
        /// The role that it was to have.
        role: Role,
        /// The system's error.
        source: io::Error,
    },
    /// The others did not come in time.
    #[error("waited {waited:?} for {what}{missing}; {}", remedy_of(self))]
    Waited {
        /// The length of the wait.
        waited: Duration,
        /// The subject of the wait.
        what: &'static str,
        /// The processes that are missing, lost or refused, after a colon; may be empty.
        missing: String,
    },
    /// Workers ended before they had joined.
    #[error("{0}")]
    NeverJoined(ErrorReport),
    /// All workers are lost: the causes.
    #[error("all workers are lost: {0}")]
    AllLost(ErrorReport),
    /// A server is lost permanently.
    #[error("lost shard {shard} of {shards}: its server {how}; {}", remedy_of(self))]
    LostServer {
        /// The number of its shard.
        shard: usize,
        /// The number of shards.
        shards: usize,
        /// The end of the server as a predicate, with a worker's view of it.
        how: String,
        /// There is a checkpoint of each shard.
        resumable: bool,
    },
    /// A server has failed, and told why.
    #[error("{server} failed: {error}")]
    Server {
        /// The server.
        server: Role,
        /// Its error.
        error: ErrorReport,
    },
    /// Parameters are NaN or infinite.
    #[error("parameters are not finite after {version} versions; {}", remedy_of(self))]
    Diverged {
        /// The first version with such a parameter.
        version: u64,
    },
    /// A checkpoint cannot be written, and the plan says that this ends the job.
    #[error("{0}")]
    Checkpoint(String),
    /// The caller wished the job to stop.
    #[error("stopped: {newest}; {}", remedy_of(self))]
    Stopped {
        /// The newest checkpoint of each shard.
        newest: String,
        /// There is a checkpoint of each shard.
        resumable: bool,
    },
}

impl Diagnostic for CoordinatorError {
    fn operation(&self) -> &'static str {
        "coordinating the job"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        let remedy = match self {
            CoordinatorError::Rendezvous(error) => return error.remedy(),
            CoordinatorError::Table(error) => return error.remedy(),
            CoordinatorError::NoRdma(error) => return error.remedy(),
            CoordinatorError::Command(told)
            | CoordinatorError::NeverJoined(told)
            | CoordinatorError::AllLost(told)
            | CoordinatorError::Server { error: told, .. } => {
                return told.remedy.as_deref().map(Cow::Borrowed);
            }
            CoordinatorError::Start { .. } => {
                "look at the limits on processes and open files (ulimit -u, -n)"
            }
            CoordinatorError::Waited { .. } => "use a longer timeout",
            CoordinatorError::Diverged { .. } => "use a smaller learning rate",
            CoordinatorError::LostServer { resumable: true, .. }
            | CoordinatorError::Stopped { resumable: true, .. } => "start the job again from its checkpoints",
            CoordinatorError::LostServer { .. } | CoordinatorError::Stopped { .. } => "start the job again",
            _ => return None,
        };
        Some(remedy.into())
    }
}
