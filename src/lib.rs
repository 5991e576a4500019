//! Bounded-stale parameter memory over RDMA, shared memory and TCP: gradients in, parameters out, by one-sided
//! operations, every read one whole version that says how stale it is.
//!
//! | processes | transport | memory is reached by |
//! | --- | --- | --- |
//! | on one host | [`transport::shm`] | loads and stores in mapped memory |
//! | on hosts with InfiniBand, RoCE or soft-RoCE | [`transport::verbs`] | RDMA reads, writes and atomics |
//! | on any hosts | [`transport::tcp`] | a thread of the other process, without its code |
//!
//! Begin with [`job`] for a program of many processes, on one host or many: it reads the launcher's environment, meets
//! the others and chooses a transport for each pair. All processes run this program:
//!
//! ```no_run
//! use slackline::job::{Job, JobPlan, Role};
//! use slackline::node::{ServerOptions, WorkerOptions};
//! use slackline::scheme::Config;
//! use slackline::table::{ElementType, Table};
//!
//! # fn loss_and_gradient(parameters: &[f32], gradient: &mut [f32]) -> f32 { 0.0 }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let job = Job::from_env(JobPlan::servers(1).clocks(100))?;
//! match job.role() {
//!     Role::Server(_) => {
//!         let table = Table::builder().tensor("weight", &[1000], ElementType::F32).build()?;
//!         let scheme = Config::Ssp { staleness: 2 };
//!         let served = job.serve(table, &[0.0; 1000], ServerOptions::new(scheme, job.workers(), 0.1))?;
//!         println!("{} versions", served.status.version.0);
//!     }
//!     Role::Worker(_) => {
//!         let mut worker = job.worker(WorkerOptions::default())?; // the scheme is the servers'
//!         while let Some(mut step) = worker.next_step()? {
//!             let (parameters, gradient) = step.borrow()?; // both at once, and nothing is copied
//!             let loss = loss_and_gradient(parameters, gradient);
//!             step.publish(Some(loss))?;
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Go on with [`node`]: [`node::Server`] and [`node::Worker`] for parameter servers whose addresses a program knows,
//! [`node::Publisher`] and [`node::Reader`] for one process that publishes versions and many that read them,
//! [`node::GroupMember`] for workers that average their parameters in groups.
//!
//! # Guarantees and limits
//!
//! A read hands out the bytes of exactly one published version and says which. A read under a bound keeps it or fails
//! by its deadline. A gradient counts at most once, and no call waits without a deadline. A peer reaches only the
//! memory that it was granted.
//!
//! Processes prove to each other that they know the job's secret, and what they agree on is encrypted; parameters and
//! gradients are not. A process that runs as the same user is trusted. Updates that were applied after the last
//! checkpoint are lost with a server.
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
//! | [`job`] | many processes: environment, rendezvous, choice of transports, servers and workers of a job | no |
//! | `sim` (with the feature of this name) | whole jobs in virtual time | only the stacks of its nodes |
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

/// An ordering of a load or a store, which is `Relaxed` in the library's variant of this name.
macro_rules! ordering {
    ($name:tt, $ordering:ident) => {{
        use core::sync::atomic::Ordering;
        if mutant!($name) { Ordering::Relaxed } else { Ordering::$ordering }
    }};
}

#[cfg(not(loom))]
#[doc(hidden)]
pub mod channel;
#[doc(hidden)]
pub mod clock;
#[cfg(all(any(test, fuzzing), not(loom)))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod job;
#[doc(hidden)]
pub mod kernel;
#[doc(hidden)]
pub mod mem;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod node;
#[doc(hidden)]
pub mod param;
pub mod scheme;
#[cfg(all(feature = "sim", not(loom)))]
pub mod sim;
#[doc(hidden)]
pub mod table;
#[doc(hidden)]
pub mod time;
#[doc(hidden)]
pub mod transport;

#[cfg(not(loom))]
pub use channel::{Secret, SecretError};
pub use clock::{Clock, Version};
#[cfg(not(loom))]
pub use job::env::{LaunchError, MeetingPoint, Placement};
#[cfg(not(loom))]
pub use job::{Job, JobError, JobPlan, JobStep, JobWorker, Published, Resume, Role, Served};
pub use kernel::{AdamParameters, Optimizer};
#[cfg(not(loom))]
pub use node::{
    Absence, Averaged, Checkpoint, CheckpointError, CheckpointOptions, Departure, Error, Eviction, Fresh,
    GroupError, GroupListener, GroupMember, GroupOptions, GroupStatistics, Histogram, Idle, LinkStatus,
    NonFinite, PeerStatus, Publisher, PublisherOptions, ReadMode, Reader, ReaderOptions, Server,
    ServerOptions, ServerStatus, ShardOptions, Step, View, Worker, WorkerOptions, WorkerStatistics, now,
};
#[cfg(not(loom))]
pub use param::PinnedFrame;
pub use table::{ElementType, Table, TableBuilder, TableError, Tensor};
pub use time::Instant;
pub use transport::{Address, AddressError, ConnectError, Transport, TransportKind};
#[cfg(not(loom))]
pub use transport::{
    mixed::Mixed,
    shm::Shm,
    tcp::Tcp,
    verbs::{OpenError, Verbs, VerbsOptions},
};

/// The modules behind the public face, for the tests, benchmarks, fuzz targets and tools of this repository.
///
/// **Not an interface.** Nothing here is covered by semantic versioning: any release may change or remove it.
#[doc(hidden)]
pub mod internals {
    /// Opens modules of the same names.
    macro_rules! open {
        ($($module:ident),*) => {
            $(pub mod $module {
                pub use crate::$module::*;
            })*
        };
    }

    open!(clock, kernel, mem, param, scheme, table, time, transport);
    #[cfg(not(loom))]
    open!(channel, job, node);
    #[cfg(all(any(test, fuzzing), not(loom)))]
    open!(fuzzing);
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
