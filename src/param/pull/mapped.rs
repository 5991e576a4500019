//! A pull of memory that is mapped into this process: loads in place of requests, and the same two looks at the header.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::included::Included;
use super::resume::RESUMED_BYTES;
use super::{Pull, Pulled};
use crate::clock::Clock;
use crate::mem::{ForkGuard, LocalSlice, VolatileSlice, fence};
use crate::param::layout::{ControlLayout, FrameHeader, FrameLabel, LINE, Latest};
use crate::transport::Endpoint;

/// The owner's memory, where this process has it mapped.
#[derive(Debug)]
pub(super) struct Mapped {
    control: LocalSlice,
    frames: LocalSlice,
    /// The mappings are shared with a forked child, whose connection this is not.
    guard: ForkGuard,
}

/// How a copy of mapped memory ended.
enum Copied {
    /// Requests have to find out: there is no version yet that this pull wants, or more is asked of the copy.
    Nothing,
    /// The owner has written the frame meanwhile.
    Lapped,
    Whole(Pulled),
}

impl Pull {
    /// Lets pulls load from the memory that `endpoint` has mapped: a pull of an existing version then needs no request,
    /// which is most of the time of a small pull. Other cases are left to requests.
    pub fn map(&mut self, endpoint: &impl Endpoint) {
        let map = |remote| endpoint.map(remote);
        let both = map(&self.source.control).zip(map(&self.source.frames));
        self.mapped = both.map(|(control, frames)| Mapped { control, frames, guard: ForkGuard::new() });
    }

    /// Loads nothing of the owner any more, whose connection is over: requests say so.
    pub(crate) fn unmap(&mut self) {
        self.mapped = None;
    }

    /// Copies the latest version if it is wanted and mapped. False if requests have to find out.
    pub(super) fn copy_mapped(&mut self) -> bool {
        match self.mapped.as_ref().map_or(Copied::Nothing, |mapped| self.copy_of(mapped)) {
            Copied::Nothing => return false,
            Copied::Lapped => self.note_overtaken(),
            Copied::Whole(pulled) => self.finish(pulled),
        }
        true
    }

    fn copy_of(&self, mapped: &Mapped) -> Copied {
        let (source, control) = (&self.source, mapped.control.as_volatile());
        let is_simple = self.pinned.is_none() && self.partial.is_none() && self.copy_bytes() <= RESUMED_BYTES;
        let Some(into) = self.plain_copy().filter(|_| is_simple && !mapped.guard.is_inherited()) else {
            return Copied::Nothing;
        };
        // Acquire: the loads from here on see the version that it names whole, unless it is being overwritten.
        let latest = control.load(ControlLayout::LATEST, ordering!("mapped_acquire", Acquire));
        let latest = Latest::from_word(latest);
        if latest.frame >= source.geometry.frames {
            return Copied::Nothing;
        }
        let line = control.subslice(source.layout.frame_header(latest.frame), LINE);
        let before = header(&line);
        let is_version = before.is_whole()
            && before.version == latest.version
            && before.epoch == source.epoch
            && before.bytes == source.geometry.payload_bytes;
        if !is_version || !self.is_wanted(&before) {
            return Copied::Nothing;
        }
        // Words that belong to the payload are loaded between the two looks, as the payload is.
        let included = match self.included {
            Included::NotAsked => None,
            Included::InHeader => Some(before.included),
            Included::InWords { peer, .. } => {
                Some(Clock::new(control.load(source.layout.included(latest.frame, peer), Relaxed)))
            }
        };
        if self.options.label {
            let label = control.subslice(source.layout.label(latest.frame), LINE);
            self.set_label(FrameLabel::from_words(std::array::from_fn(|index| {
                label.load(index * 8, Relaxed)
            })));
        }
        let at = (source.geometry.stride() * u64::from(latest.frame)) as usize;
        let payload = mapped.frames.as_volatile().subslice(at, source.geometry.payload_bytes as usize);
        self.copy_out(payload, into.as_volatile());
        // All these loads precede the loads of the second look.
        if !mutant!("mapped_fence") {
            fence(Acquire);
        }
        if !before.same_payload(&header(&line)) && !mutant!("second_header") {
            return Copied::Lapped;
        }
        let newest = Latest::from_word(control.load(ControlLayout::LATEST, Relaxed));
        Copied::Whole(Pulled {
            version: before.version,
            epoch: before.epoch,
            smallest_clock: before.smallest_clock,
            included,
            behind: before.version.behind(newest.version),
            retries: self.retries,
        })
    }
}

fn header(line: &VolatileSlice<'_>) -> FrameHeader {
    FrameHeader::from_words(std::array::from_fn(|index| line.load(index * 8, Relaxed)))
}
