//! The posting side of a queue pair: its requests under way, in order, and the memory that they own.

mod batch;
mod building;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use self::batch::Batch;
use super::device::QueuePairError;
use super::queue_pair::{POLLED_AT_ONCE, QueuePair};
use super::region::ProtectionDomain;
use super::sys;
use super::under_way::{EntryKind, HeldMemory, UnderWay};
use crate::cuda::Gpu;
use crate::mem::{Access, LocalSlice, MemoryRegion, RemoteKey, RemoteSlice, fence};
use crate::transport::{
    CompletionError, Disconnected, Flags, Operation, PostError, WorkCompletion, WorkRequest,
};

/// Room for the longest inline data of a request.
const CELL_BYTES: usize = 64;

const NOWHERE: RemoteSlice = RemoteSlice { key: RemoteKey(0), offset: 0, len: 0 };

/// The time within which the completion of a failed request must arrive once the device has reported the end of its
/// queue pair.
const COMPLETES_WITHIN: Duration = Duration::from_millis(100);

const REFUSED_BY_DEVICE: Disconnected = Disconnected { reason: "the RDMA device refused a request" };

/// The requests of one side, on a queue pair of their own.
pub(super) struct Initiator {
    /// Destroyed first: after that the device does not touch the memory that is held.
    pair: QueuePair,
    /// The requests that were posted and not yet reported to the caller, at most as many as fit into the device's
    /// queue, and the memory that the device may be using. Each completion of the device has the number of its
    /// request.
    under_way: UnderWay,
    /// Entries before this one have succeeded.
    succeeded: u64,
    /// The device has completed the entries before this one, in success or in error.
    returned: u64,
    /// The error of the first request that failed; all requests behind it are flushed.
    failure: Option<CompletionError>,
    is_failure_told: bool,
    /// True if the failure is that the peer did not answer.
    is_unanswered: bool,
    has_failed: bool,
    /// How the queue pair ended, as the device reported, and the time of the report.
    told: Option<(QueuePairError, Instant)>,
    /// Entries since the last entry that the device reports.
    unreported: usize,
    /// The device reports at least one in so many entries.
    report_every: usize,
    /// The memory that holds inline data until the device has read it: a cell for each entry.
    cells: MemoryRegion,
    completions: [sys::ibv_wc; POLLED_AT_ONCE],
    batch: Batch,
    /// Entries that may be under way, without proofs.
    depth: usize,
    /// Entries of the device's queue.
    room: usize,
    /// Longest single request of the device in bytes.
    piece_bytes: usize,
    /// The speed of its rail in Mbit/s, by which long requests are divided; 0 if unknown.
    pub(super) speed: u32,
    /// The longest time that its device needs to find that the peer does not answer.
    pub(super) gives_up_after: Duration,
    /// Whether READs and atomics that must wait for earlier ones are posted with a fence.
    pub(super) fences_reads: bool,
    /// Whether the device has atomics that work.
    pub(super) has_atomics: bool,
    /// Whether requests may name memory of a GPU: the caller posts them once the GPU has finished with it.
    pub(super) takes_gpu: bool,
    /// The index of the rail on which it posts, and of each region's key for this rail.
    pub(super) rail: usize,
    /// The first rail's domain, whose memory can be posted.
    domain: u32,
    /// Receives that the peer has posted and this side has not used up: as many requests can notify the peer.
    receives: u16,
    /// Set if the peer's device may apply writes in any order.
    proof: Option<Proof>,
}

/// Keeps the order of writes where the peer's device does not: a READ of the peer's sentinel is posted before each
/// write that must not overtake another, and the write waits for the READ in the device (a fence).
struct Proof {
    sentinel: (LocalSlice, RemoteSlice),
    /// The peer's grants, by name, and their rights.
    grants: Vec<(RemoteKey, Access)>,
}

// SAFETY: the raw pointers in `batch` are made and used within one call of `post`, and are not used between calls.
unsafe impl Send for Initiator {}

