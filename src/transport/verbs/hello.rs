//! The messages of a handshake. A [`Channel`](crate::channel::Channel) carries them whole; nothing here is believed
//! before it is checked.
//!
//! ```text
//! u32 wire version   the same place in every version
//! body               postcard: what is said
//! the rest           the message of the layer above, at most MAX_MESSAGE_BYTES
//! ```

use serde::{Deserialize, Serialize};

use crate::mem::{Access, MAX_RAILS, RemoteKey, RemoteSlice};
use crate::transport::{MAX_GRANTS, MAX_MESSAGE_BYTES, Received};

/// Version of everything that is said here, and of what lanes there are.
const WIRE_VERSION: u32 = 3;

/// More than the longest body: a refusal with its reason.
const BODY_MAX: usize = 8192;

/// Longest message of a handshake.
pub(super) const LIMIT: usize = 4 + BODY_MAX + MAX_MESSAGE_BYTES;

/// Longest reason of a refusal, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// Queue pair and packet numbers have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

/// What a side's queue pair is called, and the number of the first packet that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) number: u32,
    pub(super) first_packet: u32,
}

/// The two queue pairs of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pairs {
    /// For requests.
    pub(super) data: Pair,
    /// For heartbeats.
    pub(super) pulse: Pair,
}

/// Where a side's port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// True for InfiniBand, which is found by its LID; RoCE is by its GID.
    pub(super) is_infiniband: bool,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// RoCE only: whether it speaks version 2.
    pub(super) is_routed: bool,
    /// Largest packet that its port carries, in bytes.
    pub(super) mtu: u16,
    /// READs and atomics that it answers at once.
    pub(super) reads_served: u8,
    /// READs and atomics that it has under way at once.
    pub(super) reads_posted: u8,
}

/// A range that the peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grant {
    pub(super) key: u32,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) access: u32,
}

/// A rail after the first: what of it differs from the first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Further {
    pub(super) place: Place,
    /// The pair that it posts on, if it does.
    pub(super) posting: Option<Pair>,
    pub(super) serving: Option<FurtherServing>,
}

/// How a rail after the first serves the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FurtherServing {
    pub(super) data: Pair,
    /// The key of each grant on this rail.
    pub(super) keys: Vec<u32>,
    /// The key of a word at offset 0, which is read to learn that what was written before has arrived.
    pub(super) sentinel: u32,
}

/// What one side brings along.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    pub(super) place: Place,
    /// Pairs that it posts on: always in an offer; in an answer if the connector granted something.
    pub(super) posting: Option<Pairs>,
    /// Pairs that serve the other side, if it grants anything.
    pub(super) serving: Option<Pairs>,
    pub(super) grants: Vec<Grant>,
    /// The other rails; in an answer those that both sides have.
    pub(super) further: Vec<Further>,
    /// Requests with immediate data that it can take before it says more: 0 if nobody sleeps there.
    pub(super) receives: u16,
}

/// A message of the handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Hello {
    /// The connector begins.
    Offer(Terms),
    /// The listener takes it in.
    Accept(Terms),
    /// The listener turns it away.
    Refuse(String),
    /// The connector's queue pairs are ready.
    Ready,
    /// The other side's device refused a request of this side, which ends the connection.
    Trespassed,
    /// This side can take so many requests with immediate data more.
    Receives(u16),
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

impl Hello {
    /// A refusal with its reason, cut if it is long.
    pub(super) fn refuse(reason: &str) -> Hello {
        let mut len = reason.len().min(MAX_REASON_BYTES);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        Hello::Refuse(reason[..len].to_owned())
    }

    pub(super) fn encode(&self, message: &[u8]) -> Vec<u8> {
        let mut bytes = WIRE_VERSION.to_le_bytes().to_vec();
        // Serialising to a Vec cannot fail for types without maps of unknown length, and there are none.
        bytes = postcard::to_extend(self, bytes).expect("a handshake always serialises");
        bytes.extend(message);
        bytes
    }

