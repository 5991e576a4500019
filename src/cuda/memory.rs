//! Memory of a GPU: the caller's, used where it lies, this library's own, or a part of a peer's that it lends.

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::direct::GpuRegistration;
use super::driver::{Allocation, DevicePointer, Driver};
use super::gpu::PrimaryContext;
use super::lent::{Borrowed, Lender, Opened};
use super::sys::{Code, MEMORY_TYPE_DEVICE, PointerAttribute};
use super::{Gpu, GpuError};
use crate::mem::OutOfBounds;

/// Memory of a GPU. Clones are the same memory, which lives until the last clone, the last slice and the last copy that
/// uses it are gone. That a copy is over is noticed when somebody asks for its end, or by the next copy the same way.
///
/// Its bytes are never read or written by the processor: they are copied by the GPU.
#[derive(Clone)]
pub struct GpuMemory {
    block: Arc<GpuBlock>,
}

pub(super) struct GpuBlock {
    pub(super) primary: PrimaryContext,
    pub(super) pointer: DevicePointer,
    pub(super) bytes: usize,
    pub(super) backing: GpuBacking,
    /// False where it is a peer's, and this process may only read it.
    is_writable: bool,
    /// With RDMA devices. They are undone before the memory goes.
    registrations: Mutex<Vec<Arc<GpuRegistration>>>,
}

pub(super) enum GpuBacking {
    Own(Allocation),
    /// The caller's, whose owner is dropped once no slice, no copy and no peer uses the memory any more.
    Caller(Lender),
    /// The caller's of another process, which peers of that one read.
    Opened(Opened),
    /// A part of a peer's, which its kernels and copies write and this process reads alone.
    Lent {
        _whole: GpuMemory,
    },
}

