//! Copies ordered with a stream of the caller's, and how one learns that they are done.

use std::time::Duration;

use smallvec::SmallVec;

use super::driver::{DevicePointer, Driver};
use super::gpu::PrimaryContext;
use super::queue::{CallersStream, GpuQueue, GpuWork, HostBytes, QueueKind};
use super::sys::{
    Code, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE, HOST_REGISTER_READ_ONLY, PointerAttribute,
};
use super::{Gpu, GpuError, GpuSlice, GpuStream};
use crate::mem::{LocalSlice, MemoryRegion, Registration};

/// Says whether a copy is done.
#[derive(Clone, Debug)]
struct CopyTicket {
    gpu: Gpu,
    kind: QueueKind,
    number: u64,
}

impl CopyTicket {
    /// True once the copy, and all that were asked for before it the same way, are done: the bytes are there, and the
    /// memory that they came from may change. It does not wait.
    ///
    /// # Errors
    /// Work of this process on the GPU failed; the copy is over, and was not made.
    fn is_done(&self) -> Result<bool, GpuError> {
        queue(&self.gpu, self.kind).is_done(self.number)
    }

    fn unanswered(&self) -> Option<GpuError> {
        queue(&self.gpu, self.kind).unanswered()
    }
}

fn queue(gpu: &Gpu, kind: QueueKind) -> &GpuQueue {
    match kind {
        QueueKind::ToHost => &gpu.inner().out,
        QueueKind::FromHost => &gpu.inner().into,
        QueueKind::Within => &gpu.inner().within,
        QueueKind::Folds => &gpu.inner().folds,
    }
}

/// Copies that are under way, of which the newest of each stream tells about those before it.
#[derive(Clone, Debug, Default)]
pub struct Tickets {
    tickets: SmallVec<[CopyTicket; 1]>,
    /// The first fault, which is told once no copy is under way any more.
    fault: Option<GpuError>,
}

impl Tickets {
    fn add(&mut self, ticket: CopyTicket) {
        let same = |other: &&mut CopyTicket| other.gpu.is(&ticket.gpu) && other.kind == ticket.kind;
        match self.tickets.iter_mut().find(same) {
            Some(other) => *other = ticket,
            None => self.tickets.push(ticket),
        }
    }

    /// A copy was refused, of which something may be under way all the same.
    pub(crate) fn fail(&mut self, fault: GpuError) {
        self.fault = self.fault.take().or(Some(fault));
    }

    /// True once all of them are done. It does not wait.
    ///
    /// # Errors
    /// Work of this process on a GPU failed; all copies are over, at least one was not made, and they are not told of
    /// again.
    pub fn are_done(&mut self) -> Result<bool, GpuError> {
        while let Some(ticket) = self.tickets.last() {
            match ticket.is_done() {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(fault) => self.fail(fault),
            }
            self.tickets.pop();
        }
        self.fault.take().map_or(Ok(true), Err)
    }

    /// What a driver answers instead of telling whether they are done. They may never be, and what they use is kept.
    pub(crate) fn unanswered(&self) -> Option<GpuError> {
        self.tickets.iter().find_map(CopyTicket::unanswered)
    }

    /// The error that they are not done after so long.
    pub(crate) fn late(&self, waited: Duration) -> GpuError {
        GpuError::NotCopied { waited, cause: self.unanswered().map(Box::new) }
    }
}

impl GpuStream {
    /// Copies `from`, memory of the GPU, to `into`, which is as long, behind what this stream has now.
    ///
    /// # Errors
    /// The memory is that of another GPU, the stream is capturing, or the driver refuses the copy. Where it fails late,
    /// the copy may still be made, and `under_way` has it.
    pub(crate) fn copy_to_host(
        &self,
        from: &GpuSlice,
        into: &LocalSlice,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        let (host, offset) = (HostBytes::Region(into.region().clone()), into.offset());
        self.put(GpuWork::ToHost { from: from.clone(), host, offset }, false, under_way)
    }

    /// Copies to `into`, memory of the GPU, what the host's region has from `offset` on, behind what this stream has
    /// now. What it gets later waits for the copy.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host), or `into` is memory that a peer lends.
    pub(crate) fn copy_from_host(
        &self,
        host: HostBytes,
        offset: usize,
        into: &GpuSlice,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        into.expect_own()?;
        self.put(GpuWork::FromHost { host, offset, into: into.clone() }, true, under_way)
    }

