//! The process that writes without ever pausing.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use slackline::internals::mem::{VolatileSlice, Way};
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, ElementType, Mixed, Secret, Server, ServerOptions, Shm, Table, Tcp, Transport, Verbs,
    VerbsOptions, Version, Worker, WorkerOptions, scheme::SchemeConfig,
};

/// Longest time that a single wait may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The spec of the second process.
const SECOND: &str = "SLACKLINE_LITMUS_SECOND";

/// The RDMA devices that both processes use, with commas; that of the rig, or the best one, if nothing is said.
pub(crate) const DEVICES: &str = "SLACKLINE_LITMUS_DEVICES";

/// The words that the second process says before its address.
const AT: &str = "litmus: listens at ";

/// Returns the transport by which both processes reach such an address, on one host or on two.
pub(crate) fn transport_for(address: &Address) -> Mixed {
    let secret = Secret::from_text("both processes know this", "this test").unwrap();
    let mixed = Mixed::new(Shm::new(), Tcp::with_secret(secret.clone()));
    if !matches!(address, Address::Verbs(_)) {
        return mixed;
    }
    let devices = std::env::var(DEVICES).or_else(|_| std::env::var("SLACKLINE_RIG_DEVICE"));
    let devices = devices.map(|names| names.split(',').map(str::to_owned).collect());
    let devices: Vec<String> = devices.unwrap_or_default();
    let options = VerbsOptions { secret: Some(secret), devices, ..VerbsOptions::default() };
    mixed.with_verbs(Verbs::open(options).unwrap_or_else(|error| panic!("this litmus needs RDMA: {error}")))
}

/// Prints the address past the test harness, which keeps what `println!` says to itself.
fn tell(address: &Address) {
    // A process that does not hear it is gone.
    let _unheard = writeln!(io::stdout(), "{AT}{address}");
}

/// In the first process: waits until no other litmus runs. In the second: writes until the first has gone.
pub(crate) fn first_process() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if let Ok(text) = std::env::var(SECOND) {
        Spec::parse(&text).write();
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The time for which a writer publishes without a pause to a reader over a network, and the pause. A writer that never
/// pauses and has a processor for itself keeps such a reader out for minutes: it writes all frames within one round
/// trip.
const SPRINT: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_millis(1);

/// The way in which the writer stores a version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fill {
    /// Word by word.
    Words,
    /// By copies that stay in the cache.
    Cached,
    /// By copies past the cache.
    Streaming,
    /// By copies past the cache that several threads share.
    Threads,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Publisher,
    /// A server and its one worker.
    Server(SchemeConfig),
    /// A server for a worker in the first process.
    ServerAlone(SchemeConfig),
}

/// The task of the second process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spec {
    pub(crate) address: Address,
    pub(crate) kind: Kind,
    pub(crate) bytes: usize,
    pub(crate) fill: Fill,
    pub(crate) frames: u8,
    pub(crate) checksums: bool,
    /// Number of threads with which a server folds.
    pub(crate) threads: usize,
}

impl Spec {
    /// One on this host, over shared memory.
    pub(crate) fn publisher(bytes: usize, fill: Fill) -> Spec {
        let address = Address::random();
        Spec { address, kind: Kind::Publisher, bytes, fill, frames: 3, checksums: false, threads: 1 }
    }

    fn print(&self) -> String {
        let Spec { address, kind, bytes, fill, frames, checksums, threads } = self;
        let kind = match kind {
            Kind::Publisher => "publisher",
            Kind::Server(_) => "server",
            Kind::ServerAlone(scheme) if scheme.pushes() => "alone",
            Kind::ServerAlone(_) => "unbounded",
        };
        format!("{address} {kind} {bytes} {fill:?} {frames} {checksums} {threads}")
    }

    fn parse(text: &str) -> Spec {
        let words: Vec<&str> = text.split(' ').collect();
        let [address, kind, bytes, fill, frames, checksums, threads] = words[..] else {
            panic!("no spec: {text}")
        };
        Spec {
            address: address.parse().unwrap(),
            kind: match kind {
                "publisher" => Kind::Publisher,
                "server" => Kind::Server(SchemeConfig::Bsp),
                "unbounded" => Kind::ServerAlone(SchemeConfig::Asp),
                _ => Kind::ServerAlone(SchemeConfig::Essp { staleness: 2 }),
            },
            bytes: bytes.parse().unwrap(),
            fill: match fill {
                "Words" => Fill::Words,
                "Cached" => Fill::Cached,
                "Threads" => Fill::Threads,
                _ => Fill::Streaming,
            },
            frames: frames.parse().unwrap(),
            checksums: checksums.parse().unwrap(),
            threads: threads.parse().unwrap(),
        }
    }

    fn write(&self) {
        match self.address {
            Address::Tcp(_) | Address::Verbs(_) => self.write_over(&transport_for(&self.address)),
            _ => self.write_over(&Shm::new()),
        }
    }

    fn write_over<T: Transport + Clone>(&self, transport: &T) {
        match self.kind {
            Kind::Publisher => self.publish(transport),
            Kind::Server(scheme) => self.serve(transport, scheme, true),
            Kind::ServerAlone(scheme) => self.serve(transport, scheme, false),
        }
    }

