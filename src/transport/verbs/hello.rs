//! The part of RDMA in the [wire-up](crate::transport::wireup): ports, queue pairs, and the keys of the devices.

use serde::{Deserialize, Serialize};

use crate::mem::{Access, MAX_RAILS, RemoteKey, RemoteSlice};
use crate::transport::wireup::{self, Blob, Grant, Side};

/// Queue pair and packet numbers have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

/// The number of a side's queue pair, and the number of the first packet that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) number: u32,
    pub(super) first_packet: u32,
}

/// The queue pairs of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pairs {
    /// For requests.
    pub(super) data: Pair,
    /// For heartbeats.
    pub(super) heartbeat: Pair,
    /// For READs of what may only be read.
    pub(super) reads: Option<Pair>,
}

/// The addresses of a side's port in its network, and the limits that both sides must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortAddress {
    /// True for InfiniBand, which is found by its LID; RoCE is by its GID.
    pub(super) is_infiniband: bool,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// RoCE only: whether it speaks version 2.
    pub(super) is_routed: bool,
    /// InfiniBand only: whether its packets must carry a global route header.
    pub(super) needs_global_route: bool,
    /// Largest packet that its port carries, in bytes.
    pub(super) mtu: u16,
    /// READs and atomics that it answers at once.
    pub(super) reads_served: u8,
    /// READs and atomics that it has under way at once.
    pub(super) reads_posted: u8,
}

/// A rail after the first: what of it differs from the first one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Further {
    pub(super) address: PortAddress,
    /// The pairs that it posts on, if it does.
    pub(super) requester: Option<FurtherRequester>,
    pub(super) responder: Option<FurtherResponder>,
}

/// The queue pairs that a side posts on over a rail after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FurtherRequester {
    pub(super) data: Pair,
    /// For READs of what may only be read.
    pub(super) reads: Option<Pair>,
}

/// The queue pairs by which a rail after the first serves the other side, and its keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FurtherResponder {
    pub(super) data: Pair,
    /// For READs of what may only be read.
    pub(super) reads: Option<Pair>,
    /// The key of each grant on this rail.
    pub(super) keys: Vec<u32>,
    /// The key of its sentinel, a word at offset 0 which is read to learn that what was written before has arrived.
    pub(super) sentinel: u32,
}

/// The rails of one side, and its queue pairs on them.
///
/// Each grant that comes along is named by its index and, in the lower half, the key of the first rail's device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    pub(super) address: PortAddress,
    /// Pairs that it posts on: always in an offer; in an answer if the connector granted something.
    pub(super) requester: Option<Pairs>,
    /// Pairs that serve the other side, if it grants anything.
    pub(super) responder: Option<Pairs>,
    /// The other rails; in an answer those that both sides have.
    pub(super) further: Vec<Further>,
    /// Requests with immediate data that it can take before it says more: 0 if no owner sleeps there.
    pub(super) receives: u16,
    /// The key of its sentinel, if its device may apply writes in any order; in an offer it is not known yet.
    pub(super) sentinel: Option<u32>,
}

/// The messages besides an offer and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The connector's queue pairs are ready, and its device may apply writes in any order if here is the key of a
    /// sentinel.
    Ready(Option<u32>),
    /// The other side's device refused a request of this side, which ends the connection.
    AccessViolation,
    /// This side can take so many requests with immediate data more.
    Receives(u16),
    /// This side has lost this rail, counted from the first, which is 0 and is never lost: its queue pairs there, and
    /// the keys of what only this peer was granted, are destroyed. The other side does the same, and says so.
    RailLost(u8),
    /// The other side, which said that it sleeps, is to wake up.
    Wake,
}

pub(super) type Terms = wireup::Terms<Ports>;
pub(super) type Hello = wireup::Hello<Ports, Note>;

fn check(condition: bool, reason: &'static str) -> Result<(), &'static str> {
    if condition { Ok(()) } else { Err(reason) }
}

impl PortAddress {
    fn check(&self) -> Result<(), &'static str> {
        check(matches!(self.mtu, 256 | 512 | 1024 | 2048 | 4096), "its packets are of no size that there is")
    }
}

