//! Channels: framed, mutually authenticated messages over TCP. Who may connect is proved before anything else is said.
//!
//! Both sides know a [`Secret`]. Each sends a random nonce, and proves with HMAC-SHA256 over the whole conversation so
//! far (purposes, roles, ranks, epochs and both nonces) that it knows the secret, without showing it; neither proof can
//! be replayed, nor be sent back to its author. From then on every message carries an HMAC under a key that only this
//! conversation has, so that what was damaged, cut, repeated or moved is noticed. Nothing is encrypted.
//!
//! Without a secret both ends must be loopback addresses: every process of the host is let in, and no other one. No
//! listener listens beyond loopback then.
//!
//! All that a stranger can make this side hold is one message of 64 bytes; how long it may take, and how many strangers
//! may be under way, is for the listener to bound.
//!
//! ```text
//! greeting, 64 bytes each                  0  tag         "slk-hail" "slk-dare" "slk-prov" "slk-well" "slk-nope"
//!   client  hail                           8  u32 version of this format
//!   server  dare        or nope           12  u32 purpose (nope: the reason)
//!   client  prov        (its proof)       16  u32 role      u32 rank      u64 epoch      (proofs, nope: zero)
//!   server  well        (its proof)       32  nonce, or proof
//!
//! message   u32 bytes, payload, 32 bytes HMAC over direction, number of the message, bytes and payload
//! ```
//!
//! ```
//! use slackline::channel::{Channel, Identity, Purpose, Secret, Terms};
//! use std::net::TcpListener;
//!
//! let terms = Terms { secret: Some(Secret::random()?), ..Terms::new(Purpose::Rendezvous) };
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut client = Channel::connect(listener.local_addr()?, &terms)?;
//! let mut server = Channel::accept(listener.accept()?.0, &terms)?;
//! client.send(b"hello")?;
//! let heard = loop {
//!     client.poll()?;
//!     if let Some(message) = server.poll()? {
//!         break message;
//!     }
//! };
//! assert_eq!(heard, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod greeting;
mod seal;
mod secret;
mod stream;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use error::ChannelError;
pub use secret::{Secret, SecretError};
pub use stream::Channel;

/// Version of everything that a channel says.
pub const CHANNEL_VERSION: u32 = 1;

/// What a connection is for. A client that reached the wrong kind of port is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The meeting point of a job.
    Rendezvous = 1,
    /// Memory of a peer over TCP.
    Transport = 2,
    /// Memory of a peer by RDMA.
    Verbs = 3,
    /// The other side of a measurement.
    Measurement = 4,
}

/// Who is on one side. Covered by both proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// What it is; the layer above numbers the roles, 0 is none.
    pub role: u32,
    /// Which one of its job, where that is known.
    pub rank: Option<u32>,
    /// One life of it: a random number, 0 is none.
    pub epoch: u64,
}

/// On which terms a connection is made.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What both sides know. Without one, only loopback addresses are dialled and accepted.
    pub secret: Option<Secret>,
    /// What it is for.
    pub purpose: Purpose,
    /// Who this side is.
    pub identity: Identity,
    /// Longest message that is accepted, in bytes.
    pub limit: usize,
}

impl Terms {
    /// No secret, no identity, and messages of at most 1 MiB.
    pub fn new(purpose: Purpose) -> Terms {
        Terms { secret: None, purpose, identity: Identity::default(), limit: 1 << 20 }
    }

    /// True if these terms allow to listen or to talk at an address: with a secret at any, without one at loopback
    /// addresses only.
    pub(crate) fn allow(&self, address: SocketAddr) -> bool {
        self.secret.is_some() || address.ip().to_canonical().is_loopback()
    }
}
