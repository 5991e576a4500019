//! The offset of each word, and the headers. Pure: no memory.
//!
//! All words are little-endian u64, aligned to 8 bytes, each with one kind of writer. Words of different writers lie
//! on different cache lines.

use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Version, VersionTag};
use crate::scheme::SchemeConfig;
use crate::table::Encoding;

/// Version of the layout and of the handshake. Peers of different versions refuse each other.
pub const LAYOUT_VERSION: u64 = 13;

/// First word of a control page: "SLACKLIN" in ASCII.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"SLACKLIN");

/// One cache line, and one header.
pub(super) const LINE: usize = 64;

const PAGE: usize = crate::mem::PAGE_SIZE;

/// Most frames: the index must fit a byte of [`Latest`].
pub(super) const MAX_FRAMES: usize = 255;

/// Most chunks of a shard: the count must fit the low bits of the landed word.
pub(super) const MAX_CHUNKS: usize = (1 << LANDED_BITS) - 1;

const LANDED_BITS: u32 = 24;

/// The latest version and the frame that holds it, in one word, so that both change at once.
///
/// The low 8 bits are the frame, the others the version (2^56 versions: at a million a second, 2,000 years).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latest {
    /// The version.
    pub version: Version,
    /// Index of its frame.
    pub frame: u8,
}

impl Latest {
    /// The largest version that fits the word.
    pub const VERSION_MAX: Version = Version::new((1 << 56) - 1);

    /// Stands in a page that nothing was pushed to yet.
    pub const NONE: Latest = Latest { version: Version::new(0), frame: u8::MAX };

    /// Packs the two into a word.
    pub fn to_word(self) -> u64 {
        self.version.get() << 8 | u64::from(self.frame)
    }

    /// Reads the two from a word.
    pub fn from_word(word: u64) -> Latest {
        Latest { version: Version::new(word >> 8), frame: word as u8 }
    }
}

/// The layout of a shard's control page: two lines, then a line per peer, then a header per frame, then for each
/// frame a word per peer, rounded up to whole lines, then a label per frame.
///
/// ```text
/// line 0      magic, layout version, epoch, frames, payload bytes, chunk bytes, peers, 0     server, once
/// line 1      latest, smallest clock, writing, heartbeat, workers, 0...                      server
/// line 2+i    peer i: consumed clock, interrupt, generation, state, 0...                     server
/// headers     frame f: see FrameHeader                                                       server
/// included    frame f, peer i: f holds i's gradients of clocks before this one               server
/// labels      frame f: see FrameLabel                                                        server
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlLayout {
    /// Number of peers for which there is room.
    pub peers: u16,
    /// Number of frames.
    pub frames: u8,
}

impl ControlLayout {
    /// Line 1, which readers poll.
    pub(super) const STATUS: usize = LINE;
    pub(super) const LATEST: usize = LINE;
    pub(super) const SMALLEST_CLOCK: usize = LINE + 8;
    pub(super) const WRITING: usize = LINE + 16;
    pub(super) const HEARTBEAT: usize = LINE + 24;
    pub(super) const WORKERS: usize = LINE + 32;

    pub(super) fn peer_line(&self, peer: u16) -> usize {
        (2 + usize::from(peer)) * LINE
    }

    pub(crate) fn frame_header(&self, frame: u8) -> usize {
        (2 + usize::from(self.peers) + usize::from(frame)) * LINE
    }

    /// The word that says which gradients of `peer` a frame holds.
    pub(super) fn included(&self, frame: u8, peer: u16) -> usize {
        self.frame_header(self.frames) + usize::from(frame) * self.included_bytes() + usize::from(peer) * 8
    }

    fn included_bytes(&self) -> usize {
        (usize::from(self.peers) * 8).next_multiple_of(LINE)
    }

    /// The label of a frame.
    pub(super) fn label(&self, frame: u8) -> usize {
        self.included(self.frames, 0) + usize::from(frame) * LINE
    }

