//! Threads that help with copies of many MiB.
//!
//! A copy is cut into pieces, and each thread that is free takes the next one: a helper that gets no processor takes
//! none, and holds the copy up for the rest of one piece at most. One copy has the helpers at a time; others
//! meanwhile are made by their own threads alone, and wait for nothing.
//!
//! A forked child has no helpers, and if the copy that had them at the time was another thread's, it has them for ever.
//! Either way the child's copies are made by its own thread alone.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::OnceLock;
use std::thread::{self, Thread};

use super::gate::Gate;
use super::ways::Way;

/// Most threads that share a copy, the caller's among them.
pub(super) const MOST_THREADS: usize = 16;

/// Bytes that a thread takes at a time: long enough that taking costs nothing, short enough that the last pieces end
/// at about the same time.
const PIECE: usize = 512 << 10;

struct Pool {
    /// Some copy has the helpers.
    taken: AtomicBool,
    gate: Gate,
    copy: SharedCopy,
    helpers: [OnceLock<Thread>; MOST_THREADS - 1],
}

/// The copy that is under way: written while the gate is closed and no helper inside, read inside.
struct SharedCopy {
    way: AtomicUsize,
    destination: AtomicPtr<u8>,
    source: AtomicPtr<u8>,
    len: AtomicUsize,
    /// Where the next piece begins.
    next: AtomicUsize,
}

static POOL: Pool = Pool {
    taken: AtomicBool::new(false),
    gate: Gate::closed(),
    copy: SharedCopy {
        way: AtomicUsize::new(0),
        destination: AtomicPtr::new(null_mut()),
        source: AtomicPtr::new(null_mut()),
        len: AtomicUsize::new(0),
        next: AtomicUsize::new(0),
    },
    helpers: [const { OnceLock::new() }; MOST_THREADS - 1],
};

/// Copies `len` bytes on `threads` threads, this one among them. False, with nothing copied, if this thread has to do
/// it alone: because one is enough, or another copy has the helpers.
///
/// # Safety
/// As [`super::copy_bytes`], behind a store fence.
pub(super) unsafe fn copy(
    way: Way,
    threads: usize,
    destination: *mut u8,
    source: *const u8,
    len: usize,
) -> bool {
    if threads < 2 || len <= PIECE {
        return false;
    }
    let pool = &POOL;
    if pool.taken.swap(true, Ordering::Acquire) {
        return false;
    }
    pool.copy.way.store(way as usize, Ordering::Relaxed);
    pool.copy.destination.store(destination, Ordering::Relaxed);
    pool.copy.source.store(source.cast_mut(), Ordering::Relaxed);
    pool.copy.len.store(len, Ordering::Relaxed);
    pool.copy.next.store(0, Ordering::Relaxed);
    pool.gate.open();
    pool.helpers.iter().take(threads - 1).enumerate().for_each(|(index, helper)| wake(index, helper));
    // SAFETY: the caller promises that the ranges are valid, and this function returns only once the gate is closed and
    // every helper out of it.
    unsafe { pool.copy.take_part() };
    pool.gate.close();
    pool.taken.store(false, Ordering::Release);
    true
}

/// Wakes a helper, which the first copy that wants it starts. Without it the others do its part.
fn wake(index: usize, helper: &OnceLock<Thread>) {
    if let Some(thread) = helper.get() {
        return thread.unpark();
    }
    match thread::Builder::new().name(format!("slackline-copy{index}")).spawn(help) {
        Ok(started) => {
            started.thread().unpark();
            let _first = helper.set(started.thread().clone());
        }
        Err(error) => tracing::warn!(%error, "cannot start a thread that copies: copies have one less"),
    }
}

/// The loop of a helper until the process ends.
fn help() {
    let pool = &POOL;
    loop {
        thread::park();
        if pool.gate.enter() {
            // SAFETY: the thread that opened the gate waits for this thread to leave, and its ranges are valid until
            // then.
            unsafe { pool.copy.take_part() };
            pool.gate.leave();
        }
    }
}

impl SharedCopy {
    /// Copies pieces until there are no more.
    ///
    /// # Safety
    /// Only while the owner of the copy keeps its ranges valid: inside the gate, or before closing it.
    unsafe fn take_part(&self) {
        let way = Way::ALL[self.way.load(Ordering::Relaxed)];
        let (destination, source) =
            (self.destination.load(Ordering::Relaxed), self.source.load(Ordering::Relaxed));
        let len = self.len.load(Ordering::Relaxed);
        loop {
            let begin = self.next.fetch_add(PIECE, Ordering::Relaxed);
            if begin >= len {
                return;
            }
            // SAFETY: the piece lies inside both ranges, which are valid as the caller promises. No other thread has
            // the same piece. Each piece ends with the store fence that its way needs.
            unsafe { way.copy(destination.add(begin), source.add(begin), PIECE.min(len - begin)) };
        }
    }
}
