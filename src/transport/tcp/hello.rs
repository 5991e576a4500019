//! TCP's part of the [wire-up](crate::transport::wireup): the epoch of a connection, the ticket by which its further
//! lanes join, and the lanes that there are.

use serde::{Deserialize, Serialize};

use crate::mem::{LocalSlice, RemoteKey};
use crate::transport::wireup::{self, Blob, Grant, Side, check_offer, random};
use crate::transport::{GpuGrant, Offer, PayloadSlice};

/// Identifies a connection to which a further lane belongs.
pub(super) type Ticket = [u8; 16];

/// The random numbers by which one side of a connection is known to the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionIds {
    /// Random; stands in every request to this side.
    pub(super) epoch: u64,
    /// Random; further lanes join by the listener's, the connector's is zero.
    pub(super) ticket: Ticket,
}

/// A connection beside the first one, and its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Lane {
    /// The connector's heartbeats.
    ForwardHeartbeat,
    /// The acceptor's requests.
    ReverseData,
    /// The acceptor's heartbeats.
    ReverseHeartbeat,
}

/// The messages by which further lanes join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Note {
    /// This connection is a lane of the one with that ticket.
    Join(Ticket, Lane),
    /// It is taken for one.
    Joined,
}

pub(super) type Terms = wireup::Terms<ConnectionIds>;
pub(super) type Hello = wireup::Hello<ConnectionIds, Note>;

impl Blob for ConnectionIds {
    fn check(&self, _from: Side, grants: &[Grant]) -> Result<(), &'static str> {
        let is_repeated =
            |(index, grant): (usize, &Grant)| grants[..index].iter().any(|other| other.key == grant.key);
        if grants.iter().enumerate().any(is_repeated) { Err("two grants have the same key") } else { Ok(()) }
    }
}

/// Makes terms for the grants of `offer` and for memory of a GPU, under keys that no process can guess, and returns the
/// memory in the same order. The error names the fault of the offer.
#[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "there is no memory of a GPU"))]
pub(super) fn terms(
    offer: &Offer,
    on_gpu: &[GpuGrant],
    ticket: Ticket,
) -> Result<(Terms, Vec<PayloadSlice>), &'static str> {
    check_offer(offer, on_gpu)?;
    let of_host = |slice: &LocalSlice| {
        let (offset, bytes) = (slice.offset() as u64, slice.len() as u64);
        Ok(Grant { key: RemoteKey(random()?), offset, bytes, access: slice.region().access() })
    };
    let grants: Result<Vec<_>, &'static str> = offer.grants.iter().map(of_host).collect();
    let (mut grants, mut memory) = (grants?, offer.grants.iter().cloned().map(PayloadSlice::Host).collect());
    for GpuGrant { at, memory: of_gpu, access } in on_gpu {
        let (at, bytes) = ((*at).min(grants.len()), of_gpu.bytes() as u64);
        grants.insert(at, Grant { key: RemoteKey(random()?), offset: 0, bytes, access: *access });
        Vec::insert(&mut memory, at, of_gpu.whole().into());
    }
    Ok((Terms { grants, blob: ConnectionIds { epoch: random()?, ticket } }, memory))
}

pub(super) fn random_ticket() -> Result<Ticket, &'static str> {
    let mut ticket = [0; 16];
    getrandom::fill(&mut ticket).map_err(|_| "the system has no random source to make keys from")?;
    Ok(ticket)
}

/// The lanes of a connection beside the first one, by the grants of its acceptor and its connector: only the lanes that
/// can be used. Each data lane has a heartbeat lane beside it, and that lane alone is timed. Bulk data stands
/// still for as long as its reader computes, and the system would take that for death.
pub(super) fn lanes(acceptor: &Terms, connector: &Terms) -> Vec<Lane> {
    let (forward, reverse) = (!acceptor.grants.is_empty(), !connector.grants.is_empty());
    let lanes =
        [(Lane::ForwardHeartbeat, forward), (Lane::ReverseData, reverse), (Lane::ReverseHeartbeat, reverse)];
    lanes.into_iter().filter(|(_, used)| *used).map(|(lane, _)| lane).collect()
}

/// Decodes arbitrary `bytes` as a message of a handshake, and checks the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let Some(Hello::Offer(terms) | Hello::Accept(terms)) = wireup::fuzz::<ConnectionIds, Note>(bytes) else {
        return;
    };
    for grant in &terms.grants {
        assert_eq!(terms.grants.iter().filter(|other| other.key == grant.key).count(), 1);
    }
}

/// Messages that the decoder takes, of every kind.
#[cfg(any(test, fuzzing))]
pub(crate) fn hello_samples() -> Vec<Vec<u8>> {
    use crate::mem::Access;
    let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let grant = |key, offset, bytes| Grant { key: RemoteKey(key), offset, bytes, access };
    let blob = ConnectionIds { epoch: 5, ticket: [3; 16] };
    let terms = Terms { grants: vec![grant(1, 8, 64), grant(2, 0, 0)], blob };
    vec![
        Hello::Accept(terms.clone()).encode(b"hi"),
        Hello::Offer(terms).encode(&[]),
        Hello::refuse("no room".into()).encode(&[]),
        Hello::Note(Note::Join([9; 16], Lane::ReverseData)).encode(&[]),
        Hello::Note(Note::Joined).encode(&[]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_taken_and_two_grants_with_one_key_are_not() {
        for sample in hello_samples() {
            assert!(Hello::decode(&sample).is_ok());
            fuzz_hello(&sample);
        }
        let Ok((Hello::Accept(mut terms), _)) = Hello::decode(&hello_samples()[0]) else { panic!() };
        terms.grants[1].key = terms.grants[0].key;
        let error = Hello::decode(&Hello::Accept(terms).encode(&[])).unwrap_err().to_string();
        assert!(error.contains("same key"), "{error}");
    }
}
