//! Reading in place, under a pin.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use loom::thread;
use slackline::clock::{Clock, Version};
use slackline::mem::Access;
use slackline::param::{Desk, Pins};
use slackline::scheme::Bound;

use super::world::{PAGE, endpoint_to, explore, fill, region, remote, shard};

/// Dekker's pattern between `Pins::pin` and `Frames::begin`. Without the full fence on either side (`pin_fence`,
/// `begin_fence`) both may miss the other, and the owner writes what the reader reads.
#[test]
fn a_pinned_frame_is_never_written() {
    explore(2, |accepted| {
        let (mut frames, source) = shard(2, 16);
        let page = region(Desk::page_bytes(0));
        let mut endpoint = endpoint_to(&frames, Access::REMOTE_READ);
        endpoint.attach(PAGE, page.clone(), Access::REMOTE_WRITE);
        let mut pins = Pins::new(&endpoint, &source, &remote(PAGE, &page)).unwrap();
        let desk = Desk::new(page, None, Clock(0));
        let reader = thread::spawn(move || {
            let pinned = pins.pin(Bound::NONE).unwrap().expect("there is a version from the start");
            let version = pinned.pulled().version.0;
            for word in [0, 8, 0] {
                assert_eq!(pinned.bytes().load(word, Acquire), version);
            }
            version
        });
        for version in [1, 2].map(Version) {
            if let Ok(frame) = frames.begin(version, |frame| desk.pins(frame)) {
                fill(&frames.payload(frame), &[0, 1], version.0);
                frames.commit(frame, version, Clock(0));
            }
        }
        reader.join().unwrap();
        accepted.fetch_add(1, Relaxed);
    });
}
