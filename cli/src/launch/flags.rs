//! What can be told by hand.

use super::{LaunchError, MeetingPoint};

/// Where this process stands in a job, told by hand. Only what the launcher does not tell is needed.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Which process of the job this is, from 0 [default: what the launcher says, or SLACKLINE_RANK]
    #[arg(long, help_heading = "Job", value_name = "RANK")]
    pub rank: Option<u32>,

    /// Processes of the job, on all hosts together [default: what the launcher says, or SLACKLINE_WORLD_SIZE]
    #[arg(long, help_heading = "Job", value_name = "N")]
    pub world_size: Option<u32>,

    /// Which process of this host this is, from 0 [default: what the launcher says, or SLACKLINE_LOCAL_RANK]
    #[arg(long, help_heading = "Job", value_name = "RANK")]
    pub local_rank: Option<u32>,

    /// Where the processes of the job meet: a name or address of rank 0's host that all others can reach, and a free
    /// port on it; the same for all [default: derived from what the launcher says, or SLACKLINE_RENDEZVOUS]
    #[arg(long, help_heading = "Job", value_name = "HOST:PORT")]
    pub rendezvous: Option<String>,
}

impl Flags {
    /// Where to meet, if the flag or its variable says so: all that a process without a rank needs.
    pub fn meeting_point(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<MeetingPoint>, LaunchError> {
        let parse = |name: &'static str, value: String| {
            value.parse().map_err(|reason| LaunchError::MeetingPoint { name, value, reason })
        };
        if let Some(value) = self.rendezvous.clone() {
            return parse("--rendezvous", value).map(Some);
        }
        let told = env("SLACKLINE_RENDEZVOUS").filter(|value| !value.trim().is_empty());
        told.map(|value| parse("SLACKLINE_RENDEZVOUS", value)).transpose()
    }
}
