//! The kernels of `cuda/`: the committed PTX, which the driver compiles when it is loaded, and launches of them.

use std::any::Any;
use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::sync::Arc;

use smallvec::SmallVec;

use super::driver::{DevicePointer, Driver, FunctionHandle, ModuleHandle, StreamHandle};
use super::encode::EncodeParameters;
use super::fold::FoldParameters;
use super::gpu::PrimaryContext;
use super::model::{LayerParameters, SoftmaxParameters};
use super::publish::PublishParameters;
use super::queue::QueueKind;
use super::sys::Code;
use super::{GpuError, GpuSlice};
use crate::mem::MemoryRegion;

/// The kernels, and a NUL behind them.
const KERNELS: &str = concat!(include_str!("../../cuda/kernels.ptx"), "\0");

/// Threads of a block, and the elements that each of them takes at a time.
pub(super) const BLOCK: usize = 256;
pub(super) const GROUP: usize = 4;

/// An address of the first page, which is never mapped.
const NOWHERE: DevicePointer = 0x100;

/// The lanes of a measured fold, and the sums that they are added up to.
pub(super) const LANES: usize = 131_072;
pub(super) const SUMS: usize = 256;

/// The kernels, loaded on one GPU.
pub(super) struct KernelModule {
    primary: PrimaryContext,
    handle: ModuleHandle,
}

impl KernelModule {
    pub(super) fn load(primary: &PrimaryContext) -> Result<KernelModule, GpuError> {
        let kernels = CStr::from_bytes_with_nul(KERNELS.as_bytes());
        let kernels = kernels.map_err(|_| primary.error("loading kernels", Code::INVALID_VALUE))?;
        let handle = primary.call("loading kernels", |driver| driver.load_module(kernels))?;
        Ok(KernelModule { primary: primary.clone(), handle })
    }

    /// The kernel of this name.
    pub(super) fn function(&self, name: &str) -> Result<FunctionHandle, GpuError> {
        let looking = "looking for a kernel";
        let name = CString::new(name).map_err(|_| self.primary.error(looking, Code::INVALID_VALUE))?;
        self.primary.call(looking, |driver| driver.function(self.handle, &name))
    }
}

impl Drop for KernelModule {
    fn drop(&mut self) {
        self.primary.give_back("unloading kernels", |driver| driver.unload_module(self.handle));
    }
}

/// `struct slackline_lanes` of `cuda/abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct LaneParameters {
    pub(super) lanes: DevicePointer,
    pub(super) count: u64,
    pub(super) sums: DevicePointer,
}

/// The one parameter of a kernel.
pub(super) enum KernelParameter {
    Fold(Box<FoldParameters>),
    Moments(LaneParameters),
    Encode(EncodeParameters),
    /// The numbers that it computes, one by each thread.
    Layer(LayerParameters, usize),
    Softmax(SoftmaxParameters),
    Publish(PublishParameters),
}

/// A launch, with all that it uses.
pub(super) struct Launch {
    pub(super) function: FunctionHandle,
    pub(super) parameter: KernelParameter,
    /// The stream that it is put on.
    pub(super) kind: QueueKind,
    /// Memory of the GPU that it reads and writes.
    pub(super) slices: SmallVec<[GpuSlice; 8]>,
    /// Host memory of others that it writes.
    pub(super) region: Option<MemoryRegion>,
    /// The kernels, and what comes with them.
    pub(super) _kernels: Arc<dyn Any + Send + Sync>,
}

/// The groups of four elements that a run has something of.
pub(super) fn groups(offset: u64, count: u64) -> usize {
    ((offset + count).div_ceil(GROUP as u64) - offset / GROUP as u64) as usize
}

/// Blocks for so many threads, and the threads of each.
fn grid(threads: usize) -> (u32, u32) {
    (threads.div_ceil(BLOCK).min(1 << 16) as u32, BLOCK as u32)
}

impl Launch {
    /// The same launch of a fold with arrays at an address that no GPU has memory at, for tests of faults.
    pub(super) fn pointing_nowhere(mut self) -> Launch {
        if let KernelParameter::Fold(fold) = &mut self.parameter {
            (fold.from, fold.to) = ([NOWHERE; 3], [NOWHERE; 3]);
        }
        self
    }

