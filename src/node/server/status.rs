//! The options of a server, and its report about itself.

use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Version};
use crate::kernel::{Optimizer, Schedule};
use crate::node::{CheckpointOptions, ShardOptions};
use crate::scheme;
#[cfg(doc)]
use crate::transport::Transport;

/// Settings of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// The scheme. Workers run the same.
    pub scheme: scheme::AnyScheme,
    /// The effect of a gradient's staleness on its weight.
    pub damping: scheme::Damping,
    /// Each gradient counts with weight 1 instead of the scheme's weight: updates add up, as counts do, and the step
    /// size is not shared among the workers. Under BSP, ASP, SSP, ESSP, BAP and others that fold every gradient in.
    pub additive: bool,
    /// Number of workers of the job: nothing is applied before that many have joined.
    pub workers: usize,
    /// The optimiser, by which gradients move parameters.
    pub optimizer: Optimizer,
    /// Step size. A server that follows another one's decisions makes its steps with that one's.
    pub learning_rate: f32,
    /// How the step size falls, by the version that an update is made on.
    pub schedule: Schedule,
    /// Threads that fold, the caller's own among them.
    pub threads: usize,
    /// The number of this shard of the table, and the number of shards. Under a scheme that counts versions the
    /// server of shard 0 decides for all, and the others [`follow`](super::Server::follow) it.
    pub shard: (u16, u16),
    /// Settings of its memory.
    pub memory: ShardOptions,
    /// Whether it writes checkpoints: where, and how often.
    pub checkpoint: Option<CheckpointOptions>,
    /// Measure norm and variance of gradients though the scheme has no use for them.
    pub measure_moments: bool,
    /// The treatment of gradients that hold a NaN or an infinity.
    pub non_finite: NonFinite,
}

/// Treatments of gradients that hold a NaN or an infinity. The server counts such gradients in any case
/// ([`ServerStatus::non_finite`]), except a server that folds on a GPU and allows them. To notice them costs no pass
/// over memory; a fold with such a gradient is done again without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum NonFinite {
    /// They are folded in as they are, and the parameters are not finite from then on ([`ServerStatus::diverged`]).
    #[default]
    Allow,
    /// They are left out, and count as dropped. The other gradients of the update keep their weights.
    Drop,
    /// As [`Drop`](Self::Drop), and the worker that sent one is evicted.
    Refuse,
}

impl ServerOptions {
    /// Plain SGD on one shard with one thread.
    pub fn new(scheme: impl Into<scheme::AnyScheme>, workers: usize, learning_rate: f32) -> ServerOptions {
        ServerOptions {
            scheme: scheme.into(),
            damping: scheme::Damping::None,
            additive: false,
            workers,
            optimizer: Optimizer::Sgd { weight_decay: 0.0 },
            learning_rate,
            schedule: Schedule::Constant,
            threads: 1,
            shard: (0, 1),
            memory: ShardOptions::default(),
            checkpoint: None,
            measure_moments: false,
            non_finite: NonFinite::default(),
        }
    }
}

/// The report of a server about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ServerStatus {
    /// The newest version.
    pub version: Version,
    /// All gradients of clocks before this one are in it.
    pub smallest_clock: Clock,
    /// Workers that are in.
    pub workers: usize,
    /// Readers that are in.
    pub readers: usize,
    /// Workers that ever joined.
    pub joined: u64,
    /// Workers that left or were evicted.
    pub left: u64,
    /// Peers that were refused.
    pub refused: u64,
    /// Number of accesses by peers to memory that they were not granted: [`Transport::access_violations`].
    pub access_violations: u64,
    /// Devices side by side that connections have lost, and gone on over the others: [`Transport::rails_lost`].
    pub rails_lost: u64,
    /// Workers that were evicted because their words broke the protocol.
    pub misbehaved: u64,
    /// Gradients that were folded in, including the gradients in the checkpoint that this incarnation began with. A sum
    /// over the workers of a host counts as many as it holds.
    pub folded: u64,
    /// The sum, over the gradients that this incarnation folded in, of the versions between the version that a gradient
    /// was computed on and the version that it is in. In a server that began at version 0 this over `folded` is
    /// the mean staleness in versions.
    pub versions_behind: u64,
    /// Gradients of this incarnation that were computed on the version right before the version that they are in.
    pub fresh: u64,
    /// Gradients that were consumed without being folded in.
    pub dropped: u64,
    /// Gradients that were announced, and void because their worker left before they were folded in or dropped.
    pub voided: u64,
    /// Gradients in the decider's versions that this server, which follows it, does not have: it was lost and
    /// started again after they were announced.
    pub missing: u64,
    /// Gradients that held a NaN or an infinity, folded in or not.
    pub non_finite: u64,
    /// The first version with a parameter, or a second moment of Adam or AdamW, that is NaN or infinite. From then on
    /// no checkpoint is written.
    pub diverged: Option<Version>,
    /// Gradients in the newest version.
    pub gradients: u64,
    /// Number of times that a worker was asked to abandon its computation. A request also counts where it is in
    /// vain because the worker has just published.
    pub interrupts: u64,
    /// Mean of the losses that came with the gradients of the newest version.
    pub loss: Option<f64>,
    /// Number of gradients that the next version waits for, where the scheme chooses that.
    pub waits_for: Option<u64>,
    /// Number of versions that a gradient may be behind by now, where the scheme bounds that.
    pub staleness_bound: Option<u64>,
    /// Squared Euclidean norm of the mean gradient of the newest version that has told one, where the scheme asks for
    /// it ([`scheme::SchemeConfig::measures_moments`]) or the options do.
    pub mean_norm_squared: Option<f64>,
    /// Trace of the covariance of one gradient, as the newest version that has told one has it, where the scheme or
    /// the options ask for it.
    pub variance: Option<f64>,
    /// The newest version that this incarnation of the server has brought safely to the disk.
    pub checkpointed: Option<Version>,
    /// Checkpoints that could not be written; [`checkpoint_failure`](super::Server::checkpoint_failure) says why.
    pub checkpoints_failed: u64,
    /// The most versions that a returning worker had seen beyond the first version of this incarnation: updates that
    /// were lost with the incarnation before. `None` while no such worker has come.
    pub lost_updates: Option<u64>,
    /// False if another server decides for this one and this one is not connected to it: call
    /// [`Server::follow`](super::Server::follow).
    pub is_following: bool,
}

impl ServerStatus {
    /// Counts a gradient, or a sum over so many workers, that was computed on version `base` and is folded into
    /// `version`.
    pub(super) fn count_folded(&mut self, workers: u64, base: Version, version: Version) {
        let behind = version.get().saturating_sub(base.get()).saturating_sub(1);
        self.folded = self.folded.saturating_add(workers);
        self.versions_behind = self.versions_behind.saturating_add(behind.saturating_mul(workers));
        self.fresh = self.fresh.saturating_add(if behind == 0 { workers } else { 0 });
    }
}
