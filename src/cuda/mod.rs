//! GPU memory: the driver found at run time, memory of a GPU, and copies between it and host memory that are ordered
//! with the streams of the program.
//!
//! Payloads may be on a GPU; the words of the protocol never are. A copy is ordered behind the work that the caller's
//! stream has at the time of the call, by an event, and runs on a stream of this library's own. [`Tickets`] say when
//! its bytes are there; no call waits for one. The memory of a copy is kept until then, since work of a GPU cannot be
//! cancelled.
//!
//! | file | content |
//! | --- | --- |
//! | `driver` | the calls of the driver, as a trait |
//! | `library`, `sys` | `libcuda.so.1`, opened at run time, and the definitions of its header |
//! | `gpu` | a device with its primary context |
//! | `memory`, `stream` | memory of a GPU; a stream of the caller's |
//! | `lent` | memory of the caller's that other processes open where it lies |
//! | `direct` | memory of a GPU as RDMA devices reach it |
//! | `probe`, `window` | the capabilities of a GPU, and its window on the PCI bus, for `slackline doctor` |
//! | `bare` | the driver with nothing around it, for programs that measure and test on a GPU |
//! | `queue`, `copy` | the streams of this library's own; copies and their tickets |
//! | `kernels` | the kernels of `cuda/`, loaded, and launches of them |
//! | `fold`, `encode` | kernels that fold gradients, and measure them; that convert to halves |
//! | `publish` | a kernel that publishes, for programs that test on a GPU |
//! | `model` | kernels that compute gradients for models of the command line |
//! | `scripted` | a driver for tests that works as late and in as odd an order as streams permit |
#![allow(unsafe_code)]

mod bare;
mod copy;
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "RDMA alone registers it"))]
mod direct;
mod driver;
mod encode;
mod error;
mod fold;
mod gpu;
mod kernels;
mod lent;
mod library;
mod memory;
mod model;
mod probe;
mod publish;
mod queue;
#[cfg(test)]
mod scripted;
mod stream;
mod sys;
#[cfg(test)]
mod tests;
mod window;

pub use bare::BareGpu;
pub(crate) use copy::GpuCopy;
pub use copy::Tickets;
#[cfg(feature = "verbs")]
pub(crate) use direct::{GpuPages, GpuRegistration, RdmaVisibility, RegisteredMemory};
#[cfg(feature = "verbs")]
pub(crate) use error::FULL_WINDOW;
pub use error::GpuError;
pub(crate) use fold::MAX_GRADIENTS;
pub use fold::{GpuFold, GpuKernels};
pub use gpu::Gpu;
pub use memory::{GpuMemory, GpuSlice};
pub use model::{GpuLayer, GpuModel};
pub use probe::{GpuCopies, GpuProperties};
pub use publish::GpuFrames;
pub(crate) use queue::HostBytes;
#[cfg(test)]
pub(crate) use scripted::{PRIMARY, Scripted, Working};
pub use stream::GpuStream;
#[cfg(test)]
pub(crate) use tests::{rdma_of, rows_told};
pub use window::{GpuWindow, GpuWindowError};

/// Errors that tests give to the scripted driver.
#[cfg(test)]
pub(crate) const ILLEGAL_ADDRESS: sys::Code = sys::Code::ILLEGAL_ADDRESS;
#[cfg(test)]
pub(crate) const NOT_PERMITTED: sys::Code = sys::Code::NOT_PERMITTED;
#[cfg(test)]
pub(crate) const OUT_OF_MEMORY: sys::Code = sys::Code::OUT_OF_MEMORY;
#[cfg(test)]
pub(crate) const UNKNOWN: sys::Code = sys::Code::UNKNOWN;

/// The caller's memory, for tests of modules that forbid `unsafe`; the scripted driver never frees it.
#[cfg(test)]
pub(crate) fn memory_with_owner(
    gpu: &Gpu,
    pointer: u64,
    bytes: usize,
    owner: impl Send + Sync + 'static,
) -> GpuMemory {
    // SAFETY: as said.
    unsafe { GpuMemory::of_caller(gpu, pointer, bytes, owner) }.expect("memory of the device")
}
