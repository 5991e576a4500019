//! The bytes of a handshake over shared memory: a frame around a message of the [wire-up](crate::transport::wireup).
//!
//! ```text
//! frame     0  magic "slkl-shm"
//!  32 bytes 8  u32 wire version      the first 12 bytes are the same in every version
//!          12  u32 length            of what follows the frame
//!          16  16 bytes zero         peers of version 1 read 32 bytes before they name a version
//! body         the message, without the version
//! ```

use serde::{Deserialize, Serialize};

use crate::transport::MAX_GRANTS;
use crate::transport::wireup::{self, Blob, Grant, LIMIT, Side, WIRE_VERSION, WireError};

pub(super) const FRAME_BYTES: usize = 32;
const MAGIC: [u8; 8] = *b"slkl-shm";
const VERSION_BYTES: usize = 4;

/// The descriptors that come along with an offer: one for each segment, in this order, and then, if the sender has a
/// doorbell, its eventfd and the memory of its word. A segment is its file from the begin on, or memory of a GPU, under
/// a key that is random and of this connection only. Grants name segments by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segments {
    pub(super) segments: Vec<Grant>,
    /// The number of segments that are memory of a GPU, as CUDA exports it. They are the last ones.
    pub(super) on_gpu: u8,
    /// True if the sender is to be woken: a listener by requests that notify, a connector by the event that it awaits.
    pub(super) has_doorbell: bool,
}

/// The notes of shared memory: there are none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {}

pub(super) type Terms = wireup::Terms<Segments>;
pub(super) type Hello = wireup::Hello<Segments, Note>;

impl Segments {
    fn named(&self, grant: &Grant) -> Option<&Grant> {
        self.segments.iter().find(|segment| segment.key == grant.key)
    }
}

impl Blob for Segments {
    fn check(&self, from: Side, grants: &[Grant]) -> Result<(), &'static str> {
        if self.segments.len() > MAX_GRANTS {
            return Err("it passes more segments than it may");
        }
        if usize::from(self.on_gpu) > self.segments.len() {
            return Err("more segments are on a GPU than there are");
        }
        if self.on_gpu > 0 && from == Side::Connector {
            return Err("only a listener grants memory of a GPU");
        }
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.offset != 0 {
                return Err("a segment does not begin where its file does");
            }
            if self.segments[..index].iter().any(|other| other.key == segment.key) {
                return Err("two segments have the same key");
            }
        }
        for grant in grants {
            let segment = self.named(grant).ok_or("a grant names a segment that is not there")?;
            if grant.access != segment.access {
                return Err("a grant has other rights than its segment");
            }
            if grant.offset.checked_add(grant.bytes).is_none_or(|end| end > segment.bytes) {
                return Err("a grant does not lie inside its segment");
            }
        }
        Ok(())
    }
}

/// The bytes of a message, in their frame.
pub(super) fn frame(hello: &Hello, message: &[u8]) -> Vec<u8> {
    let said = hello.encode(message);
    let (version, body) = said.split_at(VERSION_BYTES);
    let mut bytes = Vec::with_capacity(FRAME_BYTES + body.len());
    bytes.extend(MAGIC);
    bytes.extend(version);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

/// The length of the message whose frame this is, with its version.
pub(super) fn parse_frame(frame: &[u8; FRAME_BYTES]) -> Result<usize, WireError> {
    if frame[..8] != MAGIC {
        return Err(WireError::Rule("its first bytes are not those of a slackline shared-memory peer"));
    }
    let word = |at: usize| u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let theirs = word(8);
    if theirs != WIRE_VERSION {
        return Err(WireError::Version { theirs });
    }
    if frame[16..] != [0; 16] {
        return Err(WireError::Rule("a reserved field is not zero"));
    }
    match VERSION_BYTES.checked_add(word(12) as usize) {
        Some(bytes) if bytes <= LIMIT => Ok(bytes),
        _ => Err(WireError::Rule("its message is longer than a handshake can be")),
    }
}

/// Turns a frame into the begin of the message that follows it.
pub(super) fn strip_frame(bytes: &mut Vec<u8>) {
    bytes.truncate(MAGIC.len() + VERSION_BYTES);
    bytes.drain(..MAGIC.len());
}

/// Parses arbitrary `bytes` as a framed handshake, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_handshake(bytes: &[u8]) {
    let Some((frame, body)) = bytes.split_first_chunk() else { return };
    let Ok(length) = parse_frame(frame) else { return };
    assert!(length <= LIMIT);
    let mut said = frame.to_vec();
    strip_frame(&mut said);
    said.extend(body);
    let Some(wireup::Hello::Offer(terms) | wireup::Hello::Accept(terms)) =
        wireup::fuzz::<Segments, Note>(&said)
    else {
        return;
    };
    assert!(terms.blob.segments.len() <= MAX_GRANTS);
    for grant in &terms.grants {
        let segment = terms.blob.named(grant).expect("a grant is of a segment");
        assert!(u128::from(grant.offset) + u128::from(grant.bytes) <= u128::from(segment.bytes));
    }
}

