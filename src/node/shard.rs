//! One shard in the hands of its owner: frames, the peers that read them, and which peers are alive.

mod admission;
mod decider;
mod departing;
mod inherited;
mod joining;
mod queue;
mod reason;
mod sleeping;
mod waking;
mod welcome;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub(super) use self::decider::Decider;
use self::departing::DepartingPeers;
pub(super) use self::inherited::expect_owner;
use self::joining::JoiningPeers;
use self::queue::ReaderQueue;
pub use self::reason::DisconnectReason;
use self::waking::News;
use super::Error;
use super::idle::Idle;
use super::payloads;
use super::runtime::Runtime;
use super::taken::{Applied, Taken};
use super::tree::Tree;
use crate::clock::{Clock, Version};
use crate::cuda::GpuMemory;
use crate::mem::{Access, ForkGuard};
use crate::param::{
    ControlLayout, DECISIONS_BYTES, Decisions, DeltaGeometry, Deltas, FrameGeometry, Frames, Latest,
    PeerInbox, Push,
};
use crate::scheme;
use crate::table::Table;
use crate::time::{Instant, Silence};
use crate::transport::{Address, Endpoint, HANDSHAKE_TIMEOUT, Listener, Transport};

type IncomingOf<T> = <<T as Transport>::Listener as Listener>::Incoming;

/// Settings of the memory of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardOptions {
    /// Most peers at a time, workers and readers together, and the servers that follow where this one decides for them.
    /// In a job there is room for its workers and servers in any case.
    pub peers: u16,
    /// Frames. Three let one reader pin while the owner writes; with `n` that pin different versions, `n + 2` never
    /// make the owner wait.
    pub frames: u8,
    /// Bytes of parameters in one chunk, the unit that is summed, copied and announced. A multiple of 64.
    pub chunk_bytes: u64,
    /// The time that a peer may be silent before it is taken for dead.
    pub lease: Duration,
    /// Whether each version carries a checksum: one more pass over it.
    pub checksums: bool,
    /// The behaviour of the owner while it has no work.
    pub idle: Idle,
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

/// Events of the peers of a shard.
#[derive(Clone, Debug)]
pub(super) enum ShardEvent {
    Joined { peer: u16, worker: bool, identity: u64, clock: Clock },
    Left { peer: u16, gone: Gone },
}

/// A peer that is gone.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) worker: bool,
    /// Its gradients of clocks before this one were announced, and there was room for so many.
    pub(super) published: Clock,
    pub(super) slots: u64,
    /// True if the gradients that it announced count: it did not break the protocol.
    pub(super) is_honest: bool,
    pub(super) inbox: PeerInbox,
    pub(super) began: Clock,
    pub(super) generation: u64,
    pub(super) identity: u64,
    pub(super) session: u64,
}

/// The part of a table that an owner holds, and the peers that it takes.
pub(super) struct ShardConfig {
    pub(super) table: Table,
    pub(super) shard: u16,
    pub(super) shards: u16,
    /// The scheme, if workers are taken.
    pub(super) scheme: Option<Kept>,
    pub(super) options: ShardOptions,
    /// The differences that are kept for readers.
    pub(super) deltas: Option<DeltaGeometry>,
    /// Memory of the caller's for the frames.
    pub(super) gpu_memory: Option<GpuMemory>,
}

/// The part of a scheme that the handshake needs.
pub(super) struct Kept {
    text: String,
    slots: u16,
    pushes: bool,
}

impl From<&scheme::AnyScheme> for Kept {
    fn from(scheme: &scheme::AnyScheme) -> Kept {
        let scheme::Needs { slots, pushes, .. } = scheme.needs();
        Kept { text: scheme.to_string(), slots, pushes }
    }
}

pub(super) struct ShardPeer<E> {
    pub(super) endpoint: E,
    pub(super) inbox: PeerInbox,
    pub(super) worker: bool,
    /// The identity of a worker; 0 for other peers.
    pub(super) identity: u64,
    /// The random number of a worker's session: of its connections to all shards together.
    pub(super) session: u64,
    /// The shard of a server that follows this one's decisions.
    pub(super) follows: Option<u16>,
    /// The clock that it began at.
    pub(super) began: Clock,
    /// Tells this peer from others that had its index before.
    pub(super) generation: u64,
    pub(super) push: Option<Push>,
    /// A newer version should be pushed to it.
    pub(super) wants_push: bool,
    /// There is something new for it alone, for which it is woken if it sleeps.
    has_news: bool,
    /// It sleeps while it waits.
    sleeps: bool,
    /// How often it had gone to sleep when it was woken last.
    woken: u64,
    silence: Silence,
    checked: Instant,
}

/// Period at which the listener is asked for newcomers: asking costs system calls.
const GREET_EVERY: Duration = Duration::from_millis(1);

/// Period at which a peer's connection is asked whether it still stands: asking may cost a system call. Hearts are
/// listened to as often, or more often where the lease is short.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The time after which a peer that was refused for now may ask again.
const SOON: Duration = Duration::from_millis(10);

