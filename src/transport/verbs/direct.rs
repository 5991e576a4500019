//! Memory of a GPU that RDMA devices reach themselves: the way that they reach it, and its registrations.
//!
//! A device registers memory of a GPU as a dma-buf that the GPU's driver exports, or by its address where the module
//! nvidia-peermem is loaded. Which of them works is tried, once for each transport that is given a GPU. Where neither
//! does, payloads are staged.

use crate::cuda::Gpu;
use crate::transport::GpuPath;
#[cfg(feature = "cuda")]
pub(super) use with_cuda::{GpuExport, GpuRegistrations, PEERMEM_FOLDER, readers, registration_help};

/// The GPU of a transport, and the way between its memory and the devices.
#[derive(Clone)]
pub(super) struct VerbsGpu {
    pub(super) gpu: Gpu,
    pub(super) path: GpuPath,
    /// How its memory is registered, unless payloads are staged.
    #[cfg(feature = "cuda")]
    pub(super) registrations: Option<std::sync::Arc<GpuRegistrations>>,
}

impl VerbsGpu {
    /// True if devices reach its memory themselves.
    pub(super) fn is_direct(&self) -> bool {
        matches!(self.path, GpuPath::Rdma { .. })
    }
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use std::collections::VecDeque;
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::{Duration, Instant};

    use super::VerbsGpu;
    use crate::cuda::{FULL_WINDOW, Gpu, GpuError, GpuMemory, GpuPages, GpuRegistration, RdmaVisibility};
    use crate::mem::{Access, DeviceKeys, MAX_RAILS};
    use crate::transport::GpuPath;
    use crate::transport::verbs::dma_buf::{IMPORTS_DMA_BUFS, imports_none};
    use crate::transport::verbs::region::{ProtectionDomain, Registered};
    use crate::transport::verbs::{VerbsShared, registration_remedy};

    const DMA_BUF: &str = "dma-buf";
    const PEERMEM: &str = "nvidia-peermem";

    /// The folder of the module when it is loaded.
    pub(in crate::transport::verbs) const PEERMEM_FOLDER: &str = "/sys/module/nvidia_peermem";

    /// Registrations of the caller's memory that are kept for when it is used again.
    const RECENT: usize = 1024;

    /// The time after which pages that were not registered are tried again: what was in the way may be gone.
    const REFUSED_FOR: Duration = Duration::from_secs(5);

