//! What a GPU can do, found out by asking and by copying.

use std::time::{Duration, Instant};

use super::copy::Tickets;
use super::sys::Attribute;
use super::{Gpu, GpuError, GpuMemory, GpuStream, HostBytes};
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion};

/// Properties of a GPU and of its driver that decide how its memory can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProperties {
    /// Major and minor number of the CUDA version that the driver has.
    pub driver: (i32, i32),
    /// Compute capability.
    pub capability: (i32, i32),
    /// Address on the PCI bus, as in `/sys/bus/pci/devices`.
    pub pci_address: String,
    /// True if its memory can be exported as dma-bufs, which RDMA devices register.
    pub has_dma_bufs: bool,
    /// True if RDMA devices can reach its memory.
    pub has_gpu_direct_rdma: bool,
    /// The same of the memory that this library allocates, which other processes can map.
    pub has_gpu_direct_rdma_of_own: bool,
    /// Ways to make an RDMA device's writes visible to the GPU (`CUflushGPUDirectRDMAWritesOptions`): 1 by the host's
    /// call, 2 by a stream's operation.
    pub flush_options: i32,
    /// Who sees an RDMA device's writes in order (`CUGPUDirectRDMAWritesOrdering`): 0 nothing does, 100 this GPU, 200
    /// all GPUs.
    pub writes_ordering: i32,
    /// True if a stream writes the words by which copies tell that they are done; else they take an event each.
    pub has_stream_words: bool,
    /// True if other processes can be given memory that this library allocates.
    pub has_posix_handles: bool,
}

/// A copy to the GPU and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCopies {
    /// Time of a copy to the GPU, from the call until its end is known.
    pub to_gpu: Duration,
    /// The same from the GPU.
    pub to_host: Duration,
    /// True if the bytes came back as they were.
    pub are_intact: bool,
}

impl Gpu {
    /// Its properties; what the driver does not know of is absent.
    #[doc(hidden)]
    pub fn properties(&self) -> Result<GpuProperties, GpuError> {
        let primary = &self.inner().primary;
        primary.within(|driver| {
            let of = |attribute| driver.attribute(attribute, primary.device()).unwrap_or(0);
            let version =
                driver.version().map_err(|code| primary.error("asking for the driver's version", code))?;
            let (domain, bus) = (of(Attribute::PCI_DOMAIN_ID), of(Attribute::PCI_BUS_ID));
            Ok(GpuProperties {
                driver: (version / 1000, version % 1000 / 10),
                capability: (
                    of(Attribute::COMPUTE_CAPABILITY_MAJOR),
                    of(Attribute::COMPUTE_CAPABILITY_MINOR),
                ),
                pci_address: format!("{domain:04x}:{bus:02x}:{:02x}.0", of(Attribute::PCI_DEVICE_ID)),
                has_dma_bufs: of(Attribute::DMA_BUF_SUPPORTED) != 0,
                has_gpu_direct_rdma: of(Attribute::GPU_DIRECT_RDMA_SUPPORTED) != 0,
                has_gpu_direct_rdma_of_own: of(Attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
                flush_options: of(Attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
                writes_ordering: of(Attribute::GPU_DIRECT_RDMA_WRITES_ORDERING),
                has_stream_words: of(Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS) != 0,
                has_posix_handles: of(Attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0,
            })
        })
    }

    /// The number that no other GPU has, nor another instance of this one.
    ///
    /// # Errors
    /// The driver does not say it.
    pub(crate) fn uuid(&self) -> Result<[u8; 16], GpuError> {
        let primary = &self.inner().primary;
        primary.call("asking for the number of a GPU", |driver| driver.device_uuid(primary.device()))
    }

    /// True if this process sees the GPU of this number.
    pub(crate) fn sees(&self, uuid: &[u8; 16]) -> bool {
        let seen = self.inner().primary.within(|driver| {
            let mut devices = (0..driver.device_count().unwrap_or(0)).filter_map(|at| driver.device(at).ok());
            Ok(devices.any(|device| driver.device_uuid(device).is_ok_and(|its| its == *uuid)))
        });
        seen.unwrap_or(false)
    }

    /// Copies `bytes` of a pattern to the GPU and back, waiting at most `timeout` for each.
    ///
    /// # Errors
    /// The GPU is out of memory, host memory cannot be locked, a copy fails; `None` if one is not done by the timeout.
    #[doc(hidden)]
    pub fn try_copies(&self, bytes: usize, timeout: Duration) -> Result<Option<GpuCopies>, GpuError> {
        let region = || {
            let memory =
                HostMemory::anonymous(bytes).map_err(|error| GpuError::Host { reason: error.to_string() })?;
            Ok(MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()))
        };
        let (from, into) = (region()?, region()?.whole());
        let pattern: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8 + 1).collect();
        from.as_volatile().write(&pattern);
        let memory = GpuMemory::allocate(self, bytes)?;
        // SAFETY: the default stream, which is there for as long as the context.
        let stream = unsafe { GpuStream::of_caller(self, 0)? };
        let ended = |begun: Instant, copies: &mut Tickets| -> Result<Option<Duration>, GpuError> {
            while !copies.are_done()? {
                if begun.elapsed() > timeout {
                    return Ok(None);
                }
                std::hint::spin_loop();
            }
            Ok(Some(begun.elapsed()))
        };
        let round = || -> Result<Option<(Duration, Duration)>, GpuError> {
            let (begun, mut copies) = (Instant::now(), Tickets::default());
            stream.copy_from_host(HostBytes::Region(from.clone()), 0, &memory.whole(), &mut copies)?;
            let Some(to_gpu) = ended(begun, &mut copies)? else { return Ok(None) };
            let begun = Instant::now();
            stream.copy_to_host(&memory.whole(), &into, &mut copies)?;
            Ok(ended(begun, &mut copies)?.map(|to_host| (to_gpu, to_host)))
        };
        // The first copy locks the host's memory and wakes the GPU.
        let Some((to_gpu, to_host)) = (if round()?.is_some() { round()? } else { None }) else {
            return Ok(None);
        };
        let mut back = vec![0; bytes];
        into.as_volatile().read(&mut back);
        Ok(Some(GpuCopies { to_gpu, to_host, are_intact: back == pattern }))
    }
}
