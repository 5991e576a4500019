//! Folds by the kernels of `cuda/`, and their measurements.

use std::mem::size_of;
use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::copy::register;
use super::driver::{DevicePointer, FunctionHandle};
use super::gpu::PrimaryContext;
use super::kernels::{KernelModule, KernelParameter, LANES, LaneParameters, Launch, SUMS, groups};
use super::queue::{GpuWork, QueueKind};
use super::sys::{HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE};
use super::{Gpu, GpuError, GpuMemory, GpuSlice, Tickets};
use crate::kernel::{Optimizer, RuleConstants};
use crate::mem::{HostMemory, PAGE_SIZE};
use crate::table::Encoding;

/// Most gradients of one fold: the parameters of a kernel take 4 KiB at most.
pub(crate) const MAX_GRADIENTS: usize = 256;

/// `struct slackline_squares` of `cuda/abi.h`: the square of the sum, and the square of each gradient.
type Squares = [f64; 2];

/// Bytes that one measured run leaves its sums in.
const SUMS_BYTES: usize = SUMS * size_of::<Squares>();

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
    /// The parameters and then the optimiser's states: for each the array to read and the array to write.
    pub arrays: SmallVec<[(GpuSlice, GpuSlice); 3]>,
    /// The elements that are folded.
    pub elements: Range<usize>,
}

/// The kernels that fold for one optimiser, on one GPU, and the word by which they say that a parameter, or a second
/// moment, is not finite. One fold at a time uses it.
pub struct GpuKernels {
    gpu: Gpu,
    loaded: Arc<LoadedKernels>,
}

/// The resources of a launch until it is done.
struct LoadedKernels {
    primary: PrimaryContext,
    _module: Arc<KernelModule>,
    /// The name of the optimiser whose rule they have.
    optimizer: &'static str,
    /// For gradients in f32, bf16 and f16.
    functions: [FunctionHandle; 3],
    measuring: Option<Measuring>,
    /// The word, in a page of its own, and behind it the cells for sums.
    host: HostMemory,
    pointer: DevicePointer,
}

/// The additional memory of measured folds.
struct Measuring {
    functions: [FunctionHandle; 3],
    moments: FunctionHandle,
    /// The squares of the lanes, which each run uses in its turn.
    squares: GpuSlice,
}

impl GpuKernels {
    /// Measured runs that may be under way at a time.
    pub const MEASURED_RUNS: usize = 16;

    /// Loads them, unless the GPU has them already.
    ///
    /// # Errors
    /// The driver does not compile them for this GPU, or there is no memory for them.
    pub fn load(gpu: &Gpu, optimizer: &Optimizer) -> Result<GpuKernels, GpuError> {
        GpuKernels::with(gpu, optimizer, false)
    }

