//! Which `k` to wait for.

use serde::{Deserialize, Serialize};

use super::gain::{Estimates, Gain};
use super::time::Times;
use crate::scheme::Statistics;

/// How the number of gradients that a version waits for is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Choice {
    /// The most gain per second: [`best_k`] of what was measured so far.
    Dynamic {
        /// Each estimate is the mean over so many updates, and for so many at the beginning `k = n`. The paper's value
        /// is not known for sure; 5 by default.
        window: u16,
        /// When the loss of an update is more than so many times that of the one before, `k` grows by at least one.
        /// Not known for sure either; 1.01 by default.
        loss_growth: f32,
    },
    /// Always the same: static backup workers.
    Static {
        /// How many.
        k: u16,
    },
    /// The most gradients per second, whatever they are worth: [`most_gradients_k`].
    Blind {
        /// For so many updates at the beginning `k = n`; 5 by default.
        window: u16,
    },
}

/// The `k` with the most gain per second, where the `k`-th of `times.len()` gradients comes after `times[k - 1]`; all
/// of them where no update promises any gain, for there a long time would make a loss look small.
///
/// ```
/// use slackline::scheme::dbw::{Gain, best_k};
/// let gain = Gain { learning_rate: 1.0, smoothness: 0.5, norm_squared: 1.0, variance: 10.0 };
/// assert_eq!(best_k(&gain, &[1.0, 1.1, 1.2, 9.0]), 4); // no gain with 3, little with 4
/// let steep = Gain { norm_squared: 10.0, ..gain };
/// assert_eq!(best_k(&steep, &[1.0, 1.1, 1.2, 9.0]), 2);
/// assert_eq!(best_k(&Gain { norm_squared: 0.0, ..gain }, &[1.0, 1.1, 1.2, 9.0]), 4);
/// ```
pub fn best_k(gain: &Gain, times: &[f64]) -> usize {
    largest(times.len(), |k| gain.of(k), times).unwrap_or(times.len())
}

/// The `k` with the most gradients per second: the choice that is blind to what they are worth.
pub fn most_gradients_k(times: &[f64]) -> usize {
    largest(times.len(), |k| k as f64, times).unwrap_or(times.len())
}

/// The first `k` of `1..=n` with the largest `value(k) / times[k - 1]` above zero.
fn largest(n: usize, value: impl Fn(usize) -> f64, times: &[f64]) -> Option<usize> {
    let rates = (1..=n).map(|k| (k, value(k) / times[k - 1].max(f64::MIN_POSITIVE)));
    let positive = rates.filter(|(_, rate)| *rate > 0.0);
    positive.reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(k, _)| k)
}

/// Learns times and gains, and chooses.
#[derive(Debug)]
pub(super) struct Chooser {
    choice: Choice,
    estimates: Estimates,
    times: Times,
    /// Updates that all workers have still to be waited for.
    first: u16,
    /// Of the update before.
    loss: Option<f64>,
    row: Vec<f64>,
}

impl Chooser {
    pub(super) fn new(choice: Choice, by_busy: bool) -> Chooser {
        let window = match choice {
            Choice::Dynamic { window, .. } | Choice::Blind { window } => window,
            Choice::Static { .. } => 0,
        };
        let estimates = Estimates::new(usize::from(window));
        Chooser { choice, estimates, times: Times::new(by_busy), first: window, loss: None, row: Vec::new() }
    }

    /// There are so many workers now. Beyond all there were, learning begins anew.
    pub(super) fn make_room(&mut self, workers: usize) {
        if let Choice::Dynamic { window, .. } | Choice::Blind { window } = self.choice
            && self.times.make_room(workers)
        {
            self.first = window;
        }
    }

    /// See [`Times::add`].
    pub(super) fn add_time(&mut self, h: usize, k: usize, seconds: f64) {
        self.times.add(h, k, seconds);
    }

