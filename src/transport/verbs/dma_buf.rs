//! Memory that another driver hands over, as that of GPUs does.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::{INHERITED, Verbs, registration_remedy, sys};
use crate::transport::RegisterError;

impl Verbs {
    /// Whether the device takes a dma-buf, tried by registering its first `bytes` and giving them back. Memory of a GPU
    /// comes to an RDMA device as one; [`HostMemory::dma_buf`](crate::mem::HostMemory::dma_buf) makes one where there
    /// is no GPU.
    ///
    /// # Errors
    /// What the device, its driver, the kernel or the library lacks ([`RegisterError::Device`]).
    #[doc(hidden)]
    pub fn try_dma_buf(&self, buffer: BorrowedFd<'_>, bytes: usize) -> Result<(), RegisterError> {
        self.register_dma_buf(buffer, bytes).map_err(|source| {
            let remedy = match source.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
                    "memory of a GPU takes a device whose driver imports dma-bufs (of those in Linux: mlx5, efa, \
                     irdma, bnxt_re) and Linux 5.12 with rdma-core 34 or later, or the module nvidia-peermem"
                        .into()
                }
                _ => registration_remedy(&source),
            };
            RegisterError::Device { bytes, device: self.device().into(), source, remedy }
        })
    }

    fn register_dma_buf(&self, buffer: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
        let domain = &self.shared.first().domain;
        if domain.device.is_inherited() {
            return Err(io::Error::other(INHERITED));
        }
        let library = domain.device.library;
        let Some(register) = library.reg_dmabuf_mr else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let access = sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_READ | sys::IBV_ACCESS_REMOTE_WRITE;
        // SAFETY: the domain lives, the descriptor is open; what it names is not of this process's address space.
        let region = unsafe { register(domain.raw(), 0, bytes, 0, buffer.as_raw_fd(), access as i32) };
        let region = NonNull::new(region).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: it was registered above, nothing uses it, and it is undone once.
        match unsafe { (library.dereg_mr)(region.as_ptr()) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
