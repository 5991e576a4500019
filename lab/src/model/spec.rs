//! The shape of a model.

use std::fmt;

use slackline::internals::cuda::GpuLayer;

use super::block::{Block, CHANNELS};
use super::error::units;
use super::factors::Factors;
use super::kernels::Layer;
use super::tensor::TensorSpec;
use super::{ModelKind, ModelSpecError};
use crate::data::random::{Purpose, Random};

/// Most parameters a model may have: 1 GiB of `f32`.
const PARAMETERS_MAX: usize = 1 << 28;

/// Most hidden layers, far more than a perceptron learns through.
const LAYERS_MAX: usize = 64;

/// The shape of a model: all there is to know about it but its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    kind: ModelKind,
    inputs: usize,
    outputs: usize,
    hidden: Vec<usize>,
    /// The blocks of a ConvNet, in their order.
    pub(super) blocks: Vec<Block>,
    /// The linear layers, in their order; the last gives the scores of the classes. A factorisation has none.
    pub(super) layers: Vec<Layer>,
    /// The factors of a factorisation.
    pub(super) factors: Option<Factors>,
}

impl ModelSpec {
    /// A model for examples of `columns` values and `classes` classes.
    ///
    /// `hidden` has the widths of the hidden layers, from the first on, see
    /// [`HIDDEN_DEFAULT`](super::HIDDEN_DEFAULT). Softmax regression has none and ignores it; a perceptron without any
    /// is a softmax regression that does not start at zero. A ConvNet takes the columns as an image, see
    /// [`ModelKind::ConvNet`], whose planes lie one after the other.
    ///
    /// A factorisation is a linear network from one input for each row of the matrix to one output for each of its
    /// columns: `columns` is the number of rows then, `classes` that of columns, and `hidden` has the rank alone, see
    /// [`RANK_DEFAULT`](super::RANK_DEFAULT).
    ///
    /// # Errors
    ///
    /// If a width is zero, there are fewer than two classes, the columns are no image for a ConvNet, a factorisation
    /// has not one rank, or the parameters would exceed 1 GiB.
    pub fn new(
        kind: ModelKind,
        columns: usize,
        classes: usize,
        hidden: &[usize],
    ) -> Result<ModelSpec, ModelSpecError> {
        if kind == ModelKind::Factorisation {
            let factors = Some(Factors::new(columns, classes, hidden, PARAMETERS_MAX)?);
            let (inputs, outputs, hidden) = (columns, classes, hidden.to_vec());
            let (blocks, layers) = (Vec::new(), Vec::new());
            return Ok(ModelSpec { kind, inputs, outputs, hidden, blocks, layers, factors });
        }
        let hidden = if kind == ModelKind::Softmax { Vec::new() } else { hidden.to_vec() };
        if hidden.len() > LAYERS_MAX {
            return Err(ModelSpecError::TooDeep { layers: hidden.len(), limit: LAYERS_MAX });
        }
        if columns == 0 || classes < 2 || hidden.contains(&0) {
            return Err(ModelSpecError::TooSmall { columns, classes, hidden });
        }
        let blocks = match kind {
            ModelKind::ConvNet => blocks(columns).ok_or(ModelSpecError::NoImages { columns })?,
            _ => Vec::new(),
        };
        let (mut start, mut width) =
            blocks.last().map_or((0, columns), |last| (last.start + last.parameters(), last.outputs()));
        let mut layers = Vec::new();
        for outputs in hidden.iter().copied().chain([classes]) {
            // Saturating, since a model file may claim any width.
            let end = width.saturating_add(1).saturating_mul(outputs).saturating_add(start);
            if end > PARAMETERS_MAX {
                return Err(ModelSpecError::TooLarge { columns, classes, hidden, limit: PARAMETERS_MAX });
            }
            layers.push(Layer { start, outputs, inputs: width });
            (start, width) = (end, outputs);
        }
        let (inputs, outputs, factors) = (columns, classes, None);
        Ok(ModelSpec { kind, inputs, outputs, hidden, blocks, layers, factors })
    }

    /// The same model with this weight of the L2 penalty in its loss. Only a factorisation has one; it is no part of a
    /// model file.
    #[must_use]
    pub fn with_penalty(mut self, penalty: f32) -> ModelSpec {
        self.factors.iter_mut().for_each(|factors| factors.penalty = penalty);
        self
    }

    /// The weight of the L2 penalty: 0 unless [`with_penalty`](Self::with_penalty) has set it.
    pub fn penalty(&self) -> f32 {
        self.factors.map_or(0.0, |factors| factors.penalty)
    }