impl Pair {
    fn check(&self) -> Result<(), &'static str> {
        check(self.number <= NUMBER_MAX && self.first_packet <= NUMBER_MAX, "a number of more than 24 bits")
    }
}

impl Further {
    /// Whether it fits what is said of the first rail.
    fn check(&self, first: &Ports, grants: &[Grant]) -> Result<(), &'static str> {
        self.address.check()?;
        let responder = self.responder.as_ref();
        let posts = self.requester.map(|requester| (requester.data, requester.reads));
        let serves = responder.map(|responder| (responder.data, responder.reads));
        for (data, reads) in posts.into_iter().chain(serves) {
            data.check()?;
            reads.map_or(Ok(()), |reads| reads.check())?;
        }
        let reads = |pairs: Option<Pairs>| pairs.map(|pairs| pairs.reads.is_some());
        let is_alike = posts.map(|(_, reads)| reads.is_some()) == reads(first.requester)
            && serves.map(|(_, reads)| reads.is_some()) == reads(first.responder)
            && responder.is_none_or(|responder| responder.keys.len() == grants.len());
        check(is_alike, "one of its rails does what the others do not")?;
        check(
            responder.is_none() || self.address.reads_served > 0,
            "it serves on a rail that answers no reads",
        )
    }
}

impl Blob for Ports {
    fn check(&self, from: Side, grants: &[Grant]) -> Result<(), &'static str> {
        let can_read = self.requester.is_some_and(|requester| requester.reads.is_some());
        check(from == Side::Listener || can_read, "it offers no queue pair")?;
        self.address.check()?;
        for pairs in [self.requester, self.responder].into_iter().flatten() {
            pairs.data.check()?;
            pairs.heartbeat.check()?;
            pairs.reads.map_or(Ok(()), |reads| reads.check())?;
        }
        let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let wants_reads = grants.iter().any(|grant| grant.access.intersects(reads));
        check(self.address.reads_served > 0 || !wants_reads, "it grants reading and answers no reads")?;
        check(self.address.reads_served > 0 || self.sentinel.is_none(), "its sentinel cannot be read")?;
        check(grants.is_empty() == self.responder.is_none(), "it grants without serving, or serves nothing")?;
        let is_read_only = grants.iter().any(|grant| grant.access.is_read_only());
        let serves_reads = self.responder.is_some_and(|responder| responder.reads.is_some());
        check(
            is_read_only == serves_reads,
            "it grants only reading without a queue pair for it, or the reverse",
        )?;
        let is_named = |(index, grant): (usize, &Grant)| index_of(grant.key) == index;
        check(grants.iter().enumerate().all(is_named), "a grant is not named by its index among them")?;
        check(self.further.len() < MAX_RAILS, "it has more rails than there may be")?;
        self.further.iter().try_for_each(|further| further.check(self, grants))
    }
}

/// The name of the grant of this index, whose key on the first rail is `key`: on the wire of RDMA goes the lower half.
pub(super) fn name(index: usize, key: u32) -> RemoteKey {
    RemoteKey((index as u64) << 32 | u64::from(key))
}

/// The index of the grant that a key names.
pub(super) fn index_of(name: RemoteKey) -> usize {
    (name.0 >> 32) as usize
}

impl Terms {
    /// Returns the addresses of the rails' ports, the first one first.
    pub(super) fn port_addresses(&self) -> impl Iterator<Item = &PortAddress> {
        std::iter::once(&self.blob.address).chain(self.blob.further.iter().map(|further| &further.address))
    }

    /// Returns the name of each grant, and its rights.
    pub(super) fn names(&self) -> Vec<(RemoteKey, Access)> {
        self.grants.iter().map(|grant| (grant.key, grant.access)).collect()
    }

    /// Whether this side answers READs, as one with a sentinel must.
    pub(super) fn answers_reads(&self) -> bool {
        self.blob.address.reads_served > 0
    }

