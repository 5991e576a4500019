//! Bounded-stale parameter memory over RDMA, shared memory and TCP.

pub mod clock;
pub mod kernel;
pub mod mem;
pub mod node;
pub mod param;
pub mod scheme;
pub mod table;
pub mod time;
pub mod transport;

pub use node::Error;
