//! Pull: read a frame and prove that it is one version, whole.
//!
//! READ the status line, READ the frame's header, wait, READ the payload, wait, READ the header again: accept if it
//! is unchanged, complete and of this epoch, otherwise start over and count the retry. Each step waits for the
//! completion of the one before, and nothing is assumed about the order of bytes inside one READ.

mod choose;
mod copy;
mod follow;
mod included;
mod mapped;
mod resume;
mod source;
mod steps;

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

pub(super) use self::copy::MAX_READ_BYTES;
use self::copy::{BatchInFlight, MOST_IN_FLIGHT};
use self::included::Included;
use self::mapped::Mapped;
pub(crate) use self::resume::PartialCopy;
pub use self::source::{Consistency, FrameSource, PullError, PullOptions, Pulled};

use super::layout::{ControlLayout, FrameHeader, FrameLabel, LINE, Latest};
use crate::clock::Version;
use crate::mem::{LocalSlice, MemoryRegion, OutOfBounds, RemoteSlice, Streaming};
use crate::scheme::Bound;
use crate::table::Piece;
use crate::transport::{
    CompletionError, Endpoint, Flags, Operation, PayloadSlice, WorkCompletion, WorkRequest, WorkRequestId,
};

/// The next step of a pull. Its further data stand in fields of [`Pull`], not in here: a state that carries a
/// header is stored and loaded in pieces that do not match, and behind a long copy such a load waits for all of the
/// copy's stores (a profile showed it; without it a pull of 64 KiB takes about 20 ns less).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PullStep {
    Idle,
    /// Read the status line next, and the header of the frame that was the latest before.
    Begin,
    Status,
    /// The latest is another frame than before: read the header of that one.
    Header,
    /// The version that is asked for is older than the latest: look for it in each frame.
    Search,
    /// A frame is pinned: read its header next.
    PinBegin,
    PinHeader,
    Payload,
    Verify,
    /// Read the header of the frame that is being written next.
    FollowBegin,
    FollowHeader,
    Done,
}

#[derive(Clone, Copy, Debug, Default)]
struct Follow {
    frame: u8,
    version: Version,
    /// Odd sequence of the attempt that is followed, once it is known.
    sequence: Option<u64>,
    /// Bytes of it that are known to have landed, and bytes that were requested.
    known: u64,
    asked: u64,
    /// The attempt was seen to have ended whole.
    ended: bool,
    /// The looks that are in flight; one has come since the last was dealt with; another one is to go.
    looks: usize,
    has_come: bool,
    is_look_due: bool,
}

/// Reads frames of one source through an endpoint. A state machine: [`start`](Self::start), then
/// [`advance`](Self::advance) and [`complete`](Self::complete) until [`take`](Self::take) returns something.
#[derive(Debug)]
pub struct Pull {
    source: FrameSource,
    /// Five lines: status, header before, header after, included clock, label.
    scratch: LocalSlice,
    /// The looks at each frame, made once: status and header before, header after and status.
    looks: Vec<[WorkRequest; 4]>,
    included: Included,
    /// The looks at the label of each frame, made once.
    labels: Vec<WorkRequest>,
    /// The mapped parts of the source, if pulls load from them.
    mapped: Option<Mapped>,
    /// The look between the two looks at the header is still to be posted for the current copy.
    is_look_due: bool,
    /// The word in which this peer says which frame is to stay as it is, and whether the caller brings the copies that
    /// [`wanted`](Self::wanted) names in another way.
    pin: Option<RemoteSlice>,
    is_rescued: bool,
    /// The frame that it names, and how often that was found while it was being written.
    pinned: Option<(u8, u8)>,
    /// The request that lets it go may still wait behind others.
    is_unpinning: bool,
    /// The frame that was the latest when last seen.
    guess: u8,
    into: Option<PayloadSlice>,
    /// The pieces that are copied, if it is not the whole payload, and the bytes of that copy.
    pieces: Option<(Arc<[Piece]>, u64)>,
    options: PullOptions,
    bound: Bound,
    state: PullStep,
    /// The version and the frame that the status line named.
    latest: Latest,
    /// The header that the payload is read under, which frame that is, and how much has been read.
    before: FrameHeader,
    frame: u8,
    copied: u64,
    /// The begin of this copy: behind the part that an earlier one has left.
    begun_at: u64,
    /// The batches of it that are in flight, in order, and the bytes that arrived with earlier ones.
    batches: SmallVec<[BatchInFlight; MOST_IN_FLIGHT]>,
    arrived: u64,
    /// The bytes that are there of it, from its begin on.
    landed: u64,
    /// The begin of this or of an earlier copy that is proved, and whether this one has gone on from there.
    partial: Option<PartialCopy>,
    is_resumed: bool,
    /// Most bytes that are read at a time of a copy that may be resumed or that tells how far it is.
    batch: u64,
    /// A batch of the copy has come, and the bytes that the look which came with the last one proves.
    has_batch: bool,
    look_proves: Option<u64>,
    /// The attempt that is followed.
    follow: Follow,
    /// The frame in which an older version is looked for.
    searched: u8,
    /// A frame of that number was marked as being written, and how often all were searched again for it.
    marked: (bool, u8),
    /// The result.
    pulled: Pulled,
    outstanding: u32,
    failed: Option<CompletionError>,
    /// A header was seen that cannot be true: the next one decides.
    is_suspect: bool,
    retries: u64,
    /// The owner has written a frame while it was copied, so that all of a long copy was for nothing.
    has_lost_copy: bool,
    /// It has written the frame that was being copied, and nothing else has been seen of it since.
    is_overtaken: bool,
    /// Parts of a copy that may be in flight at once, by how often the owner publishes.
    calm_parts: usize,
    gains: u64,
    seen: Option<Bound>,
    /// The newest version handed out. A version that was followed to its end is held before it is announced as the
    /// latest: without this field the next pull could find its predecessor.
    floor: Version,
}

