//! DBW with nothing to estimate: each version waits for the number of gradients that promises the most per second by
//! the true moments and the true mean times.

use slackline::sim::{Distribution, Logistic, Problem, Sampler};

use super::dbw::{N, SLOW_BY, Setting};

/// Purpose of the random streams of times, which are not those of the simulator.
const TIMES: u64 = 0x6f72_6163;
/// Draws from which mean times are taken.
const DRAWS: usize = 4000;
/// The moments are at most this part of the time so far old, or so many seconds.
const STALE: f64 = 0.05;

/// The workers, whose slower half becomes slower on the way.
struct DrawnTimes<'a> {
    compute: &'a Distribution,
    samplers: Vec<Sampler>,
}

impl DrawnTimes<'_> {
    fn new(compute: &Distribution, seed: u64) -> DrawnTimes<'_> {
        let sampler = |worker| Sampler::new(compute, seed, TIMES, worker, N);
        DrawnTimes { compute, samplers: (0..N).map(sampler).collect() }
    }

    /// A time for each worker, the shortest first.
    fn draw(&mut self, half_is_slow: bool) -> Vec<(f64, usize)> {
        let factor = |worker| if half_is_slow && worker < N / 2 { SLOW_BY } else { 1.0 };
        let drawn = self.samplers.iter_mut().enumerate();
        let mut times: Vec<(f64, usize)> =
            drawn.map(|(worker, sampler)| (factor(worker) * sampler.draw(self.compute), worker)).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        times
    }

    /// The mean time of the first, of the second, and so on.
    fn means(&mut self, half_is_slow: bool) -> Vec<f64> {
        let mut sums = vec![0.0; N];
        for _ in 0..DRAWS {
            sums.iter_mut().zip(self.draw(half_is_slow)).for_each(|(sum, (time, _))| *sum += time);
        }
        sums.into_iter().map(|sum| sum / DRAWS as f64).collect()
    }
}

/// The time to the target, or that at which it was given up: pushed and interrupted as in the simulator, without a
/// network, so that all workers begin each version together.
pub(super) fn time(setting: &Setting, seed: u64) -> f64 {
    let mut problem: Logistic = setting.problem(seed);
    let mut pace = DrawnTimes::new(&setting.compute, seed);
    let means = [false, true]
        .map(|half_is_slow| DrawnTimes::new(&setting.compute, seed ^ 1 << 32).means(half_is_slow));
    let rate = f64::from(setting.rate);
    let mut parameters = problem.initial(seed);
    let (mut gradient, mut sum) = (vec![0.0; parameters.len()], vec![0.0; parameters.len()]);
    let mut clocks = [0; N];
    let (mut now, mut point, mut look, mut k) = (0.0, 0.0, 0.0, N);
    while now < setting.grid.within {
        if now >= point {
            if problem.evaluate(&parameters).loss <= setting.grid.target {
                return now;
            }
            point = now + 0.5;
        }
        let half_is_slow = setting.times.slowed_at.is_some_and(|at| now >= at);
        if now >= look {
            let moments = problem.moments(&parameters);
            let gain = |k: &usize| moments.fall(rate, *k) / means[usize::from(half_is_slow)][k - 1];
            let best = (1..=N).max_by(|a, b| gain(a).total_cmp(&gain(b))).filter(|k| gain(k) > 0.0);
            k = best.unwrap_or(N);
            look = now + (STALE * now).max(STALE);
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
    }
    setting.grid.within
}