/// Handshakes that the parser takes.
#[cfg(any(test, fuzzing))]
pub(crate) fn handshake_samples() -> Vec<Vec<u8>> {
    vec![
        frame(&Hello::Offer(sample()), b"hi"),
        frame(
            &Hello::Offer(Terms { blob: Segments { has_doorbell: true, ..sample().blob }, ..sample() }),
            b"",
        ),
        frame(&Hello::Accept(Terms { grants: Vec::new(), blob: Segments::default() }), b""),
        frame(&Hello::refuse("no room".into()), b""),
    ]
}

#[cfg(any(test, fuzzing))]
fn sample() -> Terms {
    use crate::mem::{Access, RemoteKey};
    let range =
        |key, offset, bytes| Grant { key: RemoteKey(key), offset, bytes, access: Access::REMOTE_READ };
    Terms {
        grants: vec![range(u64::MAX - 1, 8, 24), range(7, 64, 0)],
        blob: Segments {
            segments: vec![range(7, 0, 64), range(u64::MAX - 1, 0, 32)],
            on_gpu: 0,
            has_doorbell: false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{Access, RemoteKey};

    #[test]
    fn every_sample_is_taken_and_no_changed_byte_of_one_panics() {
        for good in handshake_samples() {
            assert_eq!(
                parse_frame(good.first_chunk().unwrap()),
                Ok(good.len() - FRAME_BYTES + VERSION_BYTES)
            );
            for at in 0..good.len() {
                for flip in [1, 0x80, 0xFF] {
                    let mut bad = good.clone();
                    bad[at] ^= flip;
                    fuzz_handshake(&bad);
                }
            }
        }
    }

    #[test]
    fn a_length_past_its_limit_is_refused_before_anything_is_allocated() {
        let good = frame(&Hello::refuse("no".into()), b"");
        for length in [LIMIT as u32 - 3, u32::MAX] {
            let mut bytes = good.clone();
            bytes[12..16].copy_from_slice(&length.to_le_bytes());
            assert!(matches!(parse_frame(bytes.first_chunk().unwrap()), Err(WireError::Rule(_))), "{length}");
        }
    }

    #[test]
    fn segments_and_grants_that_do_not_fit_each_other_are_refused() {
        let Terms { grants, blob: Segments { segments, .. } } = sample();
        let check = |segments: &[Grant], grants: &[Grant]| {
            let segments = Segments { segments: segments.to_vec(), ..Segments::default() };
            segments.check(Side::Connector, grants)
        };
        assert_eq!(check(&segments, &grants), Ok(()));
        let changed = |change: fn(&mut Grant)| {
            let mut grant = grants[0];
            change(&mut grant);
            check(&segments, &[grant]).unwrap_err()
        };
        assert!(changed(|grant| grant.key = RemoteKey(1)).contains("not there"));
        assert!(changed(|grant| grant.offset = 9).contains("inside"));
        assert!(changed(|grant| grant.bytes = u64::MAX).contains("inside"));
        assert!(changed(|grant| grant.access = Access::REMOTE_WRITE).contains("rights"));
        assert!(check(&[segments[0]; 2], &[]).unwrap_err().contains("same key"));
        let moved = Grant { offset: 1, ..segments[0] };
        assert!(check(&[moved], &[]).unwrap_err().contains("begin"));
        let on_gpu = |on_gpu, from| {
            let of_gpu = Segments { segments: segments.to_vec(), on_gpu, has_doorbell: false };
            of_gpu.check(from, &grants)
        };
        assert_eq!(on_gpu(2, Side::Listener), Ok(()));
        assert!(on_gpu(3, Side::Listener).unwrap_err().contains("than there are"));
        assert!(on_gpu(1, Side::Connector).unwrap_err().contains("only a listener"));
        let many: Vec<_> = (0..17).map(|key| Grant { key: RemoteKey(key), ..segments[0] }).collect();
        assert!(check(&many, &[]).unwrap_err().contains("more segments"));
    }
}