/// Ids of a pull's requests have this bit, so that the owner of the endpoint knows where completions belong.
pub(crate) const PULL_TAG: u64 = 1 << 63;

/// Of the looks at a frame: how a pull begins, the header alone, and how it ends.
const BEGIN: Range<usize> = 0..2;
const HEADER: Range<usize> = 1..2;
const VERIFY: Range<usize> = 2..4;

const STATUS_LINE: usize = 0;
const BEFORE_LINE: usize = LINE;
const AFTER_LINE: usize = 2 * LINE;
const INCLUDED_LINE: usize = 3 * LINE;
const LABEL_LINE: usize = 4 * LINE;
/// A pull that was disturbed so often pins the frame before it copies it: an owner that publishes as fast as memory
/// lets it laps every copy of a large frame, and a reader would get none before its deadline.
pub(crate) const RETRIES_BEFORE_PIN: u64 = 4;

impl Pull {
    /// Bytes of local memory that a pull needs for itself.
    pub const SCRATCH_BYTES: usize = 5 * LINE;

    /// A pull from `source`, with [`SCRATCH_BYTES`](Self::SCRATCH_BYTES) of registered memory of its own.
    pub fn new(source: FrameSource, scratch: &MemoryRegion) -> Result<Pull, OutOfBounds> {
        let scratch = scratch.slice(0, Self::SCRATCH_BYTES)?;
        let look = |line: usize, remote: RemoteSlice, flags: Flags| -> Result<WorkRequest, OutOfBounds> {
            let local = scratch.slice(line, LINE)?;
            let operation = Operation::Read { local, remote, streaming: Streaming::Never };
            Ok(WorkRequest { id: WorkRequestId(PULL_TAG), operation, flags })
        };
        // Requests complete in order: the last of a batch speaks for all.
        let looks = (0..source.geometry.frames).map(|frame| {
            Ok([
                look(STATUS_LINE, source.status()?, Flags::empty())?,
                look(BEFORE_LINE, source.header(frame)?, Flags::SIGNALLED)?,
                look(AFTER_LINE, source.header(frame)?, Flags::empty())?,
                look(STATUS_LINE, source.status()?, Flags::SIGNALLED)?,
            ])
        });
        let looks = looks.collect::<Result<_, OutOfBounds>>()?;
        let labels = (0..source.geometry.frames)
            .map(|frame| look(LABEL_LINE, source.label(frame)?, Flags::SIGNALLED))
            .collect::<Result<_, OutOfBounds>>()?;
        Ok(Pull {
            source,
            looks,
            included: Included::NotAsked,
            labels,
            mapped: None,
            is_look_due: false,
            pin: None,
            is_rescued: false,
            pinned: None,
            is_unpinning: false,
            guess: 0,
            scratch,
            into: None,
            pieces: None,
            options: PullOptions::default(),
            bound: Bound::NONE,
            state: PullStep::Idle,
            latest: Latest::NONE,
            before: FrameHeader::default(),
            frame: 0,
            copied: 0,
            begun_at: 0,
            batches: SmallVec::new(),
            arrived: 0,
            landed: 0,
            partial: None,
            is_resumed: false,
            batch: u64::MAX,
            has_batch: false,
            look_proves: None,
            follow: Follow::default(),
            searched: 0,
            marked: (false, 0),
            pulled: Pulled::default(),
            outstanding: 0,
            failed: None,
            is_suspect: false,
            retries: 0,
            has_lost_copy: false,
            is_overtaken: false,
            calm_parts: 0,
            gains: 0,
            seen: None,
            floor: Version::new(0),
        })
    }

