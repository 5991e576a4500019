//! A peer's side of one shard: its connection, its pull, its publish, and the state of its own line.

mod meeting;
mod pinned;
mod probing;

use std::sync::Arc;

pub use self::pinned::PinnedFrame;
use self::probing::{Line, Probe};
use super::Error;
use super::heartbeat::Heartbeat;
use super::idle::Sleeper;
use super::runtime::Runtime;
use super::wait::WaitTurn;
use crate::clock::{Clock, Version};
use crate::mem::{Access, LocalSlice, MemoryRegion, OutOfBounds, RemoteKey, RemoteSlice};
use crate::param::{
    ControlLayout, DELTA_TAG, DeltaPull, DeltaSource, Eviction, FrameSource, PULL_TAG, PeerHello, PeerRole,
    Pins, Publish, PublishError, Pull, PullError, PullOptions, Pulled, PushGrant, QueueTicket,
    RETRIES_BEFORE_PIN, SleepWord, Welcome, WorkerProgress, own_page, own_words,
};
use crate::scheme::Bound;
use crate::time::{Duration, Instant};
use crate::transport::{
    Address, CompletionError, Disconnected, Doorbell, Endpoint, Flags, Inline, LocalEndpoint, Operation,
    PostError, Received, Transport, WorkRequest,
};

/// The peer that joins an owner.
pub(super) struct NewPeer {
    pub(super) role: PeerRole,
    pub(super) wants_push: bool,
    /// The doorbell at which it sleeps while it waits, if it sleeps.
    pub(super) doorbell: Option<Arc<Doorbell>>,
    /// Its ticket, if it asks again where there is no room.
    pub(super) ticket: Option<QueueTicket>,
}

impl From<PeerRole> for NewPeer {
    fn from(role: PeerRole) -> NewPeer {
        NewPeer { role, wants_push: false, doorbell: None, ticket: None }
    }
}

/// A connection to the owner of one shard.
pub(super) struct Link<E: Endpoint> {
    pub(super) endpoint: E,
    pub(super) address: Address,
    pub(super) welcome: Welcome,
    pub(super) pull: Pull,
    /// The differences that the owner keeps, and the state machine that reads them once there is a use for it.
    delta_source: Option<DeltaSource>,
    pub(super) deltas: Option<DeltaPull>,
    pub(super) publish: Option<Publish>,
    pub(super) pins: Option<Pins>,
    /// The means by which the owner wakes this peer, if it sleeps while it waits.
    pub(super) sleeper: Option<Sleeper>,
    /// The memory that versions are pushed to, and the state machine that reads them there.
    pushed: Option<(LocalEndpoint, Pull)>,
    /// The newest knowledge of this peer's own line.
    pub(super) line: Line,
    probe: Probe,
    held: HeldMessage,
    answers: u64,
    /// The number of answers that there are once the last question of [`ask_again`](Self::ask_again) is answered.
    awaited: u64,
    _heartbeat: Heartbeat,
    runtime: Runtime,
    probed: Instant,
    failed: Option<Disconnected>,
}

/// The message to the owner that names the version this peer holds.
struct HeldMessage {
    page: RemoteSlice,
    /// The version to be named, once the message before it has arrived.
    version: Option<Version>,
    /// The newest version that was to be named.
    newest: Version,
    outstanding: bool,
}

const PROBE_TAG: u64 = 1 << 60;
const HELD_TAG: u64 = 1 << 59;
pub(super) const SLEEP_TAG: u64 = 1 << 56;
const LINE_BYTES: usize = 64;

/// Steps of the state machines in one turn: enough for any pull that is not disturbed, few enough that a writer
/// that keeps disturbing it cannot hold a caller past its deadline.
const STEPS_PER_TURN: usize = 64;

