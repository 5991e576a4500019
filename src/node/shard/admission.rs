//! Admission: peers that connect are answered, prepared for and accepted, or refused with the reason.

use super::decider::Decider;
use super::joining::PreparedPeer;
use super::{IncomingOf, Kept, SOON, Shard, ShardEvent, ShardPeer, queue};
use crate::clock::Clock;
use crate::param::{Deltas, Eviction, PeerHello, PeerInbox, PeerRole, Push, SlotGeometry, WorkerProgress};
use crate::table::Encoding;
use crate::time::{Instant, Silence};
use crate::transport::{
    Endpoint as _, HANDSHAKE_TIMEOUT, Incoming as _, Listener as _, MAX_PENDING_HANDSHAKES, Offer, Refusal,
    Transport,
};

impl<T: Transport> Shard<T> {
    /// Answers a peer that only asks; has everything prepared for any other peer, if it fits.
    pub(super) fn greet(&mut self, incoming: IncomingOf<T>, now: Instant, clock: Clock) {
        let received = incoming.received();
        let hello = match PeerHello::decode(&received.message, &received.grants) {
            Ok(hello) => hello,
            Err(error) => return self.refuse(incoming, error.to_string()),
        };
        let reads = match &hello.role {
            PeerRole::Reader | PeerRole::Inquirer => true,
            PeerRole::Joiner(joiner) => joiner.relay.is_none(),
            _ => false,
        };
        if incoming.reads_only() && !reads {
            let reason = "its secret opens reading only: give it the secret of the job";
            return self.refuse(incoming, reason);
        }
        match &hello.role {
            PeerRole::Inquirer => {
                let message = self.welcome(0, clock, None).encode();
                return self.answer(incoming, message, now);
            }
            PeerRole::Joiner(joiner) => {
                let (fresh, own) = (self.runtime.time_of_day(), self.listener.address());
                let Some(tree) = &mut self.tree else {
                    return self
                        .refuse(incoming, "this owner arranges no tree: ask the publisher for a position");
                };
                let message = tree.position(joiner, now, fresh, &own).encode();
                return self.answer(incoming, message, now);
            }
            _ => {}
        }
        if let PeerRole::Worker { identity, .. } = hello.role
            && self.is_connected(identity)
        {
            // It may fill this server itself.
            return self.refuse(incoming, identity_taken(identity));
        }
        // Room that becomes free is for the first reader in the queue. Workers, for which their job waits, pass by.
        let ahead = match &hello.role {
            PeerRole::Reader => self.queue.ahead(hello.ticket.as_ref(), now),
            _ => 0,
        };
        match self.check(&hello, self.joining.len(), ahead) {
            Err(refusal) => {
                let grace = self.config.options.lease.min(HANDSHAKE_TIMEOUT);
                self.queue.refuse(hello.ticket.as_ref(), refusal.retry_after, grace, now);
                self.refuse(incoming, refusal)
            }
            Ok((_, slots)) => {
                self.queue.leave(hello.ticket.as_ref());
                let shared = (self.frames.control().whole(), self.frames.memory().clone());
                let is_follower = matches!(hello.role, PeerRole::Follower { .. });
                let decisions = self.decider.as_ref().filter(|_| is_follower).map(Decider::region);
                let last = decisions.or_else(|| self.frames.deltas().map(Deltas::region));
                let registering = self.runtime.simulator().map(|simulator| now + simulator.registering());
                let (peer, undone) = ((incoming, hello), self.departing.undone());
                self.joining.begin(&self.transport, peer, (shared, last), slots, registering, undone);
            }
        }
    }

    /// Answers a peer that only asks.
    fn answer(&mut self, incoming: IncomingOf<T>, message: Vec<u8>, now: Instant) {
        if self.answering.len() >= MAX_PENDING_HANDSHAKES {
            // The peer that was answered first has had the most time to read its answer. If the new one were refused
            // instead, peers that only ask and stay connected would keep all others out.
            self.answering.remove(0);
        }
        match incoming.accept(Offer { message, grants: Vec::new() }) {
            Ok(endpoint) => self.answering.push((endpoint, now)),
            Err(error) => tracing::debug!(%error, "an inquirer went away"),
        }
    }

