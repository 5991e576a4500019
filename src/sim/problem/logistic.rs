//! Two classes, told apart by a line.

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
        }
        self
    }
}

/// What mini-batch gradients are like at some parameters, over all data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientMoments {
    /// Squared norm of the gradient of the loss over all data.
    pub norm_squared: f64,
    /// Trace of the covariance of the gradient of one mini-batch.
    pub variance: f64,
    /// With the Hessian `H` and the gradient `g`: `g'Hg`.
    pub along: f64,
    /// With the covariance `C` of the gradient of one mini-batch: the trace of `HC`.
    pub across: f64,
}

impl GradientMoments {
    /// The fall of the loss that a step of this size against the mean of `k` gradients has in expectation, to second
    /// order.
    pub fn fall(&self, step_size: f64, k: usize) -> f64 {
        let bend = self.along + self.across / k.max(1) as f64;
        step_size * self.norm_squared - 0.5 * step_size * step_size * bend
    }
}

impl Logistic {
    /// The moments of mini-batch gradients at these parameters. Those with the Hessian are means over a quarter of the
    /// examples.
    pub fn moments(&self, parameters: &[f32]) -> GradientMoments {
        const EVERY: usize = 4;
        let (width, count) = (self.features, self.train.classes.len());
        let example = |index: usize| {
            let (row, margin) = self.train.margin(index, parameters);
            let wrong = 1.0 / (1.0 + f64::from(margin).exp());
            (row, -f64::from(self.train.classes[index]) * wrong, wrong * (1.0 - wrong))
        };
        let square = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        let (mut data, mut squares) = (vec![0.0; width], 0.0);
        for (row, slope, _) in (0..count).map(example) {
            data.iter_mut().zip(row).for_each(|(sum, x)| *sum += slope * f64::from(*x) / count as f64);
            squares += slope * slope * square(row) / count as f64;
        }
        let some = count.div_ceil(EVERY) as f64;
        let mut hessian = vec![0.0; width * width];
        for (row, _, bend) in (0..count).step_by(EVERY).map(example) {
            for (x, sums) in row.iter().zip(hessian.chunks_exact_mut(width)) {
                let scaled = f64::from(*x) * bend / some;
                sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += scaled * f64::from(*y));
            }
        }
        let penalty = f64::from(self.penalty);
        hessian.iter_mut().step_by(width + 1).for_each(|diagonal| *diagonal += penalty);
        let curvature = |v: &dyn Fn(usize) -> f64| -> f64 {
            let rows = hessian.chunks_exact(width).enumerate();
            rows.map(|(at, row)| v(at) * row.iter().enumerate().map(|(to, h)| h * v(to)).sum::<f64>()).sum()
        };
        let gradient: Vec<f64> = data
            .iter()
            .zip(parameters)
            .map(|(data, parameter)| data + penalty * f64::from(*parameter))
            .collect();
        let of_examples = (0..count).step_by(EVERY).map(example);
        let second: f64 = of_examples
            .map(|(row, slope, _)| slope * slope * curvature(&|at| f64::from(row[at])) / some)
            .sum();
        let norm = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>();
        GradientMoments {
            norm_squared: norm(&gradient),
            variance: (squares - norm(&data)) / self.batch as f64,
            along: curvature(&|at| gradient[at]),
            across: (second - curvature(&|at| data[at])) / self.batch as f64,
        }
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
        Examples { features, classes }
    }

    /// The features of an example, and how far it lies on its own side.
    fn margin(&self, index: usize, parameters: &[f32]) -> (&[f32], f32) {
        let row = &self.features[index * parameters.len()..][..parameters.len()];
        let side: f32 = row.iter().zip(parameters).map(|(feature, parameter)| feature * parameter).sum();
        (row, side * self.classes[index])
    }
}

/// `ln(1 + exp(-margin))`, without overflow.
fn loss(margin: f64) -> f64 {
    (-margin.abs()).exp().ln_1p() + (-margin).max(0.0)
}

