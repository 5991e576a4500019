use super::copy::READ_AHEAD;
use super::resume::LEAST_PART;
use super::*;
use crate::clock::Clock;
use crate::mem::{Access, DeviceKeys, HostMemory, RemoteKey};
use crate::param::layout::{FrameGeometry, inbox};
use crate::param::{Frames, Pins};
use crate::transport::LocalEndpoint;

fn region(bytes: usize) -> MemoryRegion {
    MemoryRegion::new(HostMemory::anonymous(bytes).unwrap(), Access::REMOTE_READ, DeviceKeys::NONE, ())
}

/// An owner of so many frames of 64 bytes, an endpoint that reads them, and a pull from them.
fn owner_and_pull(frames: u8) -> (Frames, LocalEndpoint, Pull) {
    owner_and_pull_of(FrameGeometry { frames, payload_bytes: 64, chunk_bytes: 64 })
}

fn owner_and_pull_of(geometry: FrameGeometry) -> (Frames, LocalEndpoint, Pull) {
    let layout = ControlLayout { peers: 1, frames: geometry.frames };
    let (control, payload) = (region(layout.bytes()), region(geometry.bytes() as usize));
    let mut endpoint = LocalEndpoint::new(16);
    let whole = [&control, &payload].map(|region| {
        let key = RemoteKey(region.len() as u64);
        endpoint.attach(key, region.clone(), Access::REMOTE_READ);
        RemoteSlice { key, offset: 0, len: region.len() as u64 }
    });
    let [control_slice, frames_slice] = whole;
    let source = FrameSource { control: control_slice, frames: frames_slice, layout, geometry, epoch: 7 };
    let mut frames = Frames::new(control, payload, layout, geometry, 7);
    frames.set_initial(Version::new(0), Clock::new(0));
    let pull = Pull::new(source, &region(Pull::SCRATCH_BYTES)).unwrap();
    (frames, endpoint, pull)
}

fn publish(frames: &mut Frames, version: Version) {
    let frame = frames.begin(version, |_| false).unwrap();
    frames.commit(frame, version, Clock::new(0));
}

fn turn(pull: &mut Pull, endpoint: &mut LocalEndpoint) {
    pull.advance(endpoint).unwrap();
    while let Some(completion) = endpoint.poll() {
        pull.complete(completion);
    }
}

#[test]
fn versions_that_do_not_satisfy_the_bound_are_no_gain_to_a_pull() {
    let (mut frames, mut endpoint, mut pull) = owner_and_pull(2);
    let bound = Bound { smallest_clock: Clock::new(1), ..Bound::NONE };
    pull.start(bound, region(64).whole(), PullOptions::default()).unwrap();
    turn(&mut pull, &mut endpoint);
    let gains = pull.gains();
    for version in 1..10 {
        publish(&mut frames, Version::new(version));
        for _ in 0..10 {
            turn(&mut pull, &mut endpoint);
        }
        assert_eq!((pull.seen().unwrap().version, pull.gains()), (Version::new(version), gains));
    }
}

#[test]
fn a_pull_that_is_lapped_gains_nothing_and_its_caller_stands_back() {
    let (mut frames, mut endpoint, mut pull) = owner_and_pull(2);
    pull.start(Bound::NONE, region(64).whole(), PullOptions::default()).unwrap();
    // The owner writes two versions during each copy.
    let (mut version, mut gains) = (Version::new(0), None);
    while pull.retries() < 10 {
        turn(&mut pull, &mut endpoint);
        for _ in 0..2 {
            version = version.next();
            publish(&mut frames, version);
        }
        assert!(pull.is_active() && pull.take().is_none(), "it is lapped");
        if pull.retries() > 0 {
            gains.get_or_insert(pull.gains());
        }
    }
    let gains = gains.expect("it was lapped");
    assert_eq!(pull.gains(), gains, "no further retry is a gain");
    // Left alone, it ends.
    let pulled = loop {
        turn(&mut pull, &mut endpoint);
        if let Some(pulled) = pull.take() {
            break pulled;
        }
    };
    assert_eq!((pulled.version, pull.gains()), (version, gains + 1));
}

