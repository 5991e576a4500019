//! The torn-read litmus: a process that publishes as fast as it can, and a process that checks every word it reads.
//!
//! Each version's words all hold the version's number, so that a copy made of two versions shows in one comparison.
//! Too slow for the test profile: `cargo test --release --test litmus`. `SLACKLINE_LITMUS_LARGE` says how many frames
//! of 64 MiB are pulled: by default 2,000, which fits the minutes that CI gives; before a release, 10000.
//! `SLACKLINE_LITMUS_TIMES` says how many times as many pulls are made over TCP, by default 1.

mod litmus {
    pub(crate) mod over_network;
    pub(crate) mod reading;
    pub(crate) mod writing;
}

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Instant;

use litmus::over_network::{self, Setup, TCP_SIZES};
use litmus::reading::{Tally, all_are, check_floats, pull, say};
use litmus::writing::{Fill, Kind, Second, Spec, TIMEOUT, first_process};
use slackline::internals::mem::set_copy_threads;
use slackline::internals::param::Consistency;
use slackline::weights::ReaderOptions;
use slackline::{
    Address, Shm, Version, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

// ---------------------------------------------------------------------- the claims

#[test]
fn ten_million_pulls_of_small_frames_are_whole() {
    let Some(_alone) = first_process() else { return };
    let mut tally = Tally::new("small frames", 10_000_000);
    for (index, bytes) in [64, 96, 192, 256, 512].into_iter().enumerate() {
        for frames in [2, 3] {
            let spec = Spec { frames, checksums: index == 2, ..Spec::publisher(bytes, Fill::Words) };
            let writer = Second::start("ten_million_pulls_of_small_frames_are_whole", &spec, Command::spawn);
            let mut reader = writer.reader(Shm::new(), ReaderOptions::default());
            tally.next_writer();
            for _ in 0..1_000_000 {
                pull(&mut reader, &mut tally);
            }
        }
    }
    tally.end();
}

#[test]
fn pulls_of_frames_of_64_mib_are_whole_however_they_were_stored() {
    let Some(_alone) = first_process() else { return };
    let pulls =
        std::env::var("SLACKLINE_LITMUS_LARGE").map_or(2000u64, |text| text.parse().expect("a number"));
    let pulls = pulls.next_multiple_of(3);
    let mut tally = Tally::new("frames of 64 MiB", pulls);
    let mut stored = Vec::new();
    // The first pulls try ways and threads by turns.
    for fill in [Fill::Cached, Fill::Streaming, Fill::Threads] {
        let spec = Spec::publisher(64 << 20, fill);
        let writer = Second::start(
            "pulls_of_frames_of_64_mib_are_whole_however_they_were_stored",
            &spec,
            Command::spawn,
        );
        let mut reader = writer.reader(Shm::new(), ReaderOptions::default());
        let before = tally.versions;
        tally.next_writer();
        for _ in 0..pulls / 3 {
            pull(&mut reader, &mut tally);
        }
        stored.push(tally.versions - before);
    }
    tally.end();
    assert!(stored.iter().all(|versions| *versions > 1), "the writer stood still: {stored:?}");
}

#[test]
fn frames_that_several_threads_store_and_pull_are_whole() {
    let Some(_alone) = first_process() else { return };
    set_copy_threads(3);
    let spec = Spec { frames: 2, ..Spec::publisher(16 << 20, Fill::Threads) };
    let claim = "frames_that_several_threads_store_and_pull_are_whole";
    let writer = Second::start(claim, &spec, Command::spawn);
    let mut reader = writer.reader(Shm::new(), ReaderOptions::default());
    let mut tally = Tally::new("frames of 16 MiB by threads", 1000);
    for _ in 0..1000 {
        if tally.is_late() {
            break;
        }
        pull(&mut reader, &mut tally);
    }
    tally.end();
}

#[test]
fn pulls_of_medium_frames_are_whole_with_checksums_and_without() {
    let Some(_alone) = first_process() else { return };
    let mut tally = Tally::new("frames of 64 KiB", 4 * 30_000);
    for fill in [Fill::Cached, Fill::Streaming] {
        for checksums in [false, true] {
            let spec = Spec { checksums, ..Spec::publisher(64 << 10, fill) };
            let writer = Second::start(
                "pulls_of_medium_frames_are_whole_with_checksums_and_without",
                &spec,
                Command::spawn,
            );
            let options = ReaderOptions { checksums, ..ReaderOptions::default() };
            let mut reader = writer.reader(Shm::new(), options);
            tally.next_writer();
            for _ in 0..30_000 {
                pull(&mut reader, &mut tally);
            }
        }
    }
    tally.end();
}

#[test]
fn without_the_second_look_at_the_header_torn_reads_are_found() {
    let Some(_alone) = first_process() else { return };
    let spec = Spec { frames: 2, ..Spec::publisher(256 << 10, Fill::Words) };
    let writer =
        Second::start("without_the_second_look_at_the_header_torn_reads_are_found", &spec, Command::spawn);
    let mut reader = writer.reader(Shm::new(), ReaderOptions::default());
    reader.set_consistency(Consistency::Mixture);
    let (begun, mut mixtures, mut pulls) = (Instant::now(), 0, 0u64);
    while mixtures < 10 && begun.elapsed() < TIMEOUT {
        reader.refresh_to(Version::new(0), TIMEOUT).unwrap();
        let bytes = reader.bytes().unwrap();
        let first = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        mixtures += u64::from(!all_are(bytes, first));
        pulls += 1;
    }
    say(&format!("without the check: {mixtures} mixtures in {pulls} pulls"));
    assert!(mixtures > 0, "none in {pulls} pulls: this litmus would find nothing");

    // The same two processes, with the check.
    reader.set_consistency(Consistency::Whole);
    let mut tally = Tally::new("the same with the check", 10_000);
    for _ in 0..10_000 {
        pull(&mut reader, &mut tally);
    }
    tally.end();
}

#[test]
fn a_pinned_frame_stands_still_while_it_is_read() {
    let Some(_alone) = first_process() else { return };
    let mut tally = Tally::new("pins", 700_000);
    for (bytes, pins) in [(64, 500_000), (4096, 200_000)] {
        let writer = Second::start(
            "a_pinned_frame_stands_still_while_it_is_read",
            &Spec::publisher(bytes, Fill::Words),
            Command::spawn,
        );
        let mut reader = writer.reader(Shm::new(), ReaderOptions::default());
        tally.next_writer();
        for _ in 0..pins {
            let frame = reader.pin(Bound::NONE, TIMEOUT).unwrap();
            let pulled = frame.pulled();
            let memory = frame.bytes().unwrap();
            // Twice: what stood still at first may move while it is held.
            for _ in 0..2 {
                for offset in (0..memory.len()).step_by(8) {
                    let word = memory.load_u64(offset);
                    assert_eq!(word, pulled.version.get(), "at {offset} of a pinned frame");
                }
            }
            drop(frame);
            tally.count(bytes, pulled.version, pulled.retries);
        }
    }
    tally.end();
}

#[test]
fn frames_followed_while_they_are_folded_are_whole() {
    follow("frames_followed_while_they_are_folded_are_whole", 1, 100_000);
}

#[test]
fn frames_followed_while_several_threads_fold_them_are_whole() {
    follow("frames_followed_while_several_threads_fold_them_are_whole", 3, 20_000);
}

/// Follows each version of a server that folds 64 chunks with so many threads.
fn follow(claim: &str, threads: usize, pulls: u64) {
    let Some(_alone) = first_process() else { return };
    let spec =
        Spec { kind: Kind::Server(SchemeConfig::Bsp), threads, ..Spec::publisher(64 << 10, Fill::Words) };
    let writer = Second::start(claim, &spec, Command::spawn);
    let options = ReaderOptions { follow: true, ..ReaderOptions::default() };
    let mut reader = writer.reader(Shm::new(), options);
    let mut tally = Tally::new(format!("frames followed while {threads} fold"), pulls);
    for _ in 0..pulls {
        if tally.is_late() {
            break;
        }
        let next = Version::new(tally.newest.get() + 1);
        let fresh = reader.refresh_to(next, TIMEOUT).unwrap();
        assert!(fresh.version >= next);
        check_floats(reader.bytes().unwrap(), fresh.version);
        tally.count(reader.payload_bytes(), fresh.version, fresh.retries);
    }
    tally.end();
}

#[test]
fn pushed_frames_are_whole() {
    let Some(_alone) = first_process() else { return };
    let scheme = SchemeConfig::Essp { staleness: 2 };
    let spec = Spec { kind: Kind::ServerAlone(scheme), ..Spec::publisher(32 << 10, Fill::Words) };
    let second = Second::start("pushed_frames_are_whole", &spec, Command::spawn);
    let address = std::slice::from_ref(&second.address);
    let mut worker = Worker::connect(Shm::new(), address, WorkerOptions::new(scheme), TIMEOUT).unwrap();
    let mut step = worker.step(TIMEOUT).unwrap();
    step.gradient().unwrap().fill(1.0);
    step.suspend();
    let mut tally = Tally::new("pushed frames", 100_000);
    for _ in 0..100_000 {
        if tally.is_late() {
            break;
        }
        let step = worker.step(TIMEOUT).unwrap();
        let view = step.view();
        let parameters = step.parameters().unwrap();
        let whole = parameters.iter().all(|value| *value == view.version.get() as f32);
        assert!(whole, "version {:?} is torn", view.version);
        tally.count(4 * parameters.len(), view.version, view.retries);
        step.publish(None, TIMEOUT).unwrap();
    }
    tally.end();
}

#[test]
fn what_a_frame_says_of_a_workers_gradients_is_what_it_holds() {
    let Some(_alone) = first_process() else { return };
    let mut tally = Tally::new("views of what a worker has published", 200_000);
    for scheme in [SchemeConfig::Asp, SchemeConfig::Essp { staleness: 2 }] {
        let spec =
            Spec { kind: Kind::ServerAlone(scheme), frames: 2, ..Spec::publisher(8 << 10, Fill::Words) };
        let claim = "what_a_frame_says_of_a_workers_gradients_is_what_it_holds";
        let second = Second::start(claim, &spec, Command::spawn);
        let options = WorkerOptions { own_step: Some(-1.0), ..WorkerOptions::new(scheme) };
        let address = std::slice::from_ref(&second.address);
        let mut worker = Worker::connect(Shm::new(), address, options, TIMEOUT).unwrap();
        let mut step = worker.step(TIMEOUT).unwrap();
        step.gradient().unwrap().fill(1.0);
        step.suspend();
        tally.next_writer();
        for _ in 0..100_000 {
            if tally.is_late() {
                break;
            }
            let step = worker.step(TIMEOUT).unwrap();
            let view = step.view();
            // The frame's part, and those that the worker adds because the frame says that it lacks them.
            let parameters = step.parameters().unwrap();
            let all = parameters.iter().all(|value| *value == view.clock.get() as f32);
            assert!(all, "{scheme}: {} gradients in the view of clock {:?}", parameters[0], view.clock);
            tally.count(4 * parameters.len(), view.version, view.retries);
            step.publish(None, TIMEOUT).unwrap();
        }
    }
    tally.end();
}

/// On this host, over its loopback device.
const LOOPBACK: Setup = Setup {
    listens_at: || Address::Tcp((Ipv4Addr::LOCALHOST, 0).into()),
    start: Command::spawn,
    sizes: TCP_SIZES,
    steps: 5_000,
    torn: (2, 2),
};

#[test]
fn pulls_over_network_are_whole_of_every_size() {
    let Some(_alone) = first_process() else { return };
    over_network::pulls_are_whole_of_every_size("pulls_over_network_are_whole_of_every_size", LOOPBACK);
}

#[test]
fn frames_followed_and_pushed_over_network_are_whole() {
    let Some(_alone) = first_process() else { return };
    over_network::frames_followed_and_pushed_are_whole(
        "frames_followed_and_pushed_over_network_are_whole",
        LOOPBACK,
    );
}

#[test]
fn without_the_second_look_at_the_header_torn_reads_are_found_over_network() {
    let Some(_alone) = first_process() else { return };
    let claim = "without_the_second_look_at_the_header_torn_reads_are_found_over_network";
    over_network::without_the_second_look_at_the_header_torn_reads_are_found(claim, LOOPBACK);
}
