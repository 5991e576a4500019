//! A peer's inbox as the owner of the shard sees it: the page that this one peer writes, and its slots.

use std::sync::atomic::Ordering::Relaxed;

use super::frames;
use super::layout::{LINE, SlotGeometry, SlotHeader, encoding_word, inbox, landed_chunks};
use crate::clock::{Clock, Version};
use crate::kernel;
use crate::mem::{MemoryRegion, VolatileSlice};
use crate::transport::{PayloadMemory, PayloadSlice};

/// The memory of the owner that one peer writes: its words, and its gradients. The owner only reads it, trusts
/// nothing of it, and no other peer can reach it.
#[derive(Clone, Debug)]
pub struct PeerInbox {
    page: MemoryRegion,
    slots: Option<(PayloadMemory, SlotGeometry)>,
}

/// The reason why a slot was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotFault {
    /// Its header names another clock than was announced.
    Clock,
    /// It was written for another incarnation of the owner.
    Epoch,
    /// Its header has another length than was agreed, or the peer has no slots.
    Length,
    /// Its header has another encoding than was agreed.
    Encoding,
    /// It does not match its checksum.
    Checksum,
    /// It has a checksum, and lies on a GPU, where none is checked.
    OnGpu,
}

impl std::fmt::Display for SlotFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SlotFault::Clock => "its gradient's header names another clock than the one it announced",
            SlotFault::Epoch => "its gradient was written for another incarnation of this server",
            SlotFault::Length => "its gradient's header has another length than was agreed",
            SlotFault::Encoding => "its gradient's header has another encoding than was agreed",
            SlotFault::Checksum => "its gradient does not match its checksum",
            SlotFault::OnGpu => {
                "its gradient has a checksum, which this server cannot check in memory of its GPU"
            }
        })
    }
}

impl PeerInbox {
    /// Bytes of the page of a peer with so many slots (none for a reader).
    pub fn page_bytes(slots: u16) -> usize {
        inbox::bytes(usize::from(slots))
    }

    /// Makes an inbox over a zeroed page and, for a worker, its slots. `clock` is where the worker begins.
    ///
    /// # Panics
    /// If a region is shorter than the geometry needs; both are the owner's own.
    pub fn new(page: MemoryRegion, slots: Option<(PayloadMemory, SlotGeometry)>, clock: Clock) -> PeerInbox {
        let count = slots.as_ref().map_or(0, |(_, geometry)| geometry.slots);
        assert!(page.len() >= Self::page_bytes(count), "page too short");
        if let Some((memory, geometry)) = &slots {
            assert!(geometry.is_sound() && memory.len() as u64 >= geometry.bytes(), "slots too short");
        }
        // The one word of the page that the owner writes, before the peer knows of it.
        page.as_volatile().store(inbox::PUBLISHED, clock.get(), Relaxed);
        PeerInbox { page, slots }
    }

    /// True if there is no other clone of it, and nothing else has its page.
    pub(crate) fn is_unshared(&self) -> bool {
        self.page.is_unshared()
    }

    /// Gradients of clocks before this one are announced.
    pub fn published(&self) -> Clock {
        // Acquire: the slot's header and payload were written before the announcement.
        Clock::new(self.page.as_volatile().load(inbox::PUBLISHED, ordering!("published_acquire", Acquire)))
    }

    /// Chunks that have landed of the gradient of `clock`, which may not be announced yet.
    pub fn landed(&self, clock: Clock) -> usize {
        // Acquire: the chunks were written before they were counted.
        let landed = self.page.as_volatile().load(inbox::LANDED, ordering!("landed_acquire", Acquire));
        landed_chunks(landed, clock.get())
    }

    /// Returns the newest version that the peer says it holds, if it has said so. The number is unchecked.
    pub fn held(&self) -> Option<Version> {
        let word = self.page.as_volatile().load(inbox::HELD, Relaxed);
        word.checked_sub(1).map(Version::new)
    }

