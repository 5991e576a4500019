//! A channel over a socket that never blocks.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::greeting::{Agreed, Greeting, GreetingRefusal, GreetingStep, refusal};
use super::session::{HEADER_BYTES, Session, body_bytes};
use super::socket::{self, ChannelSocket, dial, probe};
use super::{ChannelError, ChannelTerms, DataKeys, Identity};
use crate::time::Duration;

/// Bytes that are read at a time of a long message: memory grows as they come, not as they are promised.
const PIECE: usize = 64 << 10;

/// Most bytes that wait to be sent; more is refused, so that a peer that does not read cannot fill the memory.
const OUTBOX_MAX: usize = 64 << 20;

/// A framed, mutually authenticated conversation over TCP that never blocks: [`poll`](Self::poll) moves everything on.
pub struct Channel {
    socket: ChannelSocket,
    redial: Option<Box<Redial>>,
    state: StreamState,
    outbox: Vec<u8>,
    /// Bytes of the outbox that are sent.
    sent: usize,
    /// Messages said before the handshake was over.
    early: Vec<Vec<u8>>,
    inbox: Vec<u8>,
    limit: usize,
}

/// A connection that the other side's system has not taken yet is begun again after so long, and each time this much
/// later. Where a flood of connections fills the listener's queue the system itself tries again after 1, 3 and 7 s: too
/// rarely to find the queue with room in it.
const REDIAL_AFTER: Duration = Duration::from_millis(100);

/// The address to which the connection is begun again, and the time to do so.
struct Redial {
    address: SocketAddr,
    begun: std::time::Instant,
    after: Duration,
}

enum StreamState {
    /// The system has not connected yet.
    Dialling(Box<Greeting>),
    Greeting(Box<Greeting>),
    Open {
        peer: Identity,
        session: Session,
        reads_only: bool,
        /// The length of the message whose header was read.
        promised: Option<usize>,
    },
    Failed,
}

impl Channel {
    /// Begins to connect. Does not wait: [`poll`](Self::poll) returns the outcome.
    pub fn connect(address: SocketAddr, terms: &ChannelTerms) -> Result<Channel, ChannelError> {
        loopback_without_secret(address, terms)?;
        let stream = dial(address).map_err(ChannelError::system("connect"))?;
        let (greeting, hello) = Greeting::client(terms.secret.as_ref(), terms.purpose, terms.identity)?;
        let mut channel = Channel::new(stream, StreamState::Dialling(Box::new(greeting)), terms);
        let begun = std::time::Instant::now();
        channel.redial = Some(Box::new(Redial { address, begun, after: REDIAL_AFTER }));
        channel.outbox.extend(hello);
        Ok(channel)
    }

    /// Accepts a client of a socket that [listens](super::listen), and begins to greet it.
    ///
    /// The outer error is the system's: no connection was accepted. The inner one is the reason for which the client
    /// that connected is refused.
    pub fn accept(listener: &TcpListener, terms: &ChannelTerms) -> io::Result<Result<Channel, ChannelError>> {
        let (stream, address) = socket::accept(listener)?;
        if let Err(error) = loopback_without_secret(address, terms) {
            // If it does not fit the buffer of a fresh socket, it is not worth waiting for.
            let _unheard = (&stream).write(&refusal(GreetingRefusal::NotLoopback, terms.purpose));
            return Ok(Err(error));
        }
        let greeting = Greeting::server(terms.secret.as_ref(), terms.purpose, terms.identity);
        Ok(Ok(Channel::new(stream, StreamState::Greeting(Box::new(greeting)), terms)))
    }

    /// A client that was accepted and has said nothing.
    #[cfg(test)]
    pub(crate) fn silent(stream: TcpStream, terms: &ChannelTerms) -> Channel {
        let greeting = Greeting::server(terms.secret.as_ref(), terms.purpose, terms.identity);
        Channel::new(stream, StreamState::Greeting(Box::new(greeting)), terms)
    }

    /// A client whose socket was made elsewhere.
    #[cfg(test)]
    pub(crate) fn dialled(stream: TcpStream, terms: &ChannelTerms) -> Channel {
        let (greeting, _) = Greeting::client(terms.secret.as_ref(), terms.purpose, terms.identity).unwrap();
        Channel::new(stream, StreamState::Dialling(Box::new(greeting)), terms)
    }

    fn new(stream: TcpStream, state: StreamState, terms: &ChannelTerms) -> Channel {
        Channel {
            socket: ChannelSocket::new(stream),
            redial: None,
            state,
            outbox: Vec::new(),
            sent: 0,
            early: Vec::new(),
            inbox: Vec::new(),
            limit: terms.limit,
        }
    }

