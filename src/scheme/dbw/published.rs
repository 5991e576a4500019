//! The choice of `k` as published, as far as it is known: estimates are means over the last five updates, a first
//! version waits for all, and so does one where no `k` promises a gain. Only the abstract was at hand: the bound and
//! the argmax are certain, the estimators the natural ones, and the constants from memory.

use std::collections::VecDeque;

use super::choice::best_k_of_steps;
use super::gain::{Gain, is_growth};
use super::step::StepRule;
use crate::scheme::Statistics;

/// Updates that each estimate is a mean of.
const WINDOW: usize = 5;

/// A loss that is more than so many times the one before raises `k` by one.
const LOSS_GROWTH: f64 = 1.01;

/// The mean of the last [`WINDOW`] values.
#[derive(Debug, Default)]
struct Window(VecDeque<f64>);

impl Window {
    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.0.truncate(WINDOW - 1);
            self.0.push_front(value);
        }
    }

    fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }
}

/// One update: what it was made of, and the loss that it was made on.
#[derive(Clone, Copy, Debug)]
struct MeasuredStep {
    learning_rate: f64,
    /// Estimates of the squared norm of the true gradient, and of the part of the variance that is in the mean.
    norm_squared: f64,
    noise: f64,
    loss: f64,
}

/// The three estimates of the bound: the variance of one gradient, the squared norm of the true one, and the smoothness
/// that the last step showed: `2 (h N - (F - F')) / (h^2 (N + V/k))`. None is below zero.
#[derive(Debug, Default)]
pub(super) struct PublishedRule {
    variances: Window,
    norms: Window,
    smoothness: Window,
    last: Option<MeasuredStep>,
    /// The server's own step size, of which an update takes the part that the rule for its `k` says.
    learning_rate: f64,
    loss_has_grown: bool,
}

impl PublishedRule {
    /// Takes note of an update out of `k` gradients, whose step was `factor` of the server's step size. The variance of
    /// one gradient alone is that of those before.
    pub(super) fn add(&mut self, k: usize, factor: f64, measured: &Statistics) {
        if let Some(variance) = measured.variance.filter(|_| k > 1) {
            self.variances.add(variance.max(0.0));
        }
        // Of two neighbours that are both measured alone.
        self.loss_has_grown = false;
        let last = self.last.take();
        // A loss that is no number says nothing of the step before, nor of the one after.
        let loss = measured.loss.filter(|loss| loss.is_finite());
        let (Some(mean_norm_squared), Some(loss), Some(learning_rate), Some(variance)) =
            (measured.mean_norm_squared, loss, measured.learning_rate, self.variances.mean())
        else {
            return;
        };
        let noise = variance / k.max(1) as f64;
        let norm_squared = (mean_norm_squared - noise).max(0.0);
        self.norms.add(norm_squared);
        if let Some(last) = last {
            let promised = last.learning_rate * last.norm_squared;
            let square = last.learning_rate.powi(2) * (last.norm_squared + last.noise);
            // A step of no length shows nothing.
            if square > 0.0 {
                self.smoothness.add((2.0 * (promised - (last.loss - loss)) / square).max(0.0));
            }
            self.loss_has_grown = is_growth(loss, last.loss, LOSS_GROWTH);
        }
        self.learning_rate = learning_rate;
        self.last = Some(MeasuredStep { learning_rate: factor * learning_rate, norm_squared, noise, loss });
    }

