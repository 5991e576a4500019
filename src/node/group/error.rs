//! Errors of groups.

use std::time::Duration;

use crate::transport::Address;

/// An operation of a group's member failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Not all members connected in time.
    #[error(
        "members {ranks:?} did not connect within {waited:?}; start them, or look at their logs for why they went{}",
        .last.as_ref().map(|last| format!(" (the last attempt: {last})")).unwrap_or_default()
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
        "round {round} did not end within {waited:?}: members {missing:?} are alive and late; {}", self.help()
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
         soon as they find its connection closed: there is nothing to do"
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
         that failed); its parameters are its own from here on, so start it again with the others"
    )]
    CutOff {
        /// This member.
        rank: usize,
    },
    /// Another member takes part in the same round with another group.
    #[error("member {rank} averages round {round} in another group than this one: {}", self.help())]
    Disagree {
        /// The rank of that member.
        rank: usize,
        /// The round.
        round: u64,
    },
}

impl GroupError {
    /// The remedy, where there is one.
    pub(crate) fn remedy(&self) -> Option<&'static str> {
        Some(self.help()).filter(|text| !text.is_empty())
    }

    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            GroupError::Deadline { .. } => "call again to go on waiting, or abandon the round",
            GroupError::Disagree { .. } => "give all members of a group the same list",
            _ => "",
        }
    }
}
