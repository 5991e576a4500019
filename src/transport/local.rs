//! Requests carried out by this CPU on memory mapped into this process.
//!
//! Shared memory is this plus a socket. On its own it lets a process read versions that were pushed into its own memory
//! with the code that reads a remote peer's memory, and it lets the protocols be model-checked.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::{
    CompletionError, Disconnected, Endpoint, Flags, HeartbeatWord, Operation, PostError, WorkCompletion,
    WorkRequest,
};
use crate::mem::{self, Access, LocalSlice, MemoryRegion, RemoteKey, RemoteSlice, VolatileSlice};

struct Segment {
    key: RemoteKey,
    access: Access,
    region: MemoryRegion,
}

/// An endpoint whose peer's memory is mapped into this process.
pub struct LocalEndpoint {
    segments: Vec<Segment>,
    completions: VecDeque<WorkCompletion>,
    depth: usize,
    failed: Option<Disconnected>,
}

impl LocalEndpoint {
    /// An endpoint that can hold `depth` completions that were not polled yet, and reaches nothing so far.
    pub fn new(depth: usize) -> Self {
        LocalEndpoint {
            segments: Vec::new(),
            completions: VecDeque::with_capacity(depth),
            depth,
            failed: None,
        }
    }

    /// Lets requests reach `region` under `key`, with the rights in `access`.
    pub fn attach(&mut self, key: RemoteKey, region: MemoryRegion, access: Access) {
        self.segments.push(Segment { key, access, region });
    }

    /// Ends the connection: everything from now on fails.
    pub(crate) fn fail(&mut self, reason: Disconnected) {
        self.failed.get_or_insert(reason);
    }

    /// Completions that it holds at most.
    #[cfg(all(feature = "cuda", not(loom)))]
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// The range that `remote` names, if it was granted with all of `needed`, for a GPU to copy.
    #[cfg(all(feature = "cuda", not(loom)))]
    pub(super) fn granted(
        &self,
        remote: &RemoteSlice,
        needed: Access,
    ) -> Result<LocalSlice, CompletionError> {
        self.target(remote, needed)?;
        self.map(remote).ok_or(CompletionError::RemoteAccess)
    }

    /// Requests that can be posted before the completions that there are have been polled.
    #[cfg(all(feature = "cuda", not(loom)))]
    pub(super) fn free(&self) -> usize {
        self.depth - self.completions.len()
    }

    /// Completes a request that was carried out elsewhere; an error ends the connection.
    #[cfg(all(feature = "cuda", not(loom)))]
    pub(super) fn complete(&mut self, request: &WorkRequest, result: Result<(), CompletionError>) {
        if result.is_err() || request.flags.contains(Flags::SIGNALLED) {
            self.completions.push_back(WorkCompletion { id: request.id, result });
        }
    }

