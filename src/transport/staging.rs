//! Blocks of locked host memory by way of which payloads travel between a GPU and a network that does not reach it, or
//! another GPU that does not.
//!
//! One side of a connection has a few blocks and uses them in turn: a GPU copies one while others are sent or received.
//! A block that a copy uses is free again once the copy's ticket says so.

#[cfg(any(feature = "tcp", feature = "verbs"))]
mod posting;

#[cfg(any(feature = "tcp", feature = "verbs"))]
pub(super) use posting::StagedPosting;

use super::{PostError, RegisterError, WorkCompletion, WorkRequest};
use crate::cuda::{Gpu, GpuCopy, GpuError, GpuSlice, Tickets};
use crate::mem::{HostMemory, LocalSlice, MemoryRegion, OutOfBounds, PAGE_SIZE};

/// Blocks of one side of a connection, and the bytes of each where payloads are not shorter.
const BLOCKS: usize = 8;
const BLOCK_BYTES: usize = 2 << 20;

/// What carries the pieces of requests between blocks and a peer, in order. It completes each signalled request once.
pub(super) trait StagedLane {
    /// How many bytes from the begin of this memory of a GPU the lane carries with one request and without blocks; none
    /// if it takes blocks.
    ///
    /// # Errors
    /// It takes blocks, and the memory may not be staged.
    fn reaches(&self, _memory: &GpuSlice) -> Result<usize, GpuError> {
        Ok(0)
    }

    /// Has later work of the GPU see what the lane has written to its memory itself.
    ///
    /// # Errors
    /// The driver refuses.
    fn see(&self, _gpu: &Gpu) -> Result<(), GpuError> {
        Ok(())
    }

    /// Parts of requests that there is room for.
    fn free(&mut self) -> usize;

    /// The parts that a request takes.
    fn parts(&self, request: &WorkRequest) -> usize;

    /// Takes a batch that was checked, all or nothing. An error other than a full queue means that the lane is over.
    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError>;

    /// The next completion, if there is one.
    fn poll(&mut self) -> Option<WorkCompletion>;

    /// True once it carries nothing any more.
    fn is_over(&self) -> bool;

    /// Ends the lane, as a GPU of this process did not copy a payload.
    fn fail(&mut self);

    /// Blocks of memory that the lane sends from and receives into, for payloads of up to `longest` bytes.
    ///
    /// # Errors
    /// There is no memory for them.
    fn blocks(&self, gpu: &Gpu, longest: usize) -> Result<StagingBlocks, GpuError>;
}

/// The blocks of one side of a connection: each is taken out, and given back.
pub(super) struct StagingBlocks {
    gpu: Gpu,
    free: Vec<LocalSlice>,
}

impl StagingBlocks {
    /// Blocks for memory of up to `longest` bytes, which `register` makes known to what carries them. The log tells the
    /// `reason` why the network does not reach the GPU.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn new(
        gpu: &Gpu,
        longest: usize,
        reason: &str,
        register: impl FnOnce(HostMemory) -> Result<MemoryRegion, RegisterError>,
    ) -> Result<StagingBlocks, GpuError> {
        let bytes = longest.clamp(1, BLOCK_BYTES).next_multiple_of(PAGE_SIZE);
        tracing::info!(
            gpu = gpu.ordinal(),
            blocks = BLOCKS,
            bytes,
            reason,
            "payloads of a GPU go through blocks of host memory"
        );
        let memory = HostMemory::anonymous(BLOCKS * bytes).map_err(RegisterError::from);
        let region = memory.and_then(register);
        let region = region.map_err(|error| GpuError::Host { reason: error.to_string() })?;
        let free: Result<_, OutOfBounds> =
            (0..BLOCKS).map(|block| region.slice(block * bytes, bytes)).collect();
        Ok(StagingBlocks { gpu: gpu.clone(), free: free.map_err(outside)? })
    }

    /// A block that nothing uses.
    pub(super) fn take(&mut self) -> Option<LocalSlice> {
        self.free.pop()
    }

    /// Nothing uses the block any more.
    pub(super) fn give_back(&mut self, block: LocalSlice) {
        self.free.push(block);
    }

    /// Has the GPU copy `from` to the begin of a block. If it refuses, the copy says so once nothing of it is under
    /// way.
    ///
    /// # Errors
    /// The block is too short.
    pub(super) fn copy_out(&mut self, from: GpuSlice, block: &LocalSlice) -> Result<StagedCopy, GpuError> {
        let into = block.slice(0, from.bytes()).map_err(outside)?;
        Ok(self.copy(&self.gpu.clone(), GpuCopy::ToHost { from, into }, block))
    }

    /// Has the GPU copy the begin of a block to `into`.
    ///
    /// # Errors
    /// As [`copy_out`](Self::copy_out).
    pub(super) fn copy_in(&mut self, block: &LocalSlice, into: GpuSlice) -> Result<StagedCopy, GpuError> {
        let from = block.slice(0, into.bytes()).map_err(outside)?;
        Ok(self.copy(&self.gpu.clone(), GpuCopy::FromHost { from, into }, block))
    }

    /// Has this GPU copy from a block or to it. If it refuses, the copy says so once nothing of it is under way.
    pub(super) fn copy(&mut self, gpu: &Gpu, copy: GpuCopy, block: &LocalSlice) -> StagedCopy {
        let mut tickets = Tickets::default();
        if let Err(fault) = gpu.copy_staged(copy, &mut tickets) {
            tickets.fail(fault);
        }
        if mutant!("staging_block_before_ticket") {
            self.give_back(block.clone());
        }
        StagedCopy { block: block.clone(), tickets }
    }
}

/// A copy between a GPU and a block.
pub(super) struct StagedCopy {
    pub(super) block: LocalSlice,
    tickets: Tickets,
}

impl StagedCopy {
    /// True once its bytes are there. It does not wait.
    ///
    /// # Errors
    /// The GPU refused the copy, or work of this process there failed. The copy is over.
    pub(super) fn is_done(&mut self) -> Result<bool, GpuError> {
        if mutant!("staged_copy_done_at_once") { Ok(true) } else { self.tickets.are_done() }
    }

    /// What tells that.
    pub(super) fn tickets(&self) -> &Tickets {
        &self.tickets
    }
}

fn outside(error: OutOfBounds) -> GpuError {
    GpuError::Host { reason: error.to_string() }
}
