//! The problems that simulated workers learn.

mod factorisation;
mod logistic;
mod quadratic;

pub use factorisation::{Factorisation, Shape};
pub use logistic::Logistic;
pub use quadratic::Quadratic;

/// A learning problem: everything about it is a function of its arguments, so that a simulation replays.
pub trait Problem: Send {
    /// Returns the number of parameters.
    fn parameters(&self) -> usize;

    /// Returns the parameters to begin with.
    fn initial(&self, seed: u64) -> Vec<f32>;

    /// Writes the gradient of the mean loss over the mini-batch that belongs to `worker` and `step`, and returns that
    /// loss. Steps are clocks, or, with `U` local steps per clock, `U * clock + u`.
    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32;

    /// Measures how good the parameters are.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation;
}

/// The quality of parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The loss that is minimised, over all data.
    pub loss: f64,
    /// The part of the test set that they classify rightly, where that means anything.
    pub accuracy: Option<f64>,
}

/// Purposes of the random streams of problems.
const START: u64 = 0x7374_6172;
const BATCH: u64 = 0x6261_7463;
const DATA: u64 = 0x6461_7461;

/// The stream that a worker draws its mini-batch of a step from.
fn batch(seed: u64, worker: usize, step: u64) -> super::Random {
    super::Random::stream(seed ^ BATCH, worker as u64, step)
}