    /// Makes all progress that needs no waiting, and takes the next message if there is one.
    ///
    /// Never reads past the end of a message: the bytes behind it are left to the code that takes the socket
    /// (`into_socket`). After an error the channel is of no more use.
    pub fn poll(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        let result = self.advance();
        self.fail_after(result)
    }

    /// True once the other side's system has taken the connection. Nothing is said on it before the next
    /// [`poll`](Self::poll): the other side gives a connection that has said something a few seconds to say the rest.
    #[cfg(feature = "verbs")]
    pub(crate) fn is_taken(&mut self) -> Result<bool, ChannelError> {
        let result =
            if matches!(self.state, StreamState::Dialling(_)) { self.is_connected() } else { Ok(true) };
        self.fail_after(result)
    }

    fn fail_after<R>(&mut self, result: Result<R, ChannelError>) -> Result<R, ChannelError> {
        if result.is_err() {
            self.state = StreamState::Failed;
        }
        result
    }

    fn advance(&mut self) -> Result<Option<Vec<u8>>, ChannelError> {
        if matches!(self.state, StreamState::Dialling(_)) && !self.is_connected()? {
            return Ok(None);
        }
        if self.redial.take().is_some() {
            self.flush()?;
            probe(&self.socket).map_err(ChannelError::system("connect"))?;
        }
        loop {
            self.flush()?;
            match &mut self.state {
                StreamState::Dialling(_) => return Ok(None),
                StreamState::Failed => return Err(ChannelError::Closed { when: "after an error" }),
                StreamState::Greeting(greeting) => {
                    let wanted = greeting.wanted(&self.inbox);
                    if self.inbox.len() < wanted {
                        if !fill(&self.socket, &mut self.inbox, wanted, "in the handshake")? {
                            return Ok(None);
                        }
                        // Its first bytes may tell that there are more of them.
                        continue;
                    }
                    let step = greeting.receive(&self.inbox);
                    self.inbox.clear();
                    match step {
                        Ok(GreetingStep::Answer(answer)) => self.outbox.extend(answer),
                        Ok(GreetingStep::Done(answer, Agreed { peer, mut session, reads_only })) => {
                            self.outbox.extend(answer.iter().flatten());
                            for message in self.early.drain(..) {
                                session.seal(&message, &mut self.outbox);
                            }
                            self.state = StreamState::Open { peer, session, reads_only, promised: None };
                        }
                        Err(failed) => {
                            self.outbox.extend(failed.answer.iter().flatten());
                            // It is told once; whether it hears is its own affair.
                            let _unheard = self.flush();
                            return Err(failed.error);
                        }
                    }
                }
                StreamState::Open { session, promised, .. } => {
                    let Some(bytes) = *promised else {
                        if !fill(&self.socket, &mut self.inbox, HEADER_BYTES, "by the peer")? {
                            return Ok(None);
                        }
                        let bytes = session.open_header(&self.inbox)?;
                        self.inbox.clear();
                        if bytes > self.limit {
                            return Err(ChannelError::Oversized { bytes, limit: self.limit });
                        }
                        *promised = Some(bytes);
                        continue;
                    };
                    if !fill(&self.socket, &mut self.inbox, body_bytes(bytes), "within a message")? {
                        return Ok(None);
                    }
                    *promised = None;
                    let body = std::mem::take(&mut self.inbox);
                    return session.open_body(&body).map(Some);
                }
            }
        }
    }

