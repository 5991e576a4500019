//! The digits as a problem for the simulator.

use slackline::Diagnostic;
use std::borrow::Cow;
use std::sync::Arc;

use slackline::sim::{Evaluation, Problem};

use crate::data::{self, Split};
use crate::model::{Batches, BatchesError, ModelKind, ModelSpec, ModelSpecError, Scratch, Tower};

/// A model to be trained on the digits, with the mini-batches that [`Batches`] gives each worker: what `slackline
/// train` does, without its processes.
#[derive(Debug)]
pub struct Digits {
    net: Net,
    split: Arc<Split>,
    batches: Vec<Batches>,
}

#[derive(Debug)]
enum Net {
    Model(ModelSpec, Scratch),
    Tower(Tower),
}

/// A problem that cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DigitsError {
    /// The model cannot be.
    #[error(transparent)]
    Model(#[from] ModelSpecError),
    /// The mini-batches cannot be.
    #[error(transparent)]
    Batches(#[from] BatchesError),
}

impl Diagnostic for DigitsError {
    fn operation(&self) -> &'static str {
        "making the problem"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            DigitsError::Model(error) => error.remedy(),
            DigitsError::Batches(error) => error.remedy(),
        }
    }
}

impl Digits {
    /// A softmax regression, or a perceptron with one hidden layer, for `workers` with mini-batches of `batch`. The
    /// seed decides the order of the examples.
    ///
    /// # Errors
    ///
    /// If the model cannot be, or there are not enough examples for one mini-batch of each worker.
    pub fn new(
        kind: ModelKind,
        hidden: usize,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Digits, DigitsError> {
        let split = Arc::new(data::digits());
        let spec = ModelSpec::new(kind, split.train.columns, split.train.classes, hidden)?;
        Digits::with(Net::Model(spec, Scratch::default()), split, workers, batch, seed)
    }

    /// A perceptron with `depth` hidden layers of `width` units each.
    ///
    /// # Errors
    ///
    /// If there are not enough examples for one mini-batch of each worker.
    pub fn tower(
        depth: usize,
        width: usize,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Digits, DigitsError> {
        let split = Arc::new(data::digits());
        let tower = Tower::new(split.train.columns, split.train.classes, depth, width);
        Digits::with(Net::Tower(tower), split, workers, batch, seed)
    }

    fn with(
        net: Net,
        split: Arc<Split>,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Digits, DigitsError> {
        let rows = split.train.rows();
        let batches = (0..workers).map(|worker| Batches::new(seed, worker, workers, rows, batch));
        Ok(Digits { batches: batches.collect::<Result<_, _>>()?, net, split })
    }
}

impl Problem for Digits {
    fn parameters(&self) -> usize {
        match &self.net {
            Net::Model(spec, _) => spec.parameters(),
            Net::Tower(tower) => tower.parameters(),
        }
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        match &self.net {
            Net::Model(spec, _) => spec.initialise(seed),
            Net::Tower(tower) => tower.initialise(seed),
        }
    }

    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let (rows, data) = (self.batches[worker].rows(step), &self.split.train);
        match &mut self.net {
            Net::Model(spec, scratch) => spec.loss_and_gradient(parameters, data, rows, gradient, scratch),
            Net::Tower(tower) => tower.loss_and_gradient(parameters, data, rows, gradient),
        }
    }

    /// The loss on what is learnt from, and the accuracy on the test part.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let Split { train, test, .. } = &*self.split;
        let (loss, accuracy) = match &mut self.net {
            Net::Model(spec, _) => {
                (spec.evaluate(parameters, train).loss, spec.evaluate(parameters, test).accuracy)
            }
            Net::Tower(tower) => {
                (tower.evaluate(parameters, train).loss, tower.evaluate(parameters, test).accuracy)
            }
        };
        Evaluation { loss: f64::from(loss), accuracy: Some(f64::from(accuracy)) }
    }
}
