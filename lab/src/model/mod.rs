//! The models that are trained: softmax regression, and a perceptron with one hidden layer.
//!
//! All parameters of a model lie in one flat slice of `f32`, so whatever holds them (a vector, shared
//! memory, memory registered for RDMA and copied out of) needs to know nothing about models. The slice
//! is the model's tensors one after the other, in the order of [`ModelSpec::tensors`], each row-major.
//!
//! Sums are taken in an order that depends on the shapes alone. So two runs of one build over the same
//! numbers agree to the last bit, and a difference between a serial and a distributed run comes from
//! the distribution.

mod batches;
mod compute;
mod file;
mod kernels;
mod tower;

#[cfg(test)]
mod tests;

use slackline::Diagnostic;
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use batches::{Batches, BatchesError};
pub use compute::{Evaluation, Scratch};
#[cfg(fuzzing)]
pub(crate) use file::fuzz;
pub use file::{ModelFileError, load, load_for, save};
pub use tower::Tower;

use kernels::Layer;

use crate::data::random::{Purpose, Random};

/// Hidden width where none is asked for: on the digits, enough for 97.2 to 97.8 percent (five seeds, 30
/// epochs, batches of 32, rate 0.1, momentum 0.9), where softmax regression has 95.6 to 96.1.
pub const HIDDEN_DEFAULT: usize = 64;

/// Most parameters a model may have: 1 GiB of `f32`.
const PARAMETERS_MAX: usize = 1 << 28;

/// The two kinds of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Softmax regression: one linear layer. Its loss is convex.
    Softmax,
    /// One hidden layer of rectified linear units before the linear layer.
    Mlp,
}

impl fmt::Display for ModelKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Softmax => "softmax",
            Self::Mlp => "mlp",
        })
    }
}

impl FromStr for ModelKind {
    type Err = ModelSpecError;

    fn from_str(name: &str) -> Result<Self, ModelSpecError> {
        match name {
            "softmax" => Ok(Self::Softmax),
            "mlp" => Ok(Self::Mlp),
            _ => Err(ModelSpecError::UnknownKind { name: name.to_owned() }),
        }
    }
}

/// A model that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum ModelSpecError {
    /// The kind's name is not one of ours.
    #[error("`{name}` is not a kind of model; {}", self.remedy().unwrap_or_default())]
    UnknownKind { name: String },

    /// A width is zero, or there is nothing to choose between.
    #[error(
        "no model has {columns} columns, {classes} classes and {hidden} hidden units; {}",
        self.remedy().unwrap_or_default()
    )]
    TooSmall { columns: usize, classes: usize, hidden: usize },

    /// The parameters would not fit.
    #[error(
        "a model of {columns} columns, {classes} classes and {hidden} hidden units has more than the {limit} \
         parameters that are possible; {}",
        self.remedy().unwrap_or_default()
    )]
    TooLarge { columns: usize, classes: usize, hidden: usize, limit: usize },
}

impl Diagnostic for ModelSpecError {
    fn operation(&self) -> &'static str {
        "making the model"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ModelSpecError::UnknownKind { .. } => "choose softmax or mlp".into(),
            ModelSpecError::TooSmall { .. } => {
                "it needs at least one column, two classes and, for mlp, one hidden unit".into()
            }
            ModelSpecError::TooLarge { .. } => "use fewer columns, classes or hidden units".into(),
        })
    }
}

/// The shape of a model: all there is to know about it but its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    kind: ModelKind,
    columns: usize,
    classes: usize,
    hidden: usize,
}

/// One named part of the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in a model file, such as `linear.weight`.
    pub name: &'static str,
    /// Its dimensions, the slowest first: outputs before inputs.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// The number of parameters in it.
    pub fn parameters(&self) -> usize {
        self.shape.iter().product()
    }
}

