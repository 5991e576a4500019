//! Arrays of the caller's, of whatever library: by the buffer protocol, DLPack or numpy's array interface.
#![allow(unsafe_code, reason = "the memory of other libraries is read and written through pointers")]

use std::cmp::Reverse;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use slackline::internals::mem::{Streaming, VolatileSlice};

use crate::buffer::Buffer;
use crate::device::OnGpu;
use crate::dlpack::Incoming;
use crate::dtype::{self, Dtype};
use crate::errors::{Class, Failure};
use crate::gpu::Streams;
use crate::lease::Lease;
use crate::memory::Memory;

/// An array of the caller's, wherever it is.
pub(crate) enum Given {
    Host(Foreign),
    Gpu(OnGpu),
}

impl Given {
    /// Looks at an array.
    pub(crate) fn get(object: &Bound<'_, PyAny>, streams: &Streams) -> PyResult<Given> {
        let refused = match Buffer::get(object) {
            Ok(buffer) => return Ok(Given::Host(Foreign::from_buffer(buffer)?)),
            Err(refused) => refused,
        };
        match OnGpu::get(object, streams)? {
            Some(array) => Ok(Given::Gpu(array)),
            None => Ok(Given::Host(Foreign::get(object, refused)?)),
        }
    }

    pub(crate) fn dtype(&self) -> &'static Dtype {
        match self {
            Given::Host(array) => array.dtype,
            Given::Gpu(array) => array.dtype,
        }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            Given::Host(array) => &array.shape,
            Given::Gpu(array) => &array.shape,
        }
    }

    /// The array, which has to be in memory of the host.
    pub(crate) fn on_host(&self, operation: &str) -> Result<&Foreign, Failure> {
        match self {
            Given::Host(array) => Ok(array),
            Given::Gpu(array) => {
                let cause = format_args!("an array is in memory of GPU {}", array.ordinal);
                let remedy = "copy it to the memory of the host first";
                Err(Failure::new(Class::Unsupported, operation, cause, remedy))
            }
        }
    }
}

/// An array of the caller's in memory of the host. Its memory stays where it is for as long as this lives.
pub(crate) struct Foreign {
    data: *mut u8,
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
    is_read_only: bool,
    _owner: Owner,
}

/// What keeps the memory of an array.
enum Owner {
    Buffer {
        _buffer: Buffer,
    },
    Tensor {
        _tensor: Incoming,
    },
    /// An object, and its array interface: for scalars numpy makes a copy that the interface alone keeps.
    Object {
        _object: Py<PyAny>,
        _interface: Py<PyAny>,
    },
}

