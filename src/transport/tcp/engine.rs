//! The progress thread: it serves what peers do with this process's memory.
//!
//! One thread for all connections of one [`Tcp`](super::Tcp). It is started by the first listener or connection that
//! needs it, ends with the last, and no thread waits for it on the posting side.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll};
use rustix::time::Timespec;

use super::connection::{Connection, lock};
use super::hello::{Hello, Lane, Note, Ticket};
use super::socket::Socket;
use super::target::{ServeOutcome, Target};
use crate::channel::{self, Channel};
use crate::mem::{ForkGuard, OwnThread};

/// The time for which the thread looks for more before it sleeps: a sleeping thread is woken in several
/// microseconds, and a peer that waits for an answer posts again within a few.
const SPIN: Duration = Duration::from_micros(50);

/// The time after which a spinning thread yields. Nothing else takes its processor for a whole time slice, not even
/// the thread that it has just woken there, and a peer that asks again and again keeps it spinning. Measured with two
/// processors, a polling owner and a worker: rounds of 1.9 ms without, of 0.15 ms with.
const YIELD_EVERY: Duration = Duration::from_micros(10);

/// A look that took so long was interrupted: there are more threads than processors.
const INTERRUPTED: Duration = Duration::from_micros(200);

/// For how long the thread then does not spin, from the least to the most. A thread that spins loses its processor for
/// whole time slices; one that sleeps is woken ahead of others. Measured with two processors and a load of eight: round
/// trips of 50 to 1,400 us with spinning, of 8 us without, where a bare blocking ping-pong took 4.5.
const RESTRAINT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(3));

/// The time after which time limits are looked at again, while there are any.
const TICK: Duration = Duration::from_millis(100);

/// The time for which heartbeats are collected: owners look at their peers no more often. Each by itself would wake the
/// thread, thousands of times a second with a thousand peers.
const BEATS_EVERY: Duration = Duration::from_millis(20);

/// The interest in the heartbeats' descriptor: it is told once, until the thread asks again.
const ONCE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// What the system tells of a lane that has ended or is about to.
const ENDED_LANE: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);

/// The time after which copies of a GPU are looked at again. The thread spins for a while first.
const COPY_LOOK: Duration = Duration::from_micros(100);

/// Events taken at a time.
const EVENTS: usize = 64;

/// The event of the wake-up itself.
const WAKE: u64 = u64::MAX;

/// The event of the heartbeats' own descriptor.
const BEATS: u64 = u64::MAX - 1;

/// The commands that others give to the thread.
pub(super) enum Command {
    /// Take this for a further lane of the connection that waits for it under this ticket.
    Join(Channel, Ticket, Lane),
    /// Send the rest of an answer, then serve the connection.
    Finish(Channel, Arc<Connection>),
    /// Serve a lane.
    Serve(Socket, Arc<Connection>),
    /// Allow as much silence on the lanes of a connection as its owner does.
    AllowSilence(Arc<Connection>),
    /// Stop serving a connection.
    Forget(Arc<Connection>),
    /// Stop serving a connection, and tell the peer this code. Then close these lanes of its owner's: a peer that found
    /// them closed before would look for the code too early.
    Part(Arc<Connection>, u64, [Option<Socket>; 2]),
    /// Wake the peers of all connections that want it.
    Wake,
}

/// A connection whose further lanes have not all come yet.
pub(super) struct Expected {
    pub(super) connection: Arc<Connection>,
    pub(super) lanes: Vec<Lane>,
}

/// The state that the thread shares with the threads that command it.
pub(super) struct ProgressShared {
    commands: Mutex<Vec<Command>>,
    expected: Mutex<HashMap<Ticket, Expected>>,
    wake: OwnedFd,
    stop: AtomicBool,
    /// The thread was told to wake peers, and has not begun to look which.
    is_to_wake: AtomicBool,
    /// The number of the last question whether the thread has caught up, and of the last one that it has answered.
    asked: AtomicU64,
    answered: AtomicU64,
    /// Requests of peers that were refused.
    access_violations: Arc<AtomicU64>,
}

/// The progress thread, as its owners hold it.
pub(super) struct Engine {
    shared: Arc<ProgressShared>,
    thread: Option<OwnThread>,
    guard: ForkGuard,
}

impl Engine {
    pub(super) fn start(access_violations: Arc<AtomicU64>) -> io::Result<Engine> {
        let progress = ProgressState::new(access_violations)?;
        let shared = Arc::clone(&progress.shared);
        let thread = Some(OwnThread::start("slackline-tcp", move || progress.run())?);
        Ok(Engine { shared, thread, guard: ForkGuard::new() })
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.guard.is_inherited()
    }

