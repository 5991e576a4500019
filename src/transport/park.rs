//! The word by which a thread parks, and others find out whether it takes a system call to wake it.
//!
//! Those who wake the thread store what they have for it, and then notify. The thread looks for such things, parks, and
//! takes the notification back before it looks again. The word has one of three states, as that of the standard
//! library's parked threads:
//!
//! - `EMPTY`: the thread is awake, and was not notified since it took the last notification,
//! - `PARKED`: it sleeps, or is about to: the first who notifies it makes the system call, and no other does,
//! - `NOTIFIED`: it looks again before it sleeps.
//!
//! Since it is one word, a notification between the last look and the sleep is never lost: parking fails then. One who
//! finds `NOTIFIED` there leaves the word as it is, so that those who notify a thread which does not sleep share the
//! cache line. That is Dekker's pattern: they store and look at the word, the thread takes the notification and looks
//! at what they stored, each with a full fence in between. Either the thread sees what was stored, or they see that the
//! notification was taken, and leave another one (`notify_fence`, `take_fence`).
//!
//! The word may lie in memory that other processes share. One that dies between its notification and the system call,
//! or stores what it likes, costs the thread a sleep to its end, or keeps it from sleeping.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::mem::{HostMemory, fence};

const EMPTY: u64 = 0;
const NOTIFIED: u64 = 1;
const PARKED: u64 = 2;

/// That word.
#[derive(Debug)]
pub struct ParkWord {
    memory: HostMemory,
}

impl ParkWord {
    pub(super) const BYTES: usize = 8;

    /// The first word of `memory`, which is zero where the thread is this process's.
    pub fn new(memory: HostMemory) -> ParkWord {
        ParkWord { memory }
    }

    pub(super) fn memory(&self) -> &HostMemory {
        &self.memory
    }

    /// To be called once there is something new for the thread. True if it is to be woken by a system call.
    pub fn notify(&self) -> bool {
        if !mutant!("notify_fence") {
            fence(SeqCst);
        }
        let word = self.memory.as_volatile();
        word.load(0, Relaxed) != NOTIFIED && word.swap(0, NOTIFIED) == PARKED
    }

    /// To be called by the thread before it sleeps. False if it was notified: then it is not to sleep.
    pub fn park(&self) -> bool {
        self.memory.as_volatile().compare_swap(0, EMPTY, PARKED) == EMPTY
    }

    #[cfg(test)]
    pub(super) fn is_parked(&self) -> bool {
        self.memory.as_volatile().load(0, Relaxed) == PARKED
    }

    /// To be called by the thread once it is awake, before it looks again. True if it was notified.
    pub fn take(&self) -> bool {
        let before = self.memory.as_volatile().swap(0, EMPTY);
        if !mutant!("take_fence") {
            fence(SeqCst);
        }
        before == NOTIFIED
    }
}