// SAFETY: the memory of a buffer or a tensor may be used by any thread, and what owns it is Send.
unsafe impl Send for Foreign {}
// SAFETY: as above; what copies says which threads may use the memory meanwhile.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// Looks at an array that has `refused` its buffer.
    fn get(object: &Bound<'_, PyAny>, refused: PyErr) -> PyResult<Foreign> {
        if object.hasattr("__dlpack__")? {
            match Incoming::get(object, None) {
                Ok(tensor) => {
                    tensor.expect_on_host()?;
                    return Ok(Self::from_tensor(tensor));
                }
                // numpy has no DLPack for types that it does not know, and the array interface for all of them.
                Err(error) if !object.hasattr("__array_interface__")? => return Err(error),
                Err(_) => {}
            }
        }
        if object.hasattr("__array_interface__")? {
            return Self::from_interface(object);
        }
        if !refused.is_instance_of::<PyTypeError>(object.py()) {
            // It has the protocol.
            return Err(refused);
        }
        let cause = format!("{} is no array", object.get_type().name()?.to_string_lossy());
        let remedy = "give what has the buffer protocol, DLPack or numpy's array interface";
        Err(Failure::new(Class::LayoutMismatch, "reading an array", cause, remedy).into())
    }

    fn from_buffer(buffer: Buffer) -> PyResult<Foreign> {
        if buffer.is_indirect() {
            let (cause, remedy) =
                ("it is of pointers to its rows (suboffsets)", "give a contiguous copy of it");
            return Err(Failure::new(Class::LayoutMismatch, "reading an array", cause, remedy).into());
        }
        let (format, shape) = (buffer.format(), buffer.shape());
        let dtype = Dtype::from_format(&format, buffer.item_size()).ok_or_else(|| dtype::unknown(&format))?;
        Ok(Foreign {
            data: buffer.data(),
            dtype,
            strides: buffer.strides().unwrap_or_else(|| c_strides(&shape, dtype.bytes())),
            shape,
            is_read_only: buffer.is_read_only(),
            _owner: Owner::Buffer { _buffer: buffer },
        })
    }

    fn from_tensor(mut tensor: Incoming) -> Foreign {
        Foreign {
            data: tensor.data,
            dtype: tensor.dtype,
            shape: std::mem::take(&mut tensor.shape),
            strides: std::mem::take(&mut tensor.strides),
            is_read_only: tensor.is_read_only,
            _owner: Owner::Tensor { _tensor: tensor },
        }
    }

    fn from_interface(object: &Bound<'_, PyAny>) -> PyResult<Foreign> {
        let interface = object.getattr("__array_interface__")?;
        let typestr: String = interface.get_item("typestr")?.extract()?;
        // Types of other packages, such as ml_dtypes, are raw bytes to numpy and have a name, which does not tell the
        // order of the bytes.
        let named = || {
            if typestr.starts_with('>') {
                return None;
            }
            let name = object.getattr("dtype").and_then(|dtype| dtype.getattr("name")).ok()?;
            // ml_dtypes gives each element a byte of its own, and a table has them packed.
            Dtype::named(name.cast::<PyString>().ok()?.to_str().ok()?).filter(|dtype| !dtype.is_packed())
        };
        let dtype = Dtype::from_typestr(&typestr).or_else(named).ok_or_else(|| dtype::unknown(&typestr))?;
        let shape: Vec<usize> = interface.get_item("shape")?.extract()?;
        let (address, is_read_only): (usize, bool) = interface.get_item("data")?.extract()?;
        let strides = interface.call_method1("get", ("strides",))?;
        let strides: Option<Vec<isize>> = strides.extract()?;
        Ok(Foreign {
            data: std::ptr::with_exposed_provenance_mut(address),
            strides: strides.unwrap_or_else(|| c_strides(&shape, dtype.bytes())),
            dtype,
            shape,
            is_read_only: is_read_only || is_scalar(object)?,
            _owner: Owner::Object { _object: object.clone().unbind(), _interface: interface.unbind() },
        })
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }

    fn is_dense(&self) -> bool {
        is_dense(&self.shape, &self.strides, self.dtype.bytes())
    }

    /// Where it begins, and its bytes.
    pub(crate) fn extent(&self) -> (*mut u8, usize) {
        (self.data, self.bytes())
    }

    /// The memory of an array that a snapshot is to be brought into.
    pub(crate) fn writable(&self) -> Result<(*mut u8, usize), Failure> {
        let refuse = |cause: &str, remedy: &str| {
            Err(Failure::new(Class::LayoutMismatch, "writing into an array", cause, remedy))
        };
        if self.is_read_only {
            return refuse("it is read-only", "give one that can be written");
        }
        if !self.is_dense() {
            return refuse("it is not in C order without gaps", "give one that is");
        }
        Ok(self.extent())
    }

    /// Its memory if it is in C order without gaps, and else a copy that is.
    pub(crate) fn into_dense(self) -> Result<Lease, Failure> {
        let bytes = self.bytes();
        if self.is_dense() {
            return Ok(Lease::new(self.data, bytes, self));
        }
        let copy = Memory::new(bytes)?;
        // SAFETY: the new memory has as many bytes, and no other code knows of it.
        unsafe { self.copy_to(copy.pointer()) };
        Ok(Lease::new(copy.pointer(), bytes, copy))
    }

    /// Copies the array, in C order, to `target`, without a word to the interpreter.
    ///
    /// # Safety
    /// `target` may be written for as many bytes as the array has, which lie apart from it.
    pub(crate) unsafe fn copy_to(&self, target: *mut u8) {
        if self.bytes() == 0 {
            return;
        }
        let dense = c_strides(&self.shape, self.dtype.bytes());
        let strides = self.strides.iter().copied().zip(dense);
        let sides = self.shape.iter().zip(strides).map(|(&count, (from, to))| Side { count, from, to });
        let mut sides: Vec<Side> = sides.filter(|side| side.count > 1).collect();
        let mut run = self.dtype.bytes();
        while let Some(side) = sides.pop_if(|side| side.from == side.to) {
            run *= side.count;
        }
        if let Some((_last, others)) = sides.split_last_mut() {
            others.sort_by_key(|side| Reverse(side.from.unsigned_abs()));
        }
        // SAFETY: shape and strides are the array's own, which is valid while its owner lives; `target` by the caller's
        // promise.
        unsafe { copy_runs(&sides, run, self.data, target) };
    }
}

