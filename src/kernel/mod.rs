//! Arithmetic over shared memory: summing gradients and stepping an optimiser in one pass.
#![allow(unsafe_code)]

mod check;
mod checksum;
mod convert;
mod delta;
mod lanes;
mod magnitude;
mod mean;
mod moments;
mod optimizer;
mod rule;
mod schedule;
mod sweep;
mod ticks;
mod triad;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
mod tests;

pub use check::{FoldError, Operand};
pub use checksum::crc64;
pub use convert::{decode, encode};
pub use delta::{DamagedDelta, apply_delta, encode_delta};
pub use magnitude::largest_magnitude;
pub use mean::mean;
pub use moments::Moments;
pub use optimizer::{AdamParameters, Optimizer};
#[cfg(all(feature = "cuda", not(loom)))]
pub(crate) use rule::RuleConstants;
pub use schedule::{Schedule, ScheduleError};
pub use ticks::ticks;
pub use triad::triad;

use crate::mem::VolatileSlice;
use crate::table::Encoding;

/// Most gradients in one fold.
pub const MAX_GRADIENTS: usize = 1024;

/// One gradient of a fold.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// Its elements, of the fold's encoding. A peer may be writing them: the values are garbage then, and do no harm.
    pub elements: VolatileSlice<'a>,
    /// The factor of this gradient in the sum.
    pub weight: f32,
}

/// An array that is read from one range of memory and written to another, so that a fold can be thrown away and done
/// again. The two may not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The old values, which the fold reads.
    pub from: VolatileSlice<'a>,
    /// The memory for the new values, which the fold writes.
    pub to: VolatileSlice<'a>,
}

/// `p' = step(p, sum of weight * gradient)` over a range of parameters, in one pass over memory.
#[derive(Clone, Copy, Debug)]
pub struct Fold<'a> {
    /// The gradients to sum, in this order. If there are none, the sum is zero.
    pub gradients: &'a [Gradient<'a>],
    /// Type of the gradients' elements.
    pub encoding: Encoding,
    /// The rule.
    pub optimizer: Optimizer,
    /// Its step size.
    pub learning_rate: f32,
    /// The number of this step, the first being 1 (for Adam's bias correction).
    pub step: u64,
    /// The parameters, f32.
    pub parameters: Pass<'a>,
    /// As many arrays of f32 as the optimiser has states.
    pub states: &'a [Pass<'a>],
    /// Write past the caches: for folds over more than they hold.
    pub streaming: bool,
}

impl Fold<'_> {
    /// Does it.
    ///
    /// For each parameter the weighted gradients are added in the order given, from the left, the first being
    /// `weight * gradient` itself; then the optimiser's formulas follow as they are written there. Every operation is
    /// rounded once, to f32, whichever vectors the processor has; only the payload and sign of a NaN are unspecified.
    /// Results are in place, streamed ones too, and ordered before every later store when this returns.
    ///
    /// ```
    /// use slackline::internals::kernel::{Fold, Gradient, Pass};
    /// use slackline::internals::mem::HostMemory;
    /// use slackline::Encoding;
    /// use slackline::optim::Optimizer;
    ///
    /// let memory = HostMemory::anonymous(4096)?;
    /// let [from, to, gradient] = [0, 1024, 2048].map(|at| memory.as_volatile().subslice(at, 4));
    /// from.write(&1f32.to_le_bytes());
    /// gradient.write(&4f32.to_le_bytes());
    /// let fold = Fold {
    ///     gradients: &[Gradient { elements: gradient, weight: 0.5 }],
    ///     encoding: Encoding::F32,
    ///     optimizer: Optimizer::Sgd { weight_decay: 0.0 },
    ///     learning_rate: 0.25,
    ///     step: 1,
    ///     parameters: Pass { from, to },
    ///     states: &[],
    ///     streaming: false,
    /// };
    /// fold.run()?;
    /// let mut parameter = [0; 4];
    /// to.read(&mut parameter);
    /// assert_eq!(f32::from_le_bytes(parameter), 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// True if all new parameters are finite, and so are all second moments of Adam and AdamW: a NaN or an infinity in
    /// a gradient makes one in them. A gradient of more than about 10^20 makes a second moment infinite, and its
    /// parameter would never move again. To find that out costs no pass over memory.
    pub fn run(&self) -> Result<bool, FoldError> {
        self.run_on::<false>(lanes::Level::best()).map(|found| found.finite)
    }

    /// As [`run`](Self::run), with the same results, and measures the gradients in the same pass over memory.
    ///
    /// Squares are f32, added up within a relative error of 10^-6; an element of more than 10^19 makes them infinite,
    /// one of less than 10^-19 counts as nothing. The same fold on the same processor measures the same, wherever its
    /// memory lies.
    pub fn run_measured(&self) -> Result<(Moments, bool), FoldError> {
        self.run_on::<true>(lanes::Level::best()).map(|found| (found.moments, found.finite))
    }

    fn run_on<const MEASURE: bool>(&self, level: lanes::Level) -> Result<sweep::Found, FoldError> {
        check::check(self)?;
        // SAFETY: checked just above: every range is as long as the fold needs, the destinations are writable and
        // overlap nothing; `VolatileSlice` vouches for the memory behind them while `self` borrows it.
        Ok(unsafe { sweep::fold::<MEASURE>(self, level) })
    }
}
