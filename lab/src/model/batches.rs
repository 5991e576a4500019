//! The examples that each worker takes at each step.

use slackline::Diagnostic;
use std::borrow::Cow;
use thiserror::Error;

use super::{Shards, ShardsError};
use crate::data::random::{Purpose, Random};

/// Batches that cannot be made.
#[derive(Clone, Debug, PartialEq, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum BatchesError {
    /// There are no workers or the batches are empty.
    #[error("{workers} workers with batches of {batch} take no examples; {}", self.remedy().unwrap_or_default())]
    Nothing { workers: usize, batch: usize },

    /// The worker does not exist.
    #[error("there is no worker {worker} among {workers}; {}", self.remedy().unwrap_or_default())]
    NoSuchWorker { worker: usize, workers: usize },

    /// One step needs more examples than there are.
    #[error(
        "{workers} workers with batches of {batch} need more than the {rows} examples there are; {}",
        self.remedy().unwrap_or_default()
    )]
    TooLarge { workers: usize, batch: usize, rows: usize },

    /// The examples cannot be dealt out so.
    #[error(transparent)]
    Shards(#[from] ShardsError),
}

impl Diagnostic for BatchesError {
    fn operation(&self) -> &'static str {
        "cutting batches"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        Some(match self {
            BatchesError::Nothing { .. } => "use at least 1 of each".into(),
            BatchesError::NoSuchWorker { .. } => "they are numbered from 0".into(),
            BatchesError::TooLarge { .. } => "use a smaller batch or fewer workers".into(),
            BatchesError::Shards(error) => return error.remedy(),
        })
    }
}

/// The examples that one worker takes, step by step.
///
/// Each epoch shuffles all examples, in an order that depends on the seed and the epoch only, and cuts
/// the order into steps of `workers * batch` examples. Of each step, worker `i` takes the `i`-th
/// `batch`. So at every step `n` workers with batches of `b` take together exactly what one worker with
/// batches of `n * b` takes, and a distributed run can be held against a serial one. The examples
/// left over at the end of an epoch wait for a later one.
///
/// A worker with a [shard](Shards) of its own shuffles and cuts that alone, at its own pace: one with few examples has
/// short epochs, and one with fewer than a batch takes them all at each step.
#[derive(Clone, Debug)]
pub struct Batches {
    seed: u64,
    /// The first of the random streams of the epochs, so that shards of one length are shuffled apart.
    stream: u64,
    worker: usize,
    workers: usize,
    batch: usize,
    /// The examples of the shard; none if it is all.
    shard: Vec<usize>,
    /// The examples in the order of `epoch`.
    order: Vec<usize>,
    epoch: u64,
}

impl Batches {
    /// The batches of `worker` (from 0) out of `workers` over a training set of `rows` examples.
    ///
    /// # Errors
    ///
    /// If one step would need more examples than there are, or none.
    pub fn new(
        seed: u64,
        worker: usize,
        workers: usize,
        rows: usize,
        batch: usize,
    ) -> Result<Self, BatchesError> {
        if workers == 0 || batch == 0 {
            return Err(BatchesError::Nothing { workers, batch });
        }
        if worker >= workers {
            return Err(BatchesError::NoSuchWorker { worker, workers });
        }
        if workers.checked_mul(batch).is_none_or(|step| step > rows) {
            return Err(BatchesError::TooLarge { workers, batch, rows });
        }
        let (shard, order) = (Vec::new(), vec![0; rows]);
        let mut batches = Self { seed, stream: 0, worker, workers, batch, shard, order, epoch: 0 };
        batches.shuffle(0);
        Ok(batches)
    }

    /// The batches of `worker` (from 0) out of `workers`, whose examples are dealt out by their `labels`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and if a worker would have no example.
    pub fn sharded(
        shards: Shards,
        seed: u64,
        worker: usize,
        workers: usize,
        labels: &[u32],
        batch: usize,
    ) -> Result<Self, BatchesError> {
        let all = Self::new(seed, worker, workers, labels.len(), batch)?;
        let Some(mut dealt) = shards.deal(labels, workers, seed)? else { return Ok(all) };
        let shard = dealt.swap_remove(worker);
        let (stream, batch, order) = ((worker as u64 + 1) << 32, batch.min(shard.len()), shard.clone());
        let mut batches = Self { stream, worker: 0, workers: 1, batch, shard, order, ..all };
        batches.shuffle(0);
        Ok(batches)
    }

    /// Whole steps in one epoch: at least 1.
    pub fn steps_per_epoch(&self) -> usize {
        self.order.len() / (self.workers * self.batch)
    }

    /// The examples of this worker at `step`, counted from 0 over all epochs.
    ///
    /// Steps may be asked for in any order; within one epoch each costs nothing.
    pub fn rows(&mut self, step: u64) -> &[usize] {
        let steps = self.steps_per_epoch() as u64;
        let epoch = step / steps;
        if epoch != self.epoch {
            self.shuffle(epoch);
        }
        let start = ((step % steps) as usize * self.workers + self.worker) * self.batch;
        &self.order[start..][..self.batch]
    }

    /// Puts the examples in the order of `epoch`, which must not depend on the order they are in.
    fn shuffle(&mut self, epoch: u64) {
        match self.shard.is_empty() {
            true => self.order.iter_mut().enumerate().for_each(|(row, entry)| *entry = row),
            false => self.order.copy_from_slice(&self.shard),
        }
        Random::new(self.seed, Purpose::Epoch, self.stream + epoch).shuffle(&mut self.order);
        self.epoch = epoch;
    }
}
