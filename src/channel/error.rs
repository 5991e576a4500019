//! Errors of a channel: it could not be made, or it ended.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use super::CHANNEL_VERSION;
use crate::diagnostic::{Diagnostic, remedy_of};

/// A channel failed. It is of no more use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The system refused.
    #[error("cannot {operation}: {source}")]
    System {
        /// The operation that was tried.
        operation: &'static str,
        /// The error that the system reported.
        source: io::Error,
    },
    /// The other side closed the connection.
    #[error("the connection was closed {when}")]
    Closed {
        /// At which point of the conversation.
        when: &'static str,
    },
    /// The other side does not speak this protocol.
    #[error("what answers is not slackline: {}", remedy_of(self))]
    Foreign,
    /// The other side speaks another version.
    #[error(
        "it speaks channel version {theirs}, this process version {CHANNEL_VERSION}: {}",
        remedy_of(self)
    )]
    Version {
        /// The version that the other side speaks.
        theirs: u32,
    },
    /// The other side is there for something else.
    #[error("it serves {theirs}, not {ours}: {}", remedy_of(self))]
    Purpose {
        /// The purpose that the other side serves.
        theirs: &'static str,
        /// The purpose that this side wanted.
        ours: &'static str,
    },
    /// One side demands that TCP data is encrypted, and the other one does not.
    #[error("its tcp data is {theirs}, that of this process {ours}: {}", remedy_of(self))]
    Encryption {
        /// The way in which the other side's data travels.
        theirs: &'static str,
        /// The way in which this side's data travels.
        ours: &'static str,
    },
    /// The other side does not know the secret that this side knows.
    #[error("the two sides do not know the same secret: {}", remedy_of(self))]
    Secret,
    /// A process that knows a reader's secret alone wanted something else than to read.
    #[error("the secret opens reading only: {}", remedy_of(self))]
    ReadingOnly,
    /// There is no secret, and the other side is not on this host.
    #[error(
        "{address} is not a loopback address, and without a secret only loopback is let in: {}",
        remedy_of(self)
    )]
    NeedsSecret {
        /// The other side.
        address: SocketAddr,
    },
    /// A message is longer than the agreed limit.
    #[error("a message of {bytes} bytes is too long: at most {limit} are taken")]
    Oversized {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// A message was changed, cut, repeated or moved on its way.
    #[error("a message was damaged on its way: its authentication tag does not match")]
    Damaged,
    /// No random numbers are to be had.
    #[error("the system gives no random numbers: {0}")]
    NoRandom(String),
}

impl Diagnostic for ChannelError {
    fn operation(&self) -> &'static str {
        "connecting"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ChannelError::Foreign => "check the address and the port".into(),
            ChannelError::Version { .. } => "run the same slackline on both sides".into(),
            ChannelError::Purpose { .. } => "check the port".into(),
            ChannelError::Encryption { .. } => {
                "encrypt it in all processes of the job or in none (--encrypt, or SLACKLINE_TCP_ENCRYPT=1)"
                    .into()
            }
            ChannelError::Secret => "give all processes of the job the same secret file".into(),
            ChannelError::ReadingOnly => "give this process the secret of the job".into(),
            ChannelError::NeedsSecret { .. } => {
                "give all processes of the job one secret (a file of mode 0600)".into()
            }
            _ => return None,
        })
    }
}

impl ChannelError {
    pub(super) fn system(operation: &'static str) -> impl FnOnce(io::Error) -> ChannelError {
        move |source| ChannelError::System { operation, source }
    }
}
