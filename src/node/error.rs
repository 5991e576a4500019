//! Errors that a node reports to its user when an operation has failed.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::time::Duration;

use super::{CheckpointError, GroupError};
use crate::clock::Version;
use crate::diagnostic::Diagnostic;
use crate::kernel::FoldError;
use crate::mem::OutOfBounds;
use crate::param::{Eviction, HandshakeError, PinError, PublishError, PullError};
use crate::scheme::{self, Bound};
use crate::table::{Encoding, TableError};
use crate::transport::{Address, CompletionError, ConnectError, Disconnected, PostError, RegisterError};

/// An operation of a node failed. The text names the operation, the cause and the remedy; [`Diagnostic`] says them to
/// programs. The other errors of the library become one by `from`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory could not be had or registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A connection could not be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A GPU, or memory of one, cannot be used as asked.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] crate::cuda::GpuError),
    /// The table cannot be, or cannot be cut so.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The first message of the other side cannot be understood.
    #[error("cannot talk to {address}: {source}")]
    Handshake {
        /// The address of the other side.
        address: Address,
        /// The fault of the message.
        source: HandshakeError,
    },
    /// The servers given do not hold the shards of one table.
    #[error("the servers do not hold one table: {reason}; {}", self.help())]
    Shards {
        /// The reason, in words.
        reason: String,
    },
    /// A relay, or a reader that goes on at another owner, found another table than the one it has.
    #[error("{address} has another table: {reason}; {}", self.help())]
    AnotherTable {
        /// The owner that has it.
        address: Address,
        /// The difference, in words.
        reason: &'static str,
    },
    /// The versions upstream of a relay come from another publisher or server, or from its next incarnation.
    #[error("the versions upstream are of another publisher or server than those before; {}", self.help())]
    AnotherPublisher,
    /// Fewer readers than were waited for held a version by the deadline.
    #[error(
        "{holding} of {readers} readers held version {} within {:?}; {}",
        .version.get(),
        whole_ms(*.waited),
        self.help()
    )]
    NotHeld {
        /// The version.
        version: Version,
        /// The number of readers that were waited for.
        readers: usize,
        /// The number of them that held it, or a newer one.
        holding: usize,
        /// The time that was waited.
        waited: Duration,
    },
    /// The deadline passed.
    #[error(
        "{operation} did not end within {:?}: {}; {}",
        whole_ms(*.waited),
        Lack(*.awaited, .needed, .seen),
        self.help()
    )]
    Deadline {
        /// The operation that did not end.
        operation: &'static str,
        /// The time that was waited.
        waited: Duration,
        /// The version and the clocks that the operation needed.
        needed: Bound,
        /// The version and the clocks that the server had.
        seen: Bound,
        /// The kind of event that was awaited, for the text.
        #[doc(hidden)]
        awaited: Awaited,
    },
    /// A server is gone.
    #[error("lost shard {shard} of {shards} at {address}: {source}; {}", self.help())]
    ServerLost {
        /// The shard whose server is gone.
        shard: u16,
        /// The number of shards.
        shards: u16,
        /// The address of that server.
        address: Address,
        /// The reason for which the connection ended.
        source: Disconnected,
    },
    /// This server cannot go on where it was. The server that decides for it was started again, so that it is
    /// another incarnation with other versions, or it has decided more than it keeps.
    #[error(
        "shard {shard} cannot go on after its connection to {address} was lost: the server of shard 0 was started \
         again, or decided more than it keeps; {}", self.help()
    )]
    AnotherIncarnation {
        /// The shard of the server that follows.
        shard: u16,
        /// The server that decides.
        address: Address,
    },
    /// The server took this peer for dead, or found its gradients wrong.
    #[error("the server of shard {shard} evicted this peer: {why}; {}", self.help())]
    Evicted {
        /// The shard of that server.
        shard: u16,
        /// The reason that the server gave.
        why: Eviction,
    },
    /// The owner of a shard has come to the last version.
    #[error("version {} is the last that fits the protocol's words: {}", .version.get(), self.help())]
    LastVersion {
        /// The version.
        version: Version,
    },
    /// A pull failed.
    #[error("cannot pull shard {shard}: {source}")]
    Pull {
        /// The shard.
        shard: u16,
        /// The cause.
        source: PullError,
    },
    /// A publish failed.
    #[error("cannot publish to shard {shard}: {source}")]
    Publish {
        /// The shard.
        shard: u16,
        /// The cause.
        source: PublishError,
    },
    /// Reading in place failed.
    #[error("cannot read shard {shard} in place: {source}")]
    Pin {
        /// The shard.
        shard: u16,
        /// The cause.
        source: PinError,
    },
    /// A request could not be posted.
    #[error("cannot reach shard {shard}: {source}")]
    Post {
        /// The shard.
        shard: u16,
        /// The cause.
        source: PostError,
    },
    /// All frames but the latest are pinned by readers.
    #[error(
        "cannot write version {}: readers pin all other frames for {waited:?}; {}",
        .version.get(), self.help()
    )]
    Pinned {
        /// The version that could not be written.
        version: Version,
        /// The time that was waited.
        waited: Duration,
    },
    /// Servers take f32 parameters only.
    #[error(
        "a server's table must be f32 throughout, with nothing between its tensors (gradients may be bf16 or f16)"
    )]
    NotF32,
    /// An array, or memory, has another length than the table or the shard that it is for.
    #[error("{given} {unit} were given for {expected}; {}", self.help())]
    Length {
        /// The length that was given, in `unit`.
        given: usize,
        /// The length that is needed, in `unit`.
        expected: usize,
        /// The unit of both: "values" or "bytes".
        unit: &'static str,
    },
    /// Memory is lent to a request that has not ended.
    #[error("the {what} is still in use by a request in flight: {}", self.help())]
    InFlight {
        /// The memory that is lent, in words.
        what: &'static str,
    },
    /// The call does not fit the state of the node: the program has an error, and the text says which call comes first.
    #[error("cannot {operation} now: {reason}")]
    OutOfTurn {
        /// The operation that was asked for.
        operation: &'static str,
        /// The reason why it does not fit.
        reason: &'static str,
    },
    /// Gradients are in another encoding.
    #[error("the worker's gradients are {encoding:?}, not f32: {}", self.help())]
    Encoding {
        /// The encoding that the gradients have.
        encoding: Encoding,
    },
    /// The scheme cannot run this way; the text names an alternative.
    #[error("scheme {scheme} {reason}")]
    Scheme {
        /// The scheme.
        scheme: scheme::AnyScheme,
        /// The reason, in words.
        reason: &'static str,
    },
    /// The scheme's settings cannot be.
    #[error(transparent)]
    SchemeConfig(#[from] scheme::SchemeConfigError),
    /// The system has no room for another thread.
    #[error("cannot start a thread for {what}: {source}; {}", self.help())]
    Thread {
        /// The work that the thread was meant to do.
        what: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A thread that folds gradients panicked: the version at hand cannot be completed.
    #[error("a thread that folds gradients panicked: {cause}; {}", self.help())]
    FoldPanicked {
        /// The message of the panic.
        cause: String,
    },
    /// An option has a value that it cannot have.
    #[error("option {option} cannot be {value}: {reason}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// The reason why it cannot have that value.
        reason: &'static str,
    },
    /// A checkpoint cannot be written or taken up.
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

/// The event that a call awaited when its deadline passed.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The answer of a process that has accepted the connection.
    Answer,
    /// A version for a reader.
    Version,
    /// Parameters for a worker, or the end of its gradients: its servers wait for the other workers, too.
    Workers,
    /// A version in a file.
    File,
}

