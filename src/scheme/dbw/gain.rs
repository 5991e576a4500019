//! The gain of an update out of `k` gradients.

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
    /// Returns the gain of an update out of `k` gradients, at least one; in units of the loss.
    pub fn of(&self, k: usize) -> f64 {
        let curvature = self.smoothness * self.learning_rate * self.learning_rate / 2.0;
        (self.learning_rate - curvature) * self.norm_squared - curvature * self.variance / k.max(1) as f64
    }

    /// The same of steps that are so many times as long.
    pub(super) fn of_steps(self, factor: f64) -> Gain {
        Gain { learning_rate: factor * self.learning_rate, ..self }
    }
}

/// A mean that forgets: of all values at first, then exponentially, as if of the last `part` of all there were, and of
/// `least` at least. What changes slower and slower is remembered longer and longer.
#[derive(Debug)]
struct Mean {
    value: f64,
    count: f64,
    least: f64,
    part: f64,
    /// Sum of the squared weights: the variance of the mean, in variances of a value.
    squares: f64,
}

impl Mean {
    fn new(least: usize, part: f64) -> Mean {
        Mean { value: 0.0, count: 0.0, least: least as f64, part, squares: 0.0 }
    }

    fn add(&mut self, value: f64) {
        if value.is_finite() {
            self.count += 1.0;
            let weight = 1.0 / self.count.min(self.least.max(self.part * self.count));
            self.value += (value - self.value) * weight;
            self.squares = (1.0 - weight).powi(2) * self.squares + weight * weight;
        }
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0.0).then_some(self.value)
    }
}

/// One update as it was measured.
#[derive(Clone, Copy, Debug)]
struct PreviousStep {
    learning_rate: f64,
    mean_norm_squared: f64,
    norm_squared: f64,
    loss: f64,
}

/// Learns the gain from what the folds measure.
///
/// Single estimates are mostly noise: that of the gradient's norm is often negative, that of the smoothness much larger
/// than any smoothness. So means are clipped and samples are not; means are long, ever longer; and each is read by its
/// standard error on the side where a mistake costs less. Too small a gradient, or too large a smoothness, says that no
/// update gains anything, and `k` climbs; the opposite costs a few noisy updates, which are measured in turn.
/// Nothing of this is in the paper, as far as known.
#[derive(Debug)]
pub(super) struct Estimates {
    window: usize,
    /// Of the updates: the squared norm of the mean gradient, and the part of the variance that is in it. The variance
    /// is taken off when the mean is: what one gradient alone cannot tell may be told later.
    norms: Mean,
    parts: Mean,
    /// Squares of the norms with the variance taken off.
    norms_squared: Mean,
    /// Weighted by what they tell: a variance out of `k` gradients by `k - 1`.
    variances: Mean,
    weights: Mean,
    /// Three means that give the smoothness: what each step promised to first order, what the loss fell by, and the
    /// step's squared length.
    promised: Mean,
    fallen: Mean,
    squares: Mean,
    /// Squares of the step sizes as the rule for `k` made them.
    rates_squared: Mean,
    /// Half the squared differences of neighbours: the variance of single losses, whatever their trend.
    loss_noise: Mean,
    /// The losses of the window before, and since.
    losses: Vec<f64>,
    last: Option<PreviousStep>,
    /// The step size of the last update, before its rule made it shorter.
    learning_rate: Option<f64>,
}

/// The part of all updates that norm and variance are means of.
const RECENT: f64 = 0.25;

/// The part of all updates that the smoothness is a mean of, for it changes less and is harder to tell.
const LONG: f64 = 0.5;

/// The smoothness is read by so many standard errors below what was measured.
const ERRORS: f64 = 1.5;

/// The part of all updates that a window of losses is, if that is more than the least.
const WINDOW: f64 = 0.125;

/// The longest window of losses, unless a longer one is asked for.
const WINDOW_MAX: usize = 1000;

