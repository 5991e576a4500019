//! The queue pairs of one side of a connection, and the memory that it grants.
//!
//! Each direction has its own pairs, so that each can be in its own protection domain. Pairs that post are in the
//! transport's domain, where all memory of this process is registered. Pairs that serve a peer are in a domain that
//! was made for this peer and holds exactly the memory that was granted to it, with the granted rights. Pairs that
//! serve its READs of memory that it may only read are in one domain for all peers, where that memory is registered
//! once.

use std::io;
use std::sync::Arc;

use super::VerbsShared;
use super::arrival_order::ArrivalOrder;
use super::device::QueuePairError;
use super::grants::{GrantKey, Granted, GrantedMemory, Granting, Sentinel, to_serve_reads};
use super::hello::{Pairs, PortAddress, Ports, RailPorts, ServingPairs, name};
use super::initiator::Initiator;
use super::queue_pair::{QueuePair, QueuePairPath, RECEIVES};
use super::region::ProtectionDomain;
use super::waker::Waker;
use crate::mem::Access;
use crate::transport::wireup::Grant;

/// Heartbeats that may be under way.
const HEARTBEAT_DEPTH: usize = 16;

/// The pairs on which this side posts.
pub(super) struct Requester {
    /// The pairs of each rail, the leading rail first.
    pub(super) rails: Vec<RailRequester>,
}

/// The pairs on which this side posts over one rail.
pub(super) struct RailRequester {
    pub(super) data: Initiator,
    /// Present if the rail may lead.
    pub(super) heartbeat: Option<Initiator>,
    /// For READs of memory that the peer grants for reading only, if there is such memory.
    pub(super) reads: Option<Initiator>,
}

impl Requester {
    /// Makes the pairs on the rails of these indexes, of which the first `may_lead` may lead. `reads` says whether
    /// the peer may have memory that can only be read.
    pub(super) fn new(
        shared: &VerbsShared,
        rails: &[usize],
        may_lead: usize,
        reads: bool,
    ) -> io::Result<Requester> {
        let depth = shared.queue_depth;
        let of_rail = |(position, rail): (usize, &usize)| {
            let beats = || shared.initiator(*rail, HEARTBEAT_DEPTH, HEARTBEAT_DEPTH);
            Ok(RailRequester {
                // Each write may need a READ that shows its arrival, or a READ that proves the writes before it.
                data: shared.initiator(*rail, depth, 2 * depth)?,
                // A beat that overtakes another one still changes the word, and a beat only has to do this.
                heartbeat: (position < may_lead).then(beats).transpose()?,
                reads: reads.then(|| shared.initiator(*rail, depth, depth)).transpose()?,
            })
        };
        Ok(Requester { rails: rails.iter().enumerate().map(of_rail).collect::<io::Result<_>>()? })
    }

    /// Gives up the pairs for which the peer's answer has no serving pair.
    pub(super) fn keep_served(&mut self, theirs: &Ports) {
        self.rails.retain(|rail| theirs.has(rail.data.rail));
        let serves_reads =
            |rail: &RailPorts| rail.responder.as_ref().is_some_and(|it| it.pairs.reads.is_some());
        if !theirs.rails.first().is_some_and(serves_reads) {
            self.rails.iter_mut().for_each(|rail| rail.reads = None);
        }
    }

    /// Takes the pair for heartbeats from the leading rail.
    pub(super) fn take_heartbeat(&mut self) -> Option<Initiator> {
        self.rails.first_mut()?.heartbeat.take()
    }
}

impl RailRequester {
    fn pairs(&self) -> Pairs {
        let pair = |initiator: &Initiator| initiator.pair().pair();
        Pairs {
            data: pair(&self.data),
            heartbeat: self.heartbeat.as_ref().map(pair),
            reads: self.reads.as_ref().map(pair),
        }
    }

    /// Connects these pairs to the pairs that serve them.
    fn connect(&self, path: &QueuePairPath, theirs: &Pairs) -> io::Result<()> {
        self.data.pair().connect(path, &theirs.data)?;
        for (ours, theirs) in [(&self.heartbeat, theirs.heartbeat), (&self.reads, theirs.reads)] {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                ours.pair().connect(path, &theirs)?;
            }
        }
        Ok(())
    }
}

