//! Heartbeats: words that are written on a queue pair of their own, so that no bulk data is ever queued before them.

use super::device::QueuePairError;
use super::initiator::Initiator;
use crate::mem::RemoteSlice;
use crate::transport::{CompletionError, Disconnected, Inline, Operation, PostError, WorkRequest};

const ENDED: Disconnected = Disconnected { reason: "the endpoint of this heartbeat word is closed" };
const FAILED: Disconnected =
    Disconnected { reason: "a heartbeat failed: the peer does not answer or refused it" };

/// The posting end of the lane for heartbeats.
pub(super) struct HeartbeatLane {
    lane: Option<Initiator>,
    /// False until the peer's queue pairs are ready: until then no peer can miss a beat.
    is_ready: bool,
    /// True once the connection is over.
    is_over: bool,
    /// The error of the first beat that failed.
    failure: Option<CompletionError>,
}

impl HeartbeatLane {
    pub(super) fn new(lane: Option<Initiator>, is_ready: bool) -> HeartbeatLane {
        HeartbeatLane { lane, is_ready, is_over: false, failure: None }
    }

    pub(super) fn set_ready(&mut self) {
        self.is_ready = true;
    }

    /// Returns how the lane's pair ended, if the device has reported its end and no completion gives the reason.
    pub(super) fn take_broken(&mut self) -> Option<QueuePairError> {
        self.lane.as_mut().and_then(Initiator::take_broken)
    }

    /// Returns the error of the failed beat: the owner then ends the connection, and the lane with it. This polls for
    /// a beat that is under way, since the next beat may be a tenth of a long lease away.
    pub(super) fn failure(&mut self) -> Option<CompletionError> {
        self.look();
        self.failure
    }

    /// Whether the peer did not answer a beat.
    pub(super) fn is_unanswered(&self) -> bool {
        self.lane.as_ref().is_some_and(Initiator::is_unanswered)
    }

    /// Takes the device's completions of beats.
    fn look(&mut self) {
        let Some(lane) = &mut self.lane else { return };
        while let Some(completion) = lane.poll() {
            self.failure = self.failure.or(completion.result.err());
        }
        if lane.has_failed() {
            self.failure = self.failure.or(Some(CompletionError::Flushed));
        }
    }

    /// Writes the word. False if there is no room for the request now.
    pub(super) fn set(&mut self, word: &RemoteSlice, value: u64) -> Result<bool, Disconnected> {
        if self.is_over {
            return Err(ENDED);
        }
        self.look();
        if self.failure.is_some() {
            return Err(FAILED);
        }
        let Some(lane) = &mut self.lane else { return Err(ENDED) };
        if !self.is_ready {
            return Ok(true);
        }
        let operation = Operation::WriteInline { data: Inline::word(value), remote: *word };
        match lane.post(&[WorkRequest::signalled(value, operation)]) {
            Ok(()) => Ok(true),
            Err(PostError::QueueFull { .. }) => Ok(false),
            Err(_) => {
                self.failure = Some(CompletionError::Flushed);
                Err(FAILED)
            }
        }
    }

    /// Ends the heartbeat words. The queue pair lives until the caller drops it.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// Ends the lane, and the heartbeat words with it. Its queue pair lives until the caller drops it.
    pub(super) fn take(&mut self) -> Option<Initiator> {
        self.lane.take()
    }
}
