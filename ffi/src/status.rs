//! The states of objects, as C reads them.

use std::time::Duration;

use slackline::{Fresh, ServerStatus, Worker};

use crate::fabric::Fabric;
use crate::options::version_number;
use crate::scheme::SLACKLINE_NO_STALENESS;
use crate::sized::Measured;

/// The state of a server. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_server_status {
    /// `sizeof(struct slackline_server_status)`.
    pub size: usize,
    /// The newest version.
    pub version: u64,
    /// All gradients of clocks before this one are in it.
    pub smallest_clock: u64,
    /// Workers that are in.
    pub workers: u64,
    /// Readers that are in.
    pub readers: u64,
    /// Workers that ever joined.
    pub joined: u64,
    /// Workers that left or were evicted.
    pub left: u64,
    /// Peers that were refused.
    pub refused: u64,
    /// Gradients that were folded in.
    pub folded: u64,
    /// Gradients that were consumed without being folded in.
    pub dropped: u64,
    /// Mean of the losses that came with the gradients of the newest version; NaN until one came.
    pub loss: f64,
    /// Gradients that were announced, and void because their worker left before they were folded in or dropped.
    pub voided: u64,
    /// Gradients that held a NaN or an infinity, folded in or not.
    pub non_finite: u64,
    /// The version of the newest checkpoint that is safely on the disk; `SLACKLINE_NO_VERSION` before the first.
    pub checkpointed: u64,
    /// Checkpoints that could not be written.
    pub checkpoints_failed: u64,
    /// Interrupts sent to workers: see `slackline_worker_should_stop`.
    pub interrupts: u64,
    /// The epoch of this incarnation of the server: another number after it was started again.
    pub epoch: u64,
    /// Gradients in the newest version.
    pub gradients: u64,
    /// The first version with a parameter that is NaN or infinite; `SLACKLINE_NO_VERSION` if there is none. From then
    /// on no checkpoint is written.
    pub diverged: u64,
    /// Peers that were evicted because their words broke the protocol.
    pub misbehaved: u64,
    /// Updates that were lost with the incarnation before, as workers that came back tell it.
    pub lost_updates: u64,
    /// Number of gradients that the next version waits for; 0 where the scheme does not choose that number.
    pub waits_for: u64,
    /// Squared Euclidean norm of the mean gradient of the newest version that has told one; NaN if none has, as where
    /// neither the scheme nor `measure_moments` asks for it.
    pub mean_norm_squared: f64,
    /// Trace of the covariance of one gradient, as `mean_norm_squared`.
    pub variance: f64,
    /// 1 if the server of shard 0 decides for this one: see `slackline_server_follow`.
    pub follows: u64,
    /// Gradients in the decider's versions that this server, which follows it, does not have: it was lost and began
    /// again after they were announced.
    pub missing: u64,
    /// Accesses of peers to memory that they were not granted; each one ended its connection.
    pub access_violations: u64,
    /// Most versions by which a gradient's parameters may be behind now; `SLACKLINE_NO_STALENESS` where the scheme does
    /// not bound that.
    pub staleness_bound: u64,
    /// RDMA devices side by side that connections have lost, and gone on over the others.
    pub rails_lost: u64,
    /// The sum, over the gradients that this incarnation folded in, of the versions between the version that a gradient
    /// was computed on and the version that it is in.
    pub versions_behind: u64,
    /// Gradients of this incarnation that were computed on the version right before the version that they are in.
    pub fresh: u64,
}

/// The state of a worker. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_worker_status {
    /// `sizeof(struct slackline_worker_status)`.
    pub size: usize,
    /// Its next gradient belongs to this clock.
    pub clock: u64,
    /// Gradients published.
    pub published: u64,
    /// Computations abandoned.
    pub abandoned: u64,
    /// Bytes of gradients written to servers; none for gradients that were computed in a slot.
    pub bytes_published: u64,
    /// Bytes of parameters copied from servers; none for parameters that were read in place.
    pub bytes_pulled: u64,
    /// Copies begun again because a frame changed under them.
    pub retries: u64,
    /// Waits that ended at their deadline.
    pub timeouts: u64,
    /// Number of times that it has connected again.
    pub reconnects: u64,
    /// Nanoseconds between the end of begin and the call of publish or abandon.
    pub compute_ns: u64,
    /// Nanoseconds in begin, publish and flush.
    pub wait_ns: u64,
}

