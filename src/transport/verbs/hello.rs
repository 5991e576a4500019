//! The part of RDMA in the [wire-up](crate::transport::wireup): ports, queue pairs, and the keys of the devices.

use serde::{Deserialize, Serialize};

use crate::mem::{Access, MAX_RAILS, RemoteKey, RemoteSlice};
use crate::transport::wireup::{self, Blob, Grant, Side};

/// Queue pair and packet numbers have 24 bits.
const NUMBER_MAX: u32 = (1 << 24) - 1;

/// The number of a side's queue pair, and the number of its first packet (PSN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    pub(super) number: u32,
    pub(super) first_packet: u32,
}

/// The queue pairs of one direction on one rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pairs {
    /// For requests.
    pub(super) data: Pair,
    /// For heartbeats, on a rail that may lead: on each rail of an offer, and on the first rail of an answer.
    pub(super) heartbeat: Option<Pair>,
    /// For READs of memory that may only be read.
    pub(super) reads: Option<Pair>,
}

/// The addresses of a side's port in its network, and the limits that both sides must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PortAddress {
    /// True for InfiniBand, which is addressed by its LID; RoCE is addressed by its GID.
    pub(super) is_infiniband: bool,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    /// RoCE only: whether the port uses version 2.
    pub(super) is_routed: bool,
    /// InfiniBand only: whether packets must carry a global route header.
    pub(super) needs_global_route: bool,
    /// Largest packet that the port carries, in bytes.
    pub(super) mtu: u16,
    /// READs and atomics that a queue pair answers at once.
    pub(super) reads_served: u8,
    /// READs and atomics that a queue pair has under way at once.
    pub(super) reads_posted: u8,
}

/// One rail of a side, and its queue pairs there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RailPorts {
    /// The index of its device among the devices that the process names: rails with the same index belong together.
    pub(super) index: u8,
    pub(super) address: PortAddress,
    /// The pairs on which this side posts: always in an offer; in an answer if the connector granted memory.
    pub(super) requester: Option<Pairs>,
    /// The pairs that serve the other side, if this side grants memory.
    pub(super) responder: Option<ServingPairs>,
}

/// The queue pairs by which a rail serves the other side, and its keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ServingPairs {
    pub(super) pairs: Pairs,
    /// The key of each grant on this rail.
    pub(super) keys: Vec<u32>,
    /// The key of its sentinel, a word at offset 0: a READ of it proves that earlier writes have arrived. The leading
    /// rail has a sentinel if the device may apply writes in any order, which is not yet known in an offer.
    pub(super) sentinel: Option<u32>,
}

/// The rails of one side, and its queue pairs on them.
///
/// Each grant in the same message is named by its index and, in the lower half, its key on the first of these rails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ports {
    /// In the order of their indexes: an offer has the rails that are usable now, and an answer has the offered rails
    /// that both sides can use. The first rail of an answer leads.
    pub(super) rails: Vec<RailPorts>,
    /// Requests with immediate data that this side can accept before it announces more: 0 if no owner sleeps there.
    pub(super) receives: u16,
}

/// The messages other than an offer and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The connector's queue pairs are ready. If the note has the key of a sentinel, its device may apply writes in
    /// any order.
    Ready(Option<u32>),
    /// The other side's device refused a request of this side, which ends the connection.
    AccessViolation,
    /// This side can accept so many more requests with immediate data.
    Receives(u16),
    /// This side has lost this rail of the connection, counted from the leading rail, which is 0 and is never lost:
    /// its queue pairs there, and the keys of memory that was granted to this peer only, are destroyed. The other
    /// side does the same, and reports it.
    RailLost(u8),
    /// The other side, which announced that it sleeps, must wake up.
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

impl Pairs {
    fn check(&self, may_lead: bool) -> Result<(), &'static str> {
        self.data.check()?;
        self.heartbeat.map_or(Ok(()), |heartbeat| heartbeat.check())?;
        self.reads.map_or(Ok(()), |reads| reads.check())?;
        check(
            self.heartbeat.is_some() == may_lead,
            "a rail that may lead has no heartbeat, or another has one",
        )
    }

    fn has_reads(pairs: Option<&Pairs>) -> Option<bool> {
        pairs.map(|pairs| pairs.reads.is_some())
    }
}

impl RailPorts {
    /// Checks that the rail fits the other rails of its side, and the grants of that side.
    fn check(&self, all: &Ports, from: Side, grants: &[Grant]) -> Result<(), &'static str> {
        let (requester, responder) = (self.requester.as_ref(), self.responder.as_ref());
        let is_first = all.rails.first().is_some_and(|first| first.index == self.index);
        let may_lead = is_first || from == Side::Connector;
        let serving = responder.map(|responder| &responder.pairs);
        self.address.check()?;
        requester.into_iter().chain(serving).try_for_each(|pairs| pairs.check(may_lead))?;

