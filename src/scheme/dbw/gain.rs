//! What an update out of `k` gradients is worth.

use std::collections::VecDeque;

use crate::scheme::Statistics;

/// A lower bound on what one step lowers the loss by, in expectation: for an `L`-smooth loss `F`, a step size `h` and
/// the mean of `k` gradients of variance `V`, `E[F(w) - F(w')] >= (h - L h^2 / 2) |grad F|^2 - (L h^2 / 2) V / k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// The step size.
    pub learning_rate: f64,
    /// `L`: how fast the gradient changes, in gradients per unit of the parameters.
    pub smoothness: f64,
    /// Squared Euclidean norm of the true gradient.
    pub norm_squared: f64,
    /// Trace of the covariance of one worker's gradient.
    pub variance: f64,
}

impl Gain {
    /// Of an update out of `k` gradients, at least one; in units of the loss.
    pub fn of(&self, k: usize) -> f64 {
        let curvature = self.smoothness * self.learning_rate * self.learning_rate / 2.0;
        (self.learning_rate - curvature) * self.norm_squared - curvature * self.variance / k.max(1) as f64
    }
}

/// A mean that forgets: of all values at first, then exponentially, as if of the last `memory`.
#[derive(Debug)]
struct Mean {
    value: f64,
    count: f64,
    memory: f64,
}

impl Mean {
    fn new(memory: usize) -> Mean {
        Mean { value: 0.0, count: 0.0, memory: memory as f64 }
    }

    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.count = (self.count + 1.0).min(self.memory);
            self.value += (value - self.value) / self.count;
        }
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0.0).then_some(self.value)
    }
}

/// One update as it was measured.
#[derive(Clone, Copy, Debug)]
struct Step {
    learning_rate: f64,
    mean_norm_squared: f64,
    norm_squared: f64,
    loss: f64,
}

/// Learns the gain from what the folds measure.
///
/// Single estimates are mostly noise: that of the gradient's norm is often negative. So means are clipped and samples
/// are not, and the norm is read on the side where an error costs less. Too small a gradient says that no update gains
/// anything, and `k` climbs; too large a one costs a few noisy updates, which are measured in turn. This is not in the
/// paper.
#[derive(Debug)]
pub(super) struct Estimates {
    window: usize,
    /// Of the last updates: the squared norm of the mean gradient, and the part of the variance that is in it. The
    /// variance is taken off when the mean is: what one gradient alone cannot tell may be told later.
    norms: VecDeque<(f64, f64)>,
    variance: Mean,
    /// What each step promised to first order, what the loss fell by, and the step's squared length: their means give
    /// the smoothness. The losses in a mean of differences enter by their ends only, so it is long.
    promised: Mean,
    fallen: Mean,
    squares: Mean,
    /// Half the squared differences of neighbours: the variance of single losses, whatever their trend.
    loss_noise: Mean,
    losses: VecDeque<f64>,
    last: Option<Step>,
}

/// The smoothness is taken over so many times as many updates as the rest, for it changes little.
const LONGER: usize = 20;

/// Updates that the variance remembers. Early ones are much larger than what follows, and bias the norm.
const VARIANCES: usize = 5;

/// A loss has grown when it did by so many standard errors more than it may.
const ERRORS_GROWN: f64 = 2.0;

impl Estimates {
    pub(super) fn new(window: usize) -> Estimates {
        let window = window.max(1);
        let long = || Mean::new(LONGER * window);
        Estimates {
            window,
            norms: VecDeque::with_capacity(window + 1),
            variance: Mean::new(VARIANCES),
            promised: long(),
            fallen: long(),
            squares: long(),
            loss_noise: long(),
            losses: VecDeque::with_capacity(2 * window + 1),
            last: None,
        }
    }

    /// Takes note of an update out of `k` gradients. What was not measured is left as it was.
    pub(super) fn add(&mut self, k: usize, measured: &Statistics) {
        if let Some(variance) = measured.variance {
            self.variance.add(variance);
        }
        // Of one gradient no variance can be told: then that of the updates before must do.
        let variance = measured.variance.or(self.variance.get());
        let part = 1.0 / k.max(1) as f64;
        let step = (|| {
            let mean_norm_squared = measured.mean_norm_squared?;
            Some(Step {
                learning_rate: measured.learning_rate?,
                mean_norm_squared,
                norm_squared: mean_norm_squared - variance? * part,
                loss: measured.loss?,
            })
        })();
        let Some(step) = step.filter(|step| step.norm_squared.is_finite() && step.loss.is_finite()) else {
            return;
        };
        remember(&mut self.norms, (step.mean_norm_squared, part), self.window);
        remember(&mut self.losses, step.loss, 2 * self.window);
        if let Some(last) = self.last {
            // The step before has shown by now what it was worth; what it fell short of is curvature.
            let fallen = last.loss - step.loss;
            self.promised.add(last.learning_rate * last.norm_squared);
            self.fallen.add(fallen);
            self.squares.add(last.learning_rate * last.learning_rate * last.mean_norm_squared);
            self.loss_noise.add(0.5 * fallen * fallen);
        }
        self.last = Some(step);
    }

