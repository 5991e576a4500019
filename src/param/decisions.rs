//! Decisions of the server that decides for all shards, and how the servers of the other shards read them.
//!
//! The server of shard 0 appends entries to a ring in its own memory and then announces how many there are. A follower
//! reads the count, then the entries, and says in its inbox how many it has taken. The owner overwrites no entry that a
//! follower still has to take.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::layout::{LINE, inbox};
use super::own_page::{Eviction, own_words, read_line};
use super::{Epoch, Latest, Welcome};
use crate::clock::{Clock, Version};
use crate::mem::{LocalSlice, MemoryRegion, OutOfBounds, RemoteSlice, Streaming, fence};
use crate::transport::{
    CompletionError, Disconnected, Endpoint, Flags, Inline, Operation, PostError, WorkCompletion, WorkRequest,
};

/// Entries in the ring. The model checker watches each word, and so has two.
const ENTRIES: u64 = if cfg!(loom) { 2 } else { 1024 };

const ENTRY_WORDS: usize = 4;
const ENTRY: usize = ENTRY_WORDS * 8;

/// Bytes of the region: the line with the count, and the ring.
pub const DECISIONS_BYTES: usize = LINE + ENTRIES as usize * ENTRY;

/// Entries that are read at a time.
const BATCH: u64 = 32;

/// One decision. A worker is named by the random number of its session, and its gradients are counted from 0 in each
/// session, so that shards at which a worker began at different clocks agree on the names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// The decider has let a worker in.
    Joined {
        /// Its session.
        session: u64,
    },
    /// No gradient of a worker is decided on from here on.
    Left {
        /// Its session.
        session: u64,
    },
    /// The next version holds this gradient.
    Share {
        /// The session of its worker.
        session: u64,
        /// Its number in the session.
        ordinal: u64,
        /// Its weight.
        weight: f32,
    },
    /// The shares since the last version make this one.
    Apply {
        /// The version.
        version: Version,
        /// The step size.
        learning_rate: f32,
    },
    /// The gradient is consumed without being folded in.
    Drop {
        /// The session of its worker.
        session: u64,
        /// Its number in the session.
        ordinal: u64,
    },
    /// All gradients of earlier clocks are in the newest version, or were dropped.
    Clock {
        /// The first clock that is not.
        clock: Clock,
    },
}

impl Decision {
    pub(super) fn to_words(self) -> [u64; ENTRY_WORDS] {
        match self {
            Decision::Joined { session } => [1, session, 0, 0],
            Decision::Left { session } => [2, session, 0, 0],
            Decision::Share { session, ordinal, weight } => [3, session, ordinal, weight.to_bits().into()],
            Decision::Apply { version, learning_rate } => {
                [4, version.get(), 0, learning_rate.to_bits().into()]
            }
            Decision::Drop { session, ordinal } => [5, session, ordinal, 0],
            Decision::Clock { clock } => [6, clock.get(), 0, 0],
        }
    }

    /// `None` if no decider has written it.
    pub(super) fn from_words([kind, name, ordinal, bits]: [u64; ENTRY_WORDS]) -> Option<Decision> {
        let number = f32::from_bits(bits as u32);
        Some(match kind {
            1 => Decision::Joined { session: name },
            2 => Decision::Left { session: name },
            3 => Decision::Share { session: name, ordinal, weight: number },
            4 if name <= Latest::VERSION_MAX.get() => {
                Decision::Apply { version: Version::new(name), learning_rate: number }
            }
            5 => Decision::Drop { session: name, ordinal },
            6 if name <= super::WorkerProgress::CLOCK_MAX.get() => {
                Decision::Clock { clock: Clock::new(name) }
            }
            _ => return None,
        })
    }
}

/// The ring in the hands of the decider, the only writer of every word of it.
#[derive(Debug)]
pub struct Decisions {
    region: MemoryRegion,
    end: u64,
}

impl Decisions {
    /// Makes a ring over zeroed memory of [`DECISIONS_BYTES`].
    ///
    /// # Panics
    /// If the region is shorter; it is the owner's own.
    pub fn new(region: MemoryRegion) -> Decisions {
        assert!(region.len() >= DECISIONS_BYTES, "region too short");
        Decisions { region, end: 0 }
    }

