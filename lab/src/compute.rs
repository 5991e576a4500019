//! The computation of one worker: gradients of its batches, slower where a run asks for that, given up where a server
//! does.

mod gpu;

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use slackline::sim::{Distribution, DistributionError, Sampler};
use thiserror::Error;

pub use gpu::{GpuComputer, GpuComputerError};

use crate::data::TaskPart;
use crate::model::{Batches, ModelSpec, Scratch};

/// Examples between two questions whether to stop: some ten microseconds of computing for a small model.
const PIECE: usize = 8;

/// Time between two questions while a worker that is to be slow does nothing.
const NAP: Duration = Duration::from_millis(1);

/// The longest that one step may be made to take.
const LONGEST: Duration = Duration::from_secs(3600);

/// The purpose of the random stream that jitter is drawn from: the simulator's for computing, so that with one seed
/// real steps sleep what simulated ones take.
const JITTER: u64 = 1;

/// Computes one worker's gradients.
pub struct Computer {
    spec: ModelSpec,
    train: TaskPart,
    batches: Batches,
    pace: Pace,
    scratch: Scratch,
}

impl Computer {
    /// A computer of this model's gradients on these batches, at this pace.
    pub fn new(spec: ModelSpec, train: TaskPart, batches: Batches, pace: Pace) -> Computer {
        Computer { spec, train, batches, pace, scratch: Scratch::default() }
    }

    /// Computes the gradient of a batch on `parameters`, and returns the loss.
    pub fn gradient(&mut self, batch: u64, parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let begun = computed();
        let rows = self.batches.rows(batch);
        let loss = self.spec.loss_and_gradient(parameters, &self.train, rows, gradient, &mut self.scratch);
        std::thread::sleep(self.pace.lag(begun));
        loss
    }

    /// As [`gradient`](Self::gradient), asking now and then whether to `stop`: `None`, with a gradient of no use, once
    /// that says so.
    ///
    /// # Errors
    /// Those of `stop`.
    pub fn gradient_unless<E>(
        &mut self,
        batch: u64,
        parameters: &[f32],
        gradient: &mut [f32],
        stop: &mut dyn FnMut() -> Result<bool, E>,
    ) -> Result<Option<f32>, E> {
        let begun = computed();
        let rows = self.batches.rows(batch);
        let (train, scratch) = (&self.train, &mut self.scratch);
        let answer = self
            .spec
            .loss_and_gradient_unless(parameters, train, rows, gradient, scratch, PIECE, &mut *stop)?;
        let Some(loss) = answer else { return Ok(None) };
        let is_whole = sleep_unless(self.pace.lag(begun), stop)?;
        Ok(is_whole.then_some(loss))
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

/// The slowness of a worker.
pub struct Pace {
    /// The factor by which the worker is slower than it could be.
    factor: f64,
    /// The time that each step takes besides computing, before that.
    jitter: Option<(Distribution, Sampler)>,
}

/// A pace that no worker can have.
#[derive(Debug, Error)]
#[allow(missing_docs)] // each message says what its fields hold
pub enum PaceError {
    #[error("a worker cannot be slower by a factor of {0}: use {start} to {end}", start = Pace::FACTORS.start(),
        end = Pace::FACTORS.end())]
    Factor(f64),
    #[error(transparent)]
    Jitter(#[from] DistributionError),
}

impl Pace {
    /// The factors by which a worker may be slower. Slower than the last is not a straggler but a worker that is gone.
    pub const FACTORS: RangeInclusive<f64> = 1.0..=1000.0;

    /// The pace of one worker out of `workers`, with jitter of this distribution, if any.
    ///
    /// # Errors
    /// `factor` is none of [`FACTORS`](Self::FACTORS), or `jitter` is no distribution.
    pub fn new(
        factor: f64,
        jitter: Option<&str>,
        seed: u64,
        worker: usize,
        workers: usize,
    ) -> Result<Pace, PaceError> {
        if !Pace::FACTORS.contains(&factor) {
            return Err(PaceError::Factor(factor));
        }
        let jitter: Option<Distribution> = jitter.map(str::parse).transpose()?;
        let sampler = |distribution: Distribution| {
            let sampler = Sampler::new(&distribution, seed, JITTER, worker, workers);
            (distribution, sampler)
        };
        Ok(Pace { factor, jitter: jitter.map(sampler) })
    }

    /// The time that a step still has to take. `begun` is [`computed`] at its beginning.
    fn lag(&mut self, begun: Duration) -> Duration {
        let jitter = self.jitter.as_mut().map_or(0.0, |(distribution, sampler)| sampler.draw(distribution));
        // A distribution may have no mean; no worker waits for more than this.
        let jitter = Duration::from_secs_f64((jitter * self.factor).min(LONGEST.as_secs_f64()));
        computed().saturating_sub(begun).mul_f64(self.factor - 1.0) + jitter
    }
}

/// Sleeps for so long. False if it was stopped.
fn sleep_unless<E>(time: Duration, stop: &mut dyn FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let end = Instant::now() + time;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straggler_does_not_multiply_the_time_in_which_it_was_paused() {
        let mut pace = Pace { factor: 1000.0, jitter: None };
        let begun = computed();
        // The thread computes nothing meanwhile, as in a pause.
        std::thread::sleep(Duration::from_millis(50));
        let lag = pace.lag(begun);
        assert!(lag < Duration::from_secs(10), "{lag:?}");
    }
}
