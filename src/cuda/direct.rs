//! Memory of a GPU as RDMA devices reach it: its dma-bufs, registrations that live with it, and the ways in which the
//! writes of devices there become visible to kernels.
//!
//! Memory that is granted to peers is this library's own, which is one allocation, or the caller's of one piece. Other
//! memory of the caller's is only read and written by requests of this process. It may have been mapped piece by piece,
//! as PyTorch's expandable segments are: each piece is registered by itself, and a request is cut where the
//! registrations end.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smallvec::{SmallVec, smallvec};

use super::driver::Allocation;
use super::error::EXPORTING;
use super::gpu::PrimaryContext;
use super::memory::{GpuBacking, GpuBlock};
use super::queue::GpuWork;
use super::sys::{Attribute, Code, FLUSH_OPTION_HOST, ORDERING_OWNER, PointerAttribute};
use super::{Gpu, GpuError, GpuMemory, GpuSlice, Tickets};
use crate::mem::{DeviceKeys, MAX_RAILS, PAGE_SIZE, Registration};

/// The way in which the writes of RDMA devices to the GPU's memory become visible to a kernel that is launched later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RdmaVisibility {
    /// It sees it, as the GPU keeps the order.
    InOrder,
    /// After a call of the driver.
    ByFlush,
    /// The driver has no such call.
    Unknown,
}

/// A registration of memory of a GPU with the devices of one transport: for requests of this process, or for READs of
/// all peers.
pub(crate) struct GpuRegistration {
    keys: DeviceKeys,
    /// Its part of the GPU's memory.
    addresses: Range<u64>,
    _registration: Box<dyn Registration>,
}

impl GpuRegistration {
    /// Its keys have some for `readers` if it is for READs of peers, and for nothing else.
    pub(crate) fn new(
        keys: DeviceKeys,
        addresses: Range<u64>,
        registration: impl Registration + 'static,
    ) -> Arc<GpuRegistration> {
        Arc::new(GpuRegistration { keys, addresses, _registration: Box::new(registration) })
    }
}

/// Memory of GPUs that is registered with the devices of one transport. It may outlive the transport, and its
/// registrations do not: they end when this is dropped.
pub(crate) struct RegisteredMemory {
    domain: u32,
    blocks: Mutex<Vec<Weak<GpuBlock>>>,
}

impl RegisteredMemory {
    /// None yet, of the transport whose registrations have this domain.
    pub(crate) fn new(domain: u32) -> RegisteredMemory {
        RegisteredMemory { domain, blocks: Mutex::default() }
    }

    /// Keeps a registration for as long as both `memory` and this live.
    pub(crate) fn keep(&self, memory: &GpuMemory, registration: Arc<GpuRegistration>) {
        memory.block().registrations().push(registration);
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks.len() == blocks.capacity() {
            blocks.retain(|block| block.strong_count() > 0);
        }
        blocks.push(Arc::downgrade(memory.block()));
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        let blocks = self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner);
        for block in blocks.iter().filter_map(Weak::upgrade) {
            block.registrations().retain(|registration| registration.keys.domain != self.domain);
        }
    }
}

/// Whole pages of memory of a GPU that are registered together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GpuPages {
    pub(crate) pointer: u64,
    pub(crate) bytes: usize,
    /// The driver's number of the allocation, or of the piece of one, that they are of, where they are the caller's and
    /// it has one: no other of the process ever has it.
    pub(crate) allocation: Option<u64>,
}

impl GpuPages {
    fn around(pointer: u64, end: u64, allocation: Option<u64>) -> GpuPages {
        let page = PAGE_SIZE as u64;
        let begin = pointer / page * page;
        GpuPages { pointer: begin, bytes: (end.next_multiple_of(page) - begin) as usize, allocation }
    }

    /// Those of memory of this library's own.
    fn of(own: &Allocation) -> GpuPages {
        GpuPages { pointer: own.pointer, bytes: own.bytes, allocation: None }
    }

    pub(crate) fn addresses(&self) -> Range<u64> {
        self.pointer..self.pointer + self.bytes as u64
    }

