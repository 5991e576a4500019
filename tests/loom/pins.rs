//! Reading in place, under a pin.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use slackline::internals::mem::Access;
use slackline::internals::param::{FrameSource, Frames, PeerInbox, Pins};
use slackline::{Clock, Version, scheme::Bound};

use super::world::{PAGE, endpoint_to, explore, fill, region, remote, shard};

/// Dekker's pattern between `Pins::hold` and `Frames::begin`. Without the full fence on either side (`pin_fence`,
/// `begin_fence`) both may miss the other, and the owner writes what the reader reads.
#[test]
fn a_pinned_frame_is_never_written() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, 16);
        let (mut pins, inbox) = peer(&frames, source);
        let reader = thread::spawn(move || {
            let pulled = pins.hold(Bound::NONE).unwrap().expect("there is a version from the start");
            let version = pulled.version.get();
            for word in [0, 8, 0] {
                let seen = pins.bytes().unwrap().load(word, Acquire);
                assert_eq!(seen, version, "a pinned frame was written");
            }
            pins.release();
            version
        });
        for version in [1, 2].map(Version::new) {
            if let Ok(frame) = frames.begin(version, |frame| inbox.pins(frame)) {
                fill(&frames.host_payload(frame).unwrap(), &[0, 1], version.get());
                frames.commit(frame, version, Clock::new(0));
            }
        }
        reader.join().unwrap();
        accepted.fetch_add(1, Relaxed);
    });
}

/// The reader pins version 0, lets it go and pins version 1 while the owner looks for a frame for version 2. Three
/// orderings are needed: the release of a pin (`unpin_release`), the next pin, which the owner may find instead of that
/// release (`repin_release`), and the owner's look at either (`pins_acquire`).
///
/// No load of this model sees a store that comes later, so values alone would show none of them. What stands for the
/// last load of the frame is therefore a store to a word of the model's own: an owner that may write finds it.
#[test]
fn a_frame_is_written_after_the_last_read_of_its_reader() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, 8);
        let (mut pins, inbox) = peer(&frames, source);
        let has_read = Arc::new(AtomicU64::new(0));
        // No part of the model: it says what has happened, and orders nothing.
        let has_pinned = std::sync::Arc::new(AtomicBool::new(false));
        let (reads, pinned) = (Arc::clone(&has_read), std::sync::Arc::clone(&has_pinned));
        let reader = thread::spawn(move || {
            if pins.hold(Bound::NONE).unwrap().is_some_and(|pulled| pulled.version == Version::new(0)) {
                pinned.store(true, Relaxed);
                reads.store(1, Relaxed);
                pins.hold(Bound::NONE).unwrap();
            }
        });
        commit(&mut frames, 1);
        if frames.begin(Version::new(2), |frame| inbox.pins(frame)).is_ok() && has_pinned.load(Relaxed) {
            assert_eq!(has_read.load(Relaxed), 1, "a frame was written before its reader had read it");
            accepted.fetch_add(1, Relaxed);
        }
        reader.join().unwrap();
    });
}

/// A reader that was taken for dead has lost its pin, and its frame is written while it reads. Without the fence in
/// `Pins::is_intact` (`intact_fence`) it takes what it has read for what it pinned.
#[test]
fn a_frame_that_was_lost_is_not_taken_for_intact() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, 8);
        let (mut pins, _) = peer(&frames, source);
        pins.hold(Bound::NONE).unwrap().unwrap();
        commit(&mut frames, 1);
        let reader = thread::spawn(move || {
            let word = pins.bytes().unwrap().load(0, Relaxed);
            pins.is_intact().then_some(word)
        });
        commit(&mut frames, 2);
        if let Some(word) = reader.join().unwrap() {
            assert_eq!(word, 0, "a frame that was written is taken for intact");
            accepted.fetch_add(1, Relaxed);
        }
    });
}

/// The owner marks the frame, finds the pin and takes the mark back: meanwhile nothing of the frame was written.
#[test]
fn a_pin_that_was_given_is_intact_until_it_is_let_go() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, 8);
        let (mut pins, inbox) = peer(&frames, source);
        let reader = thread::spawn(move || {
            let is_held = pins.hold(Bound::NONE).unwrap().is_some();
            assert!(!is_held || pins.is_intact(), "a pinned frame is taken for written");
            is_held
        });
        for version in [1, 2].map(Version::new) {
            if let Ok(frame) = frames.begin(version, |frame| inbox.pins(frame)) {
                frames.commit(frame, version, Clock::new(0));
            }
        }
        if reader.join().unwrap() {
            accepted.fetch_add(1, Relaxed);
        }
    });
}

/// A peer's pins, and the inbox where the owner finds them.
fn peer(frames: &Frames, source: FrameSource) -> (Pins, PeerInbox) {
    let page = region(PeerInbox::page_bytes(0));
    let mut endpoint = endpoint_to(frames, Access::REMOTE_READ);
    endpoint.attach(PAGE, page.clone(), Access::REMOTE_WRITE);
    let pins = Pins::new(&endpoint, &source, &remote(PAGE, &page)).unwrap();
    (pins, PeerInbox::new(page, None, Clock::new(0)))
}

/// Writes a version, whatever is pinned.
fn commit(frames: &mut Frames, version: u64) {
    let frame = frames.begin(Version::new(version), |_| false).unwrap();
    fill(&frames.host_payload(frame).unwrap(), &[0], version);
    frames.commit(frame, Version::new(version), Clock::new(0));
}
