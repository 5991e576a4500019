//! The word by which a thread parks, and by which other threads find out whether to wake it takes a system call.
//!
//! A notifier stores its data for the thread, and then notifies. The thread looks for data, parks, and takes the
//! notification back before it looks again. The word has one of three states, as the word of the standard library's
//! parked threads has:
//!
//! - `EMPTY`: the thread is awake, and was not notified since it took the last notification,
//! - `PARKED`: it sleeps, or is about to: the first notifier makes the system call, and no other does,
//! - `NOTIFIED`: it looks again before it sleeps.
//!
//! Since it is one word, a notification between the last look and the sleep is never lost: parking fails then. A
//! notifier that finds `NOTIFIED` there leaves the word as it is, so that notifiers of a thread which does not sleep
//! share the cache line. This is Dekker's pattern: a notifier stores its data and looks at the word, the thread takes
//! the notification and looks at the data, each with a full fence in between. Either the thread sees the data, or the
//! notifier sees that the notification was taken, and leaves another one (`notify_fence`, `take_fence`).
//!
//! The word may lie in memory that other processes share. A process that dies between its notification and the system
//! call, or stores arbitrary values, costs the thread a sleep to its end, or keeps it from sleeping.

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
