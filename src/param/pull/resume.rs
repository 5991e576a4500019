//! Copies that go on where an earlier one has stopped, at the same owner or at another that has the same version.

use super::{AFTER_LINE, Consistency, Pull, VERIFY};
use crate::clock::Version;
use crate::param::layout::FrameLabel;
use crate::transport::WorkRequest;

/// Bytes that are read at a time over a connection that may break: what is lost with it at most.
pub(super) const RESUMED_BYTES: u64 = 64 << 20;

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

    /// The look at the header that proves all that has come before the next batch. Not with the first one: a label that
    /// is still on its way would not be proved with it.
    pub(super) fn look_of_part(&self) -> Option<WorkRequest> {
        let looks = self.looks.get(usize::from(self.frame)).filter(|_| self.has_batch && self.proves_parts());
        looks.map(|looks| looks[VERIFY.start].clone())
    }

    /// Takes note of what the last look proved. False if the copy has to begin again.
    pub(super) fn prove_part(&mut self) -> bool {
        let Some(bytes) = self.look_proves.take() else { return true };
        if !self.before.same_payload(&self.header(AFTER_LINE)) || !self.is_of_partial() {
            return false;
        }
        let (version, label, epoch) = (self.before.version, self.label(), self.source.epoch);
        self.partial = Some(PartialCopy { version, label, epoch, bytes });
        true
    }

    /// Whether the version that is being copied, whose label is proved, is the one that the copy went on with. If it is
    /// not, nothing of it is kept.
    pub(super) fn is_of_partial(&mut self) -> bool {
        let is_same = !self.is_resumed
            || mutant!("resume")
            || self.partial.is_some_and(|partial| self.is_same_version(&partial));
        if !is_same {
            self.partial = None;
        }
        is_same
    }

    /// Of two versions with one number. Only an origin makes a number once: versions of a server have none, and those
    /// of its next incarnation have the same numbers.
    fn is_same_version(&self, partial: &PartialCopy) -> bool {
        let label = self.label();
        partial.label == label && (label.origin != 0 || partial.epoch == self.source.epoch)
    }
}