impl Initiator {
    /// `domain` is the first rail's. `cells` is registered like all memory of this process, and has 64 bytes for each
    /// entry of the device's queue, and 64 more. The caller may have `depth` requests under way.
    pub(super) fn new(
        pair: QueuePair,
        domain: &ProtectionDomain,
        cells: MemoryRegion,
        depth: usize,
        piece_bytes: usize,
    ) -> Initiator {
        let room = (cells.len() / CELL_BYTES).saturating_sub(1);
        assert!(room >= depth && depth > 0 && piece_bytes > 0);
        Initiator {
            pair,
            under_way: UnderWay::with_room(room),
            succeeded: 0,
            returned: 0,
            failure: None,
            is_failure_told: false,
            is_unanswered: false,
            has_failed: false,
            told: None,
            unreported: 0,
            report_every: depth.div_ceil(4),
            cells,
            completions: [sys::ibv_wc::default(); POLLED_AT_ONCE],
            batch: Batch::with_capacity(room),
            depth,
            room,
            piece_bytes,
            speed: 0,
            gives_up_after: Duration::MAX,
            fences_reads: true,
            has_atomics: true,
            takes_gpu: false,
            rail: 0,
            domain: domain.serial,
            receives: 0,
            proof: None,
        }
    }

    /// From now on each write into announcing memory waits in the device until a READ of this word has proved the
    /// writes before it. `grants` are the peer's; the rights of each show whether it announces nothing.
    pub(super) fn prove_by(&mut self, sentinel: RemoteSlice, grants: Vec<(RemoteKey, Access)>) {
        if mutant!("unproved") {
            return;
        }
        assert!(self.room >= 2 * self.depth);
        let local = self.spare();
        self.proof = Some(Proof { sentinel: (local, sentinel), grants });
    }

    /// From now on the caller may have as many requests under way as fit into the device's queue: this queue pair
    /// itself proves no write.
    pub(super) fn leave_no_room_for_proofs(&mut self) {
        self.depth = self.room;
        self.report_every = self.depth.div_ceil(4);
    }

    /// From now on the device reports each entry, so that it is never [asked for](Initiator::ask_for_report) a report.
    pub(super) fn report_all(&mut self) {
        self.report_every = 1;
    }