    fn is_over_a_network(&self) -> bool {
        matches!(self.address, Address::Tcp(_) | Address::Verbs(_))
    }

    fn publish<T: Transport + Clone>(&self, transport: &T) {
        let table = Table::flat(self.bytes as u64 / 4, ElementType::F32).unwrap();
        let mut options = PublisherOptions::default();
        options.memory.frames = self.frames;
        options.memory.checksums = self.checksums;
        let mut publisher = Publisher::new(transport.clone(), &self.address, table, options).unwrap();
        tell(&publisher.address());
        let parent = Parent::new();
        // Threads share copies of many pieces.
        let most = if self.fill == Fill::Threads { 4 << 20 } else { 64 << 10 };
        let mut pattern = vec![0; self.bytes.min(most)];
        let mut rested = Instant::now();
        for version in 1u64.. {
            let fill = |memory: VolatileSlice<'_>| self.fill(memory, version, &mut pattern);
            assert_eq!(publisher.publish_with(TIMEOUT, fill).unwrap(), Version::new(version));
            if version.is_multiple_of(64) && !parent.lives() {
                return;
            }
            if self.is_over_a_network() && rested.elapsed() > SPRINT {
                std::thread::sleep(REST);
                rested = Instant::now();
            }
        }
    }

    fn fill(&self, memory: VolatileSlice<'_>, version: u64, pattern: &mut [u8]) {
        let (way, threads) = match self.fill {
            Fill::Words => {
                for offset in (0..memory.len()).step_by(8) {
                    memory.store_u64(offset, version);
                }
                return;
            }
            Fill::Cached => (Way::Libc, 1),
            Fill::Streaming => (Way::Stream, 1),
            Fill::Threads => (Way::Stream, 3),
        };
        pattern.as_chunks_mut::<8>().0.fill(version.to_le_bytes());
        let source = VolatileSlice::from_ref(pattern);
        for offset in (0..memory.len()).step_by(pattern.len()) {
            let len = pattern.len().min(memory.len() - offset);
            memory.subslice(offset, len).copy_by(source.subslice(0, len), way, threads);
        }
    }

    /// Every gradient adds 1 to every parameter.
    fn serve<T: Transport + Clone>(&self, transport: &T, scheme: SchemeConfig, with_worker: bool) {
        let elements = self.bytes / 4;
        let table = Table::flat(elements as u64, ElementType::F32).unwrap();
        let mut options = ServerOptions::new(scheme, 1, -1.0);
        options.memory.frames = self.frames;
        options.memory.checksums = self.checksums;
        options.memory.chunk_bytes = 1024;
        options.threads = self.threads;
        let mut server =
            Server::new(transport.clone(), &self.address, table, &vec![0.0; elements], options).unwrap();
        let address = server.address();
        let parent = Parent::new();
        if !with_worker {
            tell(&address);
            let served = |server: &Server<T>| server.status().left > 0;
            while parent.lives() && !server.drive(served, Duration::from_millis(50)).unwrap() {}
            return;
        }
        let mut worker = std::thread::scope(|scope| {
            let options = WorkerOptions::new(scheme);
            let (address, transport) = (std::slice::from_ref(&address), transport.clone());
            let connecting =
                scope.spawn(move || Worker::connect(transport, address, options, TIMEOUT).unwrap());
            assert!(server.drive(|server| server.status().joined == 1, TIMEOUT).unwrap());
            connecting.join().unwrap()
        });
        tell(&address);
        let mut step = worker.step(TIMEOUT).unwrap();
        step.gradient().unwrap().fill(1.0);
        step.suspend();
        // By turns in one thread: a processor is left for the reader, if no other threads fold, and folds are cut into
        // turns for it to see.
        while parent.lives() {
            match worker.step(Duration::ZERO) {
                Ok(step) => step.start_publish(None).unwrap(),
                Err(slackline::Error::Deadline { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            server.poll(slackline::now()).unwrap();
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
pub(crate) struct Second {
    child: Child,
    pub(crate) address: Address,
}

impl Second {
    /// Runs test `claim` of this binary in another process, which `start` starts, to do what `spec` says; waits until
    /// it listens.
    pub(crate) fn start(claim: &str, spec: &Spec, start: fn(&mut Command) -> io::Result<Child>) -> Second {
        assert_eq!(Spec::parse(&spec.print()), *spec);
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", claim, "--nocapture", "--test-threads=1"]);
        command.env(SECOND, spec.print()).stdout(Stdio::piped());
        let mut child = start(&mut command).expect("run this binary again");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut second = Second { child, address: spec.address.clone() };
        let told = lines.find_map(|line| Some(line.ok()?.split_once(AT)?.1.parse().expect("an address")));
        second.address = told.expect("the second process listens");
        second
    }

    /// Reads there, over `transport`.
    pub(crate) fn reader<T: Transport>(&self, transport: T, options: ReaderOptions) -> Reader<T> {
        Reader::connect(transport, &self.address, options, TIMEOUT).expect("the second process listens")
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}
