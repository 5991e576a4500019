//! The server: one shard, and the gradients that are folded into it as the scheme says.

mod arrivals;
#[cfg(all(test, feature = "checkpoint"))]
mod bound_tests;
mod driving;
mod finite;
mod folding;
mod follow;
mod host;
mod measured;
mod pushing;
mod restart;
mod status;
mod sums;
mod taken_over;
mod version;

use std::collections::BTreeSet;

use smallvec::SmallVec;

use self::follow::Following;
pub use self::status::{NonFinite, ServerOptions, ServerStatus};
use self::sums::Sums;
use super::checkpoint::{Checkpoint, CheckpointIdentity, Checkpointer};
use super::folder::Folder;
use super::shard::{Shard, ShardConfig, ShardEvent, ShardPeer};
use super::taken::{Applied, Taken};
use super::{Error, PeerStatus, payloads};
use crate::clock::{Clock, Version, WorkerId};
use crate::kernel::{Optimizer, Schedule};
#[cfg(feature = "sim")]
use crate::mem::LocalSlice;
use crate::mem::{Access, VolatileSlice};
use crate::param::PeerInbox;
use crate::scheme::{self, GradientId, ServerAction, ServerScheme, Share};
use crate::table::{ElementType, Encoding, Table};
use crate::time::Instant;
use crate::transport::{Address, Endpoint, PayloadMemory, Transport};

#[derive(Clone)]
struct WorkerState {
    /// Gradients of earlier clocks were told to the scheme.
    arrived: Clock,
    /// Gradients of earlier clocks were folded in or dropped.
    consumed: Clock,
    /// Clocks of later gradients that were folded in or dropped, too, by a scheme that keeps no order. There are no
    /// more of them than slots.
    consumed_early: SmallVec<[Clock; 4]>,
    /// The newest version that it has said it holds.
    held: Option<Version>,
    /// Workers beside it whose gradients are in its last one.
    others: u32,
}

impl WorkerState {
    /// Gradients of clocks before `published` that were neither folded in nor dropped.
    fn unconsumed(&self, published: Clock) -> u64 {
        let open = published.get().saturating_sub(self.consumed.get());
        let early = self.consumed_early.iter().filter(|clock| **clock < published).count();
        open.saturating_sub(early as u64)
    }

    /// The gradient of `clock` was folded in or dropped.
    fn consume(&mut self, clock: Clock) {
        if clock < self.consumed || self.consumed_early.contains(&clock) {
            return;
        }
        self.consumed_early.push(clock);
        // A slot is given back only together with all before it: a worker is told of them by one clock.
        while let Some(at) = self.consumed_early.iter().position(|early| *early == self.consumed) {
            self.consumed_early.swap_remove(at);
            self.consumed = self.consumed.next();
        }
    }
}

/// The source of a gradient that is folded. It is kept although its worker may leave meanwhile.
#[derive(Clone)]
struct FoldSource {
    inbox: PeerInbox,
    /// Generation, identity and session of the worker.
    generation: u64,
    identity: u64,
    session: u64,
    /// The clock that the worker began at.
    began: Clock,
    /// Workers beside it whose gradients are in the share, once the fold counts: the worker may leave before its end.
    others: u32,
}

impl FoldSource {
    fn of<E>(peer: &ShardPeer<E>) -> FoldSource {
        let ShardPeer { generation, identity, session, began, .. } = *peer;
        FoldSource { inbox: peer.inbox.clone(), generation, identity, session, began, others: 0 }
    }
}

/// A fold that was begun, for certain or in hope.
#[derive(Default)]
struct BegunFold {
    /// The gradients that it folds, with their weights.
    shares: Vec<Share>,
    /// The source of each share's gradient.
    sources: Vec<FoldSource>,
    /// The frame it writes.
    frame: Option<u8>,
    /// The step size that it is made with.
    learning_rate: f32,
    /// The scheme has said `Apply`: it counts.
    bound: bool,
    /// Gradients that are left out because they are not finite.
    left_out: SmallVec<[GradientId; 4]>,
}