/// Returns the description for the peer of the rails with these indexes and addresses.
pub(super) fn rail_ports(
    rails: impl Iterator<Item = (usize, PortAddress)>,
    requester: Option<&Requester>,
    responder: Option<&Responder>,
) -> Vec<RailPorts> {
    let tell = |(position, (index, address)): (usize, (usize, PortAddress))| RailPorts {
        index: index as u8,
        address,
        requester: requester.and_then(|requester| Some(requester.rails.get(position)?.pairs())),
        responder: responder.and_then(|responder| Some(responder.rails.get(position)?.as_ref()?.told())),
    };
    rails.enumerate().map(tell).collect()
}

/// Connects this side's pairs to the pairs in `theirs`, if both exist.
pub(super) fn connect(
    paths: &[QueuePairPath],
    requester: Option<&Requester>,
    responder: Option<&mut Responder>,
    theirs: &Ports,
) -> io::Result<()> {
    let rails = || paths.iter().zip(&theirs.rails);
    let posting = requester.into_iter().flat_map(|requester| &requester.rails);
    for (ours, (path, theirs)) in posting.zip(rails()) {
        if let Some(serving) = &theirs.responder {
            ours.connect(path, &serving.pairs)?;
        }
    }
    let Some(responder) = responder else { return Ok(()) };
    let rights = responder.rights();
    for (ours, (path, theirs)) in responder.rails.iter().flatten().zip(rails()) {
        if let Some(requester) = &theirs.requester {
            ours.serve(path, requester, rights)?;
        }
    }
    match rails().next() {
        Some((path, lead)) if lead.requester.is_some() => responder.lead_mut().learn_arrival_order(path),
        _ => Ok(()),
    }
}

/// The pairs that serve the peer, and the memory that it may access through them.
pub(super) struct Responder {
    /// The waker that the peer's requests ring.
    waker: Option<Arc<Waker>>,
    /// The pairs of each rail, until the rail is lost. The first rail leads, and is never given up.
    rails: Vec<Option<RailResponder>>,
    granted: Vec<Granted>,
}

/// The same for one rail.
struct RailResponder {
    /// The index of the rail.
    index: usize,
    // Dropped in this order, and before the granted memory: the pairs, the keys, then the domain.
    data: Arc<QueuePair>,
    /// Present if the rail may lead.
    heartbeat: Option<QueuePair>,
    /// For READs of memory that may only be read, if there is such memory.
    reads: Option<QueuePair>,
    keys: Vec<GrantKey>,
    /// None on the only rail, or on a leading rail, if its device is known to apply writes in order.
    sentinel: Option<Sentinel>,
    domain: Arc<ProtectionDomain>,
    /// The order in which the device applies writes, if it is known.
    arrival_order: Option<ArrivalOrder>,
}

/// The duties of the pairs that serve on one rail.
struct RailDuties<'a> {
    may_lead: bool,
    /// Whether the peer proves its writes by a sentinel.
    is_proved: bool,
    /// The waker that its requests ring.
    waker: Option<&'a Arc<Waker>>,
}

impl RailResponder {
    fn new(
        shared: &VerbsShared,
        index: usize,
        granting: &[Granting],
        duties: &RailDuties<'_>,
    ) -> io::Result<RailResponder> {
        let rail = &shared.rails[index];
        let domain = rail.peer_domain()?;
        // Keys before pairs: when a process ends, the system destroys the newest objects first, and a pair that
        // outlived its keys would refuse the peer's valid requests.
        let key = |granting: &Granting| granting.key(shared, index, &domain);
        let keys = granting.iter().map(key).collect::<io::Result<Vec<_>>>()?;
        let arrival_order = rail.known_arrival_order();
        let is_proved = duties.is_proved || arrival_order.is_none_or(|order| !order.in_order);
        let memory = granting.iter().map(|granting| &granting.memory);
        let sentinel = is_proved.then(|| Sentinel::new(&domain, memory.zip(&keys))).transpose()?;
        let limits = &rail.info.limits;
        let receives = limits.queue_depth.min(limits.completions).min(RECEIVES.into()) as u16;
        let data = Arc::new(QueuePair::to_serve(&domain, duties.waker.map(|waker| (waker, receives)))?);
        let heartbeat = duties.may_lead.then(|| QueuePair::to_serve(&domain, None)).transpose()?;
        let reads = to_serve_reads(shared, index, granting)?;
        Ok(RailResponder { index, data, heartbeat, reads, keys, sentinel, domain, arrival_order })
    }

