//! The handshake as a pure state machine: bytes in, bytes out, no socket and no clock.

use snow::{Builder, HandshakeState};

use super::secret::HandshakeKeys;
use super::session::{Session, TAG_BYTES};
use super::{CHANNEL_VERSION, ChannelError, Identity, Purpose, Secret};

/// The Noise protocol. Its name is hashed into each handshake.
const NOISE: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/// The pattern of a reader: the owner proves that it knows a private key which no reader knows. Its messages are as
/// long.
const NOISE_OF_READERS: &str = "Noise_NKpsk0_25519_ChaChaPoly_SHA256";

/// In the purpose of a hello and of its welcome: the client knows a reader's secret.
const READS: u32 = 1 << 16;

/// Length of the prefix of a hello, a welcome and a refusal. It is the same in every version: tag, version and
/// purpose.
const PREFIX_BYTES: usize = 16;

/// Length of a hello and of a refusal in every version. A peer of version 1 reads as much and then closes: a longer
/// hello would make it reset the connection before its refusal is read.
pub(super) const OPENING_BYTES: usize = 64;

/// Length of the first handshake message of Noise, and of the second one without its payload: a public key and a tag.
const NOISE_BYTES: usize = 32 + TAG_BYTES;
const _: () = assert!(PREFIX_BYTES + NOISE_BYTES == OPENING_BYTES);

const IDENTITY_BYTES: usize = 16;
const WELCOME_BYTES: usize = PREFIX_BYTES + NOISE_BYTES + IDENTITY_BYTES;
const CONFIRMATION_BYTES: usize = IDENTITY_BYTES + TAG_BYTES;

const HELLO: &[u8; 8] = b"slk-hail";
const WELCOME: &[u8; 8] = b"slk-well";
const REFUSAL: &[u8; 8] = b"slk-nope";

/// The reason that a server gives for a refusal. Not authenticated: good for an error text and for nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GreetingRefusal {
    Version = 1,
    Purpose = 2,
    Secret = 3,
    NotLoopback = 4,
}

/// A handshake under way.
pub(super) struct Greeting {
    secret: Option<Secret>,
    /// The client knows a reader's secret.
    reads: bool,
    purpose: Purpose,
    identity: Identity,
    stage: GreetingStage,
}

/// The message that this side waits for.
enum GreetingStage {
    /// Client: a welcome.
    HelloSent(Box<HandshakeState>),
    /// Server: a hello.
    Waiting,
    /// Server: the confirmation that the client has not just repeated another client's hello.
    Welcomed(Session),
    /// None any more.
    Over,
}

/// The outcome of one message of the handshake.
pub(super) enum GreetingStep {
    /// Send this, and wait for the next message.
    Answer(Vec<u8>),
    /// Send this, if there is something, and the handshake is over.
    Done(Option<Vec<u8>>, Agreed),
}

/// The result of a handshake on one side.
pub(super) struct Agreed {
    pub(super) peer: Identity,
    pub(super) session: Session,
    /// Server: the client knows a reader's secret alone.
    pub(super) reads_only: bool,
}

/// A handshake that failed, and the message that tells the other side of it.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) error: ChannelError,
    pub(super) answer: Option<[u8; OPENING_BYTES]>,
}

impl Greeting {
    /// Begins as the client; the message is to be sent.
    pub(super) fn client(
        secret: Option<&Secret>,
        purpose: Purpose,
        identity: Identity,
    ) -> Result<(Greeting, Vec<u8>), ChannelError> {
        let mut greeting = Greeting::server(secret, purpose, identity);
        greeting.reads = secret.is_some_and(Secret::is_reading);
        if greeting.reads && !purpose.admits_readers() {
            return Err(ChannelError::ReadingOnly);
        }
        let mut noise = greeting.noise(true)?;
        let mut hello = greeting.prefix(HELLO).to_vec();
        hello.resize(OPENING_BYTES, 0);
        noise.write_message(&[], &mut hello[PREFIX_BYTES..]).map_err(cannot_begin)?;
        greeting.stage = GreetingStage::HelloSent(Box::new(noise));
        Ok((greeting, hello))
    }

    /// Begins as the server.
    pub(super) fn server(secret: Option<&Secret>, purpose: Purpose, identity: Identity) -> Greeting {
        Greeting { secret: secret.cloned(), reads: false, purpose, identity, stage: GreetingStage::Waiting }
    }

    /// Noise with the job's secret as its pre-shared key and the hello's prefix as its prologue.
    fn noise(&self, is_client: bool) -> Result<HandshakeState, ChannelError> {
        let prologue = self.prefix(HELLO);
        let keys = match &self.secret {
            Some(secret) => secret.keys(self.reads, is_client).ok_or(ChannelError::ReadingOnly)?,
            // Without a secret both sides use a key that every process knows. It authenticates no peer. Instead both
            // must be on loopback.
            None => HandshakeKeys { shared: [0; 32], of_owner: None },
        };
        let name = if keys.of_owner.is_some() { NOISE_OF_READERS } else { NOISE };
        let builder = name.parse().map(Builder::new).and_then(|builder| builder.psk(0, &keys.shared));
        let builder = builder.and_then(|builder| builder.prologue(&prologue));
        let builder = builder.and_then(|builder| match &keys.of_owner {
            None => Ok(builder),
            Some(public) if is_client => builder.remote_public_key(public),
            Some(private) => builder.local_private_key(private),
        });
        let builder = builder.map_err(cannot_begin)?;
        let noise = if is_client { builder.build_initiator() } else { builder.build_responder() };
        noise.map_err(cannot_begin)
    }

