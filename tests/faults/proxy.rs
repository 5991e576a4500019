//! A network that misbehaves: it sits between a server and its peers, and does to the bytes what it is told.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use slackline::Address;
use socket2::{SockFilter, SockRef};

use super::random::Random;

/// The fault that is done to everything that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Each piece comes so much later.
    Delay(Duration),
    /// So many bytes pass at a time, with a millisecond's rest after each.
    Trickle(usize),
    /// On average one bit in so many bytes is flipped.
    Corrupt {
        every: u64,
        towards: Towards,
    },
    /// Both sides are closed in the middle of the next piece.
    Cut,
    /// As after a power cut: nothing passes, and neither side's packets are acknowledged any more.
    HalfOpen,
    /// As with a process that was stopped: nothing passes, and the system acknowledges what comes until it is full.
    Stall,
    /// Both sides are reset.
    Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    Server,
    Client,
    Both,
}

/// Time that a look at a socket takes if nothing comes.
const LOOK: Duration = Duration::from_millis(10);

/// Larger than a short message, smaller than a gradient.
const PIECE: usize = 16 << 10;

struct Shared {
    target: SocketAddr,
    fault: Mutex<Fault>,
    seed: u64,
    stop: AtomicBool,
    /// Bits that were flipped.
    flipped: AtomicU64,
    /// Connections that were made through it.
    lanes: AtomicU64,
    /// The bytes that each lane's client has sent, if they are to be kept.
    record: Option<Mutex<Vec<Vec<u8>>>>,
}

/// One listens where it says, and leads to one server. Dropping it closes everything.
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    pub(super) fn new(target: &Address, seed: u64) -> Proxy {
        Proxy::start(target, seed, None)
    }

    /// Keeps what clients say.
    pub(super) fn recording(target: &Address) -> Proxy {
        Proxy::start(target, 0, Some(Mutex::default()))
    }

    fn start(target: &Address, seed: u64, record: Option<Mutex<Vec<Vec<u8>>>>) -> Proxy {
        let Address::Tcp(target) = target else { panic!("a server over tcp") };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared {
            target: *target,
            fault: Mutex::new(Fault::None),
            seed,
            stop: AtomicBool::new(false),
            flipped: AtomicU64::new(0),
            lanes: AtomicU64::new(0),
            record,
        });
        let accepting = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared)
        });
        Proxy { address, shared, accepting: Some(accepting) }
    }

    pub(super) fn address(&self) -> Address {
        Address::Tcp(self.address)
    }

    pub(super) fn set(&self, fault: Fault) {
        *lock(&self.shared.fault) = fault;
    }

    pub(super) fn flipped(&self) -> u64 {
        self.shared.flipped.load(SeqCst)
    }

    /// Returns the bytes that the client sent on each lane, in the order in which the lanes were made.
    pub(super) fn recorded(&self) -> Vec<Vec<u8>> {
        lock(self.shared.record.as_ref().expect("a proxy that records")).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        // It waits for the next client: this is the last.
        let _woken = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _panicked = accepting.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut lanes = Vec::new();
    while let Ok((client, _)) = listener.accept() {
        if shared.stop.load(SeqCst) {
            break;
        }
        let Ok(server) = TcpStream::connect(shared.target) else { continue };
        let number = shared.lanes.fetch_add(1, SeqCst);
        if let Some(record) = &shared.record {
            lock(record).push(Vec::new());
        }
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket");
            stream.set_read_timeout(Some(LOOK)).expect("a socket");
            // A direction that no process empties must not hold its thread for ever.
            stream.set_write_timeout(Some(LOOK)).expect("a socket");
        }
        let pair = Arc::new((client, server));
        for towards in [Towards::Server, Towards::Client] {
            let (pair, shared) = (Arc::clone(&pair), Arc::clone(shared));
            lanes.push(std::thread::spawn(move || pass(&pair.0, &pair.1, towards, number, &shared)));
        }
        lanes.retain(|lane| !lane.is_finished());
    }
    for lane in lanes {
        let _panicked = lane.join();
    }
}

/// Passes on what goes one way of one connection, until it ends.
fn pass(client: &TcpStream, server: &TcpStream, towards: Towards, number: u64, shared: &Shared) {
    let (mut from, mut to) = match towards {
        Towards::Server => (client, server),
        _ => (server, client),
    };
    let mut random = Random::new(shared.seed ^ (number << 1 | u64::from(towards == Towards::Server)) << 32);
    let mut buffer = vec![0; PIECE];
    // Bytes up to the next one that is damaged.
    let mut intact = None;
    let close = || {
        let _closed = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    };
    while !shared.stop.load(SeqCst) {
        let fault = *lock(&shared.fault);
        match fault {
            Fault::Reset => {
                for stream in [client, server] {
                    let _gone = SockRef::from(stream).set_linger(Some(Duration::ZERO));
                }
                // With no time to linger, the last close resets; the other direction's thread ends likewise.
                return;
            }
            Fault::HalfOpen => {
                for stream in [client, server] {
                    // A program that accepts no byte of any packet: the system drops it unacknowledged.
                    let _gone = SockRef::from(stream).attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]);
                }
                std::thread::sleep(LOOK);
                continue;
            }
            Fault::Stall => {
                std::thread::sleep(LOOK);
                continue;
            }
            _ => {}
        }
        let most = if let Fault::Trickle(bytes) = fault { bytes } else { PIECE };
        let bytes = match from.read(&mut buffer[..most]) {
            Ok(0) => return close(),
            Ok(bytes) => bytes,
            Err(error) if is_timeout(&error) => continue,
            Err(_) => return close(),
        };
        let piece = &mut buffer[..bytes];
        if let (Some(record), Towards::Server) = (&shared.record, towards) {
            lock(record)[number as usize].extend_from_slice(piece);
        }
        match *lock(&shared.fault) {
            Fault::Delay(delay) => std::thread::sleep(delay),
            Fault::Trickle(_) => std::thread::sleep(Duration::from_millis(1)),
            Fault::Corrupt { every, towards: which } if which == towards || which == Towards::Both => {
                damage(piece, every, &mut intact, &mut random, &shared.flipped);
            }
            Fault::Cut => {
                let _sent = to.write(&piece[..bytes / 2]);
                return close();
            }
            _ => {}
        }
        let mut sent = 0;
        while sent < bytes && !shared.stop.load(SeqCst) {
            match to.write(&piece[sent..]) {
                Ok(more) => sent += more,
                Err(error) if is_timeout(&error) => {
                    if matches!(*lock(&shared.fault), Fault::Reset | Fault::HalfOpen) {
                        break;
                    }
                }
                Err(_) => return close(),
            }
        }
    }
}

fn damage(piece: &mut [u8], every: u64, intact: &mut Option<u64>, random: &mut Random, flipped: &AtomicU64) {
    let mut at = 0;
    loop {
        let left = intact.get_or_insert_with(|| random.below(2 * every));
        let rest = (piece.len() - at) as u64;
        if *left >= rest {
            *left -= rest;
            return;
        }
        at += *left as usize;
        piece[at] ^= 1 << random.below(8);
        flipped.fetch_add(1, SeqCst);
        at += 1;
        *intact = None;
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}
