//! The reasons why a process cannot tell its rank in a job.

use std::borrow::Cow;

use super::{Source, endpoint};
use crate::diagnostic::{Diagnostic, remedy_of};

/// The flags and the environment contradict each other, or do not say enough. The cause is always a mistake in how
/// the process was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Only a part of the variables that give a process its rank is set.
    #[error("{present} needs {missing}; {}", remedy_of(self))]
    Partial {
        /// The variable that is set, with its value.
        present: String,
        /// The variable that is missing.
        missing: &'static str,
    },
    /// A variable has a value that has no counterpart here.
    #[error("{present} has no counterpart in a job: {reason}")]
    Unmapped {
        /// The variable, with its value.
        present: String,
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// The value is not a whole number where one must be.
    #[error("{name}={value} is no whole number from 0 to 4294967295; {}", remedy_of(self))]
    Number {
        /// The flag or variable.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// The size of a job of no process.
    #[error("{world} leaves no rank for a process; {}", remedy_of(self))]
    Empty {
        /// The size, with its name.
        world: String,
    },
    /// Ranks count from 0.
    #[error("{rank} is not below {world}; {}", remedy_of(self))]
    Rank {
        /// The rank, with its name.
        rank: String,
        /// The size, with its name.
        world: String,
    },
    /// A flag or a variable of ours contradicts the launcher.
    #[error("{told} contradicts {launched}, which {launcher} says; {}", remedy_of(self))]
    Contradiction {
        /// The flag or our own variable, with its value.
        told: String,
        /// The launcher's variable, with its value.
        launched: String,
        /// The launcher.
        launcher: Source,
    },
    /// Two launchers, neither of which can have started the other.
    #[error(
        "{one} says rank {} of {}, and {other} says rank {} of {}; {}",
        .ranks[0].0, .ranks[0].1, .ranks[1].0, .ranks[1].1, remedy_of(self)
    )]
    TwoLaunchers {
        /// One.
        one: Source,
        /// The other.
        other: Source,
        /// Rank and size of each.
        ranks: [(u32, u32); 2],
    },
    /// PMIx has no size.
    #[error("PMIX_RANK={rank} comes without the size of the job; {}", remedy_of(self))]
    NoSize {
        /// The rank.
        rank: u32,
    },
    /// The value is not a host and a port.
    #[error("{name} {value}: {reason}; {}", remedy_of(self))]
    RendezvousEndpoint {
        /// The flag or variable.
        name: &'static str,
        /// The value.
        value: String,
        /// The fault of the value.
        reason: &'static str,
    },
    /// The value is not a list of hosts.
    #[error("{name}={value} is no list of hosts; {}", remedy_of(self))]
    HostList {
        /// The variable.
        name: &'static str,
        /// The value.
        value: String,
    },
    /// Neither the launcher nor the flags say where to meet.
    #[error("nothing from {launcher} says {what}; {remedy}")]
    NoRendezvous {
        /// The launcher that started the process.
        launcher: Source,
        /// The fact that is missing.
        what: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
}

impl Diagnostic for LaunchError {
    fn operation(&self) -> &'static str {
        "reading the environment"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            LaunchError::Partial { present, missing } => {
                format!("set {missing}, or take {present} away").into()
            }
            LaunchError::Unmapped { reason, .. } => (*reason).into(),
            LaunchError::Number { .. } => "correct it, or take it away".into(),
            LaunchError::Empty { .. } => "count all processes of the job, at least 1".into(),
            LaunchError::Rank { .. } => "ranks count from 0: the last is the size less one".into(),
            LaunchError::Contradiction { launcher, .. } => format!(
                "leave the flags and SLACKLINE_ variables away under {launcher}, or take the variables of {launcher} \
                 away (env -u NAME)"
            )
            .into(),
            LaunchError::TwoLaunchers { .. } => {
                "take the variables of one of them away (env -u NAME), or start the job with one launcher".into()
            }
            LaunchError::NoSize { .. } => "set --world-size or SLACKLINE_WORLD_SIZE".into(),
            LaunchError::RendezvousEndpoint { .. } => endpoint::REMEDY.into(),
            LaunchError::HostList { .. } => {
                "set --rendezvous or SLACKLINE_RENDEZVOUS to HOST:PORT of rank 0".into()
            }
            LaunchError::NoRendezvous { remedy, .. } => (*remedy).into(),
        })
    }
}
