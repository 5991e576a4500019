//! Bounded-stale parameter memory over RDMA, shared memory and TCP.

/// True in the library's deliberately broken variant of this name, which some test must notice: built with
/// `--cfg slackline_mutant="name"`, or, under the model checker, run with `SLACKLINE_MUTANT=name`.
macro_rules! mutant {
    ($name:tt) => {
        cfg!(slackline_mutant = $name) || $crate::mem::runs_as_mutant($name)
    };
}

pub mod clock;
pub mod kernel;
pub mod mem;
pub mod param;
pub mod scheme;
pub mod table;
pub mod time;
pub mod transport;
