//! Decisions: one server appends them to its ring, another one reads them.

use std::sync::atomic::Ordering::Relaxed;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use slackline::internals::mem::Access;
use slackline::internals::param::{
    DECISIONS_BYTES, DecidedFrom, Decision, DecisionReader, Decisions, PeerInbox, Welcome,
};
use slackline::internals::transport::{Endpoint, LocalEndpoint};
use slackline::{Clock, ElementType, Table, Version};

use super::world::{CONTROL, EPOCH, FRAMES, PAGE, SLOTS, explore, region, remote, shard};

/// Three decisions go through a ring of two. Without the release store of their count (`decided_release`) one is read
/// that is not there yet. Without the acquire load of how many were taken (`followed_acquire`) one is overwritten
/// before it was read: no load of this model sees a later store, so a word of the model's own says what was read.
#[test]
fn a_follower_reads_every_decision_whole_and_in_order() {
    explore(2, |accepted| {
        let (frames, source) = shard(2, 16);
        let (page, ring) = (region(PeerInbox::page_bytes(0)), region(DECISIONS_BYTES));
        let welcome = Welcome {
            epoch: EPOCH,
            peer: 0,
            generation: 0,
            clock: Clock::new(0),
            table: Table::flat(4, ElementType::F32).unwrap(),
            shard: 0,
            shards: 2,
            layout: source.layout,
            geometry: source.geometry,
            slots: None,
            lease_ns: 1,
            scheme: None,
            decided: Some(DecidedFrom { next: 0, version: Version::new(0), goes_on: false }),
            deltas: None,
        };
        let keyed = [
            (CONTROL, frames.control()),
            (FRAMES, frames.memory().host().unwrap()),
            (PAGE, &page),
            (SLOTS, &ring),
        ];
        let grants = keyed.map(|(key, region)| remote(key, region));
        let mut endpoint = LocalEndpoint::new(16);
        for (key, region) in keyed {
            let access = if key == PAGE { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
            endpoint.attach(key, region.clone(), access);
        }
        let mut follow =
            DecisionReader::new(&welcome, &grants, region(DecisionReader::SCRATCH_BYTES).whole())
                .unwrap()
                .unwrap();
        let (inbox, mut decisions) = (PeerInbox::new(page, None, Clock::new(0)), Decisions::new(ring));
        let read = Arc::new(AtomicU64::new(0));
        let read_by_follower = Arc::clone(&read);
        let follower = thread::spawn(move || {
            let mut taken = 0;
            while taken < 3 {
                let moved = follow.advance(&mut endpoint, |decision| {
                    assert_eq!(decision, Decision::Joined { session: taken }, "out of order");
                    taken += 1;
                    read.store(taken, Relaxed);
                });
                let moved = moved.expect("a decision was counted before it was whole");
                while let Some(completion) = endpoint.poll() {
                    follow.complete(completion);
                }
                if !moved {
                    thread::yield_now();
                }
            }
        });
        for session in 0..3 {
            while !decisions.append(Decision::Joined { session }, inbox.followed()) {
                thread::yield_now();
            }
            let read = read_by_follower.load(Relaxed);
            assert!(read + 2 > session, "a decision was overwritten before its follower had read it");
            decisions.announce();
        }
        follower.join().unwrap();
        accepted.fetch_add(1, Relaxed);
    });
}
