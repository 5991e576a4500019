//! A peer that connects to a listener and is not to be let in.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A handshake's five seconds, and the time that a busy machine may add before the listening process has its turn. The
/// tests beside the acceptors, which are told the time there, assert that the limit itself is five seconds.
pub(crate) const REFUSED_WITHIN: Duration = Duration::from_secs(5 + 25);

/// A connection of a peer that is not to be let in.
pub(crate) struct UnauthenticatedPeer {
    stream: TcpStream,
    since: Instant,
}

impl UnauthenticatedPeer {
    pub(crate) fn says(address: SocketAddr, bytes: &[u8]) -> UnauthenticatedPeer {
        UnauthenticatedPeer::goes_on(TcpStream::connect(address).unwrap(), bytes)
    }

    pub(crate) fn goes_on(mut stream: TcpStream, bytes: &[u8]) -> UnauthenticatedPeer {
        stream.set_nonblocking(false).unwrap();
        stream.set_write_timeout(Some(REFUSED_WITHIN)).unwrap();
        // It may be shut out before it has said all.
        let _sent = stream.write_all(bytes);
        UnauthenticatedPeer { stream, since: Instant::now() }
    }

    /// Answers of a greeting may come before the end, and no more than those.
    pub(crate) fn must_be_shut_out(mut self) {
        let (mut heard, mut buffer) = (0, [0; 1024]);
        loop {
            let left = REFUSED_WITHIN.saturating_sub(self.since.elapsed()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left)).unwrap();
            match self.stream.read(&mut buffer) {
                Ok(0) => return,
                Ok(bytes) => heard += bytes,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    panic!("it is not shut out: {:?}", self.since.elapsed());
                }
                Err(_) => return,
            }
            assert!(heard <= 1024, "an unauthenticated peer was told much");
        }
    }
}
