//! The same over a network, on one host or between two: no process loads from the other's memory or stores to it. A
//! thread or a device beside the writer reads it, and what it reads takes a while to arrive. Versions carry checksums.

use std::io;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use slackline::internals::param::Consistency;
use slackline::weights::ReaderOptions;
use slackline::{Address, Version, Worker, WorkerOptions, scheme::SchemeConfig};

use super::reading::{Tally, all_are, check_floats, pull, pull_to, say};
use super::writing::{Fill, Kind, Second, Spec, TIMEOUT, transport_for};

/// Frames of one size: bytes, how many frames, how many pulls. Versions are written faster than they travel: there are
/// frames enough for one to stand still until it has arrived.
pub(crate) type Size = (usize, u8, u64);

/// The address of the writer, the way to start it, and how much is read of it. The reader is this process.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) listens_at: fn() -> Address,
    pub(crate) start: fn(&mut Command) -> io::Result<Child>,
    pub(crate) sizes: &'static [Size],
    /// Number of frames that are followed, and pushed.
    pub(crate) steps: u64,
    /// Two numbers of frames of 256 KiB. With the first, frames are so few that each is written again while it travels,
    /// though not before its header has travelled. With the second, some arrive.
    pub(crate) torn: (u8, u8),
}

impl Setup {
    fn spec(self, bytes: usize, fill: Fill) -> Spec {
        Spec { address: (self.listens_at)(), checksums: true, ..Spec::publisher(bytes, fill) }
    }

    fn name(self) -> &'static str {
        if matches!((self.listens_at)(), Address::Verbs(_)) { "RDMA" } else { "TCP" }
    }
}

/// The sizes that are read over TCP, in a few minutes.
#[allow(dead_code, reason = "one test binary of three has no TCP")]
pub(crate) const TCP_SIZES: &[Size] =
    &[(64, 3, 10_000), (64 << 10, 3, 10_000), (4 << 20, 8, 200), (64 << 20, 8, 20)];

/// Multiplies the number of pulls by `SLACKLINE_LITMUS_TIMES`, if that is set.
fn times(pulls: u64) -> u64 {
    pulls * std::env::var("SLACKLINE_LITMUS_TIMES").map_or(1, |text| text.parse().expect("a number"))
}

fn checked() -> ReaderOptions {
    ReaderOptions { checksums: true, ..ReaderOptions::default() }
}

pub(crate) fn pulls_are_whole_of_every_size(claim: &str, setup: Setup) {
    for (bytes, frames, pulls) in setup.sizes.iter().copied() {
        let mut tally = Tally::new(format!("{bytes} bytes over {}", setup.name()), times(pulls));
        for fill in [Fill::Cached, Fill::Streaming] {
            let spec = Spec { frames, ..setup.spec(bytes, fill) };
            let writer = Second::start(claim, &spec, setup.start);
            let mut reader = writer.reader(transport_for(&writer.address), checked());
            tally.next_writer();
            let begun = Instant::now();
            for done in 0..times(pulls) / 2 {
                // A busy machine may leave a reader few of the writer's pauses.
                if done >= 500 && begun.elapsed() > Duration::from_secs(60) {
                    break;
                }
                // Small ones are read over and over while the writer works on the next; of large ones each is new.
                let next =
                    if bytes < 1 << 20 { Version::new(0) } else { Version::new(tally.newest.get() + 1) };
                pull_to(next, &mut reader, &mut tally);
            }
        }
        tally.end();
    }
}

pub(crate) fn frames_followed_and_pushed_are_whole(claim: &str, setup: Setup) {
    let spec = Spec { kind: Kind::Server(SchemeConfig::Bsp), ..setup.spec(64 << 10, Fill::Words) };
    let writer = Second::start(claim, &spec, setup.start);
    let options = ReaderOptions { follow: true, ..checked() };
    let mut reader = writer.reader(transport_for(&writer.address), options);
    let mut tally = Tally::new(format!("frames followed over {}", setup.name()), times(setup.steps));
    for _ in 0..times(setup.steps) {
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
    drop((reader, writer));

    let scheme = SchemeConfig::Essp { staleness: 2 };
    let spec = Spec { kind: Kind::ServerAlone(scheme), ..setup.spec(32 << 10, Fill::Words) };
    let second = Second::start(claim, &spec, setup.start);
    let options = WorkerOptions { checksums: true, ..WorkerOptions::new(scheme) };
    let address = std::slice::from_ref(&second.address);
    let mut worker = Worker::connect(transport_for(&second.address), address, options, TIMEOUT).unwrap();
    let mut step = worker.step(TIMEOUT).unwrap();
    step.gradient().unwrap().fill(1.0);
    step.suspend();
    let mut tally = Tally::new(format!("frames pushed over {}", setup.name()), times(setup.steps));
    for _ in 0..times(setup.steps) {
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

pub(crate) fn without_the_second_look_at_the_header_torn_reads_are_found(claim: &str, setup: Setup) {
    let (few, enough) = setup.torn;
    let spec = Spec { frames: few, ..setup.spec(256 << 10, Fill::Words) };
    let writer = Second::start(claim, &spec, setup.start);
    let mut reader = writer.reader(transport_for(&writer.address), ReaderOptions::default());
    reader.set_consistency(Consistency::Mixture);
    let (begun, mut mixtures, mut pulls) = (Instant::now(), 0, 0u64);
    while mixtures < 10 && begun.elapsed() < TIMEOUT {
        reader.refresh_to(Version::new(0), TIMEOUT).unwrap();
        let bytes = reader.bytes().unwrap();
        let first = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        mixtures += u64::from(!all_are(bytes, first));
        pulls += 1;
    }
    say(&format!("without the check, over {}: {mixtures} mixtures in {pulls} pulls", setup.name()));
    assert!(mixtures > 0, "none in {pulls} pulls: this litmus would find nothing");

    // The same with the check, and without a checksum to help it.
    drop((reader, writer));
    let spec = Spec { frames: enough, ..spec };
    let writer = Second::start(claim, &spec, setup.start);
    let mut reader = writer.reader(transport_for(&writer.address), ReaderOptions::default());
    let mut tally = Tally::new("the same with the check", times(setup.steps / 10));
    for _ in 0..times(setup.steps / 10) {
        pull(&mut reader, &mut tally);
    }
    tally.end();
}
