//! Memory of the caller's that other processes of this host open where it lies, by CUDA's interprocess handles.
//!
//! What a process has opened may be freed only after that process has closed it. So each peer is passed a socket: it
//! brings the handle, and the peer closes it behind the memory, or the system does for a peer that dies. The owner of
//! the memory is kept until all of these sockets are closed.

use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::driver::{DevicePointer, Driver};
use super::memory::{GpuBacking, GpuBlock};
use super::sys::{Code, IpcHandle, PointerAttribute};
use super::{Gpu, GpuError, GpuMemory};

/// The operations in which a driver passes memory of the caller's on, and takes it.
pub(super) const SHARING: &str = "sharing memory of the caller's with other processes";
pub(super) const OPENING: &str = "opening memory that a peer shares";

/// Memory of this process that peers were given, by number: a process opens none of its own handles.
static SHARED: Mutex<Vec<(u64, Weak<GpuBlock>)>> = Mutex::new(Vec::new());

/// What keeps memory of the caller's alive, and the peers that may have it open.
pub(super) struct Lender {
    /// None once it waits for the peers.
    owner: Option<Box<dyn Send + Sync>>,
    peers: Mutex<Vec<UnixStream>>,
}

impl Lender {
    pub(super) fn new(owner: impl Send + Sync + 'static) -> Lender {
        Lender { owner: Some(Box::new(owner)), peers: Mutex::default() }
    }

    /// What one more peer is passed, with these bytes in it.
    fn lend(&self, bytes: &[u8]) -> io::Result<OwnedFd> {
        let (mut ours, theirs) = UnixStream::pair()?;
        ours.write_all(bytes)?;
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|peer| !has_closed(peer));
        peers.push(ours);
        Ok(theirs.into())
    }
}

/// Whether a peer is known to have let go of the memory, or to be gone. What it sends means nothing.
fn has_closed(peer: &UnixStream) -> bool {
    match rustix::net::recv(peer, &mut [0; 64], RecvFlags::DONTWAIT) {
        Ok((_, bytes)) => bytes == 0,
        Err(error) => !matches!(error, Errno::AGAIN | Errno::INTR),
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        let mut peers = std::mem::take(self.peers.get_mut().unwrap_or_else(PoisonError::into_inner));
        peers.retain(|peer| !has_closed(peer) && !mutant!("lent_memory_let_go_at_once"));
        if peers.is_empty() {
            return;
        }
        tracing::debug!(peers = peers.len(), "memory of the caller's is kept until peers have closed it");
        // Where there is no thread to wait, it is kept for good.
        let owner = ManuallyDrop::new(self.owner.take());
        let wait = move || {
            for mut peer in peers {
                // An error is an end, too.
                let _ended = io::copy(&mut peer, &mut io::sink());
            }
            drop(ManuallyDrop::into_inner(owner));
        };
        if let Err(error) = std::thread::Builder::new().name("slackline-lent".into()).spawn(wait) {
            tracing::error!(%error, "no thread waits for peers that have memory of a GPU open: it stays allocated");
        }
    }
}

/// What a peer is passed: the handle of the allocation, the GPU that it is on, where the memory begins in it, and the
/// memory's number in the process that lends it.
struct MemoryOffer {
    handle: IpcHandle,
    uuid: [u8; 16],
    offset: u64,
    number: u64,
}

impl MemoryOffer {
    const BYTES: usize = 64 + 16 + 8 + 8;

    fn to_bytes(&self) -> [u8; MemoryOffer::BYTES] {
        let mut bytes = [0; MemoryOffer::BYTES];
        bytes[..64].copy_from_slice(&self.handle.0);
        bytes[64..80].copy_from_slice(&self.uuid);
        bytes[80..88].copy_from_slice(&self.offset.to_le_bytes());
        bytes[88..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8; MemoryOffer::BYTES]) -> MemoryOffer {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        MemoryOffer {
            handle: IpcHandle(std::array::from_fn(|index| bytes[index])),
            uuid: std::array::from_fn(|index| bytes[64 + index]),
            offset: word(80),
            number: word(88),
        }
    }
}

impl GpuMemory {
    /// The handle of the allocation that memory of the caller's is in, and where it begins there.
    ///
    /// # Errors
    /// It is no memory of `cuMemAlloc`, or the driver refuses.
    pub(super) fn shared_handle(&self) -> Result<(IpcHandle, u64), GpuError> {
        let GpuBlock { primary, pointer, .. } = &**self.block();
        primary.within(|driver| {
            let failed = |code| primary.error(SHARING, code);
            let is_classic = PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE;
            if driver.pointer_attribute(is_classic, *pointer).map_err(failed)? == 0 {
                return Err(GpuError::NotOurs { pointer: *pointer });
            }
            let (begin, _) = driver.address_range(*pointer).map_err(failed)?;
            Ok((driver.share(begin).map_err(failed)?, pointer - begin))
        })
    }

    /// What one more peer is passed to open memory of the caller's. It is kept until that peer has closed it.
    ///
    /// # Errors
    /// As [`shared_handle`](Self::shared_handle), or the system has no socket or no random number.
    pub(super) fn lend(&self, lender: &Lender) -> Result<OwnedFd, GpuError> {
        let (handle, offset) = self.shared_handle()?;
        let primary = &self.block().primary;
        let uuid = primary.call(SHARING, |driver| driver.device_uuid(primary.device()))?;
        let number = self.number()?;
        let offer = MemoryOffer { handle, uuid, offset, number };
        lender.lend(&offer.to_bytes()).map_err(|error| not_passed(SHARING, &error))
    }

