//! One shard in the hands of its owner: frames, the peers that read them, and who of them is alive.

use std::ops::Range;
use std::time::Duration;

use super::{Backoff, Error};
use crate::clock::{Clock, Version};
use crate::mem::{Access, MemoryRegion};
use crate::param::{
    ControlLayout, Desk, Epoch, FrameGeometry, Frames, Hello, Push, Resume, Role, SlotGeometry, Welcome,
};
use crate::scheme;
use crate::table::{ElementType, Table};
use crate::time::Instant;
use crate::transport::{
    Address, Disconnected, Endpoint, HANDSHAKE_TIMEOUT, Incoming, Listener, MAX_PENDING_HANDSHAKES, Offer,
    Transport,
};

/// How the memory of a shard is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// Most peers at a time, workers and readers together.
    pub peers: u16,
    /// Frames. Three let one reader pin while the owner writes; with `n` that pin different versions, `n + 2` never
    /// make the owner wait.
    pub frames: u8,
    /// Bytes of parameters in one chunk: what is summed, copied and announced at a time. A multiple of 64.
    pub chunk_bytes: u64,
    /// How long a peer may be silent before it is taken for dead.
    pub lease: Duration,
    /// Whether each version carries a checksum: one more pass over it.
    pub checksums: bool,
    /// What the owner does while there is nothing to do.
    pub idle: Idle,
}

/// What an owner does while there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Look for something again and again, standing back a little in between: what comes is seen at once, for a
    /// processor's time.
    #[default]
    Poll,
    /// Sleep until a peer that has announced something wakes it, or for 20 ms at most. Only over a transport
    /// that can wake it ([`Listener::be_notified`]): RDMA, by WRITEs with immediate data. Over others it polls.
    Sleep,
}

impl Default for ShardOptions {
    fn default() -> Self {
        ShardOptions {
            peers: 64,
            frames: 3,
            chunk_bytes: 1 << 20,
            lease: Duration::from_secs(3),
            checksums: false,
            idle: Idle::Poll,
        }
    }
}

/// Why a peer left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Departure {
    /// Its connection ended: it finished, or died.
    Closed(Disconnected),
    /// It was silent for longer than the lease.
    Silent,
    /// What it wrote broke the protocol.
    Misbehaved(String),
}

impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Departure::Closed(gone) => f.write_str(gone.reason),
            Departure::Silent => f.write_str("it was silent for longer than the lease"),
            Departure::Misbehaved(how) => f.write_str(how),
        }
    }
}

/// What happened to the peers of a shard.
#[derive(Clone, Debug)]
pub(super) enum ShardEvent {
    Joined { peer: u16, worker: bool, clock: Clock },
    Left { peer: u16, worker: bool },
}

/// What of a table an owner holds, and for whom.
pub(super) struct ShardConfig {
    pub(super) table: Table,
    pub(super) shard: u16,
    pub(super) shards: u16,
    /// The scheme and slots per worker, if workers are taken.
    pub(super) scheme: Option<scheme::Config>,
    pub(super) options: ShardOptions,
}

pub(super) struct Peer<E> {
    pub(super) endpoint: E,
    pub(super) desk: Desk,
    pub(super) worker: bool,
    /// The clock that it began at.
    pub(super) began: Clock,
    /// Tells this peer from others that had its place before.
    pub(super) generation: u64,
    pub(super) push: Option<Push>,
    /// A newer version should be pushed to it.
    pub(super) wants_push: bool,
    heartbeat: u64,
    heard: Instant,
    checked: Instant,
}

/// How often the listener is asked for newcomers: it costs system calls.
const GREET_EVERY: Duration = Duration::from_millis(1);

/// How often a peer's connection is asked whether it still stands: it may cost a system call.
const CHECK_EVERY: Duration = Duration::from_millis(20);

pub(super) struct Shard<T: Transport> {
    transport: T,
    listener: T::Listener,
    config: ShardConfig,
    range: Range<u64>,
    pub(super) frames: Frames,
    pub(super) peers: Vec<Option<Peer<T::Endpoint>>>,
    /// Connections of those who only asked: kept until the answer has gone out.
    answering: Vec<(T::Endpoint, Instant)>,
    /// The latest one. They count from the epoch, so that those of two lives differ.
    generations: u64,
    beats: u64,
    beaten: Instant,
    greeted: Instant,
    /// Peers wake whoever waits at the listener.
    is_notified: bool,
    pub(super) refused: u64,
    pub(super) misbehaved: u64,
    /// The version that this life began at.
    begun_at: Version,
    pub(super) lost_updates: Option<u64>,
}

