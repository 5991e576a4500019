//! The worker: reads parameters, publishes gradients, to all shards at once, as its scheme says.

mod background;
mod decide;
#[cfg(feature = "cuda")]
mod gpu;
mod host;
mod join;
mod options;
mod own;
mod part;
mod publish;
mod reconnect;
mod step;

pub(crate) use host::check_scheme_of_host;
pub use options::{ReadMode, WorkerOptions};
use own::OwnGradients;
use part::{Part, ask_included};
use publish::Sources;
pub use step::Step;

use super::copies::Copies;
use super::idle;
use super::link::PinnedFrame;
use super::runtime::{Runtime, complete};
use super::shard::random_word;
use super::wait::{WaitTurn, wait};
use super::{Awaited, Error, LinkStatus, WorkerStatistics};
use crate::clock::{Clock, Version};
use crate::mem::{Access, Buffer, CallerMemory};
use crate::param::Epoch;
use crate::scheme::{AnyScheme, Bound, Needs, WorkerEvent, WorkerScheme};
use crate::table::Table;
use crate::time::{Duration, Instant};
use crate::transport::{Address, Endpoint, RegisterError, Transport};

/// The parameters that a worker computes on next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The worker's clock: the gradient belongs to it.
    pub clock: Clock,
    /// Version of the parameters; over several shards, the smallest.
    pub version: Version,
    /// They hold all gradients of clocks before this one; over several shards, the smallest.
    pub smallest_clock: Clock,
    /// Number of versions by which they were behind the newest when they were read (pushed ones: behind the newest
    /// that was pushed); over several shards, the most.
    pub behind: u64,
    /// Number of copies that were begun again because a frame changed under them, since the last view.
    pub retries: u64,
}

