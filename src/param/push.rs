//! Push: the owner writes a version into a peer's own frames.
//!
//! The frame protocol with the roles turned: in order on one endpoint, the odd sequence of the target frame ("being
//! written"), the rest of its header, the payload, the even sequence, the peer's status line. The peer reads its own
//! memory with the same [`Pull`](super::Pull) that reads an owner's.
//!
//! The marks are writes of their own, as nothing orders the words inside one write. A peer that finds any word of the
//! writes after the first mark finds that mark. A peer that finds the second mark finds all words before it.

use super::PushGrant;
use super::layout::{ControlLayout, FrameHeader, LINE, Latest};
use crate::mem::{OutOfBounds, RemoteSlice, Streaming};
use crate::transport::{
    Disconnected, Endpoint, Inline, Operation, PayloadSlice, PostError, WorkCompletion, WorkRequest,
};

/// Ids of a push's requests have this bit.
pub(crate) const PUSH_TAG: u64 = 1 << 61;

/// Writes versions into one peer's frames.
#[derive(Debug)]
pub struct Push {
    control: RemoteSlice,
    frames: RemoteSlice,
    grant: PushGrant,
    /// The frame that was pushed last.
    frame: u8,
    sequence: u64,
    /// The owner's frame that requests in flight read from.
    source: Option<u8>,
}

impl Push {
    /// Into the control page and frames that a peer granted. Their geometry must be the shard's own.
    pub fn new(control: RemoteSlice, frames: RemoteSlice, grant: PushGrant) -> Push {
        Push { control, frames, grant, frame: 0, sequence: 0, source: None }
    }

    /// The owner's frame that must not be overwritten yet, because a push still reads it.
    pub fn source(&self) -> Option<u8> {
        self.source
    }

    /// Begins to push the owner's frame `source`, which is whole and described by `header`. False if the queue is full
    /// or the last push has not completed: try again later, with the version that is the newest then.
    pub fn start(
        &mut self,
        endpoint: &mut impl Endpoint,
        source: u8,
        header: &FrameHeader,
        payload: &PayloadSlice,
    ) -> Result<bool, PushError> {
        if self.source.is_some() {
            return Ok(false);
        }
        let frame = (self.frame + 1) % self.grant.geometry.frames;
        let odd = self.sequence + 1;
        let header_at = self.control.slice(self.grant.layout.frame_header(frame) as u64, LINE as u64)?;
        let status_at = self.control.slice(ControlLayout::STATUS as u64, LINE as u64)?;
        let offset = self.grant.geometry.stride() * u64::from(frame);
        let status = [
            Latest { version: header.version, frame }.to_word(),
            header.smallest_clock.get(),
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        let mark_at = header_at.slice(FrameHeader::SEQUENCE as u64, 8)?;
        let inline =
            |remote, data| WorkRequest::unsignalled(PUSH_TAG, Operation::WriteInline { data, remote });
        let write = payload.clone().write(self.frames.slice(offset, header.bytes)?, Streaming::ByLength);
        let requests = [
            inline(mark_at, Inline::word(odd)),
            inline(header_at, Inline::line(FrameHeader { sequence: odd, landed: 0, ..*header }.to_words())),
            WorkRequest::unsignalled(PUSH_TAG, write),
            inline(mark_at, Inline::word(odd + 1)),
            WorkRequest::signalled(
                PUSH_TAG,
                Operation::WriteInline { data: Inline::line(status), remote: status_at },
            ),
        ];
        let requests = if mutant!("push_mark") { &requests[1..] } else { &requests[..] };
        match endpoint.post(requests) {
            Ok(()) => {
                (self.frame, self.sequence, self.source) = (frame, odd + 1, Some(source));
                Ok(true)
            }
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(gone.into()),
            Err(error) => Err(PushError::Post(error)),
        }
    }

    /// Takes a completion of one of its own requests.
    pub fn complete(&mut self, _completion: WorkCompletion) {
        self.source = None;
    }
}

/// A push failed permanently.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PushError {
    /// The peer is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// A request could not be posted.
    #[error("a write to the peer's memory could not be posted: {0}")]
    Post(PostError),
    /// The peer's grants do not cover its layout.
    #[error("the peer's grants do not cover its layout: {0}")]
    Grants(#[from] OutOfBounds),
}
