//! A pull that follows a frame which is being written, and how far any pull is.

use smallvec::SmallVec;

use super::copy::{BatchInFlight, MAX_READ_BYTES};
use super::{BEFORE_LINE, Follow, HEADER, Pull, PullError, PullStep};
use crate::clock::Version;
use crate::param::layout::FrameGeometry;
use crate::transport::{Endpoint, Flags, WorkRequest};

impl Pull {
    pub(super) fn on_follow(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let mut follow = self.follow;
        let header = self.header(BEFORE_LINE);
        let total = self.source.geometry.chunks();
        let begun = follow.sequence.is_some();
        let attempt = *follow.sequence.get_or_insert(header.sequence);
        self.follow = follow;
        let landed = header.landed_chunks().min(total);
        let is_same = header.version == follow.version && header.sequence == attempt && !header.is_whole();
        if is_same && landed > follow.chunks {
            return self.read_landed(endpoint, landed);
        }
        if self.outstanding > 0 {
            // What is in flight comes first.
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
            // older than its sequence; those of one that is read after it cannot.
            if !std::mem::replace(&mut self.follow.ended, true) {
                self.state = PullStep::FollowBegin;
                return Ok(true);
            }
            if !self.check_header(&header)? {
                return Ok(self.retry());
            }
            let copied = self.bytes_of(follow.chunks);
            self.begin_payload(header, follow.frame, copied);
            return self.on_payload(endpoint);
        }
        if header.sequence != attempt {
            return Ok(self.retry());
        }
        Ok(self.look_again(PullStep::FollowBegin))
    }

    /// Reads the chunks that have landed since the last look, in two halves, and looks again between them: how far the
    /// owner is by then is known while the second half is still on its way.
    fn read_landed(&mut self, endpoint: &mut impl Endpoint, landed: usize) -> Result<bool, PullError> {
        let Follow { frame, chunks, .. } = self.follow;
        let most = (MAX_READ_BYTES / self.source.geometry.chunk_bytes).max(1) as usize;
        let landed = landed.min(chunks + most);
        let half = chunks + (landed - chunks).div_ceil(2);
        let [begin, middle, end] = [chunks, half, landed].map(|chunks| self.bytes_of(chunks));
        let mut first = self.payload(frame, begin..middle)?;
        first.flags.remove(Flags::SIGNALLED);
        let look = self.looks.get(usize::from(frame)).map(|looks| looks[HEADER.start].clone());
        let expected = self.source.geometry.payload_bytes;
        let mut requests = SmallVec::<[WorkRequest; 3]>::new();
        requests.extend([first, look.ok_or(PullError::Damaged { expected, found: 0 })?]);
        if middle < end {
            requests.push(self.payload(frame, middle..end)?);
        }
        let posted = endpoint.post(&requests);
        let posted = self.posted(posted, PullStep::FollowHeader)?;
        if posted {
            self.batches.push(BatchInFlight { end: middle, proves: None, is_look: true });
            if middle < end {
                self.batches.push(BatchInFlight { end, proves: None, is_look: false });
                self.outstanding += 1;
            }
            // What is copied again was a gain the first time.
            self.gains += u64::from(self.retries == 0);
            // The destination is being written from its begin on.
            self.partial = None;
            self.follow.chunks = landed;
        }
        Ok(posted)
    }

    fn bytes_of(&self, chunks: usize) -> u64 {
        let FrameGeometry { chunk_bytes, payload_bytes, .. } = self.source.geometry;
        (chunks as u64 * chunk_bytes).min(payload_bytes)
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