/// Holds one shard of the parameters and folds workers' gradients into it.
///
/// Driven by [`poll`](Self::poll), which never waits; [`serve`](Self::serve) wraps it.
///
/// ```
/// use slackline::{Address, ElementType, Server, ServerOptions, Shm, Table, Worker, WorkerOptions, scheme};
/// use std::time::Duration;
///
/// let address = Address::random();
/// let table = Table::flat(4, ElementType::F32)?;
/// let scheme = scheme::SchemeConfig::Bsp;
/// let mut server = Server::new(Shm::new(), &address, table, &[1.0; 4], ServerOptions::new(scheme, 1, 0.5))?;
/// let serving = std::thread::spawn(move || {
///     server.serve(1, Duration::from_secs(10))?; // until its one worker has left
///     server.parameters()
/// });
///
/// let timeout = Duration::from_secs(10);
/// let mut worker = Worker::connect(Shm::new(), &[address], WorkerOptions::default(), timeout)?;
/// for _ in 0..2 {
///     let mut step = worker.step(timeout)?;
///     let (parameters, gradient) = step.borrow()?;
///     gradient.copy_from_slice(parameters); // the derivative of p * p / 2
///     step.publish(None, timeout)?;
/// }
/// worker.flush(timeout)?;
/// drop(worker);
/// assert_eq!(serving.join().unwrap()?, [0.25; 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Server<T: Transport> {
    shard: Shard<T>,
    pub(super) scheme: Box<dyn ServerScheme>,
    /// The scheme that it is a half of.
    kind: scheme::AnyScheme,
    /// The wishes of the scheme: measured folds, and to be told which version each worker holds.
    pub(super) measures_moments: bool,
    pub(super) reports_reads: bool,
    /// The weight of gradients that are sums over several workers.
    sums: Sums,
    /// The state of a follower, if another server decides for this shard.
    following: Option<Following<T::Endpoint>>,
    folder: Box<dyn Folder>,
    /// The workers, by index and generation, whose slots are given back once no fold on a GPU reads them any more.
    owed: Vec<(u16, u64)>,
    optimizer: Optimizer,
    learning_rate: f32,
    schedule: Schedule,
    /// Optimiser state: two copies of each, read from one and written to the other by turns.
    states: Vec<[PayloadMemory; 2]>,
    /// The index of the copy that is current.
    current: usize,
    workers: Vec<Option<WorkerState>>,
    /// The workers that the job expects, and the identities of the first so many that have joined.
    expected: usize,
    identities: BTreeSet<u64>,
    work: BegunFold,
    shares: Vec<Share>,
    /// The gradients that the newest version was made of, with their weights, and the gradients that the last poll
    /// dropped.
    newest: Vec<Share>,
    dropped: Vec<GradientId>,
    events: Vec<ShardEvent>,
    announced_clock: Clock,
    checkpoints: Option<Checkpointer>,
    non_finite: NonFinite,
    status: ServerStatus,
}

/// The state with which an incarnation of a server begins.
struct IncarnationStart<'a> {
    parameters: &'a [f32],
    /// The optimiser's states; zeros where there are none.
    states: &'a [Vec<f32>],
    version: Version,
    smallest_clock: Clock,
    /// Gradients that are in the parameters.
    folded: u64,
    /// For each worker, how far its gradients are in the parameters.
    applied: Applied,
    /// The learned state of the scheme, as text.
    learned: Option<&'a str>,
    /// The checkpoint that all of this is from, if it is.
    from: Option<&'a Checkpoint>,
    /// The folder of a server that stands for its host; `None` for a server that folds here.
    folder: Option<Box<dyn Folder>>,
}

/// Why no real server runs a scheme that weighs updates.
const KEEPS_NO_UPDATES: &str = "asks how large updates in transit are in sum, and a real server keeps no updates; \
                                simulate it, or use vap with strength=weak or strong";

/// The most actions of the scheme in one poll: without a limit, a scheme with ever more actions would never let the
/// caller continue.
const ACTIONS_AT_ONCE: usize = 1 << 16;

