//! Registered memory, slices of it, and the keys that name it to a peer.

use crate::diagnostic::Diagnostic;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
#[cfg(all(feature = "cuda", not(loom)))]
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::{HostMemory, VolatileSlice};

bitflags::bitflags! {
    /// The rights of a peer that holds the key of a region. The owner itself may always read and write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Peers may read.
        const REMOTE_READ = 1;
        /// Peers may write.
        const REMOTE_WRITE = 2;
        /// Peers may fetch-add and compare-swap.
        const REMOTE_ATOMIC = 4;
        /// Writes of peers to this region may become visible in any order, also before earlier writes to other regions.
        /// They do become visible before the peer's later writes to regions without this flag. It is for payloads
        /// that a later word elsewhere announces. It is never for that word, and never for bytes that an earlier word
        /// warns of.
        const RELAXED = 8;
        /// No peer may do anything: the source or destination of one's own requests.
        const LOCAL = 0;
    }
}

impl Access {
    /// True if no peer may do anything.
    pub const fn is_local(self) -> bool {
        self.difference(Access::RELAXED).is_empty()
    }

    /// True if peers may read, and do nothing else.
    pub const fn is_read_only(self) -> bool {
        self.difference(Access::RELAXED).bits() == Access::REMOTE_READ.bits()
    }
}

/// A range that does not lie inside its region or slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("range of {len} bytes at offset {offset} does not lie inside {available} bytes")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub len: u64,
    /// Bytes there are.
    pub available: u64,
}

impl Diagnostic for OutOfBounds {
    fn operation(&self) -> &'static str {
        "taking a range of memory"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        None
    }
}

fn check_range(offset: u64, len: u64, available: u64) -> Result<(), OutOfBounds> {
    match offset.checked_add(len) {
        Some(end) if end <= available => Ok(()),
        _ => Err(OutOfBounds { offset, len, available }),
    }
}

/// Most ports that one transport uses side by side: its rails.
pub const MAX_RAILS: usize = 4;

/// The keys of a region at the devices of this host (verbs), each with one entry for each rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceKeys {
    /// The protection domain of this process in which the region is registered, the one of the first rail; 0 is none.
    pub domain: u32,
    /// The keys by which requests of this process name it (lkey).
    pub local: [u32; MAX_RAILS],
    /// The keys by which all peers that may read it do so (rkey), if they may do nothing else.
    pub readers: Option<[u32; MAX_RAILS]>,
}

impl DeviceKeys {
    /// The keys of memory that no device needs to know.
    pub const NONE: DeviceKeys = DeviceKeys { domain: 0, local: [0; MAX_RAILS], readers: None };
}

/// The key that a peer must present to reach a region (verbs: rkey; elsewhere a random grant).
///
/// Its value is not shown by `Debug`: keys do not belong into logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteKey(pub u64);

impl fmt::Debug for RemoteKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RemoteKey(..)")
    }
}

/// The state that a transport keeps for a region it registered. When dropped, before the memory goes, it is undone.
pub trait Registration: Send + Sync {}
impl Registration for () {}

struct Inner {
    // Dropped in order of declaration: the registrations first, then the memory.
    _registration: Box<dyn Registration>,
    /// A second one, which GPUs need.
    #[cfg(all(feature = "cuda", not(loom)))]
    with_gpus: Mutex<Option<Box<dyn Registration>>>,
    device_keys: DeviceKeys,
    access: Access,
    memory: HostMemory,
}

/// Memory registered with a transport. Cheap to clone; the memory lives until the last clone is gone, and every
/// request in flight holds one.
#[derive(Clone)]
pub struct MemoryRegion {
    inner: Arc<Inner>,
}

impl MemoryRegion {
    /// Ties memory to its registration. For transports; all other code calls `Transport::register`.
    pub fn new(
        memory: HostMemory,
        access: Access,
        device_keys: DeviceKeys,
        registration: impl Registration + 'static,
    ) -> Self {
        let inner = Inner {
            _registration: Box::new(registration),
            #[cfg(all(feature = "cuda", not(loom)))]
            with_gpus: Mutex::new(None),
            device_keys,
            access,
            memory,
        };
        MemoryRegion { inner: Arc::new(inner) }
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.inner.memory.len()
    }

    /// Returns the rights of peers.
    pub fn access(&self) -> Access {
        self.inner.access
    }

    /// The keys that the devices of this host know it by.
    #[inline]
    pub fn device_keys(&self) -> DeviceKeys {
        self.inner.device_keys
    }

    /// The memory behind it.
    #[inline]
    pub fn memory(&self) -> &HostMemory {
        &self.inner.memory
    }