pub(super) struct Shard<T: Transport> {
    transport: Arc<T>,
    pub(super) runtime: Runtime,
    listener: T::Listener,
    config: ShardConfig,
    range: Range<u64>,
    pub(super) frames: Frames,
    pub(super) peers: Vec<Option<ShardPeer<T::Endpoint>>>,
    joining: JoiningPeers<IncomingOf<T>>,
    departing: DepartingPeers,
    queue: ReaderQueue,
    /// Connections of peers that only asked: kept until the answer has gone out.
    answering: Vec<(T::Endpoint, Instant)>,
    /// The latest generation. They count from the epoch, so that the generations of two incarnations differ.
    generations: u64,
    beats: u64,
    beaten: Instant,
    /// A peer had been silent for long at the last look at all of them.
    is_in_doubt: bool,
    /// The last look for newcomers; none since the owner slept.
    greeted: Option<Instant>,
    /// True if peers wake the thread that waits at the listener.
    is_notified: bool,
    news: News,
    /// Peers that take pushes.
    pushed_to: usize,
    /// Indices of peers that left, while their inboxes may still be read. A peer that has announced nothing may join
    /// again in its session, which is then named.
    pub(super) withheld: Vec<(u16, Option<u64>)>,
    /// The clocks up to which gradients of each worker were taken, by identity.
    pub(super) taken: Taken,
    /// Most workers that may be in at once.
    pub(super) most_workers: usize,
    pub(super) refused: u64,
    pub(super) misbehaved: u64,
    /// The version that this incarnation began at.
    begun_at: Version,
    pub(super) lost_updates: Option<u64>,
    /// The decisions, if this server decides for the shards of others.
    pub(super) decider: Option<Decider>,
    /// The tree of relays, if this owner is the publisher that arranges it.
    pub(super) tree: Option<Tree>,
    /// The memory is shared with a forked child, which owns nothing of it.
    guard: ForkGuard,
}

