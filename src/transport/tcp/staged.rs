//! A lane as the way of payloads of a GPU that go through blocks of host memory.

use super::initiator::{Broken, Initiator};
use crate::cuda::{Gpu, GpuError};
use crate::mem::{Access, DeviceKeys, MemoryRegion};
use crate::transport::staging::{StagedLane, StagingBlocks};
use crate::transport::{PostError, WorkCompletion, WorkRequest};

const NO_WAY_TO_GPU: &str = "the system sends and receives host memory alone";

pub(super) const NOT_COPIED: Broken = Broken(
    "a GPU of this process did not copy a payload: its log has the driver's error; remove the cause and connect again",
);

/// Blocks for one side of a connection.
pub(super) fn blocks(gpu: &Gpu, longest: usize) -> Result<StagingBlocks, GpuError> {
    StagingBlocks::new(gpu, longest, NO_WAY_TO_GPU, |memory| {
        Ok(MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()))
    })
}

impl StagedLane for Initiator {
    fn free(&mut self) -> usize {
        Initiator::free(self)
    }

    fn parts(&self, _: &WorkRequest) -> usize {
        1
    }

    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        Initiator::post(self, batch)
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        Initiator::poll(self)
    }

    fn is_over(&self) -> bool {
        self.broken().is_some()
    }

    fn fail(&mut self) {
        Initiator::fail(self, NOT_COPIED);
    }

    fn blocks(&self, gpu: &Gpu, longest: usize) -> Result<StagingBlocks, GpuError> {
        blocks(gpu, longest)
    }
}
