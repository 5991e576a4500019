//! Peers that are being let in. Their memory is registered by threads of their own, for that may take seconds, in which
//! the owner serves all others.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::departing::Undone;
use crate::diagnostic::Diagnostic as _;
use crate::mem::{Access, LocalSlice, MemoryRegion};
use crate::node::{Backoff, Error, now, payloads};
use crate::param::{PeerHello, PeerInbox, SlotGeometry};
use crate::time::{Duration, Instant};
use crate::transport::{GpuGrant, Incoming, PayloadMemory, Refusal, Transport};

/// The time for which a poll waits for peers that it has met. Most are prepared for at once, and an owner that is
/// polled now and then lets them in with the poll that meets them.
const GRACE: Duration = Duration::from_millis(1);

/// The time after which a peer may ask again for which there was no memory.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The rights on the slots of a peer. They have payloads only: headers and announcing words are on its page.
const SLOTS: Access = Access::REMOTE_WRITE.union(Access::RELAXED);

/// A peer to which nothing but the answer is missing.
pub(super) struct PreparedPeer<I> {
    pub(super) incoming: I,
    pub(super) hello: PeerHello,
    /// Its page, and the payloads of its slots; or why there are none.
    pub(super) inbox: Result<(MemoryRegion, Option<PayloadMemory>), Refusal>,
    /// All host memory that it is granted, in order.
    pub(super) grants: Vec<LocalSlice>,
}

/// Peers that are being prepared for, in the order in which they came.
pub(super) struct JoiningPeers<I> {
    /// A thread that outlives its owner ends by itself, and closes the connection.
    threads: Vec<JoinHandle<PreparedPeer<I>>>,
    /// Under a simulator: the peers that were prepared at once, and the times at which a thread would have ended.
    ready: Vec<(Instant, PreparedPeer<I>)>,
    /// Peers were met since the last look.
    is_fresh: bool,
}

impl<I> Default for JoiningPeers<I> {
    fn default() -> Self {
        JoiningPeers { threads: Vec::new(), ready: Vec::new(), is_fresh: false }
    }
}

impl<I: Incoming + 'static> JoiningPeers<I> {
    pub(super) fn len(&self) -> usize {
        self.threads.len() + self.ready.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins to prepare for a peer: allocates its own memory with these slots, and registers it for the peer together
    /// with the memory that all peers share, and with the decisions for a follower or the differences for a reader. The
    /// resources of earlier peers are freed first. A simulator says when that is done: all its nodes run in one
    /// thread, and its time stands still while they compute.
    pub(super) fn begin<T: Transport>(
        &mut self,
        transport: &Arc<T>,
        (mut incoming, hello): (I, PeerHello),
        (shared, last): ((LocalSlice, PayloadMemory), Option<LocalSlice>),
        slots: Option<SlotGeometry>,
        done: Option<Instant>,
        undone: Undone,
    ) {
        let transport = Arc::clone(transport);
        let prepare = move || {
            undone.wait();
            let mut inbox = allocate(&*transport, slots).map_err(|error| no_memory(&error));
            let mut grants = Vec::new();
            if let Ok((page, payloads)) = &inbox {
                let (control, frames) = shared;
                let memory = [PayloadMemory::Host(control.region().clone()), frames, page.clone().into()];
                let (on_host, on_gpu) = sort(memory.into_iter().chain(payloads.clone()));
                grants = on_host;
                grants.extend(last);
                let granted = if on_gpu.is_empty() { Ok(()) } else { incoming.grant_gpu(on_gpu) };
                match granted {
                    Err(reason) => inbox = Err(reason.into()),
                    Ok(()) if mutant!("prepare") => {}
                    Ok(()) => incoming.prepare(&grants),
                }
            }
            PreparedPeer { incoming, hello, inbox, grants }
        };
        if let Some(done) = done {
            return self.ready.push((done, prepare()));
        }
        match std::thread::Builder::new().name("slackline-join".into()).spawn(prepare) {
            Ok(thread) => {
                self.threads.push(thread);
                self.is_fresh = true;
            }
            Err(error) => {
                tracing::error!(%error, "cannot start a thread to let a peer in; see ulimit -u");
            }
        }
    }

    /// The next peer for which everything is prepared.
    pub(super) fn next(&mut self, at: Instant) -> Option<PreparedPeer<I>> {
        if let Some(done) = self.ready.iter().position(|(done, _)| *done <= at) {
            return Some(self.ready.remove(done).1);
        }
        let until = self.is_fresh.then(|| now() + GRACE);
        self.is_fresh = false;
        let mut backoff = Backoff::new();
        while !self.threads.is_empty() {
            if let Some(done) = self.threads.iter().position(JoinHandle::is_finished) {
                match self.threads.remove(done).join() {
                    Ok(newcomer) => return Some(newcomer),
                    Err(_) => tracing::error!("the thread that was to let a peer in has panicked"),
                }
            } else if until.is_some_and(|until| now() < until) {
                backoff.wait();
            } else {
                break;
            }
        }
        None
    }
}