impl<E: Endpoint> Link<E> {
    /// Connects within `timeout`. A worker that wants pushes asks first how large the frames are, so as to grant
    /// frames of its own when it then connects.
    pub(super) async fn connect<T: Transport<Endpoint = E>>(
        transport: &T,
        address: &Address,
        peer: NewPeer,
        resume: Option<WorkerProgress>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let runtime = Runtime::of(transport);
        let deadline = runtime.now() + timeout;
        let NewPeer { role, wants_push, doorbell, ticket } = peer;
        let (push, grants) = if wants_push {
            let welcome = Self::ask(transport, address, timeout).await?;
            let layout = ControlLayout { peers: 0, frames: welcome.geometry.frames };
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
            let control = transport.allocate(layout.bytes(), access)?;
            // Payloads only, and yet not relaxed: they come after the mark on the control page that warns of them.
            let frames = transport.allocate(welcome.geometry.bytes() as usize, access)?;
            Pull::clear(&control);
            (Some(PushGrant { layout, geometry: welcome.geometry }), vec![control, frames])
        } else {
            (None, Vec::new())
        };
        let offered = grants.iter().map(MemoryRegion::whole).collect();
        let (endpoint, received, welcome) = Self::shake_hands(
            transport,
            address,
            PeerHello { role, push, resume, sleeps: doorbell.is_some(), ticket },
            (offered, doorbell.as_ref()),
            deadline,
            timeout,
        )
        .await?;
        let scratch = transport
            .allocate(Pull::SCRATCH_BYTES + Publish::SCRATCH_BYTES + 2 * LINE_BYTES, Access::LOCAL)?;
        let mut link = Self::assemble(runtime, endpoint, address.clone(), received, welcome, &scratch)?;
        if let Some(doorbell) = doorbell {
            link.sleeper = Some(Sleeper::new(doorbell, SleepWord::new(&link.held.page)?));
        }
        if let (Some(grant), [control, frames]) = (push, &grants[..]) {
            link.pushed = Some(Self::watch(&link, grant, control, frames, transport)?);
        }
        Ok(link)
    }

    fn assemble(
        runtime: Runtime,
        mut endpoint: E,
        address: Address,
        received: Received,
        welcome: Welcome,
        scratch: &MemoryRegion,
    ) -> Result<Self, Error> {
        let grants = &received.grants;
        let source =
            FrameSource::new(&welcome, grants).ok_or(OutOfBounds { offset: 0, len: 2, available: 0 })?;
        let mut pull = Pull::new(source, scratch)?;
        pull.limit_batch(runtime.batch(u64::MAX));
        pull.map(&endpoint);
        let delta_source = DeltaSource::new(&welcome, grants)?;
        let publish_scratch = scratch.slice(Pull::SCRATCH_BYTES, Publish::SCRATCH_BYTES)?;
        let publish = Publish::new(&welcome, grants, publish_scratch)?;
        let words = own_words(&welcome, grants)?;
        let pins = Pins::new(&endpoint, &source, &words.page).ok();
        pull.pin_by(own_page::pin(&words.page)?, pins.as_ref().is_some_and(Pins::are_on_host));
        let held =
            HeldMessage { page: words.page, version: None, newest: Version::new(0), outstanding: false };
        let probe = Probe {
            mapped: endpoint.map(&words.line),
            line: words.line,
            status: words.status,
            scratch: scratch.slice(Pull::SCRATCH_BYTES + Publish::SCRATCH_BYTES, 2 * LINE_BYTES)?,
            outstanding: 0,
        };
        let lease = Duration::from_nanos(welcome.lease_ns);
        endpoint.allow_silence(lease);
        let heartbeat = own_page::heartbeat(&words.page)?;
        let shard = welcome.shard;
        let heartbeat_word =
            endpoint.heartbeat_word(&heartbeat).map_err(|source| Error::Post { shard, source })?;
        let heartbeat = Heartbeat::start(&runtime, heartbeat_word, lease)?;
        let line = Line::default();
        let (pushed, failed, probed) = (None, None, runtime.now());
        Ok(Link {
            endpoint,
            address,
            welcome,
            pull,
            delta_source,
            deltas: None,
            publish,
            pins,
            sleeper: None,
            pushed,
            line,
            probe,
            held,
            answers: 0,
            awaited: 0,
            _heartbeat: heartbeat,
            runtime,
            probed,
            failed,
        })
    }

