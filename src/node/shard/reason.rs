//! The reasons why peers leave.

use crate::param::Eviction;
use crate::transport::Disconnected;

/// The reason why a peer left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// Its connection ended: it finished, or died.
    Closed(Disconnected),
    /// It was silent for longer than the lease.
    Silent,
    /// The data that it wrote broke the protocol.
    Misbehaved(String),
}

impl DisconnectReason {
    /// Returns the code that the peer finds in its line.
    pub(super) fn eviction(&self) -> Eviction {
        match self {
            DisconnectReason::Closed(_) => Eviction::Left,
            DisconnectReason::Silent => Eviction::Silent,
            DisconnectReason::Misbehaved(_) => Eviction::Misbehaved,
        }
    }
}

impl std::fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DisconnectReason::Closed(gone) => f.write_str(gone.reason),
            DisconnectReason::Silent => f.write_str("it was silent for longer than the lease"),
            DisconnectReason::Misbehaved(how) => f.write_str(how),
        }
    }
}
