//! The frames of a shard as their owner writes them.

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use super::delta::{Deltas, PendingDelta, WrittenDelta};
use super::layout::{
    ControlLayout, FrameGeometry, FrameHeader, FrameLabel, LAYOUT_VERSION, LINE, Latest, MAGIC, inbox,
    landed_word, peer_line,
};
use super::own_page::Eviction;
use crate::clock::{Clock, Version};
use crate::kernel;
use crate::mem::{LocalSlice, MemoryRegion, fence};
use crate::transport::{PayloadMemory, PayloadSlice};

/// A frame is pinned by a reader and may not be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned;

/// The checksum of a version that is whole in its frame and is committed next, before it is computed.
#[derive(Debug)]
pub struct PendingChecksum {
    header: FrameHeader,
    payload: LocalSlice,
}

impl PendingChecksum {
    /// Computes it: one pass over the version.
    pub fn compute(&self) -> u64 {
        frame_checksum(&self.header, &self.payload)
    }
}

/// The word in which the writers of one frame say how much of it is whole.
#[derive(Clone, Debug)]
pub struct Progress {
    word: LocalSlice,
    sequence: u64,
}

impl Progress {
    /// The first `chunks` chunks are whole; all stores into them precede this one. The count never goes back, so that
    /// several threads may raise it, and a late thread of an abandoned attempt has no effect.
    pub fn raise(&self, chunks: usize) {
        self.word.as_volatile().raise(0, landed_word(self.sequence, chunks));
    }
}

/// The control page and the frames of one shard, in the hands of their owner: the only writer of every word here.
///
/// Writing a version is [`begin`](Self::begin), fill the payload, [`commit`](Self::commit), in a frame that is not
/// the latest one and that no reader pins. In between, a reader that still copies this frame finds its header
/// changed.
#[derive(Debug)]
pub struct Frames {
    control: MemoryRegion,
    payload: PayloadMemory,
    layout: ControlLayout,
    geometry: FrameGeometry,
    epoch: u64,
    latest: Latest,
    checksums: bool,
    deltas: Option<Deltas>,
}

impl Frames {
    /// Lays out a zeroed control page, and frame 0 as version 0: its payload is the current content of `payload`.
    ///
    /// # Panics
    /// If the regions are shorter than the layout needs or the geometry is not sound; both are the owner's own.
    pub fn new(
        control: MemoryRegion,
        payload: impl Into<PayloadMemory>,
        layout: ControlLayout,
        geometry: FrameGeometry,
        epoch: u64,
    ) -> Frames {
        let payload = payload.into();
        assert!(
            geometry.is_sound() && layout.frames == geometry.frames,
            "frames that cannot be: {geometry:?}"
        );
        assert!(
            control.len() >= layout.bytes() && payload.len() as u64 >= geometry.bytes(),
            "regions too short"
        );
        let latest = Latest { version: Version::new(0), frame: 0 };
        let (checksums, deltas) = (false, None);
        let frames = Frames { control, payload, layout, geometry, epoch, latest, checksums, deltas };
        let constants = [
            MAGIC,
            LAYOUT_VERSION,
            epoch,
            u64::from(layout.frames),
            geometry.payload_bytes,
            geometry.chunk_bytes,
            u64::from(layout.peers),
            0,
        ];
        let memory = frames.control.as_volatile();
        for (index, word) in constants.into_iter().enumerate() {
            memory.store(index * 8, word, Relaxed);
        }
        frames
            .write_header(0, FrameHeader { bytes: geometry.payload_bytes, epoch, ..FrameHeader::default() });
        memory.store(ControlLayout::LATEST, latest.to_word(), Release);
        frames
    }

    /// Whether each payload has a checksum: one more pass over it, which [`commit`](Self::commit) makes unless
    /// [`set_checksum`](Self::set_checksum) has told it. Payloads on a GPU have none.
    pub fn set_checksums(&mut self, on: bool) {
        self.checksums = on;
    }

    /// Keeps the differences between successive versions from now on.
    pub fn set_deltas(&mut self, deltas: Deltas) {
        self.deltas = Some(deltas);
    }