/// True for a scalar of numpy's: what is written to the memory that its interface names does not reach it.
fn is_scalar(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match object.py().import("numpy") {
        Ok(numpy) => object.is_instance(&numpy.getattr("generic")?),
        Err(_) => Ok(false),
    }
}

/// One side of an array that is copied: the number of its elements, and their distances in bytes in the array and in
/// the copy.
#[derive(Clone, Copy)]
struct Side {
    count: usize,
    from: isize,
    to: isize,
}

/// The most elements of the last two sides that are copied before others. One of these sides is the densest in the
/// array, and the other one in the copy: the cache lines of a tile are used up while they are at hand.
const TILE: usize = 16;

/// Copies runs of so many bytes that lie `sides` apart.
///
/// # Safety
/// All of them may be read, and written in the copy, which lies apart.
unsafe fn copy_runs(sides: &[Side], run: usize, from: *mut u8, target: *mut u8) {
    let at = |side: &Side, index: usize, from: *mut u8, target: *mut u8| {
        (from.wrapping_offset(side.from * index as isize), target.wrapping_offset(side.to * index as isize))
    };
    match sides {
        // SAFETY: the caller's promise. Threads of Python that write the array meanwhile do what a copy by memcpy
        // allows: some bytes come out.
        [] => unsafe {
            let from = VolatileSlice::new(from, run, false);
            VolatileSlice::new(target, run, true).copy_from(from, Streaming::ByLength);
        },
        [rows, columns] if rows.count > TILE || columns.count > TILE => {
            let part = |side: &Side, begin: usize| Side { count: TILE.min(side.count - begin), ..*side };
            for row in (0..rows.count).step_by(TILE) {
                let (from, target) = at(rows, row, from, target);
                for column in (0..columns.count).step_by(TILE) {
                    let (from, target) = at(columns, column, from, target);
                    // SAFETY: it is a part.
                    unsafe { copy_runs(&[part(rows, row), part(columns, column)], run, from, target) };
                }
            }
        }
        [side, others @ ..] => {
            for index in 0..side.count {
                let (from, target) = at(side, index, from, target);
                // SAFETY: as above.
                unsafe { copy_runs(others, run, from, target) };
            }
        }
    }
}

/// True if an array with these strides is in C order without gaps. One without elements has none, whatever its strides.
pub(crate) fn is_dense(shape: &[usize], strides: &[isize], bytes: usize) -> bool {
    let dense = c_strides(shape, bytes);
    let matters = |(side, (own, dense)): (&usize, (&isize, &isize))| *side <= 1 || own == dense;
    shape.contains(&0) || shape.iter().zip(strides.iter().zip(&dense)).all(matters)
}

/// The strides of an array in C order, in bytes.
pub(crate) fn c_strides(shape: &[usize], bytes: usize) -> Vec<isize> {
    let mut strides = vec![bytes as isize; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = strides[index] * shape[index].max(1) as isize;
    }
    strides
}
