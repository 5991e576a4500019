//! Payloads of a node, in host memory or on a GPU, and their bytes where a processor has to have them.

use super::Error;
use crate::cuda::Gpu;
#[cfg(not(feature = "cuda"))]
use crate::cuda::GpuMemory;
use crate::kernel::encode;
use crate::mem::{Access, LocalSlice};
use crate::table::Encoding;
use crate::transport::{PayloadMemory, PayloadSlice, Transport};
#[cfg(feature = "cuda")]
pub(super) use on_gpu::of_caller;

/// Zeroed memory for payloads: on the GPU of the transport, if it has one.
pub(super) fn allocate<T: Transport>(
    transport: &T,
    bytes: usize,
    access: Access,
) -> Result<PayloadMemory, Error> {
    match transport.gpu() {
        #[cfg(feature = "cuda")]
        Some(gpu) => {
            let memory = on_gpu::allocate(gpu, bytes)?;
            if access.is_read_only() {
                transport.register_on_gpu(&memory)?;
            }
            Ok(PayloadMemory::Gpu(memory))
        }
        #[cfg(not(feature = "cuda"))]
        Some(gpu) => match *gpu {},
        None => Ok(PayloadMemory::Host(transport.allocate(bytes, access)?)),
    }
}

#[cfg(not(feature = "cuda"))]
pub(super) fn of_caller<T>(_: &T, memory: &GpuMemory, _: usize) -> Result<PayloadMemory, Error> {
    match *memory {}
}

/// The host memory of a payload, for an operation that touches its bytes.
///
/// # Errors
/// It is on a GPU.
pub(super) fn on_host(payload: PayloadSlice, operation: &'static str) -> Result<LocalSlice, Error> {
    match payload {
        PayloadSlice::Host(slice) => Ok(slice),
        #[cfg(feature = "cuda")]
        PayloadSlice::Gpu(_) => Err(crate::cuda::GpuError::OnGpu { operation }.into()),
        #[cfg(not(feature = "cuda"))]
        PayloadSlice::Gpu(slice) => {
            let _ = operation;
            match slice {}
        }
    }
}

/// Copies a payload to `into`, which is as long. From `gpu`, on which it may be, it takes a while, and this waits.
///
/// # Errors
/// The GPU does not copy it, or not in time.
pub(super) fn read(payload: &PayloadSlice, gpu: Option<&Gpu>, into: &mut [u8]) -> Result<(), Error> {
    match (payload, gpu) {
        (PayloadSlice::Host(slice), _) => slice.as_volatile().read(into),
        #[cfg(feature = "cuda")]
        (PayloadSlice::Gpu(slice), Some(gpu)) => on_gpu::read(gpu, slice, into)?,
        (PayloadSlice::Gpu(_), _) => on_host(payload.clone(), "read a payload").map(drop)?,
    }
    Ok(())
}

/// Writes f32 values into a payload, which has room for as many. Where the payload is on `gpu` this waits until the
/// values are there.
///
/// # Errors
/// The GPU does not copy it, or not in time.
pub(super) fn write(payload: &PayloadSlice, gpu: Option<&Gpu>, from: &[f32]) -> Result<(), Error> {
    match (payload, gpu) {
        (PayloadSlice::Host(slice), _) => encode(from, slice.as_volatile(), Encoding::F32),
        #[cfg(feature = "cuda")]
        (PayloadSlice::Gpu(slice), Some(gpu)) => on_gpu::write(gpu, slice, from)?,
        (PayloadSlice::Gpu(_), _) => on_host(payload.clone(), "write a payload").map(drop)?,
    }
    Ok(())
}

#[cfg(feature = "cuda")]
mod on_gpu {
    use crate::cuda::{Gpu, GpuCopy, GpuError, GpuMemory, GpuSlice, Tickets};
    use crate::kernel::encode;
    use crate::mem::{Access, DeviceKeys, HostMemory, LocalSlice, MemoryRegion};
    use crate::node::Error;
    use crate::node::runtime::{Runtime, complete};
    use crate::node::wait::{WaitTurn, wait};
    use crate::table::Encoding;
    use crate::time::Duration;
    use crate::transport::{PayloadMemory, Transport};

    /// Blocks of host memory by way of which payloads of a GPU are read and written: one is copied by the GPU while the
    /// other one is copied by the processor.
    const BLOCKS: usize = 2;
    const BLOCK_BYTES: usize = 2 << 20;

    /// The longest time that a block may take. The GPU does this in a millisecond, unless a kernel holds it up.
    const PATIENCE: Duration = Duration::from_secs(30);

    pub(super) fn allocate(gpu: &Gpu, bytes: usize) -> Result<GpuMemory, Error> {
        let memory = GpuMemory::allocate(gpu, bytes)?;
        clear(gpu, &memory)?;
        Ok(memory)
    }