    /// The range that `remote` names, if it was granted with all of `needed`. A peer's memory is reached only through
    /// this function, and every offset is checked here.
    #[inline]
    fn target(&self, remote: &RemoteSlice, needed: Access) -> Result<VolatileSlice<'_>, CompletionError> {
        let segment = self.segments.iter().find(|segment| segment.key == remote.key);
        let segment = segment.ok_or(CompletionError::RemoteAccess)?;
        let memory = segment.region.as_volatile();
        let fits = remote.offset.checked_add(remote.len).is_some_and(|end| end <= memory.len() as u64);
        if !fits || !segment.access.contains(needed) {
            return Err(CompletionError::RemoteAccess);
        }
        Ok(memory.subslice(remote.offset as usize, remote.len as usize))
    }

    #[inline]
    fn execute(&self, operation: &Operation) -> Result<(), CompletionError> {
        match operation {
            Operation::Write { local, remote, streaming } => {
                let target = self.target(remote, Access::REMOTE_WRITE)?;
                // Promise 1 of the contract: this write becomes visible after all earlier ones.
                if !mutant!("write_fence") {
                    mem::fence(Ordering::Release);
                }
                target.copy_from(local.as_volatile(), *streaming);
            }
            Operation::WriteInline { data, remote } => {
                let target = self.target(remote, Access::REMOTE_WRITE)?;
                if !target.is_aligned() {
                    return Err(CompletionError::RemoteAccess);
                }
                if !mutant!("write_fence") {
                    mem::fence(Ordering::Release);
                }
                for (index, word) in data.words().iter().enumerate() {
                    target.store(index * 8, *word, Ordering::Relaxed);
                }
            }
            Operation::Read { local, remote, streaming } => {
                let target = self.target(remote, Access::REMOTE_READ)?;
                local.as_volatile().copy_from(target, *streaming);
                // Promise 2: reads after this completion return nothing older than this read did.
                if !mutant!("read_fence") {
                    mem::fence(Ordering::Acquire);
                }
            }
            // Refused by the check of the request.
            Operation::ReadToGpu { .. } | Operation::WriteFromGpu { .. } => {
                return Err(CompletionError::RemoteAccess);
            }
            Operation::FetchAdd { local, remote, add } => {
                let target = self.target(remote, Access::REMOTE_ATOMIC)?;
                local.as_volatile().store_u64(0, target.fetch_add(0, *add));
            }
            Operation::CompareSwap { local, remote, compare, swap } => {
                let target = self.target(remote, Access::REMOTE_ATOMIC)?;
                local.as_volatile().store_u64(0, target.compare_swap(0, *compare, *swap));
            }
        }
        Ok(())
    }
}

impl Endpoint for LocalEndpoint {
    #[inline]
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        if let Some(gone) = &self.failed {
            return Err(gone.clone().into());
        }
        if batch.len() > self.depth {
            return Err(PostError::BatchTooLong { batch: batch.len(), depth: self.depth });
        }
        let free = self.depth - self.completions.len();
        if batch.len() > free {
            return Err(PostError::QueueFull { free, batch: batch.len() });
        }
        for (index, request) in batch.iter().enumerate() {
            request.check().map_err(|reason| PostError::Malformed { index, reason })?;
        }
        for request in batch {
            let result = match self.failed {
                None => self.execute(&request.operation),
                Some(_) => Err(CompletionError::Flushed),
            };
            if result.is_err() {
                self.fail(Disconnected { reason: "the peer refused a request" });
            }
            if result.is_err() || request.flags.contains(Flags::SIGNALLED) {
                self.completions.push_back(WorkCompletion { id: request.id, result });
            }
        }
        Ok(())
    }

    #[inline]
    fn poll(&mut self) -> Option<WorkCompletion> {
        self.completions.pop_front()
    }

    fn check(&mut self) -> Result<(), Disconnected> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn map(&self, remote: &RemoteSlice) -> Option<LocalSlice> {
        let segment = self.segments.iter().find(|segment| segment.key == remote.key)?;
        segment.region.slice(usize::try_from(remote.offset).ok()?, usize::try_from(remote.len).ok()?).ok()
    }

    fn transport(&self) -> &'static str {
        "local"
    }

    fn heartbeat_word(&self, word: &RemoteSlice) -> Result<Box<dyn HeartbeatWord>, PostError> {
        let malformed = PostError::Malformed {
            index: 0,
            reason: "a heartbeat word is one granted, aligned, writable word",
        };
        let target = self.target(word, Access::REMOTE_WRITE).map_err(|_| malformed.clone())?;
        if target.len() != 8 || !target.is_aligned() || !target.is_writable() {
            return Err(malformed);
        }
        let slice = self.map(word).ok_or(malformed)?;
        Ok(Box::new(MappedWord { slice }))
    }
}

struct MappedWord {
    slice: LocalSlice,
}

impl HeartbeatWord for MappedWord {
    fn set(&mut self, value: u64) -> Result<(), Disconnected> {
        self.slice.as_volatile().store_u64(0, value);
        Ok(())
    }
}
