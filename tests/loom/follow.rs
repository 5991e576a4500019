//! A frame that is copied chunk by chunk while it is being written.

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;
use slackline::internals::mem::Access;
use slackline::{Clock, Version};

use super::world::{Reader, endpoint_to, explore, fill, shard, words};

/// Two chunks: a cache line, and one word. The first word of each is looked at.
const BYTES: u64 = 72;
const CHUNKS: [usize; 2] = [0, 8];

/// The owner says nothing of the last chunk before it commits. Without the fence in `Frames::commit` (`commit_fence`)
/// the header that counts it may be seen before its bytes are; without the release store of the even sequence
/// (`even_release`) the sequence may be seen before the rest of the header.
#[test]
fn a_followed_frame_is_whole() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, BYTES);
        let mut reader = Reader::new(source, endpoint_to(&frames, Access::REMOTE_READ));
        let frame = frames.begin(Version::new(1), |_| false).unwrap();
        let follower = thread::spawn(move || {
            let pulled = reader.follow(1, 12)?;
            Some((pulled.version.get(), pulled.smallest_clock, words(&reader.into.whole(), CHUNKS)))
        });
        let payload = frames.host_payload(frame).unwrap();
        fill(&payload, &CHUNKS[..1], 1);
        frames.progress(frame).raise(1);
        fill(&payload, &CHUNKS[1..], 1);
        frames.commit(frame, Version::new(1), Clock::new(5));
        if let Some(pulled) = follower.join().unwrap() {
            assert_eq!(pulled, (1, Clock::new(5), [1; 2]), "a frame was taken for whole before it was");
            accepted.fetch_add(1, Relaxed);
        }
    });
}

/// The owner throws away what it has written and begins again. Without the attempt in the count of landed chunks
/// (`landed_attempt`) the count of the first attempt is taken for that of the second.
#[test]
fn a_frame_that_is_begun_again_is_copied_again() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, BYTES);
        let mut reader = Reader::new(source, endpoint_to(&frames, Access::REMOTE_READ));
        let frame = frames.begin(Version::new(1), |_| false).unwrap();
        let payload = frames.host_payload(frame).unwrap();
        fill(&payload, &CHUNKS[..1], 100);
        let abandoned = frames.progress(frame);
        abandoned.raise(1);
        let follower = thread::spawn(move || {
            reader.follow(1, 12).map(|pulled| (pulled.version.get(), words(&reader.into.whole(), CHUNKS)))
        });
        frames.restart(frame, Version::new(1));
        fill(&payload, &CHUNKS[..1], 1);
        let progress = frames.progress(frame);
        progress.raise(1);
        fill(&payload, &CHUNKS[1..], 1);
        progress.raise(2);
        frames.commit(frame, Version::new(1), Clock::new(0));
        if let Some((version, words)) = follower.join().unwrap() {
            assert_eq!((version, words), (1, [1; 2]), "chunks of an abandoned attempt were taken");
            accepted.fetch_add(1, Relaxed);
        }
    });
}

/// A follower that finds the word `writing` finds the header of the frame that it names. Without the release store of
/// that word (`writing_release`) it may find the header of the frame's last version, and has to begin again.
#[test]
fn a_frame_that_is_said_to_be_written_has_its_header() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, 8);
        let mut reader = Reader::new(source, endpoint_to(&frames, Access::REMOTE_READ));
        let follower = thread::spawn(move || {
            reader.follow(1, 4);
            reader.pull.retries()
        });
        let frame = frames.begin(Version::new(1), |_| false).unwrap();
        assert_eq!(follower.join().unwrap(), 0, "a frame is followed under the header of an earlier version");
        frames.commit(frame, Version::new(1), Clock::new(0));
        accepted.fetch_add(1, Relaxed);
    });
}

/// A follower may hold a version before it is announced as the latest; its next pull finds nothing older.
#[test]
fn a_follower_never_goes_back() {
    explore(3, |accepted| {
        let (mut frames, source) = shard(2, BYTES);
        let mut reader = Reader::new(source, endpoint_to(&frames, Access::REMOTE_READ));
        let frame = frames.begin(Version::new(1), |_| false).unwrap();
        fill(&frames.host_payload(frame).unwrap(), &CHUNKS, 1);
        frames.progress(frame).raise(2);
        let follower = thread::spawn(move || {
            let first = reader.follow(1, 12).map(|pulled| pulled.version);
            first.and_then(|first| Some((first, reader.attempt()?.version)))
        });
        frames.commit(frame, Version::new(1), Clock::new(0));
        if let Some((first, second)) = follower.join().unwrap() {
            assert!(first <= second, "went back: {first:?}, then {second:?}");
            accepted.fetch_add(1, Relaxed);
        }
    });
}
