//! The options that say which process of the job this is.

use slackline::internals::job::env::LaunchFlags;

/// A process's rank in its job. Only the values that no launcher gives are needed.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RankArgs {
    /// Rank of this process in the job, from 0 [default: the launcher's, or SLACKLINE_RANK]
    #[arg(long, help_heading = "Job", value_name = "RANK")]
    rank: Option<u32>,

    /// Processes of the job, on all hosts together [default: the launcher's, or SLACKLINE_WORLD_SIZE]
    #[arg(long, help_heading = "Job", value_name = "N")]
    world_size: Option<u32>,

    /// Rank of this process on its host, from 0 [default: the launcher's, or SLACKLINE_LOCAL_RANK]
    #[arg(long, help_heading = "Job", value_name = "RANK")]
    local_rank: Option<u32>,

    /// Rendezvous of the job: a host and port of rank 0 that all can reach
    ///
    /// The port is free on the host of rank 0, and the address is the same for all processes. [default: derived from
    /// the launcher's variables, or SLACKLINE_RENDEZVOUS]
    #[arg(long, help_heading = "Job", value_name = "HOST:PORT")]
    rendezvous: Option<String>,
}

impl RankArgs {
    /// The options as the library takes them.
    pub(crate) fn flags(&self) -> LaunchFlags {
        let RankArgs { rank, world_size, local_rank, rendezvous } = self.clone();
        LaunchFlags { rank, world_size, local_rank, rendezvous }
    }
}
