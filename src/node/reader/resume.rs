//! Copies that were abandoned, because their owner was lost or their time was over, and go on.

use super::Reader;
use crate::param::PartialCopy;
use crate::transport::Transport;

/// The memory that a copy goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// The reader's own.
    Copy,
    /// That of the next snapshot.
    Snapshot,
    /// The next frame of a relay.
    Relay,
}

impl Destination {
    pub(super) fn of(is_snapshot: bool) -> Destination {
        if is_snapshot { Destination::Snapshot } else { Destination::Copy }
    }
}

impl<T: Transport> Reader<T> {
    /// Keeps what is proved of a copy that is being abandoned.
    pub(super) fn keep_partial(&mut self, of: Destination) {
        let begun: Option<PartialCopy> = self.resuming.take().or_else(|| self.link.pull.partial());
        self.forget_partial(of);
        // Memory of the caller's may be written now that no copy is under way.
        let is_kept = !(of == Destination::Copy && self.is_callers);
        if let Some(partial) = begun.filter(|_| is_kept) {
            self.partial = Some((of, partial));
        }
    }

    /// The memory is about to hold something else.
    pub(super) fn forget_partial(&mut self, of: Destination) {
        self.partial.take_if(|(its, _)| *its == of);
    }

    /// A copy to this memory is about to begin: it goes on with what an abandoned one has left there.
    pub(super) fn resume(&mut self, of: Destination) {
        self.resuming = self.partial.take_if(|(its, _)| *its == of).map(|(_, partial)| partial);
    }
}
