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
    Refusals, victim,
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
    refusals: Refusals,
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
            refusals: Refusals::default(),
            queue_depth,
            user,
        })
    }

    /// Accepts newcomers, at most so many whatever comes of them: the owner has more to do.
    fn admit(&mut self, now: Instant) {
        for _ in 0..MAX_PENDING_HANDSHAKES {
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
                Ok(()) => self.keep(Pending { link, inbox: Inbox::default(), since: now }),
                Err(UserError::Another { theirs }) => {
                    self.refuse(&format_args!("it is a process of another user, {theirs}"));
                }
                Err(UserError::Unknown(error)) => {
                    self.refuse(&format_args!("it is a process of an unknown user: {error}"));
                }
            }
        }
        self.cannot_accept = false;
    }

    /// Keeps a newcomer, in place of another one if there are too many.
    fn keep(&mut self, mut pending: Pending) {
        // Its first message is mostly there already, and counts when one has to go.
        if let Err(error) = pending.inbox.fill(&pending.link) {
            pending.tell_version(&error);
            return self.refuse(&error);
        }
        if self.pending.len() >= MAX_PENDING_HANDSHAKES {
            let messages = self.pending.iter().map(|pending| u8::from(pending.inbox.has_begun()));
            if let Some(index) = victim(messages) {
                self.pending.remove(index);
                self.refuse(&"there are too many unfinished handshakes");
            }
        }
        self.pending.push(pending);
    }

    fn refuse(&mut self, reason: &dyn std::fmt::Display) {
        self.refusals.add(&self.address, reason);
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
        self.refusals.log(&self.address);
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
                    self.pending.remove(index);
                    self.refuse(&"it said too little in time");
                }
                Err(error) => {
                    pending.tell_version(&error);
                    self.pending.remove(index);
                    self.refuse(&error);
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