    /// Bytes of the control page.
    pub fn bytes(&self) -> usize {
        self.label(self.frames).next_multiple_of(PAGE)
    }
}

/// Offsets in a peer's line of the control page.
pub(super) mod peer_line {
    pub(crate) const CONSUMED: usize = 0;
    pub(crate) const INTERRUPT: usize = 8;
    pub(crate) const GENERATION: usize = 16;
    pub(crate) const STATE: usize = 24;

    pub(crate) const STATE_MEMBER: u64 = 1;
    /// The peer is gone: it left, was silent for longer than the lease, or broke the protocol.
    pub(crate) const STATE_LEFT: u64 = 2;
    pub(crate) const STATE_SILENT: u64 = 3;
    pub(crate) const STATE_MISBEHAVED: u64 = 4;
}

/// Offsets in a peer's inbox: the page that this one peer writes.
///
/// ```text
/// line 0      published clock, landed chunks, held version + 1      worker
///             decisions taken                                       follower
/// line 1      heartbeat                                             worker
/// line 2      pin, how often it slept                               reader, worker
/// line 3+d    header of slot d                                      worker
/// ```
pub(super) mod inbox {
    use super::LINE;

    pub(crate) const PUBLISHED: usize = 0;
    pub(crate) const LANDED: usize = 8;
    pub(crate) const HELD: usize = 16;
    pub(crate) const FOLLOWED: usize = 24;
    pub(crate) const HEARTBEAT: usize = LINE;
    pub(crate) const PIN: usize = 2 * LINE;
    pub(crate) const SLEEPS: usize = 2 * LINE + 8;

    /// In the pin of a peer that copies the frame, and does not read it where it lies.
    pub(crate) const COPIES: u64 = 1 << 63;

    pub(crate) fn slot_header(slot: usize) -> usize {
        (3 + slot) * LINE
    }

    pub(crate) fn bytes(slots: usize) -> usize {
        ((3 + slots) * LINE).next_multiple_of(super::PAGE)
    }
}

/// Packs an attempt and the number of its chunks that have landed into one word that only grows. `attempt` is a
/// gradient's clock, or the sequence of a frame that is being written. Without it a count left over from an earlier
/// attempt could be taken for this one's.
pub(super) fn landed_word(attempt: u64, chunks: usize) -> u64 {
    attempt << LANDED_BITS | chunks as u64
}

/// Returns the number of chunks of `attempt` that have landed as far as `word` says; none if it speaks of another
/// attempt.
pub(super) fn landed_chunks(word: u64, attempt: u64) -> usize {
    let of_another = word >> LANDED_BITS != attempt << LANDED_BITS >> LANDED_BITS;
    if !of_another || mutant!("landed_attempt") { (word & ((1 << LANDED_BITS) - 1)) as usize } else { 0 }
}

/// The layout of a shard's frames in their region: one after the other, each beginning on a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameGeometry {
    /// Number of frames.
    pub frames: u8,
    /// Bytes of payload in each.
    pub payload_bytes: u64,
    /// Bytes of one chunk of it; the last may be shorter. A multiple of a cache line.
    pub chunk_bytes: u64,
}

impl FrameGeometry {
    /// Bytes from the begin of one frame to the begin of the next.
    pub fn stride(&self) -> u64 {
        self.payload_bytes.next_multiple_of(PAGE as u64)
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.stride() * u64::from(self.frames)
    }

    /// Chunks in one frame.
    pub fn chunks(&self) -> usize {
        self.payload_bytes.div_ceil(self.chunk_bytes) as usize
    }

