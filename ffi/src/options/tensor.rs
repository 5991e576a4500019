//! The tensors that C describes, and the table of an array of them.

use std::ffi::c_char;

use slackline::Table;

use super::values::element;
use crate::error::Failure;
use crate::handle::{slice, text};

/// One tensor of a table. A table is an array of them, laid out one after the other in one flat space, each at a
/// multiple of its element size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_tensor {
    /// UTF-8, ending in a zero; unique in its table.
    pub name: *const c_char,
    /// `rank` sides, outermost first. May be NULL if `rank` is 0: a scalar.
    pub shape: *const u64,
    /// Number of sides.
    pub rank: usize,
    /// One of `enum slackline_element`.
    pub element: u32,
}

/// # Safety
///
/// `tensors` is NULL, or points at `count` tensors, whose names and shapes are as for [`text`] and [`slice`].
pub(crate) unsafe fn table(tensors: *const slackline_tensor, count: usize) -> Result<Table, Failure> {
    // SAFETY: the caller's promise.
    unsafe { aligned_table(tensors, count, 0) }
}

/// As [`table`], with each tensor at a multiple of `alignment` bytes; with 0, of its element size.
///
/// # Safety
///
/// As for [`table`].
pub(crate) unsafe fn aligned_table(
    tensors: *const slackline_tensor,
    count: usize,
    alignment: u64,
) -> Result<Table, Failure> {
    let mut builder = Table::builder();
    if alignment > 0 {
        builder = builder.align(alignment);
    }
    // SAFETY: the caller's promise.
    for tensor in unsafe { slice(tensors, count, "the array of tensors")? } {
        // SAFETY: the caller's promise.
        let (name, shape) = unsafe {
            (text(tensor.name, "a tensor's name")?, slice(tensor.shape, tensor.rank, "a tensor's shape")?)
        };
        builder = builder.tensor(name, shape, element(tensor.element)?);
    }
    Ok(builder.build()?)
}
