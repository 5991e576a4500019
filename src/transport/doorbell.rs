//! The doorbell at which a thread sleeps until others wake it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use smallvec::SmallVec;

use super::park::ParkWord;
use super::{Address, ConnectError};
use crate::mem::{HostMemory, MemoryError};

/// An event that a thread waits for, of this process or of another one. To ring it is a system call only while the
/// thread sleeps, and then only for the first ring.
#[derive(Debug)]
pub struct Doorbell {
    event: OwnedFd,
    word: ParkWord,
}

impl Doorbell {
    /// The descriptors that another process needs to ring it.
    pub(crate) const FILES: usize = 2;

    /// The length of the memory that the second of them is.
    pub(crate) const BYTES: usize = ParkWord::BYTES;

    /// A doorbell for a thread of this process, which peers at `address` ring.
    pub(crate) fn new(address: &Address) -> Result<Arc<Doorbell>, ConnectError> {
        let failed = |errno: rustix::io::Errno| ConnectError::System {
            operation: "be notified",
            address: address.clone(),
            source: errno.into(),
            remedy: "raise the limit on open files (ulimit -n), or poll",
        };
        let event =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let memory = || {
            let memory = HostMemory::shared(ParkWord::BYTES)?;
            memory.seal_against_new_seals()?;
            Ok::<_, MemoryError>(memory)
        };
        let memory = memory().map_err(|source| ConnectError::Memory { address: address.clone(), source })?;
        Ok(Arc::new(Doorbell { event, word: ParkWord::new(memory) }))
    }

    /// The doorbell of a thread of another process, made of the passed descriptors: an eventfd, which must not block,
    /// and a word. The other process can change whether the eventfd blocks: the option belongs to the file that both
    /// have open.
    pub(crate) fn of_peer(event: OwnedFd, word: HostMemory) -> Doorbell {
        Doorbell { event, word: ParkWord::new(word) }
    }

