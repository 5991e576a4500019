//! The user on the other side of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the user id of the peer, as the kernel noted it: for a listener's side that of the process that called
/// `connect`, for a connector's side that of the process that called `listen`.
///
/// Not through rustix: its type for this holds a process id that cannot be zero, and zero is what the kernel says of
/// a peer in another pid namespace.
pub(super) fn peer_user(socket: impl AsFd) -> io::Result<u32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed and open; the pointers are to a `ucred` and to its length, both live and
    // writable for the call, and any bytes that the kernel writes are valid for its three integers.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<libc::ucred>() {
        return Err(io::Error::other("the kernel did not say who the peer is"));
    }
    Ok(credentials.uid)
}
