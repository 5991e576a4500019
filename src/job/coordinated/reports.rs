//! Reports of the processes of a coordinated job.

use serde::{Deserialize, Serialize};

use super::super::choose::TransportChoice;
use super::super::rendezvous::MemberRole;
use crate::clock::Clock;
use crate::node::{ServerStatus, WorkerStatistics};
use crate::transport::TransportKind;

/// The checkpoint that a server goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Its version.
    pub version: u64,
    /// The smallest clock of the workers in it.
    pub clock: u64,
    /// The error of the newest file, if this is the one before it.
    pub instead_of: Option<String>,
}

/// The way over which a worker reaches one server, or another worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTaken {
    /// The shard of the server.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub server: Option<u32>,
    /// The number of the other worker.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub worker: Option<u32>,
    /// The transport.
    pub path: TransportKind,
    /// The reason for it and against each cheaper one, for people.
    pub reason: String,
}

impl PathTaken {
    /// The ways to members of a role, each with its rank within the role.
    pub(super) fn of(
        role: MemberRole,
        choices: impl IntoIterator<Item = (u32, TransportChoice)>,
    ) -> Vec<PathTaken> {
        let taken = |(role_rank, choice): (u32, TransportChoice)| {
            let (server, worker) = match role {
                MemberRole::Server => (Some(role_rank), None),
                MemberRole::Worker | MemberRole::Reader => (None, Some(role_rank)),
            };
            PathTaken { server, worker, path: choice.kind, reason: choice.reason }
        };
        choices.into_iter().map(taken).collect()
    }
}

/// The counters of a server, sent ten times a second.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ServerReport {
    /// The newest version.
    pub version: u64,
    /// Workers that left or were evicted.
    pub left: u64,
    /// The newest version that is on disk.
    pub checkpointed: Option<u64>,
    /// Versions that were lost with this server's earlier incarnation.
    pub lost_updates: Option<u64>,
    /// Gradients that were folded in.
    pub folded: u64,
    /// The sum of the versions that these were behind.
    pub versions_behind: u64,
    /// Folded gradients that were computed on the version right before theirs.
    pub fresh: u64,
    /// Gradients that came too late, and were not folded in.
    pub dropped: u64,
    /// Gradients that were announced, and void because their worker left first.
    pub voided: u64,
    /// Gradients that held a NaN or an infinity.
    pub non_finite: u64,
    /// The first version with a parameter that is NaN or infinite.
    pub diverged: Option<u64>,
    /// Times that it asked a worker to abandon a computation.
    pub interrupts: u64,
    /// Gradients in the newest version.
    pub gradients: u64,
    /// Gradients that the next version waits for.
    pub waits_for: Option<u64>,
    /// Versions that gradients may be behind by now.
    pub staleness_bound: Option<u64>,
    /// Squared norm of the mean of the last measured gradients.
    pub mean_norm_squared: Option<f64>,
    /// Variance of one gradient among the last measured ones.
    pub variance: Option<f64>,
}

impl From<ServerStatus> for ServerReport {
    fn from(status: ServerStatus) -> ServerReport {
        ServerReport {
            version: status.version.get(),
            left: status.left,
            checkpointed: status.checkpointed.map(|version| version.get()),
            lost_updates: status.lost_updates,
            folded: status.folded,
            versions_behind: status.versions_behind,
            fresh: status.fresh,
            dropped: status.dropped,
            voided: status.voided,
            non_finite: status.non_finite,
            diverged: status.diverged.map(|version| version.get()),
            interrupts: status.interrupts,
            gradients: status.gradients,
            waits_for: status.waits_for,
            staleness_bound: status.staleness_bound,
            mean_norm_squared: status.mean_norm_squared,
            variance: status.variance,
        }
    }
}

/// The counters of a worker, sent ten times a second, also during a computation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Mean loss since the last report; `None` if there was no gradient, or it is not finite.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss: Option<f64>,
    /// Its clock in the job.
    pub clock: u64,
    /// Gradients that it has published.
    pub clocks: u64,
    /// Seconds in which it computed.
    pub compute_s: f64,
    /// Seconds in which it waited.
    pub wait_s: f64,
    /// Bytes of gradients, or of parameters for its groups.
    pub bytes_published: u64,
    /// Bytes of parameters.
    pub bytes_pulled: u64,
    /// Pulls that were made again because a version was replaced meanwhile.
    pub pull_retries: u64,
    /// Computations that it abandoned because a server asked for that.
    pub interrupts: u64,
    /// Rounds of averaging that had no mean because a worker was lost.
    pub rounds_skipped: u64,
    /// Rounds of averaging that began again because a worker was lost.
    pub rounds_restarted: u64,
    /// Counts of gradients by the staleness of the parameters that they were computed on, from 0.
    pub staleness_histogram: Vec<u64>,
}

impl WorkerReport {
    /// The report of a worker at this clock.
    pub fn of(clock: Clock, statistics: &WorkerStatistics) -> WorkerReport {
        WorkerReport {
            clock: clock.get(),
            clocks: statistics.clocks,
            compute_s: statistics.compute.as_secs_f64(),
            wait_s: statistics.wait.as_secs_f64(),
            bytes_published: statistics.bytes_published,
            bytes_pulled: statistics.bytes_pulled,
            pull_retries: statistics.pull_retries,
            interrupts: statistics.abandoned,
            staleness_histogram: statistics.staleness.clone(),
            ..WorkerReport::default()
        }
    }

    /// Adds the counters of the same worker's earlier incarnations. A worker may tell any.
    pub(super) fn after(mut self, earlier: &WorkerReport) -> WorkerReport {
        let add = |counter: &mut u64, before: u64| *counter = counter.saturating_add(before);
        add(&mut self.clocks, earlier.clocks);
        self.compute_s += earlier.compute_s;
        self.wait_s += earlier.wait_s;
        add(&mut self.bytes_published, earlier.bytes_published);
        add(&mut self.bytes_pulled, earlier.bytes_pulled);
        add(&mut self.pull_retries, earlier.pull_retries);
        add(&mut self.interrupts, earlier.interrupts);
        let both = self.staleness_histogram.len().max(earlier.staleness_histogram.len());
        self.staleness_histogram.resize(both, 0);
        for (count, before) in self.staleness_histogram.iter_mut().zip(&earlier.staleness_histogram) {
            add(count, *before);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_two_incarnations_never_overflow() {
        let report = WorkerReport {
            clocks: u64::MAX,
            bytes_published: u64::MAX,
            bytes_pulled: u64::MAX,
            pull_retries: u64::MAX,
            interrupts: u64::MAX,
            staleness_histogram: vec![u64::MAX, 1],
            ..WorkerReport::default()
        };
        let both = report.clone().after(&report);
        assert_eq!(both, WorkerReport { staleness_histogram: vec![u64::MAX, 2], ..report });
    }
}
