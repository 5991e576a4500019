//! Conversion from f32 to the halves that a table or a worker has, on the GPU.

use smallvec::{SmallVec, smallvec};

use super::copy::lock;
use super::driver::DevicePointer;
use super::kernels::{KernelParameter, Launch};
use super::queue::{GpuWork, QueueKind};
use super::{GpuError, GpuSlice, GpuStream, Tickets};
use crate::mem::{LocalSlice, MemoryRegion};
use crate::table::Encoding;

/// `struct slackline_encode` of `cuda/abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct EncodeParameters {
    pub(super) offset: u64,
    pub(super) count: u64,
    pub(super) from: DevicePointer,
    pub(super) to: DevicePointer,
}

/// The destination of a conversion: its address and length, and the host's region that it is in.
struct EncodeTarget {
    pointer: DevicePointer,
    region: Option<MemoryRegion>,
    kind: QueueKind,
}

impl GpuStream {
    /// Rounds the f32 elements of `from`, memory of the GPU, to `encoding`, into `into`, which has room for as many,
    /// behind the work that this stream has now. The bits equal those of `kernel::encode`. The kernel itself writes
    /// the host's memory. It does not wait; the first conversion of a GPU loads the kernels, which the driver may
    /// have to compile.
    ///
    /// # Errors
    /// The elements are not whole or not aligned, or `into` has another length; as
    /// [`copy_to_host`](Self::copy_to_host).
    pub(crate) fn encode_to_host(
        &self,
        from: &GpuSlice,
        into: &LocalSlice,
        encoding: Encoding,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        let (begin, room) = (into.as_volatile().as_ptr(), into.as_volatile().len());
        expect_elements(from, (begin.addr() as DevicePointer, room), encoding)?;
        let Some(name) = name_of(encoding) else { return self.copy_to_host(from, into, under_way) };
        let (primary, region) = (&self.gpu().inner().primary, into.region().clone());
        lock(primary, &region)?;
        let asking = "asking for the address of host memory";
        let pointer = primary.call(asking, |driver| driver.host_pointer(begin))?;
        let target = EncodeTarget { pointer, region: Some(region), kind: QueueKind::ToHost };
        self.launch(name, from, target, None, under_way)
    }

    /// The same into memory of the GPU.
    ///
    /// # Errors
    /// As [`encode_to_host`](Self::encode_to_host).
    pub(crate) fn encode_within(
        &self,
        from: &GpuSlice,
        into: &GpuSlice,
        encoding: Encoding,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        expect_elements(from, (into.pointer(), into.bytes()), encoding)?;
        let Some(name) = name_of(encoding) else { return self.copy_within(from, into, under_way) };
        let target = EncodeTarget { pointer: into.pointer(), region: None, kind: QueueKind::Within };
        self.launch(name, from, target, Some(into), under_way)
    }

    fn launch(
        &self,
        name: &str,
        from: &GpuSlice,
        target: EncodeTarget,
        into: Option<&GpuSlice>,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        let EncodeTarget { pointer: to, region, kind } = target;
        let (pointer, bytes) = (from.pointer(), from.bytes());
        let module = self.gpu().module()?;
        let function = module.function(name)?;
        let parameter = EncodeParameters { offset: 0, count: bytes as u64 / 4, from: pointer, to };
        let mut slices: SmallVec<[GpuSlice; 8]> = smallvec![from.clone()];
        slices.extend(into.cloned());
        let parameter = KernelParameter::Encode(parameter);
        let launch = Launch { function, parameter, kind, slices, region, _kernels: module };
        self.put(GpuWork::Kernel(Box::new(launch)), false, under_way)
    }
}

/// Checks that `from` has whole f32 elements, and that there is room for as many at `to`, all of them aligned.
fn expect_elements(
    from: &GpuSlice,
    (to, room): (DevicePointer, usize),
    encoding: Encoding,
) -> Result<(), GpuError> {
    let (pointer, bytes, width) = (from.pointer(), from.bytes(), encoding.bytes());
    let are_whole = bytes > 0 && bytes.is_multiple_of(4) && room == bytes / 4 * width;
    match are_whole && pointer.is_multiple_of(4) && to.is_multiple_of(width as u64) {
        true => Ok(()),
        false => Err(GpuError::Elements { pointer, bytes, to, room }),
    }
}

/// The kernel that converts to it; f32 is copied.
fn name_of(encoding: Encoding) -> Option<&'static str> {
    match encoding {
        Encoding::F32 => None,
        Encoding::Bf16 => Some("slackline_encode_bf16"),
        Encoding::F16 => Some("slackline_encode_f16"),
    }
}