    /// Chooses the number of gradients, where the `i`-th comes after `times[i - 1]`; the update before was out of `k`.
    /// All are waited for where none promises a gain, and while nothing is known.
    pub(super) fn choose(&self, k: usize, steps: StepRule, times: &[f64]) -> usize {
        let workers = times.len();
        let gain = (|| {
            Some(Gain {
                learning_rate: self.learning_rate,
                smoothness: self.smoothness.mean()?,
                norm_squared: self.norms.mean()?,
                variance: self.variances.mean()?,
            })
        })();
        let Some(gain) = gain else { return workers };
        let best = best_k_of_steps(&gain, steps, times).unwrap_or(workers);
        let least = if self.loss_has_grown { k + 1 } else { 1 };
        best.max(least).min(workers)
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

    const TIMES: [f64; 4] = [1.0, 2.0, 3.0, 4.0];

    #[test]
    fn all_are_waited_for_until_a_step_has_shown_the_smoothness() {
        let mut published = PublishedRule::default();
        assert_eq!(published.choose(4, StepRule::Constant, &TIMES), 4);
        published.add(4, 1.0, &measured(1.0, Some(0.0), 1.0));
        assert_eq!(published.choose(4, StepRule::Constant, &TIMES), 4);
        published.add(4, 1.0, &measured(1.0, Some(0.0), 0.5));
        assert_eq!(published.choose(4, StepRule::Constant, &TIMES), 1, "no noise: one is as good as four");
    }

    /// F = w^2 / 2 without noise: a step of 0.5 leads from w to w / 2, and the smoothness is 1.
    #[test]
    fn the_smoothness_of_a_quadratic_is_its_curvature() {
        let mut published = PublishedRule::default();
        let mut w = 2.0_f64;
        for _ in 0..4 {
            published.add(2, 1.0, &measured(w * w, Some(0.0), 0.5 * w * w));
            w *= 0.5;
        }
        assert!((published.smoothness.mean().unwrap() - 1.0).abs() < 1e-12);
    }

    /// With a smoothness of 2 and a step of 1/2 half of N is gained, and V / 4k lost.
    #[test]
    fn k_is_the_argmax_of_the_bound_over_the_times() {
        let at = |variance: f64| {
            let mut published = PublishedRule::default();
            // The mean of four holds a quarter of the variance; a fall of N/2 - (N + V/4)/4 shows a smoothness of 2.
            let (norm, noise) = (1.0, variance / 4.0);
            for step in 0..6 {
                let loss = 9.0 - f64::from(step) * (0.5 * norm - 0.25 * (norm + noise));
                published.add(4, 1.0, &measured(norm + noise, Some(variance), loss));
            }
            published.choose(4, StepRule::Constant, &TIMES)
        };
        // The gain over the time of k, in quarters: (1 - V/k) / k. It is largest where k = 2 V.
        assert_eq!([0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0].map(at), [1, 1, 2, 3, 4, 4, 4]);
    }

    /// F = w^2 / 2 without noise, and half of the server's step size of 1/2 with two of four: the smoothness is 1 as
    /// before, so the gain with the factor f is f/2 - f^2/8. Constant: 3/8 for each k, of which one comes first. With
    /// k / 4: 15, 28, 39 and 48 of 128, over times of 1, 1.1, 1.2 and 2: 15, 25.5, 32.5 and 24, so three.
    #[test]
    fn the_choice_counts_with_the_step_size_of_each_k() {
        let mut published = PublishedRule::default();
        let mut w = 2.0_f64;
        for _ in 0..4 {
            published.add(2, 0.5, &measured(w * w, Some(0.0), 0.5 * w * w));
            w *= 0.75;
        }
        assert!((published.smoothness.mean().unwrap() - 1.0).abs() < 1e-12);
        let chosen = [StepRule::Constant, StepRule::Proportional]
            .map(|steps| published.choose(2, steps, &[1.0, 1.1, 1.2, 2.0]));
        assert_eq!(chosen, [1, 3]);
    }

    #[test]
    fn a_loss_that_grows_by_more_than_a_hundredth_asks_for_one_more() {
        let mut published = PublishedRule::default();
        published.add(2, 1.0, &measured(1.0, Some(0.0), 1.0));
        published.add(2, 1.0, &measured(1.0, Some(0.0), 0.9));
        assert_eq!(published.choose(2, StepRule::Constant, &TIMES), 1);
        published.add(2, 1.0, &measured(1.0, Some(0.0), 0.905));
        assert_eq!(published.choose(2, StepRule::Constant, &TIMES), 1);
        published.add(2, 1.0, &measured(1.0, Some(0.0), 0.92));
        assert_eq!(published.choose(2, StepRule::Constant, &TIMES), 3);
    }

    #[test]
    fn a_loss_below_zero_that_falls_by_little_does_not_grow() {
        let mut published = PublishedRule::default();
        for loss in [-0.9, -1.0, -1.005] {
            published.add(2, 1.0, &measured(1.0, Some(0.0), loss));
        }
        assert!(!published.loss_has_grown);
        published.add(2, 1.0, &measured(1.0, Some(0.0), -0.98));
        assert!(published.loss_has_grown);
    }

    #[test]
    fn a_loss_that_grows_once_asks_for_one_more_once() {
        let mut published = PublishedRule::default();
        let mut chosen = |loss| {
            published.add(2, 1.0, &Statistics { loss, ..measured(1.0, Some(0.0), 1.0) });
            published.choose(2, StepRule::Constant, &TIMES)
        };
        // All until a step has shown the smoothness; 3 for the growth, and 1 again, also where losses end.
        assert_eq!([1.0, 0.9, 0.92, f64::NAN, 0.9].map(|loss| chosen(Some(loss))), [4, 1, 3, 1, 1]);
        assert_eq!([Some(0.92), None, None].map(chosen), [3, 1, 1]);
    }

    /// F = w^2 / 2 without noise, as above. A loss that is none in between shows neither a smoothness nor a growth.
    #[test]
    fn a_loss_that_is_no_number_is_no_step_without_curvature() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut published = PublishedRule::default();
            let mut w = 2.0_f64;
            for step in 0..6 {
                let loss = if step == 3 { odd } else { 0.5 * w * w };
                published.add(2, 1.0, &measured(w * w, Some(0.0), loss));
                assert!(!published.loss_has_grown, "{odd} at step {step}");
                w *= 0.5;
            }
            assert_eq!(published.smoothness.0.len(), 3, "{odd}: steps 0, 1 and 4 were measured");
            assert!((published.smoothness.mean().unwrap() - 1.0).abs() < 1e-12, "{odd}");
        }
    }

    #[test]
    fn only_the_last_five_updates_count() {
        let mut published = PublishedRule::default();
        for norm in [100.0, 1.0, 2.0, 3.0, 4.0, 5.0] {
            published.add(2, 1.0, &measured(norm, Some(0.0), 1.0));
        }
        assert_eq!(published.norms.mean(), Some(3.0));
        // One gradient alone tells no variance: what was known stays.
        published.add(1, 1.0, &measured(1.0, None, 1.0));
        assert_eq!((published.variances.mean(), published.norms.mean()), (Some(0.0), Some(3.0)));
    }
}
