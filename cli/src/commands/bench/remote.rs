//! Measurements between two hosts: one listens, and is told by the other what to be.
//!
//! The two talk over a [`Channel`], so each has proved that it knows the secret before anything else is said; without
//! one both must be on the same host. What is measured has connections of its own.

use std::cell::RefCell;
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slackline::Secret;
use slackline::internals::channel::{
    Channel, ChannelError, ChannelTerms, Purpose, allow_silence, listen as listen_at,
};

use super::BenchError;
use super::arguments::TransportName;
use super::means::Means;
use super::peer::{Client, Task, TaskRole, carry_out};

/// The port to listen at and to connect to, unless another one is given: perftest's port.
pub(super) const PORT: u16 = 18515;

/// Longest time that the other side may take for the handshake, and longest time for an answer.
const GREETING: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(60);
/// Between two looks at a line on which nothing is urgent.
const NAP: Duration = Duration::from_millis(2);
/// Longest wait for the reason from a side that failed: it first lets go of all its peers.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// A message of the side that measures.
#[derive(Debug, Serialize, Deserialize)]
enum ToHost {
    Task(Box<Task>),
    /// A sign to go on with it.
    Go,
    /// The task is over.
    End,
}

/// A message of the side that listens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToClient {
    /// Something that the task has to say.
    Said(Value),
    /// The task ended as it should.
    Done,
}

/// Such a message, or the reason that the task failed.
#[derive(Debug, Serialize, Deserialize)]
enum TaskAnswer {
    Well(ToClient),
    Failed(String),
}

fn terms(secret: Option<&Secret>) -> ChannelTerms {
    ChannelTerms { secret: secret.cloned(), ..ChannelTerms::new(Purpose::Measurement) }
}

fn broken(error: &ChannelError) -> BenchError {
    BenchError::Peer(error.to_string())
}

/// Waits as long as the system lets it for a side whose processors the measurement keeps busy.
fn be_patient(channel: &Channel) {
    if let Err(error) = allow_silence(channel, ANSWER) {
        tracing::warn!(%error, "a measurement ends if the other side says nothing for seconds");
    }
}

fn send(channel: &mut Channel, message: &impl Serialize) -> Result<(), BenchError> {
    let bytes = serde_json::to_vec(message).map_err(|error| BenchError::Peer(error.to_string()))?;
    channel.send(&bytes).map_err(|error| broken(&error))
}

/// The next message, if there is one already.
fn poll<M: DeserializeOwned>(channel: &mut Channel) -> Result<Option<M>, BenchError> {
    let Some(bytes) = channel.poll().map_err(|error| broken(&error))? else { return Ok(None) };
    let wrong = |error| {
        BenchError::Peer(format!("it said what this version does not know ({error}): use one on both sides"))
    };
    serde_json::from_slice(&bytes).map(Some).map_err(wrong)
}

/// The side that listens, as the one that measures sees it.
pub(super) struct Remote {
    channel: RefCell<Channel>,
    /// The address of that side.
    pub(super) address: SocketAddr,
}

