//! The one place that orders memory between words.

use core::sync::atomic::Ordering;

/// Orders this thread's accesses to shared memory as `core::sync::atomic::fence` does, non-temporal stores included:
/// every streaming copy ends with a store fence of its own, so a fence here never waits for one.
#[inline]
pub fn fence(ordering: Ordering) {
    #[cfg(not(loom))]
    core::sync::atomic::fence(ordering);
    #[cfg(loom)]
    loom::sync::atomic::fence(ordering);
}

/// Lets others run inside a loop that waits for what they write.
#[inline]
pub fn pause() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::hint::spin_loop();
}