    /// Begins to serve the pairs on which the peer posts, with these rights on memory that it may not only read.
    fn serve(&self, path: &QueuePairPath, requester: &Pairs, rights: Access) -> io::Result<()> {
        // A sentinel may be read besides the granted memory.
        self.data.serve(path, &requester.data, rights | Access::REMOTE_READ)?;
        // A heartbeat is a word that is written.
        let beats = rights.intersection(Access::REMOTE_WRITE);
        for (ours, theirs, rights) in [
            (&self.heartbeat, requester.heartbeat, beats),
            (&self.reads, requester.reads, Access::REMOTE_READ),
        ] {
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                ours.serve(path, &theirs, rights)?;
            }
        }
        Ok(())
    }

    /// Determines the order in which the device applies the peer's writes.
    fn learn_arrival_order(&mut self, path: &QueuePairPath) -> io::Result<()> {
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

    /// Destroys the queue pairs, and then the keys. False if the device could not: it may continue to serve the peer.
    fn close(mut self) -> bool {
        // No waker holds the pair of a rail that does not lead.
        let data = Arc::get_mut(&mut self.data).is_some_and(QueuePair::destroy);
        let others = self.heartbeat.iter_mut().chain(&mut self.reads);
        others.fold(data, |is_closed, pair| pair.destroy() && is_closed)
    }

    /// Returns the queue pairs of this rail that serve the peer.
    fn pairs(&self) -> impl Iterator<Item = &QueuePair> {
        [&*self.data].into_iter().chain(&self.heartbeat).chain(&self.reads)
    }

    fn told(&self) -> ServingPairs {
        let pairs = Pairs {
            data: self.data.pair(),
            heartbeat: self.heartbeat.as_ref().map(QueuePair::pair),
            reads: self.reads.as_ref().map(QueuePair::pair),
        };
        let keys = self.keys.iter().map(GrantKey::remote_key).collect();
        ServingPairs { pairs, keys, sentinel: self.sentinel.as_ref().map(Sentinel::key) }
    }
}

impl Responder {
    /// Makes the pairs for a peer that is granted `memory`, on the rails of these indexes, of which the first
    /// `may_lead` may lead; none if `memory` is empty. Requests on the first rail ring the waker, if there is one.
    pub(super) fn new(
        shared: &VerbsShared,
        rails: &[usize],
        may_lead: usize,
        memory: Vec<GrantedMemory>,
        waker: Option<&Arc<Waker>>,
    ) -> io::Result<Option<Responder>> {
        if memory.is_empty() {
            return Ok(None);
        }
        let granting = memory.into_iter().map(|memory| Granting::new(shared, memory));
        let granting = granting.collect::<io::Result<Vec<_>>>()?;
        let of_rail = |(position, rail): (usize, &usize)| {
            let duties = RailDuties {
                may_lead: position < may_lead,
                is_proved: rails.len() > 1,
                waker: waker.filter(|_| position == 0),
            };
            RailResponder::new(shared, *rail, &granting, &duties).map(Some)
        };
        let rails = rails.iter().enumerate().map(of_rail).collect::<io::Result<_>>()?;
        let grant = |Granting { memory, access, .. }| Granted { memory, access };
        let granted = granting.into_iter().map(grant).collect();
        let responder = Responder { waker: waker.cloned(), rails, granted };
        if let Some(waker) = waker {
            waker.add(&responder.lead().data);
        }
        Ok(Some(responder))
    }

    /// The rail that leads.
    fn lead(&self) -> &RailResponder {
        self.rails[0].as_ref().expect("the rail that leads is never given up")
    }

