//! Folds by the kernels of `cuda/`: the committed PTX, which the driver compiles when it is loaded.

use std::ffi::{CStr, CString};
use std::mem::size_of;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::driver::{DevicePointer, Driver, FunctionHandle, ModuleHandle, StreamHandle};
use super::gpu::PrimaryContext;
use super::queue::GpuWork;
use super::sys::{Code, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE};
use super::{Gpu, GpuError, GpuSlice, Tickets};
use crate::kernel::{Optimizer, RuleConstants};
use crate::mem::{HostMemory, PAGE_SIZE};
use crate::table::Encoding;

/// The kernels, and a NUL behind them.
pub(super) const KERNELS: &str = concat!(include_str!("../../cuda/kernels.ptx"), "\0");

/// Most gradients of one fold: the parameters of a kernel take 4 KiB at most.
pub(crate) const MAX_GRADIENTS: usize = 256;

/// Threads of a block, and the elements that each of them folds at a time.
pub(super) const BLOCK: u32 = 256;
const GROUP: usize = 4;

/// `struct slackline_fold` of `cuda/abi.h`.
#[derive(Clone)]
#[repr(C)]
pub(super) struct FoldParameters {
    pub(super) offset: u64,
    pub(super) count: u64,
    pub(super) from: [DevicePointer; 3],
    pub(super) to: [DevicePointer; 3],
    pub(super) not_finite: DevicePointer,
    pub(super) squares: DevicePointer,
    pub(super) gradients: u32,
    pub(super) rate: f32,
    pub(super) decay: f32,
    pub(super) momentum: f32,
    pub(super) beta1: f32,
    pub(super) one_less_beta1: f32,
    pub(super) beta2: f32,
    pub(super) one_less_beta2: f32,
    pub(super) step_size: f32,
    pub(super) correction: f32,
    pub(super) epsilon: f32,
    pub(super) reserved: u32,
    pub(super) weights: [f32; MAX_GRADIENTS],
    pub(super) elements: [DevicePointer; MAX_GRADIENTS],
}

/// One launch: elements of a fold, in memory of one GPU. Each array is given whole, from its element 0 on.
pub struct GpuFold {
    /// The rule.
    pub optimizer: Optimizer,
    /// Its step size.
    pub learning_rate: f32,
    /// The number of this step, the first being 1.
    pub step: u64,
    /// Type of the gradients' elements.
    pub encoding: Encoding,
    /// With their weights, in the order in which they are summed; at most 256.
    pub gradients: SmallVec<[(GpuSlice, f32); 8]>,
    /// The parameters and then the optimiser's states: the array that is read and the one that is written.
    pub arrays: SmallVec<[(GpuSlice, GpuSlice); 3]>,
    /// The elements that are folded.
    pub elements: Range<usize>,
}

/// The kernels that fold for one optimiser, on one GPU, and the word by which they say that a parameter is not finite.
/// One fold at a time uses it.
pub struct GpuKernels {
    gpu: Gpu,
    loaded: Arc<LoadedKernels>,
}

/// What a launch needs until it is done.
pub(super) struct LoadedKernels {
    primary: PrimaryContext,
    module: ModuleHandle,
    /// For gradients in f32, bf16 and f16.
    functions: [FunctionHandle; 3],
    not_finite: HostMemory,
    pointer: DevicePointer,
}

impl GpuKernels {
    /// Loads them.
    ///
    /// # Errors
    /// The driver does not compile them for this GPU, or there is no memory for them.
    pub fn load(gpu: &Gpu, optimizer: &Optimizer) -> Result<GpuKernels, GpuError> {
        let primary = gpu.inner().primary.clone();
        let loading = |code| primary.error("loading the kernels that fold", code);
        let kernels =
            CStr::from_bytes_with_nul(KERNELS.as_bytes()).map_err(|_| loading(Code::INVALID_VALUE))?;
        let memory = HostMemory::anonymous(PAGE_SIZE);
        let not_finite = memory.map_err(|error| GpuError::Host { reason: error.to_string() })?;
        let loaded = primary.within(|driver| {
            let module = driver.load_module(kernels).map_err(loading)?;
            let unload = |code| {
                // The error before this one is the one to tell.
                let _unloaded = driver.unload_module(module);
                loading(code)
            };
            let mut functions = [FunctionHandle(0); 3];
            for (function, element) in functions.iter_mut().zip(["f32", "bf16", "f16"]) {
                let name = format!("slackline_fold_{}_{element}", optimizer.name());
                let name = CString::new(name).map_err(|_| loading(Code::INVALID_VALUE))?;
                *function = driver.function(module, &name).map_err(unload)?;
            }
            let (begin, flags) =
                (not_finite.as_volatile().as_ptr(), HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP);
            // SAFETY: the memory is kept with the kernels, which unregister it first.
            let pointer = unsafe { driver.register_host(begin, PAGE_SIZE, flags) }.map_err(unload)?;
            Ok((module, functions, pointer))
        });
        let (module, functions, pointer) = loaded?;
        let loaded = Arc::new(LoadedKernels { primary, module, functions, not_finite, pointer });
        Ok(GpuKernels { gpu: gpu.clone(), loaded })
    }

