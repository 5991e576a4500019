//! Copies that a GPU makes between its memory and a peer's, and the requests that wait behind them.
//!
//! Requests of one endpoint take effect in order, and a copy takes time. So what was posted behind a copy that is under
//! way is held, and is carried out once the copy's ticket says that its bytes are there. Copies that one stream makes
//! in order do not wait for each other. Nothing here waits.

#[cfg(test)]
mod conformance;
mod crossing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use self::crossing::Crossing;
use super::handshake::{MappedOnGpu, ShmHandshakeError};
use crate::cuda::{Gpu, GpuCopy, GpuError, GpuMemory, GpuSlice, Tickets};
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion, RemoteSlice, Streaming};
use crate::transport::staging::StagingBlocks;
use crate::transport::wireup::{Grant, lets_write};
use crate::transport::{
    CompletionError, Disconnected, Endpoint, Flags, GpuPath, LocalEndpoint, Operation, PostError,
    RegisterError, WorkRequest,
};

const NOT_COPIED: Disconnected = Disconnected {
    reason: "a GPU of this process did not copy a payload: its log has the driver's error; remove the cause and \
             connect again",
};

/// Memory of a GPU that the peer has granted.
pub(super) struct ReachedMemory {
    /// The GPU that copies it: this side's, or the one that the memory is on where this side's does not reach it.
    gpu: Gpu,
    /// What was granted of what is mapped, which is whole units of the device.
    memory: GpuSlice,
}

/// How a request is carried out.
enum PeerCopy {
    /// By one copy of this GPU.
    By(Gpu, GpuCopy),
    /// By way of the host.
    Crossing(Crossing),
}

/// The side of an endpoint that has to do with memory of a GPU: its own, or the peer's.
pub(super) struct GpuSide {
    gpu: Gpu,
    /// The peer's memory that is on a GPU.
    segments: Vec<MappedOnGpu>,
    /// Requests that are to be carried out, in order.
    held: VecDeque<WorkRequest>,
    /// Copies that are under way, in order, and all of one stream.
    copying: VecDeque<(WorkRequest, Gpu, GpuCopy)>,
    tickets: Tickets,
    /// A request by way of the host, while no other is under way; and the blocks, once one has needed them.
    crossing: Option<(WorkRequest, Crossing)>,
    blocks: Option<StagingBlocks>,
}

impl GpuSide {
    pub(super) fn new(gpu: Gpu, segments: Vec<MappedOnGpu>) -> GpuSide {
        let (held, copying) = (VecDeque::new(), VecDeque::new());
        let (tickets, crossing, blocks) = (Tickets::default(), None, None);
        GpuSide { gpu, segments, held, copying, tickets, crossing, blocks }
    }

    /// The way between this side's GPU and the peer's memory.
    pub(super) fn path(&self) -> GpuPath {
        let out_of_reach = self.segments.iter().find(|(_, reached, _)| !reached.gpu.is(&self.gpu));
        out_of_reach.map_or(GpuPath::CopyEngines, |(_, reached, _)| GpuPath::Staged {
            passed_over: [("copy engines", no_peer_access(&self.gpu, &reached.gpu))].into(),
        })
    }

    /// The copies that its requests wait for.
    pub(super) fn awaited_copies(&self) -> Option<&Tickets> {
        match &self.crossing {
            Some((_, crossing)) => crossing.awaited_copies(),
            None => (!self.copying.is_empty()).then_some(&self.tickets),
        }
    }

    /// The peer's memory, where this side's GPU has it mapped and may read it.
    pub(super) fn map(&self, remote: &RemoteSlice) -> Option<GpuSlice> {
        let (gpu, memory) = self.target(remote, Access::REMOTE_READ).ok()??;
        gpu.is(&self.gpu).then_some(memory)
    }