    /// What the next version waits for, of `workers`, after an update out of `k` that measured this.
    pub(super) fn next(&mut self, workers: usize, k: usize, measured: &Statistics) -> usize {
        let chosen = match self.choice {
            Choice::Static { k } => return usize::from(k),
            Choice::Dynamic { .. } => {
                self.estimates.add(k, measured);
                self.estimates.gain()
            }
            Choice::Blind { .. } => None,
        };
        let before = self.loss;
        self.loss = measured.loss.or(before);
        if self.first > 0 {
            self.first -= 1;
            return workers;
        }
        match (self.choice, chosen) {
            (Choice::Blind { .. }, _) => {
                self.times.estimate(k, workers, &mut self.row);
                most_gradients_k(&self.row)
            }
            (Choice::Dynamic { loss_growth, .. }, Some(gain)) => {
                self.times.estimate(k, workers, &mut self.row);
                let best = best_k(&gain, &self.row);
                match (before, measured.loss) {
                    (Some(before), Some(now)) if now > f64::from(loss_growth) * before => {
                        best.max((k + 1).min(workers))
                    }
                    _ => best,
                }
            }
            // Nothing was measured: nothing speaks for fewer.
            _ => workers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `n` times that are exponential with mean 1, the `k`-th.
    fn exponential(n: usize) -> Vec<f64> {
        let harmonic = |n: usize| (1..=n).map(|i| 1.0 / i as f64).sum::<f64>();
        (1..=n).map(|k| harmonic(n) - harmonic(n - k)).collect()
    }

    /// The exact argmax for 16 workers: rows by step size times smoothness, columns by signal to noise.
    #[test]
    fn the_best_k_grows_as_the_gradient_shrinks() {
        let ratios = [10.0, 1.0, 0.3, 0.1, 0.05, 0.03, 0.02, 0.01];
        for (steepness, expected) in [
            (0.1, [1, 1, 1, 1, 2, 3, 5, 9]),
            (0.5, [1, 1, 2, 6, 11, 14, 16, 16]),
            (1.0, [1, 2, 6, 14, 16, 16, 16, 16]),
        ] {
            let best = ratios.map(|norm_squared| {
                let gain = Gain { learning_rate: 1.0, smoothness: steepness, norm_squared, variance: 1.0 };
                best_k(&gain, &exponential(16))
            });
            assert_eq!(best, expected, "at {steepness}");
        }
    }

    #[test]
    fn the_blind_choice_depends_on_the_spread_of_the_times() {
        let chosen = [0.0, 0.2, 0.5, 1.0].map(|spread| {
            let times: Vec<_> = exponential(16).iter().map(|time| 1.0 - spread + spread * time).collect();
            most_gradients_k(&times)
        });
        assert_eq!(chosen, [16, 14, 11, 1]);
    }

    #[test]
    fn a_loss_that_grows_raises_k() {
        let measured = |loss| Statistics {
            mean_norm_squared: Some(1e6),
            variance: Some(1.0),
            loss: Some(loss),
            learning_rate: Some(1e-6),
        };
        let mut chooser = Chooser::new(Choice::Dynamic { window: 8, loss_growth: 1.01 }, false);
        chooser.make_room(4);
        (1..=4).for_each(|k| chooser.add_time(4, k, k as f64));
        // A loss that falls by more than the gradient promises: no curvature, so that one gradient is enough.
        for loss in [1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 1e6, 10.0] {
            assert_eq!(chooser.next(4, 4, &measured(loss)), 4, "the first versions wait for all");
        }
        assert_eq!(chooser.next(4, 4, &measured(9.0)), 1);
        assert_eq!(chooser.next(4, 1, &measured(9.05)), 1);
        assert_eq!(chooser.next(4, 1, &measured(9.3)), 2);
        assert_eq!(chooser.next(4, 4, &measured(9.9)), 4);
        assert_eq!(chooser.next(4, 4, &Statistics::default()), 1, "the gain of before still stands");
    }

    #[test]
    fn without_anything_measured_all_are_waited_for() {
        let mut chooser = Chooser::new(Choice::Dynamic { window: 1, loss_growth: 1.01 }, true);
        chooser.make_room(3);
        assert_eq!([(); 3].map(|()| chooser.next(3, 3, &Statistics::default())), [3; 3]);
    }
}