    /// Returns the differences, where they are kept.
    pub fn deltas(&self) -> Option<&Deltas> {
        self.deltas.as_ref()
    }

    /// Begins the difference from the latest version to the whole version in `frame`, which is then committed; `None`
    /// where no differences are kept, as on a GPU.
    pub fn begin_delta(&mut self, frame: u8, version: Version) -> Option<PendingDelta> {
        let (before, after) = (self.host_payload(self.latest.frame)?, self.host_payload(frame)?);
        Some(self.deltas.as_mut()?.begin(before, after, version))
    }

    /// The difference of the version that is committed next.
    pub fn set_delta(&mut self, delta: WrittenDelta) {
        if let Some(deltas) = &mut self.deltas {
            deltas.set_written(delta);
        }
    }

    /// Begins the checksum of the version that is whole in `frame`, which is then committed; `None` where there are
    /// none, as on a GPU.
    pub fn begin_checksum(&self, frame: u8) -> Option<PendingChecksum> {
        let payload = self.host_payload(frame).filter(|_| self.checksums)?;
        Some(PendingChecksum { header: self.header(frame), payload })
    }

    /// The checksum of the version that is whole in `frame`: its [`commit`](Self::commit) computes none.
    pub fn set_checksum(&mut self, frame: u8, checksum: u64) {
        assert_ne!(frame, self.latest.frame, "the latest frame is never written");
        // Between the sequence's marks, as the payload is. The next version in this frame begins without one.
        self.write_header(frame, FrameHeader { checksum, ..self.header(frame) });
    }

    /// Makes frame 0 `version`, of a shard that goes on from another incarnation: before
    /// [`seal_initial`](Self::seal_initial).
    pub fn set_initial(&mut self, version: Version, smallest_clock: Clock) {
        let header = FrameHeader { version, smallest_clock, ..self.header(self.latest.frame) };
        self.write_header(self.latest.frame, header);
        self.latest.version = version;
        let memory = self.control.as_volatile();
        memory.store(ControlLayout::LATEST, self.latest.to_word(), Release);
        memory.store(ControlLayout::SMALLEST_CLOCK, smallest_clock.get(), Release);
    }

    /// Completes the first version once its payload is in place: before the first peer joins.
    pub fn seal_initial(&mut self) {
        let mut header = self.header(self.latest.frame);
        if self.checksums {
            header.checksum = self.checksum(self.latest.frame, &header);
        }
        self.write_header(self.latest.frame, header);
    }

    /// Has no reader take the first version, which is no owner's: before the first peer joins.
    pub(crate) fn withhold_initial(&mut self) {
        let frame = self.latest.frame;
        self.write_header(frame, FrameHeader { sequence: 1, ..self.header(frame) });
    }

    /// Returns the layout of the frames.
    pub fn geometry(&self) -> &FrameGeometry {
        &self.geometry
    }

    /// Returns the layout of the control page.
    pub fn layout(&self) -> &ControlLayout {
        &self.layout
    }

    /// This incarnation of the owner.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The version that readers find now, and its frame.
    pub fn latest(&self) -> Latest {
        self.latest
    }

    /// The control page's region.
    pub fn control(&self) -> &MemoryRegion {
        &self.control
    }

    /// The frames' memory.
    pub fn memory(&self) -> &PayloadMemory {
        &self.payload
    }

    /// The payload of one frame, if it is in host memory.
    pub fn host_payload(&self, frame: u8) -> Option<LocalSlice> {
        self.payload(frame).host().cloned()
    }

    /// The payload of one frame.
    pub fn payload(&self, frame: u8) -> PayloadSlice {
        let offset = self.geometry.stride() * u64::from(frame);
        let slice = self.payload.slice(offset as usize, self.geometry.payload_bytes as usize);
        slice.expect("the constructor checked that the region holds all frames")
    }

    /// Returns the word in which to say how many chunks of `frame`, which is being written, are whole.
    pub fn progress(&self, frame: u8) -> Progress {
        let offset = self.layout.frame_header(frame) + FrameHeader::LANDED;
        let word = self.control.slice(offset, 8).expect("inside the control page");
        Progress { word, sequence: self.header(frame).sequence }
    }