impl View {
    /// Returns the number of clocks by which the parameters are stale.
    pub fn staleness(&self) -> u64 {
        self.clock.get().saturating_sub(self.smallest_clock.get())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorkerPhase {
    /// Ask the scheme.
    Deciding,
    /// Copies are being brought.
    Refreshing { bound: Bound },
    /// The user computes.
    Computing,
    /// The gradient is being written.
    Publishing,
    /// There are no connections: a `reconnect` failed.
    Apart,
}

const APART: &str = "the last `reconnect` failed: call it again";

/// Turns of the state machines in one poll, before its caller has its turn: where each copy comes at once, a scheme
/// that answers each with a refresh would never give it one.
const TURNS: usize = 8;

/// Reads parameters and publishes gradients.
///
/// One clock is one [`Step`]: [`step`](Self::step) waits for the parameters, the user computes a gradient from them,
/// and [`Step::publish`] consumes the step. [`Server`](super::Server) has an example.
pub struct Worker<T: Transport> {
    parts: Vec<Part<T>>,
    scheme: Box<dyn WorkerScheme>,
    /// The scheme of the servers, and its needs.
    kind: AnyScheme,
    needs: Needs,
    options: WorkerOptions,
    table: Table,
    parameters: Option<Buffer>,
    gradient: Option<Buffer>,
    /// The gradient that is on its way while the next one is computed, and its memory afterwards.
    other_gradient: Option<Buffer>,
    /// The gradient of the last clock is on its way, and the clock has moved on.
    outgoing: bool,
    /// The gradient lies in memory of the caller's.
    is_callers_gradient: bool,
    /// Copies of GPUs out of the parameters and into the gradient.
    copies: Copies,
    /// The owners were asked, behind all published gradients, whether this worker is still in: a flush waits for that.
    asks_last: bool,
    /// The magnitude of the gradient that is being published.
    magnitude: Option<f32>,
    /// Workers beside this one whose gradients are in the sum that is being published.
    others: u32,
    own: Option<OwnGradients>,
    /// The wishes of the scheme: magnitudes, and to be told which version this worker holds.
    pub(super) measures_magnitude: bool,
    pub(super) reports_reads: bool,
    transport: T,
    runtime: Runtime,
    /// Names this worker to the servers, over all its connections.
    identity: u64,
    clock: Clock,
    /// For each shard, while there is no connection to it: the incarnation that was connected to last, and its newest
    /// version.
    reached: Vec<(Epoch, Version)>,
    /// The scheme was told that gradients of clocks before this one are consumed.
    consumed: Clock,
    /// Workers that are in, as the scheme was told; 0 before it was.
    members: usize,
    phase: WorkerPhase,
    retries: u64,
    /// This clock's staleness is in the statistics.
    counted: bool,
    statistics: WorkerStatistics,
    computing_since: Option<Instant>,
}

impl<T: Transport> Worker<T> {
    /// Connects to the servers of all shards, in any order of theirs, within `timeout`.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Handshake`]: a server was not reached within `timeout`, refuses this worker, or
    /// cannot be understood. [`Error::Deadline`]: one accepted the connection and did not answer, or the shards came to
    /// no common clock. [`Error::Shards`]: no server was given, or they do not hold the shards of one table, each once.
    /// [`Error::SchemeConfig`]: this process cannot make the servers' scheme. [`Error::Scheme`], [`Error::Option`],
    /// [`Error::Pin`]: the options do not go with the scheme or with the servers' memory. [`Error::Register`]: memory
    /// could not be had.
    pub fn connect(
        transport: T,
        servers: &[Address],
        options: WorkerOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        complete(Self::connect_async(transport, servers, options, timeout))
    }

    pub(crate) async fn connect_async(
        transport: T,
        servers: &[Address],
        options: WorkerOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        // A rank has 32 bits, and so no rank is equal to a random name.
        let identity = options.identity.map_or_else(|| random_word() | 1 << 63, u64::from);
        let runtime = Runtime::of(&transport);
        let deadline = runtime.now() + timeout;
        let kind = join::scheme(&transport, servers, &options, timeout).await?;
        let needs = kind.needs();
        let joining = join::JoiningWorker { options: &options, scheme: &kind, identity };
        let links = join::join(&transport, servers, joining, None, deadline - runtime.now()).await?;
        let table = join::check_shards(&links)?;
        join::check_read_mode(&links, &options, &kind)?;
        let clock = join::clock(&links);
        let parameters = match options.read {
            ReadMode::Copy => Some(private(&transport, table.bytes())?),
            ReadMode::InPlace => None,
        };
        let mut parts = Part::of(links, &options, &needs);
        let own = match options.own_step {
            None => None,
            Some(step) => {
                let slots = |part: &Part<T>| part.link.welcome.slots.map_or(0, |slots| slots.slots);
                let slots = parts.iter().map(slots).max().unwrap_or_default();
                let (step, elements) = ((step, options.encoding), table.bytes() / 4);
                Some(OwnGradients::new(&transport, step, elements, needs.staleness, slots)?)
            }
        };
        ask_included(&mut parts, &options)?;
        let mut scheme = kind.worker();
        scheme.handle_event(runtime.now(), WorkerEvent::Joined { clock });
        Ok(Worker {
            parts,
            scheme,
            table,
            parameters,
            gradient: None,
            other_gradient: None,
            outgoing: false,
            is_callers_gradient: false,
            copies: Copies::default(),
            asks_last: false,
            magnitude: None,
            others: 0,
            own,
            measures_magnitude: needs.measures_magnitude,
            reports_reads: needs.reports_reads,
            kind,
            needs,
            transport,
            runtime,
            identity,
            options,
            clock,
            reached: Vec::new(),
            consumed: clock,
            members: 0,
            phase: WorkerPhase::Deciding,
            retries: 0,
            counted: false,
            statistics: WorkerStatistics::new(),
            computing_since: None,
        })
    }

    /// The table that the servers hold.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The scheme that the servers and this worker keep.
    #[doc(hidden)]
    pub fn scheme(&self) -> &AnyScheme {
        &self.kind
    }

    /// The iteration that it is at: its next gradient belongs to it.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the counters and times of the operations and waits so far.
    pub fn statistics(&self) -> &WorkerStatistics {
        &self.statistics
    }

    /// The connections to the servers, in order of their shards.
    #[doc(hidden)]
    pub fn links(&self) -> impl Iterator<Item = LinkStatus> + '_ {
        self.parts.iter().map(|part| LinkStatus {
            shard: part.link.welcome.shard,
            epoch: part.link.welcome.epoch,
            version: part.version,
            peer: part.link.welcome.peer,
            address: part.link.address.clone(),
            transport: part.link.endpoint.transport(),
            gpu_path: part.link.endpoint.gpu_path(),
            bytes_published: part.bytes_published,
            bytes_pulled: part.bytes_pulled,
        })
    }

    /// Brings the parameters for the next gradient, waiting as the scheme says, at most `timeout`. After an
    /// [`Error::Deadline`] it may be called again and goes on where it was.
    ///
    /// # Errors
    /// [`Error::Deadline`]: the scheme still waits, or the copy is not whole yet. [`Error::ServerLost`],
    /// [`Error::Evicted`]: a server is gone, or has let this worker go; [`reconnect`](Self::reconnect).
    /// [`Error::Pull`], [`Error::Pin`], [`Error::Publish`]: a read, or the write of the gradient before, failed.
    /// [`Error::SchemeConfig`]: the scheme gave up. [`Error::OutOfTurn`]: there is no connection after a `reconnect`
    /// that failed.
    pub fn step(&mut self, timeout: Duration) -> Result<Step<'_, T>, Error> {
        complete(self.step_async(timeout))
    }

