//! Differences between successive versions, which a publisher keeps for readers that hold an older one.
//!
//! A difference has a slot in a region of its own: a header, a label, and the [encoded](crate::kernel::encode_delta)
//! changes from a base version to the next one. Slots are written by turns, each under a sequence of its own, as frames
//! are: odd while it is being written. `docs/protocol.md` has the layout to the byte.

mod pull;

use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use serde::{Deserialize, Serialize};

pub(crate) use self::pull::DELTA_TAG;
pub use self::pull::{DeltaPull, DeltaSource, DeltaTurn};

use super::layout::{FrameHeader, FrameLabel, LINE};
use crate::clock::Version;
use crate::kernel::encode_delta;
use crate::mem::{LocalSlice, MemoryRegion, PAGE_SIZE, VolatileSlice, fence};

/// The layout of the region of differences: a header and a label for each slot, then the slots, each beginning on a
/// page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeltaGeometry {
    /// Number of slots: differences that are kept.
    pub slots: u8,
    /// Most bytes of one of them.
    pub slot_bytes: u64,
    /// Bytes of the units that are compared: 1, 2, 4 or 8.
    pub unit: u8,
}

impl DeltaGeometry {
    /// Bytes of the headers and labels of all slots.
    pub(super) fn table_bytes(&self) -> usize {
        usize::from(self.slots) * 2 * LINE
    }

    fn stride(&self) -> u64 {
        self.slot_bytes.next_multiple_of(PAGE_SIZE as u64)
    }

    /// The begin of a slot's bytes.
    fn begin(&self, slot: u8) -> u64 {
        self.table_bytes().next_multiple_of(PAGE_SIZE) as u64 + u64::from(slot) * self.stride()
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.begin(self.slots)
    }

    /// As [`FrameGeometry::is_sound`](super::FrameGeometry::is_sound).
    pub fn is_sound(&self) -> bool {
        self.slots > 0 && (1..=1 << 48).contains(&self.slot_bytes) && matches!(self.unit, 1 | 2 | 4 | 8)
    }
}

/// Header of a slot: eight words, of which the last two are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeltaHeader {
    /// Odd while the slot is being written.
    sequence: u64,
    /// The version that the difference makes. It grows from each use of the slot to the next.
    version: Version,
    /// The version that it is applied to.
    base: Version,
    /// Incarnation of the owner that wrote it.
    epoch: u64,
    /// Bytes of the difference, or [`WHOLE_ONLY`](Self::WHOLE_ONLY).
    bytes: u64,
    /// The checksum of the whole version, as in the header of its frame.
    checksum: u64,
}

impl DeltaHeader {
    /// In `bytes`: the difference did not fit the slot, and the version is read whole.
    const WHOLE_ONLY: u64 = u64::MAX;

    /// The checksum of the whole version, if there is one.
    fn whole_checksum(self) -> Option<u64> {
        (self.checksum != 0).then_some(self.checksum)
    }

    fn to_words(self) -> [u64; 8] {
        let DeltaHeader { sequence, version, base, epoch, bytes, checksum } = self;
        [sequence, version.get(), base.get(), epoch, bytes, checksum, 0, 0]
    }

    fn from_words(words: [u64; 8]) -> DeltaHeader {
        let [sequence, version, base, epoch, bytes, checksum, ..] = words;
        DeltaHeader {
            sequence,
            version: Version::new(version),
            base: Version::new(base),
            epoch,
            bytes,
            checksum,
        }
    }
}

/// The differences of one publisher, in its own hands: the only writer of every word here.
#[derive(Debug)]
pub struct Deltas {
    region: MemoryRegion,
    geometry: DeltaGeometry,
    /// The slot that is written next.
    next: u8,
    /// The difference of the version that is being written: of which version, and how long.
    written: Option<(Version, u64)>,
}

impl Deltas {
    /// Over zeroed memory, in which no slot has a version yet.
    ///
    /// # Panics
    /// If the region is shorter than the layout needs or the geometry is not sound; both are the owner's own.
    pub fn new(region: MemoryRegion, geometry: DeltaGeometry) -> Deltas {
        assert!(
            geometry.is_sound() && region.len() as u64 >= geometry.bytes(),
            "differences that cannot be: {geometry:?}"
        );
        let deltas = Deltas { region, geometry, next: 0, written: None };
        for slot in 0..geometry.slots {
            deltas.line(slot, 0).store(0, 1, Release);
        }
        deltas
    }

    /// Returns the layout of the region.
    pub fn geometry(&self) -> &DeltaGeometry {
        &self.geometry
    }

    /// The region, for readers.
    pub fn region(&self) -> LocalSlice {
        self.region.whole()
    }

