//! The messages of a handshake. A [`Channel`](crate::channel::Channel) carries them whole; nothing here is believed
//! before it is checked.
//!
//! ```text
//! prefix    0  u32 wire version  the first 8 bytes are the same in every version
//!  8 bytes  4  u32 kind          1 offer, 2 accept, 3 refuse, 4 join, 5 joined
//! offer, accept
//!           8  u64 epoch         random; stands in every request to who says it
//!          16  16 bytes ticket   random; accept: what further lanes join by; offer: zero
//!          32  u32 grants        at most MAX_GRANTS
//!          36  u32 zero
//!          40  grants, 32 bytes each: u64 key, u64 offset, u64 bytes, u32 access, u32 zero
//!              the rest is the message, at most MAX_MESSAGE_BYTES
//! refuse    8  the reason
//! join      8  16 bytes ticket
//!          24  u32 lane          1 forward pulse, 2 reverse data, 3 reverse pulse
//!          28  u32 zero
//! ```

use super::check::Grant;
use crate::mem::{Access, LocalSlice, RemoteKey};
use crate::transport::{MAX_GRANTS, MAX_MESSAGE_BYTES, Offer, Received};

/// Version of everything that travels, requests and responses too.
const WIRE_VERSION: u32 = 3;

const GRANT_BYTES: usize = 32;
const TERMS_BYTES: usize = 40;

/// Longest message of a handshake.
pub(super) const LIMIT: usize = TERMS_BYTES + MAX_GRANTS * GRANT_BYTES + MAX_MESSAGE_BYTES;

/// Longest reason of a refusal, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// By what further lanes find their connection.
pub(super) type Ticket = [u8; 16];

/// A connection beside the first one, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Lane {
    /// The connector's heartbeats.
    ForwardPulse = 1,
    /// The acceptor's requests.
    ReverseData = 2,
    /// The acceptor's heartbeats.
    ReversePulse = 3,
}

/// What one side lets the other one do.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) epoch: u64,
    pub(super) ticket: Ticket,
    pub(super) grants: Vec<Grant>,
}

/// A message of the handshake.
#[derive(Debug)]
pub(super) enum Hello {
    Offer(Terms, Vec<u8>),
    Accept(Terms, Vec<u8>),
    Refuse(String),
    Join(Ticket, Lane),
    Joined,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HelloError {
    #[error(
        "it speaks wire version {theirs}, this process speaks {WIRE_VERSION}; \
         run the same slackline version on both sides"
    )]
    Version { theirs: u32 },
    #[error("{0}")]
    Rule(&'static str),
}

/// Terms that grant what `offer` does, under keys that nobody can guess; what is wrong with it otherwise.
pub(super) fn terms(offer: &Offer, ticket: Ticket) -> Result<Terms, &'static str> {
    if offer.message.len() > MAX_MESSAGE_BYTES {
        return Err("its message is longer than 16 MiB; send it as memory");
    }
    if offer.grants.len() > MAX_GRANTS {
        return Err("it grants more than 16 ranges; make them parts of one region");
    }
    let mut grants = Vec::with_capacity(offer.grants.len());
    for slice in &offer.grants {
        if slice.region().access().is_local() {
            return Err("a region in it was registered without any right for peers");
        }
        let access = slice.region().access();
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
            && !slice.as_volatile().is_writable()
        {
            return Err("a region in it lets peers write memory that is mapped read-only");
        }
        grants.push(grant(slice, RemoteKey(random()?)));
    }
    Ok(Terms { epoch: random()?, ticket, grants })
}

fn grant(slice: &LocalSlice, key: RemoteKey) -> Grant {
    let (offset, bytes) = (slice.offset() as u64, slice.len() as u64);
    Grant { key, offset, bytes, access: slice.region().access() }
}

pub(super) fn random() -> Result<u64, &'static str> {
    getrandom::u64().map_err(|_| "the system has no random source to make keys from")
}

pub(super) fn random_ticket() -> Result<Ticket, &'static str> {
    let mut ticket = [0; 16];
    getrandom::fill(&mut ticket).map_err(|_| "the system has no random source to make keys from")?;
    Ok(ticket)
}

impl Terms {
    pub(super) fn received(&self, message: Vec<u8>) -> Received {
        let slice = |grant: &Grant| crate::mem::RemoteSlice {
            key: grant.key,
            offset: grant.offset,
            len: grant.bytes,
        };
        Received { message, grants: self.grants.iter().map(slice).collect() }
    }

    fn grants_anything(&self) -> bool {
        !self.grants.is_empty()
    }
}

