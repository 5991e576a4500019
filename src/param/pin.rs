//! Pin: read a frame in place, without a copy, where its memory is mapped.
//!
//! The reader stores which frame it wants to keep into its own pin word and looks at the frame's header afterwards;
//! the owner marks the header and looks at the pins afterwards. With a full fence between the store and the load on
//! both sides at least one of the two sees the other: either the reader finds the frame being written and releases the
//! pin, or the owner finds the pin and takes another frame.

use std::borrow::Cow;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::layout::{ControlLayout, FrameHeader, FrameLabel, LINE, Latest, inbox};
use super::{FrameSource, Pulled};
use crate::clock::{Clock, Version};
use crate::cuda::GpuMemory;
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::mem::{ForkGuard, LocalSlice, RemoteSlice, VolatileSlice, fence, pause, yield_now};
use crate::scheme::Bound;
use crate::transport::Endpoint;

/// A frame cannot be pinned at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The memory is not mapped into this process, nor for its GPU.
    #[error("cannot read in place: this transport does not share the server's memory; {}", remedy_of(self))]
    NotMapped,
    /// A processor is to read the frame, which is on a GPU.
    #[error(
        "cannot read in place: the frames are in memory of a GPU, which no processor reads; {}",
        remedy_of(self)
    )]
    OnGpu,
    /// A GPU is to read the frame, which is in host memory.
    #[error("cannot read in place: the frames are in host memory, and not on a GPU; {}", remedy_of(self))]
    OnHost,
    /// The frame belongs to another incarnation of its owner.
    #[error(
        "the frame belongs to epoch {found:#x}, this connection to {expected:#x}: the server restarted; {}",
        remedy_of(self)
    )]
    Epoch {
        /// The incarnation that this connection belongs to.
        expected: u64,
        /// The incarnation that wrote the frame.
        found: u64,
    },
    /// This process was forked from the process that made the connection and owns the pins.
    #[error(
        "cannot read in place: the connection belongs to the process that this one was forked from; {}",
        remedy_of(self)
    )]
    Inherited,
    /// The owner's memory cannot be true.
    #[error("the control page names frame {frame} of {frames}: the owner's memory is damaged")]
    Damaged {
        /// The frame it names.
        frame: u8,
        /// Number of frames.
        frames: u8,
    },
}

impl Diagnostic for PinError {
    fn operation(&self) -> &'static str {
        "reading in place"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            PinError::NotMapped => Some("pull a copy instead".into()),
            PinError::OnGpu => Some(
                "pull a copy instead, or in Rust have kernels read `GpuMemory::try_from` of a pinned frame"
                    .into(),
            ),
            PinError::OnHost => Some("read `PinnedFrame::bytes`, or pull a copy to the GPU".into()),
            PinError::Epoch { .. } => Some("connect again".into()),
            PinError::Inherited => Some("connect again in this process".into()),
            PinError::Damaged { .. } => None,
        }
    }
}

/// Attempts in one call: a frame is reused between two loads now and then, but an owner whose memory never makes sense
/// must not hold its readers past their deadlines.
const ATTEMPTS: u64 = 64;

/// The frames of a source, where this process reaches them.
#[derive(Debug)]
enum MappedFrames {
    Host(LocalSlice),
    /// The payload of each, mapped for the GPU.
    Gpu(Vec<GpuMemory>),
}

impl MappedFrames {
    fn of(endpoint: &impl Endpoint, source: &FrameSource) -> Result<MappedFrames, PinError> {
        if let Some(frames) = endpoint.map(&source.frames) {
            return Ok(MappedFrames::Host(frames));
        }
        let on_gpu = endpoint.map_on_gpu(&source.frames).ok_or(PinError::NotMapped)?;
        let geometry = &source.geometry;
        let payload = |frame: u8| {
            let offset = geometry.stride() * u64::from(frame);
            on_gpu.slice(offset as usize, geometry.payload_bytes as usize).map(|payload| payload.lent())
        };
        let payloads: Result<_, _> = (0..geometry.frames).map(payload).collect();
        payloads.map(MappedFrames::Gpu).map_err(|_| PinError::NotMapped)
    }
}

