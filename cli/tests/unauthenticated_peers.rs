//! Unauthenticated peers at the rendezvous of a job that trains: they are shut out, and the job goes on as if they
//! were not there.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use slackline::internals::channel::{Channel, ChannelTerms, Purpose};
use slackline::internals::job::rendezvous::{Host, Introduction, MemberRole, Membership};
use slackline::{RendezvousEndpoint, Secret};
use tempfile::TempDir;

#[path = "../../tests/network/unauthenticated_peer.rs"]
mod unauthenticated_peer;
use unauthenticated_peer::{REFUSED_WITHIN, UnauthenticatedPeer};

const PATIENCE: Duration = Duration::from_secs(60);

/// KiB by which the coordinator may grow at most, at any moment.
const GROWTH: u64 = 16 << 10;

const HALF_OPEN: usize = 1000;

/// Epochs that show how long one takes.
const SHORT: u32 = 100;

/// Time for which training is to go on: much longer than the siege, which waits twice for peers to be shut out.
const TRAINING: Duration = Duration::from_secs(40);

const TRAIN: [&str; 6] = ["--model", "softmax", "--scheme", "bsp", "--json", "-"];

#[test]
fn floods_of_unauthenticated_peers_cost_bounded_memory_and_no_training() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    // A busy machine makes some of them slow. The fastest tells how many epochs are surely enough.
    let short = [(); 3].map(|()| wall(&Job::start(SHORT).end()) / f64::from(SHORT));
    let (fastest, slowest) =
        (short.into_iter().fold(f64::MAX, f64::min), short.into_iter().fold(0.0, f64::max));
    let epochs = (TRAINING.as_secs_f64() / fastest) as u32 + 1;
    let mut job = Job::start(epochs);
    let good = job.recorded();
    job.is_training();
    let before = job.memory("VmRSS:");
    besiege(&job, &good);
    assert!(job.coordinator.try_wait().unwrap().is_none(), "the siege lies within the training");
    let peak = job.memory("VmHWM:");
    assert!(peak < before + GROWTH, "{peak} KiB after {before}");
    let disturbed = job.end();
    let undisturbed = alone(epochs);
    for name in ["versions", "final_accuracy", "final_loss"] {
        assert_eq!(disturbed[name], undisturbed[name], "{name}");
    }
    for worker in 0..2 {
        let of = |json: &Value, name: &str| json["workers"][worker][name].clone();
        assert_eq!(of(&disturbed, "clocks"), of(&undisturbed, "clocks"));
        assert_eq!(of(&disturbed, "evicted"), false);
    }
    let (slow, fast) = (wall(&disturbed), slowest * f64::from(epochs));
    assert!(slow < 3.0 * fast, "{slow} s, and {fast} s without unauthenticated peers");
}

fn wall(json: &Value) -> f64 {
    json["wall_s"].as_f64().unwrap()
}

/// Runs the same training without unauthenticated peers, and as fast as it goes: its result is the same to the bit.
fn alone(epochs: u32) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["train", "--workers", "2", "--epochs", &epochs.to_string()]).args(TRAIN);
    let output = command.env_remove("RUST_LOG").output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON value")
}

