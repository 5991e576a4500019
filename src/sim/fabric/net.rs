//! The network: its nodes, the requests under way, and the next event.
//!
//! Everything that takes time is an event in one queue, ordered by virtual time and then by when it was asked for, so
//! that a seed decides all of it.
#![forbid(unsafe_code)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::flow::NetConnection;
use super::meet::{Attempt, SimAcceptor};
use super::random::{EventHash, FabricRandom};
use crate::mem::{LocalSlice, MemoryRegion};
use crate::time::{Duration, Instant};
use crate::transport::HeartbeatWord;

/// The network as all its users hold it.
pub(super) type SharedNet = Arc<Mutex<Net>>;

/// Locks the network. A node that panicked while it was locked fails the run anyway.
pub(super) fn lock(net: &SharedNet) -> MutexGuard<'_, Net> {
    net.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One incarnation of a node, by number.
pub(super) type HostId = usize;

/// The kind of transport that the network is like, where kinds differ: in memory whose owner stands still, and in
/// connections that have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransportShape {
    /// Words land in the memory of a stopped node, as an RDMA device writes them.
    Device,
    /// The threads that serve a node's connections stop with it, as over TCP: bytes that come meanwhile land some time
    /// after the node has continued.
    Threads,
    /// Memory is mapped, as on one host: a node's own processor carries its requests out, and can do so until it
    /// checks its connection, even if the other end has closed it.
    Mapped,
}

/// Rules by which the network treats messages. Times in nanoseconds, chances in thousandths.
#[derive(Clone, Debug)]
pub(super) struct NetRules {
    /// The time one way, mostly.
    pub(super) latency: (u64, u64),
    /// The share of requests and messages that take longer, and the time that these take.
    pub(super) straggling: u64,
    pub(super) straggle: (u64, u64),
    /// A request is carried out in at most so many parts, each at a moment of its own.
    pub(super) parts_max: u64,
    /// Most bytes of a payload that are read at a time where a copy may be resumed.
    pub(super) batch: u64,
    /// A request's parts lie within so long.
    pub(super) spread: u64,
    /// Pieces are cache lines instead of words.
    pub(super) lines: bool,
    /// Requests that are carried out once more: a READ that is read again, a WRITE that is replayed before the next.
    pub(super) repeated: u64,
    /// Posts that find the queue full though it is not.
    pub(super) full: u64,
    pub(super) queue_depth: usize,
    /// Servers that are held up between two chunks that they fold.
    pub(super) yields_permille: u64,
    /// The time until a peer hears that the other one is gone.
    pub(super) notice: (u64, u64),
    /// Requests of a connection that has failed which arrive nevertheless.
    pub(super) late: u64,
    /// A node that restarts hands out the keys of its earlier incarnation once more.
    pub(super) same_keys: bool,
    pub(super) shape: TransportShape,
    /// Posts that are carried out before they return, where memory is mapped.
    pub(super) at_once: u64,
    /// Time after which the threads go on that stood still with a node.
    pub(super) thaw: (u64, u64),
    /// The node that breaks the protocol.
    pub(super) liar: Option<usize>,
    /// Its words that it forges, and its writes that it changes afterwards.
    pub(super) lying: u64,
    /// Peers for which an owner registers memory for long, and how long that takes.
    pub(super) registering: u64,
    pub(super) registration: (u64, u64),
}

impl NetRules {
    /// As the tests of the contract use it: in pieces and out of order, with nothing failing by itself.
    pub(super) fn plain() -> NetRules {
        NetRules {
            latency: (100, 5_000),
            straggling: 20,
            straggle: (5_000, 50_000),
            parts_max: 6,
            batch: u64::MAX,
            spread: 5_000,
            lines: false,
            repeated: 100,
            full: 0,
            queue_depth: 64,
            yields_permille: 0,
            notice: (1_000, 100_000),
            late: 500,
            same_keys: false,
            shape: TransportShape::Device,
            at_once: 0,
            thaw: (0, 0),
            liar: None,
            lying: 0,
            registering: 0,
            registration: (0, 0),
        }
    }
}

