//! The listener's side of handshakes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{Shutdown, SocketFlags};

use super::ShmEndpoint;
use super::file;
use super::handshake::{Inbox, MappedOffer, Outbox, ShmHandshakeError, ShmMessage, UserError, check_user};
use super::socket::SocketEnd;
use super::watch::Watch;
use crate::cuda::Gpu;
use crate::mem::ForkGuard;
use crate::time::{Duration, Instant};
use crate::transport::doorbell::Doorbell;
use crate::transport::wireup::{Newcomer, Newcomers, Side, WireError};
use crate::transport::{
    Address, ArrivalWatch, ConnectError, GpuGrant, Incoming, Listener, Offer, Received, Refusal,
};

/// The pause between two looks at newcomers while there are some.
const HANDSHAKE_NAP: Duration = Duration::from_millis(1);

/// The time after which the sockets of all peers are looked at again: less than owners let pass between two checks of a
/// peer, which then costs no system call.
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// The listener for peers of the same host and user. Its socket file, if it has one, goes with it.
pub struct ShmListener {
    socket: OwnedFd,
    address: Address,
    file: Option<file::SocketFile>,
    newcomers: Newcomers<Pending>,
    guard: ForkGuard,
    /// True once it was polled in a forked child, so that this is logged once.
    was_inherited: bool,
    queue_depth: usize,
    user: u32,
    gpu: Option<Gpu>,
    /// The doorbell by which peers wake the owner, if it is to be woken.
    doorbell: Option<Arc<Doorbell>>,
    /// The watch over the sockets of all peers; `None` if the system has no descriptor for it.
    watch: Option<Arc<Watch>>,
    looked: Instant,
}

struct Pending {
    link: SocketEnd,
    inbox: Inbox,
}

impl ShmListener {
    pub(super) fn new(
        address: &Address,
        queue_depth: usize,
        user: u32,
        gpu: Option<Gpu>,
    ) -> Result<Self, ConnectError> {
        let (socket, file) = file::listen(address, user)?;
        Ok(ShmListener {
            socket,
            address: address.clone(),
            file,
            newcomers: Newcomers::default(),
            guard: ForkGuard::new(),
            was_inherited: false,
            queue_depth,
            user,
            gpu,
            doorbell: None,
            watch: Watch::new().ok(),
            looked: Instant::ORIGIN,
        })
    }

    /// Has peers that are let in from now on ring this, or nothing.
    pub(in crate::transport) fn set_doorbell(&mut self, doorbell: Option<Arc<Doorbell>>) {
        self.doorbell = doorbell;
    }

    pub(in crate::transport) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    #[cfg(test)]
    pub(super) fn doorbell(&self) -> Option<&Arc<Doorbell>> {
        self.doorbell.as_ref()
    }

    /// The socket at which peers arrive, to wait for, and the longest that a wait may take.
    pub(in crate::transport) fn arrivals(&self, timeout: Duration) -> (Option<BorrowedFd<'_>>, Duration) {
        // Of a socket that cannot be accepted from there is nothing to be heard but that.
        let cannot_accept = self.newcomers.cannot_accept();
        let is_short = cannot_accept || self.newcomers.iter().len() > 0;
        let timeout = if is_short { timeout.min(HANDSHAKE_NAP) } else { timeout };
        ((!cannot_accept).then_some(self.socket.as_fd()), timeout)
    }
}

impl Pending {
    /// Accepts a connection, if it comes from a process of this user and its first bytes are valid. These are mostly
    /// its whole message, which counts when one newcomer has to be dropped.
    fn accept(socket: &OwnedFd, user: u32) -> io::Result<Result<Pending, String>> {
        let link =
            SocketEnd::new(rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?);
        Ok(match check_user(&link, user) {
            Ok(()) => Ok(Pending { link, inbox: Inbox::default() }),
            Err(UserError::Another { theirs }) => Err(format!("it is a process of another user, {theirs}")),
            Err(UserError::Unknown(error)) => Err(format!("it is a process of an unknown user: {error}")),
        })
    }

    /// Drives the handshake forward; returns the peer's offer once all of it has arrived.
    fn advance(&mut self) -> Result<Option<MappedOffer>, ShmHandshakeError> {
        if !self.inbox.fill(&self.link)? {
            return Ok(None);
        }
        match self.inbox.open(None)? {
            ShmMessage::Offer(opened) => Ok(Some(opened)),
            ShmMessage::Accept(_) | ShmMessage::Refuse(_) => {
                Err(WireError::Rule("it answered without a question").into())
            }
        }
    }

