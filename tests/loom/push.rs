//! Versions pushed into a peer's own frames while the peer pulls from them.

use std::sync::atomic::Ordering::Relaxed;

use loom::thread;
use slackline::internals::mem::Access;
use slackline::internals::param::{FrameHeader, FrameSource, Push, PushGrant};
use slackline::internals::transport::{Endpoint, LocalEndpoint};
use slackline::{Clock, Version};

use super::world::{EPOCH, READERS, Reader, endpoint_to, explore, fill, region, shard, words};

/// Frame 0 is pushed over while the reader copies it. Without the header that says so first (`push_mark`), or the order
/// of writes that an endpoint promises (`write_fence`), a mixture is accepted.
#[test]
fn a_pushed_version_is_pulled_whole_or_not_at_all() {
    for reader in READERS {
        explore(3, move |accepted| {
            pushed(accepted, reader, |frames| endpoint_to(frames, Access::REMOTE_WRITE));
        });
    }
}

/// Pushes versions 1 and 2 through the endpoint that `connect` makes.
pub(crate) fn pushed<E: Endpoint>(
    accepted: &std::sync::atomic::AtomicUsize,
    reader: fn(FrameSource, LocalEndpoint) -> Reader<LocalEndpoint>,
    connect: impl Fn(&slackline::internals::param::Frames) -> E,
) {
    let (frames, source) = shard(2, 16);
    let mut reader = reader(source, endpoint_to(&frames, Access::REMOTE_READ));
    reader.pull.ask_included(None).unwrap();
    let mut endpoint = connect(&frames);
    let payloads = [1, 2].map(|version| {
        let payload = region(16).whole();
        fill(&payload, &[0, 1], version);
        payload
    });
    let reader = thread::spawn(move || {
        let pulled = reader.attempt()?;
        let (included, version) = (pulled.included, pulled.version);
        let what = "a frame and its included clock are not of one version";
        assert_eq!(included, Some(Clock::new(version.get())), "{what}");
        Some((pulled.version.get(), words(&reader.into.whole(), [0, 1])))
    });
    let grant = PushGrant { layout: source.layout, geometry: source.geometry };
    let mut push = Push::new(source.control, source.frames, grant);
    for (version, payload) in (1..).zip(&payloads) {
        let (version, included) = (Version::new(version), Clock::new(version));
        let header = FrameHeader { version, included, epoch: EPOCH, bytes: 16, ..FrameHeader::default() };
        assert!(push.start(&mut endpoint, 0, &header, &payload.clone().into()).unwrap());
        push.complete(endpoint.poll().unwrap());
    }
    if let Some((version, words)) = reader.join().unwrap() {
        assert_eq!(words, [version; 2], "a mixture of versions was accepted");
        accepted.fetch_add(1, Relaxed);
    }
}