impl ModelSpec {
    /// A model for examples of `columns` values and `classes` classes.
    ///
    /// `hidden` is the width of the hidden layer, see [`HIDDEN_DEFAULT`]; softmax regression has none
    /// and ignores it.
    ///
    /// # Errors
    ///
    /// If a width is zero, there are fewer than two classes, or the parameters would exceed 1 GiB.
    pub fn new(
        kind: ModelKind,
        columns: usize,
        classes: usize,
        hidden: usize,
    ) -> Result<Self, ModelSpecError> {
        let hidden = if kind == ModelKind::Mlp { hidden } else { 0 };
        if columns == 0 || classes < 2 || (kind == ModelKind::Mlp && hidden == 0) {
            return Err(ModelSpecError::TooSmall { columns, classes, hidden });
        }
        // Saturating, since a model file may claim any width.
        let layer = |inputs: usize, outputs: usize| inputs.saturating_add(1).saturating_mul(outputs);
        let parameters = match kind {
            ModelKind::Softmax => layer(columns, classes),
            ModelKind::Mlp => layer(columns, hidden).saturating_add(layer(hidden, classes)),
        };
        if parameters > PARAMETERS_MAX {
            return Err(ModelSpecError::TooLarge { columns, classes, hidden, limit: PARAMETERS_MAX });
        }
        Ok(Self { kind, columns, classes, hidden })
    }

    /// The kind of model.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// Values per example.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Classes to choose from.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Units of the hidden layer; 0 for softmax regression.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The parts of the parameters, in the order in which they lie.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let pair = |layer: Layer, weight, bias| {
            [
                TensorSpec { name: weight, shape: vec![layer.outputs, layer.inputs] },
                TensorSpec { name: bias, shape: vec![layer.outputs] },
            ]
        };
        match self.hidden_layer() {
            None => pair(self.output_layer(), "linear.weight", "linear.bias").to_vec(),
            Some(layer) => [
                pair(layer, "hidden.weight", "hidden.bias"),
                pair(self.output_layer(), "output.weight", "output.bias"),
            ]
            .concat(),
        }
    }

    /// The number of parameters, all tensors together.
    pub fn parameters(&self) -> usize {
        let output = self.output_layer();
        output.start + output.parameters()
    }

    /// The layer before the output, where the kind has one.
    fn hidden_layer(&self) -> Option<Layer> {
        (self.kind == ModelKind::Mlp).then_some(Layer {
            start: 0,
            outputs: self.hidden,
            inputs: self.columns,
        })
    }

    /// The layer that gives the scores of the classes.
    fn output_layer(&self) -> Layer {
        match self.hidden_layer() {
            None => Layer { start: 0, outputs: self.classes, inputs: self.columns },
            Some(hidden) => {
                Layer { start: hidden.parameters(), outputs: self.classes, inputs: hidden.outputs }
            }
        }
    }

    /// Parameters to start from, the same for the same seed on every platform.
    ///
    /// Biases and softmax regression start at zero. Weights of the perceptron are drawn uniformly with
    /// the variance 2 / inputs (He et al., 2015), uniformly because a normal draw needs logarithms,
    /// which platforms round differently.
    pub fn initialise(&self, seed: u64) -> Vec<f32> {
        let mut parameters = Vec::with_capacity(self.parameters());
        let mut random = Random::new(seed, Purpose::Parameters, 0);
        for tensor in self.tensors() {
            match (self.kind, &tensor.shape[..]) {
                (ModelKind::Mlp, [outputs, inputs]) => {
                    // A uniform draw from [-a, a) has the variance a^2 / 3.
                    let bound = (6.0 / *inputs as f32).sqrt();
                    parameters.extend((0..outputs * inputs).map(|_| bound * random.symmetric()));
                }
                _ => parameters.resize(parameters.len() + tensor.parameters(), 0.0),
            }
        }
        parameters
    }
}

impl fmt::Display for ModelSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {} columns", self.kind, self.columns)?;
        if self.kind == ModelKind::Mlp {
            write!(formatter, ", {} hidden units", self.hidden)?;
        }
        write!(formatter, " and {} classes", self.classes)
    }
}