    pub(super) fn tell(&self, command: Command) {
        if self.is_inherited() {
            // The thread is the parent's, and so is the descriptor that would wake it.
            return;
        }
        lock(&self.shared.commands).push(command);
        self.shared.wake();
    }

    /// Wakes the peer of a connection: one command for all that are woken before the thread looks.
    pub(super) fn wake(&self, connection: &Connection) {
        connection.wake();
        if !self.shared.is_to_wake.swap(true, Ordering::AcqRel) {
            self.tell(Command::Wake);
        }
    }

    /// True if the thread has looked at all that had arrived since the last question. Then the next question is put.
    pub(super) fn has_caught_up(&self) -> bool {
        let asked = self.shared.asked.load(Ordering::Relaxed);
        if self.is_inherited() {
            return true;
        }
        // Acquire: all that the thread wrote before its answer is seen.
        if self.shared.answered.load(Ordering::Acquire) != asked {
            return false;
        }
        self.shared.asked.store(asked + 1, Ordering::Release);
        self.shared.wake();
        true
    }

    /// Lets a connection's further lanes in from now on.
    pub(super) fn expect(&self, expected: Expected) {
        let ticket = expected.connection.ours.blob.ticket;
        lock(&self.shared.expected).insert(ticket, expected);
    }

    /// True if a connection waits for this lane.
    pub(super) fn expects(&self, ticket: &Ticket, lane: Lane) -> bool {
        lock(&self.shared.expected).get(ticket).is_some_and(|expected| expected.lanes.contains(&lane))
    }
}

impl ProgressShared {
    fn wake(&self) {
        // Fails only if it was woken 2^64 times already, and then it is awake.
        let _awake = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The connection that waits for this lane; from now on it does so no more.
    fn take_expected(&self, ticket: &Ticket, lane: Lane) -> Option<Arc<Connection>> {
        let mut all = lock(&self.expected);
        let expected = all.get_mut(ticket)?;
        let index = expected.lanes.iter().position(|other| *other == lane)?;
        expected.lanes.swap_remove(index);
        let connection = Arc::clone(&expected.connection);
        if expected.lanes.is_empty() {
            all.remove(ticket);
        }
        Some(connection)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let stop = || {
            self.shared.stop.store(true, Ordering::Release);
            self.shared.wake();
        };
        if !thread.end(stop) {
            tracing::error!("the tcp progress thread panicked");
        }
    }
}

/// Whether looking again at once beats sleeping.
struct Spin {
    allowed_from: Instant,
    /// The time for which it does not spin after the next interruption.
    restraint: Duration,
}

impl Spin {
    fn is_allowed(&self, now: Instant) -> bool {
        now >= self.allowed_from
    }

    /// A look that did not wait went from `begin` to `end`.
    fn looked(&mut self, begin: Instant, end: Instant) {
        if end - begin >= INTERRUPTED {
            self.allowed_from = end + self.restraint;
            self.restraint = (2 * self.restraint).min(RESTRAINT.1);
        } else if begin - self.allowed_from > RESTRAINT.1 {
            // It has gone well for long.
            self.restraint = RESTRAINT.0;
        }
    }
}

/// The look at all sources that answers a question whether the thread has caught up.
#[derive(Default)]
struct CatchUp {
    /// The question that it answers.
    asked: u64,
    /// Events that it takes at most: the system hands them out by turns, so each source has had one by then.
    left: usize,
}

impl CatchUp {
    /// True while there is a question: its answer waits for no event.
    fn is_open(&self, shared: &ProgressShared) -> bool {
        shared.asked.load(Ordering::Acquire) != shared.answered.load(Ordering::Relaxed)
    }

    /// So many events were taken and dealt with, of so many sources.
    fn advance(&mut self, shared: &ProgressShared, taken: usize, sources: usize) {
        if !self.is_open(shared) {
            return;
        }
        let asked = shared.asked.load(Ordering::Acquire);
        if self.asked != asked {
            // These events may be older than the question.
            *self = CatchUp { asked, left: sources };
            return;
        }
        self.left = self.left.saturating_sub(taken);
        if taken < EVENTS || self.left == 0 {
            shared.answered.store(asked, Ordering::Release);
        }
    }
}

/// Something that events come from.
enum EventSource {
    Finishing(Channel, Arc<Connection>),
    Lane(Target),
}

impl EventSource {
    fn connection(&self) -> &Arc<Connection> {
        match self {
            EventSource::Finishing(_, connection) => connection,
            EventSource::Lane(target) => target.connection(),
        }
    }

