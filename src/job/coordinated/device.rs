//! The device that the processes of a job compute on.

use serde::{Deserialize, Serialize};

#[cfg(feature = "cuda")]
use super::{Caller, CoordinatedMember, Coordinator};
#[cfg(feature = "cuda")]
use crate::cuda::{Gpu, GpuError};

/// Where the processes of a job have their payloads and compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComputeDevice {
    /// Host memory, and processors.
    #[default]
    Host,
    /// A GPU: the one of this ordinal; without an ordinal the processes of a host take its GPUs by turns.
    Gpu(Option<u32>),
}

#[cfg(feature = "cuda")]
impl ComputeDevice {
    /// Opens the GPU of the process `index` of its host, unless it needs none.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open(self, index: u32) -> Result<Option<Gpu>, GpuError> {
        let ComputeDevice::Gpu(ordinal) = self else { return Ok(None) };
        // Of no GPU at all the first one is asked for, whose error says so.
        let ordinal = match ordinal {
            Some(ordinal) => ordinal,
            None => index % Gpu::count()?.max(1),
        };
        Gpu::open(ordinal).map(Some)
    }
}

#[cfg(feature = "cuda")]
impl CoordinatedMember {
    /// Names the GPU of this process, as [`Job::with_gpu`](crate::Job::with_gpu) does, before it serves or connects.
    /// `serves_from_there`: the payloads that it serves are to be on that GPU.
    pub fn use_gpu(&self, gpu: &Gpu, serves_from_there: bool) {
        self.member.transports.use_gpu(gpu, serves_from_there);
    }
}

#[cfg(feature = "cuda")]
impl<C: Caller> Coordinator<C> {
    /// Lets the reader of the parameters map the memory of servers on a GPU.
    pub fn use_gpu(&self, gpu: &Gpu) {
        self.transports.use_gpu(gpu, false);
    }
}
