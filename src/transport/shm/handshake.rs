//! Handshake messages on their way out and in. Nothing here waits: each call does what can be done now.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::socket::{Heard, Link};
use super::wire::{self, Grant, Kind, PREFIX_BYTES, Prefix, Segment, WireError};
use crate::mem::{Access, HostMemory, LocalKey, MemoryError, MemoryRegion, RemoteKey};
use crate::transport::{Address, ConnectError, MAX_GRANTS, MAX_MESSAGE_BYTES, Offer, Received};

/// Longest reason of a refusal, in bytes: it fits any socket buffer, so that it can be sent at once.
const MAX_REASON_BYTES: usize = 4096;

/// Bytes received at a time: a message grows as it arrives, never by what its sender claims.
const CHUNK_BYTES: usize = 64 << 10;

/// Why a handshake failed, before it is known to whom that is told.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("it closed the connection during the handshake")]
    Closed,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    System(#[from] io::Error),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("{0}")]
    Offer(&'static str),
}

impl HandshakeError {
    pub(super) fn at(self, operation: &'static str, address: &Address) -> ConnectError {
        let address = address.clone();
        match self {
            HandshakeError::Closed => ConnectError::Closed { address },
            HandshakeError::Wire(error) => ConnectError::Protocol { address, reason: error.to_string() },
            HandshakeError::Memory(source) => ConnectError::Memory { address, source },
            HandshakeError::Offer(reason) => ConnectError::Offer { address, reason },
            HandshakeError::System(error) if is_gone(&error) => ConnectError::Closed { address },
            HandshakeError::System(source) => {
                let remedy = "look at the log of the peer";
                ConnectError::System { operation, address, source, remedy }
            }
        }
    }
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// A message on its way out.
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    /// Whose descriptors go with the first byte; empty from then on.
    regions: Vec<MemoryRegion>,
}

impl Outbox {
    /// Checks an offer, seals its memory, and gives each region of it a key that nobody can guess.
    pub(super) fn offer(kind: Kind, offer: &Offer) -> Result<Outbox, HandshakeError> {
        if offer.message.len() > MAX_MESSAGE_BYTES {
            return Err(HandshakeError::Offer("its message is longer than 16 MiB; send it as memory"));
        }
        if offer.grants.len() > MAX_GRANTS {
            return Err(HandshakeError::Offer(
                "it grants more than 16 ranges; make them parts of one region",
            ));
        }
        let mut regions = Vec::<MemoryRegion>::new();
        let mut segments = Vec::new();
        let mut grants = Vec::new();
        for slice in &offer.grants {
            let region = slice.region();
            let known = regions.iter().position(|other| other.same_as(region));
            let segment = known.unwrap_or(regions.len());
            if known.is_none() {
                segments.push(seal(region)?);
                regions.push(region.clone());
            }
            grants.push(Grant {
                segment: segment as u32,
                offset: slice.offset() as u64,
                bytes: slice.len() as u64,
            });
        }
        let bytes = wire::encode(kind, &segments, &grants, &offer.message);
        Ok(Outbox { bytes, sent: 0, regions })
    }

    /// A refusal with its reason, cut if it is long.
    pub(super) fn refusal(reason: &str) -> Outbox {
        let mut len = reason.len().min(MAX_REASON_BYTES);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        let bytes = wire::encode(Kind::Refuse, &[], &[], &reason.as_bytes()[..len]);
        Outbox { bytes, sent: 0, regions: Vec::new() }
    }

    /// Sends what fits now. True once all of it is sent.
    pub(super) fn flush(&mut self, link: &Link) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            let files: Vec<BorrowedFd<'_>> =
                self.regions.iter().filter_map(|region| region.memory().shared_file()).collect();
            let Some(sent) = link.send(&self.bytes[self.sent..], &files)? else { return Ok(false) };
            self.sent += sent;
            self.regions.clear();
        }
        self.bytes = Vec::new();
        self.sent = 0;
        Ok(true)
    }
}

fn seal(region: &MemoryRegion) -> Result<Segment, HandshakeError> {
    let access = region.access();
    if access.is_local() {
        return Err(HandshakeError::Offer("a region in it was registered without any right for peers"));
    }
    let memory = region.memory();
    if memory.shared_file().is_none() {
        return Err(HandshakeError::Offer("a region in it is private memory: use HostMemory::shared"));
    }
    if lets_write(access) {
        memory.seal_against_new_seals()?;
    } else {
        memory.seal_against_new_writers()?;
    }
    let key = getrandom::u64().map_err(|error| io::Error::other(format!("no random source: {error}")))?;
    Ok(Segment { key: RemoteKey(key), bytes: region.len() as u64, access })
}

