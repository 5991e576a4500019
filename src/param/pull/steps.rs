//! The steps of a pull over an endpoint, each after the completions of the one before.

use std::ops::Range;

use super::resume::LEAST_PART;
use super::source::{Consistency, PullError, Pulled};
use super::{
    AFTER_LINE, BEFORE_LINE, BEGIN, Follow, HEADER, Pull, PullStep, RETRIES_BEFORE_PIN, STATUS_LINE,
};
use crate::clock::Clock;
use crate::param::frames;
use crate::param::layout::{ControlLayout, FrameHeader, Latest};
use crate::scheme::Bound;
use crate::transport::{Endpoint, PayloadSlice, PostError};

impl Pull {
    pub(super) fn step(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        match self.state {
            PullStep::Idle | PullStep::Done => Ok(false),
            PullStep::Begin => match self.copy_mapped() {
                true => Ok(true),
                false => self.look(endpoint, self.guess, BEGIN, PullStep::Status),
            },
            PullStep::Status => self.on_status(endpoint),
            PullStep::Header => self.on_header(endpoint),
            PullStep::Search => self.on_search(endpoint),
            PullStep::PinBegin => self.look_at_pinned(endpoint),
            PullStep::PinHeader => self.on_pinned(endpoint),
            PullStep::Payload => self.on_payload(endpoint),
            PullStep::Verify => self.on_verify(),
            PullStep::FollowBegin => self.look_at_followed(endpoint),
            PullStep::FollowHeader => self.on_follow(endpoint),
        }
    }

    fn on_status(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let (latest, smallest_clock, writing) = self.status();
        self.latest = latest;
        self.seen = Some(Bound { version: latest.version, smallest_clock });
        if latest == Latest::NONE {
            return Ok(self.look_again(PullStep::Begin));
        }
        if latest.frame >= self.source.geometry.frames {
            let header = self.header(BEFORE_LINE);
            return self.check_header(&FrameHeader { bytes: 0, ..header }).map(|_| self.retry());
        }
        if self.options.exactly.is_some_and(|version| version < latest.version) {
            return self.search(endpoint, 0);
        }
        if self.bound.is_met_by(latest.version, smallest_clock) {
            let is_rescued = self.is_rescued && self.plain_copy().is_some();
            let pins = self.retries >= RETRIES_BEFORE_PIN || self.has_lost_copy;
            if pins && self.pin.is_some() && !is_rescued {
                return self.pin(endpoint, latest.frame);
            }
            if std::mem::replace(&mut self.guess, latest.frame) == latest.frame {
                // The header was read along with the status, in any order: it must be of the version that the status
                // names, and whole.
                return self.on_header(endpoint);
            }
            return self.look(endpoint, latest.frame, HEADER, PullStep::Header);
        }
        // A version that is waited for may come in any frame.
        self.unpin(endpoint)?;
        if self.options.follow
            && self.pieces.is_none()
            && self.options.exactly.is_none_or(|version| version == writing.version)
            && writing.version > latest.version
            && writing.version >= self.bound.version
            && writing.frame < self.source.geometry.frames
        {
            // The smallest clock of the frame is known only at its end: it is followed in the hope that it satisfies
            // the bound, by a reader that would do nothing but wait otherwise.
            self.follow = Follow { frame: writing.frame, version: writing.version, ..Follow::default() };
            self.arrived = 0;
            self.state = PullStep::FollowBegin;
            return Ok(true);
        }
        Ok(self.look_again(PullStep::Begin))
    }

    /// Nothing new: look again later. No progress.
    pub(super) fn look_again(&mut self, state: PullStep) -> bool {
        (self.state, self.is_overtaken) = (state, false);
        false
    }

    fn on_header(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let latest = self.latest;
        let before = self.header(BEFORE_LINE);
        if self.options.consistency == Consistency::Whole {
            if !before.is_whole() || before.version != latest.version {
                return Ok(self.retry());
            }
            if !self.check_header(&before)? {
                return Ok(self.retry());
            }
            if !self.bound.is_met_by(before.version, before.smallest_clock) {
                self.state = PullStep::Begin;
                return Ok(false);
            }
        }
        self.begin_payload(before, latest.frame, 0);
        self.on_payload(endpoint)
    }

    fn on_verify(&mut self) -> Result<bool, PullError> {
        let before = self.before;
        let after = self.header(AFTER_LINE);
        let unchanged = before.same_payload(&after) || mutant!("second_header");
        let is_one = unchanged && self.is_of_partial();
        if !is_one && self.options.consistency == Consistency::Whole {
            return Ok(self.begin_again());
        }
        // Of the later header only the sequence counts: its other words may belong to the frame's next version.
        self.accept(before)
    }

