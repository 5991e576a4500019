//! The bytes of requests and responses. All numbers are little-endian. No sockets here: bytes in, values out.
//!
//! ```text
//! request   0  u32 checksum   CRC-32/ISCSI of everything behind it, words included
//!  48 bytes 4  u8  kind       1 write, 2 words, 3 read, 4 fetch-add, 5 compare-swap, 6 nothing
//!           5  u8  flags      1: answer as soon as it is done; 2: wake the owner of the memory then
//!           6  u8  words      how many follow
//!           7  u8  zero
//!           8  u64 sequence   the sequence of the request before plus one; the first is 1
//!          16  u64 epoch      the target's epoch from the handshake
//!          24  u64 key
//!          32  u64 offset
//!          40  u64 bytes      length of the range
//! words     48 u64 each      words: the data; fetch-add: the addend; compare-swap: compare, swap
//! payload   write: as many bytes as the range is long
//!
//! response  0  u32 checksum
//!  24 bytes 4  u8  kind       1 done, 2 data, 3 value, 4 refused, 5 short data, 6 closed,
//!                             7 wake (the owner has something new for a peer that sleeps)
//!           5  3 bytes zero
//!           8  u64 sequence   this request and all before it are done (refused: all before it; closed, wake: 0)
//!          16  u64 value      data: length of the payload that follows; value: the word's old value;
//!                             short data: its length, and above it 32 bits of the payload's checksum;
//!                             closed: a code of the layer above that says why
//! ```
//!
//! A header that was changed on its way ends the connection: TCP's own checksum has 16 bits, and a header says
//! where in memory a megabyte goes. So does a short answer: clocks, versions and headers of frames are read so, and
//! no other checksum covers all of them. The reader of a long payload has to check it.

use std::sync::atomic::Ordering;

use crate::mem::{RemoteKey, VolatileSlice};

/// Payloads of up to so many bytes are copied by this CPU, word by word where they are aligned, so that the contract's
/// rules for words hold for them; in answers they carry a checksum. Longer payloads are copied by the kernel,
/// which cuts them where packets end.
pub(super) const SHORT_BYTES: usize = 4 << 10;

pub(super) const REQUEST_BYTES: usize = 48;
pub(super) const RESPONSE_BYTES: usize = 24;
/// Most words behind a request's header.
pub(super) const MAX_WORDS: usize = 8;
/// Longest request without its payload.
pub(super) const MAX_REQUEST_BYTES: usize = REQUEST_BYTES + 8 * MAX_WORDS;

/// Bytes that no peer of this protocol sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct TcpWireError(pub(super) &'static str);

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// The payload into the range.
    Write = 1,
    /// The words into the range.
    Words = 2,
    /// The range into the response.
    Read = 3,
    /// Adds to the word.
    FetchAdd = 4,
    /// Exchanges the word if it has the expected value.
    CompareSwap = 5,
    /// Nothing: only asks for an answer.
    Nothing = 6,
}

/// One request as it travels, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) kind: Kind,
    /// Whether its completion is to be told at once.
    pub(super) answer: bool,
    /// Whether the thread that waits at the target's listener is woken then.
    pub(super) notify: bool,
    pub(super) sequence: u64,
    pub(super) epoch: u64,
    pub(super) key: RemoteKey,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) words: [u64; MAX_WORDS],
    pub(super) count: u8,
}

/// A request's header and words, encoded.
#[derive(Clone, Copy)]
pub(super) struct Encoded {
    bytes: [u8; MAX_REQUEST_BYTES],
    len: u8,
}