    /// Returns the state machine that reads the frames which this peer granted for pushing.
    fn watch<T: Transport>(
        link: &Link<E>,
        grant: PushGrant,
        control: &MemoryRegion,
        frames: &MemoryRegion,
        transport: &T,
    ) -> Result<(LocalEndpoint, Pull), Error> {
        let mut endpoint = LocalEndpoint::new(16);
        let (control_key, frames_key) = (RemoteKey(1), RemoteKey(2));
        endpoint.attach(control_key, control.clone(), Access::REMOTE_READ);
        endpoint.attach(frames_key, frames.clone(), Access::REMOTE_READ);
        let whole = |key, region: &MemoryRegion| RemoteSlice { key, offset: 0, len: region.len() as u64 };
        let source = FrameSource {
            control: whole(control_key, control),
            frames: whole(frames_key, frames),
            layout: grant.layout,
            geometry: grant.geometry,
            epoch: link.welcome.epoch,
        };
        let scratch = transport.allocate(Pull::SCRATCH_BYTES, Access::LOCAL)?;
        let mut pull = Pull::new(source, &scratch)?;
        pull.map(&endpoint);
        Ok((endpoint, pull))
    }

    /// Begins to bring a copy: out of the pushed frames where there are some, else by pulling.
    pub(super) fn start_refresh(
        &mut self,
        bound: Bound,
        into: LocalSlice,
        options: PullOptions,
    ) -> Result<(), Error> {
        let shard = self.welcome.shard;
        let pull = self.pushed.as_mut().map_or(&mut self.pull, |(_, pull)| pull);
        pull.start(bound, into, options).map_err(|source| Error::Pull { shard, source })
    }

    /// The state machine that reads the owner's differences, if it keeps any.
    pub(super) fn deltas<T: Transport>(&mut self, transport: &T) -> Result<Option<&mut DeltaPull>, Error> {
        if let (Some(source), None) = (&self.delta_source, &self.deltas) {
            let memory = transport.allocate(source.memory_bytes(), Access::LOCAL)?;
            self.deltas = Some(DeltaPull::new(*source, &memory)?);
        }
        Ok(self.deltas.as_mut())
    }

    /// Returns whether the owner keeps differences.
    pub(super) fn has_deltas(&self) -> bool {
        self.delta_source.is_some()
    }

    /// Gives up a pull, and tells the owner so if it was pinned.
    pub(super) fn cancel_pull(&mut self) {
        self.pull.cancel();
        if let Some(deltas) = &mut self.deltas {
            deltas.cancel();
        }
        if let Err(error) = self.advance() {
            tracing::debug!(%error, "a pull was given up, and its connection is gone");
        }
    }

    /// The pull that `start_refresh` began.
    pub(super) fn refreshing(&mut self) -> &mut Pull {
        self.pushed.as_mut().map_or(&mut self.pull, |(_, pull)| pull)
    }

    /// Gradients of clocks before this one are announced to this owner.
    pub(super) fn published(&self) -> Clock {
        self.publish.as_ref().map_or(self.welcome.clock, Publish::clock)
    }

    /// Has pulls from now on say which of this peer's gradients their frames hold.
    pub(super) fn ask_included(&mut self) -> Result<(), Error> {
        self.pull.ask_included(Some(self.welcome.peer))?;
        if let Some((_, pull)) = &mut self.pushed {
            pull.ask_included(None)?;
        }
        Ok(())
    }

    /// Tells the owner that this peer holds `version`, as soon as the queue has room, unless it has said so of a newer
    /// one.
    pub(super) fn say_held(&mut self, version: Version) {
        if version >= self.held.newest {
            (self.held.version, self.held.newest) = (Some(version), version);
        }
    }

    /// Tells the owner that this peer holds `version`: now if the queue has room, else as soon as it has.
    pub(super) fn tell_held(&mut self, version: Version) -> Result<(), Error> {
        self.say_held(version);
        self.advance_held().map(drop)
    }

    fn advance_held(&mut self) -> Result<bool, Error> {
        let (Some(version), false) = (self.held.version, self.held.outstanding) else { return Ok(false) };
        let (remote, word) = own_page::held(&self.held.page, version)?;
        let operation = Operation::WriteInline { data: Inline::word(word), remote };
        let mut request = WorkRequest::signalled(HELD_TAG, operation);
        request.flags |= Flags::NOTIFY;
        match self.endpoint.post(&[request]) {
            Ok(()) => (self.held.version, self.held.outstanding) = (None, true),
            Err(PostError::QueueFull { .. }) => return Ok(false),
            Err(PostError::Disconnected(gone)) => return Err(self.lost(gone)),
            Err(source) => return Err(Error::Post { shard: self.welcome.shard, source }),
        }
        Ok(true)
    }