impl Diagnostic for Error {
    fn operation(&self) -> &'static str {
        match self {
            Error::Deadline { operation, .. } | Error::OutOfTurn { operation, .. } => operation,
            Error::Register(_) => "registering memory",
            #[cfg(feature = "cuda")]
            Error::Gpu(error) => error.operation(),
            Error::Connect(_)
            | Error::Handshake { .. }
            | Error::Shards { .. }
            | Error::AnotherTable { .. } => "connecting",
            Error::AnotherPublisher => "passing versions on",
            Error::NotHeld { .. } => "waiting for readers to hold a version",
            Error::Table(_) => "laying out the table",
            Error::ServerLost { .. } | Error::Evicted { .. } | Error::Post { .. } => "talking to a server",
            Error::AnotherIncarnation { .. } => "following the decisions of shard 0",
            Error::Pull { .. } | Error::Bounds(_) => "reading parameters",
            Error::Pin { .. } => "reading in place",
            Error::Publish { .. } | Error::Encoding { .. } => "publishing a gradient",
            Error::LastVersion { .. }
            | Error::Pinned { .. }
            | Error::Fold(_)
            | Error::FoldPanicked { .. } => "writing a version",
            Error::Checkpoint(_) => "writing or reading a checkpoint",
            Error::Group(_) => "averaging in a group",
            Error::InFlight { .. } => "reusing memory",
            Error::Length { .. } => "taking an array",
            Error::NotF32 | Error::Option { .. } | Error::Thread { .. } => "starting",
            Error::Scheme { .. } | Error::SchemeConfig(_) => "making the scheme",
        }
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            Error::Register(error) => error.remedy(),
            #[cfg(feature = "cuda")]
            Error::Gpu(error) => error.remedy(),
            Error::Connect(error) => error.remedy(),
            Error::Table(error) => error.remedy(),
            Error::Handshake { source, .. } => source.remedy(),
            Error::Pull { source, .. } => source.remedy(),
            Error::Publish { source, .. } => source.remedy(),
            Error::Pin { source, .. } => source.remedy(),
            Error::Post { source, .. } => source.remedy(),
            Error::SchemeConfig(error) => error.remedy(),
            Error::Option { reason, .. } => Some((*reason).into()),
            Error::Checkpoint(error) => error.remedy(),
            Error::Group(error) => error.remedy(),
            error => Some(error.help()).filter(|text| !text.is_empty()).map(Cow::from),
        }
    }

    /// True if the same may succeed later with the same program and the same options: call again after a deadline or a
    /// pinned version, connect again after the loss of a server or an eviction.
    fn is_retryable(&self) -> bool {
        match self {
            Error::Evicted { why: Eviction::Misbehaved, .. } => false,
            error if error.is_loss() => true,
            Error::Deadline { .. } | Error::NotHeld { .. } | Error::Pinned { .. } | Error::Thread { .. } => {
                true
            }
            Error::Connect(error) => error.is_retryable(),
            Error::Register(error) => error.is_retryable(),
            #[cfg(feature = "cuda")]
            Error::Gpu(error) => error.is_retryable(),
            Error::Post { source, .. } => source.is_retryable(),
            Error::Pull { source, .. } => source.is_retryable(),
            Error::Group(error) => error.is_retryable(),
            _ => false,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Error::Connect(error) => error.retry_after(),
            _ => None,
        }
    }
}

