//! Sockets whose bytes come straight out of registered memory and go straight into it.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use super::initiator::{Broken, ENDED, reason};
use super::record::Records;
use crate::channel::{self, Channel, ChannelSocket};
use crate::mem::VolatileSlice;

/// Most pieces of memory that one call sends.
pub(super) const MAX_PIECES: usize = 128;

/// The outcome of a call that never waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing can be moved now.
    Nothing,
}

/// A connected socket, whose connection ends with it.
pub(super) struct Socket {
    stream: ChannelSocket,
    /// The records in which everything travels, if it is encrypted.
    records: Option<Box<Records>>,
    /// True for heartbeats, to which no thread waits for an answer.
    is_timed: bool,
}

impl Socket {
    /// Takes over a socket for heartbeats that a handshake is done with: it does not block, is closed on exec, waits
    /// for nothing before it sends, and gives a peer up that acknowledges nothing for seconds.
    pub(super) fn timed(channel: Channel) -> Socket {
        let socket = Socket::of_channel(channel, true);
        socket.send_first(true);
        socket
    }

    fn of_channel(channel: Channel, is_timed: bool) -> Socket {
        let records = channel.data_keys().map(|keys| Box::new(Records::new(keys)));
        Socket { stream: channel.into_socket(), records, is_timed }
    }

    /// The same for bulk data, which may stand still for as long as its reader has other things to do: with
    /// `TCP_USER_TIMEOUT` the system would end a connection whose window was closed for that long, though its peer
    /// answers every probe. That the peer is alive is seen on the lane for heartbeats, and by keep-alive.
    pub(super) fn patient(channel: Channel) -> Socket {
        if let Err(error) = channel::wait_for_slow_reader(&channel) {
            tracing::warn!(%error, "a peer that stops reading for seconds will be taken for dead");
        }
        Socket::of_channel(channel, false)
    }

    /// Has the system wait for so long, and for 3 to 15 s, for a peer that is silent.
    pub(super) fn allow_silence(&self, silence: Duration) {
        let allowed = channel::allow_silence(&self.stream, silence).and_then(|()| match self.is_timed {
            true => Ok(()),
            // See `patient`.
            false => channel::wait_for_slow_reader(&self.stream),
        });
        if let Err(error) = allowed {
            tracing::warn!(%error, "a peer that is silent for seconds will be taken for dead");
        }
    }

    /// Lets the system send the bytes of this socket before the bytes of other sockets of this host, or in turn.
    pub(super) fn send_first(&self, is_first: bool) {
        if let Err(error) = channel::send_first(&self.stream, is_first) {
            tracing::debug!(%error, "requests wait behind the bulk data of this host");
        }
    }

    /// True if it is one for heartbeats.
    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// A socket whose bytes are sent and received as they are.
    #[cfg(test)]
    pub(super) fn bare(stream: TcpStream) -> Socket {
        Socket { stream: ChannelSocket::new(stream), records: None, is_timed: false }
    }

    /// Sends the pieces, in order, as far as they fit. If not all bytes have left, the next call begins with the bytes
    /// that have not.
    ///
    /// # Panics
    /// If there are more than [`MAX_PIECES`], or none with a byte in it.
    #[inline]
    pub(super) fn send(&mut self, pieces: &[VolatileSlice<'_>]) -> Result<Moved, Broken> {
        let stream = &self.stream;
        match &mut self.records {
            None => send(stream, pieces),
            Some(records) => records.send(pieces, |record| send(stream, &[VolatileSlice::from_ref(record)])),
        }
    }

    /// Receives the bytes that have arrived, into `memory` first, then into `buffer`. If it returns fewer bytes than
    /// there is room for, no more have arrived. The end of the stream is an error.
    ///
    /// # Panics
    /// If the memory is not writable, or there is no room in either.
    #[inline]
    pub(super) fn receive(
        &mut self,
        memory: Option<VolatileSlice<'_>>,
        buffer: &mut [u8],
    ) -> Result<Moved, Broken> {
        let stream = &self.stream;
        match &mut self.records {
            None => receive(stream, memory, buffer),
            Some(records) => records.receive(memory, buffer, |inbox| receive(stream, None, inbox)),
        }
    }

    /// True if there is more to receive of which the system does not tell: it has handed that over already.
    #[inline]
    pub(super) fn has_input(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.has_input())
    }

    /// The bytes that the system holds and that are not received yet.
    pub(super) fn waiting(&self) -> u64 {
        // If the question fails, the next call that receives tells.
        rustix::io::ioctl_fionread(&self.stream).unwrap_or(0)
    }

    /// True if a good part of the system's buffer is free, or the connection has ended.
    pub(super) fn has_room(&self) -> bool {
        let mut sockets = [rustix::event::PollFd::new(&self.stream, rustix::event::PollFlags::OUT)];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the question fails, the next send tells.
        !matches!(rustix::event::poll(&mut sockets, Some(&at_once)), Ok(0))
    }

    /// Ends the connection now.
    pub(super) fn close(&self) {
        self.stream.close();
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sends the pieces as they are.
#[inline]
fn send(stream: &TcpStream, pieces: &[VolatileSlice<'_>]) -> Result<Moved, Broken> {
    assert!(pieces.len() <= MAX_PIECES);
    // Only as many are written as there are pieces: a call with one need not clear the room for all.
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_PIECES];
    let mut total = 0;
    for (vector, piece) in vectors.iter_mut().zip(pieces) {
        vector.write(libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() });
        total += piece.len();
    }
    assert!(total > 0, "nothing to send");
    let message = header(vectors.as_mut_ptr().cast(), pieces.len());
    // SAFETY: the vectors are the ranges of volatile slices, valid for reads for as long as `pieces` is borrowed;
    // the kernel reads them by address, so no Rust reference to memory that a peer may write is made. As many
    // vectors were written as the header counts, and both live on this stack until the call returns.
    let sent =
        unsafe { libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    match moved(sent)? {
        Some(0) | None => Ok(Moved::Nothing),
        Some(bytes) => Ok(Moved::Bytes(bytes)),
    }
}

/// Receives bytes as they are.
#[inline]
fn receive(
    stream: &TcpStream,
    memory: Option<VolatileSlice<'_>>,
    buffer: &mut [u8],
) -> Result<Moved, Broken> {
    let mut vectors = [EMPTY; 2];
    let mut count = 0;
    if let Some(memory) = memory {
        assert!(memory.is_writable(), "receiving into memory that was granted read-only");
        vectors[0] = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() };
        count = 1;
    }
    vectors[count] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    count += 1;
    assert!(vectors.iter().any(|vector| vector.iov_len > 0), "no room to receive into");
    let mut message = header(vectors.as_mut_ptr(), count);
    // SAFETY: the first vector is the range of a writable volatile slice, borrowed for this call, which the kernel
    // writes by address; the second is the caller's own buffer, exclusively borrowed. The header and the vectors
    // live on this stack until the call returns.
    let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    match moved(received)? {
        Some(0) => Err(Broken(ENDED)),
        Some(bytes) => Ok(Moved::Bytes(bytes)),
        None => Ok(Moved::Nothing),
    }
}

const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn header(vectors: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: all zeros is a message header without a name, vectors or control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors;
    message.msg_iovlen = count as _;
    message
}

/// The bytes that a call moved; none if it would have had to wait.
#[inline]
fn moved(result: isize) -> Result<Option<usize>, Broken> {
    match usize::try_from(result) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(reason(&error)),
            }
        }
    }
}
