//! Copies between memory of two GPUs that do not reach each other's: by way of blocks of host memory, which one of them
//! fills while the other takes earlier ones.

use std::collections::VecDeque;

use crate::cuda::{Gpu, GpuCopy, GpuError, GpuSlice};
use crate::mem::OutOfBounds;
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
}

impl Crossing {
    pub(super) fn new(from: (Gpu, GpuSlice), into: (Gpu, GpuSlice)) -> Crossing {
        Crossing { from, into, asked: 0, filling: VecDeque::new(), taking: VecDeque::new() }
    }

    /// Moves it on, without waiting. True once all bytes are there.
    ///
    /// # Errors
    /// Work of this process on one of the GPUs failed, or a driver refuses.
    pub(super) fn advance(&mut self, blocks: &mut StagingBlocks) -> Result<bool, GpuError> {
        while let Some(copy) = self.taking.front_mut()
            && copy.is_done()?
        {
            self.taking.pop_front().into_iter().for_each(|copy| blocks.give_back(copy.block));
        }
        while let Some((copy, at, bytes)) = self.filling.front_mut()
            && copy.is_done()?
        {
            let (at, bytes, block) = (*at, *bytes, copy.block.clone());
            let (gpu, into) = &self.into;
            let (from, into) =
                (block.slice(0, bytes).map_err(outside)?, into.slice(at, bytes).map_err(outside)?);
            self.taking.push_back(blocks.copy(gpu, GpuCopy::FromHost { from, into }, &block)?);
            self.filling.pop_front();
        }
        let (gpu, from) = &self.from;
        while self.asked < from.bytes()
            && let Some(block) = blocks.take()
        {
            let (at, bytes) = (self.asked, block.len().min(from.bytes() - self.asked));
            let (from, into) =
                (from.slice(at, bytes).map_err(outside)?, block.slice(0, bytes).map_err(outside)?);
            self.filling.push_back((blocks.copy(gpu, GpuCopy::ToHost { from, into }, &block)?, at, bytes));
            self.asked += bytes;
        }
        Ok(self.asked == from.bytes() && self.filling.is_empty() && self.taking.is_empty())
    }
}

fn outside(error: OutOfBounds) -> GpuError {
    GpuError::Host { reason: error.to_string() }
}