    /// The way in which the system tells of it. Of heartbeats it tells once: each lane is read to its end, and the
    /// system's own second look at it would cost half as much as to read it. The end of a lane is told by itself.
    fn told(&self) -> epoll::EventFlags {
        match self {
            EventSource::Lane(target) if target.socket().is_timed() => {
                epoll::EventFlags::ET | epoll::EventFlags::RDHUP
            }
            _ => epoll::EventFlags::empty(),
        }
    }
}

impl AsFd for EventSource {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        match self {
            EventSource::Finishing(channel, _) => channel.as_fd(),
            EventSource::Lane(target) => target.socket().as_fd(),
        }
    }
}

struct SourceEntry {
    /// Grows with every source that this entry has held, so that an event of an earlier one is known.
    generation: u32,
    interest: epoll::EventFlags,
    source: Option<EventSource>,
}

/// The state of the thread.
struct ProgressState {
    shared: Arc<ProgressShared>,
    epoll: OwnedFd,
    /// Of the lanes for heartbeats. It is among the sources of `epoll` itself.
    beats: OwnedFd,
    /// The time at which the thread asks again to be told of heartbeats, if it was told.
    beats_due: Option<Instant>,
    /// True while a lane may be kept only so that its peer hears why it ends.
    has_draining: bool,
    /// The lanes for which a GPU copies: nothing but a look tells that it is done.
    copying: Vec<u64>,
    /// Empty: the memory for the next ones, so that a look allocates nothing.
    looked_at: Vec<u64>,
    sources: Vec<SourceEntry>,
    free: Vec<usize>,
}