impl GpuMemory {
    /// The caller's memory where it lies: `bytes` from `pointer` on, a tensor say. Neither needs any alignment. `owner`
    /// is dropped once nothing uses the memory any more, neither a value of this type nor a copy that is under way, nor
    /// a process of this host that reads frames in it ([`PublisherOptions`](crate::weights::PublisherOptions)); it is
    /// any value that keeps the memory alive, and must not wait for a copy when it is dropped. An allocator that
    /// reuses a freed block at once, as PyTorch's does, would otherwise give it out while it is copied.
    ///
    /// # Errors
    /// The range is not memory of this GPU, is managed memory or memory of another context than the primary one, or was
    /// not allocated as a whole.
    ///
    /// # Safety
    /// The range stays allocated until `owner` is dropped. The caller orders its own work with the copies: by the
    /// streams that it names, and by waiting for copies from this memory before it changes the memory.
    pub unsafe fn of_caller(
        gpu: &Gpu,
        pointer: u64,
        bytes: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<GpuMemory, GpuError> {
        let primary = gpu.inner().primary.clone();
        expect_memory_of(&primary, pointer, bytes)?;
        Ok(GpuMemory::new(primary, pointer, bytes, GpuBacking::Caller(Lender::new(owner)), true))
    }

    /// `bytes` of memory of this library's own on the GPU. It is freed with its last clone, also while kernels of the
    /// caller's use it.
    ///
    /// # Errors
    /// The GPU is out of memory, or `bytes` is 0.
    pub fn allocate(gpu: &Gpu, bytes: usize) -> Result<GpuMemory, GpuError> {
        if bytes == 0 {
            return Err(GpuError::Empty);
        }
        let primary = gpu.inner().primary.clone();
        let allocation = primary.within(|driver| {
            let allocated = driver.allocate(primary.device(), bytes);
            allocated.map_err(|code| match primary.error("allocating memory of a GPU", code) {
                GpuError::OutOfMemory { operation, ordinal, .. } => {
                    GpuError::OutOfMemory { operation, ordinal, bytes: Some(bytes) }
                }
                error => error,
            })
        })?;
        Ok(GpuMemory::new(primary, allocation.pointer, bytes, GpuBacking::Own(allocation), true))
    }

    /// Maps `bytes` of memory that another process of this host has allocated and exported, for this GPU, or for the
    /// GPU that the memory is on if this one has no peer access to it. It stays allocated until the last process has
    /// released it. Memory of the caller's that this process has lent is used itself. Returns the GPU whose memory it
    /// is from now on.
    ///
    /// # Errors
    /// The descriptor is none of memory of a GPU, the memory has another length, or this process cannot use the GPU
    /// that it is on.
    pub(crate) fn import(
        gpu: &Gpu,
        file: BorrowedFd<'_>,
        bytes: usize,
        is_writable: bool,
    ) -> Result<(Gpu, GpuMemory), GpuError> {
        const MAPPING: &str = "mapping memory of a GPU that a peer has granted";
        let borrowed = Borrowed::receive(file)?;
        if let Some(own) = borrowed.as_ref().and_then(|borrowed| borrowed.own(gpu)) {
            let is_here = own.whole().is_of(gpu);
            let by = if is_here { gpu.clone() } else { gpu.sibling(own.block.primary.ordinal())? };
            return Ok((by, own));
        }
        let map = |gpu: &Gpu| {
            if let Some(borrowed) = &borrowed {
                return borrowed.open(gpu, bytes, is_writable);
            }
            let primary = gpu.inner().primary.clone();
            let device = primary.device();
            let allocation =
                primary.call(MAPPING, |driver| driver.import(device, file, bytes, is_writable))?;
            let backing = GpuBacking::Own(allocation);
            Ok(GpuMemory::new(primary, allocation.pointer, bytes, backing, is_writable))
        };
        let refused = match map(gpu) {
            Ok(memory) => return Ok((Gpu::clone(gpu), memory)),
            Err(error) => error,
        };
        let device = gpu.inner().primary.device();
        let out_of_reach = gpu.inner().primary.call(MAPPING, |driver| {
            let home = borrowed.as_ref().map_or_else(|| driver.home(file), |memory| memory.home(driver))?;
            let is_reached = home == device || driver.reaches(device, home)?;
            // Devices are numbered as their ordinals are.
            Ok(if is_reached { None } else { u32::try_from(home).ok() })
        })?;
        let home = gpu.sibling(out_of_reach.ok_or(refused)?)?;
        let memory = map(&home)?;
        Ok((home, memory))
    }

    /// The handle by which another process of this host maps it, and the length to map: all of the caller's memory,
    /// or the whole [allocation](Self::allocate) of this library, which has whole units of the device.
    ///
    /// # Errors
    /// The memory is the caller's and of a kind that is not passed on, or a peer's; or the driver refuses.
    pub(crate) fn export(&self) -> Result<(OwnedFd, usize), GpuError> {
        let GpuBlock { primary, pointer, bytes, backing, .. } = &*self.block;
        match backing {
            GpuBacking::Own(allocation) => {
                let exported = primary.call("exporting memory of a GPU", |driver| driver.export(*allocation));
                Ok((exported?, allocation.bytes))
            }
            GpuBacking::Caller(lender) => Ok((self.lend(lender)?, *bytes)),
            GpuBacking::Opened(_) | GpuBacking::Lent { .. } => Err(GpuError::NotOurs { pointer: *pointer }),
        }
    }

    /// Checks that the driver passes it to other processes of this host.
    ///
    /// # Errors
    /// As [`export`](Self::export).
    pub(crate) fn expect_exported(&self) -> Result<(), GpuError> {
        match self.block.backing {
            GpuBacking::Caller(_) => self.shared_handle().map(drop),
            GpuBacking::Own(_) => Ok(()),
            GpuBacking::Opened(_) | GpuBacking::Lent { .. } => {
                Err(GpuError::NotOurs { pointer: self.block.pointer })
            }
        }
    }

    pub(super) fn of_block(block: Arc<GpuBlock>) -> GpuMemory {
        GpuMemory { block }
    }

    pub(super) fn new(
        primary: PrimaryContext,
        pointer: DevicePointer,
        bytes: usize,
        backing: GpuBacking,
        is_writable: bool,
    ) -> GpuMemory {
        let registrations = Mutex::default();
        let block = GpuBlock { primary, pointer, bytes, backing, is_writable, registrations };
        GpuMemory { block: Arc::new(block) }
    }

    pub(super) fn block(&self) -> &Arc<GpuBlock> {
        &self.block
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.block.bytes
    }

    /// The address of its first byte, for kernels and copies of the caller's.
    pub fn pointer(&self) -> u64 {
        self.block.pointer
    }

    /// `bytes` from `offset` on.
    ///
    /// # Errors
    /// They do not lie inside it.
    pub fn slice(&self, offset: usize, bytes: usize) -> Result<GpuSlice, OutOfBounds> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes() => Ok(GpuSlice { memory: self.clone(), offset, bytes }),
            _ => {
                let available = self.bytes() as u64;
                Err(OutOfBounds { offset: offset as u64, len: bytes as u64, available })
            }
        }
    }

    /// All of it.
    pub fn whole(&self) -> GpuSlice {
        GpuSlice { memory: self.clone(), offset: 0, bytes: self.bytes() }
    }
}

