//! The process that gave this side its task, as this side sees it.
//!
//! It is the parent of this process, or one on another host, to which this side talks over a [`ClientLine`].

use std::io::{BufRead, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::Value;
use slackline::internals::channel::Channel;
use slackline::{Address, Secret};

use super::error::BenchError;
use super::line::{TaskAnswer, ToClient, send};
use super::means::Means;
use super::messages::Task;

/// The process that gave this side its task.
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
    pub(super) fn parent(task: &Task, secret: Option<Secret>) -> Client {
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
        let (device, memory, queue_depth) = (task.device.clone(), task.memory, task.queue_depth);
        let means = Means { device, memory, queue_depth, secret, peer, ..Means::default() };
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

/// The line to the process that measures, as the side that listens has it.
pub(super) struct ClientLine(pub(super) Mutex<Channel>);

impl ClientLine {
    pub(super) fn lock(&self) -> MutexGuard<'_, Channel> {
        // A thread that panicked with the lock has ended the conversation, which the next thread notices.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn say(&self, value: Value) -> Result<(), BenchError> {
        send(&mut self.lock(), &TaskAnswer::Well(ToClient::Said(value)))
    }
}
