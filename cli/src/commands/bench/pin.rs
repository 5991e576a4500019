//! Keeping a thread on one core.

use std::sync::LazyLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use slackline_lab::stderr;

/// The cores that this process may run on, as it was started.
pub(super) fn cores() -> &'static [usize] {
    // Asked once: after this side is pinned the system names one core only.
    static CORES: LazyLock<Vec<usize>> = LazyLock::new(|| {
        let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
        (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
    });
    &CORES
}

/// Keeps the calling thread, and all that it starts, on a core. Where the system forbids it, it only says so.
pub(super) fn pin_to(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        stderr::tell(format_args!(
            "slackline bench: cannot keep a thread on core {core}: {error}; going on without"
        ));
    }
}

/// The core for this side of a measurement, and for the other.
pub(super) fn pair(wanted: bool) -> (Option<usize>, Option<usize>) {
    let cores = cores();
    if wanted { (cores.first().copied(), cores.last().copied()) } else { (None, None) }
}