    /// Copies `from` to `into`, which is as long, both memory of the GPU, behind what this stream has now.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    pub(crate) fn copy_within(
        &self,
        from: &GpuSlice,
        into: &GpuSlice,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        self.put(GpuWork::Within { from: from.clone(), into: into.clone() }, false, under_way)
    }

    /// Copies `from` to `into`, which is as long, both memory of the GPU, behind what this stream has now, and does not
    /// wait for it. What the stream gets later waits for the copy. Both are kept until it is done.
    ///
    /// # Errors
    /// The lengths differ, the memory is that of another GPU, the stream is capturing, or the driver refuses the copy.
    #[doc(hidden)]
    pub fn copy(&self, from: &GpuSlice, into: &GpuSlice) -> Result<(), GpuError> {
        if from.bytes() != into.bytes() {
            let (pointer, bytes, available) = (into.pointer(), from.bytes(), into.bytes());
            return Err(GpuError::BeyondAllocation { pointer, bytes, available });
        }
        // Nothing waits for its end.
        self.copy_within_before(from, into, &mut Tickets::default())
    }

    /// As [`copy_within`](Self::copy_within). What the stream gets later waits for the copy.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    pub(crate) fn copy_within_before(
        &self,
        from: &GpuSlice,
        into: &GpuSlice,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        self.put(GpuWork::Within { from: from.clone(), into: into.clone() }, true, under_way)
    }

    /// Makes `into`, memory of the GPU, zero, behind what this stream has now, and does not wait for it. What the
    /// stream gets later, and later copies within the GPU, come behind that.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    #[doc(hidden)]
    pub fn clear(&self, into: &GpuSlice) -> Result<(), GpuError> {
        // Nothing waits for its end.
        self.put(GpuWork::Clear { into: into.clone() }, true, &mut Tickets::default())
    }

    /// Has all copies that are asked for later wait for what this stream has now.
    ///
    /// # Errors
    /// The stream is capturing, or the driver refuses.
    #[doc(hidden)]
    pub fn hold_copies(&self) -> Result<(), GpuError> {
        let inner = self.gpu().inner();
        [&inner.out, &inner.into, &inner.within]
            .into_iter()
            .try_for_each(|queue| queue.wait_for_stream(self.handle()))
    }

    /// Has what this stream gets later wait for all copies to host memory that were asked for so far.
    ///
    /// # Errors
    /// The stream is capturing, or the driver refuses.
    pub(crate) fn wait_for_copies_to_host(&self) -> Result<(), GpuError> {
        self.gpu().inner().out.hold_stream(self.handle())
    }

    /// Has what this stream gets later wait for all copies to the GPU that were asked for so far.
    ///
    /// # Errors
    /// The stream is capturing, or the driver refuses.
    pub(crate) fn wait_for_copies(&self) -> Result<(), GpuError> {
        let inner = self.gpu().inner();
        [&inner.into, &inner.within].into_iter().try_for_each(|queue| queue.hold_stream(self.handle()))
    }

    pub(super) fn put(&self, work: GpuWork, waits: bool, under_way: &mut Tickets) -> Result<(), GpuError> {
        let stream = CallersStream { handle: self.handle(), waits };
        self.gpu().put(work, Some(stream), under_way)
    }
}

/// A copy that is ordered by the processor: its source is there when it is asked for, and its destination is free.
#[derive(Clone, Debug)]
pub(crate) enum GpuCopy {
    /// To host memory.
    ToHost { from: GpuSlice, into: LocalSlice },
    /// From host memory.
    FromHost { from: LocalSlice, into: GpuSlice },
    /// Within memory of the GPU.
    Within { from: GpuSlice, into: GpuSlice },
}

impl GpuCopy {
    /// True if both are done in the order in which they are asked for.
    pub(crate) fn is_ordered_with(&self, other: &GpuCopy) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Gpu {
    /// Copies behind the copies the same way that were asked for before.
    ///
    /// # Errors
    /// As [`GpuStream::copy_to_host`].
    pub(crate) fn copy(&self, copy: GpuCopy, under_way: &mut Tickets) -> Result<(), GpuError> {
        let region = |slice: &LocalSlice| HostBytes::Region(slice.region().clone());
        let work = match copy {
            GpuCopy::ToHost { from, into } => {
                GpuWork::ToHost { from, host: region(&into), offset: into.offset() }
            }
            GpuCopy::FromHost { from, into } => {
                GpuWork::FromHost { host: region(&from), offset: from.offset(), into }
            }
            GpuCopy::Within { from, into } => GpuWork::Within { from, into },
        };
        self.put(work, None, under_way)
    }

    /// The same, of a piece of a payload that goes through host memory on its way to or from a peer.
    ///
    /// # Errors
    /// As [`copy`](Self::copy).
    pub(crate) fn copy_staged(&self, copy: GpuCopy, under_way: &mut Tickets) -> Result<(), GpuError> {
        let (GpuCopy::ToHost { from: piece, .. }
        | GpuCopy::FromHost { into: piece, .. }
        | GpuCopy::Within { into: piece, .. }) = &copy;
        self.inner().staged.fetch_add(piece.bytes() as u64, std::sync::atomic::Ordering::Relaxed);
        self.copy(copy, under_way)
    }

    /// Has later copies to host memory wait for all copies from there that were asked for so far.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn order_copies_to_host(&self) -> Result<(), GpuError> {
        let inner = self.inner();
        inner.into.hold_queue(&inner.out)
    }