    /// True if some of these pages are at the addresses of `now`, where there is another allocation now.
    pub(crate) fn are_gone(&self, now: &GpuPages) -> bool {
        let (ours, theirs) = (self.addresses(), now.addresses());
        let numbers = self.allocation.zip(now.allocation);
        ours.start < theirs.end
            && theirs.start < ours.end
            && numbers.is_some_and(|(known, found)| known != found)
    }
}

impl GpuSlice {
    /// The keys of the registration in this domain that its first byte is in, for requests of this process, and how
    /// many of its bytes are in there.
    pub(crate) fn device_keys(&self, domain: u32) -> Option<(DeviceKeys, usize)> {
        let (begin, registrations) = (self.pointer(), self.memory().block().registrations());
        let is_here = |one: &&Arc<GpuRegistration>| {
            one.keys.domain == domain && one.keys.readers.is_none() && one.addresses.contains(&begin)
        };
        let found = registrations.iter().find(is_here)?;
        let bytes =
            if mutant!("registration_border") { usize::MAX } else { (found.addresses.end - begin) as usize };
        Some((found.keys, self.bytes().min(bytes)))
    }

    /// The pages to register for its first byte, the best first: the pages of the whole allocation, so that all
    /// tensors in it have them in common; and the pages of its memory alone. Where memory was mapped piece by piece,
    /// the driver describes a piece as it describes an allocation elsewhere.
    ///
    /// # Errors
    /// The driver does not know the memory.
    pub(crate) fn pages(&self) -> Result<SmallVec<[GpuPages; 2]>, GpuError> {
        let GpuBlock { primary, pointer, bytes, backing, .. } = &**self.memory().block();
        if let GpuBacking::Own(allocation) = backing {
            return Ok(smallvec![GpuPages::of(allocation)]);
        }
        let at = self.pointer();
        let (begin, length, number) = primary.call("asking for the memory of a pointer", |driver| {
            let (begin, length) = driver.address_range(at)?;
            Ok((begin, length, driver.pointer_attribute(PointerAttribute::BUFFER_ID, at)))
        })?;
        let (end, number) = (begin + length as u64, number.ok().filter(|number| *number != 0));
        let whole = GpuPages::around(begin, end, number);
        let own = GpuPages::around(begin.max(*pointer), end.min(pointer + *bytes as u64), number);
        Ok(if own == whole { smallvec![whole] } else { smallvec![whole, own] })
    }
}

impl GpuMemory {
    /// The keys by which peers read it, of the registration in this domain, if there is one.
    pub(crate) fn keys_of_readers(&self, domain: u32) -> Option<[u32; MAX_RAILS]> {
        let registrations = self.block().registrations();
        registrations.iter().filter(|one| one.keys.domain == domain).find_map(|one| one.keys.readers)
    }

    /// The pages to register where peers are granted it, at the first of which it begins.
    ///
    /// # Errors
    /// It is a peer's; or it is the caller's and does not begin at a page, before which there may be bytes of others,
    /// or is of several allocations.
    pub(crate) fn pages_to_grant(&self) -> Result<GpuPages, GpuError> {
        let not_direct = |reason: &str| GpuError::NotDirect { bytes: self.bytes(), reason: reason.into() };
        match &self.block().backing {
            GpuBacking::Own(allocation) => return Ok(GpuPages::of(allocation)),
            GpuBacking::Caller(_) => {}
            GpuBacking::Opened(_) | GpuBacking::Lent { .. } => {
                return Err(GpuError::NotOurs { pointer: self.pointer() });
            }
        }
        let pages = self.whole().pages()?.pop().ok_or(GpuError::Empty)?;
        if pages.pointer != self.pointer() {
            let reason =
                "peers name bytes from the begin of a page on: let the memory begin at a multiple of 4096";
            return Err(not_direct(reason));
        }
        if pages.addresses().end < self.pointer() + self.bytes() as u64 {
            let reason = "it was mapped piece by piece, and peers name the bytes of one piece: lend memory of one \
                          allocation (with PyTorch: expandable_segments:False)";
            return Err(not_direct(reason));
        }
        Ok(pages)
    }

