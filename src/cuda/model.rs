//! Gradients of models by the kernels of `cuda/train.cuh`, on a stream of the model's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::{SmallVec, smallvec};

use super::driver::{DevicePointer, FunctionHandle};
use super::kernels::{KernelModule, KernelParameter, Launch};
use super::queue::{GpuQueue, GpuWork, HostBytes, QueueKind};
use super::{Gpu, GpuError, GpuMemory, GpuSlice, GpuStream};
use crate::kernel::encode;
use crate::mem::{Access, DeviceKeys, HostMemory, MemoryRegion, VolatileSlice};
use crate::table::Encoding;

/// Longest time that is waited for a gradient that was given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time for which a driver may not say whether a gradient is done.
const UNANSWERED_FOR: Duration = Duration::from_secs(5);

/// `struct slackline_layer` of `cuda/abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct LayerParameters {
    pub(super) inputs: DevicePointer,
    pub(super) rows: DevicePointer,
    pub(super) parameters: DevicePointer,
    pub(super) outputs: DevicePointer,
    pub(super) results: DevicePointer,
    pub(super) examples: u32,
    pub(super) columns: u32,
    pub(super) units: u32,
    pub(super) relu: u32,
}

/// `struct slackline_softmax` of `cuda/abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct SoftmaxParameters {
    pub(super) scores: DevicePointer,
    pub(super) labels: DevicePointer,
    pub(super) rows: DevicePointer,
    pub(super) losses: DevicePointer,
    pub(super) examples: u32,
    pub(super) classes: u32,
    pub(super) share: f32,
    pub(super) reserved: u32,
}

/// A linear layer of a model: weights, units x columns, from the element `start` of the parameters on, and behind them
/// biases. Outputs of each layer but the last are rectified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuLayer {
    /// Its first element.
    pub start: usize,
    /// Its outputs.
    pub units: usize,
    /// Its inputs.
    pub columns: usize,
}

impl GpuLayer {
    fn bytes(&self) -> usize {
        4 * self.units * (self.columns + 1)
    }
}

/// A classifier on a GPU: softmax regression, or a perceptron with hidden layers, with the examples that it learns
/// from. Its gradients agree with those of a processor within 10^-5 of the largest magnitude, and not to the bit.
///
/// Everything runs on one stream of the model's own, [`stream`](Self::stream): parameters are copied for this stream,
/// and gradients are published behind its work. The stream ends with the model.
pub struct GpuModel {
    gpu: Gpu,
    kernels: ModelKernels,
    layers: Vec<GpuLayer>,
    /// Of all examples.
    inputs: GpuMemory,
    labels: GpuMemory,
    examples: usize,
    batch: usize,
    parameters: GpuMemory,
    gradient: GpuMemory,
    /// Of each layer for each example of a batch. The last are the scores, and then the derivatives by them.
    outputs: Vec<GpuMemory>,
    /// The derivatives by the outputs of each layer but the last.
    deltas: Vec<GpuMemory>,
    /// The rows of a batch and its losses, in host memory and on the GPU.
    rows: (MemoryRegion, GpuMemory),
    losses: (MemoryRegion, GpuMemory),
    /// The number of the last work, and the examples of the batch that it is for.
    last: Option<(u64, usize)>,
    /// Since when the driver has not said whether that is done.
    unanswered_since: Option<Instant>,
    stream: GpuStream,
    queue: GpuQueue,
}

/// The functions that a model launches.
struct ModelKernels {
    module: Arc<KernelModule>,
    linear: FunctionHandle,
    softmax: FunctionHandle,
    gradient: FunctionHandle,
    deltas: FunctionHandle,
}

impl ModelKernels {
    fn load(gpu: &Gpu) -> Result<ModelKernels, GpuError> {
        let module = gpu.module()?;
        let function = |name: &str| module.function(&format!("slackline_train_{name}"));
        let (linear, softmax) = (function("linear")?, function("softmax")?);
        let (gradient, deltas) = (function("gradient")?, function("deltas")?);
        Ok(ModelKernels { module, linear, softmax, gradient, deltas })
    }

