//! Bounded-stale parameter memory over RDMA, shared memory and TCP.

pub mod clock;
pub mod time;
