//! The greeting as a pure state machine: bytes in, bytes out, no socket, no clock, no random source of its own.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{CHANNEL_VERSION, ChannelError, Identity, Purpose, Secret};
use crate::channel::seal::Seal;

/// Every message of the greeting has this length.
pub(super) const GREETING_BYTES: usize = 64;

const HAIL: &[u8; 8] = b"slk-hail";
const DARE: &[u8; 8] = b"slk-dare";
const PROOF: &[u8; 8] = b"slk-prov";
const WELCOME: &[u8; 8] = b"slk-well";
const REFUSAL: &[u8; 8] = b"slk-nope";

type Message = [u8; GREETING_BYTES];

/// Why a server turned a client away. Not authenticated: good for an error text and for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Version = 1,
    Purpose = 2,
    Secret = 3,
    NotLoopback = 4,
}

/// The side of the greeting that this process is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Client: hailed, waits for the dare.
    Hailed,
    /// Client: proved itself, waits for the other's proof.
    Proved,
    /// Server: waits for a hail.
    Waiting,
    /// Server: dared, waits for the proof.
    Dared,
}

/// A greeting under way.
pub(super) struct Greeting {
    key: [u8; 32],
    purpose: Purpose,
    own: Message,
    stage: Stage,
    /// All messages so far, of both sides.
    transcript: Vec<u8>,
    peer: Identity,
}

/// What a message of the greeting led to.
pub(super) enum Step {
    /// Send this, and wait for the next message.
    Answer(Message),
    /// Send this, if there is something, and the greeting is over.
    Done(Option<Message>, Box<Agreed>),
}

/// What both sides know after a greeting.
pub(super) struct Agreed {
    pub(super) peer: Identity,
    pub(super) sending: Seal,
    pub(super) receiving: Seal,
}

/// A greeting that failed, and what to tell the other side of it.
pub(super) struct Failed {
    pub(super) error: ChannelError,
    pub(super) answer: Option<Message>,
}

impl Greeting {
    /// Begins as the client; the message is to be sent.
    pub(super) fn client(
        secret: Option<&Secret>,
        purpose: Purpose,
        identity: Identity,
        nonce: [u8; 32],
    ) -> (Greeting, Message) {
        let hail = opening(HAIL, purpose, identity, nonce);
        let mut greeting = Greeting::new(secret, purpose, hail, Stage::Hailed);
        greeting.transcript.extend(hail);
        (greeting, hail)
    }

    /// Begins as the server.
    pub(super) fn server(
        secret: Option<&Secret>,
        purpose: Purpose,
        identity: Identity,
        nonce: [u8; 32],
    ) -> Greeting {
        Greeting::new(secret, purpose, opening(DARE, purpose, identity, nonce), Stage::Waiting)
    }

    fn new(secret: Option<&Secret>, purpose: Purpose, own: Message, stage: Stage) -> Greeting {
        // Without a secret both sides use a key that everybody knows: the loopback rule is what protects them.
        let key = secret.map_or([0; 32], |secret| *secret.key());
        let transcript = Vec::with_capacity(4 * GREETING_BYTES);
        Greeting { key, purpose, own, stage, transcript, peer: Identity::default() }
    }

    /// Takes the other side's next message.
    pub(super) fn receive(&mut self, message: &Message) -> Result<Step, Failed> {
        let silent = |error| Failed { error, answer: None };
        let (tag, version) = (&message[..8], word(message, 8));
        if tag == REFUSAL {
            return Err(silent(self.refused(version, word(message, 12))));
        }
        let expected = match self.stage {
            Stage::Hailed => DARE,
            Stage::Proved => WELCOME,
            Stage::Waiting => HAIL,
            Stage::Dared => PROOF,
        };
        if tag != expected {
            return Err(silent(ChannelError::Foreign));
        }
        if version != CHANNEL_VERSION {
            return Err(self.refuse(ChannelError::Version { theirs: version }, Refusal::Version));
        }
        if word(message, 12) != self.purpose as u32 {
            let error =
                ChannelError::Purpose { theirs: purpose_name(word(message, 12)), ours: self.purpose.name() };
            return Err(self.refuse(error, Refusal::Purpose));
        }
        match self.stage {
            Stage::Hailed => {
                self.open(message);
                let proof = self.proof(PROOF);
                self.transcript.extend(proof);
                self.stage = Stage::Proved;
                Ok(Step::Answer(proof))
            }
            Stage::Waiting => {
                self.open(message);
                self.transcript.extend(self.own);
                self.stage = Stage::Dared;
                Ok(Step::Answer(self.own))
            }
            Stage::Dared => {
                self.check(message)?;
                let proof = self.proof(WELCOME);
                self.transcript.extend(proof);
                Ok(Step::Done(Some(proof), Box::new(self.agreed(b"to client", b"to server"))))
            }
            Stage::Proved => {
                self.check(message)?;
                Ok(Step::Done(None, Box::new(self.agreed(b"to server", b"to client"))))
            }
        }
    }

