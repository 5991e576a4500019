//! A bowl whose bottom is known.

use super::{DATA, Evaluation, Problem, START, batch};
use crate::sim::Random;

/// `F(w) = 1/2 sum_i a_i (w_i - o_i)^2`, with curvatures `a_i` from `1 / condition` to 1 in equal ratios and an optimum
/// `o`, `F(o) = 0`, drawn from the seed. A gradient is the exact one plus noise that is independent in each element,
/// normal, and has `variance` in sum over all elements.
///
/// ```
/// use slackline::sim::{Problem, Quadratic};
/// let mut bowl = Quadratic::new(8, 10.0, 0.0, 1);
/// let optimum = bowl.optimum().to_vec();
/// assert_eq!(bowl.evaluate(&optimum).loss, 0.0);
/// let mut gradient = [1.0; 8];
/// bowl.gradient(0, 0, &optimum, &mut gradient);
/// assert_eq!(gradient, [0.0; 8]);
/// ```
#[derive(Clone, Debug)]
pub struct Quadratic {
    seed: u64,
    curvature: Vec<f32>,
    optimum: Vec<f32>,
    /// Standard deviation of the noise in one element.
    noise: f64,
}

impl Quadratic {
    /// With so many parameters (at least 1), the ratio of the greatest curvature to the smallest (at least 1), and the
    /// variance of a gradient, summed over its elements.
    pub fn new(parameters: usize, condition: f64, variance: f64, seed: u64) -> Quadratic {
        let parameters = parameters.max(1);
        let last = (parameters - 1).max(1) as f64;
        let curvature = |index: usize| condition.max(1.0).powf(-(index as f64) / last) as f32;
        let mut random = Random::stream(seed, DATA, 0);
        Quadratic {
            seed,
            curvature: (0..parameters).map(curvature).collect(),
            optimum: (0..parameters).map(|_| random.normal() as f32).collect(),
            noise: (variance.max(0.0) / parameters as f64).sqrt(),
        }
    }

    /// Returns the parameters where the loss is 0.
    pub fn optimum(&self) -> &[f32] {
        &self.optimum
    }
}

impl Problem for Quadratic {
    fn parameters(&self) -> usize {
        self.optimum.len()
    }

    /// Normal around the optimum.
    fn initial(&self, seed: u64) -> Vec<f32> {
        let mut random = Random::stream(seed, START, 0);
        self.optimum.iter().map(|optimum| optimum + random.normal() as f32).collect()
    }

    fn gradient(&mut self, worker: usize, step: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let mut random = batch(self.seed, worker, step);
        let mut loss = 0.0;
        let bowl = self.curvature.iter().zip(&self.optimum);
        for ((gradient, parameter), (curvature, optimum)) in gradient.iter_mut().zip(parameters).zip(bowl) {
            let away = parameter - optimum;
            let noise = if self.noise > 0.0 { (self.noise * random.normal()) as f32 } else { 0.0 };
            *gradient = curvature * away + noise;
            // The loss whose gradient this is.
            loss += f64::from(0.5 * curvature * away * away) + f64::from(noise * away);
        }
        loss as f32
    }

    fn evaluate(&mut self, parameters: &[f32]) -> Evaluation {
        let bowl = self.curvature.iter().zip(&self.optimum);
        let losses = parameters.iter().zip(bowl).map(|(parameter, (curvature, optimum))| {
            let away = f64::from(*parameter) - f64::from(*optimum);
            0.5 * f64::from(*curvature) * away * away
        });
        Evaluation { loss: losses.sum(), accuracy: None }
    }
}
