//! A flood of connections that prove nothing, as fast as one thread can make them, until it is stopped.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, sockopt,
};
use slackline::Address;

/// Connections that the flood holds open at a time: more than a listener keeps.
const OPEN: usize = 256;

/// The first bytes of a connection of a [`FloodKind::Talking`] flood: as many as a hello has, and none of them right.
const NONSENSE: [u8; 64] = [0xFF; 64];

/// User and group of no process that matters.
const NOBODY: u32 = 65534;

/// What the connections of a flood do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FloodKind {
    /// Nothing.
    Silent,
    /// They send as many bytes as a client does that opens a channel, so that each is accepted, read and refused.
    Talking,
}

/// The flood. It ends when this is dropped.
pub(crate) struct Flood {
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Begins to connect to a listener over TCP or over shared memory. Unix sockets are connected by another user
    /// where this process may become one, so that all that its listener sees of them are refused.
    pub(crate) fn at(address: &Address, kind: FloodKind) -> Flood {
        let (stop, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (address, ended, count) = (address.clone(), Arc::clone(&stop), Arc::clone(&connections));
        let thread = std::thread::spawn(move || {
            if matches!(address, Address::Abstract(_)) && rustix::process::geteuid().is_root() {
                // Of this thread alone.
                let nobody = rustix::fs::Uid::from_raw(NOBODY);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            }
            let mut open = VecDeque::with_capacity(OPEN);
            while !ended.load(SeqCst) {
                if let Some(socket) = begin(&address) {
                    if let FloodKind::Talking = kind {
                        // One that is not connected yet, or refused by now, stays silent.
                        let _unheard = send(&socket, &NONSENSE, SendFlags::NOSIGNAL);
                    }
                    count.fetch_add(1, SeqCst);
                    open.push_back(socket);
                }
                if open.len() >= OPEN {
                    open.pop_front();
                }
            }
        });
        Flood { stop, connections, thread: Some(thread) }
    }

    /// Connections that were begun so far, as far as the listener's queue had room for them.
    pub(crate) fn connections(&self) -> u64 {
        self.connections.load(SeqCst)
    }
}

/// Begins one connection without waiting; none where the system has no room for it now.
fn begin(address: &Address) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let family = match address {
        Address::Tcp(_) => AddressFamily::INET,
        _ => AddressFamily::UNIX,
    };
    let socket = socket_with(family, SocketType::STREAM, flags, None).ok()?;
    let connected = match address {
        Address::Tcp(address) => {
            // Its end is a reset: no port is kept for it, so that the flood does not run out of them.
            sockopt::set_socket_linger(&socket, Some(std::time::Duration::ZERO)).ok()?;
            connect(&socket, address)
        }
        Address::Abstract(name) => {
            connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?)
        }
        _ => panic!("no flood for {address}"),
    };
    matches!(connected, Ok(()) | Err(rustix::io::Errno::INPROGRESS)).then_some(socket)
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}
