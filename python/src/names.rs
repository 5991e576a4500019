//! Addresses in which a host may stand by its name.
//!
//! The system looks a name up in one piece, which takes as long as its name servers do. That goes on in a thread of its
//! own, which a call leaves behind when its time is over.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use slackline::{Address, Error};

use crate::errors::{Class, Failure};
use crate::wait::SLICE;

const FINDING: &str = "finding a host";

/// The pause before a name that was not known is looked up again.
const AGAIN: Duration = Duration::from_millis(100);

/// One address as it was written.
enum Written {
    Address(Address),
    /// A host and its port.
    Name {
        text: String,
        host: String,
        kind: fn(SocketAddr) -> Address,
    },
}

impl Written {
    fn read(text: &str) -> Result<Written, Failure> {
        let error = match text.parse() {
            Ok(address) => return Ok(Written::Address(address)),
            Err(error) => error,
        };
        let (host, kind): (_, fn(SocketAddr) -> Address) = match text.strip_prefix("verbs:") {
            Some(host) => (host, Address::Verbs),
            None => (text, Address::Tcp),
        };
        match host.rsplit_once(':') {
            Some((name, port)) if !name.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Written::Name { text: text.into(), host: host.into(), kind })
            }
            _ => Err(error.into()),
        }
    }

    fn name(&self) -> Option<&str> {
        match self {
            Written::Address(_) => None,
            Written::Name { text, .. } => Some(text),
        }
    }

    fn find(&self) -> Result<Address, Failure> {
        let (text, host, kind) = match self {
            Written::Address(address) => return Ok(address.clone()),
            Written::Name { text, host, kind } => (text, host, kind),
        };
        // Of several the first IPv4 address is taken, on every host the same way.
        let found: Vec<SocketAddr> = host.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        let chosen = found.iter().find(|socket| socket.is_ipv4()).or(found.first());
        chosen.copied().map(kind).ok_or_else(|| {
            let (cause, remedy) =
                (format!("cannot find the host of {text}"), "check the name, or write the IP address");
            Failure::new(Class::PeerGone, FINDING, cause, remedy)
        })
    }
}

/// What a thread has found.
type Answer = Result<Vec<Address>, Failure>;

/// The search for the hosts of an address, or of several with commas between them.
pub(crate) struct Search {
    written: Arc<[Written]>,
    asked: Option<Receiver<Answer>>,
    /// Why the last one that was asked has not found them.
    last: Option<Failure>,
}

impl Search {
    /// Fails if the text is no address.
    pub(crate) fn of(text: &str) -> Result<Search, Failure> {
        Ok(Search {
            written: text.split(',').map(Written::read).collect::<Result<_, _>>()?,
            asked: None,
            last: None,
        })
    }

    /// The addresses in their order, if no host stands by its name.
    pub(crate) fn known(&self) -> Option<Vec<Address>> {
        let known = |written: &Written| match written {
            Written::Address(address) => Some(address.clone()),
            Written::Name { .. } => None,
        };
        self.written.iter().map(known).collect()
    }

    /// Looks the names up once, in this thread.
    pub(crate) fn once(&self) -> Answer {
        self.written.iter().map(Written::find).collect()
    }

    /// Goes on for so long at most. A name that is not known yet is looked up again.
    pub(crate) fn go_on(&mut self, slice: Duration) -> Result<Option<Vec<Address>>, Failure> {
        if let Some(known) = self.known() {
            return Ok(Some(known));
        }
        let deadline = Instant::now() + slice;
        let left = || deadline.saturating_duration_since(Instant::now());
        loop {
            let asked = match self.asked.take() {
                Some(asked) => asked,
                None => self.ask()?,
            };
            match asked.recv_timeout(left()) {
                Ok(Ok(found)) => return Ok(Some(found)),
                Ok(Err(failure)) => {
                    self.last = Some(failure);
                    std::thread::sleep(left().min(AGAIN));
                }
                Err(RecvTimeoutError::Timeout) => self.asked = Some(asked),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new(
                        Class::Error,
                        FINDING,
                        "the thread panicked",
                        "please report it",
                    ));
                }
            }
            if left().is_zero() {
                return Ok(None);
            }
        }
    }

    /// Goes on until the deadline, or until the result is not wanted any more.
    pub(crate) fn until(&mut self, deadline: Instant, is_given_up: &AtomicBool) -> Answer {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(found) = self.go_on(left.min(SLICE))? {
                return Ok(found);
            }
            if left.is_zero() || is_given_up.load(Ordering::Relaxed) {
                return Err(self.late());
            }
        }
    }

    /// The error of a search whose time is over.
    pub(crate) fn late(&mut self) -> Failure {
        self.last.take().unwrap_or_else(|| {
            let names: Vec<&str> = self.written.iter().filter_map(Written::name).collect();
            let cause = format!("the system has not found the host of {} in time", names.join(" or "));
            Failure::new(Class::PeerGone, FINDING, cause, "look at the name servers, or write the IP address")
        })
    }

    fn ask(&self) -> Result<Receiver<Answer>, Failure> {
        let (answer, asked) = mpsc::sync_channel(1);
        let written = Arc::clone(&self.written);
        let search = move || drop(answer.send(written.iter().map(Written::find).collect()));
        let thread = std::thread::Builder::new().name("slackline-name".into()).spawn(search);
        thread.map_err(|source| Error::Thread { what: FINDING, source })?;
        Ok(asked)
    }
}