    /// Returns the number of decisions that the follower says it has taken. The number is unchecked.
    pub fn followed(&self) -> u64 {
        // Acquire: the follower's reads of the entries come before they are overwritten.
        self.page.as_volatile().load(inbox::FOLLOWED, ordering!("followed_acquire", Acquire))
    }

    /// The peer's heartbeat: changes while the peer lives.
    pub fn heartbeat(&self) -> u64 {
        self.page.as_volatile().load(inbox::HEARTBEAT, Relaxed)
    }

    /// Returns how often the peer says that it has gone to sleep, each time until it is woken: after
    /// [`fence_before_waking`](super::fence_before_waking). The number is unchecked.
    pub fn sleeps(&self) -> u64 {
        self.page.as_volatile().load(inbox::SLEEPS, Relaxed)
    }

    /// Returns whether the peer pins `frame`.
    pub fn pins(&self, frame: u8) -> bool {
        frames::pins(&self.page.as_volatile().subslice(inbox::PIN, 8), frame)
    }

    /// Returns whether the peer reads `frame` in place; a peer that pins it for a copy does not have it yet.
    pub fn reads_in_place(&self, frame: u8) -> bool {
        self.page.as_volatile().load(inbox::PIN, Relaxed) == u64::from(frame) + 1
    }

    /// Returns the layout of the slots, for a worker.
    pub fn slot_geometry(&self) -> Option<&SlotGeometry> {
        self.slots.as_ref().map(|(_, geometry)| geometry)
    }

    /// The payload of the gradient of `clock`, where it lies.
    pub fn payload(&self, clock: Clock) -> Option<PayloadSlice> {
        let (memory, geometry) = self.slots.as_ref()?;
        let offset = geometry.stride() as usize * geometry.slot_of(clock);
        memory.slice(offset, geometry.payload_bytes() as usize).ok()
    }

    /// Header of the announced gradient of `clock`, if it is valid.
    pub fn header(&self, clock: Clock, epoch: u64) -> Result<SlotHeader, SlotFault> {
        let (_, geometry) = self.slots.as_ref().ok_or(SlotFault::Length)?;
        let header = self.line(clock).ok_or(SlotFault::Length)?;
        if header.epoch != epoch && !mutant!("epoch") {
            return Err(SlotFault::Epoch);
        }
        if header.clock != clock {
            return Err(SlotFault::Clock);
        }
        if header.bytes != geometry.payload_bytes() {
            return Err(SlotFault::Length);
        }
        if header.encoding != encoding_word(geometry.encoding) {
            return Err(SlotFault::Encoding);
        }
        if header.checksum != 0 {
            let payload = self.payload(clock).ok_or(SlotFault::Length)?;
            let payload = payload.host().ok_or(SlotFault::OnGpu)?;
            if slot_checksum(&header, payload.as_volatile()) != header.checksum {
                return Err(SlotFault::Checksum);
            }
        }
        Ok(header)
    }

    /// Header of the announced gradient of `clock`, which [`header`](Self::header) has found valid before; `None` if
    /// the peer has overwritten it since.
    pub fn header_again(&self, clock: Clock, epoch: u64) -> Option<SlotHeader> {
        self.line(clock).filter(|header| header.clock == clock && header.epoch == epoch)
    }

    fn line(&self, clock: Clock) -> Option<SlotHeader> {
        let (_, geometry) = self.slots.as_ref()?;
        let line = self.page.as_volatile().subslice(inbox::slot_header(geometry.slot_of(clock)), LINE);
        Some(SlotHeader::from_words(std::array::from_fn(|index| line.load(index * 8, Relaxed))))
    }
}

/// CRC-64 over epoch, clock, bytes, the number of other workers and payload; never 0, which stands for "none".
pub(super) fn slot_checksum(header: &SlotHeader, payload: VolatileSlice<'_>) -> u64 {
    let mut seed = [0; 32];
    let words = [header.epoch, header.clock.get(), header.bytes, u64::from(header.others)];
    for (bytes, word) in seed.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let seed = kernel::crc64(VolatileSlice::from_ref(&seed), 0);
    kernel::crc64(payload, seed).max(1)
}
