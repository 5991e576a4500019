//! The cost of peers that do nothing: the share of a processor that a publisher takes while its readers are idle, and a
//! server while its workers are, polling and sleeping, and the time from a worker's announcement to its gradient in the
//! next version. Then the same share of a publisher that is left to a thread, and the cost of readers that wait for the
//! next version: the share that they take, and the time from its publication until they have it.
//!
//! `cargo bench --bench idle -- [--seconds N]`. The owner is a process of its own, so that its time is counted apart
//! from that of its peers.

mod arguments;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline::scheme::SchemeConfig;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions};
use slackline::{
    Address, ElementType, Idle, Server, ServerOptions, Shm, Table, Tcp, Transport, Worker, WorkerOptions,
};

const PATIENCE: Duration = Duration::from_secs(60);
const ELEMENTS: usize = 16;
/// Gradients whose way into a version is timed.
const ROUNDS: usize = 1000;
/// Time between two of them, in which a sleeping server falls asleep.
const PAUSE: Duration = Duration::from_millis(2);
/// Time between two versions that readers wait for.
const PUBLISH_EVERY: Duration = Duration::from_millis(15);

const USAGE: &str = "usage: cargo bench --bench idle -- [--seconds N]";

fn main() {
    let arguments = arguments::given(USAGE);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["own", kind, "shm", idle, peers] => own(Shm::new(), Address::random(), kind, idle, peers),
        ["own", kind, "tcp", idle, peers] => own(Tcp::new(), loopback(), kind, idle, peers),
        [] => measure(10),
        ["--seconds", seconds] => measure(seconds.parse().expect("a number of seconds")),
        _ => arguments::misused(USAGE),
    }
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().expect("an address")
}

fn measure(seconds: u64) {
    println!("owner      transport  idle   peers  % of a processor  CPU us a look  round: median, p99 (us)");
    for (transport, peers) in [("shm", 64), ("tcp", 64), ("tcp", 1000)] {
        for idle in ["poll", "sleep"] {
            let row = |kind| {
                let share = beside_idle_peers(kind, transport, idle, peers, seconds);
                // An owner that sleeps looks at its peers every 20 ms.
                let (percent, look) = (100.0 * share, share * 20_000.0);
                format!("{kind:<10} {transport:<10} {idle:<6} {peers:>5} {percent:>17.2} {look:>14.0}")
            };
            println!("{}", row("publisher"));
            let of_server = row("server");
            let owner = Owner::start("server", transport, idle, 4);
            let mut rounds = match transport {
                "shm" => rounds(Shm::new(), &owner.address),
                _ => rounds(Tcp::new(), &owner.address),
            };
            rounds.sort_unstable();
            let at = |part: f64| rounds[(part * (rounds.len() - 1) as f64) as usize].as_secs_f64() * 1e6;
            println!("{of_server} {:>14.1}, {:.1}", at(0.5), at(0.99));
        }
    }
    println!("\npublisher left to a thread: transport  idle   peers  % of a processor");
    for (transport, peers) in [("shm", 0), ("shm", 64), ("tcp", 64), ("tcp", 1000)] {
        for idle in ["poll", "sleep"] {
            let share = beside_idle_peers("background", transport, idle, peers, seconds);
            println!("{:<28}{transport:<10} {idle:<6} {peers:>5} {:>17.2}", "", 100.0 * share);
        }
    }
    println!("\nreaders that wait      % of a processor each  publish to seen: median, p99 (us)");
    for (transport, readers) in [("shm", 1), ("shm", 8), ("tcp", 1), ("tcp", 8)] {
        for idle in ["poll", "sleep"] {
            let owner = Owner::start("publishes", transport, idle, 64);
            let (share, mut delays) = match transport {
                "shm" => waiting(&Shm::new(), &owner.address, idle, readers, seconds),
                _ => waiting(&Tcp::new(), &owner.address, idle, readers, seconds),
            };
            delays.sort_unstable();
            let at = |part: f64| delays[(part * (delays.len() - 1) as f64) as usize] as f64 / 1e3;
            let share = 100.0 * share / f64::from(readers);
            println!(
                "{transport:<4} {readers:>6} {idle:<10} {share:>21.2} {:>22.1}, {:.1}",
                at(0.5),
                at(0.99)
            );
        }
    }
}

/// The share of a processor that an owner of this kind takes while so many peers are connected and do nothing: workers
/// of a server, readers of a publisher.
fn beside_idle_peers(kind: &str, transport: &str, idle: &str, peers: u16, seconds: u64) -> f64 {
    let owner = Owner::start(kind, transport, idle, peers.max(1));
    // All peers share the threads of one transport.
    let (shm, tcp) = (Shm::new(), Tcp::new());
    match (kind, transport) {
        ("server", "shm") => owner.share(peers, seconds, || worker(shm.clone(), &owner.address)),
        ("server", _) => owner.share(peers, seconds, || worker(tcp.clone(), &owner.address)),
        (_, "shm") => owner.share(peers, seconds, || reader(shm.clone(), &owner.address)),
        _ => owner.share(peers, seconds, || reader(tcp.clone(), &owner.address)),
    }
}

fn reader<T: Transport>(transport: T, address: &Address) -> Reader<T> {
    Reader::connect(transport, address, ReaderOptions::default(), PATIENCE).expect("a reader")
}

fn worker<T: Transport>(transport: T, address: &Address) -> Worker<T> {
    let options = WorkerOptions::new(SchemeConfig::Bsp);
    Worker::connect(transport, std::slice::from_ref(address), options, PATIENCE).expect("a worker")
}

