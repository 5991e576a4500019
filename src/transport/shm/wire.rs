//! The bytes of a handshake. All numbers are little-endian.
//!
//! ```text
//! prefix    0  magic "slkl-shm"
//!  32 bytes 8  u32 wire version      the first 12 bytes are the same in every version
//!          12  u32 kind              1 hello, 2 accept, 3 refuse
//!          16  u32 message bytes     at most MAX_MESSAGE_BYTES
//!          20  u32 segments          at most MAX_GRANTS; as many descriptors come along, in this order
//!          24  u32 grants            at most MAX_GRANTS
//!          28  u32 zero
//! segments  0  u64 key               random, for this connection only
//!  24 each  8  u64 bytes             length to map, from the begin of the file
//!          16  u32 access            bits of Access, at least one
//!          20  u32 zero
//! grants    0  u32 segment           index into the segments
//!  24 each  4  u32 zero
//!           8  u64 offset            in the segment
//!          16  u64 bytes
//! message      as many bytes as the prefix says; nothing follows it
//! ```

use crate::mem::{Access, RemoteKey, RemoteSlice};
use crate::transport::{MAX_GRANTS, MAX_MESSAGE_BYTES};

/// Version of everything in this file.
pub(super) const WIRE_VERSION: u32 = 1;

pub(super) const PREFIX_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"slkl-shm";
const SEGMENT_BYTES: usize = 24;
const GRANT_BYTES: usize = 24;

/// Bytes that are no handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("its first bytes are not those of a slackline shared-memory peer")]
    Magic,
    #[error(
        "it speaks wire version {theirs}, this process speaks {ours}; run the same slackline version on both sides"
    )]
    Version { theirs: u32, ours: u32 },
    #[error("{field} is {value}, allowed is {allowed}")]
    Field { field: &'static str, value: u64, allowed: &'static str },
    #[error("{what}")]
    Rule { what: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Hello = 1,
    Accept = 2,
    Refuse = 3,
}

/// Memory that comes along: one descriptor each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) key: RemoteKey,
    pub(super) bytes: u64,
    pub(super) access: Access,
}

/// Range of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) segment: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

pub(super) fn encode(kind: Kind, segments: &[Segment], grants: &[Grant], message: &[u8]) -> Vec<u8> {
    assert!(message.len() <= MAX_MESSAGE_BYTES && segments.len() <= MAX_GRANTS && grants.len() <= MAX_GRANTS);
    let mut bytes =
        Vec::with_capacity(PREFIX_BYTES + MAX_GRANTS * (SEGMENT_BYTES + GRANT_BYTES) + message.len());
    bytes.extend(MAGIC);
    for word in
        [WIRE_VERSION, kind as u32, message.len() as u32, segments.len() as u32, grants.len() as u32, 0]
    {
        bytes.extend(word.to_le_bytes());
    }
    for segment in segments {
        bytes.extend(segment.key.0.to_le_bytes());
        bytes.extend(segment.bytes.to_le_bytes());
        bytes.extend(segment.access.bits().to_le_bytes());
        bytes.extend([0; 4]);
    }
    for grant in grants {
        bytes.extend(grant.segment.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(grant.offset.to_le_bytes());
        bytes.extend(grant.bytes.to_le_bytes());
    }
    bytes.extend(message);
    bytes
}

/// A checked prefix: every length in it is within its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) kind: Kind,
    pub(super) segments: usize,
    grants: usize,
    message_bytes: usize,
}