    /// What was said, and the message of the layer above.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Hello, Vec<u8>), HelloError> {
        let (version, body) =
            bytes.split_first_chunk::<4>().ok_or(HelloError::Rule("its message is too short"))?;
        let theirs = u32::from_le_bytes(*version);
        if theirs != WIRE_VERSION {
            return Err(HelloError::Version { theirs });
        }
        let (hello, message) = postcard::take_from_bytes::<Hello>(body)
            .map_err(|_| HelloError::Rule("its message does not decode"))?;
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(HelloError::Rule("its message is longer than 16 MiB"));
        }
        let hello = match hello {
            Hello::Offer(terms) => {
                check(terms.posting.is_some(), "it offers no queue pair")?;
                Hello::Offer(terms.checked()?)
            }
            Hello::Accept(terms) => Hello::Accept(terms.checked()?),
            Hello::Refuse(reason) => {
                check(reason.len() <= MAX_REASON_BYTES, "its refusal is too long")?;
                // It is shown to a user, and comes from another process.
                Hello::Refuse(reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect())
            }
            Hello::Ready | Hello::Trespassed | Hello::Receives(_) => hello,
        };
        if !matches!(hello, Hello::Offer(_) | Hello::Accept(_)) {
            check(message.is_empty(), "bytes follow its message")?;
        }
        Ok((hello, message.to_vec()))
    }
}

fn check(condition: bool, reason: &'static str) -> Result<(), HelloError> {
    if condition { Ok(()) } else { Err(HelloError::Rule(reason)) }
}

impl Place {
    fn check(&self) -> Result<(), HelloError> {
        check(matches!(self.mtu, 256 | 512 | 1024 | 2048 | 4096), "its packets are of no size that there is")
    }
}

impl Pair {
    fn check(&self) -> Result<(), HelloError> {
        check(self.number <= NUMBER_MAX && self.first_packet <= NUMBER_MAX, "a number of more than 24 bits")
    }
}

impl Further {
    /// Whether it fits what is said of the first rail.
    fn check(&self, terms: &Terms) -> Result<(), HelloError> {
        self.place.check()?;
        let serving = self.serving.as_ref();
        for pair in self.posting.into_iter().chain(serving.map(|serving| serving.data)) {
            pair.check()?;
        }
        let is_alike = self.posting.is_some() == terms.posting.is_some()
            && serving.is_some() == terms.serving.is_some()
            && serving.is_none_or(|serving| serving.keys.len() == terms.grants.len());
        check(is_alike, "one of its rails does what the others do not")?;
        check(serving.is_none() || self.place.reads_served > 0, "it serves on a rail that answers no reads")
    }
}

impl Grant {
    /// What the owner of an endpoint calls the grant of this index: on the wire goes the lower half.
    fn name(&self, index: usize) -> RemoteKey {
        RemoteKey((index as u64) << 32 | u64::from(self.key))
    }
}

impl Terms {
    /// Where the rails are, the first one first.
    pub(super) fn places(&self) -> impl Iterator<Item = &Place> {
        std::iter::once(&self.place).chain(self.further.iter().map(|further| &further.place))
    }

    /// The index of the grant that a key names.
    pub(super) fn index(key: RemoteKey) -> usize {
        (key.0 >> 32) as usize
    }

    /// What each grant is called, and whether it announces nothing.
    pub(super) fn names(&self) -> Vec<(RemoteKey, bool)> {
        let is_relaxed = |grant: &Grant| Access::from_bits_truncate(grant.access).contains(Access::RELAXED);
        self.grants.iter().enumerate().map(|(index, grant)| (grant.name(index), is_relaxed(grant))).collect()
    }

    /// The grant that `remote` names, and its index.
    fn grant(&self, remote: &RemoteSlice) -> Option<(usize, &Grant)> {
        let index = Terms::index(remote.key);
        self.grants.get(index).filter(|grant| grant.name(index) == remote.key).map(|grant| (index, grant))
    }