/// The events of the network, each with its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NetEvent {
    /// A part of a request is carried out.
    Part { connection: usize, end: usize, serial: u64, part: u32 },
    /// The poster hears of it.
    Done { connection: usize, end: usize, serial: u64 },
    /// An end hears that the other one is gone.
    Notice { connection: usize, end: usize },
    /// A write of a failed connection arrives.
    Late { connection: usize, end: usize },
    /// The value of a heartbeat word arrives.
    Word { light: usize, value: u64 },
    /// A peer arrives at a listener.
    Arrive { attempt: usize },
    /// The listener's answer arrives.
    Answer { attempt: usize },
    /// A node goes on.
    Wake { host: HostId, token: u64 },
    /// A heart beats.
    Beat { heartbeat: usize },
    /// Something breaks, or is repaired.
    PlannedFault { index: usize },
    /// A word of the liar's inbox is replaced.
    Lie,
    /// A pin that was set for a while ends.
    Unpin { index: usize },
}

/// The events that the network leaves to the program that runs the nodes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outside {
    Wake(HostId),
    Beat(usize),
    PlannedFault(usize),
}

/// One incarnation of a node.
pub(super) struct NetHost {
    /// The number of the node; its next incarnation has the same.
    pub(super) node: usize,
    pub(super) is_alive: bool,
    /// It does not run before this moment, though its memory is there.
    pub(super) frozen_until: u64,
    /// The threads that serve its connections do not run before this moment.
    deaf_until: u64,
    /// The memory that peers may reach if it is granted, in order of registration. A NIC that starts again counts its
    /// keys so.
    pub(super) regions: Vec<MemoryRegion>,
    /// The number of the wake that counts.
    token: u64,
    wake_at: u64,
    /// It polls while it waits: any event may wake it earlier.
    looks: bool,
    /// It is at work until then, and nothing wakes it from that.
    busy_until: u64,
}

/// A word that is set from outside its owner's thread.
pub(super) struct Light {
    pub(super) connection: usize,
    pub(super) end: usize,
    pub(super) word: LocalSlice,
    /// The time at which the last message arrives: later messages arrive later.
    pub(super) last: u64,
}

/// A heart that beats.
pub(super) struct SimulatedHeart {
    pub(super) host: HostId,
    pub(super) interval: u64,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) heartbeat_word: Option<Box<dyn HeartbeatWord>>,
    pub(super) count: u64,
}

/// A direction that is stalled until some moment.
struct Stall {
    from: usize,
    to: usize,
    until: u64,
}

/// The purpose of the network's stream of random numbers, as opposed to the plan's.
const NETWORK: u64 = 2;

/// All of it.
pub(super) struct Net {
    pub(super) now: u64,
    pub(super) distribution: NetRules,
    pub(super) random: FabricRandom,
    pub(super) trace: EventHash,
    pub(super) events: u64,
    queue: BinaryHeap<Reverse<(u64, u64, NetEvent)>>,
    asked: u64,
    /// No program runs it: it moves on by itself whenever a node looks.
    pub(super) moves_itself: bool,
    pub(super) hosts: Vec<NetHost>,
    pub(super) connections: Vec<NetConnection>,
    pub(super) acceptors: Vec<SimAcceptor>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) lights: Vec<Light>,
    pub(super) hearts: Vec<SimulatedHeart>,
    stalls: Vec<Stall>,
    /// Pins that were set for a while.
    pub(super) pins: Vec<LocalSlice>,
    /// The times for which owners did nothing but register memory, since the last look.
    pub(super) registrations: Vec<u64>,
    /// Nodes whose connections were ended by an owner since the last look, though they stood.
    pub(super) evictions: Vec<usize>,
}

impl Net {
    pub(super) fn new(seed: u64, distribution: NetRules, moves_itself: bool) -> Net {
        Net {
            now: 0,
            distribution,
            random: FabricRandom::new(seed, NETWORK),
            trace: EventHash::new(),
            events: 0,
            queue: BinaryHeap::new(),
            asked: 0,
            moves_itself,
            hosts: Vec::new(),
            connections: Vec::new(),
            acceptors: Vec::new(),
            attempts: Vec::new(),
            lights: Vec::new(),
            hearts: Vec::new(),
            stalls: Vec::new(),
            pins: Vec::new(),
            registrations: Vec::new(),
            evictions: Vec::new(),
        }
    }

    pub(super) fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// A new incarnation of `node`.
    pub(super) fn add_host(&mut self, node: usize) -> HostId {
        self.hosts.push(NetHost {
            node,
            is_alive: true,
            frozen_until: 0,
            deaf_until: 0,
            regions: Vec::new(),
            token: 0,
            wake_at: u64::MAX,
            looks: false,
            busy_until: 0,
        });
        self.hosts.len() - 1
    }