    /// Makes a control page that an owner will push into say that nothing was pushed yet.
    pub fn clear(control: &MemoryRegion) {
        control.as_volatile().store_u64(ControlLayout::LATEST, Latest::NONE.to_word());
    }

    /// Returns the source that it reads.
    pub fn source(&self) -> &FrameSource {
        &self.source
    }

    /// Begins to pull the newest version that satisfies `bound` into `into`. Whole versions never go back: it is no
    /// older than any that this pull handed out before.
    ///
    /// # Errors
    /// The destination has another length, a pull is under way, or a checksum is to be checked on a GPU.
    pub fn start(
        &mut self,
        bound: Bound,
        into: impl Into<PayloadSlice>,
        options: PullOptions,
    ) -> Result<(), PullError> {
        let into = into.into();
        if !matches!(self.state, PullStep::Idle) || self.outstanding > 0 {
            return Err(PullError::Busy);
        }
        let expected = self.copy_bytes();
        if into.len() as u64 != expected {
            return Err(PullError::Destination { bytes: into.len(), shard_bytes: expected });
        }
        if options.checksum && into.host().is_none() {
            return Err(PullError::ChecksumOnGpu);
        }
        self.into = Some(into);
        self.partial = None;
        self.options = options;
        self.amend(bound);
        (self.is_suspect, self.marked) = (false, (false, 0));
        (self.retries, self.has_lost_copy, self.is_overtaken) = (0, false, false);
        self.state = PullStep::Begin;
        Ok(())
    }

    /// Has pulls from now on copy these pieces of the payload, and not all of it. They are inside of it.
    pub fn select(&mut self, pieces: Option<(Arc<[Piece]>, u64)>) {
        self.pieces = pieces;
    }

    /// Bytes that a pull copies.
    pub fn copy_bytes(&self) -> u64 {
        match &self.pieces {
            None => self.source.geometry.payload_bytes,
            Some((_, bytes)) => *bytes,
        }
    }

    /// Changes the bound of a running pull; a copy that has arrived already is kept, and was checked against the
    /// earlier bound.
    pub fn amend(&mut self, bound: Bound) {
        self.bound = bound;
        if let Some(version) = self.options.exactly {
            // The caller has named it, though it may be older than a version that this pull handed out.
            self.bound.version = version;
        } else if self.options.consistency == Consistency::Whole && !mutant!("monotone") {
            self.bound = self.no_older(bound);
        }
    }

    /// The bound, raised so that no version satisfies it that is older than the last one handed out.
    pub(crate) fn no_older(&self, bound: Bound) -> Bound {
        Bound { version: bound.version.max(self.floor), ..bound }
    }

    /// True between `start` and the result.
    pub fn is_active(&self) -> bool {
        !matches!(self.state, PullStep::Idle)
    }

    /// Gives up waiting. Reads in flight own the destination until they have completed, and no pull begins before that.
    pub fn cancel(&mut self) {
        if !matches!(self.state, PullStep::Idle | PullStep::Done) {
            // It may have taken longer than its caller has time: more of the next one is to be proved before its end.
            self.calm_parts = 0;
        }
        self.state = PullStep::Idle;
        self.release();
    }

    /// True while requests of this pull, or of an abandoned one, are in flight.
    pub fn is_in_flight(&self) -> bool {
        self.outstanding > 0
    }

    /// Lets go of the destination once nothing of it is in flight.
    fn release(&mut self) {
        if self.outstanding == 0 && matches!(self.state, PullStep::Idle) {
            self.into = None;
        }
    }

