//! A stream of the caller's, which copies are ordered with.

use super::driver::StreamHandle;
use super::{Gpu, GpuError, GpuSlice};

/// A stream of the caller's. A copy begins once the work is done that the stream has at the time of the call; where
/// the copy brings something to the GPU, the stream's later work waits for it. Nothing else is ever put on the stream:
/// an event is recorded there, or waited for.
#[derive(Clone, Debug)]
pub struct GpuStream {
    gpu: Gpu,
    handle: StreamHandle,
}

impl GpuStream {
    /// The stream of this handle: a `cudaStream_t` or `CUstream` as a number, `torch.cuda.current_stream().cuda_stream`
    /// say. 0 and 1 are the default stream.
    ///
    /// # Errors
    /// The stream is one of another context than the primary one of the GPU.
    ///
    /// # Safety
    /// The handle is that of a stream which lives for as long as this value and its clones. It is not 2, the default
    /// stream of whichever thread calls.
    pub unsafe fn of_caller(gpu: &Gpu, handle: usize) -> Result<GpuStream, GpuError> {
        let (handle, primary) = (StreamHandle(handle), &gpu.inner().primary);
        let context =
            primary.call("asking for the context of a stream", |driver| driver.stream_context(handle))?;
        if context != primary.context() {
            return Err(GpuError::OtherContext { what: "stream", ordinal: primary.ordinal() });
        }
        Ok(GpuStream { gpu: gpu.clone(), handle })
    }

    /// The GPU that it is a stream of.
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Holds copies of `memory` over a transport with this GPU, if it has one, behind what this stream has now.
    ///
    /// # Errors
    /// The memory is that of another GPU than the stream, or than the transport; the stream is capturing; the driver
    /// refuses.
    pub(crate) fn hold_copies_of(&self, memory: &GpuSlice, transport: Option<&Gpu>) -> Result<(), GpuError> {
        [Some(&self.gpu), transport].into_iter().flatten().try_for_each(|gpu| gpu.expect(memory))?;
        self.hold_copies()
    }

    pub(super) fn handle(&self) -> StreamHandle {
        self.handle
    }
}