    /// True if nothing in it overflows, divides by zero or is larger than its word. To be asked of a geometry that a
    /// peer sent before anything is computed from it.
    pub fn is_sound(&self) -> bool {
        self.frames >= 2
            && usize::from(self.frames) <= MAX_FRAMES
            && (1..=1 << 48).contains(&self.payload_bytes)
            && self.chunk_bytes >= LINE as u64
            && self.chunk_bytes <= 1 << 48
            && self.chunk_bytes.is_multiple_of(LINE as u64)
            && self.chunks() <= MAX_CHUNKS
    }
}

/// The layout of a worker's slots in their region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotGeometry {
    /// Number of slots.
    pub slots: u16,
    /// The encoding of the gradients' elements.
    pub encoding: Encoding,
    /// Elements of one gradient.
    pub elements: u64,
    /// Elements of one chunk; the last may be shorter. As many as a frame's chunk has.
    pub chunk_elements: u64,
}

impl SlotGeometry {
    /// Bytes of one gradient.
    pub fn payload_bytes(&self) -> u64 {
        self.elements * self.encoding.bytes() as u64
    }

    /// Bytes from the begin of one slot to the begin of the next.
    pub fn stride(&self) -> u64 {
        self.payload_bytes().next_multiple_of(PAGE as u64)
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.stride() * u64::from(self.slots)
    }

    /// Bytes of one chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_elements * self.encoding.bytes() as u64
    }

    /// Chunks in one gradient.
    pub fn chunks(&self) -> usize {
        self.elements.div_ceil(self.chunk_elements) as usize
    }

    /// As [`FrameGeometry::is_sound`].
    pub fn is_sound(&self) -> bool {
        (1..=SchemeConfig::SLOTS_MAX).contains(&self.slots)
            && (1..=1 << 46).contains(&self.elements)
            && (1..=1 << 46).contains(&self.chunk_elements)
            && self.chunks() <= MAX_CHUNKS
    }

    /// The slot that the gradient of `clock` goes to.
    pub fn slot_of(&self, clock: Clock) -> usize {
        (clock.get() % u64::from(self.slots)) as usize
    }
}

/// Header of a frame: eight words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameHeader {
    /// Odd while the frame is being written, even when it is whole; never the same twice in one frame
    /// except when a frame that was about to be written turns out to be pinned.
    pub sequence: u64,
    /// Version of the payload.
    pub version: Version,
    /// Incarnation of the server that wrote it.
    pub epoch: u64,
    /// Bytes of the payload.
    pub bytes: u64,
    /// CRC-64 over epoch, version, bytes and payload, or 0 where it is not asked for.
    pub checksum: u64,
    /// The payload holds all gradients of clocks before this one.
    pub smallest_clock: Clock,
    /// In a frame that was pushed to a worker: it holds this worker's gradients of clocks before this one. In an
    /// owner's own frames 0: there each peer has a word of its own.
    pub included: Clock,
    /// The attempt at the frame (its odd sequence) and the number of chunks that are whole already, in one word.
    /// Changes while the frame is being written.
    pub landed: u64,
}

impl FrameHeader {
    pub(super) const SEQUENCE: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const SMALLEST_CLOCK: usize = 40;
    pub(super) const LANDED: usize = 56;

    /// Chunks that are whole while the frame is being written.
    pub(super) fn landed_chunks(&self) -> usize {
        landed_chunks(self.landed, self.sequence)
    }

    /// True if `self` and `later` describe the same whole payload.
    ///
    /// Words of one look are read in any order: the words of the first look may be older than its sequence, the words
    /// of the later look newer. An included clock that both found is this payload's, since it never goes back.
    pub(super) fn same_payload(&self, later: &FrameHeader) -> bool {
        let essence = |h: &FrameHeader| (h.sequence, h.version, h.epoch, h.bytes, h.checksum, h.included);
        essence(self) == essence(later)
    }

    /// Packs the header into words.
    pub fn to_words(self) -> [u64; 8] {
        [
            self.sequence,
            self.version.get(),
            self.epoch,
            self.bytes,
            self.checksum,
            self.smallest_clock.get(),
            self.included.get(),
            self.landed,
        ]
    }

