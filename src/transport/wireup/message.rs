//! The messages of a wire-up. Nothing here is believed before it is checked.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::mem::{Access, RemoteKey, RemoteSlice};
use crate::time::Duration;
use crate::transport::{MAX_GRANTS, MAX_MESSAGE_BYTES, Received, Refusal};

/// Version of everything that any transport sends, in the wire-up and after it.
///
/// Versions up to 3 belonged to one transport each.
pub(crate) const WIRE_VERSION: u32 = 14;

/// More than the longest body: a refusal with its reason.
const BODY_MAX: usize = 8192;

/// Longest message of a wire-up.
pub(crate) const LIMIT: usize = 4 + BODY_MAX + MAX_MESSAGE_BYTES;

/// Longest reason of a refusal, in bytes. It fits the buffer of a fresh socket, so that it can be sent at once.
const MAX_REASON_BYTES: usize = 4096;

/// Longest time for which a refusal may ask a peer to wait.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A range that the peer may use: `bytes` from `offset` of a region on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "GrantOnTheWire", try_from = "GrantOnTheWire")]
pub(crate) struct Grant {
    pub(crate) key: RemoteKey,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// At least one right for peers.
    pub(crate) access: Access,
}

#[derive(Serialize, Deserialize)]
struct GrantOnTheWire(RemoteKey, u64, u64, u32);

impl From<Grant> for GrantOnTheWire {
    fn from(grant: Grant) -> GrantOnTheWire {
        GrantOnTheWire(grant.key, grant.offset, grant.bytes, grant.access.bits())
    }
}

impl TryFrom<GrantOnTheWire> for Grant {
    type Error = &'static str;

    fn try_from(GrantOnTheWire(key, offset, bytes, access): GrantOnTheWire) -> Result<Grant, &'static str> {
        let access = Access::from_bits(access).filter(|access| !access.is_local());
        let access = access.ok_or("a grant has unknown rights, or none")?;
        offset.checked_add(bytes).ok_or("a grant goes past the end of all memory")?;
        Ok(Grant { key, offset, bytes, access })
    }
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side that made the connection.
    Connector,
    /// The side that accepts it.
    Listener,
}

/// The contribution of a transport to an offer and an acceptance.
pub(crate) trait Blob: Serialize + DeserializeOwned {
    /// Checks the other side's blob together with its grants.
    fn check(&self, from: Side, grants: &[Grant]) -> Result<(), &'static str>;
}

/// The contribution of one side to a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms<B> {
    /// The ranges that the other side may use.
    pub(crate) grants: Vec<Grant>,
    pub(crate) blob: B,
}

impl<B> Terms<B> {
    /// The peer's offer as the owner of an endpoint sees it.
    pub(crate) fn received(&self, message: Vec<u8>) -> Received {
        let slice = |grant: &Grant| RemoteSlice { key: grant.key, offset: grant.offset, len: grant.bytes };
        Received { message, grants: self.grants.iter().map(slice).collect() }
    }
}

impl<B: Blob> Terms<B> {
    fn check(&self, from: Side) -> Result<(), WireError> {
        if self.grants.len() > MAX_GRANTS {
            return Err(WireError::Rule("it grants more ranges than it may"));
        }
        self.blob.check(from, &self.grants).map_err(WireError::Rule)
    }
}

/// A message of a wire-up, with the blob `B` and the notes `N` of a transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hello<B, N> {
    /// The connector begins.
    Offer(Terms<B>),
    /// The listener accepts.
    Accept(Terms<B>),
    /// The listener does not, and says why.
    Refuse(Refusal),
    /// Something else that the transport has to say.
    Note(N),
}

/// Bytes that are no message of a wire-up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    /// The other side speaks another version.
    #[error(
        "it speaks wire version {theirs}, this process speaks {WIRE_VERSION}; \
         run the same slackline version on both sides"
    )]
    Version { theirs: u32 },
    /// The message breaks a rule.
    #[error("{0}")]
    Rule(&'static str),
}

impl<B: Blob, N: Serialize + DeserializeOwned> Hello<B, N> {
    /// A refusal with its reason, cut if it is long.
    pub(crate) fn refuse(mut refusal: Refusal) -> Self {
        let mut len = refusal.reason.len().min(MAX_REASON_BYTES);
        while !refusal.reason.is_char_boundary(len) {
            len -= 1;
        }
        refusal.reason.truncate(len);
        Hello::Refuse(refusal)
    }