    /// Answers a peer for which everything is prepared. Its index, its clock and its generation are of this moment, for
    /// others may have come, left and gone on meanwhile.
    pub(super) fn let_in(
        &mut self,
        newcomer: PreparedPeer<IncomingOf<T>>,
        now: Instant,
        clock: Clock,
        events: &mut Vec<ShardEvent>,
    ) {
        let PreparedPeer { incoming, hello, inbox, grants } = newcomer;
        // The clock as a checkpoint would have it: during a fold the scheme's own clock can be far ahead of it.
        let announced = clock.min(self.frames.smallest_clock());
        let (worker, identity, session) = match hello.role {
            PeerRole::Worker { identity, session, .. } => (true, identity, session),
            _ => (false, 0, 0),
        };
        let follows = match hello.role {
            PeerRole::Follower { shard, followed, .. } => Some((shard, followed)),
            _ => None,
        };
        if worker && self.is_connected(identity) {
            return self.refuse(incoming, identity_taken(identity));
        }
        let clock = match &hello.resume {
            Some(resume) if resume.clock.get().saturating_sub(clock.get()) > WorkerProgress::AHEAD_MAX => {
                let reason = format!("its clock {} is too far ahead of {}", resume.clock.get(), clock.get());
                return self.refuse(incoming, reason);
            }
            // Clocks name iterations: another worker that waits for this worker's gradients would wait for ever for the
            // ones that it has published already.
            Some(resume) => clock.max(resume.clock),
            None => clock,
        };
        // Its gradients that were taken are not taken again.
        let is_bound = worker && !mutant!("taken");
        let clock = if is_bound { clock.max(self.taken.begin(identity)) } else { clock };
        let checked = self.check(&hello, 0, 0).and_then(|(peer, slots)| Ok((peer, slots, inbox?)));
        match checked {
            Err(reason) => self.refuse(incoming, reason),
            Ok((peer, slots, (page, payloads))) => {
                let inbox = PeerInbox::new(page, payloads.zip(slots), clock);
                self.generations = self.generations.wrapping_add(1);
                self.frames.open_line(peer, clock, self.generations);
                let mut welcome = self.welcome(peer, clock, slots);
                if let (Some((shard, followed)), Some(decider)) = (follows, &self.decider) {
                    welcome.decided = Some(decider.begin(shard, followed, self.frames.epoch()));
                }
                let message = welcome.encode();
                let theirs = incoming.received().grants.clone();
                match incoming.accept(Offer { message, grants }) {
                    Err(error) => {
                        tracing::warn!(%error, "a peer went away during its handshake");
                        self.frames.close_line(peer, Eviction::Left);
                    }
                    Ok(mut endpoint) => {
                        endpoint.allow_silence(self.config.options.lease);
                        endpoint.count_arrivals();
                        self.news.sleepers += usize::from(hello.sleeps);
                        let push = hello.push.map(|grant| Push::new(theirs[0], theirs[1], grant));
                        self.pushed_to += usize::from(push.is_some());
                        // Its heart begins to beat once it has made all its connections.
                        let beat = endpoint.arrivals().unwrap_or_else(|| inbox.heartbeat());
                        let silence = Silence::newcomer(beat, HANDSHAKE_TIMEOUT);
                        let (checked, wants_push, generation) = (now, false, self.generations);
                        self.peers[usize::from(peer)] = Some(ShardPeer {
                            endpoint,
                            inbox,
                            worker,
                            identity,
                            session,
                            follows: follows.map(|(shard, _)| shard),
                            began: clock,
                            generation,
                            push,
                            wants_push,
                            has_news: false,
                            sleeps: hello.sleeps,
                            woken: 0,
                            silence,
                            checked,
                        });
                        if worker {
                            self.taken.join(identity, announced);
                        }
                        if let (Some((shard, _)), Some(decider), Some(from)) =
                            (follows, &mut self.decider, &welcome.decided)
                        {
                            decider.follow(shard, from);
                        }
                        tracing::info!(peer, worker, clock = clock.get(), "peer joined");
                        if let Some(resume) = &hello.resume {
                            self.note_lost(resume);
                        }
                        events.push(ShardEvent::Joined { peer, worker, identity, clock });
                    }
                }
            }
        }
    }

    /// True if a worker of this identity is in.
    fn is_connected(&self, identity: u64) -> bool {
        self.peers.iter().flatten().any(|peer| peer.worker && peer.identity == identity)
    }

    /// A worker that comes back from another incarnation tells how far that one had come.
    fn note_lost(&mut self, resume: &WorkerProgress) {
        if resume.epoch == self.frames.epoch() {
            return;
        }
        let lost = self.begun_at.behind(resume.version);
        if lost > self.lost_updates.unwrap_or(0) {
            tracing::warn!(
                updates = lost,
                seen = resume.version.get(),
                begun_at = self.begun_at.get(),
                "updates of the incarnation before this one are lost"
            );
        }
        self.lost_updates = self.lost_updates.max(Some(lost));
    }

    pub(super) fn refuse(&mut self, incoming: IncomingOf<T>, refusal: impl Into<Refusal>) {
        let refusal = refusal.into();
        self.refused += 1;
        match refusal.retry_after {
            None => tracing::warn!(reason = refusal.reason, "peer refused"),
            Some(_) => tracing::debug!(reason = refusal.reason, "peer refused for now"),
        }
        incoming.refuse(refusal);
    }

