//! The other side of a measurement: this program again, in a process of its own.
//!
//! On this host it is told its task in an argument, says on its standard output when it is ready and later what it has
//! measured, one JSON value a line, and ends when its standard input does. It dies with the process that started it.
//! On another host a user has started it, and the two processes say the same over a [`ClientLine`].

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slackline::{Address, Secret, Shm, Tcp, Verbs};

use super::arguments::{Op, TransportName};
use super::carrier::Carrier;
use super::load_process::LoadTask;
use super::means::{DeviceArgs, Means};
use super::pin::pin_to;
use super::remote::{ClientLine, Remote, ToClient};
use super::requester::Flow;
use super::{BenchError, load_process, nodes, pong, round};

/// The other side of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// A task.
    task: String,
}

/// The task of the other side: its role, and the settings for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) transport: TransportName,
    /// The address to connect to, for roles that connect.
    pub(super) address: Option<Address>,
    pub(super) core: Option<usize>,
    pub(super) bytes: u64,
    /// For one on the same host: another one has its own.
    pub(super) device: DeviceArgs,
    pub(super) queue_depth: Option<u16>,
    /// The same: another one has the file. It travels in the environment, which other users cannot read.
    #[serde(skip)]
    pub(super) secret: Option<Secret>,
    pub(super) role: TaskRole,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum TaskRole {
    /// Memory to write and read over so many connections, the other end of a ping-pong if there is one first, and the
    /// judge of what arrived if that is to be checked. It may stream in the opposite direction, too. If its peers are
    /// a crowd, it says in the end what they cost it.
    Memory {
        pongs: bool,
        checked: Option<Op>,
        connections: u16,
        opposite: Option<(Op, Flow)>,
        is_crowd: bool,
    },
    /// A publisher that publishes nothing after its first version. If it is to expect many readers, it says in the end
    /// what they cost it.
    Publisher { chunk: u64, crowd: Option<u16> },
    /// A server; afterwards it measures its fold alone, if so many times are asked for. If its workers are a crowd, it
    /// says in the end what they cost it.
    Server { asynchronous: bool, workers: u16, chunk: u64, threads: u16, folds: u64, is_crowd: bool },
    /// A worker that does rounds and says how long each took.
    Worker { borrow: bool, warmup: u64, rounds: u64 },
    /// Many workers or readers.
    Load(LoadTask),
}

impl Task {
    pub(super) fn address(&self) -> Result<&Address, BenchError> {
        self.address.as_ref().ok_or_else(|| {
            BenchError::usage("this task needs an address", "run the same slackline on both sides")
        })
    }

    /// Gives it to the process on the other host if there is one, else to a new one on this.
    pub(super) fn start(&self, remote: Option<&Rc<Remote>>) -> Result<Peer, BenchError> {
        if let Some(remote) = remote {
            remote.give(self)?;
            return Ok(Peer::Remote { remote: Rc::clone(remote), is_told: false });
        }
        let program = std::env::current_exe().map_err(BenchError::system("find this program's own file"))?;
        let task = serde_json::to_string(self).map_err(|error| BenchError::Peer(error.to_string()))?;
        let mut child = Command::new(program)
            .args(["bench-peer", &task])
            .envs(self.secret.iter().flat_map(Secret::variables))
            .env_remove("SLACKLINE_SECRET_FILE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("start another process"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Ok(Peer::Process(Process { child, stdin, stdout }))
    }
}

/// A process with a task.
pub(super) enum Peer {
    /// Of this host.
    Process(Process),
    /// Of another one.
    Remote { remote: Rc<Remote>, is_told: bool },
}

/// Killed when dropped.
pub(super) struct Process {
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
        let process = match self {
            Peer::Process(process) => process,
            Peer::Remote { remote, .. } => {
                let value = match remote.hear()? {
                    ToClient::Said(value) => value,
                    ToClient::Done => return Err(BenchError::Peer("it ended early".into())),
                };
                let wrong = |error| BenchError::Peer(format!("it said what was not asked: {error}"));
                return serde_json::from_value(value).map_err(wrong);
            }
        };
        let mut line = String::new();
        if let Some(stdout) = &mut process.stdout {
            stdout.read_line(&mut line).map_err(BenchError::system("read from the other process"))?;
        }
        if line.is_empty() {
            return Err(BenchError::Peer("it ended early; its own message stands above".into()));
        }
        serde_json::from_str(&line).map_err(|error| BenchError::Peer(format!("it said {line:?}: {error}")))
    }

    /// Lets it go on where it waits for that ([`Client::wait_for_go`]).
    pub(super) fn go(&mut self) -> Result<(), BenchError> {
        match self {
            Peer::Process(process) => {
                let stdin =
                    process.stdin.as_mut().ok_or_else(|| BenchError::Peer("it was told to end".into()))?;
                let written = stdin.write_all(b"\n").and_then(|()| stdin.flush());
                written.map_err(BenchError::system("let the other process go on"))
            }
            Peer::Remote { remote, .. } => remote.go(),
        }
    }

    /// Asks it to end. It may have something to say yet.
    pub(super) fn stop(&mut self) -> Result<(), BenchError> {
        match self {
            Peer::Process(process) => drop(process.stdin.take()),
            Peer::Remote { is_told: true, .. } => {}
            Peer::Remote { remote, is_told } => {
                *is_told = true;
                remote.end()?;
            }
        }
        Ok(())
    }