    /// A launch on the stream of a model.
    fn launch(
        &self,
        function: FunctionHandle,
        parameter: KernelParameter,
        slices: SmallVec<[GpuSlice; 8]>,
    ) -> Launch {
        Launch {
            function,
            parameter,
            kind: QueueKind::Folds,
            slices,
            region: None,
            _kernels: self.module.clone(),
        }
    }
}

fn region(bytes: usize) -> Result<MemoryRegion, GpuError> {
    let memory = HostMemory::anonymous(bytes);
    let memory = memory.map_err(|error| GpuError::Host { reason: error.to_string() })?;
    Ok(MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()))
}

impl GpuModel {
    /// A model of these layers, for batches of at most `batch` examples, which are rows of `inputs`. Each has a label
    /// below the number of the last layer's units.
    ///
    /// # Errors
    /// The GPU is out of memory, host memory cannot be locked, or the driver refuses.
    ///
    /// # Panics
    /// If there is no layer, they do not fit each other, the inputs or the labels, or `batch` is 0.
    pub fn new(
        gpu: &Gpu,
        layers: Vec<GpuLayer>,
        inputs: &[f32],
        labels: &[u32],
        batch: usize,
    ) -> Result<GpuModel, GpuError> {
        let (first, last) = (layers[0], layers[layers.len() - 1]);
        assert_eq!(
            inputs.len(),
            labels.len() * first.columns,
            "each example has the inputs of the first layer"
        );
        assert!(layers.windows(2).all(|pair| pair[0].units == pair[1].columns), "{layers:?}");
        assert!(labels.iter().all(|label| (*label as usize) < last.units), "a label is a class");
        assert!(batch > 0 && !labels.is_empty(), "a batch has examples");
        let queue = GpuQueue::new(&gpu.inner().primary)?;
        // SAFETY: the stream of the queue, which the model keeps.
        let stream = unsafe { GpuStream::of_caller(gpu, queue.stream().0) }?;
        let elements = layers.iter().map(|layer| 4 * layer.start + layer.bytes()).max().unwrap_or(0);
        let allocate = |bytes| GpuMemory::allocate(gpu, bytes);
        let of_batch = |layers: &[GpuLayer]| -> Result<Vec<GpuMemory>, GpuError> {
            layers.iter().map(|layer| allocate(4 * batch * layer.units)).collect()
        };
        let mut model = GpuModel {
            kernels: ModelKernels::load(gpu)?,
            inputs: allocate(4 * inputs.len())?,
            labels: allocate(4 * labels.len())?,
            examples: labels.len(),
            batch,
            parameters: allocate(elements)?,
            gradient: allocate(elements)?,
            outputs: of_batch(&layers)?,
            deltas: of_batch(&layers[..layers.len() - 1])?,
            rows: (region(8 * batch)?, allocate(8 * batch)?),
            losses: (region(4 * batch)?, allocate(4 * batch)?),
            last: None,
            unanswered_since: None,
            stream,
            queue,
            layers,
            gpu: gpu.clone(),
        };
        model.upload(model.inputs.whole(), |bytes| encode(inputs, bytes, Encoding::F32))?;
        let labels: Vec<u8> = labels.iter().flat_map(|label| label.to_le_bytes()).collect();
        model.upload(model.labels.whole(), |bytes| bytes.write(&labels))?;
        Ok(model)
    }

