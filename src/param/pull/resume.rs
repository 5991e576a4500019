//! Copies that go on where an earlier one has stopped, at the same owner or at another that has the same version.

use super::copy::READ_AHEAD;
use super::{AFTER_LINE, Consistency, Pull, PullError};
use crate::clock::Version;
use crate::mem::PAGE_SIZE;
use crate::param::layout::{FrameGeometry, FrameLabel};
use crate::transport::{Endpoint, Flags, WorkRequest};

/// Bytes that are read at a time over a connection that may break: at most so many are lost with it.
pub(super) const RESUMED_BYTES: u64 = 64 << 20;

/// Parts in which requests read a copy that proves them, and the least bytes of one: how soon it is seen that the owner
/// is faster than the copy.
const PARTS: u64 = 16;
/// Parts that are in flight at once of an owner that publishes meanwhile: its looks and the pin are to come soon.
const PARTS_AHEAD: usize = 2;
pub(super) const LEAST_PART: u64 = 256 << 10;

/// The begin of a version, which a pull has copied and proved before it was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartialCopy {
    version: Version,
    label: FrameLabel,
    /// Of the owner that it was copied from.
    epoch: u64,
    bytes: u64,
}

#[cfg(test)]
impl PartialCopy {
    /// The first bytes of a version without a label.
    pub(crate) fn unlabelled(version: Version, bytes: u64) -> PartialCopy {
        PartialCopy { version, label: FrameLabel::default(), epoch: 0, bytes }
    }
}

impl Pull {
    /// Has the pull that was started go on from here, which lies in its destination, if the version that it finds is
    /// the same: its number, and its label, which has the publisher that made it and the time. A version that no
    /// publisher made is the same at the same owner alone.
    pub(crate) fn resume(&mut self, partial: PartialCopy) {
        self.partial = Some(partial);
    }

    /// Has copies that may be resumed, or that tell how far they are, read at most so many bytes at a time.
    pub(crate) fn limit_batch(&mut self, bytes: u64) {
        self.batch = bytes;
    }

    /// Takes the begin of the version that was being copied last, if it is proved: its memory may be written now.
    pub(crate) fn take_partial(&mut self) -> Option<PartialCopy> {
        self.partial.take()
    }

    /// Returns from where on a payload is copied of which so many bytes are there.
    pub(super) fn resumed(&mut self, version: Version, copied: u64) -> u64 {
        let resumes = |partial: &PartialCopy| partial.version == version && partial.bytes > copied;
        self.partial = self.partial.filter(|partial| resumes(partial) && self.proves_parts());
        (self.is_resumed, self.look_proves) = (self.partial.is_some(), None);
        self.has_batch = false;
        self.partial.map_or(copied, |partial| partial.bytes)
    }

    pub(super) fn proves_parts(&self) -> bool {
        self.options.label && self.pieces.is_none() && self.options.consistency == Consistency::Whole
    }

    /// True if requests read the copy in parts. A reader whose owner's memory is not mapped may have to go on at
    /// another owner, and may be slower than this one. A copy into memory of a GPU is not gone on with, so each part
    /// would only wait for the one before it.
    pub(super) fn reads_parts(&self) -> bool {
        self.proves_parts() && self.pin.is_some() && !self.is_to_gpu()
    }

    /// Most bytes of such a part. Of memory that is mapped here it is a long one, which several threads copy at once.
    pub(super) fn part(&self) -> u64 {
        if self.mapped.is_some() {
            return RESUMED_BYTES.min(self.batch);
        }
        let part = (self.source.geometry.payload_bytes / PARTS).next_multiple_of(PAGE_SIZE as u64);
        part.clamp(LEAST_PART, RESUMED_BYTES).min(self.batch)
    }

    /// Parts that may be in flight at once. Of an owner that has not published during the last copy that may be all of
    /// a short one, once the first has come: else each round trip would bring no more than two. Looks go along from
    /// then on. A part of a long one is proved soon, and not read again after a loss.
    pub(super) fn parts_ahead(&self) -> usize {
        let calm = match self.has_batch {
            true => self.calm_parts,
            false => self.calm_parts.min(READ_AHEAD),
        };
        match self.source.geometry.payload_bytes <= RESUMED_BYTES {
            true => calm.max(PARTS_AHEAD),
            false => PARTS_AHEAD,
        }
    }

    /// All of a copy has come, or one part more, and so many versions are newer.
    pub(super) fn note_calm(&mut self, newer: u64, is_whole: bool) {
        self.calm_parts = match (newer, is_whole) {
            (0, true) => PARTS as usize,
            (0, false) => self.calm_parts.max(PARTS_AHEAD) + 1,
            _ => 0,
        };
    }

    /// The looks at the header and at the status that prove the bytes before the next batch. Not with the first
    /// batch: a label that is still on its way would not be proved with it.
    pub(super) fn looks_of_part(&self) -> Option<[WorkRequest; 2]> {
        let looks =
            self.looks.get(usize::from(self.frame)).filter(|_| self.has_batch && self.proves_parts())?;
        let [.., header, mut status] = looks.clone();
        status.flags.remove(Flags::SIGNALLED);
        Some([header, status])
    }

    /// Records the bytes that the last looks proved, and pins the frame if the owner is about to overtake the copy.
    /// False if the copy has to begin again.
    pub(super) fn prove_part(&mut self, endpoint: &mut impl Endpoint) -> Result<bool, PullError> {
        let Some(bytes) = self.look_proves.take() else { return Ok(true) };
        if !self.before.same_payload(&self.header(AFTER_LINE)) || !self.is_of_partial() {
            return Ok(false);
        }
        let (version, label, epoch) = (self.before.version, self.label(), self.source.epoch);
        self.partial = Some(PartialCopy { version, label, epoch, bytes });
        let (latest, ..) = self.status();
        self.note_calm(version.behind(latest.version), false);
        if self.is_too_slow(bytes) {
            self.pin_copied(endpoint)?;
        }
        Ok(true)
    }

    /// Whether the owner writes the frame again before all of it is copied, of which so many bytes are there, if both
    /// go on as they have so far.
    fn is_too_slow(&self, bytes: u64) -> bool {
        let FrameGeometry { frames, payload_bytes, .. } = self.source.geometry;
        let (latest, ..) = self.status();
        // Versions that were published before the copy began say nothing about its duration.
        let begun = self.latest.version.max(self.before.version);
        let (versions, older) = (begun.behind(latest.version), self.before.version.behind(begun));
        let frames = u64::from(frames - 1).saturating_sub(older);
        let (copied, all) = (bytes.saturating_sub(self.begun_at), payload_bytes - self.begun_at);
        versions > 0 && versions.saturating_mul(all) >= frames.saturating_mul(copied)
    }

    /// Whether the version that is being copied, whose label is proved, is the version of the partial copy. If it is
    /// not, no byte of the partial copy is kept.
    pub(super) fn is_of_partial(&mut self) -> bool {
        let is_same = !self.is_resumed
            || mutant!("resume")
            || self.partial.is_some_and(|partial| self.is_same_version(&partial));
        if !is_same {
            self.partial = None;
        }
        is_same
    }

    /// Compares two versions with one number. Only within one origin is a number unique: versions of a server have no
    /// origin, and the versions of its next incarnation have the same numbers.
    fn is_same_version(&self, partial: &PartialCopy) -> bool {
        let label = self.label();
        partial.label == label && (label.origin != 0 || partial.epoch == self.source.epoch)
    }
}