/// The lanes beside the first one that a connection has, given what its acceptor and its connector granted: only those
/// that can be used. Each data lane has a pulse lane beside it: it carries the heartbeats, and it alone is timed. Bulk
/// data stands still for as long as its reader computes, and the system would take that for death.
pub(super) fn lanes(acceptor: &Terms, connector: &Terms) -> Vec<Lane> {
    let lanes = [
        (Lane::ForwardPulse, acceptor.grants_anything()),
        (Lane::ReverseData, connector.grants_anything()),
        (Lane::ReversePulse, connector.grants_anything()),
    ];
    lanes.into_iter().filter(|(_, used)| *used).map(|(lane, _)| lane).collect()
}

impl Hello {
    /// A refusal with its reason, cut if it is long.
    pub(super) fn refuse(reason: &str) -> Hello {
        let mut len = reason.len().min(MAX_REASON_BYTES);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        Hello::Refuse(reason[..len].to_owned())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Hello::Offer(terms, message) => offer(terms, message),
            Hello::Accept(terms, message) => accept(terms, message),
            Hello::Refuse(reason) => {
                let mut bytes = prefix(3);
                bytes.extend(reason.as_bytes());
                bytes
            }
            Hello::Join(ticket, lane) => {
                let mut bytes = prefix(4);
                bytes.extend(ticket);
                bytes.extend((*lane as u32).to_le_bytes());
                bytes.extend([0; 4]);
                bytes
            }
            Hello::Joined => prefix(5),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let mut rest = Reader { bytes };
        let theirs = rest.u32()?;
        if theirs != WIRE_VERSION {
            return Err(HelloError::Version { theirs });
        }
        let hello = match rest.u32()? {
            1 => {
                let terms = decode_terms(&mut rest)?;
                Hello::Offer(terms, rest.message()?)
            }
            2 => {
                let terms = decode_terms(&mut rest)?;
                Hello::Accept(terms, rest.message()?)
            }
            3 => {
                let text = String::from_utf8_lossy(rest.take(rest.bytes.len().min(MAX_REASON_BYTES))?);
                // It is shown to a user, and comes from another process.
                Hello::Refuse(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
            }
            4 => {
                let ticket = *rest.take(16)?.first_chunk().expect("16 bytes were taken");
                let lane = match rest.u32()? {
                    1 => Lane::ForwardPulse,
                    2 => Lane::ReverseData,
                    3 => Lane::ReversePulse,
                    _ => return Err(HelloError::Rule("it joins with a lane of an unknown kind")),
                };
                rest.zero()?;
                Hello::Join(ticket, lane)
            }
            5 => Hello::Joined,
            _ => return Err(HelloError::Rule("its message is of an unknown kind")),
        };
        let is_whole = matches!(hello, Hello::Offer(..) | Hello::Accept(..) | Hello::Refuse(_));
        if is_whole || rest.bytes.is_empty() {
            Ok(hello)
        } else {
            Err(HelloError::Rule("bytes follow its message"))
        }
    }
}

/// An offer as it travels.
pub(super) fn offer(terms: &Terms, message: &[u8]) -> Vec<u8> {
    encode_terms(prefix(1), terms, message)
}

/// An acceptance as it travels.
pub(super) fn accept(terms: &Terms, message: &[u8]) -> Vec<u8> {
    encode_terms(prefix(2), terms, message)
}

fn prefix(kind: u32) -> Vec<u8> {
    let mut bytes = WIRE_VERSION.to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes
}

fn encode_terms(mut bytes: Vec<u8>, terms: &Terms, message: &[u8]) -> Vec<u8> {
    bytes.reserve(TERMS_BYTES + terms.grants.len() * GRANT_BYTES + message.len());
    bytes.extend(terms.epoch.to_le_bytes());
    bytes.extend(terms.ticket);
    bytes.extend((terms.grants.len() as u32).to_le_bytes());
    bytes.extend([0; 4]);
    for grant in &terms.grants {
        for word in [grant.key.0, grant.offset, grant.bytes, u64::from(grant.access.bits())] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes.extend(message);
    bytes
}

fn decode_terms(rest: &mut Reader<'_>) -> Result<Terms, HelloError> {
    let epoch = rest.u64()?;
    let ticket = *rest.take(16)?.first_chunk().expect("16 bytes were taken");
    let count = rest.u32()? as usize;
    rest.zero()?;
    if count > MAX_GRANTS {
        return Err(HelloError::Rule("it grants more ranges than it may"));
    }
    let mut grants = Vec::<Grant>::with_capacity(count);
    for _ in 0..count {
        let (key, offset, bytes) = (RemoteKey(rest.u64()?), rest.u64()?, rest.u64()?);
        let access = Access::from_bits(rest.u32()?).filter(|access| !access.is_local());
        let access = access.ok_or(HelloError::Rule("a grant has unknown rights, or none"))?;
        rest.zero()?;
        if offset.checked_add(bytes).is_none() {
            return Err(HelloError::Rule("a grant goes past the end of all memory"));
        }
        if grants.iter().any(|grant| grant.key == key) {
            return Err(HelloError::Rule("two grants have the same key"));
        }
        grants.push(Grant { key, offset, bytes, access });
    }
    Ok(Terms { epoch, ticket, grants })
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], HelloError> {
        let short = HelloError::Rule("its message is shorter than what it says");
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or(short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, HelloError> {
        Ok(u32::from_le_bytes(*self.take(4)?.first_chunk().expect("4 bytes were taken")))
    }

    fn u64(&mut self) -> Result<u64, HelloError> {
        Ok(u64::from_le_bytes(*self.take(8)?.first_chunk().expect("8 bytes were taken")))
    }

    fn zero(&mut self) -> Result<(), HelloError> {
        if self.u32()? == 0 { Ok(()) } else { Err(HelloError::Rule("a reserved field is not zero")) }
    }

    fn message(&mut self) -> Result<Vec<u8>, HelloError> {
        if self.bytes.len() > MAX_MESSAGE_BYTES {
            return Err(HelloError::Rule("its message is longer than 16 MiB"));
        }
        Ok(std::mem::take(&mut self.bytes).to_vec())
    }
}

/// Decodes whatever `bytes` are as a message of a handshake, and checks what came out.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    match Hello::decode(bytes) {
        Ok(Hello::Refuse(reason)) => {
            // Each byte that is no text becomes a sign of three.
            assert!(reason.len() <= 3 * MAX_REASON_BYTES && !reason.chars().any(char::is_control));
        }
        Ok(hello) => {
            assert_eq!(hello.encode(), bytes);
            if let Hello::Offer(terms, _) | Hello::Accept(terms, _) = &hello {
                assert!(terms.grants.len() <= MAX_GRANTS);
                for grant in &terms.grants {
                    assert!(grant.offset.checked_add(grant.bytes).is_some() && !grant.access.is_empty());
                    assert_eq!(terms.grants.iter().filter(|other| other.key == grant.key).count(), 1);
                }
            }
        }
        Err(_) => {}
    }
}

/// Messages that the decoder takes, of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn hello_samples() -> Vec<Vec<u8>> {
    let grant = |key, offset, bytes| Grant {
        key: RemoteKey(key),
        offset,
        bytes,
        access: Access::REMOTE_READ | Access::REMOTE_ATOMIC,
    };
    let terms = || Terms { epoch: 5, ticket: [3; 16], grants: vec![grant(1, 8, 64), grant(2, 0, 0)] };
    vec![
        Hello::Accept(terms(), b"hi".to_vec()).encode(),
        Hello::Offer(terms(), Vec::new()).encode(),
        Hello::refuse("no room").encode(),
        Hello::Join([9; 16], Lane::ReverseData).encode(),
        Hello::Joined.encode(),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Vec<u8> {
        hello_samples().swap_remove(0)
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        let Ok(Hello::Accept(terms, message)) = Hello::decode(&sample()) else { panic!("an accept") };
        assert_eq!((terms.epoch, terms.ticket, message.as_slice()), (5, [3; 16], b"hi".as_slice()));
        assert_eq!((terms.grants[0].offset, terms.grants[0].bytes), (8, 64));
        assert_eq!(terms.grants[1].access, Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        let join = Hello::Join([9; 16], Lane::ReverseData).encode();
        assert!(
            matches!(Hello::decode(&join), Ok(Hello::Join(ticket, Lane::ReverseData)) if ticket == [9; 16])
        );
        assert!(matches!(Hello::decode(&Hello::Joined.encode()), Ok(Hello::Joined)));
    }

    #[test]
    fn every_truncation_of_the_terms_is_an_error_and_no_changed_byte_panics() {
        let good = sample();
        for len in 0..good.len() - 2 {
            assert!(Hello::decode(&good[..len]).is_err(), "cut to {len} bytes");
        }
        for at in 0..good.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                fuzz_hello(&bad);
            }
        }
    }

    #[test]
    fn another_wire_version_names_both_versions() {
        let mut bytes = sample();
        bytes[0] = 9;
        let text = Hello::decode(&bytes).unwrap_err().to_string();
        assert!(text.contains("version 9") && text.contains("speaks 3"), "{text}");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters_and_control_characters_are_taken_out() {
        let Hello::Refuse(reason) = Hello::refuse(&"ä".repeat(5000)) else { panic!("a refusal") };
        assert_eq!(reason.len(), MAX_REASON_BYTES);
        let bytes = Hello::refuse("\u{1b}[2Jno").encode();
        assert!(matches!(Hello::decode(&bytes), Ok(Hello::Refuse(reason)) if reason == " [2Jno"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(kind in 0..7u32, rest in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = WIRE_VERSION.to_le_bytes().to_vec();
            bytes.extend(kind.to_le_bytes());
            bytes.extend(&rest);
            fuzz_hello(&bytes);
            fuzz_hello(&rest);
        }
    }
}