impl Error {
    /// The remedy, where it is the same for all errors of a kind.
    fn help(&self) -> &'static str {
        match self {
            Error::Deadline { awaited: Awaited::Answer, seen, .. } if *seen == Bound::NONE => {
                "see that its owner calls serve, drive or poll (progress in C), or use a longer timeout"
            }
            Error::Deadline { awaited: Awaited::File, .. } => {
                "the disk may be slow, or the timeout too short"
            }
            Error::Deadline { awaited, needed, seen, .. }
                if *awaited == Awaited::Answer || awaited.was_there(needed, seen) =>
            {
                "its owner may not answer, the link may be slow, or the timeout too short"
            }
            Error::Deadline { awaited: Awaited::Version, needed, .. } if is_number(needed) => {
                "it may not be published yet, or the timeout may be too short"
            }
            Error::Deadline { .. } => "a worker or the server may be slow or gone, or the timeout too short",
            Error::Shards { .. } => "give each shard's server once, in any order",
            Error::AnotherTable { .. } => "give the addresses of one publisher and of its relays",
            Error::AnotherPublisher => "start the relay again",
            Error::NotHeld { .. } => "a reader may be slow or gone, or the timeout too short",
            Error::ServerLost { .. } => "connect again once it is back",
            Error::Evicted { why, .. } => why.remedy(),
            Error::AnotherIncarnation { .. } => {
                "start this server again, from its checkpoint if there is one"
            }
            Error::LastVersion { .. } => "begin a new job with these parameters",
            Error::Pinned { .. } => "use more frames (readers + 2)",
            Error::Length { .. } => "give exactly as many",
            Error::InFlight { .. } => "finish or retry the operation that failed first",
            Error::Encoding { .. } => "use `encode`",
            Error::Thread { .. } => "raise the limit on processes (ulimit -u)",
            Error::FoldPanicked { .. } => "this is a bug, please report it",
            _ => "",
        }
    }

    /// True if a server is lost to this peer: it is gone, was started again, or took the peer for dead. Connecting
    /// again may help.
    ///
    /// A server that refused access to its memory is lost, too: the connection is over, and when a process ends, its
    /// memory is taken from its RDMA device before its connections are. A server that is alive and refuses will refuse
    /// again. A server to which this host's device failed a request is lost as well: soft-RoCE fails requests as soon
    /// as its link goes down. A request that is wrong will fail again.
    pub fn is_loss(&self) -> bool {
        self.is_failed_request()
            || matches!(
                self,
                Error::ServerLost { .. }
                    | Error::Evicted { .. }
                    | Error::Pull { source: PullError::Epoch { .. }, .. }
                    | Error::Pin { source: PinError::Epoch { .. } | PinError::Inherited, .. }
            )
    }

    /// True if the server refused access to its memory or found a breach of the protocol in the words written there, or
    /// if this host's device failed a request: the same may happen each time.
    pub(crate) fn is_failed_request(&self) -> bool {
        match self {
            Error::Evicted { why: Eviction::Misbehaved, .. } => true,
            Error::Pull { source: PullError::Completion(error), .. }
            | Error::Publish { source: PublishError::Completion(error), .. } => {
                matches!(error, CompletionError::RemoteAccess | CompletionError::Device { .. })
            }
            _ => false,
        }
    }

    /// True if the peer refused for a reason that passes by itself.
    pub(super) fn is_refused_for_now(&self) -> bool {
        self.retry_after().is_some()
    }

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
        write!(f, "version {} with all clocks before {}", self.0.version.get(), self.0.smallest_clock.get())
    }
}