impl Prefix {
    pub(super) fn parse(bytes: &[u8; PREFIX_BYTES]) -> Result<Prefix, WireError> {
        if bytes[..8] != MAGIC {
            return Err(WireError::Magic);
        }
        let theirs = word32(bytes, 8);
        if theirs != WIRE_VERSION {
            return Err(WireError::Version { theirs, ours: WIRE_VERSION });
        }
        let kind = match word32(bytes, 12) {
            1 => Kind::Hello,
            2 => Kind::Accept,
            3 => Kind::Refuse,
            other => return Err(field("the kind of message", other.into(), "1 to 3")),
        };
        let bounded = |name, at, max: usize, allowed| match word32(bytes, at) as usize {
            value if value <= max => Ok(value),
            value => Err(field(name, value as u64, allowed)),
        };
        let prefix = Prefix {
            kind,
            message_bytes: bounded("the length of the message", 16, MAX_MESSAGE_BYTES, "up to 16 MiB")?,
            segments: bounded("the number of segments", 20, MAX_GRANTS, "up to 16")?,
            grants: bounded("the number of grants", 24, MAX_GRANTS, "up to 16")?,
        };
        zero(word32(bytes, 28))?;
        Ok(prefix)
    }

    /// Length of everything after the prefix.
    pub(super) fn body_bytes(&self) -> usize {
        self.tables_bytes() + self.message_bytes
    }

    fn tables_bytes(&self) -> usize {
        self.segments * SEGMENT_BYTES + self.grants * GRANT_BYTES
    }

    /// Parses what follows the prefix.
    pub(super) fn parse_body(&self, mut body: Vec<u8>) -> Result<Body, WireError> {
        if body.len() != self.body_bytes() {
            return Err(WireError::Rule { what: "its message is shorter than it said" });
        }
        let message = body.split_off(self.tables_bytes());
        let (segment_table, grant_table) = body.split_at(self.segments * SEGMENT_BYTES);
        let mut segments = Vec::<Segment>::with_capacity(self.segments);
        for entry in segment_table.chunks_exact(SEGMENT_BYTES) {
            segments.push(parse_segment(entry, &segments)?);
        }
        let grants = grant_table.chunks_exact(GRANT_BYTES).map(|entry| parse_grant(entry, &segments));
        Ok(Body { grants: grants.collect::<Result<_, _>>()?, segments, message })
    }
}

/// What a handshake says, checked in itself.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) segments: Vec<Segment>,
    pub(super) grants: Vec<RemoteSlice>,
    pub(super) message: Vec<u8>,
}

fn parse_segment(entry: &[u8], before: &[Segment]) -> Result<Segment, WireError> {
    let key = RemoteKey(word64(entry, 0));
    if before.iter().any(|segment| segment.key == key) {
        return Err(WireError::Rule { what: "two segments have the same key" });
    }
    let access = Access::from_bits(word32(entry, 16)).filter(|access| !access.is_local());
    let access = access.ok_or(WireError::Rule { what: "a segment has unknown rights, or none" })?;
    zero(word32(entry, 20))?;
    Ok(Segment { key, bytes: word64(entry, 8), access })
}

fn parse_grant(entry: &[u8], segments: &[Segment]) -> Result<RemoteSlice, WireError> {
    let segment = segments.get(word32(entry, 0) as usize);
    let segment = segment.ok_or(WireError::Rule { what: "a grant names a segment that is not there" })?;
    zero(word32(entry, 4))?;
    let slice = RemoteSlice { key: segment.key, offset: word64(entry, 8), len: word64(entry, 16) };
    match slice.offset.checked_add(slice.len) {
        Some(end) if end <= segment.bytes => Ok(slice),
        _ => Err(WireError::Rule { what: "a grant does not lie inside its segment" }),
    }
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}

fn zero(word: u32) -> Result<(), WireError> {
    if word == 0 { Ok(()) } else { Err(field("a reserved field", word.into(), "0")) }
}

fn field(field: &'static str, value: u64, allowed: &'static str) -> WireError {
    WireError::Field { field, value, allowed }
}

/// A whole handshake, as the socket would bring it in two parts.
#[cfg(any(test, fuzzing))]
fn parse(bytes: &[u8]) -> Result<(Prefix, Body), WireError> {
    let prefix = Prefix::parse(bytes.first_chunk().ok_or(WireError::Rule { what: "short" })?)?;
    Ok((prefix, prefix.parse_body(bytes[PREFIX_BYTES..].to_vec())?))
}

