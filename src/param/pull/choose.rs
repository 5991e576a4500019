//! Which frame a pull copies where it is not simply the latest: one that it pins, or one with an older version.

use smallvec::SmallVec;

use super::{BEFORE_LINE, HEADER, PULL_TAG, Pull, PullError, PullStep};
use crate::mem::RemoteSlice;
use crate::transport::{Endpoint, Inline, Operation, PostError, WorkRequest};

impl Pull {
    /// Has pulls that are lapped again and again say in `word`, this peer's pin, which frame they copy: the owner
    /// then writes the others. Whether the copy is whole is proved by its header all the same.
    pub(crate) fn pin_by(&mut self, word: RemoteSlice) {
        self.pin = Some(word);
    }

    /// Pins the latest frame and reads its header. An owner that has begun to write the frame before it finds the pin
    /// writes on, and then the header says so.
    pub(super) fn pin(&mut self, endpoint: &mut impl Endpoint, frame: u8) -> Result<bool, PullError> {
        let expected = self.source.geometry.payload_bytes;
        let look = self.looks.get(usize::from(frame)).map(|looks| looks[HEADER.start].clone());
        let look = look.ok_or(PullError::Damaged { expected, found: 0 })?;
        let posted = self.write_pin(endpoint, u64::from(frame) + 1, std::slice::from_ref(&look))?;
        if !posted {
            return Ok(false);
        }
        (self.is_pinned, self.guess) = (true, frame);
        self.posted(Ok(()), PullStep::Header)
    }

    /// Writes the pin, with a look behind it. False if the queue is full.
    pub(super) fn write_pin(
        &self,
        endpoint: &mut impl Endpoint,
        pin: u64,
        look: &[WorkRequest],
    ) -> Result<bool, PullError> {
        let Some(remote) = self.pin else { return Ok(true) };
        let write = Operation::WriteInline { data: Inline::word(pin), remote };
        let mut requests: SmallVec<[WorkRequest; 2]> = SmallVec::new();
        requests.push(WorkRequest::unsignalled(PULL_TAG, write));
        requests.extend(look.iter().cloned());
        match endpoint.post(&requests) {
            Ok(()) => Ok(true),
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(PostError::Disconnected(gone)) => Err(gone.into()),
            Err(error) => Err(PullError::Post(error)),
        }
    }

    /// Looks for an older version in `frame`, and in those behind it.
    pub(super) fn search(&mut self, endpoint: &mut impl Endpoint, frame: u8) -> Result<bool, PullError> {
        self.searched = frame;
        if frame >= self.source.geometry.frames {
            let version = self.options.exactly.unwrap_or_default();
            return Err(PullError::Gone { version, newest: self.latest.version });
        }
        self.look(endpoint, frame, HEADER, PullStep::Search)
    }

    pub(super) fn on_search(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let header = self.header(BEFORE_LINE);
        if !header.is_whole() || Some(header.version) != self.options.exactly {
            return self.search(endpoint, self.searched + 1);
        }
        self.check_header(&header)?;
        self.begin_payload(header, self.searched, 0);
        self.on_payload(endpoint)
    }
}
