//! What a node tells its user when something fails for good.

use std::time::Duration;

use super::{CheckpointError, GroupError};
use crate::clock::Version;
use crate::kernel::FoldError;
use crate::mem::OutOfBounds;
use crate::param::{HandshakeError, PinError, PublishError, PullError};
use crate::scheme::{self, Bound};
use crate::table::{ElementType, TableError};
use crate::transport::{Address, ConnectError, Disconnected, PostError, RegisterError};

/// An operation of a node failed. Each variant names the operation, the cause and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory could not be had or registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A connection could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The table cannot be, or cannot be cut so.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The other side's first message cannot be understood.
    #[error("cannot talk to {address}: {source}")]
    Handshake {
        /// Whom.
        address: Address,
        /// Why.
        source: HandshakeError,
    },
    /// The servers given do not hold the shards of one table.
    #[error("the servers do not hold one table: {reason}; give each shard's server once, in any order")]
    Shards {
        /// What is wrong.
        reason: String,
    },
    /// The deadline passed.
    #[error(
        "{operation} did not end within {waited:?}: needed {}, the server has {}; \
         a worker may be slow or gone, or the timeout too short", Show(.needed), Show(.seen)
    )]
    Deadline {
        /// What was waited for.
        operation: &'static str,
        /// How long.
        waited: Duration,
        /// What was needed.
        needed: Bound,
        /// What there was.
        seen: Bound,
    },
    /// A server is gone.
    #[error("lost shard {shard} of {shards} at {address}: {source}; connect again once it is back")]
    ServerLost {
        /// Which shard.
        shard: u16,
        /// Of how many.
        shards: u16,
        /// Where it was.
        address: Address,
        /// Why.
        source: Disconnected,
    },
    /// The server took this peer for dead, or found its gradients wrong.
    #[error(
        "the server of shard {shard} evicted this peer: it was silent for longer than the lease, or broke the protocol \
         (the server's log says which); connect again"
    )]
    Evicted {
        /// Which shard.
        shard: u16,
    },
    /// A pull failed.
    #[error("cannot pull shard {shard}: {source}")]
    Pull {
        /// Which shard.
        shard: u16,
        /// Why.
        source: PullError,
    },
    /// A publish failed.
    #[error("cannot publish to shard {shard}: {source}")]
    Publish {
        /// Which shard.
        shard: u16,
        /// Why.
        source: PublishError,
    },
    /// Reading in place failed.
    #[error("cannot read shard {shard} in place: {source}")]
    Pin {
        /// Which shard.
        shard: u16,
        /// Why.
        source: PinError,
    },
    /// A request could not be posted.
    #[error("cannot reach shard {shard}: {source}")]
    Post {
        /// Which shard.
        shard: u16,
        /// Why.
        source: PostError,
    },
    /// All frames but the latest are pinned by readers.
    #[error(
        "cannot write version {}: readers pin all other frames for {waited:?}; use more frames (readers + 2)",
        .version.0
    )]
    Pinned {
        /// The version that could not be written.
        version: Version,
        /// How long was waited.
        waited: Duration,
    },
    /// Servers take f32 parameters only.
    #[error("a server's table must be f32 throughout (gradients may be bf16 or f16)")]
    NotF32,
    /// Initial values of another length than the shard.
    #[error("{given} values were given for {expected}")]
    Length {
        /// How many there are.
        given: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Memory is lent to a request that has not ended.
    #[error(
        "the {what} is still in use by a request in flight: finish or retry the operation that failed first"
    )]
    InFlight {
        /// Which memory.
        what: &'static str,
    },
    /// A call that does not fit what the node is doing.
    #[error("cannot {operation} now: {reason}")]
    OutOfTurn {
        /// What was asked.
        operation: &'static str,
        /// Why it does not fit.
        reason: &'static str,
    },
    /// Gradients are in another encoding.
    #[error("the worker's gradients are {encoding:?}, not f32: use `encode`")]
    Encoding {
        /// What they are.
        encoding: ElementType,
    },
    /// The scheme cannot run this way.
    #[error("scheme {scheme} {reason}")]
    Scheme {
        /// Which.
        scheme: scheme::Config,
        /// Why not.
        reason: &'static str,
    },
    /// The scheme's settings cannot be.
    #[error(transparent)]
    SchemeConfig(#[from] scheme::ConfigError),
    /// The system has no room for another thread.
    #[error("cannot start a thread for {what}: {source}; raise the limit on processes (ulimit -u)")]
    Thread {
        /// What it is for.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Options that cannot be.
    #[error("option {option} cannot be {value}: {reason}")]
    Option {
        /// Which.
        option: &'static str,
        /// What it was.
        value: String,
        /// Why not.
        reason: &'static str,
    },
    /// A checkpoint that cannot be written or taken up.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A group cannot meet, or a round in it cannot end.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// A range outside of memory: a broken grant.
    #[error(transparent)]
    Bounds(#[from] OutOfBounds),
    /// A fold over memory that does not fit together.
    #[error(transparent)]
    Fold(#[from] FoldError),
}

/// A bound as people read it.
struct Show<'a>(&'a Bound);

impl std::fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "version {} with all clocks before {}", self.0.version.0, self.0.smallest_clock.0)
    }
}
