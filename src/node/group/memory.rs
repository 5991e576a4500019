//! The memory of a member's parameters, on the host or on a GPU, and the ways in which the mean of a part gets there.
//!
//! A processor copies and averages at once. A GPU takes a while, and no call here waits for it: its work is complete
//! once [`GroupMemory::is_quiet`] returns true, and no step that depends on it begins before.

use std::ops::Range;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

use smallvec::SmallVec;

#[cfg(feature = "cuda")]
use super::on_gpu::GroupGpu;
#[cfg(feature = "cuda")]
use crate::cuda::GpuError;
use crate::kernel;
use crate::mem::{Buffer, LocalSlice, OutOfBounds, Streaming, VolatileSlice};
use crate::node::Error;
use crate::node::copies::Copies;
use crate::node::worker::private;
use crate::param::{GroupLayout, MAX_MEMBERS};
use crate::transport::{PayloadSlice, Transport};

/// Two buffers: one holds the parameters; in the other the next mean is put together, and then they swap. The
/// parameters are never a mixture.
pub(super) struct GroupMemory {
    pub(super) buffers: GroupBuffers,
    pub(super) current: usize,
    /// The copies that were given to GPUs.
    pub(super) copies: Copies,
    /// The fault of a GPU with which some of these failed: the content of the parameters is unknown from then on.
    #[cfg(feature = "cuda")]
    fault: OnceLock<GpuError>,
}

pub(super) enum GroupBuffers {
    Host([Buffer; 2]),
    #[cfg(feature = "cuda")]
    Gpu(Box<GroupGpu>),
}

impl GroupMemory {
    /// Zeroed, for all parameters of one of so many members.
    pub(super) fn new<T: Transport>(
        transport: &T,
        layout: GroupLayout,
        members: usize,
    ) -> Result<Self, Error> {
        let buffer = || private(transport, layout.bytes() as u64);
        let buffers = match transport.gpu() {
            None => GroupBuffers::Host([buffer()?, buffer()?]),
            #[cfg(feature = "cuda")]
            Some(gpu) => GroupBuffers::Gpu(Box::new(GroupGpu::new(transport, gpu, layout, members)?)),
            #[cfg(not(feature = "cuda"))]
            Some(gpu) => {
                let _ = members;
                match *gpu {}
            }
        };
        Ok(GroupMemory {
            buffers,
            current: 0,
            copies: Copies::default(),
            #[cfg(feature = "cuda")]
            fault: OnceLock::new(),
        })
    }

    /// The parameters' values.
    pub(super) fn values(&self) -> Result<&[f32], Error> {
        // Complete copies of a GPU are released.
        self.is_quiet()?;
        match &self.buffers {
            GroupBuffers::Host(buffers) => buffers[self.current].f32s().ok_or(IN_FLIGHT),
            #[cfg(feature = "cuda")]
            GroupBuffers::Gpu(_) => Err(LENDS.into()),
        }
    }

    /// The same, to change them.
    pub(super) fn values_mut(&mut self) -> Result<&mut [f32], Error> {
        self.is_quiet()?;
        match &mut self.buffers {
            GroupBuffers::Host(buffers) => buffers[self.current].f32s_mut().ok_or(IN_FLIGHT),
            #[cfg(feature = "cuda")]
            GroupBuffers::Gpu(_) => Err(LENDS.into()),
        }
    }

    /// A range of the parameters.
    pub(super) fn parameters(&mut self, range: Range<usize>) -> Result<PayloadSlice, OutOfBounds> {
        self.buffers.slice(self.current, range)
    }

    /// A range of the memory in which the mean is put together.
    pub(super) fn next(&mut self, range: Range<usize>) -> Result<PayloadSlice, OutOfBounds> {
        self.buffers.slice(1 - self.current, range)
    }

    /// The mean becomes the parameters.
    pub(super) fn swap(&mut self) {
        self.current = 1 - self.current;
    }

    /// True once all work that was given to GPUs is complete: copies of the caller's, and the copies and kernels of a
    /// round. It does not wait.
    ///
    /// # Errors
    /// Work of this process on a GPU failed. None is under way any more, and some was not made. It stays so.
    pub(super) fn is_quiet(&self) -> Result<bool, Error> {
        let are_done = self.copies.are_done();
        #[cfg(feature = "cuda")]
        {
            if let Err(Error::Gpu(fault)) = &are_done {
                let _first = self.fault.set(fault.clone());
            }
            if let Some(fault) = self.fault.get() {
                return Err(fault.clone().into());
            }
        }
        Ok(are_done? || mutant!("group_mean_before_its_copies"))
    }

    /// An unfinished mean has to begin again.
    pub(super) fn forget_mean(&mut self) {
        #[cfg(feature = "cuda")]
        if let GroupBuffers::Gpu(gpu) = &mut self.buffers {
            gpu.forget_mean();
        }
    }

    /// Copies a part of the mean, which another member has made, to where the mean is put together. True if it is
    /// there; else it is once all is quiet.
    pub(super) fn take(&mut self, from: LocalSlice, range: Range<usize>) -> Result<bool, Error> {
        let next = 1 - self.current;
        match &mut self.buffers {
            GroupBuffers::Host(buffers) => {
                let to = buffers[next].slice(range.start, range.len())?;
                to.as_volatile().copy_from(from.as_volatile(), Streaming::ByLength);
                Ok(true)
            }
            #[cfg(feature = "cuda")]
            GroupBuffers::Gpu(gpu) => gpu.take(from, next, range, self.copies.tickets()),
        }
    }

    /// Makes the mean of this range where the mean is put together: of `summands` in their order, among which `None` is
    /// this member's own. True if it is there; else this is to be called again, with the same summands, once all is
    /// quiet.
    pub(super) fn average(
        &mut self,
        summands: &[Option<LocalSlice>],
        range: Range<usize>,
    ) -> Result<bool, Error> {
        let (own, next) = (self.current, 1 - self.current);
        match &mut self.buffers {
            GroupBuffers::Host(buffers) => {
                let own = buffers[own].slice(range.start, range.len())?;
                let mean = buffers[next].slice(range.start, range.len())?;
                let summands = summands.iter().map(|of| of.as_ref().unwrap_or(&own).as_volatile());
                // Room for the most summands that there can be.
                let summands: SmallVec<[VolatileSlice<'_>; MAX_MEMBERS]> = summands.collect();
                kernel::mean(&summands, mean.as_volatile());
                Ok(true)
            }
            #[cfg(feature = "cuda")]
            GroupBuffers::Gpu(gpu) => gpu.average(summands, [own, next], range, self.copies.tickets()),
        }
    }
}

impl GroupBuffers {
    fn slice(&mut self, index: usize, range: Range<usize>) -> Result<PayloadSlice, OutOfBounds> {
        match self {
            GroupBuffers::Host(buffers) => {
                buffers[index].slice(range.start, range.len()).map(PayloadSlice::Host)
            }
            #[cfg(feature = "cuda")]
            GroupBuffers::Gpu(gpu) => gpu.slice(index, range).map(PayloadSlice::Gpu),
        }
    }
}

const IN_FLIGHT: Error = Error::InFlight { what: "parameters" };

#[cfg(feature = "cuda")]
const LENDS: GpuError =
    GpuError::OnGpu { operation: "lend the parameters of a group's member to processors" };