    fn lead_mut(&mut self) -> &mut RailResponder {
        self.rails[0].as_mut().expect("the rail that leads is never given up")
    }

    /// Gives up the rails that the peer's answer does not have.
    pub(super) fn keep_used(&mut self, theirs: &Ports) {
        self.rails.retain(|rail| rail.as_ref().is_some_and(|rail| theirs.has(rail.index)));
        self.rails.iter_mut().skip(1).flatten().for_each(|rail| rail.heartbeat = None);
    }

    /// Receives that the peer may use up before this side announces more.
    pub(super) fn receives(&self) -> u16 {
        self.lead().data.receives
    }

    /// The number of the pair that serves the peer's data on the leading rail.
    #[cfg(test)]
    pub(super) fn number(&self) -> u32 {
        self.lead().data.number()
    }

    /// Posts receives again, and returns their number, which the peer must be told.
    pub(super) fn renew_receives(&self) -> Option<u16> {
        self.lead().data.renew_receives()
    }

    pub(super) fn grants(&self) -> Vec<Grant> {
        let grant = |((index, Granted { memory, .. }), key): ((usize, &Granted), &GrantKey)| {
            let (offset, bytes) = memory.range();
            Grant { key: name(index, key.remote_key()), offset, bytes, access: memory.access() }
        };
        self.granted.iter().enumerate().zip(&self.lead().keys).map(grant).collect()
    }

    /// Returns the union of the peer's rights on the memory that it may not only read.
    fn rights(&self) -> Access {
        let written = self.granted.iter().filter(|granted| !granted.is_read_only());
        written.map(|granted| granted.access).fold(Access::LOCAL, Access::union)
    }

    /// The order in which the device of the leading rail applies the peer's writes, once this responder serves.
    pub(super) fn arrival_order(&self) -> Option<ArrivalOrder> {
        self.lead().arrival_order
    }

    /// The key of the leading rail's sentinel, once this responder serves, if the rail's device may apply the peer's
    /// writes in any order.
    pub(super) fn sentinel(&self) -> Option<u32> {
        self.lead().sentinel.as_ref().map(Sentinel::key)
    }

    /// Returns how a pair ended in a way that ends the connection, if a device has reported this since the last call;
    /// and the rails other than the leading one that have failed, a bit for each, which end only themselves.
    pub(super) fn take_broken(&self) -> (Option<QueuePairError>, u8) {
        self.broken(QueuePair::take_broken)
    }

    /// The same, by a query of the devices.
    pub(super) fn ask_broken(&self) -> (Option<QueuePairError>, u8) {
        self.broken(QueuePair::ask_broken)
    }

    fn broken(&self, of: fn(&QueuePair) -> Option<QueuePairError>) -> (Option<QueuePairError>, u8) {
        let (mut broken, mut failed) = (None, 0);
        for (position, rail) in self.rails.iter().enumerate() {
            let pairs = rail.iter().flat_map(RailResponder::pairs);
            match pairs.map(of).fold(None, Option::max) {
                Some(QueuePairError::Failed) if position > 0 => failed |= 1 << position,
                // The leading rail failed, or the peer has accessed memory on any rail that was not granted to it.
                told => broken = broken.max(told),
            }
        }
        (broken, failed)
    }

    /// Makes the devices accept no more requests from the peer: from then on its keys are useless. The rest of the
    /// cleanup happens when this is dropped, which takes far longer. False if a device continues to serve the peer.
    #[cold]
    pub(super) fn stop(&self) -> bool {
        self.rails.iter().flatten().flat_map(RailResponder::pairs).all(QueuePair::reset)
    }

    /// Gives up a rail that does not lead: the peer's requests there no longer find a queue pair. False if that
    /// failed.
    #[cold]
    pub(super) fn lose_rail(&mut self, rail: usize) -> bool {
        let lost = self.rails.get_mut(rail).filter(|_| rail > 0).and_then(Option::take);
        lost.is_none_or(RailResponder::close)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if let (Some(waker), Some(Some(lead))) = (&self.waker, self.rails.first())
            && !lead.data.is_inherited()
        {
            waker.remove(&lead.data);
        }
    }
}