    /// The reason of a refusal. A peer that speaks another version is told which one is spoken here; every frame says
    /// so.
    fn refused(&self, error: &ShmHandshakeError) -> String {
        let reason = error.to_string();
        if let ShmHandshakeError::Wire(WireError::Version { .. }) = error {
            // If it is gone already, it does not need to know.
            let _unheard = Outbox::refusal(reason.as_str().into()).flush(&self.link);
        }
        reason
    }
}

impl Newcomer for Pending {
    type Said = MappedOffer;

    fn hear(&mut self) -> Result<Option<MappedOffer>, String> {
        self.advance().map_err(|error| self.refused(&error))
    }

    fn messages(&self) -> u8 {
        u8::from(self.inbox.has_begun())
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
            if !std::mem::replace(&mut self.was_inherited, true) {
                tracing::warn!(address = %self.address, "a listener was used in a forked child; listen again there");
            }
            return None;
        }
        if let Some(watch) = &self.watch
            && now - self.looked >= LOOK_EVERY
        {
            self.looked = now;
            watch.look();
        }
        // Newcomers whose offer has arrived come first: if others were accepted before them, they could be dropped
        // where there are too many.
        let ready = self.newcomers.next(&self.address, now).or_else(|| {
            self.newcomers.admit(&self.address, now, || Pending::accept(&self.socket, self.user));
            self.newcomers.next(&self.address, now)
        });
        let (Pending { link, .. }, opened) = ready?;
        let (address, queue_depth, doorbell) =
            (self.address.clone(), self.queue_depth, self.doorbell.clone());
        let (gpu, gpu_grants) = (self.gpu.clone(), Vec::new());
        let watch = self.watch.clone();
        Some(ShmIncoming { link, opened, address, queue_depth, gpu, gpu_grants, doorbell, watch })
    }

    fn be_notified(&mut self) -> Result<bool, ConnectError> {
        if self.doorbell.is_none() {
            self.doorbell = Some(Doorbell::new(&self.address)?);
        }
        Ok(true)
    }

    fn watch_arrivals(&mut self) -> Option<ArrivalWatch> {
        ArrivalWatch::new(self.doorbell.take()?, [self.socket()])
    }

    fn wait(&mut self, timeout: Duration) {
        let Some(doorbell) = &self.doorbell else { return };
        let (socket, timeout) = self.arrivals(timeout);
        doorbell.wait(socket.as_slice(), timeout);
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
        // Even where a forked child holds a copy of the descriptor, no process can connect to it any more.
        let _never_connected = rustix::net::shutdown(self.socket.as_fd(), Shutdown::Both);
    }
}

/// A peer that has said its part and waits for an answer.
pub struct ShmIncoming {
    link: SocketEnd,
    opened: MappedOffer,
    address: Address,
    queue_depth: usize,
    gpu: Option<Gpu>,
    gpu_grants: Vec<GpuGrant>,
    doorbell: Option<Arc<Doorbell>>,
    watch: Option<Arc<Watch>>,
}

impl Incoming for ShmIncoming {
    type Endpoint = ShmEndpoint;

    fn received(&self) -> &Received {
        &self.opened.received
    }

    fn grant_gpu(&mut self, grants: Vec<GpuGrant>) -> Result<(), &'static str> {
        self.gpu_grants = grants;
        Ok(())
    }

    fn accept(self, offer: Offer) -> Result<ShmEndpoint, ConnectError> {
        let offered = Outbox::offer(Side::Listener, &offer, &self.gpu_grants, self.doorbell);
        let answer = offered.and_then(|mut outbox| {
            let sent = outbox.flush(&self.link)?;
            if outbox.is_held_up() {
                tracing::warn!(
                    "a peer waits for its answer: this user has passed more descriptors than the soft limit on open \
                     files (ulimit -n) which no process has received yet"
                );
            }
            Ok((!sent).then_some(outbox))
        });
        match answer {
            Ok(outbox) => {
                let made = ShmEndpoint::new(self.link, self.opened, self.queue_depth, self.gpu, outbox);
                Ok(made.0.watched_by(self.watch))
            }
            Err(error) => {
                if matches!(
                    error,
                    ShmHandshakeError::Offer(_) | ShmHandshakeError::Memory(_) | ShmHandshakeError::Gpu(_)
                ) {
                    let refusal = "the listener could not make its offer; look at its log";
                    let _unheard = Outbox::refusal(refusal.into()).flush(&self.link);
                }
                Err(error.at("accept", &self.address))
            }
        }
    }

    fn refuse(self, refusal: Refusal) {
        // A refusal fits the buffer of a socket to which nothing was sent yet.
        if let Err(error) = Outbox::refusal(refusal).flush(&self.link) {
            tracing::debug!(%error, "a refused peer was gone already");
        }
    }
}
