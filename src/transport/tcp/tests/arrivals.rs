//! Arrivals that are counted before they are received: the owner of an idle peer goes by their number.

use super::*;
use crate::mem::MemoryRegion;
use crate::transport::HeartbeatWord;

/// A connection over which the server counts arrivals; the client sets the word by heartbeats.
struct Counted {
    listener: TcpListener,
    client: TcpEndpoint,
    server: TcpEndpoint,
    region: MemoryRegion,
    word: Box<dyn HeartbeatWord>,
}

impl Counted {
    fn new() -> Counted {
        let tcp = Tcp::new();
        let mut listener = listen(&tcp);
        let region = tcp.allocate(4096, ALL).unwrap();
        let (client, mut server, received) = pair(&tcp, &mut listener, offer(vec![region.whole()]));
        assert_eq!(server.arrivals(), None, "they are not counted");
        server.count_arrivals();
        let word = client.heartbeat_word(&received.grants[0].slice(0, 8).unwrap()).unwrap();
        Counted { listener, client, server, region, word }
    }

    fn arrivals(&self) -> u64 {
        self.server.arrivals().expect("they are counted")
    }

    fn stored(&self) -> u64 {
        self.region.as_volatile().load_u64(0)
    }

    /// Beats until the server has noticed it.
    fn beat(&mut self, value: u64) {
        let before = self.arrivals();
        self.word.set(value).unwrap();
        wait_for("a beat", || (self.arrivals() != before).then_some(()));
    }

    /// Asks twice, as the answer to the first question may be one to an earlier question.
    fn catch_up(&mut self) {
        for _ in 0..2 {
            wait_for("the thread to catch up", || self.listener.has_caught_up().then_some(()));
        }
    }
}

#[test]
fn each_beat_is_noticed_and_eight_are_received_together() {
    let mut counted = Counted::new();
    for value in 1..=20 {
        counted.beat(value);
        wait_for("all beats but seven", || (value - counted.stored() < 8).then_some(()));
    }
    let Counted { client, mut server, word, .. } = counted;
    drop((client, word));
    wait_for("the end of the connection", || server.check().err());
}

#[test]
fn beats_that_pile_up_and_arrive_at_once_are_noticed() {
    let mut counted = Counted::new();
    for burst in 1..=20 {
        let before = counted.arrivals();
        for beat in 1..=100 {
            counted.word.set(100 * burst + beat).unwrap();
        }
        wait_for("the burst", || (counted.arrivals() != before).then_some(()));
    }
}

#[test]
fn a_peer_whose_lane_is_full_is_heard_again_once_its_owner_asks() {
    let mut counted = Counted::new();
    for _ in 0..3 {
        // More than a lane holds. Heartbeats that do not fit are left out, and a full lane has no more events.
        for value in 1..=200_000 {
            counted.word.set(value).unwrap();
        }
        counted.catch_up();
        let before = counted.arrivals();
        wait_for("a beat after the lane was full", || {
            counted.word.set(1_000_000).unwrap();
            counted.catch_up();
            (counted.arrivals() != before && counted.stored() == 1_000_000).then_some(())
        });
    }
}

#[test]
fn what_is_left_unread_counts_once_and_no_dead_peer_lives_by_it() {
    let mut counted = Counted::new();
    // One more, and they are received.
    for value in 1..=7 {
        counted.beat(value);
        let before = counted.arrivals();
        for _ in 0..5 {
            counted.catch_up();
            counted.server.check().unwrap();
        }
        assert_eq!(counted.arrivals(), before, "after {value} beats");
    }
    assert!(counted.stored() < 7, "some are unread");
}