/// The share of a processor that this process takes while so many of its threads wait for versions, and the nanoseconds
/// from each publication until a reader had it.
fn waiting<T: Transport + Clone>(
    transport: &T,
    address: &Address,
    idle: &str,
    readers: u32,
    seconds: u64,
) -> (f64, Vec<u64>) {
    let options = ReaderOptions { idle: behaviour(idle), ..ReaderOptions::default() };
    let read = || {
        let mut reader = Reader::connect(transport.clone(), address, options, PATIENCE).expect("a reader");
        let mut delays = Vec::new();
        let begun = Instant::now();
        let mut version = reader.newest(PATIENCE).expect("a version").next();
        while begun.elapsed() < Duration::from_secs(seconds) {
            let fresh = reader.refresh_to(version, PATIENCE).expect("the next version");
            let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
            delays.push((since.as_nanos() as u64).saturating_sub(fresh.published_ns));
            version = fresh.version.next();
        }
        delays
    };
    let (before, begun) = (own_time(), Instant::now());
    let delays = std::thread::scope(|scope| {
        let reading: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
        reading.into_iter().flat_map(|reading| reading.join().expect("a reader")).collect()
    });
    ((own_time() - before).as_secs_f64() / begun.elapsed().as_secs_f64(), delays)
}

fn behaviour(idle: &str) -> Idle {
    if idle == "sleep" { Idle::Sleep } else { Idle::Poll }
}

/// The processor time of this process so far, with that of its threads that have ended.
fn own_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this process lives");
    // Behind the name, which may hold anything, user and system time are the 12th and 13th field, in hundredths of a
    // second.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
    Duration::from_millis(10 * ticks)
}

/// The process of the owner.
struct Owner {
    child: Child,
    address: Address,
}

impl Owner {
    fn start(kind: &str, transport: &str, idle: &str, peers: u16) -> Owner {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.args(["own", kind, transport, idle, &peers.to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the owner's process");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("an address");
        Owner { child, address: line.trim().parse().expect("an address") }
    }

    /// The share of a processor that the owner takes while so many peers are connected and do nothing.
    fn share<P>(&self, peers: u16, seconds: u64, connect: impl Fn() -> P) -> f64 {
        let connected: Vec<P> = (0..peers).map(|_| connect()).collect();
        std::thread::sleep(Duration::from_secs(1));
        let (before, begun) = (self.time(), Instant::now());
        std::thread::sleep(Duration::from_secs(seconds));
        let share = (self.time() - before).as_secs_f64() / begun.elapsed().as_secs_f64();
        drop(connected);
        share
    }

    /// The processor time of the owner's threads so far, to the nanosecond. None of them ends before the owner does.
    fn time(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("the owner lives");
        let of = |thread: std::io::Result<std::fs::DirEntry>| {
            let path = thread.expect("a thread of the owner").path().join("schedstat");
            let times = std::fs::read_to_string(path).expect("the thread lives");
            times
                .split(' ')
                .next()
                .and_then(|ran| ran.parse().ok())
                .map(Duration::from_nanos)
                .expect("its time")
        };
        threads.map(of).sum()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // It ends with its standard input.
        drop(self.child.stdin.take());
        self.child.wait().expect("the owner ends");
    }
}

/// The times from the call that publishes a gradient until the worker has a version with it.
fn rounds<T: Transport>(transport: T, address: &Address) -> Vec<Duration> {
    let mut worker = worker(transport, address);
    let mut round = || {
        let mut step = worker.step(PATIENCE).expect("a step");
        step.gradient().expect("its gradient").fill(1e-6);
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        step.publish(None, PATIENCE).expect("a published gradient");
        worker.flush(PATIENCE).expect("a folded gradient");
        begun.elapsed()
    };
    (0..ROUNDS).map(|_| round()).collect()
}

/// Serves until the standard input ends.
fn own<T: Transport>(transport: T, address: Address, kind: &str, idle: &str, peers: &str) {
    let idle = behaviour(idle);
    let peers = peers.parse().expect("a number of peers");
    let table = Table::flat(ELEMENTS as u64, ElementType::F32).expect("a table");
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let over = is_over.clone();
    std::thread::spawn(move || {
        let _ended = std::io::stdin().lines().next();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let is_over = move || is_over.load(std::sync::atomic::Ordering::Relaxed);
    let say = |address: Address| {
        println!("{address}");
        std::io::stdout().flush().expect("the parent reads");
    };
    if kind != "server" {
        let mut options = PublisherOptions::default();
        (options.memory.idle, options.memory.peers) = (idle, peers);
        let mut publisher = Publisher::new(transport, &address, table, options).expect("a publisher");
        say(publisher.address());
        if kind == "background" {
            let _publisher = publisher.into_background().expect("a thread");
            while !is_over() {
                std::thread::sleep(Duration::from_millis(500));
            }
            return;
        }
        let (publishes, bytes) = (kind == "publishes", [7; 4 * ELEMENTS]);
        while !is_over() {
            let pause = if publishes { PUBLISH_EVERY } else { Duration::from_millis(500) };
            publisher.drive(|_| is_over(), pause).expect("it goes on");
            if publishes {
                publisher.publish(&bytes, PATIENCE).expect("a version");
            }
        }
    } else {
        let mut options = ServerOptions::new(SchemeConfig::Bsp, 1, 0.1);
        (options.memory.idle, options.memory.peers) = (idle, peers);
        let mut server =
            Server::new(transport, &address, table, &[0.0; ELEMENTS], options).expect("a server");
        say(server.address());
        while !is_over() {
            server.drive(|_| is_over(), Duration::from_millis(500)).expect("it goes on");
        }
    }
}