    /// Returns the number of times that this pull was begun again so far.
    pub fn retries(&self) -> u64 {
        self.retries
    }

    /// True while the word may say that a frame is pinned, also if the pull has ended.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned.is_some() || self.is_unpinning
    }

    /// True while a pull is under way that its owner has overtaken, and that has not found since that it has to wait.
    pub(crate) fn is_lapped(&self) -> bool {
        self.is_active() && self.is_overtaken
    }

    /// Returns the destination and the bound of a pull whose whole copy the caller may bring in another way, if no
    /// request is in flight. It is for a pull that a fast writer laps again and again. [`finish`](Self::finish)
    /// ends the pull then.
    pub(crate) fn wanted(&self) -> Option<(&LocalSlice, Bound)> {
        // At its begin alone: a copy that is under way would be proved by a header that is not of these bytes.
        let idle = self.state == PullStep::Begin && self.outstanding == 0;
        Some((self.plain_copy().filter(|_| idle)?, self.bound))
    }

    /// The destination, if the copy is only to be whole, and in host memory.
    fn plain_copy(&self) -> Option<&LocalSlice> {
        let PullOptions { consistency, checksum, exactly, .. } = self.options;
        let plain = consistency == Consistency::Whole && !checksum && exactly.is_none();
        self.into.as_ref().filter(|_| plain)?.host()
    }

    /// Ends the pull with a version that was copied whole in another way.
    pub(crate) fn finish(&mut self, pulled: Pulled) {
        self.gains += 1;
        self.floor = self.floor.max(pulled.version);
        self.pulled = Pulled { retries: self.retries, ..pulled };
        self.partial = None;
        self.state = PullStep::Done;
    }

    /// Hands out nothing older than `version` from now on, which was read whole in another way.
    pub(crate) fn raise_floor(&mut self, version: Version) {
        self.floor = self.floor.max(version);
    }

    /// The newest version and smallest clock seen so far, whether they satisfied the bound or not; `None` before any
    /// look at them.
    pub fn seen(&self) -> Option<Bound> {
        self.seen
    }

    /// Grows whenever a pull gets nearer to its end. Looking once more for a version that is not there yet is no gain,
    /// and neither is a copy that has to be begun again because the owner has lapped it: the caller stands back before
    /// the next one.
    pub fn gains(&self) -> u64 {
        self.gains
    }

    /// The label of the version that was pulled last, if that pull was asked for it.
    pub fn label(&self) -> FrameLabel {
        let line = self.scratch.as_volatile();
        FrameLabel::from_words(std::array::from_fn(|index| line.load_u64(LABEL_LINE + index * 8)))
    }

    /// Takes the label of a version that was copied whole in another way, for [`finish`](Self::finish).
    pub(crate) fn set_label(&self, label: FrameLabel) {
        let line = self.scratch.as_volatile();
        for (index, word) in label.to_words().into_iter().enumerate() {
            line.store_u64(LABEL_LINE + index * 8, word);
        }
    }

    /// The result, once there is one.
    pub fn take(&mut self) -> Option<Pulled> {
        if self.state != PullStep::Done {
            return None;
        }
        self.state = PullStep::Idle;
        self.into = None;
        Some(self.pulled)
    }

    /// Takes a completion of one of its own requests.
    pub fn complete(&mut self, completion: WorkCompletion) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.is_unpinning &= self.outstanding > 0;
        self.take_batch(completion.result.is_ok());
        if let Err(error) = completion.result {
            self.failed = Some(error.after(self.failed));
        }
        self.release();
    }

    /// Goes as far as it can without waiting. True if it got anywhere.
    pub fn advance(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        if matches!(self.state, PullStep::Idle | PullStep::Done) {
            self.unpin(endpoint)?;
        }
        self.landed = match self.state {
            PullStep::Payload | PullStep::Verify | PullStep::FollowBegin | PullStep::FollowHeader => {
                self.arrived
            }
            _ => 0,
        };
        if self.outstanding > 0 && !self.may_read_ahead() {
            return Ok(false);
        }
        if let Some(error) = self.failed.take() {
            self.cancel();
            return Err(error.into());
        }
        match self.step(endpoint) {
            Ok(progress) => Ok(progress),
            Err(error) => {
                self.cancel();
                Err(error)
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
