//! The torn-read litmus: a process that publishes as fast as it can, and a process that checks every word it reads.
//!
//! Each version's words all hold the version's number, so that a copy made of two versions shows in one comparison.
//! Too slow for the test profile: `cargo test --release --test litmus`. `SLACKLINE_LITMUS_LARGE` says how many frames
//! of 64 MiB are pulled: by default 2,000, which fits the minutes that CI gives; before a release, 10000.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline::clock::Version;
use slackline::mem::{Streaming, VolatileSlice};
use slackline::node::{
    Fresh, Publisher, PublisherOptions, Reader, ReaderOptions, Server, ServerOptions, Worker, WorkerOptions,
};
use slackline::param::Consistency;
use slackline::scheme::{Bound, Config};
use slackline::table::{ElementType, Table};
use slackline::transport::Address;
use slackline::transport::shm::Shm;

/// How long a single wait may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The spec of the second process.
const SECOND: &str = "SLACKLINE_LITMUS_SECOND";

// ---------------------------------------------------------------------- the claims

#[test]
fn ten_million_pulls_of_small_frames_are_whole() {
    let Some(_alone) = first_process() else { return };
    let mut tally = Tally::new("small frames", 10_000_000);
    for (index, bytes) in [64, 96, 192, 256, 512].into_iter().enumerate() {
        for frames in [2, 3] {
            let spec = Spec { frames, checksums: index == 2, ..Spec::publisher(bytes, Fill::Words) };
            let writer = Second::start("ten_million_pulls_of_small_frames_are_whole", &spec);
            let mut reader = writer.reader(ReaderOptions::default());
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
    let pulls = std::env::var("SLACKLINE_LITMUS_LARGE").map_or(2000, |text| text.parse().expect("a number"));
    let mut tally = Tally::new("frames of 64 MiB", pulls);
    let mut stored = Vec::new();
    for fill in [Fill::Cached, Fill::Streaming] {
        let spec = Spec::publisher(64 << 20, fill);
        let writer = Second::start("pulls_of_frames_of_64_mib_are_whole_however_they_were_stored", &spec);
        let mut reader = writer.reader(ReaderOptions::default());
        let before = tally.versions;
        tally.next_writer();
        for _ in 0..pulls.div_ceil(2) {
            pull(&mut reader, &mut tally);
        }
        stored.push(tally.versions - before);
    }
    tally.end();
    assert!(stored.iter().all(|versions| *versions > 1), "the writer stood still: {stored:?}");
}

#[test]
fn pulls_of_medium_frames_are_whole_with_checksums_and_without() {
    let Some(_alone) = first_process() else { return };
    let mut tally = Tally::new("frames of 64 KiB", 4 * 30_000);
    for fill in [Fill::Cached, Fill::Streaming] {
        for checksums in [false, true] {
            let spec = Spec { checksums, ..Spec::publisher(64 << 10, fill) };
            let writer = Second::start("pulls_of_medium_frames_are_whole_with_checksums_and_without", &spec);
            let mut options = ReaderOptions::default();
            options.pull.checksum = checksums;
            let mut reader = writer.reader(options);
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
    let writer = Second::start("without_the_second_look_at_the_header_torn_reads_are_found", &spec);
    let mut reader = writer.reader(ReaderOptions::default());
    reader.set_consistency(Consistency::Mixture);
    let (begun, mut mixtures, mut pulls) = (Instant::now(), 0, 0u64);
    while mixtures < 10 && begun.elapsed() < TIMEOUT {
        reader.refresh_to(Version(0), TIMEOUT).unwrap();
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
        );
        let mut reader = writer.reader(ReaderOptions::default());
        tally.next_writer();
        for _ in 0..pins {
            let frame = reader.pin(Bound::NONE, TIMEOUT).unwrap();
            let pulled = frame.pulled();
            let memory = frame.bytes();
            // Twice: what stood still at first may move while it is held.
            for _ in 0..2 {
                for offset in (0..memory.len()).step_by(8) {
                    let word = memory.load_u64(offset);
                    assert_eq!(word, pulled.version.0, "at {offset} of a pinned frame");
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
    let Some(_alone) = first_process() else { return };
    let spec = Spec { kind: Kind::Server(Config::Bsp), ..Spec::publisher(64 << 10, Fill::Words) };
    let writer = Second::start("frames_followed_while_they_are_folded_are_whole", &spec);
    let mut options = ReaderOptions::default();
    options.pull.follow = true;
    let mut reader = writer.reader(options);
    let mut tally = Tally::new("followed frames", 100_000);
    for _ in 0..100_000 {
        if tally.is_late() {
            break;
        }
        let next = Version(tally.newest.0 + 1);
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
    let scheme = Config::Essp { staleness: 2 };
    let spec = Spec { kind: Kind::ServerAlone(scheme), ..Spec::publisher(32 << 10, Fill::Words) };
    let second = Second::start("pushed_frames_are_whole", &spec);
    let mut worker = retry(|| {
        Worker::connect(
            Shm::new(),
            std::slice::from_ref(&second.address),
            WorkerOptions::new(scheme),
            TIMEOUT,
        )
    });
    worker.gradient().unwrap().fill(1.0);
    let mut tally = Tally::new("pushed frames", 100_000);
    for _ in 0..100_000 {
        if tally.is_late() {
            break;
        }
        let view = worker.begin(TIMEOUT).unwrap();
        let parameters = worker.parameters().unwrap();
        let whole = parameters.iter().all(|value| *value == view.version.0 as f32);
        assert!(whole, "version {:?} is torn", view.version);
        tally.count(4 * parameters.len(), view.version, view.retries);
        worker.publish(None, TIMEOUT).unwrap();
    }
    tally.end();
}

// ---------------------------------------------------------------------- reading and checking

fn pull(reader: &mut Reader<Shm>, tally: &mut Tally) {
    let Fresh { version, retries, .. } = reader.refresh_to(Version(0), TIMEOUT).unwrap();
    let bytes = reader.bytes().unwrap();
    assert!(all_are(bytes, version.0), "version {version:?} is torn");
    tally.count(bytes.len(), version, retries);
}

/// Whether every word is `value`.
fn all_are(bytes: &[u8], value: u64) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    // Blocks without a branch inside, so that the compiler compares many words at once.
    let same =
        |block: &[[u8; 8]]| block.iter().fold(0, |or, word| or | (u64::from_le_bytes(*word) ^ value)) == 0;
    rest.is_empty() && words.chunks(512).all(same)
}

fn check_floats(bytes: &[u8], version: Version) {
    let (words, rest) = bytes.as_chunks::<4>();
    let value = (version.0 as f32).to_bits();
    let differing = words.iter().fold(0, |or, word| or | (u32::from_le_bytes(*word) ^ value));
    assert!(rest.is_empty() && differing == 0, "version {version:?} is torn");
}

/// What was read so far; says so every few seconds.
struct Tally {
    what: &'static str,
    wanted: u64,
    pulls: u64,
    bytes: u64,
    retries: u64,
    newest: Version,
    /// How often a pull brought another version than the one before.
    versions: u64,
    begun: Instant,
    said: Instant,
}

impl Tally {
    fn new(what: &'static str, wanted: u64) -> Tally {
        let now = Instant::now();
        let newest = Version(0);
        Tally { what, wanted, pulls: 0, bytes: 0, retries: 0, newest, versions: 0, begun: now, said: now }
    }

    fn count(&mut self, bytes: usize, version: Version, retries: u64) {
        assert!(version >= self.newest, "{version:?} after {:?}", self.newest);
        self.versions += u64::from(version != self.newest);
        self.newest = version;
        self.pulls += 1;
        self.bytes += bytes as u64;
        self.retries += retries;
        if self.pulls.is_multiple_of(64) && self.said.elapsed() > Duration::from_secs(5) {
            self.said = Instant::now();
            self.say();
        }
    }

    /// Another writer begins at 0 again; within one life versions only grow.
    fn next_writer(&mut self) {
        self.newest = Version(0);
    }

    fn say(&self) {
        let Tally { what, wanted, pulls, retries, versions, .. } = self;
        let (seconds, gigabytes) = (self.begun.elapsed().as_secs_f64(), self.bytes as f64 / 1e9);
        say(&format!(
            "{what}: {pulls} of {wanted} pulls, {gigabytes:.1} GB, {versions} versions, {retries} retries, \
             {seconds:.1} s"
        ));
    }

    /// Where both processes wait for each other at every step, a busy machine makes steps of milliseconds: a minute is
    /// enough, if there were a thousand.
    fn is_late(&self) -> bool {
        self.pulls >= 1000 && self.begun.elapsed() > Duration::from_secs(60)
    }

    fn end(&self) {
        self.say();
        assert!(self.pulls == self.wanted || self.is_late());
        assert!(self.versions > 10, "the writer stood still");
    }
}

/// Past the test harness, which keeps what `eprintln!` says to itself.
fn say(text: &str) {
    let _unheard = writeln!(std::io::stderr(), "litmus: {text}");
}

// ---------------------------------------------------------------------- two processes

/// In the first process: waits until no other litmus runs. In the second: writes until the first has gone.
fn first_process() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if let Ok(text) = std::env::var(SECOND) {
        Spec::parse(&text).write();
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How the writer stores a version.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    /// Word by word.
    Words,
    /// By copies that stay in the cache.
    Cached,
    /// By copies past the cache.
    Streaming,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Publisher,
    /// A server and its one worker.
    Server(Config),
    /// A server for a worker in the first process.
    ServerAlone(Config),
}

/// What the second process does.
#[derive(Clone, Debug, PartialEq)]
struct Spec {
    address: Address,
    kind: Kind,
    bytes: usize,
    fill: Fill,
    frames: u8,
    checksums: bool,
}

impl Spec {
    fn publisher(bytes: usize, fill: Fill) -> Spec {
        let address = Address::random();
        Spec { address, kind: Kind::Publisher, bytes, fill, frames: 3, checksums: false }
    }

    fn print(&self) -> String {
        let Spec { address, kind, bytes, fill, frames, checksums } = self;
        let kind = match kind {
            Kind::Publisher => "publisher",
            Kind::Server(_) => "server",
            Kind::ServerAlone(_) => "alone",
        };
        format!("{address} {kind} {bytes} {fill:?} {frames} {checksums}")
    }

    fn parse(text: &str) -> Spec {
        let words: Vec<&str> = text.split(' ').collect();
        let [address, kind, bytes, fill, frames, checksums] = words[..] else { panic!("no spec: {text}") };
        Spec {
            address: address.parse().unwrap(),
            kind: match kind {
                "publisher" => Kind::Publisher,
                "server" => Kind::Server(Config::Bsp),
                _ => Kind::ServerAlone(Config::Essp { staleness: 2 }),
            },
            bytes: bytes.parse().unwrap(),
            fill: match fill {
                "Words" => Fill::Words,
                "Cached" => Fill::Cached,
                _ => Fill::Streaming,
            },
            frames: frames.parse().unwrap(),
            checksums: checksums.parse().unwrap(),
        }
    }

    fn write(&self) {
        match self.kind {
            Kind::Publisher => self.publish(),
            Kind::Server(scheme) => self.serve(scheme, true),
            Kind::ServerAlone(scheme) => self.serve(scheme, false),
        }
    }

    fn publish(&self) {
        let table = Table::flat(self.bytes as u64 / 4, ElementType::F32).unwrap();
        let mut options = PublisherOptions::default();
        options.memory.frames = self.frames;
        options.memory.checksums = self.checksums;
        let mut publisher = Publisher::new(Shm::new(), &self.address, table, options).unwrap();
        let parent = Parent::new();
        let mut pattern = vec![0; self.bytes.min(64 << 10)];
        for version in 1u64.. {
            let fill = |memory: VolatileSlice<'_>| self.fill(memory, version, &mut pattern);
            assert_eq!(publisher.publish_with(TIMEOUT, fill).unwrap(), Version(version));
            if version.is_multiple_of(64) && !parent.lives() {
                return;
            }
        }
    }

    fn fill(&self, memory: VolatileSlice<'_>, version: u64, pattern: &mut [u8]) {
        let streaming = match self.fill {
            Fill::Words => {
                for offset in (0..memory.len()).step_by(8) {
                    memory.store_u64(offset, version);
                }
                return;
            }
            Fill::Cached => Streaming::Never,
            Fill::Streaming => Streaming::Always,
        };
        pattern.as_chunks_mut::<8>().0.fill(version.to_le_bytes());
        let source = VolatileSlice::from_ref(pattern);
        for offset in (0..memory.len()).step_by(pattern.len()) {
            let len = pattern.len().min(memory.len() - offset);
            memory.subslice(offset, len).copy_from(source.subslice(0, len), streaming);
        }
    }

    /// Every gradient adds 1 to every parameter.
    fn serve(&self, scheme: Config, with_worker: bool) {
        let elements = self.bytes / 4;
        let table = Table::flat(elements as u64, ElementType::F32).unwrap();
        let mut options = ServerOptions::new(scheme, 1, -1.0);
        options.memory.frames = self.frames;
        options.memory.checksums = self.checksums;
        options.memory.chunk_bytes = 1024;
        let mut server =
            Server::new(Shm::new(), &self.address, table, &vec![0.0; elements], options).unwrap();
        let parent = Parent::new();
        if !with_worker {
            let served = |server: &Server<Shm>| server.status().left > 0;
            while parent.lives() && !server.drive(served, Duration::from_millis(50)).unwrap() {}
            return;
        }
        let mut worker = std::thread::scope(|scope| {
            let options = WorkerOptions::new(scheme);
            let address = std::slice::from_ref(&self.address);
            let connecting =
                scope.spawn(move || Worker::connect(Shm::new(), address, options, TIMEOUT).unwrap());
            assert!(server.drive(|server| server.status().joined == 1, TIMEOUT).unwrap());
            connecting.join().unwrap()
        });
        worker.gradient().unwrap().fill(1.0);
        // By turns in one thread: a processor is left for the reader, and folds are cut into turns for it to see.
        while parent.lives() {
            match worker.begin(Duration::ZERO) {
                Ok(_) => worker.start_publish(None).unwrap(),
                Err(slackline::Error::Deadline { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            server.poll(slackline::node::now()).unwrap();
        }
    }
}

/// The process that started this one.
struct Parent(Option<rustix::process::Pid>);

impl Parent {
    fn new() -> Parent {
        Parent(rustix::process::getppid())
    }

    fn lives(&self) -> bool {
        rustix::process::getppid() == self.0
    }
}

/// The second process. Killed when this is dropped.
struct Second {
    child: Child,
    address: Address,
}

impl Second {
    fn start(claim: &str, spec: &Spec) -> Second {
        assert_eq!(Spec::parse(&spec.print()), *spec);
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", claim, "--nocapture", "--test-threads=1"])
            .env(SECOND, spec.print())
            .stdout(Stdio::null())
            .spawn()
            .expect("run this binary again");
        Second { child, address: spec.address.clone() }
    }

    fn reader(&self, options: ReaderOptions) -> Reader<Shm> {
        retry(|| Reader::connect(Shm::new(), &self.address, options, TIMEOUT))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Connects until the second process listens.
fn retry<R>(connect: impl Fn() -> Result<R, slackline::Error>) -> R {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match connect() {
            Ok(connected) => return connected,
            Err(slackline::Error::Connect(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
