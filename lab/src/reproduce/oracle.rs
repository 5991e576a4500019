//! DBW with nothing to estimate: each version waits for the number of gradients that promises the most per second by
//! the true gradient, the true noise, the true curvature and the true mean times.

use serde::Deserialize;
use slackline::sim::{Logistic, Problem, Sampler};

use super::dbw::{DbwGrids, Setting};

/// Purpose of the random streams of times, which are not those of the simulator.
const TIMES: u64 = 0x6f72_6163;

/// How well the oracle knows the truth.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Oracle {
    /// Draws from which mean times are taken.
    draws: usize,
    /// The moments are at most this part of the time so far old, or so many seconds.
    stale: f64,
    /// The curvature is that of one example of so many.
    every: usize,
}

/// The rule by which the number of gradients is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) enum OracleRule {
    /// The most fall of the loss per second; all workers where no number promises any.
    Oracle,
    /// The same number for every version.
    Static(usize),
}

/// What mini-batch gradients are like at some parameters, over all examples: `g` their mean, `C` the covariance of one,
/// `H` the Hessian of the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TrueMoments {
    /// Squared norm of `g`.
    norm_squared: f64,
    /// `g'Hg`.
    along: f64,
    /// The trace of `HC`.
    across: f64,
}

impl TrueMoments {
    fn at(parameters: &[f32], problem: &Logistic, batch: usize, penalty: f32, every: usize) -> TrueMoments {
        let (width, count) = (parameters.len(), problem.examples().len());
        let of_examples = |every: usize| {
            problem.examples().step_by(every).map(|(row, class)| {
                let side: f32 =
                    row.iter().zip(parameters).map(|(feature, parameter)| feature * parameter).sum();
                let wrong = 1.0 / (1.0 + f64::from(side * class).exp());
                (row, -f64::from(class) * wrong, wrong * (1.0 - wrong))
            })
        };
        let penalty = f64::from(penalty);
        let mut data = vec![0.0; width];
        for (row, slope, _) in of_examples(1) {
            data.iter_mut().zip(row).for_each(|(sum, x)| *sum += slope * f64::from(*x) / count as f64);
        }
        let some = count.div_ceil(every) as f64;
        let mut hessian = vec![0.0; width * width];
        for (row, _, bend) in of_examples(every) {
            for (x, sums) in row.iter().zip(hessian.chunks_exact_mut(width)) {
                let scaled = f64::from(*x) * bend / some;
                sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += scaled * f64::from(*y));
            }
        }
        hessian.iter_mut().step_by(width + 1).for_each(|diagonal| *diagonal += penalty);
        let curvature = |v: &dyn Fn(usize) -> f64| -> f64 {
            let rows = hessian.chunks_exact(width).enumerate();
            rows.map(|(at, row)| v(at) * row.iter().enumerate().map(|(to, h)| h * v(to)).sum::<f64>()).sum()
        };
        let mean = |at: usize| data[at] + penalty * f64::from(parameters[at]);
        let squares = of_examples(every)
            .map(|(row, slope, _)| slope * slope * curvature(&|at| f64::from(row[at])) / some)
            .sum::<f64>();
        TrueMoments {
            norm_squared: (0..width).map(|at| mean(at).powi(2)).sum(),
            along: curvature(&mean),
            across: (squares - curvature(&|at| data[at])) / batch as f64,
        }
    }

    /// The fall of the loss that a step against the mean of `k` gradients has in expectation, to second order.
    fn fall(&self, step_size: f64, k: usize) -> f64 {
        let bend = self.along + self.across / k as f64;
        step_size * self.norm_squared - 0.5 * step_size * step_size * bend
    }
}

/// The times of the workers, whose first half may be slower.
struct DrawnTimes<'a> {
    setting: &'a Setting<'a>,
    samplers: Vec<Sampler>,
}

impl DrawnTimes<'_> {
    fn new<'a>(setting: &'a Setting, seed: u64) -> DrawnTimes<'a> {
        let workers = setting.all.workers;
        let sampler = |worker| Sampler::new(&setting.compute, seed, TIMES, worker, workers);
        DrawnTimes { setting, samplers: (0..workers).map(sampler).collect() }
    }

    /// A time for each worker, the shortest first.
    fn draw(&mut self, half_is_slow: bool) -> Vec<(f64, usize)> {
        let Setting { all, compute, .. } = self.setting;
        let factor = |worker| if half_is_slow && worker < all.workers / 2 { all.slow_by } else { 1.0 };
        let drawn = self.samplers.iter_mut().enumerate();
        let mut times: Vec<(f64, usize)> =
            drawn.map(|(worker, sampler)| (factor(worker) * sampler.draw(compute), worker)).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        times
    }

    /// The mean time of the first, of the second, and so on.
    fn means(&mut self, half_is_slow: bool, draws: usize) -> Vec<f64> {
        let mut sums = vec![0.0; self.samplers.len()];
        for _ in 0..draws {
            sums.iter_mut().zip(self.draw(half_is_slow)).for_each(|(sum, (time, _))| *sum += time);
        }
        sums.into_iter().map(|sum| sum / draws as f64).collect()
    }
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// The time to the target, or that at which it was given up.
    pub(super) time: f64,
    /// The mean over the time of the number of gradients that were waited for.
    pub(super) mean_k: f64,
    /// It is there though one more step of the kind promises no fall of the loss: the target is below the loss about
    /// which steps of this kind go up and down, and was met on the way down.
    pub(super) is_by_chance: bool,
}

