//! From the call that publishes until each reader of the host has the version pinned, in place.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline::scheme::Bound;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{Address, ElementType, Idle, Shm, Table, Version, VersionTag};

use super::{PATIENCE, summary};

const SIZES: [usize; 3] = [1 << 20, 64 << 20, 512 << 20];
const READERS: [usize; 3] = [1, 2, 8];

/// Time between two versions, in which the readers fall asleep.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn measure(repeat: usize) {
    println!(
        "publish until all readers of the host have it pinned; medians (least to most) of {repeat} versions,"
    );
    println!(
        "each beside one copy of the same bytes, which goes round as many buffers as the publisher has frames"
    );
    println!("     MiB readers        one copy, ms      until visible, ms    copy / visible, of pairs");
    for size in SIZES {
        for readers in READERS {
            let pairs = pairs(size, readers, repeat);
            let [copy, ..] = summary(pairs.iter().map(|pair| pair.copy).collect());
            let [visible, least, most] = summary(pairs.iter().map(|pair| pair.visible).collect());
            let [ratio, low, high] = summary(pairs.iter().map(|pair| pair.copy / pair.visible).collect());
            println!(
                "{:>8} {readers:>7} {:>19.3} {:>8.3} ({:.3} to {:.3}) {ratio:>10.2} ({low:.2} to {high:.2})",
                size >> 20,
                1e3 * copy,
                1e3 * visible,
                1e3 * least,
                1e3 * most
            );
        }
    }
}

/// The seconds of one copy, and of one version until all readers had it.
struct Pair {
    copy: f64,
    visible: f64,
}

fn pairs(size: usize, readers: usize, repeat: usize) -> Vec<Pair> {
    let table = Table::flat(size as u64, ElementType::U8).expect("a table");
    let options = PublisherOptions::default();
    let frames = usize::from(options.memory.frames);
    let publisher = Publisher::new(Shm::new(), &Address::random(), table, options).expect("a publisher");
    let publisher = publisher.into_background().expect("a thread");
    let mut readers: Vec<OtherReader> =
        (0..readers).map(|_| OtherReader::start(&publisher.address())).collect();
    let mut source = vec![1_u8; size];
    let mut buffers = vec![vec![2_u8; size]; frames];
    let mut pairs = Vec::new();
    // One round more than there are frames, so that all memory is mapped when it counts.
    for round in 0..frames + 1 + repeat {
        source.fill(round as u8);
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        buffers[round % frames].copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&buffers);
        let copy = begun.elapsed().as_secs_f64();
        std::thread::sleep(PAUSE);
        let begun = time_of_day();
        let version = publisher.publish(&source, VersionTag::default(), PATIENCE).expect("a version");
        let seen = readers.iter_mut().map(|reader| reader.has(version)).max().expect("a reader");
        let visible = seen.saturating_sub(begun) as f64 / 1e9;
        if round > frames {
            pairs.push(Pair { copy, visible });
        }
    }
    pairs
}

/// Nanoseconds since 1970: the clock that all processes of the host share.
fn time_of_day() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_nanos() as u64
}

/// The process of a reader: it pins each version as it comes, and says when it had it.
struct OtherReader {
    child: Child,
    told: BufReader<ChildStdout>,
    /// The process ends with it.
    _input: ChildStdin,
}

impl OtherReader {
    fn start(address: &Address) -> OtherReader {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.args(["read", &address.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let told = BufReader::new(child.stdout.take().expect("its output"));
        let input = child.stdin.take().expect("its input");
        let mut reader = OtherReader { child, told, _input: input };
        reader.line();
        reader
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let count = self.told.read_line(&mut line).expect("its output");
        assert!(count > 0, "a reader has ended");
        line
    }

    /// The time at which it had `version`.
    fn has(&mut self, version: Version) -> u64 {
        loop {
            let line = self.line();
            let (number, at) = line.trim().split_once(' ').expect("a version and a time");
            if number == version.get().to_string() {
                return at.parse().expect("a time");
            }
        }
    }
}

impl Drop for OtherReader {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The program of a reader.
pub(super) fn read(address: &str) {
    std::thread::spawn(|| {
        let _closed = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let options = ReaderOptions { idle: Idle::Sleep, ..ReaderOptions::default() };
    let address = address.parse().expect("an address");
    let mut reader = Reader::connect(Shm::new(), &address, options, PATIENCE).expect("a reader");
    println!("ready");
    let mut next = Version::new(1);
    loop {
        let frame = reader.pin(Bound::version(next), PATIENCE).expect("the next version");
        let at = time_of_day();
        let version = frame.version();
        // Each page is looked at by who uses a version: here one word of it.
        let mut first = [0];
        frame.bytes().expect("bytes of the host").subslice(0, 1).read(&mut first);
        std::hint::black_box(first);
        drop(frame);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{} {at}", version.get()).and_then(|()| out.flush()).expect("the publisher hears");
        next = version.next();
    }
}
