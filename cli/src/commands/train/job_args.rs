//! The options that every process of a job takes: its rank, and the secret of the job.

use crate::rank_args::RankArgs;
use crate::secret_args::SecretArgs;

/// Options that every process of a job takes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(super) rank: RankArgs,

    #[command(flatten)]
    pub(super) secret: SecretArgs,
}
