//! Handshake messages on their way out and in. Nothing here waits: each call does what can be done now.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::gpu::ReachedMemory;
use super::socket::{Heard, MAX_FILES, Sent, SocketEnd};
use super::wire::{self, FRAME_BYTES, Hello, Segments, Terms};
use crate::cuda::Gpu;
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryError, MemoryRegion, RemoteKey};
use crate::transport::doorbell::{Doorbell, is_eventfd};
use crate::transport::wireup::{Grant, Side, WireError, check_offer, lets_write, random};
use crate::transport::{Address, ConnectError, GpuGrant, Offer, Received, Refusal};

/// Bytes received at a time: a message grows as it arrives, never by what its sender claims.
const CHUNK_BYTES: usize = 64 << 10;

/// The reason why a handshake failed, without the address at which it did.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShmHandshakeError {
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
    /// Memory of a GPU cannot be granted or mapped.
    #[error("{0}")]
    Gpu(String),
    /// Whether the peer's doorbell is one cannot be told.
    #[error("cannot look at its doorbell in /proc/self/fd: {0}; {LOOKING}")]
    Doorbell(io::Error),
}

/// The remedy where a peer's doorbell cannot be looked at.
const LOOKING: &str = "mount /proc for this process, or have the peer poll";

impl ShmHandshakeError {
    pub(super) fn at(self, operation: &'static str, address: &Address) -> ConnectError {
        let address = address.clone();
        match self {
            ShmHandshakeError::Closed => ConnectError::Closed { address },
            ShmHandshakeError::Wire(error) => ConnectError::Protocol { address, reason: error.to_string() },
            ShmHandshakeError::Memory(source) => ConnectError::Memory { address, source },
            ShmHandshakeError::Offer(reason) => ConnectError::Offer { address, reason },
            ShmHandshakeError::Gpu(reason) => ConnectError::GpuMemory { address, reason },
            ShmHandshakeError::Doorbell(source) => {
                ConnectError::System { operation: "look at a doorbell", address, source, remedy: LOOKING }
            }
            ShmHandshakeError::System(error) if is_gone(&error) => ConnectError::Closed { address },
            ShmHandshakeError::System(source) => {
                let remedy = match source.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => {
                        "raise this process's limit on open files (ulimit -n)"
                    }
                    _ => "look at the log of the peer",
                };
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
    /// The regions whose descriptors go with the first byte; empty from then on.
    regions: Vec<MemoryRegion>,
    /// The descriptors of memory of a GPU, which go with them.
    exported: Vec<OwnedFd>,
    /// The doorbell, whose descriptors go with them.
    doorbell: Option<Arc<Doorbell>>,
    /// True if they could not go the last time, as too many are under way.
    is_held_up: bool,
}

impl Outbox {
    /// Checks an offer or the listener's answer to one, seals its memory, and gives each region of it a key that no
    /// process can guess.
    pub(super) fn offer(
        from: Side,
        offer: &Offer,
        gpu_grants: &[GpuGrant],
        doorbell: Option<Arc<Doorbell>>,
    ) -> Result<Outbox, ShmHandshakeError> {
        check_offer(offer, gpu_grants).map_err(ShmHandshakeError::Offer)?;
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
            let (offset, bytes) = (slice.offset() as u64, slice.len() as u64);
            grants.push(Grant { offset, bytes, ..segments[segment] });
        }
        let mut exported = Vec::new();
        for GpuGrant { at, memory, access } in gpu_grants {
            let (file, bytes) = super::gpu::export(memory)?;
            let key = RemoteKey(random().map_err(ShmHandshakeError::Offer)?);
            let segment = Grant { key, offset: 0, bytes: bytes as u64, access: *access };
            segments.push(segment);
            grants.insert((*at).min(grants.len()), Grant { bytes: memory.bytes() as u64, ..segment });
            exported.push(file);
        }
        let blob = Segments { segments, on_gpu: exported.len() as u8, has_doorbell: doorbell.is_some() };
        let terms = Terms { grants, blob };
        let hello = match from {
            Side::Connector => Hello::Offer(terms),
            Side::Listener => Hello::Accept(terms),
        };
        let bytes = wire::frame(&hello, &offer.message);
        Ok(Outbox { bytes, sent: 0, regions, exported, doorbell, is_held_up: false })
    }

    /// A refusal with its reason, cut if it is long.
    pub(super) fn refusal(refusal: Refusal) -> Outbox {
        let bytes = wire::frame(&Hello::refuse(refusal), &[]);
        let (regions, exported) = (Vec::new(), Vec::new());
        Outbox { bytes, sent: 0, regions, exported, doorbell: None, is_held_up: false }
    }

    /// Sends what fits now. True once all of it is sent.
    pub(super) fn flush(&mut self, link: &SocketEnd) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            let segments = self.regions.iter().filter_map(|region| region.memory().shared_file());
            let segments = segments.chain(self.exported.iter().map(AsFd::as_fd));
            let doorbell = self.doorbell.iter().flat_map(|doorbell| doorbell.files());
            let files: Vec<BorrowedFd<'_>> = segments.chain(doorbell).collect();
            let sent = link.send(&self.bytes[self.sent..], &files)?;
            self.is_held_up = sent == Sent::TooManyFiles;
            let Sent::Bytes(sent) = sent else { return Ok(false) };
            self.sent += sent;
            self.regions.clear();
            self.exported.clear();
            self.doorbell = None;
        }
        self.bytes = Vec::new();
        self.sent = 0;
        Ok(true)
    }

    /// True if the last try failed since too many descriptors of this user are under way.
    pub(super) fn is_held_up(&self) -> bool {
        self.is_held_up
    }
}

