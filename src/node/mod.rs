//! Servers, workers, publishers and readers: parameter memory driven over a transport, as a scheme says.
//!
//! | node | holds | does |
//! | --- | --- | --- |
//! | [`Server`] | one shard | folds workers' gradients into new versions |
//! | [`Worker`] | links to every shard | reads parameters, publishes gradients |
//! | [`Publisher`] | one table | publishes versions that it made itself |
//! | [`Reader`] | a link to a publisher or server | reads versions, at most so stale |
//! | [`GroupMember`] | all parameters, links to other members | averages parameters inside groups, without a server |
//!
//! Each is driven by `poll(now)`, which never waits, so that a trainer can drive it from its own loop and a simulator
//! from virtual time. Blocking calls wrap it, and every one of them takes a timeout.
#![forbid(unsafe_code)]

mod aggregate;
mod checkpoint;
mod copies;
mod error;
mod folder;
#[cfg(feature = "cuda")]
mod folder_gpu;
mod folder_host;
mod group;
mod heartbeat;
mod idle;
mod link;
#[cfg(all(test, feature = "cuda", feature = "tcp"))]
mod of_gpu;
mod payloads;
mod publisher;
mod reader;
mod record;
#[cfg(test)]
mod refused;
mod relay;
#[cfg_attr(not(feature = "sim"), allow(dead_code, reason = "only a simulator replaces them"))]
pub(crate) mod runtime;
#[cfg(test)]
mod scripted;
mod server;
mod shard;
mod stats;
mod taken;
mod tree;
#[cfg(test)]
mod unordered;
mod wait;
mod worker;

pub use crate::param::Eviction;
#[cfg(any(test, fuzzing))]
pub(crate) use checkpoint::fuzz as checkpoint_fuzz;
pub use checkpoint::{Checkpoint, CheckpointError, CheckpointOptions};
pub use error::{Awaited, Error};
pub use group::{Absence, Averaged, GroupError, GroupListener, GroupMember, GroupOptions, GroupStatistics};
pub use idle::Idle;
pub use link::PinnedFrame;
#[cfg(feature = "cuda")]
pub use publisher::Publishing;
pub use publisher::{BackgroundPublisher, DeltaOptions, Draft, Publisher, PublisherOptions, ReaderStatus};
pub use reader::{Asked, Fresh, Reader, ReaderOptions, Snapshot, Wanted};
#[cfg(feature = "sim")]
pub(crate) use relay::Passing;
pub use relay::Relay;
pub use server::{NonFinite, Server, ServerOptions, ServerStatus};
pub(crate) use server::{check_learning_rate, check_optimizer};
pub use shard::{DisconnectReason, ShardOptions};
pub use stats::{LinkStatus, PeerStatus, WorkerStatistics};
pub use wait::{Backoff, now};
pub(crate) use worker::check_scheme_of_host;
pub use worker::{ReadMode, Step, View, Worker, WorkerOptions};
