//! Memory as one driver hands it to another: a dma-buf, here one of host memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{HostMemory, MemoryError, PAGE_SIZE};

const DEVICE: &str = "/dev/udmabuf";

/// `struct udmabuf_create` of `<linux/udmabuf.h>`.
#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE` and `UDMABUF_FLAGS_CLOEXEC` of it.
const CREATE: rustix::ioctl::Opcode = rustix::ioctl::opcode::write::<Create>(b'u', 0x42);
const CLOEXEC: u32 = 1;

impl HostMemory {
    /// This [shared](HostMemory::shared) memory as a dma-buf, the form in which drivers of GPUs hand their memory to
    /// RDMA devices: a device that registers it may register a GPU's as well. The dma-buf keeps the memory alive.
    ///
    /// It has whole pages: the last one may be longer than this is.
    ///
    /// # Errors
    /// The kernel or the user lacks the support or the rights ([`MemoryError::DmaBuf`]), or the memory cannot be
    /// shared.
    pub fn dma_buf(&self) -> Result<OwnedFd, MemoryError> {
        let refuse = |source: io::Error| {
            let remedy = match source.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
                    "take a kernel with CONFIG_UDMABUF (where it is a module: modprobe udmabuf)"
                }
                Some(libc::EACCES | libc::EPERM) => {
                    "let this user read and write /dev/udmabuf (as root, or on many systems in the group `kvm`)"
                }
                Some(libc::EINVAL) => "take shared memory of no more than 64 MiB",
                _ => "see the kernel's log (dmesg)",
            };
            MemoryError::DmaBuf { source, remedy }
        };
        let Some(memfd) = self.shared_file() else {
            return Err(refuse(io::Error::from_raw_os_error(libc::EINVAL)));
        };
        let device = File::options().read(true).write(true).open(DEVICE).map_err(refuse)?;
        let request = Create {
            // A descriptor is never negative.
            memfd: memfd.as_raw_fd() as u32,
            flags: CLOEXEC,
            offset: 0,
            size: self.len().next_multiple_of(PAGE_SIZE) as u64,
        };
        // SAFETY: the request has the type of this number, and lives for the call; both descriptors are open.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), CREATE as _, &raw const request) };
        if made < 0 {
            return Err(refuse(io::Error::last_os_error()));
        }
        // SAFETY: a new descriptor, which nothing else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(made) })
    }

    /// `bytes` of zeroed memory that RDMA devices register as a dma-buf, and not by its address, as they register
    /// memory of a GPU: registrations and grants of it take the same calls, without a GPU.
    ///
    /// # Errors
    /// The errors of [`shared`](HostMemory::shared) and [`dma_buf`](HostMemory::dma_buf).
    pub fn in_dma_buf(bytes: usize) -> Result<HostMemory, MemoryError> {
        let memory = HostMemory::shared(bytes)?;
        let dma_buf = memory.dma_buf()?;
        Ok(memory.known_as(dma_buf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dma_buf_holds_the_memory_or_the_error_says_what_is_missing() {
        let memory = HostMemory::shared(PAGE_SIZE + 8).unwrap();
        memory.as_volatile().store_u64(4096, 7);
        match memory.dma_buf() {
            Ok(buffer) => {
                drop(memory);
                // SAFETY: nothing changes the length of a dma-buf.
                let map = unsafe { memmap2::Mmap::map(&buffer) }.unwrap();
                assert_eq!(map[4096..4104], 7_u64.to_le_bytes());
            }
            Err(error) => {
                let MemoryError::DmaBuf { source, .. } = &error else { panic!("{error}") };
                let is_missing = matches!(
                    source.raw_os_error(),
                    Some(libc::ENOENT | libc::ENODEV | libc::ENXIO | libc::EACCES | libc::EPERM)
                );
                assert!(is_missing && error.to_string().contains("udmabuf"), "{error}");
            }
        }
    }

    #[test]
    fn the_request_is_numbered_as_in_the_header() {
        assert_eq!((CREATE, size_of::<Create>()), (0x4018_7542, 24));
    }

    #[test]
    fn private_memory_is_no_dma_buf() {
        let error = HostMemory::anonymous(4096).unwrap().dma_buf().unwrap_err();
        assert!(error.to_string().ends_with("; take shared memory of no more than 64 MiB"), "{error}");
    }
}
