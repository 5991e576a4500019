//! The queue pairs of one side as the path for payloads of a GPU, which the devices access directly, or which go
//! through blocks of registered host memory.

use super::VerbsShared;
use super::direct::VerbsGpu;
use super::rails::Rails;
#[cfg(feature = "cuda")]
use crate::{
    cuda::{Gpu, GpuError, GpuSlice},
    mem::{Access, PAGE_SIZE},
    transport::staging::{StagedLane, StagingBlocks},
    transport::{PostError, WorkCompletion, WorkRequest},
};

/// The queue pairs, for one call.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "there is no GPU to stage payloads of"))]
pub(super) struct StagedRails<'a> {
    shared: &'a VerbsShared,
    rails: &'a mut Rails,
    gpu: &'a VerbsGpu,
    /// Set if a GPU of this process did not copy a payload.
    pub(super) has_failed: bool,
}

impl StagedRails<'_> {
    pub(super) fn new<'a>(
        shared: &'a VerbsShared,
        rails: &'a mut Rails,
        gpu: &'a VerbsGpu,
    ) -> StagedRails<'a> {
        StagedRails { shared, rails, gpu, has_failed: false }
    }
}

#[cfg(feature = "cuda")]
impl StagedLane for StagedRails<'_> {
    fn free(&mut self) -> usize {
        self.rails.free()
    }

    fn parts(&self, request: &WorkRequest) -> usize {
        self.rails.parts(request)
    }

    fn post(&mut self, batch: &[WorkRequest]) -> Result<(), PostError> {
        self.rails.post(batch)
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        self.rails.poll()
    }

    fn reaches(&self, memory: &GpuSlice) -> Result<usize, GpuError> {
        match &self.gpu.registrations {
            Some(registrations) => registrations.reach(self.shared, &self.gpu.gpu, memory),
            None => Ok(0),
        }
    }

    fn see(&self, gpu: &Gpu) -> Result<(), GpuError> {
        gpu.see_rdma_writes()
    }

    fn is_over(&self) -> bool {
        self.rails.has_failed()
    }

    fn fail(&mut self) {
        self.has_failed = true;
        self.rails.end();
    }

    fn blocks(&self, gpu: &Gpu, longest: usize) -> Result<StagingBlocks, GpuError> {
        // A block must fit into the queue, even if the queue and the device's requests are short.
        let room = self.shared.piece_bytes().saturating_mul(self.shared.queue_depth);
        let longest = longest.min((room / PAGE_SIZE).max(1) * PAGE_SIZE);
        StagingBlocks::new(gpu, longest, &self.gpu.path.to_string(), |memory| {
            self.shared.register_or_tell(memory, Access::LOCAL)
        })
    }
}
