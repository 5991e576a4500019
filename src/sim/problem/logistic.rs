//! Two classes, told apart by a line.

use std::mem;

use super::{DATA, Evaluation, Problem, batch};
use crate::sim::Random;

/// Logistic regression on examples drawn from the seed: features are normal, a hidden normal vector of length
/// `sharpness` gives the log odds of their classes. Half as many examples again, drawn likewise, are the test set.
#[derive(Clone, Debug)]
pub struct Logistic {
    seed: u64,
    features: usize,
    batch: usize,
    penalty: f32,
    train: Examples,
    test: Examples,
}

#[derive(Clone, Debug)]
struct Examples {
    /// Row by row.
    features: Vec<f32>,
    /// The same, column by column: examples side by side, as [`Examples::margins`] reads them.
    columns: Vec<f32>,
    /// 1 or -1.
    classes: Vec<f32>,
}

/// Log odds have this spread: about 85 % of the examples can be told apart.
const SHARPNESS: f64 = 4.0;

impl Logistic {
    /// With so many examples to learn from, features, and examples in a mini-batch (each at least 1), and an L2
    /// `penalty / 2 * |w|^2`.
    pub fn new(examples: usize, features: usize, batch: usize, penalty: f32, seed: u64) -> Logistic {
        let (examples, features, batch) = (examples.max(1), features.max(1), batch.max(1));
        let mut random = Random::stream(seed, DATA, 1);
        let scale = SHARPNESS / (features as f64).sqrt();
        let hidden: Vec<f64> = (0..features).map(|_| scale * random.normal()).collect();
        let train = Examples::draw(examples, &hidden, &mut random);
        let test = Examples::draw(examples.div_ceil(2), &hidden, &mut random);
        Logistic { seed, features, batch, penalty, train, test }
    }

    /// The same examples, drawn into mini-batches in the order of another seed.
    pub fn in_order(mut self, seed: u64) -> Logistic {
        self.seed = seed;
        self
    }

    /// The same problem with feature `i`, counted from 1, made smaller by `i` to the power of `decay`: as
    /// ill-conditioned as data from outside are, with a weight to be learnt for each that is larger by as much.
    pub fn narrowed(mut self, decay: f64) -> Logistic {
        for examples in [&mut self.train, &mut self.test] {
            for row in examples.features.chunks_exact_mut(self.features) {
                for (index, feature) in row.iter_mut().enumerate() {
                    *feature *= ((index + 1) as f64).powf(-decay) as f32;
                }
            }
            *examples = Examples::new(mem::take(&mut examples.features), mem::take(&mut examples.classes));
        }
        self
    }
}

impl Logistic {
    /// The examples to learn from, in order: features, and the class, which is 1 or -1.
    #[doc(hidden)]
    pub fn examples(&self) -> impl ExactSizeIterator<Item = (&[f32], f32)> {
        self.train.features.chunks_exact(self.features).zip(self.train.classes.iter().copied())
    }
}

impl Examples {
    fn draw(count: usize, hidden: &[f64], random: &mut Random) -> Examples {
        let mut features = Vec::with_capacity(count * hidden.len());
        let mut classes = Vec::with_capacity(count);
        for _ in 0..count {
            let mut odds = 0.0;
            for weight in hidden {
                let feature = random.normal();
                odds += weight * feature;
                features.push(feature as f32);
            }
            classes.push(if random.unit() < 1.0 / (1.0 + (-odds).exp()) { 1.0 } else { -1.0 });
        }
        Examples::new(features, classes)
    }

    /// `features` row by row.
    fn new(features: Vec<f32>, classes: Vec<f32>) -> Examples {
        let count = classes.len().max(1);
        let width = features.len() / count;
        let columns = (0..features.len()).map(|at| features[at % count * width + at / count]).collect();
        Examples { features, columns, classes }
    }

    /// The features of an example, and how far it lies on its own side.
    fn margin(&self, index: usize, parameters: &[f32]) -> (&[f32], f32) {
        let row = &self.features[index * parameters.len()..][..parameters.len()];
        let side: f32 = row.iter().zip(parameters).map(|(feature, parameter)| feature * parameter).sum();
        (row, side * self.classes[index])
    }

    /// The [`margin`](Self::margin) of each example, to the bit, from `first` on: many examples at once, each
    /// with its sum in the same order, which a processor does several times as fast.
    fn margins(&self, first: usize, parameters: &[f32], margins: &mut [f32]) {
        margins.fill(-0.0);
        for (column, parameter) in self.columns.chunks_exact(self.classes.len()).zip(parameters) {
            for (margin, feature) in margins.iter_mut().zip(&column[first..]) {
                *margin += feature * parameter;
            }
        }
        for (margin, class) in margins.iter_mut().zip(&self.classes[first..]) {
            *margin *= class;
        }
    }