/// The number of counts in `struct slackline_staleness`.
pub const SLACKLINE_STALENESS_COUNTS: usize = 256;

/// How stale the parameters were on which a worker computed its gradients. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_staleness {
    /// `sizeof(struct slackline_staleness)`.
    pub size: usize,
    /// Gradients that were counted: the sum of all counts.
    pub gradients: u64,
    /// The largest staleness that occurred, in clocks; 0 if there is no gradient.
    pub largest: u64,
    /// `counts[s]` is the number of gradients whose parameters were stale by `s` clocks: the worker's clock less the
    /// smallest clock of its copy. The last one counts staler gradients, too, and is then the `largest`.
    pub counts: [u64; SLACKLINE_STALENESS_COUNTS],
}

impl Default for slackline_staleness {
    fn default() -> Self {
        slackline_staleness { size: 0, gradients: 0, largest: 0, counts: [0; SLACKLINE_STALENESS_COUNTS] }
    }
}

/// The parameters that a worker computes on next. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_view {
    /// `sizeof(struct slackline_view)`.
    pub size: usize,
    /// The worker's clock: the gradient belongs to it.
    pub clock: u64,
    /// Version of the parameters; over several servers, the smallest.
    pub version: u64,
    /// They hold all gradients of clocks before this one; over several servers, the smallest.
    pub smallest_clock: u64,
    /// Number of clocks by which they are stale: `clock` less `smallest_clock`, or 0.
    pub staleness: u64,
    /// Number of versions by which they were behind the newest when they were read.
    pub behind: u64,
    /// Copies begun again because a frame changed under them.
    pub retries: u64,
}

/// The state of a publisher. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_publisher_status {
    /// `sizeof(struct slackline_publisher_status)`.
    pub size: usize,
    /// The newest version.
    pub version: u64,
    /// Readers that are in.
    pub readers: u64,
    /// Readers that ever joined.
    pub joined: u64,
    /// The epoch of this incarnation of the publisher: another number after it was started again.
    pub epoch: u64,
}

/// The copy that a reader holds after a refresh. Set `size` before the call that fills it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_fresh {
    /// `sizeof(struct slackline_fresh)`.
    pub size: usize,
    /// Its version.
    pub version: u64,
    /// Number of versions by which it is behind the newest.
    pub behind: u64,
    /// The epoch of the owner's incarnation: another number after it was started again.
    pub epoch: u64,
    /// Copies begun again because the frame changed under them.
    pub retries: u64,
    /// 0 if the copy at hand was fresh enough and nothing was read but the number of the newest version.
    pub copied: u32,
    /// The publisher's own number for the version (`struct slackline_tag`); 0 from a server.
    pub step: u64,
    /// The publisher's own words about the version; zeros from a server.
    pub label: [u8; SLACKLINE_LABEL_BYTES],
    /// The time at which it was published, in nanoseconds since 1970 by the clock of the publisher's host; 0 from a
    /// server.
    pub published_ns: u64,
    /// The epoch of the publisher that made the version: another one than `epoch` behind a relay. 0 from a server, and
    /// behind a relay of a server the epoch of that server.
    pub origin: u64,
}

/// Bytes of a label.
pub const SLACKLINE_LABEL_BYTES: usize = 32;

/// The publisher's own words about a version, which the library does not look into.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_tag {
    /// A number, such as the step of the optimiser.
    pub step: u64,
    /// Bytes of any meaning.
    pub label: [u8; SLACKLINE_LABEL_BYTES],
}

/// A reader, as its publisher sees it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct slackline_reader_status {
    /// Its index, which another reader gets once this one has left.
    pub peer: u64,
    /// The newest version that it has copied, by its own word, or `SLACKLINE_NO_VERSION`.
    pub holds: u64,
    /// The version whose frame it pins now, to read it in place or to copy it, or `SLACKLINE_NO_VERSION`.
    pub pins: u64,
    /// The number of versions by which its newest one, as a copy or in place, is behind the latest.
    pub behind: u64,
}