impl ProgressState {
    fn new(access_violations: Arc<AtomicU64>) -> io::Result<ProgressState> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let shared = Arc::new(ProgressShared {
            commands: Mutex::default(),
            expected: Mutex::default(),
            wake,
            stop: AtomicBool::new(false),
            is_to_wake: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            access_violations,
        });
        let beats = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &beats, epoll::EventData::new_u64(BEATS), ONCE)?;
        Ok(ProgressState {
            shared,
            epoll,
            beats,
            beats_due: None,
            has_draining: false,
            copying: Vec::new(),
            looked_at: Vec::new(),
            sources: Vec::new(),
            free: Vec::new(),
        })
    }

    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let mut busy = Instant::now();
        let mut ticked = busy;
        let mut yielded = busy;
        let mut round = CatchUp::default();
        let mut spin = Spin { allowed_from: busy, restraint: RESTRAINT.0 };
        while !self.shared.stop.load(Ordering::Acquire) {
            let now = Instant::now();
            let is_spinning = now - busy < SPIN && spin.is_allowed(now);
            if now - ticked >= TICK {
                ticked = now;
                self.tick(now);
            }
            self.ask_for_beats(now);
            self.look_at_copies();
            let is_asked = round.is_open(&self.shared);
            if is_asked {
                self.take_beats();
                self.serve_crowded();
            }
            let at_most = match (is_spinning || is_asked, !self.copying.is_empty(), self.has_draining) {
                (true, ..) => Some(Duration::ZERO),
                (false, true, _) => Some(COPY_LOOK),
                (false, false, true) => Some(TICK),
                (false, false, false) => None,
            };
            let beats = self.beats_due.map(|due| due.saturating_duration_since(now));
            let wait = at_most.into_iter().chain(beats).min();
            let wait = wait.map(|wait| Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ });
            events.clear();
            let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref());
            if let Err(error) = waited
                && error != rustix::io::Errno::INTR
            {
                // A broken epoll descriptor cannot be repaired from here; dropping everything tells all peers.
                tracing::error!(%error, "the tcp progress thread cannot wait for events");
                return;
            }
            if is_spinning {
                if now - yielded >= YIELD_EVERY {
                    std::thread::yield_now();
                    yielded = Instant::now();
                }
                spin.looked(now, Instant::now());
            }
            let taken = events.len();
            let mut has_work = false;
            for event in events.drain(..) {
                match event.data.u64() {
                    WAKE => self.obey(),
                    BEATS => {
                        self.take_beats();
                        self.beats_due = Some(now + BEATS_EVERY);
                        // No thread waits for an answer, or sends more at once.
                        continue;
                    }
                    token => self.handle(token, event.flags),
                }
                has_work = true;
            }
            round.advance(&self.shared, taken, self.sources.len());
            if has_work {
                busy = Instant::now();
            }
        }
        // Peers that were let go at the very end are told why.
        self.obey();
    }

    /// Has the system tell of heartbeats again, if it is time for that.
    fn ask_for_beats(&mut self, now: Instant) {
        if self.beats_due.is_none_or(|due| now < due) {
            return;
        }
        match epoll::modify(&self.epoll, &self.beats, epoll::EventData::new_u64(BEATS), ONCE) {
            Ok(()) => self.beats_due = None,
            Err(error) => {
                tracing::warn!(%error, "the tcp progress thread cannot wait for heartbeats, and looks for them");
                self.take_beats();
                self.beats_due = Some(now + BEATS_EVERY);
            }
        }
    }

    /// Looks at the lanes for heartbeats on which something has come.
    fn take_beats(&mut self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(EVENTS);
        // The system hands them out by turns: no lane is served much more often than the others.
        for _ in 0..=self.sources.len() / EVENTS {
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            let taken = epoll::wait(&self.beats, spare, Some(&at_once)).unwrap_or(0);
            for event in &events {
                self.take_beat(event.data.u64(), event.flags);
            }
            if taken < EVENTS {
                return;
            }
        }
    }

    /// Counts what has come on a lane for heartbeats if its owner goes by that, and else serves the lane.
    fn take_beat(&mut self, token: u64, flags: epoll::EventFlags) {
        let (generation, index) = ((token >> 32) as u32, token as u32 as usize);
        let has_ended = flags.intersects(ENDED_LANE);
        if let Some(SourceEntry { generation: of_now, source: Some(EventSource::Lane(target)), .. }) =
            self.sources.get_mut(index)
            && *of_now == generation
            && !has_ended
            && flags.contains(epoll::EventFlags::IN)
            && !target.is_sending()
            && !target.has_input()
            && target.leave_unread()
        {
            return;
        }
        self.handle(token, flags);
        if has_ended {
            // Behind the beats that were waiting.
            self.handle(token, flags);
        }
    }

    /// Serves the lanes that what was left unread may have filled: an owner asks whether a peer is alive. What little
    /// is left unread of others was counted when it came, and must not count again.
    fn serve_crowded(&mut self) {
        for index in 0..self.sources.len() {
            if let Some(EventSource::Lane(target)) = &self.sources[index].source
                && target.is_crowded()
            {
                self.serve_lane(index);
            }
        }
    }

    /// Serves the lanes for which a GPU copies.
    fn look_at_copies(&mut self) {
        let mut looked_at = std::mem::take(&mut self.looked_at);
        std::mem::swap(&mut self.copying, &mut looked_at);
        for token in looked_at.drain(..) {
            let (generation, index) = ((token >> 32) as u32, token as u32 as usize);
            if self.sources.get(index).is_some_and(|entry| entry.generation == generation) {
                self.serve_lane(index);
            }
        }
        self.looked_at = looked_at;
    }

    /// The descriptor that tells of a source.
    fn epoll_of(&self, source: &EventSource) -> &OwnedFd {
        match source {
            EventSource::Lane(target) if target.socket().is_timed() => &self.beats,
            _ => &self.epoll,
        }
    }

    fn add(&mut self, source: EventSource, interest: epoll::EventFlags) {
        let interest = interest | source.told();
        let index = self.free.pop().unwrap_or_else(|| {
            self.sources.push(SourceEntry { generation: 0, interest, source: None });
            self.sources.len() - 1
        });
        let entry = &mut self.sources[index];
        entry.generation = entry.generation.wrapping_add(1);
        entry.interest = interest;
        let token = u64::from(entry.generation) << 32 | index as u64;
        let told = epoll::EventData::new_u64(token);
        match epoll::add(self.epoll_of(&source), source.as_fd(), told, interest) {
            Ok(()) => self.sources[index].source = Some(source),
            Err(error) => {
                tracing::warn!(%error, "dropped a tcp connection: it cannot be waited for");
                self.free.push(index);
                source.connection().fail(super::initiator::ENDED);
            }
        }
    }

    /// Takes a source out, so that events of it come no more, whichever process holds copies of its descriptor.
    fn remove(&mut self, index: usize) -> Option<EventSource> {
        let source = self.sources.get_mut(index)?.source.take()?;
        // Fails only where the descriptor is broken, and then there are no events either.
        let _unknown = epoll::delete(self.epoll_of(&source), source.as_fd());
        self.free.push(index);
        Some(source)
    }

    /// Has the system tell of the next event. If it has told of all that there is already, and does so once, it is
    /// asked again for what is left.
    fn wants(&mut self, index: usize, interest: epoll::EventFlags, is_left: bool) {
        let entry = &mut self.sources[index];
        let Some(source) = &entry.source else { return };
        let interest = interest | source.told();
        let is_same = std::mem::replace(&mut entry.interest, interest) == interest;
        if is_same && !(is_left && interest.contains(epoll::EventFlags::ET)) {
            return;
        }
        let told = epoll::EventData::new_u64(u64::from(entry.generation) << 32 | index as u64);
        let Some(source) = &self.sources[index].source else { return };
        if let Err(error) = epoll::modify(self.epoll_of(source), source.as_fd(), told, interest) {
            tracing::warn!(%error, "a tcp connection cannot be waited for");
        }
    }

    fn obey(&mut self) {
        let mut count = [0; 8];
        // Fails only if another reader was faster, and there is none.
        let _woken = rustix::io::read(&self.shared.wake, &mut count);
        let commands = std::mem::take(&mut *lock(&self.shared.commands));
        for command in commands {
            match command {
                Command::Join(channel, ticket, lane) => self.join(channel, &ticket, lane),
                Command::Finish(channel, connection) => self.finish(channel, connection),
                Command::Serve(socket, connection) => self.serve(socket, connection),
                Command::AllowSilence(connection) => self.allow_silence(&connection),
                Command::Forget(connection) => self.forget(&connection),
                Command::Part(connection, code, owners) => {
                    self.part(&connection, code);
                    drop(owners);
                }
                Command::Wake => self.wake_peers(),
            }
        }
    }

    fn serve(&mut self, socket: Socket, connection: Arc<Connection>) {
        if connection.over().is_none() {
            connection.allow_silence_on(&socket);
            let target = Target::new(socket, connection, Arc::clone(&self.shared.access_violations));
            self.add(EventSource::Lane(target), epoll::EventFlags::IN);
        }
    }

    fn finish(&mut self, mut channel: Channel, connection: Arc<Connection>) {
        if connection.over().is_some() {
            return;
        }
        // Not polled: what the peer sends next is no message of the channel.
        match channel.flush() {
            Ok(()) if channel.is_flushed() => self.serve(Socket::patient(channel), connection),
            Ok(()) => {
                // A peer that computes may take the rest of a long answer later.
                if let Err(error) = channel::wait_for_slow_reader(&channel) {
                    tracing::warn!(%error, "a peer that stops reading for seconds will be taken for dead");
                }
                self.add(EventSource::Finishing(channel, connection), epoll::EventFlags::OUT);
            }
            Err(_) => self.end(&connection, super::initiator::ENDED),
        }
    }

    /// Ends a connection: all of its lanes.
    fn end(&mut self, connection: &Arc<Connection>, reason: &'static str) {
        connection.fail(reason);
        self.forget(connection);
    }

    fn allow_silence(&mut self, connection: &Arc<Connection>) {
        for source in self.sources.iter().filter_map(|source| source.source.as_ref()) {
            if let EventSource::Lane(target) = source
                && Arc::ptr_eq(target.connection(), connection)
            {
                target.allow_silence();
            }
        }
    }

    fn forget(&mut self, connection: &Arc<Connection>) {
        lock(&self.shared.expected).remove(&connection.ours.blob.ticket);
        self.remove_all(|source| Arc::ptr_eq(source.connection(), connection));
    }

    /// Tells the peer of a connection that it is closed and why, on each lane that has nothing else under way. They are
    /// kept until the peer has closed them, or for a while.
    fn part(&mut self, connection: &Arc<Connection>, code: u64) {
        lock(&self.shared.expected).remove(&connection.ours.blob.ticket);
        for index in 0..self.sources.len() {
            let Some(source) = &mut self.sources[index].source else { continue };
            if !Arc::ptr_eq(source.connection(), connection) {
                continue;
            }
            let is_told = match source {
                EventSource::Lane(target) => target.close(code),
                _ => false,
            };
            if is_told {
                self.serve_lane(index);
            } else {
                self.remove(index);
            }
        }
    }

    /// Wakes the peers that are to be woken, by the lanes of their requests.
    fn wake_peers(&mut self) {
        // A wake-up that is asked for from now on is a command of its own.
        self.shared.is_to_wake.swap(false, Ordering::AcqRel);
        for index in 0..self.sources.len() {
            if let Some(EventSource::Lane(target)) = &mut self.sources[index].source
                && !target.socket().is_timed()
                && target.connection().take_wakes()
            {
                target.wake();
                self.serve_lane(index);
            }
        }
    }

    fn remove_all(&mut self, which: impl Fn(&EventSource) -> bool) {
        for index in 0..self.sources.len() {
            if self.sources[index].source.as_ref().is_some_and(&which) {
                self.remove(index);
            }
        }
    }

    fn handle(&mut self, token: u64, flags: epoll::EventFlags) {
        let (generation, index) = ((token >> 32) as u32, token as u32 as usize);
        let Some(entry) = self.sources.get_mut(index).filter(|entry| entry.generation == generation) else {
            return;
        };
        match &mut entry.source {
            None => {}
            // While a GPU copies nothing is received, and the news is that the peer is gone. Anything else was told
            // before the copy began, which another event of the same look may have begun.
            Some(EventSource::Lane(target)) if entry.interest.is_empty() => {
                if !flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                    return;
                }
                let connection = Arc::clone(target.connection());
                self.end(&connection, super::initiator::ENDED);
            }
            Some(EventSource::Lane(_)) => self.serve_lane(index),
            Some(EventSource::Finishing(..)) => {
                if let Some(EventSource::Finishing(channel, connection)) = self.remove(index) {
                    self.finish(channel, connection);
                }
            }
        }
    }

    fn serve_lane(&mut self, index: usize) {
        let entry = &mut self.sources[index];
        let token = u64::from(entry.generation) << 32 | index as u64;
        let Some(EventSource::Lane(target)) = &mut entry.source else { return };
        match target.serve() {
            Ok(turn) => {
                self.has_draining |= target.is_draining();
                // Of a peer that takes its answers again the system tells.
                let is_copying =
                    target.is_copying() && (turn != ServeOutcome::Blocked || target.is_holding());
                if is_copying && !self.copying.contains(&token) {
                    self.copying.push(token);
                }
                let interest = match turn == ServeOutcome::Blocked || target.is_sending() {
                    // The system has nothing to tell before the GPU has.
                    _ if turn == ServeOutcome::Copying => epoll::EventFlags::empty(),
                    true => epoll::EventFlags::OUT,
                    // What the system has handed over already is served once the others have had their turns.
                    false if target.has_input() => epoll::EventFlags::IN | epoll::EventFlags::OUT,
                    false => epoll::EventFlags::IN,
                };
                self.wants(index, interest, turn == ServeOutcome::More);
            }
            Err(broken) => {
                let connection = Arc::clone(target.connection());
                self.end(&connection, broken.0);
            }
        }
    }

    /// Takes a newcomer for the lane that it wants to be, if its connection still waits for that lane.
    fn join(&mut self, mut channel: Channel, ticket: &Ticket, lane: Lane) {
        let Some(connection) = self.shared.take_expected(ticket, lane) else { return };
        // A lane of this side's is posted on by another thread, which finds it once the peer knows.
        let mut reverse = (lane != Lane::ForwardHeartbeat).then(|| connection.reverse(lane));
        // A socket to which nothing was sent but a greeting has room for this.
        let said = channel.send(&Hello::Note(Note::Joined).encode(&[]));
        if said.is_err() || !channel.is_flushed() {
            drop(reverse);
            return self.end(&connection, super::initiator::ENDED);
        }
        match &mut reverse {
            Some(reverse) => {
                let socket = match lane {
                    Lane::ReverseData => Socket::patient(channel),
                    Lane::ForwardHeartbeat | Lane::ReverseHeartbeat => Socket::timed(channel),
                };
                connection.allow_silence_on(&socket);
                **reverse = Some(socket);
            }
            None => {
                drop(reverse);
                self.serve(Socket::timed(channel), connection);
            }
        }
    }

    /// Looks after everything that has a time limit.
    fn tick(&mut self, now: Instant) {
        if !std::mem::take(&mut self.has_draining) {
            return;
        }
        for index in 0..self.sources.len() {
            let Some(EventSource::Lane(target)) = &self.sources[index].source else { continue };
            if target.is_overdue(now) {
                let connection = Arc::clone(target.connection());
                self.end(&connection, super::target::OFFENDED.0);
            } else {
                self.has_draining |= target.is_draining();
            }
        }
    }
}

#[cfg(test)]
mod tests;
