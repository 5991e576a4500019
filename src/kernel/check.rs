//! The check that a fold is possible: everything that the loops rely on is checked here, once per fold.

use core::fmt;
use core::ops::Range;
use std::borrow::Cow;

use super::{Fold, MAX_GRADIENTS, Optimizer};
use crate::diagnostic::Diagnostic;
use crate::mem::VolatileSlice;

/// One of the ranges that a fold reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The gradient of this index.
    Gradient(usize),
    /// `parameters.from`.
    ParametersFrom,
    /// `parameters.to`.
    ParametersTo,
    /// `from` of the state of this index.
    StateFrom(usize),
    /// `to` of the state of this index.
    StateTo(usize),
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Gradient(index) => write!(f, "gradient {index}"),
            Operand::ParametersFrom => f.write_str("the parameters' source"),
            Operand::ParametersTo => f.write_str("the parameters' destination"),
            Operand::StateFrom(index) => write!(f, "the source of state {index}"),
            Operand::StateTo(index) => write!(f, "the destination of state {index}"),
        }
    }
}

/// A fold that cannot be done. Nothing has been read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// Too much to sum.
    #[error("a fold sums at most {MAX_GRADIENTS} gradients, not {count}")]
    Gradients {
        /// The number of gradients that were given.
        count: usize,
    },
    /// Not the arrays of state that the optimiser has.
    #[error("the optimiser has {expected} arrays of state, not {given}")]
    States {
        /// The number of arrays that the optimiser has.
        expected: usize,
        /// The number of arrays that were given.
        given: usize,
    },
    /// Adam's bias correction has no value before the first step.
    #[error("steps count from 1: there is no bias correction for step 0")]
    Step,
    /// The parameters are not whole elements.
    #[error("{bytes} bytes of parameters are not whole f32 elements")]
    PartialElement {
        /// Length of `parameters.from`.
        bytes: usize,
    },
    /// A range is not as long as the parameters ask for.
    #[error("{operand} has {bytes} bytes where the parameters ask for {expected}")]
    Length {
        /// The range with the wrong length.
        operand: Operand,
        /// Its length.
        bytes: usize,
        /// The length that it should have.
        expected: usize,
    },
    /// A range in memory of a GPU, which no processor reads or writes.
    #[error("{operand} is in memory of a GPU, and this fold is made by processors")]
    OnGpu {
        /// The range.
        operand: Operand,
    },
    /// A destination that may not be written.
    #[error("{operand} is read-only")]
    ReadOnly {
        /// The destination that is read-only.
        operand: Operand,
    },
    /// A destination shares bytes with something that is read or written beside it.
    #[error("{operand} overlaps {with}")]
    Overlap {
        /// The destination.
        operand: Operand,
        /// The range that it overlaps.
        with: Operand,
    },
}

impl Diagnostic for FoldError {
    fn operation(&self) -> &'static str {
        "folding gradients"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        None
    }
}

/// Checks everything that `sweep` relies on. Overlap is judged by address: one page mapped twice goes unnoticed, and
/// gives garbage, not harm.
pub(super) fn check(fold: &Fold<'_>) -> Result<(), FoldError> {
    let count = fold.gradients.len();
    if count > MAX_GRADIENTS {
        return Err(FoldError::Gradients { count });
    }
    let (expected, given) = (fold.optimizer.states(), fold.states.len());
    if expected != given {
        return Err(FoldError::States { expected, given });
    }
    if fold.step == 0 && matches!(fold.optimizer, Optimizer::Adam(_) | Optimizer::AdamW(_)) {
        return Err(FoldError::Step);
    }
    let bytes = fold.parameters.from.len();
    if !bytes.is_multiple_of(4) {
        return Err(FoldError::PartialElement { bytes });
    }
    for (operand, slice) in sources(fold).chain(destinations(fold)) {
        let expected = match operand {
            Operand::Gradient(_) => bytes / 4 * fold.encoding.bytes(),
            _ => bytes,
        };
        if slice.len() != expected {
            return Err(FoldError::Length { operand, bytes: slice.len(), expected });
        }
    }
    for (index, (operand, slice)) in destinations(fold).enumerate() {
        if !slice.is_writable() {
            return Err(FoldError::ReadOnly { operand });
        }
        let others = sources(fold).chain(destinations(fold).skip(index + 1));
        for (with, other) in others {
            let (one, two) = (addresses(slice), addresses(other));
            if one.start < two.end && two.start < one.end {
                return Err(FoldError::Overlap { operand, with });
            }
        }
    }
    Ok(())
}

fn sources<'a>(fold: &Fold<'a>) -> impl Iterator<Item = (Operand, VolatileSlice<'a>)> {
    let gradients = fold.gradients.iter().enumerate();
    let states = fold.states.iter().enumerate();
    core::iter::once((Operand::ParametersFrom, fold.parameters.from))
        .chain(states.map(|(index, state)| (Operand::StateFrom(index), state.from)))
        .chain(gradients.map(|(index, gradient)| (Operand::Gradient(index), gradient.elements)))
}

fn destinations<'a>(fold: &Fold<'a>) -> impl Iterator<Item = (Operand, VolatileSlice<'a>)> {
    let states = fold.states.iter().enumerate();
    core::iter::once((Operand::ParametersTo, fold.parameters.to))
        .chain(states.map(|(index, state)| (Operand::StateTo(index), state.to)))
}

fn addresses(slice: VolatileSlice<'_>) -> Range<usize> {
    slice.as_ptr().addr()..slice.as_ptr().addr() + slice.len()
}