    /// The same, also of folds that measure their gradients: that takes 2 MiB of the GPU.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_measuring(gpu: &Gpu, optimizer: &Optimizer) -> Result<GpuKernels, GpuError> {
        GpuKernels::with(gpu, optimizer, true)
    }

    fn with(gpu: &Gpu, optimizer: &Optimizer, measures: bool) -> Result<GpuKernels, GpuError> {
        let module = gpu.module()?;
        let folds = |kind: &str| -> Result<[FunctionHandle; 3], GpuError> {
            let function =
                |element| module.function(&format!("slackline_fold_{}_{element}{kind}", optimizer.name()));
            Ok([function("f32")?, function("bf16")?, function("f16")?])
        };
        let functions = folds("")?;
        let measuring = || -> Result<Measuring, GpuError> {
            let squares = GpuMemory::allocate(gpu, LANES * size_of::<Squares>())?.whole();
            let moments = module.function("slackline_moments")?;
            Ok(Measuring { functions: folds("_measured")?, moments, squares })
        };
        let measuring = measures.then(measuring).transpose()?;
        let cells = if measures { GpuKernels::MEASURED_RUNS * SUMS_BYTES } else { 0 };
        let host = HostMemory::anonymous((PAGE_SIZE + cells).next_multiple_of(PAGE_SIZE));
        let host = host.map_err(|error| GpuError::Host { reason: error.to_string() })?;
        let primary = gpu.inner().primary.clone();
        let (begin, bytes) = (host.as_volatile().as_ptr(), host.as_volatile().len());
        let pointer = primary.call("locking host memory for folds", |driver| {
            let flags = HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP;
            // SAFETY: the memory is kept with the kernels, which unregister it first.
            unsafe { register(driver, begin, bytes, flags) }
        })?;
        let (optimizer, _module) = (optimizer.name(), module);
        let loaded = LoadedKernels { primary, _module, optimizer, functions, measuring, host, pointer };
        Ok(GpuKernels { gpu: gpu.clone(), loaded: Arc::new(loaded) })
    }

    /// Clears the results of earlier folds about their parameters; no fold is under way.
    pub fn clear_not_finite(&self) {
        self.loaded.host.as_volatile().store_u64(0, 0);
    }

    /// True if a fold that is done has made a parameter or a second moment that is NaN or infinite.
    pub fn has_not_finite(&self) -> bool {
        self.loaded.host.as_volatile().load_u64(0) != 0
    }

    /// Launches a fold behind earlier ones. The memory that it reads and writes is kept until it is done.
    ///
    /// # Errors
    /// The fold is of another optimiser, has other arrays than that or more than 256 gradients; an array is shorter
    /// than the elements, begins inside an element, or is of another GPU; or the driver refuses.
    pub fn launch(&self, fold: GpuFold, under_way: &mut Tickets) -> Result<(), GpuError> {
        let launch = self.prepare(fold)?;
        self.gpu.see_rdma_writes()?;
        self.put(launch, under_way)
    }

    /// The same, and measures the gradients in the same pass. The result is in the cell of this number, below
    /// [`MEASURED_RUNS`](Self::MEASURED_RUNS), once it is done; no other run under way may have the cell. After an
    /// error the fold may be under way all the same, and nothing is measured.
    ///
    /// # Errors
    /// As [`launch`](Self::launch); or they are not loaded to measure.
    pub fn launch_measured(
        &self,
        fold: GpuFold,
        cell: usize,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        let Some(measuring) = &self.loaded.measuring else {
            return Err(GpuError::OnGpu { operation: "measure gradients" });
        };
        let function = measuring.functions[of(fold.encoding)];
        let mut launch = self.prepare(fold)?;
        let squares = &measuring.squares;
        launch.function = function;
        launch.slices.push(squares.clone());
        let KernelParameter::Fold(parameters) = &mut launch.parameter else { return Err(GpuError::Empty) };
        parameters.squares = squares.pointer();
        let count = groups(parameters.offset, parameters.count).min(LANES) as u64;
        self.gpu.see_rdma_writes()?;
        self.put(launch, under_way)?;
        // Behind the fold on its stream, and before the next one, which writes the same lanes.
        let sums = self.loaded.pointer + self.offset(cell) as u64;
        self.put(
            Launch {
                function: measuring.moments,
                parameter: KernelParameter::Moments(LaneParameters { lanes: squares.pointer(), count, sums }),
                kind: QueueKind::Folds,
                slices: smallvec![squares.clone()],
                region: None,
                _kernels: self.loaded.clone(),
            },
            under_way,
        )
    }

    /// The result of the measured run in this cell: `kernel::Moments::sum_norm_squared` and `each_norm_squared`. The
    /// run is done.
    pub fn measured(&self, cell: usize) -> [f64; 2] {
        let (host, begin) = (self.loaded.host.as_volatile(), self.offset(cell));
        let square = |at: usize| f64::from_bits(host.load_u64(begin + 8 * at));
        (0..SUMS).fold([0.0; 2], |[sum, each], at| [sum + square(2 * at), each + square(2 * at + 1)])
    }

    /// Where the sums of a cell are in the host's memory.
    fn offset(&self, cell: usize) -> usize {
        PAGE_SIZE + cell % GpuKernels::MEASURED_RUNS * SUMS_BYTES
    }

    fn put(&self, launch: Launch, under_way: &mut Tickets) -> Result<(), GpuError> {
        self.gpu.put(GpuWork::Kernel(Box::new(launch)), None, under_way)
    }

    /// A launch of the fold, after a check of everything that the kernel relies on.
    pub(super) fn prepare(&self, fold: GpuFold) -> Result<Launch, GpuError> {
        if fold.optimizer.name() != self.loaded.optimizer {
            return Err(GpuError::Fold { reason: "the kernels are another optimiser's; load its own" });
        }
        fold.check()?;
        let function = self.loaded.functions[of(fold.encoding)];
        let (parameters, slices) = fold.parameters(self.loaded.pointer);
        let (parameter, _kernels) = (KernelParameter::Fold(Box::new(parameters)), self.loaded.clone());
        Ok(Launch { function, parameter, kind: QueueKind::Folds, slices, region: None, _kernels })
    }
}

