//! Bounded-stale parameter memory over RDMA, shared memory and TCP.

pub mod clock;
pub mod mem;
pub mod time;
pub mod transport;
