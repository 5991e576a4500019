//! Records: the bytes of a lane, encrypted and authenticated.
//!
//! ```text
//! record  0  u32 length    of the ciphertext, from 1 to RECORD_BYTES; in the clear, and authenticated
//!         4  ciphertext    AES-256-GCM
//!            tag           16 bytes
//! ```
//!
//! Each direction of each lane has a key of its own, derived from the session of the lane's handshake. The nonce of a
//! record is its number under its key, which does not travel: a record that was changed, dropped, repeated or moved,
//! to another lane or back to its sender, too, does not open, and nothing of it leaves this module. After
//! [`RECORDS_PER_KEY`] records both sides derive the next key from the last.

use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce, Tag};
use sha2::{Digest, Sha256};

use super::initiator::Broken;
use super::socket::Moved;
use crate::channel::DataKeys;
use crate::mem::VolatileSlice;

/// Most bytes that one record carries.
pub(super) const RECORD_BYTES: usize = 64 << 10;

const LENGTH_BYTES: usize = 4;
const TAG_BYTES: usize = 16;
const WHOLE_BYTES: usize = LENGTH_BYTES + RECORD_BYTES + TAG_BYTES;

/// Records that are received with one call, if they are there.
const RECEIVED: usize = 2;

/// 64 GiB under one key. The more blocks of 16 bytes there are, the more a listener can tell ciphertext from noise:
/// after these 2^32 with a chance of 2^-65.
const RECORDS_PER_KEY: u64 = 1 << 20;

pub(super) const DAMAGED: Broken =
    Broken("an encrypted record was changed, dropped, repeated or moved on its way");
pub(super) const CUT: Broken = Broken(
    "the connection ended within an encrypted record: the peer process ended, or the rest was cut off",
);

/// Both directions of a lane.
pub(super) struct Records {
    sealing: Sealing,
    opening: Opening,
}

impl Records {
    pub(super) fn new(keys: &DataKeys) -> Records {
        Records { sealing: Sealing::new(keys.send), opening: Opening::new(keys.receive) }
    }

    /// Sends the pieces, in order, as far as they fit, by `send`. A record that was sealed and does not fit is sent
    /// first the next time, when the pieces must begin with the same bytes: they count once it has left.
    pub(super) fn send(
        &mut self,
        pieces: &[VolatileSlice<'_>],
        mut send: impl FnMut(&[u8]) -> Result<Moved, Broken>,
    ) -> Result<Moved, Broken> {
        let mut moved = 0;
        while self.sealing.is_pending() || self.sealing.seal(pieces, moved) {
            match send(self.sealing.pending())? {
                Moved::Bytes(bytes) => moved += self.sealing.sent(bytes),
                Moved::Nothing => break,
            }
            if self.sealing.is_pending() {
                break;
            }
        }
        Ok(if moved > 0 { Moved::Bytes(moved) } else { Moved::Nothing })
    }

    /// Receives the content of the records that `receive` brings, into `memory` first, then into `buffer`. If it
    /// returns fewer bytes than there is room for, no more have arrived.
    pub(super) fn receive(
        &mut self,
        memory: Option<VolatileSlice<'_>>,
        buffer: &mut [u8],
        mut receive: impl FnMut(&mut [u8]) -> Result<Moved, Broken>,
    ) -> Result<Moved, Broken> {
        let opening = &mut self.opening;
        let in_memory = memory.map_or(0, |memory| memory.len());
        let (room, mut moved, mut is_dry) = (in_memory + buffer.len(), 0, false);
        loop {
            if let Some(memory) = memory.filter(|_| moved < in_memory) {
                let piece = opening.take(in_memory - moved);
                memory.subslice(moved, piece.len()).write(piece);
                moved += piece.len();
            }
            if moved >= in_memory {
                let piece = opening.take(room - moved);
                buffer[moved - in_memory..][..piece.len()].copy_from_slice(piece);
                moved += piece.len();
            }
            if moved == room {
                return Ok(Moved::Bytes(moved));
            }
            if opening.open() {
                continue;
            }
            match opening.over {
                Some(over) if moved == 0 => return Err(over),
                None if !is_dry => {
                    // A short read says that the socket is empty, without another call.
                    is_dry = opening.receive(&mut receive);
                }
                _ => return Ok(if moved > 0 { Moved::Bytes(moved) } else { Moved::Nothing }),
            }
        }
    }

    /// True if there is more to receive that an empty socket says nothing of: bytes, or that a record was damaged.
    pub(super) fn has_input(&self) -> bool {
        let opening = &self.opening;
        opening.plain_begin < opening.plain_end || opening.over.is_some() || opening.has_whole_record()
    }
}

/// The key of one direction, and the number of the next record under it.
struct Key {
    cipher: Aes256Gcm,
    bytes: [u8; 32],
    records: u64,
}

impl Key {
    fn new(bytes: [u8; 32]) -> Key {
        Key { cipher: Aes256Gcm::new(&bytes.into()), bytes, records: 0 }
    }

