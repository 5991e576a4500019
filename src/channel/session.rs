//! Messages after the handshake, encrypted and bound to their position in the conversation.
//!
//! ```text
//! header   20 bytes   the length of the payload, a u32, encrypted
//! body                the payload in pieces of at most 65519 bytes, each encrypted
//! ```
//!
//! Each of them is a transport message of Noise, and 16 bytes longer than its content: its tag covers its number in
//! its direction, so that nothing can be changed, cut, repeated, moved or sent back.

use sha2::{Digest, Sha256};
use snow::{HandshakeState, TransportState};

use super::{ChannelError, Purpose};

pub(super) const TAG_BYTES: usize = 16;

/// Length of a sealed header.
pub(super) const HEADER_BYTES: usize = 4 + TAG_BYTES;

/// Longest piece of a payload: a message of Noise has at most 65535 bytes.
const PIECE_BYTES: usize = 65535 - TAG_BYTES;

/// Both directions of a conversation.
pub(super) struct Session {
    noise: Box<TransportState>,
    data_keys: Option<DataKeys>,
}

/// The keys for the bytes on the socket after the conversation, one for each direction.
#[derive(Clone)]
pub(crate) struct DataKeys {
    pub(crate) send: [u8; 32],
    pub(crate) receive: [u8; 32],
}

impl DataKeys {
    /// Derives the keys from the keys of a session whose handshake is over.
    fn of(handshake: &mut HandshakeState) -> DataKeys {
        let (client, server) = handshake.dangerously_get_raw_split();
        let (client, server) = (data_key(&client), data_key(&server));
        match handshake.is_initiator() {
            true => DataKeys { send: client, receive: server },
            false => DataKeys { send: server, receive: client },
        }
    }
}

impl Session {
    /// Goes on where a handshake has ended.
    pub(super) fn new(mut handshake: HandshakeState, purpose: Purpose) -> Result<Session, snow::Error> {
        let data_keys = (purpose == Purpose::EncryptedTransport).then(|| DataKeys::of(&mut handshake));
        Ok(Session { noise: Box::new(handshake.into_transport_mode()?), data_keys })
    }

    /// Returns the keys for the bytes after the conversation, if its purpose has any.
    pub(super) fn data_keys(&self) -> Option<&DataKeys> {
        self.data_keys.as_ref()
    }

    /// Appends `piece`, encrypted.
    ///
    /// # Panics
    /// If the piece is longer than a message of Noise, or after 2^64 of them.
    pub(super) fn write(&mut self, piece: &[u8], bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        bytes.resize(begin + piece.len() + TAG_BYTES, 0);
        self.noise.write_message(piece, &mut bytes[begin..]).expect("a piece fits a message of Noise");
    }

    /// Appends the content of `sealed` to `bytes`, if it is the other side's next piece.
    pub(super) fn read(&mut self, sealed: &[u8], bytes: &mut Vec<u8>) -> Result<(), ChannelError> {
        let begin = bytes.len();
        bytes.resize(begin + sealed.len().checked_sub(TAG_BYTES).ok_or(ChannelError::Damaged)?, 0);
        self.noise.read_message(sealed, &mut bytes[begin..]).map_err(|_| ChannelError::Damaged)?;
        Ok(())
    }

    /// Appends a whole message to `bytes`.
    ///
    /// # Panics
    /// If it has 4 GiB or more.
    pub(super) fn seal(&mut self, payload: &[u8], bytes: &mut Vec<u8>) {
        bytes.reserve(HEADER_BYTES + body_bytes(payload.len()));
        let len = u32::try_from(payload.len()).expect("messages are shorter than 4 GiB");
        self.write(&len.to_le_bytes(), bytes);
        for piece in payload.chunks(PIECE_BYTES) {
            self.write(piece, bytes);
        }
    }

    /// The length of the payload that follows a header.
    pub(super) fn open_header(&mut self, header: &[u8]) -> Result<usize, ChannelError> {
        let mut length = Vec::with_capacity(4);
        self.read(header, &mut length)?;
        length.first_chunk().map(|length| u32::from_le_bytes(*length) as usize).ok_or(ChannelError::Damaged)
    }

    /// The payload of a body, which has the length that [`body_bytes`] says.
    pub(super) fn open_body(&mut self, body: &[u8]) -> Result<Vec<u8>, ChannelError> {
        let mut payload = Vec::with_capacity(body.len());
        for piece in body.chunks(PIECE_BYTES + TAG_BYTES) {
            self.read(piece, &mut payload)?;
        }
        Ok(payload)
    }
}

/// Derives a key for messages outside of the session: it reveals nothing about the session's own key.
fn data_key(key: &[u8; 32]) -> [u8; 32] {
    Sha256::new().chain_update(b"slackline data key\0").chain_update(key).finalize().into()
}

/// Length of the body of a message with `payload` bytes.
pub(super) fn body_bytes(payload: usize) -> usize {
    payload + payload.div_ceil(PIECE_BYTES) * TAG_BYTES
}
