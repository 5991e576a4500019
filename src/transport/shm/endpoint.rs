//! One connected peer: its memory, mapped, and the socket that tells whether it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::gpu::GpuSide;
use super::handshake::{MappedOffer, Outbox};
use super::socket::{FORKED, Heard, SocketEnd};
use super::watch::{Watch, Watched};
#[cfg(feature = "cuda")]
use crate::cuda::Tickets;
use crate::cuda::{Gpu, GpuSlice};
use crate::mem::{ForkGuard, LocalSlice, RemoteSlice};
use crate::transport::{
    Disconnected, Doorbell, Endpoint, Flags, GpuPath, HeartbeatWord, LocalEndpoint, PostError, Received,
    WorkCompletion, WorkRequest,
};

const GONE: Disconnected = Disconnected { reason: "the peer process ended or closed the connection" };
const INHERITED: Disconnected = Disconnected { reason: FORKED };

/// One connected peer on the same host.
pub struct ShmEndpoint {
    local: LocalEndpoint,
    /// What copies memory of a GPU, this side's or the peer's.
    gpu: Option<Box<GpuSide>>,
    /// What wakes the peer, if it wants to be woken.
    doorbell: Option<Doorbell>,
    link: SocketEnd,
    /// The rest of an answer that did not fit the socket's buffer.
    outbox: Option<Outbox>,
    /// Tells the heartbeat words that the connection is over: a dead worker must not look alive.
    over: Arc<AtomicBool>,
    /// What tells that the socket need not be asked, on the accepting side.
    watched: Option<Watched>,
}

impl ShmEndpoint {
    /// Everything said and mapped; `outbox` is what this side has yet to say.
    pub(super) fn new(
        link: SocketEnd,
        opened: MappedOffer,
        queue_depth: usize,
        gpu: Option<Gpu>,
        outbox: Option<Outbox>,
    ) -> (Self, Received) {
        let mut local = LocalEndpoint::new(queue_depth);
        for (key, region, access) in opened.segments {
            local.attach(key, region, access);
        }
        let over = Arc::new(AtomicBool::new(false));
        let gpu = gpu.map(|gpu| Box::new(GpuSide::new(gpu, opened.on_gpu)));
        let (doorbell, watched) = (opened.doorbell, None);
        (ShmEndpoint { local, gpu, doorbell, link, outbox, over, watched }, opened.received)
    }

    /// Has the listener look at the socket.
    pub(super) fn watched_by(mut self, watch: Option<Arc<Watch>>) -> ShmEndpoint {
        self.watched = watch.and_then(|watch| Watched::new(watch, &self.link));
        self
    }

    pub(super) fn is_quiet(&mut self) -> bool {
        self.watched.as_mut().is_some_and(Watched::is_quiet)
    }

    /// The listener looks at the socket no more.
    fn end_watch(&mut self) {
        if let Some(watched) = self.watched.take()
            && !self.link.is_inherited()
        {
            watched.end(&self.link);
        }
    }

    fn fail(&mut self, reason: Disconnected) {
        tracing::debug!(reason = reason.reason, "shared-memory peer disconnected");
        self.local.fail(reason);
        self.outbox = None;
        self.over.store(true, Ordering::Relaxed);
        self.end_watch();
        self.link.close();
    }

    /// Moves on what a GPU copies, and what waits behind it. A forked child leaves that to its parent.
    #[inline]
    fn copy(&mut self) {
        if let Some(gpu) = &mut self.gpu
            && !self.link.is_inherited()
            && gpu.advance(&mut self.local)
            && let Some(doorbell) = &self.doorbell
        {
            doorbell.ring();
        }
    }

    #[cold]
    fn flush(&mut self) {
        let Some(outbox) = &mut self.outbox else { return };
        match outbox.flush(&self.link) {
            Ok(true) => self.outbox = None,
            Ok(false) => {}
            Err(_) => self.fail(GONE),
        }
    }
}

impl Endpoint for ShmEndpoint {
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        if self.link.is_inherited() {
            return Err(INHERITED.into());
        }
        let notifies = match &mut self.gpu {
            Some(gpu) => gpu.post(&mut self.local, batch)?,
            None => {
                self.local.post(batch)?;
                self.doorbell.is_some() && batch.iter().any(|request| request.flags.contains(Flags::NOTIFY))
            }
        };
        if notifies && let Some(doorbell) = &self.doorbell {
            doorbell.ring();
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        if self.outbox.is_some() && !self.link.is_inherited() {
            self.flush();
        }
        self.copy();
        self.local.poll()
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        if self.link.is_inherited() {
            return Err(INHERITED);
        }
        self.copy();
        if self.local.check().is_ok() {
            self.flush();
            let heard = if self.is_quiet() { Ok(Heard::Silence) } else { self.link.peek() };
            match heard {
                Ok(Heard::Silence) => {}
                Ok(Heard::End) | Err(_) => self.fail(GONE),
                Ok(Heard::Bytes(_)) => {
                    tracing::warn!("a shared-memory peer went on talking after the handshake: disconnected");
                    self.fail(Disconnected {
                        reason: "the peer broke the protocol: bytes after the handshake",
                    });
                }
            }
        }
        let result = self.local.check();
        if result.is_err() {
            // Refused requests end the connection inside `local`.
            self.over.store(true, Ordering::Relaxed);
        }
        result
    }

    fn map(&self, remote: &RemoteSlice) -> Option<LocalSlice> {
        if self.link.is_inherited() { None } else { self.local.map(remote) }
    }

    fn map_on_gpu(&self, remote: &RemoteSlice) -> Option<GpuSlice> {
        self.gpu.as_ref().filter(|_| !self.link.is_inherited())?.map(remote)
    }

    fn transport(&self) -> &'static str {
        super::NAME
    }

    fn gpu_path(&self) -> Option<GpuPath> {
        self.gpu.as_ref().map(|gpu| gpu.path())
    }

    #[cfg(feature = "cuda")]
    fn awaited_copies(&self) -> Option<&Tickets> {
        self.gpu.as_ref()?.awaited_copies()
    }

    fn wake(&mut self) {
        if let Some(doorbell) = &self.doorbell
            && !self.link.is_inherited()
        {
            doorbell.ring();
        }
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        if self.link.is_inherited() {
            return Err(INHERITED.into());
        }
        let inner = self.local.heartbeat_word(word)?;
        Ok(Box::new(ShmHeartbeatWord { inner, over: self.over.clone(), guard: self.link.guard() }))
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.end_watch();
    }
}

/// A word at the peer, for as long as the connection lasts.
struct ShmHeartbeatWord {
    inner: Box<dyn HeartbeatWord>,
    over: Arc<AtomicBool>,
    guard: ForkGuard,
}

impl HeartbeatWord for ShmHeartbeatWord {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        if self.guard.is_inherited() {
            return Err(INHERITED);
        }
        if self.over.load(Ordering::Relaxed) {
            return Err(Disconnected { reason: "the endpoint of this heartbeat word is closed" });
        }
        self.inner.set(value)
    }
}
