//! The doorbell at which a thread sleeps until others wake it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use smallvec::SmallVec;

/// An event that a thread waits for. Threads of this process ring it by `ring`, which is a system call
/// only while somebody waits; other processes ring it by a write to the descriptor.
#[derive(Debug)]
pub struct Doorbell {
    event: OwnedFd,
    /// It was rung by this process since the last wait.
    is_rung: AtomicBool,
    is_awaited: AtomicBool,
}

impl Doorbell {
    pub(crate) fn new() -> io::Result<Arc<Doorbell>> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (is_rung, is_awaited) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Doorbell { event, is_rung, is_awaited }))
    }

    /// Wakes the thread that waits, or ends its next wait at once.
    #[cfg_attr(not(feature = "tcp"), allow(dead_code))]
    pub(crate) fn ring(&self) {
        self.is_rung.store(true, Relaxed);
        // Either this sees that somebody waits, or the waiting thread sees that it was rung.
        fence(SeqCst);
        if self.is_awaited.load(Relaxed) {
            ring(&self.event);
        }
    }

    /// Sleeps until it is rung or one of `others` can be read, but no longer than `timeout`. What rang since the last
    /// call ends it at once. False if nothing did before the timeout.
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> bool {
        let mut is_ended = false;
        let is_rung = self.around(|| {
            let mut sources: SmallVec<[PollFd<'_>; 4]> = SmallVec::new();
            sources.push(PollFd::new(&self.event, PollFlags::IN));
            sources.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
            // What is longer than the system can count is for ever.
            let limit = rustix::time::Timespec::try_from(timeout).ok();
            // Interrupted or refused, it is only a shorter wait.
            is_ended = rustix::event::poll(&mut sources, limit.as_ref()).is_ok_and(|ready| ready > 0);
        });
        is_ended || is_rung
    }

    /// Takes back what has rung since the last wait, and says whether something had.
    pub(crate) fn silence(&self) -> bool {
        let is_rung = self.is_rung.swap(false, Relaxed);
        // Fails where no other process has rung, nor this one while a thread waited.
        rustix::io::read(&self.event, &mut [0; 8]).is_ok() || is_rung
    }

    /// The same with a wait of the caller's own, which must end when the descriptor of this can be read. True if it was
    /// rung, also if that was between the end of the wait and the return.
    pub(crate) fn around(&self, wait: impl FnOnce()) -> bool {
        self.is_awaited.store(true, Relaxed);
        fence(SeqCst);
        let was_rung = self.is_rung.swap(false, Relaxed);
        if !was_rung {
            wait();
        }
        self.is_awaited.store(false, Relaxed);
        self.silence() || was_rung
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Whether a file that another process passed is an eventfd. To ring anything else is not safe: a write to a pipe that
/// no process reads raises a signal, and one to a file system that hangs may block whatever the flags say.
pub(crate) fn is_eventfd(file: BorrowedFd<'_>) -> io::Result<bool> {
    // Only this link tells an eventfd from other files without a name. The path of a file with a name begins with `/`.
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(link.as_os_str() == "anon_inode:[eventfd]")
}

/// Rings the doorbell of another process, or of this one.
pub(crate) fn ring(event: impl AsFd) {
    // Fails where it was rung 2^64 times already, and then it is heard.
    let _rung = rustix::io::write(event, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn whoever_rings_before_or_during_a_wait_ends_it() {
        let doorbell = Doorbell::new().unwrap();
        doorbell.ring();
        assert!(doorbell.wait(&[], LONG));
        ring(&*doorbell);
        assert!(doorbell.wait(&[], LONG));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !doorbell.is_awaited.load(Relaxed) {
                    std::thread::yield_now();
                }
                doorbell.ring();
            });
            assert!(doorbell.wait(&[], LONG));
        });
    }

    #[test]
    fn a_ring_at_the_very_end_of_a_wait_is_heard() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!doorbell.around(|| {}));
        assert!(doorbell.around(|| doorbell.ring()), "by a thread of this process");
        assert!(doorbell.around(|| ring(&*doorbell)), "by another process");
        assert!(!doorbell.around(|| {}));
    }

    #[test]
    fn a_ring_that_was_heard_does_not_end_the_next_wait() {
        let doorbell = Doorbell::new().unwrap();
        for _ in 0..2 {
            doorbell.ring();
            ring(&*doorbell);
            doorbell.wait(&[], LONG);
            let begun = Instant::now();
            assert!(!doorbell.wait(&[], Duration::from_millis(20)));
            assert!(begun.elapsed() >= Duration::from_millis(20));
            doorbell.ring();
            doorbell.silence();
            assert!(!doorbell.wait(&[], Duration::from_millis(1)));
        }
    }
}
