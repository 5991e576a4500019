//! What is asked of a device, and what is made of what it tells.

use super::hello::Pair;
use super::scripted::{self, device, gid, info};
use super::*;

/// A rail over a device that answers so many READs and atomics, and has so many under way.
fn rail(reads_served: u8, reads_posted: u8, read_depth: u8) -> Rail {
    let device = device();
    let domain = ProtectionDomain::new(&device).unwrap();
    let mut info = info("scripted0", true, vec![gid()]);
    info.limits = Limits { reads_served, reads_posted, ..info.limits };
    let port = info.ports[0].clone();
    Rail { device, info, port, reason: String::new(), domain, gid_index: None, mtu: 1024, read_depth }
}

/// How many READs and atomics the device is told that one side's pair has under way, and that the other's answers.
fn agreed(poster: &Rail, server: &Rail) -> (u8, u8) {
    let (posts, serves) = (poster.choose_gid(None).unwrap(), server.choose_gid(None).unwrap());
    let (at_poster, at_server) = (poster.place(&posts.gid), server.place(&serves.gid));
    let peer = Pair { number: 7, first_packet: 0 };
    let asked = |field: sys::ibv_qp_attr_mask| {
        let modified = scripted::take_modified();
        let mut asked =
            modified.iter().filter(|(mask, _)| mask & field != 0).map(|(_, attributes)| *attributes);
        let only = asked.next().expect("it is asked for");
        assert!(asked.next().is_none(), "and once");
        only
    };

    let pair = QueuePair::to_post(&poster.domain, 4, 0, None).unwrap();
    pair.connect(&poster.path(&posts, &at_poster, &at_server).unwrap(), &peer).unwrap();
    let posted = asked(sys::IBV_QP_MAX_QP_RD_ATOMIC).max_rd_atomic;
    let pair = QueuePair::to_serve(&server.domain, None).unwrap();
    pair.serve(&server.path(&serves, &at_server, &at_poster).unwrap(), &peer, Access::REMOTE_READ).unwrap();
    (posted, asked(sys::IBV_QP_MAX_DEST_RD_ATOMIC).max_dest_rd_atomic)
}

#[test]
fn no_side_has_more_reads_under_way_than_the_other_answers_whoever_has_less() {
    let most = u8::MAX;
    for (one, other, from_one, from_other) in [
        // Each of the four in turn is the least.
        (rail(16, 16, 16), rail(2, 8, 16), 2, 8),
        (rail(16, 16, 16), rail(8, 2, 16), 8, 2),
        (rail(2, 8, 16), rail(16, 16, 16), 8, 2),
        (rail(8, 2, 16), rail(16, 16, 16), 2, 8),
        // What was asked for on one side or the other, and what a device rounds up.
        (rail(most, most, 1), rail(most, most, 16), 1, 1),
        (rail(most, most, 16), rail(most, most, 4), 4, 4),
        (rail(most, most, 16), rail(7, 3, 16), 4, 2),
        (rail(most, most, most), rail(most, most, most), 128, 128),
    ] {
        assert_eq!(agreed(&one, &other), (from_one, from_one));
        assert_eq!(agreed(&other, &one), (from_other, from_other));
    }
}
