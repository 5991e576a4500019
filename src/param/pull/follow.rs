//! A pull that follows a frame which is being written, and how far any pull is.

use super::copy::MAX_READ_BYTES;
use super::{BEFORE_LINE, HEADER, Pull, PullError, PullStep};
use crate::clock::Version;
use crate::param::layout::FrameGeometry;
use crate::transport::{Endpoint, Flags};

impl Pull {
    pub(super) fn on_follow(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let mut follow = self.follow;
        let header = self.header(BEFORE_LINE);
        let total = self.source.geometry.chunks();
        let begun = follow.sequence.is_some();
        let attempt = *follow.sequence.get_or_insert(header.sequence);
        self.follow = follow;
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
            // older than its sequence; those of one that is read after it cannot.
            if !std::mem::replace(&mut self.follow.ended, true) {
                self.state = PullStep::FollowBegin;
                return Ok(true);
            }
            if !self.check_header(&header)? {
                return Ok(self.retry());
            }
            let geometry = &self.source.geometry;
            let copied = (follow.chunks as u64 * geometry.chunk_bytes).min(geometry.payload_bytes);
            self.begin_payload(header, follow.frame, copied);
            return self.on_payload(endpoint);
        }
        if header.sequence != attempt {
            return Ok(self.retry());
        }
        let most = (MAX_READ_BYTES / self.source.geometry.chunk_bytes).max(1) as usize;
        let landed = header.landed_chunks().min(total).min(follow.chunks + most);
        if landed <= follow.chunks {
            return Ok(self.look_again(PullStep::FollowBegin));
        }
        let geometry = &self.source.geometry;
        let begin = follow.chunks as u64 * geometry.chunk_bytes;
        let end = (landed as u64 * geometry.chunk_bytes).min(geometry.payload_bytes);
        let mut payload = self.payload(follow.frame, begin..end)?;
        payload.flags.remove(Flags::SIGNALLED);
        // The next look goes along with it: how far the owner is by then. It completes after the payload.
        let look = self.looks.get(usize::from(follow.frame)).map(|looks| looks[HEADER.start].clone());
        let look = look.ok_or(PullError::Damaged { expected: geometry.payload_bytes, found: 0 })?;
        let posted = endpoint.post(&[payload, look]);
        let posted = self.posted(posted, PullStep::FollowHeader)?;
        if posted {
            // What is copied again was a gain the first time.
            self.gains += u64::from(self.retries == 0);
            // The destination is being written from its begin on.
            self.partial = None;
            self.follow.chunks = landed;
        }
        Ok(posted)
    }

    /// The bytes that are there of the copy, while nothing of it is in flight.
    pub(super) fn has_landed(&self) -> u64 {
        let FrameGeometry { chunk_bytes, payload_bytes, .. } = self.source.geometry;
        match self.state {
            PullStep::Payload | PullStep::Verify => self.arrived,
            PullStep::FollowBegin | PullStep::FollowHeader => {
                (self.follow.chunks as u64 * chunk_bytes).min(payload_bytes)
            }
            _ => 0,
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
