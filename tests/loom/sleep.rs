//! A peer that sleeps until its owner wakes it, and a thread that parks until others notify it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use loom::thread;
use slackline::internals::mem::{Access, HostMemory};
use slackline::internals::param::{PeerInbox, SleepWord, fence_before_sleeping, fence_before_waking};
use slackline::internals::transport::{Endpoint, ParkWord};
use slackline::{Clock, Version};

use super::world::{PAGE, Reader, endpoint_to, explore, fill, region, remote, shard};

/// Dekker's pattern between `SleepWord::say` and `fence_before_waking`. Without the full fence on either side
/// (`sleep_fence`, `wake_fence`) the peer may miss the version, and the owner that the peer sleeps.
#[test]
fn a_peer_that_sleeps_has_seen_the_version_or_is_woken() {
    explore(3, |slept| {
        let (mut frames, source) = shard(2, 8);
        let page = region(PeerInbox::page_bytes(0));
        let mut endpoint = endpoint_to(&frames, Access::REMOTE_READ);
        endpoint.attach(PAGE, page.clone(), Access::REMOTE_WRITE);
        let mut word = SleepWord::new(&remote(PAGE, &page)).unwrap();
        let inbox = PeerInbox::new(page, None, Clock::new(0));
        let peer = thread::spawn(move || {
            endpoint.post(&[word.say(1)]).unwrap();
            assert!(endpoint.poll().is_some_and(|completion| completion.result.is_ok()));
            fence_before_sleeping();
            Reader::new(source, endpoint).attempt().is_some_and(|pulled| pulled.version == Version::new(1))
        });
        let frame = frames.begin(Version::new(1), |_| false).unwrap();
        fill(&frames.host_payload(frame).unwrap(), &[0], 1);
        frames.commit(frame, Version::new(1), Clock::new(0));
        fence_before_waking();
        let is_woken = inbox.sleeps() == 1;
        if !peer.join().unwrap() {
            assert!(is_woken, "a peer sleeps past a version");
            slept.fetch_add(1, Relaxed);
        }
    });
}

/// Dekker's pattern between `ParkWord::notify`, which finds that the thread is notified already, and `ParkWord::take`.
/// Without the full fence on either side (`notify_fence`, `take_fence`) the thread may take a notification and not see
/// what came with it. All else is one word.
#[test]
fn a_thread_that_parks_has_seen_what_was_stored_or_is_woken() {
    explore(3, |slept| {
        let word = Arc::new(ParkWord::new(HostMemory::shared(8).unwrap()));
        let stored = region(8);
        assert!(!word.notify(), "the thread is awake");
        let peer = thread::spawn({
            let (word, stored) = (word.clone(), stored.clone());
            move || {
                stored.as_volatile().store(0, 1, Relaxed);
                word.notify()
            }
        });
        let mut has_seen = false;
        while !has_seen && !word.park() {
            word.take();
            has_seen = stored.as_volatile().load(0, Relaxed) == 1;
        }
        let is_woken = peer.join().unwrap();
        if !has_seen {
            assert!(is_woken, "a thread sleeps past a notification");
            slept.fetch_add(1, Relaxed);
        }
    });
}
