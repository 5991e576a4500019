//! Models that cannot be.

use slackline::Diagnostic;
use std::borrow::Cow;

use thiserror::Error;

/// A model that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum ModelSpecError {
    /// The kind's name is not one of ours.
    #[error("`{name}` is not a kind of model; {}", self.remedy().unwrap_or_default())]
    UnknownKind { name: String },

    /// A width is zero, or there is nothing to choose between.
    #[error(
        "no model has {columns} columns, {classes} classes and {} hidden units; {}",
        units(hidden),
        self.remedy().unwrap_or_default()
    )]
    TooSmall { columns: usize, classes: usize, hidden: Vec<usize> },

    /// The parameters would not fit.
    #[error(
        "a model of {columns} columns, {classes} classes and {} hidden units has more than the \
         {limit} parameters that are possible; {}",
        units(hidden),
        self.remedy().unwrap_or_default()
    )]
    TooLarge { columns: usize, classes: usize, hidden: Vec<usize>, limit: usize },

    /// There are more hidden layers than any perceptron learns through.
    #[error("{layers} hidden layers are more than {limit}; {}", self.remedy().unwrap_or_default())]
    TooDeep { layers: usize, limit: usize },

    /// A convolution has nothing to slide over.
    #[error("examples of {columns} columns are no images for a convnet; {}", self.remedy().unwrap_or_default())]
    NoImages { columns: usize },

    /// A matrix, or its factors, cannot have this size.
    #[error(
        "a {rows} x {columns} matrix has no factors of rank {} with 1 to {limit} parameters; {}",
        units(hidden),
        self.remedy().unwrap_or_default()
    )]
    NoFactors { rows: usize, columns: usize, hidden: Vec<usize>, limit: usize },
}

/// The units of each layer, from the first on.
pub(super) fn units(hidden: &[usize]) -> String {
    match hidden {
        [] => "no".into(),
        hidden => hidden.iter().map(usize::to_string).collect::<Vec<_>>().join("-"),
    }
}

impl Diagnostic for ModelSpecError {
    fn operation(&self) -> &'static str {
        "making the model"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            ModelSpecError::UnknownKind { .. } => "choose softmax, mlp, convnet or factorisation".into(),
            ModelSpecError::TooSmall { .. } => {
                "it needs at least one column, two classes and one unit in each hidden layer".into()
            }
            ModelSpecError::TooLarge { .. } => "use fewer columns, classes or hidden units".into(),
            ModelSpecError::TooDeep { .. } => "use fewer".into(),
            ModelSpecError::NoFactors { .. } => "use one rank, 1 or more, or fewer rows and columns".into(),
            ModelSpecError::NoImages { .. } => {
                "it takes squares of one plane or three, whose side is a multiple of 4 (64, 784, 3072 columns); \
                 use mlp for others"
                    .into()
            }
        })
    }
}
