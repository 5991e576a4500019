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

/// The numbers of the last few updates, and their mean.
#[derive(Debug)]
struct Window {
    values: VecDeque<f64>,
    length: usize,
}

impl Window {
    fn new(length: usize) -> Window {
        Window { values: VecDeque::with_capacity(length), length }
    }

    fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        if self.values.len() == self.length {
            self.values.pop_front();
        }
        self.values.push_back(value);
    }

    fn mean(&self) -> Option<f64> {
        (!self.values.is_empty()).then(|| self.values.iter().sum::<f64>() / self.values.len() as f64)
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
/// Each quantity is the mean of its unbiased estimates of the last updates, and only the mean is clipped at zero:
/// single estimates of the gradient's norm are often negative where noise dominates, and clipping each would make the
/// mean too large.
#[derive(Debug)]
pub(super) struct Estimates {
    norms: Window,
    variances: Window,
    /// What each step fell short of, and its squared length: their sums give the smoothness.
    shortfalls: Window,
    squares: Window,
    last: Option<Step>,
}

/// The smoothness is taken over so many times as many updates as the rest: it changes little, and the differences of
/// losses in it are mostly noise, of which only the first and the last remain in a sum.
const LONGER: usize = 20;

impl Estimates {
    pub(super) fn new(window: usize) -> Estimates {
        let (short, long) = (window.max(1), LONGER * window.max(1));
        Estimates {
            norms: Window::new(short),
            variances: Window::new(short),
            shortfalls: Window::new(long),
            squares: Window::new(long),
            last: None,
        }
    }

    /// Takes note of an update out of `k` gradients. What was not measured is left as it was.
    pub(super) fn add(&mut self, k: usize, measured: &Statistics) {
        if let Some(variance) = measured.variance {
            self.variances.add(variance);
        }
        // Of one gradient no variance can be told: then that of the updates before must do.
        let variance = measured.variance.or(self.variances.mean());
        let step = (|| {
            let mean_norm_squared = measured.mean_norm_squared?;
            Some(Step {
                learning_rate: measured.learning_rate?,
                mean_norm_squared,
                norm_squared: mean_norm_squared - variance? / k.max(1) as f64,
                loss: measured.loss?,
            })
        })();
        let Some(step) = step else { return };
        self.norms.add(step.norm_squared);
        if let Some(last) = self.last {
            // The step before has shown by now what it was worth; what it fell short of is curvature.
            let expected = last.learning_rate * last.norm_squared;
            let square = last.learning_rate * last.learning_rate * last.mean_norm_squared;
            self.shortfalls.add(2.0 * (expected - (last.loss - step.loss)));
            self.squares.add(square);
        }
        self.last = Some(step);
    }

    /// `None` until every quantity was measured.
    ///
    /// Where the smoothness comes out much too large no update promises any gain, and all workers are waited for: the
    /// costliest of all mistakes. So it counts up to `1 / learning_rate` only, beyond which nobody would have chosen
    /// the step size.
    pub(super) fn gain(&self) -> Option<Gain> {
        let learning_rate = self.last?.learning_rate;
        let smoothness = self.shortfalls.mean()? / self.squares.mean().filter(|square| *square > 0.0)?;
        Some(Gain {
            learning_rate,
            smoothness: smoothness.clamp(0.0, 1.0 / learning_rate),
            norm_squared: self.norms.mean()?.max(0.0),
            variance: self.variances.mean()?.max(0.0),
        })
    }
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
            assert_eq!(estimates.gain().is_some(), w < 1.0);
            estimates.add(2, &measured(w * w, Some(0.0), 0.5 * w * w));
            w *= 0.5;
        }
        assert!((estimates.gain().unwrap().smoothness - 1.0).abs() < 1e-12);
    }

    #[test]
    fn means_are_clipped_and_samples_are_not() {
        let mut estimates = Estimates::new(2);
        estimates.add(4, &measured(1.0, Some(8.0), 1.0)); // 1 - 8 / 4 = -1
        estimates.add(4, &measured(5.0, Some(8.0), 1.0)); // 5 - 8 / 4 = 3
        assert_eq!(estimates.gain().unwrap().norm_squared, 1.0);
        estimates.add(4, &measured(-4.0, Some(8.0), 1.0));
        assert_eq!(estimates.gain().unwrap().norm_squared, 0.0);
    }

    #[test]
    fn one_gradient_alone_keeps_the_variance_of_those_before() {
        let mut estimates = Estimates::new(2);
        estimates.add(2, &measured(2.0, Some(2.0), 1.0));
        estimates.add(1, &measured(5.0, None, 1.0));
        let gain = estimates.gain().unwrap();
        assert_eq!((gain.variance, gain.norm_squared), (2.0, 2.0));
        estimates.add(2, &Statistics::default());
        assert_eq!(estimates.gain(), Some(gain), "nothing measured, nothing changed");
    }
}
