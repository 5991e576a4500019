//! The words that concern one peer alone, as this peer finds them.

use std::sync::atomic::Ordering::Acquire;

use super::Welcome;
use super::layout::{ControlLayout, LINE, Latest, desk, peer_line};
use crate::clock::{Clock, Version};
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

/// The word in a peer's page that says which version it holds, and what to write there.
pub(crate) fn held(page: &RemoteSlice, version: Version) -> Result<(RemoteSlice, u64), OutOfBounds> {
    Ok((page.slice(desk::HELD as u64, 8)?, version.0.wrapping_add(1)))
}

/// The version that a peer is to compute on, or a later one, as its line says where it is mapped: a computation on an
/// older one is to be abandoned.
pub(crate) fn load_interrupt(line: &VolatileSlice<'_>) -> Version {
    // Acquire: the version that the word names was committed before.
    Version(line.load(peer_line::INTERRUPT, Acquire))
}

/// What the owner says to one peer in its line.
pub(crate) struct OwnLine {
    /// Gradients of clocks before this one are consumed.
    pub(crate) consumed: Clock,
    /// The owner has let the peer go.
    pub(crate) evicted: bool,
    /// The owner has asked to abandon a computation on any version before this one.
    pub(crate) interrupt: Version,
}

/// Reads a copy of the line of the peer that has had its place since `generation`.
pub(crate) fn read_line(line: &VolatileSlice<'_>, generation: u64) -> OwnLine {
    OwnLine {
        consumed: Clock(line.load_u64(peer_line::CONSUMED)),
        // The line of somebody who has the place by now says as much.
        evicted: line.load_u64(peer_line::STATE) == peer_line::STATE_EVICTED
            || line.load_u64(peer_line::GENERATION) != generation,
        interrupt: Version(line.load_u64(peer_line::INTERRUPT)),
    }
}

/// What the owner says to all of its peers.
pub(crate) struct Status {
    pub(crate) latest: Version,
    pub(crate) smallest_clock: Clock,
    /// Workers that are in.
    pub(crate) workers: usize,
}

/// Reads a copy of the status line.
pub(crate) fn read_status(line: &VolatileSlice<'_>) -> Status {
    let word = |offset: usize| line.load_u64(offset - ControlLayout::STATUS);
    Status {
        latest: Latest::from_word(word(ControlLayout::LATEST)).version,
        smallest_clock: Clock(word(ControlLayout::SMALLEST_CLOCK)),
        workers: usize::try_from(word(ControlLayout::WORKERS)).unwrap_or(usize::MAX),
    }
}