    /// Takes a batch, all or nothing, and carries out what need not wait. True if a request that notifies was among
    /// that.
    pub(super) fn post(
        &mut self,
        local: &mut LocalEndpoint,
        batch: &[WorkRequest],
    ) -> Result<bool, PostError> {
        let is_plain = self.held.is_empty() && self.copying.is_empty() && self.crossing.is_none();
        if is_plain && !batch.iter().any(|request| self.concerns(&request.operation)) {
            local.post(batch)?;
            return Ok(notifies(batch));
        }
        local.check()?;
        for (index, request) in batch.iter().enumerate() {
            request.check_with(&self.gpu).map_err(|reason| PostError::Malformed { index, reason })?;
        }
        let under_way = self.copying.len() + usize::from(self.crossing.is_some());
        let (waiting, room) = (self.held.len() + under_way, local.free());
        let free = room.saturating_sub(waiting);
        if batch.len() > local.depth() {
            return Err(PostError::BatchTooLong { batch: batch.len(), depth: local.depth() });
        }
        if batch.len() > free {
            return Err(PostError::QueueFull { free, batch: batch.len() });
        }
        for request in batch {
            let is_for_gpu = self.concerns(&request.operation);
            self.held.push_back(if is_for_gpu { as_payload(request.clone()) } else { request.clone() });
        }
        Ok(self.advance(local))
    }

    /// True if a GPU carries the operation out.
    fn concerns(&self, operation: &Operation) -> bool {
        match operation {
            Operation::ReadToGpu { .. } | Operation::WriteFromGpu { .. } => true,
            Operation::Read { remote, .. }
            | Operation::Write { remote, .. }
            | Operation::WriteInline { remote, .. }
            | Operation::FetchAdd { remote, .. }
            | Operation::CompareSwap { remote, .. } => {
                self.segments.iter().any(|(key, ..)| *key == remote.key)
            }
        }
    }