    pub(crate) async fn step_async(&mut self, timeout: Duration) -> Result<Step<'_, T>, Error> {
        let deadline = self.runtime.now() + timeout;
        if self.phase == WorkerPhase::Publishing {
            self.finish_publish("publishing the gradient of the step before", timeout).await?;
        }
        // The loss of a server is also reported where there is nothing to wait for.
        let computing = |worker: &Self| worker.phase == WorkerPhase::Computing;
        self.wait(deadline - self.runtime.now(), "waiting for parameters", computing).await?;
        let view = self.view();
        // A clock that is begun again counts once.
        if !std::mem::replace(&mut self.counted, true) {
            self.statistics.count_staleness(view.staleness());
        }
        Ok(Step::new(self, view))
    }

    /// Returns to the step that was left by [`Step::suspend`].
    #[doc(hidden)]
    pub fn resume(&mut self) -> Result<Step<'_, T>, Error> {
        match self.phase {
            WorkerPhase::Computing => {
                let view = self.view();
                Ok(Step::new(self, view))
            }
            WorkerPhase::Apart => Err(Error::OutOfTurn { operation: "go on with a step", reason: APART }),
            _ => {
                let reason = "no step is open: begin one first";
                Err(Error::OutOfTurn { operation: "go on with a step", reason })
            }
        }
    }

    /// The bytes of the table that each shard holds, in order.
    #[doc(hidden)]
    pub fn shards(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.parts.iter().map(|part| part.begin..part.begin + part.bytes)
    }

    /// Has this worker copy parameters into memory of the caller's from now on, and take gradients out of it, where
    /// either is given: [`Step::parameters`] and [`Step::gradient`] lend it. The memory is registered here. The
    /// memory for parameters is as long as the [table](Self::table), and the worker's current parameters are copied
    /// there now; the memory for gradients has as many elements in their encoding, and keeps its content.
    ///
    /// During calls of the worker no other code may read or write the parameters, nor a gradient from the moment when
    /// it is published until that has ended. The slices that a step has lent are accessed as Rust allows.
    ///
    /// # Errors
    /// [`Error::OutOfTurn`] while a copy is being brought (after a [`step`](Self::step) that met its deadline), or if
    /// the worker reads parameters in place. The memory has another length, or cannot be registered with the device.
    /// The worker then keeps the memory that it had.
    pub fn use_memory(
        &mut self,
        parameters: Option<CallerMemory>,
        gradient: Option<CallerMemory>,
    ) -> Result<(), Error> {
        let operation = "take other memory";
        if matches!(self.phase, WorkerPhase::Refreshing { .. }) {
            let reason = "parameters are being copied: finish the step first";
            return Err(Error::OutOfTurn { operation, reason });
        }
        if parameters.is_some() && self.parameters.is_none() {
            return Err(Error::OutOfTurn { operation, reason: "this worker reads parameters in place" });
        }
        let buffer = |memory: Option<CallerMemory>, bytes| {
            memory.map(|memory| of_caller(&self.transport, memory, bytes)).transpose()
        };
        let gradient = buffer(gradient, self.gradient_bytes())?;
        if let (Some(mut new), Some(old)) = (buffer(parameters, self.table.bytes())?, &mut self.parameters) {
            let held = old.bytes().ok_or(Error::InFlight { what: "copy of the parameters" })?;
            new.bytes_mut().ok_or(Error::InFlight { what: "memory just registered" })?.copy_from_slice(held);
            *old = new;
        }
        // A gradient that is being published keeps the memory that it is in.
        self.is_callers_gradient |= gradient.is_some();
        self.gradient = gradient.or(self.gradient.take());
        Ok(())
    }

    fn expect_connected(&self, operation: &'static str) -> Result<(), Error> {
        match self.phase {
            WorkerPhase::Apart => Err(Error::OutOfTurn { operation, reason: APART }),
            _ => Ok(()),
        }
    }

    /// Waits, at most `timeout`, until every server has folded in (or dropped) all gradients that this worker has
    /// published or begun to publish.
    ///
    /// # Errors
    /// [`Error::Deadline`]: a gradient was not consumed within `timeout`; call again. Otherwise the errors of
    /// [`step`](Self::step).
    pub fn flush(&mut self, timeout: Duration) -> Result<(), Error> {
        complete(self.flush_async(timeout))
    }

    pub(crate) async fn flush_async(&mut self, timeout: Duration) -> Result<(), Error> {
        let operation = "waiting for the server to apply the last gradients";
        let deadline = self.runtime.now() + timeout;
        self.watch_consumed(true);
        let flushed = self.wait(timeout, operation, |worker| {
            // Each shard counts for itself: a shard that this worker joined late has another clock.
            let consumed =
                |part: &Part<T>| part.link.publish.as_ref().is_none_or(|p| p.consumed() >= p.clock());
            // A gradient that had no time to be announced has no clock yet.
            !worker.is_publishing() && worker.parts.iter().all(consumed)
        });
        let flushed = flushed.await;
        self.watch_consumed(self.needs.waits_for_own);
        flushed?;
        // Did the servers mean this worker? A worker that has slept for longer than its lease may have read the words
        // for its successor; and where reads outlive a server (`docs/protocol.md`, assumption 6), the words of the
        // server's next incarnation. The next call continues this question, if there is no time for its answer here.
        if !self.asks_last {
            self.parts.iter_mut().try_for_each(|part| part.link.ask_again())?;
            self.asks_last = true;
        }
        let is_answered = |worker: &Self| worker.parts.iter().all(|part| part.link.is_answered());
        let answered = self.wait(deadline - self.runtime.now(), operation, is_answered).await;
        self.asks_last = matches!(answered, Err(Error::Deadline { .. }));
        answered
    }

    fn watch_consumed(&mut self, on: bool) {
        for part in &mut self.parts {
            if let Some(publish) = &mut part.link.publish {
                publish.watch_consumed(on);
            }
        }
    }

    /// Pins the newest version of one shard in place if it satisfies `bound`, waiting at most `timeout`; outside of
    /// the scheme, and nothing is copied.
    #[doc(hidden)]
    pub fn pin(&mut self, shard: usize, bound: Bound, timeout: Duration) -> Result<PinnedFrame<'_>, Error> {
        let out_of_turn = |reason| Error::OutOfTurn { operation: "pin", reason };
        if self.options.read == ReadMode::InPlace {
            return Err(out_of_turn("this worker reads in place already: use `Step::in_place`"));
        }
        let out_of_range = out_of_turn("there is no such shard");
        self.parts.get_mut(shard).ok_or(out_of_range).and_then(|part| part.link.pin(bound, timeout))
    }

    async fn wait(
        &mut self,
        timeout: Duration,
        operation: &'static str,
        until: impl Fn(&Self) -> bool,
    ) -> Result<(), Error> {
        let runtime = self.runtime.clone();
        let begun = runtime.now();
        let deadline = begun + timeout;
        let ended = wait(&runtime, deadline, |now| {
            let progress = self.poll(now)?;
            let turn = match until(self) {
                true => WaitTurn::Done(()),
                false => self
                    .parts
                    .iter()
                    .fold(WaitTurn::of(progress), |turn, part| turn.or(part.link.turn(false))),
            };
            let ends = match self.copies.are_done()? {
                true => self.scheme.poll_timeout().map_or(deadline, |timer| timer.min(deadline)),
                // No owner tells of the end of a copy by a GPU.
                false => now,
            };
            let links = self.parts.iter_mut().map(|part| &mut part.link);
            Ok(idle::rest(turn, links, ends.saturating_since(now)))
        });
        let result = match ended.await {
            Ok(Some(())) => Ok(()),
            Ok(None) => {
                self.statistics.timeouts += 1;
                Err(self.deadline(operation, timeout))
            }
            Err(error) => Err(error),
        };
        let ended = runtime.now();
        self.statistics.wait += ended - begun;
        if self.phase == WorkerPhase::Computing && self.computing_since.is_none() {
            self.computing_since = Some(ended);
        }
        result
    }

    /// The error of an operation that has not ended within `waited`: it names the state of the servers.
    #[doc(hidden)]
    pub fn deadline(&mut self, operation: &'static str, waited: Duration) -> Error {
        let needed = match self.phase {
            WorkerPhase::Refreshing { bound } => bound,
            _ => Bound::NONE,
        };
        // The shard that lags most is the one to name.
        let seen = |part: &mut Part<T>| {
            let seen = part.link.refreshing().seen().unwrap_or(Bound::NONE);
            (seen.smallest_clock, seen.version)
        };
        let (smallest_clock, version) = self.parts.iter_mut().map(seen).min().unwrap_or_default();
        let (seen, awaited) = (Bound { version, smallest_clock }, Awaited::Workers);
        Error::Deadline { operation, waited, needed, seen, awaited }
    }

    /// Goes as far as it can without waiting. True if it got anywhere.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step), except its deadline.
    pub fn poll(&mut self, now: Instant) -> Result<bool, Error> {
        self.expect_connected("go on")?;
        let mut progress = false;
        for _ in 0..TURNS {
            // Also while it waits for a copy: new information may have changed the version that it waits for.
            if matches!(self.phase, WorkerPhase::Deciding | WorkerPhase::Refreshing { .. }) {
                progress |= self.decide(now)?;
            }
            let before = self.phase;
            progress |= self.advance(now)?;
            // Once a gradient is out it is for the user to ask for the next parameters.
            if self.phase == before || before == WorkerPhase::Publishing {
                break;
            }
        }
        for part in &mut self.parts {
            part.link.look_around(now)?;
        }
        self.tell_membership(now);
        Ok(progress)
    }

    fn advance(&mut self, now: Instant) -> Result<bool, Error> {
        let mut progress = false;
        for part in &mut self.parts {
            progress |= part.link.advance()?;
        }
        self.tell_consumed(now);
        if self.outgoing && self.has_arrived() {
            self.outgoing = false;
            progress = true;
        }
        match self.phase {
            WorkerPhase::Refreshing { bound } => self.collect_copies(now, bound, &mut progress)?,
            WorkerPhase::Publishing => {
                if self.has_arrived() {
                    self.end_clock(now);
                    progress = true;
                }
            }
            WorkerPhase::Deciding | WorkerPhase::Computing | WorkerPhase::Apart => {}
        }
        Ok(progress)
    }

    fn collect_copies(&mut self, now: Instant, bound: Bound, progress: &mut bool) -> Result<(), Error> {
        for part in self.parts.iter_mut().filter(|part| !part.refreshed) {
            let (shard, bound) = (part.link.welcome.shard, part.bound(bound));
            let pulled = match (self.options.read, &mut part.link.pins) {
                (ReadMode::InPlace, Some(pins)) => {
                    pins.hold(bound).map_err(|source| Error::Pin { shard, source })?
                }
                _ => part.link.refreshing().take(),
            };
            let Some(pulled) = pulled else { continue };
            part.refreshed = true;
            (part.version, part.smallest_clock, part.behind) =
                (pulled.version, pulled.smallest_clock, pulled.behind);
            if let Some(included) = pulled.included {
                part.shows = included.min(part.link.published());
            }
            self.retries += pulled.retries;
            self.statistics.pull_retries += pulled.retries;
            if self.options.read == ReadMode::Copy && !part.link.is_pushed() {
                part.bytes_pulled += part.bytes as u64;
                self.statistics.bytes_pulled += part.bytes as u64;
            }
            *progress = true;
        }
        if self.parts.iter().all(|part| part.refreshed) {
            let is_met = |part: &Part<T>| part.bound(bound).is_met_by(part.version, part.smallest_clock);
            if !self.parts.iter().all(is_met) {
                // It was amended while some shards had come already.
                return self.start_refresh(bound);
            }
            if self.level(bound)? {
                return Ok(());
            }
            let view = self.view_of_parts();
            let (version, smallest_clock) = (view.version, view.smallest_clock);
            if self.reports_reads {
                let is_decided = self.is_decided();
                for part in &mut self.parts {
                    part.link.say_held(if is_decided { version } else { part.version });
                }
            }
            self.scheme.handle_event(now, WorkerEvent::Holds { version, smallest_clock });
            self.phase = WorkerPhase::Deciding;
        }
        Ok(())
    }

    fn view_of_parts(&self) -> View {
        let parts = || self.parts.iter();
        View {
            clock: self.clock,
            version: parts().map(|part| part.version).min().unwrap_or_default(),
            smallest_clock: parts().map(|part| part.smallest_clock).min().unwrap_or_default(),
            behind: parts().map(|part| part.behind).max().unwrap_or_default(),
            retries: self.retries,
        }
    }

    fn view(&mut self) -> View {
        let view = self.view_of_parts();
        self.retries = 0;
        view
    }
}