impl Estimates {
    pub(super) fn new(window: usize) -> Estimates {
        let window = window.max(1);
        let recent = || Mean::new(window, RECENT);
        let long = || Mean::new(2 * window, LONG);
        Estimates {
            window,
            norms: recent(),
            parts: recent(),
            norms_squared: recent(),
            variances: recent(),
            weights: recent(),
            promised: long(),
            fallen: long(),
            squares: long(),
            rates_squared: long(),
            loss_noise: long(),
            losses: Vec::with_capacity(2 * window.max(WINDOW_MAX)),
            last: None,
            learning_rate: None,
        }
    }

    /// Takes note of an update out of `k` gradients, whose step was `factor` times the measured step size. What was not
    /// measured is left as it was, and is part of no difference of losses: that would be of two steps.
    pub(super) fn add(&mut self, k: usize, factor: f64, measured: &Statistics) {
        if let Some(variance) = measured.variance.filter(|variance| variance.is_finite()) {
            let weight = k.saturating_sub(1).max(1) as f64;
            self.variances.add(variance * weight);
            self.weights.add(weight);
        }
        // Of one gradient no variance can be told: then that of the updates before must do.
        let part = 1.0 / k.max(1) as f64;
        let step = (|| {
            let mean_norm_squared = measured.mean_norm_squared?;
            Some(PreviousStep {
                learning_rate: factor * measured.learning_rate?,
                mean_norm_squared,
                norm_squared: mean_norm_squared - self.variance()? * part,
                loss: measured.loss?,
            })
        })();
        let last = self.last.take();
        let Some(step) = step.filter(|step| step.norm_squared.is_finite() && step.loss.is_finite()) else {
            return;
        };
        self.norms.add(step.mean_norm_squared);
        self.parts.add(part);
        self.norms_squared.add(step.norm_squared.powi(2));
        self.losses.push(step.loss);
        if let Some(last) = last {
            // The step before has shown by now what it was worth; what it fell short of is curvature.
            let fallen = last.loss - step.loss;
            self.promised.add(last.learning_rate * last.norm_squared);
            self.fallen.add(fallen);
            self.squares.add(last.learning_rate * last.learning_rate * last.mean_norm_squared);
            self.rates_squared.add(last.learning_rate.powi(2));
            self.loss_noise.add(0.5 * fallen * fallen);
        }
        (self.last, self.learning_rate) = (Some(step), measured.learning_rate);
    }

    /// Of steps of the server's own step size; `None` until a gradient and its variance were measured.
    pub(super) fn gain(&self) -> Option<Gain> {
        let learning_rate = self.learning_rate?;
        let variance = self.variance()?;
        let mean = self.norms.get()? - variance * self.parts.get()?;
        let spread = (self.norms_squared.get()? - mean * mean).max(0.0);
        Some(Gain {
            learning_rate,
            smoothness: self.smoothness(learning_rate, spread).unwrap_or(0.0),
            // What cannot be told from nothing may be as large as its standard error.
            norm_squared: mean.max((spread * self.norms.squares).sqrt()),
            variance,
        })
    }

    fn variance(&self) -> Option<f64> {
        Some((self.variances.get()? / self.weights.get()?).max(0.0))
    }

    /// [`ERRORS`] standard errors less than was measured, where single norms have this variance; from zero to
    /// `1 / learning_rate`, beyond which the step size would be a bad choice. Nothing until a window of updates was
    /// measured: the error is not known before.
    fn smoothness(&self, learning_rate: f64, spread: f64) -> Option<f64> {
        let square = self.squares.get().filter(|square| *square > 0.0)?;
        if self.squares.count < self.window as f64 {
            return None;
        }
        let measured = self.promised.get()? - self.fallen.get()?;
        // Losses in a sum of differences cancel, but for the first and the last.
        let shares = self.promised.squares;
        let error =
            self.rates_squared.get()? * spread * shares + 2.0 * self.loss_noise.value * shares * shares;
        // Not `clamp`, which panics where the step size is below zero: some climb.
        Some((2.0 * (measured - ERRORS * error.sqrt()) / square).min(1.0 / learning_rate).max(0.0))
    }