    /// The index of a peer and the layout of its slots; or the reason why it is refused. So many others are being
    /// accepted, and so many `ahead` of it wait for that.
    pub(super) fn check(
        &self,
        hello: &PeerHello,
        joining: usize,
        ahead: usize,
    ) -> Result<(u16, Option<SlotGeometry>), Refusal> {
        let session = match hello.role {
            PeerRole::Worker { session, .. } => Some(session),
            _ => None,
        };
        let is_free = |(peer, index): &(&Option<_>, u16)| {
            let is_withheld =
                |(kept, of): &(u16, Option<u64>)| kept == index && (of.is_none() || *of != session);
            peer.is_none() && (!self.withheld.iter().any(is_withheld) || mutant!("withheld"))
        };
        let mut free = self.peers.iter().zip(0..).filter(is_free).map(|(_, index)| index);
        let peer = free.nth(joining + ahead).ok_or_else(|| match self.withheld.len() {
            0 => queue::no_room(&hello.role, self.peers.len(), (joining, ahead), self.config.options.lease),
            _ => Refusal::temporary(
                SOON,
                "the last gradient of a worker that has left is being folded; try again",
            ),
        })?;
        if let Some(push) = &hello.push
            && push.geometry != *self.frames.geometry()
        {
            return Err("the frames it wants pushed to have another geometry than the shard's".into());
        }
        let slots = match (&hello.role, &self.config.scheme) {
            (PeerRole::Worker { .. }, None) => {
                return Err("this is a publisher: it takes readers, not workers".into());
            }
            (PeerRole::Worker { encoding, scheme, .. }, Some(ours)) => {
                let Kept { text, slots, pushes } = ours;
                if scheme != text {
                    let reason = format!("the worker runs {scheme}, the server {text}: use one scheme");
                    return Err(reason.into());
                }
                if *pushes && hello.push.is_none() {
                    let reason = format!("{text} pushes versions, and the worker grants nothing to push to");
                    return Err(reason.into());
                }
                if self.peers.iter().flatten().filter(|peer| peer.worker).count() >= self.most_workers {
                    let reason = format!(
                        "{} workers are in, and {text} folds gradients of each at once, of which a fold takes no \
                         more: use fewer workers, or a scheme that folds each alone (asp, ssp, essp)",
                        self.most_workers
                    );
                    return Err(reason.into());
                }
                if let Some(other) = self.encoding()
                    && other != *encoding
                {
                    let reason = format!(
                        "its gradients are {encoding:?}, those of the other workers {other:?}: use one encoding"
                    );
                    return Err(reason.into());
                }
                Some(self.slot_geometry(*encoding, *slots))
            }
            (PeerRole::Follower { scheme, shard, .. }, ours) => {
                let ours = ours.as_ref().map_or("no scheme", |kept| kept.text.as_str());
                if self.decider.is_none() || scheme != ours {
                    let reason = format!("this server keeps {ours} and decides for no server of {scheme}");
                    return Err(reason.into());
                }
                if !(1..self.config.shards).contains(shard) {
                    let shards = self.config.shards;
                    let reason = format!("of {shards} shards, shard {shard} does not follow another");
                    return Err(reason.into());
                }
                if self.followers().any(|follower| follower == *shard) {
                    return Err(shard_taken(*shard));
                }
                None
            }
            _ => None,
        };
        Ok((peer, slots))
    }

    /// Returns the encoding that the workers which are in have agreed to publish.
    fn encoding(&self) -> Option<Encoding> {
        self.peers.iter().flatten().find_map(|peer| Some(peer.inbox.slot_geometry()?.encoding))
    }

    pub(super) fn slot_geometry(&self, encoding: Encoding, slots: u16) -> SlotGeometry {
        let geometry = self.frames.geometry();
        let (elements, chunk_elements) = (geometry.payload_bytes / 4, geometry.chunk_bytes / 4);
        SlotGeometry { slots, encoding, elements, chunk_elements }
    }
}

/// A worker that was started again hears it until the end of its old connection is noticed, and tries again.
fn identity_taken(identity: u64) -> Refusal {
    Refusal::temporary(
        SOON,
        format!(
            "a worker of this identity is connected: give each worker a rank of its own; one that was started again is \
         taken in as soon as the end of its old connection is noticed, within the lease (it is {identity:#x})"
        ),
    )
}

/// A follower that connects again hears it until the end of its old connection is noticed, and tries again.
fn shard_taken(shard: u16) -> Refusal {
    Refusal::temporary(
        SOON,
        format!("another server of this shard follows already: give each shard one server (it is {shard})"),
    )
}