    /// Longest inline data of a request.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.pair.inline_bytes
    }

    /// Notes that the peer has posted so many more receives. False if the number is 0, or more than this side has
    /// used up of the peer's `in_all` receives.
    pub(super) fn add_receives(&mut self, more: u16, in_all: u16) -> bool {
        let is_true = more > 0 && more <= in_all - self.receives;
        if is_true {
            self.receives += more;
        }
        is_true
    }

    /// Bytes of memory for the inline data of a device's queue of so many entries, and one spare cell.
    pub(super) fn cells_bytes(room: usize) -> usize {
        (room + 1) * CELL_BYTES
    }

    /// A word that has no other use: the destination of READs of which only the completion matters.
    pub(super) fn spare(&self) -> LocalSlice {
        self.cells.slice(self.room * CELL_BYTES, 8).expect("there is a cell more than the queue has entries")
    }

    /// Whether no request is left to report.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The queue pair.
    pub(super) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Whether a request has failed, so that the queue pair is unusable.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns the error of the first request that failed.
    pub(super) fn failure(&self) -> Option<CompletionError> {
        self.failure
    }

    /// Whether the request failed because the peer's device did not answer.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_unanswered
    }

    /// Returns how the queue pair ended, if the device has reported its end and no completion gives the reason. The
    /// report may arrive before the completion of the failed request, which gives more detail, so this waits a moment
    /// for that completion.
    pub(super) fn take_broken(&mut self) -> Option<QueuePairError> {
        if let Some(error) = self.pair.take_broken() {
            self.told.get_or_insert_with(|| (error, Instant::now()));
        }
        let (error, since) = self.told?;
        self.take_completions();
        let is_silent = self.returned < self.under_way.end() && since.elapsed() < COMPLETES_WITHIN;
        (!self.has_failed && !is_silent).then_some(error)
    }

    /// Whether a request is a write that follows a READ which proves the writes before it.
    #[inline]
    fn is_proved(&self, request: &WorkRequest) -> bool {
        let Some(proof) = &self.proof else { return false };
        match &request.operation {
            Operation::Write { remote, .. }
            | Operation::WriteInline { remote, .. }
            | Operation::WriteFromGpu { remote, .. } => {
                let is_relaxed = |access: &Access| access.contains(Access::RELAXED);
                !proof.grants.iter().any(|(name, access)| *name == remote.key && is_relaxed(access))
            }
            // The device executes them after all earlier requests.
            _ => false,
        }
    }

    /// Returns how many device requests a request consists of, without its proof.
    #[inline]
    pub(super) fn parts(&self, request: &WorkRequest) -> usize {
        match &request.operation {
            Operation::Write { local, .. } | Operation::Read { local, .. } => self.pieces(local.len()),
            Operation::WriteFromGpu { local, .. } | Operation::ReadToGpu { local, .. } => {
                self.pieces(local.bytes())
            }
            _ => 1,
        }
    }

    #[inline]
    fn pieces(&self, bytes: usize) -> usize {
        if bytes > self.piece_bytes { bytes.div_ceil(self.piece_bytes) } else { 1 }
    }

    /// The number of parts that still fit.
    #[inline]
    pub(super) fn free(&self) -> usize {
        self.depth - self.under_way.of_caller()
    }

    /// Returns how many device requests a batch consists of, if it can be posted at all. With a GPU, requests may
    /// name any memory of that GPU, and each counts as one; without one they may name registered memory only.
    #[inline]
    pub(super) fn check(&self, batch: &[WorkRequest], gpu: Option<&Gpu>) -> Result<usize, PostError> {
        let mut parts = 0;
        for (index, request) in batch.iter().enumerate() {
            let known = |local: &LocalSlice| {
                let key = local.region().device_keys();
                (key.domain == self.domain)
                    .then_some(())
                    .ok_or("its memory was not registered with this transport")
            };
            let checked = match (&request.operation, gpu) {
                (_, Some(gpu)) => request.check_with(gpu),
                (Operation::ReadToGpu { local, .. } | Operation::WriteFromGpu { local, .. }, None)
                    if self.takes_gpu && self.key_on_gpu(local).is_some() =>
                {
                    request.check_ranges()
                }
                _ => request.check(),
            };
            let checked = checked.and_then(|()| match &request.operation {
                Operation::FetchAdd { .. } | Operation::CompareSwap { .. } if !self.has_atomics => {
                    Err("the device has no atomics that work; ask Transport::capabilities first")
                }
                Operation::Write { local, .. }
                | Operation::Read { local, .. }
                | Operation::FetchAdd { local, .. }
                | Operation::CompareSwap { local, .. } => known(local),
                _ => Ok(()),
            });
            checked.map_err(|reason| PostError::Malformed { index, reason })?;
            let is_on_gpu =
                matches!(request.operation, Operation::ReadToGpu { .. } | Operation::WriteFromGpu { .. });
            parts += if is_on_gpu && gpu.is_some() { 1 } else { self.parts(request) };
        }
        if parts > self.depth {
            return Err(PostError::BatchTooLong { batch: parts, depth: self.depth });
        }
        Ok(parts)
    }

    /// Posts a batch with one doorbell, all or nothing.
    #[inline]
    pub(super) fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        let parts = self.check(batch, None)?;
        if parts > self.free() {
            self.take_completions();
            self.forget_silent();
            let free = self.free();
            if parts > free {
                self.ask_for_report(free);
                return Err(PostError::QueueFull { free, batch: parts });
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.batch.count = 0;
        for request in batch {
            self.build(request);
        }
        self.ring()
    }

    /// Ends the queue pair: all requests under way come back flushed.
    #[cold]
    pub(super) fn end(&mut self) {
        self.has_failed = true;
        self.pair.end();
    }

    /// Destroys the queue pair: requests under way are not reported. False if that failed: the device may continue to
    /// use the memory of its requests, so that memory is then kept.
    #[cold]
    pub(super) fn close(mut self) -> bool {
        let is_destroyed = self.pair.destroy();
        if !is_destroyed {
            self.keep();
        }
        is_destroyed
    }

    /// Never frees the memory of the requests under way.
    #[cold]
    fn keep(&mut self) {
        if !self.under_way.is_empty() {
            let kept = (self.under_way.take_held(), self.cells.clone());
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
    }

    /// Takes the device's completions.
    #[inline]
    pub(super) fn take_completions(&mut self) -> bool {
        // A completion queue is polled only while its pair has requests under way.
        let (mut has_more, mut has_any) = (!self.under_way.is_empty(), false);
        while has_more {
            let taken = match self.pair.completions.poll(&mut self.completions) {
                Ok(taken) => taken,
                Err(error) => return self.lose_queue(&error),
            };
            has_more = taken.len() == POLLED_AT_ONCE;
            has_any |= !taken.is_empty();
            for completion in taken {
                // These numbers come from the device, and this process computes with them: they are limited to the
                // valid range.
                let (first, end) = (self.under_way.first(), self.under_way.end());
                let after = completion.wr_id.saturating_add(1).clamp(first, end);
                self.returned = self.returned.max(after);
                if completion.status == sys::IBV_WC_SUCCESS {
                    self.succeeded = self.succeeded.max(after);
                    continue;
                }
                if self.failure.is_none() && self.succeeded < after {
                    // Requests complete in order: the requests before it have succeeded.
                    self.succeeded = self.succeeded.max(after - 1);
                    self.failure = Some(outcome(completion));
                    self.is_unanswered = completion.status == sys::IBV_WC_RETRY_EXC_ERR;
                    self.has_failed = true;
                }
            }
        }
        if has_any {
            // Earlier writes of the device come before later reads of this process.
            fence(Ordering::Acquire);
        }
        has_any
    }

    #[cold]
    fn lose_queue(&mut self, error: &io::Error) -> bool {
        tracing::error!(%error, "a completion queue cannot be polled: its connection is over");
        self.end();
        false
    }

    /// Drops the oldest entries that have succeeded and that are not reported to the caller.
    fn forget_silent(&mut self) {
        while self.under_way.first() < self.succeeded
            && self.under_way.oldest().is_some_and(|kind| kind != EntryKind::Signalled)
        {
            self.under_way.forget_oldest();
        }
    }

    /// The next completion for the caller.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        loop {
            while self.under_way.first() < self.succeeded {
                let entry = self.under_way.forget_oldest()?;
                if entry.kind == EntryKind::Signalled {
                    return Some(WorkCompletion { id: entry.id, result: Ok(()) });
                }
            }
            if self.under_way.first() < self.returned {
                let entry = self.under_way.forget_oldest()?;
                // The failure of a part is reported by the last part of its request.
                if matches!(entry.kind, EntryKind::Part | EntryKind::Proof) {
                    continue;
                }
                let result = Err(self.tell_failure());
                return Some(WorkCompletion { id: entry.id, result });
            }
            if !self.take_completions() {
                return None;
            }
        }
    }

    /// Returns the failure itself at the first call, and `Flushed` from then on.
    fn tell_failure(&mut self) -> CompletionError {
        let is_first = !std::mem::replace(&mut self.is_failure_told, true);
        self.failure.filter(|_| is_first).unwrap_or(CompletionError::Flushed)
    }
}

/// The memory of requests of queue pairs that could not be destroyed. The device may continue to read and write it,
/// so it is never freed.
static KEPT: Mutex<Vec<(Vec<HeldMemory>, MemoryRegion)>> = Mutex::new(Vec::new());

impl Drop for Initiator {
    fn drop(&mut self) {
        if !self.pair.destroy() {
            self.keep();
        }
    }
}

impl EntryKind {
    #[inline]
    fn of(request: &WorkRequest) -> EntryKind {
        if request.flags.contains(Flags::SIGNALLED) { EntryKind::Signalled } else { EntryKind::Unsignalled }
    }
}

/// Returns the meaning of an error completion.
fn outcome(completion: &sys::ibv_wc) -> CompletionError {
    match completion.status {
        // Some devices report the second status if a right is missing.
        sys::IBV_WC_REM_ACCESS_ERR | sys::IBV_WC_REM_INV_REQ_ERR => CompletionError::RemoteAccess,
        sys::IBV_WC_WR_FLUSH_ERR => CompletionError::Flushed,
        sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RNR_RETRY_EXC_ERR => CompletionError::Unreachable,
        status => CompletionError::Device { status, vendor_error: completion.vendor_err },
    }
}