    fn is_connected(&mut self) -> Result<bool, ChannelError> {
        let failed = ChannelError::system("connect");
        let mut sockets = [PollFd::new(&self.socket, PollFlags::OUT)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut sockets, Some(&now)) {
            Ok(0) | Err(Errno::INTR) => {
                self.dial_again()?;
                return Ok(false);
            }
            Ok(_) => {}
            Err(error) => return Err(failed(error.into())),
        }
        match self.socket.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return Err(failed(error)),
        }
        if is_its_own_peer(&self.socket) {
            // Else its port could not be bound to for a minute, by the listener that is waited for.
            let _as_before = rustix::net::connect_unspec(&self.socket);
            return Err(failed(Errno::CONNREFUSED.into()));
        }
        if let StreamState::Dialling(greeting) = std::mem::replace(&mut self.state, StreamState::Failed) {
            self.state = StreamState::Greeting(greeting);
        }
        Ok(true)
    }

    /// Begins the connection again if it is time for that.
    fn dial_again(&mut self) -> Result<(), ChannelError> {
        let Some(redial) = &mut self.redial else { return Ok(()) };
        if redial.begun.elapsed() < redial.after {
            return Ok(());
        }
        // A little longer each time: an answer that takes long is waited for in the end.
        (redial.begun, redial.after) = (std::time::Instant::now(), redial.after + REDIAL_AFTER);
        let stream = dial(redial.address).map_err(ChannelError::system("connect"))?;
        self.socket = ChannelSocket::new(stream);
        Ok(())
    }

    /// Sends waiting bytes, as far as they fit, and reads nothing.
    pub(crate) fn flush(&mut self) -> Result<(), ChannelError> {
        while self.sent < self.outbox.len() {
            match self.socket.write(&self.outbox[self.sent..]) {
                Ok(0) => return Err(ChannelError::Closed { when: "by the peer" }),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Otherwise the buffer of a peer with ever more messages would keep all sent bytes.
                    if self.sent > self.outbox.len() / 2 {
                        self.outbox.drain(..std::mem::take(&mut self.sent));
                    }
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The peer's last messages before it closed are worth reading first.
                Err(error) if is_gone(&error) => {
                    self.sent = self.outbox.len();
                }
                Err(error) => return Err(ChannelError::system("send")(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Says a message: seals it, and sends as much as fits; [`poll`](Self::poll) sends the rest.
    pub fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let waiting = self.backlog();
        if message.len() > u32::MAX as usize || waiting.saturating_add(message.len()) > OUTBOX_MAX {
            return Err(ChannelError::Oversized { bytes: waiting + message.len(), limit: OUTBOX_MAX });
        }
        match &mut self.state {
            StreamState::Open { session, .. } => {
                session.seal(message, &mut self.outbox);
                self.flush()
            }
            StreamState::Failed => Err(ChannelError::Closed { when: "after an error" }),
            StreamState::Dialling(_) | StreamState::Greeting(_) => {
                self.early.push(message.to_vec());
                Ok(())
            }
        }
    }

    /// True once both sides have proved that they know the secret.
    pub fn is_open(&self) -> bool {
        matches!(self.state, StreamState::Open { .. })
    }

    /// The number of messages of the handshake that a client has sent and this side has taken.
    pub(crate) fn greetings(&self) -> u8 {
        match &self.state {
            StreamState::Greeting(greeting) => greeting.taken(),
            StreamState::Open { .. } => 2,
            StreamState::Dialling(_) | StreamState::Failed => 0,
        }
    }

    /// The other side, as it calls itself, once both have proved that they know the secret.
    pub fn peer(&self) -> Option<Identity> {
        match self.state {
            StreamState::Open { peer, .. } => Some(peer),
            _ => None,
        }
    }

    /// True of a client that has proved to know a reader's secret, and not the job's.
    pub(crate) fn reads_only(&self) -> bool {
        matches!(self.state, StreamState::Open { reads_only: true, .. })
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.outbox.len() - self.sent + self.early.iter().map(Vec::len).sum::<usize>()
    }

    /// Bytes in memory that are to be sent or were.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.outbox.len()
    }

    /// True if nothing waits to be sent.
    pub fn is_flushed(&self) -> bool {
        self.sent == self.outbox.len() && self.early.is_empty()
    }

    /// True if it waits for its connection, or for room to send; otherwise it waits for bytes.
    pub fn waits_to_send(&self) -> bool {
        matches!(self.state, StreamState::Dialling(_)) || self.sent < self.outbox.len()
    }

    /// The other side's address.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// This side's address, as the other side sees it if nothing translates addresses in between.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The keys for the bytes on the bare socket, if the purpose of the channel has any and both sides have proved that
    /// they know the secret.
    pub(crate) fn data_keys(&self) -> Option<&DataKeys> {
        match &self.state {
            StreamState::Open { session, .. } => session.data_keys(),
            _ => None,
        }
    }

    /// The bare socket, which does not block, for the format that the two sides have agreed on. To be taken when
    /// this side is [flushed](Self::is_flushed) and between two messages of the other.
    pub(crate) fn into_socket(self) -> ChannelSocket {
        self.socket
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn loopback_without_secret(address: SocketAddr, terms: &ChannelTerms) -> Result<(), ChannelError> {
    if terms.allow(address) { Ok(()) } else { Err(ChannelError::NeedsSecret { address }) }
}

/// True if a socket is connected to itself. The system does that where no process listens at a port that it may choose
/// for the connecting socket, too.
fn is_its_own_peer(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Reads until `inbox` holds `bytes`, and never more. False if that would mean to wait.
fn fill(
    mut stream: &TcpStream,
    inbox: &mut Vec<u8>,
    bytes: usize,
    when: &'static str,
) -> Result<bool, ChannelError> {
    while inbox.len() < bytes {
        let have = inbox.len();
        inbox.resize(bytes.min(have + PIECE), 0);
        let read = stream.read(&mut inbox[have..]);
        inbox.truncate(have + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => return Err(ChannelError::Closed { when }),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_gone(&error) => return Err(ChannelError::Closed { when }),
            Err(error) => return Err(ChannelError::system("receive")(error)),
        }
    }
    Ok(true)
}
