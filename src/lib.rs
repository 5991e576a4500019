//! Training processes write gradients into each other's memory and read parameters out of it, by one-sided operations
//! over RDMA, shared memory or TCP. Each read is one whole version of the parameters and says how stale it is.
//!
//! | processes | transport | memory is reached by |
//! | --- | --- | --- |
//! | on one host | [`Shm`] | loads and stores in mapped memory |
//! | on hosts with InfiniBand, RoCE or soft-RoCE | [`Verbs`] | RDMA reads, writes and atomics |
//! | on any hosts | [`Tcp`] | a thread of the library in the other process; its program takes no part |
//!
//! [`Mixed`] has all of them side by side.
//!
//! Begin with [`Job`] for a program of many processes, on one host or many: it reads the launcher's environment, meets
//! the others and chooses a transport for each pair. All processes run this program:
//!
//! ```no_run
//! use slackline::{ElementType, Job, JobPlan, Role, ServerOptions, Table, WorkerOptions, scheme::SchemeConfig};
//!
//! # fn loss_and_gradient(parameters: &[f32], gradient: &mut [f32]) -> f32 { 0.0 }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let job = Job::from_env(JobPlan::servers(1).clocks(100))?;
//! match job.role() {
//!     Role::Server(_) => {
//!         let table = Table::builder().tensor("weight", &[1000], ElementType::F32).build()?;
//!         let scheme = SchemeConfig::Ssp { staleness: 2 };
//!         let served = job.serve(table, &[0.0; 1000], ServerOptions::new(scheme, job.workers(), 0.1))?;
//!         println!("{} versions", served.status.version.get());
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
//! Go on with [`Server`] and [`Worker`] for parameter servers whose addresses a program knows, [`weights`] for one
//! process that publishes versions and many that read them, and [`group`] for workers that average their parameters
//! in groups. [`scheme`] has the schemes, and the traits by which you write your own; [`optim`] has the optimisers,
//! [`checkpoint`] the files from which servers start again, and [`gpu`] the memory of GPUs.
//!
//! # Guarantees and limits
//!
//! A read hands out the bytes of exactly one published version and says which. A read under a bound keeps it or fails
//! by its deadline. A gradient counts at most once. Every call that can wait takes a timeout or uses that of the
//! [`JobPlan`]. The exceptions are the calls that wait for the end of a whole job ([`Job::serve`],
//! [`JobWorker::finish`], and the last [`JobWorker::next_step`]) and a few others, which `docs/protocol.md` lists. A
//! peer reaches only the memory that it was granted, with two exceptions. Over RDMA a reader that guesses an rkey
//! (32 bits) can read another table of the same process. Over shared memory the processor checks no offset within the
//! mapping of a granted region.
//!
//! Processes prove to each other that they know the job's secret, and their control messages are encrypted. Parameters
//! and gradients are not encrypted, unless [`Secret::encrypting`] asks for it over TCP. A process that runs as the same
//! user is trusted. If a server is lost, the updates that it applied after its last checkpoint are lost, too.
//!
//! # Terms
//!
//! A *table* ([`Table`]) is a list of named tensors in one flat space, cut into *shards*, one per server. A server
//! holds whole copies of its shard, *frames*, each at one *version*; workers write gradients into their *slots*. A
//! worker's *clock* counts the gradients it has published. *Staleness* is how far a copy of the parameters is behind:
//! a reader's copy in versions, a worker's copy in clocks, or in versions under ABS. A *scheme* ([`scheme`]) decides
//! how stale is too stale.
//!
//! # Waiting
//!
//! Servers, workers, publishers, readers and group members have a `poll` that never waits, for trainers and simulators
//! with a loop of their own.
//!
//! # Environment
//!
//! | variable | setting |
//! | --- | --- |
//! | `SLACKLINE_RANK`, `_WORLD_SIZE`, `_LOCAL_RANK` | rank, world size and local rank, where no launcher sets them |
//! | `SLACKLINE_RENDEZVOUS` | `HOST:PORT` at which rank 0 listens for the other processes |
//! | `SLACKLINE_SECRET_FILE`, `SLACKLINE_SECRET` | the secret of the job; needed beyond one host |
//! | `SLACKLINE_TCP_ENCRYPT` | `1`: parameters and gradients are encrypted over TCP, too |
//! | `SLACKLINE_RDMA_DEVICE`, `_PORT`, `_GID_INDEX`, `_MTU`, `_ORDER` and others | the RDMA device and its settings |
//!
//! The page `docs/operations.md` of the repository has the other variables. [`Job::from_env`] also reads the variables
//! of torchrun, Slurm, Open MPI, PMI (MPICH, Intel MPI), PMIx, ps-lite and indexed Jobs of Kubernetes.
//!
//! # Features
//!
//! | feature | default | it adds |
//! | --- | --- | --- |
//! | `verbs` | on | the transport [`Verbs`]: RDMA |
//! | `tcp` | on | the transport [`Tcp`], and its encryption |
//! | `cuda` | on | memory of NVIDIA GPUs: see the module [`gpu`] |
//! | `checkpoint` | on | files of checkpoints are written and read: see the module [`checkpoint`] |
//! | `sim` | off | the module `sim`: whole jobs in virtual time |
//! | `oracle` | off | nothing for users: a test of this repository links the system's libibverbs |
//!
//! Shared memory and the rendezvous of a job are always part of the build. An address of a transport that was left out
//! is an error at run time ([`ConnectError::NotBuilt`]), and so is a checkpoint
//! ([`CheckpointError::NotBuilt`](checkpoint::CheckpointError::NotBuilt)).
//!
//! libibverbs is opened at run time: to build the library takes neither its headers nor an RDMA device.

