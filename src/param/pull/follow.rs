//! A pull that follows a frame which is being written, and how far any pull is.

use std::ops::RangeInclusive;

use super::copy::{BatchInFlight, MAX_READ_BYTES, READ_AHEAD};
use super::{BEFORE_LINE, Follow, HEADER, Pull, PullError, PullStep};
use crate::clock::Version;
use crate::param::layout::FrameGeometry;
use crate::transport::Endpoint;

/// Looks that are in flight at once. The answer of a look arrives behind all bytes that the owner has sent before it,
/// and is as old as that takes: so one look goes with each piece that is read, and one more when a piece has arrived.
const LOOKS_AHEAD: usize = 4;

/// The least and the most bytes of a piece. [`READ_AHEAD`] of them are in flight at once, and no more: the answer to a
/// look waits behind them.
const PIECE_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 20;

impl Pull {
    /// True if a frame that is followed has something to be done while requests are in flight.
    pub(super) fn may_follow_on(&self) -> bool {
        let Follow { looks, has_come, is_look_due, asked, known, .. } = self.follow;
        has_come || is_look_due && looks < LOOKS_AHEAD || asked < known && self.may_read_piece()
    }

    fn may_read_piece(&self) -> bool {
        // Of looks that have failed some are counted still.
        self.batches.len().saturating_sub(self.follow.looks) < READ_AHEAD
    }

    /// A look or a piece of a frame that is followed has come.
    pub(super) fn take_followed(&mut self, is_look: bool) {
        match is_look {
            true => (self.follow.looks, self.follow.has_come) = (self.follow.looks - 1, true),
            false => self.follow.is_look_due = true,
        }
    }

    /// Looks at the frame that is followed.
    pub(super) fn look_at_followed(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let posted = self.look(endpoint, self.follow.frame, HEADER, PullStep::FollowHeader)?;
        if posted {
            self.note_look();
        }
        Ok(posted)
    }

    fn note_look(&mut self) {
        (self.follow.looks, self.follow.is_look_due) = (self.follow.looks + 1, false);
        self.batches.push(BatchInFlight { end: self.follow.asked, proves: None, is_look: true });
    }

    pub(super) fn on_follow(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let mut follow = self.follow;
        let header = self.header(BEFORE_LINE);
        let FrameGeometry { payload_bytes, .. } = self.source.geometry;
        let begun = follow.sequence.is_some();
        let attempt = *follow.sequence.get_or_insert(header.sequence);
        let is_same = header.version == follow.version && header.sequence == attempt && !header.is_whole();
        if is_same {
            follow.known = follow.known.max(self.bytes_of(header.landed_chunks()));
        }
        follow.has_come = false;
        self.follow = follow;
        if is_same && follow.asked < follow.known && self.may_read_piece() {
            return self.read_piece(endpoint);
        }
        if is_same && follow.is_look_due && follow.looks < LOOKS_AHEAD && follow.asked < payload_bytes {
            return self.look_at_followed(endpoint);
        }
        if self.outstanding > 0 {
            // Requests in flight come first.
            self.follow.is_look_due = false;
            return Ok(false);
        }
        if header.version != follow.version {
            return Ok(self.retry());
        }
        if !begun && header.is_whole() {
            // It was committed before the first look: pull it in the ordinary way.
            self.state = PullStep::Begin;
            return Ok(true);
        }
        if header.sequence == attempt.wrapping_add(1) {
            // The attempt ended whole. The words of this header were read in any order, so that some of them may be
            // older than its sequence; the words of a header that is read after it cannot.
            if !std::mem::replace(&mut self.follow.ended, true) {
                self.state = PullStep::FollowBegin;
                return Ok(true);
            }
            if !self.check_header(&header)? {
                return Ok(self.retry());
            }
            self.begin_payload(header, follow.frame, follow.asked);
            return self.on_payload(endpoint);
        }
        if header.sequence != attempt {
            return Ok(self.retry());
        }
        Ok(self.look_again(PullStep::FollowBegin))
    }

    /// Reads the next piece of the landed bytes, behind another look, if not too many are in flight: the owner's
    /// progress by then is known before the piece arrives.
    fn read_piece(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let Follow { frame, asked, known, looks, .. } = self.follow;
        let rest = known - asked;
        // Mapped memory is copied at once, a long piece by several threads: nothing is in flight then.
        let most = match self.mapped {
            Some(_) => MAX_READ_BYTES,
            None => (rest / 2).clamp(*PIECE_BYTES.start(), *PIECE_BYTES.end()),
        };
        let bytes = most.min(self.batch).min(rest);
        let piece = self.payload(frame, asked..asked + bytes)?;
        let look = self.looks.get(usize::from(frame)).filter(|_| looks < LOOKS_AHEAD);
        let posted = match look {
            Some(looks) => endpoint.post(&[looks[HEADER.start].clone(), piece]),
            None => endpoint.post(&[piece]),
        };
        let has_look = look.is_some();
        let posted = self.posted(posted, PullStep::FollowHeader)?;
        if posted {
            if has_look {
                self.outstanding += 1;
                self.note_look();
            }
            self.batches.push(BatchInFlight { end: asked + bytes, proves: None, is_look: false });
            // Bytes that are copied again counted as a gain the first time.
            self.gains += u64::from(self.retries == 0);
            // The destination is being written from its begin on.
            self.partial = None;
            self.follow.asked = asked + bytes;
        }
        Ok(posted)
    }

    fn bytes_of(&self, chunks: usize) -> u64 {
        let FrameGeometry { chunk_bytes, payload_bytes, .. } = self.source.geometry;
        (chunks as u64).saturating_mul(chunk_bytes).min(payload_bytes)
    }

    /// True while more is about to come of a copy that is passed on, or that follows its owner.
    pub(crate) fn keeps_up(&self) -> bool {
        let has_some = self.landed().is_some_and(|(_, chunks)| chunks > 0);
        has_some && (self.options.chunked || self.options.follow)
    }

    /// True once a part of the payload was asked for.
    pub(crate) fn has_asked(&self) -> bool {
        match self.state {
            PullStep::FollowBegin | PullStep::FollowHeader => self.follow.asked > 0,
            state => matches!(state, PullStep::Payload | PullStep::Verify),
        }
    }

    /// The version that is being copied now, and how many chunks of it are there, from its begin on. Whether they are
    /// of that version is proved at the end only; until then [`retries`](Self::retries) grows if they were not.
    pub(crate) fn landed(&self) -> Option<(Version, usize)> {
        let version = match self.state {
            PullStep::Payload | PullStep::Verify => self.before.version,
            PullStep::FollowBegin | PullStep::FollowHeader => self.follow.version,
            _ => return None,
        };
        Some((version, (self.landed / self.source.geometry.chunk_bytes) as usize))
    }
}