    /// Reads the header from words.
    pub fn from_words(words: [u64; 8]) -> FrameHeader {
        FrameHeader {
            sequence: words[0],
            version: Version::new(words[1]),
            epoch: words[2],
            bytes: words[3],
            checksum: words[4],
            smallest_clock: Clock::new(words[5]),
            included: Clock::new(words[6]),
            landed: words[7],
        }
    }

    /// True if the frame is whole as far as its header says.
    pub fn is_whole(&self) -> bool {
        self.sequence.is_multiple_of(2)
    }
}

/// The owner's words about a version for its readers, beside its bytes: eight words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameLabel {
    /// The user's own words.
    pub tag: VersionTag,
    /// The time of the commit in nanoseconds since 1970, by the clock of the publisher's host; 0 if none was written.
    pub published_ns: u64,
    /// The incarnation of the publisher that made the version: another one than the owner's where the owner only
    /// passes it on.
    pub origin: u64,
}

impl FrameLabel {
    /// Packs the label into words: step, time, origin, the four of the text, 0.
    pub fn to_words(self) -> [u64; 8] {
        let mut words = [self.tag.step, self.published_ns, self.origin, 0, 0, 0, 0, 0];
        for (word, bytes) in words[3..].iter_mut().zip(self.tag.label.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    }

    /// Reads the label from words.
    pub fn from_words(words: [u64; 8]) -> FrameLabel {
        let mut label = [0; 32];
        for (bytes, word) in label.as_chunks_mut::<8>().0.iter_mut().zip(&words[3..]) {
            *bytes = word.to_le_bytes();
        }
        let tag = VersionTag { step: words[0], label };
        FrameLabel { tag, published_ns: words[1], origin: words[2] }
    }
}

/// Header of a slot: eight words.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlotHeader {
    /// The clock that the gradient belongs to.
    pub clock: Clock,
    /// The version it was computed from.
    pub base: Version,
    /// Incarnation of the server it was meant for.
    pub epoch: u64,
    /// Bytes of the payload.
    pub bytes: u64,
    /// Encoding of the payload: 0 f32, 1 bf16, 2 f16.
    pub encoding: u64,
    /// Workers beside this one whose gradients are in the sum: 0, except for a worker that stands for its host.
    pub others: u32,
    /// CRC-64 over epoch, clock, bytes, `others` and payload, or 0 where it is not asked for.
    pub checksum: u64,
    /// The worker's loss on its batch, if it told one.
    pub loss: Option<f32>,
    /// The largest magnitude of the gradient's elements, if the worker measured it.
    pub magnitude: Option<f32>,
}

impl SlotHeader {
    /// Packs the header into words.
    pub fn to_words(self) -> [u64; 8] {
        let word = |value: Option<f32>| value.map_or(0, |value| 1 << 32 | u64::from(value.to_bits()));
        let (loss, magnitude) = (word(self.loss), word(self.magnitude));
        [
            self.clock.get(),
            self.base.get(),
            self.epoch,
            self.bytes,
            u64::from(self.others) << 32 | self.encoding,
            self.checksum,
            loss,
            magnitude,
        ]
    }

    /// Reads the header from words.
    pub fn from_words(words: [u64; 8]) -> SlotHeader {
        let value = |word: u64| (word >> 32 == 1).then(|| f32::from_bits(word as u32));
        SlotHeader {
            clock: Clock::new(words[0]),
            base: Version::new(words[1]),
            epoch: words[2],
            bytes: words[3],
            encoding: u64::from(words[4] as u32),
            others: (words[4] >> 32) as u32,
            checksum: words[5],
            loss: value(words[6]),
            magnitude: value(words[7]),
        }
    }
}