    /// A dma-buf of these pages.
    ///
    /// # Errors
    /// The driver has none for them: the memory is of a kind that it does not export, or the window of the GPU on the
    /// PCI bus is full.
    pub(crate) fn dma_buf(&self, pages: &GpuPages) -> Result<OwnedFd, GpuError> {
        let primary = self.primary();
        let failed = |code| match code {
            // The window is full, and not the GPU.
            Code::OUT_OF_MEMORY => GpuError::of(EXPORTING, code),
            code => primary.error(EXPORTING, code),
        };
        primary.within(|driver| driver.dma_buf(pages.pointer, pages.bytes).map_err(failed))
    }

    fn primary(&self) -> &PrimaryContext {
        &self.block().primary
    }
}

impl Gpu {
    /// True if the driver exports memory of it as dma-bufs.
    pub(crate) fn has_dma_bufs(&self) -> bool {
        self.attribute(Attribute::DMA_BUF_SUPPORTED) != 0
    }

    /// The way in which earlier writes of RDMA devices become visible to its kernels.
    pub(crate) fn rdma_visibility(&self) -> RdmaVisibility {
        if self.attribute(Attribute::GPU_DIRECT_RDMA_WRITES_ORDERING) >= ORDERING_OWNER {
            RdmaVisibility::InOrder
        } else if self.attribute(Attribute::GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) & FLUSH_OPTION_HOST != 0 {
            RdmaVisibility::ByFlush
        } else {
            RdmaVisibility::Unknown
        }
    }

    fn attribute(&self, attribute: Attribute) -> i32 {
        let primary = &self.inner().primary;
        let value = primary
            .call("asking for a property of a GPU", |driver| driver.attribute(attribute, primary.device()));
        value.unwrap_or(0)
    }

    /// RDMA devices write to its memory from now on.
    pub(crate) fn expect_rdma_writes(&self) {
        if self.rdma_visibility() == RdmaVisibility::ByFlush {
            self.inner().flushes.store(true, Relaxed);
        }
    }

    /// Makes the writes of RDMA devices visible to later kernels and copies, as far as this process knows of the
    /// writes: by a word that a peer has written behind them, or by a completion.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn see_rdma_writes(&self) -> Result<(), GpuError> {
        if !self.inner().flushes.load(Relaxed) || mutant!("rdma_writes_not_flushed") {
            return Ok(());
        }
        let seeing = "making visible what RDMA devices have written to a GPU";
        self.inner().primary.call(seeing, |driver| driver.flush_rdma_writes())
    }

    /// Says when an RDMA device may write `memory`, or read it: once the copies to the GPU, or from it, are done that
    /// were asked for before, and with them the work of the caller's streams behind which later copies were
    /// [held](super::GpuStream).
    ///
    /// # Errors
    /// The memory is on another GPU, or the driver refuses.
    pub(crate) fn mark(
        &self,
        memory: &GpuSlice,
        writes: bool,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        self.put(GpuWork::Mark { memory: memory.clone(), writes }, None, under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(pages: Range<u64>, allocation: u64) -> GpuPages {
        GpuPages::around(pages.start * 4096, pages.end * 4096, Some(allocation))
    }

    #[test]
    fn pages_are_gone_once_another_allocation_is_at_their_addresses() {
        let known = pages(2..4, 1);
        assert!(!known.are_gone(&pages(2..4, 1)) && !known.are_gone(&pages(0..8, 1)));
        assert!(!known.are_gone(&pages(4..6, 7)) && !known.are_gone(&pages(0..2, 7)), "it is elsewhere");
        for now in [2..4, 0..8, 3..4, 3..9, 0..3] {
            assert!(known.are_gone(&pages(now.clone(), 7)), "{now:?}");
            let unnumbered = GpuPages { allocation: None, ..pages(now, 7) };
            assert!(!known.are_gone(&unnumbered) && !unnumbered.are_gone(&known));
        }
    }
}