    /// `None` until a gradient and its variance were measured. The smoothness counts from zero, which it begins at, to
    /// `1 / learning_rate`, beyond which nobody would have chosen the step size.
    pub(super) fn gain(&self) -> Option<Gain> {
        let learning_rate = self.last?.learning_rate;
        let variance = self.variance.get()?.max(0.0);
        Some(Gain {
            learning_rate,
            smoothness: self.smoothness().unwrap_or(0.0).clamp(0.0, 1.0 / learning_rate),
            norm_squared: self.norm_squared(variance),
            variance,
        })
    }

    /// Nothing until two updates were measured.
    fn smoothness(&self) -> Option<f64> {
        let square = self.squares.get().filter(|square| *square > 0.0)?;
        Some(2.0 * (self.promised.get()? - self.fallen.get()?) / square)
    }

    /// At least its standard error: what cannot be told from nothing may be as large.
    fn norm_squared(&self, variance: f64) -> f64 {
        let count = self.norms.len() as f64;
        let values = || self.norms.iter().map(|(norm, part)| norm - variance * part);
        let mean = values().sum::<f64>() / count;
        let spread = values().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        mean.max((spread / count).sqrt())
    }

    /// Whether the mean loss of a window is more than `factor` times that of the window before, beyond noise.
    pub(super) fn loss_grows(&self, factor: f64) -> bool {
        if self.losses.len() < 2 * self.window {
            return false;
        }
        let mean =
            |from: usize| self.losses.range(from..from + self.window).sum::<f64>() / self.window as f64;
        let error = (2.0 * self.loss_noise.value / self.window as f64).sqrt();
        mean(self.window) > factor * mean(0) + ERRORS_GROWN * error
    }
}

/// Adds one to the last `length`.
fn remember<T>(values: &mut VecDeque<T>, value: T, length: usize) {
    if values.len() == length {
        values.pop_front();
    }
    values.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(mean_norm_squared: f64, variance: Option<f64>, loss: f64) -> Statistics {
        Statistics {
            mean_norm_squared: Some(mean_norm_squared),
            variance,
            loss: Some(loss),
            learning_rate: Some(0.5),
        }
    }

    #[test]
    fn a_quadratic_without_noise_tells_its_curvature() {
        // F = w^2 / 2: the gradient is w, a step of 0.5 leads from w to w / 2.
        let mut estimates = Estimates::new(5);
        let mut w = 2.0_f64;
        for _ in 0..4 {
            assert!(estimates.gain().is_none_or(|gain| gain.smoothness == if w < 1.0 { 1.0 } else { 0.0 }));
            estimates.add(2, &measured(w * w, Some(0.0), 0.5 * w * w));
            w *= 0.5;
        }
        assert!((estimates.gain().unwrap().smoothness - 1.0).abs() < 1e-12);
    }

    #[test]
    fn means_are_clipped_and_samples_are_not() {
        let mut estimates = Estimates::new(2);
        estimates.add(4, &measured(1.0, Some(8.0), 1.0)); // 1 - 8 / 4 = -1
        assert_eq!(estimates.gain().unwrap().norm_squared, 0.0);
        estimates.add(4, &measured(9.0, Some(8.0), 1.0)); // 9 - 8 / 4 = 7
        // The mean is 3, the standard error of the two is 4.
        assert_eq!(estimates.gain().unwrap().norm_squared, 4.0);
        estimates.add(4, &measured(9.0, Some(8.0), 1.0));
        assert_eq!(estimates.gain().unwrap().norm_squared, 7.0);
    }

    #[test]
    fn one_gradient_alone_keeps_the_variance_of_those_before() {
        let mut estimates = Estimates::new(1);
        estimates.add(2, &measured(2.0, Some(2.0), 1.0));
        estimates.add(1, &measured(5.0, None, 1.0));
        let gain = estimates.gain().unwrap();
        assert_eq!((gain.variance, gain.norm_squared), (2.0, 3.0));
        estimates.add(2, &Statistics::default());
        assert_eq!(estimates.gain(), Some(gain), "nothing measured, nothing changed");
    }

    #[test]
    fn a_loss_grows_beyond_its_noise_only() {
        let grows = |losses: &[f64]| {
            let mut estimates = Estimates::new(4);
            losses.iter().for_each(|loss| estimates.add(2, &measured(1.0, Some(1.0), *loss)));
            estimates.loss_grows(1.01)
        };
        assert!(!grows(&[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0]), "not two windows yet");
        assert!(grows(&[1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]));
        assert!(!grows(&[1.0, 1.0, 1.0, 1.0, 1.005, 1.005, 1.005, 1.005]));
        assert!(!grows(&[1.0, 2.0, 1.0, 2.0, 1.1, 2.1, 1.1, 2.1]));
    }
}
