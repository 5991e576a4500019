//! The words that concern one peer alone, as this peer finds them.

use super::Welcome;
use super::layout::{ControlLayout, LINE, desk, peer_line};
use crate::clock::Clock;
use crate::mem::{OutOfBounds, RemoteSlice, VolatileSlice};

/// Where a peer finds what concerns it.
pub(crate) struct OwnWords {
    /// The page that it writes.
    pub(crate) page: RemoteSlice,
    /// Its line of the control page.
    pub(crate) line: RemoteSlice,
    /// The status line of the control page.
    pub(crate) status: RemoteSlice,
}

/// From an owner's answer and what it granted.
pub(crate) fn own_words(welcome: &Welcome, grants: &[RemoteSlice]) -> Result<OwnWords, OutOfBounds> {
    let [control, _, page, ..] = grants else {
        return Err(OutOfBounds { offset: 0, len: 3, available: grants.len() as u64 });
    };
    let line = control.slice(welcome.layout.peer_line(welcome.peer) as u64, LINE as u64)?;
    let status = control.slice(ControlLayout::STATUS as u64, LINE as u64)?;
    Ok(OwnWords { page: *page, line, status })
}

/// The heartbeat's word in a peer's page.
pub(crate) fn heartbeat(page: &RemoteSlice) -> Result<RemoteSlice, OutOfBounds> {
    page.slice(desk::HEARTBEAT as u64, 8)
}

/// What the owner says to one peer in its line.
pub(crate) struct OwnLine {
    /// Gradients of clocks before this one are consumed.
    pub(crate) consumed: Clock,
    /// The owner has let the peer go.
    pub(crate) evicted: bool,
    /// How often the owner has asked to abandon a computation.
    pub(crate) interrupts: u64,
}

/// Reads a copy of the line of the peer that has had its place since `generation`.
pub(crate) fn read_line(line: &VolatileSlice<'_>, generation: u64) -> OwnLine {
    OwnLine {
        consumed: Clock(line.load_u64(peer_line::CONSUMED)),
        // The line of somebody who has the place by now says as much.
        evicted: line.load_u64(peer_line::STATE) == peer_line::STATE_EVICTED
            || line.load_u64(peer_line::GENERATION) != generation,
        interrupts: line.load_u64(peer_line::INTERRUPTS),
    }
}
