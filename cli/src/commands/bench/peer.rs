//! The other side of a measurement: this program again, in a process of its own.
//!
//! It is told its task in an argument, says on its standard output when it is ready and later what it has measured,
//! one JSON value a line, and ends when its standard input does. It dies with the process that started it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slackline::transport::Address;
use slackline::transport::shm::Shm;
use slackline::transport::tcp::Tcp;

use super::arguments::TransportName;
use super::carrier::Carrier;
use super::pin::pin_to;
use super::{BenchError, nodes, pong, round};

/// The other side of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// A task.
    task: String,
}

/// What the other side is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) transport: TransportName,
    /// Whom to connect to, for those who do.
    pub(super) address: Option<Address>,
    pub(super) core: Option<usize>,
    pub(super) bytes: u64,
    pub(super) role: Role,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// Memory to write and read, and the other end of a ping-pong.
    Memory,
    /// A publisher that publishes nothing after its first version.
    Publisher { chunk: u64 },
    /// A server; afterwards it measures its fold alone, if so many times are asked for.
    Server { asynchronous: bool, workers: u16, chunk: u64, threads: u16, folds: u64 },
    /// A worker that does rounds and says how long each took.
    Worker { borrow: bool, warmup: u64, rounds: u64 },
}

impl Task {
    pub(super) fn address(&self) -> Result<&Address, BenchError> {
        self.address.as_ref().ok_or_else(|| BenchError::Usage("this task needs an address".into()))
    }

    /// Starts a process with this task.
    pub(super) fn start(&self) -> Result<Peer, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::system("find this program's own file"))?;
        let task = serde_json::to_string(self).map_err(|error| BenchError::Peer(error.to_string()))?;
        let mut child = Command::new(program)
            .args(["bench-peer", &task])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("start another process"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Ok(Peer { child, stdin, stdout })
    }
}

/// A process with a task; killed when dropped.
pub(super) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Peer {
    /// Waits until it says that it is ready, and where.
    pub(super) fn ready(mut self) -> Result<(Address, Peer), BenchError> {
        Ok((self.hear()?, self))
    }

    /// The next value that it says.
    pub(super) fn hear<V: DeserializeOwned>(&mut self) -> Result<V, BenchError> {
        let mut line = String::new();
        if let Some(stdout) = &mut self.stdout {
            stdout.read_line(&mut line).map_err(BenchError::system("read from the other process"))?;
        }
        if line.is_empty() {
            return Err(BenchError::Peer("it ended early; its own message stands above".into()));
        }
        serde_json::from_str(&line).map_err(|error| BenchError::Peer(format!("it said {line:?}: {error}")))
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        drop(self.stdin.take());
        let status = self.child.wait().map_err(BenchError::system("wait for the other process"))?;
        if status.success() { Ok(()) } else { Err(BenchError::Peer(status.to_string())) }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Whoever comes here without `end` has failed already, and has its own story to tell.
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// Says one value to whoever started this process.
pub(super) fn say(value: &impl Serialize) -> Result<(), BenchError> {
    let mut text = serde_json::to_string(value).map_err(|error| BenchError::Peer(error.to_string()))?;
    text.push('\n');
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(BenchError::system("answer the process that started this one"))
}

/// True once standard input has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    fn watch() -> Stop {
        let stop = Stop::default();
        let flag = stop.clone();
        std::thread::spawn(move || {
            // Whether it ends or fails, nobody is there any more.
            let _ended = std::io::stdin().lock().read_to_end(&mut Vec::new());
            flag.0.store(true, Ordering::Relaxed);
        });
        stop
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Carries a task out.
pub(super) fn serve(args: PeerArgs) -> Result<(), BenchError> {
    let parent_gone = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    parent_gone
        .map_err(std::io::Error::from)
        .map_err(BenchError::system("die with the process that started this"))?;
    let task: Task = serde_json::from_str(&args.task)
        .map_err(|error| BenchError::Usage(format!("bench-peer is for `bench` alone: {error}")))?;
    // Before it is pinned: it only waits.
    let stop = Stop::watch();
    if let Some(core) = task.core {
        pin_to(core);
    }
    match task.transport {
        TransportName::Shm => serve_over::<Shm>(&task, &stop),
        TransportName::Tcp => serve_over::<Tcp>(&task, &stop),
    }
}

fn serve_over<C: Carrier>(task: &Task, stop: &Stop) -> Result<(), BenchError> {
    match task.role {
        Role::Memory => pong::serve::<C>(task, stop),
        Role::Publisher { chunk } => nodes::serve_publisher::<C>(task, chunk, stop),
        Role::Server { .. } => round::serve_server::<C>(task, stop),
        Role::Worker { .. } => round::serve_worker::<C>(task),
    }
}