#[cfg(test)]
impl<T: Transport> Worker<T> {
    /// Says to all servers that it holds `version`, whether it does or not.
    pub(super) fn say_held(&mut self, version: Version) {
        self.parts.iter_mut().for_each(|part| part.link.say_held(version));
    }

    /// Puts another scheme around this worker's.
    pub(super) fn listen(&mut self, around: impl FnOnce(Box<dyn WorkerScheme>) -> Box<dyn WorkerScheme>) {
        let own = std::mem::replace(&mut self.scheme, self.kind.worker());
        self.scheme = around(own);
    }
}

/// Memory of the caller's, which must have so many bytes.
pub(super) fn of_caller<T: Transport>(
    transport: &T,
    memory: CallerMemory,
    bytes: u64,
) -> Result<Buffer, Error> {
    let (memory, expected) = (memory.into_host_memory().map_err(RegisterError::from)?, bytes as usize);
    if memory.len() != expected {
        return Err(Error::Length { given: memory.len(), expected, unit: "bytes" });
    }
    let region = transport.register(memory, Access::LOCAL)?;
    Buffer::new(region).ok_or(Error::InFlight { what: "memory just registered" })
}

/// Memory of this process alone.
pub(super) fn private<T: Transport>(transport: &T, bytes: u64) -> Result<Buffer, Error> {
    let region = transport.allocate(bytes as usize, Access::LOCAL)?;
    Buffer::new(region).ok_or(Error::InFlight { what: "memory just allocated" })
}
