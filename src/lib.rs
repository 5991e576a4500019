//! Bounded-stale parameter memory: gradients in, parameters out, by one-sided operations, every read one whole version
//! that says how stale it is.
//!
//! Begin with [`node`]: [`node::Server`] and [`node::Worker`] for training with parameter servers,
//! [`node::Publisher`] and [`node::Reader`] for one process that publishes versions and many that read them.
//!
//! # Terms
//!
//! A *table* ([`table`]) is a list of named tensors in one flat space, cut into *shards*, one per server. A server
//! holds whole copies of its shard, *frames*, each at one *version*; workers write gradients into their *slots*. A
//! worker's *clock* counts the gradients it has published. *Staleness* is how far behind something is: a copy in
//! versions, a gradient in clocks. A *scheme* ([`scheme`]) decides how stale is too stale.
//!
//! # Layers
//!
//! | module | what | may hold `unsafe` |
//! | --- | --- | --- |
//! | [`sim`] | whole jobs in virtual time | only the stacks of its nodes |
//! | [`node`] | servers, workers, publishers, readers | no |
//! | [`scheme`] | when to wait and what to fold in; pure | no |
//! | [`param`] | control page, frames, slots; pull, publish, push, pin | no |
//! | [`kernel`] | sum and step in one pass, conversions, checksums | yes |
//! | [`transport`] | the contract with whatever carries bytes; [`transport::shm`] | only `shm` |
//! | [`mem`] | memory that others may be writing | yes |
//! | [`table`], [`clock`], [`time`] | plain numbers and names | no |
//!
//! # Memory that others write
//!
//! Registered memory is never lent as `&[u8]` or `&mut [u8]` while a peer may write it: [`mem::VolatileSlice`] loads
//! and stores words atomically and copies ranges. What a copy brings out is some mixture of bytes; that it is one
//! version is proved by the protocol in [`param`], not assumed.
//!
//! # Waiting
//!
//! Every node has a `poll` that never waits, for trainers and simulators with a loop of their own, and blocking calls
//! that take a timeout. Nothing here waits without one.

// Under the model checker there are no nodes, and what only they use lies idle.
#![cfg_attr(loom, allow(dead_code, unused_imports))]

/// True in the library's deliberately broken variant of this name, which some test must notice: built with
/// `--cfg slackline_mutant="name"`, or, under the model checker or `--cfg slackline_mutants`, run with
/// `SLACKLINE_MUTANT=name`.
macro_rules! mutant {
    ($name:tt) => {
        cfg!(slackline_mutant = $name) || $crate::mem::runs_as_mutant($name)
    };
}

#[cfg(not(loom))]
pub mod channel;
pub mod clock;
#[cfg(all(any(test, fuzzing), not(loom)))]
#[doc(hidden)]
pub mod fuzzing;
pub mod kernel;
pub mod mem;
#[cfg(not(loom))]
pub mod node;
pub mod param;
#[cfg(not(loom))]
pub mod rendezvous;
pub mod scheme;
#[cfg(not(loom))]
pub mod sim;
pub mod table;
pub mod time;
pub mod transport;

#[cfg(not(loom))]
pub use node::Error;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
