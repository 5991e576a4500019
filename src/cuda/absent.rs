//! Stands in for memory of GPUs where the library is built without it: no value of these types exists.
#![forbid(unsafe_code)]

use crate::mem::{DeviceKeys, OutOfBounds};

/// A GPU, its memory, or a range of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoGpu {}

pub(crate) use NoGpu as Gpu;
pub(crate) use NoGpu as GpuMemory;
pub(crate) use NoGpu as GpuSlice;

impl NoGpu {
    /// What it is a range of.
    pub fn memory(&self) -> &NoGpu {
        match *self {}
    }

    /// The address of its first byte.
    pub fn pointer(&self) -> u64 {
        match *self {}
    }

    /// The keys of its registration in a domain, and how many bytes are in there.
    pub fn device_keys(&self, _: u32) -> Option<(DeviceKeys, usize)> {
        match *self {}
    }

    /// True if payloads may not be staged.
    pub fn requires_gpudirect(&self) -> bool {
        match *self {}
    }

    /// The ordinal by which it was opened.
    pub fn ordinal(&self) -> u32 {
        match *self {}
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        match *self {}
    }

    /// A range of it.
    pub fn slice(&self, _: usize, _: usize) -> Result<NoGpu, OutOfBounds> {
        match *self {}
    }

    /// True if it is memory of this GPU.
    pub fn is_of(&self, _: &NoGpu) -> bool {
        match *self {}
    }

    /// True if work of this process may write it.
    pub fn is_writable(&self) -> bool {
        match *self {}
    }

    /// The range as memory of its own.
    pub fn lent(&self) -> NoGpu {
        match *self {}
    }

    /// All of it.
    pub fn whole(&self) -> NoGpu {
        match *self {}
    }
}