        let can_read = Pairs::has_reads(requester);
        check(from == Side::Listener || can_read == Some(true), "it offers no queue pair")?;
        check(can_read == all.posts_reads(), "one of its rails does what the others do not")?;
        check(grants.is_empty() == responder.is_none(), "it grants without serving, or serves nothing")?;
        let is_read_only = grants.iter().any(|grant| grant.access.is_read_only());
        check(
            serving.is_none_or(|serving| serving.reads.is_some() == is_read_only),
            "it grants only reading without a queue pair for it, or the reverse",
        )?;
        let Some(ServingPairs { keys, sentinel, .. }) = responder else { return Ok(()) };
        check(keys.len() == grants.len(), "a grant has no key on one of its rails")?;
        // The sentinels prove the writes on the rails beside the leading one.
        let needs_sentinel = all.rails.len() > 1 && (from == Side::Connector || !is_first);
        check(sentinel.is_some() || !needs_sentinel, "a rail beside another has no sentinel")?;
        let reads = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let is_read = sentinel.is_some() || grants.iter().any(|grant| grant.access.intersects(reads));
        check(self.address.reads_served > 0 || !is_read, "it grants reading and answers no reads")
    }
}

impl Blob for Ports {
    fn check(&self, from: Side, grants: &[Grant]) -> Result<(), &'static str> {
        let is_ordered = self.rails.windows(2).all(|two| two[0].index < two[1].index);
        let can_be = self.rails.last().is_some_and(|last| usize::from(last.index) < MAX_RAILS);
        check(is_ordered && can_be, "it has no rails, or more than there may be, or in another order")?;
        self.rails.iter().try_for_each(|rail| rail.check(self, from, grants))?;
        let names = self.names();
        check(
            grants.iter().map(|grant| grant.key).eq(names),
            "a grant is not named by its index and first key",
        )
    }
}

impl Ports {
    /// The names of the grants, by their keys on the first of these rails.
    fn names(&self) -> impl Iterator<Item = RemoteKey> {
        let keys = self.rails.first().and_then(|first| first.responder.as_ref());
        keys.into_iter()
            .flat_map(|serving| serving.keys.iter())
            .enumerate()
            .map(|(index, key)| name(index, *key))
    }

    /// Whether one of the rails has this index.
    pub(super) fn has(&self, index: usize) -> bool {
        self.rails.iter().any(|rail| usize::from(rail.index) == index)
    }

    /// Whether this side serves READs of memory that may only be read, if it serves at all.
    pub(super) fn serves_reads(&self) -> Option<bool> {
        let serving = self.rails.first().and_then(|first| first.responder.as_ref());
        Pairs::has_reads(serving.map(|serving| &serving.pairs))
    }

    /// Whether this side has pairs for posting such READs, if it posts at all.
    pub(super) fn posts_reads(&self) -> Option<bool> {
        Pairs::has_reads(self.rails.first().and_then(|first| first.requester.as_ref()))
    }

    /// The indexes of its rails.
    pub(super) fn indexes(&self) -> impl Iterator<Item = usize> {
        self.rails.iter().map(|rail| rail.index.into())
    }
}

/// The name of the grant of this index, whose key on the leading rail is `key`. RDMA packets carry the lower half.
pub(super) fn name(index: usize, key: u32) -> RemoteKey {
    RemoteKey((index as u64) << 32 | u64::from(key))
}

/// The index of the grant that a key names.
pub(super) fn index_of(name: RemoteKey) -> usize {
    (name.0 >> 32) as usize
}

impl Terms {
    /// Keeps the rails of an offer that the connection uses: grants are named by their keys on the leading rail. The
    /// connector reports whether that rail's device needs a sentinel once it is ready.
    pub(super) fn keep_rails(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.blob.rails.retain(|rail| is_kept(rail.index.into()));
        if let Some(lead) = self.blob.rails.first_mut().and_then(|lead| lead.responder.as_mut()) {
            lead.sentinel = None;
        }
        self.grants.iter_mut().zip(self.blob.names()).for_each(|(grant, name)| grant.key = name);
    }

    /// Returns the addresses of the rails' ports.
    pub(super) fn port_addresses(&self) -> impl Iterator<Item = &PortAddress> {
        self.blob.rails.iter().map(|rail| &rail.address)
    }

