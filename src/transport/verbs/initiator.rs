//! The posting side of a queue pair: what is under way, in order, and the memory that it owns.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::queue_pair::{POLLED_AT_ONCE, QueuePair};
use super::region::ProtectionDomain;
use super::sys;
use super::under_way::{DeviceRequest, EntryKind, HeldMemory, UnderWay};
use crate::cuda::{Gpu, GpuSlice};
use crate::mem::{Access, LocalSlice, MemoryRegion, RemoteKey, RemoteSlice, Streaming, fence};
use crate::transport::{
    CompletionError, Disconnected, Flags, Inline, Operation, PayloadMemory, PostError, WorkCompletion,
    WorkRequest,
};

/// Room for the longest inline data of a request.
const CELL_BYTES: usize = 64;

const NOWHERE: RemoteSlice = RemoteSlice { key: RemoteKey(0), offset: 0, len: 0 };

const REFUSED_BY_DEVICE: Disconnected = Disconnected { reason: "the RDMA device refused a request" };

/// The requests of the device that one call posts, in memory that the next call uses again.
struct Batch {
    requests: Vec<sys::ibv_send_wr>,
    /// The memory of each.
    pieces: Vec<sys::ibv_sge>,
    /// So many are of this call.
    count: usize,
}

/// The requests of one side, on a queue pair of their own.
pub(super) struct Initiator {
    /// Destroyed first: after that the device touches none of the memory that is held.
    pair: QueuePair,
    /// The requests that were posted and not yet told of, as many as the device's queue has room for, and the memory
    /// that the device may be using. The device hands their numbers back with each completion.
    under_way: UnderWay,
    /// Entries before this one have succeeded.
    succeeded: u64,
    /// Entries before this one were given back by the device, in success or in error.
    returned: u64,
    /// The error of the first request that failed; all behind it are flushed.
    failure: Option<CompletionError>,
    is_failure_told: bool,
    /// True if the failure is that the peer did not answer.
    is_unanswered: bool,
    has_failed: bool,
    /// Entries since the last that the device reports.
    unreported: usize,
    /// The memory that holds inline data until the device has taken it: a cell for each entry.
    cells: MemoryRegion,
    completions: [sys::ibv_wc; POLLED_AT_ONCE],
    batch: Batch,
    /// Entries that may be under way, beside proofs.
    depth: usize,
    /// Entries of the device's queue.
    room: usize,
    /// Longest single request of the device in bytes.
    piece_bytes: usize,
    /// What its rail carries, in Mbit/s, by which long requests are shared out; 0 if unknown.
    pub(super) speed: u32,
    /// The longest time that its device takes to find that the peer does not answer.
    pub(super) gives_up_after: Duration,
    /// Whether READs and atomics that are to wait for earlier ones are given to the device with a fence.
    pub(super) fences_reads: bool,
    /// Whether the device has atomics that work.
    pub(super) has_atomics: bool,
    /// Whether requests may have memory of a GPU: the caller posts them once the GPU is done with it.
    pub(super) takes_gpu: bool,
    /// The index of the rail that it posts on, and so of the key that a region has here.
    pub(super) rail: usize,
    /// The first rail's domain, whose memory can be posted.
    domain: u32,
    /// Receives that the peer has posted and this side has not used up: requests that it can notice.
    receives: u16,
    /// Set where the peer's device may apply writes in any order.
    proof: Option<Proof>,
}

/// The way to keep the order of writes where the peer's device does not: a READ of its sentinel goes before each write
/// that must not overtake any, and the write waits for the READ in the device (a fence).
struct Proof {
    sentinel: (LocalSlice, RemoteSlice),
    /// The peer's grants, by name, and their rights.
    grants: Vec<(RemoteKey, Access)>,
}

