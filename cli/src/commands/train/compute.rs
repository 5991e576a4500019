//! What a worker computes: gradients of its batches, slower where the run asks for that, given up where a server does.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use slackline::Error;
use slackline::sim::{Law, LawError, Sampler};
use slackline_lab::data::Dataset;
use slackline_lab::model::{Batches, ModelSpec, Scratch};

/// Examples between two questions whether to stop: some ten microseconds of computing for a small model.
const PIECE: usize = 8;

/// Time between two questions while a worker that is to be slow does nothing.
const NAP: Duration = Duration::from_millis(1);

/// The longest that one step may be made to take.
const LONGEST: Duration = Duration::from_secs(3600);

/// The purpose of the random stream that jitter is drawn from.
const JITTER: u64 = 100;

/// Computes one worker's gradients.
pub(super) struct Computer {
    pub(super) spec: ModelSpec,
    pub(super) train: Dataset,
    pub(super) batches: Batches,
    pub(super) pace: Pace,
    /// Steps on a copy of its own for each gradient.
    pub(super) local_steps: u64,
    /// Their size.
    pub(super) learning_rate: f32,
    /// What was computed last.
    pub(super) gradient: Vec<f32>,
    /// The parameters to compute on.
    pub(super) base: Vec<f32>,
    local: Vec<f32>,
    scratch: Scratch,
}

/// Whether to give up what is being computed.
pub(super) type Stop<'a> = &'a mut dyn FnMut() -> Result<bool, Error>;

impl Computer {
    /// One that computes as fast as it can, and a gradient at every step.
    pub(super) fn new(spec: ModelSpec, train: Dataset, batches: Batches) -> Computer {
        Computer {
            spec,
            train,
            batches,
            pace: Pace { factor: 1.0, jitter: None },
            local_steps: 1,
            learning_rate: 0.0,
            gradient: Vec::new(),
            base: Vec::new(),
            local: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    /// Computes the gradient of `clock` on `parameters`, and gives the loss.
    pub(super) fn gradient(&mut self, clock: u64, parameters: &[f32]) -> Result<f32, Error> {
        self.gradient.resize(parameters.len(), 0.0);
        let begun = computed();
        let rows = self.batches.rows(clock);
        let loss =
            self.spec.loss_and_gradient(parameters, &self.train, rows, &mut self.gradient, &mut self.scratch);
        self.pace.lag(begun, None)?;
        Ok(loss)
    }

    /// As [`gradient`](Self::gradient), on `base`, asking now and then whether to `stop`: `None` once that says so.
    ///
    /// With several local steps it is what they moved the parameters by, over the size of a step, and the mean loss.
    pub(super) fn gradient_unless(&mut self, clock: u64, stop: Stop<'_>) -> Result<Option<f32>, Error> {
        self.gradient.resize(self.base.len(), 0.0);
        self.local.clone_from(&self.base);
        let mut loss = 0.0;
        for step in 0..self.local_steps {
            let begun = computed();
            let rows = self.batches.rows(clock * self.local_steps + step);
            let (gradient, scratch) = (&mut self.gradient, &mut self.scratch);
            let answer = self.spec.loss_and_gradient_unless(
                &self.local,
                &self.train,
                rows,
                gradient,
                scratch,
                PIECE,
                &mut *stop,
            )?;
            let Some(of_step) = answer else { return Ok(None) };
            if !self.pace.lag(begun, Some(&mut *stop))? {
                return Ok(None);
            }
            loss += of_step / self.local_steps as f32;
            // A single step is a gradient like any other.
            if self.local_steps > 1 {
                let steps = self.local.iter_mut().zip(&self.gradient);
                steps.for_each(|(value, gradient)| *value -= self.learning_rate * gradient);
            }
        }
        if self.local_steps > 1 {
            for ((gradient, base), local) in self.gradient.iter_mut().zip(&self.base).zip(&self.local) {
                *gradient = (base - local) / self.learning_rate;
            }
        }
        Ok(Some(loss))
    }
}

/// The time for which this thread has computed.
///
/// A factor multiplies this time and not the time on the wall: the latter holds the time in which the process was
/// paused, and 80 times a pause of ten seconds is longer than any job waits.
fn computed() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// How slow a worker is to be.
pub(super) struct Pace {
    /// How many times slower than it could be.
    pub(super) factor: f64,
    /// What each step takes besides computing, before that.
    pub(super) jitter: Option<(Law, Sampler)>,
}

impl Pace {
    /// Of one worker out of `workers`, with jitter of this law, if any.
    pub(super) fn new(
        factor: f64,
        jitter: Option<&str>,
        seed: u64,
        worker: usize,
        workers: usize,
    ) -> Result<Pace, LawError> {
        let jitter: Option<Law> = jitter.map(str::parse).transpose()?;
        let sampler = |law: Law| {
            let sampler = Sampler::new(&law, seed, JITTER, worker, workers);
            (law, sampler)
        };
        Ok(Pace { factor, jitter: jitter.map(sampler) })
    }

    /// Sleeps until a step is as long as the pace demands. `begun` is [`computed`] at its beginning. False if it was
    /// stopped.
    fn lag(&mut self, begun: Duration, stop: Option<Stop<'_>>) -> Result<bool, Error> {
        let jitter = self.jitter.as_mut().map_or(0.0, |(law, sampler)| sampler.draw(law));
        // A law may have no mean; nobody waits for more than this.
        let jitter = Duration::from_secs_f64((jitter * self.factor).min(LONGEST.as_secs_f64()));
        let lag = computed().saturating_sub(begun).mul_f64(self.factor - 1.0) + jitter;
        let Some(stop) = stop else {
            std::thread::sleep(lag);
            return Ok(true);
        };
        let end = Instant::now() + lag;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            std::thread::sleep(left.min(NAP));
            if stop()? {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_does_not_multiply_the_time_in_which_it_was_paused() {
        let mut pace = Pace { factor: 1000.0, jitter: None };
        let begun = computed();
        // The thread computes nothing meanwhile, as in a pause.
        std::thread::sleep(Duration::from_millis(50));
        let mut questions = 0;
        let mut stop = || {
            questions += 1;
            Ok(questions == 10_000)
        };
        assert!(pace.lag(begun, Some(&mut stop)).unwrap(), "it lagged for {questions} naps of {NAP:?}");
    }
}