    /// Returns the name of each grant, and its rights.
    pub(super) fn names(&self) -> Vec<(RemoteKey, Access)> {
        self.grants.iter().map(|grant| (grant.key, grant.access)).collect()
    }

    /// Whether this side grants atomics.
    pub(super) fn grants_atomics(&self) -> bool {
        self.grants.iter().any(|grant| grant.access.contains(Access::REMOTE_ATOMIC))
    }

    /// Whether the leading rail answers READs, as a rail with a sentinel must.
    pub(super) fn answers_reads(&self) -> bool {
        self.port_addresses().next().is_some_and(|address| address.reads_served > 0)
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

/// Decodes any `bytes` as a message of a handshake, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let Some(Hello::Offer(terms) | Hello::Accept(terms)) = wireup::fuzz::<Ports, Note>(bytes) else { return };
    assert!((1..=MAX_RAILS).contains(&terms.blob.rails.len()));
    let mut kept = terms.clone();
    kept.keep_rails(|index| terms.blob.rails.last().is_some_and(|last| usize::from(last.index) == index));
    for terms in [terms, kept] {
        for rail in &terms.blob.rails {
            let keys = rail.responder.as_ref().map_or(0, |responder| responder.keys.len());
            assert_eq!(keys, terms.grants.len());
        }
        assert!(terms.grants.iter().map(|grant| grant.key).eq(terms.blob.names()));
    }
}

/// Messages of every kind that the decoder accepts.
#[cfg(any(test, fuzzing))]
pub(crate) fn hello_samples() -> Vec<Vec<u8>> {
    let pair = |number| Pair { number, first_packet: NUMBER_MAX - 2 };
    let pairs = |number, heartbeat: Option<u32>| {
        let (heartbeat, reads) = (heartbeat.map(pair), Some(pair(number + 8)));
        Pairs { data: pair(number), heartbeat, reads }
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
    let grant = |index: u32| Grant {
        key: name(index as usize, 3 + index),
        offset: 64,
        bytes: 4096,
        access: Access::REMOTE_READ,
    };
    let grants = vec![grant(0), grant(1)];
    let rail = |index: u8, leads: bool, sentinel| {
        let heartbeat = leads.then_some(18);
        let responder = ServingPairs { pairs: pairs(19, heartbeat), keys: vec![3, 4], sentinel };
        let requester = Some(pairs(17, heartbeat));
        RailPorts { index, address, requester, responder: Some(responder) }
    };
    let terms = |rails| Terms { grants: grants.clone(), blob: Ports { rails, receives: 64 } };
    let bare = RailPorts { responder: None, ..rail(0, true, None) };
    let bare = Terms { grants: Vec::new(), blob: Ports { rails: vec![bare], receives: 0 } };
    let served = RailPorts { requester: None, ..rail(0, true, Some(9)) };
    let all = (0..MAX_RAILS as u8).map(|index| rail(index, true, Some(7))).collect();
    vec![
        Hello::Offer(terms(vec![rail(0, true, None)])).encode(b"hi"),
        Hello::Offer(bare).encode(&[]),
        Hello::Offer(terms(all)).encode(&[]),
        Hello::Accept(terms(vec![served])).encode(b"hello"),
        Hello::Accept(terms(vec![rail(1, true, None), rail(3, false, Some(7))])).encode(&[]),
        Hello::refuse("no room".into()).encode(&[]),
        Hello::Note(Note::Ready(None)).encode(&[]),
        Hello::Note(Note::Ready(Some(9))).encode(&[]),
        Hello::Note(Note::AccessViolation).encode(&[]),
        Hello::Note(Note::Receives(32)).encode(&[]),
        Hello::Note(Note::RailLost(3)).encode(&[]),
        Hello::Note(Note::Wake).encode(&[]),
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
        let offer = |rails: Vec<RailPorts>| {
            Hello::Offer(Terms { grants: grants.clone(), blob: Ports { rails, ..good.clone() } })
        };
        let refuse = |hello: Hello| assert!(Hello::decode(&hello.encode(&[])).is_err(), "{hello:?}");
        let rail = &good.rails[0];
        let (address, requester) = (rail.address, rail.requester.unwrap());
        let serving = rail.responder.clone().unwrap();
        let huge = Pair { number: 1 << 24, first_packet: 0 };
        let posts = |requester: Pairs| RailPorts { requester: Some(requester), ..rail.clone() };
        let serves = |responder: ServingPairs| RailPorts { responder: Some(responder), ..rail.clone() };
        let serves_by = |pairs: Pairs| serves(ServingPairs { pairs, ..serving.clone() });
        let at = |address: PortAddress| RailPorts { address, ..rail.clone() };
        let bad = [
            RailPorts { requester: None, ..rail.clone() },
            posts(Pairs { data: huge, ..requester }),
            posts(Pairs { heartbeat: Some(huge), ..requester }),
            posts(Pairs { heartbeat: None, ..requester }),
            posts(Pairs { reads: Some(huge), ..requester }),
            posts(Pairs { reads: None, ..requester }),
            RailPorts { responder: None, ..rail.clone() },
            serves_by(Pairs { data: huge, ..serving.pairs }),
            serves_by(Pairs { heartbeat: None, ..serving.pairs }),
            serves_by(Pairs { reads: None, ..serving.pairs }),
            serves(ServingPairs { keys: vec![3], ..serving.clone() }),
            at(PortAddress { mtu: 1500, ..address }),
            at(PortAddress { reads_served: 0, ..address }),
        ];
        let beside = RailPorts { index: 1, ..serves(ServingPairs { sentinel: Some(7), ..serving.clone() }) };
        let first = RailPorts { index: 0, ..beside.clone() };
        assert!(Hello::decode(&offer(vec![first.clone(), beside.clone()]).encode(&[])).is_ok());
        for bad in bad {
            refuse(offer(vec![first.clone(), RailPorts { index: 1, ..bad.clone() }]));
            refuse(offer(vec![bad]));
        }
        let unproved = RailPorts { index: 1, ..rail.clone() };
        let past_all = RailPorts { index: MAX_RAILS as u8, ..beside.clone() };
        for rails in [
            Vec::new(),
            vec![beside.clone(), first.clone()],
            vec![first.clone(), first.clone()],
            vec![first.clone(), past_all],
            vec![first.clone(), unproved],
        ] {
            refuse(offer(rails));
        }
        // In an answer one rail leads, and also does the work of the other rails.
        let follows = |pairs: Pairs| Pairs { heartbeat: None, ..pairs };
        let beside = RailPorts {
            requester: Some(follows(requester)),
            responder: beside
                .responder
                .map(|serving| ServingPairs { pairs: follows(serving.pairs), ..serving }),
            ..beside
        };
        let answer = |rails: Vec<RailPorts>| {
            Hello::Accept(Terms { grants: grants.clone(), blob: Ports { rails, ..good.clone() } })
        };
        assert!(Hello::decode(&answer(vec![rail.clone(), beside.clone()]).encode(&[])).is_ok());
        refuse(answer(vec![rail.clone(), RailPorts { requester: None, ..beside.clone() }]));
        refuse(answer(vec![beside.clone()]));
        refuse(answer(vec![rail.clone(), RailPorts { index: 1, ..rail.clone() }]));
        // Memory that may only be written needs no answers to READs, but a sentinel does.
        for (sentinel, is_good) in [(None, true), (Some(9), false)] {
            let grants = vec![Grant { access: Access::REMOTE_WRITE, ..grants[0] }];
            let pairs = Pairs { reads: None, ..serving.pairs };
            let rail = RailPorts {
                address: PortAddress { reads_served: 0, ..address },
                ..serves(ServingPairs { pairs, keys: vec![3], sentinel })
            };
            let offer = Hello::Offer(Terms { grants, blob: Ports { rails: vec![rail], ..good.clone() } });
            assert_eq!(Hello::decode(&offer.encode(&[])).is_ok(), is_good, "{offer:?}");
        }
        for grants in [Vec::new(), vec![grants[1], grants[0]], vec![grants[0]; 2]] {
            let offer = Hello::Offer(Terms { grants, blob: good.clone() });
            assert!(Hello::decode(&offer.encode(&[])).is_err(), "{offer:?}");
        }
    }

    #[test]
    fn grants_are_named_by_the_keys_of_the_rail_that_leads() {
        let Ok((Hello::Offer(mut terms), _)) = Hello::decode(&hello_samples()[2]) else { panic!("an offer") };
        for (rail, keys) in terms.blob.rails.iter_mut().zip([[3, 4], [5, 6], [7, 8], [9, 10]]) {
            rail.responder.as_mut().unwrap().keys = keys.to_vec();
        }
        terms.keep_rails(|index| index > 1);
        assert!(terms.blob.indexes().eq([2, 3]));
        assert!(terms.grants.iter().map(|grant| grant.key).eq([name(0, 7), name(1, 8)]));
        let sentinels = terms.blob.rails.iter().map(|rail| rail.responder.as_ref().unwrap().sentinel);
        assert!(sentinels.eq([None, Some(7)]), "whether the one that leads is proved is not known yet");
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
