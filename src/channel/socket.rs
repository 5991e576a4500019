//! Sockets as channels use them: none ever blocks, and each notices a peer that is gone without a word.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::mem::ForkGuard;

/// A peer that acknowledges nothing for so long is gone, where its owner does not wait for longer.
pub const SILENCE_MIN: Duration = Duration::from_secs(3);

/// The longest time that an owner can have the system wait: a host that is gone is noticed within it, however long the
/// lease is.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Connections that wait in the system's queue until a listener accepts them, where the system allows as many. A crowd
/// that comes at once finds room there.
const BACKLOG: i32 = 1024;

/// The system hands a connection over once its first bytes are there, and keeps it from the listener for about so many
/// seconds until then. So connections that say nothing, however many, wake no thread. A client speaks first.
const DEFER_ACCEPT: libc::c_int = 5;

/// Priorities of `SO_PRIORITY` as `linux/pkt_sched.h` has them.
const BEST_EFFORT: libc::c_int = 0;
const INTERACTIVE: libc::c_int = 6;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A connected socket. Dropping it ends the connection, even if a forked child holds a copy of the descriptor; dropping
/// the child's copy does not.
pub(crate) struct ChannelSocket {
    stream: TcpStream,
    guard: ForkGuard,
}

impl ChannelSocket {
    pub(crate) fn new(stream: TcpStream) -> ChannelSocket {
        ChannelSocket { stream, guard: ForkGuard::new() }
    }

    /// Ends the connection now.
    pub(crate) fn close(&self) {
        if !self.guard.is_inherited() {
            // Fails only if the other side was faster.
            let _closed_already = self.stream.shutdown(Shutdown::Both);
        }
    }
}

impl Deref for ChannelSocket {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl DerefMut for ChannelSocket {
    fn deref_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

impl AsFd for ChannelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for ChannelSocket {
    fn drop(&mut self) {
        self.close();
    }
}

/// Begins to listen at an address, without waiting for connections; port 0 takes any that is free.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = new_socket(address)?;
    probe(&socket)?;
    rustix::net::bind(&socket, &address)?;
    let socket = TcpListener::from(socket);
    // The connections that it accepts have the options that it has from now on.
    defer_accept(&socket)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket that a port can be bound to though connections of its last owner are still being forgotten, or a client had
/// it as its own.
fn new_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    tune(&socket)?;
    Ok(socket)
}

/// Accepts a connection in one system call, so that a useless connection costs little: on Linux accepted connections
/// inherit the listener's options.
pub(super) fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (socket, address) = rustix::net::acceptfrom_with(listener, FLAGS)?;
    let address = address.ok_or(Errno::CONNABORTED)?;
    Ok((TcpStream::from(socket), SocketAddr::try_from(address)?))
}

/// Begins to connect. The caller has the system [`probe`] the peer once it has something to say to it.
pub(super) fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = new_socket(address)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Makes the system send at once, and sets the time within which it finds out that a peer is gone.
fn tune(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    allow_silence(socket, SILENCE_MIN)
}

/// Has the system probe a peer that is silent. Not before the first bytes are sent: the answer to a probe carries a
/// later time than a listener with `TCP_DEFER_ACCEPT` notes. Since Linux 6.15 it drops the bytes of a client that
/// echoes that time, until it has told a later one itself, seconds later.
pub(super) fn probe(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Has the system wait for a peer that answers its probes and reads nothing for as long as it likes.
pub fn wait_for_slow_reader(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_tcp_user_timeout(socket, 0)?)
}

/// Has the system wait for so long, and for 3 to 15 s, before it takes a peer for gone that says nothing or owes
/// acknowledgements.
pub fn allow_silence(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    let (socket, silence) = (socket.as_fd(), silence.clamp(SILENCE_MIN, SILENCE_MAX));
    // A third without a word, and two probes, each of which has a third to be answered; in whole seconds.
    let third = Duration::from_secs(silence.as_secs().div_ceil(3));
    sockopt::set_tcp_keepidle(socket, third)?;
    sockopt::set_tcp_keepintvl(socket, third)?;
    sockopt::set_tcp_user_timeout(socket, silence.as_millis() as u32)?;
    Ok(())
}

/// Lets the system send the bytes of this socket before the bytes of other sockets of this host, or in turn. A question
/// that waits behind the host's own bulk data waits for a whole queue. Queueing disciplines with bands use the
/// priority, such as `pfifo_fast`; disciplines that serve flows in turn do not need it. Nothing is marked on the
/// wire.
pub fn send_first(socket: impl AsFd, is_first: bool) -> io::Result<()> {
    let priority = if is_first { INTERACTIVE } else { BEST_EFFORT };
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PRIORITY, priority)
}

fn defer_accept(socket: &TcpListener) -> io::Result<()> {
    set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, DEFER_ACCEPT)
}

/// Sets an option that has no safe interface.
#[allow(unsafe_code)]
fn set_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `socket` is borrowed, and the system reads the four bytes of an
    // integer that lives until after the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Reads the current settings.
    fn options(socket: &TcpStream) -> (bool, bool, Duration, Duration, u32, u32) {
        (
            sockopt::tcp_nodelay(socket).unwrap(),
            sockopt::socket_keepalive(socket).unwrap(),
            sockopt::tcp_keepidle(socket).unwrap(),
            sockopt::tcp_keepintvl(socket).unwrap(),
            sockopt::tcp_keepcnt(socket).unwrap(),
            sockopt::tcp_user_timeout(socket).unwrap(),
        )
    }

    #[test]
    fn both_ends_of_a_connection_notice_a_peer_that_is_gone_and_never_block() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut dialled = dial(listener.local_addr().unwrap()).unwrap();
        // Until it has said something it is not there.
        assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        probe(&dialled).unwrap();
        dialled.write_all(b"a").unwrap();
        let (accepted, address) = accept(&listener).unwrap();
        assert_eq!(address, dialled.local_addr().unwrap());
        let second = Duration::from_secs(1);
        for socket in [dialled, accepted] {
            assert_eq!(options(&socket), (true, true, second, second, 2, 3000));
            let flags = rustix::fs::fcntl_getfl(&socket).unwrap();
            assert!(flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
        }
    }

    #[test]
    fn a_peer_may_be_silent_for_as_long_as_its_owner_says_and_for_3_to_15_s() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let socket = dial(listener.local_addr().unwrap()).unwrap();
        for (lease, third, all) in [(10, 4, 10_000), (1, 1, 3000), (86_400, 5, 15_000), (u64::MAX, 5, 15_000)]
        {
            allow_silence(&socket, Duration::from_secs(lease)).unwrap();
            let third = Duration::from_secs(third);
            assert_eq!(options(&socket), (true, false, third, third, 2, all), "{lease} s");
        }
    }
}
