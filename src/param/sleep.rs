//! The word by which a peer says that it sleeps while it waits for its owner, which then wakes it.
//!
//! Dekker's pattern: the peer writes that it sleeps and looks once more for the awaited data; the owner stores that
//! data and looks which peers sleep. With a full fence between store and look on both sides at least one of the two
//! sees the other: either the peer finds the data, or the owner wakes it. Where the word travels over a network the
//! peer looks only once its write is complete.
//!
//! The word counts the times that the peer has gone to sleep, and the owner wakes it once for each. A peer that ends
//! its sleep by itself leaves the word as it is.

use std::sync::atomic::Ordering::SeqCst;

use super::layout::inbox;
use crate::mem::{OutOfBounds, RemoteSlice, fence};
use crate::transport::{Inline, Operation, WorkRequest};

/// That word in a peer's own page, as this peer writes it.
#[derive(Debug)]
pub struct SleepWord {
    word: RemoteSlice,
    times: u64,
}

impl SleepWord {
    /// The word in `page`.
    pub fn new(page: &RemoteSlice) -> Result<SleepWord, OutOfBounds> {
        Ok(SleepWord { word: page.slice(inbox::SLEEPS as u64, 8)?, times: 0 })
    }

    /// The request that says that this peer is about to sleep once more. It is to be posted, and its completion to be
    /// followed by [`fence_before_sleeping`].
    pub fn say(&mut self, id: u64) -> WorkRequest {
        self.times += 1;
        WorkRequest::signalled(
            id,
            Operation::WriteInline { data: Inline::word(self.times), remote: self.word },
        )
    }
}

/// To be called by a peer between the completion of [`SleepWord::say`] and its last look for the awaited data.
pub fn fence_before_sleeping() {
    if !mutant!("sleep_fence") {
        fence(SeqCst);
    }
}

/// To be called by an owner between its stores of data that peers wait for and its looks at
/// [`PeerInbox::sleeps`](super::PeerInbox::sleeps).
pub fn fence_before_waking() {
    if !mutant!("wake_fence") {
        fence(SeqCst);
    }
}
