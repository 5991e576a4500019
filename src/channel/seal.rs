//! Messages after the greeting: a length, the payload, and an HMAC that binds them to their place in the conversation.

use hmac::Mac;

use super::ChannelError;
use super::greeting::keyed;

pub(super) const LENGTH_BYTES: usize = 4;
pub(super) const TAG_BYTES: usize = 32;

/// One direction of a conversation.
pub(super) struct Seal {
    key: [u8; 32],
    /// Messages so far: one cannot be repeated, left out or moved.
    count: u64,
}

impl Seal {
    pub(super) fn new(key: [u8; 32]) -> Seal {
        Seal { key, count: 0 }
    }

    fn tag(&mut self, payload: &[u8]) -> impl Mac {
        let mac = keyed(&self.key)
            .chain_update(self.count.to_le_bytes())
            .chain_update((payload.len() as u64).to_le_bytes())
            .chain_update(payload);
        self.count += 1;
        mac
    }

    /// Appends the sealed message to `bytes`.
    pub(super) fn seal(&mut self, payload: &[u8], bytes: &mut Vec<u8>) {
        bytes.reserve(LENGTH_BYTES + payload.len() + TAG_BYTES);
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        let tag = self.tag(payload).finalize().into_bytes();
        bytes.extend(&tag[..]);
    }

    /// Checks the tag at the end of `bytes` (payload and tag) and cuts it off.
    pub(super) fn open(&mut self, bytes: &mut Vec<u8>) -> Result<(), ChannelError> {
        let payload = bytes.len().checked_sub(TAG_BYTES).ok_or(ChannelError::Damaged)?;
        let (message, tag) = bytes.split_at(payload);
        self.tag(message).verify_slice(tag).map_err(|_| ChannelError::Damaged)?;
        bytes.truncate(payload);
        Ok(())
    }
}