impl Remote {
    /// Connects to the first address of `host` that answers.
    pub(super) fn connect(host: &str, means: &Means) -> Result<Remote, BenchError> {
        let mut last = BenchError::Peer(format!("{host} has no address"));
        let resolved = host.to_socket_addrs();
        for address in resolved.map_err(BenchError::system("find the host of --peer"))? {
            require_secret(address, means, "--peer")?;
            match Remote::dial(address, means) {
                Ok(remote) => return Ok(remote),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn dial(address: SocketAddr, means: &Means) -> Result<Remote, BenchError> {
        let failed =
            |error: &ChannelError| BenchError::Unreachable(format!("cannot reach {address}: {error}"));
        let terms = terms(means.secret.as_ref());
        let mut channel = Channel::connect(address, &terms).map_err(|error| failed(&error))?;
        let begun = Instant::now();
        while !channel.is_open() {
            channel.poll().map_err(|error| failed(&error))?;
            if begun.elapsed() > GREETING {
                let what =
                    format!("{address} does not answer: perhaps another measurement is under way there");
                return Err(BenchError::Peer(what));
            }
            std::thread::sleep(NAP);
        }
        be_patient(&channel);
        Ok(Remote { channel: RefCell::new(channel), address })
    }

    /// Gives it a task.
    pub(super) fn give(&self, task: &Task) -> Result<(), BenchError> {
        send(&mut self.channel.borrow_mut(), &ToHost::Task(Box::new(task.clone())))
    }

    /// Lets it go on with its task.
    pub(super) fn go(&self) -> Result<(), BenchError> {
        send(&mut self.channel.borrow_mut(), &ToHost::Go)
    }

    /// Tells it that the task is over.
    pub(super) fn end(&self) -> Result<(), BenchError> {
        send(&mut self.channel.borrow_mut(), &ToHost::End)
    }

    /// Waits for its next message.
    pub(super) fn hear(&self) -> Result<ToClient, BenchError> {
        match self.answer_within(ANSWER)? {
            Some(TaskAnswer::Well(answer)) => Ok(answer),
            Some(TaskAnswer::Failed(why)) => Err(BenchError::Remote(why)),
            None => Err(BenchError::Peer(format!("it said nothing within {ANSWER:?}"))),
        }
    }

    /// Its next message; none if it says nothing for so long.
    fn answer_within(&self, patience: Duration) -> Result<Option<TaskAnswer>, BenchError> {
        let begun = Instant::now();
        loop {
            match poll(&mut self.channel.borrow_mut())? {
                Some(answer) => return Ok(Some(answer)),
                None if begun.elapsed() > patience => return Ok(None),
                None => std::thread::sleep(NAP),
            }
        }
    }

    /// Adds the other side's reason to the error with which a measurement failed here, if that side sends one.
    pub(super) fn explain(&self, error: BenchError) -> BenchError {
        if matches!(error, BenchError::Remote(_)) {
            return error;
        }
        match self.answer_within(LAST_WORDS) {
            Ok(Some(TaskAnswer::Failed(why))) | Err(BenchError::Peer(why)) => {
                BenchError::Remote(format!("{why}; here: {error}"))
            }
            _ => error,
        }
    }
}

/// Refuses an address beyond this host if there is no secret, without which any process could connect.
fn require_secret(address: SocketAddr, means: &Means, option: &str) -> Result<(), BenchError> {
    if address.ip().to_canonical().is_loopback() || means.secret.is_some() {
        return Ok(());
    }
    let what = format!("{option} {address}: beyond loopback both sides must know a secret");
    Err(BenchError::usage(what, "give both the same --secret-file (mode 0600), or SLACKLINE_SECRET_FILE"))
}

/// The line to the process that measures, as the side that listens has it.
pub(super) struct ClientLine(Mutex<Channel>);

impl ClientLine {
    fn lock(&self) -> MutexGuard<'_, Channel> {
        // A thread that panicked with the lock has ended the conversation, which the next thread notices.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn say(&self, value: Value) -> Result<(), BenchError> {
        send(&mut self.lock(), &TaskAnswer::Well(ToClient::Said(value)))
    }
}

/// Serves one measurement after the other, each from another host; ends after one client unless it is to `keep` on.
pub(super) fn listen(
    address: SocketAddr,
    transport: TransportName,
    means: &Means,
    keep: bool,
) -> Result<(), BenchError> {
    require_secret(address, means, "--listen")?;
    // What cannot be had is told now, and not to the first client.
    transport.open(means)?;
    let socket = listen_at(address).map_err(BenchError::system("listen there"))?;
    // It has nothing else to do than to wait for clients.
    socket.set_nonblocking(false).map_err(BenchError::system("listen there"))?;
    let address = socket.local_addr().map_err(BenchError::system("ask where this listens"))?;
    tell(&format!("listening at {address} for `bench --transport {} --peer HOST:PORT`", transport.name()))?;
    loop {
        let accepted = Channel::accept(&socket, &terms(means.secret.as_ref()));
        let accepted = accepted.map_err(BenchError::system("let a client in"))?;
        let greeted = accepted.map_err(|error| broken(&error)).and_then(|channel| {
            let from = channel.peer_address().map_err(BenchError::system("ask who connects"))?;
            let greeted = greet(channel).map_err(|error| BenchError::Peer(format!("{from}: {error}")))?;
            Ok((greeted, from))
        });
        let ((channel, first), from) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                eprintln!("slackline bench: turned a client away: {error}");
                continue;
            }
        };
        let served = attend(channel, first, transport, means);
        match served {
            Ok(count) => tell(&format!("served {count} measurements of {from}"))?,
            Err(error) if keep => eprintln!("slackline bench: {from}: {error}"),
            Err(error) => return Err(error),
        }
        if !keep {
            return Ok(());
        }
    }
}

fn tell(text: &str) -> Result<(), BenchError> {
    let mut stdout = std::io::stdout().lock();
    let written = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
    written.map_err(BenchError::system("write to standard output"))
}