    fn checked(self) -> Result<Terms, HelloError> {
        let place = &self.place;
        place.check()?;
        let pairs =
            [self.posting, self.serving].into_iter().flatten().flat_map(|pairs| [pairs.data, pairs.pulse]);
        for pair in pairs {
            pair.check()?;
        }
        check(self.grants.len() <= MAX_GRANTS, "it grants more ranges than it may")?;
        let wants_reads = self.grants.iter().any(|grant| {
            let rights = Access::from_bits_truncate(grant.access);
            rights.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC)
        });
        check(place.reads_served > 0 || !wants_reads, "it grants reading and answers no reads")?;
        check(
            self.grants.is_empty() == self.serving.is_none(),
            "it grants without serving, or serves nothing",
        )?;
        check(self.further.len() < MAX_RAILS, "it has more rails than there may be")?;
        for further in &self.further {
            further.check(&self)?;
        }
        for grant in &self.grants {
            let access = Access::from_bits(grant.access);
            check(access.is_some_and(|access| !access.is_local()), "a grant has unknown rights, or none")?;
            check(
                grant.offset.checked_add(grant.bytes).is_some(),
                "a grant goes past the end of all memory",
            )?;
        }
        Ok(self)
    }

    pub(super) fn received(&self, message: Vec<u8>) -> Received {
        let slice = |(index, grant): (usize, &Grant)| RemoteSlice {
            key: grant.name(index),
            offset: grant.offset,
            len: grant.bytes,
        };
        Received { message, grants: self.grants.iter().enumerate().map(slice).collect() }
    }

    /// Whether `word` is one aligned word that this side granted for writing.
    pub(super) fn is_writable_word(&self, word: &RemoteSlice) -> bool {
        word.len == 8
            && word.offset.is_multiple_of(8)
            && self.grant(word).is_some_and(|(_, grant)| {
                let from_begin = word.offset.checked_sub(grant.offset);
                from_begin.is_some_and(|at| at <= grant.bytes && grant.bytes - at >= 8)
                    && Access::from_bits_truncate(grant.access).contains(Access::REMOTE_WRITE)
            })
    }
}

/// Decodes whatever `bytes` are as a message of a handshake, and checks what came out.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let Ok((hello, message)) = Hello::decode(bytes) else { return };
    match &hello {
        Hello::Refuse(reason) => assert!(!reason.chars().any(char::is_control)),
        Hello::Offer(terms) | Hello::Accept(terms) => {
            assert!(terms.grants.len() <= MAX_GRANTS && terms.grants.is_empty() == terms.serving.is_none());
            assert!(terms.places().count() <= MAX_RAILS);
            for (index, slice) in terms.received(Vec::new()).grants.iter().enumerate() {
                let (known, grant) = terms.grant(slice).expect("what was granted is known by its name");
                assert!(slice.offset.checked_add(slice.len).is_some() && grant.access != 0);
                let mut servings = terms.further.iter().filter_map(|further| further.serving.as_ref());
                assert!(known == index && servings.all(|serving| serving.keys.len() > index));
            }
        }
        Hello::Ready | Hello::Trespassed | Hello::Receives(_) => assert!(message.is_empty()),
    }
    assert_eq!(Hello::decode(&hello.encode(&message)), Ok((hello, message)));
}

