//! Heartbeats: words that are set on a queue pair of their own, so that no bulk data is ever before them.

use super::initiator::Initiator;
use crate::mem::RemoteSlice;
use crate::transport::{Disconnected, Inline, Operation, PostError, WorkRequest};

/// How long a heartbeat waits for room; if there is none for so long, the next one will do.
const ROOM_WAIT: std::time::Duration = std::time::Duration::from_millis(20);
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

const ENDED: Disconnected = Disconnected { reason: "the endpoint of this beacon is closed" };
const FAILED: Disconnected =
    Disconnected { reason: "a heartbeat failed: the peer does not answer or refused it" };

/// The posting end of the lane for heartbeats.
pub(super) struct Pulse {
    lane: Option<Initiator>,
    /// False until the peer's queue pairs stand: until then nobody can miss a beat.
    is_ready: bool,
    has_failed: bool,
}

impl Pulse {
    pub(super) fn new(lane: Option<Initiator>, is_ready: bool) -> Pulse {
        Pulse { lane, is_ready, has_failed: false }
    }

    pub(super) fn set_ready(&mut self) {
        self.is_ready = true;
    }

    /// Whether a beat failed, which ends the connection.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn set(&mut self, word: &RemoteSlice, value: u64) -> Result<(), Disconnected> {
        let Some(lane) = &mut self.lane else { return Err(ENDED) };
        if !self.is_ready {
            return Ok(());
        }
        let operation = Operation::WriteInline { data: Inline::word(value), remote: *word };
        let beat = [WorkRequest::signalled(value, operation)];
        let begin = std::time::Instant::now();
        loop {
            let mut is_well = true;
            while let Some(completion) = lane.poll() {
                is_well &= completion.result.is_ok();
            }
            let posted = if is_well { lane.post(&beat) } else { Err(FAILED.into()) };
            match posted {
                Ok(()) => return Ok(()),
                Err(PostError::QueueFull { .. }) if begin.elapsed() < ROOM_WAIT => std::thread::sleep(NAP),
                Err(PostError::QueueFull { .. }) => return Ok(()),
                Err(_) => {
                    self.has_failed = true;
                    self.close();
                    return Err(FAILED);
                }
            }
        }
    }

    /// Ends the lane, and the beacons with it.
    pub(super) fn close(&mut self) {
        self.lane = None;
    }
}