    /// Begins to write `version` into a frame that is neither the latest nor pinned; `is_pinned` is asked by frame.
    /// Returns which frame it is, or [`Pinned`] if there is none.
    pub fn begin(&mut self, version: Version, is_pinned: impl Fn(u8) -> bool) -> Result<u8, Pinned> {
        for step in 1..self.geometry.frames {
            let frame =
                ((u16::from(self.latest.frame) + u16::from(step)) % u16::from(self.geometry.frames)) as u8;
            if !is_pinned(frame) && self.mark(frame, version, &is_pinned) {
                return Ok(frame);
            }
        }
        Err(Pinned)
    }

    /// Marks a frame as being written. False, with the frame as it was, if a pin came in between.
    fn mark(&self, frame: u8, version: Version, is_pinned: &impl Fn(u8) -> bool) -> bool {
        let header_at = self.layout.frame_header(frame);
        let memory = self.control.as_volatile();
        let before = memory.load(header_at + FrameHeader::SEQUENCE, Relaxed);
        let odd = if before.is_multiple_of(2) { before + 1 } else { before + 2 };
        memory.store(header_at + FrameHeader::SEQUENCE, odd, Relaxed);
        // Dekker's pattern with `Pins::hold`: here the sequence is stored and the pins are loaded, there the pin is
        // stored and the sequence loaded, with a full fence between store and load on both sides, so that at least
        // one of the two sees the other. The same fence keeps the payload's stores (by a CPU, past its caches or not)
        // behind the odd sequence.
        if !mutant!("begin_fence") {
            fence(SeqCst);
        }
        if is_pinned(frame) {
            memory.store(header_at + FrameHeader::SEQUENCE, before, Release);
            return false;
        }
        let header = FrameHeader {
            sequence: odd,
            version,
            epoch: self.epoch,
            bytes: self.geometry.payload_bytes,
            ..FrameHeader::default()
        };
        self.write_header(frame, header);
        // Followers learn where to look; after the header, so that they never follow an old one.
        memory.store(
            ControlLayout::WRITING,
            Latest { version, frame }.to_word(),
            ordering!("writing_release", Release),
        );
        true
    }

    /// Begins to write the frame from the start again: the chunks that followers have copied are void.
    pub fn restart(&mut self, frame: u8, version: Version) {
        assert_ne!(frame, self.latest.frame, "the latest frame is never written");
        if mutant!("restart") {
            return;
        }
        // No reader can pin a frame that is being written, so none needs to be asked.
        let marked = self.mark(frame, version, &|_| false);
        debug_assert!(marked);
    }

    /// Gives up a frame that is being written: its content becomes no version, the latest stays the latest, and another
    /// frame may be begun for the same version.
    pub fn abandon(&mut self, frame: u8) {
        assert_ne!(frame, self.latest.frame, "the latest frame is never written");
        let memory = self.control.as_volatile();
        memory.store(ControlLayout::WRITING, 0, Release);
        // The sequence stays odd, so that no reader takes the frame. A follower that waits for its version finds
        // another one there, and looks at the status again; it would otherwise wait until this frame is begun again.
        let header_at = self.layout.frame_header(frame);
        memory.store(header_at + FrameHeader::VERSION, 0, Release);
    }

    /// Lends the frames to another writer, which writes all words of versions and of their headers from here on, and
    /// says which is the latest; this one publishes no more. Returns where in the control page the word is that names
    /// the latest, and where the headers begin.
    pub fn lend(&mut self) -> (usize, usize) {
        let label = self.label(self.latest.frame);
        for frame in (0..self.geometry.frames).filter(|frame| *frame != self.latest.frame) {
            let marked = self.mark(frame, Version::new(0), &|_| false);
            debug_assert!(marked);
            self.set_label(frame, label);
        }
        self.control.as_volatile().store(ControlLayout::WRITING, 0, Release);
        (ControlLayout::LATEST, self.layout.frame_header(0))
    }

