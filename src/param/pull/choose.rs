//! The choice of the frame that a pull copies where it is not simply the latest: a frame that it pins, or a frame
//! with an older version.

use super::{BEFORE_LINE, HEADER, PULL_TAG, Pull, PullError, PullStep};
use crate::mem::RemoteSlice;
use crate::param::layout::{FrameHeader, Latest, inbox};
use crate::transport::{Endpoint, Inline, Operation, PostError, WorkRequest};

/// Looks at a pinned frame that is being written, before another one is pinned; and searches for a version by its
/// number of which a frame is marked as being written, before it is gone.
const MOST_LOOKS: u8 = 16;

impl Pull {
    /// Has pulls that are lapped again and again say in `word`, this peer's pin, which frame they copy: the owner
    /// then writes the others. Whether the copy is whole is proved by its header all the same. If the caller
    /// `rescues` pulls, it brings the copies that [`wanted`](Self::wanted) names itself, and these pin nothing.
    pub(crate) fn pin_by(&mut self, word: RemoteSlice, rescues: bool) {
        (self.pin, self.is_rescued) = (Some(word), rescues);
    }

    /// Pins the frame that is the latest now. An owner that has begun to write it before it finds the pin writes it to
    /// its end, and leaves it alone from then on: any whole version in it is good, if it satisfies the bound.
    pub(super) fn pin(&mut self, endpoint: &mut impl Endpoint, frame: u8) -> Result<bool, PullError> {
        if !self.write_pin(endpoint, inbox::COPIES | (u64::from(frame) + 1))? {
            return Ok(false);
        }
        self.pinned = Some((frame, 0));
        self.look_at_pinned(endpoint)
    }

    /// Pins the frame that is being copied. If the queue is full, the next part tries again.
    pub(super) fn pin_copied(&mut self, endpoint: &mut impl Endpoint) -> Result<(), PullError> {
        let is_free = self.pin.is_some() && self.pinned.is_none() && !self.is_rescued;
        if is_free && self.write_pin(endpoint, inbox::COPIES | (u64::from(self.frame) + 1))? {
            self.pinned = Some((self.frame, 0));
        }
        Ok(())
    }

    pub(super) fn look_at_pinned(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        match self.pinned {
            Some((frame, _)) => self.look(endpoint, frame, HEADER, PullStep::PinHeader),
            None => Ok(self.look_again(PullStep::Begin)),
        }
    }

    pub(super) fn on_pinned(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let Some((frame, looks)) = self.pinned else { return Ok(self.look_again(PullStep::Begin)) };
        let header = self.header(BEFORE_LINE);
        // No version has a number that the status line cannot name.
        if !header.is_whole() || header.version > Latest::VERSION_MAX {
            // Its owner may take long over this version: after some looks the latest one is pinned instead.
            self.pinned = Some((frame, looks + 1));
            let next = if looks < MOST_LOOKS { PullStep::PinBegin } else { PullStep::Begin };
            return Ok(self.look_again(next));
        }
        if !self.check_header(&header)? {
            return Ok(self.retry());
        }
        if !self.is_wanted(&header) {
            self.unpin(endpoint)?;
            return Ok(self.look_again(PullStep::Begin));
        }
        self.begin_payload(header, frame, 0);
        self.on_payload(endpoint)
    }

    /// Lets the frame go that is pinned, if the queue has room: otherwise the next call does.
    pub(super) fn unpin(&mut self, endpoint: &mut impl Endpoint) -> Result<(), PullError> {
        if self.pinned.is_some() && self.write_pin(endpoint, 0)? {
            self.pinned = None;
            // A GPU may be making a copy of this pull yet, and requests take effect in order.
            self.is_unpinning = self.outstanding > 0;
        }
        Ok(())
    }

    /// Writes the pin. False if the queue is full.
    fn write_pin(&self, endpoint: &mut impl Endpoint, pin: u64) -> Result<bool, PullError> {
        let Some(remote) = self.pin else { return Ok(true) };
        let write = Operation::WriteInline { data: Inline::word(pin), remote };
        match endpoint.post(&[WorkRequest::unsignalled(PULL_TAG, write)]) {
            Ok(()) => Ok(true),
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(gone.into()),
            Err(error) => Err(PullError::Post(error)),
        }
    }

    /// Looks for an older version in `frame`, and in the frames behind it.
    pub(super) fn search(&mut self, endpoint: &mut impl Endpoint, frame: u8) -> Result<bool, PullError> {
        self.searched = frame;
        if frame >= self.source.geometry.frames {
            let (is_marked, searches) = self.marked;
            if is_marked && searches < MOST_LOOKS {
                // Its owner takes the mark back if it finds the frame pinned.
                self.marked = (false, searches + 1);
                return Ok(self.look_again(PullStep::Begin));
            }
            let version = self.options.exactly.unwrap_or_default();
            return Err(PullError::Gone { version, newest: self.latest.version });
        }
        self.look(endpoint, frame, HEADER, PullStep::Search)
    }

    pub(super) fn on_search(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let header = self.header(BEFORE_LINE);
        // In a frame that was never written all words are 0, its version, too.
        let is_unused = header == FrameHeader::default();
        let is_named = Some(header.version) == self.options.exactly;
        self.marked.0 |= is_named && !header.is_whole();
        if !header.is_whole() || is_unused || !is_named {
            return self.search(endpoint, self.searched + 1);
        }
        if !self.check_header(&header)? {
            return Ok(self.retry());
        }
        self.begin_payload(header, self.searched, 0);
        self.on_payload(endpoint)
    }
}