impl<T: Transport> Server<T> {
    /// Begins to serve a shard of `table` at `address`. `initial` holds the shard's own values as version 0.
    ///
    /// # Errors
    /// [`Error::NotF32`]: a tensor of `table` is not f32. [`Error::Length`]: `initial` is not as long as the shard.
    /// [`Error::Option`]: a field of `options` has a value that it cannot have. [`Error::SchemeConfig`],
    /// [`Error::Scheme`]: the scheme's settings cannot be, or it does not run with these options. [`Error::Table`]: the
    /// table cannot be cut into so many shards, or its description is too long. [`Error::Register`], [`Error::Thread`]:
    /// memory or threads could not be had. [`Error::Connect`]: the address cannot be listened at.
    /// [`Error::Checkpoint`]: the file of checkpoints cannot be taken over.
    pub fn new(
        transport: T,
        address: &Address,
        table: Table,
        initial: &[f32],
        options: ServerOptions,
    ) -> Result<Self, Error> {
        let (version, smallest_clock) = (Version::new(0), Clock::new(0));
        let start = IncarnationStart {
            parameters: initial,
            states: &[],
            version,
            smallest_clock,
            folded: 0,
            applied: Applied::default(),
            learned: None,
            from: None,
            folder: None,
        };
        Self::begin(transport, address, table, start, options)
    }

    fn begin(
        transport: T,
        address: &Address,
        table: Table,
        start: IncarnationStart<'_>,
        options: ServerOptions,
    ) -> Result<Self, Error> {
        if table.dense_element() != Some(ElementType::F32) {
            return Err(Error::NotF32);
        }
        if options.workers == 0 {
            let (option, value) = ("workers", "0".into());
            return Err(Error::Option { option, value, reason: "use at least 1" });
        }
        options.scheme.check()?;
        // One of several decides for all: where each decided for itself, they could wait for ever for workers that wait
        // for another.
        let is_decided = options.scheme.needs().counts_versions && options.shard.1 > 1;
        let followers = if is_decided && options.shard.0 == 0 { usize::from(options.shard.1) - 1 } else { 0 };
        let peers = options.workers.saturating_add(followers);
        if peers > usize::from(u16::MAX) {
            return Err(Error::Option {
                option: "workers",
                value: options.workers.to_string(),
                reason: "each worker is a peer, and of a server that decides for others each of these, too; a server \
                         has room for 65535: use fewer workers",
            });
        }
        if peers > usize::from(options.memory.peers) {
            return Err(Error::Option {
                option: "peers",
                value: options.memory.peers.to_string(),
                reason: "each worker is a peer, and of a server that decides for others each of these, too: make \
                         room for all of them",
            });
        }
        let most_workers = folding::most_workers(&transport, &options.scheme);
        if options.workers > most_workers {
            return Err(Error::Option {
                option: "workers",
                value: options.workers.to_string(),
                reason: "the scheme folds a gradient of each at once (delay(s) up to s + 1), of which a fold takes \
                         1024, and 256 on a GPU: use fewer, or a scheme that folds each alone (asp, ssp, essp)",
            });
        }
        let is_sgd = matches!(options.optimizer, Optimizer::Sgd { .. });
        let (built_in, step) = (options.scheme.built_in(), options.optimizer.step_of_sgd(1.0));
        if !is_sgd && built_in.is_some_and(|scheme| scheme.requires_sgd()) {
            let reason = "takes each update for a step of plain SGD; use SGD";
            return Err(Error::Scheme { scheme: options.scheme.clone(), reason });
        }
        if step.is_none() && built_in.is_some_and(|scheme| scheme.requires_step_size()) {
            let reason = "takes each update for a step along the gradient; use SGD or momentum";
            return Err(Error::Scheme { scheme: options.scheme.clone(), reason });
        }
        let needs = options.scheme.needs();
        if needs.weighs_updates {
            return Err(Error::Scheme { scheme: options.scheme.clone(), reason: KEEPS_NO_UPDATES });
        }
        let mut scheme = options.scheme.server(scheme::Start {
            workers: options.workers,
            clock: start.smallest_clock,
            newest: start.version,
        })?;
        if let Some(learned) = start.learned {
            scheme.recall(learned);
        }
        if options.additive && !scheme::adds_up(&needs) {
            return Err(Error::Scheme { scheme: options.scheme.clone(), reason: scheme::NO_SUM });
        }
        let scheme = scheme::summed(scheme, options.additive);
        let scheme = scheme::damped(scheme, options.damping, start.version);
        let learning_rate = check_learning_rate(options.learning_rate)?;
        check_optimizer(&options.optimizer)?;
        options.schedule.check().map_err(|error| Error::Option {
            option: "schedule",
            value: options.schedule.to_string(),
            reason: error.reason(),
        })?;
        let sums = Sums::under(&options);
        let folder = match start.folder {
            Some(folder) => folder,
            None => folding::folder(&transport, &options, needs.measures_moments)?,
        };
        let (shard, shards) = options.shard;
        let config = ShardConfig {
            table,
            shard,
            shards,
            scheme: Some((&options.scheme).into()),
            options: options.memory,
            deltas: None,
            gpu_memory: None,
        };
        let mut shard = Shard::new(transport, address, config)?;
        let payload = shard.frames.payload(0);
        if payload.len() != std::mem::size_of_val(start.parameters) {
            return Err(Error::Length {
                given: start.parameters.len(),
                expected: payload.len() / 4,
                unit: "values",
            });
        }
        let gpu = shard.transport().gpu().cloned();
        payloads::write(&payload, gpu.as_ref(), start.parameters)?;
        let mut states = Vec::new();
        for index in 0..options.optimizer.states() {
            let state = || payloads::allocate(shard.transport(), payload.len(), Access::LOCAL);
            let copies: [PayloadMemory; 2] = [state()?, state()?];
            if let Some(values) = start.states.get(index) {
                payloads::write(&copies[0].slice(0, payload.len())?, gpu.as_ref(), values)?;
            }
            states.push(copies);
        }
        let peers = shard.peers.len();
        shard.begin_at(start.version, start.smallest_clock);
        shard.taken = Taken::new(&start.applied);
        shard.most_workers = most_workers;
        if is_decided && options.shard.0 == 0 {
            shard.decide(start.version)?;
        }
        let following = (is_decided && options.shard.0 > 0)
            .then(|| Following::new(&options.scheme, start.smallest_clock));
        let checkpoints = options.checkpoint.map(|checkpoint| {
            let identity = CheckpointIdentity {
                table: shard.table().clone(),
                shard: options.shard,
                range: shard.range().clone(),
                epoch: shard.frames.epoch(),
                scheme: options.scheme.to_string(),
                optimizer: options.optimizer,
            };
            Checkpointer::start(checkpoint, identity, start.version, start.from)
        });
        let server = Server {
            scheme,
            kind: options.scheme,
            measures_moments: options.measure_moments || needs.measures_moments,
            reports_reads: needs.reports_reads && following.is_none(),
            sums,
            following,
            folder,
            owed: Vec::new(),
            optimizer: options.optimizer,
            learning_rate,
            schedule: options.schedule,
            states,
            current: 0,
            workers: vec![None; peers],
            expected: options.workers,
            identities: BTreeSet::new(),
            work: BegunFold::default(),
            shares: Vec::with_capacity(peers),
            newest: Vec::with_capacity(peers),
            dropped: Vec::with_capacity(peers),
            events: Vec::with_capacity(peers),
            announced_clock: start.smallest_clock,
            checkpoints: checkpoints.transpose()?,
            non_finite: options.non_finite,
            status: ServerStatus { folded: start.folded, ..ServerStatus::default() },
            shard,
        };
        Ok(server)
    }

