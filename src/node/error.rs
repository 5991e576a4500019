//! What a node tells its user when something fails for good.

use std::io::ErrorKind;
use std::time::Duration;

use super::{CheckpointError, GroupError};
use crate::clock::Version;
use crate::kernel::FoldError;
use crate::mem::OutOfBounds;
use crate::param::{Eviction, HandshakeError, PinError, PublishError, PullError};
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
    #[error("{operation} did not end within {:?}: {}", whole_ms(*.waited), Lack(.needed, .seen))]
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
    /// The server that decides for this one is another life of it, whose versions are not those of this one's.
    #[error(
        "shard {shard} cannot go on after its connection to {address} was lost: the server of shard 0 began anew, or \
         decided more than it keeps; begin this server anew, from its checkpoint if there is one"
    )]
    AnotherLife {
        /// The shard of the server that follows.
        shard: u16,
        /// The server that decides.
        address: Address,
    },
    /// The server took this peer for dead, or found its gradients wrong.
    #[error("the server of shard {shard} evicted this peer: {why}; connect again")]
    Evicted {
        /// Which shard.
        shard: u16,
        /// Why.
        why: Eviction,
    },
    /// The owner of a shard has come to the last version.
    #[error("version {} is the last that fits the protocol's words: begin a new job with these parameters", .version.0)]
    LastVersion {
        /// The version.
        version: Version,
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
        scheme: scheme::AnyScheme,
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
    /// A thread that folds gradients panicked: the version at hand cannot be completed.
    #[error("a thread that folds gradients panicked: {cause}; this is a bug, please report it")]
    FoldPanicked {
        /// What the panic said.
        cause: String,
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

impl Error {
    /// True if no process listened at the address.
    pub(super) fn is_no_listener(&self) -> bool {
        let is_absent = |kind| matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound);
        matches!(self, Error::Connect(ConnectError::System { source, .. }) if is_absent(source.kind()))
    }
}

/// A bound as people read it.
struct Show<'a>(&'a Bound);

impl std::fmt::Display for Show<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "version {} with all clocks before {}", self.0.version.0, self.0.smallest_clock.0)
    }
}

/// What was missing at a deadline, and what to do about it.
struct Lack<'a>(&'a Bound, &'a Bound);

impl std::fmt::Display for Lack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lack(needed, seen) = self;
        let (is_bound, is_answered) = (**needed != Bound::NONE, **seen != Bound::NONE);
        let (needed, seen) = (Show(needed), Show(seen));
        match (is_bound, is_answered) {
            (false, false) => f.write_str(
                "the server accepted the connection but does not answer; see that its owner calls progress or drive, \
                 or use a longer timeout",
            ),
            (false, true) => write!(
                f,
                "the server has {seen} and comes no further; \
                 a worker or the server may be slow or gone, or the timeout too short"
            ),
            (true, _) => write!(
                f,
                "needed {needed}, the server has {seen}; \
                 a worker may be slow or gone, or the timeout too short"
            ),
        }
    }
}

/// Without the fractions of a millisecond that a computed timeout may have.
fn whole_ms(time: Duration) -> Duration {
    let rounded = Duration::from_millis((time.as_secs_f64() * 1000.0).round() as u64);
    if rounded.is_zero() { time } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_deadline_tells_of_bounds_only_where_one_was_waited_for() {
        let (operation, waited) = ("connecting", Duration::from_nanos(3_999_999_960));
        let text = |needed, seen| Error::Deadline { operation, waited, needed, seen }.to_string();
        assert_eq!(
            text(Bound::NONE, Bound::NONE),
            "connecting did not end within 4s: the server accepted the connection but does not answer; see that its \
             owner calls progress or drive, or use a longer timeout"
        );
        let seen = Bound { version: Version(28), smallest_clock: Clock(2) };
        let stuck = text(Bound::NONE, seen);
        assert!(stuck.contains("the server has version 28 with all clocks before 2 and comes no further; "));
        assert!(
            text(seen, Bound::NONE)
                .contains("4s: needed version 28 with all clocks before 2, the server has ")
        );
    }
}