    /// The number by which this process finds it again: one for all peers that it is lent to.
    fn number(&self) -> Result<u64, GpuError> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|(_, block)| block.strong_count() > 0);
        let is_this = |block: &Weak<GpuBlock>| std::ptr::eq(block.as_ptr(), Arc::as_ptr(self.block()));
        if let Some((number, _)) = shared.iter().find(|(_, block)| is_this(block)) {
            return Ok(*number);
        }
        let number = getrandom::u64().map_err(|error| not_passed(SHARING, &error))?;
        shared.push((number, Arc::downgrade(self.block())));
        Ok(number)
    }
}

/// Memory that a peer has lent, with the socket that it lent it by.
pub(super) struct Borrowed {
    offer: MemoryOffer,
    socket: UnixStream,
}

/// Memory of another process that is open here: closed first, and then the socket.
pub(super) struct Opened {
    pub(super) begin: DevicePointer,
    _socket: UnixStream,
}

impl Borrowed {
    /// What a descriptor of memory brings, if it is a socket.
    ///
    /// # Errors
    /// What it brings is too short.
    pub(super) fn receive(file: BorrowedFd<'_>) -> Result<Option<Borrowed>, GpuError> {
        let kind = rustix::fs::fstat(file).map_err(|error| not_passed(OPENING, &error))?.st_mode;
        if FileType::from_raw_mode(kind) != FileType::Socket {
            return Ok(None);
        }
        let mut socket =
            UnixStream::from(file.try_clone_to_owned().map_err(|error| not_passed(OPENING, &error))?);
        let mut bytes = [0; MemoryOffer::BYTES];
        // It was sent before the descriptor was.
        socket
            .set_nonblocking(true)
            .and_then(|()| socket.read_exact(&mut bytes))
            .map_err(|error| not_passed(OPENING, &error))?;
        Ok(Some(Borrowed { offer: MemoryOffer::of_bytes(&bytes), socket }))
    }

    /// The memory itself, if it is this process that has lent it.
    pub(super) fn own(&self, gpu: &Gpu) -> Option<GpuMemory> {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let number = shared.iter().position(|(number, _)| *number == self.offer.number)?;
        let block = shared[number].1.clone();
        drop(shared);
        let memory = GpuMemory::of_block(block.upgrade()?);
        memory.block().primary.has_driver_of(&gpu.inner().primary).then_some(memory)
    }

    /// Opens `bytes` of it for a GPU, to be read or to be written, too.
    ///
    /// # Errors
    /// The driver refuses, or the allocation does not have as many.
    pub(super) fn open(&self, gpu: &Gpu, bytes: usize, is_writable: bool) -> Result<GpuMemory, GpuError> {
        let primary = gpu.inner().primary.clone();
        let socket = self.socket.try_clone().map_err(|error| not_passed(OPENING, &error))?;
        let begin = primary.call(OPENING, |driver| driver.open_shared(self.offer.handle))?;
        // From here on it is closed with the memory.
        let opened = GpuBacking::Opened(Opened { begin, _socket: socket });
        let pointer = begin.wrapping_add(self.offer.offset);
        let memory = GpuMemory::new(primary.clone(), pointer, bytes, opened, is_writable);
        let (whole, length) = primary.call(OPENING, |driver| driver.address_range(begin))?;
        let behind = (whole + length as u64).saturating_sub(begin).saturating_sub(self.offer.offset);
        match behind as usize {
            available if available < bytes => Err(GpuError::BeyondAllocation { pointer, bytes, available }),
            _ => Ok(memory),
        }
    }

    /// The device that it is on.
    ///
    /// # Errors
    /// This process does not see that.
    pub(super) fn home(&self, driver: &dyn Driver) -> Result<i32, Code> {
        for ordinal in 0..driver.device_count()? {
            let device = driver.device(ordinal)?;
            if driver.device_uuid(device)? == self.offer.uuid {
                return Ok(device);
            }
        }
        Err(Code::INVALID_DEVICE)
    }
}

/// The error of a socket that memory is passed by, or of a number for it.
fn not_passed(operation: &'static str, error: &impl std::fmt::Display) -> GpuError {
    GpuError::Socket { operation, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::scripted::{PRIMARY, Scripted};
    use super::*;

    #[test]
    fn what_a_peer_says_of_memory_is_held_to_what_the_driver_has_open() {
        const BYTES: usize = 8192;
        let [owner, reader] = [(); 2].map(|()| Arc::new(Scripted::new()));
        let ((gpu, ..), (theirs, ..)) = (owner.open_gpu(), reader.open_gpu());
        let pointer = owner.memory(BYTES);
        owner.set_classic(pointer, PRIMARY);
        let memory = super::super::memory_with_owner(&gpu, pointer, BYTES, ());
        let (handle, _) = memory.shared_handle().unwrap();
        let import = |offer: &[u8], bytes| {
            let (mut sender, receiver) = UnixStream::pair().unwrap();
            sender.write_all(offer).unwrap();
            GpuMemory::import(&theirs, receiver.as_fd(), bytes, false).map(drop)
        };
        let offer = |offset| MemoryOffer { handle, uuid: [0; 16], offset, number: 0 }.to_bytes();
        import(&offer(1), BYTES - 1).unwrap();
        for (offset, bytes) in [(1, BYTES), (BYTES as u64 + 1, 1), (u64::MAX, 1)] {
            let error = import(&offer(offset), bytes).unwrap_err();
            assert!(matches!(error, GpuError::BeyondAllocation { .. }), "{error}");
        }
        let error = import(&offer(0)[1..], 1).unwrap_err();
        assert!(matches!(error, GpuError::Socket { operation: OPENING, .. }), "{error}");
        assert_eq!(reader.opened_of_others(), 0);
    }
}
