//! The connector's side of a handshake: the first connection makes the offer, the further ones join it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use super::TcpEndpoint;
use super::connection::Connection;
use super::endpoint::FORKED;
use super::engine::{Command, Engine};
use super::hello::{self, Hello, Lane, Note, Terms, lanes};
use super::socket::Socket;
use crate::channel::{self, Channel, ChannelError};
use crate::cuda::Gpu;
use crate::mem::ForkGuard;
use crate::time::Instant;
use crate::transport::doorbell::Doorbell;
use crate::transport::wireup::WireError;
use crate::transport::{Address, ConnectError, Connecting, Offer, PayloadSlice, Received};

/// A connection in the making. It waits as long as it is polled: how long that may be, its owner knows; dropping it
/// gives up.
pub struct TcpConnecting {
    address: SocketAddr,
    terms: channel::ChannelTerms,
    /// Serves the memory that is granted to the peer; `None` if there is none.
    engine: Option<Arc<Engine>>,
    queue_depth: usize,
    gpu: Option<Gpu>,
    /// The doorbell at which this side sleeps, if it is to be woken.
    doorbell: Option<Arc<Doorbell>>,
    state: Option<Handshake>,
    guard: ForkGuard,
}

enum Handshake {
    Offering { channel: Channel, ours: Terms, memory: Vec<PayloadSlice> },
    Joining { first: Channel, connection: Arc<Connection>, received: Received, lanes: Vec<JoiningLane> },
}

struct JoiningLane {
    lane: Lane,
    channel: Option<Channel>,
    joined: Option<Channel>,
}

impl TcpConnecting {
    pub(super) fn new(
        address: SocketAddr,
        engine: Option<Arc<Engine>>,
        terms: channel::ChannelTerms,
        queue_depth: usize,
        gpu: Option<Gpu>,
        (offer, doorbell): (Offer, Option<Arc<Doorbell>>),
    ) -> Result<TcpConnecting, ConnectError> {
        let (ours, memory) = hello::terms(&offer, &[], [0; 16])
            .map_err(|reason| ConnectError::Offer { address: Address::Tcp(address), reason })?;
        let said = Hello::Offer(ours.clone()).encode(&offer.message);
        let mut channel = Channel::connect(address, &terms).map_err(|error| failed(address, error))?;
        channel.send(&said).map_err(|error| failed(address, error))?;
        let state = Some(Handshake::Offering { channel, ours, memory });
        let guard = ForkGuard::new();
        Ok(TcpConnecting { address, terms, engine, queue_depth, gpu, doorbell, state, guard })
    }

    /// Drives the handshake forward; returns the connection once it is over.
    fn advance(&mut self) -> Result<Option<(TcpEndpoint, Received)>, ConnectError> {
        let address = self.address;
        if let Some(Handshake::Offering { channel, .. }) = &mut self.state {
            let Some(message) = channel.poll().map_err(|error| failed(address, error))? else {
                return Ok(None);
            };
            let hello = Hello::decode(&message).map_err(|error| protocol(address, &error))?;
            let (theirs, message) = match hello {
                (Hello::Accept(theirs), message) => (theirs, message),
                (Hello::Refuse(refusal), _) => {
                    return Err(ConnectError::refused(Address::Tcp(address), refusal));
                }
                _ => return Err(protocol(address, &WireError::Rule("it answered out of turn"))),
            };
            self.join(theirs, message)?;
        }
        let Some(Handshake::Joining { lanes, .. }) = &mut self.state else { return Ok(None) };
        for lane in lanes {
            lane.advance(address)?;
        }
        self.finish()
    }