    /// The begin of a message of this side.
    fn prefix(&self, tag: &[u8; 8]) -> [u8; PREFIX_BYTES] {
        prefix(tag, self.purpose_word())
    }

    fn purpose_word(&self) -> u32 {
        self.purpose as u32 | if self.reads { READS } else { 0 }
    }

    /// The length of the next message of the other side, as far as its first bytes tell.
    pub(super) fn wanted(&self, begin: &[u8]) -> usize {
        match self.stage {
            GreetingStage::Waiting => OPENING_BYTES,
            GreetingStage::Welcomed(_) => CONFIRMATION_BYTES,
            GreetingStage::HelloSent(_) if begin.starts_with(&self.prefix(WELCOME)) => WELCOME_BYTES,
            GreetingStage::HelloSent(_) if begin.starts_with(REFUSAL) => OPENING_BYTES,
            GreetingStage::HelloSent(_) | GreetingStage::Over => PREFIX_BYTES,
        }
    }

    /// Takes the other side's next message, which has the [`wanted`](Self::wanted) length.
    pub(super) fn receive(&mut self, message: &[u8]) -> Result<GreetingStep, Failed> {
        match std::mem::replace(&mut self.stage, GreetingStage::Over) {
            GreetingStage::Waiting => self.welcome(message),
            GreetingStage::Welcomed(session) => confirmed(session, self.reads, message),
            GreetingStage::HelloSent(noise) => self.confirm(*noise, message).map_err(silent),
            GreetingStage::Over => Err(silent(ChannelError::Closed { when: "after an error" })),
        }
    }

    /// Server: answers a hello with a welcome or a refusal.
    fn welcome(&mut self, hello: &[u8]) -> Result<GreetingStep, Failed> {
        let begin = hello.first_chunk::<PREFIX_BYTES>();
        let reads = begin.is_some_and(|begin| word(begin, 12) == self.purpose as u32 | READS);
        self.reads = reads && self.purpose.admits_readers() && self.secret.is_some();
        self.check_prefix(hello, HELLO).map_err(|error| {
            let reason = match error {
                ChannelError::Version { .. } => GreetingRefusal::Version,
                ChannelError::Purpose { .. } | ChannelError::Encryption { .. } => GreetingRefusal::Purpose,
                ChannelError::Secret => GreetingRefusal::Secret,
                _ => return silent(error),
            };
            Failed { error, answer: Some(refusal(reason, self.purpose)) }
        })?;
        let failed = |error| silent(cannot_begin(error));
        let mut noise = self.noise(false).map_err(silent)?;
        if noise.read_message(&hello[PREFIX_BYTES..], &mut []).is_err() {
            let answer = Some(refusal(GreetingRefusal::Secret, self.purpose));
            return Err(Failed { error: ChannelError::Secret, answer });
        }
        let mut welcome = self.prefix(WELCOME).to_vec();
        welcome.resize(WELCOME_BYTES, 0);
        noise.write_message(&encode(self.identity), &mut welcome[PREFIX_BYTES..]).map_err(failed)?;
        self.stage = GreetingStage::Welcomed(Session::new(noise, self.purpose).map_err(failed)?);
        Ok(GreetingStep::Answer(welcome))
    }

    /// Client: a welcome is answered with a confirmation.
    fn confirm(&self, mut noise: HandshakeState, welcome: &[u8]) -> Result<GreetingStep, ChannelError> {
        if welcome.starts_with(REFUSAL) {
            return Err(self.refused(word(welcome, 8), word(welcome, 12)));
        }
        self.check_prefix(welcome, WELCOME)?;
        let mut identity = [0; IDENTITY_BYTES];
        match noise.read_message(welcome.get(PREFIX_BYTES..).unwrap_or_default(), &mut identity) {
            Ok(IDENTITY_BYTES) => {}
            _ => return Err(ChannelError::Secret),
        }
        let mut session = Session::new(noise, self.purpose).map_err(cannot_begin)?;
        let mut confirmation = Vec::with_capacity(CONFIRMATION_BYTES);
        session.write(&encode(self.identity), &mut confirmation);
        Ok(GreetingStep::Done(
            Some(confirmation),
            Agreed { peer: decode(&identity), session, reads_only: false },
        ))
    }

