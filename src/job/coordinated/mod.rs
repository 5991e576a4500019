//! Jobs whose coordinator gives every other process its orders.
//!
//! The processes of a [`Job`](super::Job) run one program with one plan. Here only the coordinator knows the plan: the
//! others are started bare, know nothing but where to meet, and are told their orders. A worker's order carries a text
//! of the caller's own, such as the model to train and the data.
//!
//! ```text
//! Coordinator ──┬── CoordinatedMember, a server    joins, is told its order, reports ten times a second,
//!               └── CoordinatedMember, a worker    and ends with the job
//! ```
//!
//! A [`Coordinator`] keeps the rendezvous, starts processes or waits for them, starts lost ones again, has servers
//! keep checkpoints, and names the first cause of a failure. The membership, the roster, the choice of transports and
//! the loops of servers and workers are the same as in every job. A [`Gather`] reads the parameters meanwhile.
//! `slackline train` is such a coordinator, `slackline serve` and `slackline work` are such members.

mod caller;
mod causes;
mod checkpoints;
mod child;
mod coordinator;
mod device;
mod end;
mod entries;
#[cfg(all(test, feature = "tcp"))]
mod fixture;
mod gather;
mod group;
mod losses;
mod member;
mod orders;
mod reports;
#[cfg(all(test, feature = "cuda", feature = "tcp"))]
mod scripted;
mod serve;
mod start;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use caller::{Caller, CoordinatorError, Wish};
pub use coordinator::{Addresses, Coordinator};
pub use device::ComputeDevice;
pub use entries::{Members, Peer, Presence};
pub use gather::{Gather, GatherError, Gathered, Parts};
pub use group::GroupWork;
pub use member::{CoordinatedMember, MemberOptions};
pub use orders::{CheckpointOrder, GroupOrder, ServerOrder, WorkerOrder};
#[cfg(any(test, fuzzing))]
pub(crate) use orders::{fuzz_message, message_samples};
pub use reports::{Origin, PathTaken, ServerReport, WorkerReport};
pub use serve::ServeEnd;
#[cfg(feature = "cuda")]
pub use work::GpuBuffers;
pub use work::ServerWork;

use super::JobError;
use crate::channel::Secret;
use crate::node::check_scheme_of_host;

/// The longest time that a process which was asked to end takes for its last checkpoint: batch systems kill 30 s after
/// they ask.
pub const LAST_CHECKPOINT_WITHIN: Duration = Duration::from_secs(20);

/// The channel between a process and the coordinator waits for so many leases (3 to 15 s) for a peer that is silent:
/// servers judge by the lease which worker is late, and the channel beside them is not to be faster.
const LEASES: u32 = 2;

/// The plan of a coordinated job, which its coordinator alone knows.
#[derive(Clone, Debug)]
pub struct Coordination {
    /// The address of the rendezvous; port 0 takes any that is free.
    pub listen: SocketAddr,
    /// The secret that all processes of the job share; without one only loopback addresses are served.
    pub secret: Option<Secret>,
    /// The order of each server. Without one there is no server, and workers average among themselves.
    pub server: Option<ServerOrder>,
    /// The order of each worker.
    pub worker: WorkerOrder,
    /// The caller's own order for each worker.
    pub programs: Vec<String>,
    /// The initial values of the whole table, one for each element, in the order of its tensors.
    pub initial: Arc<[f32]>,
    /// The number of times that each process which the coordinator started is started again.
    pub restarts: u32,
    /// A checkpoint that cannot be written ends the job.
    pub strict_checkpoints: bool,
    /// True if other programs start some of the processes: the coordinator then tells where it waits for them.
    pub awaits_others: bool,
}

impl Coordination {
    /// The number of servers.
    pub fn servers(&self) -> usize {
        if self.server.is_some() { self.worker.plan.servers as usize } else { 0 }
    }

