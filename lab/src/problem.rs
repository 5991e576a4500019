//! Examples with labels as a problem for the simulator.

use slackline::Diagnostic;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use slackline::sim::{Evaluation, Problem};

use crate::data::{self, Split};
use crate::model::{Batches, BatchesError, ModelKind, ModelSpec, ModelSpecError, Scratch, Shards};

/// The digits, which are read once and shared by all problems.
static DIGITS: LazyLock<Arc<Split>> = LazyLock::new(|| Arc::new(data::digits()));

/// A model to be trained on the digits, or on other examples, with the mini-batches that [`Batches`] gives each worker:
/// what `slackline train` does, without its processes.
#[derive(Debug)]
pub struct Digits {
    spec: ModelSpec,
    scratch: Scratch,
    split: Arc<Split>,
    batches: Vec<Batches>,
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
    /// A model for `workers` with mini-batches of `batch`, with one hidden layer if it has any. The seed decides the
    /// order of the examples.
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
        let split = Arc::clone(&DIGITS);
        let spec = ModelSpec::new(kind, split.train.columns, split.train.classes, &[hidden])?;
        Digits::of(split, spec, Shards::Iid, workers, batch, seed)
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
        let split = Arc::clone(&DIGITS);
        let spec =
            ModelSpec::new(ModelKind::Mlp, split.train.columns, split.train.classes, &vec![width; depth])?;
        Digits::of(split, spec, Shards::Iid, workers, batch, seed)
    }

    /// Softmax regression on the digits, sorted by label and dealt out to the workers, so that each sees few labels.
    ///
    /// # Errors
    ///
    /// If there are not enough examples for one mini-batch of each worker.
    pub fn sorted(workers: usize, batch: usize, seed: u64) -> Result<Digits, DigitsError> {
        let split = Arc::clone(&DIGITS);
        let spec = ModelSpec::new(ModelKind::Softmax, split.train.columns, split.train.classes, &[])?;
        Digits::of(split, spec, Shards::Sorted, workers, batch, seed)
    }

    /// A model on these examples, which are dealt out to the workers as `shards` says.
    ///
    /// # Errors
    ///
    /// If there are not enough examples for one mini-batch of each worker, or a worker would have none.
    pub fn of(
        split: Arc<Split>,
        spec: ModelSpec,
        shards: Shards,
        workers: usize,
        batch: usize,
        seed: u64,
    ) -> Result<Digits, DigitsError> {
        let labels = &split.train.labels;
        let own = |worker| Batches::sharded(shards, seed, worker, workers, labels, batch);
        let batches = (0..workers).map(own).collect::<Result<_, _>>()?;
        Ok(Digits { spec, scratch: Scratch::default(), split, batches })
    }
}

impl Digits {
    /// The number of examples to learn from, of all workers together.
    pub fn examples(&self) -> usize {
        self.split.train.rows()
    }
}

impl Problem for Digits {
    fn parameters(&self) -> usize {
        self.spec.parameters()
    }

    fn initial(&self, seed: u64) -> Vec<f32> {
        self.spec.initialise(seed)
    }

    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let (rows, data) = (self.batches[worker].rows(step), &self.split.train);
        self.spec.loss_and_gradient(parameters, data, rows, gradient, &mut self.scratch)
    }

    /// The loss on what is learnt from, and the accuracy on the test part.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let Split { train, test, .. } = &*self.split;
        let loss = self.spec.evaluate(parameters, train).loss;
        let accuracy = self.spec.evaluate(parameters, test).accuracy;
        Evaluation { loss: f64::from(loss), accuracy: accuracy.map(f64::from) }
    }
}
