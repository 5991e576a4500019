use super::*;
use crate::mem::{Access, DeviceKeys, HostMemory, RemoteKey};
use crate::param::Frames;
use crate::param::layout::FrameGeometry;
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
        assert_eq!((pull.seen().version, pull.gains()), (Version::new(version), gains));
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
    assert_eq!(pull.seen().version, Version::new(0));
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
fn a_follower_reads_what_landed_while_half_of_it_is_in_flight() {
    let (mut frames, mut endpoint, mut pull) = owner_of_chunks(2);
    let version = Version::new(1);
    let frame = frames.begin(version, |_| false).unwrap();
    let options = PullOptions { follow: true, ..PullOptions::default() };
    pull.start(Bound::version(version), region(512).whole(), options).unwrap();
    frames.progress(frame).raise(4);
    until_in_flight(&mut pull, &mut endpoint, 2);
    assert_eq!(pull.landed(), Some((version, 0)));
    frames.progress(frame).raise(6);
    // The first half and the look behind it.
    let first = endpoint.poll().unwrap();
    pull.complete(first);
    pull.advance(&mut endpoint).unwrap();
    assert_eq!(pull.landed(), Some((version, 2)));
    while let Some(completion) = endpoint.poll() {
        pull.complete(completion);
        pull.advance(&mut endpoint).unwrap();
    }
    frames.commit(frame, version, Clock::new(0));
    assert_eq!(ended(&mut pull, &mut endpoint).retries, 0);
}