    /// The incarnation of a node that is alive now.
    pub(super) fn living(&self, node: usize) -> Option<HostId> {
        self.hosts.iter().rposition(|host| host.node == node && host.is_alive)
    }

    pub(super) fn schedule(&mut self, at: u64, event: NetEvent) {
        self.asked += 1;
        self.queue.push(Reverse((at.max(self.now), self.asked, event)));
    }

    pub(super) fn schedule_in(&mut self, nanos: u64, event: NetEvent) {
        self.schedule(self.now.saturating_add(nanos), event);
    }

    /// Draws the time that something takes one way.
    pub(super) fn latency(&mut self) -> u64 {
        let (least, most) = if self.random.permille(self.distribution.straggling) {
            self.distribution.straggle
        } else {
            self.distribution.latency
        };
        self.random.between(least, most)
    }

    pub(super) fn notice(&mut self) -> u64 {
        let (least, most) = self.distribution.notice;
        self.random.between(least, most)
    }

    /// Returns the time until which nothing goes from one host to another.
    pub(super) fn stalled_until(&self, from: HostId, to: HostId) -> Option<u64> {
        let (from, to) = (self.hosts[from].node, self.hosts[to].node);
        let stalls = self.stalls.iter().filter(|stall| (stall.from, stall.to) == (from, to));
        stalls.map(|stall| stall.until).filter(|until| *until > self.now).max()
    }

    /// Keeps a host from running for a while, and its threads as well where they stand still with it.
    pub(super) fn freeze(&mut self, host: HostId, nanos: u64) {
        let until = self.now.saturating_add(nanos).max(self.hosts[host].frozen_until);
        self.hosts[host].frozen_until = until;
        if self.distribution.shape == TransportShape::Threads {
            let (least, most) = self.distribution.thaw;
            let after = self.random.between(least, most);
            let deaf_until = &mut self.hosts[host].deaf_until;
            *deaf_until = (*deaf_until).max(until + after);
        }
    }

    /// Returns the time until which a host's threads take nothing out of its connections and put nothing into its
    /// memory.
    pub(super) fn deaf_until(&self, host: HostId) -> Option<u64> {
        Some(self.hosts[host].deaf_until).filter(|until| *until > self.now)
    }

    /// Returns the time until which a request stands still because one of its ends does.
    pub(super) fn halted_until(&self, poster: HostId, target: HostId, is_read: bool) -> Option<u64> {
        if self.distribution.shape == TransportShape::Mapped {
            return Some(self.hosts[poster].frozen_until).filter(|until| *until > self.now);
        }
        // The answer to a READ is put into the poster's memory by the poster's threads.
        self.deaf_until(target).max(self.deaf_until(poster).filter(|_| is_read))
    }

    /// Draws the time that it takes an owner now to register memory for a peer.
    pub(super) fn registers_for(&mut self) -> u64 {
        if self.distribution.registering == 0 || !self.random.permille(self.distribution.registering) {
            return 0;
        }
        let (least, most) = self.distribution.registration;
        self.random.between(least, most)
    }

    /// Lets nothing through from one node to another for a while.
    pub(super) fn stall(&mut self, from: usize, to: usize, nanos: u64) {
        let until = self.now.saturating_add(nanos);
        self.stalls.push(Stall { from, to, until });
    }

    /// Lets everything through again, at once, and ends all lies.
    pub(super) fn mend(&mut self) {
        self.stalls.clear();
        (self.distribution.liar, self.distribution.registering) = (None, 0);
        let now = self.now;
        for host in &mut self.hosts {
            host.frozen_until = host.frozen_until.min(now);
            host.deaf_until = host.deaf_until.min(now);
        }
    }

    /// Lets a host run again once `nanos` have passed; `looks` if an event may wake it earlier.
    pub(super) fn sleep(&mut self, host: HostId, nanos: u64, looks: bool) {
        let at = self.now.saturating_add(nanos).max(self.hosts[host].busy_until);
        let sleeper = &mut self.hosts[host];
        sleeper.token += 1;
        (sleeper.wake_at, sleeper.looks) = (at, looks);
        let token = sleeper.token;
        self.schedule(at, NetEvent::Wake { host, token });
    }

