//! Questions to the kernel over netlink (`man 7 netlink`), for what it tells in no file.

use std::io;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

const HEADER: usize = 16;
const REQUEST: u16 = 1;
/// The type of an answer that is an error, or the end of nothing.
const ERROR: u16 = 2;
/// The kernel answers at once.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: usize = 32 << 10;

/// Asks, and returns what the answer holds behind its header. No protocol is that of interfaces (`NETLINK_ROUTE`).
pub(super) fn ask(protocol: Option<Protocol>, kind: u16, question: &[u8]) -> io::Result<Vec<u8>> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    let mut message = Vec::with_capacity(HEADER + question.len());
    let length = u32::try_from(HEADER + question.len()).unwrap_or(u32::MAX);
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    // Number and sender: there is one question a socket.
    message.extend([0; 8]);
    message.extend(question);
    sendto(&socket, &message, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut answer = vec![0; LONGEST];
    let (_, length) = recv(&socket, &mut answer[..], RecvFlags::empty())?;
    answer.truncate(length);
    content(&answer)
}

/// The content of the first message of an answer.
fn content(answer: &[u8]) -> io::Result<Vec<u8>> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel is cut short");
    let length = word(answer, 0).ok_or_else(short)? as usize;
    let content = answer.get(HEADER..length).ok_or_else(short)?;
    if half(answer, 4) != Some(ERROR) {
        return Ok(content.to_vec());
    }
    let code = word(content, 0).ok_or_else(short)?.cast_signed();
    Err(io::Error::from_raw_os_error(code.saturating_neg()))
}

/// One attribute, as it is part of a question.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The attributes in an answer, or in an attribute that holds others: their kinds and values. What is cut short is
/// left out.
pub(super) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    /// Two bits beside the kind.
    const KIND: u16 = 0x3FFF;
    let mut all = Vec::new();
    while let (Some(length), Some(kind)) = (half(bytes, 0), half(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        all.push((kind & KIND, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written_and_never_beyond_their_end() {
        let two = [attribute(1, b"eth0\0"), attribute(13, &attribute(2, &[7]))].concat();
        assert_eq!(attributes(&two), [(1, &b"eth0\0"[..]), (13, &attribute(2, &[7])[..])]);
        for end in 0..two.len() {
            assert!(attributes(&two[..end]).len() < 2, "{end}");
        }
        // A length of less than its own header.
        assert!(attributes(&[2, 0, 1, 0, 0, 0, 0, 0]).is_empty());
    }

    #[test]
    fn an_answer_is_what_it_holds_or_the_error_that_it_names() {
        let answer = |kind: u16, content: &[u8]| {
            let mut bytes = (16 + content.len() as u32).to_ne_bytes().to_vec();
            bytes.extend(kind.to_ne_bytes());
            bytes.extend([0; 10]);
            [bytes, content.to_vec()].concat()
        };
        assert_eq!(content(&answer(78, &[1, 2, 3])).unwrap(), [1, 2, 3]);
        let error = content(&answer(ERROR, &(-95_i32).to_ne_bytes())).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(95));
        for end in 0..18 {
            assert!(content(&answer(78, &[1, 2, 3])[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn the_kernel_answers_a_question_that_it_does_not_know_with_an_error() {
        assert!(ask(None, 0x7000, &[0; 4]).is_err());
    }
}