    /// The bytes of this message, followed by the message of the layer above.
    pub(crate) fn encode(&self, message: &[u8]) -> Vec<u8> {
        let mut bytes = WIRE_VERSION.to_le_bytes().to_vec();
        // Serialising to a Vec cannot fail for types without maps of unknown length, and there are none.
        bytes = postcard::to_extend(self, bytes).expect("a message of a wire-up always serialises");
        bytes.extend(message);
        bytes
    }

    /// Takes a message apart and checks it; with it comes the message of the layer above.
    pub(crate) fn decode(bytes: &[u8]) -> Result<(Self, Vec<u8>), WireError> {
        let (version, body) =
            bytes.split_first_chunk::<4>().ok_or(WireError::Rule("its message is too short"))?;
        let theirs = u32::from_le_bytes(*version);
        if theirs != WIRE_VERSION {
            return Err(WireError::Version { theirs });
        }
        // No more is decoded than the longest body has: millions of grants would be allocated before they are counted.
        let head = &body[..body.len().min(BODY_MAX)];
        let (hello, rest) = postcard::take_from_bytes::<Self>(head)
            .map_err(|_| WireError::Rule("its message does not decode"))?;
        let message = &body[head.len() - rest.len()..];
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(WireError::Rule("its message is longer than 16 MiB"));
        }
        let hello = match hello {
            Hello::Offer(terms) => {
                terms.check(Side::Connector)?;
                Hello::Offer(terms)
            }
            Hello::Accept(terms) => {
                terms.check(Side::Listener)?;
                Hello::Accept(terms)
            }
            Hello::Refuse(refusal) if refusal.reason.len() > MAX_REASON_BYTES => {
                return Err(WireError::Rule("its refusal is too long"));
            }
            // It is shown to a user, and comes from another process.
            Hello::Refuse(Refusal { retry_after, reason, no_path }) => {
                let retry_after = retry_after.map(|after| after.min(MAX_RETRY_AFTER));
                let reason = reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                Hello::Refuse(Refusal { retry_after, reason, no_path })
            }
            Hello::Note(note) => Hello::Note(note),
        };
        if matches!(hello, Hello::Refuse(_) | Hello::Note(_)) && !message.is_empty() {
            return Err(WireError::Rule("bytes follow its message"));
        }
        Ok((hello, message.to_vec()))
    }
}