    /// Returns the address at which workers reach this server.
    pub fn address(&self) -> Address {
        self.shard.address()
    }

    /// This incarnation of the server.
    #[doc(hidden)]
    pub fn epoch(&self) -> u64 {
        self.shard.frames.epoch()
    }

    /// The table that this server holds a shard of.
    #[doc(hidden)]
    pub fn table(&self) -> &Table {
        self.shard.table()
    }

    /// The bytes of the table that this server holds.
    #[doc(hidden)]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.shard.range().clone()
    }

    /// Returns the counters and the state of the server as of now.
    pub fn status(&self) -> ServerStatus {
        let peers = || self.shard.peers.iter().flatten();
        ServerStatus {
            version: self.shard.frames.latest().version,
            smallest_clock: self.announced_clock,
            workers: peers().filter(|peer| peer.worker).count(),
            readers: peers().filter(|peer| !peer.worker && peer.follows.is_none()).count(),
            refused: self.shard.refused,
            access_violations: self.shard.transport().access_violations(),
            rails_lost: self.shard.transport().rails_lost(),
            misbehaved: self.shard.misbehaved,
            lost_updates: self.shard.lost_updates,
            waits_for: self.scheme.waits_for().filter(|_| self.following.is_none()),
            staleness_bound: self.scheme.staleness_bound().filter(|_| self.following.is_none()),
            checkpointed: self.checkpoints.as_ref().and_then(Checkpointer::written),
            checkpoints_failed: self.checkpoints.as_ref().map_or(0, Checkpointer::failed),
            is_following: self.is_following(),
            ..self.status
        }
    }

    /// The workers and readers that are in.
    #[doc(hidden)]
    pub fn peers(&self) -> impl Iterator<Item = PeerStatus> + '_ {
        let present = self.shard.peers.iter().enumerate();
        present.filter_map(|(index, peer)| {
            let peer = peer.as_ref().filter(|peer| peer.follows.is_none())?;
            let gradients = peer.inbox.published().get().saturating_sub(peer.began.get());
            let slot = peer.inbox.slot_geometry().map_or(0, |slots| slots.payload_bytes());
            Some(PeerStatus {
                peer: index as u16,
                worker: peer.worker,
                transport: peer.endpoint.transport(),
                bytes_received: if peer.worker { gradients.saturating_mul(slot) } else { 0 },
            })
        })
    }

    /// The newest version: its number, its smallest clock, the gradients that it was made of, with their weights, and
    /// its parameters.
    #[cfg(feature = "sim")]
    pub(crate) fn newest(&self) -> (Version, Clock, &[Share], LocalSlice) {
        let latest = self.shard.frames.latest();
        let payload = self.shard.frames.host_payload(latest.frame).expect("a simulator has no GPU");
        (latest.version, self.announced_clock, &self.newest, payload)
    }

    /// The gradients that the last poll dropped.
    #[cfg(feature = "sim")]
    pub(crate) fn dropped(&self) -> &[GradientId] {
        &self.dropped
    }

    /// Changes the step size from the next version on; with a schedule, the step size that the schedule starts from.
    ///
    /// # Errors
    /// [`Error::Option`]: it is not finite. The step size stays as it was.
    pub fn set_learning_rate(&mut self, learning_rate: f32) -> Result<(), Error> {
        self.learning_rate = check_learning_rate(learning_rate)?;
        Ok(())
    }

    /// The step size of the next version. A follower is told of it.
    pub(super) fn next_rate(&self) -> f32 {
        if self.following.is_some() {
            return self.learning_rate;
        }
        self.schedule.rate(self.learning_rate, self.shard.frames.latest().version.get())
    }

    /// A copy of the newest parameters of this shard.
    ///
    /// # Errors
    /// A GPU that holds them did not copy them; none where they are in host memory.
    pub fn parameters(&self) -> Result<Vec<f32>, Error> {
        let payload = self.shard.frames.payload(self.shard.frames.latest().frame);
        let mut values = vec![0.0; payload.len() / 4];
        if let Some(payload) = payload.host() {
            crate::kernel::decode(payload.as_volatile(), Encoding::F32, &mut values);
        } else {
            let mut bytes = vec![0; payload.len()];
            payloads::read(&payload, self.shard.transport().gpu(), &mut bytes)?;
            crate::kernel::decode(VolatileSlice::from_ref(&bytes), Encoding::F32, &mut values);
        }
        Ok(values)
    }

    /// Does all work that needs no waiting: takes peers in, notices which peers are gone, folds gradients that have
    /// come, publishes at most one version. Returns true if it made progress.
    ///
    /// # Errors
    /// The server cannot go on. [`Error::SchemeConfig`], [`Error::Scheme`]: the scheme gave up. [`Error::Fold`],
    /// [`Error::FoldPanicked`], or an error of a GPU: a fold failed. [`Error::LastVersion`]: there are no more
    /// versions. [`Error::Checkpoint`]: another incarnation has taken over the file of checkpoints.
    /// [`Error::OutOfTurn`]: this process was forked from the server's. [`Error::ServerLost`] of shard 0, where that
    /// server decides: call [`follow`](Self::follow) again. A worker that is lost is no error.
    pub fn poll(&mut self, now: Instant) -> Result<bool, Error> {
        self.shard.expect_owner("serve")?;
        self.dropped.clear();
        // Decisions first: the gradients that they name were announced here before.
        let mut progress = self.hear(now)?;
        if !self.is_ready() {
            return Ok(progress);
        }
        progress |= self.shard.poll(now, self.smallest_clock(), &mut self.events);
        self.take_events(now);
        progress |= self.take_arrivals(now);
        if self.scheme.poll_timeout().is_some_and(|at| at <= now) {
            self.scheme.handle_timeout(now);
            progress = true;
        }
        progress |= self.take_actions(now)?;
        progress |= self.folder.tend(now)?;
        progress |= self.fold(now)?;
        self.pay()?;
        self.announce_clock();
        progress |= self.tell(now);
        self.push();
        self.shard.wake_peers();
        self.checkpoint()?;
        Ok(progress)
    }

    /// Carries out the scheme's actions, up to a fold that must end first. Actions beyond [`ACTIONS_AT_ONCE`] wait
    /// for the next poll.
    fn take_actions(&mut self, now: Instant) -> Result<bool, Error> {
        let mut progress = false;
        for _ in 0..ACTIONS_AT_ONCE {
            if self.work.bound {
                break;
            }
            let Some(action) = self.next_action(now)? else { break };
            progress = true;
            match action {
                ServerAction::Expect => self.plan(),
                ServerAction::Apply => {
                    if self.work.shares != self.shares {
                        self.plan();
                    }
                    self.bind();
                    if self.folder.is_running() {
                        self.folder.bind(self.metadata());
                    }
                    for (share, source) in self.work.shares.iter().zip(&self.work.sources) {
                        self.shard.taken.take(source.identity, share.gradient.clock);
                    }
                }
                ServerAction::Drop { gradient } => {
                    self.status.dropped += 1;
                    self.say_dropped(gradient);
                    let state = self.workers.get_mut(gradient.worker.index()).and_then(Option::as_mut);
                    if let (Some(state), Some(peer)) = (state, gradient.worker.peer()) {
                        state.consume(gradient.clock);
                        // The latest frame holds all of it that it will ever hold.
                        let frame = self.shard.frames.latest().frame;
                        let consumed = state.consumed;
                        self.shard.frames.set_included(frame, peer, consumed);
                        self.give_back(peer, consumed)?;
                    }
                    self.dropped.push(gradient);
                }
                ServerAction::Interrupt { worker } => self.interrupt(worker),
                ServerAction::Push => {
                    (0..self.shard.peers.len() as u16).for_each(|peer| self.push_to(peer));
                }
                ServerAction::Weigh { .. } => {
                    return Err(Error::Scheme { scheme: self.kind.clone(), reason: KEEPS_NO_UPDATES });
                }
                ServerAction::Fail { reason } => return Err(self.kind.failure(reason).into()),
            }
        }
        Ok(progress)
    }

    /// Returns the next action of the scheme, with its shares.
    fn next_action(&mut self, now: Instant) -> Result<Option<ServerAction>, Error> {
        self.shares.clear();
        if self.following.is_some() {
            return self.next_decided(now);
        }
        if !self.may_decide() {
            return Ok(None);
        }
        let action = self.scheme.poll_action(&mut self.shares);
        self.weigh_sums();
        Ok(action)
    }

    /// Asks a worker to abandon a computation on any version before the latest. Where copies are pushed, the latest
    /// version is pushed to it, too: it waits for no older one.
    fn interrupt(&mut self, worker: WorkerId) {
        let Some(index) = worker.peer() else { return };
        let peer = self.shard.peers.get_mut(usize::from(index)).and_then(Option::as_mut);
        if let Some(peer) = peer.filter(|peer| peer.worker) {
            peer.wants_push |= peer.push.is_some();
            self.status.interrupts += 1;
            self.shard.frames.interrupt(index);
        }
    }
}

pub(crate) fn check_optimizer(optimizer: &Optimizer) -> Result<(), Error> {
    optimizer.check().map_err(|error| Error::Option {
        option: error.option,
        value: error.value.to_string(),
        reason: error.reason,
    })
}

pub(crate) fn check_learning_rate(rate: f32) -> Result<f32, Error> {
    let value = rate.to_string();
    rate.is_finite().then_some(rate).ok_or(Error::Option {
        option: "learning_rate",
        value,
        reason: "it must be finite",
    })
}
