//! The listener's side of handshakes.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags};

use super::ShmEndpoint;
use super::file;
use super::handshake::{HandshakeError, Inbox, Opened, Outbox, UserError, check_user};
use super::socket::Link;
use super::wire::{Kind, WireError};
use crate::mem::ForkGuard;
use crate::time::Instant;
use crate::transport::{
    Address, ConnectError, HANDSHAKE_TIMEOUT, Incoming, Listener, MAX_PENDING_HANDSHAKES, Offer, Received,
};

/// Where peers of the same host and user arrive. Its socket file, if it has one, goes with it.
pub struct ShmListener {
    socket: OwnedFd,
    address: Address,
    file: Option<file::SocketFile>,
    /// In order of arrival.
    pending: Vec<Pending>,
    guard: ForkGuard,
    /// True while the system lets nobody in, so that this is logged once.
    cannot_accept: bool,
    queue_depth: usize,
    user: u32,
}

struct Pending {
    link: Link,
    inbox: Inbox,
    since: Instant,
}

impl ShmListener {
    pub(super) fn new(address: &Address, queue_depth: usize, user: u32) -> Result<Self, ConnectError> {
        let (socket, file) = file::listen(address, user)?;
        Ok(ShmListener {
            socket,
            address: address.clone(),
            file,
            pending: Vec::new(),
            guard: ForkGuard::new(),
            cannot_accept: false,
            queue_depth,
            user,
        })
    }

    /// Lets strangers in while there is room; the rest waits in the system's queue.
    fn admit(&mut self, now: Instant) {
        while self.pending.len() < MAX_PENDING_HANDSHAKES {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let link = match rustix::net::accept_with(&self.socket, flags) {
                Ok(socket) => Link::new(socket),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    if !self.cannot_accept {
                        tracing::warn!(address = %self.address, %error, "cannot accept connections for now");
                    }
                    self.cannot_accept = true;
                    return;
                }
            };
            match check_user(&link, self.user) {
                Ok(()) => self.pending.push(Pending { link, inbox: Inbox::default(), since: now }),
                Err(UserError::Another { theirs }) => {
                    tracing::warn!(address = %self.address, theirs, "turned away a process of another user");
                }
                Err(UserError::Unknown(error)) => {
                    tracing::warn!(address = %self.address, %error, "turned away a process of an unknown user");
                }
            }
        }
        self.cannot_accept = false;
    }
}

impl Pending {
    /// Moves the handshake on; what the peer said once all of it is there.
    fn advance(&mut self) -> Result<Option<Opened>, HandshakeError> {
        if !self.inbox.fill(&self.link)? {
            return Ok(None);
        }
        let opened = self.inbox.open()?;
        match opened.kind {
            Kind::Hello => Ok(Some(opened)),
            Kind::Accept | Kind::Refuse => {
                Err(WireError::Rule { what: "it answered without a question" }.into())
            }
        }
    }

    /// Tells a peer that speaks another version which one is spoken here; every prefix says so.
    fn tell_version(&self, error: &HandshakeError) {
        if let HandshakeError::Wire(WireError::Version { .. }) = error {
            // If it is gone already, it does not need to know.
            let _unheard = Outbox::refusal(&error.to_string()).flush(&self.link);
        }
    }
}

impl Listener for ShmListener {
    type Endpoint = ShmEndpoint;
    type Incoming = ShmIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn poll(&mut self, now: Instant) -> Option<ShmIncoming> {
        if self.guard.is_inherited() {
            if !self.cannot_accept {
                tracing::warn!(address = %self.address, "a listener was used in a forked child; listen again there");
            }
            self.cannot_accept = true;
            return None;
        }
        self.admit(now);
        let mut index = 0;
        while let Some(pending) = self.pending.get_mut(index) {
            match pending.advance() {
                Ok(Some(opened)) => {
                    let link = self.pending.remove(index).link;
                    let (address, queue_depth) = (self.address.clone(), self.queue_depth);
                    return Some(ShmIncoming { link, opened, address, queue_depth });
                }
                Ok(None) if now.saturating_since(pending.since) < HANDSHAKE_TIMEOUT => index += 1,
                Ok(None) => {
                    tracing::warn!(address = %self.address, "dropped a connection that said nothing in time");
                    self.pending.remove(index);
                }
                Err(error) => {
                    tracing::warn!(address = %self.address, %error, "dropped a connection");
                    pending.tell_version(&error);
                    self.pending.remove(index);
                }
            }
        }
        None
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        if self.guard.is_inherited() {
            return;
        }
        if let Some(file) = &self.file {
            file.remove();
        }
        // Even where a forked child holds a copy of the descriptor, nobody can connect to it any more.
        let _never_connected = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both);
    }
}

/// A peer that has said its part and waits for an answer.
pub struct ShmIncoming {
    link: Link,
    opened: Opened,
    address: Address,
    queue_depth: usize,
}

impl Incoming for ShmIncoming {
    type Endpoint = ShmEndpoint;

    fn received(&self) -> &Received {
        &self.opened.received
    }

    fn accept(self, offer: Offer) -> Result<ShmEndpoint, ConnectError> {
        let answer = Outbox::offer(Kind::Accept, &offer).and_then(|mut outbox| {
            let sent = outbox.flush(&self.link)?;
            Ok((!sent).then_some(outbox))
        });
        match answer {
            Ok(outbox) => Ok(ShmEndpoint::new(self.link, self.opened, self.queue_depth, outbox).0),
            Err(error) => {
                if matches!(error, HandshakeError::Offer(_) | HandshakeError::Memory(_)) {
                    let refusal = "the listener could not make its offer; look at its log";
                    let _unheard = Outbox::refusal(refusal).flush(&self.link);
                }
                Err(error.at("accept", &self.address))
            }
        }
    }

    fn refuse(self, reason: &str) {
        // A refusal fits the buffer of a socket to which nothing was sent yet.
        if let Err(error) = Outbox::refusal(reason).flush(&self.link) {
            tracing::debug!(%error, "a refused peer was gone already");
        }
    }
}