/// Pins frames of one source, one at a time.
#[derive(Debug)]
pub struct Pins {
    held: Option<(u8, Pulled)>,
    source: FrameSource,
    control: LocalSlice,
    frames: MappedFrames,
    word: LocalSlice,
    /// The word is shared with a forked child, whose pins these are not.
    guard: ForkGuard,
}

impl Pins {
    /// Maps the words and frames. `page` is this peer's own page.
    pub fn new(endpoint: &impl Endpoint, source: &FrameSource, page: &RemoteSlice) -> Result<Pins, PinError> {
        let word = page.slice(inbox::PIN as u64, 8).map_err(|_| PinError::NotMapped)?;
        let map = |remote: &RemoteSlice| endpoint.map(remote).ok_or(PinError::NotMapped);
        let word = map(&word)?;
        if !word.as_volatile().is_writable() {
            return Err(PinError::NotMapped);
        }
        Ok(Pins {
            held: None,
            source: *source,
            control: map(&source.control)?,
            frames: MappedFrames::of(endpoint, source)?,
            word,
            guard: ForkGuard::new(),
        })
    }

    /// True if processors read the frames, and not a GPU.
    pub fn are_on_host(&self) -> bool {
        matches!(self.frames, MappedFrames::Host(_))
    }

    /// Pins the newest version if it satisfies `bound`, until [`release`](Self::release) or the next `hold`; `None` if
    /// it does not yet. Never waits.
    pub fn hold(&mut self, bound: Bound) -> Result<Option<Pulled>, PinError> {
        if self.guard.is_inherited() {
            return Err(PinError::Inherited);
        }
        for retries in 0..ATTEMPTS {
            self.release();
            let control = self.control.as_volatile();
            let latest = Latest::from_word(control.load(ControlLayout::LATEST, Acquire));
            if latest.frame >= self.source.geometry.frames {
                let frames = self.source.geometry.frames;
                return Err(PinError::Damaged { frame: latest.frame, frames });
            }
            if latest.version < bound.version {
                return Ok(None);
            }
            // Release: an owner that finds this pin, even if it never found the word without a pin before, may write
            // the frame that was pinned before. All loads of that frame precede this store.
            self.word.as_volatile().store(
                0,
                u64::from(latest.frame) + 1,
                ordering!("repin_release", Release),
            );
            if !mutant!("pin_fence") {
                fence(SeqCst);
            }
            let line = control.subslice(self.source.layout.frame_header(latest.frame), LINE);
            let header = FrameHeader::from_words(std::array::from_fn(|index| line.load(index * 8, Acquire)));
            if !header.is_whole() || header.version != latest.version {
                // It was being reused: another version is the latest by now, or will be in a moment.
                pause();
                continue;
            }
            if header.epoch != self.source.epoch {
                self.release();
                return Err(PinError::Epoch { expected: self.source.epoch, found: header.epoch });
            }
            if !bound.is_met_by(header.version, header.smallest_clock) {
                break;
            }
            let newest = Latest::from_word(control.load(ControlLayout::LATEST, Relaxed)).version;
            let pulled = Pulled {
                version: header.version,
                epoch: header.epoch,
                smallest_clock: header.smallest_clock,
                included: None,
                behind: header.version.behind(newest),
                retries,
            };
            self.held = Some((latest.frame, pulled));
            return Ok(Some(pulled));
        }
        self.release();
        Ok(None)
    }