#[test]
fn a_follower_of_a_frame_that_is_given_up_takes_the_version_from_another() {
    let (mut frames, mut endpoint, mut pull) = owner_and_pull(3);
    let version = Version::new(1);
    let given_up = frames.begin(version, |_| false).unwrap();
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(version), region(64).whole(), options).unwrap();
    for _ in 0..10 {
        turn(&mut pull, &mut endpoint);
    }
    frames.abandon(given_up);
    for _ in 0..10 {
        turn(&mut pull, &mut endpoint);
    }
    assert!(pull.take().is_none(), "nothing was published");
    assert_eq!(pull.seen().unwrap().version, Version::new(0));
    let other = frames.begin(version, |frame| frame == given_up).unwrap();
    frames.commit(other, version, Clock::new(0));
    for _ in 0..10 {
        turn(&mut pull, &mut endpoint);
    }
    assert_eq!(pull.take().map(|pulled| pulled.version), Some(version));
}

#[test]
fn a_header_that_cannot_be_true_is_an_error_only_if_it_stays() {
    let (mut frames, mut endpoint, mut pull) = owner_and_pull(2);
    publish(&mut frames, Version::new(1));
    // The fourth word of the header.
    let bytes_at = frames.layout().frame_header(frames.latest().frame) + 24;
    for stays in [false, true] {
        pull.start(Bound::NONE, region(64).whole(), PullOptions::default()).unwrap();
        let control = frames.control().clone();
        control.as_volatile().store(bytes_at, 0, std::sync::atomic::Ordering::Relaxed);
        while pull.retries() == 0 {
            turn(&mut pull, &mut endpoint);
        }
        if !stays {
            control.as_volatile().store(bytes_at, 64, std::sync::atomic::Ordering::Relaxed);
        }
        let ended = loop {
            if let Err(error) = pull.advance(&mut endpoint) {
                break Err(error);
            }
            while let Some(completion) = endpoint.poll() {
                pull.complete(completion);
            }
            if let Some(pulled) = pull.take() {
                break Ok(pulled.version);
            }
        };
        let damaged = PullError::Damaged { expected: 64, found: 0 };
        assert_eq!(ended, if stays { Err(damaged) } else { Ok(Version::new(1)) });
    }
}

/// While an owner is replaced, the status may be of its next incarnation, which may have more frames.
#[test]
fn a_status_that_cannot_be_true_is_of_another_owner_or_an_error_if_it_stays() {
    for epoch in [7, 8] {
        let (mut frames, mut endpoint, mut pull) = owner_and_pull(2);
        publish(&mut frames, Version::new(1));
        pull.start(Bound::NONE, region(64).whole(), PullOptions::default()).unwrap();
        let control = frames.control().clone();
        let store = |at, word| control.as_volatile().store(at, word, std::sync::atomic::Ordering::Relaxed);
        store(ControlLayout::LATEST, Latest { version: Version::new(2), frame: 9 }.to_word());
        // The third word of each header.
        (0..2).for_each(|frame| store(frames.layout().frame_header(frame) + 16, epoch));
        let failed = (0..100).find_map(|_| {
            let failed = pull.advance(&mut endpoint).err();
            while let Some(completion) = endpoint.poll() {
                pull.complete(completion);
            }
            failed
        });
        let (expected, retries) = match epoch {
            7 => (PullError::Damaged { expected: 64, found: 0 }, 1),
            found => (PullError::Epoch { expected: 7, found }, 0),
        };
        assert_eq!((failed, pull.retries()), (Some(expected), retries));
    }
}

fn ended(pull: &mut Pull, endpoint: &mut LocalEndpoint) -> Pulled {
    let turns = (0..100).find_map(|_| {
        turn(pull, endpoint);
        pull.take()
    });
    turns.expect("the pull ends")
}

/// Moves a pull on until so many batches are in flight. No completion is taken while there are some.
fn until_in_flight(pull: &mut Pull, endpoint: &mut LocalEndpoint, batches: usize) {
    for _ in 0..100 {
        if !pull.advance(endpoint).unwrap() && pull.batches.is_empty() {
            while let Some(completion) = endpoint.poll() {
                pull.complete(completion);
            }
        }
        if pull.batches.len() == batches {
            return;
        }
    }
    panic!("{} of {batches} batches are in flight", pull.batches.len());
}

/// An owner of frames of 8 chunks.
fn owner_of_chunks(frames: u8) -> (Frames, LocalEndpoint, Pull) {
    owner_and_pull_of(FrameGeometry { frames, payload_bytes: 512, chunk_bytes: 64 })
}

