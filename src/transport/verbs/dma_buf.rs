//! Memory that another driver exports as a dma-buf, for example the driver of a GPU.

use std::io;
use std::os::fd::BorrowedFd;

use super::region::Registered;
use super::{INHERITED, Verbs, registration_remedy};
use crate::mem::Access;
use crate::transport::RegisterError;

/// The requirements of a device that registers dma-bufs.
pub(super) const IMPORTS_DMA_BUFS: &str = "memory of a GPU takes a device whose driver imports dma-bufs (of those in \
     Linux: mlx5, efa, irdma, bnxt_re) and Linux 5.12 with rdma-core 34 or later, or the module nvidia-peermem";

/// True if the device, its driver, the kernel or the library does not support dma-bufs.
pub(super) fn imports_none(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT))
}

impl Verbs {
    /// Tries whether the device accepts a dma-buf: registers its first `bytes` and deregisters them. An RDMA device
    /// imports memory of a GPU as a dma-buf; [`HostMemory::dma_buf`](crate::mem::HostMemory::dma_buf) makes one
    /// without a GPU.
    ///
    /// # Errors
    /// The missing feature of the device, its driver, the kernel or the library ([`RegisterError::Device`]).
    #[doc(hidden)]
    pub fn try_dma_buf(&self, buffer: BorrowedFd<'_>, bytes: usize) -> Result<(), RegisterError> {
        let domain = &self.shared.first().domain;
        let registered = match domain.device.is_inherited() {
            true => Err(io::Error::other(INHERITED)),
            false => {
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                Registered::of_dma_buf(domain, buffer, 0..bytes, 0, access)
            }
        };
        registered.map(drop).map_err(|source| {
            let remedy = match imports_none(&source) {
                true => IMPORTS_DMA_BUFS.into(),
                false => registration_remedy(&source),
            };
            RegisterError::Device { bytes, device: self.device().into(), source, remedy }
        })
    }
}
