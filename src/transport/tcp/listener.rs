//! The listening side: peers arrive here and are answered.

use std::net::SocketAddr;
use std::sync::Arc;

use super::TcpEndpoint;
use super::acceptor::{Acceptor, PendingConnection};
use super::connection::Connection;
use super::engine::{Command, Engine, Expected};
use super::hello::{self, Hello, lanes};
use crate::channel::{self, Secret, listen};
use crate::cuda::Gpu;
use crate::mem::ForkGuard;
use crate::time::{Duration, Instant};
use crate::transport::doorbell::Doorbell;
use crate::transport::{
    Address, ArrivalWatch, ConnectError, GpuGrant, Incoming, Listener, Offer, Received, Refusal,
};

/// The listener at which peers arrive over TCP.
pub struct TcpListener {
    /// The acceptor has a copy; this one is kept so as to end the listening at once.
    socket: std::net::TcpListener,
    address: Address,
    acceptor: Acceptor,
    engine: Arc<Engine>,
    queue_depth: usize,
    gpu: Option<Gpu>,
    guard: ForkGuard,
    /// The doorbell of the owner, if it is to be woken.
    doorbell: Option<Arc<Doorbell>>,
}

impl TcpListener {
    pub(super) fn new(
        address: SocketAddr,
        engine: Arc<Engine>,
        terms: channel::ChannelTerms,
        queue_depth: usize,
        gpu: Option<Gpu>,
    ) -> Result<TcpListener, ConnectError> {
        if !terms.allow(address) {
            return Err(ConnectError::NeedsSecret { address: Address::Tcp(address) });
        }
        if terms.secret.as_ref().is_some_and(Secret::is_reading) {
            return Err(ConnectError::ReadingSecret { address: Address::Tcp(address) });
        }
        let failed = |source: std::io::Error| ConnectError::cannot_listen(Address::Tcp(address), source);
        let socket = listen(address).map_err(failed)?;
        let address = Address::Tcp(socket.local_addr().map_err(failed)?);
        let copy = socket.try_clone().map_err(failed)?;
        let acceptor = Acceptor::start(copy, address.clone(), terms, Arc::clone(&engine)).map_err(failed)?;
        let (guard, doorbell) = (ForkGuard::new(), None);
        Ok(TcpListener { socket, address, acceptor, engine, queue_depth, gpu, guard, doorbell })
    }

    /// Lets peers that are accepted from now on ring this doorbell, or none. Arriving peers ring the first doorbell
    /// that was given.
    pub(in crate::transport) fn set_doorbell(&mut self, doorbell: Option<Arc<Doorbell>>) {
        doorbell.iter().for_each(|doorbell| self.acceptor.set_doorbell(doorbell.clone()));
        self.doorbell = doorbell;
    }
}

impl Listener for TcpListener {
    type Endpoint = TcpEndpoint;
    type Incoming = TcpIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn has_caught_up(&mut self) -> bool {
        self.engine.has_caught_up()
    }

    /// The acceptor's thread moves the handshakes on, by its own clock.
    fn poll(&mut self, _now: Instant) -> Option<TcpIncoming> {
        if self.guard.is_inherited() {
            return None;
        }
        let PendingConnection { channel, terms, message } = self.acceptor.next()?;
        let incoming = TcpIncoming {
            channel,
            received: terms.received(message),
            theirs: terms,
            address: self.address.clone(),
            engine: Arc::clone(&self.engine),
            queue_depth: self.queue_depth,
            gpu: self.gpu.clone(),
            on_gpu: Vec::new(),
            doorbell: self.doorbell.clone(),
        };
        if self.engine.has_ended() {
            incoming
                .refuse("the thread that serves tcp peers there has ended: start that process again".into());
            return None;
        }
        Some(incoming)
    }

    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        if self.doorbell.is_none() {
            self.set_doorbell(Some(Doorbell::new(&self.address)?));
        }
        Ok(true)
    }

    fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        ArrivalWatch::new(self.doorbell.take()?, [])
    }

    fn wait(&mut self, timeout: Duration) {
        if let Some(doorbell) = &self.doorbell {
            doorbell.wait(&[], timeout);
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        self.acceptor.stop();
        if self.guard.is_inherited() {
            return;
        }
        // The port is free at once, whichever process holds copies of the descriptor.
        let _never_connected = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

/// A peer that has said its part and waits for an answer.
pub struct TcpIncoming {
    channel: channel::Channel,
    received: Received,
    theirs: hello::Terms,
    address: Address,
    engine: Arc<Engine>,
    queue_depth: usize,
    gpu: Option<Gpu>,
    /// Memory of that GPU that the peer is granted.
    on_gpu: Vec<GpuGrant>,
    doorbell: Option<Arc<Doorbell>>,
}

impl Incoming for TcpIncoming {
    type Endpoint = TcpEndpoint;

    fn received(&self) -> &Received {
        &self.received
    }

    fn reads_only(&self) -> bool {
        self.channel.reads_only()
    }

    fn grant_gpu(&mut self, grants: Vec<GpuGrant>) -> Result<(), &'static str> {
        if self.gpu.is_none() {
            return Err("this transport has no GPU to copy by: open it with one (`Tcp::with_gpu`)");
        }
        self.on_gpu = grants;
        Ok(())
    }

    fn accept(mut self, offer: Offer) -> Result<TcpEndpoint, ConnectError> {
        let terms = hello::random_ticket().and_then(|ticket| hello::terms(&offer, &self.on_gpu, ticket));
        let (ours, memory) = match terms {
            Ok(made) => made,
            Err(reason) => {
                let address = self.address.clone();
                self.refuse("the listener could not make its offer; look at its log".into());
                return Err(ConnectError::Offer { address, reason });
            }
        };
        let accept = Hello::Accept(ours.clone()).encode(&offer.message);
        let lanes = lanes(&ours, &self.theirs);
        let connection = Arc::new(Connection::new(ours, memory, self.theirs, self.gpu));
        if let Some(doorbell) = self.doorbell {
            connection.set_doorbell(doorbell);
        }
        if !lanes.is_empty() {
            // Before the peer knows its ticket.
            self.engine.expect(Expected { connection: Arc::clone(&connection), lanes });
        }
        let said = self.channel.send(&accept);
        let endpoint =
            TcpEndpoint::accepted(Arc::clone(&connection), Arc::clone(&self.engine), self.queue_depth);
        match said {
            Ok(()) => {
                self.engine.tell(Command::Finish(self.channel, connection));
                Ok(endpoint)
            }
            Err(error) => {
                tracing::debug!(%error, "a peer was gone before it was accepted");
                Err(ConnectError::Closed { address: self.address })
            }
        }
    }

    fn refuse(mut self, refusal: Refusal) {
        // A refusal fits the buffer of a socket to which nothing but a greeting was sent.
        if let Err(error) = self.channel.send(&Hello::refuse(refusal).encode(&[])) {
            tracing::debug!(%error, "a refused peer was gone already");
        }
    }
}
