//! The queue pairs of one side of a connection, and the memory that it grants.
//!
//! Each direction has pairs of its own, so that each can be in a protection domain of its own: those that post are in
//! the transport's, where all memory of this process is known; those that serve a peer are in one that was made for it
//! and holds what it was granted, exactly and with those rights; those that serve its READs of what it may only read
//! are in one for all peers, where that memory is registered once.

use std::io;
use std::sync::Arc;

use super::VerbsShared;
use super::arrival_order::ArrivalOrder;
use super::device::QueuePairError;
use super::grants::{GrantKey, Granted, GrantedMemory, Granting, Sentinel, to_serve_reads};
use super::hello::{Further, FurtherRequester, FurtherResponder, Pair, Pairs, PortAddress, Ports, name};
use super::initiator::Initiator;
use super::queue_pair::{QueuePair, QueuePairPath, RECEIVES};
use super::region::ProtectionDomain;
use super::waker::Waker;
use crate::mem::Access;
use crate::transport::wireup::Grant;

/// Heartbeats that may be under way.
const HEARTBEAT_DEPTH: usize = 16;

/// The pairs that this side posts on.
pub(super) struct Requester {
    pub(super) data: Initiator,
    pub(super) heartbeat: Initiator,
    /// For READs of what the peer lets be read only, if there is such memory.
    pub(super) reads: Option<Initiator>,
    /// Those of each rail after the first.
    pub(super) further: Vec<RequesterFurther>,
}

/// The same on a rail after the first.
pub(super) struct RequesterFurther {
    pub(super) data: Initiator,
    pub(super) reads: Option<Initiator>,
}

impl Requester {
    /// On the first so many rails. `reads` says whether the peer may have memory that can only be read.
    pub(super) fn new(shared: &VerbsShared, rails: usize, reads: bool) -> io::Result<Requester> {
        let (depth, room) = (shared.queue_depth, 2 * shared.queue_depth);
        let reads = |rail| reads.then(|| shared.initiator(rail, depth, depth)).transpose();
        let further = |rail| {
            // A write may go with the READ that tells of its arrival, or with one that proves those before it.
            Ok(RequesterFurther { data: shared.initiator(rail, room, room)?, reads: reads(rail)? })
        };
        Ok(Requester {
            data: shared.initiator(0, depth, room)?,
            // A beat that another one overtakes is a change of the word, too: that is all that it has to be.
            heartbeat: shared.initiator(0, HEARTBEAT_DEPTH, HEARTBEAT_DEPTH)?,
            reads: reads(0)?,
            further: (1..rails).map(further).collect::<io::Result<_>>()?,
        })
    }

    pub(super) fn pairs(&self) -> Pairs {
        Pairs {
            data: self.data.pair().pair(),
            heartbeat: self.heartbeat.pair().pair(),
            reads: self.reads.as_ref().map(|reads| reads.pair().pair()),
        }
    }

    /// Gives up the pairs for which the peer, which answered so, has none to serve them.
    pub(super) fn keep_served(&mut self, theirs: &Ports) {
        self.further.truncate(theirs.further.len());
        if theirs.responder.is_none_or(|responder| responder.reads.is_none()) {
            self.reads = None;
            self.further.iter_mut().for_each(|further| further.reads = None);
        }
    }

    /// Connects those of the first rail to the pairs that serve them.
    fn connect(&self, path: &QueuePairPath, responder: &Pairs) -> io::Result<()> {
        self.data.pair().connect(path, &responder.data)?;
        self.heartbeat.pair().connect(path, &responder.heartbeat)?;
        connect_reads(self.reads.as_ref(), path, responder.reads)
    }
}

fn connect_reads(reads: Option<&Initiator>, path: &QueuePairPath, theirs: Option<Pair>) -> io::Result<()> {
    match (reads, theirs) {
        (Some(reads), Some(theirs)) => reads.pair().connect(path, &theirs),
        _ => Ok(()),
    }
}

