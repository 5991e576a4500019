//! The copy of a pull: the whole payload, or pieces of it, between two looks at the header.

use std::ops::Range;

use smallvec::SmallVec;

use super::{PULL_TAG, Pull, PullError, PullStep, VERIFY};
use crate::mem::{Streaming, VolatileSlice};
use crate::param::layout::FrameHeader;
use crate::transport::{Endpoint, Flags, PayloadSlice, PostError, WorkRequest};

/// Batches that are in flight at once of a copy that tells how far it is, so that something comes while the next
/// request is on its way.
pub(super) const READ_AHEAD: usize = 4;

/// Room for all batches and looks of a pull that are in flight.
pub(super) const MOST_IN_FLIGHT: usize = 2 * READ_AHEAD;

/// A batch of a copy that is in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchInFlight {
    /// How much is there once it has come.
    pub(super) end: u64,
    /// The bytes that the look which goes along with it proves.
    pub(super) proves: Option<u64>,
    /// It is a follower's look.
    pub(super) is_look: bool,
}

/// Pieces that are read in one batch.
const PIECES_AT_ONCE: usize = 16;

/// Longest single READ of payload: keeps any transport's pipeline busy and any queue short.
pub(in crate::param) const MAX_READ_BYTES: u64 = 1 << 30;

impl Pull {
    pub(super) fn begin_payload(&mut self, before: FrameHeader, frame: u8, copied: u64) {
        (self.before, self.frame, self.copied) = (before, frame, self.resumed(before.version, copied));
        (self.arrived, self.begun_at) = (self.copied, self.copied);
        self.is_look_due = self.looks_between().is_some();
    }

    /// The first of the batches in flight has come, or failed.
    pub(super) fn take_batch(&mut self, has_come: bool) {
        // A look that is in flight is alone, unless a frame is followed.
        let batch = (!self.batches.is_empty()).then(|| self.batches.remove(0));
        if let Some(BatchInFlight { end, proves, is_look }) = batch.filter(|_| has_come) {
            if self.state == PullStep::FollowHeader {
                self.take_followed(is_look);
            }
            self.has_batch |= end > self.arrived;
            (self.arrived, self.look_proves) = (end, proves.or(self.look_proves));
        }
    }

    /// True if the pull may go on while batches are in flight.
    pub(super) fn may_read_ahead(&self) -> bool {
        let goes_on = match self.state {
            PullStep::Payload => {
                let ahead = if self.options.chunked { READ_AHEAD } else { self.parts_ahead() };
                (self.options.chunked || self.reads_parts())
                    && self.pieces.is_none()
                    && self.batches.len() < ahead
                    && self.copied < self.source.geometry.payload_bytes
            }
            PullStep::FollowHeader => self.may_follow_on(),
            _ => false,
        };
        goes_on && self.failed.is_none()
    }

    pub(super) fn on_payload(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let total = self.source.geometry.payload_bytes;
        if !self.prove_part(endpoint)? {
            return Ok(self.begin_again());
        }
        if self.is_look_due {
            // Between the looks at the header, as the payload: the same proof holds for both.
            let look = self.looks_between().and_then(|looks| looks.get(usize::from(self.frame)));
            let look = look.ok_or(PullError::Damaged { expected: total, found: 0 })?;
            let posted = endpoint.post(std::slice::from_ref(look));
            self.is_look_due = posted.is_err();
            // The payload goes along with it, if there is any left.
            let (same, proves) = (self.copied, None);
            if !self.read(posted, (same, proves), PullStep::Payload)? || self.copied == total {
                return Ok(!self.is_look_due);
            }
        }
        if self.pieces.is_some() {
            return self.on_pieces(endpoint);
        }
        if self.copied == total {
            return self.look(endpoint, self.frame, VERIFY, PullStep::Verify);
        }
        let most = match self.options.chunked {
            true => (self.batch / self.source.geometry.chunk_bytes).max(1) * self.source.geometry.chunk_bytes,
            false if self.reads_parts() => self.part(),
            false => MAX_READ_BYTES,
        };
        let range = self.copied..total.min(self.copied.saturating_add(most));
        let (begin, end) = (range.start, range.end);
        if end - begin < total {
            let payload = self.payload(self.frame, range)?;
            let looks = self.looks_of_part();
            // The bytes that have arrived by now: bytes in flight may be read after the look.
            let proves = looks.as_ref().map(|_| self.arrived);
            let posted = match looks {
                Some([header, status]) => endpoint.post(&[header, status, payload]),
                None => endpoint.post(&[payload]),
            };
            return self.read(posted, (end, proves), PullStep::Payload);
        }
        // The destination goes into the request and back. A clone of it, dropped here, would be an atomic decrement
        // right behind a long copy, which waits for all its stores.
        let remote = self.source.payload(self.frame, range)?;
        let local = self.into.take().ok_or(PullError::Busy)?;
        let streaming = Streaming::PieceOf { total_bytes: total as usize };
        let request = WorkRequest::signalled(PULL_TAG, local.read(remote, streaming));
        let posted = endpoint.post(std::slice::from_ref(&request));
        self.into = PayloadSlice::of(request.operation);
        self.read(posted, (end, None), PullStep::Payload)
    }

