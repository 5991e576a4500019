//! Measurements between two hosts: this one listens, and is told by the other what to be.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use slackline::TransportKind;
use slackline::internals::channel::{Channel, ChannelError, listen as listen_at};
use slackline_lab::stderr;

use super::carrier;
use super::client::{Client, ClientLine};
use super::error::BenchError;
use super::line::{
    GREETING, NAP, TaskAnswer, ToClient, ToHost, be_patient, broken, poll, require_secret, send, terms,
};
use super::means::Means;
use super::messages::{Task, TaskRole};
use super::serve::carry_out;

/// Serves one measurement after the other, each from another host; ends after one client unless it is to `keep` on.
pub(super) fn listen(
    address: SocketAddr,
    transport: TransportKind,
    means: &Means,
    keep: bool,
) -> Result<(), BenchError> {
    require_secret(address, means, "--listen")?;
    // What cannot be had is told now, and not to the first client.
    carrier::open(transport, means)?;
    // It has nothing else to do than to wait for clients.
    let socket = listen_at(address).and_then(|socket| socket.set_nonblocking(false).map(|()| socket));
    let help = "name an address of this host and a free port: --listen IP:PORT";
    let socket = socket.map_err(BenchError::system_with(format!("listen at {address}"), help))?;
    let address = socket.local_addr().map_err(BenchError::system("ask where this listens"))?;
    tell(&format!("listening at {address} for `bench --transport {transport} --peer HOST:PORT`"))?;
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
                stderr::tell(format_args!("slackline bench: turned a client away: {error}"));
                continue;
            }
        };
        let served = attend(channel, first, transport, means);
        match served {
            Ok(count) => tell(&format!("served {count} measurements of {from}"))?,
            Err(error) if keep => stderr::tell(format_args!("slackline bench: {from}: {error}")),
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
    transport: TransportKind,
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

fn check(task: &Task, transport: TransportKind) -> Result<(), BenchError> {
    if task.transport != transport {
        return Err(BenchError::Peer(format!(
            "this side listens for --transport {transport}, the other one asks for {}: use one on both sides",
            task.transport
        )));
    }
    match task.role {
        TaskRole::Memory { .. } | TaskRole::Publisher { .. } => Ok(()),
        TaskRole::Server { workers: 1, folds: 0, threads: 1, .. }
        | TaskRole::Server { is_crowd: true, .. } => Ok(()),
        TaskRole::Server { .. } | TaskRole::Worker { .. } | TaskRole::Load(_) => {
            Err(BenchError::Peer("that is measured only on one host".into()))
        }
    }
}
