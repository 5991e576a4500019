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
    /// The most gain per second: [`best_k`] of what was measured so far. The first version waits for all, so that
    /// every time is seen once. When no `k` promises a gain it grows by one (the paper's, as far as known, goes to all
    /// at once), and of five versions in a row one waits for two at least, for one gradient tells no variance.
    Dynamic {
        /// Estimates are means over so many updates; that of the smoothness over 20 times as many. The paper's value
        /// is not known for sure; 5 by default.
        window: u16,
        /// When the mean loss of a window is more than so many times that of the one before, by more than noise, `k`
        /// grows by at least one. Not known for sure either; 1.01 by default.
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

/// Of so many versions in a row one waits for more than one gradient.
const PROBE: u16 = 5;

/// Learns times and gains, and chooses.
#[derive(Debug)]
pub(super) struct Chooser {
    choice: Choice,
    estimates: Estimates,
    times: Times,
    /// Updates that all workers have still to be waited for.
    first: u16,
    /// Versions in a row that waited for one.
    ones: u16,
    row: Vec<f64>,
}

impl Chooser {
    pub(super) fn new(choice: Choice, by_busy: bool) -> Chooser {
        let (window, first) = match choice {
            Choice::Dynamic { window, .. } => (window, 0),
            Choice::Blind { window } => (1, window),
            Choice::Static { .. } => (1, 0),
        };
        let estimates = Estimates::new(usize::from(window));
        Chooser { choice, estimates, times: Times::new(by_busy), first, ones: 0, row: Vec::new() }
    }

    /// There are so many workers now. Beyond all there were, learning begins anew.
    pub(super) fn make_room(&mut self, workers: usize) {
        if self.times.make_room(workers)
            && let Choice::Blind { window } = self.choice
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
        match self.choice {
            Choice::Static { k } => usize::from(k),
            Choice::Blind { .. } if self.first > 0 => {
                self.first -= 1;
                workers
            }
            Choice::Blind { .. } => {
                self.times.estimate(k, workers, &mut self.row);
                most_gradients_k(&self.row)
            }
            Choice::Dynamic { loss_growth, .. } => {
                self.estimates.add(k, measured);
                let gain = self.estimates.gain().filter(|_| self.times.knows(workers));
                // Nothing was measured: nothing speaks for fewer.
                let Some(gain) = gain else { return workers };
                self.times.estimate(k, workers, &mut self.row);
                let more = (k + 1).min(workers);
                // That nothing gains is often noise, and to wait for all the costliest of all mistakes.
                let best = if gain.of(workers) > 0.0 { best_k(&gain, &self.row) } else { more };
                let best =
                    if self.estimates.loss_grows(f64::from(loss_growth)) { best.max(more) } else { best };
                self.ones = if best == 1 { self.ones + 1 } else { 0 };
                if self.ones < PROBE {
                    return best;
                }
                self.ones = 0;
                workers.min(2)
            }
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

    fn learning(window: u16) -> Chooser {
        let mut chooser = Chooser::new(Choice::Dynamic { window, loss_growth: 1.01 }, false);
        chooser.make_room(4);
        (1..=4).for_each(|k| chooser.add_time(4, k, k as f64));
        chooser
    }

    fn measured(mean_norm_squared: f64, loss: f64) -> Statistics {
        Statistics {
            mean_norm_squared: Some(mean_norm_squared),
            variance: Some(1.0),
            loss: Some(loss),
            learning_rate: Some(1e-6),
        }
    }

    #[test]
    fn a_loss_that_grows_raises_k() {
        let mut chooser = learning(2);
        // A loss that falls by more than the gradient promises: no curvature, so that one gradient is enough.
        assert_eq!([9.0; 3].map(|loss| chooser.next(4, 4, &measured(1e6, loss))), [1; 3]);
        assert_eq!(chooser.next(4, 1, &measured(1e6, 9.05)), 1);
        assert_eq!(chooser.next(4, 4, &Statistics::default()), 2, "one in five shows the variance");
        assert_eq!(chooser.next(4, 2, &measured(1e-3, 19.0)), 3);
    }

    #[test]
    fn without_a_gain_one_more_is_waited_for() {
        let mut chooser = learning(2);
        assert_eq!(chooser.next(4, 4, &measured(0.0, 1.0)), 4, "a norm of zero, and no spread");
        assert_eq!(chooser.next(4, 1, &measured(0.0, 1.0)), 2);
        assert_eq!(chooser.next(4, 2, &measured(0.0, 1.0)), 3);
    }

    #[test]
    fn a_table_that_grew_is_filled_before_it_is_used() {
        let mut chooser = learning(2);
        assert_eq!(chooser.next(4, 4, &measured(1e6, 1.0)), 1);
        chooser.make_room(5);
        assert_eq!(chooser.next(5, 1, &measured(1e6, 1.0)), 5);
    }

    #[test]
    fn without_anything_measured_all_are_waited_for() {
        let mut chooser = Chooser::new(Choice::Dynamic { window: 1, loss_growth: 1.01 }, true);
        chooser.make_room(3);
        assert_eq!([(); 3].map(|()| chooser.next(3, 3, &Statistics::default())), [3; 3]);
    }
}
