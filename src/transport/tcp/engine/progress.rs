//! The thread of the engine: its sockets, and its work on each.

use std::io;
use std::os::fd::AsFd as _;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::sources::{EventSource, SourceEntry};
use super::turns::{CatchUp, RESTRAINT, Spin};
use super::{Command, EVENTS, ProgressShared, UNSERVED};
use crate::channel;
use crate::channel::Channel;
use crate::transport::tcp::connection::{Connection, lock};
use crate::transport::tcp::hello::{Hello, Lane, Note, Ticket};
use crate::transport::tcp::initiator::ENDED;
use crate::transport::tcp::socket::Socket;
use crate::transport::tcp::target::OFFENDED;
use crate::transport::tcp::target::{ServeOutcome, Target};
use rustix::event::{EventfdFlags, epoll};
use rustix::time::Timespec;

/// The state of the thread.
pub(super) struct ProgressState {
    pub(super) shared: Arc<ProgressShared>,
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
    pub(super) sources: Vec<SourceEntry>,
    free: Vec<usize>,
}

impl Drop for ProgressState {
    fn drop(&mut self) {
        // Owners that are left, if the thread panicked or the system failed it, hear so.
        for source in self.sources.iter().filter_map(|entry| entry.source.as_ref()) {
            source.connection().fail(UNSERVED);
        }
        self.shared.give_up();
    }
}

impl ProgressState {
    pub(super) fn new(access_violations: Arc<AtomicU64>) -> io::Result<ProgressState> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let shared = Arc::new(ProgressShared {
            commands: Mutex::default(),
            expected: Mutex::default(),
            wake,
            stop: AtomicBool::new(false),
            is_to_wake: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
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

    pub(super) fn run(mut self) {
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
        // Peers that were disconnected at the very end receive the reason.
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

    /// Counts the arrivals on a lane for heartbeats if its owner uses the count, and serves the lane otherwise.
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

    /// Serves the lanes that unread heartbeats may have filled: an owner asks whether a peer is alive. The few unread
    /// bytes of other lanes were counted when they came, and must not count again.
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
                source.connection().fail(ENDED);
            }
        }
    }

    /// Takes a source out, so that events of it come no more, whichever process holds copies of its descriptor.
    pub(super) fn remove(&mut self, index: usize) -> Option<EventSource> {
        let source = self.sources.get_mut(index)?.source.take()?;
        // Fails only where the descriptor is broken, and then there are no events either.
        let _unknown = epoll::delete(self.epoll_of(&source), source.as_fd());
        self.free.push(index);
        Some(source)
    }

    /// Waits for the next event of the system. An event that was reported already, and is reported once only, is
    /// requested again for the bytes that are left.
    pub(super) fn wants(&mut self, index: usize, interest: epoll::EventFlags, is_left: bool) {
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

    pub(super) fn serve(&mut self, socket: Socket, connection: Arc<Connection>) {
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
        // Not polled: the peer's next bytes are no message of the channel.
        match channel.flush() {
            Ok(()) if channel.is_flushed() => self.serve(Socket::patient(channel), connection),
            Ok(()) => {
                // A peer that computes may take the rest of a long answer later.
                if let Err(error) = channel::wait_for_slow_reader(&channel) {
                    tracing::warn!(%error, "a peer that stops reading for seconds will be taken for dead");
                }
                self.add(EventSource::Finishing(channel, connection), epoll::EventFlags::OUT);
            }
            Err(_) => self.end(&connection, ENDED),
        }
    }

    /// Ends a connection: all of its lanes.
    pub(super) fn end(&mut self, connection: &Arc<Connection>, reason: &'static str) {
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

    pub(super) fn handle(&mut self, token: u64, flags: epoll::EventFlags) {
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
                self.end(&connection, ENDED);
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
                    // Bytes that the system has handed over already are served once the others have had their turns.
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
            return self.end(&connection, ENDED);
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
                self.end(&connection, OFFENDED.0);
            } else {
                self.has_draining |= target.is_draining();
            }
        }
    }
}

/// The time for which the thread looks for more before it sleeps: a sleeping thread is woken in several
/// microseconds, and a peer that waits for an answer posts again within a few.
const SPIN: Duration = Duration::from_micros(50);

/// The time after which a spinning thread yields. Nothing else takes its processor for a whole time slice, not even
/// the thread that it has just woken there, and a peer that asks again and again keeps it spinning. Measured with two
/// processors, a polling owner and a worker: rounds of 1.9 ms without, of 0.15 ms with.
const YIELD_EVERY: Duration = Duration::from_micros(10);

/// The time after which time limits are looked at again, while there are any.
const TICK: Duration = Duration::from_millis(100);

/// The time for which heartbeats are collected: owners look at their peers no more often. Each by itself would wake the
/// thread, thousands of times a second with a thousand peers.
const BEATS_EVERY: Duration = Duration::from_millis(20);

/// The interest in the heartbeats' descriptor: it is told once, until the thread asks again.
const ONCE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// The events of a lane that has ended or is about to end.
const ENDED_LANE: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);

/// The time after which copies of a GPU are looked at again. The thread spins for a while first.
const COPY_LOOK: Duration = Duration::from_micros(100);

/// The event of the wake-up itself.
const WAKE: u64 = u64::MAX;

/// The event of the heartbeats' own descriptor.
const BEATS: u64 = u64::MAX - 1;
