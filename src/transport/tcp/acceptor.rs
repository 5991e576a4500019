//! Newcomers: from the moment the system accepts them until they have said all that a listener has to decide on.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::connection::{Connection, lock};
use super::engine::Shared;
use super::hello::{Hello, Lane, Note, Terms, Ticket};
use super::socket::Socket;
use crate::channel::{self, Channel};
use crate::transport::wireup::{Refusals, WireError};
use crate::transport::{Address, HANDSHAKE_TIMEOUT, MAX_PENDING_HANDSHAKES};

/// The state that a listener and the progress thread share.
pub(super) struct Acceptor {
    pub(super) address: Address,
    pub(super) terms: channel::Terms,
    /// The peers that have made their offer, in order.
    ready: Mutex<VecDeque<PendingConnection>>,
    refusals: Mutex<Refusals>,
    /// Its listener is gone, and its socket shut down.
    is_closed: AtomicBool,
}

/// A peer that has made its offer.
pub(super) struct PendingConnection {
    pub(super) channel: Channel,
    pub(super) terms: Terms,
    pub(super) message: Vec<u8>,
}

impl Acceptor {
    pub(super) fn new(address: Address, terms: channel::Terms) -> Acceptor {
        let (ready, refusals) = (Mutex::default(), Mutex::default());
        Acceptor { address, terms, ready, refusals, is_closed: AtomicBool::new(false) }
    }

    /// The next peer that waits for an answer; and whether there were as many as there may be until now.
    pub(super) fn next(&self) -> (Option<PendingConnection>, bool) {
        let mut ready = lock(&self.ready);
        let was_full = ready.len() >= MAX_PENDING_HANDSHAKES;
        (ready.pop_front(), was_full)
    }

    /// Marks its listener as gone: from now on a socket that accepts no connections is not logged.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Counts a connection that is refused, and logs it if it is time for that.
    pub(super) fn refuse(&self, reason: &dyn std::fmt::Display) {
        lock(&self.refusals).add(&self.address, reason);
    }

    /// Logs the connections that were refused since the last line of the log, if it is time for that.
    pub(super) fn log_refusals(&self) {
        lock(&self.refusals).log(&self.address);
    }

    pub(super) fn has_unlogged_refusals(&self) -> bool {
        lock(&self.refusals).has_unlogged()
    }

    fn is_full(&self) -> bool {
        lock(&self.ready).len() >= MAX_PENDING_HANDSHAKES
    }
}

/// A listening socket.
pub(super) struct AcceptorSource {
    pub(super) socket: TcpListener,
    pub(super) acceptor: Arc<Acceptor>,
    /// True while the system accepts no connections, so that this is logged once.
    cannot_accept: bool,
}

impl AcceptorSource {
    pub(super) fn new(socket: TcpListener, acceptor: Arc<Acceptor>) -> AcceptorSource {
        AcceptorSource { socket, acceptor, cannot_accept: false }
    }

    /// True if no connection is to be accepted for now: the others wait in the system's queue.
    pub(super) fn is_paused(&self) -> bool {
        self.cannot_accept || self.acceptor.is_full()
    }

    /// Accepts one connection at most, so that its caller bounds how many are looked at in a row.
    pub(super) fn admit(&mut self) -> Admitted {
        if self.acceptor.is_full() {
            return Admitted::Nothing;
        }
        let accepted = self.socket.accept();
        let cannot_accept = match accepted.as_ref().map_err(io::Error::kind) {
            Ok(_) | Err(io::ErrorKind::WouldBlock) => false,
            Err(io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => return Admitted::Refused,
            Err(_) => true,
        };
        let could_accept = !std::mem::replace(&mut self.cannot_accept, cannot_accept);
        match accepted {
            Ok((stream, _)) => match Channel::accept(stream, &self.acceptor.terms) {
                Ok(channel) => {
                    let (acceptor, since) = (Arc::clone(&self.acceptor), Instant::now());
                    Admitted::Newcomer(Box::new(Newcomer { channel, acceptor, since }))
                }
                Err(error) => {
                    self.acceptor.refuse(&error);
                    Admitted::Refused
                }
            },
            Err(error) => {
                if cannot_accept && could_accept && !self.acceptor.is_closed.load(Ordering::Acquire) {
                    tracing::warn!(address = %self.acceptor.address, %error, "cannot accept connections for now");
                }
                Admitted::Nothing
            }
        }
    }
}

/// The outcome of one look at the system's queue.
pub(super) enum Admitted {
    /// A newcomer about which nothing is known yet.
    Newcomer(Box<Newcomer>),
    /// A connection that came to nothing.
    Refused,
    /// There is none, or no room for one.
    Nothing,
}

/// A newcomer about which nothing is known yet.
pub(super) struct Newcomer {
    pub(super) channel: Channel,
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) since: Instant,
}