    fn accept(&mut self, header: FrameHeader) -> Result<bool, PullError> {
        // Bytes of a frame may satisfy the bound no longer being the latest; its own header decides.
        let whole = self.options.consistency == Consistency::Whole;
        if whole && !self.is_wanted(&header) {
            self.state = PullStep::Begin;
            return Ok(false);
        }
        if self.options.checksum
            && self.pieces.is_none()
            && header.checksum != 0
            && let Some(into) = self.into.as_ref().and_then(PayloadSlice::host)
            && frames::frame_checksum(&header, into) != header.checksum
        {
            // Which part of it is damaged is not known: none is gone on with.
            self.partial = None;
            return Err(PullError::Checksum { version: header.version });
        }
        self.gains += 1;
        if whole {
            self.floor = self.floor.max(header.version);
        }
        let (latest, ..) = self.status();
        self.note_calm(header.version.behind(latest.version), true);
        let (version, smallest_clock) = (latest.version.max(header.version), header.smallest_clock);
        self.seen = Some(Bound { version, smallest_clock });
        self.pulled = Pulled {
            version: header.version,
            epoch: header.epoch,
            smallest_clock: header.smallest_clock,
            included: self.included_by(&header),
            behind: header.version.behind(latest.version),
            retries: self.retries,
        };
        // It is no part any more, and its memory may be another's soon.
        self.partial = None;
        self.state = PullStep::Done;
        Ok(true)
    }

    /// Whether a whole version satisfies the bound, and is the exact version of the request, if it has one.
    pub(super) fn is_wanted(&self, header: &FrameHeader) -> bool {
        let is_another = self.options.exactly.is_some_and(|version| version != header.version);
        !is_another && self.bound.is_met_by(header.version, header.smallest_clock)
    }

    pub(super) fn retry(&mut self) -> bool {
        self.note_overtaken();
        self.state = if self.pinned.is_some() { PullStep::PinBegin } else { PullStep::Begin };
        true
    }

    pub(super) fn note_overtaken(&mut self) {
        (self.retries, self.is_overtaken) = (self.retries + 1, true);
    }

    /// Begins again with a copy of which no part is good.
    pub(super) fn begin_again(&mut self) -> bool {
        self.note_calm(1, true);
        self.has_lost_copy |= self.copy_bytes() >= LEAST_PART;
        self.retry()
    }

    /// Checks the words that are the same for all versions. False if another look is to decide: while an owner is
    /// replaced by its next incarnation, the words of one look may be of both.
    pub(super) fn check_header(&mut self, header: &FrameHeader) -> Result<bool, PullError> {
        if header.epoch != self.source.epoch && !mutant!("epoch") {
            return Err(PullError::Epoch { expected: self.source.epoch, found: header.epoch });
        }
        let expected = self.source.geometry.payload_bytes;
        if header.bytes == expected {
            return Ok(true);
        }
        match std::mem::replace(&mut self.is_suspect, true) {
            false => Ok(false),
            true => Err(PullError::Damaged { expected, found: header.bytes }),
        }
    }

    pub(super) fn status(&self) -> (Latest, Clock, Latest) {
        let line = self.scratch.as_volatile();
        let word = |offset: usize| line.load_u64(STATUS_LINE + offset - ControlLayout::STATUS);
        (
            Latest::from_word(word(ControlLayout::LATEST)),
            Clock::new(word(ControlLayout::SMALLEST_CLOCK)),
            Latest::from_word(word(ControlLayout::WRITING)),
        )
    }

    pub(super) fn header(&self, line: usize) -> FrameHeader {
        let scratch = self.scratch.as_volatile();
        FrameHeader::from_words(std::array::from_fn(|index| scratch.load_u64(line + index * 8)))
    }

    /// Posts some of the looks at a frame.
    pub(super) fn look(
        &mut self,
        endpoint: &mut impl Endpoint,
        frame: u8,
        which: Range<usize>,
        next: PullStep,
    ) -> Result<bool, PullError> {
        let looks = self.looks.get(usize::from(frame)).and_then(|looks| looks.get(which));
        let expected = self.source.geometry.payload_bytes;
        let posted = endpoint.post(looks.ok_or(PullError::Damaged { expected, found: 0 })?);
        self.posted(posted, next)
    }

    pub(super) fn posted(
        &mut self,
        posted: Result<(), PostError>,
        next: PullStep,
    ) -> Result<bool, PullError> {
        match posted {
            Ok(()) => {
                let looks = matches!(
                    next,
                    PullStep::Status
                        | PullStep::Header
                        | PullStep::Search
                        | PullStep::PinHeader
                        | PullStep::FollowHeader
                );
                // Bytes that are copied again counted as a gain the first time.
                self.gains += u64::from(!looks && self.retries == 0);
                self.outstanding += 1;
                self.state = next;
                Ok(true)
            }
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(gone.into()),
            Err(error) => Err(PullError::Post(error)),
        }
    }
}