/// The number that stands for an encoding in a slot header.
pub(super) fn encoding_word(encoding: Encoding) -> u64 {
    match encoding {
        Encoding::F32 => 0,
        Encoding::Bf16 => 1,
        Encoding::F16 => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_protocol_names_this_layout() {
        let page = include_str!("../../docs/protocol.md");
        assert!(page.contains(&format!("version: {LAYOUT_VERSION}; it stands in the control page")));
    }

    #[test]
    fn headers_and_words_round_trip() {
        let latest = Latest { version: Version::new((1 << 56) - 1), frame: 255 };
        assert_eq!(Latest::from_word(latest.to_word()), latest);

        let frame = FrameHeader {
            sequence: 3,
            version: Version::new(9),
            epoch: 77,
            bytes: 4096,
            checksum: 1,
            smallest_clock: Clock::new(4),
            included: Clock::new(5),
            landed: 12,
        };
        assert_eq!(FrameHeader::from_words(frame.to_words()), frame);

        let tag = VersionTag { step: 1, label: std::array::from_fn(|index| index as u8 + 1) };
        let label = FrameLabel { tag, published_ns: 2, origin: u64::MAX };
        assert_eq!(FrameLabel::from_words(label.to_words()), label);

        for loss in [None, Some(0.0), Some(-1.5)] {
            let slot = SlotHeader { clock: Clock::new(1), epoch: 5, loss, ..SlotHeader::default() };
            assert_eq!(SlotHeader::from_words(slot.to_words()), slot);
            let slot = SlotHeader { magnitude: loss, encoding: 2, others: u32::MAX, ..SlotHeader::default() };
            assert_eq!(SlotHeader::from_words(slot.to_words()), slot);
        }
        assert_eq!(landed_chunks(landed_word(7, 96), 7), 96);
        assert_eq!(landed_chunks(landed_word(7, 96), 8), 0);
    }

    #[test]
    fn words_of_different_writers_lie_on_different_lines() {
        let layout = ControlLayout { peers: 3, frames: 3 };
        let mut lines = vec![0, ControlLayout::STATUS / LINE];
        lines.extend((0..3).map(|peer| layout.peer_line(peer) / LINE));
        lines.extend((0..3).map(|frame| layout.frame_header(frame) / LINE));
        lines.extend((0..3).map(|frame| layout.included(frame, 0) / LINE));
        lines.extend((0..3).map(|frame| layout.label(frame) / LINE));
        let mut distinct = lines.clone();
        distinct.dedup();
        assert_eq!(lines, distinct);
        assert!(layout.bytes() >= (lines.len()) * LINE);
        let many = ControlLayout { peers: 65, frames: 2 };
        assert_eq!(many.included(1, 0), many.included(0, 64) + LINE, "a frame's words fill whole lines");
        assert!(many.included(1, 64) + 8 <= many.bytes());
        assert_ne!(inbox::PUBLISHED / LINE, inbox::HEARTBEAT / LINE);
        assert_ne!(inbox::HEARTBEAT / LINE, inbox::PIN / LINE);
    }

    #[test]
    fn geometries_that_overflow_are_not_sound() {
        let good = FrameGeometry { frames: 3, payload_bytes: 100, chunk_bytes: 64 };
        assert!(good.is_sound());
        for bad in [
            FrameGeometry { frames: 1, ..good },
            FrameGeometry { payload_bytes: 0, ..good },
            FrameGeometry { payload_bytes: u64::MAX, ..good },
            FrameGeometry { chunk_bytes: 0, ..good },
            FrameGeometry { chunk_bytes: 65, ..good },
            FrameGeometry { payload_bytes: 1 << 40, ..good },
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
        let good = SlotGeometry { slots: 2, encoding: Encoding::F32, elements: 10, chunk_elements: 4 };
        assert!(good.is_sound());
        for bad in [
            SlotGeometry { slots: 0, ..good },
            SlotGeometry { elements: u64::MAX, ..good },
            SlotGeometry { chunk_elements: 0, ..good },
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
    }
}