// Under the model checker there are no nodes, and the code that only nodes use is unused.
#![cfg_attr(loom, allow(dead_code, unused_imports))]
// Without one of the features, the code that only this feature uses is unused.
#![cfg_attr(not(all(feature = "tcp", feature = "verbs", feature = "checkpoint")), allow(dead_code))]

// Unit tests also run the programs of `tests/gpu` and `benches/gpu` and the suite of `tests/transport`, which name the
// library.
#[cfg(test)]
extern crate self as slackline;

/// True in the library's deliberately broken variant of this name, which some test must notice: built with
/// `--cfg slackline_mutant="name"`, or, under the model checker, in unit tests or with `--cfg slackline_mutants`, run
/// with `SLACKLINE_MUTANT=name`.
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
mod channel;
mod clock;
#[cfg(all(feature = "cuda", not(loom)))]
mod cuda;
#[cfg(not(all(feature = "cuda", not(loom))))]
#[path = "cuda/absent.rs"]
mod cuda;
mod diagnostic;
#[cfg(all(any(test, fuzzing), not(loom)))]
mod fuzzing;
#[cfg(not(loom))]
mod job;
mod kernel;
#[cfg(not(loom))]
mod log;
mod mem;
#[cfg(not(loom))]
mod node;
mod param;
pub mod scheme;
#[cfg(all(feature = "sim", not(loom)))]
pub mod sim;
mod table;
mod time;
#[cfg(not(loom))]
mod trace;
mod transport;

#[cfg(not(loom))]
pub use channel::{Secret, SecretError};
pub use clock::{Clock, Version, VersionTag};
pub use diagnostic::Diagnostic;
#[cfg(not(loom))]
pub use job::env::{LaunchError, Placement, RendezvousEndpoint};
#[cfg(not(loom))]
pub use job::{Advance, Job, JobError, JobPlan, JobStep, JobWorker, LocalSteps, Published, Role, Served};
#[cfg(not(loom))]
pub use mem::{CallerMemory, VolatileSlice};
#[cfg(not(loom))]
pub use node::{
    Error, Eviction, Fresh, Idle, NonFinite, PinnedFrame, ReadMode, Server, ServerOptions, ServerStatus,
    ShardOptions, Step, View, Worker, WorkerOptions, WorkerStatistics, now,
};
pub use table::{
    ElementType, Encoding, Selection, SelectionBuilder, Table, TableBuilder, TableError, Tensor,
};
pub use time::Instant;
#[cfg(all(feature = "tcp", not(loom)))]
pub use transport::tcp::Tcp;
#[cfg(all(feature = "verbs", not(loom)))]
pub use transport::verbs::{OpenError, Verbs, VerbsOptions};
pub use transport::{Address, AddressError, ConnectError, Named, Tables, Transport, TransportKind};
#[cfg(not(loom))]
pub use transport::{mixed::Mixed, shm::Shm};

#[cfg(not(loom))]
pub mod weights {
    //! One process that publishes versions, and many that read them.
    //!
    //! Begin with [`Publisher`] and [`Reader`]. A [`Relay`] hands the versions on. A [`BackgroundPublisher`] has a
    //! thread that looks after the readers; its caller publishes.

    pub use crate::node::{
        BackgroundPublisher, DeltaOptions, Draft, Publisher, PublisherOptions, Reader, ReaderOptions,
        ReaderStatus, Relay, Snapshot, Wanted,
    };
    pub use crate::trace::{Certificate, Publication};
}

#[cfg(not(loom))]
pub mod group {
    //! Workers that average their parameters in groups, without a server.
    //!
    //! Begin with [`GroupMember`], or with [`GroupTrainer`] in a [`Job`](crate::Job).

    pub use crate::job::GroupTrainer;
    pub use crate::node::{Averaged, GroupError, GroupListener, GroupMember, GroupOptions, GroupStatistics};
}

pub mod gpu {
    //! Memory of NVIDIA GPUs, from which parameters and gradients are sent, and into which they are read.
    //!
    //! Begin with [`Gpu`] and [`GpuMemory`]. Without the feature `cuda` this module has nothing but [`GpuPath`].

    #[cfg(all(feature = "cuda", not(loom)))]
    pub use crate::cuda::{Gpu, GpuError, GpuMemory, GpuSlice, GpuStream};
    #[cfg(all(feature = "cuda", not(loom)))]
    pub use crate::node::Publishing;
    pub use crate::transport::GpuPath;
}

#[cfg(not(loom))]
pub mod checkpoint {
    //! Files from which servers start again.
    //!
    //! A server writes them as its [`CheckpointOptions`] say, and a program reads one as a [`Checkpoint`].

    pub use crate::job::Resume;
    pub use crate::node::{Checkpoint, CheckpointError, CheckpointOptions};
}

pub mod optim {
    //! Optimisers, by which servers apply gradients to their parameters: see [`Optimizer`] and [`Schedule`].

    pub use crate::kernel::{AdamParameters, Optimizer, Schedule, ScheduleError};
}

/// The modules behind the public face, for the tests, benchmarks, fuzz targets and tools of this repository.
///
/// **Not an interface.** Semantic versioning does not cover what stands here, nor any other item that the documentation
/// leaves out: each release may change or remove it.
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
    #[cfg(all(feature = "cuda", not(loom)))]
    open!(cuda);
    #[cfg(not(loom))]
    open!(channel, job, log, node, trace);
    #[cfg(all(any(test, fuzzing), not(loom)))]
    open!(fuzzing);
}

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
