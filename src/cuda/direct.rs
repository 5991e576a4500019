//! Memory of a GPU as RDMA devices reach it: its dma-bufs, registrations that go with it, and how kernels come to see
//! what devices have written there.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use smallvec::{SmallVec, smallvec};

use super::error::EXPORTING;
use super::gpu::PrimaryContext;
use super::memory::{GpuBacking, GpuBlock};
use super::queue::GpuWork;
use super::sys::{Attribute, Code, FLUSH_OPTION_HOST, ORDERING_OWNER, PointerAttribute};
use super::{Gpu, GpuError, GpuMemory, GpuSlice, Tickets};
use crate::mem::{DeviceKeys, PAGE_SIZE, Registration};

/// How a kernel comes to see what RDMA devices have written to the GPU's memory before it was launched.
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
    _registration: Box<dyn Registration>,
}

impl GpuRegistration {
    /// Its keys have some for `readers` if it is for READs of peers, and for nothing else.
    pub(crate) fn new(keys: DeviceKeys, registration: impl Registration + 'static) -> Arc<GpuRegistration> {
        Arc::new(GpuRegistration { keys, _registration: Box::new(registration) })
    }

    fn is_of(&self, domain: u32, is_for_peers: bool) -> bool {
        self.keys.domain == domain && self.keys.readers.is_some() == is_for_peers
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuPages {
    pub(crate) pointer: u64,
    pub(crate) bytes: usize,
    /// The driver's numbers of the allocations that they are of, where they are the caller's and each has one: no other
    /// allocation of the process ever has it.
    pub(crate) allocations: Option<SmallVec<[u64; 1]>>,
}

impl GpuPages {
    fn around(pointer: u64, end: u64, allocations: Option<SmallVec<[u64; 1]>>) -> GpuPages {
        let page = PAGE_SIZE as u64;
        let begin = pointer / page * page;
        GpuPages { pointer: begin, bytes: (end.next_multiple_of(page) - begin) as usize, allocations }
    }

    fn end(&self) -> u64 {
        self.pointer + self.bytes as u64
    }

    fn holds(&self, other: &GpuPages) -> bool {
        self.pointer <= other.pointer && other.end() <= self.end()
    }

    /// True if some of these pages are at the addresses of `now`, which there are now, and one of the allocations that
    /// they are of is not there any more. Allocations that lie outside of `now` are not known to be gone.
    pub(crate) fn are_gone(&self, now: &GpuPages) -> bool {
        let (Some(known), Some(found)) = (&self.allocations, &now.allocations) else { return false };
        let overlap = self.pointer < now.end() && now.pointer < self.end();
        let is_among = |numbers: &[u64], number: &u64| numbers.contains(number);
        overlap
            && match (now.holds(self), self.holds(now)) {
                (true, _) => !known.iter().all(|number| is_among(found, number)),
                (false, true) => !found.iter().all(|number| is_among(known, number)),
                (false, false) => !known.iter().any(|number| is_among(found, number)),
            }
    }
}

impl GpuMemory {
    /// The keys of the registration in this domain, if there is one.
    pub(crate) fn device_keys(&self, domain: u32, is_for_peers: bool) -> Option<DeviceKeys> {
        let registrations = self.block().registrations();
        registrations.iter().find(|one| one.is_of(domain, is_for_peers)).map(|one| one.keys)
    }

    /// The pages to register for it, the best first: those of the whole allocation, so that all tensors in it have them
    /// in common; and those of this memory alone. Memory that was mapped piece by piece, as PyTorch's expandable
    /// segments are, has the latter alone, and a number for each piece.
    ///
    /// # Errors
    /// The driver does not know the memory.
    pub(crate) fn pages(&self) -> Result<SmallVec<[GpuPages; 2]>, GpuError> {
        let GpuBlock { primary, pointer, bytes, backing, .. } = &**self.block();
        if let GpuBacking::Own(allocation) = backing {
            return Ok(smallvec![GpuPages { pointer: *pointer, bytes: allocation.bytes, allocations: None }]);
        }
        let end = pointer + *bytes as u64;
        primary.call("asking for the memory of a pointer", |driver| {
            let (mut at, mut numbers, mut pages) = (*pointer, Some(SmallVec::new()), SmallVec::new());
            while at < end {
                let (begin, length) = driver.address_range(at)?;
                let number = driver.pointer_attribute(PointerAttribute::BUFFER_ID, at);
                match (number, &mut numbers) {
                    (Ok(number), Some(numbers)) if number != 0 => numbers.push(number),
                    _ => numbers = None,
                }
                let behind = begin + length as u64;
                if at == *pointer && end <= behind {
                    pages.push(GpuPages::around(begin, behind, numbers.clone()));
                }
                at = behind.max(at + 1);
            }
            let own = GpuPages::around(*pointer, end, numbers);
            if !pages.contains(&own) {
                pages.push(own);
            }
            Ok(pages)
        })
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

    /// How its kernels come to see what RDMA devices have written before.
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

    /// Lets kernels and copies that are asked for later see what RDMA devices have written, as far as this process
    /// knows of it: by a word that a peer has written behind it, or by a completion.
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
    /// The memory is that of another GPU, or the driver refuses.
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

    fn pages(pages: std::ops::Range<u64>, allocations: &[u64]) -> GpuPages {
        let (pointer, bytes) = (pages.start * 4096, (pages.end - pages.start) as usize * 4096);
        GpuPages { pointer, bytes, allocations: Some(allocations.into()) }
    }

    #[test]
    fn pages_are_gone_once_one_of_their_allocations_is() {
        // Two pieces of one segment, of two pages each.
        let both = pages(0..4, &[1, 2]);
        assert!(!both.are_gone(&pages(0..2, &[1])) && !pages(2..4, &[2]).are_gone(&both));
        assert!(!both.are_gone(&pages(8..9, &[7])), "it is elsewhere");
        // The second piece was freed, and there is another one now.
        assert!(both.are_gone(&pages(0..4, &[1, 3])) && both.are_gone(&pages(2..4, &[3])));
        assert!(pages(2..4, &[2]).are_gone(&pages(0..4, &[1, 3])));
        assert!(!both.are_gone(&pages(0..2, &[1])), "what is known of the first piece does not tell");
        // Of the pages that overlap in part, nothing is told but that there is one allocation in both, or none.
        assert!(!both.are_gone(&pages(2..6, &[2, 4])) && both.are_gone(&pages(2..6, &[3, 4])));
    }
}