    /// The longest wait for processes to join, for a lost server to come back and for last checkpoints.
    pub fn timeout(&self) -> Duration {
        self.worker.plan.timeout
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.programs.len()
    }

    /// Checks that nothing is asked for that does not go with a proxy on each host, if the plan has them.
    ///
    /// # Errors
    /// [`JobError::PerHost`], or the error of a scheme that cannot take a host's sum.
    pub fn check_per_host(&self) -> Result<(), JobError> {
        let plan = &self.worker.plan;
        plan.check_per_host()?;
        match plan.per_host {
            true if self.restarts > 0 => {
                Err(JobError::PerHost { reason: "cannot have processes that are started again" })
            }
            true => Ok(check_scheme_of_host(&self.worker.scheme.into())?),
            false => Ok(()),
        }
    }

    /// Estimates the memory of all processes together, in bytes, without the caller's own; of the proxies, it counts
    /// one host.
    pub fn memory(&self) -> u128 {
        let WorkerOrder { scheme, encoding, own_step, .. } = &self.worker;
        let own = 4 * self.initial.len() as u128;
        let workers = self.workers() as u128;
        // Initial and final parameters, and the reader's.
        let coordinator = 3 * own;
        let Some(server) = &self.server else {
            let states = self.worker.group.as_ref().map_or(0, |group| group.optimizer.states()) as u128;
            // From each of the others come two parts, of half the parameters each at most. The parameters and the
            // next mean; frames for its readers; the state of the optimiser and the gradient. And all copies at the
            // reader.
            let worker = own * (workers - 1 + 2 + 3 + (3 + 2 * states) + 1);
            return workers * (worker + 2 * own) + coordinator;
        };
        // Frames, and two of each array of state.
        let servers = own * (3 + 2 * server.optimizer.states() as u128);
        let published = self.initial.len() as u128 * encoding.bytes() as u128;
        let pushed = if scheme.pushes() { 3 * own } else { 0 };
        let slots = u128::from(scheme.slots());
        let kept = match own_step {
            // As many gradients as a copy may lack, and the current one.
            Some(_) => slots.max(u128::from(scheme.staleness().unwrap_or(0))) + 1,
            None => 0,
        };
        // The next gradient is computed while one is on its way.
        let sources = if scheme.publishes_in_background() { 2 } else { 1 };
        // Slots at the server and sources; parameters and gradient.
        let worker = (slots + sources + kept) * published + 2 * own + pushed;
        // A proxy has frames, slots at the server, and the parameters and the gradient of one worker.
        let proxy = if self.worker.plan.per_host { own * (3 + slots + 2) } else { 0 };
        servers + proxy + workers * worker + coordinator
    }
}

/// The result of a coordinated job.
#[derive(Clone, Debug)]
pub struct JobOutcome {
    /// The result of each worker.
    pub workers: Vec<WorkerOutcome>,
    /// The number of hosts, where the plan has a proxy on each: the workers that the servers saw.
    pub hosts: Option<usize>,
    /// The last report of each server.
    pub servers: Vec<ServerReport>,
    /// The number of times that each server was started again.
    pub restarts: Vec<u32>,
    /// Updates that were lost with servers, as far as any worker has seen them.
    pub lost_updates: u64,
    /// The version at which the job began: 0, unless it went on from checkpoints.
    pub began: u64,
    /// Checkpoints that could not be written.
    pub checkpoints_failed: u64,
    /// The error of the last checkpoint that could not be written.
    pub checkpoint_error: Option<String>,
}

/// The result of a worker.
#[derive(Clone, Debug, Default)]
pub struct WorkerOutcome {
    /// Its last report, with the counters of its earlier incarnations.
    pub report: WorkerReport,
    /// The cause of its loss, if it did not finish.
    pub lost: Option<String>,
    /// The ways over which it reached the servers, or the other workers.
    pub paths: Vec<PathTaken>,
    /// The number of times that it came back.
    pub returns: u32,
}