#[test]
fn a_copy_that_tells_how_far_it_is_reads_ahead_and_counts_what_came() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    publish(&mut frames, Version::new(1));
    pull.limit_batch(64);
    let options = PullOptions { chunked: true, label: true, ..PullOptions::default() };
    pull.start(Bound::version(Version::new(1)), region(512).whole(), options).unwrap();
    until_in_flight(&mut pull, &mut endpoint, READ_AHEAD);
    assert_eq!((pull.batches.len(), pull.landed()), (READ_AHEAD, Some((Version::new(1), 0))));
    // The owner overwrites the frame meanwhile: nothing is read again before all in flight have come.
    publish(&mut frames, Version::new(2));
    publish(&mut frames, Version::new(3));
    let mut landed = 0;
    while let Some(completion) = endpoint.poll() {
        let in_flight = pull.batches.len();
        pull.complete(completion);
        pull.advance(&mut endpoint).unwrap();
        if pull.retries() > 0 {
            assert!(pull.outstanding > 0 || in_flight == 1, "it looks again once nothing is in flight");
            continue;
        }
        let now = pull.landed().map_or(landed, |(_, chunks)| chunks);
        assert!(now <= landed + 1, "a chunk counts once it has come");
        landed = now;
    }
    let pulled = ended(&mut pull, &mut endpoint);
    assert_eq!(pulled.version, Version::new(3));
    assert!(pulled.retries > 0 && pull.batches.is_empty());
}

#[test]
fn a_follower_learns_what_landed_while_pieces_are_in_flight() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    pull.limit_batch(128);
    let version = Version::new(1);
    let frame = frames.begin(version, |_| false).unwrap();
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(version), region(512).whole(), options).unwrap();
    while pull.landed().is_none() {
        turn(&mut pull, &mut endpoint);
    }
    assert!(!pull.has_asked(), "there is nothing yet to be asked for");
    frames.progress(frame).raise(4);
    let complete = |pull: &mut Pull, endpoint: &mut LocalEndpoint| {
        let completion = endpoint.poll();
        completion.into_iter().for_each(|completion| pull.complete(completion));
        while pull.advance(endpoint).unwrap() {}
    };
    while pull.follow.asked == 0 {
        complete(&mut pull, &mut endpoint);
    }
    // Two pieces of two chunks, each behind a look.
    assert_eq!((pull.follow.asked, pull.follow.looks, pull.batches.len()), (256, 2, 4));
    complete(&mut pull, &mut endpoint);
    frames.progress(frame).raise(6);
    // With the piece that has come another look goes, which finds more while the second piece is in flight.
    complete(&mut pull, &mut endpoint);
    assert_eq!((pull.landed(), pull.follow.looks), (Some((version, 2)), 2));
    while endpoint.poll().is_some_and(|completion| {
        pull.complete(completion);
        while pull.advance(&mut endpoint).unwrap() {}
        true
    }) {}
    assert_eq!((pull.landed(), pull.follow.asked), (Some((version, 6)), 384));
    frames.commit(frame, version, Clock::new(0));
    assert_eq!(ended(&mut pull, &mut endpoint).retries, 0);
}

#[test]
fn a_follower_copies_no_version_whose_number_is_below_its_bound() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    let frame = frames.begin(Version::new(1), |_| false).unwrap();
    frames.progress(frame).raise(4);
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(Version::new(5)), region(512).whole(), options).unwrap();
    for _ in 0..10 {
        turn(&mut pull, &mut endpoint);
        assert_eq!((pull.landed(), pull.follow.asked), (None, 0));
    }
}

/// This peer's page, which its endpoint reaches.
fn own_page(endpoint: &mut LocalEndpoint) -> RemoteSlice {
    let (key, page) = (RemoteKey(1), region(4096));
    let granted = RemoteSlice { key, offset: 0, len: page.len() as u64 };
    endpoint.attach(key, page, Access::REMOTE_READ | Access::REMOTE_WRITE);
    granted
}

#[test]
fn a_pin_takes_nothing_older_than_what_was_followed_to_its_end() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    let page = own_page(&mut endpoint);
    let mut pins = Pins::new(&endpoint, pull.source(), &page).unwrap();
    let version = Version::new(1);
    let frame = frames.begin(version, |_| false).unwrap();
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(version), region(512).whole(), options).unwrap();
    frames.progress(frame).raise(8);
    for _ in 0..10 {
        turn(&mut pull, &mut endpoint);
    }
    // The frame is whole, and is not the latest yet.
    let header_at = frames.layout().frame_header(frame);
    frames.control().as_volatile().store_u64(header_at, frames.header(frame).sequence + 1);
    assert_eq!(ended(&mut pull, &mut endpoint).version, version);
    assert_eq!(pins.hold(pull.no_older(Bound::NONE)).unwrap(), None);
    frames.control().as_volatile().store_u64(ControlLayout::LATEST, Latest { version, frame }.to_word());
    let held = pins.hold(pull.no_older(Bound::NONE)).unwrap();
    assert_eq!(held.map(|pulled| pulled.version), Some(version));
}

