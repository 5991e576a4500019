//! The words that concern one peer alone, as this peer finds them.

use std::sync::atomic::Ordering::Acquire;

use super::Welcome;
use super::layout::{ControlLayout, LINE, Latest, inbox, peer_line};
use crate::clock::{Clock, Version};
use crate::mem::{OutOfBounds, RemoteSlice, VolatileSlice};

/// The memory in which a peer finds the words that concern it.
pub(crate) struct OwnWords {
    /// The page that it writes.
    pub(crate) page: RemoteSlice,
    /// Its line of the control page.
    pub(crate) line: RemoteSlice,
    /// The status line of the control page.
    pub(crate) status: RemoteSlice,
}

/// Finds the words by an owner's answer and the grants that came with it.
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
    page.slice(inbox::HEARTBEAT as u64, 8)
}

/// The word in a peer's page that says which frame is to stay as it is.
pub(crate) fn pin(page: &RemoteSlice) -> Result<RemoteSlice, OutOfBounds> {
    page.slice(inbox::PIN as u64, 8)
}

/// The word in a peer's page that says which version it holds, and its new value.
pub(crate) fn held(page: &RemoteSlice, version: Version) -> Result<(RemoteSlice, u64), OutOfBounds> {
    Ok((page.slice(inbox::HELD as u64, 8)?, version.get().wrapping_add(1)))
}

/// Offsets of the words of a peer's page, for a simulated peer that breaks the protocol: the single words, then the
/// words of the headers of so many slots.
pub(crate) fn inbox_words(slots: usize) -> impl Iterator<Item = usize> {
    let own = [inbox::PUBLISHED, inbox::LANDED, inbox::HELD, inbox::HEARTBEAT, inbox::PIN];
    let headers =
        (0..slots).flat_map(|slot| (0..LINE).step_by(8).map(move |at| inbox::slot_header(slot) + at));
    own.into_iter().chain(headers)
}

/// Offset of the pin in a peer's page.
pub(crate) fn pin_word() -> usize {
    inbox::PIN
}

/// The frame of the newest version, as the owner's control page says.
pub(crate) fn newest_frame(control: &VolatileSlice<'_>) -> u8 {
    Latest::from_word(control.load(ControlLayout::LATEST, Acquire)).frame
}

/// The version that a peer is to compute on, or a later one, as its line says where it is mapped: a computation on an
/// older one is to be abandoned.
pub(crate) fn load_interrupt(line: &VolatileSlice<'_>) -> Version {
    // Acquire: the version that the word names was committed before.
    Version::new(line.load(peer_line::INTERRUPT, Acquire))
}

/// The reason why an owner no longer takes a peer for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Eviction {
    /// Its connection ended, as far as the owner knows.
    Left,
    /// It was silent for longer than the lease.
    Silent,
    /// The data that it wrote broke the protocol.
    Misbehaved,
    /// Another peer has its index by now, and the reason is not known any more.
    Replaced,
}

impl Eviction {
    /// The state word of a line whose last peer was evicted for this reason.
    pub(crate) fn state(self) -> u64 {
        match self {
            Eviction::Left | Eviction::Replaced => peer_line::STATE_LEFT,
            Eviction::Silent => peer_line::STATE_SILENT,
            Eviction::Misbehaved => peer_line::STATE_MISBEHAVED,
        }
    }

    pub(crate) fn remedy(self) -> &'static str {
        match self {
            Eviction::Misbehaved => "look at the log of the server",
            Eviction::Left | Eviction::Silent | Eviction::Replaced => "connect again",
        }
    }

    /// The reason that a state word gives, if it gives one.
    pub(crate) fn of(state: u64) -> Option<Eviction> {
        match state {
            peer_line::STATE_LEFT => Some(Eviction::Left),
            peer_line::STATE_SILENT => Some(Eviction::Silent),
            peer_line::STATE_MISBEHAVED => Some(Eviction::Misbehaved),
            _ => None,
        }
    }
}

impl std::fmt::Display for Eviction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Eviction::Left => "its connection ended",
            Eviction::Silent => "it was silent for longer than the lease",
            Eviction::Misbehaved => "what it wrote broke the protocol",
            Eviction::Replaced => "another peer has replaced it by now",
        })
    }
}

/// The owner's words to one peer in its line.
pub(crate) struct OwnLine {
    /// Gradients of clocks before this one are consumed.
    pub(crate) consumed: Clock,
    /// The owner has let the peer go, and why.
    pub(crate) evicted: Option<Eviction>,
    /// The owner has asked to abandon a computation on any version before this one.
    pub(crate) interrupt: Version,
}

/// Reads a copy of the line of the peer that has had it since `generation`.
pub(crate) fn read_line(line: &VolatileSlice<'_>, generation: u64) -> OwnLine {
    let is_another = line.load_u64(peer_line::GENERATION) != generation;
    OwnLine {
        consumed: Clock::new(line.load_u64(peer_line::CONSUMED)),
        // The line of another peer says as much.
        evicted: is_another
            .then_some(Eviction::Replaced)
            .or_else(|| Eviction::of(line.load_u64(peer_line::STATE))),
        interrupt: Version::new(line.load_u64(peer_line::INTERRUPT)),
    }
}

/// The owner's words to all of its peers.
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
        smallest_clock: Clock::new(word(ControlLayout::SMALLEST_CLOCK)),
        workers: usize::try_from(word(ControlLayout::WORKERS)).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::HostMemory;

    #[test]
    fn a_peer_finds_in_its_line_why_it_was_let_go() {
        let memory = HostMemory::anonymous(LINE).unwrap();
        let line = memory.as_volatile();
        line.store_u64(peer_line::GENERATION, 7);
        line.store_u64(peer_line::STATE, peer_line::STATE_MEMBER);
        assert_eq!(read_line(&line, 7).evicted, None);
        for why in [Eviction::Left, Eviction::Silent, Eviction::Misbehaved] {
            line.store_u64(peer_line::STATE, why.state());
            assert_eq!(read_line(&line, 7).evicted, Some(why));
            // The line speaks of another peer by now.
            assert_eq!(read_line(&line, 6).evicted, Some(Eviction::Replaced));
        }
    }
}