    /// Makes memory of the GPU zero, behind the copies within the GPU that were asked for before.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn clear(&self, into: GpuSlice, under_way: &mut Tickets) -> Result<(), GpuError> {
        self.put(GpuWork::Clear { into }, None, under_way)
    }

    pub(super) fn put(
        &self,
        work: GpuWork,
        stream: Option<CallersStream>,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        self.prepare(&work)?;
        let kind = work.kind();
        let (number, issued) = queue(self, kind).put(work, stream);
        if let Some(number) = number {
            under_way.add(CopyTicket { gpu: self.clone(), kind, number });
        }
        issued
    }

    /// Checks that work is of this GPU alone, and locks the host memory that it uses.
    pub(super) fn prepare(&self, work: &GpuWork) -> Result<(), GpuError> {
        work.slices().try_for_each(|slice| self.expect(slice))?;
        if let Some(region) = work.region() {
            lock(&self.inner().primary, region)?;
        }
        Ok(())
    }
}

/// Locks a region's memory for copies of all GPUs of this process, unless it is. It stays so until the region is gone.
pub(super) fn lock(primary: &PrimaryContext, region: &MemoryRegion) -> Result<(), GpuError> {
    region.register_once(|host| {
        let memory = host.as_volatile();
        let (begin, bytes) = (memory.as_ptr(), memory.len());
        let refused = |reason: &str| Err(GpuError::Host { reason: reason.into() });
        let locked = |begin| Box::new(Locked { primary: primary.clone(), begin }) as Box<dyn Registration>;
        // Of memory that a peer has granted for reading only, the mapping is read-only, too.
        let flags = HOST_REGISTER_PORTABLE
            | if host.is_writable() { HOST_REGISTER_DEVICEMAP } else { HOST_REGISTER_READ_ONLY };
        primary.within(|driver| {
            // SAFETY: the region undoes its registrations before its memory goes.
            match unsafe { register(driver, begin, bytes, flags) } {
                Ok(_) => Ok(locked(Some(begin.expose_provenance()))),
                // The caller has locked its own memory, as PyTorch does with pinned tensors. A part is not enough, and
                // of memory of ours it is the registration of some earlier mapping.
                Err(Code::HOST_MEMORY_ALREADY_REGISTERED) => {
                    match host.is_of_caller() && covers(driver, begin.addr() as u64, bytes as u64) {
                        true => Ok(locked(None)),
                        false => {
                            refused("CUDA knows a part of it already: unregister that, or give other memory")
                        }
                    }
                }
                Err(Code::OUT_OF_MEMORY) => {
                    refused("the system locks no more memory: free memory, or make the tables smaller")
                }
                Err(code) => Err(primary.error("locking host memory for copies of a GPU", code)),
            }
        })
    })
}

/// Registers host memory with a driver. Where that fails it is not registered, also if the call has taken effect: what
/// is at the same addresses later could not be.
///
/// # Safety
/// As [`Driver::register_host`].
pub(super) unsafe fn register(
    driver: &dyn Driver,
    begin: *mut u8,
    bytes: usize,
    flags: u32,
) -> Result<DevicePointer, Code> {
    // SAFETY: the caller's promise.
    unsafe { driver.register_host(begin, bytes, flags) }.inspect_err(|code| {
        // What was registered before this call stays so.
        if *code != Code::HOST_MEMORY_ALREADY_REGISTERED {
            // SAFETY: nothing was told of the registration, if there is one.
            let _none = unsafe { driver.unregister_host(begin) };
        }
    })
}

/// True if one registration of the driver covers the range.
fn covers(driver: &dyn Driver, begin: u64, bytes: u64) -> bool {
    let of = |attribute| driver.pointer_attribute(attribute, begin).unwrap_or(0);
    let (start, length) = (of(PointerAttribute::RANGE_START), of(PointerAttribute::RANGE_BYTES));
    start <= begin && begin.saturating_add(bytes) <= start.saturating_add(length)
}

/// Host memory that is locked.
struct Locked {
    primary: PrimaryContext,
    /// The address of its first byte, unless the caller locked it.
    begin: Option<usize>,
}

impl Registration for Locked {}

impl Drop for Locked {
    fn drop(&mut self) {
        let Some(begin) = self.begin else { return };
        let undo = |driver: &dyn Driver| {
            // SAFETY: copies hold the region, so none is under way.
            unsafe { driver.unregister_host(std::ptr::with_exposed_provenance_mut(begin)) }
        };
        self.primary.give_back("unregistering host memory", undo);
    }
}