    /// Returns the held bytes, in place, if they are in host memory. No process writes them meanwhile, but they are the
    /// owner's: copy values that are checked before they are used.
    pub fn bytes(&self) -> Option<VolatileSlice<'_>> {
        let (frame, _) = self.held?;
        let MappedFrames::Host(frames) = &self.frames else { return None };
        let geometry = &self.source.geometry;
        let offset = geometry.stride() * u64::from(frame);
        Some(frames.as_volatile().subslice(offset as usize, geometry.payload_bytes as usize))
    }

    /// Returns the memory that is held, if it is on a GPU.
    pub fn on_gpu(&self) -> Option<&GpuMemory> {
        let (frame, _) = self.held?;
        match &self.frames {
            MappedFrames::Host(_) => None,
            MappedFrames::Gpu(frames) => frames.get(usize::from(frame)),
        }
    }

    /// Returns the clock before which the frame that is held has all gradients of `peer`.
    pub(crate) fn included(&self, peer: u16) -> Option<Clock> {
        let (frame, _) = self.held?;
        Some(Clock::new(self.control.as_volatile().load(self.source.layout.included(frame, peer), Relaxed)))
    }

    /// Returns the label of the frame that is held.
    pub fn label(&self) -> Option<FrameLabel> {
        let (frame, _) = self.held?;
        let line = self.control.as_volatile().subslice(self.source.layout.label(frame), LINE);
        Some(FrameLabel::from_words(std::array::from_fn(|index| line.load(index * 8, Relaxed))))
    }

    /// True if the frame still has the pinned version. It always has while this process is taken for alive; a process
    /// that was stopped for longer than its lease may have lost the pin meanwhile, and has to ask after it has used the
    /// bytes.
    pub fn is_intact(&self) -> bool {
        let Some((frame, pulled)) = self.held else { return false };
        let at = self.source.layout.frame_header(frame);
        is_version(self.control.as_volatile().subslice(at, LINE), pulled.version)
    }

    /// A check that says the same about the held frame, in any thread.
    pub fn check(&self) -> Option<PinCheck> {
        let (frame, pulled) = self.held?;
        let header = self.control.slice(self.source.layout.frame_header(frame), LINE).ok()?;
        Some(PinCheck { header, version: pulled.version })
    }

    /// The newest version now.
    pub fn newest(&self) -> Version {
        Latest::from_word(self.control.as_volatile().load(ControlLayout::LATEST, Acquire)).version
    }

    /// Returns the version that is held.
    pub fn held(&self) -> Option<Pulled> {
        self.held.map(|(_, pulled)| pulled)
    }

    /// Lets go. In a forked child it leaves the frame to the process that pinned it.
    pub fn release(&mut self) {
        self.held = None;
        if self.guard.is_inherited() {
            return;
        }
        // All loads of the frame come before the owner may write it.
        self.word.as_volatile().store(0, 0, ordering!("unpin_release", Release));
    }
}

/// Whether the header in this line says that the frame has a version, once all loads of the frame before are done. It
/// looks again for a moment at a frame that is marked as being written: the owner marks a frame, looks at the pins, and
/// takes the mark of a pinned frame back.
fn is_version(line: VolatileSlice<'_>, version: Version) -> bool {
    // The loads of the bytes precede the load of the header.
    if !mutant!("intact_fence") {
        fence(Acquire);
    }
    for attempt in 0..2 * ATTEMPTS {
        let header = FrameHeader::from_words(std::array::from_fn(|index| line.load(index * 8, Acquire)));
        if header.is_whole() || header.version != version {
            return header.is_whole() && header.version == version;
        }
        // The owner may have lost its processor between the two.
        if attempt < ATTEMPTS { pause() } else { yield_now() }
    }
    false
}

/// Checks whether a pinned frame still has its version: see [`Pins::is_intact`].
#[derive(Clone, Debug)]
pub struct PinCheck {
    header: LocalSlice,
    version: Version,
}

impl PinCheck {
    /// True if all earlier reads of the frame were of the pinned version.
    pub fn is_intact(&self) -> bool {
        is_version(self.header.as_volatile(), self.version)
    }
}
