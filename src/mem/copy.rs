//! Copying: libc's `memcpy` for short copies, and for long ones the fastest way and number of threads.
//!
//! No way is the fastest everywhere. A copy longer than the caches may lose a third of its bandwidth to reading each
//! destination line before writing it, which a non-temporal store does not; but on a machine whose last cache holds
//! the copy, non-temporal stores halve it. `cargo xtask bench` and docs/measurements.md have figures.

#[cfg(not(loom))]
mod choice;
mod gate;
#[cfg(not(loom))]
mod pool;
mod ways;

use std::sync::LazyLock;

#[cfg(not(loom))]
pub use choice::set_copy_threads;
pub use gate::Gate;
pub use ways::Way;

/// Whether a copy should go past the caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streaming {
    /// Decide by the length of this copy alone.
    #[default]
    ByLength,
    /// This copy is a piece of one of `total_bytes`: decide by that.
    PieceOf {
        /// Length of the whole.
        total_bytes: usize,
    },
    /// Always past the caches (where the processor can).
    Always,
    /// Never.
    Never,
}

/// From how many bytes on copies may go past the caches: the size of one core's L2 cache, 2 MiB if it is not known.
pub fn streaming_threshold() -> usize {
    static THRESHOLD: LazyLock<usize> = LazyLock::new(|| cache_size(2).unwrap_or(2 << 20));
    *THRESHOLD
}

/// Bytes of the last cache, 32 MiB if they are not known.
#[cfg(not(loom))]
fn last_cache() -> usize {
    static BYTES: LazyLock<usize> =
        LazyLock::new(|| cache_size(3).unwrap_or(32 << 20).max(streaming_threshold()));
    *BYTES
}

/// Bytes of a cache of the first processor, by the index that Linux gives it: 2 is L2, 3 is L3.
fn cache_size(index: u8) -> Option<usize> {
    let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
    let text = std::fs::read_to_string(file).ok()?;
    let kib: usize = text.trim().strip_suffix('K')?.parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// The least length in bytes from which on a copy may make non-temporal stores, for any hint of the caller.
///
/// Ours make none below a page, where setting them up is not worth it. libc's `memcpy` makes them on its own account:
/// glibc's does so from three quarters of its share of the last cache on, and from 16 KiB on where a virtual machine
/// reports its caches badly.
const MAY_STREAM: usize = 4096;

/// Copies of this many bytes, and pieces of such copies, are long: the fastest way for them is measured. Shorter ones
/// are libc's.
const LONG: usize = 256 << 10;

/// Copies `len` bytes. A copy that streams, on this thread or on others, stays behind every earlier store and before
/// every later one.
///
/// # Safety
///
/// `source` must be valid for reads and `destination` for writes of `len` bytes. Others may write the source and
/// read the destination meanwhile; the copy then is some mixture of bytes.
#[inline]
pub(super) unsafe fn copy_bytes(destination: *mut u8, source: *const u8, len: usize, streaming: Streaming) {
    if len <= 64 && (len | destination.addr() | source.addr()).is_multiple_of(8) {
        // Words never tear: announcements and headers consist of them.
        for at in (0..len).step_by(8) {
            // SAFETY: inside both ranges and aligned; both accesses are single machine words.
            unsafe {
                let word = source.add(at).cast::<u64>().read_volatile();
                destination.add(at).cast::<u64>().write_volatile(word);
            }
        }
        return;
    }
    if len >= MAY_STREAM {
        // A non-temporal store may pass an earlier plain one, such as the header that says "being written". The fence
        // takes no time that can be measured: 31.4 ns for 4 KiB with it and without.
        ways::store_fence();
    }
    let total = match streaming {
        Streaming::PieceOf { total_bytes } => total_bytes.max(len),
        Streaming::ByLength => len,
        Streaming::Never | Streaming::Always => 0,
    };
    // SAFETY: the caller's promise, handed on.
    unsafe {
        if len >= MAY_STREAM && streaming == Streaming::Always {
            Way::Stream.copy(destination, source, len);
        } else if len >= MAY_STREAM && total >= LONG {
            copy_long(destination, source, len, total);
        } else {
            Way::Libc.copy(destination, source, len);
        }
    }
}

/// Copies a piece of a long copy of `total` bytes by the fastest plan, or tries one that may be.
///
/// # Safety
/// As [`copy_bytes`], behind a [`store_fence`](ways::store_fence).
#[inline(never)]
unsafe fn copy_long(destination: *mut u8, source: *const u8, len: usize, total: usize) {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        #[cfg(not(loom))]
        choice::with_plan(len, total, |plan| copy_as(plan.way, plan.threads, destination, source, len));
        #[cfg(loom)]
        {
            let _ = total;
            Way::Libc.copy(destination, source, len);
        }
    }
}

/// Copies in a way that the caller chooses, cut among so many threads: for tests and measurements.
///
/// # Safety
/// As [`copy_bytes`].
#[cfg(not(loom))]
pub(super) unsafe fn copy_by(destination: *mut u8, source: *const u8, len: usize, way: Way, threads: usize) {
    ways::store_fence();
    // SAFETY: the caller's promise, handed on.
    unsafe { copy_as(way, threads, destination, source, len) }
}

/// # Safety
/// As [`copy_bytes`], behind a [`store_fence`](ways::store_fence).
#[cfg(not(loom))]
unsafe fn copy_as(way: Way, threads: usize, destination: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller's promise, handed on.
    unsafe {
        if !pool::copy(way, threads, destination, source, len) {
            way.copy(destination, source, len);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