    /// The kind of model.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// Values per example; of a factorisation the rows of the matrix.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Classes to choose from; of a factorisation the columns of the matrix.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Units of each hidden layer, from the first on; none for softmax regression, and the rank of a factorisation.
    pub fn hidden(&self) -> &[usize] {
        &self.hidden
    }

    /// The parts of the parameters, in the order in which they lie.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        if let Some(factors) = &self.factors {
            return factors.tensors();
        }
        let mut tensors: Vec<TensorSpec> =
            self.blocks.iter().zip(1..).flat_map(|(block, number)| block.tensors(number)).collect();
        let hidden = match self.hidden.len() {
            1 => vec!["hidden".to_owned()],
            several => (1..=several).map(|number| format!("hidden{number}")).collect(),
        };
        let last = if self.kind == ModelKind::Softmax { "linear" } else { "output" };
        for (name, layer) in hidden.iter().map(String::as_str).chain([last]).zip(&self.layers) {
            tensors.push(TensorSpec::new(format!("{name}.weight"), [layer.outputs, layer.inputs]));
            tensors.push(TensorSpec::new(format!("{name}.bias"), [layer.outputs]));
        }
        tensors
    }

    /// The number of parameters, all tensors together.
    pub fn parameters(&self) -> usize {
        match &self.factors {
            Some(factors) => factors.parameters(),
            None => self.layers.last().map_or(0, |output| output.start + output.parameters()),
        }
    }

    /// The layers as the kernels of a GPU take them; `None` if there is more to the model than linear layers.
    pub fn gpu_layers(&self) -> Option<Vec<GpuLayer>> {
        let layer = |layer: &Layer| {
            let Layer { start, outputs: units, inputs: columns } = *layer;
            GpuLayer { start, units, columns }
        };
        let is_linear = self.blocks.is_empty() && self.factors.is_none();
        is_linear.then(|| self.layers.iter().map(layer).collect())
    }

    /// Parameters to start from, the same for the same seed on every platform.
    ///
    /// Biases and softmax regression start at zero. Weights of layers and convolutions are drawn uniformly with
    /// the variance 2 / inputs (He et al., 2015), uniformly because a normal draw needs logarithms,
    /// which platforms round differently. Batch normalisation starts with factors and variances of one. The factors of
    /// a matrix are small and random.
    pub fn initialise(&self, seed: u64) -> Vec<f32> {
        let mut parameters = vec![0.0; self.parameters()];
        if self.kind == ModelKind::Softmax {
            return parameters;
        }
        let mut random = Random::new(seed, Purpose::Parameters, 0);
        if let Some(factors) = &self.factors {
            factors.initialise(&mut parameters, random);
            return parameters;
        }
        let mut draw = |weights: &mut [f32], inputs: usize| {
            // A uniform draw from [-a, a) has the variance a^2 / 3.
            let bound = (6.0 / inputs as f32).sqrt();
            weights.iter_mut().for_each(|weight| *weight = bound * random.symmetric());
        };
        for block in &self.blocks {
            let own = block.of_mut(&mut parameters);
            draw(own.weight, block.fan_in());
            own.factor.fill(1.0);
            own.variance.fill(1.0);
        }
        for layer in &self.layers {
            draw(layer.of_mut(&mut parameters).0, layer.inputs);
        }
        parameters
    }
}

/// The blocks of a ConvNet for images of so many values, if these are images.
fn blocks(columns: usize) -> Option<Vec<Block>> {
    let (planes, side) = [1, 3].into_iter().find_map(|planes| {
        let side = (columns / planes).isqrt();
        (side.is_multiple_of(4) && side.checked_mul(side)?.checked_mul(planes)? == columns)
            .then_some((planes, side))
    })?;
    let first = Block { start: 0, planes, side, channels: CHANNELS[0] };
    let start = first.parameters();
    Some(vec![first, Block { start, planes: CHANNELS[0], side: side / 2, channels: CHANNELS[1] }])
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Factors { rows, columns, rank, .. }) = self.factors {
            return write!(formatter, "{} of a {rows} x {columns} matrix, rank {rank}", self.kind);
        }
        write!(formatter, "{} of {} columns", self.kind, self.inputs)?;
        if !self.hidden.is_empty() {
            write!(formatter, ", {} hidden units", units(&self.hidden))?;
        }
        write!(formatter, " and {} classes", self.outputs)
    }
}