// SAFETY: the raw pointers in `batch` are made and used within one call of `post`, and mean nothing between calls.
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
            unreported: 0,
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

    /// From now on each write into memory that announces waits in the device until a READ of this word has proved those
    /// before it. `grants` are the peer's, each with whether it announces nothing.
    pub(super) fn prove_by(&mut self, sentinel: RemoteSlice, grants: Vec<(RemoteKey, Access)>) {
        if mutant!("unproved") {
            return;
        }
        assert!(self.room >= 2 * self.depth);
        let local = self.spare();
        self.proof = Some(Proof { sentinel: (local, sentinel), grants });
    }

    /// From now on the caller may have as many requests under way as the device's queue has room for: no write is
    /// proved by this queue pair itself.
    pub(super) fn leave_no_room_for_proofs(&mut self) {
        self.depth = self.room;
    }

    /// Longest data that a request carries in itself.
    pub(super) fn inline_bytes(&self) -> u32 {
        self.pair.inline_bytes
    }

    /// The peer has posted so many receives more. False if it says so of none, or of more than this side has used up of
    /// those that it has `in_all`.
    pub(super) fn add_receives(&mut self, more: u16, in_all: u16) -> bool {
        let is_true = more > 0 && more <= in_all - self.receives;
        if is_true {
            self.receives += more;
        }
        is_true
    }

    /// Bytes of memory that hold the inline data of a device's queue of so many entries, and a cell to spare.
    pub(super) fn cells_bytes(room: usize) -> usize {
        (room + 1) * CELL_BYTES
    }

    /// A word that is of no use to anybody: where READs go whose completion is all that is wanted of them.
    pub(super) fn spare(&self) -> LocalSlice {
        self.cells.slice(self.room * CELL_BYTES, 8).expect("there is a cell more than the queue has entries")
    }

    /// Whether nothing is left to be told.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The queue pair.
    pub(super) fn pair(&self) -> &QueuePair {
        &self.pair
    }

    /// Whether a request has failed: the queue pair is of no more use.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Returns the error of the first request that failed.
    pub(super) fn failure(&self) -> Option<CompletionError> {
        self.failure
    }

    /// Whether it failed since the peer's device did not answer.
    pub(super) fn is_unanswered(&self) -> bool {
        self.is_unanswered
    }

    /// Whether a request is a write that goes behind a READ which proves those before it.
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
            // The device carries them out after all that came before.
            _ => false,
        }
    }

    /// Returns how many requests of the device a request is made of, beside its proof.
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

    /// Parts that there is room for.
    #[inline]
    pub(super) fn free(&self) -> usize {
        self.depth - self.under_way.of_caller()
    }

    /// Returns how many requests of the device a batch is made of, if it can be posted at all. With a GPU, requests may
    /// have any memory of that, and count as one; without one they may have what is registered.
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

    /// Has the device report the newest entries, which no completion would tell of otherwise: they would stay in
    /// the queue until something is posted, and something does not fit beside them. A WRITE of no bytes needs no right.
    #[cold]
    fn ask_for_report(&mut self, free: usize) {
        if self.unreported == 0 || free == 0 || self.has_failed {
            return;
        }
        self.batch.count = 0;
        let request =
            WorkRequest::signalled(0, Operation::WriteInline { data: Inline::word(0), remote: NOWHERE });
        let piece = sys::ibv_sge::default();
        let asking = self.add(&request, EntryKind::Part, None, piece, sys::IBV_WR_RDMA_WRITE, 0);
        asking.wr.rdma = rdma(&NOWHERE, 0);
        asking.send_flags |= sys::IBV_SEND_SIGNALED;
        self.unreported = 0;
        // If it cannot be posted, the connection is over, and the next call says so.
        let _over = self.ring();
    }

    /// Adds the device's requests for one of the caller's.
    #[inline]
    fn build(&mut self, request: &WorkRequest) {
        if !self.is_proved(request) {
            return self.build_bare(request);
        }
        self.build_proof();
        let begin = self.batch.count;
        self.build_bare(request);
        self.batch.requests[begin].send_flags |= sys::IBV_SEND_FENCE;
    }

    /// Adds the READ of the peer's sentinel.
    fn build_proof(&mut self) {
        let Some(Proof { sentinel: (local, remote), .. }) = &self.proof else { return };
        let (local, remote) = (local.clone(), *remote);
        let source = LocalMemory::Host(&local);
        let piece = source.piece(self.rail, 0, 8);
        let operation = Operation::Read { local: local.clone(), remote, streaming: Streaming::Never };
        let read = WorkRequest::unsignalled(0, operation);
        let proof = self.add(&read, EntryKind::Proof, Some(source), piece, sys::IBV_WR_RDMA_READ, 0);
        proof.wr.rdma = rdma(&remote, 0);
    }

    /// Adds the requests that carry the operation itself.
    #[inline]
    fn build_bare(&mut self, request: &WorkRequest) {
        match &request.operation {
            Operation::Write { local, remote, .. } => {
                self.build_parts(request, LocalMemory::Host(local), remote, sys::IBV_WR_RDMA_WRITE);
            }
            Operation::Read { local, remote, .. } => {
                self.build_parts(request, LocalMemory::Host(local), remote, sys::IBV_WR_RDMA_READ);
            }
            Operation::WriteFromGpu { local, remote } => {
                self.build_parts(request, self.on_gpu(local), remote, sys::IBV_WR_RDMA_WRITE);
            }
            Operation::ReadToGpu { local, remote } => {
                self.build_parts(request, self.on_gpu(local), remote, sys::IBV_WR_RDMA_READ);
            }
            Operation::WriteInline { data, remote } => {
                let cell = (self.under_way.end() as usize % self.room) * CELL_BYTES;
                let cell = self.cells.as_volatile().subslice(cell, CELL_BYTES);
                for (index, word) in data.words().iter().enumerate() {
                    cell.store(index * 8, *word, Ordering::Relaxed);
                }
                let bytes = data.len_bytes() as u32;
                let piece = sys::ibv_sge {
                    addr: cell.as_ptr().expose_provenance() as u64,
                    length: bytes,
                    lkey: self.cells.device_keys().local[self.rail],
                };
                let in_request = bytes <= self.pair.inline_bytes;
                let flags = if in_request { sys::IBV_SEND_INLINE } else { 0 };
                let kind = EntryKind::of(request);
                self.add(request, kind, None, piece, sys::IBV_WR_RDMA_WRITE, flags).wr.rdma = rdma(remote, 0);
            }
            Operation::FetchAdd { local, remote, add } => {
                self.build_atomic(request, local, remote, sys::IBV_WR_ATOMIC_FETCH_AND_ADD, *add, 0);
            }
            Operation::CompareSwap { local, remote, compare, swap } => {
                self.build_atomic(request, local, remote, sys::IBV_WR_ATOMIC_CMP_AND_SWP, *compare, *swap);
            }
        }
    }

    /// The key of the one registration that has a range of memory of a GPU.
    fn key_on_gpu(&self, local: &GpuSlice) -> Option<u32> {
        let (keys, bytes) = local.device_keys(self.domain)?;
        (bytes == local.bytes()).then(|| keys.local[self.rail])
    }

    /// Memory of a GPU that was checked to be registered.
    fn on_gpu<'a>(&self, local: &'a GpuSlice) -> LocalMemory<'a> {
        LocalMemory::Gpu(local, self.key_on_gpu(local).unwrap_or(0))
    }

    #[inline]
    fn build_parts(
        &mut self,
        request: &WorkRequest,
        local: LocalMemory<'_>,
        remote: &RemoteSlice,
        opcode: sys::ibv_wr_opcode,
    ) {
        let mut done = 0;
        loop {
            let bytes = (local.len() - done).min(self.piece_bytes);
            let is_last = done + bytes == local.len();
            let kind = if is_last { EntryKind::of(request) } else { EntryKind::Part };
            let piece = local.piece(self.rail, done, bytes);
            // What travels in the request itself the device need not fetch; this processor does.
            let fits = local.is_on_host() && piece.length <= self.pair.inline_bytes;
            let in_request = fits && opcode == sys::IBV_WR_RDMA_WRITE;
            let flags = if in_request { sys::IBV_SEND_INLINE } else { 0 };
            let part = self.add(request, kind, Some(local), piece, opcode, flags);
            part.wr.rdma = rdma(remote, done as u64);
            done += bytes;
            if is_last {
                return;
            }
        }
    }

    #[inline]
    fn build_atomic(
        &mut self,
        request: &WorkRequest,
        local: &LocalSlice,
        remote: &RemoteSlice,
        opcode: sys::ibv_wr_opcode,
        compare_add: u64,
        swap: u64,
    ) {
        let local = LocalMemory::Host(local);
        let piece = local.piece(self.rail, 0, 8);
        let atomic = self.add(request, EntryKind::of(request), Some(local), piece, opcode, 0);
        atomic.wr.atomic = sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: remote.offset,
            compare_add,
            swap,
            rkey: remote.key.0 as u32,
        };
    }

    /// Adds a request of the device, all of it but the peer's memory, which the caller fills in. Always inlined:
    /// handing over its parameters takes half as many instructions as its own work.
    #[inline(always)]
    fn add(
        &mut self,
        request: &WorkRequest,
        kind: EntryKind,
        local: Option<LocalMemory<'_>>,
        piece: sys::ibv_sge,
        opcode: sys::ibv_wr_opcode,
        mut flags: sys::ibv_send_flags,
    ) -> &mut sys::ibv_send_wr {
        self.unreported += 1;
        // The device reports what the caller wants to hear of, and otherwise as rarely as the queue allows.
        if kind == EntryKind::Signalled || self.unreported >= self.depth.div_ceil(4) {
            flags |= sys::IBV_SEND_SIGNALED;
            self.unreported = 0;
        }
        let can_fence = self.fences_reads || opcode == sys::IBV_WR_RDMA_WRITE;
        if request.flags.contains(Flags::FENCE) && can_fence {
            flags |= sys::IBV_SEND_FENCE;
        }
        let mut opcode = opcode;
        if request.flags.contains(Flags::NOTIFY)
            && kind != EntryKind::Part
            && opcode == sys::IBV_WR_RDMA_WRITE
            && self.receives > 0
        {
            // Without a receive it would be held up at the peer. Unnoticed, it only is found later.
            self.receives -= 1;
            opcode = sys::IBV_WR_RDMA_WRITE_WITH_IMM;
        }
        let number = self.under_way.end();
        if let Some(local) = local {
            self.under_way.hold(|memory| local.is_of(memory), || local.memory());
        }
        self.under_way.push(DeviceRequest { id: request.id, kind });
        let added = self.batch.add(piece);
        (added.wr_id, added.opcode, added.send_flags) = (number, opcode, flags);
        added
    }

    /// Hands the newest entries to the device: those that requests were built for.
    #[inline]
    fn ring(&mut self) -> Result<(), PostError> {
        // What this process wrote before comes before what the device reads.
        fence(Ordering::Release);
        // SAFETY: the lists of pieces were named just now, in a vector that is not touched before the end of the call.
        // Each piece lies inside its slice (`build_parts` cuts what there is; atomics and sentinels have 8 bytes, as
        // `post` checks and `spare` makes), and a slice inside a region of this domain (checked in `post`; the cells
        // are of it, too; what is registered in the first rail's is in those of all others). The regions are held until
        // the device has given the requests back, or until after the queue pair is destroyed. The cell of an entry is
        // used again only by the entry `room` numbers later, and no more than `room` are under way.
        let posted = unsafe { self.pair.post(self.batch.named()) };
        posted.map_err(|count| {
            // Part of the batch may be on its way, which all or nothing does not allow: this is the end.
            self.under_way.truncate(self.batch.count - count);
            self.end();
            REFUSED_BY_DEVICE.into()
        })
    }

    /// Ends the queue pair: whatever is under way comes back flushed.
    #[cold]
    pub(super) fn end(&mut self) {
        self.has_failed = true;
        self.pair.end();
    }

    /// Destroys the queue pair: whatever is under way is not told of. False if that failed: the device may go on to use
    /// the memory of its requests, which is kept then.
    #[cold]
    pub(super) fn close(mut self) -> bool {
        let is_destroyed = self.pair.destroy();
        if !is_destroyed {
            self.keep();
        }
        is_destroyed
    }

    /// Keeps the memory of what is under way for ever.
    #[cold]
    fn keep(&mut self) {
        if !self.under_way.is_empty() {
            let kept = (self.under_way.take_held(), self.cells.clone());
            KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        }
    }

    /// Takes what the device has completed.
    #[inline]
    pub(super) fn take_completions(&mut self) -> bool {
        // Of a queue pair that has nothing under way the device is not asked.
        let (mut has_more, mut has_any) = (!self.under_way.is_empty(), false);
        while has_more {
            let taken = match self.pair.completions.poll(&mut self.completions) {
                Ok(taken) => taken,
                Err(error) => return self.lose_queue(&error),
            };
            has_more = taken.len() == POLLED_AT_ONCE;
            has_any |= !taken.is_empty();
            for completion in taken {
                // The device's own numbers, but what is computed with them is ours.
                let (first, end) = (self.under_way.first(), self.under_way.end());
                let after = completion.wr_id.saturating_add(1).clamp(first, end);
                self.returned = self.returned.max(after);
                if completion.status == sys::IBV_WC_SUCCESS {
                    self.succeeded = self.succeeded.max(after);
                    continue;
                }
                if self.failure.is_none() && self.succeeded < after {
                    // Requests complete in order: those before it have succeeded.
                    self.succeeded = self.succeeded.max(after - 1);
                    self.failure = Some(outcome(completion));
                    self.is_unanswered = completion.status == sys::IBV_WC_RETRY_EXC_ERR;
                    self.has_failed = true;
                }
            }
        }
        if has_any {
            // What the device wrote before comes before what this process reads.
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

    /// Drops the oldest entries that have succeeded and that no caller hears of.
    fn forget_silent(&mut self) {
        while self.under_way.first() < self.succeeded
            && self.under_way.oldest().is_some_and(|kind| kind != EntryKind::Signalled)
        {
            self.under_way.forget_oldest();
        }
    }

    /// The next completion that the caller is to hear of.
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
                // A part that failed is told by the last part of its request.
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

    /// The failure itself once, and that all behind it was flushed from then on.
    fn tell_failure(&mut self) -> CompletionError {
        let is_first = !std::mem::replace(&mut self.is_failure_told, true);
        self.failure.filter(|_| is_first).unwrap_or(CompletionError::Flushed)
    }
}

/// The memory of requests of queue pairs that could not be destroyed. The device may go on to read and write it, so it
/// is never given back.
static KEPT: Mutex<Vec<(Vec<HeldMemory>, MemoryRegion)>> = Mutex::new(Vec::new());

impl Batch {
    fn with_capacity(room: usize) -> Batch {
        Batch { requests: Vec::with_capacity(room), pieces: Vec::with_capacity(room), count: 0 }
    }

    /// Adds a request that concerns this memory of one's own. It is made of the one that was here before: each field
    /// that any request sets is set again, and the others stay zero. That takes half the time of making one and moving
    /// it here.
    #[inline]
    fn add(&mut self, piece: sys::ibv_sge) -> &mut sys::ibv_send_wr {
        let at = self.count;
        self.count += 1;
        if at == self.requests.len() {
            self.requests.push(sys::ibv_send_wr::default());
            self.pieces.push(sys::ibv_sge::default());
        }
        self.pieces[at] = piece;
        let request = &mut self.requests[at];
        request.next = std::ptr::null_mut();
        // A list of no bytes is no list.
        request.num_sge = i32::from(piece.length > 0);
        request
    }

    /// All requests of this call, each with its list of one piece, which stays where it is until the next call.
    #[inline]
    fn named(&mut self) -> &mut [sys::ibv_send_wr] {
        let (requests, pieces) = (&mut self.requests[..self.count], self.pieces.as_mut_ptr());
        match requests {
            // Most calls post one request, and the loop is compiled for many.
            [one] => one.sg_list = pieces,
            all => {
                for (index, request) in all.iter_mut().enumerate() {
                    request.sg_list = pieces.wrapping_add(index);
                }
            }
        }
        &mut self.requests[..self.count]
    }
}

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

/// The memory of a request at this side.
#[derive(Clone, Copy)]
enum LocalMemory<'a> {
    Host(&'a LocalSlice),
    /// With the key that it has on the rail.
    Gpu(&'a GpuSlice, u32),
}

impl LocalMemory<'_> {
    #[inline]
    fn len(self) -> usize {
        match self {
            LocalMemory::Host(slice) => slice.len(),
            LocalMemory::Gpu(slice, _) => slice.bytes(),
        }
    }

    fn is_on_host(self) -> bool {
        matches!(self, LocalMemory::Host(_))
    }

    /// A part of it, which lies inside.
    #[inline]
    fn piece(self, rail: usize, offset: usize, bytes: usize) -> sys::ibv_sge {
        debug_assert!(bytes <= self.len() && offset <= self.len() - bytes);
        let (addr, lkey) = match self {
            LocalMemory::Host(slice) => {
                let begin = slice.as_ptr().wrapping_add(offset);
                let key = slice.region().device_keys().local[rail];
                (begin.expose_provenance() as u64, key)
            }
            LocalMemory::Gpu(slice, key) => (slice.pointer() + offset as u64, key),
        };
        sys::ibv_sge { addr, length: bytes as u32, lkey }
    }

    /// Whether it is a range of this memory.
    #[inline]
    fn is_of(self, memory: &PayloadMemory) -> bool {
        match (self, memory) {
            (LocalMemory::Host(slice), PayloadMemory::Host(region)) => region.same_as(slice.region()),
            (LocalMemory::Gpu(slice, _), PayloadMemory::Gpu(memory)) => memory == slice.memory(),
            _ => false,
        }
    }

    #[inline]
    #[cfg_attr(not(feature = "cuda"), allow(unreachable_code, reason = "there is no memory of a GPU"))]
    fn memory(self) -> PayloadMemory {
        match self {
            LocalMemory::Host(slice) => PayloadMemory::Host(slice.region().clone()),
            LocalMemory::Gpu(slice, _) => PayloadMemory::Gpu(slice.memory().clone()),
        }
    }
}

#[inline]
fn rdma(remote: &RemoteSlice, done: u64) -> sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
    // Whatever the offset is, the target checks it: one that wraps around lies outside of every grant.
    sys::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: remote.offset.wrapping_add(done),
        rkey: remote.key.0 as u32,
    }
}

/// Returns the meaning of an error completion.
fn outcome(completion: &sys::ibv_wc) -> CompletionError {
    match completion.status {
        // The second is what some devices say where a right is missing.
        sys::IBV_WC_REM_ACCESS_ERR | sys::IBV_WC_REM_INV_REQ_ERR => CompletionError::RemoteAccess,
        sys::IBV_WC_WR_FLUSH_ERR => CompletionError::Flushed,
        sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RNR_RETRY_EXC_ERR => CompletionError::Unreachable,
        status => CompletionError::Device { status, vendor_error: completion.vendor_err },
    }
}