/// Parses whatever `bytes` are as a handshake, and checks what came out.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_handshake(bytes: &[u8]) {
    let Ok((prefix, body)) = parse(bytes) else { return };
    assert!(body.segments.len() <= MAX_GRANTS && body.grants.len() <= MAX_GRANTS);
    let mut grants = Vec::new();
    for slice in &body.grants {
        let segment = body.segments.iter().position(|segment| segment.key == slice.key);
        let segment = segment.expect("a grant is of a segment");
        assert!(u128::from(slice.offset) + u128::from(slice.len) <= u128::from(body.segments[segment].bytes));
        grants.push(Grant { segment: segment as u32, offset: slice.offset, bytes: slice.len });
    }
    assert_eq!(encode(prefix.kind, &body.segments, &grants, &body.message), bytes);
}

/// Handshakes that the parser takes.
#[cfg(any(test, fuzzing))]
pub(crate) fn handshake_samples() -> Vec<Vec<u8>> {
    let segment = |key, bytes| Segment { key: RemoteKey(key), bytes, access: Access::REMOTE_READ };
    let grants = [Grant { segment: 1, offset: 8, bytes: 24 }, Grant { segment: 0, offset: 64, bytes: 0 }];
    vec![
        encode(Kind::Hello, &[segment(7, 64), segment(u64::MAX - 1, 32)], &grants, b"hi"),
        encode(Kind::Refuse, &[], &[], b"no room"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Body, WireError> {
        super::parse(bytes).map(|(_, body)| body)
    }

    fn sample() -> Vec<u8> {
        handshake_samples().swap_remove(0)
    }

    #[test]
    fn what_was_encoded_is_parsed() {
        let body = parse(&sample()).unwrap();
        assert_eq!(body.message, b"hi");
        assert_eq!(body.segments[1].key, RemoteKey(u64::MAX - 1));
        assert_eq!(body.grants[0], RemoteSlice { key: RemoteKey(u64::MAX - 1), offset: 8, len: 24 });
        assert_eq!(body.grants[1], RemoteSlice { key: RemoteKey(7), offset: 64, len: 0 });
    }

    #[test]
    fn every_truncation_is_an_error_and_no_changed_byte_panics() {
        let good = sample();
        for len in 0..good.len() {
            assert!(parse(&good[..len]).is_err(), "cut to {len} bytes");
        }
        for at in 0..good.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                // Keys and the message may be anything; the rest must be noticed or stay in bounds.
                fuzz_handshake(&bad);
            }
        }
    }

    #[test]
    fn another_wire_version_names_both_versions() {
        let mut bytes = sample();
        bytes[8] = 9;
        let text = parse(&bytes).unwrap_err().to_string();
        assert!(text.contains("version 9") && text.contains("speaks 1"), "{text}");
    }

    #[test]
    fn a_length_past_its_limit_is_refused_before_anything_is_allocated() {
        for (at, value) in [(16, MAX_MESSAGE_BYTES as u32 + 1), (20, 17), (24, u32::MAX)] {
            let mut bytes = sample();
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(matches!(parse(&bytes), Err(WireError::Field { .. })), "offset {at}");
        }
    }

    #[test]
    fn grants_that_overflow_or_leave_their_segment_are_refused() {
        let grants_at = PREFIX_BYTES + 2 * SEGMENT_BYTES;
        for (at, value) in [(8, u64::MAX), (16, u64::MAX), (8, 9), (0, 2)] {
            let mut bytes = sample();
            bytes[grants_at + at..grants_at + at + 8].copy_from_slice(&value.to_le_bytes());
            assert!(matches!(parse(&bytes), Err(WireError::Rule { .. })), "offset {at} value {value}");
        }
        let mut twins = sample();
        twins.copy_within(PREFIX_BYTES..PREFIX_BYTES + 8, PREFIX_BYTES + SEGMENT_BYTES);
        assert!(parse(&twins).unwrap_err().to_string().contains("same key"));
    }
}
