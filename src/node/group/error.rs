//! What goes wrong in a group.

use std::time::Duration;

use crate::transport::Address;

/// An operation of a group's member failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// Not all members came.
    #[error(
        "members {ranks:?} did not connect within {waited:?}; start them, or look at their logs for why they went{}",
        .last.as_ref().map(|last| format!(" (the last attempt: {last})")).unwrap_or_default()
    )]
    Absent {
        /// Who is missing.
        ranks: Vec<usize>,
        /// How long was waited.
        waited: Duration,
        /// Why the last attempt to connect to one of them failed.
        last: Option<String>,
    },
    /// Whoever listens there is not the member that it should be.
    #[error("the peer at {address} is not the member that is meant: {reason}")]
    Foreign {
        /// Where it is.
        address: Address,
        /// What is wrong with it.
        reason: String,
    },
    /// The deadline passed. The round is still under way.
    #[error(
        "round {round} did not end within {waited:?}: members {missing:?} are alive and late; {}", self.help()
    )]
    Deadline {
        /// The round.
        round: u64,
        /// How long was waited.
        waited: Duration,
        /// Whose parts are missing; at the end of a round, whom this member's parts have not reached.
        missing: Vec<usize>,
    },
    /// This member has left, and some do not know.
    #[error(
        "members {ranks:?} did not hear within {waited:?} that this one leaves; they go on without it all the same, as \
         soon as they find its connection closed: there is nothing to do"
    )]
    Unheard {
        /// Who has not heard of it.
        ranks: Vec<usize>,
        /// How long was waited.
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
    /// Another member was told of another group.
    #[error("member {rank} averages round {round} in another group than this one: {}", self.help())]
    Disagree {
        /// Which one.
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