fn option_error(option: &'static str, value: impl ToString, reason: &'static str) -> Error {
    Error::Option { option, value: value.to_string(), reason }
}

impl<T: Transport> Shard<T> {
    pub(super) fn new(transport: T, address: &Address, config: ShardConfig) -> Result<Self, Error> {
        let ranges = config.table.shards(usize::from(config.shards))?;
        let range = ranges.get(usize::from(config.shard)).cloned().ok_or_else(|| {
            option_error("shard", config.shard, "it must be less than the number of shards")
        })?;
        let options = &config.options;
        if options.peers == 0 {
            return Err(option_error("peers", 0, "there must be room for one"));
        }
        if options.lease.is_zero() {
            return Err(option_error(
                "lease",
                "0",
                "everybody would be taken for dead; three seconds are usual",
            ));
        }
        let layout = ControlLayout { peers: options.peers, frames: options.frames };
        let geometry = FrameGeometry {
            frames: options.frames,
            payload_bytes: range.end - range.start,
            chunk_bytes: options.chunk_bytes,
        };
        if !geometry.is_sound() {
            let value = format!("{} frames, chunks of {} bytes", options.frames, options.chunk_bytes);
            return Err(option_error(
                "frames and chunk_bytes",
                value,
                "use 2 to 255 frames, and chunks of a multiple of 64 bytes, at most 16 million of them",
            ));
        }
        let control = transport.allocate(layout.bytes(), Access::REMOTE_READ)?;
        let bytes = usize::try_from(geometry.bytes())
            .map_err(|_| option_error("frames", options.frames, "they do not fit the address space"))?;
        let payload = transport.allocate(bytes, Access::REMOTE_READ)?;
        let mut frames = Frames::new(control, payload, layout, geometry, random_epoch());
        frames.set_checksums(options.checksums);
        let mut listener = transport.listen(address)?;
        let is_notified = config.options.idle == Idle::Sleep && listener.be_notified()?;
        if config.options.idle == Idle::Sleep && !is_notified {
            tracing::info!(
                transport = transport.capabilities().name,
                "this transport cannot wake who sleeps: polling"
            );
        }
        let (peers, generations) = ((0..options.peers).map(|_| None).collect(), frames.epoch());
        tracing::info!(
            address = %listener.address(), transport = transport.capabilities().name, shard = config.shard,
            shards = config.shards, bytes = geometry.payload_bytes, "listening"
        );
        Ok(Shard {
            transport,
            listener,
            config,
            range,
            frames,
            peers,
            answering: Vec::new(),
            generations,
            beats: 0,
            beaten: Instant::ORIGIN,
            greeted: Instant::ORIGIN,
            is_notified,
            refused: 0,
            misbehaved: 0,
            begun_at: Version(0),
            lost_updates: None,
        })
    }

    /// Completes the first version, whose payload is in place: `version` of the job.
    pub(super) fn begin_at(&mut self, version: Version, smallest_clock: Clock) {
        self.begun_at = version;
        self.frames.set_initial(version, smallest_clock);
        // It had no payload when its header was made.
        self.frames.seal_initial();
    }

    pub(super) fn transport(&self) -> &T {
        &self.transport
    }

    pub(super) fn address(&self) -> Address {
        self.listener.address()
    }

    pub(super) fn table(&self) -> &Table {
        &self.config.table
    }

    /// Takes peers in, notices who is gone. `clock` is where a new worker begins, or later if it has been further; one
    /// worker at a time, since the next may begin elsewhere once this one is in.
    pub(super) fn poll(&mut self, now: Instant, clock: Clock, events: &mut Vec<ShardEvent>) -> bool {
        let before = events.len();
        if now - self.greeted >= GREET_EVERY {
            while events.len() == before {
                let Some(incoming) = self.listener.poll(now) else {
                    self.greeted = now;
                    break;
                };
                self.greet(incoming, now, clock, events);
            }
        }
        if now - self.beaten >= CHECK_EVERY {
            self.beats += 1;
            self.beaten = now;
            self.frames.beat(self.beats);
            self.answering
                .retain_mut(|(endpoint, since)| endpoint.check().is_ok() && now - *since < HANDSHAKE_TIMEOUT);
            for peer in 0..self.peers.len() as u16 {
                if let Some(departure) = self.departure(peer, now) {
                    self.dismiss(peer, departure, events);
                }
            }
        }
        events.len() > before
    }