/// Lets a client prove that it knows the secret. Its first message may come together with the proof.
fn greet(mut channel: Channel) -> Result<(Channel, Option<Vec<u8>>), BenchError> {
    let begun = Instant::now();
    loop {
        let first = channel.poll().map_err(|error| broken(&error))?;
        if channel.is_open() {
            return Ok((channel, first));
        }
        if begun.elapsed() > GREETING {
            return Err(BenchError::Peer(format!("it did not say who it is within {GREETING:?}")));
        }
        std::thread::sleep(NAP);
    }
}

/// Carries out a client's tasks until it has no more; how many there were. `first` is its first message, if that has
/// come.
fn attend(
    link: Channel,
    mut first: Option<Vec<u8>>,
    transport: TransportName,
    means: &Means,
) -> Result<u64, BenchError> {
    let addresses = link.peer_address().and_then(|peer| Ok((peer, link.local_address()?)));
    let (peer, host) = addresses.map_err(BenchError::system("ask who is there"))?;
    be_patient(&link);
    let means = Means { peer: Some(peer.ip()), ..means.clone() };
    let line = Arc::new(ClientLine(Mutex::new(link)));
    let mut served = 0;
    while let Some(task) = next_task(&line, &mut first)? {
        let is_done = Arc::new(AtomicBool::new(false));
        let (sign, signs) = channel();
        let client = Client::on(&line, means.clone(), host.ip(), signs, &is_done);
        let over = std::thread::spawn({
            let (line, is_done) = (Arc::clone(&line), Arc::clone(&is_done));
            move || watch(&line, &sign, &is_done)
        });
        let result = check(&task, transport).and_then(|()| carry_out(&task, &client));
        if let Err(error) = &result {
            // If it is gone, it does not need to know.
            let _unheard = send(&mut line.lock(), &TaskAnswer::Failed(error.to_string()));
            is_done.store(true, Ordering::Relaxed);
        }
        let watched = over.join().unwrap_or_else(|_| Err(BenchError::Peer("its watcher failed".into())));
        result.and(watched)?;
        send(&mut line.lock(), &TaskAnswer::Well(ToClient::Done))?;
        served += 1;
    }
    Ok(served)
}

/// The next task; none once the client has left.
fn next_task(line: &ClientLine, first: &mut Option<Vec<u8>>) -> Result<Option<Task>, BenchError> {
    loop {
        let mut channel = line.lock();
        let bytes = match first.take().map_or_else(|| channel.poll(), |bytes| Ok(Some(bytes))) {
            Ok(bytes) => bytes,
            Err(ChannelError::Closed { .. }) => return Ok(None),
            Err(error) => return Err(broken(&error)),
        };
        match bytes.map(|bytes| serde_json::from_slice(&bytes)) {
            None => {}
            Some(Ok(ToHost::Task(task))) => return Ok(Some(*task)),
            Some(_) => {
                let why = "it asked for what this version does not know: use one version on both sides";
                let _unheard = send(&mut channel, &TaskAnswer::Failed(why.into()));
                return Err(BenchError::Peer(why.into()));
            }
        }
        drop(channel);
        std::thread::sleep(NAP);
    }
}

/// Waits until the client ends its task, or this side has failed. A client that leaves before has failed itself.
fn watch(line: &ClientLine, sign: &Sender<()>, is_done: &AtomicBool) -> Result<(), BenchError> {
    let heard = loop {
        match poll(&mut line.lock()) {
            Ok(Some(ToHost::End)) => break Ok(()),
            // A task that does not wait for signs has no use for it.
            Ok(Some(ToHost::Go)) => drop(sign.send(())),
            Ok(Some(ToHost::Task(_))) => break Err(BenchError::Peer("it gave two tasks at once".into())),
            Ok(None) if is_done.load(Ordering::Relaxed) => break Ok(()),
            Ok(None) => {}
            Err(error) => break Err(error),
        }
        std::thread::sleep(NAP);
    };
    is_done.store(true, Ordering::Relaxed);
    heard
}

fn check(task: &Task, transport: TransportName) -> Result<(), BenchError> {
    if task.transport != transport {
        return Err(BenchError::Peer(format!(
            "this side listens for --transport {}, the other one asks for {}: use one on both sides",
            transport.name(),
            task.transport.name()
        )));
    }
    match task.role {
        TaskRole::Memory { .. } | TaskRole::Publisher { .. } => Ok(()),
        TaskRole::Server { workers: 1, folds: 0, threads: 1, .. }
        | TaskRole::Server { is_crowd: true, .. } => Ok(()),
        TaskRole::Server { .. } | TaskRole::Worker { .. } | TaskRole::Load(_) => {
            Err(BenchError::Peer("that is measured on one host alone".into()))
        }
    }
}