    /// The descriptors: the event, then the memory of the word.
    pub(crate) fn files(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.event.as_fd()).chain(self.word.memory().shared_file())
    }

    /// Wakes the thread that waits, or ends its next wait at once.
    pub(crate) fn ring(&self) {
        if self.word.notify() {
            // Fails where it was rung 2^64 times already, and then it is heard.
            let _rung = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }

    /// Sleeps until it is rung or one of `others` can be read, but no longer than `timeout`. A ring since the last call
    /// ends it at once. False after the timeout.
    pub(crate) fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> bool {
        let mut is_ended = false;
        let is_rung = self.around(|| {
            let mut sources: SmallVec<[PollFd<'_>; 4]> = SmallVec::new();
            sources.push(PollFd::new(&self.event, PollFlags::IN));
            sources.extend(others.iter().map(|other| PollFd::from_borrowed_fd(*other, PollFlags::IN)));
            // A timeout that is longer than the system can count is infinite.
            let limit = rustix::time::Timespec::try_from(timeout).ok();
            // Interrupted or refused, it is only a shorter wait.
            is_ended = rustix::event::poll(&mut sources, limit.as_ref()).is_ok_and(|ready| ready > 0);
        });
        is_ended || is_rung
    }

    /// Clears the rings since the last wait, and returns whether there were any.
    pub(crate) fn silence(&self) -> bool {
        let is_rung = self.word.take();
        // Fails unless a ring was a system call.
        rustix::io::read(&self.event, &mut [0; 8]).is_ok() || is_rung
    }

    /// The same with a wait of the caller's own, which must end when the descriptor of this can be read. True if it was
    /// rung, also if that was between the end of the wait and the return.
    pub(crate) fn around(&self, wait: impl FnOnce()) -> bool {
        let parks = self.word.park();
        if parks {
            wait();
        }
        self.silence() || !parks
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A watch at which a thread sleeps until peers arrive at a listener that it does not hold.
#[derive(Debug)]
pub struct ArrivalWatch {
    /// Rung by threads that see peers arrive in other ways than at the sockets.
    doorbell: Arc<Doorbell>,
    sockets: SmallVec<[OwnedFd; 1]>,
}

impl ArrivalWatch {
    /// `None` if the process has no descriptors left for copies of the sockets.
    pub(super) fn new<'a>(
        doorbell: Arc<Doorbell>,
        sockets: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> Option<ArrivalWatch> {
        let copies = sockets.into_iter().map(|socket| socket.try_clone_to_owned());
        Some(ArrivalWatch { doorbell, sockets: copies.collect::<io::Result<_>>().ok()? })
    }

    /// Sleeps until a peer arrives or another thread calls [`end`](Self::end), but no longer than `timeout`; false if
    /// it was that. A peer that is not let in ends each wait at once.
    pub(crate) fn wait(&self, timeout: Duration) -> bool {
        let sockets: SmallVec<[BorrowedFd<'_>; 4]> = self.sockets.iter().map(AsFd::as_fd).collect();
        self.doorbell.wait(&sockets, timeout)
    }

    /// Ends the wait, or the next one.
    pub(crate) fn end(&self) {
        self.doorbell.ring();
    }
}

/// Whether a file that another process passed is an eventfd. To ring anything else is not safe: a write to a pipe that
/// no process reads raises a signal, and a write to a file system that hangs may block in spite of its flags.
pub(crate) fn is_eventfd(file: BorrowedFd<'_>) -> io::Result<bool> {
    // Only this link tells an eventfd from other files without a name. The path of a file with a name begins with `/`.
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(link.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    /// A doorbell, and the same as another process rings it.
    fn pair() -> (Arc<Doorbell>, Doorbell) {
        let own = Doorbell::new(&Address::random()).unwrap();
        let files: Vec<_> = own.files().map(|file| file.try_clone_to_owned().unwrap()).collect();
        let [event, word] = files.try_into().unwrap();
        let word = HostMemory::from_peer(word, Doorbell::BYTES, true).unwrap();
        (own, Doorbell::of_peer(event, word))
    }

    /// The number of times that it was rung by a system call since the last wait.
    fn calls(doorbell: &Doorbell) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(&doorbell.event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    #[test]
    fn whoever_rings_before_or_during_a_wait_ends_it() {
        let (doorbell, of_peer) = pair();
        for ringing in [&*doorbell, &of_peer] {
            ringing.ring();
            assert!(doorbell.wait(&[], LONG));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !doorbell.word.is_parked() {
                        std::thread::yield_now();
                    }
                    ringing.ring();
                });
                assert!(doorbell.wait(&[], LONG));
            });
        }
    }

    #[test]
    fn to_ring_is_a_system_call_for_the_first_alone_and_while_the_thread_sleeps() {
        let (doorbell, of_peer) = pair();
        let ring = || [&*doorbell, &of_peer].map(Doorbell::ring);
        ring();
        assert_eq!(calls(&doorbell), 0, "it is awake");
        assert!(doorbell.wait(&[], LONG));
        let mut asleep = 0;
        assert!(doorbell.around(|| {
            ring();
            asleep = calls(&doorbell);
        }));
        assert_eq!(asleep, 1);
        ring();
        assert_eq!(calls(&doorbell), 0, "it is awake again");
    }

    #[test]
    fn a_ring_at_the_very_end_of_a_wait_is_heard() {
        let (doorbell, of_peer) = pair();
        assert!(!doorbell.around(|| {}));
        assert!(doorbell.around(|| doorbell.ring()), "by a thread of this process");
        assert!(doorbell.around(|| of_peer.ring()), "by another process");
        assert!(!doorbell.around(|| {}));
    }

    #[test]
    fn a_ring_that_was_heard_does_not_end_the_next_wait() {
        let (doorbell, of_peer) = pair();
        for _ in 0..2 {
            doorbell.ring();
            of_peer.ring();
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
