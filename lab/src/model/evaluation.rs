//! The measure of a model: its loss and its accuracy on a data set.

/// The quality of a model on a data set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// Mean cross-entropy per example, in nats; of a factorisation the mean squared error per entry.
    pub loss: f32,
    /// Part of the examples whose class is given the highest probability, 0 to 1; where there are classes.
    pub accuracy: Option<f32>,
}
