//! Protection domains, and memory that is registered with a device.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::device::Device;
use super::sys;
use crate::mem::{Access, HostMemory, Registration, VolatileSlice};

/// A domain of objects that belong together on a device: a queue pair accesses only memory that was registered in its
/// domain.
pub(super) struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    raw: NonNull<sys::ibv_pd>,
    /// Whether memory in the domain that announces nothing may be written with relaxed ordering.
    relaxed_ordering: bool,
    /// The number that identifies it among all domains of this process.
    pub(super) serial: u32,
}

// SAFETY: the library's calls on it may come from any thread, and it is freed once.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(super) fn new(device: &Arc<Device>, relaxed_ordering: bool) -> io::Result<Arc<ProtectionDomain>> {
        static SERIALS: AtomicU32 = AtomicU32::new(1);
        // SAFETY: the context is open.
        let raw = unsafe { (device.library.alloc_pd)(device.context()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(ProtectionDomain { device: Arc::clone(device), raw, relaxed_ordering, serial }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if !self.device.is_inherited() {
            // SAFETY: everything in the domain holds it, so it is freed last, and once.
            let errno = unsafe { (self.device.library.dealloc_pd)(self.raw()) };
            if errno != 0 {
                tracing::warn!(device = self.device.name, errno, "a protection domain could not be freed");
            }
        }
    }
}

/// Memory that is registered with a device in one protection domain. Its keys are valid until it is dropped.
pub(super) struct Registered {
    raw: NonNull<sys::ibv_mr>,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: the library's calls on it may come from any thread, and it is deregistered once.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

/// One for each rail.
impl Registration for Vec<Registered> {}

impl Registered {
    /// Registers a part of host memory. If the memory is in a dma-buf, it is registered as this dma-buf.
    ///
    /// The caller keeps the memory until this is dropped.
    pub(super) fn of_host(
        domain: &Arc<ProtectionDomain>,
        memory: &HostMemory,
        part: Range<usize>,
        first: u64,
        access: Access,
    ) -> io::Result<Registered> {
        match memory.as_dma_buf() {
            Some(buffer) => Registered::of_dma_buf(domain, buffer, part, first, access),
            None => {
                let part = memory.as_volatile().subslice(part.start, part.len());
                Registered::new(domain, part, first, access)
            }
        }
    }

    /// Registers memory, which the device knows by addresses from `first` on; requests of this process may always read
    /// it, and write it if it can be written.
    ///
    /// The caller keeps the memory until this is dropped.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        memory: VolatileSlice<'_>,
        first: u64,
        access: Access,
    ) -> io::Result<Registered> {
        let register = domain.device.library.reg_mr_iova2;
        let access = if domain.relaxed_ordering { access } else { access.difference(Access::RELAXED) };
        let flags = flags(access, memory.is_writable());
        // SAFETY: the domain lives; the range is mapped memory of this process. It stays mapped until it is
        // deregistered: that is the caller's promise, which it keeps by holding region and registration together.
        let raw = unsafe { register(domain.raw(), memory.as_ptr().cast(), memory.len(), first, flags) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Registered { raw, domain: Arc::clone(domain) })
    }

    /// Registers a part of a dma-buf, which the device knows by addresses from `first` on. `first` and the start of
    /// the part must have the same offset within a page. The device keeps the buffer even after its descriptor is
    /// closed.
    ///
    /// The caller keeps the memory behind it until this is dropped.
    pub(super) fn of_dma_buf(
        domain: &Arc<ProtectionDomain>,
        buffer: BorrowedFd<'_>,
        part: Range<usize>,
        first: u64,
        access: Access,
    ) -> io::Result<Registered> {
        let Some(register) = domain.device.library.reg_dmabuf_mr else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let access = if domain.relaxed_ordering { access } else { access.difference(Access::RELAXED) };
        let (flags, offset) = (flags(access, true) as i32, part.start as u64);
        // SAFETY: the domain lives, the descriptor is open; the memory that it names is not in this process's address
        // space.
        let raw = unsafe { register(domain.raw(), offset, part.len(), first, buffer.as_raw_fd(), flags) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Registered { raw, domain: Arc::clone(domain) })
    }

    /// Registers `bytes` of memory of a GPU by its address, which the kernel resolves through a module of the GPU's
    /// driver (nvidia-peermem). The device knows them by addresses from `first` on.
    ///
    /// The caller keeps the memory until this is dropped.
    #[cfg(feature = "cuda")]
    pub(super) fn of_gpu(
        domain: &Arc<ProtectionDomain>,
        pointer: u64,
        bytes: usize,
        first: u64,
        access: Access,
    ) -> io::Result<Registered> {
        let register = domain.device.library.reg_mr_iova2;
        let access = if domain.relaxed_ordering { access } else { access.difference(Access::RELAXED) };
        let address = std::ptr::without_provenance_mut(pointer as usize);
        // SAFETY: the domain lives. No processor uses the address: the kernel asks the GPU's driver for the memory at
        // this address.
        let raw = unsafe { register(domain.raw(), address, bytes, first, flags(access, true)) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Registered { raw, domain: Arc::clone(domain) })
    }

    /// The key by which requests of this process name the memory.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// The key by which requests of peers name the memory.
    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the registration lives.
        unsafe { self.raw.as_ref() }.rkey
    }
}

fn flags(access: Access, is_writable: bool) -> u32 {
    let all = [
        (is_writable, sys::IBV_ACCESS_LOCAL_WRITE),
        (access.contains(Access::REMOTE_READ), sys::IBV_ACCESS_REMOTE_READ),
        (access.contains(Access::REMOTE_WRITE), sys::IBV_ACCESS_REMOTE_WRITE),
        (access.contains(Access::REMOTE_ATOMIC), sys::IBV_ACCESS_REMOTE_ATOMIC),
        // Only for memory that announces nothing. The library omits the flag if the kernel does not support it.
        (access.contains(Access::RELAXED), sys::IBV_ACCESS_RELAXED_ORDERING),
    ];
    all.into_iter().filter(|(wanted, _)| *wanted).fold(0, |flags, (_, flag)| flags | flag)
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.domain.device.is_inherited() {
            // SAFETY: it was registered once and is deregistered once. No queue pair that could use it remains: queue
            // pairs that name it in requests hold its region, and queue pairs that serve peers are dropped before it.
            let errno = unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
            if errno != 0 {
                tracing::warn!(device = self.domain.device.name, errno, "memory could not be deregistered");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_has_the_rights_that_were_granted_and_no_others() {
        let (read, write) = (sys::IBV_ACCESS_REMOTE_READ, sys::IBV_ACCESS_REMOTE_WRITE);
        let (local, relaxed) = (sys::IBV_ACCESS_LOCAL_WRITE, sys::IBV_ACCESS_RELAXED_ORDERING);
        assert_eq!(flags(Access::LOCAL, false), 0);
        assert_eq!(flags(Access::LOCAL, true), local);
        assert_eq!(flags(Access::REMOTE_READ, true), local | read);
        assert_eq!(flags(Access::REMOTE_READ, false), read);
        assert_eq!(flags(Access::REMOTE_WRITE, true), local | write);
        assert_eq!(flags(Access::REMOTE_ATOMIC, true), local | sys::IBV_ACCESS_REMOTE_ATOMIC);
        // Relaxed only on request: announcing words never are.
        assert_eq!(flags(Access::REMOTE_WRITE | Access::RELAXED, true), local | write | relaxed);
    }
}