    fn open(&mut self, message: &Message) {
        let rank = word(message, 20);
        let epoch = u64::from(word(message, 24)) | u64::from(word(message, 28)) << 32;
        self.peer = Identity { role: word(message, 16), rank: rank.checked_sub(1), epoch };
        self.transcript.extend(message);
    }

    /// Messages of the other side that were right so far.
    pub(super) fn taken(&self) -> u8 {
        match self.stage {
            Stage::Hailed | Stage::Waiting => 0,
            Stage::Proved | Stage::Dared => 1,
        }
    }

    fn mac(&self, label: &[u8]) -> Hmac<Sha256> {
        keyed(&self.key).chain_update(label).chain_update(&self.transcript)
    }

    /// This side's proof: HMAC over its tag and everything that was said before.
    fn proof(&self, tag: &[u8; 8]) -> Message {
        let mut message = opening(tag, self.purpose, Identity::default(), [0; 32]);
        message[32..].copy_from_slice(&self.mac(tag).finalize().into_bytes());
        message
    }

    /// Checks the other side's proof, in constant time.
    fn check(&mut self, message: &Message) -> Result<(), Failed> {
        // Everything but the proof itself is fixed.
        let label: &[u8; 8] = if self.stage == Stage::Dared { PROOF } else { WELCOME };
        let fixed = opening(label, self.purpose, Identity::default(), [0; 32]);
        let proved = self.mac(label).verify_slice(&message[32..]).is_ok() && message[..32] == fixed[..32];
        if !proved {
            return Err(self.refuse(ChannelError::Secret, Refusal::Secret));
        }
        self.transcript.extend(message);
        Ok(())
    }

    fn agreed(&self, sending: &[u8], receiving: &[u8]) -> Agreed {
        let session: [u8; 32] = self.mac(b"session").finalize().into_bytes().into();
        let direction = |label: &[u8]| keyed(&session).chain_update(label).finalize().into_bytes().into();
        Agreed {
            peer: self.peer,
            sending: Seal::new(direction(sending)),
            receiving: Seal::new(direction(receiving)),
        }
    }

    fn refuse(&self, error: ChannelError, reason: Refusal) -> Failed {
        // A client has nobody to refuse: it hangs up.
        let serves = matches!(self.stage, Stage::Waiting | Stage::Dared);
        Failed { error, answer: serves.then(|| refusal(reason, self.purpose)) }
    }

    fn refused(&self, theirs: u32, reason: u32) -> ChannelError {
        match reason & 0xFF {
            1 => ChannelError::Version { theirs },
            2 => ChannelError::Purpose { theirs: purpose_name(reason >> 8), ours: self.purpose.name() },
            3 => ChannelError::Secret,
            _ => ChannelError::Closed { when: "by a peer that lets in only loopback addresses" },
        }
    }
}

/// What a server says instead of going on.
pub(super) fn refusal(reason: Refusal, purpose: Purpose) -> Message {
    let mut message = opening(REFUSAL, purpose, Identity::default(), [0; 32]);
    let word = reason as u32 | (purpose as u32) << 8;
    message[12..16].copy_from_slice(&word.to_le_bytes());
    message
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Purpose::Rendezvous => "a meeting point",
            Purpose::Transport => "memory over tcp",
            Purpose::Verbs => "memory by RDMA",
            Purpose::Measurement => "measurements",
        }
    }
}

fn purpose_name(number: u32) -> &'static str {
    match number {
        1 => Purpose::Rendezvous.name(),
        2 => Purpose::Transport.name(),
        3 => Purpose::Verbs.name(),
        4 => Purpose::Measurement.name(),
        _ => "something else",
    }
}

fn opening(tag: &[u8; 8], purpose: Purpose, identity: Identity, nonce: [u8; 32]) -> Message {
    let mut message = [0; GREETING_BYTES];
    message[..8].copy_from_slice(tag);
    message[8..12].copy_from_slice(&CHANNEL_VERSION.to_le_bytes());
    message[12..16].copy_from_slice(&(purpose as u32).to_le_bytes());
    message[16..20].copy_from_slice(&identity.role.to_le_bytes());
    // 0 stands for "none".
    let rank = identity.rank.map_or(0, |rank| rank.saturating_add(1));
    message[20..24].copy_from_slice(&rank.to_le_bytes());
    message[24..32].copy_from_slice(&identity.epoch.to_le_bytes());
    message[32..].copy_from_slice(&nonce);
    message
}

fn word(message: &Message, at: usize) -> u32 {
    message[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// HMAC-SHA256 takes a key of any length.
pub(super) fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}