    /// Whether `word` is one aligned word that this side granted for writing.
    pub(super) fn is_writable_word(&self, word: &RemoteSlice) -> bool {
        word.len == 8
            && word.offset.is_multiple_of(8)
            && self.grants.iter().find(|grant| grant.key == word.key).is_some_and(|grant| {
                let from_begin = word.offset.checked_sub(grant.offset);
                from_begin.is_some_and(|at| at <= grant.bytes && grant.bytes - at >= 8)
                    && grant.access.contains(Access::REMOTE_WRITE)
            })
    }
}

/// Decodes whatever `bytes` are as a message of a handshake, and checks what came out.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let Some(Hello::Offer(terms) | Hello::Accept(terms)) = wireup::fuzz::<Ports, Note>(bytes) else { return };
    assert!(
        terms.grants.is_empty() == terms.blob.responder.is_none()
            && terms.port_addresses().count() <= MAX_RAILS
    );
    for (index, grant) in terms.grants.iter().enumerate() {
        let mut responders = terms.blob.further.iter().filter_map(|further| further.responder.as_ref());
        assert!(index_of(grant.key) == index && responders.all(|responder| responder.keys.len() > index));
    }
}

/// Messages that the decoder takes, of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn hello_samples() -> Vec<Vec<u8>> {
    let pair = |number| Pair { number, first_packet: NUMBER_MAX - 2 };
    let pairs = |number| {
        Some(Pairs { data: pair(number), heartbeat: pair(number + 1), reads: Some(pair(number + 8)) })
    };
    let address = PortAddress {
        is_infiniband: false,
        lid: 0,
        gid: [7; 16],
        is_routed: true,
        needs_global_route: false,
        mtu: 4096,
        reads_served: 16,
        reads_posted: 16,
    };
    let grant = |index| Grant { key: name(index, 3), offset: 64, bytes: 4096, access: Access::REMOTE_READ };
    let (grants, further) = (vec![grant(0), grant(1)], Vec::new());
    let full =
        Ports { address, requester: pairs(17), responder: pairs(19), further, receives: 64, sentinel: None };
    let bare = Ports { responder: None, ..full.clone() };
    let responder = FurtherResponder { data: pair(23), reads: Some(pair(33)), keys: vec![5, 6], sentinel: 7 };
    let requester = FurtherRequester { data: pair(21), reads: Some(pair(31)) };
    let further = Further { address, requester: Some(requester), responder: Some(responder) };
    let striped = Ports { further: vec![further; MAX_RAILS - 1], ..full.clone() };
    let terms = |blob: Ports| Terms { grants: grants.clone(), blob };
    vec![
        Hello::Offer(terms(full.clone())).encode(b"hi"),
        Hello::Offer(Terms { grants: Vec::new(), blob: bare }).encode(&[]),
        Hello::Offer(terms(striped)).encode(&[]),
        Hello::Accept(terms(Ports { requester: None, sentinel: Some(9), ..full })).encode(b"hello"),
        Hello::refuse("no room".into()).encode(&[]),
        Hello::Note(Note::Ready(None)).encode(&[]),
        Hello::Note(Note::Ready(Some(9))).encode(&[]),
        Hello::Note(Note::AccessViolation).encode(&[]),
        Hello::Note(Note::Receives(32)).encode(&[]),
        Hello::Note(Note::RailLost(3)).encode(&[]),
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
    fn terms_that_cannot_be_are_refused() {
        let Terms { grants, blob: good } = terms();
        let address = good.address;
        let (huge, pairs) = (Pair { number: 1 << 24, first_packet: 0 }, good.requester.unwrap());
        let bad = [
            Ports { requester: None, ..good.clone() },
            Ports { address: PortAddress { mtu: 1500, ..address }, ..good.clone() },
            Ports { requester: Some(Pairs { data: huge, ..pairs }), ..good.clone() },
            Ports { requester: Some(Pairs { heartbeat: huge, ..pairs }), ..good.clone() },
            Ports { requester: Some(Pairs { reads: Some(huge), ..pairs }), ..good.clone() },
            Ports { requester: Some(Pairs { reads: None, ..pairs }), ..good.clone() },
            Ports { responder: Some(Pairs { reads: None, ..pairs }), ..good.clone() },
            Ports { responder: None, ..good.clone() },
            Ports { address: PortAddress { reads_served: 0, ..address }, ..good.clone() },
        ];
        let Ok((Hello::Offer(Terms { blob: striped, .. }), _)) = Hello::decode(&hello_samples()[2]) else {
            panic!("an offer")
        };
        let rail = striped.further[0].clone();
        let (requester, responder) = (rail.requester.unwrap(), rail.responder.clone().unwrap());
        let rails = [
            Further { requester: None, ..rail.clone() },
            Further { requester: Some(FurtherRequester { data: huge, ..requester }), ..rail.clone() },
            Further { requester: Some(FurtherRequester { reads: Some(huge), ..requester }), ..rail.clone() },
            Further { requester: Some(FurtherRequester { reads: None, ..requester }), ..rail.clone() },
            Further {
                responder: Some(FurtherResponder { reads: None, ..responder.clone() }),
                ..rail.clone()
            },
            Further { responder: None, ..rail.clone() },
            Further { responder: Some(FurtherResponder { data: huge, ..responder.clone() }), ..rail.clone() },
            Further { responder: Some(FurtherResponder { keys: vec![5], ..responder }), ..rail.clone() },
            Further { address: PortAddress { mtu: 1500, ..address }, ..rail.clone() },
            Further { address: PortAddress { reads_served: 0, ..address }, ..rail.clone() },
        ];
        let too_many = Ports { further: vec![rail; MAX_RAILS], ..striped.clone() };
        let rails = rails.map(|rail| Ports { further: vec![rail], ..striped.clone() });
        for blob in bad.into_iter().chain(rails).chain([too_many]) {
            let offer = Hello::Offer(Terms { grants: grants.clone(), blob });
            assert!(Hello::decode(&offer.encode(&[])).is_err(), "{offer:?}");
        }
        // What may only be written needs no answers to READs, but a sentinel does.
        let unread = PortAddress { reads_served: 0, ..address };
        for (sentinel, is_good) in [(None, true), (Some(9), false)] {
            let grants = vec![Grant { access: Access::REMOTE_WRITE, ..grants[0] }];
            let responder = Some(Pairs { reads: None, ..pairs });
            let blob = Ports { address: unread, responder, sentinel, ..good.clone() };
            let offer = Hello::Offer(Terms { grants, blob });
            assert_eq!(Hello::decode(&offer.encode(&[])).is_ok(), is_good, "{offer:?}");
        }
        for grants in [Vec::new(), vec![grants[1], grants[0]], vec![grants[0]; 2]] {
            let offer = Hello::Offer(Terms { grants, blob: good.clone() });
            assert!(Hello::decode(&offer.encode(&[])).is_err(), "{offer:?}");
        }
    }

    #[test]
    fn a_heartbeat_word_is_one_aligned_writable_word_of_a_grant() {
        let grant = Grant { key: name(0, 3), offset: 64, bytes: 128, access: Access::REMOTE_WRITE };
        let terms = Terms { grants: vec![grant], ..terms() };
        let word = |offset, len| RemoteSlice { key: grant.key, offset, len };
        assert!(terms.is_writable_word(&word(64, 8)) && terms.is_writable_word(&word(184, 8)));
        for (offset, len) in [(56, 8), (188, 8), (192, 8), (68, 8), (64, 16), (u64::MAX - 7, 8)] {
            assert!(!terms.is_writable_word(&word(offset, len)), "{len} at {offset}");
        }
        for key in [name(0, 4), name(1, 3)] {
            assert!(!terms.is_writable_word(&RemoteSlice { key, ..word(64, 8) }));
        }
    }
}
