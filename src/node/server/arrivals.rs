//! Workers that come and go, and the gradients that they announce.

use smallvec::SmallVec;

use super::{Server, WorkerState};
use crate::clock::Clock;
use crate::node::shard::{DisconnectReason, Gone, ShardEvent};
use crate::param::{PeerInbox, SlotHeader, WorkerProgress};
use crate::scheme::{GradientId, ServerEvent, Share};
use crate::time::Instant;
use crate::transport::Transport;

impl<T: Transport> Server<T> {
    pub(super) fn take_events(&mut self, now: Instant) {
        let moved = !self.events.is_empty();
        for event in std::mem::take(&mut self.events) {
            match event {
                ShardEvent::Joined { peer, worker: true, identity, clock } => {
                    let (arrived, consumed, consumed_early) = (clock, clock, SmallVec::new());
                    let state = WorkerState { arrived, consumed, consumed_early, held: None, others: 0 };
                    self.workers[usize::from(peer)] = Some(state);
                    self.status.joined += 1;
                    self.say_joined(peer);
                    self.forget_departed(peer);
                    if self.following.is_some() {
                        // The decider's push may have been before.
                        self.push_to(peer);
                    }
                    let returns = !self.is_first_of(identity);
                    let event = ServerEvent::Joined { worker: peer.into(), clock, returns };
                    self.scheme.handle_event(now, event);
                }
                ShardEvent::Joined { peer, worker: false, .. } => self.say_who_is_in(peer),
                ShardEvent::Left { peer, gone } if gone.worker => {
                    let state = self.workers[usize::from(peer)].take();
                    let Gone { published, slots, session, .. } = gone;
                    self.status.left += 1;
                    self.say_left(session);
                    if let Some(state) = &state {
                        self.keep_departed(peer, gone, state);
                    }
                    if let Some(state) = state {
                        // A fold that counts already is finished.
                        let is_own = |share: &&Share| share.gradient.worker == peer.into();
                        let folding = match self.work.bound {
                            true => self.work.shares.iter().filter(is_own).count() as u64,
                            false => 0,
                        };
                        let open = state.unconsumed(published).min(slots);
                        self.status.voided += open.saturating_sub(folding);
                    }
                    if self.work.shares.iter().any(|share| share.gradient.worker == peer.into()) {
                        // A fold that counts already is finished: its gradients were announced whole, and the
                        // inboxes hold their memory. One in hope is thrown away.
                        if self.work.bound {
                            // Its line says no more of its slots to a process that takes itself for this worker.
                            self.shard.withheld.push((peer, None));
                        } else {
                            self.abandon();
                        }
                    }
                    self.scheme.handle_event(now, ServerEvent::Left { worker: peer.into() });
                }
                ShardEvent::Left { .. } => {}
            }
        }
        if moved {
            self.shard.frames.set_workers(self.workers.iter().flatten().count());
        }
    }

    /// The identities of the workers that are in.
    pub(crate) fn worker_identities(&self) -> impl Iterator<Item = u64> {
        self.shard.peers.iter().flatten().filter(|peer| peer.worker).map(|peer| peer.identity)
    }

    /// The identities of the workers that have ever joined this incarnation, at most as many as the job expects.
    pub(crate) fn joined_identities(&self) -> impl Iterator<Item = u64> {
        self.identities.iter().copied()
    }

    /// True if no worker of this identity has joined this incarnation before. Nobody asks once as many have joined as
    /// the job expects: no more are kept.
    fn is_first_of(&mut self, identity: u64) -> bool {
        if self.identities.len() < self.expected {
            return self.identities.insert(identity);
        }
        !self.identities.contains(&identity)
    }

    /// Tells the scheme which gradients were announced since the last time, and which versions their workers hold.
    pub(super) fn take_arrivals(&mut self, now: Instant) -> bool {
        let mut progress = false;
        for index in 0..self.workers.len() {
            // Read first: a worker tells its version before it announces the gradient of that version.
            let Some(peer) = &self.shard.peers[index] else { continue };
            let published = peer.inbox.published();
            progress |= self.take_held(index, now);
            while let (Some(state), Some(peer)) = (&self.workers[index], &self.shard.peers[index]) {
                if published <= state.arrived {
                    break;
                }
                progress = true;
                let clock = state.arrived;
                match self.believe(&peer.inbox, state.consumed, clock) {
                    Ok(header) => {
                        if let Some(state) = &mut self.workers[index] {
                            state.arrived = clock.next();
                            state.others = header.others;
                        }
                        let gradient = GradientId { worker: (index as u16).into(), clock };
                        // An invalid magnitude is reported as the largest one, which no bound allows.
                        let magnitude = header.magnitude.map(|m| if m >= 0.0 { m } else { f32::INFINITY });
                        let (base, loss) = (header.base, header.loss);
                        let event = ServerEvent::Arrived { gradient, base, loss, magnitude };
                        self.scheme.handle_event(now, event);
                    }
                    Err(reason) => {
                        let disconnect_reason = DisconnectReason::Misbehaved(reason);
                        self.shard.dismiss(index as u16, disconnect_reason, &mut self.events);
                        self.take_events(now);
                        break;
                    }
                }
            }
        }
        progress
    }

    /// The header of the gradient of `clock`, which was announced, or how that broke the protocol.
    pub(super) fn believe(
        &self,
        inbox: &PeerInbox,
        consumed: Clock,
        clock: Clock,
    ) -> Result<SlotHeader, String> {
        // Without this a worker that ignores its credits could have one slot folded under two names.
        let slots = inbox.slot_geometry().map_or(0, |geometry| u64::from(geometry.slots));
        if clock.get() >= consumed.get().saturating_add(slots) {
            return Err("it published more than it has slots for".into());
        }
        if clock >= WorkerProgress::CLOCK_MAX {
            return Err("it published past the last clock that there is".into());
        }
        let header = inbox.header(clock, self.shard.frames.epoch()).map_err(|fault| fault.to_string())?;
        // The commit of a version precedes each gradient that a worker computes on it.
        if header.base > self.shard.frames.latest().version {
            return Err("its gradient is computed on a version that there is not".into());
        }
        match self.sums.fault(header.others) {
            Some(fault) => Err(fault.into()),
            None => Ok(header),
        }
    }

    /// Tells the scheme that a worker holds a newer version than before.
    fn take_held(&mut self, index: usize, now: Instant) -> bool {
        if !self.reports_reads {
            return false;
        }
        let (Some(state), Some(peer)) = (&mut self.workers[index], &self.shard.peers[index]) else {
            return false;
        };
        let Some(version) = peer.inbox.held() else { return false };
        if state.held.is_some_and(|held| version <= held) {
            return false;
        }
        if version > self.shard.frames.latest().version {
            let disconnect_reason =
                DisconnectReason::Misbehaved("it holds a version that there is not".into());
            self.shard.dismiss(index as u16, disconnect_reason, &mut self.events);
            self.take_events(now);
            return true;
        }
        state.held = Some(version);
        self.scheme.handle_event(now, ServerEvent::Seen { worker: (index as u16).into(), version });
        true
    }
}
