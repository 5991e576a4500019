//! Newcomers of one listener: from the moment the system accepts them until their offer is complete, on which the
//! listener has to decide. A thread of their own greets them, so that connected peers never wait for them, however many
//! come.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::process::setpriority_process;
use rustix::time::Timespec;

use super::connection::lock;
use super::engine::{Command, Engine};
use super::hello::{Hello, Lane, Note, Terms, Ticket};
use crate::channel::{self, Channel};
use crate::mem::OwnThread;
use crate::time::Instant;
use crate::transport::doorbell::Doorbell;
use crate::transport::wireup::{Newcomer, Newcomers, WireError, accept};
use crate::transport::{Address, MAX_PENDING_HANDSHAKES};

/// The time after which the thread looks at its time limits again, while there are any.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The priority of the thread, as `nice` counts it: where processors are short, peers that are served come before
/// connections of which nothing is known.
const NICENESS: i32 = 10;

/// The thread that greets the newcomers of a listener, as the listener holds it.
pub(super) struct Acceptor {
    shared: Arc<AcceptorShared>,
    thread: Option<OwnThread>,
}

/// The state that the thread shares with its listener.
struct AcceptorShared {
    /// The peers that have made their offer, in order.
    ready: Mutex<VecDeque<PendingConnection>>,
    wake: OwnedFd,
    stop: AtomicBool,
    /// The doorbell of the listener's owner, if it is to be woken.
    doorbell: OnceLock<Arc<Doorbell>>,
}

/// A peer that has made its offer.
pub(super) struct PendingConnection {
    pub(super) channel: Channel,
    pub(super) terms: Terms,
    pub(super) message: Vec<u8>,
}

impl Acceptor {
    pub(super) fn start(
        socket: TcpListener,
        address: Address,
        terms: channel::ChannelTerms,
        engine: Arc<Engine>,
    ) -> io::Result<Acceptor> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(AcceptorShared {
            ready: Mutex::default(),
            wake,
            stop: AtomicBool::new(false),
            doorbell: OnceLock::new(),
        });
        let newcomers = Newcomers::default();
        let greeter = Greeter { shared: Arc::clone(&shared), socket, address, terms, engine, newcomers };
        let thread = Some(OwnThread::start("slackline-accept", move || greeter.run())?);
        Ok(Acceptor { shared, thread })
    }

    /// Has each peer that waits for an answer ring this.
    pub(super) fn set_doorbell(&self, doorbell: Arc<Doorbell>) {
        // A listener has one.
        let _first = self.shared.doorbell.set(doorbell);
    }

    /// Takes the next peer that waits for an answer.
    pub(super) fn next(&self) -> Option<PendingConnection> {
        let mut ready = lock(&self.shared.ready);
        let was_full = ready.len() >= MAX_PENDING_HANDSHAKES;
        let next = ready.pop_front();
        drop(ready);
        if was_full {
            self.shared.wake();
        }
        next
    }

    /// Ends the thread, and waits for that: it looks at its socket no more. A forked child leaves it to its parent.
    pub(super) fn stop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        let stop = || {
            self.shared.stop.store(true, Ordering::Release);
            self.shared.wake();
        };
        if !thread.end(stop) {
            tracing::error!("the thread that accepts tcp connections panicked");
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stop();
    }
}

impl AcceptorShared {
    fn wake(&self) {
        // Fails only if it was woken 2^64 times already, and then it is awake.
        let _awake = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn is_full(&self) -> bool {
        lock(&self.ready).len() >= MAX_PENDING_HANDSHAKES
    }
}

/// The state of the thread.
struct Greeter {
    shared: Arc<AcceptorShared>,
    socket: TcpListener,
    address: Address,
    terms: channel::ChannelTerms,
    engine: Arc<Engine>,
    newcomers: Newcomers<Pending>,
}

impl Greeter {
    fn run(mut self) {
        // Of this thread alone. Where it is refused, the thread has the priority of the others.
        let _same = setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        let origin = std::time::Instant::now();
        while !self.shared.stop.load(Ordering::Acquire) {
            let is_full = self.shared.is_full();
            self.wait(is_full);
            let now = Instant::ORIGIN + origin.elapsed();
            if !is_full {
                let (socket, terms, engine) = (&self.socket, &self.terms, &self.engine);
                let pending = |channel| Pending { channel, engine: Arc::clone(engine) };
                self.newcomers.admit(&self.address, now, || Ok(accept(socket, terms)?.map(pending)));
            }
            while let Some((Pending { channel, .. }, said)) = self.newcomers.next(&self.address, now) {
                match said {
                    TcpMessage::Offer(terms, message) => {
                        lock(&self.shared.ready).push_back(PendingConnection { channel, terms, message });
                        if let Some(doorbell) = self.shared.doorbell.get() {
                            doorbell.ring();
                        }
                    }
                    TcpMessage::Join(ticket, lane) => self.engine.tell(Command::Join(channel, ticket, lane)),
                }
            }
        }
    }

    /// Waits until there is something to do. While as many wait for an answer as may, the others stay in the system's
    /// queue.
    fn wait(&self, is_full: bool) {
        let mut sockets = Vec::with_capacity(2 + MAX_PENDING_HANDSHAKES);
        sockets.push(PollFd::new(&self.shared.wake, PollFlags::IN));
        if !is_full && !self.newcomers.cannot_accept() {
            sockets.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        sockets.extend(self.newcomers.iter().map(|Pending { channel, .. }| {
            let out = if channel.is_flushed() { PollFlags::empty() } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN | out)
        }));
        // Interrupted or refused, it is only a shorter wait.
        let _ready = rustix::event::poll(&mut sockets, self.newcomers.is_timed().then_some(&TICK));
        // Fails where it was not woken.
        let _woken = rustix::io::read(&self.shared.wake, &mut [0; 8]);
    }
}

/// A newcomer about which nothing is known yet.
struct Pending {
    channel: Channel,
    engine: Arc<Engine>,
}

/// The wish of a newcomer.
enum TcpMessage {
    /// It wants to connect.
    Offer(Terms, Vec<u8>),
    /// It is one more lane of a connection, which the progress thread serves.
    Join(Ticket, Lane),
}

impl Newcomer for Pending {
    type Said = TcpMessage;

    fn hear(&mut self) -> Result<Option<TcpMessage>, String> {
        let Some(bytes) = self.channel.poll().map_err(|error| error.to_string())? else { return Ok(None) };
        match Hello::decode(&bytes) {
            Ok((Hello::Offer(terms), message)) => Ok(Some(TcpMessage::Offer(terms, message))),
            Ok((Hello::Note(Note::Join(ticket, lane)), _)) if self.engine.expects(&ticket, lane) => {
                Ok(Some(TcpMessage::Join(ticket, lane)))
            }
            Ok((Hello::Note(Note::Join(..)), _)) => {
                Err("it joins a connection that does not wait for it".into())
            }
            Ok((Hello::Accept(_) | Hello::Refuse(_) | Hello::Note(Note::Joined), _)) => {
                Err("it answered without a question".into())
            }
            Err(error) => {
                if let WireError::Version { .. } = error {
                    // If it is gone already, it does not need to know.
                    let _unheard = self.channel.send(&Hello::refuse(error.to_string().into()).encode(&[]));
                }
                Err(error.to_string())
            }
        }
    }

    fn messages(&self) -> u8 {
        self.channel.greetings()
    }
}
