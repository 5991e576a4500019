//! The source, the options and the result of a pull.

use std::borrow::Cow;
use std::ops::Range;

use super::super::Welcome;
use super::super::layout::{ControlLayout, FrameGeometry, LINE};
use crate::clock::{Clock, Version};
use crate::diagnostic::{Diagnostic, remedy_of};
use crate::mem::{OutOfBounds, RemoteSlice};
use crate::transport::{CompletionError, Disconnected, PostError};

/// The memory in which a reader finds a shard's frames.
#[derive(Clone, Copy, Debug)]
pub struct FrameSource {
    /// The control page.
    pub control: RemoteSlice,
    /// The frames.
    pub frames: RemoteSlice,
    /// Layout of the control page.
    pub layout: ControlLayout,
    /// Layout of the frames.
    pub geometry: FrameGeometry,
    /// The owner's incarnation; frames of any other are void.
    pub epoch: u64,
}

impl FrameSource {
    /// Makes a source from an owner's answer and the grants that came with it.
    pub fn new(welcome: &Welcome, grants: &[RemoteSlice]) -> Option<FrameSource> {
        let [control, frames, ..] = grants else { return None };
        let Welcome { layout, geometry, epoch, .. } = *welcome;
        Some(FrameSource { control: *control, frames: *frames, layout, geometry, epoch })
    }

    pub(super) fn status(&self) -> Result<RemoteSlice, OutOfBounds> {
        self.control.slice(ControlLayout::STATUS as u64, LINE as u64)
    }

    pub(super) fn header(&self, frame: u8) -> Result<RemoteSlice, OutOfBounds> {
        self.control.slice(self.layout.frame_header(frame) as u64, LINE as u64)
    }

    pub(super) fn included(&self, frame: u8, peer: u16) -> Result<RemoteSlice, OutOfBounds> {
        self.control.slice(self.layout.included(frame, peer) as u64, 8)
    }

    pub(super) fn label(&self, frame: u8) -> Result<RemoteSlice, OutOfBounds> {
        self.control.slice(self.layout.label(frame) as u64, LINE as u64)
    }

    pub(super) fn payload(&self, frame: u8, range: Range<u64>) -> Result<RemoteSlice, OutOfBounds> {
        self.frames.slice(self.geometry.stride() * u64::from(frame) + range.start, range.end - range.start)
    }
}

/// The requirement on the bytes that a pull accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The bytes of exactly one version.
    #[default]
    Whole,
    /// The bytes as they are: possibly a mixture of versions, with the version number of none of them. To measure the
    /// cost of the check, and to show that a test finds its absence.
    Mixture,
}

/// Settings of a pull.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// The requirement on the bytes that it accepts.
    pub consistency: Consistency,
    /// Begin to copy a frame that satisfies the bound while it is being written, chunk by chunk, and accept it only
    /// once it is whole.
    pub follow: bool,
    /// Check the owner's checksum over the copy, where there is one: one more pass over it. Not where pieces are
    /// copied.
    pub checksum: bool,
    /// Take this version and no other: in whichever frame it lies, as long as it is not overwritten.
    pub exactly: Option<Version>,
    /// Copy some chunks at a time, so that `Pull::landed` tells how far the copy is.
    pub chunked: bool,
    /// Read the label of the version, too ([`label`](super::Pull::label)): one line more. Not where a pull says which
    /// gradients its frame holds ([`ask_included`](super::Pull::ask_included)).
    pub label: bool,
}

/// A version that was pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// Its number.
    pub version: Version,
    /// The incarnation of the owner that it belongs to.
    pub epoch: u64,
    /// It holds all gradients of clocks before this one.
    pub smallest_clock: Clock,
    /// This peer's own gradients of clocks before this one are in it, or were dropped; where it was asked for.
    pub included: Option<Clock>,
    /// Number of versions that it was behind the owner's latest at the last look at the owner, by which the copy was
    /// proved.
    pub behind: u64,
    /// Number of times that the copy was begun again because the frame changed under it.
    pub retries: u64,
}

/// A pull failed permanently.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PullError {
    /// The destination has another length than the shard.
    #[error("cannot pull {shard_bytes} bytes into {bytes}: {}", remedy_of(self))]
    Destination {
        /// Bytes of the destination.
        bytes: usize,
        /// Bytes of the shard.
        shard_bytes: u64,
    },
    /// A pull is under way already.
    #[error("a pull is under way already: {}", remedy_of(self))]
    Busy,
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
    /// The frame's header cannot be true.
    #[error("the frame's header says {found} bytes, the shard has {expected}: the owner's memory is damaged")]
    Damaged {
        /// Bytes of the shard.
        expected: u64,
        /// The number of bytes that the header says.
        found: u64,
    },
    /// The version that was asked for by its number is overwritten.
    #[error(
        "version {} is overwritten, the newest is {}: {}", version.get(), newest.get(), remedy_of(self)
    )]
    Gone {
        /// The version that was asked for.
        version: Version,
        /// The owner's newest version.
        newest: Version,
    },
    /// The version that was asked for by its number is further behind the newest than was asked for.
    #[error(
        "version {} is {} behind the newest, {}, and at most {most_behind} are wanted: {}",
        version.get(),
        version.behind(*newest),
        newest.get(),
        remedy_of(self)
    )]
    TooOld {
        /// The version that was asked for.
        version: Version,
        /// The owner's newest version.
        newest: Version,
        /// The number of versions that it may be behind.
        most_behind: u64,
    },
    /// The bytes differ from the owner's, though the frame did not change.
    #[error(
        "version {} does not match its checksum: the transport or the memory damaged it; {}",
        version.get(),
        remedy_of(self)
    )]
    Checksum {
        /// The version that the bytes should be.
        version: Version,
    },
    /// A processor reads no memory of a GPU.
    #[error("no checksum is checked in memory of a GPU: {}", remedy_of(self))]
    ChecksumOnGpu,
    /// The owner is gone.
    #[error(transparent)]
    Disconnected(#[from] Disconnected),
    /// A request failed.
    #[error("a read of the owner's memory failed: {0}")]
    Completion(#[from] CompletionError),
    /// A request could not be posted.
    #[error("a read of the owner's memory could not be posted: {0}")]
    Post(PostError),
    /// The grants do not cover the layout.
    #[error("the owner's grants do not cover its layout: {0}")]
    Grants(#[from] OutOfBounds),
}
impl Diagnostic for PullError {
    fn operation(&self) -> &'static str {
        "reading parameters"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            PullError::Destination { .. } => "give a destination of the shard's length".into(),
            PullError::Busy => "finish it first".into(),
            PullError::Epoch { .. } => "connect again".into(),
            PullError::Gone { .. } => "ask for a newer one, or give its owner more frames".into(),
            PullError::TooOld { .. } => "ask for a newer one, or let it be further behind".into(),
            PullError::ChecksumOnGpu => "pull into host memory, or switch checksums off".into(),
            PullError::Checksum { .. } => {
                "read it again, and if that fails, too, test the memory and the network of the hosts".into()
            }
            PullError::Damaged { .. } => return None,
            PullError::Disconnected(error) => return error.remedy(),
            PullError::Completion(error) => return error.remedy(),
            PullError::Post(error) => return error.remedy(),
            PullError::Grants(error) => return error.remedy(),
        })
    }

    fn is_retryable(&self) -> bool {
        matches!(self, PullError::Checksum { .. })
    }
}