    /// Dials the further lanes.
    fn join(&mut self, theirs: Terms, message: Vec<u8>) -> Result<(), ConnectError> {
        let Some(Handshake::Offering { channel, ours, memory }) = self.state.take() else { return Ok(()) };
        let mut joining = Vec::new();
        for lane in lanes(&theirs, &ours) {
            let terms = channel::ChannelTerms { limit: 64, ..self.terms.clone() };
            let mut channel =
                Channel::connect(self.address, &terms).map_err(|error| failed(self.address, error))?;
            channel
                .send(&Hello::Note(Note::Join(theirs.blob.ticket, lane)).encode(&[]))
                .map_err(|error| failed(self.address, error))?;
            joining.push(JoiningLane { lane, channel: Some(channel), joined: None });
        }
        let received = theirs.received(message);
        let connection = Arc::new(Connection::new(ours, memory, theirs, self.gpu.take()));
        self.state = Some(Handshake::Joining { first: channel, connection, received, lanes: joining });
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<(TcpEndpoint, Received)>, ConnectError> {
        let is_done = |lanes: &[JoiningLane]| lanes.iter().all(|lane| lane.joined.is_some());
        if !matches!(&self.state, Some(Handshake::Joining { lanes, .. }) if is_done(lanes)) {
            return Ok(None);
        }
        let Some(Handshake::Joining { first, connection, received, lanes }) = self.state.take() else {
            return Ok(None);
        };
        let mut heartbeat = None;
        for JoiningLane { lane, joined, .. } in lanes {
            let (Some(channel), engine) = (joined, &self.engine) else { continue };
            let socket = match lane {
                Lane::ForwardHeartbeat => {
                    heartbeat = Some(Socket::timed(channel));
                    continue;
                }
                Lane::ReverseData => Socket::patient(channel),
                Lane::ReverseHeartbeat => Socket::timed(channel),
            };
            if let Some(engine) = engine {
                engine.tell(Command::Serve(socket, Arc::clone(&connection)));
            }
        }
        let first = Socket::patient(first);
        let (engine, depth, doorbell) = (self.engine.take(), self.queue_depth, self.doorbell.take());
        let endpoint = TcpEndpoint::connected(connection, first, heartbeat, engine, depth, doorbell);
        Ok(Some((endpoint, received)))
    }
}

impl JoiningLane {
    fn advance(&mut self, address: SocketAddr) -> Result<(), ConnectError> {
        let Some(channel) = &mut self.channel else { return Ok(()) };
        let Some(message) = channel.poll().map_err(|error| failed(address, error))? else { return Ok(()) };
        match Hello::decode(&message) {
            Ok((Hello::Note(Note::Joined), _)) => self.joined = self.channel.take(),
            Ok(_) => return Err(protocol(address, &WireError::Rule("it answered out of turn"))),
            Err(error) => return Err(protocol(address, &error)),
        }
        Ok(())
    }
}

impl Connecting for TcpConnecting {
    type Endpoint = TcpEndpoint;

    fn poll(&mut self, _now: Instant) -> Poll<Result<(TcpEndpoint, Received), ConnectError>> {
        assert!(self.state.is_some(), "polled after it was ready");
        if self.guard.is_inherited() {
            let (address, source) = (Address::Tcp(self.address), io::Error::other(FORKED));
            let remedy = "connect in the child itself";
            return Poll::Ready(Err(ConnectError::System { operation: "connect", address, source, remedy }));
        }
        match self.advance() {
            Ok(None) => Poll::Pending,
            Ok(Some(connected)) => Poll::Ready(Ok(connected)),
            Err(error) => {
                self.state = None;
                Poll::Ready(Err(error))
            }
        }
    }

    fn is_accepted(&self) -> bool {
        match &self.state {
            Some(Handshake::Offering { channel, .. }) => channel.peer_address().is_ok(),
            _ => true,
        }
    }
}

fn protocol(address: SocketAddr, error: &WireError) -> ConnectError {
    ConnectError::Protocol { address: Address::Tcp(address), reason: error.to_string() }
}

fn failed(address: SocketAddr, error: ChannelError) -> ConnectError {
    ConnectError::from_channel(Address::Tcp(address), error)
}
