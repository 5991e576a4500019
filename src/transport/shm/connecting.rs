//! The connector's side of a handshake.

use std::io;
use std::sync::Arc;
use std::task::Poll;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::ShmEndpoint;
use super::handshake::{
    Inbox, MappedOffer, Outbox, ShmHandshakeError, ShmMessage, UserError, check_user, is_gone,
};
use super::socket::{self, SocketEnd};
use crate::cuda::Gpu;
use crate::time::Instant;
use crate::transport::doorbell::Doorbell;
use crate::transport::wireup::{Side, WireError};
use crate::transport::{Address, ConnectError, Connecting, Offer, Received, Refusal};

/// A connection in the making. It waits as long as it is polled: how long that may be, its owner knows; dropping it
/// gives up.
pub struct ShmConnecting {
    address: Address,
    dialled: SocketAddrUnix,
    state: Option<Handshake>,
    queue_depth: usize,
    user: u32,
    gpu: Option<Gpu>,
}

struct Handshake {
    link: SocketEnd,
    /// False while the listener's queue is full.
    connected: bool,
    /// The message that this side has not wholly sent yet.
    outbox: Option<Outbox>,
    inbox: Inbox,
}

impl ShmConnecting {
    pub(super) fn new(
        address: &Address,
        offer: &Offer,
        queue_depth: usize,
        user: u32,
        gpu: Option<Gpu>,
        doorbell: Option<Arc<Doorbell>>,
    ) -> Result<Self, ConnectError> {
        let failed = |error| connect_error(address, error);
        let outbox = Outbox::offer(Side::Connector, offer, &[], doorbell);
        let outbox = outbox.map_err(|error| error.at("connect", address))?;
        let dialled = socket::socket_address(address).map_err(failed)?;
        let link = SocketEnd::new(socket::new_socket().map_err(failed)?);
        let mut state = Handshake { link, connected: false, outbox: Some(outbox), inbox: Inbox::default() };
        state.dial(address, &dialled, user)?;
        Ok(ShmConnecting { address: address.clone(), dialled, state: Some(state), queue_depth, user, gpu })
    }
}

impl Handshake {
    /// Tries to connect, and checks the user of the process that listens there before anything is said.
    fn dial(&mut self, address: &Address, dialled: &SocketAddrUnix, user: u32) -> Result<(), ConnectError> {
        if self.connected {
            return Ok(());
        }
        self.connected = self.link.connect(dialled).map_err(|error| connect_error(address, error))?;
        if !self.connected {
            return Ok(());
        }
        check_user(&self.link, user).map_err(|error| match error {
            UserError::Another { theirs } => {
                ConnectError::AnotherUser { address: address.clone(), theirs, ours: user }
            }
            UserError::Unknown(error) => connect_error(address, error),
        })
    }

    /// Moves the handshake on. True once the answer is there.
    fn advance(&mut self) -> Result<bool, ShmHandshakeError> {
        if let Some(outbox) = &mut self.outbox {
            match outbox.flush(&self.link) {
                Ok(true) => self.outbox = None,
                Ok(false) => {}
                // It may have said why before it closed.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.inbox.fill(&self.link)
    }

    /// Checks the whole answer, which may be a refusal.
    fn open(
        mut self,
        gpu: Option<&Gpu>,
    ) -> Result<Result<(SocketEnd, MappedOffer), Refusal>, ShmHandshakeError> {
        match self.inbox.open(gpu)? {
            ShmMessage::Accept(opened) if self.outbox.is_none() => Ok(Ok((self.link, opened))),
            ShmMessage::Refuse(refusal) => Ok(Err(refusal)),
            ShmMessage::Accept(_) | ShmMessage::Offer(_) => {
                Err(WireError::Rule("it answered out of turn").into())
            }
        }
    }
}

impl Connecting for ShmConnecting {
    type Endpoint = ShmEndpoint;

    fn poll(&mut self, _now: Instant) -> Poll<Result<(ShmEndpoint, Received), ConnectError>> {
        let state = self.state.as_mut().expect("polled after it was ready");
        if let Err(error) = state.dial(&self.address, &self.dialled, self.user) {
            self.state = None;
            return Poll::Ready(Err(error));
        }
        let done = if state.connected { state.advance() } else { Ok(false) };
        if matches!(done, Ok(false)) {
            return Poll::Pending;
        }
        let state = self.state.take().expect("it was there a moment ago");
        let opened = done.and_then(|_| state.open(self.gpu.as_ref()));
        Poll::Ready(match opened {
            Err(error) => Err(error.at("connect", &self.address)),
            Ok(Err(refusal)) => Err(ConnectError::refused(self.address.clone(), refusal)),
            Ok(Ok((link, opened))) => {
                Ok(ShmEndpoint::new(link, opened, self.queue_depth, self.gpu.take(), None))
            }
        })
    }

    fn is_accepted(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.connected)
    }

    fn held_up(&self) -> Option<ConnectError> {
        let outbox = self.state.as_ref()?.outbox.as_ref()?;
        let (address, source) = (self.address.clone(), Errno::TOOMANYREFS.into());
        let remedy = "raise the soft limit on open files (ulimit -n) of this process: this user has passed more \
            descriptors than that which no process has received yet";
        let held_up = ConnectError::System { operation: "pass descriptors", address, source, remedy };
        outbox.is_held_up().then_some(held_up)
    }
}

fn connect_error(address: &Address, source: io::Error) -> ConnectError {
    let remedy = match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            "no process listens there: start the listener first, and check the address"
        }
        io::ErrorKind::PermissionDenied => "run both sides as the same user",
        io::ErrorKind::InvalidFilename => "use a shorter address: a socket address holds 107 bytes",
        _ => "check the address, and the limit on open files (ulimit -n)",
    };
    ConnectError::System { operation: "connect", address: address.clone(), source, remedy }
}
