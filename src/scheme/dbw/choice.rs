//! The choice of `k`, the number of gradients that a version waits for.

use serde::{Deserialize, Serialize};

use super::gain::{Estimates, Gain};
use super::published::PublishedRule;
use super::step::StepRule;
use super::time::Times;
use crate::scheme::Statistics;

/// The rule that chooses the number of gradients that a version waits for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Choice {
    /// The most gain per second: [`best_k`] of what was measured so far. The first version waits for two gradients, the
    /// fewest that tell a variance; times never seen count as those of the next fewer (the paper's, as far as known,
    /// waits for all at first, which may take as long as fifty versions). When no `k` promises a gain it grows by one
    /// (the paper's goes to all at once). Where one gradient is enough, two are waited for now and then, ever more
    /// seldom, to see the variance.
    Dynamic {
        /// Estimates are means over so many updates at least, that of the smoothness over twice as many; later over the
        /// last quarter, and the last half, of all there were. The paper's value is not known for sure (5, of a fixed
        /// length, or so); 10 by default.
        window: u16,
        /// A loss that is more than so many times what it was a window before, twice in a row, doubles the fewest that
        /// are waited for, and one that is not halves them: estimates say little where noise is all that there is.
        /// Windows are an eighth of all updates, 1000 at most, or `window`. 1 by default; the paper compares single
        /// losses, with 1.01, and waits for one more.
        loss_growth: f32,
    },
    /// As published, as far as that is known, for plain SGD alone: estimates are means over 5 updates; the first
    /// version waits for all, and so does one where no `k` promises a gain; a loss of more than 1.01 times the one
    /// before asks for one more than last time. Times are estimated as for `Dynamic`.
    Published,
    /// The same number for every version: static backup workers.
    Static {
        /// The number of gradients.
        k: u16,
    },
    /// The most gradients per second, whatever they are worth: [`most_gradients_k`].
    Blind {
        /// The number of updates at the beginning for which `k = n`; 5 by default.
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
    best_k_of_steps(gain, StepRule::Constant, times).unwrap_or(times.len())
}

