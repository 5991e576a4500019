//! Arithmetic over shared memory: summing gradients and stepping an optimiser in one pass.
#![allow(unsafe_code)]

mod optimizer;

pub use optimizer::{AdamParameters, Optimizer};

use crate::mem::VolatileSlice;
use crate::table::ElementType;

/// Most gradients in one fold.
pub const MAX_GRADIENTS: usize = 1024;

/// One gradient of a fold.
#[derive(Clone, Copy, Debug)]
pub struct Gradient<'a> {
    /// Its elements, of the fold's encoding. A peer may be writing them: what is read then is garbage, not harm.
    pub elements: VolatileSlice<'a>,
    /// What it counts in the sum.
    pub weight: f32,
}

/// An array that is read from one place and written to another, so that a fold can be thrown away and done again.
/// The two may not overlap.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// What it was.
    pub from: VolatileSlice<'a>,
    /// What it becomes.
    pub to: VolatileSlice<'a>,
}

/// `p' = step(p, sum of weight * gradient)` over a range of parameters, in one pass over memory.
#[derive(Clone, Copy, Debug)]
pub struct Fold<'a> {
    /// What to sum, in this order.
    pub gradients: &'a [Gradient<'a>],
    /// Type of the gradients' elements.
    pub encoding: ElementType,
    /// The rule.
    pub optimizer: Optimizer,
    /// Its step size.
    pub learning_rate: f32,
    /// Which step this is, the first being 1 (for Adam's bias correction).
    pub step: u64,
    /// The parameters, f32.
    pub parameters: Pass<'a>,
    /// As many arrays of f32 as the optimiser has states.
    pub states: &'a [Pass<'a>],
    /// Write past the caches: for folds over more than they hold.
    pub streaming: bool,
}