    /// Ends writing: the frame is `version`, whole, and the latest.
    pub fn commit(&mut self, frame: u8, version: Version, smallest_clock: Clock) {
        assert_ne!(frame, self.latest.frame, "the latest frame is never written");
        let memory = self.control.as_volatile();
        let mut header = self.header(frame);
        debug_assert!(!header.is_whole() && header.version == version);
        header.smallest_clock = smallest_clock;
        header.landed = landed_word(header.sequence, self.geometry.chunks());
        if self.checksums && header.checksum == 0 {
            #[cfg(test)]
            COMPUTED_BY_COMMITS.with(|computed| computed.set(computed.get() + 1));
            header.checksum = self.checksum(frame, &header);
        }
        // The payload comes before the header: a follower that finds all chunks landed copies at once, and takes the
        // copy for whole as soon as the sequence is even.
        if !mutant!("commit_fence") {
            fence(Release);
        }
        self.write_header(frame, header);
        // The rest of the header comes before the even sequence.
        let even = header.sequence + 1;
        let sequence_at = self.layout.frame_header(frame) + FrameHeader::SEQUENCE;
        memory.store(sequence_at, even, ordering!("even_release", Release));
        let label = self.label(frame);
        // Numbers of different publishers mean different versions.
        let base = (self.latest.version, self.label(self.latest.frame).origin == label.origin);
        if let Some(deltas) = &mut self.deltas {
            deltas.commit(&header, base, label);
        }
        let memory = self.control.as_volatile();
        self.latest = Latest { version, frame };
        // The frame is whole before it is announced.
        memory.store(ControlLayout::LATEST, self.latest.to_word(), ordering!("latest_release", Release));
        memory.store(ControlLayout::SMALLEST_CLOCK, smallest_clock.get(), Release);
        memory.store(ControlLayout::WRITING, 0, Release);
    }

    /// Announces a smallest clock that moved without a new version (a worker left, a gradient was dropped). The
    /// latest frame holds all earlier clocks of the workers that are in, so its header says so, too.
    pub fn set_smallest_clock(&mut self, smallest_clock: Clock) {
        let memory = self.control.as_volatile();
        // A single word of a whole frame's header: readers take the old or the new one, both are true.
        let header_at = self.layout.frame_header(self.latest.frame);
        memory.store(header_at + FrameHeader::SMALLEST_CLOCK, smallest_clock.get(), Release);
        memory.store(ControlLayout::SMALLEST_CLOCK, smallest_clock.get(), Release);
    }

    /// Returns the smallest clock that was announced last.
    pub(crate) fn smallest_clock(&self) -> Clock {
        Clock::new(self.control.as_volatile().load(ControlLayout::SMALLEST_CLOCK, Relaxed))
    }

    /// Beats the owner's heart.
    pub fn beat(&self, count: u64) {
        self.control.as_volatile().store(ControlLayout::HEARTBEAT, count, Relaxed);
    }

    /// Says how many workers are in.
    pub fn set_workers(&self, workers: usize) {
        self.control.as_volatile().store(ControlLayout::WORKERS, workers as u64, Relaxed);
    }

    /// Header of a frame, as this owner last wrote it.
    pub fn header(&self, frame: u8) -> FrameHeader {
        let line = self.control.as_volatile().subslice(self.layout.frame_header(frame), LINE);
        FrameHeader::from_words(std::array::from_fn(|index| line.load(index * 8, Relaxed)))
    }

    fn write_header(&self, frame: u8, header: FrameHeader) {
        let line = self.control.as_volatile().subslice(self.layout.frame_header(frame), LINE);
        for (index, word) in header.to_words().into_iter().enumerate() {
            line.store(index * 8, word, Relaxed);
        }
    }

    fn checksum(&self, frame: u8, header: &FrameHeader) -> u64 {
        self.host_payload(frame).map_or(0, |payload| frame_checksum(header, &payload))
    }

