//! The plan that all processes of a job share.

use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};

use crate::transport::TransportKind;

/// The longest timeout.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// The deadline of a call that takes at most `timeout`, and at most [`YEAR`]: the clock has no time that is too far
/// off.
pub(super) fn deadline_after(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(YEAR)
}

/// The plan of a job. All processes of a job have the same number of servers, transport and reconnection, and
/// proxies or none.
///
/// The first ranks are the servers, one for each shard, and the other ranks are the workers.
///
/// ```
/// use std::time::Duration;
/// use slackline::JobPlan;
///
/// let plan = JobPlan::servers(2).clocks(1000).timeout(Duration::from_secs(300));
/// assert_eq!(plan.server_count(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlan {
    pub(super) servers: u32,
    pub(super) clocks: Option<u64>,
    #[serde(deserialize_with = "at_most_a_year")]
    pub(super) timeout: Duration,
    pub(super) transport: Option<TransportKind>,
    pub(super) reconnect: bool,
    pub(super) resume: Resume,
    pub(super) per_host: bool,
}

/// Reads a timeout of another process: a deadline that is too far off for the clock cannot be computed.
fn at_most_a_year<'a, D: Deserializer<'a>>(timeout: D) -> Result<Duration, D::Error> {
    Ok(Duration::deserialize(timeout)?.min(YEAR))
}

/// The beginning of a server that keeps checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Resume {
    /// The initial values. A checkpoint that an earlier run left is an error, and is not replaced.
    #[default]
    Never,
    /// The checkpoint if there is one, otherwise the initial values.
    IfThere,
    /// The checkpoint. That there is none is an error.
    Required,
}

impl JobPlan {
    /// A plan with so many servers, each of which holds one shard of the table. The rest of the ranks are workers.
    /// Without a server, workers average their parameters in groups: see [`Job::group`](super::Job::group).
    pub fn servers(servers: u32) -> JobPlan {
        JobPlan {
            servers,
            clocks: None,
            timeout: Duration::from_secs(60),
            transport: None,
            reconnect: false,
            resume: Resume::Never,
            per_host: false,
        }
    }

    /// The number of clocks that each worker runs; without it, workers run until they call
    /// [`JobWorker::finish`](super::JobWorker::finish).
    pub fn clocks(mut self, clocks: u64) -> JobPlan {
        self.clocks = Some(clocks);
        self
    }

    /// The longest time that any wait of the job may take (60 s by default): for processes to join, for parameters, for
    /// a lost server to come back, or for a worker that the servers have evicted since it was silent for a lease, or
    /// that is silent in a job without servers (that one 4 s at least). At most a year.
    pub fn timeout(mut self, timeout: Duration) -> JobPlan {
        self.timeout = timeout.min(YEAR);
        self
    }

    /// The one transport that all pairs must use. By default each pair uses the best that it has: shared memory on one
    /// host, RDMA where both processes have it and it leads from one to the other, TCP otherwise.
    pub fn transport(mut self, transport: TransportKind) -> JobPlan {
        self.transport = Some(transport);
        self
    }

    /// Lets workers connect again to a server that was lost and comes back within the timeout. It is for servers
    /// with checkpoints that are started again. Off by default: a lost server ends the job.
    pub fn reconnect(mut self, reconnect: bool) -> JobPlan {
        self.reconnect = reconnect;
        self
    }

    /// Whether servers with checkpoints resume from them. A server that replaces a lost one resumes from its checkpoint
    /// in any case.
    pub fn resume(mut self, resume: Resume) -> JobPlan {
        self.resume = resume;
        self
    }

    /// Has one worker of each host stand for all of them at the servers: an aggregating proxy
    /// ([`Server::for_host`](crate::node::Server::for_host)). A thread of the first worker of a host, the one with the
    /// smallest number, serves all workers there over shared memory, and hands on the sum of their gradients. The
    /// plan's [`transport`](Self::transport) is the one between it and the servers.
    ///
    /// Under BSP alone, and without [`reconnect`](Self::reconnect). All workers join before the servers begin. When
    /// the first worker of a host is lost, the others there have lost their server.
    pub fn per_host(mut self, per_host: bool) -> JobPlan {
        self.per_host = per_host;
        self
    }

    /// True if processes with these two plans can form one job.
    pub(super) fn agrees_with(&self, other: &JobPlan) -> bool {
        let common = |plan: &JobPlan| (plan.servers, plan.transport, plan.reconnect, plan.per_host);
        common(self) == common(other)
    }

    /// The number of servers.
    #[doc(hidden)]
    pub fn server_count(&self) -> u32 {
        self.servers
    }

    /// Whether servers that name a GPU have their payloads there at any cost. In a job that requires RDMA the payloads
    /// are in host memory if the devices do not reach the GPU.
    #[doc(hidden)]
    #[cfg(feature = "cuda")]
    pub fn serves_from_gpus(&self) -> bool {
        self.transport != Some(TransportKind::Verbs)
    }

    /// The transports over which the servers are reached.
    pub(super) fn transports(&self) -> Vec<TransportKind> {
        self.transport.map_or_else(|| TransportKind::ALL.to_vec(), |one| vec![one])
    }
}

/// The part of one process in its job. A program answers each of them, so that a new one is a change that it must see:
/// a process that ignored its part would stop the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Holds the shard of this number.
    Server(u32),
    /// Computes gradients, as the worker of this number.
    Worker(u32),
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Role::Server(shard) => write!(f, "the server of shard {shard}"),
            Role::Worker(worker) => write!(f, "worker {worker}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_from_another_process_is_cut_to_a_year() {
        let endless = JobPlan { timeout: Duration::MAX, ..JobPlan::servers(1) };
        let bytes = postcard::to_allocvec(&endless).unwrap();
        assert_eq!(postcard::from_bytes::<JobPlan>(&bytes).unwrap().timeout, YEAR);
        assert!(deadline_after(Duration::MAX) > Instant::now());
    }
}