/// Refuses options that make a processor compute from the payloads, where the payloads are on a GPU.
fn expect_plain(is_on_host: bool, config: &ShardConfig) -> Result<(), Error> {
    let wanted = [("checksums", config.options.checksums), ("deltas", config.deltas.is_some())];
    match wanted.into_iter().find(|(_, is_wanted)| *is_wanted && !is_on_host) {
        None => Ok(()),
        Some((option, _)) => {
            let reason = "the payloads are on a GPU, where they are not computed: leave it out, or use a transport \
                          without a GPU";
            Err(option_error(option, true, reason))
        }
    }
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
                "every peer would be taken for dead; three seconds are usual",
            ));
        }
        let layout = ControlLayout { peers: options.peers, frames: options.frames };
        let geometry = FrameGeometry {
            frames: options.frames,
            payload_bytes: range.end - range.start,
            chunk_bytes: options.chunk_bytes,
        };
        if !geometry.is_sound() {
            if options.frames < 2 {
                return Err(option_error("frames", options.frames, "use 2 to 255 frames"));
            }
            let remedy = "use chunks of a multiple of 64 bytes, at most 16 million of them";
            return Err(option_error("chunk_bytes", options.chunk_bytes, remedy));
        }
        let control = transport.allocate(layout.bytes(), Access::REMOTE_READ)?;
        let bytes = usize::try_from(geometry.bytes())
            .map_err(|_| option_error("frames", options.frames, "they do not fit the address space"))?;
        let payload = match &config.gpu_memory {
            Some(memory) => payloads::of_caller(&transport, memory, bytes)?,
            None => payloads::allocate(&transport, bytes, Access::REMOTE_READ)?,
        };
        expect_plain(payload.host().is_some(), &config)?;
        let mut frames = Frames::new(control, payload, layout, geometry, random_word());
        frames.set_checksums(options.checksums);
        if let Some(deltas) = config.deltas {
            let region = transport.allocate(deltas.bytes() as usize, Access::REMOTE_READ)?;
            frames.set_deltas(Deltas::new(region, deltas));
        }
        let mut listener = transport.listen(address)?;
        let is_notified = config.options.idle == Idle::Sleep && listener.be_notified()?;
        if config.options.idle == Idle::Sleep && !is_notified {
            tracing::info!(
                transport = transport.capabilities().name,
                "peers cannot wake an owner here: it looks for what they do"
            );
        }
        let (peers, generations) = ((0..options.peers).map(|_| None).collect(), frames.epoch());
        tracing::info!(
            address = %listener.address(), transport = transport.capabilities().name, shard = config.shard,
            shards = config.shards, bytes = geometry.payload_bytes, "listening"
        );
        let shard = Shard {
            runtime: Runtime::of(&transport),
            transport: Arc::new(transport),
            listener,
            config,
            range,
            frames,
            peers,
            joining: JoiningPeers::default(),
            departing: DepartingPeers::default(),
            queue: ReaderQueue::default(),
            answering: Vec::new(),
            generations,
            beats: 0,
            beaten: Instant::ORIGIN,
            is_in_doubt: false,
            greeted: None,
            is_notified,
            news: News::default(),
            pushed_to: 0,
            withheld: Vec::new(),
            taken: Taken::new(&Applied::default()),
            most_workers: usize::MAX,
            refused: 0,
            misbehaved: 0,
            begun_at: Version::new(0),
            lost_updates: None,
            decider: None,
            tree: None,
            guard: ForkGuard::new(),
        };
        shard.check_welcome()?;
        Ok(shard)
    }

    /// Decides for all shards from here on.
    pub(super) fn decide(&mut self, version: Version) -> Result<(), Error> {
        let region = self.transport.allocate(DECISIONS_BYTES, Access::REMOTE_READ)?;
        self.decider = Some(Decider::new(Decisions::new(region), version, self.config.shards));
        Ok(())
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

    /// Takes peers in and notices which peers are gone. `clock` is where a new worker begins, or later if it has
    /// been further. It takes one worker at a time, since the next may begin elsewhere once this one is in.
    pub(super) fn poll(&mut self, now: Instant, clock: Clock, events: &mut Vec<ShardEvent>) -> bool {
        if self.is_inherited() {
            return false;
        }
        let before = events.len();
        if self.greeted.is_none_or(|greeted| now - greeted >= GREET_EVERY) {
            if let Some(tree) = &mut self.tree {
                tree.look(now);
            }
            while events.len() == before {
                let Some(incoming) = self.listener.poll(now) else {
                    self.greeted = Some(now);
                    break;
                };
                self.greet(incoming, now, clock);
            }
        }
        while events.len() == before
            && let Some(newcomer) = self.joining.next(now)
        {
            self.let_in(newcomer, now, clock, events);
        }
        if now - self.beaten >= self.look_every() {
            self.beats += 1;
            self.beaten = now;
            self.frames.beat(self.beats);
            self.answering
                .retain_mut(|(endpoint, since)| endpoint.check().is_ok() && now - *since < HANDSHAKE_TIMEOUT);
            // Asked where it matters alone: the answer may cost a system call and wake a thread.
            let listens = !std::mem::take(&mut self.is_in_doubt) || self.listener.has_caught_up();
            for peer in 0..self.peers.len() as u16 {
                if let Some(disconnect_reason) = self.disconnect_reason(peer, now, listens) {
                    self.dismiss(peer, disconnect_reason, events);
                }
            }
        }
        events.len() > before
    }

    /// Finds out whether a peer is gone, as far as its connection and its heartbeat tell. Unless the owner
    /// `listens`, a heartbeat that has come may not be seen yet.
    fn disconnect_reason(&mut self, peer: u16, now: Instant, listens: bool) -> Option<DisconnectReason> {
        let lease = self.config.options.lease;
        let peer = self.peers[usize::from(peer)].as_mut()?;
        let beat = peer.endpoint.arrivals().unwrap_or_else(|| peer.inbox.heartbeat());
        if !listens {
            peer.silence.skip(now, beat);
        }
        // A server that stands still is waited for, as workers wait for it.
        let is_silent = peer.follows.is_none() && listens && peer.silence.observe(now, beat, lease);
        self.is_in_doubt |= !is_silent && peer.follows.is_none() && peer.silence.is_long(lease);
        if now - peer.checked >= CHECK_EVERY {
            peer.checked = now;
            if let Err(gone) = peer.endpoint.check() {
                return Some(DisconnectReason::Closed(gone));
            }
        }
        is_silent.then_some(DisconnectReason::Silent)
    }

    /// The version after the latest, if it fits the words that name it.
    pub(super) fn next_version(&self) -> Result<Version, Error> {
        let latest = self.frames.latest().version;
        if latest >= Latest::VERSION_MAX {
            return Err(Error::LastVersion { version: latest });
        }
        Ok(latest.next())
    }

    pub(super) fn is_pinned(peers: &[Option<ShardPeer<T::Endpoint>>], frame: u8) -> bool {
        peers.iter().flatten().any(|peer| {
            peer.inbox.pins(frame) || peer.push.as_ref().is_some_and(|push| push.source() == Some(frame))
        })
    }

    /// The shards of the servers that follow this one.
    pub(super) fn followers(&self) -> impl Iterator<Item = u16> + '_ {
        self.peers.iter().flatten().filter_map(|peer| peer.follows)
    }

    /// The time that a peer may be silent.
    pub(super) fn lease(&self) -> Duration {
        self.config.options.lease
    }

    /// Returns the number of this shard in the table.
    pub(super) fn number(&self) -> u16 {
        self.config.shard
    }

    /// Returns the number of shards of the table.
    pub(super) fn shards(&self) -> u16 {
        self.config.shards
    }

    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }
}

/// A random number, which no other incarnation of any server has for its epoch and no other worker for its name.
pub(super) fn random_word() -> u64 {
    getrandom::u64().unwrap_or_else(|error| {
        tracing::warn!(%error, "no random source: a random number is taken from the clock");
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_nanos() as u64 ^ u64::from(std::process::id()) << 48
    })
}
