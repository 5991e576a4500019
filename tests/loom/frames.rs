//! Frames written by their owner while a peer pulls.

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;
use slackline::internals::mem::Access;
use slackline::internals::param::{FrameSource, Frames};
use slackline::internals::transport::LocalEndpoint;
use slackline::{Clock, Version};

use super::world::{READERS, Reader, endpoint_to, explore, fill, shard, words};

fn write(frames: &mut Frames, version: u64, words: &[usize]) {
    let frame = frames.begin(Version::new(version), |_| false).unwrap();
    fill(&frames.host_payload(frame).unwrap(), words, version);
    frames.commit(frame, Version::new(version), Clock::new(0));
}

/// Frame 0 is overwritten while the reader copies it. Without the second header (`second_header`), the fence between
/// odd sequence and payload (`begin_fence`), or the one behind each READ (`read_fence`), a mixture is accepted.
#[test]
fn a_pull_is_whole_or_nothing() {
    pull_whole_or_nothing(Reader::new);
}

/// The same of a pull that loads mapped memory itself, with an acquire at the first look (`mapped_acquire`) and a fence
/// before the second one (`mapped_fence`).
#[test]
fn a_pull_of_mapped_memory_is_whole_or_nothing() {
    pull_whole_or_nothing(Reader::mapped);
}

fn pull_whole_or_nothing(reader: fn(FrameSource, LocalEndpoint) -> Reader<LocalEndpoint>) {
    explore(2, move |accepted| {
        let (mut frames, source) = shard(2, 16);
        let mut reader = reader(source, endpoint_to(&frames, Access::REMOTE_READ));
        let reader = thread::spawn(move || {
            reader.attempt().map(|pulled| (pulled.version.get(), words(&reader.into.whole(), [0, 1])))
        });
        write(&mut frames, 1, &[0, 1]);
        write(&mut frames, 2, &[0, 1]);
        if let Some((version, words)) = reader.join().unwrap() {
            assert_eq!(words, [version; 2], "a mixture of versions was accepted");
            accepted.fetch_add(1, Relaxed);
        }
    });
}

/// The word that says which gradients of a peer a frame holds lies between the same two looks as the payload, so that
/// what proves one proves the other (`second_header`, `begin_fence`, `read_fence`).
#[test]
fn a_frame_and_what_it_says_of_a_peers_gradients_agree() {
    agree(Reader::new);
}

/// The same where memory is mapped.
#[test]
fn a_mapped_frame_and_what_it_says_of_a_peers_gradients_agree() {
    agree(Reader::mapped);
}

fn agree(reader: fn(FrameSource, LocalEndpoint) -> Reader<LocalEndpoint>) {
    explore(2, move |accepted| {
        let (mut frames, source) = shard(2, 8);
        let mut reader = reader(source, endpoint_to(&frames, Access::REMOTE_READ));
        reader.pull.ask_included(Some(0)).unwrap();
        let reader = thread::spawn(move || {
            reader.attempt().map(|pulled| (pulled.included, words(&reader.into.whole(), [0])))
        });
        for version in 1..=2 {
            let frame = frames.begin(Version::new(version), |_| false).unwrap();
            fill(&frames.host_payload(frame).unwrap(), &[0], version);
            frames.set_included(frame, 0, Clock::new(version));
            frames.commit(frame, Version::new(version), Clock::new(0));
        }
        if let Some((included, [word])) = reader.join().unwrap() {
            assert_eq!(
                included,
                Some(Clock::new(word)),
                "a frame and its included clock are not of one version"
            );
            accepted.fetch_add(1, Relaxed);
        }
    });
}

/// Nothing is written behind the version that the reader finds as the latest, so it is pulled at the first attempt.
/// Without the release store of `latest` (`latest_release`) its frame may not look whole yet.
#[test]
fn a_version_that_is_announced_is_whole() {
    for reader in READERS {
        explore(3, move |accepted| {
            let (mut frames, source) = shard(2, 8);
            let mut reader = reader(source, endpoint_to(&frames, Access::REMOTE_READ));
            let reader = thread::spawn(move || reader.attempt().map(|pulled| pulled.version.get()));
            write(&mut frames, 1, &[0]);
            let version = reader.join().unwrap();
            assert!(version.is_some(), "the latest version was announced before its frame was whole");
            accepted.fetch_add(version.unwrap_or(0) as usize, Relaxed);
        });
    }
}

/// A reader never pulls an older version than it has pulled before.
#[test]
fn pulls_are_monotone() {
    for reader in READERS {
        explore(2, move |accepted| {
            let (mut frames, source) = shard(2, 8);
            let mut reader = reader(source, endpoint_to(&frames, Access::REMOTE_READ));
            let reader =
                thread::spawn(move || [(); 2].map(|()| reader.attempt().map(|pulled| pulled.version)));
            write(&mut frames, 1, &[0]);
            if let [Some(first), Some(second)] = reader.join().unwrap() {
                assert!(first <= second, "{first:?}, then {second:?}");
                accepted.fetch_add(1, Relaxed);
            }
        });
    }
}