    /// Carries out what need not wait any more. True if a request that notifies was among that.
    pub(super) fn advance(&mut self, local: &mut LocalEndpoint) -> bool {
        let mut notified = false;
        loop {
            match self.cross() {
                Ok(true) => {}
                Ok(false) => return notified,
                Err(error) => {
                    tracing::warn!(%error, "a copy between two GPUs was not made");
                    self.fail(local, CompletionError::Gpu);
                }
            }
            if let Some((request, _)) = self.crossing.take() {
                notified |= request.flags.contains(Flags::NOTIFY);
                local.complete(&request, Ok(()));
            }
            let is_over = self.copying.is_empty() || mutant!("gpu_copy_completes_at_once");
            match if is_over { Ok(true) } else { self.tickets.are_done() } {
                Ok(true) => {
                    for (request, ..) in self.copying.drain(..) {
                        notified |= request.flags.contains(Flags::NOTIFY);
                        local.complete(&request, Ok(()));
                    }
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "a copy from or to a peer's memory was not made");
                    self.fail(local, CompletionError::Gpu);
                }
            }
            let Some(request) = self.held.pop_front() else { return notified };
            if !self.concerns(&request.operation) {
                if !self.copying.is_empty() {
                    self.held.push_front(request);
                    return notified;
                }
                // It was checked when it was posted, and there is room for its completion.
                if local.post(std::slice::from_ref(&request)).is_err() {
                    local.complete(&request, Err(CompletionError::Flushed));
                }
                notified |= request.flags.contains(Flags::NOTIFY);
                continue;
            }
            let alive = local.check().map_err(|_| CompletionError::Flushed);
            let (gpu, copy) = match alive.and_then(|()| self.copy_of(local, &request.operation)) {
                Ok(PeerCopy::By(gpu, copy)) => (gpu, copy),
                Ok(PeerCopy::Crossing(crossing)) if self.copying.is_empty() => {
                    self.crossing = Some((request, crossing));
                    continue;
                }
                Ok(PeerCopy::Crossing(_)) => {
                    self.held.push_front(request);
                    return notified;
                }
                Err(error) => {
                    self.held.push_front(request);
                    // Those before it come first.
                    if self.copying.is_empty() {
                        self.fail(local, error);
                    }
                    return notified;
                }
            };
            let is_ordered =
                |(_, by, before): &(_, Gpu, GpuCopy)| by.is(&gpu) && before.is_ordered_with(&copy);
            if !self.copying.back().is_none_or(is_ordered) {
                self.held.push_front(request);
                return notified;
            }
            match gpu.copy(copy.clone(), &mut self.tickets) {
                Ok(()) => self.copying.push_back((request, gpu, copy)),
                Err(error) => {
                    // What is under way comes first: then the peer may give its memory to others.
                    self.tickets.fail(error);
                    self.copying.push_back((request, gpu, copy));
                }
            }
        }
    }

    /// Ends the connection: the first request that is not complete has failed, and those behind it are flushed.
    fn fail(&mut self, local: &mut LocalEndpoint, error: CompletionError) {
        local.fail(NOT_COPIED);
        let crossing = self.crossing.take().map(|(request, _)| request);
        let copying = crossing.into_iter().chain(self.copying.drain(..).map(|(request, ..)| request));
        for (index, request) in copying.chain(self.held.drain(..)).enumerate() {
            let error = if index == 0 { error } else { CompletionError::Flushed };
            local.complete(&request, Err(error));
        }
    }

    /// Moves on the request that goes by way of the host. True once there is none, or it is done.
    fn cross(&mut self) -> Result<bool, GpuError> {
        let Some((_, crossing)) = &mut self.crossing else { return Ok(true) };
        let blocks = match &mut self.blocks {
            Some(blocks) => blocks,
            none => {
                let longest = self.segments.iter().map(|(_, reached, _)| reached.memory.bytes()).max();
                let register = |memory| Ok(MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()));
                let reason = "its peer's GPU is another one, to which it has no peer access";
                none.insert(StagingBlocks::new(&self.gpu, longest.unwrap_or(1), reason, register)?)
            }
        };
        crossing.advance(blocks)
    }

    /// The copy that an operation asks for, if it was granted.
    fn copy_of(&self, local: &LocalEndpoint, operation: &Operation) -> Result<PeerCopy, CompletionError> {
        let host = |remote: &RemoteSlice, needed| local.granted(remote, needed);
        let own = |copy| PeerCopy::By(self.gpu.clone(), copy);
        Ok(match operation {
            Operation::ReadToGpu { local, remote } => match self.target(remote, Access::REMOTE_READ)? {
                Some(from) => between(from, (&self.gpu, local.clone())),
                None => {
                    own(GpuCopy::FromHost { from: host(remote, Access::REMOTE_READ)?, into: local.clone() })
                }
            },
            Operation::WriteFromGpu { local, remote } => match self.target(remote, Access::REMOTE_WRITE)? {
                Some(into) => between((&self.gpu, local.clone()), into),
                None => {
                    own(GpuCopy::ToHost { from: local.clone(), into: host(remote, Access::REMOTE_WRITE)? })
                }
            },
            Operation::Read { local, remote, .. } => match self.target(remote, Access::REMOTE_READ)? {
                Some((gpu, from)) => PeerCopy::By(gpu.clone(), GpuCopy::ToHost { from, into: local.clone() }),
                None => return Err(CompletionError::RemoteAccess),
            },
            Operation::Write { local, remote, .. } => match self.target(remote, Access::REMOTE_WRITE)? {
                Some((gpu, into)) => {
                    PeerCopy::By(gpu.clone(), GpuCopy::FromHost { from: local.clone(), into })
                }
                None => return Err(CompletionError::RemoteAccess),
            },
            // There was no memory for their block.
            Operation::WriteInline { .. } => return Err(CompletionError::Gpu),
            // Words that are counted are never in memory of a GPU.
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                return Err(CompletionError::RemoteAccess);
            }
        })
    }

    /// The range of the peer's GPU that `remote` names and the GPU that copies it, if it was granted with all of
    /// `needed`; `None` if the key is one of host memory.
    fn target(
        &self,
        remote: &RemoteSlice,
        needed: Access,
    ) -> Result<Option<(&Gpu, GpuSlice)>, CompletionError> {
        let Some((_, reached, access)) = self.segments.iter().find(|(key, ..)| *key == remote.key) else {
            return Ok(None);
        };
        let range = usize::try_from(remote.offset).ok().zip(usize::try_from(remote.len).ok());
        let slice = range.and_then(|(offset, len)| reached.memory.slice(offset, len).ok());
        let slice = slice.filter(|_| access.contains(needed)).ok_or(CompletionError::RemoteAccess)?;
        Ok(Some((&reached.gpu, slice)))
    }
}