/// Decodes arbitrary `bytes` as a message of a wire-up, checks the result, and returns it.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz<B, N>(bytes: &[u8]) -> Option<Hello<B, N>>
where
    B: Blob + PartialEq + std::fmt::Debug,
    N: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let (hello, message) = Hello::<B, N>::decode(bytes).ok()?;
    match &hello {
        Hello::Refuse(refusal) => {
            assert!(!refusal.reason.chars().any(char::is_control) && message.is_empty());
        }
        Hello::Offer(terms) | Hello::Accept(terms) => {
            assert!(terms.grants.len() <= MAX_GRANTS && message.len() <= MAX_MESSAGE_BYTES);
            for grant in &terms.grants {
                assert!(grant.offset.checked_add(grant.bytes).is_some() && !grant.access.is_local());
            }
        }
        Hello::Note(_) => assert!(message.is_empty()),
    }
    let (again, its_message) = Hello::<B, N>::decode(&hello.encode(&message)).expect("it was checked");
    assert!(again == hello && its_message == message);
    Some(hello)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A blob of a transport that there is not: it is good if it is even.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Even(u32);

    impl Blob for Even {
        fn check(&self, _from: Side, _grants: &[Grant]) -> Result<(), &'static str> {
            if self.0.is_multiple_of(2) { Ok(()) } else { Err("it is odd") }
        }
    }

    type Message = Hello<Even, u8>;

    fn grant() -> Grant {
        Grant { key: RemoteKey(7), offset: 8, bytes: 64, access: Access::REMOTE_READ }
    }

    fn terms() -> Terms<Even> {
        Terms { grants: vec![grant(), Grant { key: RemoteKey(u64::MAX), ..grant() }], blob: Even(2) }
    }

    fn error_of(message: &Message) -> String {
        Message::decode(&message.encode(&[])).unwrap_err().to_string()
    }

    #[test]
    fn what_was_said_is_heard() {
        for (hello, message) in [
            (Message::Offer(terms()), &b"hi"[..]),
            (Message::Accept(terms()), b""),
            (Message::refuse(Refusal::temporary(Duration::from_millis(50), "no room")), b""),
            (Message::refuse(Refusal { no_path: true, .."no way".into() }), b""),
            (Message::Note(5), b""),
        ] {
            assert_eq!(Message::decode(&hello.encode(message)), Ok((hello, message.to_vec())));
        }
    }

    #[test]
    fn terms_that_cannot_be_are_refused() {
        let odd = Terms { blob: Even(3), ..terms() };
        assert_eq!(error_of(&Message::Offer(odd.clone())), "it is odd");
        assert_eq!(error_of(&Message::Accept(odd)), "it is odd");
        let many = Terms { grants: vec![grant(); MAX_GRANTS + 1], ..terms() };
        assert_eq!(error_of(&Message::Offer(many)), "it grants more ranges than it may");
        for bad in [
            Grant { access: Access::LOCAL, ..grant() },
            Grant { access: Access::from_bits_retain(1 << 30), ..grant() },
            Grant { offset: u64::MAX, ..grant() },
        ] {
            let terms = Terms { grants: vec![bad], ..terms() };
            assert_eq!(error_of(&Message::Offer(terms)), "its message does not decode", "{bad:?}");
        }
        for hello in [Message::Note(5), Message::refuse("no".into())] {
            assert!(Message::decode(&hello.encode(b"more")).is_err());
        }
    }

    #[test]
    fn no_more_is_decoded_than_the_longest_body_before_a_message_of_16_mib() {
        let short = Grant { key: RemoteKey(0), offset: 0, bytes: 0, ..grant() };
        let many = Message::Offer(Terms { grants: vec![short; BODY_MAX], ..terms() });
        assert_eq!(error_of(&many), "its message does not decode");
        let (offer, longest) = (Message::Offer(terms()), vec![7; MAX_MESSAGE_BYTES]);
        assert_eq!(Message::decode(&offer.encode(&longest)), Ok((offer.clone(), longest)));
        let longer = offer.encode(&vec![7; MAX_MESSAGE_BYTES + 1]);
        assert_eq!(Message::decode(&longer), Err(WireError::Rule("its message is longer than 16 MiB")));
    }

    #[test]
    fn another_wire_version_names_both_versions() {
        let mut bytes = Message::Note(5).encode(&[]);
        bytes[0] = 8;
        let text = Message::decode(&bytes).unwrap_err().to_string();
        assert!(text.contains("version 8") && text.contains(&format!("speaks {WIRE_VERSION}")), "{text}");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters_and_loses_control_characters() {
        let Message::Refuse(Refusal { reason, .. }) = Message::refuse("ä".repeat(5000).into()) else {
            panic!("a refusal")
        };
        assert_eq!(reason.len(), MAX_REASON_BYTES);
        let (hello, _) = Message::decode(&Message::refuse("\u{1b}[2Jno".into()).encode(&[])).unwrap();
        assert_eq!(hello, Message::Refuse(" [2Jno".into()));
        let (hello, _) =
            Message::decode(&Message::refuse(Refusal::temporary(Duration::MAX, "")).encode(&[])).unwrap();
        assert_eq!(hello, Message::Refuse(Refusal::temporary(MAX_RETRY_AFTER, "")));
        let long = Message::Refuse("x".repeat(MAX_REASON_BYTES + 1).into());
        assert_eq!(error_of(&long), "its refusal is too long");
    }

    #[test]
    fn every_truncation_of_the_terms_is_an_error_and_no_changed_byte_panics() {
        let good = Message::Offer(terms()).encode(b"");
        for len in 0..good.len() {
            assert!(Message::decode(&good[..len]).is_err(), "cut to {len} bytes");
        }
        for at in 0..good.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                fuzz::<Even, u8>(&bad);
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(rest in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut bytes = WIRE_VERSION.to_le_bytes().to_vec();
            bytes.extend(rest);
            fuzz::<Even, u8>(&bytes);
        }
    }
}
