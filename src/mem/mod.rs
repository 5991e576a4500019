//! Memory that peers may read and write: its owner, its registered parts, and the access to it.
//!
//! Pointers end here. Above this module there are only [`MemoryRegion`]s, slices of them and keys, and the bytes
//! of a region are reached through [`VolatileSlice`], never through a Rust reference: a peer may be writing them
//! at any moment.
//!
//! Under `--cfg loom` the two files that hold bytes are exchanged for the files in `loom/`: the same interfaces over
//! the model checker's atomic words, so that everything above is checked as it is shipped. The file on forks is
//! exchanged, too: a model has no forks.
#![allow(unsafe_code)]

#[cfg(not(loom))]
mod buffer;
#[cfg(not(loom))]
mod caller;
mod copy;
#[cfg(not(loom))]
mod dma_buf;
mod error;
mod fence;
#[cfg_attr(loom, path = "loom/fork.rs")]
mod fork;
#[cfg_attr(loom, path = "loom/host.rs")]
mod host;
mod own_thread;
mod region;
#[cfg_attr(loom, path = "loom/volatile.rs")]
mod volatile;

#[cfg(not(loom))]
pub use buffer::Buffer;
#[cfg(not(loom))]
pub use caller::CallerMemory;
#[cfg(not(loom))]
pub use copy::set_copy_threads;
pub use copy::{Gate, Streaming, Way, streaming_threshold};
pub use error::MemoryError;
pub(crate) use fence::runs_as_mutant;
pub use fence::{fence, pause, yield_now};
pub use fork::ForkGuard;
#[cfg(all(test, not(loom)))]
pub(crate) use fork::{alone, true_in_a_forked_child};
pub use host::{HostMemory, PAGE_SIZE};
pub(crate) use own_thread::OwnThread;
pub use region::{
    Access, DeviceKeys, LocalSlice, MAX_RAILS, MemoryRegion, OutOfBounds, Registration, RemoteKey,
    RemoteSlice,
};
pub use volatile::VolatileSlice;
