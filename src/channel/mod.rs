//! Channels: framed, encrypted and mutually authenticated messages over TCP. Nothing is said before both sides have
//! proved that they may talk.
//!
//! Both sides know a [`Secret`]. The handshake is one of the Noise protocol framework, by the crate `snow`:
//! `Noise_NNpsk0_25519_ChaChaPoly_SHA256` with the SHA-256 of the secret as its pre-shared key. The client's first
//! message proves that it knows the secret, the server's answer that it does too, and the client's confirmation that
//! its first message was not a recorded one. From then on every message is encrypted under keys that only this
//! conversation has, and a message that was damaged, cut, repeated, moved or sent back is noticed. The keys come from
//! fresh Diffie-Hellman keys as well as from the secret: a process that records a conversation and learns the secret
//! later cannot read it.
//!
//! Without a secret both ends must be loopback addresses: every process of the host is let in, and no other one. No
//! listener listens beyond loopback then. The same handshake runs with a pre-shared key of zeros, which every
//! process knows. So it authenticates no peer, and a process of this host that stands between the two sides can
//! read and change all.
//!
//! Tag, version and purpose are sent in the clear, at the same offsets in every version, so that peers of different
//! versions refuse each other by name. They are the prologue of the handshake, so that no attacker can change them
//! unseen. Version 1 had a challenge and response of its own, and encrypted nothing.
//!
//! The two sides themselves protect the bytes that they send on the socket after their last message, in a format of
//! their own. For a purpose with encryption both derive keys for these bytes from the keys of the session, so that no
//! two conversations have the same keys.
//!
//! An unauthenticated peer can make this side hold one message of 64 bytes and no more. A peer that does not know
//! the secret costs this side a few hashes and no Diffie-Hellman operation, unless it claims to be a reader where
//! readers may come: a bit that is sent in the clear says so. The hello of a reader is made for the owner's public key,
//! and to check it takes two multiplications of X25519. The listener bounds how long such a peer may take, and how many
//! of them may be under way.
//!
//! ```text
//! prefix, 16 bytes, in the clear      0  tag         "slk-hail" "slk-well" "slk-nope"
//!                                     8  u32 version of this format
//!                                    12  u32 purpose (nope: the reason, and the purpose times 256)
//!
//! client  hello         64 bytes      prefix, Noise message 1: -> psk, e      with an empty payload
//! server  welcome       80 bytes      prefix, Noise message 2: <- e, ee       with the server's identity
//!         or refusal    64 bytes      prefix, zeros                           not authenticated
//! client  confirmation  32 bytes      its identity, as a transport message of Noise
//!
//! identity, 16 bytes, encrypted       u32 role      u32 rank      u64 epoch
//! message                             20 bytes: its length, encrypted; its pieces, each encrypted, 16 bytes more
//! ```
//!
//! ```
//! use slackline::internals::channel::{Channel, Purpose, ChannelTerms};
//! use slackline::Secret;
//! use std::net::TcpListener;
//!
//! let terms = ChannelTerms { secret: Some(Secret::random()?), ..ChannelTerms::new(Purpose::Rendezvous) };
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let mut client = Channel::connect(listener.local_addr()?, &terms)?;
//! let mut server = Channel::accept(&listener, &terms)??;
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

mod error;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod greeting;
mod secret;
mod session;
mod socket;
mod stream;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use error::ChannelError;
pub use secret::{Secret, SecretError};
pub(crate) use session::DataKeys;
#[cfg(feature = "tcp")]
pub(crate) use socket::ChannelSocket;
pub use socket::{SILENCE_MIN, allow_silence, listen, send_first, wait_for_slow_reader};
pub use stream::Channel;

/// Version of everything that a channel says.
pub const CHANNEL_VERSION: u32 = 4;

/// The use of a connection. A client that reached the wrong kind of port is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The rendezvous of a job.
    Rendezvous = 1,
    /// Memory of a peer over TCP.
    Transport = 2,
    /// Memory of a peer by RDMA.
    Verbs = 3,
    /// The other side of a measurement.
    Measurement = 4,
    /// Memory of a peer over TCP, with all bytes after the handshake encrypted.
    EncryptedTransport = 5,
}

/// One side of a conversation, as it calls itself. Encrypted on its way, and authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its role; the layer above numbers the roles, 0 is none.
    pub role: u32,
    /// Its rank in its job, where that is known.
    pub rank: Option<u32>,
    /// The number of its incarnation: random, 0 is none.
    pub epoch: u64,
}

/// On which terms a connection is made.
#[derive(Clone, Debug)]
pub struct ChannelTerms {
    /// The secret that both sides know. Without one, only loopback addresses are dialled and accepted.
    pub secret: Option<Secret>,
    /// The use of the connection.
    pub purpose: Purpose,
    /// This side, as it calls itself.
    pub identity: Identity,
    /// Longest message that is accepted, in bytes.
    pub limit: usize,
}

impl ChannelTerms {
    /// No secret, no identity, and messages of at most 1 MiB.
    pub fn new(purpose: Purpose) -> ChannelTerms {
        ChannelTerms { secret: None, purpose, identity: Identity::default(), limit: 1 << 20 }
    }

    /// True if these terms allow to listen or to talk at an address: with a secret at any, without one at loopback
    /// addresses only.
    pub(crate) fn allow(&self, address: SocketAddr) -> bool {
        self.secret.is_some() || address.ip().to_canonical().is_loopback()
    }
}
