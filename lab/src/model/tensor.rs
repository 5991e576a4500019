//! The named parts of the parameters of a model.

use std::borrow::Cow;

/// One named part of the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in a model file, such as `linear.weight`.
    pub name: Cow<'static, str>,
    /// Its dimensions, the slowest first: outputs before inputs.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    pub(super) fn new(name: impl Into<Cow<'static, str>>, shape: impl Into<Vec<usize>>) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.into() }
    }

    /// The number of parameters in it.
    pub fn parameters(&self) -> usize {
        self.shape.iter().product()
    }
}