fn serve_reads(reads: Option<&QueuePair>, path: &QueuePairPath, theirs: Option<Pair>) -> io::Result<()> {
    match (reads, theirs) {
        (Some(reads), Some(theirs)) => reads.serve(path, &theirs, Access::REMOTE_READ),
        _ => Ok(()),
    }
}

/// Returns what a peer is told of the rails after the first.
pub(super) fn further(
    addresses: &[PortAddress],
    requester: Option<&Requester>,
    responder: Option<&Responder>,
) -> Vec<Further> {
    let tell = |(index, address): (usize, &PortAddress)| Further {
        address: *address,
        requester: requester.and_then(|requester| {
            let RequesterFurther { data, reads } = requester.further.get(index)?;
            let reads = reads.as_ref().map(|reads| reads.pair().pair());
            Some(FurtherRequester { data: data.pair().pair(), reads })
        }),
        responder: responder.and_then(|responder| Some(responder.further.get(index)?.as_ref()?.told())),
    };
    addresses.iter().skip(1).enumerate().map(tell).collect()
}

/// Connects this side's pairs to those that `theirs` tells of, as far as there are both.
pub(super) fn connect(
    paths: &[QueuePairPath],
    requester: Option<&Requester>,
    responder: Option<&mut Responder>,
    theirs: &Ports,
) -> io::Result<()> {
    let Some((first, rest)) = paths.split_first() else { return Ok(()) };
    if let (Some(requester), Some(theirs)) = (requester, &theirs.responder) {
        requester.connect(first, theirs)?;
    }
    let mut responder = responder;
    if let (Some(responder), Some(theirs)) = (&mut responder, &theirs.requester) {
        responder.serve(first, theirs)?;
    }
    for (index, (path, theirs)) in rest.iter().zip(&theirs.further).enumerate() {
        if let (Some(requester), Some(theirs)) = (requester, &theirs.responder)
            && let Some(ours) = requester.further.get(index)
        {
            ours.data.pair().connect(path, &theirs.data)?;
            connect_reads(ours.reads.as_ref(), path, theirs.reads)?;
        }
        if let (Some(responder), Some(theirs)) = (&responder, &theirs.requester)
            && let Some(Some(ours)) = responder.further.get(index)
        {
            // The sentinel is there besides what was granted.
            ours.data.serve(path, &theirs.data, responder.rights() | Access::REMOTE_READ)?;
            serve_reads(ours.reads.as_ref(), path, theirs.reads)?;
        }
    }
    Ok(())
}

/// The pairs that serve the peer, and what it may reach through them.
pub(super) struct Responder {
    /// The waker that the peer's requests ring.
    waker: Option<Arc<Waker>>,
    // Dropped in this order: no pair, no keys, then the domain.
    data: Arc<QueuePair>,
    heartbeat: QueuePair,
    /// For READs of what may only be read, if there is such memory.
    reads: Option<QueuePair>,
    /// One for each rail after the first, until it is lost.
    pub(super) further: Vec<Option<ResponderFurther>>,
    granted: Vec<Granted>,
    /// The sentinel of the first rail, unless its device is known to apply writes in order.
    sentinel: Option<Sentinel>,
    domain: Arc<ProtectionDomain>,
    /// The order in which the first rail's device applies writes; none until this serves, where it must be asked.
    arrival_order: Option<ArrivalOrder>,
}

/// The same on a rail after the first.
pub(super) struct ResponderFurther {
    // Dropped in this order, and before the memory that was granted.
    data: QueuePair,
    reads: Option<QueuePair>,
    keys: Vec<GrantKey>,
    sentinel: Sentinel,
}

impl ResponderFurther {
    fn new(shared: &VerbsShared, rail: usize, granting: &[Granting]) -> io::Result<ResponderFurther> {
        let domain = shared.rails[rail].peer_domain()?;
        let key = |granting: &Granting| granting.key(shared, rail, &domain);
        let keys = granting.iter().map(key).collect::<io::Result<Vec<_>>>()?;
        let memory = granting.iter().map(|granting| &granting.memory);
        let sentinel = Sentinel::new(&domain, memory.zip(&keys))?;
        let data = QueuePair::to_serve(&domain, None)?;
        let reads = to_serve_reads(shared, rail, granting)?;
        Ok(ResponderFurther { data, reads, keys, sentinel })
    }

