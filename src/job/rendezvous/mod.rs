//! The meeting of a job's processes: how they find each other.
//!
//! One of them, rank 0, keeps the rendezvous: a [`Hub`]. Every other process [joins](Membership::join) it over
//! an authenticated channel and tells its role and its host. It is told which other processes are in and where they
//! listen. From that, [`choose`](super::choose::choose) picks for each pair the best way to reach each other. The
//! job's own messages (its configuration, how it gets on) travel on the same channels. Members may join late and
//! leave; a member that returns has a new generation. No other service is needed.
//!
//! ```
//! use std::time::Duration;
//! use slackline::internals::job::rendezvous::{Host, Hub, HubEvent, HubOptions, Introduction};
//! use slackline::internals::job::rendezvous::{MemberEvent, MemberRole, Membership};
//! use slackline::Address;
//!
//! let timeout = Duration::from_secs(10);
//! let mut hub = Hub::listen("127.0.0.1:0".parse()?, HubOptions::default())?;
//! let address = hub.address().to_string();
//! let server = std::thread::spawn(move || {
//!     let introduction = Introduction::new(MemberRole::Server, Host::own());
//!     let mut membership = Membership::join(&address, introduction, None, timeout)?;
//!     membership.announce(vec![Address::random()], None)?;
//!     loop {
//!         if let Some(MemberEvent::Said(message)) = membership.poll()? {
//!             return Ok::<_, slackline::internals::job::rendezvous::RendezvousError>(message);
//!         }
//!     }
//! });
//! loop {
//!     match hub.poll() {
//!         Some(HubEvent::Announced(member)) => {
//!             assert_eq!((member.role, member.role_rank), (MemberRole::Server, 0));
//!             assert_eq!(member.addresses.len(), 1);
//!             hub.say(member.id, b"the configuration");
//!         }
//!         Some(HubEvent::Left { .. }) => break,
//!         _ => {}
//!     }
//! }
//! assert_eq!(server.join().unwrap()?, b"the configuration");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod hub;
mod membership;
mod resolve;
mod wire;

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub use crate::transport::Host;
pub use hub::{Hub, HubEvent, HubOptions};
pub use membership::{MemberEvent, Membership};
pub use resolve::listen_address;
#[cfg(any(test, fuzzing))]
pub(crate) use wire::{fuzz_messages, message_samples};

use crate::channel::ChannelError;
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::transport::Address;

/// Longest message of a job, in bytes. The sender cuts a longer one.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Most members of one job.
pub const MAX_MEMBERS: usize = 4096;

/// Most addresses that a member may announce.
pub const MAX_ADDRESSES: usize = 16;

/// The role of a member in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MemberRole {
    /// Holds a shard; its rank within the role is the shard's number.
    Server,
    /// Computes gradients; its rank within the role is the worker's number.
    Worker,
    /// Reads parameters only.
    Reader,
}

impl std::fmt::Display for MemberRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemberRole::Server => "server",
            MemberRole::Worker => "worker",
            MemberRole::Reader => "reader",
        })
    }
}

/// Names a member while it is in; never used again for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MemberId(pub u64);

/// The facts about itself that a process tells when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Introduction {
    /// The role that it asks for.
    pub role: MemberRole,
    /// The rank that it asks for within its role, counted from 0. Without one it gets the lowest that is free.
    pub role_rank: Option<u32>,
    /// Its rank as its launcher counts.
    pub rank: Option<u32>,
    /// The host that it runs on.
    pub host: Host,
    /// Its process id, for people.
    pub process: u32,
}

impl Introduction {
    /// This process on `host`, with any free rank within its role.
    pub fn new(role: MemberRole, host: Host) -> Introduction {
        Introduction { role, role_rank: None, rank: None, host, process: std::process::id() }
    }
}

/// A process that is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub id: MemberId,
    /// The role of the member.
    pub role: MemberRole,
    /// The rank of the member within its role.
    pub role_rank: u32,
    /// Number of members that had this rank within this role before it: a process that was started again has a higher
    /// one.
    pub generation: u64,
    /// Its rank as its launcher counts.
    pub rank: Option<u32>,
    /// The host that it runs on.
    pub host: Host,
    /// Its process id there.
    pub process: u32,
    /// The addresses at which others reach its memory, if it has announced them yet.
    pub addresses: Vec<Address>,
    /// The number of the GPU that it serves payloads from, if they are on one: its UUID.
    pub gpu: Option<[u8; 16]>,
}