impl Encoded {
    #[inline]
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Request {
    /// Stores its words at the begin of `into`.
    #[inline]
    pub(super) fn store_words(&self, into: &VolatileSlice<'_>) {
        for (index, word) in self.words[..usize::from(self.count)].iter().enumerate() {
            into.store(index * 8, *word, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn encode(&self) -> Encoded {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        let len = REQUEST_BYTES + 8 * usize::from(self.count);
        let flags = u8::from(self.answer) | u8::from(self.notify) << 1;
        bytes[4..8].copy_from_slice(&[self.kind as u8, flags, self.count, 0]);
        for (at, word) in
            [(8, self.sequence), (16, self.epoch), (24, self.key.0), (32, self.offset), (40, self.bytes)]
        {
            put(&mut bytes, at, word);
        }
        for (index, word) in self.words[..usize::from(self.count)].iter().enumerate() {
            put(&mut bytes, REQUEST_BYTES + 8 * index, *word);
        }
        seal(&mut bytes[..len]);
        Encoded { bytes, len: len as u8 }
    }

    /// The request at the begin of `bytes` and its length, or `None` if not all of it is there yet.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Request, usize)>, TcpWireError> {
        if bytes.len() < REQUEST_BYTES {
            return Ok(None);
        }
        let count = bytes[6];
        if usize::from(count) > MAX_WORDS {
            return Err(TcpWireError("a request with more words than there can be"));
        }
        let len = REQUEST_BYTES + 8 * usize::from(count);
        let Some(bytes) = bytes.get(..len) else { return Ok(None) };
        check_seal(bytes)?;
        let kind = match bytes[4] {
            1 => Kind::Write,
            2 => Kind::Words,
            3 => Kind::Read,
            4 => Kind::FetchAdd,
            5 => Kind::CompareSwap,
            6 => Kind::Nothing,
            _ => return Err(TcpWireError("a request of an unknown kind")),
        };
        let range = word(bytes, 40);
        let fits = match kind {
            Kind::Write | Kind::Read => count == 0,
            Kind::Words => count > 0 && range == 8 * u64::from(count),
            Kind::FetchAdd => count == 1 && range == 8,
            Kind::CompareSwap => count == 2 && range == 8,
            Kind::Nothing => count == 0 && range == 0,
        };
        if !fits {
            return Err(TcpWireError("a request whose words do not fit its kind"));
        }
        if bytes[5] > 3 || bytes[7] != 0 {
            return Err(TcpWireError("a request with unknown flags"));
        }
        let mut words = [0; MAX_WORDS];
        for (index, to) in words[..usize::from(count)].iter_mut().enumerate() {
            *to = word(bytes, REQUEST_BYTES + 8 * index);
        }
        let request = Request {
            kind,
            answer: bytes[5] & 1 != 0,
            notify: bytes[5] & 2 != 0,
            sequence: word(bytes, 8),
            epoch: word(bytes, 16),
            key: RemoteKey(word(bytes, 24)),
            offset: word(bytes, 32),
            bytes: range,
            words,
            count,
        };
        Ok(Some((request, len)))
    }
}

/// The answer of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Response {
    /// This request and all before it are done.
    Done { sequence: u64 },
    /// A long read: its bytes follow.
    Data { sequence: u64, bytes: u64 },
    /// A short read: its bytes follow, and must match the checksum.
    ShortData { sequence: u64, bytes: u32, checksum: u32 },
    /// An atomic: the word's old value.
    Value { sequence: u64, before: u64 },
    /// This request is refused, and nothing behind it was looked at.
    Refused { sequence: u64 },
    /// The target closes the connection, for a reason that the layer above has given this code.
    Closed { code: u64 },
    /// No answer: the target wakes this side, which said that it sleeps.
    Wake,
}

impl Response {
    #[inline]
    pub(super) fn encode(&self) -> [u8; RESPONSE_BYTES] {
        let (kind, sequence, value) = match *self {
            Response::Done { sequence } => (1, sequence, 0),
            Response::Data { sequence, bytes } => (2, sequence, bytes),
            Response::Value { sequence, before } => (3, sequence, before),
            Response::Refused { sequence } => (4, sequence, 0),
            Response::ShortData { sequence, bytes, checksum } => {
                (5, sequence, u64::from(bytes) | u64::from(checksum) << 32)
            }
            Response::Closed { code } => (6, 0, code),
            Response::Wake => (7, 0, 0),
        };
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[4] = kind;
        put(&mut bytes, 8, sequence);
        put(&mut bytes, 16, value);
        seal(&mut bytes);
        bytes
    }

    /// The response at the begin of `bytes`, or `None` if not all of it is there yet.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Response>, TcpWireError> {
        let Some(bytes) = bytes.get(..RESPONSE_BYTES) else { return Ok(None) };
        check_seal(bytes)?;
        if bytes[5..8] != [0; 3] {
            return Err(TcpWireError("a response with unknown flags"));
        }
        let (sequence, value) = (word(bytes, 8), word(bytes, 16));
        match (bytes[4], value) {
            (1, 0) => Ok(Some(Response::Done { sequence })),
            (2, bytes) => Ok(Some(Response::Data { sequence, bytes })),
            (3, before) => Ok(Some(Response::Value { sequence, before })),
            (4, 0) => Ok(Some(Response::Refused { sequence })),
            (5, value) => {
                let (bytes, checksum) = (value as u32, (value >> 32) as u32);
                Ok(Some(Response::ShortData { sequence, bytes, checksum }))
            }
            (6, code) if sequence == 0 => Ok(Some(Response::Closed { code })),
            (7, 0) if sequence == 0 => Ok(Some(Response::Wake)),
            _ => Err(TcpWireError("a response of an unknown kind")),
        }
    }
}

#[inline]
fn seal(bytes: &mut [u8]) {
    let checksum = checksum(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

#[inline]
fn check_seal(bytes: &[u8]) -> Result<(), TcpWireError> {
    if bytes[..4] == checksum(&bytes[4..]).to_le_bytes() {
        Ok(())
    } else {
        Err(TcpWireError("a header was changed on its way, or is not one"))
    }
}

/// CRC-32C, of headers and short answers.
#[inline]
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

#[inline]
fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Decodes arbitrary `bytes` as a request and as a response, as they are and with a correct checksum, and checks that
/// the result is encoded in the same bytes.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_headers(bytes: &[u8]) {
    say_back(bytes);
    let words = bytes.get(6).map_or(0, |count| usize::from(*count).min(MAX_WORDS));
    for len in [REQUEST_BYTES + 8 * words, RESPONSE_BYTES] {
        let mut sealed = bytes.to_vec();
        if let Some(header) = sealed.get_mut(..len) {
            seal(header);
            say_back(&sealed);
        }
    }
}

#[cfg(any(test, fuzzing))]
fn say_back(bytes: &[u8]) {
    if let Ok(Some((request, len))) = Request::decode(bytes) {
        assert_eq!(request.encode().as_bytes(), &bytes[..len]);
        // The span of a permitted request lies inside its grant, for any grant.
        let grant = crate::transport::wireup::Grant {
            key: request.key,
            offset: request.words[0],
            bytes: request.sequence,
            access: crate::mem::Access::all(),
        };
        if let Some(span) = super::check::check(&[grant], request.epoch, &request) {
            assert!(span.offset as u128 + span.bytes as u128 <= u128::from(grant.bytes));
            assert_eq!(u128::from(grant.offset) + span.offset as u128, u128::from(request.offset));
        }
    }
    if let Ok(Some(response)) = Response::decode(bytes) {
        assert_eq!(response.encode(), bytes[..RESPONSE_BYTES]);
    }
}

/// Bytes that the decoders take.
#[cfg(any(test, fuzzing))]
pub(crate) fn header_samples() -> Vec<Vec<u8>> {
    let kinds = [
        (Kind::Write, 0, 4096),
        (Kind::Words, 3, 24),
        (Kind::Read, 0, 64),
        (Kind::FetchAdd, 1, 8),
        (Kind::CompareSwap, 2, 8),
        (Kind::Nothing, 0, 0),
    ];
    let (key, words) = (RemoteKey(7), [5, 6, 7, 8, 9, 10, 11, 12]);
    let requests = kinds.map(|(kind, count, bytes)| {
        let mut kept = [0; MAX_WORDS];
        kept[..usize::from(count)].copy_from_slice(&words[..usize::from(count)]);
        let request = Request {
            kind,
            answer: true,
            notify: false,
            sequence: 9,
            epoch: 1,
            key,
            offset: 16,
            bytes,
            words: kept,
            count,
        };
        request.encode().as_bytes().to_vec()
    });
    let responses = [
        Response::Done { sequence: 3 },
        Response::Data { sequence: 4, bytes: 64 },
        Response::Value { sequence: 5, before: 6 },
        Response::Refused { sequence: 7 },
        Response::ShortData { sequence: 8, bytes: 64, checksum: 9 },
        Response::Closed { code: 2 },
        Response::Wake,
    ];
    requests.into_iter().chain(responses.map(|response| response.encode().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn requests()(
            kind in 0..6usize,
            (answer, notify, sequence) in any::<(bool, bool, u64)>(),
            (epoch, key, offset, range) in any::<(u64, u64, u64, u64)>(),
            words in any::<[u64; MAX_WORDS]>(),
            count in 1..=MAX_WORDS,
        ) -> Request {
            let (kind, count, bytes) = [
                (Kind::Write, 0, range),
                (Kind::Words, count, 8 * count as u64),
                (Kind::Read, 0, range),
                (Kind::FetchAdd, 1, 8),
                (Kind::CompareSwap, 2, 8),
                (Kind::Nothing, 0, 0),
            ][kind];
            let mut kept = [0; MAX_WORDS];
            kept[..count].copy_from_slice(&words[..count]);
            let (key, count) = (RemoteKey(key), count as u8);
            Request { kind, answer, notify, sequence, epoch, key, offset, bytes, words: kept, count }
        }
    }

    proptest! {
        #[test]
        fn a_request_that_was_encoded_is_decoded(request in requests(), behind in any::<[u8; 9]>()) {
            let encoded = request.encode();
            let mut bytes = encoded.as_bytes().to_vec();
            for len in 0..bytes.len() {
                prop_assert_eq!(Request::decode(&bytes[..len]), Ok(None), "cut to {} bytes", len);
            }
            bytes.extend(behind);
            prop_assert_eq!(Request::decode(&bytes), Ok(Some((request, encoded.as_bytes().len()))));
        }

        #[test]
        fn a_response_that_was_encoded_is_decoded(kind in 0..7, sequence: u64, value: u64) {
            let response = match kind {
                0 => Response::Done { sequence },
                1 => Response::Data { sequence, bytes: value },
                2 => Response::Value { sequence, before: value },
                3 => Response::ShortData { sequence, bytes: value as u32, checksum: (value >> 32) as u32 },
                4 => Response::Closed { code: value },
                5 => Response::Wake,
                _ => Response::Refused { sequence },
            };
            let bytes = response.encode();
            prop_assert_eq!(Response::decode(&bytes), Ok(Some(response)));
            prop_assert_eq!(Response::decode(&bytes[..RESPONSE_BYTES - 1]), Ok(None));
        }

        #[test]
        fn no_single_changed_byte_goes_unnoticed(request in requests(), at: prop::sample::Index, flip in 1..=255u8) {
            let encoded = request.encode();
            let mut bytes = encoded.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            // A changed count of words may ask for more bytes than are there.
            prop_assert!(!matches!(Request::decode(&bytes), Ok(Some(_))), "byte {}", at);
        }

        #[test]
        fn no_bytes_make_the_decoders_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_headers(&bytes);
        }

        #[test]
        fn sealed_rubbish_is_an_error_or_says_what_it_holds(mut bytes in prop::collection::vec(any::<u8>(), 48..112)) {
            bytes[6] %= 10;
            let len = (REQUEST_BYTES + 8 * usize::from(bytes[6])).min(bytes.len());
            seal(&mut bytes[..len]);
            fuzz_headers(&bytes);
            seal(&mut bytes[..RESPONSE_BYTES]);
            fuzz_headers(&bytes);
        }
    }
}