/// The grants for a peer: host memory in order, and memory of a GPU with its index among all grants.
fn sort(memory: impl Iterator<Item = PayloadMemory>) -> (Vec<LocalSlice>, Vec<GpuGrant>) {
    let (mut on_host, mut on_gpu) = (Vec::new(), Vec::new());
    for (at, memory) in memory.enumerate() {
        match memory {
            PayloadMemory::Host(region) => on_host.push(region.whole()),
            // The frames are the second of all, and are read; the slots are written.
            PayloadMemory::Gpu(memory) => {
                let access = if at == 1 { Access::REMOTE_READ } else { SLOTS };
                on_gpu.push(GpuGrant { at, memory, access });
            }
        }
    }
    (on_host, on_gpu)
}

/// The refusal of a peer for which there is no memory: for now, where that may pass by itself.
fn no_memory(error: &Error) -> Refusal {
    let reason = format!("no memory for another peer: {error}");
    if error.is_retryable() { Refusal::temporary(RETRY_AFTER, reason) } else { reason.into() }
}

/// An inbox's page and the payloads of its slots.
fn allocate<T: Transport>(
    transport: &T,
    slots: Option<SlotGeometry>,
) -> Result<(MemoryRegion, Option<PayloadMemory>), Error> {
    let page_bytes = PeerInbox::page_bytes(slots.map_or(0, |slots| slots.slots));
    let page = transport.allocate(page_bytes, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let payloads = slots.map(|slots| payloads::allocate(transport, slots.bytes() as usize, SLOTS));
    Ok((page, payloads.transpose()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemoryError;
    use crate::transport::RegisterError;

    #[cfg(feature = "cuda")]
    #[test]
    fn slots_have_the_same_rights_on_a_gpu_as_in_host_memory() {
        let (gpu, ..) = std::sync::Arc::new(crate::cuda::Scripted::new()).open_gpu();
        let on_gpu = || PayloadMemory::Gpu(crate::cuda::GpuMemory::allocate(&gpu, 64).unwrap());
        let page = || crate::transport::shm::Shm::new().allocate(64, Access::REMOTE_READ).unwrap();
        let (on_host, on_gpu) = sort([page().into(), on_gpu(), page().into(), on_gpu()].into_iter());
        let rights: Vec<_> = on_gpu.iter().map(|grant| (grant.at, grant.access)).collect();
        assert_eq!((on_host.len(), rights), (2, vec![(1, Access::REMOTE_READ), (3, SLOTS)]));
        assert_eq!(SLOTS, Access::REMOTE_WRITE | Access::RELAXED);
    }

    #[test]
    fn a_peer_may_ask_again_where_descriptors_or_memory_were_short() {
        let codes = [(libc::EMFILE, true), (libc::ENFILE, true), (libc::ENOMEM, true), (libc::EFBIG, false)];
        for (errno, passes) in codes {
            let source = std::io::Error::from_raw_os_error(errno);
            let error = MemoryError::Map { bytes: 64, kind: "shared", source, remedy: "raise the limit" };
            let refusal = no_memory(&RegisterError::from(error).into());
            assert_eq!(refusal.retry_after.is_some(), passes, "{}", refusal.reason);
        }
    }
}