/// Factors of at most 2 whose product is far from overflow.
const AT_ONCE: usize = 500;

/// The sum of the [`loss`]es of at most [`AT_ONCE`] margins, with one logarithm, which costs more than all the rest.
fn losses(margins: impl Iterator<Item = f64>) -> f64 {
    let (mut product, mut sum) = (1.0, 0.0);
    for margin in margins {
        product *= 1.0 + (-margin.abs()).exp();
        sum += (-margin).max(0.0);
    }
    sum + product.ln()
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
        let share = 1.0 / self.batch as f32;
        for _ in 0..self.batch {
            let index = random.below(self.train.classes.len() as u64) as usize;
            let (row, margin) = self.train.margin(index, parameters);
            sum += f64::from(share) * loss(f64::from(margin));
            let slope = -share * self.train.classes[index] / (1.0 + margin.exp());
            for (gradient, feature) in gradient.iter_mut().zip(row) {
                *gradient += slope * feature;
            }
        }
        sum as f32
    }

    /// The loss over what is learnt from, and the accuracy on the test set.
    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let count = self.train.classes.len();
        let data: f64 = (0..count.div_ceil(AT_ONCE))
            .map(|part| {
                let part = part * AT_ONCE..count.min((part + 1) * AT_ONCE);
                losses(part.map(|index| f64::from(self.train.margin(index, parameters).1)))
            })
            .sum();
        let squares: f64 = parameters.iter().map(|parameter| f64::from(parameter * parameter)).sum();
        let tests = self.test.classes.len();
        let right = (0..tests).filter(|index| self.test.margin(*index, parameters).1 > 0.0).count();
        Evaluation {
            loss: data / count as f64 + 0.5 * f64::from(self.penalty) * squares,
            accuracy: Some(right as f64 / tests as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten thousand steps from the same parameters, each against the mean of four mini-batches of eight.
    #[test]
    fn moments_promise_what_many_steps_lower_the_loss_by() {
        let mut problem = Logistic::new(2000, 5, 8, 1e-2, 1);
        let parameters = [0.5, -0.2, 0.1, 0.3, -0.4];
        let (moments, before) = (problem.moments(&parameters), problem.evaluate(&parameters).loss);
        let (step_size, k, steps) = (0.2_f32, 4, 10_000);
        let (mut fallen, mut spread, mut gradient) = (0.0, 0.0, [0.0; 5]);
        for step in 0..steps {
            let mut mean = [0.0; 5];
            for worker in 0..k {
                problem.gradient(worker, step, &parameters, &mut gradient);
                mean.iter_mut().zip(&gradient).for_each(|(mean, own)| *mean += own / k as f32);
            }
            let moved: Vec<f32> = parameters.iter().zip(&mean).map(|(at, by)| at - step_size * by).collect();
            fallen += (before - problem.evaluate(&moved).loss) / steps as f64;
            spread += mean.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / steps as f64;
        }
        let expected = moments.fall(f64::from(step_size), k);
        assert!((fallen / expected - 1.0).abs() < 0.03, "{fallen}, expected {expected}");
        let expected = moments.norm_squared + moments.variance / k as f64;
        assert!((spread / expected - 1.0).abs() < 0.02, "{spread}, expected {expected}");
    }

    #[test]
    fn losses_of_many_margins_are_the_sum_of_each() {
        let margins: Vec<f64> = (0..AT_ONCE as i32).map(|index| 0.3 * f64::from(index - 200)).collect();
        let each: f64 = margins.iter().map(|margin| loss(*margin)).sum();
        assert!((losses(margins.into_iter()) / each - 1.0).abs() < 1e-12);
        let even = losses([0.0; AT_ONCE].into_iter()) / (AT_ONCE as f64 * 2f64.ln());
        assert!((even - 1.0).abs() < 1e-12, "no overflow: {even}");
    }
}
