//! Copies between memory of two GPUs that do not reach each other's: by way of blocks of host memory, which one of them
//! fills while the other takes earlier ones.

use std::collections::VecDeque;

use crate::cuda::{Gpu, GpuCopy, GpuError, GpuSlice, Tickets};
use crate::mem::{LocalSlice, OutOfBounds};
use crate::transport::staging::{StagedCopy, StagingBlocks};

/// One such copy.
pub(super) struct Crossing {
    from: (Gpu, GpuSlice),
    into: (Gpu, GpuSlice),
    /// Bytes that were asked for so far.
    asked: usize,
    /// Blocks that are filled, each with the range that it is for: its first byte, and its length.
    filling: VecDeque<(StagedCopy, usize, usize)>,
    /// Blocks that are taken.
    taking: VecDeque<StagedCopy>,
    /// The first fault, which is told once nothing is under way any more: the owner of the memory gives it to others
    /// then.
    fault: Option<GpuError>,
}

impl Crossing {
    pub(super) fn new(from: (Gpu, GpuSlice), into: (Gpu, GpuSlice)) -> Crossing {
        let (filling, taking) = (VecDeque::new(), VecDeque::new());
        Crossing { from, into, asked: 0, filling, taking, fault: None }
    }

    /// Moves it on, without waiting. True once all bytes are there.
    ///
    /// # Errors
    /// Work of this process on one of the GPUs failed, or a driver refuses. No copy is under way any more.
    pub(super) fn advance(&mut self, blocks: &mut StagingBlocks) -> Result<bool, GpuError> {
        while let Some(copy) = self.taking.front_mut()
            && is_over(copy, &mut self.fault)
        {
            self.taking.pop_front().into_iter().for_each(|copy| blocks.give_back(copy.block));
        }
        while let Some((copy, ..)) = self.filling.front_mut()
            && is_over(copy, &mut self.fault)
        {
            let Some((StagedCopy { block, .. }, at, bytes)) = self.filling.pop_front() else { break };
            match self.fault.is_none().then(|| self.to_take(&block, at, bytes)) {
                Some(Ok(copy)) => self.taking.push_back(blocks.copy(&self.into.0, copy, &block)),
                told => {
                    self.fault = self.fault.take().or(told.and_then(Result::err));
                    blocks.give_back(block);
                }
            }
        }
        while self.fault.is_none()
            && self.asked < self.from.1.bytes()
            && let Some(block) = blocks.take()
        {
            let (at, bytes) = (self.asked, block.len().min(self.from.1.bytes() - self.asked));
            match self.to_fill(&block, at, bytes) {
                Ok(copy) => {
                    self.filling.push_back((blocks.copy(&self.from.0, copy, &block), at, bytes));
                    self.asked += bytes;
                }
                Err(fault) => self.fault = Some(fault),
            }
        }
        if !self.filling.is_empty() || !self.taking.is_empty() {
            return Ok(false);
        }
        self.fault.take().map_or(Ok(self.asked == self.from.1.bytes()), Err)
    }

    /// The copies of the oldest block.
    pub(super) fn awaited_copies(&self) -> Option<&Tickets> {
        let filling = || self.filling.front().map(|(copy, ..)| copy);
        self.taking.front().or_else(filling).map(StagedCopy::tickets)
    }

    /// The copy into a block of so many bytes from `at` on.
    fn to_fill(&self, block: &LocalSlice, at: usize, bytes: usize) -> Result<GpuCopy, GpuError> {
        let (from, into) = (self.from.1.slice(at, bytes), block.slice(0, bytes));
        Ok(GpuCopy::ToHost { from: from.map_err(outside)?, into: into.map_err(outside)? })
    }

    /// The copy of so many bytes of a block to where they belong.
    fn to_take(&self, block: &LocalSlice, at: usize, bytes: usize) -> Result<GpuCopy, GpuError> {
        let (from, into) = (block.slice(0, bytes), self.into.1.slice(at, bytes));
        Ok(GpuCopy::FromHost { from: from.map_err(outside)?, into: into.map_err(outside)? })
    }
}

/// Whether a copy is over, in success or not.
fn is_over(copy: &mut StagedCopy, fault: &mut Option<GpuError>) -> bool {
    copy.is_done().unwrap_or_else(|error| {
        fault.get_or_insert(error);
        true
    })
}

fn outside(error: OutOfBounds) -> GpuError {
    GpuError::Host { reason: error.to_string() }
}