impl slackline_fresh {
    pub(crate) fn of(fresh: &Fresh) -> Self {
        slackline_fresh {
            size: size_of::<slackline_fresh>(),
            version: fresh.version.get(),
            behind: fresh.behind,
            epoch: fresh.epoch,
            retries: fresh.retries,
            copied: fresh.copied.into(),
            step: fresh.tag.step,
            label: fresh.tag.label,
            published_ns: fresh.published_ns,
            origin: fresh.origin,
        }
    }
}

impl Measured for slackline_server_status {
    const FIRST: usize = 104;
}
impl Measured for slackline_worker_status {
    const FIRST: usize = 88;
}
impl Measured for slackline_staleness {
    const FIRST: usize = 24 + 8 * SLACKLINE_STALENESS_COUNTS;
}
impl Measured for slackline_view {
    const FIRST: usize = 56;
}
impl Measured for slackline_publisher_status {
    const FIRST: usize = 32;
}
impl Measured for slackline_fresh {
    const FIRST: usize = 48;
}

impl slackline_server_status {
    /// `follows` says whether the server of shard 0 decides for this one.
    pub(crate) fn of(status: &ServerStatus, epoch: u64, follows: bool) -> Self {
        slackline_server_status {
            size: size_of::<Self>(),
            version: status.version.get(),
            smallest_clock: status.smallest_clock.get(),
            workers: status.workers as u64,
            readers: status.readers as u64,
            joined: status.joined,
            left: status.left,
            refused: status.refused,
            folded: status.folded,
            dropped: status.dropped,
            loss: status.loss.unwrap_or(f64::NAN),
            voided: status.voided,
            non_finite: status.non_finite,
            checkpointed: version_number(status.checkpointed),
            checkpoints_failed: status.checkpoints_failed,
            interrupts: status.interrupts,
            epoch,
            gradients: status.gradients,
            diverged: version_number(status.diverged),
            misbehaved: status.misbehaved,
            lost_updates: status.lost_updates.unwrap_or(0),
            waits_for: status.waits_for.unwrap_or(0),
            mean_norm_squared: status.mean_norm_squared.unwrap_or(f64::NAN),
            variance: status.variance.unwrap_or(f64::NAN),
            follows: follows.into(),
            missing: status.missing,
            access_violations: status.access_violations,
            staleness_bound: status.staleness_bound.unwrap_or(SLACKLINE_NO_STALENESS),
            rails_lost: status.rails_lost,
            versions_behind: status.versions_behind,
            fresh: status.fresh,
        }
    }
}

impl slackline_worker_status {
    pub(crate) fn of(worker: &Worker<Fabric>) -> Self {
        let statistics = worker.statistics();
        slackline_worker_status {
            size: size_of::<Self>(),
            clock: worker.clock().get(),
            published: statistics.clocks,
            abandoned: statistics.abandoned,
            bytes_published: statistics.bytes_published,
            bytes_pulled: statistics.bytes_pulled,
            retries: statistics.pull_retries,
            timeouts: statistics.timeouts,
            reconnects: statistics.reconnects,
            compute_ns: nanoseconds(statistics.compute),
            wait_ns: nanoseconds(statistics.wait),
        }
    }
}

impl slackline_staleness {
    pub(crate) fn of(worker: &Worker<Fabric>) -> Self {
        let mut staleness = slackline_staleness::default();
        for (value, count) in worker.statistics().staleness.iter().enumerate() {
            let bucket = value.min(SLACKLINE_STALENESS_COUNTS - 1);
            staleness.gradients += count;
            staleness.counts[bucket] += count;
            staleness.largest = bucket as u64;
        }
        staleness
    }
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_tells_of_the_rails_that_it_has_lost_and_of_versions() {
        let lost = ServerStatus { rails_lost: 3, versions_behind: 5, fresh: 4, ..ServerStatus::default() };
        let status = slackline_server_status::of(&lost, 7, true);
        assert_eq!((status.rails_lost, status.versions_behind, status.fresh), (3, 5, 4));
        assert_eq!((status.epoch, status.follows), (7, 1));
    }
}
