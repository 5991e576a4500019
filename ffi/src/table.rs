//! Tables as C reads them.

use std::ffi::CString;
use std::ops::Range;

use slackline::Table;

use crate::error::{Failure, slackline_status};
use crate::handle::{Out, call};
use crate::options::{self, ELEMENTS, slackline_tensor};

/// A table's tensors, with the names and shapes that they point at.
pub(crate) struct Tensors {
    tensors: Vec<slackline_tensor>,
    _names: Vec<CString>,
    _shapes: Vec<Vec<u64>>,
}

// SAFETY: the pointers lead into heap memory that this struct owns and no method changes: it may move from thread to
// thread with it.
unsafe impl Send for Tensors {}

impl Tensors {
    pub(crate) fn of(table: &Table) -> Result<Tensors, Failure> {
        let (mut tensors, mut names, mut shapes) = (Vec::new(), Vec::new(), Vec::new());
        for tensor in table.tensors() {
            let name = CString::new(tensor.name()).map_err(|_| {
                let message = format!(
                    "the tensor's name {:?} holds a zero byte: rename it at its owner",
                    tensor.name()
                );
                Failure::new(slackline_status::Unsupported, message)
            })?;
            let shape = tensor.shape().to_vec();
            let number = ELEMENTS.iter().find(|(_, element)| *element == tensor.element());
            let (element, _) = number.ok_or_else(|| {
                let element = tensor.element();
                let message = format!("C has no name for elements of type {element}: update this library");
                Failure::new(slackline_status::Unsupported, message)
            })?;
            tensors.push(slackline_tensor {
                name: name.as_ptr(),
                shape: shape.as_ptr(),
                rank: shape.len(),
                element: *element as u32,
            });
            names.push(name);
            shapes.push(shape);
        }
        Ok(Tensors { tensors, _names: names, _shapes: shapes })
    }

    pub(crate) fn as_slice(&self) -> &[slackline_tensor] {
        &self.tensors
    }
}

/// The out-parameters for a range of bytes.
pub(crate) struct OutRange {
    begin: Out<u64>,
    end: Out<u64>,
}

impl OutRange {
    /// # Safety
    ///
    /// As for [`Out::new`], for both.
    pub(crate) unsafe fn new(begin: *mut u64, end: *mut u64) -> Result<OutRange, Failure> {
        // SAFETY: the caller's promise.
        Ok(unsafe { OutRange { begin: Out::new(begin, "begin")?, end: Out::new(end, "end")? } })
    }

    pub(crate) fn set(&self, range: Range<u64>) {
        self.begin.set(range.start);
        self.end.set(range.end);
    }
}

/// The bytes of one tensor in its table's flat space.
pub(crate) fn range_of(table: &Table, tensor: usize) -> Result<Range<u64>, Failure> {
    let tensors = table.tensors();
    tensors.get(tensor).map(|tensor| tensor.range()).ok_or_else(|| {
        let count = tensors.len();
        Failure::bad_argument(format!("there is no tensor {tensor} of {count}: they count from 0"))
    })
}

/// Finds which bytes of the flat space tensor number `tensor` is, in a table that this program lays out itself: tensors
/// lie one after the other. `slackline_publisher_tensor_range` finds those of a table with an `alignment`, and
/// `slackline_reader_tensor_range` those of a table that another program has laid out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_tensor_range(
    tensors: *const slackline_tensor,
    tensor_count: usize,
    tensor: usize,
    begin: *mut u64,
    end: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (table, out) = unsafe { (options::table(tensors, tensor_count)?, OutRange::new(begin, end)?) };
        out.set(range_of(&table, tensor)?);
        Ok(())
    })
}
