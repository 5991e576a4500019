//! Memory of a GPU that RDMA devices access directly: the way of access, and the registrations.
//!
//! A device registers memory of a GPU as a dma-buf that the GPU's driver exports, or by its address if the module
//! nvidia-peermem is loaded. Each transport with a GPU tries once which of the two works. If neither works, payloads
//! are staged.

use crate::cuda::Gpu;
use crate::transport::GpuPath;
#[cfg(feature = "cuda")]
pub(super) use with_cuda::{GpuExport, GpuRegistrations, PEERMEM_FOLDER, readers, registration_help};

/// The GPU of a transport, and the path between its memory and the devices.
#[derive(Clone)]
pub(super) struct VerbsGpu {
    pub(super) gpu: Gpu,
    pub(super) path: GpuPath,
    /// The registrations of its memory, unless payloads are staged.
    #[cfg(feature = "cuda")]
    pub(super) registrations: Option<std::sync::Arc<GpuRegistrations>>,
}

impl VerbsGpu {
    /// True if devices access its memory directly.
    pub(super) fn is_direct(&self) -> bool {
        matches!(self.path, GpuPath::Rdma { .. })
    }
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use std::collections::HashMap;
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use super::VerbsGpu;
    use crate::cuda::{
        FULL_WINDOW, Gpu, GpuError, GpuMemory, GpuPages, GpuRegistration, GpuSlice, RdmaVisibility,
    };
    use crate::mem::{Access, DeviceKeys, MAX_RAILS};
    use crate::transport::GpuPath;
    use crate::transport::verbs::dma_buf::{IMPORTS_DMA_BUFS, imports_none};
    use crate::transport::verbs::region::{ProtectionDomain, Registered};
    use crate::transport::verbs::{VerbsShared, registration_remedy};

    const DMA_BUF: &str = "dma-buf";
    const PEERMEM: &str = "nvidia-peermem";

    /// The folder of the loaded module.
    pub(in crate::transport::verbs) const PEERMEM_FOLDER: &str = "/sys/module/nvidia_peermem";

    /// Registrations of the caller's memory that are kept for its next use: the number of pieces of 20 MiB, the
    /// segment size of PyTorch, that fit into the largest GPUs.
    const RECENT: usize = 8192;

    /// The time after which pages that were not registered are tried again: the cause may have gone.
    const REFUSED_FOR: Duration = Duration::from_secs(5);