impl GpuBlock {
    pub(super) fn registrations(&self) -> MutexGuard<'_, Vec<Arc<GpuRegistration>>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GpuBlock {
    fn drop(&mut self) {
        self.registrations().clear();
        // The last slice is gone, and copies that are under way hold one.
        match &self.backing {
            GpuBacking::Own(allocation) => {
                // SAFETY: as above.
                self.primary
                    .give_back("freeing memory of a GPU", |driver| unsafe { driver.free(*allocation) });
            }
            GpuBacking::Opened(opened) => {
                // SAFETY: as above.
                let close = |driver: &dyn Driver| unsafe { driver.close_shared(opened.begin) };
                self.primary.give_back("closing memory that a peer shares", close);
            }
            GpuBacking::Caller(_) | GpuBacking::Lent { .. } => {}
        }
    }
}

/// Equal are clones: one block of memory.
impl PartialEq for GpuMemory {
    fn eq(&self, other: &GpuMemory) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }
}

impl Eq for GpuMemory {}

impl fmt::Debug for GpuMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GpuBlock { primary, bytes, .. } = &*self.block;
        f.debug_struct("GpuMemory").field("gpu", &primary.ordinal()).field("bytes", bytes).finish()
    }
}

/// A range of memory of a GPU, which keeps the memory alive.
#[derive(Clone, Debug)]
pub struct GpuSlice {
    memory: GpuMemory,
    offset: usize,
    bytes: usize,
}

impl GpuSlice {
    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `bytes` from `offset` (counted from the slice's own begin) on.
    ///
    /// # Errors
    /// They do not lie inside it.
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> Result<GpuSlice, OutOfBounds> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => self.memory.slice(self.offset + offset, bytes),
            _ => {
                let available = self.bytes as u64;
                Err(OutOfBounds { offset: offset as u64, len: bytes as u64, available })
            }
        }
    }

    /// True if it is memory of this GPU.
    pub(crate) fn is_of(&self, gpu: &Gpu) -> bool {
        self.primary().context() == gpu.inner().primary.context()
    }

    /// The range as memory of its own, which nothing of this process may write: it is a peer's.
    pub(crate) fn lent(&self) -> GpuMemory {
        let backing = GpuBacking::Lent { _whole: self.memory.clone() };
        GpuMemory::new(self.primary().clone(), self.pointer(), self.bytes, backing, false)
    }

    /// True if work of this process may write it: it is not a peer's, granted for reading only.
    pub(crate) fn is_writable(&self) -> bool {
        self.memory.block.is_writable
    }

    /// Checks that.
    ///
    /// # Errors
    /// It is lent by a peer.
    pub(crate) fn expect_own(&self) -> Result<(), GpuError> {
        if self.is_writable() { Ok(()) } else { Err(GpuError::Lent { pointer: self.pointer() }) }
    }

    /// The memory that it is a range of.
    #[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "RDMA alone registers it"))]
    pub(crate) fn memory(&self) -> &GpuMemory {
        &self.memory
    }

    pub(crate) fn pointer(&self) -> DevicePointer {
        self.memory.pointer() + self.offset as u64
    }

    pub(super) fn primary(&self) -> &PrimaryContext {
        &self.memory.block.primary
    }
}

