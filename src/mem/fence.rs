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

/// Whether this run is one of the mutant `name`: never, but under the model checker and in a build of mutants.
#[cfg(not(any(loom, slackline_mutants)))]
#[inline(always)]
pub(crate) const fn runs_as_mutant(_name: &str) -> bool {
    false
}

/// Whether this run is one of the mutant `name`: one build serves all of them.
#[cfg(any(loom, slackline_mutants))]
pub(crate) fn runs_as_mutant(name: &str) -> bool {
    static MUTANT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    MUTANT.get_or_init(|| std::env::var("SLACKLINE_MUTANT").unwrap_or_default()) == name
}