    /// Stands back after a poll that got nowhere, for `at_most`. Who has something under way that nobody announces
    /// (`is_busy`) does not sleep.
    pub(super) fn stand_back(&mut self, is_busy: bool, at_most: Duration, backoff: &mut Backoff) {
        let is_pushing = || {
            self.peers
                .iter()
                .flatten()
                .any(|peer| peer.push.as_ref().is_some_and(|push| push.source().is_some()))
        };
        if self.is_notified && !is_busy && !is_pushing() {
            self.listener.wait(at_most.min(CHECK_EVERY));
        } else {
            backoff.wait();
        }
    }

    /// Whether a peer is gone, as far as its connection and its heartbeat tell.
    fn departure(&mut self, peer: u16, now: Instant) -> Option<Departure> {
        let lease = self.config.options.lease;
        let peer = self.peers[usize::from(peer)].as_mut()?;
        let heartbeat = peer.desk.heartbeat();
        if heartbeat != peer.heartbeat {
            peer.heartbeat = heartbeat;
            peer.heard = now;
        }
        if now - peer.checked >= CHECK_EVERY {
            peer.checked = now;
            if let Err(gone) = peer.endpoint.check() {
                return Some(Departure::Closed(gone));
            }
        }
        (now - peer.heard > lease).then_some(Departure::Silent)
    }

    /// Lets a peer go: its pins, slots and what it published without being applied are void.
    pub(super) fn dismiss(&mut self, peer: u16, departure: Departure, events: &mut Vec<ShardEvent>) {
        let Some(gone) = self.peers[usize::from(peer)].take() else { return };
        self.frames.close_line(peer);
        self.misbehaved += u64::from(matches!(departure, Departure::Misbehaved(_)));
        match departure {
            Departure::Closed(_) => tracing::info!(peer, reason = %departure, "peer left"),
            _ => tracing::warn!(peer, reason = %departure, "peer evicted"),
        }
        events.push(ShardEvent::Left { peer, worker: gone.worker });
    }

    pub(super) fn is_pinned(peers: &[Option<Peer<T::Endpoint>>], frame: u8) -> bool {
        peers.iter().flatten().any(|peer| {
            peer.desk.pins(frame) || peer.push.as_ref().is_some_and(|push| push.source() == Some(frame))
        })
    }

    fn greet(
        &mut self,
        incoming: <T::Listener as Listener>::Incoming,
        now: Instant,
        clock: Clock,
        events: &mut Vec<ShardEvent>,
    ) {
        let received = incoming.received();
        let hello = match Hello::decode(&received.message, &received.grants) {
            Ok(hello) => hello,
            Err(error) => return self.refuse(incoming, &error.to_string()),
        };
        if hello.role == Role::Inquirer {
            if self.answering.len() >= MAX_PENDING_HANDSHAKES {
                return self.refuse(incoming, "too many ask at once; try again");
            }
            let message = self.welcome(0, clock, None).encode();
            match incoming.accept(Offer { message, grants: Vec::new() }) {
                Ok(endpoint) => self.answering.push((endpoint, now)),
                Err(error) => tracing::debug!(%error, "an inquirer went away"),
            }
            return;
        }
        let grants = received.grants.clone();
        let clock = match &hello.resume {
            Some(resume) if resume.clock.0.saturating_sub(clock.0) > Resume::AHEAD_MAX => {
                let reason = format!("its clock {} is too far ahead of {}", resume.clock.0, clock.0);
                return self.refuse(incoming, &reason);
            }
            // Clocks name iterations: whoever waits for this one's would wait for ever for those that it has done.
            Some(resume) => clock.max(resume.clock),
            None => clock,
        };
        match self.admit(&hello, clock) {
            Err(reason) => self.refuse(incoming, &reason),
            Ok((peer, desk, slots)) => {
                self.frames.open_line(peer, clock, self.generations);
                let message = self.welcome(peer, clock, slots).encode();
                let mut offer = Offer { message, grants: Vec::with_capacity(4) };
                offer.grants.push(self.frames.control().whole());
                offer.grants.push(self.frames.region().whole());
                offer.grants.extend(desk.grants());
                match incoming.accept(offer) {
                    Err(error) => {
                        tracing::warn!(%error, "a peer went away during its handshake");
                        self.frames.close_line(peer);
                    }
                    Ok(endpoint) => {
                        let push = hello.push.map(|grant| Push::new(grants[0], grants[1], grant));
                        let worker = matches!(hello.role, Role::Worker { .. });
                        let heartbeat = desk.heartbeat();
                        let (heard, checked, wants_push, generation) = (now, now, false, self.generations);
                        self.peers[usize::from(peer)] = Some(Peer {
                            endpoint,
                            desk,
                            worker,
                            began: clock,
                            generation,
                            push,
                            wants_push,
                            heartbeat,
                            heard,
                            checked,
                        });
                        tracing::info!(peer, worker, clock = clock.0, "peer joined");
                        if let Some(resume) = &hello.resume {
                            self.note_lost(resume);
                        }
                        events.push(ShardEvent::Joined { peer, worker, clock });
                    }
                }
            }
        }
    }

