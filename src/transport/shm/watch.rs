//! One look at the sockets of all peers of a listener, in place of one at each.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::epoll;

/// The sockets of the peers that a listener has accepted. The listener looks at all of them with one system call, and
/// an endpoint asks its own socket only if there was something at one of them, or there was no look.
#[derive(Debug)]
pub(super) struct Watch {
    epoll: OwnedFd,
    /// Number of looks so far, and the last one that found an event.
    looks: AtomicU64,
    found: AtomicU64,
}

impl Watch {
    pub(super) fn new() -> io::Result<Arc<Watch>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Arc::new(Watch { epoll, looks: AtomicU64::new(0), found: AtomicU64::new(0) }))
    }

    /// Looks at all sockets. Nothing is taken from one: it is found again until its endpoint has ended.
    pub(super) fn look(&self) {
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(1);
        let spare = rustix::buffer::spare_capacity(&mut events);
        // Where the question fails each endpoint asks for itself.
        let is_quiet = matches!(epoll::wait(&self.epoll, spare, Some(&at_once)), Ok(0));
        let look = self.looks.load(Ordering::Relaxed) + 1;
        if !is_quiet {
            self.found.store(look, Ordering::Relaxed);
        }
        // Release: a thread that sees the look sees its result.
        self.looks.store(look, Ordering::Release);
    }
}

/// The part of one endpoint in it.
#[derive(Debug)]
pub(super) struct Watched {
    watch: Arc<Watch>,
    /// The last look that this endpoint knows of.
    seen: u64,
}

impl Watched {
    /// None if the socket cannot be watched: then its endpoint asks it each time.
    pub(super) fn new(watch: Arc<Watch>, socket: impl AsFd) -> Option<Watched> {
        let (told, interest) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        epoll::add(&watch.epoll, socket, told, interest).ok()?;
        let seen = watch.looks.load(Ordering::Acquire);
        Some(Watched { watch, seen })
    }

    /// True if the socket was looked at since the last call, and there was nothing.
    pub(super) fn is_quiet(&mut self) -> bool {
        let looks = self.watch.looks.load(Ordering::Acquire);
        let before = std::mem::replace(&mut self.seen, looks);
        looks != before && self.watch.found.load(Ordering::Relaxed) <= before
    }

    /// Watches it no more, whichever process holds copies of its descriptor.
    pub(super) fn end(self, socket: impl AsFd) {
        // Fails only where the descriptor is broken, and then nothing is told of it either.
        let _unknown = epoll::delete(&self.watch.epoll, socket);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Shm, ShmEndpoint, ShmListener};
    use crate::time::{Duration, Instant};
    use crate::transport::{Address, Connecting, Endpoint, Incoming, Listener, Offer, Transport};

    fn join(shm: &Shm, listener: &mut ShmListener) -> (ShmEndpoint, ShmEndpoint) {
        let mut connecting = shm.connect(&listener.address(), Offer::default()).unwrap();
        assert!(connecting.poll(Instant::ORIGIN).is_pending());
        let incoming = listener.poll(Instant::ORIGIN).expect("the hello is there");
        let server = incoming.accept(Offer::default()).unwrap();
        let std::task::Poll::Ready(Ok((client, _))) = connecting.poll(Instant::ORIGIN) else {
            panic!("the answer is there")
        };
        (client, server)
    }

    #[test]
    fn one_look_of_the_listener_serves_all_endpoints_and_finds_who_is_gone() {
        let shm = Shm::new();
        let mut listener = shm.listen(&Address::random()).unwrap();
        let (first, mut at_first) = join(&shm, &mut listener);
        let (_second, mut at_second) = join(&shm, &mut listener);
        let mut now = Instant::ORIGIN;
        let mut look = |listener: &mut ShmListener| {
            now = now + Duration::from_millis(20);
            assert!(listener.poll(now).is_none());
        };
        assert!(!at_first.is_quiet(), "there was no look yet");
        for _ in 0..3 {
            look(&mut listener);
            assert!(at_first.is_quiet() && at_second.is_quiet());
            assert!(!at_first.is_quiet(), "nor was there one since");
        }
        drop(first);
        look(&mut listener);
        assert!(at_first.check().is_err(), "its peer is gone");
        at_second.check().unwrap();
        // The socket of the lost peer is not watched any more.
        for _ in 0..2 {
            look(&mut listener);
            assert!(at_second.is_quiet());
        }
        drop(listener);
        assert!(!at_second.is_quiet(), "then each asks for itself");
        at_second.check().unwrap();
    }
}
