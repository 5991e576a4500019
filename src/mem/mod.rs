//! Memory that peers may read and write: who owns it, what of it was registered, and how it is touched.
//!
//! Pointers end here. Above this module there are only [`MemoryRegion`]s, slices of them and keys, and the bytes
//! of a region are reached through [`VolatileSlice`], never through a Rust reference: a peer may be writing them
//! at any moment.
#![allow(unsafe_code)]

mod buffer;
mod copy;
mod fence;
mod fork;
mod host;
mod region;
mod volatile;

pub use buffer::Buffer;
pub use copy::{Streaming, streaming_threshold};
pub use fence::fence;
pub use fork::ForkGuard;
pub use host::{HostMemory, MemoryError, PAGE_SIZE};
pub use region::{
    Access, LocalKey, LocalSlice, MemoryRegion, OutOfBounds, Registration, RemoteKey, RemoteSlice,
};
pub use volatile::VolatileSlice;