    pub(super) fn issue(&self, driver: &dyn Driver, stream: StreamHandle) -> Result<(), Code> {
        // One thread for each group; more do nothing, and fewer take several.
        let (begin, bytes, (blocks, threads)) = match &self.parameter {
            KernelParameter::Fold(fold) => {
                let groups = groups(fold.offset, fold.count);
                let most = if fold.squares == 0 { groups } else { LANES };
                (std::ptr::from_ref(&**fold).cast(), size_of::<FoldParameters>(), grid(groups.min(most)))
            }
            KernelParameter::Moments(lanes) => {
                // Few sums, each of many loads: they are spread over the processors of the GPU.
                (std::ptr::from_ref(lanes).cast(), size_of::<LaneParameters>(), (8, SUMS as u32 / 8))
            }
            KernelParameter::Encode(encode) => {
                let groups = groups(encode.offset, encode.count);
                (std::ptr::from_ref(encode).cast(), size_of::<EncodeParameters>(), grid(groups))
            }
            KernelParameter::Layer(layer, results) => {
                (std::ptr::from_ref(layer).cast(), size_of::<LayerParameters>(), grid(*results))
            }
            KernelParameter::Softmax(softmax) => {
                let examples = softmax.examples as usize;
                (std::ptr::from_ref(softmax).cast(), size_of::<SoftmaxParameters>(), grid(examples))
            }
            KernelParameter::Publish(publish) => {
                (std::ptr::from_ref(publish).cast(), size_of::<PublishParameters>(), (1, 1))
            }
        };
        // SAFETY: the structure that this kernel takes, whose arrays hold all elements of the run; they are kept until
        // it is done. What it writes was set aside for it, and what it reads is not written meanwhile.
        unsafe { driver.launch(self.function, blocks, threads, begin, bytes, stream) }
    }
}

/// Fields of a structure are where `cuda/abi.h` has them.
#[cfg(test)]
macro_rules! assert_fields {
    ($structure:literal, $type:ty, $bytes:literal; $($field:ident),*) => {{
        let abi = include_str!("../../cuda/abi.h");
        let asserted = |field: &str| -> usize {
            let line = format!("SLACKLINE_AT({}, {field}, ", $structure);
            let at = abi.find(&line).unwrap_or_else(|| panic!("no line for {field}")) + line.len();
            abi[at..].split(')').next().unwrap().parse().unwrap()
        };
        $(assert_eq!(std::mem::offset_of!($type, $field), asserted(stringify!($field)), stringify!($field));)*
        assert!(abi.contains(&format!("sizeof({}) == {}", $structure, $bytes)), $structure);
        assert_eq!(std::mem::size_of::<$type>(), $bytes);
    }};
}

#[cfg(test)]
mod tests {
    use super::super::fold::MAX_GRADIENTS;
    use super::*;

    #[test]
    fn the_parameters_of_kernels_lie_where_the_kernels_look_for_them() {
        assert_fields!(
            "slackline_fold", FoldParameters, 3200;
            count, from, to, not_finite, squares, gradients, rate, decay, momentum, beta1, one_less_beta1,
            beta2, one_less_beta2, step_size, correction, epsilon, weights, elements
        );
        assert_fields!("slackline_lanes", LaneParameters, 24; count, sums);
        assert_fields!("slackline_encode", EncodeParameters, 32; count, from, to);
        assert_fields!(
            "slackline_publish", PublishParameters, 64; latest, headers, frames, stride, words, version, frame, count
        );
        let abi = include_str!("../../cuda/abi.h");
        for (name, value) in [
            ("GRADIENTS", MAX_GRADIENTS.to_string()),
            ("BLOCK", BLOCK.to_string()),
            ("LANES", format!("{LANES}ull")),
            ("SUMS", SUMS.to_string()),
        ] {
            assert!(abi.contains(&format!("#define SLACKLINE_{name} {value}\n")), "{name}");
        }
    }

    #[test]
    fn a_run_has_the_groups_that_its_elements_are_in() {
        let expected = [((0, 1), 1), ((3, 1), 1), ((3, 2), 2), ((4, 4), 1), ((5, 8), 3), ((7, 10), 4)];
        for ((offset, count), groups) in expected {
            assert_eq!(super::groups(offset, count), groups, "{count} from {offset} on");
        }
    }
}