/// An owner of version 1, and a pull of it that has been lapped so often that it is about to pin its frame.
fn about_to_pin(exactly: Option<Version>) -> (Frames, LocalEndpoint, Pull) {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    pull.pin_by(own_page(&mut endpoint).slice(inbox::PIN as u64, 8).unwrap(), false);
    let version = Version::new(1);
    publish(&mut frames, version);
    let options = PullOptions { exactly, ..PullOptions::default() };
    pull.start(Bound::version(version), region(512).whole(), options).unwrap();
    pull.retries = RETRIES_BEFORE_PIN;
    turn(&mut pull, &mut endpoint);
    assert_eq!((pull.state, pull.pinned), (PullStep::Status, None));
    (frames, endpoint, pull)
}

#[test]
fn a_pin_copies_no_other_version_than_the_one_that_is_named() {
    let version = Version::new(1);
    let (mut frames, mut endpoint, mut pull) = about_to_pin(Some(version));
    // Before the pin is there, the frame gets version 3.
    publish(&mut frames, Version::new(2));
    publish(&mut frames, Version::new(3));
    let gone = (0..100).find_map(|_| {
        let advanced = pull.advance(&mut endpoint);
        while let Some(completion) = endpoint.poll() {
            pull.complete(completion);
        }
        advanced.err()
    });
    assert_eq!(gone, Some(PullError::Gone { version, newest: Version::new(3) }));
    assert_eq!((pull.copied, pull.pinned), (0, None), "another version is copied, or stays pinned");
}

#[test]
fn a_pinned_frame_of_a_number_that_no_version_has_is_not_taken() {
    let (frames, mut endpoint, mut pull) = about_to_pin(None);
    let version_at = frames.layout().frame_header(frames.latest().frame) + FrameHeader::VERSION;
    frames.control().as_volatile().store_u64(version_at, u64::MAX);
    for _ in 0..100 {
        turn(&mut pull, &mut endpoint);
        assert_eq!(pull.take(), None);
    }
    frames.control().as_volatile().store_u64(version_at, 1);
    assert_eq!(ended(&mut pull, &mut endpoint).version, Version::new(1));
}

#[test]
fn a_copy_that_its_caller_cannot_rescue_pins_where_memory_is_mapped() {
    for checksum in [false, true] {
        let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
        pull.pin_by(own_page(&mut endpoint).slice(inbox::PIN as u64, 8).unwrap(), true);
        publish(&mut frames, Version::new(1));
        let options = PullOptions { checksum, ..PullOptions::default() };
        pull.start(Bound::NONE, region(512).whole(), options).unwrap();
        pull.retries = RETRIES_BEFORE_PIN;
        assert_eq!(pull.wanted().is_some(), !checksum);
        for _ in 0..2 {
            turn(&mut pull, &mut endpoint);
        }
        assert_eq!(pull.is_pinned(), checksum);
        assert_eq!(ended(&mut pull, &mut endpoint).version, Version::new(1));
    }
}

#[test]
fn a_pull_of_mapped_memory_posts_nothing_where_the_version_is_there() {
    let (mut frames, mut endpoint, mut pull) = owner_and_pull(2);
    pull.map(&endpoint);
    publish(&mut frames, Version::new(1));
    let label = FrameLabel { origin: 5, ..FrameLabel::default() };
    frames.set_label(frames.latest().frame, label);
    let options = PullOptions { label: true, ..PullOptions::default() };
    pull.start(Bound::NONE, region(64).whole(), options).unwrap();
    assert!(pull.advance(&mut endpoint).unwrap());
    assert_eq!((pull.outstanding, pull.take().map(|pulled| pulled.version)), (0, Some(Version::new(1))));
    assert_eq!(pull.label(), label);
    // A version that is waited for is asked for, and so is all else that is more than a copy.
    pull.start(Bound::version(Version::new(2)), region(64).whole(), options).unwrap();
    pull.advance(&mut endpoint).unwrap();
    assert_eq!(pull.outstanding, 1);
    publish(&mut frames, Version::new(2));
    assert_eq!(ended(&mut pull, &mut endpoint).version, Version::new(2));
    pull.unmap();
    pull.start(Bound::NONE, region(64).whole(), options).unwrap();
    pull.advance(&mut endpoint).unwrap();
    assert_eq!(pull.outstanding, 1, "the connection is over: a request says so");
}

