//! `slackline top` from outside: real metrics servers, a real terminal, nodes that are not there.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use slackline::TransportKind;
use slackline_cli::metrics::{
    MetricsServer, NodeMetrics, NodeRole, PeerMetrics, PeerState, Registry, ServerMetrics, WorkerMetrics,
    listen_address,
};

/// A node that works: a clock and a version every five milliseconds.
struct Node {
    server: MetricsServer,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    fn start(metrics: NodeMetrics) -> Node {
        let registry = Registry::new(metrics);
        let server = MetricsServer::start(listen_address("0").unwrap(), registry.clone()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                registry.update(|metrics| {
                    if let Some(server) = &mut metrics.server {
                        server.version += 1;
                    }
                    if let Some(worker) = &mut metrics.worker {
                        worker.clock += 1;
                        worker.wait += Duration::from_millis(1);
                        worker.compute += Duration::from_millis(3);
                    }
                    for peer in &mut metrics.peers {
                        peer.bytes_in += 1000;
                        peer.bytes_out += 3000;
                    }
                });
            }
        };
        Node { server, stop, thread: Some(std::thread::spawn(work)) }
    }

    fn worker() -> Node {
        Node::start(NodeMetrics {
            role: NodeRole::Worker,
            rank: 2,
            worker: Some(WorkerMetrics {
                staleness: vec![2, 5, 0, 1],
                pull_retries: 4,
                timeouts: 1,
                ..WorkerMetrics::default()
            }),
            peers: vec![
                peer("server 0", PeerState::Up, TransportKind::Shm),
                peer("server 1", PeerState::Lost, TransportKind::Tcp),
            ],
            ..NodeMetrics::default()
        })
    }

    fn coordinator() -> Node {
        Node::start(NodeMetrics {
            role: NodeRole::Coordinator,
            server: Some(ServerMetrics {
                workers: 2,
                loss: Some(0.25),
                waits_for: Some(2),
                staleness_bound: Some(6),
                mean_norm_squared: Some(0.5),
                variance: Some(1.5),
                ..ServerMetrics::default()
            }),
            peers: vec![peer("worker 2", PeerState::Up, TransportKind::Shm)],
            ..NodeMetrics::default()
        })
    }

    fn address(&self) -> String {
        self.server.address().to_string()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn peer(name: &str, state: PeerState, path: TransportKind) -> PeerMetrics {
    PeerMetrics { name: name.into(), role: NodeRole::Server, state, path, bytes_in: 0, bytes_out: 0 }
}

/// An address where no process listens, nor can: that of a connection's other end.
struct Nobody(TcpStream);

impl Nobody {
    fn new() -> Nobody {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Nobody(TcpStream::connect(listener.local_addr().unwrap()).unwrap())
    }

    fn address(&self) -> String {
        self.0.local_addr().unwrap().to_string()
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("top").args(arguments).args(["--interval", "1"]);
    command
}

fn top(arguments: &[&str]) -> Output {
    command(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn one_object_says_what_every_node_does() {
    let (worker, coordinator, nobody) = (Node::worker(), Node::coordinator(), Nobody::new());
    let output = top(&[&worker.address(), &coordinator.address(), &nobody.address(), "--once", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(value["time_s"].as_f64().unwrap() > 1e9);
    let nodes = value["nodes"].as_array().unwrap();

    let row = &nodes[0];
    assert_eq!((row["role"].as_str(), row["rank"].as_u64()), (Some("worker"), Some(2)));
    assert_eq!((row["staleness_p50"].as_u64(), row["staleness_max"].as_u64()), (Some(1), Some(3)));
    assert_eq!((row["pull_retries"].as_u64(), row["timeouts"].as_u64()), (Some(4), Some(1)));
    assert_eq!((row["peers_up"].as_u64(), row["peers_lost"].as_u64()), (Some(1), Some(1)));
    assert_eq!(row["paths"], serde_json::json!(["shm", "tcp"]));
    // How fast depends on the machine; what goes together does not.
    let rate = |row: &Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(rate(row, "rate_per_s") > 1.0);
    assert!((rate(row, "wait_share") - 0.25).abs() < 0.01, "{row}");
    let ratio = rate(row, "out_bytes_per_s") / rate(row, "in_bytes_per_s");
    assert!((ratio - 3.0).abs() < 0.01, "{row}");

    let row = &nodes[1];
    assert_eq!((row["role"].as_str(), row["loss"].as_f64()), (Some("coordinator"), Some(0.25)));
    assert_eq!((row["waits_for"].as_u64(), row["staleness_bound"].as_u64()), (Some(2), Some(6)), "{row}");
    assert_eq!((&row["mean_norm_squared"], &row["variance"]), (&0.5.into(), &1.5.into()), "{row}");
    assert!(row["version"].as_u64().unwrap() > 0 && rate(row, "rate_per_s") > 1.0);
    assert!(nodes[2]["unreachable"].as_str().unwrap().contains("connection refused"), "{}", nodes[2]);
}

#[test]
fn without_a_terminal_one_table_is_printed() {
    let (worker, nobody) = (Node::worker(), Nobody::new());
    let output = top(&[&worker.address(), &nobody.address()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].starts_with("NODE") && lines[0].ends_with("PATH"), "{text}");
    assert!(lines[1].contains(" worker ") && lines[1].ends_with("1/1  shm+tcp"), "{text}");
    assert!(lines[2].contains("unreachable: connection refused"), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
}

#[test]
fn it_fails_once_no_node_answers_and_explains_wrong_options() {
    let output = top(&[&Nobody::new().address(), "--once"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("unreachable"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.starts_with("error: the node did not answer\nhelp: "), "{stderr}");
    for wrong in [&[][..], &["node1"], &["1:0"], &["9100", "--interval", "x"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_slackline")).arg("top").args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn whoever_answers_is_not_always_a_node() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answers = ["SSH-2.0-x\r\n", "HTTP/1.1 404 Not Found\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n<html>\n", ""];
    let answering = std::thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            // Read first: closing with something unread would take the answer back.
            let mut line = String::new();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while reader.read_line(&mut line).unwrap() > 2 {}
            stream.write_all(answer.as_bytes()).unwrap();
        }
        // The last is never answered at all.
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    for reason in
        ["no metrics server", "answered 404", "line 1 is no metric", "no metrics server", "no answer within"]
    {
        let output = top(&[&address, "--once"]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.code() == Some(1) && text.contains(reason), "{reason}: {text}");
    }
    answering.join().unwrap();
}

#[test]
fn json_goes_on_line_by_line_until_nobody_reads() {
    let worker = Node::worker();
    let mut child =
        command(&[&worker.address(), "--json"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut clock = || -> u64 {
        let value: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        value["nodes"][0]["clock"].as_u64().unwrap()
    };
    let first = clock();
    assert!(clock() > first);
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// A terminal, and `top` in it.
struct Terminal {
    ours: File,
    theirs: File,
    child: Child,
    /// The output that was written and not yet waited for.
    seen: String,
}

impl Terminal {
    fn start(arguments: &[&str]) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let size = Winsize { ws_row: 6, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&ours, size).unwrap();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let child = command(arguments).stdin(end()).stdout(end()).spawn().unwrap();
        Terminal { ours: File::from(ours), theirs, child, seen: String::new() }
    }

    /// Waits until this has been written, after what was waited for before.
    fn until(&mut self, text: &str) {
        let mut piece = [0; 4096];
        loop {
            if let Some(at) = self.seen.find(text) {
                self.seen.drain(..at + text.len());
                return;
            }
            let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&self.ours, PollFlags::IN)], Some(&timeout)).unwrap();
            assert!(ready > 0, "no {text:?} in {:?}", self.seen);
            let read = self.ours.read(&mut piece).unwrap();
            self.seen.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_live_table_is_redrawn_and_leaves_the_terminal_as_it_was() {
    for key in [b"q", b"\x03"] {
        let (worker, nobody) = (Node::worker(), Nobody::new());
        let mut terminal = Terminal::start(&[&worker.address(), &nobody.address()]);
        let is_cooked = |terminal: &Terminal| {
            let modes = tcgetattr(&terminal.theirs).unwrap().local_modes;
            modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
        };
        for _ in 0..3 {
            terminal.until("\x1b[H");
            terminal.until("unreachable: connection refused");
            terminal.until("every 1 s, q ends");
        }
        assert!(!is_cooked(&terminal));
        terminal.ours.write_all(key).unwrap();
        // The other screen is left, and the last table stays.
        terminal.until("\x1b[?1049l");
        terminal.until("shm+tcp");
        assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
        assert!(is_cooked(&terminal));
    }
}