    pub(super) fn is_to_gpu(&self) -> bool {
        matches!(self.into, Some(PayloadSlice::Gpu(_)))
    }

    /// Reads the next pieces; `copied` counts the pieces that are read.
    pub(super) fn on_pieces(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let pieces = self.pieces.as_ref().map_or(&[][..], |(pieces, _)| pieces);
        let next = pieces.get(self.copied as usize..).unwrap_or_default();
        let next = &next[..next.len().min(PIECES_AT_ONCE)];
        if next.is_empty() {
            return self.look(endpoint, self.frame, VERIFY, PullStep::Verify);
        }
        let into = self.into.as_ref().ok_or(PullError::Busy)?;
        let mut requests = SmallVec::<[WorkRequest; PIECES_AT_ONCE]>::new();
        for piece in next {
            let local = into.slice(piece.to as usize, piece.bytes as usize)?;
            let remote = self.source.payload(self.frame, piece.from..piece.from + piece.bytes)?;
            let operation = local.read(remote, Streaming::ByLength);
            requests.push(WorkRequest::unsignalled(PULL_TAG, operation));
        }
        if let Some(last) = requests.last_mut() {
            last.flags |= Flags::SIGNALLED;
        }
        let end = self.copied + requests.len() as u64;
        let posted = endpoint.post(&requests);
        self.read(posted, (end, None), PullStep::Payload)
    }

    pub(super) fn read(
        &mut self,
        posted: Result<(), PostError>,
        (end, proves): (u64, Option<u64>),
        next: PullStep,
    ) -> Result<bool, PullError> {
        let posted = self.posted(posted, next)?;
        if posted {
            self.copied = end;
            // Of other copies it is of no use how much has come before the end.
            if self.options.chunked || self.proves_parts() {
                self.batches.push(BatchInFlight { end, proves, is_look: false });
            }
        }
        Ok(posted)
    }

    pub(super) fn payload(&self, frame: u8, range: Range<u64>) -> Result<WorkRequest, PullError> {
        let total_bytes = self.source.geometry.payload_bytes as usize;
        let into = self.into.as_ref().ok_or(PullError::Busy)?;
        let local = into.slice(range.start as usize, (range.end - range.start) as usize)?;
        let remote = self.source.payload(frame, range)?;
        let operation = local.read(remote, Streaming::PieceOf { total_bytes });
        Ok(WorkRequest::signalled(PULL_TAG, operation))
    }

    /// Copies the parts that this pull reads out of `from`, a whole payload at hand.
    pub(crate) fn copy_out(&self, from: VolatileSlice<'_>, to: VolatileSlice<'_>) {
        let Some((pieces, _)) = &self.pieces else {
            return to.copy_from(from, Streaming::ByLength);
        };
        for piece in pieces.iter() {
            let (begin, bytes) = (piece.from as usize, piece.bytes as usize);
            to.subslice(piece.to as usize, bytes).copy_from(from.subslice(begin, bytes), Streaming::ByLength);
        }
    }
}