    fn line(&self, slot: u8, line: usize) -> VolatileSlice<'_> {
        self.region.as_volatile().subslice((2 * usize::from(slot) + line) * LINE, LINE)
    }

    /// Begins the difference from one payload to another: [`set_written`](Self::set_written) records the encoded bytes
    /// before the version is committed.
    pub(super) fn begin(&mut self, before: LocalSlice, after: LocalSlice, version: Version) -> PendingDelta {
        self.written = None;
        let line = self.line(self.next, 0);
        let sequence = line.load(0, Relaxed);
        line.store(0, if sequence.is_multiple_of(2) { sequence + 1 } else { sequence + 2 }, Relaxed);
        // The odd sequence comes before the first byte of the difference, as with frames.
        fence(SeqCst);
        let begin = self.geometry.begin(self.next) as usize;
        let slot = self.region.slice(begin, self.geometry.slot_bytes as usize);
        let out = slot.expect("the constructor checked that the region holds all slots");
        PendingDelta { before, after, out, version, unit: self.geometry.unit.into() }
    }

    /// The difference of the version that is being written is in its slot.
    pub(super) fn set_written(&mut self, delta: WrittenDelta) {
        self.written = Some((delta.version, delta.bytes));
    }

    /// Completes the difference of the version whose frame is whole, from `base` on. After it the version may be
    /// announced. A version of which none was written has none.
    pub(super) fn commit(
        &mut self,
        header: &FrameHeader,
        (base, is_of_base): (Version, bool),
        label: FrameLabel,
    ) {
        let Some((_, bytes)) = self.written.take().filter(|(version, _)| *version == header.version) else {
            return;
        };
        let line = self.line(self.next, 0);
        let sequence = line.load(0, Relaxed);
        let bytes = if is_of_base { bytes } else { DeltaHeader::WHOLE_ONLY };
        let FrameHeader { version, epoch, checksum, .. } = *header;
        let whole = DeltaHeader { sequence, version, base, epoch, bytes, checksum };
        fence(Release);
        for (index, word) in whole.to_words().into_iter().enumerate() {
            line.store(index * 8, word, Relaxed);
        }
        for (index, word) in label.to_words().into_iter().enumerate() {
            self.line(self.next, 1).store(index * 8, word, Relaxed);
        }
        // The difference, its header and its label come before the even sequence.
        line.store(0, sequence + 1, Release);
        self.next = (self.next + 1) % self.geometry.slots;
    }
}

/// A difference that is to be encoded: a pass over two versions, which needs nothing else of the publisher.
#[derive(Debug)]
pub struct PendingDelta {
    before: LocalSlice,
    after: LocalSlice,
    out: LocalSlice,
    version: Version,
    unit: usize,
}

/// A difference that is in its slot.
#[derive(Debug)]
pub struct WrittenDelta {
    version: Version,
    bytes: u64,
}

impl PendingDelta {
    /// Encodes it. Nobody writes either version meanwhile.
    pub fn encode(self) -> WrittenDelta {
        let (before, after) = (self.before.as_volatile(), self.after.as_volatile());
        let bytes = encode_delta(before, after, self.unit, self.out.as_volatile());
        WrittenDelta {
            version: self.version,
            bytes: bytes.map_or(DeltaHeader::WHOLE_ONLY, |bytes| bytes as u64),
        }
    }
}

/// Applies arbitrary `bytes` to a version: its unit, its length, and the difference.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_delta(bytes: &[u8]) {
    use crate::kernel::apply_delta;
    let ([unit, len], delta) = bytes.split_first_chunk::<2>().unwrap_or((&[0; 2], bytes));
    let (unit, mut held) = (1 << (unit % 4), vec![0; usize::from(*len)]);
    if apply_delta(VolatileSlice::from_ref(delta), VolatileSlice::from_mut(&mut held), unit).is_err() {
        return;
    }
    // The result on a version of zeros equals the result of the difference between the two.
    let (zeros, mut again, mut out) =
        (vec![0; held.len()], vec![0; held.len()], vec![0; 2 * held.len() + 20]);
    let (from, to) = (VolatileSlice::from_ref(&zeros), VolatileSlice::from_ref(&held));
    let made = encode_delta(from, to, unit, VolatileSlice::from_mut(&mut out)).expect("there is room");
    let made = VolatileSlice::from_ref(&out[..made]);
    apply_delta(made, VolatileSlice::from_mut(&mut again), unit).expect("it was made here");
    assert_eq!(again, held);
}

/// Differences that are taken.
#[cfg(any(test, fuzzing))]
pub(crate) fn delta_samples() -> Vec<Vec<u8>> {
    vec![
        vec![1, 80, 3 << 1, 1, 2, 4 << 1 | 1, 1, 3, 0, 0, 4, 5, 6],
        vec![0, 9, 1, 7, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    ]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn headers_and_words_round_trip_and_slots_do_not_overlap() {
        let (version, base) = (Version::new(9), Version::new(7));
        let header = DeltaHeader { sequence: 3, version, base, epoch: 77, bytes: 41, checksum: 1 };
        assert_eq!(DeltaHeader::from_words(header.to_words()), header);
        let geometry = DeltaGeometry { slots: 40, slot_bytes: 4097, unit: 2 };
        assert_eq!((geometry.begin(0), geometry.begin(1), geometry.bytes()), (8192, 16384, 8192 * 41));
        for bad in [
            DeltaGeometry { slots: 0, ..geometry },
            DeltaGeometry { slot_bytes: 0, ..geometry },
            DeltaGeometry { slot_bytes: u64::MAX, ..geometry },
            DeltaGeometry { unit: 3, ..geometry },
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_peer_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            fuzz_delta(&bytes);
        }
    }
}