    /// Has a host do nothing else for so long, once it sleeps.
    pub(super) fn keep_busy(&mut self, host: HostId, nanos: u64) {
        let busy = &mut self.hosts[host].busy_until;
        *busy = (*busy).max(self.now).saturating_add(nanos);
    }

    /// Something has come for a host: it may see it soon.
    pub(super) fn touch(&mut self, host: HostId) {
        if !self.hosts[host].looks || !self.random.permille(700) {
            return;
        }
        let in_nanos = self.random.between(50, 3_000);
        if self.now + in_nanos < self.hosts[host].wake_at {
            self.sleep(host, in_nanos, true);
        }
    }

    /// Goes on to the next event that the network leaves to its caller; `None` if there will never be one.
    pub(super) fn next(&mut self) -> Option<Outside> {
        loop {
            let Reverse((at, _, event)) = self.queue.pop()?;
            self.now = at;
            self.events += 1;
            if let Some(outside) = self.happen(event) {
                return Some(outside);
            }
        }
    }

    /// Moves on by itself, by one event.
    pub(super) fn look(&mut self) {
        if self.moves_itself
            && let Some(Reverse((at, _, event))) = self.queue.pop()
        {
            self.now = at;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: NetEvent) -> Option<Outside> {
        self.trace.note(self.now);
        match event {
            NetEvent::Part { connection, end, serial, part } => self.on_part(connection, end, serial, part),
            NetEvent::Done { connection, end, serial } => self.on_done(connection, end, serial),
            NetEvent::Notice { connection, end } => self.on_notice(connection, end),
            NetEvent::Late { connection, end } => self.on_late(connection, end),
            NetEvent::Word { light, value } => self.on_word(light, value),
            NetEvent::Arrive { attempt } => self.on_arrive(attempt),
            NetEvent::Answer { attempt } => self.on_answer(attempt),
            NetEvent::Beat { heartbeat } => return self.on_beat(heartbeat),
            NetEvent::PlannedFault { index } => return Some(Outside::PlannedFault(index)),
            NetEvent::Lie => self.on_lie(),
            NetEvent::Unpin { index } => self.unpin(index),
            NetEvent::Wake { host, token } => {
                let sleeper = &mut self.hosts[host];
                if !sleeper.is_alive || sleeper.token != token {
                    return None;
                }
                if sleeper.frozen_until > self.now {
                    sleeper.looks = false;
                    let until = sleeper.frozen_until;
                    self.schedule(until, event);
                    return None;
                }
                sleeper.looks = false;
                self.trace.note(host as u64);
                return Some(Outside::Wake(host));
            }
        }
        None
    }

    fn on_beat(&mut self, heartbeat: usize) -> Option<Outside> {
        let heart = &mut self.hearts[heartbeat];
        let host = &self.hosts[heart.host];
        if !host.is_alive || heart.stop.load(std::sync::atomic::Ordering::Relaxed) {
            heart.heartbeat_word = None;
            return None;
        }
        if host.frozen_until > self.now {
            let until = host.frozen_until;
            self.schedule(until, NetEvent::Beat { heartbeat });
            return None;
        }
        Some(Outside::Beat(heartbeat))
    }

    /// A node starts a heartbeat.
    pub(super) fn add_heart(
        &mut self,
        host: HostId,
        heartbeat_word: Box<dyn HeartbeatWord>,
        interval: Duration,
        stop: Arc<AtomicBool>,
    ) {
        let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.hearts.push(SimulatedHeart {
            host,
            interval,
            stop,
            heartbeat_word: Some(heartbeat_word),
            count: 0,
        });
        let heartbeat = self.hearts.len() - 1;
        self.schedule_in(0, NetEvent::Beat { heartbeat });
    }

    /// A host vanishes, and its peers hear of it at some time.
    pub(super) fn kill(&mut self, host: HostId) {
        self.hosts[host].is_alive = false;
        self.hosts[host].regions.clear();
        for connection in 0..self.connections.len() {
            for end in 0..2 {
                if self.connections[connection].ends[end].host == host {
                    let notice = self.notice();
                    self.end(connection, end, notice);
                }
            }
        }
        for acceptor in 0..self.acceptors.len() {
            if self.acceptors[acceptor].host == host {
                self.close_acceptor(acceptor);
            }
        }
        for attempt in 0..self.attempts.len() {
            if self.attempts[attempt].from == host {
                self.abandon_attempt(attempt);
            }
        }
    }
}