/// A request for memory of a GPU as a copy engine carries it out: words are a short payload, in a block of their own.
/// The library writes no words to GPUs, so that no blocks are kept for them.
fn as_payload(mut request: WorkRequest) -> WorkRequest {
    let Operation::WriteInline { data, remote } = &request.operation else { return request };
    match HostMemory::anonymous(data.len_bytes() as usize) {
        Ok(memory) => {
            for (index, word) in data.words().iter().enumerate() {
                memory.as_volatile().store(index * 8, *word, Ordering::Relaxed);
            }
            let local = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()).whole();
            request.operation = Operation::Write { local, remote: *remote, streaming: Streaming::Never };
        }
        Err(error) => tracing::warn!(%error, "words are not written to memory of a GPU"),
    }
    request
}

fn notifies(batch: &[WorkRequest]) -> bool {
    batch.iter().any(|request| request.flags.contains(Flags::NOTIFY))
}

/// A copy between memory that two GPUs copy, which may be one.
fn between((by, from): (&Gpu, GpuSlice), (other, into): (&Gpu, GpuSlice)) -> PeerCopy {
    match into.is_of(by) {
        true => PeerCopy::By(by.clone(), GpuCopy::Within { from, into }),
        false => PeerCopy::Crossing(Crossing::new((by.clone(), from), (other.clone(), into))),
    }
}

fn no_peer_access(own: &Gpu, other: &Gpu) -> String {
    let (own, other) = (own.ordinal(), other.ordinal());
    format!(
        "GPU {own} has no peer access to GPU {other}, which the peer's payloads are on (nvidia-smi topo -p2p r)"
    )
}

/// What another process maps memory of a GPU by, and its length there.
pub(super) fn export(memory: &GpuMemory) -> Result<(OwnedFd, usize), ShmHandshakeError> {
    memory.export().map_err(|error| ShmHandshakeError::Gpu(error.to_string()))
}

/// Checks that other processes can map memory of a GPU.
pub(super) fn expect_exported(memory: &GpuMemory) -> Result<(), RegisterError> {
    memory
        .expect_exported()
        .map_err(|error| RegisterError::GpuMemory { transport: super::NAME, reason: error.to_string() })
}

/// Maps memory of a GPU that the peer has exported as a segment, of which it has granted what is before `end`.
pub(super) fn import(
    gpu: Option<&Gpu>,
    file: BorrowedFd<'_>,
    segment: &Grant,
    end: usize,
) -> Result<ReachedMemory, ShmHandshakeError> {
    let gpu = gpu.ok_or_else(|| {
        let reason = "its payloads are on a GPU; give this side that GPU, too (`Shm::with_gpu`)";
        ShmHandshakeError::Gpu(reason.into())
    })?;
    let bytes = usize::try_from(segment.bytes).unwrap_or(usize::MAX);
    let imported = GpuMemory::import(gpu, file, bytes, lets_write(segment.access));
    let (by, memory) = imported.map_err(|error| ShmHandshakeError::Gpu(error.to_string()))?;
    if gpu.requires_gpudirect() && !by.is(gpu) {
        let reason = no_peer_access(gpu, &by);
        let forbids =
            "`Gpu::require_gpudirect` forbids to stage them: use one GPU on both sides, or leave it out";
        return Err(ShmHandshakeError::Gpu(format!("{reason}, and {forbids}")));
    }
    let memory = memory.slice(0, end).map_err(|error| ShmHandshakeError::Gpu(error.to_string()))?;
    Ok(ReachedMemory { gpu: by, memory })
}