    /// Destroys the queue pairs, and then the keys. False if the device could not: it may go on to serve the peer.
    fn close(mut self) -> bool {
        let data = self.data.destroy();
        self.reads.as_mut().is_none_or(QueuePair::destroy) && data
    }

    /// Returns its queue pairs that serve the peer.
    fn pairs(&self) -> impl Iterator<Item = &QueuePair> {
        [&self.data].into_iter().chain(&self.reads)
    }

    fn told(&self) -> FurtherResponder {
        FurtherResponder {
            data: self.data.pair(),
            reads: self.reads.as_ref().map(QueuePair::pair),
            keys: self.keys.iter().map(GrantKey::remote_key).collect(),
            sentinel: self.sentinel.key(),
        }
    }
}

impl Responder {
    /// For a peer that is granted `memory`, on the first so many rails; none if that is nothing. Its requests ring the
    /// waker, if there is one.
    pub(super) fn new(
        shared: &VerbsShared,
        rails: usize,
        memory: Vec<GrantedMemory>,
        waker: Option<&Arc<Waker>>,
    ) -> io::Result<Option<Responder>> {
        if memory.is_empty() {
            return Ok(None);
        }
        let domain = shared.first().peer_domain()?;
        // Keys before pairs: of a process that ends the system destroys what is newest first, and a pair that outlived
        // its keys would refuse the peer what it was granted.
        let granting = memory.into_iter().map(|memory| Granting::new(shared, memory));
        let granting = granting.collect::<io::Result<Vec<_>>>()?;
        let keys = granting.iter().map(|granting| granting.key(shared, 0, &domain));
        let keys = keys.collect::<io::Result<Vec<_>>>()?;
        let arrival_order = shared.first().known_arrival_order();
        let is_unordered = arrival_order.is_none_or(|order| !order.in_order);
        let memory = granting.iter().map(|granting| &granting.memory);
        let sentinel = is_unordered.then(|| Sentinel::new(&domain, memory.zip(&keys))).transpose()?;
        let limits = &shared.first().info.limits;
        let receives = limits.queue_depth.min(limits.completions).min(RECEIVES.into()) as u16;
        let data = QueuePair::to_serve(&domain, waker.map(|waker| (waker, receives)))?;
        let heartbeat = QueuePair::to_serve(&domain, None)?;
        let reads = to_serve_reads(shared, 0, &granting)?;
        let further = |rail| ResponderFurther::new(shared, rail, &granting).map(Some);
        let further = (1..rails).map(further).collect::<io::Result<_>>()?;
        let grant = |(Granting { memory, access, .. }, key)| Granted { key, memory, access };
        let granted = granting.into_iter().zip(keys).map(grant).collect();
        let data = Arc::new(data);
        if let Some(waker) = waker {
            waker.add(&data);
        }
        Ok(Some(Responder {
            waker: waker.cloned(),
            data,
            heartbeat,
            reads,
            further,
            granted,
            sentinel,
            domain,
            arrival_order,
        }))
    }

    /// Receives that the peer may use up before it is told of more.
    pub(super) fn receives(&self) -> u16 {
        self.data.receives
    }

    /// Posts receives again: so many, of which the peer is to be told.
    pub(super) fn renew_receives(&self) -> Option<u16> {
        self.data.renew_receives()
    }

    pub(super) fn pairs(&self) -> Pairs {
        let reads = self.reads.as_ref().map(QueuePair::pair);
        Pairs { data: self.data.pair(), heartbeat: self.heartbeat.pair(), reads }
    }

    pub(super) fn grants(&self) -> Vec<Grant> {
        let grant = |(index, Granted { key, memory, .. }): (usize, &Granted)| {
            let (offset, bytes) = memory.range();
            Grant { key: name(index, key.remote_key()), offset, bytes, access: memory.access() }
        };
        self.granted.iter().enumerate().map(grant).collect()
    }