#[test]
fn requests_for_mapped_memory_are_long_enough_for_several_threads() {
    let payload_bytes = 16 * LEAST_PART;
    let geometry = FrameGeometry { frames: 2, payload_bytes, chunk_bytes: payload_bytes };
    for (is_mapped, first) in [(false, LEAST_PART), (true, payload_bytes)] {
        let (mut frames, mut endpoint, mut pull) = owner_and_pull_of(geometry);
        pull.pin_by(own_page(&mut endpoint).slice(inbox::PIN as u64, 8).unwrap(), false);
        if is_mapped {
            pull.map(&endpoint);
        }
        publish(&mut frames, Version::new(1));
        // Loads alone check no sum: such a copy takes requests.
        let options = PullOptions { label: true, checksum: true, ..PullOptions::default() };
        pull.start(Bound::NONE, region(payload_bytes as usize).whole(), options).unwrap();
        while pull.copied == 0 {
            pull.advance(&mut endpoint).unwrap();
            if let Some(completion) = endpoint.poll() {
                pull.complete(completion);
            }
        }
        assert_eq!(pull.batches.first().map(|batch| batch.end), Some(first));
    }
}

/// The most parts that are in flight at once in one pull, during which the owner publishes so many versions.
fn parts_in_flight(
    (frames, endpoint, pull): (&mut Frames, &mut LocalEndpoint, &mut Pull),
    mut versions: u64,
) -> usize {
    let options = PullOptions { label: true, ..PullOptions::default() };
    pull.start(Bound::NONE, region(512).whole(), options).unwrap();
    let mut most = 0;
    while pull.take().is_none() {
        pull.advance(endpoint).unwrap();
        most = most.max(pull.batches.len());
        if versions > 0 && !pull.batches.is_empty() {
            publish(frames, pull.seen().unwrap().version.next());
            versions -= 1;
        }
        if !pull.may_read_ahead()
            && let Some(completion) = endpoint.poll()
        {
            pull.complete(completion);
        }
    }
    most
}

#[test]
fn all_parts_are_in_flight_of_an_owner_that_does_not_publish_meanwhile() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(3);
    pull.pin_by(own_page(&mut endpoint).slice(inbox::PIN as u64, 8).unwrap(), false);
    pull.limit_batch(64);
    publish(&mut frames, Version::new(1));
    let mut pulled = |versions| parts_in_flight((&mut frames, &mut endpoint, &mut pull), versions);
    // At first two, and one more with each part that has arrived; of the next version four, and then all the rest.
    let first = pulled(0);
    assert!((3..7).contains(&first), "{first}");
    assert_eq!((pulled(0), pulled(1)), (7, 7));
    assert_eq!(pulled(0), first, "it published during the last one");
    assert_eq!(pulled(0), 7);
    // A pull that was given up may have had too little time.
    pull.start(Bound::NONE, region(512).whole(), PullOptions::default()).unwrap();
    pull.cancel();
    assert_eq!(parts_in_flight((&mut frames, &mut endpoint, &mut pull), 0), first);
}

#[test]
fn a_pull_that_was_lapped_and_waits_for_a_version_is_not_lapped_any_more() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    publish(&mut frames, Version::new(1));
    let next = Version::new(2);
    let frame = frames.begin(next, |_| false).unwrap();
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(next), region(512).whole(), options).unwrap();
    while pull.landed().is_none() {
        turn(&mut pull, &mut endpoint);
    }
    frames.abandon(frame);
    while pull.retries() == 0 {
        turn(&mut pull, &mut endpoint);
    }
    for _ in 0..4 {
        turn(&mut pull, &mut endpoint);
    }
    assert!(pull.is_active() && !pull.is_lapped());
}

#[test]
fn looks_that_fail_before_the_pieces_of_a_followed_frame_are_no_panic() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    pull.limit_batch(64);
    let frame = frames.begin(Version::new(1), |_| false).unwrap();
    frames.progress(frame).raise(8);
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(Version::new(1)), region(512).whole(), options).unwrap();
    while pull.batches.len() < 8 {
        if !pull.advance(&mut endpoint).unwrap()
            && let Some(completion) = endpoint.poll()
        {
            pull.complete(completion);
        }
    }
    let completion = endpoint.poll().unwrap();
    let flushed = WorkCompletion { result: Err(CompletionError::Flushed), ..completion };
    (0..5).for_each(|_| pull.complete(flushed));
    assert!(pull.advance(&mut endpoint).is_ok_and(|progress| !progress));
}