/// Makes all the attempts that an unauthenticated peer may make.
fn besiege(job: &Job, good: &[u8]) {
    let (address, secret, before) = (job.address, &job.secret, job.descriptors());
    let other = Secret::random().unwrap();
    for wrong in [None, Some(other)] {
        let begun = Instant::now();
        let introduction = Introduction::new(MemberRole::Worker, Host::named("elsewhere"));
        let joined = Membership::join(&address.to_string(), introduction, wrong, REFUSED_WITHIN);
        let error = joined.err().expect("a peer without the secret is not let in");
        assert!(begun.elapsed() < REFUSED_WITHIN, "{error} after {:?}", begun.elapsed());
    }
    assert!(good.len() > 128, "a greeting and an introduction");
    let mut unauthenticated_peers =
        vec![UnauthenticatedPeer::says(address, good), UnauthenticatedPeer::says(address, &vec![7; 4 << 20])];
    for cut in 0..30 {
        unauthenticated_peers.push(UnauthenticatedPeer::says(address, &good[..cut * good.len() / 30]));
    }
    // Noise, and noise after a beginning that is right.
    for number in 1..=60 {
        let right = if number % 2 == 0 { number } else { 0 };
        let said = [&good[..right], &noise(number as u64, number * 50)].concat();
        unauthenticated_peers.push(UnauthenticatedPeer::says(address, &said));
    }
    // A peer that knows the secret, and stops within the header of its first message.
    let terms = ChannelTerms { secret: Some(secret.clone()), ..ChannelTerms::new(Purpose::Rendezvous) };
    let mut channel = Channel::connect(address, &terms).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !channel.is_open() {
        channel.poll().unwrap();
        assert!(Instant::now() < deadline, "no greeting");
        std::thread::sleep(Duration::from_millis(1));
    }
    let stream = channel.as_fd().try_clone_to_owned().unwrap().into();
    unauthenticated_peers.push(UnauthenticatedPeer::goes_on(stream, &[0xFF; 4]));
    for unauthenticated_peer in unauthenticated_peers {
        unauthenticated_peer.must_be_shut_out();
    }
    let silent: Vec<_> = (0..HALF_OPEN).map(|_| UnauthenticatedPeer::says(address, b"")).collect();
    // A peer that knows the secret is heard past all of them, and few of them are kept. The job has no rank for it, and
    // it is told so.
    let introduction =
        Introduction { role_rank: Some(0), ..Introduction::new(MemberRole::Reader, Host::own()) };
    let joined = Membership::join(&address.to_string(), introduction, Some(secret.clone()), PATIENCE);
    let error = joined.err().expect("the job has no ranks for readers").to_string();
    assert!(error.contains("the job has ranks for 0 readers"), "{error}");
    let kept = job.descriptors() - before;
    assert!(kept < 100, "{kept} connections of unauthenticated peers are kept");
    for unauthenticated_peer in silent {
        unauthenticated_peer.must_be_shut_out();
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(step).take(len).collect()
}

// ---------------------------------------------------------------------- a job

/// A coordinator, a server and two workers, each of which the test starts. The second worker meets the coordinator
/// through the test, which keeps what it says.
struct Job {
    coordinator: Child,
    members: Vec<Child>,
    address: SocketAddr,
    secret: Secret,
    said: Arc<Mutex<Vec<u8>>>,
    _folder: TempDir,
}

impl Job {
    fn start(epochs: u32) -> Job {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("secret");
        let secret = Secret::random().unwrap();
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(&file).unwrap().write_all(secret.expose().as_bytes()).unwrap();
        let address = free_port();
        let mut train = program("train", address, &file);
        train.args(["--coordinate", "--workers", "2", "--servers", "1", "--transport", "tcp"]);
        train.args(["--epochs", &epochs.to_string(), "--jitter", "constant(0.002)"]).args(TRAIN);
        let coordinator = train.stdout(Stdio::piped()).spawn().expect("the program starts");
        let (relay, said) = record(address);
        let start = |role, at| program(role, at, &file).spawn().expect("the program starts");
        let members = vec![start("serve", address), start("work", address), start("work", relay)];
        Job { coordinator, members, address, secret, said, _folder: folder }
    }

    /// Returns what a good member has said to get in.
    fn recorded(&self) -> Vec<u8> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.said.lock().unwrap().clone();
            if said.len() > 256 {
                return said;
            }
            assert!(Instant::now() < deadline, "the worker does not join");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until workers report, and what they need memory for is there.
    fn is_training(&self) {
        let before = self.said.lock().unwrap().len();
        let deadline = Instant::now() + PATIENCE;
        while self.said.lock().unwrap().len() < before + 1000 {
            assert!(Instant::now() < deadline, "the worker does not report");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.coordinator.id())).unwrap().count()
    }

    /// KiB, as the system names them.
    fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.coordinator.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Waits for the end, which must be a good one.
    fn end(mut self) -> Value {
        let mut stdout = self.coordinator.stdout.take().unwrap();
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            if let Some(status) = self.coordinator.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                break;
            }
            assert!(Instant::now() < deadline, "the job does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        serde_json::from_str(&reading.join().unwrap()).expect("stdout is one JSON value")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.members.iter_mut().chain([&mut self.coordinator]) {
            if !matches!(child.try_wait(), Ok(Some(_))) {
                let _gone = child.kill();
                let _status = child.wait();
            }
        }
    }
}

fn program(role: &str, address: SocketAddr, secret: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args([role, "--rendezvous", &address.to_string(), "--secret-file"]).arg(secret);
    command.env_remove("RUST_LOG").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns a port at which no process listens.
fn free_port() -> SocketAddr {
    let RendezvousEndpoint { port, .. } = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Leads each connection on to `target`, and keeps what is said towards it on the first that is made.
fn record(target: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&said);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            // The coordinator may not listen yet: then the client tries again.
            let Ok(server) = TcpStream::connect(target) else { continue };
            let (mut from, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ended = std::io::copy(&mut from, &mut to);
                let _closed = to.shutdown(std::net::Shutdown::Both);
            });
            let (mut from, mut to, kept) = (client, server, Arc::clone(&kept));
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    kept.lock().unwrap().extend_from_slice(&buffer[..bytes]);
                    if to.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
                let _closed = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (address, said)
}
