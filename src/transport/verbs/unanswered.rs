//! The paths to peers on which requests were not answered recently although this side's port was up, for example
//! because a switch between the two has failed. New connections leave these paths out for a while, as they leave out
//! ports that are down.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::device::lock;

/// The time for which a path is left out. A trial of the path costs a connection whose first request is not answered
/// for seconds.
const LEFT_OUT_FOR: Duration = Duration::from_secs(60);

/// The greatest number of known paths: beyond it, the path that has been known for the longest time is tried again.
const WAYS_MOST: usize = 1024;

/// The path from a rail of this side to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerWay {
    /// The index of the rail among all rails of the transport.
    pub(super) rail: usize,
    /// The peer's address as it is known before the connection is made: a connector knows the address to which it
    /// connects, a listener knows the address of the peer's port.
    pub(super) towards: IpAddr,
}

/// The paths on which requests were not answered, in the order of time.
#[derive(Default)]
pub(super) struct UnansweredWays(Mutex<Vec<(PeerWay, Instant)>>);

impl UnansweredWays {
    /// Notes that a request on this path was not answered.
    pub(super) fn note(&self, way: PeerWay, now: Instant) {
        let mut known = lock(&self.0);
        known.retain(|(other, since)| *other != way && now.saturating_duration_since(*since) < LEFT_OUT_FOR);
        if known.len() == WAYS_MOST {
            known.remove(0);
        }
        known.push((way, now));
    }

    /// Forgets the paths to this peer, since the peer reports that there is no other path.
    pub(super) fn forget(&self, towards: IpAddr) {
        lock(&self.0).retain(|(way, _)| way.towards != towards);
    }

    /// Whether new connections must leave this path out.
    pub(super) fn has(&self, way: PeerWay, now: Instant) -> bool {
        let is_it = |(other, since): &(PeerWay, Instant)| {
            *other == way && now.saturating_duration_since(*since) < LEFT_OUT_FOR
        };
        lock(&self.0).iter().any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(rail: usize, host: u8) -> PeerWay {
        PeerWay { rail, towards: IpAddr::from([10, 0, 0, host]) }
    }

    #[test]
    fn a_way_is_left_out_for_a_minute_after_it_was_unanswered_last() {
        let (ways, begun) = (UnansweredWays::default(), Instant::now());
        let after = |seconds: u64| begun + Duration::from_secs(seconds);
        ways.note(way(0, 1), begun);
        ways.note(way(1, 2), after(10));
        assert!(ways.has(way(0, 1), after(59)) && !ways.has(way(1, 1), begun) && !ways.has(way(0, 2), begun));
        ways.note(way(0, 1), after(30));
        assert!(ways.has(way(0, 1), after(89)) && !ways.has(way(0, 1), after(90)));
        assert!(ways.has(way(1, 2), after(69)) && !ways.has(way(1, 2), after(70)));
        ways.forget(way(9, 1).towards);
        assert!(!ways.has(way(0, 1), after(31)) && ways.has(way(1, 2), after(31)));
    }

    #[test]
    fn no_more_than_so_many_ways_are_kept() {
        let (ways, now) = (UnansweredWays::default(), Instant::now());
        (0..WAYS_MOST + 3).for_each(|rail| ways.note(way(rail, 1), now));
        assert_eq!(lock(&ways.0).len(), WAYS_MOST);
        assert!(
            !ways.has(way(2, 1), now) && ways.has(way(3, 1), now) && ways.has(way(WAYS_MOST + 2, 1), now)
        );
    }
}