    /// The version that this peer is to compute on, or a later one, as far as is known; never waits. Where the owner's
    /// memory is mapped this is a load. Elsewhere it is the result of the last read, and the call begins the next read
    /// if none is under way.
    pub(super) fn interrupt(&mut self) -> Result<Version, Error> {
        if let Some(line) = &self.probe.mapped {
            return Ok(own_page::load_interrupt(&line.as_volatile()));
        }
        self.probe()?;
        self.advance()?;
        Ok(self.line.interrupt)
    }

    /// True while an operation is under way whose end sends no wake-up: a request (except the one that tells the owner
    /// of a sleep), a gradient that is being written, or a copy of a frame that is being written.
    pub(super) fn is_at_work(&self) -> bool {
        let is_at_work = |pull: &Pull| pull.is_in_flight() || pull.landed().is_some();
        let pushed = self.pushed.as_ref().map(|(_, pull)| pull);
        self.publish.as_ref().is_some_and(Publish::is_at_work)
            || self.held.outstanding
            || self.is_probing()
            || self.deltas.as_ref().is_some_and(DeltaPull::is_in_flight)
            || std::iter::once(&self.pull).chain(pushed).any(is_at_work)
    }

    /// The outcome of a turn that did not end a wait for this owner.
    pub(super) fn turn<R>(&self, progress: bool) -> WaitTurn<R> {
        let is_asked = || {
            let deltas = self.deltas.as_ref().is_some_and(DeltaPull::is_in_flight);
            deltas || self.pull.is_in_flight() || self.is_probing()
        };
        match progress {
            true => WaitTurn::Progress,
            false if self.pull.is_lapped() => WaitTurn::Lapped,
            false if self.pull.keeps_up() => WaitTurn::KeepsUp,
            false if is_asked() => WaitTurn::Asked,
            false => WaitTurn::Idle,
        }
    }

    /// True if copies come out of this process's own memory.
    pub(super) fn is_pushed(&self) -> bool {
        self.pushed.is_some()
    }

