//! Builds a queue pair's work requests from the caller's requests.

use std::sync::atomic::Ordering;

use super::batch::{LocalMemory, rdma};
use super::{CELL_BYTES, Initiator, NOWHERE, Proof, REFUSED_BY_DEVICE};
use crate::cuda::GpuSlice;
use crate::mem::{LocalSlice, RemoteSlice, Streaming, fence};
use crate::transport::verbs::sys;
use crate::transport::verbs::under_way::{DeviceRequest, EntryKind};
use crate::transport::{Flags, Inline, Operation, PostError, WorkRequest};

impl Initiator {
    /// Makes the device report the newest entries, which no completion would report otherwise: they would stay in the
    /// queue until a request is posted, and a request may not fit beside them. A WRITE of no bytes needs no key. The
    /// pair that serves it still needs the right to write, and on a pair without that right each request is
    /// [reported](Initiator::report_all).
    #[cold]
    pub(super) fn ask_for_report(&mut self, free: usize) {
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
        // If the WRITE cannot be posted, the connection is over, and the next call says so.
        let _over = self.ring();
    }

    /// Adds the device requests for one request of the caller.
    #[inline]
    pub(super) fn build(&mut self, request: &WorkRequest) {
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

    /// The key of the one registration that covers a range of GPU memory.
    pub(super) fn key_on_gpu(&self, local: &GpuSlice) -> Option<u32> {
        let (keys, bytes) = local.device_keys(self.domain)?;
        (bytes == local.bytes()).then(|| keys.local[self.rail])
    }

    /// GPU memory whose registration was checked before.
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
            // The device need not fetch an inline payload: this processor copies it into the request at once. Behind
            // a fence it must not, since an earlier request may still bring the payload.
            let fits = local.is_on_host() && piece.length <= self.pair.inline_bytes;
            let is_there = !request.flags.contains(Flags::FENCE);
            let in_request = fits && is_there && opcode == sys::IBV_WR_RDMA_WRITE;
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

    /// Adds a device request, complete except for the peer's memory, which the caller fills in. Always inlined:
    /// passing its parameters takes half as many instructions as its own work.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        request: &WorkRequest,
        kind: EntryKind,
        local: Option<LocalMemory<'_>>,
        piece: sys::ibv_sge,
        opcode: sys::ibv_wr_opcode,
        mut flags: sys::ibv_send_flags,
    ) -> &mut sys::ibv_send_wr {
        self.unreported += 1;
        // The device reports the signalled requests, and others as rarely as the queue allows.
        if kind == EntryKind::Signalled || self.unreported >= self.report_every {
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
            // Without a receive the request would be delayed at the peer. Without the notice the peer only finds the
            // write later.
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

    /// Posts the newest entries, for which requests were built, to the device.
    #[inline]
    pub(super) fn ring(&mut self) -> Result<(), PostError> {
        // Earlier writes of this process come before later reads of the device.
        fence(Ordering::Release);
        // SAFETY: the lists of pieces were named just now, in a vector that is not touched before the end of the
        // call. Each piece lies inside its slice (`build_parts` splits the slice itself; atomics and sentinels have 8
        // bytes, as `post` checks and `spare` makes), and each slice inside a region of this domain (checked in
        // `post`; the cells are also of this domain; memory that is registered in the first rail's domain is
        // registered in the domains of all others). The regions are held until the device has given the requests
        // back, or until after the queue pair is destroyed. The cell of an entry is used again only by the entry
        // `room` numbers later, and no more than `room` are under way.
        let posted = unsafe { self.pair.post(self.batch.named()) };
        posted.map_err(|count| {
            // Part of the batch may be under way, which breaks the promise of all or nothing: the queue pair ends
            // here.
            self.under_way.truncate(self.batch.count - count);
            self.end();
            REFUSED_BY_DEVICE.into()
        })
    }
}
