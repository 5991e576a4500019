//! Listening sockets, with or without a file.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use super::socket;
use crate::transport::{Address, ConnectError};

/// Connections that may wait in the system's queue; the system may allow fewer (net.core.somaxconn).
const BACKLOG: i32 = 1024;

/// Opens a listening socket.
pub(super) fn listen(address: &Address, user: u32) -> Result<(OwnedFd, Option<SocketFile>), ConnectError> {
    let failed = |(source, remedy)| ConnectError::System {
        operation: "listen",
        address: address.clone(),
        source,
        remedy,
    };
    let name = socket::socket_address(address)
        .map_err(|error| failed((error, "use a shorter address: a socket address holds 107 bytes")))?;
    let socket =
        socket::new_socket().map_err(|error| failed((error, "raise the limit on open files (ulimit -n)")))?;
    let file = match address {
        Address::Abstract(_) => {
            bind_and_listen(&socket, &name).map_err(|error| {
                let remedy = match error.kind() {
                    io::ErrorKind::AddrInUse => "another process listens there: choose another name",
                    _ => "choose another name",
                };
                failed((error, remedy))
            })?;
            None
        }
        // There is no name for it, so this is not reached.
        Address::Tcp(_) | Address::Verbs(_) | Address::Several(_) => None,
        Address::Path(path) => Some(SocketFile::listen(&socket, &name, path, user).map_err(failed)?),
    };
    Ok((socket, file))
}

fn bind_and_listen(socket: &OwnedFd, name: &SocketAddrUnix) -> io::Result<()> {
    rustix::net::bind(socket, name)?;
    Ok(rustix::net::listen(socket, BACKLOG)?)
}

/// A socket file of this process, removed when its listener goes.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode: a file that someone else put there since is not ours to remove.
    identity: (u64, u64),
}

type Failure = (io::Error, &'static str);

impl SocketFile {
    fn listen(
        socket: &OwnedFd,
        name: &SocketAddrUnix,
        path: &Path,
        user: u32,
    ) -> Result<SocketFile, Failure> {
        let folder = open_private_folder(path, user)?;
        // Held until this socket listens: no process may take it for a dead one in between.
        lock(&folder)?;
        match bind_and_listen(socket, name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_dead(path, name)?;
                bind_and_listen(socket, name)
            }
            result => result,
        }
        .map_err(|error| (error, "choose another path"))?;
        let identity = rustix::fs::lstat(path)
            .map(|stat| identity(&stat))
            .map_err(|errno| (errno.into(), "try again"))?;
        Ok(SocketFile { path: path.to_owned(), identity })
    }

    /// Removes the file, if it is still the one that this listener made.
    pub(super) fn remove(&self) {
        let stat = rustix::fs::lstat(&self.path);
        if stat.is_ok_and(|stat| identity(&stat) == self.identity)
            && let Err(error) = rustix::fs::unlink(&self.path)
        {
            tracing::debug!(path = %self.path.display(), %error, "the socket file stays");
        }
    }
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between architectures")]
fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}

fn open_private_folder(path: &Path, user: u32) -> Result<OwnedFd, Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let remedy = "make the folder first, for this user alone (mkdir -m 700)";
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(folder, flags, Mode::empty()).map_err(|errno| (errno.into(), remedy))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| (errno.into(), remedy))?;
    if stat.st_uid != user {
        let text = format!("the folder {} belongs to user {}", folder.display(), stat.st_uid);
        let error = io::Error::new(io::ErrorKind::PermissionDenied, text);
        return Err((error, "use a folder that belongs to the user who runs this"));
    }
    if stat.st_mode & 0o077 != 0 {
        let mode = stat.st_mode & 0o777;
        let text = format!("the folder {} is open to other users (mode {mode:o})", folder.display());
        return Err((io::Error::new(io::ErrorKind::PermissionDenied, text), "chmod 700 the folder"));
    }
    Ok(file)
}

/// Waits a moment at most: others hold the lock for a few system calls.
fn lock(folder: &OwnedFd) -> Result<(), Failure> {
    for _ in 0..200 {
        match rustix::fs::flock(folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(5)),
            // Some network file systems have no locks; then only the moment between two starts is unguarded.
            Ok(()) | Err(_) => return Ok(()),
        }
    }
    let error = io::Error::new(io::ErrorKind::WouldBlock, "the folder is locked by another process");
    Err((error, "try again, or use a folder of its own for sockets"))
}

/// Removes the socket file of a listener that is gone.
fn remove_dead(path: &Path, name: &SocketAddrUnix) -> Result<(), Failure> {
    let in_use = || io::Error::from(Errno::ADDRINUSE);
    let stat = match rustix::fs::lstat(path) {
        // Its listener has just removed it.
        Err(Errno::NOENT) => return Ok(()),
        result => result.map_err(|errno| (errno.into(), "try again"))?,
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "a file that is no socket has this path");
        return Err((error, "choose another path"));
    }
    let probe = socket::new_socket().map_err(|error| (error, "raise the limit on open files (ulimit -n)"))?;
    match rustix::net::connect(&probe, name) {
        Err(Errno::CONNREFUSED) => {
            tracing::debug!(path = %path.display(), "replacing the socket file of a listener that is gone");
            match rustix::fs::unlink(path) {
                Err(Errno::NOENT) => Ok(()),
                result => result.map_err(|errno| (errno.into(), "remove the file by hand")),
            }
        }
        _ => Err((in_use(), "another process listens there: choose another path")),
    }
}
