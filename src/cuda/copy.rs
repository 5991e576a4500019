//! Copies ordered with a stream of the caller's, and how one learns that they are done.

use smallvec::SmallVec;

use super::driver::Driver;
use super::gpu::PrimaryContext;
use super::queue::{Copy, CopyDirection, CopyQueue, HostBytes};
use super::sys::{Code, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE, PointerAttribute};
use super::{Gpu, GpuError, GpuSlice, GpuStream};
use crate::mem::{LocalSlice, MemoryRegion, Registration};

/// Says whether a copy is done.
#[derive(Clone, Debug)]
struct CopyTicket {
    gpu: Gpu,
    direction: CopyDirection,
    number: u64,
}

impl CopyTicket {
    /// True once the copy, and all that were asked for before it the same way, are done: the bytes are there, and the
    /// memory that they came from may change. It does not wait.
    ///
    /// # Errors
    /// Work of this process on the GPU failed; the copy is over, and was not made.
    fn is_done(&self) -> Result<bool, GpuError> {
        queue(&self.gpu, self.direction).is_done(self.number)
    }
}

fn queue(gpu: &Gpu, direction: CopyDirection) -> &CopyQueue {
    match direction {
        CopyDirection::ToHost => &gpu.inner().out,
        CopyDirection::FromHost => &gpu.inner().into,
    }
}

/// Copies that are under way, of which the newest of each GPU and direction tells about those before it.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    tickets: SmallVec<[CopyTicket; 1]>,
    /// The first fault, which is told once no copy is under way any more.
    fault: Option<GpuError>,
}

impl Tickets {
    fn add(&mut self, ticket: CopyTicket) {
        let same = |other: &&mut CopyTicket| other.gpu.is(&ticket.gpu) && other.direction == ticket.direction;
        match self.tickets.iter_mut().find(same) {
            Some(other) => *other = ticket,
            None => self.tickets.push(ticket),
        }
    }

    /// True once all of them are done. It does not wait.
    ///
    /// # Errors
    /// Work of this process on a GPU failed; all copies are over, at least one was not made, and they are not told of
    /// again.
    pub(crate) fn are_done(&mut self) -> Result<bool, GpuError> {
        while let Some(ticket) = self.tickets.last() {
            match ticket.is_done() {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(fault) => self.fault = self.fault.take().or(Some(fault)),
            }
            self.tickets.pop();
        }
        self.fault.take().map_or(Ok(true), Err)
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
        let host = HostBytes::Region(into.region().clone());
        self.copy(CopyDirection::ToHost, from, host, into.offset(), under_way)
    }

    /// Copies to `into`, memory of the GPU, what the host's region has from `offset` on, behind what this stream has
    /// now. What it gets later waits for the copy.
    ///
    /// # Errors
    /// As [`copy_to_host`](Self::copy_to_host).
    pub(crate) fn copy_from_host(
        &self,
        host: HostBytes,
        offset: usize,
        into: &GpuSlice,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        self.copy(CopyDirection::FromHost, into, host, offset, under_way)
    }

    fn copy(
        &self,
        direction: CopyDirection,
        device: &GpuSlice,
        host: HostBytes,
        offset: usize,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        let (gpu, primary) = (self.gpu(), &self.gpu().inner().primary);
        if device.primary().context() != primary.context() {
            let (pointer, found) = (device.pointer(), device.primary().ordinal());
            return Err(GpuError::OtherDevice { pointer, ordinal: primary.ordinal(), found });
        }
        lock(primary, host.region())?;
        let copy = Copy { direction, device: device.clone(), host, offset, stream: self.handle() };
        let (number, copied) = queue(gpu, direction).copy(copy);
        if let Some(number) = number {
            under_way.add(CopyTicket { gpu: gpu.clone(), direction, number });
        }
        copied
    }
}

/// Locks a region's memory for copies of all GPUs of this process, unless it is. It stays so until the region is gone.
fn lock(primary: &PrimaryContext, region: &MemoryRegion) -> Result<(), GpuError> {
    region.register_once(|host| {
        let memory = host.as_volatile();
        let (begin, bytes) = (memory.as_ptr(), memory.len());
        let refused = |reason: &str| Err(GpuError::Host { reason: reason.into() });
        let locked = |begin| Box::new(Locked { primary: primary.clone(), begin }) as Box<dyn Registration>;
        primary.within(|driver| {
            // SAFETY: the region undoes its registrations before its memory goes.
            match unsafe {
                driver.register_host(begin, bytes, HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP)
            } {
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
