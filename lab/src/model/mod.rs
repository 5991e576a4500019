//! The models that are trained: softmax regression, perceptrons of any depth, a small network of convolutions, and the
//! factorisation of a matrix.
//!
//! All parameters of a model lie in one flat slice of `f32`, so whatever holds them (a vector, shared
//! memory, memory registered for RDMA and copied out of) needs to know nothing about models. The slice
//! is the model's tensors one after the other, in the order of [`ModelSpec::tensors`], each row-major.
//!
//! Sums are taken in an order that depends on the shapes alone. So two runs of one build over the same
//! numbers agree to the last bit, and a difference between a serial and a distributed run comes from
//! the distribution.

mod batches;
mod block;
mod compute;
mod convolution;
mod error;
mod evaluation;
mod factors;
mod file;
mod kernels;
mod pieces;
mod shards;
mod spec;
mod tensor;

#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::data::TaskKind;

pub use batches::{Batches, BatchesError};
pub use compute::Scratch;
pub use error::ModelSpecError;
pub use evaluation::Evaluation;
#[cfg(fuzzing)]
pub(crate) use file::fuzz;
pub use file::{ModelFileError, load, load_for, save};
pub use shards::{Shards, ShardsError};
pub use spec::ModelSpec;
pub use tensor::TensorSpec;

/// Hidden width where none is asked for: on the digits, enough for 97.2 to 97.8 percent (five seeds, 30
/// epochs, batches of 32, rate 0.1, momentum 0.9), where softmax regression has 95.6 to 96.1.
pub const HIDDEN_DEFAULT: usize = 64;

/// Rank of a factorisation where none is asked for: that of the matrix that comes with the program.
pub const RANK_DEFAULT: usize = 4;

/// The kinds of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Softmax regression: one linear layer. Its loss is convex.
    Softmax,
    /// A perceptron: hidden layers of rectified linear units before the linear layer.
    Mlp,
    /// Two blocks of convolution, batch normalisation and pooling before a perceptron, like LeNet (LeCun et al., 1998).
    ConvNet,
    /// A factor for each row and each column of a matrix, whose products are to agree with the entries that are known
    /// (Koren et al., 2009).
    Factorisation,
}

impl ModelKind {
    /// What models of this kind learn.
    pub fn task(self) -> TaskKind {
        match self {
            Self::Softmax | Self::Mlp | Self::ConvNet => TaskKind::Classes,
            Self::Factorisation => TaskKind::Values,
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Softmax => "softmax",
            Self::Mlp => "mlp",
            Self::ConvNet => "convnet",
            Self::Factorisation => "factorisation",
        })
    }
}

impl FromStr for ModelKind {
    type Err = ModelSpecError;

    fn from_str(name: &str) -> Result<Self, ModelSpecError> {
        match name {
            "softmax" => Ok(Self::Softmax),
            "mlp" => Ok(Self::Mlp),
            "convnet" => Ok(Self::ConvNet),
            "factorisation" => Ok(Self::Factorisation),
            _ => Err(ModelSpecError::UnknownKind { name: name.to_owned() }),
        }
    }
}
