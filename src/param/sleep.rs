//! The word by which a peer says that it sleeps while it waits for its owner, who then wakes it.
//!
//! Dekker's pattern: the peer stores that it sleeps and looks once more for what it waits for; the owner stores what
//! peers wait for and looks who sleeps. With a full fence between store and look on both sides at least one of the two
//! sees the other: either the peer finds what it waits for, or the owner wakes it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::layout::inbox;
use crate::mem::{LocalSlice, RemoteSlice, fence};
use crate::transport::Endpoint;

/// That word in a peer's own page, as this peer finds it.
#[derive(Debug)]
pub struct SleepWord(LocalSlice);

impl SleepWord {
    /// Maps the word in `page`; `None` where the owner's memory is not mapped.
    pub fn new(endpoint: &impl Endpoint, page: &RemoteSlice) -> Option<SleepWord> {
        let word = endpoint.map(&page.slice(inbox::SLEEPS as u64, 8).ok()?)?;
        word.as_volatile().is_writable().then_some(SleepWord(word))
    }

    /// Says that this peer is about to sleep. It looks once more for what it waits for before it does.
    pub fn set(&self) {
        self.0.as_volatile().store(0, 1, Relaxed);
        if !mutant!("sleep_fence") {
            fence(SeqCst);
        }
    }

    /// Says that it is awake.
    pub fn clear(&self) {
        self.0.as_volatile().store(0, 0, Relaxed);
    }

    /// Returns whether it says that it sleeps.
    pub fn is_set(&self) -> bool {
        self.0.as_volatile().load(0, Relaxed) != 0
    }
}

/// To be called by an owner between its stores of what peers wait for and its looks at
/// [`PeerInbox::sleeps`](super::PeerInbox::sleeps).
pub fn fence_before_waking() {
    if !mutant!("wake_fence") {
        fence(SeqCst);
    }
}
