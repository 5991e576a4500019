//! Copies that a GPU makes between its memory and a peer's, and the requests that wait behind them.
//!
//! Requests of one endpoint take effect in order, and a copy takes time. So what was posted behind a copy that is under
//! way is held, and is carried out once the copy's ticket says that its bytes are there. Copies that one stream makes
//! in order do not wait for each other. Nothing here waits.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::handshake::{MappedOnGpu, ShmHandshakeError};
use crate::cuda::{Gpu, GpuCopy, GpuMemory, GpuSlice, Tickets};
use crate::mem::{Access, RemoteSlice};
use crate::transport::{
    CompletionError, Disconnected, Endpoint, Flags, LocalEndpoint, Operation, PostError, WorkRequest,
};

const NOT_COPIED: Disconnected = Disconnected {
    reason: "a GPU of this process did not copy a payload: its log has the driver's error; remove the cause and \
             connect again",
};

/// The side of an endpoint that has to do with memory of a GPU: its own, or the peer's.
pub(super) struct GpuSide {
    gpu: Gpu,
    /// The peer's memory that is on a GPU.
    segments: Vec<MappedOnGpu>,
    /// Requests that are to be carried out, in order.
    held: VecDeque<WorkRequest>,
    /// Copies that are under way, in order, and all of one stream.
    copying: VecDeque<(WorkRequest, GpuCopy)>,
    tickets: Tickets,
}

impl GpuSide {
    pub(super) fn new(gpu: Gpu, segments: Vec<MappedOnGpu>) -> GpuSide {
        let (held, copying) = (VecDeque::new(), VecDeque::new());
        GpuSide { gpu, segments, held, copying, tickets: Tickets::default() }
    }

    /// Takes a batch, all or nothing, and carries out what need not wait. True if a request that notifies was among
    /// that.
    pub(super) fn post(
        &mut self,
        local: &mut LocalEndpoint,
        batch: &[WorkRequest],
    ) -> Result<bool, PostError> {
        let is_plain = self.held.is_empty() && self.copying.is_empty();
        if is_plain && !batch.iter().any(|request| self.concerns(&request.operation)) {
            local.post(batch)?;
            return Ok(notifies(batch));
        }
        local.check()?;
        for (index, request) in batch.iter().enumerate() {
            request.check_with(&self.gpu).map_err(|reason| PostError::Malformed { index, reason })?;
        }
        let (waiting, room) = (self.held.len() + self.copying.len(), local.free());
        let free = room.saturating_sub(waiting);
        if batch.len() > local.depth() {
            return Err(PostError::BatchTooLong { batch: batch.len(), depth: local.depth() });
        }
        if batch.len() > free {
            return Err(PostError::QueueFull { free, batch: batch.len() });
        }
        self.held.extend(batch.iter().cloned());
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
            let is_over = self.copying.is_empty() || mutant!("gpu_copy_completes_at_once");
            match if is_over { Ok(true) } else { self.tickets.are_done() } {
                Ok(true) => {
                    for (request, _) in self.copying.drain(..) {
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
            let copy = match alive.and_then(|()| self.copy_of(local, &request.operation)) {
                Ok(copy) => copy,
                Err(error) => {
                    self.held.push_front(request);
                    // Those before it come first.
                    if self.copying.is_empty() {
                        self.fail(local, error);
                    }
                    return notified;
                }
            };
            if self.copying.back().is_some_and(|(_, before)| !before.is_ordered_with(&copy)) {
                self.held.push_front(request);
                return notified;
            }
            match self.gpu.copy(copy.clone(), &mut self.tickets) {
                Ok(()) => self.copying.push_back((request, copy)),
                Err(error) => {
                    tracing::warn!(%error, "a GPU refuses to copy from or to a peer's memory");
                    self.held.push_front(request);
                    self.fail(local, CompletionError::Gpu);
                }
            }
        }
    }

    /// Ends the connection: the first request that is not complete has failed, and those behind it are flushed.
    fn fail(&mut self, local: &mut LocalEndpoint, error: CompletionError) {
        local.fail(NOT_COPIED);
        let copying = self.copying.drain(..).map(|(request, _)| request);
        for (index, request) in copying.chain(self.held.drain(..)).enumerate() {
            let error = if index == 0 { error } else { CompletionError::Flushed };
            local.complete(&request, Err(error));
        }
    }

    /// The copy that an operation asks for, if it was granted.
    fn copy_of(&self, local: &LocalEndpoint, operation: &Operation) -> Result<GpuCopy, CompletionError> {
        let host = |remote: &RemoteSlice, needed| local.granted(remote, needed);
        Ok(match operation {
            Operation::ReadToGpu { local, remote } => match self.target(remote, Access::REMOTE_READ)? {
                Some(from) => GpuCopy::Within { from, into: local.clone() },
                None => GpuCopy::FromHost { from: host(remote, Access::REMOTE_READ)?, into: local.clone() },
            },
            Operation::WriteFromGpu { local, remote } => match self.target(remote, Access::REMOTE_WRITE)? {
                Some(into) => GpuCopy::Within { from: local.clone(), into },
                None => GpuCopy::ToHost { from: local.clone(), into: host(remote, Access::REMOTE_WRITE)? },
            },
            Operation::Read { local, remote, .. } => match self.target(remote, Access::REMOTE_READ)? {
                Some(from) => GpuCopy::ToHost { from, into: local.clone() },
                None => return Err(CompletionError::RemoteAccess),
            },
            Operation::Write { local, remote, .. } => match self.target(remote, Access::REMOTE_WRITE)? {
                Some(into) => GpuCopy::FromHost { from: local.clone(), into },
                None => return Err(CompletionError::RemoteAccess),
            },
            // Words are never in memory of a GPU.
            Operation::WriteInline { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => {
                return Err(CompletionError::RemoteAccess);
            }
        })
    }

    /// The range of the peer's GPU that `remote` names, if it was granted with all of `needed`; `None` if the key is
    /// one of host memory.
    fn target(&self, remote: &RemoteSlice, needed: Access) -> Result<Option<GpuSlice>, CompletionError> {
        let Some((_, memory, access)) = self.segments.iter().find(|(key, ..)| *key == remote.key) else {
            return Ok(None);
        };
        let range = usize::try_from(remote.offset).ok().zip(usize::try_from(remote.len).ok());
        let slice = range.and_then(|(offset, len)| memory.slice(offset, len).ok());
        slice.filter(|_| access.contains(needed)).map(Some).ok_or(CompletionError::RemoteAccess)
    }
}

fn notifies(batch: &[WorkRequest]) -> bool {
    batch.iter().any(|request| request.flags.contains(Flags::NOTIFY))
}

/// What another process maps memory of a GPU by, and its length there.
pub(super) fn export(memory: &GpuMemory) -> Result<(OwnedFd, usize), ShmHandshakeError> {
    memory.export().map_err(|error| ShmHandshakeError::Gpu(error.to_string()))
}

/// Maps memory of a GPU that the peer has exported.
pub(super) fn import(
    gpu: Option<&Gpu>,
    file: BorrowedFd<'_>,
    bytes: usize,
    is_writable: bool,
) -> Result<GpuMemory, ShmHandshakeError> {
    let gpu = gpu.ok_or_else(|| {
        let reason = "its payloads are on a GPU; give this side that GPU, too (`Shm::with_gpu`)";
        ShmHandshakeError::Gpu(reason.into())
    })?;
    GpuMemory::import(gpu, file, bytes, is_writable)
        .map_err(|error| ShmHandshakeError::Gpu(error.to_string()))
}
