//! Unix sockets: close-on-exec, never blocking, descriptors travelling along, useless in a forked child.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use super::credentials::peer_user;
use crate::mem::ForkGuard;
use crate::transport::{Address, Doorbell, MAX_GRANTS};

/// Most descriptors of a handshake: for the granted memory, and for a doorbell.
pub(super) const MAX_FILES: usize = MAX_GRANTS + Doorbell::FILES;

/// The reason that every operation here gives in a forked child.
pub(super) const FORKED: &str = "used in a forked child; connect again there";

pub(super) fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

pub(super) fn socket_address(address: &Address) -> io::Result<SocketAddrUnix> {
    Ok(match address {
        Address::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        Address::Path(path) => SocketAddrUnix::new(path)?,
        Address::Tcp(_) | Address::Verbs(_) | Address::Several(_) => {
            return Err(io::ErrorKind::Unsupported.into());
        }
    })
}

/// One end of a connection. Dropping it ends the connection, even if a forked child holds a copy of the descriptor;
/// dropping the child's copy does not.
pub(super) struct SocketEnd {
    socket: OwnedFd,
    guard: ForkGuard,
}

/// The outcome of receiving from a socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Nothing new.
    Silence,
    /// So many bytes.
    Bytes(usize),
    /// The other side closed.
    End,
}

/// The outcome of sending to a socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// So many bytes.
    Bytes(usize),
    /// Nothing fits now.
    Nothing,
    /// Nothing for now: this user has more descriptors under way, which no process has received yet, than the soft
    /// limit on open files of this process. The system looks at that only where some are to be sent.
    TooManyFiles,
}

impl SocketEnd {
    pub(super) fn new(socket: OwnedFd) -> Self {
        SocketEnd { socket, guard: ForkGuard::new() }
    }

    #[inline]
    pub(super) fn is_inherited(&self) -> bool {
        self.guard.is_inherited()
    }

    pub(super) fn guard(&self) -> ForkGuard {
        self.guard
    }

    /// True once connected; false while the listener's queue is full.
    pub(super) fn connect(&self, address: &SocketAddrUnix) -> io::Result<bool> {
        self.refuse_inherited()?;
        match net::connect(&self.socket, address) {
            Ok(()) | Err(Errno::ISCONN) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The user on the other side.
    pub(super) fn peer_user(&self) -> io::Result<u32> {
        peer_user(&self.socket)
    }

    /// Sends as many bytes as fit, with `files` attached to the first byte.
    pub(super) fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<Sent> {
        self.refuse_inherited()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        match net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(Sent::Bytes(sent)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Sent::Nothing),
            Err(Errno::TOOMANYREFS) => Ok(Sent::TooManyFiles),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Receives the bytes that have arrived, and appends their descriptors to `files`. More descriptors at once than a
    /// handshake may have, or than this process can open (`EMFILE`), are an error.
    pub(super) fn receive(&self, buffer: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<Heard> {
        self.refuse_inherited()?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match net::recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Heard::Silence),
            Err(errno) => return Err(errno.into()),
        };
        let before = files.len();
        for ancillary in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = ancillary {
                files.extend(received);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(match files.len() - before {
                MAX_FILES.. => {
                    io::Error::other("descriptors were lost: more were passed than a handshake holds")
                }
                // The system passes on as many as this process may have.
                _ => Errno::MFILE.into(),
            });
        }
        Ok(if message.bytes == 0 { Heard::End } else { Heard::Bytes(message.bytes) })
    }

    /// Looks without taking anything.
    pub(super) fn peek(&self) -> io::Result<Heard> {
        self.refuse_inherited()?;
        match net::recv(&self.socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Ok(Heard::End),
            Ok((_, bytes)) => Ok(Heard::Bytes(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Heard::Silence),
            Err(errno) => Err(errno.into()),
        }
    }

    #[cfg(test)]
    pub(super) fn as_socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Ends the connection now.
    pub(super) fn close(&self) {
        if !self.is_inherited() {
            // Fails only if the other side was faster.
            let _closed_already = net::shutdown(&self.socket, Shutdown::Both);
        }
    }

    fn refuse_inherited(&self) -> io::Result<()> {
        if self.is_inherited() { Err(io::Error::other(FORKED)) } else { Ok(()) }
    }
}

impl AsFd for SocketEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for SocketEnd {
    fn drop(&mut self) {
        self.close();
    }
}