    /// Kills a process of this host, which has to be in the middle of its task.
    pub(super) fn kill(mut self) -> Result<(), BenchError> {
        let Peer::Process(process) = &mut self else {
            return Err(BenchError::Peer("a process of another host cannot be killed from here".into()));
        };
        process.child.kill().map_err(BenchError::system("kill another process"))?;
        let status = process.child.wait().map_err(BenchError::system("wait for the other process"))?;
        match status.signal() {
            Some(_) => Ok(()),
            None => Err(BenchError::Peer(format!("it had ended before it was killed: {status}"))),
        }
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        self.stop()?;
        match &mut self {
            Peer::Process(process) => {
                let status =
                    process.child.wait().map_err(BenchError::system("wait for the other process"))?;
                if status.success() { Ok(()) } else { Err(BenchError::Peer(status.to_string())) }
            }
            Peer::Remote { remote, .. } => match remote.hear()? {
                ToClient::Done => Ok(()),
                ToClient::Said(value) => {
                    Err(BenchError::Peer(format!("it said what was not asked: {value}")))
                }
            },
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A measurement that drops this without `end` has failed already, and reports its own error.
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// The process that gave this side its task, as this side sees it.
pub(super) struct Client {
    /// By what means it is to be reached.
    pub(super) means: Means,
    /// This host, as it sees it.
    pub(super) host: IpAddr,
    line: Option<Arc<ClientLine>>,
    /// Its signs to go on.
    signs: Receiver<()>,
    is_done: Arc<AtomicBool>,
}

impl Client {
    /// The process that started this one.
    fn parent(task: &Task, secret: Option<Secret>) -> Client {
        let is_done = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_done);
        let (sign, signs) = channel();
        std::thread::spawn(move || {
            // Whether the input ends or the read fails, the parent wants no more.
            for _line in std::io::stdin().lock().lines().map_while(Result::ok) {
                // A task that does not wait for signs has ended if it does not want this one.
                let _unwanted = sign.send(());
            }
            flag.store(true, Ordering::Relaxed);
        });
        let peer = task.address.as_ref().and_then(beyond_loopback);
        let means = Means { device: task.device.clone(), queue_depth: task.queue_depth, secret, peer };
        Client { means, host: Ipv4Addr::LOCALHOST.into(), line: None, signs, is_done }
    }

    /// Waits until it lets this one go on; an error if it wants no more.
    pub(super) fn wait_for_go(&self) -> Result<(), BenchError> {
        self.signs.recv().map_err(|_| BenchError::Peer("the side that measures is gone".into()))
    }

    /// A process on another host. The caller watches the line, passes its signs on and sets `is_done`.
    pub(super) fn on(
        line: &Arc<ClientLine>,
        means: Means,
        host: IpAddr,
        signs: Receiver<()>,
        is_done: &Arc<AtomicBool>,
    ) -> Client {
        Client { means, host, line: Some(Arc::clone(line)), signs, is_done: Arc::clone(is_done) }
    }

    /// True once it wants no more, or is gone.
    pub(super) fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    /// Says one value to it.
    pub(super) fn say(&self, value: &impl Serialize) -> Result<(), BenchError> {
        let wrong = |error: serde_json::Error| BenchError::Peer(error.to_string());
        if let Some(line) = &self.line {
            return line.say(serde_json::to_value(value).map_err(wrong)?);
        }
        let mut text = serde_json::to_string(value).map_err(wrong)?;
        text.push('\n');
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(BenchError::system("answer the process that started this one"))
    }
}

/// The IP address in the address of a process on another host.
fn beyond_loopback(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Tcp(at) | Address::Verbs(at) => Some(at.ip()).filter(|ip| !ip.is_loopback()),
        _ => None,
    }
}

/// Carries out what the process that started this one wants.
pub(super) fn serve(args: PeerArgs) -> Result<(), BenchError> {
    let parent_gone = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    parent_gone
        .map_err(std::io::Error::from)
        .map_err(BenchError::system("die with the process that started this"))?;
    let task: Task = serde_json::from_str(&args.task).map_err(|error| {
        BenchError::usage(format!("cannot read the task: {error}"), "bench-peer is for `bench` alone")
    })?;
    // Before it is pinned: its thread only waits.
    let secret = Secret::from_environment()?;
    let client = Client::parent(&task, secret);
    if let Some(core) = task.core {
        pin_to(core);
    }
    carry_out(&task, &client)
}

/// Carries a task out.
pub(super) fn carry_out(task: &Task, client: &Client) -> Result<(), BenchError> {
    match task.transport {
        TransportName::Shm => serve_over::<Shm>(task, client),
        TransportName::Tcp => serve_over::<Tcp>(task, client),
        TransportName::Verbs => serve_over::<Verbs>(task, client),
    }
}

fn serve_over<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    match task.role {
        TaskRole::Memory { .. } => pong::serve::<C>(task, client),
        TaskRole::Publisher { chunk, crowd } => nodes::serve_publisher::<C>(task, chunk, crowd, client),
        TaskRole::Server { .. } => round::serve_server::<C>(task, client),
        TaskRole::Worker { .. } => round::serve_worker::<C>(task, client),
        TaskRole::Load(load) => load_process::run::<C>(task, load, client),
    }
}
