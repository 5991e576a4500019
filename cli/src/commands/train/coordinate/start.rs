//! The processes that a coordinator starts itself.

use std::time::Duration;

use super::{Coordinator, Place, State};
use crate::commands::train::Who;
use crate::commands::train::process::Process;
use crate::failure::Failure;

/// Workers that are started before the first of them have joined. Listeners keep 64 handshakes and drop others: more
/// at a time would push each other out, again and again where each waits long for its turn of a processor.
const JOINING_MAX: usize = 32;

/// Shortest time in which a child gives up to join.
const CHILD_TIMEOUT_MIN: Duration = Duration::from_secs(60);

impl Coordinator<'_> {
    pub(super) fn start(&self, who: Who) -> Result<Process, Failure> {
        let plan = self.plan;
        let offset = plan.job.metrics_offset(plan.servers, who);
        let metrics = plan.metrics.address(Some(offset)).map_err(Failure::usage)?;
        // This process waits no longer than the plan says, and tells who is missing: a child must not give up before.
        let timeout = plan.timeout.max(CHILD_TIMEOUT_MIN);
        Process::start(who, &self.hub.address().to_string(), plan.job.secret.as_ref(), metrics, timeout)
    }

    pub(super) fn start_servers(&mut self) -> Result<(), Failure> {
        for shard in 0..self.plan.servers {
            if self.plan.job.starts_server(shard) {
                self.servers[shard].process = Some(self.start(Who::Server(shard))?);
            }
        }
        self.wait_for("the servers to listen", |run| run.servers.iter().all(|shard| shard.address.is_some()))
    }

    pub(super) fn start_workers(&mut self) -> Result<(), Failure> {
        for worker in 0..self.plan.workers {
            if self.plan.job.starts_worker(worker, self.plan.servers) {
                self.wait_for("the workers to join", |run| run.joining() < JOINING_MAX)?;
                self.workers[worker].process = Some(self.start(Who::Worker(worker))?);
            }
        }
        self.wait_for("the workers to join", |run| {
            run.workers.iter().all(|place| place.state != State::Starting)
        })
    }

    /// How many workers that were started are in the middle of a handshake.
    fn joining(&self) -> usize {
        let joining = |place: &&Place| match self.plan.servers {
            // There all say that they have joined once the last one is there.
            0 => place.member.is_none(),
            _ => place.state == State::Starting,
        };
        self.workers.iter().filter(|place| place.process.is_some()).filter(joining).count()
    }
}
