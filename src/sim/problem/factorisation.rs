//! A matrix of low rank, some of whose entries are known.

use super::{DATA, Evaluation, Problem, START, batch};
use crate::sim::Random;

/// Matrix factorisation: find `L` and `R` of some rank so that `L R^T` agrees with the known entries of a matrix that
/// was made so, plus noise. The loss is half the mean squared error over the known entries plus an L2 penalty on the
/// rows that take part, as Dai et al. (AAAI 2015) train it.
#[derive(Clone, Debug)]
pub struct Factorisation {
    seed: u64,
    shape: Shape,
    entries: Vec<KnownEntry>,
}

/// Size of a [`Factorisation`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub columns: usize,
    /// Rank, of the matrix and of the learnt factors.
    pub rank: usize,
    /// The number of known entries.
    pub known: usize,
    /// Standard deviation of the noise on them; entries themselves have variance 1.
    pub noise: f64,
    /// Entries in a mini-batch.
    pub batch: usize,
    /// L2 penalty.
    pub penalty: f32,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { rows: 60, columns: 40, rank: 4, known: 1200, noise: 0.05, batch: 32, penalty: 1e-3 }
    }
}

#[derive(Clone, Copy, Debug)]
struct KnownEntry {
    row: usize,
    column: usize,
    value: f32,
}

impl Factorisation {
    /// Makes a problem of that shape, each size at least 1.
    pub fn new(shape: Shape, seed: u64) -> Factorisation {
        let Shape { rows, columns, rank, known, noise, batch, penalty } = shape;
        let shape = Shape {
            rows: rows.max(1),
            columns: columns.max(1),
            rank: rank.max(1),
            known: known.max(1),
            noise,
            batch: batch.max(1),
            penalty,
        };
        let mut random = Random::stream(seed, DATA, 2);
        let mut factor = |count: usize| -> Vec<f64> {
            let scale = (shape.rank as f64).powf(-0.25);
            (0..count * shape.rank).map(|_| scale * random.normal()).collect()
        };
        let (left, right) = (factor(shape.rows), factor(shape.columns));
        let entries = (0..shape.known)
            .map(|_| {
                let row = random.below(shape.rows as u64) as usize;
                let column = random.below(shape.columns as u64) as usize;
                let product: f64 = (0..shape.rank)
                    .map(|at| left[row * shape.rank + at] * right[column * shape.rank + at])
                    .sum();
                KnownEntry { row, column, value: (product + noise * random.normal()) as f32 }
            })
            .collect();
        Factorisation { seed, shape, entries }
    }

    /// Returns where the factors of an entry lie among the parameters, and by how much their product misses the
    /// entry.
    fn miss(&self, entry: KnownEntry, parameters: &[f32]) -> (usize, usize, f32) {
        let rank = self.shape.rank;
        let (left, right) = (entry.row * rank, (self.shape.rows + entry.column) * rank);
        let product: f32 = (0..rank).map(|at| parameters[left + at] * parameters[right + at]).sum();
        (left, right, product - entry.value)
    }

    fn squares(&self, left: usize, right: usize, parameters: &[f32]) -> f32 {
        let rank = self.shape.rank;
        let square = |at: usize| parameters[at] * parameters[at];
        (0..rank).map(|at| square(left + at) + square(right + at)).sum()
    }
}

impl Problem for Factorisation {
    fn parameters(&self) -> usize {
        (self.shape.rows + self.shape.columns) * self.shape.rank
    }

    /// Small and random: between zeros nothing is learnt.
    fn initial(&self, seed: u64) -> Vec<f32> {
        let mut random = Random::stream(seed, START, 2);
        let scale = 0.3 / (self.shape.rank as f64).sqrt();
        (0..self.parameters()).map(|_| (scale * random.normal()) as f32).collect()
    }

    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let mut random = batch(self.seed, worker, step);
        gradient.fill(0.0);
        let (share, penalty) = (1.0 / self.shape.batch as f32, self.shape.penalty);
        let mut loss = 0.0;
        for _ in 0..self.shape.batch {
            let entry = self.entries[random.below(self.entries.len() as u64) as usize];
            let (left, right, miss) = self.miss(entry, parameters);
            loss += 0.5 * share * (miss * miss + penalty * self.squares(left, right, parameters));
            for at in 0..self.shape.rank {
                let (one, other) = (parameters[left + at], parameters[right + at]);
                gradient[left + at] += share * (miss * other + penalty * one);
                gradient[right + at] += share * (miss * one + penalty * other);
            }
        }
        loss
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let losses = self.entries.iter().map(|entry| {
            let (left, right, miss) = self.miss(*entry, parameters);
            0.5 * f64::from(miss * miss + self.shape.penalty * self.squares(left, right, parameters))
        });
        Evaluation { loss: losses.sum::<f64>() / self.entries.len() as f64, accuracy: None }
    }
}