    /// Memory of the caller's for payloads that peers read, zeroed: on the GPU of the transport, and exactly as long.
    pub(in crate::node) fn of_caller<T: Transport>(
        transport: &T,
        memory: &GpuMemory,
        bytes: usize,
    ) -> Result<PayloadMemory, Error> {
        let refused = |reason| Error::Option {
            option: "gpu_memory",
            value: format!("{} bytes where the frames have {bytes}", memory.bytes()),
            reason,
        };
        let Some(gpu) = transport.gpu() else {
            let reason = "the transport has payloads in host memory: give it the GPU (`with_gpu`), or, over RDMA, a \
                          device that reaches the GPU (`slackline doctor` says why none does)";
            return Err(refused(reason));
        };
        if memory.bytes() != bytes {
            let reason = "it must have the bytes of all frames, each rounded up to a multiple of 4096";
            return Err(refused(reason));
        }
        gpu.expect(&memory.whole())?;
        memory.whole().expect_own()?;
        transport.register_on_gpu(memory)?;
        clear(gpu, memory)?;
        Ok(PayloadMemory::Gpu(memory.clone()))
    }

    /// Makes it zero, and waits for that.
    fn clear(gpu: &Gpu, memory: &GpuMemory) -> Result<(), Error> {
        let mut clearing = Tickets::default();
        gpu.clear(memory.whole(), &mut clearing)?;
        finish(&mut clearing)
    }

    /// Waits for the end of the copies.
    fn finish(copies: &mut Tickets) -> Result<(), Error> {
        let runtime = Runtime::default();
        let copied = wait(&runtime, runtime.now() + PATIENCE, |_| {
            Ok(if copies.are_done()? { WaitTurn::Done(()) } else { WaitTurn::Idle })
        });
        complete(copied)?.ok_or_else(|| copies.late(PATIENCE).into())
    }

    fn blocks(bytes: usize) -> Result<Vec<LocalSlice>, GpuError> {
        let block = || {
            let memory = HostMemory::anonymous(bytes.min(BLOCK_BYTES));
            let memory = memory.map_err(|error| GpuError::Host { reason: error.to_string() })?;
            Ok(MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()).whole())
        };
        (0..BLOCKS).map(|_| block()).collect()
    }

    /// The parts that a payload is copied in: each with its block, and where it begins and ends.
    fn parts(bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let ends = (0..bytes).step_by(BLOCK_BYTES).map(move |begin| (begin, bytes.min(begin + BLOCK_BYTES)));
        ends.enumerate().map(|(index, (begin, end))| (index % BLOCKS, begin, end))
    }

    pub(super) fn read(gpu: &Gpu, from: &GpuSlice, into: &mut [u8]) -> Result<(), Error> {
        let blocks = blocks(into.len())?;
        let mut tickets: [Tickets; BLOCKS] = Default::default();
        let begin_copy = |(block, begin, end): (usize, usize, usize), tickets: &mut [Tickets; BLOCKS]| {
            let part = from.slice(begin, end - begin).map_err(beyond)?;
            let into = blocks[block].slice(0, end - begin).map_err(beyond)?;
            gpu.copy(GpuCopy::ToHost { from: part, into }, &mut tickets[block])
        };
        let mut ahead = parts(into.len());
        for part in ahead.by_ref().take(BLOCKS) {
            begin_copy(part, &mut tickets)?;
        }
        for (block, begin, end) in parts(into.len()) {
            finish(&mut tickets[block])?;
            blocks[block].as_volatile().subslice(0, end - begin).read(&mut into[begin..end]);
            if let Some(next) = ahead.next() {
                begin_copy(next, &mut tickets)?;
            }
        }
        Ok(())
    }

    pub(super) fn write(gpu: &Gpu, into: &GpuSlice, from: &[f32]) -> Result<(), Error> {
        let bytes = size_of_val(from);
        let blocks = blocks(bytes)?;
        let mut tickets: [Tickets; BLOCKS] = Default::default();
        for (block, begin, end) in parts(bytes) {
            finish(&mut tickets[block])?;
            let filled = blocks[block].slice(0, end - begin).map_err(beyond)?;
            encode(&from[begin / 4..end / 4], filled.as_volatile(), Encoding::F32);
            let into = into.slice(begin, end - begin).map_err(beyond)?;
            gpu.copy(GpuCopy::FromHost { from: filled, into }, &mut tickets[block])?;
        }
        tickets.iter_mut().try_for_each(finish)
    }

    fn beyond(error: crate::mem::OutOfBounds) -> GpuError {
        GpuError::Host { reason: error.to_string() }
    }
}