    /// Forgets what earlier folds have said of their parameters; none is under way.
    pub fn clear_not_finite(&self) {
        self.loaded.not_finite.as_volatile().store_u64(0, 0);
    }

    /// True if a fold that is done has made a parameter that is NaN or infinite.
    pub fn has_not_finite(&self) -> bool {
        self.loaded.not_finite.as_volatile().load_u64(0) != 0
    }

    /// Launches a fold behind those that were launched before. What it reads and writes is kept until it is done.
    ///
    /// # Errors
    /// An array is of another GPU, or the driver refuses.
    pub fn launch(&self, fold: GpuFold, under_way: &mut Tickets) -> Result<(), GpuError> {
        self.gpu.put(GpuWork::Fold(Box::new(self.prepare(fold))), None, under_way)
    }

    pub(super) fn prepare(&self, fold: GpuFold) -> Launch {
        Launch::new(&self.loaded, fold)
    }
}

impl Drop for LoadedKernels {
    fn drop(&mut self) {
        let begin = self.not_finite.as_volatile().as_ptr();
        // SAFETY: a launch that is under way holds this.
        self.primary
            .give_back("unregistering host memory", |driver| unsafe { driver.unregister_host(begin) });
        self.primary.give_back("unloading kernels", |driver| driver.unload_module(self.module));
    }
}

/// A launch, with all that it uses.
pub(super) struct Launch {
    _kernels: Arc<LoadedKernels>,
    function: FunctionHandle,
    parameters: FoldParameters,
    slices: SmallVec<[GpuSlice; 8]>,
}

impl Launch {
    fn new(kernels: &Arc<LoadedKernels>, fold: GpuFold) -> Launch {
        let constants = RuleConstants::of(&fold.optimizer, fold.learning_rate, fold.step);
        let mut parameters = FoldParameters {
            offset: fold.elements.start as u64,
            count: fold.elements.len() as u64,
            from: [0; 3],
            to: [0; 3],
            not_finite: kernels.pointer,
            squares: 0,
            gradients: fold.gradients.len().min(MAX_GRADIENTS) as u32,
            rate: constants.rate,
            decay: constants.decay,
            momentum: constants.momentum,
            beta1: constants.beta1,
            one_less_beta1: constants.one_less_beta1,
            beta2: constants.beta2,
            one_less_beta2: constants.one_less_beta2,
            step_size: constants.step_size,
            correction: constants.correction,
            epsilon: constants.epsilon,
            reserved: 0,
            weights: [0.0; MAX_GRADIENTS],
            elements: [0; MAX_GRADIENTS],
        };
        let mut slices = SmallVec::new();
        for (index, (from, to)) in fold.arrays.into_iter().take(3).enumerate() {
            (parameters.from[index], parameters.to[index]) = (from.pointer(), to.pointer());
            slices.extend([from, to]);
        }
        for (index, (gradient, weight)) in fold.gradients.into_iter().take(MAX_GRADIENTS).enumerate() {
            (parameters.weights[index], parameters.elements[index]) = (weight, gradient.pointer());
            slices.push(gradient);
        }
        let function = kernels.functions[match fold.encoding {
            Encoding::F32 => 0,
            Encoding::Bf16 => 1,
            Encoding::F16 => 2,
        }];
        Launch { _kernels: kernels.clone(), function, parameters, slices }
    }

    pub(super) fn slices(&self) -> &[GpuSlice] {
        &self.slices
    }

    pub(super) fn issue(&self, driver: &dyn Driver, stream: StreamHandle) -> Result<(), Code> {
        // One thread for each group; more do nothing, and fewer take several.
        let groups = (self.parameters.count as usize).div_ceil(GROUP) + 1;
        let blocks = groups.div_ceil(BLOCK as usize).min(1 << 16) as u32;
        let begin = std::ptr::from_ref(&self.parameters).cast();
        // SAFETY: the structure that this kernel takes, whose arrays hold all elements that it folds; they are kept
        // until it is done. What it writes was set aside for it, and what it reads is not written meanwhile.
        unsafe { driver.launch(self.function, blocks, BLOCK, begin, size_of::<FoldParameters>(), stream) }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_parameters_of_a_fold_lie_where_the_kernels_look_for_them() {
        let abi = include_str!("../../cuda/abi.h");
        let asserted = |field: &str| -> usize {
            let line = format!("SLACKLINE_AT(slackline_fold, {field}, ");
            let at = abi.find(&line).unwrap_or_else(|| panic!("no line for {field}")) + line.len();
            abi[at..].split(')').next().unwrap().parse().unwrap()
        };
        macro_rules! same {
            ($($field:ident),*) => {
                $(assert_eq!(offset_of!(FoldParameters, $field), asserted(stringify!($field)), stringify!($field));)*
            };
        }
        same!(count, from, to, not_finite, squares, gradients, rate, decay, momentum, beta1, one_less_beta1);
        same!(beta2, one_less_beta2, step_size, correction, epsilon, weights, elements);
        assert!(abi.contains("sizeof(slackline_fold) == 3200") && size_of::<FoldParameters>() == 3200);
        assert!(abi.contains("#define SLACKLINE_GRADIENTS 256") && MAX_GRADIENTS == 256);
        assert!(abi.contains("#define SLACKLINE_BLOCK 256") && BLOCK == 256);
    }
}
