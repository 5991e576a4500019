//! Watches the conversations of one transport's peers, all at once.
//!
//! After its handshake a conversation is silent, except for its end and an occasional message. If each call read the
//! socket of each peer, a peer that does nothing would cost dozens of system calls a second. So the system is asked
//! which conversations have messages, at most once every [`LOOK_EVERY`], by the first thread that calls.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::Timespec;

use super::device::lock;

/// Shortest time between two queries.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The greatest number of conversations that one system call reports.
const EVENTS: usize = 64;

/// The conversations, and the time of the next query.
pub(super) struct Hearing {
    epoll: OwnedFd,
    begun: Instant,
    /// The time of the next query, in nanoseconds since `begun`.
    due: AtomicU64,
    ears: Mutex<Ears>,
    /// The number of system calls.
    #[cfg(test)]
    pub(super) asked: AtomicU64,
}

#[derive(Default)]
struct Ears {
    /// Numbers are not reused: an event of a conversation that is over finds no entry.
    next: u64,
    heard: HashMap<u64, Arc<AtomicBool>>,
}

/// The watch over one conversation, until [`forget`](Self::forget).
pub(super) struct Ear {
    hearing: Arc<Hearing>,
    number: u64,
    has_heard: Arc<AtomicBool>,
}

impl Hearing {
    pub(super) fn new() -> io::Result<Arc<Hearing>> {
        Ok(Arc::new(Hearing {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            begun: Instant::now(),
            due: AtomicU64::new(0),
            ears: Mutex::default(),
            #[cfg(test)]
            asked: AtomicU64::new(0),
        }))
    }

    /// Watches this socket from now on, until `forget`. The first query reports data that has already arrived.
    pub(super) fn listen_to(self: &Arc<Self>, socket: impl AsFd) -> io::Result<Ear> {
        let has_heard = Arc::new(AtomicBool::new(false));
        let mut ears = lock(&self.ears);
        let number = ears.next;
        ears.next += 1;
        // Edge-triggered: the system reports arriving data once, whether it is read or not, so the owner reads until
        // no data is left.
        let told = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, socket, EventData::new_u64(number), told)?;
        ears.heard.insert(number, Arc::clone(&has_heard));
        Ok(Ear { hearing: Arc::clone(self), number, has_heard })
    }

    /// True at most once every [`LOOK_EVERY`], for one thread, which must query for all.
    pub(super) fn is_due(&self) -> bool {
        let now = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(LOOK_EVERY.as_nanos() as u64);
        now >= due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Marks the ears whose conversations have messages, without waiting.
    pub(super) fn listen(&self) {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            #[cfg(test)]
            self.asked.fetch_add(1, Ordering::Relaxed);
            events.clear();
            let spare = rustix::buffer::spare_capacity(&mut events);
            // If the call is interrupted or refused, it reports no events this time.
            let count = epoll::wait(&self.epoll, spare, Some(&at_once)).unwrap_or(0);
            let ears = lock(&self.ears);
            for event in &events {
                if let Some(has_heard) = ears.heard.get(&event.data.u64()) {
                    has_heard.store(true, Ordering::Release);
                }
            }
            if count < EVENTS {
                return;
            }
        }
    }

    /// Makes the next query due at once.
    #[cfg(test)]
    pub(super) fn hurry(&self) {
        self.due.store(0, Ordering::Relaxed);
    }
}

impl Ear {
    /// Whether the conversation has had a message since the last call.
    pub(super) fn take_heard(&self) -> bool {
        self.has_heard.load(Ordering::Relaxed) && self.has_heard.swap(false, Ordering::Acquire)
    }

    /// Notes that the conversation has more messages than were read.
    pub(super) fn hear_again(&self) {
        self.has_heard.store(true, Ordering::Relaxed);
    }

    /// Ends the watch. The system forgets the socket when it is closed.
    pub(super) fn forget(&self) {
        lock(&self.hearing.ears).heard.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn each_ear_hears_of_its_own_conversation_and_once_for_what_arrives() {
        let hearing = Hearing::new().unwrap();
        let pairs: Vec<_> = (0..3 * EVENTS).map(|_| UnixStream::pair().unwrap()).collect();
        let ears: Vec<_> = pairs.iter().map(|(own, _)| hearing.listen_to(own).unwrap()).collect();
        let heard = || {
            hearing.listen();
            ears.iter().map(Ear::take_heard).collect::<Vec<bool>>()
        };
        assert!(!heard().contains(&true), "no socket has bytes");
        for (_, peer) in &pairs {
            (&*peer).write_all(b"one").unwrap();
        }
        assert!(!heard().contains(&false), "all have, more than one call tells of");
        assert!(!heard().contains(&true), "it was told");
        let (mut own, mut peer) = (&pairs[7].0, &pairs[7].1);
        own.read_exact(&mut [0; 3]).unwrap();
        peer.write_all(b"two").unwrap();
        let of_one: Vec<bool> = (0..pairs.len()).map(|index| index == 7).collect();
        assert_eq!(heard(), of_one);
        peer.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(heard(), of_one, "the end is heard, too");
        ears[8].forget();
        (&pairs[8].1).write_all(b"two").unwrap();
        assert!(!heard().contains(&true));
    }

    #[test]
    fn of_all_who_look_one_at_a_time_does_it_for_all() {
        let hearing = Hearing::new().unwrap();
        assert!(hearing.is_due());
        let begun = Instant::now();
        let looks = (0..10_000).filter(|_| hearing.is_due()).count() as u128;
        assert!(looks <= begun.elapsed().as_nanos() / LOOK_EVERY.as_nanos() + 1, "{looks}");
        hearing.hurry();
        assert!(hearing.is_due());
    }
}