fn lets_write(access: Access) -> bool {
    access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
}

/// A message on its way in.
#[derive(Default)]
pub(super) struct Inbox {
    prefix: Option<Prefix>,
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Inbox {
    /// Receives what is there, and not a byte past the message. True once all of it is there.
    pub(super) fn fill(&mut self, link: &Link) -> Result<bool, HandshakeError> {
        loop {
            let wanted = match &self.prefix {
                None => PREFIX_BYTES,
                Some(prefix) => prefix.body_bytes(),
            };
            let missing = wanted - self.bytes.len();
            if missing == 0 {
                if self.prefix.is_some() {
                    return Ok(true);
                }
                let prefix = self.bytes.first_chunk().expect("the whole prefix is there");
                self.prefix = Some(Prefix::parse(prefix)?);
                self.bytes.clear();
                continue;
            }
            let begin = self.bytes.len();
            self.bytes.resize(begin + missing.min(CHUNK_BYTES), 0);
            let heard = link.receive(&mut self.bytes[begin..], &mut self.files);
            self.bytes.truncate(begin + if let Ok(Heard::Bytes(bytes)) = heard { bytes } else { 0 });
            match heard? {
                Heard::Silence => return Ok(false),
                Heard::End => return Err(HandshakeError::Closed),
                Heard::Bytes(_) if self.files.len() > MAX_GRANTS => {
                    return Err(WireError::Rule { what: "it passed more descriptors than segments" }.into());
                }
                Heard::Bytes(_) => {}
            }
        }
    }

    /// True once a part of the message is there.
    pub(super) fn has_begun(&self) -> bool {
        self.prefix.is_some() || !self.bytes.is_empty()
    }

    /// Checks the whole message and maps the memory that came along.
    pub(super) fn open(&mut self) -> Result<Opened, HandshakeError> {
        let incomplete = WireError::Rule { what: "its message is shorter than it said" };
        let prefix = self.prefix.take().ok_or(incomplete)?;
        // Moved out first: whatever goes wrong, the descriptors are closed on return.
        let files = std::mem::take(&mut self.files);
        let body = prefix.parse_body(std::mem::take(&mut self.bytes))?;
        if files.len() != body.segments.len() {
            return Err(WireError::Rule { what: "it passed more or fewer descriptors than segments" }.into());
        }
        let mut segments = Vec::with_capacity(files.len());
        for (segment, file) in body.segments.iter().zip(files) {
            let bytes = usize::try_from(segment.bytes).unwrap_or(usize::MAX);
            let memory = HostMemory::from_peer(file, bytes, lets_write(segment.access))?;
            let region = MemoryRegion::new(memory, Access::LOCAL, LocalKey::NONE, ());
            segments.push((segment.key, region, segment.access));
        }
        let received = Received { message: body.message, grants: body.grants };
        Ok(Opened { kind: prefix.kind, received, segments })
    }
}

/// A message that has arrived and whose memory is mapped.
pub(super) struct Opened {
    pub(super) kind: Kind,
    pub(super) received: Received,
    pub(super) segments: Vec<(RemoteKey, MemoryRegion, Access)>,
}

impl Opened {
    /// The reason of a refusal, fit to be shown: it comes from another process.
    pub(super) fn reason(&self) -> String {
        let bytes = &self.received.message[..self.received.message.len().min(MAX_REASON_BYTES)];
        let text = String::from_utf8_lossy(bytes);
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// Whether the process on the other side runs as `ours`; else as whom.
pub(super) fn check_user(link: &Link, ours: u32) -> Result<(), UserError> {
    same_user(ours, link.peer_user().map_err(UserError::Unknown)?)
}

#[derive(Debug)]
pub(super) enum UserError {
    Unknown(io::Error),
    Another { theirs: u32 },
}

fn same_user(ours: u32, theirs: u32) -> Result<(), UserError> {
    if ours == theirs { Ok(()) } else { Err(UserError::Another { theirs }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_user_is_let_in() {
        assert!(same_user(1000, 1000).is_ok());
        assert!(matches!(same_user(1000, 0), Err(UserError::Another { theirs: 0 })), "not even root");
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let outbox = Outbox::refusal(&"ä".repeat(5000));
        assert_eq!(outbox.bytes.len(), PREFIX_BYTES + MAX_REASON_BYTES);
        assert!(std::str::from_utf8(&outbox.bytes[PREFIX_BYTES..]).is_ok());
    }
}