/// The index of the kernel for gradients of this type.
fn of(encoding: Encoding) -> usize {
    match encoding {
        Encoding::F32 => 0,
        Encoding::Bf16 => 1,
        Encoding::F16 => 2,
    }
}

impl Drop for LoadedKernels {
    fn drop(&mut self) {
        let begin = self.host.as_volatile().as_ptr();
        // SAFETY: a launch that is under way holds this.
        self.primary
            .give_back("unregistering host memory", |driver| unsafe { driver.unregister_host(begin) });
    }
}

impl GpuFold {
    /// Checks that the arrays are as many as the optimiser has, that the parameters of a kernel have room for the
    /// gradients, and that each array has all elements of the fold.
    fn check(&self) -> Result<(), GpuError> {
        let fails = |reason| Err(GpuError::Fold { reason });
        if self.gradients.len() > MAX_GRADIENTS {
            return fails("it has more than 256 gradients; make several folds of them");
        }
        if self.arrays.len() != 1 + self.optimizer.states() {
            return fails(
                "it has other arrays than the parameters and each state of its optimiser; give those",
            );
        }
        let arrays = self.arrays.iter().flat_map(|(from, to)| [from, to]).map(|array| (array, 4));
        let gradients = self.gradients.iter().map(|(gradient, _)| (gradient, self.encoding.bytes()));
        for (array, width) in arrays.chain(gradients) {
            if self.elements.end > array.bytes() / width {
                return fails("an array is shorter than the elements; fold those that all arrays have");
            }
            if !array.pointer().is_multiple_of(width as u64) {
                return fails(
                    "an array begins inside an element; give one that begins at a multiple of its size",
                );
            }
        }
        Ok(())
    }

    /// The parameters of its launch, and the memory that they name. It was checked.
    fn parameters(self, not_finite: DevicePointer) -> (FoldParameters, SmallVec<[GpuSlice; 8]>) {
        let constants = RuleConstants::of(&self.optimizer, self.learning_rate, self.step);
        let mut parameters = FoldParameters {
            offset: self.elements.start as u64,
            count: self.elements.len() as u64,
            from: [0; 3],
            to: [0; 3],
            not_finite,
            squares: 0,
            gradients: self.gradients.len() as u32,
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
        for (index, (from, to)) in self.arrays.into_iter().enumerate() {
            (parameters.from[index], parameters.to[index]) = (from.pointer(), to.pointer());
            slices.extend([from, to]);
        }
        for (index, (gradient, weight)) in self.gradients.into_iter().enumerate() {
            (parameters.weights[index], parameters.elements[index]) = (weight, gradient.pointer());
            slices.push(gradient);
        }
        (parameters, slices)
    }
}