    /// Fills memory of the GPU by way of host memory, which is given back once that is done.
    fn upload(&mut self, into: GpuSlice, write: impl FnOnce(VolatileSlice<'_>)) -> Result<(), GpuError> {
        let host = region(into.bytes())?;
        write(host.as_volatile().subslice(0, into.bytes()));
        self.put(GpuWork::FromHost { host: HostBytes::Region(host), offset: 0, into }, 0)
    }

    /// Puts work on the stream, which is for a batch of so many examples.
    fn put(&mut self, work: GpuWork, examples: usize) -> Result<(), GpuError> {
        self.gpu.prepare(&work)?;
        let (number, issued) = self.queue.put(work, None);
        self.last = number.map(|number| (number, examples)).or(self.last);
        issued
    }

    /// Where the parameters are to be: all layers, f32.
    pub fn parameters(&self) -> GpuSlice {
        self.parameters.whole()
    }

    /// Where the gradient is, once [`stream`](Self::stream) is so far.
    pub fn gradient(&self) -> GpuSlice {
        self.gradient.whole()
    }

    /// The stream that computes. It must not be used once the model is gone.
    pub fn stream(&self) -> &GpuStream {
        &self.stream
    }

    /// Begins to compute loss and gradient over the examples `rows`, with the parameters that are there once the stream
    /// is so far. It waits for the end of a gradient that was given up.
    ///
    /// # Errors
    /// Work of this process on the GPU failed, the driver refuses, or it does not say that the gradient is over.
    ///
    /// # Panics
    /// If there are no rows, more rows than a batch has, or a row that does not exist.
    pub fn begin(&mut self, rows: &[usize]) -> Result<(), GpuError> {
        assert!((1..=self.batch).contains(&rows.len()), "a batch of {} of {}", rows.len(), self.batch);
        assert!(rows.iter().all(|row| *row < self.examples), "a row is that of an example");
        let waiting = Instant::now();
        // The rows in host memory may not have been copied yet.
        while !self.is_done(Instant::now())? {
            let waited = waiting.elapsed();
            if waited > PATIENCE {
                return Err(GpuError::NotCopied { waited, cause: self.queue.unanswered().map(Box::new) });
            }
            std::thread::yield_now();
        }
        let bytes: Vec<u8> = rows.iter().flat_map(|row| (*row as u64).to_le_bytes()).collect();
        self.rows.0.as_volatile().subslice(0, bytes.len()).write(&bytes);
        let (host, into) = (HostBytes::Region(self.rows.0.clone()), self.rows.1.whole());
        let (examples, last) = (rows.len(), self.layers.len() - 1);
        self.put(GpuWork::FromHost { host, offset: 0, into }, examples)?;
        for layer in 0..=last {
            self.launch(self.linear(layer, examples), examples)?;
        }
        self.launch(self.softmax(examples), examples)?;
        for layer in (0..=last).rev() {
            self.launch(self.layer_gradient(layer, examples), examples)?;
            if layer > 0 {
                self.launch(self.layer_deltas(layer, examples), examples)?;
            }
        }
        let (from, host) = (self.losses.1.whole(), HostBytes::Region(self.losses.0.clone()));
        self.put(GpuWork::ToHost { from, host, offset: 0 }, examples)
    }

    /// The mean loss of the batch that was begun, once it is there. It does not wait.
    ///
    /// # Errors
    /// Work of this process on the GPU failed, or the driver has not said for seconds whether the loss is there.
    pub fn loss(&mut self) -> Result<Option<f32>, GpuError> {
        self.loss_at(Instant::now())
    }

    pub(super) fn loss_at(&mut self, now: Instant) -> Result<Option<f32>, GpuError> {
        let Some((_, examples)) = self.last.filter(|(_, examples)| *examples > 0) else { return Ok(None) };
        if !self.is_done(now)? {
            return Ok(None);
        }
        let mut bytes = vec![0; 4 * examples];
        self.losses.0.as_volatile().subslice(0, bytes.len()).read(&mut bytes);
        let losses = bytes.as_chunks().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        Ok(Some((losses.sum::<f64>() / examples as f64) as f32))
    }

    fn is_done(&mut self, now: Instant) -> Result<bool, GpuError> {
        if self.last.map_or(Ok(true), |(number, _)| self.queue.is_done(number))? {
            return Ok(true);
        }
        let Some(cause) = self.queue.unanswered() else {
            self.unanswered_since = None;
            return Ok(false);
        };
        let waited = now.saturating_duration_since(*self.unanswered_since.get_or_insert(now));
        let late = || GpuError::NotCopied { waited, cause: Some(Box::new(cause)) };
        if waited < UNANSWERED_FOR { Ok(false) } else { Err(late()) }
    }

    fn launch(&mut self, launch: Launch, examples: usize) -> Result<(), GpuError> {
        self.put(GpuWork::Kernel(Box::new(launch)), examples)
    }

    /// A layer as all kernels are given it, with the memory for its outputs or the derivatives by them. `results` are
    /// where the kernel writes something else.
    fn on_layer(
        &self,
        function: FunctionHandle,
        (index, examples): (usize, usize),
        outputs: &GpuMemory,
        (into, results): (Option<GpuSlice>, usize),
    ) -> Launch {
        let layer = self.layers[index];
        let own = self.parameters.whole();
        let inputs = if index == 0 { &self.inputs } else { &self.outputs[index - 1] };
        let parameters = LayerParameters {
            inputs: inputs.pointer(),
            // The rows of a hidden layer are in the order of the batch.
            rows: if index == 0 { self.rows.1.pointer() } else { 0 },
            parameters: own.pointer() + 4 * layer.start as u64,
            outputs: outputs.pointer(),
            results: into.as_ref().map_or(0, GpuSlice::pointer),
            examples: examples as u32,
            columns: layer.columns as u32,
            units: layer.units as u32,
            relu: (index + 1 < self.layers.len()).into(),
        };
        let mut slices = smallvec![inputs.whole(), self.rows.1.whole(), own, outputs.whole()];
        slices.extend(into);
        self.kernels.launch(function, KernelParameter::Layer(parameters, results), slices)
    }

    fn linear(&self, index: usize, examples: usize) -> Launch {
        let outputs = examples * self.layers[index].units;
        self.on_layer(self.kernels.linear, (index, examples), &self.outputs[index], (None, outputs))
    }

    fn softmax(&self, examples: usize) -> Launch {
        let scores = &self.outputs[self.layers.len() - 1];
        let parameters = SoftmaxParameters {
            scores: scores.pointer(),
            labels: self.labels.pointer(),
            rows: self.rows.1.pointer(),
            losses: self.losses.1.pointer(),
            examples: examples as u32,
            classes: self.layers[self.layers.len() - 1].units as u32,
            share: 1.0 / examples as f32,
            reserved: 0,
        };
        let slices =
            [scores, &self.labels, &self.rows.1, &self.losses.1].into_iter().map(GpuMemory::whole).collect();
        self.kernels.launch(self.kernels.softmax, KernelParameter::Softmax(parameters), slices)
    }

    /// The derivatives by the outputs of a layer.
    fn outputs_deltas(&self, index: usize) -> &GpuMemory {
        self.deltas.get(index).unwrap_or(&self.outputs[index])
    }

    fn layer_gradient(&self, index: usize, examples: usize) -> Launch {
        let (layer, outputs) = (self.layers[index], self.outputs_deltas(index));
        let into = self.gradient.slice(4 * layer.start, layer.bytes()).expect("the gradient has all layers");
        let results = layer.bytes() / 4;
        self.on_layer(self.kernels.gradient, (index, examples), outputs, (Some(into), results))
    }

    fn layer_deltas(&self, index: usize, examples: usize) -> Launch {
        let into = self.deltas[index - 1].whole();
        let results = examples * self.layers[index].columns;
        self.on_layer(
            self.kernels.deltas,
            (index, examples),
            self.outputs_deltas(index),
            (Some(into), results),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn the_parameters_of_models_lie_where_the_kernels_look_for_them() {
        let abi = include_str!("../../cuda/abi.h");
        macro_rules! same {
            ($structure:literal, $type:ty; $($field:ident),*) => {
                $(assert!(
                    abi.contains(&format!(
                        "SLACKLINE_AT({}, {}, {})",
                        $structure, stringify!($field), offset_of!($type, $field)
                    )),
                    stringify!($field)
                );)*
                let bytes = size_of::<$type>();
                assert!(abi.contains(&format!("sizeof({}) == {bytes}", $structure)));
            };
        }
        same!("slackline_layer", LayerParameters; rows, parameters, outputs, results, examples, columns, units, relu);
        same!("slackline_softmax", SoftmaxParameters; labels, rows, losses, examples, classes, share);
    }
}