    /// Asked after each update, and answered at the end of each window, which are longer and longer: whether its mean
    /// loss is more than `factor` times that of the window before.
    pub(super) fn loss_grows(&mut self, factor: f64) -> Option<bool> {
        let window = self.window.max(((self.norms.count * WINDOW) as usize).min(WINDOW_MAX));
        let last = self.losses.len().checked_sub(window).filter(|last| *last >= window)?;
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let grows = is_growth(mean(&self.losses[last..]), mean(&self.losses[..last]), factor);
        self.losses.drain(..last);
        Some(grows)
    }
}

/// True if the loss is more than `factor` times the one before. Below zero, where a factor above 1 would make the one
/// before smaller, the loss has to rise by as large a part of its size.
pub(super) fn is_growth(loss: f64, before: f64, factor: f64) -> bool {
    loss > if before < 0.0 { 2.0 - factor } else { factor } * before
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
            estimates.add(2, 1.0, &measured(w * w, Some(0.0), 0.5 * w * w));
            w *= 0.5;
        }
        let square = estimates.squares.get().unwrap();
        let raw = 2.0 * (estimates.promised.get().unwrap() - estimates.fallen.get().unwrap()) / square;
        assert!((raw - 1.0).abs() < 1e-12);
        // What is taken off for noise there is none of is a part of it only.
        assert!((0.0..1.0).contains(&estimates.gain().unwrap().smoothness));
    }

    /// The same, with a fourth update that shows no loss, or a moment that is no number.
    #[test]
    fn no_difference_of_losses_is_taken_across_an_update_that_was_not_measured() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for spoilt in [measured(0.25, Some(0.0), odd), measured(odd, Some(0.0), 0.125)] {
                let mut estimates = Estimates::new(5);
                let mut w = 2.0_f64;
                for step in 0..6 {
                    let sound = measured(w * w, Some(0.0), 0.5 * w * w);
                    estimates.add(2, 1.0, if step == 3 { &spoilt } else { &sound });
                    w *= 0.5;
                }
                let (promised, fallen) = (estimates.promised.get().unwrap(), estimates.fallen.get().unwrap());
                let raw = 2.0 * (promised - fallen) / estimates.squares.get().unwrap();
                assert!((raw - 1.0).abs() < 1e-12, "{raw}: {spoilt:?}");
                assert_eq!(estimates.squares.count, 3.0, "steps 0, 1 and 4 were measured: {spoilt:?}");
            }
        }
    }

    /// Steps of 1/8 that lower the loss by three quarters of what they promise, so that the smoothness is 4. The norms
    /// vary, so that it is read with an error.
    #[test]
    fn the_smoothness_is_read_by_the_error_of_the_steps_that_were_made() {
        let smoothness = |factor: f64| {
            let (rate, mut estimates, mut loss) = (0.125 / factor, Estimates::new(2), 9.0);
            for step in 0..200 {
                let norm_squared = [1.0, 1.5][step % 2];
                let measured = measured(norm_squared, Some(0.0), loss);
                estimates.add(2, factor, &Statistics { learning_rate: Some(rate), ..measured });
                loss -= 0.75 * 0.125 * norm_squared;
            }
            estimates.gain().unwrap().smoothness
        };
        let of_whole = smoothness(1.0);
        assert!((3.0..3.9).contains(&of_whole), "{of_whole}");
        assert_eq!(smoothness(0.5), of_whole);
    }

    #[test]
    fn means_are_clipped_and_samples_are_not() {
        let mut estimates = Estimates::new(3);
        let mut norm_squared_after = |mean_norm_squared: f64| {
            estimates.add(4, 1.0, &measured(mean_norm_squared, Some(8.0), 1.0));
            estimates.gain().unwrap().norm_squared
        };
        // With 8 / 4 taken off: -1, of whose error nothing is known yet.
        assert_eq!(norm_squared_after(1.0), 0.0);
        // -1 and 3: mean 1, deviation 2, and so an error of 2 by the root of 2.
        assert!((norm_squared_after(5.0) - 2.0_f64.sqrt()).abs() < 1e-12);
        // -1, 3 and 10: the mean is larger than its error.
        assert!((norm_squared_after(12.0) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn what_was_measured_is_remembered_longer_the_more_there_was() {
        let mut mean = Mean::new(4, 0.25);
        (0..4).for_each(|_| mean.add(1.0));
        assert_eq!((mean.value, mean.squares), (1.0, 0.25), "a plain mean at first");
        (0..4).for_each(|_| mean.add(0.0));
        assert!((mean.value - 0.75_f64.powi(4)).abs() < 1e-12, "then one of the last four");
        (0..392).for_each(|_| mean.add(0.0));
        mean.add(f64::NAN);
        mean.add(1.0);
        // The last of 401: a quarter of them, and what is left of the first four is nothing.
        assert!((mean.value - 4.0 / 401.0).abs() < 1e-6, "{}", mean.value);
    }

    #[test]
    fn any_step_size_and_any_loss_gives_a_gain_and_takes_no_more_room() {
        for learning_rate in [-1.0, 0.0, f64::NAN, f64::INFINITY, 1e-300] {
            let mut estimates = Estimates::new(2);
            let room = estimates.losses.capacity();
            for update in 0..20_000 {
                let odd = [0.5, f64::NAN, f64::MAX, -f64::MAX, f64::INFINITY][update % 5];
                let measured =
                    Statistics { learning_rate: Some(learning_rate), ..measured(odd, Some(odd), odd) };
                estimates.add(2, 1.0, &measured);
                let _ = (estimates.gain(), estimates.loss_grows(1.0));
            }
            assert_eq!(estimates.losses.capacity(), room, "at {learning_rate}");
        }
    }

    #[test]
    fn one_gradient_alone_keeps_the_variance_of_those_before() {
        let mut estimates = Estimates::new(1);
        estimates.add(2, 1.0, &measured(2.0, Some(2.0), 1.0));
        estimates.add(1, 1.0, &measured(5.0, None, 1.0));
        let gain = estimates.gain().unwrap();
        assert_eq!((gain.variance, gain.norm_squared), (2.0, 3.0));
        estimates.add(2, 1.0, &Statistics::default());
        assert_eq!(estimates.gain(), Some(gain), "nothing measured, nothing changed");
    }

    #[test]
    fn a_loss_below_zero_grows_by_a_part_of_its_size() {
        for (before, loss, grows) in [
            (1.0, 1.02, true),
            (1.0, 1.0, false),
            (-1.0, -1.005, false),
            (-1.0, -0.98, true),
            (-1.0, -0.995, false),
        ] {
            assert_eq!(is_growth(loss, before, 1.01), grows, "{before} to {loss}");
        }
        assert!(is_growth(-0.9, -1.0, 1.0) && !is_growth(-1.0, -1.0, 1.0));
    }

    #[test]
    fn windows_of_losses_are_compared_one_by_one_and_grow_longer() {
        let mut estimates = Estimates::new(2);
        let mut ends = |losses: &[f64]| {
            let answers = losses.iter().map(|loss| {
                estimates.add(2, 1.0, &measured(1.0, Some(1.0), *loss));
                estimates.loss_grows(1.5)
            });
            answers.collect::<Vec<_>>()
        };
        assert_eq!(ends(&[1.0, 1.0, 2.0, 2.0]), [None, None, None, Some(true)]);
        assert_eq!(ends(&[2.5, 2.5, 5.0, 2.0]), [None, Some(false), None, Some(false)]);
        let answers = ends(&[1.0; 800]);
        let at = answers.iter().enumerate().filter(|(_, answer)| answer.is_some());
        let at: Vec<usize> = at.map(|(index, _)| index).collect();
        let (first, last) = (at[1] - at[0], at[at.len() - 1] - at[at.len() - 2]);
        assert!(first == 2 && (80..=120).contains(&last), "{at:?}");
    }
}
