//! The hand-over of a copy to threads that help with it, and back.

#[cfg(not(loom))]
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::atomic::AtomicU32;

use super::super::fence::{fence, pause};

/// Looks at the gate before the processor is offered to others, such as a helper that has lost its own.
const PATIENT_LOOKS: u32 = 1000;

const OPEN: u32 = 1 << 31;

/// Lets helpers in while a copy has pieces left, and lets its owner go on once they are out.
///
/// A helper that comes late, when the copy is over or the next one has begun, finds the gate closed or takes part in
/// the next one. The owner's stores before it opened the gate are visible inside, and the helpers' stores inside are
/// visible after the owner's closing: by the fences of `mem`, which hold for devices, too.
#[derive(Debug)]
pub struct Gate {
    /// The number of helpers inside, and whether more may enter.
    state: AtomicU32,
}

impl Gate {
    /// A closed gate without helpers inside.
    #[cfg(not(loom))]
    pub const fn closed() -> Gate {
        Gate { state: AtomicU32::new(0) }
    }

    /// A closed gate without helpers inside.
    #[cfg(loom)]
    pub fn closed() -> Gate {
        Gate { state: AtomicU32::new(0) }
    }

    /// Lets helpers in. Only for the one owner, while the gate is closed and no helper inside.
    pub fn open(&self) {
        if !mutant!("gate_open") {
            fence(Ordering::Release);
        }
        self.state.store(OPEN, Ordering::Relaxed);
    }

    /// Goes in, if the gate is open.
    pub fn enter(&self) -> bool {
        let enter = |state: u32| (state & OPEN != 0).then(|| state + 1);
        let entered = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_ok();
        if !mutant!("gate_enter") {
            fence(Ordering::Acquire);
        }
        entered
    }

    /// Goes out again.
    pub fn leave(&self) {
        if !mutant!("gate_leave") {
            fence(Ordering::Release);
        }
        self.state.fetch_sub(1, Ordering::Relaxed);
    }

    /// Lets no helper in any more and waits until all are out: for as long as a helper copies one piece, since none
    /// waits inside.
    pub fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut looks = 0;
        while self.state.load(Ordering::Relaxed) != 0 {
            looks += 1;
            if looks < PATIENT_LOOKS {
                pause();
            } else {
                yield_now();
            }
        }
        if !mutant!("gate_close") {
            fence(Ordering::Acquire);
        }
    }
}

fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}
