//! The transports that a pair of processes can use.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, remedy_of};

/// A transport between two processes, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TransportKind {
    /// Shared memory, on one host.
    Shm,
    /// RDMA by verbs: InfiniBand, RoCE or soft-RoCE.
    Verbs,
    /// TCP.
    Tcp,
}

impl TransportKind {
    /// All transports, the cheapest first.
    pub(crate) const ALL: [TransportKind; 3] = [TransportKind::Shm, TransportKind::Verbs, TransportKind::Tcp];

    /// Checks that the library was built with this transport.
    pub(crate) fn check_built(self) -> Result<(), NotBuilt> {
        let is_built = match self {
            TransportKind::Shm => true,
            TransportKind::Verbs => cfg!(feature = "verbs"),
            TransportKind::Tcp => cfg!(feature = "tcp"),
        };
        if is_built { Ok(()) } else { Err(NotBuilt { transport: self }) }
    }
}

/// The library was built without a transport that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this program has a slackline without the transport {transport}; {}", remedy_of(self))]
#[non_exhaustive]
pub struct NotBuilt {
    /// The transport, and the feature of the library that adds it.
    pub transport: TransportKind,
}

impl Diagnostic for NotBuilt {
    fn operation(&self) -> &'static str {
        "choosing a transport"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(format!("build it with the feature `{}` of slackline", self.transport).into())
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TransportKind::Shm => "shm",
            TransportKind::Verbs => "verbs",
            TransportKind::Tcp => "tcp",
        })
    }
}

/// The text is the name of no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no transport; {}", remedy_of(self))]
pub struct UnknownTransport {
    text: String,
}

impl Diagnostic for UnknownTransport {
    fn operation(&self) -> &'static str {
        "reading the name of a transport"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some("use shm, verbs or tcp".into())
    }
}

impl FromStr for TransportKind {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<TransportKind, UnknownTransport> {
        let named = |kind: &TransportKind| kind.to_string() == text;
        TransportKind::ALL.into_iter().find(named).ok_or_else(|| UnknownTransport { text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_unknown_transport_ends_in_the_remedy() {
        let error = "pigeon".parse::<TransportKind>().unwrap_err();
        assert_eq!(error.to_string(), "`pigeon` is no transport; use shm, verbs or tcp");
        assert!(error.to_string().ends_with(&*error.remedy().unwrap()), "{error}");
    }
}