/// Checks that a range is memory of the GPU at `primary`, and allocated.
fn expect_memory_of(primary: &PrimaryContext, pointer: DevicePointer, bytes: usize) -> Result<(), GpuError> {
    if bytes == 0 {
        return Err(GpuError::Empty);
    }
    primary.within(|driver| {
        // Of memory that is mapped piece by piece, as PyTorch's expandable segments are, the driver reports one piece
        // at a time. Behind an allocation of `cuMemAlloc` lies another one, which is none of its pieces.
        let is_one_piece = |at| {
            driver.pointer_attribute(PointerAttribute::IS_LEGACY_CUDA_IPC_CAPABLE, at).is_ok_and(|is| is != 0)
        };
        let mut available = 0;
        while available < bytes {
            let at = pointer + available as u64;
            let left = match available > 0 && (is_one_piece(pointer) || is_one_piece(at)) {
                false => piece_of(primary, driver, at)?,
                true => None,
            };
            match left {
                Some(left) => available += left,
                None if available == 0 => {
                    // Plain host memory is not known to the driver.
                    return Err(GpuError::NotOnDevice { pointer, kind: "memory that CUDA does not know" });
                }
                None => return Err(GpuError::BeyondAllocation { pointer, bytes, available }),
            }
        }
        Ok(())
    })
}

/// The length of a piece of memory from `at` to its end, if it is one of the GPU at `primary`; `None` if the driver
/// knows none there.
fn piece_of(
    primary: &PrimaryContext,
    driver: &dyn Driver,
    at: DevicePointer,
) -> Result<Option<usize>, GpuError> {
    let not_on_device = |kind| Err(GpuError::NotOnDevice { pointer: at, kind });
    let of = |attribute| driver.pointer_attribute(attribute, at);
    let failed = |code| primary.error("asking for the memory of a pointer", code);
    match of(PointerAttribute::MEMORY_TYPE) {
        Err(Code::INVALID_VALUE) => return Ok(None),
        Err(code) => return Err(failed(code)),
        Ok(kind) if kind == u64::from(MEMORY_TYPE_DEVICE) => {}
        Ok(_) => return not_on_device("host memory"),
    }
    if of(PointerAttribute::IS_MANAGED).map_err(failed)? != 0 {
        return not_on_device("managed memory");
    }
    let (ordinal, found) = (primary.ordinal(), of(PointerAttribute::DEVICE_ORDINAL).map_err(failed)? as u32);
    if found != ordinal {
        return Err(GpuError::OtherDevice { pointer: at, ordinal, found });
    }
    match of(PointerAttribute::CONTEXT) {
        Ok(0) | Err(Code::INVALID_VALUE) => {}
        Ok(context) if context == primary.context().0 as u64 => {}
        Ok(_) => return Err(GpuError::OtherContext { what: "memory", ordinal }),
        Err(code) => return Err(failed(code)),
    }
    match driver.address_range(at) {
        Ok((begin, length)) => {
            Ok((begin + length as u64).checked_sub(at).filter(|left| *left > 0).map(|left| left as usize))
        }
        Err(Code::INVALID_VALUE | Code::NOT_FOUND) => Ok(None),
        Err(code) => Err(failed(code)),
    }
}