/// The outcome of hearing a newcomer.
pub(super) enum Heard {
    /// Not all of it yet.
    Silence { has_more_to_say: bool },
    /// It wants to connect.
    Offer(Terms, Vec<u8>),
    /// It is one more lane of a connection.
    Join(Lane, Arc<Connection>),
    /// A message that no listener wants to hear.
    Nonsense,
}

impl Newcomer {
    /// Whether it has had the time that there is for its handshake.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        now - self.since >= HANDSHAKE_TIMEOUT
    }

    /// Moves its handshake on.
    pub(super) fn hear(&mut self, shared: &Shared) -> Heard {
        let nonsense = |what: &dyn std::fmt::Display| {
            self.acceptor.refuse(what);
            Heard::Nonsense
        };
        let message = match self.channel.poll() {
            Ok(Some(message)) => message,
            Ok(None) => return Heard::Silence { has_more_to_say: !self.channel.is_flushed() },
            Err(error) => return nonsense(&error),
        };
        match Hello::decode(&message) {
            Ok((Hello::Offer(terms), message)) => Heard::Offer(terms, message),
            Ok((Hello::Note(Note::Join(ticket, lane)), _)) => match expected(shared, &ticket, lane) {
                Some(connection) => Heard::Join(lane, connection),
                None => nonsense(&"it joins a connection that does not wait for it"),
            },
            Ok((Hello::Accept(_) | Hello::Refuse(_) | Hello::Note(Note::Joined), _)) => {
                nonsense(&"it answered without a question")
            }
            Err(error) => {
                if let WireError::Version { .. } = error {
                    // If it is gone already, it does not need to know.
                    let _unheard = self.channel.send(&Hello::refuse(error.to_string().into()).encode(&[]));
                }
                nonsense(&error)
            }
        }
    }

    /// Does what follows from what was heard: a lane that is to be served, if that is what it is. An error is a
    /// connection that is over, as one of its lanes is.
    pub(super) fn settle(
        mut self,
        heard: Heard,
    ) -> Result<Option<(Socket, Arc<Connection>)>, Arc<Connection>> {
        match heard {
            Heard::Silence { .. } | Heard::Nonsense => {}
            Heard::Offer(terms, message) => {
                lock(&self.acceptor.ready).push_back(PendingConnection {
                    channel: self.channel,
                    terms,
                    message,
                });
            }
            Heard::Join(lane, connection) => {
                let joined = Hello::Note(Note::Joined).encode(&[]);
                // A socket to which nothing was sent but a greeting has room for this.
                if lane == Lane::ForwardHeartbeat {
                    if self.channel.send(&joined).is_err() || !self.channel.is_flushed() {
                        return Err(connection);
                    }
                    return Ok(Some((Socket::new(self.channel.into_stream()), connection)));
                }
                let mut place = connection.reverse(lane);
                if self.channel.send(&joined).is_err() || !self.channel.is_flushed() {
                    drop(place);
                    return Err(connection);
                }
                *place = Some(self.channel.into_stream());
            }
        }
        Ok(None)
    }
}

/// The connection that waits for this lane; from now on it does so no more.
fn expected(shared: &Shared, ticket: &Ticket, lane: Lane) -> Option<Arc<Connection>> {
    let mut all = lock(&shared.expected);
    let expected = all.get_mut(ticket)?;
    let index = expected.lanes.iter().position(|other| *other == lane)?;
    expected.lanes.swap_remove(index);
    let connection = Arc::clone(&expected.connection);
    if expected.lanes.is_empty() {
        all.remove(ticket);
    }
    Some(connection)
}