/// Messages that the decoder takes, of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn hello_samples() -> Vec<Vec<u8>> {
    let pair = |number| Pair { number, first_packet: NUMBER_MAX - 2 };
    let pairs = |number| Some(Pairs { data: pair(number), pulse: pair(number + 1) });
    let place = Place {
        is_infiniband: false,
        lid: 0,
        gid: [7; 16],
        is_routed: true,
        mtu: 4096,
        reads_served: 16,
        reads_posted: 16,
    };
    let grant = Grant { key: 3, offset: 64, bytes: 4096, access: Access::REMOTE_READ.bits() };
    let (grants, further) = (vec![grant; 2], Vec::new());
    let full = Terms { place, posting: pairs(17), serving: pairs(19), grants, further, receives: 64 };
    let bare = Terms { serving: None, grants: Vec::new(), ..full.clone() };
    let serving = FurtherServing { data: pair(23), keys: vec![5, 6], sentinel: 7 };
    let further = Further { place, posting: Some(pair(21)), serving: Some(serving) };
    let striped = Terms { further: vec![further; MAX_RAILS - 1], ..full.clone() };
    vec![
        Hello::Offer(full.clone()).encode(b"hi"),
        Hello::Offer(bare).encode(&[]),
        Hello::Offer(striped).encode(&[]),
        Hello::Accept(Terms { posting: None, ..full }).encode(b"hello"),
        Hello::refuse("no room").encode(&[]),
        Hello::Ready.encode(&[]),
        Hello::Trespassed.encode(&[]),
        Hello::Receives(32).encode(&[]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> Terms {
        let Ok((Hello::Offer(terms), _)) = Hello::decode(&hello_samples()[0]) else { panic!("an offer") };
        terms
    }

    #[test]
    fn what_was_said_is_heard() {
        let (hello, message) = Hello::decode(&Hello::Offer(terms()).encode(b"hi")).unwrap();
        assert_eq!((hello, message.as_slice()), (Hello::Offer(terms()), b"hi".as_slice()));
        for sample in hello_samples() {
            assert!(Hello::decode(&sample).is_ok());
            fuzz_hello(&sample);
        }
    }

    #[test]
    fn another_wire_version_names_both_versions() {
        let mut bytes = hello_samples().remove(0);
        bytes[0] = 9;
        let text = Hello::decode(&bytes).unwrap_err().to_string();
        assert!(text.contains("version 9") && text.contains("speaks 3"), "{text}");
    }

    #[test]
    fn terms_that_cannot_be_are_refused() {
        let place = terms().place;
        let huge = Pair { number: 1 << 24, first_packet: 0 };
        let grant = terms().grants[0];
        let bad = [
            Terms { posting: None, ..terms() },
            Terms { place: Place { mtu: 1500, ..place }, ..terms() },
            Terms { posting: Some(Pairs { data: huge, pulse: huge }), ..terms() },
            Terms { serving: None, ..terms() },
            Terms { place: Place { reads_served: 0, ..place }, ..terms() },
            Terms { grants: Vec::new(), ..terms() },
            Terms { grants: vec![grant; MAX_GRANTS + 1], ..terms() },
            Terms { grants: vec![Grant { access: 0, ..grant }], ..terms() },
            Terms { grants: vec![Grant { access: 1 << 30, ..grant }], ..terms() },
            Terms { grants: vec![Grant { offset: u64::MAX, ..grant }], ..terms() },
        ];
        let Ok((Hello::Offer(striped), _)) = Hello::decode(&hello_samples()[2]) else { panic!("an offer") };
        let rail = striped.further[0].clone();
        let serving = rail.serving.clone().unwrap();
        let rails = [
            Further { posting: None, ..rail.clone() },
            Further { posting: Some(huge), ..rail.clone() },
            Further { serving: None, ..rail.clone() },
            Further { serving: Some(FurtherServing { data: huge, ..serving.clone() }), ..rail.clone() },
            Further { serving: Some(FurtherServing { keys: vec![5], ..serving }), ..rail.clone() },
            Further { place: Place { mtu: 1500, ..place }, ..rail.clone() },
            Further { place: Place { reads_served: 0, ..place }, ..rail.clone() },
        ];
        let too_many = Terms { further: vec![rail; MAX_RAILS], ..striped.clone() };
        let rails = rails.map(|rail| Terms { further: vec![rail], ..striped.clone() });
        for terms in bad.into_iter().chain(rails).chain([too_many]) {
            assert!(Hello::decode(&Hello::Offer(terms.clone()).encode(&[])).is_err(), "{terms:?}");
        }
        assert!(Hello::decode(&Hello::Ready.encode(b"more")).is_err());
    }

    #[test]
    fn a_beacon_is_one_aligned_writable_word_of_a_grant() {
        let grant = Grant { key: 3, offset: 64, bytes: 128, access: Access::REMOTE_WRITE.bits() };
        let terms = Terms { grants: vec![grant], ..terms() };
        let word = |offset, len| RemoteSlice { key: RemoteKey(3), offset, len };
        assert!(terms.is_writable_word(&word(64, 8)) && terms.is_writable_word(&word(184, 8)));
        for (offset, len) in [(56, 8), (188, 8), (192, 8), (68, 8), (64, 16), (u64::MAX - 7, 8)] {
            assert!(!terms.is_writable_word(&word(offset, len)), "{len} at {offset}");
        }
        for key in [4, 1 << 32 | 3] {
            assert!(!terms.is_writable_word(&RemoteSlice { key: RemoteKey(key), ..word(64, 8) }));
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters_and_control_characters_are_taken_out() {
        let Hello::Refuse(reason) = Hello::refuse(&"ä".repeat(5000)) else { panic!("a refusal") };
        assert_eq!(reason.len(), MAX_REASON_BYTES);
        let (hello, _) = Hello::decode(&Hello::refuse("\u{1b}[2Jno").encode(&[])).unwrap();
        assert_eq!(hello, Hello::Refuse(" [2Jno".into()));
    }
}