    /// The memory that followers are granted.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// The number of entries that were ever appended.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Appends an entry, unless that overwrites an entry that is still to be taken: all before `taken` are taken.
    pub fn append(&mut self, decision: Decision, taken: u64) -> bool {
        if self.end.saturating_sub(taken) >= ENTRIES {
            return false;
        }
        let at = LINE + (self.end % ENTRIES) as usize * ENTRY;
        // A follower that was evicted may still read the entry that is overwritten here. It looks at its line after
        // that. If it has found any word of the new entry, it finds in its line that it is no member any more.
        fence(Release);
        let memory = self.region.as_volatile();
        for (index, word) in decision.to_words().into_iter().enumerate() {
            memory.store(at + 8 * index, word, Relaxed);
        }
        self.end += 1;
        true
    }

    /// Announces all entries. They are whole before they are counted.
    pub fn announce(&self) {
        self.region.as_volatile().store(0, self.end, ordering!("decided_release", Release));
    }
}

/// The reason why decisions can no longer be read.
#[derive(Clone, Debug, PartialEq)]
pub enum FollowError {
    /// The connection has ended.
    Disconnected(Disconnected),
    /// A request failed.
    Completion(CompletionError),
    /// A request could not be posted.
    Post(PostError),
    /// The decider has let this follower go.
    Evicted(Eviction),
    /// The decider has written a word that no decider writes.
    Impossible,
    /// The decider's grants do not cover the layout.
    Grants(OutOfBounds),
}

impl From<OutOfBounds> for FollowError {
    fn from(error: OutOfBounds) -> FollowError {
        FollowError::Grants(error)
    }
}

#[derive(Clone, Copy, Debug)]
enum ReadStep {
    /// Ask for the count next.
    Idle,
    Counting,
    /// So many entries are wanted.
    Wanted(u64),
    Reading(u64),
}

/// Reads a decider's decisions in order: a state machine, driven as [`Pull`](super::Pull) is.
#[derive(Debug)]
pub struct DecisionReader {
    decisions: RemoteSlice,
    line: RemoteSlice,
    page: RemoteSlice,
    generation: u64,
    epoch: Epoch,
    scratch: LocalSlice,
    /// Entries before this one were read.
    next: u64,
    /// The decider was told that entries before this one were taken.
    said: u64,
    state: ReadStep,
    outstanding: u32,
    failed: Option<CompletionError>,
    /// Looks that were begun, and the latest look that found nothing new.
    looks: u64,
    settled: u64,
}

impl DecisionReader {
    /// Bytes of local memory that it needs for itself.
    pub const SCRATCH_BYTES: usize = 2 * LINE + BATCH as usize * ENTRY;

    /// Makes a follower from a decider's answer and the grants that came with it. `None` if the answer was not to a
    /// follower.
    pub fn new(
        welcome: &Welcome,
        grants: &[RemoteSlice],
        scratch: LocalSlice,
    ) -> Result<Option<DecisionReader>, OutOfBounds> {
        let ([.., decisions], Some(from)) = (grants, welcome.decided) else { return Ok(None) };
        let words = own_words(welcome, grants)?;
        Ok(Some(DecisionReader {
            decisions: *decisions,
            line: words.line,
            page: words.page,
            generation: welcome.generation,
            epoch: welcome.epoch,
            scratch,
            next: from.next,
            said: from.next,
            state: ReadStep::Idle,
            outstanding: 0,
            failed: None,
            looks: 0,
            settled: 0,
        }))
    }

    /// Returns the follower's position: the incarnation of the decider, and the entry that comes next.
    pub fn position(&self) -> (Epoch, u64) {
        (self.epoch, self.next)
    }

    /// The number of the next look at the count.
    pub fn next_look(&self) -> u64 {
        self.looks + 1
    }

    /// True if this look, or a later one, found that all entries had been read.
    pub fn has_settled(&self, look: u64) -> bool {
        self.settled >= look
    }