    /// A worker that comes back from another life tells how far that one had come.
    fn note_lost(&mut self, resume: &Resume) {
        if resume.epoch == self.frames.epoch() {
            return;
        }
        let lost = self.begun_at.behind(resume.version);
        if lost > self.lost_updates.unwrap_or(0) {
            tracing::warn!(
                updates = lost,
                seen = resume.version.0,
                begun_at = self.begun_at.0,
                "updates of the life before this one are lost"
            );
        }
        self.lost_updates = self.lost_updates.max(Some(lost));
    }

    fn refuse(&mut self, incoming: <T::Listener as Listener>::Incoming, reason: &str) {
        self.refused += 1;
        tracing::warn!(reason, "peer refused");
        incoming.refuse(reason);
    }

    /// Makes room for a peer, or says why not.
    fn admit(&mut self, hello: &Hello, clock: Clock) -> Result<(u16, Desk, Option<SlotGeometry>), String> {
        let peer = self.peers.iter().position(Option::is_none);
        let peer = peer.ok_or_else(|| format!("all {} places are taken; raise `peers`", self.peers.len()))?;
        if let Some(push) = &hello.push
            && push.geometry != *self.frames.geometry()
        {
            return Err("the frames it wants pushed to have another geometry than the shard's".into());
        }
        let slots = match (&hello.role, &self.config.scheme) {
            (Role::Worker { .. }, None) => {
                return Err("this is a publisher: it takes readers, not workers".into());
            }
            (Role::Worker { encoding, scheme }, Some(ours)) => {
                if scheme != ours {
                    return Err(format!("the worker runs {scheme}, the server {ours}: use one scheme"));
                }
                if ours.pushes() && hello.push.is_none() {
                    return Err(format!("{ours} pushes versions, and the worker grants nothing to push to"));
                }
                if let Some(other) = self.encoding()
                    && other != *encoding
                {
                    return Err(format!(
                        "its gradients are {encoding:?}, those of the other workers {other:?}: use one encoding"
                    ));
                }
                Some(self.slot_geometry(*encoding, ours.slots()))
            }
            _ => None,
        };
        let desk = self.desk(slots, clock).map_err(|error| format!("no memory for another peer: {error}"))?;
        self.generations = self.generations.wrapping_add(1);
        Ok((peer as u16, desk, slots))
    }

    fn desk(&self, slots: Option<SlotGeometry>, clock: Clock) -> Result<Desk, Error> {
        let count = slots.map_or(0, |slots| slots.slots);
        let page_access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let page = self.transport.allocate(Desk::page_bytes(count), page_access)?;
        let slots = slots
            .map(|geometry| -> Result<(MemoryRegion, SlotGeometry), Error> {
                // Payloads only: their headers, and what announces them, are on the peer's page.
                let access = Access::REMOTE_WRITE | Access::RELAXED;
                Ok((self.transport.allocate(geometry.bytes() as usize, access)?, geometry))
            })
            .transpose()?;
        Ok(Desk::new(page, slots, clock))
    }

    /// What the workers that are in have agreed to publish.
    fn encoding(&self) -> Option<ElementType> {
        self.peers.iter().flatten().find_map(|peer| Some(peer.desk.slot_geometry()?.encoding))
    }

    fn slot_geometry(&self, encoding: ElementType, slots: u16) -> SlotGeometry {
        let geometry = self.frames.geometry();
        let (elements, chunk_elements) = (geometry.payload_bytes / 4, geometry.chunk_bytes / 4);
        SlotGeometry { slots, encoding, elements, chunk_elements }
    }

    fn welcome(&self, peer: u16, clock: Clock, slots: Option<SlotGeometry>) -> Welcome {
        Welcome {
            epoch: self.frames.epoch(),
            peer,
            generation: self.generations,
            clock,
            table: self.config.table.clone(),
            shard: self.config.shard,
            shards: self.config.shards,
            layout: *self.frames.layout(),
            geometry: *self.frames.geometry(),
            slots,
            lease_ns: u64::try_from(self.config.options.lease.as_nanos()).unwrap_or(u64::MAX),
            scheme: self.config.scheme,
        }
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }
}

/// A number that no other life of any server has.
fn random_epoch() -> Epoch {
    getrandom::u64().unwrap_or_else(|error| {
        tracing::warn!(%error, "no random source: the epoch is taken from the clock");
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_nanos() as u64 ^ u64::from(std::process::id()) << 48
    })
}
