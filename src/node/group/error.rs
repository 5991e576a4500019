//! Errors of groups.

use std::borrow::Cow;
use std::time::Duration;

use crate::diagnostic::{Diagnostic, remedy_of};
use crate::transport::Address;

/// An operation of a group's member failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Not all members connected in time.
    #[error(
        "members {ranks:?} did not connect within {waited:?}{}; {}",
        .last.as_ref().map(|last| format!(" (the last attempt: {last})")).unwrap_or_default(), remedy_of(self)
    )]
    Absent {
        /// The ranks of the missing members.
        ranks: Vec<usize>,
        /// The time that was waited.
        waited: Duration,
        /// The error of the last attempt to connect to one of them.
        last: Option<String>,
    },
    /// The process that listens at the address is not the member that it should be.
    #[error("the peer at {address} is not the member that is meant: {reason}")]
    Foreign {
        /// The address of that process.
        address: Address,
        /// The difference from the member that is meant, in words.
        reason: String,
    },
    /// The deadline passed. The round is still under way.
    #[error(
        "round {round} did not end within {waited:?}: members {missing:?} are alive and late; {}",
        remedy_of(self)
    )]
    Deadline {
        /// The round.
        round: u64,
        /// The time that was waited.
        waited: Duration,
        /// The members whose parts are missing; at the end of a round, the members that this member's parts have
        /// not reached.
        missing: Vec<usize>,
    },
    /// This member has left, and some other members do not know it.
    #[error(
        "members {ranks:?} did not hear within {waited:?} that this one leaves; they go on without it all the same, as \
         soon as they find its connection closed: {}",
        remedy_of(self)
    )]
    Unheard {
        /// The ranks of the members that have not heard of it.
        ranks: Vec<usize>,
        /// The time that was waited.
        waited: Duration,
    },
    /// The others took this member for dead and go on without it.
    #[error(
        "the group has cut off member {rank}: it was silent for longer than the lease (a frozen process, a network \
         that failed); {}",
        remedy_of(self)
    )]
    CutOff {
        /// This member.
        rank: usize,
    },
    /// A GPU of this process did not copy this member's part to another one. The others go on without this member.
    #[error(
        "a GPU of this process did not copy a part to member {rank}, and the group goes on without this member; {}",
        remedy_of(self)
    )]
    NotCopied {
        /// The rank of the member that was to get the part.
        rank: usize,
    },
    /// Another member takes part in the same round with another group.
    #[error("member {rank} averages round {round} in another group than this one: {}", remedy_of(self))]
    Disagree {
        /// The rank of that member.
        rank: usize,
        /// The round.
        round: u64,
    },
}

impl Diagnostic for GroupError {
    fn operation(&self) -> &'static str {
        match self {
            GroupError::Absent { .. } | GroupError::Foreign { .. } => "meeting the group",
            GroupError::Unheard { .. } => "leaving the group",
            GroupError::Deadline { .. }
            | GroupError::CutOff { .. }
            | GroupError::NotCopied { .. }
            | GroupError::Disagree { .. } => "averaging in a group",
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            GroupError::Absent { .. } => "start them, or look at their logs for why they went".into(),
            GroupError::Deadline { .. } => "call again to go on waiting, or abandon the round".into(),
            GroupError::Unheard { .. } => "there is nothing to do".into(),
            GroupError::CutOff { .. } => {
                "its parameters are its own from here on, so start it again with the others".into()
            }
            GroupError::NotCopied { .. } => {
                "look at its log for the driver's error, and start it again with the others".into()
            }
            GroupError::Disagree { .. } => "give all members of a group the same list".into(),
            GroupError::Foreign { .. } => return None,
        })
    }

    fn is_retryable(&self) -> bool {
        matches!(self, GroupError::Deadline { .. } | GroupError::Absent { .. })
    }
}
