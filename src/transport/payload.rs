//! Memory of payloads, which is the host's or a GPU's. Words, which announce payloads, are in host memory always.

use std::fmt;
use std::sync::Arc;

use super::Operation;
#[cfg(all(any(feature = "tcp", feature = "verbs"), not(loom)))]
use super::{Address, ConnectError};
#[cfg(all(any(feature = "tcp", feature = "verbs"), not(loom)))]
use crate::cuda::Gpu;
use crate::cuda::{GpuMemory, GpuSlice};
use crate::mem::{Access, LocalSlice, MemoryRegion, OutOfBounds, RemoteSlice, Streaming};

/// Memory for payloads of this process. No processor reads or writes memory on a GPU.
#[derive(Clone, Debug)]
pub enum PayloadMemory {
    /// Registered host memory.
    Host(MemoryRegion),
    /// Memory of a GPU, which copy engines and kernels reach.
    Gpu(GpuMemory),
}

/// A range of it, which keeps the memory alive.
#[derive(Clone, Debug)]
pub enum PayloadSlice {
    /// Of registered host memory.
    Host(LocalSlice),
    /// Of memory of a GPU.
    Gpu(GpuSlice),
}

/// The way that payloads of this process's GPU take over a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuPath {
    /// Copy engines copy straight between both sides' memory, which is on one host.
    CopyEngines,
    /// RDMA devices read and write the memory of the GPU themselves (GPUDirect). Memory that they do not register is
    /// staged all the same, and the log says so, unless the GPU [requires](crate::gpu::Gpu::require_gpudirect) a direct
    /// way.
    Rdma {
        /// How the memory comes to the devices: "dma-buf" or "nvidia-peermem".
        by: &'static str,
    },
    /// They go through blocks of page-locked host memory on this side.
    Staged {
        /// The ways that would come before, each with the reason why it is not taken.
        passed_over: Arc<[(&'static str, String)]>,
    },
}

#[cfg(all(any(feature = "tcp", feature = "verbs"), not(loom)))]
impl GpuPath {
    /// Checks that payloads of this GPU may take the way.
    pub(super) fn check_allowed(
        &self,
        gpu: Option<&Gpu>,
        operation: &'static str,
        address: &Address,
    ) -> Result<(), ConnectError> {
        if !gpu.is_some_and(Gpu::requires_gpudirect) || !matches!(self, GpuPath::Staged { .. }) {
            return Ok(());
        }
        Err(ConnectError::Staged { operation, address: address.clone(), path: self.clone() })
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuPath::CopyEngines => f.write_str("copy engines of GPUs"),
            GpuPath::Rdma { by } => write!(f, "RDMA devices, by {by}"),
            GpuPath::Staged { passed_over } => {
                f.write_str("blocks of host memory")?;
                passed_over.iter().try_for_each(|(path, reason)| write!(f, "; not {path}: {reason}"))
            }
        }
    }
}

/// Memory of a GPU that a peer may use.
#[derive(Clone, Debug)]
pub struct GpuGrant {
    /// Its index among all grants.
    pub at: usize,
    /// All of it.
    pub memory: GpuMemory,
    /// The peer's rights.
    pub access: Access,
}

impl PayloadMemory {
    /// Length in bytes; a region may be longer than was asked for.
    #[expect(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        match self {
            PayloadMemory::Host(region) => region.len(),
            PayloadMemory::Gpu(memory) => memory.bytes(),
        }
    }

    /// `len` bytes from `offset` on.
    pub fn slice(&self, offset: usize, len: usize) -> Result<PayloadSlice, OutOfBounds> {
        match self {
            PayloadMemory::Host(region) => region.slice(offset, len).map(PayloadSlice::Host),
            PayloadMemory::Gpu(memory) => memory.slice(offset, len).map(PayloadSlice::Gpu),
        }
    }

    /// The host's region, if it is one.
    pub fn host(&self) -> Option<&MemoryRegion> {
        match self {
            PayloadMemory::Host(region) => Some(region),
            PayloadMemory::Gpu(_) => None,
        }
    }
}

impl From<MemoryRegion> for PayloadMemory {
    fn from(region: MemoryRegion) -> Self {
        PayloadMemory::Host(region)
    }
}

impl PayloadSlice {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            PayloadSlice::Host(slice) => slice.len(),
            PayloadSlice::Gpu(slice) => slice.bytes(),
        }
    }

    /// True if the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `len` bytes from `offset` (counted from the payload's own begin) on.
    pub fn slice(&self, offset: usize, len: usize) -> Result<PayloadSlice, OutOfBounds> {
        match self {
            PayloadSlice::Host(slice) => slice.slice(offset, len).map(PayloadSlice::Host),
            PayloadSlice::Gpu(slice) => slice.slice(offset, len).map(PayloadSlice::Gpu),
        }
    }

    /// The range of host memory, if it is one.
    pub fn host(&self) -> Option<&LocalSlice> {
        match self {
            PayloadSlice::Host(slice) => Some(slice),
            PayloadSlice::Gpu(_) => None,
        }
    }

    /// The operation that brings a peer's memory here.
    #[inline]
    pub fn read(self, remote: RemoteSlice, streaming: Streaming) -> Operation {
        match self {
            PayloadSlice::Host(local) => Operation::Read { local, remote, streaming },
            PayloadSlice::Gpu(local) => Operation::ReadToGpu { local, remote },
        }
    }

    /// The operation that writes this into a peer's memory.
    #[inline]
    pub fn write(self, remote: RemoteSlice, streaming: Streaming) -> Operation {
        match self {
            PayloadSlice::Host(local) => Operation::Write { local, remote, streaming },
            PayloadSlice::Gpu(local) => Operation::WriteFromGpu { local, remote },
        }
    }

    /// Returns the slice that an operation of [`read`](Self::read) or [`write`](Self::write) was made of.
    #[inline]
    pub fn of(operation: Operation) -> Option<PayloadSlice> {
        match operation {
            Operation::Read { local, .. } | Operation::Write { local, .. } => Some(PayloadSlice::Host(local)),
            Operation::ReadToGpu { local, .. } | Operation::WriteFromGpu { local, .. } => {
                Some(PayloadSlice::Gpu(local))
            }
            _ => None,
        }
    }
}

impl From<GpuSlice> for PayloadSlice {
    fn from(slice: GpuSlice) -> Self {
        PayloadSlice::Gpu(slice)
    }
}

impl From<LocalSlice> for PayloadSlice {
    fn from(slice: LocalSlice) -> Self {
        PayloadSlice::Host(slice)
    }
}
