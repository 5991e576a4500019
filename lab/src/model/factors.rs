//! The factors of a matrix, whose product is to agree with its known entries.
//!
//! The loss is the mean over the entries of `(l . r - value)^2 + penalty * (|l|^2 + |r|^2)`, where `l` is the factor of
//! the entry's row and `r` that of its column (Koren et al., 2009; Dai et al., AAAI 2015). A row with many
//! entries is so penalised as often.

use super::error::ModelSpecError;
use super::evaluation::Evaluation;
use super::kernels::dot;
use super::pieces::{Pieces, Stopped};
use super::tensor::TensorSpec;
use crate::data::Entries;
use crate::data::random::Random;

/// Standard deviation of an initial value times the root of the rank.
const START: f32 = 0.3;

/// The shape of the factors, those of the rows first, and the weight of the penalty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Factors {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) rank: usize,
    pub(super) penalty: f32,
}

/// An entry: where its two factors begin, and by how much their product misses it.
struct Miss {
    left: usize,
    right: usize,
    miss: f32,
}

impl Factors {
    /// Factors of at most so many parameters, without a penalty; `hidden` is the rank alone.
    pub(super) fn new(
        rows: usize,
        columns: usize,
        hidden: &[usize],
        limit: usize,
    ) -> Result<Factors, ModelSpecError> {
        let parameters = |rank| rows.checked_add(columns)?.checked_mul(rank);
        match *hidden {
            [rank] if rows > 0 && columns > 0 && (1..=limit).contains(&parameters(rank).unwrap_or(0)) => {
                Ok(Factors { rows, columns, rank, penalty: 0.0 })
            }
            _ => Err(ModelSpecError::NoFactors { rows, columns, hidden: hidden.to_vec(), limit }),
        }
    }

    pub(super) fn parameters(&self) -> usize {
        (self.rows + self.columns) * self.rank
    }

    /// Its tensors, named and shaped as embeddings of frameworks.
    pub(super) fn tensors(&self) -> Vec<TensorSpec> {
        let tensor = |name, count| TensorSpec::new(name, [count, self.rank]);
        vec![tensor("rows.weight", self.rows), tensor("columns.weight", self.columns)]
    }

    /// Small and random: between zeros nothing is learnt.
    pub(super) fn initialise(&self, parameters: &mut [f32], mut random: Random) {
        // A uniform draw from [-a, a) has the variance a^2 / 3.
        let bound = START * (3.0 / self.rank as f32).sqrt();
        parameters.iter_mut().for_each(|value| *value = bound * random.symmetric());
    }

    fn miss(&self, parameters: &[f32], entries: &Entries, index: usize) -> Miss {
        let left = entries.row_numbers[index] as usize * self.rank;
        let right = (self.rows + entries.column_numbers[index] as usize) * self.rank;
        let product = dot(&parameters[left..][..self.rank], &parameters[right..][..self.rank]);
        Miss { left, right, miss: product - entries.values[index] }
    }

    /// Fills `gradient`, and returns the loss.
    pub(super) fn compute<E, F: FnMut() -> Result<bool, E>>(
        &self,
        parameters: &[f32],
        entries: &Entries,
        picked: &[usize],
        gradient: &mut [f32],
        pieces: &mut Pieces<F>,
    ) -> Result<f32, Stopped<E>> {
        gradient.fill(0.0);
        let (mut loss, share) = (0.0f64, 2.0 / picked.len() as f32);
        for (example, index) in picked.iter().enumerate() {
            pieces.before(example)?;
            let Miss { left, right, miss } = self.miss(parameters, entries, *index);
            let mut squares = 0.0;
            for at in 0..self.rank {
                let (one, other) = (parameters[left + at], parameters[right + at]);
                gradient[left + at] += share * (miss * other + self.penalty * one);
                gradient[right + at] += share * (miss * one + self.penalty * other);
                squares += one * one + other * other;
            }
            loss += f64::from(miss).powi(2) + f64::from(self.penalty * squares);
        }
        Ok((loss / picked.len() as f64) as f32)
    }

    /// The mean squared error over all entries.
    pub(super) fn evaluate(&self, parameters: &[f32], entries: &Entries) -> Evaluation {
        let all = 0..entries.values.len();
        let squares = all.map(|index| f64::from(self.miss(parameters, entries, index).miss).powi(2));
        Evaluation { loss: (squares.sum::<f64>() / entries.values.len() as f64) as f32, accuracy: None }
    }
}