    fn check_prefix(&self, message: &[u8], tag: &[u8; 8]) -> Result<(), ChannelError> {
        if message.len() < PREFIX_BYTES || message[..8] != tag[..] {
            return Err(ChannelError::Foreign);
        }
        let (version, purpose) = (word(message, 8), word(message, 12));
        if version != CHANNEL_VERSION {
            return Err(ChannelError::Version { theirs: version });
        }
        if purpose == self.purpose as u32 | READS && !self.reads {
            // A reader, where there is no secret or nothing to read.
            return Err(ChannelError::Secret);
        }
        if purpose != self.purpose_word() {
            return Err(self.cross_purposes(purpose & !READS));
        }
        Ok(())
    }

    fn cross_purposes(&self, theirs: u32) -> ChannelError {
        const CLEAR: u32 = Purpose::Transport as u32;
        const ENCRYPTED: u32 = Purpose::EncryptedTransport as u32;
        match (theirs, self.purpose as u32) {
            (CLEAR, ENCRYPTED) => {
                return ChannelError::Encryption { theirs: "in the clear", ours: "encrypted" };
            }
            (ENCRYPTED, CLEAR) => {
                return ChannelError::Encryption { theirs: "encrypted", ours: "in the clear" };
            }
            _ => {}
        }
        ChannelError::Purpose { theirs: purpose_name(theirs), ours: self.purpose.name() }
    }

    /// The number of messages of the other side that were right so far.
    pub(super) fn taken(&self) -> u8 {
        u8::from(matches!(self.stage, GreetingStage::Welcomed(_)))
    }

    fn refused(&self, theirs: u32, reason: u32) -> ChannelError {
        match reason & 0xFF {
            1 => ChannelError::Version { theirs },
            2 => self.cross_purposes(reason >> 8),
            3 => ChannelError::Secret,
            _ => ChannelError::Closed { when: "by a peer that lets in only loopback addresses" },
        }
    }
}

/// Server: a confirmation opens the channel.
fn confirmed(mut session: Session, reads_only: bool, confirmation: &[u8]) -> Result<GreetingStep, Failed> {
    let mut identity = Vec::with_capacity(IDENTITY_BYTES);
    match session.read(confirmation, &mut identity).map(|()| identity.first_chunk()) {
        Ok(Some(identity)) => {
            Ok(GreetingStep::Done(None, Agreed { peer: decode(identity), session, reads_only }))
        }
        _ => Err(silent(ChannelError::Secret)),
    }
}

/// Makes a failure that is not told to the other side, on which this side just hangs up. A client never refuses a
/// server. A client that fails to confirm its hello has already been welcomed, which is too late for a refusal.
fn silent(error: ChannelError) -> Failed {
    Failed { error, answer: None }
}

/// The protocol and its inputs are fixed, so only the random source can fail here.
fn cannot_begin(error: snow::Error) -> ChannelError {
    ChannelError::NoRandom(error.to_string())
}

/// A server's message to a client with which it does not go on.
pub(super) fn refusal(reason: GreetingRefusal, purpose: Purpose) -> [u8; OPENING_BYTES] {
    let mut message = [0; OPENING_BYTES];
    message[..PREFIX_BYTES].copy_from_slice(&prefix(REFUSAL, reason as u32 | (purpose as u32) << 8));
    message
}

impl Purpose {
    /// Whether a reader's secret opens such a connection.
    fn admits_readers(self) -> bool {
        matches!(self, Purpose::Transport | Purpose::EncryptedTransport | Purpose::Verbs)
    }

    fn name(self) -> &'static str {
        match self {
            Purpose::Rendezvous => "a rendezvous",
            Purpose::Transport => "memory over tcp",
            Purpose::Verbs => "memory by RDMA",
            Purpose::Measurement => "measurements",
            Purpose::EncryptedTransport => "memory over encrypted tcp",
        }
    }
}

fn purpose_name(number: u32) -> &'static str {
    match number {
        1 => Purpose::Rendezvous.name(),
        2 => Purpose::Transport.name(),
        3 => Purpose::Verbs.name(),
        4 => Purpose::Measurement.name(),
        5 => Purpose::EncryptedTransport.name(),
        _ => "something else",
    }
}

fn prefix(tag: &[u8; 8], last: u32) -> [u8; PREFIX_BYTES] {
    let mut prefix = [0; PREFIX_BYTES];
    prefix[..8].copy_from_slice(tag);
    prefix[8..12].copy_from_slice(&CHANNEL_VERSION.to_le_bytes());
    prefix[12..].copy_from_slice(&last.to_le_bytes());
    prefix
}

fn encode(identity: Identity) -> [u8; IDENTITY_BYTES] {
    let mut bytes = [0; IDENTITY_BYTES];
    bytes[..4].copy_from_slice(&identity.role.to_le_bytes());
    // 0 stands for "none".
    let rank = identity.rank.map_or(0, |rank| rank.saturating_add(1));
    bytes[4..8].copy_from_slice(&rank.to_le_bytes());
    bytes[8..].copy_from_slice(&identity.epoch.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; IDENTITY_BYTES]) -> Identity {
    let epoch = u64::from(word(bytes, 8)) | u64::from(word(bytes, 12)) << 32;
    Identity { role: word(bytes, 0), rank: word(bytes, 4).checked_sub(1), epoch }
}

fn word(message: &[u8], at: usize) -> u32 {
    message[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}