    /// Takes a completion of one of its own requests.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if let Err(error) = completion.result {
            self.failed = Some(error);
        }
    }

    /// Makes progress without waiting, and hands the decisions that it has read to `take`. True if it made some.
    pub fn advance(
        &mut self,
        endpoint: &mut impl Endpoint,
        mut take: impl FnMut(Decision),
    ) -> Result<bool, FollowError> {
        if let Some(error) = self.failed.take() {
            return Err(FollowError::Completion(error));
        }
        if self.outstanding > 0 {
            return Ok(false);
        }
        match self.state {
            ReadStep::Idle => {
                if self.said < self.next {
                    return self.say_taken(endpoint);
                }
                let count = self.read(0, self.decisions.slice(0, 8)?)?;
                if self
                    .post(endpoint, &[WorkRequest::unsignalled(FOLLOW_TAG, count), self.look_at_line()?])?
                {
                    self.looks += 1;
                    self.state = ReadStep::Counting;
                }
                // Looking is no progress; a change is.
                Ok(false)
            }
            ReadStep::Counting => {
                self.check_line()?;
                let end = self.scratch.as_volatile().load_u64(0);
                let new = end.saturating_sub(self.next);
                if new > ENTRIES {
                    return Err(FollowError::Impossible);
                }
                self.state = if new > 0 { ReadStep::Wanted(new) } else { ReadStep::Idle };
                if new == 0 {
                    self.settled = self.looks;
                }
                Ok(new > 0)
            }
            ReadStep::Wanted(new) => {
                // Up to the end of the ring at most: entries behind it come with the next look.
                let first = self.next % ENTRIES;
                let count = new.min(BATCH).min(ENTRIES - first);
                let at = LINE as u64 + first * ENTRY as u64;
                let entries = self.read(2 * LINE, self.decisions.slice(at, count * ENTRY as u64)?)?;
                if !self
                    .post(endpoint, &[WorkRequest::unsignalled(FOLLOW_TAG, entries), self.look_at_line()?])?
                {
                    return Ok(false);
                }
                self.state = ReadStep::Reading(count);
                Ok(true)
            }
            ReadStep::Reading(count) => {
                self.check_line()?;
                let memory = self.scratch.as_volatile();
                for index in 0..count as usize {
                    let at = 2 * LINE + index * ENTRY;
                    let words = std::array::from_fn(|word| memory.load_u64(at + 8 * word));
                    take(Decision::from_words(words).ok_or(FollowError::Impossible)?);
                }
                self.next += count;
                self.state = ReadStep::Idle;
                Ok(true)
            }
        }
    }

    /// Reads the own line after the earlier reads: while the line belongs to this follower, no entry that it had to
    /// take was overwritten, and no other incarnation of the decider has answered.
    fn look_at_line(&self) -> Result<WorkRequest, OutOfBounds> {
        let mut line = WorkRequest::signalled(FOLLOW_TAG, self.read(LINE, self.line)?);
        line.flags |= Flags::FENCE;
        Ok(line)
    }

    fn check_line(&self) -> Result<(), FollowError> {
        let line = read_line(&self.scratch.as_volatile().subslice(LINE, LINE), self.generation);
        line.evicted.map_or(Ok(()), |why| Err(FollowError::Evicted(why)))
    }

    fn say_taken(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, FollowError> {
        let remote = self.page.slice(inbox::FOLLOWED as u64, 8)?;
        let operation = Operation::WriteInline { data: Inline::word(self.next), remote };
        let mut request = WorkRequest::signalled(FOLLOW_TAG, operation);
        request.flags |= Flags::NOTIFY;
        let posted = self.post(endpoint, &[request])?;
        if posted {
            self.said = self.next;
        }
        Ok(posted)
    }

    fn read(&self, at: usize, remote: RemoteSlice) -> Result<Operation, OutOfBounds> {
        let local = self.scratch.slice(at, remote.len as usize)?;
        Ok(Operation::Read { local, remote, streaming: Streaming::Never })
    }

    fn post(&mut self, endpoint: &mut impl Endpoint, requests: &[WorkRequest]) -> Result<bool, FollowError> {
        match endpoint.post(requests) {
            Ok(()) => {
                self.outstanding += 1;
                Ok(true)
            }
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(FollowError::Disconnected(gone)),
            Err(error) => Err(FollowError::Post(error)),
        }
    }
}

/// Ids of a follower's requests have this bit.
const FOLLOW_TAG: u64 = 1 << 58;

/// The position that a follower tells in its first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Followed {
    /// The decider's incarnation that it followed before.
    pub epoch: Epoch,
    /// The entry of that incarnation that it wants next.
    pub next: u64,
}

/// The position at which a follower begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct DecidedFrom {
    /// The entry that it reads first.
    pub next: u64,
    /// The version that all entries before that have decided.
    pub version: Version,
    /// The follower goes on where it was: it has missed nothing.
    pub goes_on: bool,
}