    /// The way in which a device imports memory of a GPU.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum GpuImport {
        DmaBuf,
        Peermem,
    }

    impl VerbsGpu {
        /// Tries the two ways of access to the memory of the GPU, on all devices of the transport. `peermem` is the
        /// folder of a loaded module nvidia-peermem.
        pub(in crate::transport::verbs) fn new(shared: &VerbsShared, gpu: &Gpu, peermem: &Path) -> VerbsGpu {
            let (path, registrations) = match way(shared, gpu, peermem) {
                Ok(import) => {
                    let by = import.name();
                    tracing::info!(gpu = gpu.ordinal(), by, "RDMA devices reach memory of the GPU");
                    let (recent, registering) = (Mutex::default(), Mutex::default());
                    let is_told = AtomicBool::new(false);
                    let registrations = GpuRegistrations { import, recent, registering, is_told };
                    (GpuPath::Rdma { by }, Some(Arc::new(registrations)))
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

    /// Returns the first way that works; or each way with the reason why it does not work.
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

    /// Pages of GPU memory, exported once for all domains that register these pages.
    pub(in crate::transport::verbs) struct GpuExport {
        /// None if the device knows the pages by their address.
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

        /// Exports the pages of this memory only. The memory begins at the first of them.
        fn of(import: GpuImport, memory: &GpuMemory) -> Result<GpuExport, GpuError> {
            GpuExport::new(import, memory, memory.pages_to_grant()?)
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

    /// The registration of pages, or the time of their refusal.
    type Outcome = Result<Arc<GpuRegistration>, Instant>;

    /// The registrations of GPU memory with the devices of one transport.
    pub(in crate::transport::verbs) struct GpuRegistrations {
        import: GpuImport,
        /// Registrations of the caller's memory: a trainer names its tensors in each step, and a registration takes
        /// far longer than a copy. No device registers or deregisters memory while this is locked.
        recent: Mutex<RecentPages>,
        /// Held while pages are registered, so that two threads do not register the same ones.
        registering: Mutex<()>,
        /// Whether the log already has the warning that memory is staged.
        is_told: AtomicBool,
    }

    /// The registrations of the pages that were used last, and the times of refusals.
    #[derive(Default)]
    struct RecentPages {
        /// Each entry has the number of its last use.
        outcomes: HashMap<GpuPages, (Outcome, u64)>,
        uses: u64,
    }

    impl RecentPages {
        /// The known outcome of pages. This call counts as their use.
        fn find(&mut self, pages: &GpuPages) -> Option<Outcome> {
            let (outcome, used) = self.outcomes.get_mut(pages)?;
            self.uses += 1;
            *used = self.uses;
            Some(outcome.clone())
        }

        /// Stores the outcome of pages. Returns the outcomes that it removes or replaces, which the caller drops
        /// later.
        fn keep(&mut self, pages: GpuPages, outcome: Outcome) -> [Option<(Outcome, u64)>; 2] {
            let mut forgotten = None;
            if self.outcomes.len() >= RECENT && !self.outcomes.contains_key(&pages) {
                let oldest = self.outcomes.iter().min_by_key(|(_, (_, used))| *used);
                if let Some(pages) = oldest.map(|(pages, _)| pages.clone()) {
                    forgotten = self.outcomes.remove(&pages);
                }
            }
            self.uses += 1;
            [forgotten, self.outcomes.insert(pages, (outcome, self.uses))]
        }
    }

    impl GpuRegistrations {
        /// Exports memory for the registrations of a grant.
        ///
        /// # Errors
        /// The memory does not begin at a page, or the driver refuses. If the window of the GPU is full, the error
        /// has the same number as from a device.
        pub(in crate::transport::verbs) fn export(&self, memory: &GpuMemory) -> io::Result<GpuExport> {
            GpuExport::of(self.import, memory).map_err(|error| match error.is_of_full_window() {
                // A device that registers by an address reports this number.
                true => io::Error::from_raw_os_error(libc::ENOMEM),
                false => io::Error::other(error),
            })
        }

        /// Registers memory from its start on for requests of this process, if it is not yet registered. Returns how
        /// many bytes of it then have one registration; none if that fails, and the memory must be staged.
        ///
        /// # Errors
        /// The registration fails, and memory of this GPU may not be staged.
        pub(in crate::transport::verbs) fn reach(
            &self,
            shared: &VerbsShared,
            gpu: &Gpu,
            slice: &GpuSlice,
        ) -> Result<usize, GpuError> {
            let domain = shared.first().domain.serial;
            let reached = || slice.device_keys(domain).map_or(0, |(_, bytes)| bytes);
            let found = reached();
            if found > 0 {
                return Ok(found);
            }
            match self.register(shared, slice) {
                Ok(registration) => {
                    gpu.expect_rdma_writes();
                    shared.on_gpus.keep(slice.memory(), registration);
                    Ok(reached())
                }
                Err(error) if gpu.requires_gpudirect() => {
                    let (bytes, reason) = match error {
                        GpuError::NotDirect { bytes, reason } => (bytes, reason),
                        error => (slice.bytes(), error.to_string()),
                    };
                    let reason = format!("{reason}, and `Gpu::require_gpudirect` forbids to stage them");
                    Err(GpuError::NotDirect { bytes, reason })
                }
                Err(error) => {
                    if !self.is_told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "memory of a GPU is staged: no RDMA device reaches it");
                    }
                    Ok(0)
                }
            }
        }

        fn recent(&self) -> MutexGuard<'_, RecentPages> {
            self.recent.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Registers the first set of pages for the start of a slice that can be registered.
        fn register(&self, shared: &VerbsShared, slice: &GpuSlice) -> Result<Arc<GpuRegistration>, GpuError> {
            let mut told = GpuError::NotDirect {
                bytes: slice.bytes(),
                reason: "no device registers them; the log has the reason".into(),
            };
            let known = |pages: &GpuPages| match self.recent().find(pages) {
                Some(Err(refused)) if refused.elapsed() >= REFUSED_FOR => None,
                known => known,
            };
            for pages in slice.pages()? {
                let (found, _alone) = match known(&pages) {
                    None => {
                        let alone = self.registering.lock().unwrap_or_else(PoisonError::into_inner);
                        // Another thread may have registered them in the meantime.
                        (known(&pages), Some(alone))
                    }
                    found => (found, None),
                };
                match found {
                    Some(Ok(registration)) => return Ok(registration),
                    Some(Err(_)) => continue,
                    None => {}
                }
                // If other memory is now at these addresses, the old memory has been freed.
                let gone: Vec<_> =
                    self.recent().outcomes.extract_if(|known, _| known.are_gone(&pages)).collect();
                drop(gone);
                let registered = self.register_pages(shared, slice, &pages);
                if pages.allocation.is_some() {
                    let outcome = registered.as_ref().cloned().map_err(|_| Instant::now());
                    let forgotten = self.recent().keep(pages, outcome);
                    drop(forgotten);
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
            slice: &GpuSlice,
            pages: &GpuPages,
        ) -> Result<Arc<GpuRegistration>, GpuError> {
            let failed = |error: io::Error| GpuError::NotDirect {
                bytes: pages.bytes,
                reason: format!("a device does not register them: {error}; {}", registration_help(&error)),
            };
            let export = GpuExport::new(self.import, slice.memory(), pages.clone())?;
            let mut keys = DeviceKeys { domain: shared.first().domain.serial, ..DeviceKeys::NONE };
            let mut registered = Vec::with_capacity(shared.rails.len());
            let first = if mutant!("offset_in_export") { slice.pointer() } else { pages.pointer };
            for (rail, key) in shared.rails.iter().zip(&mut keys.local) {
                // Devices only write answers to READs here, and no thread reads them before their completion.
                let here = export.register(&rail.domain, pages.bytes, first, Access::RELAXED);
                let here = here.map_err(failed)?;
                *key = here.local_key();
                registered.push(here);
            }
            Ok(GpuRegistration::new(keys, pages.addresses(), registered))
        }
    }

    /// The remedy if a device does not register memory of a GPU.
    pub(in crate::transport::verbs) fn registration_help(error: &io::Error) -> String {
        match error.raw_os_error() {
            Some(libc::ENOMEM | libc::ENOSPC) => FULL_WINDOW.into(),
            _ => registration_remedy(error),
        }
    }

    /// The keys by which all peers read memory that they may only read: it is registered once for each device. The
    /// memory is one piece, as all granted memory is.
    pub(in crate::transport::verbs) fn readers(
        shared: &VerbsShared,
        registrations: &GpuRegistrations,
        memory: &GpuMemory,
    ) -> io::Result<[u32; MAX_RAILS]> {
        let serial = shared.first().domain.serial;
        // Two threads may get here at once: then there are two registrations, and both are kept.
        if let Some(readers) = memory.keys_of_readers(serial) {
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
        let addresses = memory.pointer()..memory.pointer() + memory.bytes() as u64;
        shared.on_gpus.keep(memory, GpuRegistration::new(keys, addresses, registered));
        Ok(readers)
    }
    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_registrations_that_were_used_last_are_kept() {
            let pages = |number: usize| GpuPages {
                pointer: (number * 4096) as u64,
                bytes: 4096,
                allocation: Some(number as u64),
            };
            let mut recent = RecentPages::default();
            for number in 0..RECENT {
                recent.keep(pages(number), Ok(GpuRegistration::new(DeviceKeys::NONE, 0..4096, ())));
            }
            assert!(recent.find(&pages(0)).is_some());
            recent.keep(pages(RECENT), Err(Instant::now()));
            assert!(recent.find(&pages(1)).is_none(), "of all it was used least recently");
            assert!([0, 2, RECENT].iter().all(|number| recent.find(&pages(*number)).is_some()));
            // Pages that were refused and are now registered need no second entry.
            recent.keep(pages(RECENT), Ok(GpuRegistration::new(DeviceKeys::NONE, 0..4096, ())));
            assert_eq!(recent.outcomes.len(), RECENT);
        }
    }
}