    /// The cipher and the nonce of the next record.
    fn next(&mut self) -> (&Aes256Gcm, Nonce<<Aes256Gcm as aes_gcm::aead::AeadCore>::NonceSize>) {
        if self.records == RECORDS_PER_KEY {
            *self = Key::new(
                Sha256::new()
                    .chain_update(b"slackline next key\0")
                    .chain_update(self.bytes)
                    .finalize()
                    .into(),
            );
        }
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&self.records.to_le_bytes());
        self.records += 1;
        (&self.cipher, nonce)
    }
}

/// The sending direction: one record at a time.
struct Sealing {
    key: Key,
    outbox: Box<[u8]>,
    /// The record that was sealed and not yet sent.
    begin: usize,
    end: usize,
}

impl Sealing {
    fn new(key: [u8; 32]) -> Sealing {
        Sealing { key: Key::new(key), outbox: vec![0; WHOLE_BYTES].into(), begin: 0, end: 0 }
    }

    fn is_pending(&self) -> bool {
        self.begin < self.end
    }

    fn pending(&self) -> &[u8] {
        &self.outbox[self.begin..self.end]
    }

    /// Seals a record of the bytes of the pieces behind the first `skip`. False if there are none.
    fn seal(&mut self, pieces: &[VolatileSlice<'_>], skip: usize) -> bool {
        let (length, body) = self.outbox.split_at_mut(LENGTH_BYTES);
        let bytes = gather(pieces, skip, &mut body[..RECORD_BYTES]);
        if bytes == 0 {
            return false;
        }
        length.copy_from_slice(&(bytes as u32).to_le_bytes());
        let (cipher, nonce) = self.key.next();
        let sealed = cipher.encrypt_inout_detached(&nonce, length, (&mut body[..bytes]).into());
        // It fails for more than 64 GiB alone.
        let tag = sealed.expect("a record is short");
        body[bytes..bytes + TAG_BYTES].copy_from_slice(&tag);
        (self.begin, self.end) = (0, LENGTH_BYTES + bytes + TAG_BYTES);
        true
    }

    /// Counts sent bytes of the record. Returns the length of its content once all of it is sent.
    fn sent(&mut self, bytes: usize) -> usize {
        self.begin += bytes;
        if self.is_pending() { 0 } else { self.end - LENGTH_BYTES - TAG_BYTES }
    }
}

/// Copies the bytes of the pieces behind the first `skip`, as many as fit; returns how many.
fn gather(pieces: &[VolatileSlice<'_>], mut skip: usize, to: &mut [u8]) -> usize {
    let mut gathered = 0;
    for piece in pieces {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        let bytes = (piece.len() - skipped).min(to.len() - gathered);
        piece.subslice(skipped, bytes).read(&mut to[gathered..gathered + bytes]);
        gathered += bytes;
    }
    gathered
}

/// The receiving direction.
struct Opening {
    key: Key,
    inbox: Box<[u8]>,
    /// The content of an opened record that was not taken yet.
    plain_begin: usize,
    plain_end: usize,
    /// The bytes received behind it: records, of which the last may not be whole.
    begin: usize,
    end: usize,
    /// The reason why no record opens any more.
    over: Option<Broken>,
}

impl Opening {
    fn new(key: [u8; 32]) -> Opening {
        let inbox = vec![0; RECEIVED * WHOLE_BYTES].into();
        Opening { key: Key::new(key), inbox, plain_begin: 0, plain_end: 0, begin: 0, end: 0, over: None }
    }

    /// Takes up to `room` bytes that an opened record holds.
    fn take(&mut self, room: usize) -> &[u8] {
        let begin = self.plain_begin;
        self.plain_begin = self.plain_end.min(begin + room);
        &self.inbox[begin..self.plain_begin]
    }

    /// The length of the record at the begin of the received bytes, if it is there; it may be an invalid length.
    fn length(&self) -> Option<usize> {
        let length = self.inbox[self.begin..self.end].first_chunk()?;
        Some(u32::from_le_bytes(*length) as usize)
    }

    fn has_whole_record(&self) -> bool {
        let rest = self.end - self.begin;
        self.over.is_none()
            && self.length().is_some_and(|length| rest >= length.saturating_add(LENGTH_BYTES + TAG_BYTES))
    }

    /// Opens the next record, if it has arrived completely and is the next one that the peer sent.
    fn open(&mut self) -> bool {
        let Some(length) = self.length().filter(|_| self.over.is_none()) else { return false };
        if length == 0 || length > RECORD_BYTES {
            self.over = Some(DAMAGED);
            return false;
        }
        if !self.has_whole_record() {
            return false;
        }
        let record = &mut self.inbox[self.begin..self.begin + LENGTH_BYTES + length + TAG_BYTES];
        let (header, body) = record.split_at_mut(LENGTH_BYTES);
        let (body, tag) = body.split_at_mut(length);
        let (cipher, nonce) = self.key.next();
        let mut received = Tag::default();
        received.copy_from_slice(tag);
        if cipher.decrypt_inout_detached(&nonce, header, body.into(), &received).is_err() {
            self.over = Some(DAMAGED);
            return false;
        }
        self.plain_begin = self.begin + LENGTH_BYTES;
        self.plain_end = self.plain_begin + length;
        self.begin = self.plain_end + TAG_BYTES;
        true
    }

    /// Receives once. True if there is no more for now.
    fn receive(&mut self, receive: &mut impl FnMut(&mut [u8]) -> Result<Moved, Broken>) -> bool {
        let whole = LENGTH_BYTES + self.length().unwrap_or(RECORD_BYTES) + TAG_BYTES;
        if self.begin == self.end || self.begin + whole > self.inbox.len() {
            // All opened bytes are taken.
            self.inbox.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        let room = self.inbox.len() - self.end;
        match receive(&mut self.inbox[self.end..]) {
            Ok(Moved::Bytes(bytes)) => {
                self.end += bytes;
                bytes < room
            }
            Ok(Moved::Nothing) => true,
            Err(Broken(super::initiator::ENDED)) if self.begin < self.end => {
                self.over = Some(CUT);
                true
            }
            Err(broken) => {
                self.over = Some(broken);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::initiator::ENDED;
    use super::*;

    /// The two ends of a lane.
    fn ends() -> (Records, Records) {
        let (a, b) = ([1; 32], [2; 32]);
        (Records::new(&DataKeys { send: a, receive: b }), Records::new(&DataKeys { send: b, receive: a }))
    }

    /// Sends in one piece; returns the bytes on the wire.
    fn seal(end: &mut Records, bytes: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        let sent = end.send(&[VolatileSlice::from_ref(bytes)], |record| {
            wire.extend(record);
            Ok(Moved::Bytes(record.len()))
        });
        assert_eq!(sent, Ok(Moved::Bytes(bytes.len())));
        wire
    }

    /// Receives all bytes of the wire, in portions, and then the end of the stream.
    fn open(end: &mut Records, mut wire: &[u8], portion: usize) -> (Vec<u8>, Broken) {
        let (mut opened, mut buffer) = (Vec::new(), [0; 1000]);
        loop {
            let received = end.receive(None, &mut buffer, |inbox| {
                let bytes = portion.min(inbox.len()).min(wire.len());
                inbox[..bytes].copy_from_slice(&wire[..bytes]);
                wire = &wire[bytes..];
                if bytes > 0 { Ok(Moved::Bytes(bytes)) } else { Err(Broken(ENDED)) }
            });
            match received {
                Ok(Moved::Bytes(bytes)) => opened.extend(&buffer[..bytes]),
                Ok(Moved::Nothing) => {}
                Err(broken) => return (opened, broken),
            }
        }
    }

    fn payload(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * 7 % 251) as u8).collect()
    }

    #[test]
    fn what_was_sealed_is_opened_whatever_portions_it_comes_in() {
        let bytes = payload(3 * RECORD_BYTES + 17);
        for portion in [1, 19, 4096, RECORD_BYTES + 1, usize::MAX] {
            let (mut sender, mut receiver) = ends();
            let mut wire = seal(&mut sender, &bytes[..5]);
            wire.extend(seal(&mut sender, &bytes[5..]));
            assert!(open(&mut receiver, &wire, portion) == (bytes.clone(), Broken(ENDED)), "{portion}");
        }
    }

    #[test]
    fn a_damaged_record_behind_a_whole_one_is_told_though_nothing_more_comes() {
        let (mut sender, mut receiver) = ends();
        let mut wire = seal(&mut sender, &payload(5));
        wire.extend(seal(&mut sender, &payload(7)));
        *wire.last_mut().unwrap() ^= 1;
        let (mut wire, mut buffer) = (&wire[..], [0; 1000]);
        let mut receive = |receiver: &mut Records| {
            receiver.receive(None, &mut buffer, |inbox| {
                let bytes = wire.len().min(inbox.len());
                inbox[..bytes].copy_from_slice(&wire[..bytes]);
                wire = &wire[bytes..];
                Ok(if bytes > 0 { Moved::Bytes(bytes) } else { Moved::Nothing })
            })
        };
        assert_eq!(receive(&mut receiver), Ok(Moved::Bytes(5)));
        assert!(receiver.has_input(), "an empty socket says nothing of it");
        assert_eq!(receive(&mut receiver), Err(DAMAGED));
    }

    #[test]
    fn a_record_that_does_not_fit_is_sent_on_later_and_counts_then() {
        let (mut sender, mut receiver) = ends();
        let (bytes, mut wire) = (payload(2 * RECORD_BYTES), Vec::new());
        let (mut sent, mut calls) = (0, 0);
        while sent < bytes.len() {
            calls += 1;
            let moved = sender.send(&[VolatileSlice::from_ref(&bytes[sent..])], |record| {
                let some = record.len().min(50_000);
                wire.extend(&record[..some]);
                Ok(Moved::Bytes(some))
            });
            if let Moved::Bytes(moved) = moved.unwrap() {
                sent += moved;
            }
        }
        assert_eq!(calls, 3);
        assert!(open(&mut receiver, &wire, usize::MAX).0 == bytes);
    }

    #[test]
    fn no_changed_byte_and_no_cut_lets_any_of_a_record_out() {
        let (first, second) = (payload(40), payload(60));
        for at in 0..2 * 20 + 100 {
            let (mut sender, mut receiver) = ends();
            let mut wire = seal(&mut sender, &first);
            wire.extend(seal(&mut sender, &second));
            let intact = if at < 60 { 0 } else { 40 };
            let (cut, why) = open(&mut receiver, &wire[..at], usize::MAX);
            assert_eq!(cut.len(), intact, "cut at {at}");
            assert_eq!(why, if [0, 60].contains(&at) { Broken(ENDED) } else { CUT }, "cut at {at}");
            wire[at] ^= 1;
            let (opened, why) = open(&mut ends().1, &wire, usize::MAX);
            assert_eq!(opened.len(), intact, "byte {at}");
            // A length that grew waits for bytes that do not come.
            assert!(why == DAMAGED || why == CUT, "byte {at}: {why:?}");
        }
    }

    #[test]
    fn a_repeated_a_swapped_and_a_returned_record_do_not_open() {
        let (mut sender, _) = ends();
        let (one, two) = (seal(&mut sender, b"one"), seal(&mut sender, b"two"));
        let wires = [[one.clone(), one.clone()], [two.clone(), one.clone()]];
        for (wire, opened) in wires.iter().zip([&b"one"[..], b""]) {
            assert_eq!(open(&mut ends().1, &wire.concat(), usize::MAX), (opened.to_vec(), DAMAGED));
        }
        // Back to the side that sent it.
        assert_eq!(open(&mut ends().0, &one, usize::MAX), (Vec::new(), DAMAGED));
        // To another lane.
        let mut other = Records::new(&DataKeys { send: [1; 32], receive: [3; 32] });
        assert_eq!(open(&mut other, &one, usize::MAX), (Vec::new(), DAMAGED));
    }

    #[test]
    fn a_length_that_no_record_has_ends_the_lane() {
        for length in [0, RECORD_BYTES as u32 + 1, u32::MAX] {
            let mut wire = length.to_le_bytes().to_vec();
            wire.extend([7; 100]);
            assert_eq!(open(&mut ends().1, &wire, usize::MAX), (Vec::new(), DAMAGED));
        }
    }

    #[test]
    fn after_its_last_record_a_key_is_replaced_on_both_sides() {
        let (mut sender, mut receiver) = ends();
        sender.sealing.key.records = RECORDS_PER_KEY - 1;
        receiver.opening.key.records = RECORDS_PER_KEY - 1;
        let last = seal(&mut sender, b"same");
        let next = seal(&mut sender, b"same");
        assert_eq!((sender.sealing.key.records, sender.sealing.key.bytes == [1; 32]), (1, false));
        let wire = [last, next].concat();
        assert_eq!(open(&mut receiver, &wire, usize::MAX), (b"samesame".to_vec(), Broken(ENDED)));
    }
}