    /// Moves everything on as far as it goes without waiting. True if it got anywhere: looking once more at something
    /// that has not changed does not count.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        let before = self.gains();
        self.step()?;
        Ok(self.gains() != before)
    }

    fn gains(&self) -> u64 {
        let pushed = self.pushed.as_ref().map_or(0, |(_, pull)| pull.gains());
        let publish = self.publish.as_ref().map_or(0, Publish::gains);
        let deltas = self.deltas.as_ref().map_or(0, DeltaPull::gains);
        self.pull.gains() + deltas + pushed + publish
    }

    /// The number of times that the pulls under way were begun again.
    fn retries(&self) -> u64 {
        self.pull.retries() + self.pushed.as_ref().map_or(0, |(_, pull)| pull.retries())
    }

    fn step(&mut self) -> Result<(), Error> {
        let shard = self.welcome.shard;
        let retries = self.retries();
        for _ in 0..STEPS_PER_TURN {
            let mut progress = false;
            if let Some((endpoint, pull)) = &mut self.pushed {
                progress |= pull.advance(endpoint).map_err(|source| Error::Pull { shard, source })?;
                while let Some(completion) = endpoint.poll() {
                    progress = true;
                    pull.complete(completion);
                }
            }
            progress |= self.advance_held()?;
            progress |= self.rescue()?;
            let deltas = self.deltas.as_mut().map_or(Ok(false), |deltas| deltas.advance(&mut self.endpoint));
            match deltas.and_then(|read| Ok(read | self.pull.advance(&mut self.endpoint)?)) {
                Ok(stepped) => progress |= stepped,
                Err(PullError::Disconnected(gone)) => return Err(self.lost(gone)),
                Err(PullError::Completion(error)) if is_loss(error) => return Err(self.lost_with_requests()),
                Err(source) => return Err(Error::Pull { shard, source }),
            }
            if let Some(publish) = &mut self.publish {
                match publish.advance(&mut self.endpoint) {
                    Ok(stepped) => progress |= stepped,
                    Err(PublishError::Disconnected(gone)) => return Err(self.lost(gone)),
                    Err(PublishError::Completion(error)) if is_loss(error) => {
                        return Err(self.lost_with_requests());
                    }
                    Err(PublishError::Evicted { why }) => {
                        self.line.evicted = Some(why);
                        return Err(Error::Evicted { shard, why });
                    }
                    Err(source) => return Err(Error::Publish { shard, source }),
                }
            }
            while let Some(completion) = self.endpoint.poll() {
                progress = true;
                if completion.id.0 & PULL_TAG != 0 {
                    self.pull.complete(completion);
                } else if completion.id.0 & HELD_TAG != 0 {
                    self.held.outstanding = false;
                } else if completion.id.0 & SLEEP_TAG != 0 {
                    self.sleeper.iter_mut().for_each(Sleeper::is_told);
                } else if completion.id.0 & DELTA_TAG != 0 {
                    if let Some(deltas) = &mut self.deltas {
                        deltas.complete(completion);
                    }
                } else if completion.id.0 & PROBE_TAG != 0 {
                    self.probe.outstanding = self.probe.outstanding.saturating_sub(1);
                    if completion.result.is_ok() && self.probe.outstanding == 0 {
                        self.learn();
                    }
                } else if let Some(publish) = &mut self.publish {
                    publish.complete(completion);
                }
            }
            // A copy that was lapped is begun again with the next turn, once the caller has looked at its deadline:
            // where memory is mapped, one step makes a whole copy.
            if !progress || self.retries() > retries {
                break;
            }
        }
        Ok(())
    }

    /// Holds the frame still for a pull that a fast writer has lapped again and again, where memory is shared.
    fn rescue(&mut self) -> Result<bool, Error> {
        if self.pull.retries() < RETRIES_BEFORE_PIN {
            return Ok(false);
        }
        let pins = self.pins.as_mut().filter(|pins| pins.are_on_host());
        let (Some((into, bound)), Some(pins)) = (self.pull.wanted(), pins) else { return Ok(false) };
        let (into, shard) = (into.clone(), self.welcome.shard);
        let held = pins.hold(bound).map_err(|source| Error::Pin { shard, source })?;
        let (Some(pulled), Some(bytes)) = (held, pins.bytes()) else { return Ok(false) };
        // The bytes of an earlier copy are overwritten, also if this copy turns out to be of no version.
        self.pull.take_partial();
        self.pull.copy_out(bytes, into.as_volatile());
        let label = pins.label().unwrap_or_default();
        let asked = self.pull.asks_included();
        let included = asked.then(|| pins.included(self.welcome.peer)).flatten();
        // A process that was stopped for longer than its lease has lost the pin meanwhile.
        let intact = pins.is_intact();
        let behind = pulled.version.behind(pins.newest());
        pins.release();
        if intact {
            self.pull.set_label(label);
            self.pull.finish(Pulled { behind, included, ..pulled });
        }
        Ok(intact)
    }

    /// The loss of the server, for requests that failed because the connection did, which knows the reason.
    fn lost_with_requests(&mut self) -> Error {
        let gone = self.endpoint.check().err();
        self.lost(gone.unwrap_or(Disconnected { reason: "its requests were flushed" }))
    }

    fn lost(&mut self, source: Disconnected) -> Error {
        let source = self.failed.get_or_insert(source).clone();
        self.pull.unmap();
        let Welcome { shard, shards, generation, .. } = self.welcome;
        // An owner that lets a peer go says so in its line and then closes the connection. The last look at the line
        // may have been before that.
        let mapped = || {
            let line = self.probe.mapped.as_ref()?;
            own_page::read_line(&line.as_volatile(), generation).evicted
        };
        let closed = || self.endpoint.close_code().and_then(Eviction::of);
        if let Some(why) = self.line.evicted.or_else(mapped).or_else(closed) {
            return Error::Evicted { shard, why };
        }
        Error::ServerLost { shard, shards, address: self.address.clone(), source }
    }

    /// Returns the memory of the slot that `publish` reserved, if it is mapped.
    pub(super) fn borrowed_slot(&self) -> Option<LocalSlice> {
        let remote = self.publish.as_ref()?.reserved()?;
        self.endpoint.map(&remote).filter(|slot| slot.as_volatile().is_writable())
    }
}

/// Whether a request failed because the peer is gone, and not because the request is wrong. The first request that a
/// device gives up completes as unreachable, and the requests behind it are flushed.
fn is_loss(error: CompletionError) -> bool {
    matches!(error, CompletionError::Flushed | CompletionError::Unreachable)
}