    /// All of it, for volatile access.
    #[inline]
    pub fn as_volatile(&self) -> VolatileSlice<'_> {
        self.inner.memory.as_volatile()
    }

    /// `len` bytes from `offset` on.
    pub fn slice(&self, offset: usize, len: usize) -> Result<LocalSlice, OutOfBounds> {
        check_range(offset as u64, len as u64, self.len() as u64)?;
        Ok(LocalSlice { region: self.clone(), offset, len })
    }

    /// The whole region as a slice.
    pub fn whole(&self) -> LocalSlice {
        LocalSlice { region: self.clone(), offset: 0, len: self.len() }
    }

    /// Registers the memory with GPUs, too, if it is not yet; it is undone with the rest.
    #[cfg(all(feature = "cuda", not(loom)))]
    pub(crate) fn register_once<E>(
        &self,
        register: impl FnOnce(&HostMemory) -> Result<Box<dyn Registration>, E>,
    ) -> Result<(), E> {
        let mut with_gpus = self.inner.with_gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if with_gpus.is_none() {
            *with_gpus = Some(register(&self.inner.memory)?);
        }
        Ok(())
    }

    /// True if there is no other clone of it, and no slice.
    pub(crate) fn is_unshared(&self) -> bool {
        // A clone can only be made from an existing one, and the caller holds the only one: the count cannot rise
        // meanwhile. Counting is relaxed; the fence pairs with the release of a clone dropped on another thread, whose
        // accesses precede the caller's next ones.
        let unshared = Arc::strong_count(&self.inner) == 1;
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        unshared
    }

    /// True if both are one registration.
    pub fn same_as(&self, other: &MemoryRegion) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("len", &self.len()).field("access", &self.access()).finish()
    }
}

/// A range of a local region that keeps the region alive.
#[derive(Clone, Debug)]
pub struct LocalSlice {
    region: MemoryRegion,
    offset: usize,
    len: usize,
}

impl LocalSlice {
    /// The region it is a part of.
    #[inline]
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Returns the offset in the region at which it begins, in bytes.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset` (counted from the slice's own begin) on.
    pub fn slice(&self, offset: usize, len: usize) -> Result<LocalSlice, OutOfBounds> {
        check_range(offset as u64, len as u64, self.len as u64)?;
        Ok(LocalSlice { region: self.region.clone(), offset: self.offset + offset, len })
    }

    /// The bytes, for volatile access.
    #[inline]
    pub fn as_volatile(&self) -> VolatileSlice<'_> {
        self.region.as_volatile().subslice(self.offset, self.len)
    }

    /// The address of the first byte, for devices.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.region.as_volatile().as_ptr().wrapping_add(self.offset)
    }

    /// False if a store would kill the process.
    #[inline]
    pub(crate) fn is_writable(&self) -> bool {
        self.region.memory().is_writable()
    }
}

/// A range of a peer's region: a key, and an offset into the region of the key. Plain data; travels in handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RemoteSlice {
    /// Names the region at the peer.
    pub key: RemoteKey,
    /// First byte, counted from the begin of the region.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl RemoteSlice {
    /// `len` bytes from `offset` (counted from the slice's own begin) on.
    #[inline]
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, OutOfBounds> {
        check_range(offset, len, self.len)?;
        let begin =
            self.offset.checked_add(offset).ok_or(OutOfBounds { offset, len, available: self.len })?;
        Ok(RemoteSlice { key: self.key, offset: begin, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overflow_are_out_of_bounds() {
        let memory = HostMemory::anonymous(64).unwrap();
        let region = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ());
        assert!(region.slice(usize::MAX, 2).is_err());
        assert!(region.slice(60, 5).is_err());
        assert!(region.slice(64, 0).is_ok());
        let remote = RemoteSlice { key: RemoteKey(1), offset: 16, len: 32 };
        assert!(remote.slice(u64::MAX, 1).is_err());
        assert!(remote.slice(1, u64::MAX).is_err());
        assert_eq!(remote.slice(8, 8).unwrap().offset, 24);
        let hostile = RemoteSlice { key: RemoteKey(1), offset: u64::MAX, len: 32 };
        assert!(hostile.slice(8, 8).is_err());
    }

    #[test]
    fn a_slice_keeps_its_region_alive() {
        let memory = HostMemory::anonymous(64).unwrap();
        let region = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ());
        let slice = region.slice(8, 8).unwrap();
        drop(region);
        slice.as_volatile().store_u64(0, 3);
        assert_eq!(slice.as_volatile().load_u64(0), 3);
    }

    #[test]
    fn keys_do_not_show_in_debug_output() {
        assert!(!format!("{:?}", RemoteKey(123_456_789)).contains("123"));
    }
}