/// A run that is pushed and interrupted as in the simulator, without a network, so that all workers begin each version
/// together.
pub(super) fn arrival(oracle: &Oracle, setting: &Setting, rule: OracleRule, seed: u64) -> Ending {
    let mut problem = setting.problem(seed);
    let Oracle { draws, stale, every } = *oracle;
    let DbwGrids { workers, evaluate_every, logistic, .. } = setting.all;
    let moments = |parameters: &[f32], problem: &Logistic| {
        TrueMoments::at(parameters, problem, setting.batch, logistic.penalty, every)
    };
    let mut pace = DrawnTimes::new(setting, seed);
    let means =
        [false, true].map(|half_is_slow| DrawnTimes::new(setting, seed ^ 1 << 32).means(half_is_slow, draws));
    let rate = f64::from(setting.rate);
    let mut parameters = problem.initial(seed);
    let (mut gradient, mut sum) = (vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
    let mut clocks = vec![0; *workers];
    let (mut now, mut point, mut look, mut k, mut waited) = (0.0, 0.0, 0.0, *workers, 0.0);
    while now < setting.grid.within {
        if now >= point {
            if problem.evaluate(&parameters).loss <= setting.grid.target {
                let is_by_chance = moments(&parameters, &problem).fall(rate, k) <= 0.0;
                return Ending { time: now, mean_k: waited / now, is_by_chance };
            }
            point = ((now / evaluate_every).floor() + 1.0) * evaluate_every;
        }
        let half_is_slow = setting.times.slowed_at.is_some_and(|at| now >= at);
        match rule {
            OracleRule::Static(fixed) => k = fixed,
            OracleRule::Oracle if now >= look => {
                let moments = moments(&parameters, &problem);
                let gain = |k: &usize| moments.fall(rate, *k) / means[usize::from(half_is_slow)][k - 1];
                let best =
                    (1..=*workers).max_by(|a, b| gain(a).total_cmp(&gain(b))).filter(|k| gain(k) > 0.0);
                k = best.unwrap_or(*workers);
                look = now + (stale * now).max(stale);
            }
            OracleRule::Oracle => {}
        }
        let times = pace.draw(half_is_slow);
        sum.fill(0.0);
        for (_, worker) in &times[..k] {
            problem.gradient(*worker, clocks[*worker], &parameters, &mut gradient);
            clocks[*worker] += 1;
            sum.iter_mut().zip(&gradient).for_each(|(sum, gradient)| *sum += gradient / k as f32);
        }
        parameters.iter_mut().zip(&sum).for_each(|(parameter, sum)| *parameter -= setting.rate * sum);
        now += times[k - 1].0;
        waited += k as f64 * times[k - 1].0;
    }
    Ending { time: setting.grid.within, mean_k: waited / now, is_by_chance: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten thousand steps from the same parameters, each against the mean of four mini-batches of eight.
    #[test]
    fn moments_promise_what_many_steps_lower_the_loss_by() {
        let penalty = 1e-4;
        let mut problem = Logistic::new(2000, 5, 8, penalty, 1);
        let parameters = [0.5, -0.2, 0.1, 0.3, -0.4];
        let moments = TrueMoments::at(&parameters, &problem, 8, penalty, 4);
        let before = problem.evaluate(&parameters).loss;
        let (step_size, k, steps) = (0.2_f32, 4, 10_000);
        let (mut fallen, mut gradient) = (0.0, [0.0; 5]);
        for step in 0..steps {
            let mut moved = parameters;
            for worker in 0..k {
                problem.gradient(worker, step, &parameters, &mut gradient);
                moved.iter_mut().zip(&gradient).for_each(|(to, own)| *to -= step_size * own / k as f32);
            }
            fallen += (before - problem.evaluate(&moved).loss) / steps as f64;
        }
        let expected = moments.fall(f64::from(step_size), k);
        assert!((fallen / expected - 1.0).abs() < 0.03, "{fallen}, expected {expected}");
    }
}