/// The lack at a deadline: the kind of event that was awaited, the bound that was needed, and the bound that was seen.
struct Lack<'a>(Awaited, &'a Bound, &'a Bound);

impl std::fmt::Display for Lack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lack(awaited, needed, seen) = self;
        match awaited {
            Awaited::Answer => f.write_str("the server accepted the connection but does not answer")?,
            Awaited::File => write!(f, "version {} is not written yet", needed.version.get())?,
            Awaited::Workers if **needed == Bound::NONE => {
                write!(f, "the server has {} and comes no further", Show(seen))?;
            }
            Awaited::Version if is_number(needed) => {
                write!(f, "needed version {}, the newest is {}", needed.version.get(), seen.version.get())?;
            }
            _ => write!(f, "needed {}, the server has {}", Show(needed), Show(seen))?,
        }
        match awaited.was_there(needed, seen) {
            true => f.write_str(", and it was not read in time"),
            false => Ok(()),
        }
    }
}

impl Awaited {
    /// True if the owner had the needed version: only its copy did not end in time.
    fn was_there(self, needed: &Bound, seen: &Bound) -> bool {
        let is_read = match self {
            Awaited::Answer | Awaited::File => false,
            Awaited::Version => true,
            Awaited::Workers => *needed != Bound::NONE,
        };
        is_read && needed.is_met_by(seen.version, seen.smallest_clock)
    }
}

/// True if the bound is a version's number, and no clock.
fn is_number(bound: &Bound) -> bool {
    *bound == Bound::version(bound.version)
}

