//! The settings that a person gives by hand.

use super::{LaunchError, RendezvousEndpoint, RendezvousEndpointError};

/// A process's position in its job, given by hand. Only the values that no launcher gives are needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchFlags {
    /// The rank of this process in the job, from 0 [default: the launcher's, or SLACKLINE_RANK]
    pub rank: Option<u32>,

    /// Processes of the job, on all hosts together [default: the launcher's, or SLACKLINE_WORLD_SIZE]
    pub world_size: Option<u32>,

    /// The rank of this process on its host, from 0 [default: the launcher's, or SLACKLINE_LOCAL_RANK]
    pub local_rank: Option<u32>,

    /// The rendezvous of the job's processes: a name or address of rank 0's host that all others can reach, and
    /// a free port on it; the same for all [default: derived from the launcher's variables, or SLACKLINE_RENDEZVOUS]
    pub rendezvous: Option<String>,
}

impl LaunchFlags {
    /// Returns the rendezvous, if the flag or its variable names one: a process without a rank needs no more.
    pub fn rendezvous(
        &self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<RendezvousEndpoint>, LaunchError> {
        let parse = |name: &'static str, value: String| {
            let parsed = value.parse();
            parsed.map_err(|RendezvousEndpointError { reason }| LaunchError::RendezvousEndpoint {
                name,
                value,
                reason,
            })
        };
        if let Some(value) = self.rendezvous.clone() {
            return parse("--rendezvous", value).map(Some);
        }
        let told = env("SLACKLINE_RENDEZVOUS").filter(|value| !value.trim().is_empty());
        told.map(|value| parse("SLACKLINE_RENDEZVOUS", value)).transpose()
    }
}
