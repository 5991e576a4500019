//! Blocks of page-locked host memory by way of which payloads travel between a GPU and a network that does not reach
//! it, or another GPU that does not.
//!
//! One side of a connection has a few blocks and uses them in turn: a GPU copies one while others are sent or received.
//! A block that a copy uses is free again once the copy's ticket says so.

#[cfg(any(feature = "tcp", feature = "verbs"))]
mod posting;

#[cfg(any(feature = "tcp", feature = "verbs"))]
pub(super) use posting::StagedPosting;

use std::ops::RangeInclusive;
use std::sync::LazyLock;

use super::{PostError, RegisterError, WorkCompletion, WorkRequest};
use crate::cuda::{Gpu, GpuCopy, GpuError, GpuSlice, Tickets};
use crate::mem::{HostMemory, LocalSlice, MemoryRegion, OutOfBounds, PAGE_SIZE};

/// The bytes of a block where payloads are not shorter.
const BLOCK_BYTES: usize = 2 << 20;

/// The default number of blocks of one side of a connection, and the numbers that the user may choose: one block is
/// copied while another one is sent.
const BLOCKS: usize = 8;
const BLOCKS_ALLOWED: RangeInclusive<usize> = 2..=128;

/// The variable that says it.
const VARIABLE: &str = "SLACKLINE_GPU_STAGING_BLOCKS";

/// Blocks of one side of a connection of this process.
static BLOCKS_OF_PROCESS: LazyLock<usize> =
    LazyLock::new(|| blocks_of(&std::env::var(VARIABLE).unwrap_or_default()));

fn blocks_of(text: &str) -> usize {
    let blocks = text.parse().ok().filter(|blocks| BLOCKS_ALLOWED.contains(blocks));
    if blocks.is_none() && !text.is_empty() {
        let (least, most) = BLOCKS_ALLOWED.into_inner();
        tracing::warn!("{VARIABLE} is {text:?}, and not a number from {least} to {most}: there are {BLOCKS}");
    }
    blocks.unwrap_or(BLOCKS)
}

/// A lane carries the pieces of requests between blocks and a peer, in order. It completes each signalled request once.
pub(super) trait StagedLane {
    /// How many bytes from the begin of this memory of a GPU the lane carries with one request and without blocks; none
    /// if it takes blocks.
    ///
    /// # Errors
    /// It takes blocks, and the memory may not be staged.
    fn reaches(&self, _memory: &GpuSlice) -> Result<usize, GpuError> {
        Ok(0)
    }

    /// Makes the lane's own writes to the GPU's memory visible to later work of the GPU.
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
    /// Blocks for memory of up to `longest` bytes, which `register` registers with the lane's transport. The log has
    /// the `reason` why the network does not reach the GPU.
    ///
    /// # Errors
    /// There is no memory for them.
    pub(super) fn new(
        gpu: &Gpu,
        longest: usize,
        reason: &str,
        register: impl FnOnce(HostMemory) -> Result<MemoryRegion, RegisterError>,
    ) -> Result<StagingBlocks, GpuError> {
        let (blocks, bytes) = (*BLOCKS_OF_PROCESS, longest.clamp(1, BLOCK_BYTES).next_multiple_of(PAGE_SIZE));
        tracing::info!(
            gpu = gpu.ordinal(),
            blocks,
            bytes,
            reason,
            "payloads of a GPU go through blocks of host memory"
        );
        let memory = HostMemory::anonymous(blocks * bytes).map_err(RegisterError::from);
        let region = memory.and_then(register);
        let region = region.map_err(|error| GpuError::Host { reason: error.to_string() })?;
        let free: Result<_, OutOfBounds> =
            (0..blocks).map(|block| region.slice(block * bytes, bytes)).collect();
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

    /// The tickets of these copies.
    pub(super) fn tickets(&self) -> &Tickets {
        &self.tickets
    }
}

fn outside(error: OutOfBounds) -> GpuError {
    GpuError::Host { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_blocks_is_taken_and_what_is_none_leaves_the_usual_ones() {
        assert_eq!(["2", "16", "128"].map(blocks_of), [2, 16, 128]);
        assert_eq!(["", "1", "129", "-4", "8 blocks"].map(blocks_of), [BLOCKS; 5]);
    }
}
