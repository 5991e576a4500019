//! The progress thread: it serves the requests of peers to this process's memory.
//!
//! One thread for all connections of one [`Tcp`](super::Tcp). It is started by the first listener or connection that
//! needs it, ends with the last, and no thread waits for it on the posting side.

mod progress;
mod sources;
mod turns;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use self::progress::ProgressState;
use super::connection::{Connection, lock};
use super::hello::{Lane, Ticket};
use super::socket::Socket;
use crate::channel::Channel;
use crate::mem::{ForkGuard, OwnThread};

/// Events taken at a time.
const EVENTS: usize = 64;

/// Why a connection ends whose thread has ended.
const UNSERVED: &str = "the thread that serves TCP peers has ended: the log of this process says why";

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
    /// The number of the last question whether the thread has caught up, and of the last question that it has answered.
    asked: AtomicU64,
    answered: AtomicU64,
    /// The thread serves no connection any more. Set while `commands` is locked, so that none comes too late unseen.
    has_ended: AtomicBool,
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

    /// True if the thread runs in this process.
    pub(super) fn is_running(&self) -> bool {
        !self.is_inherited() && !self.has_ended()
    }

    pub(super) fn is_inherited(&self) -> bool {
        self.guard.is_inherited()
    }

    /// True if the thread serves no connection any more. While this is there it is asked to go on: it has panicked, or
    /// the system failed it.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Acquire)
    }

    /// Gives the thread a command. Where it has ended, the connection that the command is about ends, too.
    pub(super) fn tell(&self, command: Command) {
        if self.is_inherited() {
            // The thread is the parent's, and so is the descriptor that would wake it.
            return;
        }
        let mut commands = lock(&self.shared.commands);
        if self.has_ended() {
            drop(commands);
            command.give_up();
            return;
        }
        commands.push(command);
        drop(commands);
        self.shared.wake();
    }

    /// Wakes the peer of a connection: one command for all peers that are woken before the thread looks.
    pub(super) fn wake(&self, connection: &Connection) {
        connection.wake();
        if !self.shared.is_to_wake.swap(true, Ordering::AcqRel) {
            self.tell(Command::Wake);
        }
    }

    /// True if the thread has processed all bytes that had arrived before the last question. Then it is asked the next
    /// question. Also true if the thread has ended: it will process nothing more.
    pub(super) fn has_caught_up(&self) -> bool {
        let asked = self.shared.asked.load(Ordering::Relaxed);
        if self.is_inherited() || self.has_ended() {
            return true;
        }
        // Acquire: all writes of the thread before its answer are visible.
        if self.shared.answered.load(Ordering::Acquire) != asked {
            return false;
        }
        self.shared.asked.store(asked + 1, Ordering::Release);
        self.shared.wake();
        true
    }

    /// Lets a connection's further lanes in from now on, unless the thread has ended.
    pub(super) fn expect(&self, expected: Expected) {
        let ticket = expected.connection.ours.blob.ticket;
        let mut all = lock(&self.shared.expected);
        // Commands that come before the end are dropped at the end, under the same lock.
        if !self.has_ended() {
            all.insert(ticket, expected);
        }
    }

    /// True if a connection waits for this lane.
    pub(super) fn expects(&self, ticket: &Ticket, lane: Lane) -> bool {
        lock(&self.shared.expected).get(ticket).is_some_and(|expected| expected.lanes.contains(&lane))
    }
}

impl Command {
    /// Ends the connection that it is about, as no thread serves it.
    fn give_up(self) {
        match self {
            Command::Finish(_, connection)
            | Command::Serve(_, connection)
            | Command::AllowSilence(connection)
            | Command::Forget(connection)
            | Command::Part(connection, ..) => connection.fail(UNSERVED),
            Command::Join(..) | Command::Wake => {}
        }
    }
}

impl ProgressShared {
    /// Ends all connections that the thread would have served: it has ended.
    fn give_up(&self) {
        if !self.stop.load(Ordering::Acquire) {
            tracing::error!(
                "the thread that serves tcp peers has ended, and with it all connections over tcp"
            );
        }
        let commands = {
            let mut commands = lock(&self.commands);
            self.has_ended.store(true, Ordering::Release);
            std::mem::take(&mut *commands)
        };
        commands.into_iter().for_each(Command::give_up);
        for (_, expected) in lock(&self.expected).drain() {
            expected.connection.fail(UNSERVED);
        }
    }

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

#[cfg(test)]
mod tests;