    /// Opens a peer's line: it is a member from here on. No other peer of this or another incarnation has its
    /// generation.
    pub fn open_line(&self, peer: u16, clock: Clock, generation: u64) {
        let line = self.peer_line(peer);
        line.store(peer_line::GENERATION, generation, Relaxed);
        line.store(peer_line::INTERRUPT, 0, Relaxed);
        self.set_included(self.latest.frame, peer, clock);
        // A peer that had the line before and finds this clock finds the generation with its next look.
        line.store(peer_line::CONSUMED, clock.get(), Release);
        line.store(peer_line::STATE, peer_line::STATE_MEMBER, Release);
    }

    /// Tells a peer that it is no member any more, and why.
    pub fn close_line(&self, peer: u16, why: Eviction) {
        self.peer_line(peer).store(peer_line::STATE, why.state(), Release);
    }

    /// Gives a worker its slots back up to (not including) `clock`.
    pub fn set_consumed(&self, peer: u16, clock: Clock) {
        // After this store the worker may overwrite the slot: all reads of it come before.
        self.peer_line(peer).store(peer_line::CONSUMED, clock.get(), ordering!("consumed_release", Release));
    }

    /// Asks a worker to abandon a computation on any version before the latest.
    pub fn interrupt(&self, peer: u16) {
        // After the commit of the version that it names, so that a worker which sees the word finds that version.
        self.peer_line(peer).store(peer_line::INTERRUPT, self.latest.version.get(), Release);
    }

    /// Says that `frame` holds the gradients of `peer` of clocks before this one: of a frame that is being written for
    /// every worker before [`commit`](Self::commit), of the latest one when such a gradient is dropped or the peer
    /// comes.
    pub fn set_included(&self, frame: u8, peer: u16, clock: Clock) {
        // Of a frame that is being written it lies between the sequence's marks, as the payload does. Of the latest it
        // is a single word, of which a reader takes the old or the new value: both are true.
        self.control.as_volatile().store(self.layout.included(frame, peer), clock.get(), Relaxed);
    }

    /// Sets the label of `frame`, which is being written, for its readers.
    pub fn set_label(&self, frame: u8, label: FrameLabel) {
        // Between the sequence's marks, as the payload is.
        let line = self.control.as_volatile().subslice(self.layout.label(frame), LINE);
        for (index, word) in label.to_words().into_iter().enumerate() {
            line.store(index * 8, word, Relaxed);
        }
    }

    /// Label of a frame, as this owner last wrote it.
    pub fn label(&self, frame: u8) -> FrameLabel {
        let line = self.control.as_volatile().subslice(self.layout.label(frame), LINE);
        FrameLabel::from_words(std::array::from_fn(|index| line.load(index * 8, Relaxed)))
    }

    /// Returns the clock that [`set_included`](Self::set_included) has stored.
    pub fn included(&self, frame: u8, peer: u16) -> Clock {
        Clock::new(self.control.as_volatile().load(self.layout.included(frame, peer), Relaxed))
    }

    fn peer_line(&self, peer: u16) -> crate::mem::VolatileSlice<'_> {
        self.control.as_volatile().subslice(self.layout.peer_line(peer), LINE)
    }
}

/// Returns whether a pin word names `frame`. Acquire: the reader's loads before it released the pin precede the next
/// write.
pub(super) fn pins(word: &crate::mem::VolatileSlice<'_>, frame: u8) -> bool {
    word.load(0, ordering!("pins_acquire", Acquire)) & !inbox::COPIES == u64::from(frame) + 1
}

#[cfg(test)]
std::thread_local! {
    /// The checksums that commits in this thread have computed themselves.
    pub(crate) static COMPUTED_BY_COMMITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// CRC-64 over epoch, version, bytes and payload; never 0, which stands for "none".
pub(crate) fn frame_checksum(header: &FrameHeader, payload: &LocalSlice) -> u64 {
    let mut seed = [0; 24];
    for (bytes, word) in seed.chunks_exact_mut(8).zip([header.epoch, header.version.get(), header.bytes]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let seed = kernel::crc64(crate::mem::VolatileSlice::from_ref(&seed), 0);
    kernel::crc64(payload.as_volatile(), seed).max(1)
}