    /// The way in which memory of a GPU comes to a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum GpuImport {
        DmaBuf,
        Peermem,
    }

    impl VerbsGpu {
        /// Tries the ways to the memory of the GPU, on all devices of the transport. `peermem` is the folder of the
        /// module nvidia-peermem when it is loaded.
        pub(in crate::transport::verbs) fn new(shared: &VerbsShared, gpu: &Gpu, peermem: &Path) -> VerbsGpu {
            let (path, registrations) = match way(shared, gpu, peermem) {
                Ok(import) => {
                    let by = import.name();
                    tracing::info!(gpu = gpu.ordinal(), by, "RDMA devices reach memory of the GPU");
                    let (recent, is_told) = (Mutex::default(), AtomicBool::new(false));
                    (GpuPath::Rdma { by }, Some(Arc::new(GpuRegistrations { import, recent, is_told })))
                }
                Err(reasons) => (GpuPath::Staged { passed_over: reasons.into() }, None),
            };
            VerbsGpu { gpu: gpu.clone(), path, registrations }
        }
    }

    impl GpuImport {
        fn name(self) -> &'static str {
            match self {
                GpuImport::DmaBuf => DMA_BUF,
                GpuImport::Peermem => PEERMEM,
            }
        }
    }

    /// The first way that works; or each way with the reason why it does not.
    fn way(
        shared: &VerbsShared,
        gpu: &Gpu,
        peermem: &Path,
    ) -> Result<GpuImport, Vec<(&'static str, String)>> {
        let neither =
            |reason: &str| vec![(DMA_BUF, reason.to_owned()), (PEERMEM, "for the same reason".into())];
        if gpu.rdma_visibility() == RdmaVisibility::Unknown {
            return Err(neither(
                "the GPU's driver does not say that kernels see what a device has written, nor has it a call for that",
            ));
        }
        let memory = GpuMemory::allocate(gpu, 1).map_err(|error| neither(&error.to_string()))?;
        let attempt = |import: GpuImport| -> Result<(), String> {
            let export = GpuExport::of(import, &memory).map_err(|error| error.to_string())?;
            shared.rails.iter().try_for_each(|rail| {
                let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
                export.register(&rail.domain, 1, 0, access).map(drop).map_err(|error| {
                    let remedy = match import == GpuImport::DmaBuf && imports_none(&error) {
                        true => IMPORTS_DMA_BUFS.into(),
                        false => registration_help(&error),
                    };
                    format!("device {} does not register it: {error}; {remedy}", rail.info.name)
                })
            })
        };
        let by_dma_buf = match gpu.has_dma_bufs() {
            true => attempt(GpuImport::DmaBuf),
            false => {
                Err("the GPU's driver exports none: it takes the open kernel modules and Linux 5.12".into())
            }
        };
        let Err(no_dma_buf) = by_dma_buf else { return Ok(GpuImport::DmaBuf) };
        let by_peermem = match peermem.exists() {
            true => attempt(GpuImport::Peermem),
            false => Err("the module is not loaded (modprobe nvidia-peermem)".into()),
        };
        let Err(no_peermem) = by_peermem else { return Ok(GpuImport::Peermem) };
        Err(vec![(DMA_BUF, no_dma_buf), (PEERMEM, no_peermem)])
    }

    /// Pages of memory of a GPU, exported once for as many domains as register them.
    pub(in crate::transport::verbs) struct GpuExport {
        /// None where the device knows them by their address.
        buffer: Option<OwnedFd>,
        pages: GpuPages,
    }

    impl GpuExport {
        fn new(import: GpuImport, memory: &GpuMemory, pages: GpuPages) -> Result<GpuExport, GpuError> {
            let buffer = match import {
                GpuImport::DmaBuf => Some(memory.dma_buf(&pages)?),
                GpuImport::Peermem => None,
            };
            Ok(GpuExport { buffer, pages })
        }

        /// The same of the pages of this memory alone, at the first of which it begins.
        fn of(import: GpuImport, memory: &GpuMemory) -> Result<GpuExport, GpuError> {
            let pages = memory.pages()?.into_iter().next_back().ok_or(GpuError::Empty)?;
            if pages.pointer != memory.pointer() {
                let reason = "peers name bytes from the begin of a page on: let the memory begin at a multiple of 4096";
                return Err(GpuError::NotDirect { bytes: memory.bytes(), reason: reason.into() });
            }
            GpuExport::new(import, memory, pages)
        }

        /// Registers the first `bytes`, which the device knows by addresses from `first` on.
        pub(in crate::transport::verbs) fn register(
            &self,
            domain: &Arc<ProtectionDomain>,
            bytes: usize,
            first: u64,
            access: Access,
        ) -> io::Result<Registered> {
            match &self.buffer {
                Some(buffer) => Registered::of_dma_buf(domain, buffer.as_fd(), 0..bytes, first, access),
                None => Registered::of_gpu(domain, self.pages.pointer, bytes, first, access),
            }
        }
    }

    /// The registration of pages, or when they were refused.
    type Outcome = Result<Arc<GpuRegistration>, Instant>;

    /// How memory of a GPU is registered with the devices of one transport.
    pub(in crate::transport::verbs) struct GpuRegistrations {
        import: GpuImport,
        /// Registrations of the caller's memory, the one that was used last behind all others, and when pages were
        /// refused. A trainer names its tensors in each step, and a registration takes far longer than a copy.
        recent: Mutex<VecDeque<(GpuPages, Outcome)>>,
        /// Whether the log has told that memory is staged.
        is_told: AtomicBool,
    }

    impl GpuRegistrations {
        /// Exports memory that peers are granted, to be registered.
        ///
        /// # Errors
        /// It does not begin at a page, or the driver refuses; for the window of the GPU that is full, the number is
        /// that of a device that says so.
        pub(in crate::transport::verbs) fn export(&self, memory: &GpuMemory) -> io::Result<GpuExport> {
            GpuExport::of(self.import, memory).map_err(|error| match error.is_of_full_window() {
                // As a device says it, which registers by an address.
                true => io::Error::from_raw_os_error(libc::ENOMEM),
                false => io::Error::other(error),
            })
        }

        /// Registers memory for requests of this process, if it is not yet. False if that fails, and the memory is to
        /// be staged.
        ///
        /// # Errors
        /// It fails, and memory of this GPU may not be staged.
        pub(in crate::transport::verbs) fn reach(
            &self,
            shared: &VerbsShared,
            gpu: &Gpu,
            memory: &GpuMemory,
        ) -> Result<bool, GpuError> {
            if memory.device_keys(shared.first().domain.serial, false).is_some() {
                return Ok(true);
            }
            match self.register(shared, memory) {
                Ok(registration) => {
                    gpu.expect_rdma_writes();
                    shared.on_gpus.keep(memory, registration);
                    Ok(true)
                }
                Err(error) if gpu.requires_gpudirect() => {
                    let (bytes, reason) = match error {
                        GpuError::NotDirect { bytes, reason } => (bytes, reason),
                        error => (memory.bytes(), error.to_string()),
                    };
                    let reason = format!("{reason}, and `Gpu::require_gpudirect` forbids to stage them");
                    Err(GpuError::NotDirect { bytes, reason })
                }
                Err(error) => {
                    if !self.is_told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "memory of a GPU is staged: no RDMA device reaches it");
                    }
                    Ok(false)
                }
            }
        }

        /// Registers the first of the pages of memory that can be.
        fn register(
            &self,
            shared: &VerbsShared,
            memory: &GpuMemory,
        ) -> Result<Arc<GpuRegistration>, GpuError> {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            let mut told = GpuError::NotDirect {
                bytes: memory.bytes(),
                reason: "no device registers them; the log has the reason".into(),
            };
            for pages in memory.pages()? {
                let known = recent.iter().position(|(known, _)| *known == pages);
                match known.and_then(|at| recent.remove(at)) {
                    Some((pages, Ok(registration))) => {
                        recent.push_back((pages, Ok(registration.clone())));
                        return Ok(registration);
                    }
                    Some((pages, Err(refused))) if refused.elapsed() < REFUSED_FOR => {
                        recent.push_back((pages, Err(refused)));
                        continue;
                    }
                    _ => {}
                }
                // Where there is other memory now, what there was is freed.
                recent.retain(|(known, _)| !known.are_gone(&pages));
                let registered = self.register_pages(shared, memory, &pages);
                if pages.allocations.is_some() {
                    if recent.len() == RECENT {
                        recent.pop_front();
                    }
                    recent.push_back((pages, registered.as_ref().cloned().map_err(|_| Instant::now())));
                }
                match registered {
                    Ok(registration) => return Ok(registration),
                    Err(error) => told = error,
                }
            }
            Err(told)
        }

        fn register_pages(
            &self,
            shared: &VerbsShared,
            memory: &GpuMemory,
            pages: &GpuPages,
        ) -> Result<Arc<GpuRegistration>, GpuError> {
            let failed = |error: io::Error| GpuError::NotDirect {
                bytes: pages.bytes,
                reason: format!("a device does not register them: {error}; {}", registration_help(&error)),
            };
            let export = GpuExport::new(self.import, memory, pages.clone())?;
            let mut keys = DeviceKeys { domain: shared.first().domain.serial, ..DeviceKeys::NONE };
            let mut registered = Vec::with_capacity(shared.rails.len());
            let first = if mutant!("offset_in_export") { memory.pointer() } else { pages.pointer };
            for (rail, key) in shared.rails.iter().zip(&mut keys.local) {
                // What devices write here are answers to READs, at which no one looks before their completion.
                let here = export.register(&rail.domain, pages.bytes, first, Access::RELAXED);
                let here = here.map_err(failed)?;
                *key = here.local_key();
                registered.push(here);
            }
            Ok(GpuRegistration::new(keys, registered))
        }
    }

    /// The remedy where a device does not register memory of a GPU.
    pub(in crate::transport::verbs) fn registration_help(error: &io::Error) -> String {
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => FULL_WINDOW.into(),
            _ => registration_remedy(error),
        }
    }

    /// The keys by which all peers read memory that they may only read: it is registered once for each device.
    pub(in crate::transport::verbs) fn readers(
        shared: &VerbsShared,
        registrations: &GpuRegistrations,
        memory: &GpuMemory,
    ) -> io::Result<[u32; MAX_RAILS]> {
        let serial = shared.first().domain.serial;
        // Two threads may get here at once: then there are two, and each is kept.
        if let Some(readers) = memory.device_keys(serial, true).and_then(|keys| keys.readers) {
            return Ok(readers);
        }
        let export = registrations.export(memory)?;
        let mut readers = [0; MAX_RAILS];
        let mut registered = Vec::with_capacity(shared.rails.len());
        for (rail, key) in shared.rails.iter().zip(&mut readers) {
            // Peers name bytes by their offset in the memory: no address of this process ever travels.
            let here = export.register(&rail.read_domain, memory.bytes(), 0, Access::REMOTE_READ)?;
            *key = here.remote_key();
            registered.push(here);
        }
        let keys = DeviceKeys { domain: serial, readers: Some(readers), ..DeviceKeys::NONE };
        shared.on_gpus.keep(memory, GpuRegistration::new(keys, registered));
        Ok(readers)
    }
}