/// The meeting failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// Rank 0 cannot listen.
    #[error("cannot listen at {address} for the other ranks: {source}; {}", remedy_of(self))]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Without a secret, rank 0 would let in any process that connects.
    #[error(
        "cannot listen at {address}: without a secret only loopback addresses are served; {}",
        remedy_of(self)
    )]
    NeedsSecret {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// The rendezvous is no address, or its name is not known by the deadline.
    #[error("the rendezvous {address} cannot be found: {source}; {}", remedy_of(self))]
    Resolve {
        /// The address that was given.
        address: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The name of the rendezvous leads to an address that no other host reaches.
    #[error("the rendezvous {address} is at {at}, which no other host reaches; {}", remedy_of(self))]
    OnlyHere {
        /// The address that was given.
        address: String,
        /// The first address that its name has.
        at: std::net::IpAddr,
    },
    /// Rank 0 did not answer in time, or had no rank for this process until the deadline.
    #[error("could not join at {address} within {waited:?}: {last}; {}", remedy_of(self))]
    Timeout {
        /// The rendezvous.
        address: String,
        /// The time that was spent on trying.
        waited: std::time::Duration,
        /// The outcome of the last try; the refusal, where rank 0 had refused before and is gone.
        last: String,
        /// Rank 0 answered, and had no rank for this process.
        answered: bool,
    },
    /// The conversation cannot be had.
    #[error("cannot talk to rank 0 at {address}: {source}")]
    Channel {
        /// The rendezvous.
        address: String,
        /// The cause.
        source: ChannelError,
    },
    /// Rank 0 does not want this member.
    #[error("rank 0 at {address} does not let this process in: {reason}")]
    Refused {
        /// The rendezvous.
        address: String,
        /// The reason that rank 0 gave.
        reason: String,
    },
    /// Rank 0 said something that is no message, or out of turn.
    #[error("rank 0 at {address} broke the protocol: {reason}; {}", remedy_of(self))]
    Protocol {
        /// The rendezvous.
        address: String,
        /// The breach of the protocol.
        reason: &'static str,
    },
    /// The thread that keeps the connection to rank 0 cannot be started.
    #[error("cannot start the thread that talks to rank 0: {_0}; {}", remedy_of(self))]
    Thread(std::io::Error),
    /// A text or a message to be sent is too long.
    #[error("{what} is too long to send: {length}, at most {limit}")]
    TooLong {
        /// The kind of the text or message.
        what: &'static str,
        /// Its length.
        length: usize,
        /// The limit.
        limit: usize,
    },
}

impl Diagnostic for RendezvousError {
    fn operation(&self) -> &'static str {
        "joining the job"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(Cow::from(match self {
            RendezvousError::Listen { .. } => "choose another port, or an address of this host",
            RendezvousError::NeedsSecret { .. } => {
                "give all processes one secret, a file of mode 600 (SLACKLINE_SECRET_FILE)"
            }
            RendezvousError::Resolve { .. } => "write HOST:PORT of rank 0's host",
            RendezvousError::OnlyHere { .. } => {
                "use an address of rank 0's host (--rendezvous IP:PORT, SLACKLINE_RENDEZVOUS), or correct its name in \
                 /etc/hosts; 127.0.0.1:PORT if all processes are on this host"
            }
            RendezvousError::Timeout { answered: true, .. } => {
                "start no more processes than the job has ranks"
            }
            RendezvousError::Timeout { .. } => "is rank 0 running, and is this its host and port?",
            RendezvousError::Channel { source, .. } => return source.remedy(),
            RendezvousError::Protocol { .. } => "run the same slackline everywhere",
            RendezvousError::Thread(_) => "see ulimit -u and ulimit -n",
            _ => return None,
        }))
    }

    fn is_retryable(&self) -> bool {
        matches!(self, RendezvousError::Timeout { .. })
    }
}