/// The same where the step size depends on `k`; `None` where no `k` promises any gain.
pub(super) fn best_k_of_steps(gain: &Gain, steps: StepRule, times: &[f64]) -> Option<usize> {
    let n = times.len();
    largest(n, |k| gain.of_steps(steps.factor(k, n)).of(k), times)
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

/// Versions in a row that wait for one gradient before one waits for two: so many at first, then twice as many each
/// time, and so many at most; half as many after each version that waited for more anyway.
const ONES: std::ops::RangeInclusive<u16> = 5..=80;

/// Learns times and gains, and chooses.
#[derive(Debug)]
pub(super) struct Chooser {
    choice: Choice,
    steps: StepRule,
    estimates: Estimates,
    published: PublishedRule,
    times: Times,
    /// Updates that all workers have still to be waited for.
    first: u16,
    /// Versions in a row that waited for one, and how many may.
    ones: u16,
    ones_max: u16,
    /// The fewest that are waited for, and whether the loss has grown over the last window.
    least: usize,
    has_grown: bool,
    row: Vec<f64>,
}

impl Chooser {
    pub(super) fn new(choice: Choice, steps: StepRule, by_busy: bool) -> Chooser {
        let (window, first) = match choice {
            Choice::Dynamic { window, .. } => (window, 0),
            Choice::Blind { window } => (1, window),
            Choice::Static { .. } | Choice::Published => (1, 0),
        };
        let estimates = Estimates::new(usize::from(window));
        Chooser {
            choice,
            steps,
            estimates,
            published: PublishedRule::default(),
            times: Times::new(by_busy),
            first,
            ones: 0,
            ones_max: *ONES.start(),
            least: 1,
            has_grown: false,
            row: Vec::new(),
        }
    }

    /// Makes room for so many workers. If there were never so many before, times are learned from the start.
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

    /// Chooses the number of gradients, at most `workers`, that the next version waits for. The update before was out
    /// of `k` gradients and `measured` is what it showed.
    pub(super) fn next(&mut self, workers: usize, k: usize, measured: &Statistics) -> usize {
        match self.choice {
            Choice::Static { k } => usize::from(k),
            Choice::Published => {
                self.published.add(k, self.steps.factor(k, workers), measured);
                self.times.estimate(k, workers, &mut self.row);
                self.published.choose(k, self.steps, &self.row)
            }
            Choice::Blind { .. } if self.first > 0 => {
                self.first -= 1;
                workers
            }
            Choice::Blind { .. } => {
                self.times.estimate(k, workers, &mut self.row);
                most_gradients_k(&self.row)
            }
            Choice::Dynamic { loss_growth, .. } => {
                self.estimates.add(k, self.steps.factor(k, workers), measured);
                // Nothing was measured: nothing speaks for fewer.
                let Some(gain) = self.estimates.gain() else { return workers };
                self.times.estimate(k, workers, &mut self.row);
                // That nothing gains is often noise, and to wait for all the costliest of all mistakes.
                let best = best_k_of_steps(&gain, self.steps, &self.row).unwrap_or((k + 1).min(workers));
                match self.estimates.loss_grows(f64::from(loss_growth)) {
                    Some(true) if self.has_grown => self.least = (2 * self.least).min(workers),
                    Some(true) => self.has_grown = true,
                    Some(false) => (self.has_grown, self.least) = (false, (self.least / 2).max(1)),
                    None => {}
                }
                self.probed(best.max(self.least)).min(workers)
            }
        }
    }

    /// `k`, or two where one was waited for often enough.
    fn probed(&mut self, k: usize) -> usize {
        if k > 1 {
            (self.ones, self.ones_max) = (0, (self.ones_max / 2).max(*ONES.start()));
            return k;
        }
        self.ones += 1;
        if self.ones < self.ones_max {
            return k;
        }
        (self.ones, self.ones_max) = (0, (2 * self.ones_max).min(*ONES.end()));
        2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the means of `n` ordered times that are exponential with mean 1, from the first to the `n`-th.
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

    /// Steps of 1, a smoothness of 1/2, |grad F|^2 of 1, a variance of 4, and times of 1, 2, 3 and 4. By hand: with the
    /// factor f the gain is f - f^2/4 - f^2/k. Constant: -1/4, 1/4, 5/12, 1/2, of which k = 3 has the most per second.
    /// Proportional, f = k/4: 11/64, 20/64, 27/64, 32/64: one has the most. A knee at 2, f = 1/2 with one: 3/16, 1/4,
    /// 5/12, 1/2: again one.
    #[test]
    fn the_best_k_counts_with_the_step_size_of_each_k() {
        let gain = Gain { learning_rate: 1.0, smoothness: 0.5, norm_squared: 1.0, variance: 4.0 };
        let knee = StepRule::Knee { gradients: 2 };
        let best = [StepRule::Constant, StepRule::Proportional, knee]
            .map(|steps| best_k_of_steps(&gain, steps, &[1.0, 2.0, 3.0, 4.0]));
        assert_eq!(best, [3, 1, 1].map(Some));
        let even = [StepRule::Constant, StepRule::Proportional, knee]
            .map(|steps| best_k_of_steps(&gain, steps, &[1.0; 4]));
        assert_eq!(even, [4, 4, 4].map(Some));
    }

    /// A rate of 1, |grad F|^2 of 1 and a variance of 6: a mean of two has a squared norm of 4, and a step of 1/2 that
    /// lowers no loss shows a smoothness of 1. With the factor f the gain is f - f^2/2 - 3 f^2/k: 1/32, 0, -3/32 and
    /// -1/4.
    #[test]
    fn a_shorter_step_that_gains_is_taken_where_that_of_all_does_not() {
        let choice = Choice::Dynamic { window: 2, loss_growth: 1.01 };
        let mut chooser = Chooser::new(choice, StepRule::Proportional, false);
        chooser.make_room(4);
        (1..=4).for_each(|k| chooser.add_time(4, k, 1.0));
        let measured = Statistics { variance: Some(6.0), learning_rate: Some(1.0), ..measured(4.0, 1.0) };
        // Until a window of steps was measured no smoothness is known, and the longest step gains the most.
        assert_eq!([(); 5].map(|()| chooser.next(4, 2, &measured)), [4, 4, 1, 1, 1]);
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
        let choice = Choice::Dynamic { window, loss_growth: 1.01 };
        let mut chooser = Chooser::new(choice, StepRule::Constant, false);
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
    fn a_loss_that_grows_raises_k_until_it_falls() {
        let mut chooser = learning(2);
        // A gradient without noise: one is enough, but for the fifth.
        let mut next = |loss| [(); 2].map(|()| chooser.next(4, 2, &measured(1e6, loss)));
        let losses = [9.0, 19.0, 29.0, 39.0, 1.0, 0.5, 0.4];
        assert_eq!(losses.map(&mut next), [[1, 1], [1, 1], [2, 2], [2, 4], [4, 2], [2, 1], [1, 1]]);
    }

    #[test]
    fn where_one_is_enough_two_are_waited_for_ever_more_seldom() {
        let mut chooser = learning(2);
        let mut waited = |versions: usize| {
            let twos = (0..versions).filter(|_| chooser.next(4, 2, &measured(1e6, 1.0)) == 2);
            twos.count()
        };
        assert_eq!([5, 10, 20, 40, 80, 80, 80].map(&mut waited), [1; 7]);
        assert_eq!(waited(79), 0);
    }

    #[test]
    fn without_a_gain_one_more_is_waited_for() {
        let mut chooser = learning(2);
        // A variance of 1 is all that there is in a mean of two whose squared norm is 1/2.
        assert_eq!([(); 2].map(|()| chooser.next(4, 2, &measured(0.5, 1.0))), [3; 2]);
        let mut chooser = learning(2);
        assert_eq!(chooser.next(4, 4, &measured(0.25, 1.0)), 4);
    }

    /// A time never seen counts as that of the next fewer: more of them are tried where more would gain.
    #[test]
    fn what_was_never_tried_is_tried() {
        let choice = Choice::Dynamic { window: 5, loss_growth: 1.01 };
        let mut chooser = Chooser::new(choice, StepRule::Constant, false);
        chooser.make_room(4);
        (1..=2).for_each(|k| chooser.add_time(4, k, k as f64));
        // Steps of 1 on a loss that does not fall: all that the gradient promised was curvature.
        let stuck = Statistics { learning_rate: Some(1.0), ..measured(1.0, 1.0) };
        let chosen = [(); 8].map(|()| chooser.next(4, 2, &stuck));
        assert_eq!(chosen.iter().max(), Some(&4), "{chosen:?}");
    }

    #[test]
    fn without_anything_measured_all_are_waited_for() {
        let choice = Choice::Dynamic { window: 1, loss_growth: 1.01 };
        let mut chooser = Chooser::new(choice, StepRule::Constant, true);
        chooser.make_room(3);
        assert_eq!([(); 3].map(|()| chooser.next(3, 3, &Statistics::default())), [3; 3]);
    }
}