    /// Returns the rights that the peer has on any of the memory that it does more with than read.
    fn rights(&self) -> Access {
        let written = self.granted.iter().filter(|granted| !granted.is_read_only());
        written.map(|granted| granted.access).fold(Access::LOCAL, Access::union)
    }

    /// Begins to serve the pairs that the peer posts on over the first rail, and finds out in which order the device
    /// applies what they write.
    fn serve(&mut self, path: &QueuePairPath, requester: &Pairs) -> io::Result<()> {
        let all = self.rights();
        // A sentinel is there besides what was granted.
        self.data.serve(path, &requester.data, all | Access::REMOTE_READ)?;
        // Heartbeats are words, and words are written.
        self.heartbeat.serve(path, &requester.heartbeat, all.intersection(Access::REMOTE_WRITE))?;
        serve_reads(self.reads.as_ref(), path, requester.reads)?;
        self.data.make_ready_to_send(path)?;
        let order = *self.arrival_order.get_or_insert_with(|| self.data.ask_arrival_order());
        tracing::info!(
            device = self.domain.device.name,
            in_order = order.in_order,
            says = order.source.text(),
            "order in which a peer's writes are applied"
        );
        if order.in_order {
            self.sentinel = None;
        }
        Ok(())
    }

    /// The order in which the first rail's device applies what the peer writes, once this serves.
    pub(super) fn arrival_order(&self) -> Option<ArrivalOrder> {
        self.arrival_order
    }

    /// The key of the sentinel, once this serves, if the device may apply the peer's writes in any order.
    pub(super) fn sentinel(&self) -> Option<u32> {
        self.sentinel.as_ref().map(Sentinel::key)
    }

    /// The pairs of the first rail.
    fn first_pairs(&self) -> impl Iterator<Item = &QueuePair> {
        [&*self.data, &self.heartbeat].into_iter().chain(&self.reads)
    }

    /// Whether a device has told that one of them is over, and how, since it was asked last; and the other rails that
    /// have failed, a bit for each, which end nothing else.
    pub(super) fn take_broken(&self) -> (Option<QueuePairError>, u8) {
        self.broken(QueuePair::take_broken)
    }

    /// The same, as the devices answer when they are asked.
    pub(super) fn ask_broken(&self) -> (Option<QueuePairError>, u8) {
        self.broken(QueuePair::ask_broken)
    }

    fn broken(&self, of: fn(&QueuePair) -> Option<QueuePairError>) -> (Option<QueuePairError>, u8) {
        let mut broken = self.first_pairs().map(of).fold(None, Option::max);
        let mut failed = 0;
        for (index, further) in self.further.iter().enumerate() {
            let pairs = further.iter().flat_map(ResponderFurther::pairs);
            match pairs.map(of).fold(None, Option::max) {
                Some(QueuePairError::Failed) => failed |= 1 << (index + 1),
                // Whichever rail it is, the peer has reached for what it was not granted.
                refused => broken = broken.max(refused),
            }
        }
        (broken, failed)
    }

    /// Has the devices take nothing more from the peer: from then on no key is of any use to it. All else is undone
    /// when this is dropped, which takes far longer. False if a device goes on to serve the peer.
    #[cold]
    pub(super) fn stop(&self) -> bool {
        let further = self.further.iter().flatten().flat_map(ResponderFurther::pairs);
        self.first_pairs().chain(further).all(QueuePair::reset)
    }

    /// Gives up a rail, not the first: what the peer posts there finds nothing any more. False if that failed.
    #[cold]
    pub(super) fn lose_rail(&mut self, rail: usize) -> bool {
        let further = self.further.get_mut(rail - 1).and_then(Option::take);
        further.is_none_or(ResponderFurther::close)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker
            && !self.data.is_inherited()
        {
            waker.remove(&self.data);
        }
    }
}
