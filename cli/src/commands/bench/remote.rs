//! The side that listens on another host, as the one that measures sees it.

use std::cell::RefCell;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use slackline::internals::channel::{Channel, ChannelError};

use super::error::BenchError;
use super::line::{
    ANSWER, GREETING, NAP, TaskAnswer, ToClient, ToHost, be_patient, poll, require_secret, send, terms,
};
use super::means::Means;
use super::messages::Task;

/// Longest wait for the reason from a side that failed: it first lets go of all its peers.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The side that listens.
pub(super) struct Remote {
    channel: RefCell<Channel>,
    /// The address of that side.
    pub(super) address: SocketAddr,
}

impl Remote {
    /// Connects to the first address of `host` that answers.
    pub(super) fn connect(host: &str, means: &Means) -> Result<Remote, BenchError> {
        let mut last = BenchError::Peer(format!("{host} has no address"));
        let operation = format!("find the host of --peer {host}");
        let help = "write HOST:PORT of the other side: a name that this host knows, or an address";
        let resolved = host.to_socket_addrs().map_err(BenchError::system_with(operation, help))?;
        for address in resolved {
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
