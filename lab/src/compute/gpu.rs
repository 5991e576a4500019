//! The same on a GPU, for models that there are kernels for.

use std::borrow::Cow;

use slackline::Diagnostic;
use slackline::gpu::{Gpu, GpuError, GpuSlice, GpuStream};
use slackline::internals::cuda::GpuModel;
use thiserror::Error;

use super::{Pace, computed, sleep_unless};
use crate::data::TaskPart;
use crate::model::{Batches, ModelKind, ModelSpec};

/// A GPU cannot compute the gradients of a model.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum GpuComputerError {
    /// There are kernels for linear layers alone.
    #[error("there are no kernels for a {kind} on a GPU; {}", self.remedy().unwrap_or_default())]
    NoKernels { kind: ModelKind },
    /// The GPU is out of memory, or the driver refuses.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl Diagnostic for GpuComputerError {
    fn operation(&self) -> &'static str {
        "preparing a model on a GPU"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            GpuComputerError::NoKernels { .. } => {
                Some("use softmax or mlp, or compute on the processor".into())
            }
            GpuComputerError::Gpu(error) => error.remedy(),
        }
    }
}

/// Computes one worker's gradients on a GPU, which holds all examples, parameters and the gradient.
pub struct GpuComputer {
    model: GpuModel,
    batches: Batches,
    pace: Pace,
}

impl GpuComputer {
    /// A computer of this model's gradients on these batches of at most `batch` examples, at this pace.
    ///
    /// # Errors
    /// There are no kernels for the model, the GPU is out of memory, or the driver refuses.
    pub fn new(
        gpu: &Gpu,
        spec: &ModelSpec,
        train: &TaskPart,
        (batches, batch): (Batches, usize),
        pace: Pace,
    ) -> Result<GpuComputer, GpuComputerError> {
        let (Some(layers), TaskPart::Classes(data)) = (spec.gpu_layers(), train) else {
            return Err(GpuComputerError::NoKernels { kind: spec.kind() });
        };
        let model = GpuModel::new(gpu, layers, &data.features, &data.labels, batch)?;
        Ok(GpuComputer { model, batches, pace })
    }

    /// Where the parameters are to be, as the model has them.
    pub fn parameters(&self) -> GpuSlice {
        self.model.parameters()
    }

    /// Where the gradient is, once [`stream`](Self::stream) is so far.
    pub fn gradient(&self) -> GpuSlice {
        self.model.gradient()
    }

    /// The stream that computes. It ends with this value.
    pub fn stream(&self) -> &GpuStream {
        self.model.stream()
    }

    /// Computes the gradient of a batch on the parameters that are there once the stream is so far, and returns the
    /// loss. It asks now and then whether to `stop`: `None`, with a gradient of no use, once that says so.
    ///
    /// # Errors
    /// Those of `stop`; work of this process on the GPU failed, or its driver has not answered for seconds.
    pub fn gradient_unless<E: From<GpuError>>(
        &mut self,
        batch: u64,
        stop: &mut dyn FnMut() -> Result<bool, E>,
    ) -> Result<Option<f32>, E> {
        let begun = computed();
        self.model.begin(self.batches.rows(batch))?;
        loop {
            if let Some(loss) = self.model.loss()? {
                let is_whole = sleep_unless(self.pace.lag(begun), stop)?;
                return Ok(is_whole.then_some(loss));
            }
            if stop()? {
                return Ok(None);
            }
            std::thread::yield_now();
        }
    }
}