/// A copy of 8 parts of a version that is so many behind the newest when it begins, and of which so many parts have
/// come when the owner has published so many versions more.
fn pins_after(older: u64, parts: usize, versions: u64) -> bool {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(3);
    pull.pin_by(own_page(&mut endpoint).slice(inbox::PIN as u64, 8).unwrap(), false);
    pull.limit_batch(64);
    (0..=older).for_each(|version| publish(&mut frames, Version::new(1 + version)));
    let exactly = (older > 0).then_some(Version::new(1));
    let options = PullOptions { label: true, exactly, ..PullOptions::default() };
    pull.start(Bound::NONE, region(512).whole(), options).unwrap();
    let mut has_published = false;
    for _ in 0..100 {
        pull.advance(&mut endpoint).unwrap();
        if pull.is_pinned() || pull.state == PullStep::Verify {
            return pull.is_pinned();
        }
        // One completion after the other: the bytes that have come are known exactly.
        if let Some(completion) = endpoint.poll() {
            pull.complete(completion);
        }
        if !has_published && pull.arrived == 64 * parts as u64 {
            has_published = true;
            (0..versions).for_each(|version| publish(&mut frames, Version::new(2 + older + version)));
        }
    }
    panic!("the copy does not end");
}

#[test]
fn a_copy_is_pinned_if_its_owner_would_write_the_frame_before_its_end() {
    // In three frames the third version from here on is written over it. One version in a quarter of a copy makes four.
    assert!(pins_after(0, 1, 1));
    // One in three quarters makes one.
    assert!(!pins_after(0, 6, 1) && !pins_after(0, 1, 0));
}

#[test]
fn what_was_published_before_a_copy_began_pins_no_frame() {
    assert!(!pins_after(1, 1, 0));
    // One frame fewer is left before the version is written over.
    assert!(pins_after(1, 6, 1));
}

#[test]
fn a_frame_whose_mark_is_taken_back_still_has_its_version() {
    for is_taken_back in [true, false] {
        let (mut frames, mut endpoint, mut pull) = owner_and_pull(3);
        (1..=3).for_each(|version| publish(&mut frames, Version::new(version)));
        let wanted = Version::new(2);
        let frame = (0..3).find(|frame| frames.header(*frame).version == wanted).unwrap();
        let (header_at, sequence) = (frames.layout().frame_header(frame), frames.header(frame).sequence);
        let control = frames.control().clone();
        // As its owner does before it looks at the pins once more.
        control.as_volatile().store_u64(header_at, sequence + 1);
        let options = PullOptions { exactly: Some(wanted), ..PullOptions::default() };
        pull.start(Bound::NONE, region(64).whole(), options).unwrap();
        // All three frames, once.
        (0..4).for_each(|_| turn(&mut pull, &mut endpoint));
        if is_taken_back {
            control.as_volatile().store_u64(header_at, sequence);
            assert_eq!(ended(&mut pull, &mut endpoint).version, wanted);
            continue;
        }
        let gone = (0..1000).find_map(|_| {
            let failed = pull.advance(&mut endpoint).err();
            while let Some(completion) = endpoint.poll() {
                pull.complete(completion);
            }
            failed
        });
        assert_eq!(gone, Some(PullError::Gone { version: wanted, newest: Version::new(3) }));
    }
}

#[test]
fn a_copy_that_was_for_nothing_is_not_made_again_without_a_pin() {
    let payload_bytes = LEAST_PART;
    let geometry = FrameGeometry { frames: 2, payload_bytes, chunk_bytes: payload_bytes };
    let (mut frames, mut endpoint, mut pull) = owner_and_pull_of(geometry);
    pull.pin_by(own_page(&mut endpoint).slice(inbox::PIN as u64, 8).unwrap(), false);
    publish(&mut frames, Version::new(1));
    pull.start(Bound::NONE, region(payload_bytes as usize).whole(), PullOptions::default()).unwrap();
    while pull.state != PullStep::Payload {
        turn(&mut pull, &mut endpoint);
    }
    publish(&mut frames, Version::new(2));
    publish(&mut frames, Version::new(3));
    for _ in 0..10 {
        turn(&mut pull, &mut endpoint);
        if pull.is_pinned() {
            assert_eq!(pull.retries(), 1);
            assert_eq!(ended(&mut pull, &mut endpoint).version, Version::new(3));
            return;
        }
    }
    panic!("it does not pin");
}