/// Rounds to whole milliseconds: a computed timeout may have fractions of one.
fn whole_ms(time: Duration) -> Duration {
    let rounded = Duration::from_millis((time.as_secs_f64() * 1000.0).round() as u64);
    if rounded.is_zero() { time } else { rounded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    fn deadline(awaited: Awaited, needed: Bound, seen: Bound) -> Error {
        let (operation, waited) = ("connecting", Duration::from_nanos(3_999_999_960));
        Error::Deadline { operation, waited, needed, seen, awaited }
    }

    #[test]
    fn the_text_of_an_error_ends_in_its_remedy() {
        let (waited, none) = (Duration::from_secs(4), Bound::NONE);
        let version = Version::new(3);
        let errors = [
            deadline(Awaited::Answer, none, none),
            deadline(Awaited::File, Bound::version(version), none),
            deadline(Awaited::Version, Bound::version(version), none),
            deadline(Awaited::Version, none, none),
            deadline(Awaited::Workers, none, none),
            deadline(Awaited::Workers, Bound::clock(Clock::new(1)), none),
            Error::Evicted { shard: 0, why: Eviction::Silent },
            Error::LastVersion { version },
            Error::Pinned { version, waited },
            Error::Option { option: "threads", value: "0".into(), reason: "use at least 1" },
            GroupError::Disagree { rank: 1, round: 2 }.into(),
            CheckpointError::Missing { file: "shard-0".into() }.into(),
            ConnectError::NeedsSecret { address: Address::random() }.into(),
            "ssp(x)".parse::<scheme::SchemeConfig>().unwrap_err().into(),
        ];
        for error in errors {
            let remedy = error.remedy().expect("there is a remedy").into_owned();
            assert!(error.to_string().ends_with(&remedy), "{error} / {remedy}");
            assert!(!remedy.is_empty() && !error.operation().is_empty());
        }
        assert_eq!(Error::NotF32.remedy(), None);
    }

    #[test]
    fn what_may_pass_can_be_tried_again_and_mistakes_cannot() {
        let (address, reason) = (Address::random(), "full".to_owned());
        let refused = |retry_after| {
            let (address, reason) = (address.clone(), reason.clone());
            Error::from(ConnectError::Refused { address, retry_after, reason })
        };
        let later = Some(Duration::from_secs(1));
        assert!(refused(later).is_retryable() && !refused(None).is_retryable());
        assert_eq!((refused(later).retry_after(), Error::NotF32.retry_after()), (later, None));
        assert!(Error::Evicted { shard: 0, why: Eviction::Silent }.is_retryable());
        assert!(!Error::from(ConnectError::NeedsSecret { address }).is_retryable());
        assert!(!Error::NotF32.is_retryable());
        assert!(!Error::LastVersion { version: Version::new(1) }.is_retryable());
    }

    #[test]
    fn a_peer_that_broke_the_protocol_is_not_told_to_connect_again() {
        let remedies = |why| {
            let remedy = |error: &dyn Diagnostic| error.remedy().unwrap().into_owned();
            [remedy(&Error::Evicted { shard: 0, why }), remedy(&PublishError::Evicted { why })]
        };
        assert_eq!(remedies(Eviction::Misbehaved), ["look at the log of the server"; 2]);
        assert_eq!(remedies(Eviction::Silent), ["connect again"; 2]);
    }

    #[test]
    fn a_deadline_tells_what_was_missing_and_why_it_may_be() {
        let text = |awaited, needed, seen| deadline(awaited, needed, seen).to_string();
        assert_eq!(
            text(Awaited::Answer, Bound::NONE, Bound::NONE),
            "connecting did not end within 4s: the server accepted the connection but does not answer; see that its \
             owner calls serve, drive or poll (progress in C), or use a longer timeout"
        );
        let seen = Bound { version: Version::new(28), smallest_clock: Clock::new(2) };
        let stuck = text(Awaited::Workers, Bound::NONE, seen);
        assert!(stuck.contains("the server has version 28 with all clocks before 2 and comes no further; "));
        let behind = text(Awaited::Workers, seen, Bound::NONE);
        assert!(
            behind.contains("4s: needed version 28 with all clocks before 2, the server has version 0 "),
            "{behind}"
        );
        let reader = text(Awaited::Version, Bound::version(Version::new(99)), seen);
        assert!(
            reader.contains("4s: needed version 99, the newest is 28; it may not be published yet, "),
            "{reader}"
        );
        let file = text(Awaited::File, Bound::NONE, Bound::NONE);
        assert!(file.contains("4s: version 0 is not written yet; the disk may be slow, "), "{file}");
    }

    #[test]
    fn a_version_that_was_there_is_not_said_to_be_unpublished() {
        for needed in [Bound::NONE, Bound::version(Version::new(1)), Bound::version(Version::new(18))] {
            let text = deadline(Awaited::Version, needed, Bound::version(Version::new(18))).to_string();
            assert!(
                text.ends_with(
                    ", the newest is 18, and it was not read in time; its owner may not answer, the link may be slow, \
                     or the timeout too short"
                ),
                "{text}"
            );
        }
        let clock = Bound::clock(Clock::new(3));
        let worker = deadline(Awaited::Workers, clock, clock).to_string();
        assert!(worker.contains("with all clocks before 3, and it was not read in time; "), "{worker}");
    }

    #[test]
    fn an_owner_that_has_answered_before_is_not_said_to_have_no_thread() {
        let text = deadline(Awaited::Answer, Bound::NONE, Bound::version(Version::new(3))).to_string();
        assert!(
            text.ends_with(
                "but does not answer; its owner may not answer, the link may be slow, or the timeout too short"
            ),
            "{text}"
        );
    }

    #[test]
    fn servers_at_their_first_version_are_not_said_to_be_silent() {
        let first = Bound::version(Version::new(1));
        for needed in [Bound::NONE, first] {
            let text = deadline(Awaited::Workers, needed, Bound::NONE).to_string();
            assert!(text.contains("the server has version 0 with all clocks before 0"), "{text}");
            assert!(text.ends_with("; a worker or the server may be slow or gone, or the timeout too short"));
        }
    }
}