/// The segment of a region, whose memory is sealed.
fn seal(region: &MemoryRegion) -> Result<Grant, ShmHandshakeError> {
    let (memory, access) = (region.memory(), region.access());
    if memory.shared_file().is_none() {
        return Err(ShmHandshakeError::Offer("a region in it is private memory: use HostMemory::shared"));
    }
    if lets_write(access) {
        memory.seal_against_new_seals()?;
    } else {
        memory.seal_against_new_writers()?;
    }
    let key = RemoteKey(random().map_err(ShmHandshakeError::Offer)?);
    Ok(Grant { key, offset: 0, bytes: region.len() as u64, access })
}

/// A message on its way in.
#[derive(Default)]
pub(super) struct Inbox {
    /// The length of the message, once its frame is there.
    length: Option<usize>,
    /// The frame, then the message.
    bytes: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl Inbox {
    /// Receives what is there, and not a byte past the message. True once all of it is there.
    pub(super) fn fill(&mut self, link: &SocketEnd) -> Result<bool, ShmHandshakeError> {
        loop {
            let missing = self.length.unwrap_or(FRAME_BYTES) - self.bytes.len();
            if missing == 0 {
                if self.length.is_some() {
                    return Ok(true);
                }
                let frame = self.bytes.first_chunk().expect("the whole frame is there");
                self.length = Some(wire::parse_frame(frame)?);
                wire::strip_frame(&mut self.bytes);
                continue;
            }
            let begin = self.bytes.len();
            self.bytes.resize(begin + missing.min(CHUNK_BYTES), 0);
            let heard = link.receive(&mut self.bytes[begin..], &mut self.files);
            self.bytes.truncate(begin + if let Ok(Heard::Bytes(bytes)) = heard { bytes } else { 0 });
            match heard? {
                Heard::Silence => return Ok(false),
                Heard::End => return Err(ShmHandshakeError::Closed),
                Heard::Bytes(_) if self.files.len() > MAX_FILES => {
                    return Err(WireError::Rule("it passed more descriptors than segments").into());
                }
                Heard::Bytes(_) => {}
            }
        }
    }

    /// True once a part of the message is there.
    pub(super) fn has_begun(&self) -> bool {
        self.length.is_some() || !self.bytes.is_empty()
    }

    /// Checks the whole message and maps the memory that came along, what is on a GPU for this process's.
    pub(super) fn open(&mut self, gpu: Option<&Gpu>) -> Result<ShmMessage, ShmHandshakeError> {
        // Moved out first: whatever goes wrong, the descriptors are closed on return.
        let files = std::mem::take(&mut self.files);
        self.length = None;
        let (hello, message) = Hello::decode(&std::mem::take(&mut self.bytes))?;
        let no_segments = Segments::default();
        let (segments, grants) = match &hello {
            Hello::Offer(terms) | Hello::Accept(terms) => (&terms.blob, &terms.grants[..]),
            Hello::Refuse(_) | Hello::Note(_) => (&no_segments, &[][..]),
        };
        let (segments, on_gpu, doorbell) = segments.map(files, grants, gpu)?;
        let mapped = |terms: wire::Terms| {
            let received = terms.received(message);
            MappedOffer { received, segments, on_gpu, doorbell }
        };
        Ok(match hello {
            Hello::Offer(terms) => ShmMessage::Offer(mapped(terms)),
            Hello::Accept(terms) => ShmMessage::Accept(mapped(terms)),
            Hello::Refuse(refusal) => ShmMessage::Refuse(refusal),
            Hello::Note(note) => match note {},
        })
    }
}

/// A message that has arrived.
pub(super) enum ShmMessage {
    Offer(MappedOffer),
    Accept(MappedOffer),
    Refuse(Refusal),
}

/// An offer or an acceptance whose memory is mapped.
pub(super) struct MappedOffer {
    pub(super) received: Received,
    pub(super) segments: Vec<Mapped>,
    pub(super) on_gpu: Vec<MappedOnGpu>,
    /// The sender's doorbell, if it wants to be woken.
    pub(super) doorbell: Option<Doorbell>,
}

/// A segment: the key that names it, its memory, and the rights of this side.
type Mapped = (RemoteKey, MemoryRegion, Access);

/// The same of memory of a GPU.
pub(super) type MappedOnGpu = (RemoteKey, ReachedMemory, Access);

/// All segments, and the doorbell.
type MappedSegments = (Vec<Mapped>, Vec<MappedOnGpu>, Option<Doorbell>);

impl Segments {
    /// Maps the files that came along, and takes the doorbell. Of memory of a GPU, whose files have whole units of the
    /// device, no more is reached than what was granted.
    fn map(
        &self,
        mut files: Vec<OwnedFd>,
        grants: &[Grant],
        gpu: Option<&Gpu>,
    ) -> Result<MappedSegments, ShmHandshakeError> {
        let expected = self.segments.len() + if self.has_doorbell { Doorbell::FILES } else { 0 };
        if files.len() != expected {
            return Err(WireError::Rule("it passed more or fewer descriptors than segments").into());
        }
        let of_doorbell = files.split_off(self.segments.len()).try_into().ok();
        let doorbell = of_doorbell.map(doorbell).transpose()?;
        let map = |(segment, file): (&Grant, OwnedFd)| {
            let bytes = usize::try_from(segment.bytes).unwrap_or(usize::MAX);
            let memory = HostMemory::from_peer(file, bytes, lets_write(segment.access))?;
            let region = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ());
            Ok::<_, ShmHandshakeError>((segment.key, region, segment.access))
        };
        // No more of them than segments: that was checked.
        let on_host = self.segments.len() - usize::from(self.on_gpu);
        let (host, on_gpu) = self.segments.split_at(on_host);
        let exported = files.split_off(on_host);
        let import = |(segment, file): (&Grant, &OwnedFd)| {
            let of_segment = grants.iter().filter(|grant| grant.key == segment.key);
            // Grants lie inside their segments: that was checked.
            let end = of_segment.map(|grant| grant.offset.saturating_add(grant.bytes)).max().unwrap_or(0);
            let end = usize::try_from(end).unwrap_or(usize::MAX);
            let memory = super::gpu::import(gpu, file.as_fd(), segment, end)?;
            Ok::<_, ShmHandshakeError>((segment.key, memory, segment.access))
        };
        let on_gpu = on_gpu.iter().zip(&exported).map(import).collect::<Result<_, _>>()?;
        Ok((host.iter().zip(files).map(map).collect::<Result<_, _>>()?, on_gpu, doorbell))
    }
}

/// The doorbell that a peer passed.
fn doorbell([event, word]: [OwnedFd; Doorbell::FILES]) -> Result<Doorbell, ShmHandshakeError> {
    if !is_eventfd(event.as_fd()).map_err(ShmHandshakeError::Doorbell)? {
        return Err(WireError::Rule("its doorbell is no eventfd").into());
    }
    // To ring one whose count is full must not block. It may all the same if the peer, which shares this option, takes
    // it back.
    rustix::io::ioctl_fionbio(&event, true).map_err(io::Error::from)?;
    Ok(Doorbell::of_peer(event, HostMemory::from_peer(word, Doorbell::BYTES, true)?))
}

/// Checks that the process on the other side runs as user `ours`. The error holds its user, if that is known.
pub(super) fn check_user(link: &SocketEnd, ours: u32) -> Result<(), UserError> {
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
}