    /// The sum of the results of `each` on the margins of at most [`AT_ONCE`] examples.
    fn sum(&self, parameters: &[f32], each: impl Fn(&[f32]) -> f64) -> f64 {
        let mut margins = [0.0; AT_ONCE];
        let mut sum = 0.0;
        for first in (0..self.classes.len()).step_by(AT_ONCE) {
            let margins = &mut margins[..AT_ONCE.min(self.classes.len() - first)];
            self.margins(first, parameters, margins);
            sum += each(margins);
        }
        sum
    }
}

/// Factors of at most 2 whose product is far from overflow.
const AT_ONCE: usize = 500;

/// A sum of `ln(1 + exp(-margin))` over margins, without overflow, with one logarithm for [`AT_ONCE`] of them: that
/// costs more than all the rest.
struct Losses {
    sum: f64,
    product: f64,
    factors: usize,
}

impl Losses {
    fn none() -> Losses {
        Losses { sum: 0.0, product: 1.0, factors: 0 }
    }

    fn add(&mut self, margin: f32) {
        if self.factors == AT_ONCE {
            *self = Losses { sum: self.total(), ..Losses::none() };
        }
        let margin = f64::from(margin);
        self.product *= 1.0 + (-margin.abs()).exp();
        self.sum += (-margin).max(0.0);
        self.factors += 1;
    }

    fn total(&self) -> f64 {
        self.sum + self.product.ln()
    }
}

/// The losses of all these margins.
fn losses(margins: &[f32]) -> f64 {
    let mut losses = Losses::none();
    margins.iter().for_each(|margin| losses.add(*margin));
    losses.total()
}

impl Problem for Logistic {
    fn parameters(&self) -> usize {
        self.features
    }

    /// Zeros: the problem is convex.
    fn initial(&self, _seed: u64) -> Vec<f32> {
        vec![0.0; self.features]
    }

    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let mut random = batch(self.seed, worker, step);
        let mut sum = 0.0;
        for (gradient, parameter) in gradient.iter_mut().zip(parameters) {
            *gradient = self.penalty * parameter;
            sum += f64::from(0.5 * self.penalty * parameter * parameter);
        }
        let (share, count) = (1.0 / self.batch as f32, self.train.classes.len() as u64);
        let mut losses = Losses::none();
        for _ in 0..self.batch {
            let index = random.below(count) as usize;
            let (row, margin) = self.train.margin(index, parameters);
            losses.add(margin);
            let slope = -share * self.train.classes[index] / (1.0 + margin.exp());
            for (gradient, feature) in gradient.iter_mut().zip(row) {
                *gradient += slope * feature;
            }
        }
        (sum + f64::from(share) * losses.total()) as f32
    }

    /// The loss over the training examples, and the accuracy on the test set.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let count = self.train.classes.len();
        let data = self.train.sum(parameters, losses);
        let squares: f64 = parameters.iter().map(|parameter| f64::from(parameter * parameter)).sum();
        let tests = self.test.classes.len();
        let is_right = |margins: &[f32]| margins.iter().filter(|margin| **margin > 0.0).count() as f64;
        let right = self.test.sum(parameters, is_right);
        Evaluation {
            loss: data / count as f64 + 0.5 * f64::from(self.penalty) * squares,
            accuracy: Some(right / tests as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_many_margins_are_the_sum_of_each() {
        let margins: Vec<f32> = (0..3 * AT_ONCE as i32).map(|index| 0.1 * (index - 700) as f32).collect();
        let each = |margin: &f32| (-f64::from(*margin)).exp().ln_1p();
        let expected: f64 = margins.iter().map(each).sum();
        assert!((losses(&margins) / expected - 1.0).abs() < 1e-12);
        let even = losses(&[0.0; AT_ONCE]) / (AT_ONCE as f64 * 2f64.ln());
        assert!((even - 1.0).abs() < 1e-12, "no overflow: {even}");
    }

    #[test]
    fn margins_of_many_examples_are_those_of_each_to_the_bit() {
        let problem = Logistic::new(37, 5, 1, 0.0, 5).narrowed(0.5);
        let (at, first) = ([0.3, -0.2, 1.5, -7.0, 0.01], 4);
        let mut many = [0.0; 30];
        problem.train.margins(first, &at, &mut many);
        let one = |index| problem.train.margin(first + index, &at).1.to_bits();
        assert_eq!(many.map(f32::to_bits), std::array::from_fn(one));
    }
}
