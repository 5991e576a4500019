//! Why a process cannot tell where it stands.

use super::Source;

/// What the flags and the environment say cannot be, or is not enough. Always a mistake in how the process was called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Half of what places a process.
    #[error("{present} needs {missing}; set {missing}, or take {present} away")]
    Partial {
        /// What is there, with its value.
        present: String,
        /// What is not.
        missing: &'static str,
    },
    /// A value that has no counterpart here.
    #[error("{present} has no counterpart in a job: {reason}")]
    Unmapped {
        /// The variable, with its value.
        present: String,
        /// The reason and the remedy.
        reason: &'static str,
    },
    /// No number where one must be.
    #[error("{name}={value} is no whole number from 0 to 4294967295; correct it, or take it away")]
    Number {
        /// The flag or variable.
        name: &'static str,
        /// What it says.
        value: String,
    },
    /// The size of a job of no process.
    #[error("{world} leaves no place for a process; count all processes of the job, at least 1")]
    Empty {
        /// The size, with its name.
        world: String,
    },
    /// Ranks count from 0.
    #[error("{rank} is not below {world}; ranks count from 0: the last is the size less one")]
    Rank {
        /// The rank, with its name.
        rank: String,
        /// The size, with its name.
        world: String,
    },
    /// A launcher contradicted.
    #[error(
        "{told} contradicts {launched}, which {launcher} says; leave the flags and SLACKLINE_ variables away under \
         {launcher}, or take the variables of {launcher} away (env -u NAME)"
    )]
    Contradiction {
        /// What the flag or our own variable says.
        told: String,
        /// What the launcher's variable says.
        launched: String,
        /// The launcher.
        launcher: Source,
    },
    /// Two launchers, neither of which can have started the other.
    #[error(
        "{one} says rank {} of {}, and {other} says rank {} of {}; take the variables of one of them away \
         (env -u NAME), or start the job with one launcher", .places[0].0, .places[0].1, .places[1].0, .places[1].1
    )]
    TwoLaunchers {
        /// One.
        one: Source,
        /// The other.
        other: Source,
        /// Rank and size of each.
        places: [(u32, u32); 2],
    },
    /// PMIx has no size.
    #[error("PMIX_RANK={rank} comes without the size of the job; set --world-size or SLACKLINE_WORLD_SIZE")]
    NoSize {
        /// The rank.
        rank: u32,
    },
    /// Not a host and a port.
    #[error(
        "{name} {value}: {reason}; give a name or address and a port, such as node1:29400 or [fd00::1]:29400"
    )]
    MeetingPoint {
        /// The flag or variable.
        name: &'static str,
        /// What it says.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A list of hosts that is none.
    #[error(
        "{name}={value} is no list of hosts; set --rendezvous or SLACKLINE_RENDEZVOUS to HOST:PORT of rank 0"
    )]
    HostList {
        /// The variable.
        name: &'static str,
        /// What it says.
        value: String,
    },
    /// Nobody says where to meet.
    #[error("cannot tell {what} from {launcher}; {remedy}")]
    NowhereToMeet {
        /// Who placed the process.
        launcher: Source,
        /// What is missing.
        what: &'static str,
        /// What to do.
        remedy: &'static str,
    },
}
