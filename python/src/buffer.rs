//! What the buffer protocol hands out. PyO3's own buffers refuse those without a dimension (scalars), or without
//! strides (arrays of ctypes).
#![allow(unsafe_code, reason = "the buffer protocol fills in pointers")]

use std::ffi::CStr;
use std::ptr::NonNull;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// A buffer of an object, which keeps its memory until this is dropped.
pub(crate) struct Buffer(NonNull<ffi::Py_buffer>);

// SAFETY: what was filled in does not change, and is given back with the interpreter, in any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Asks for the buffer of an object, whether it can be written or not.
    pub(crate) fn get(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let raw = NonNull::from(Box::leak(Box::new(ffi::Py_buffer::new())));
        // SAFETY: the object lives, and the buffer is there to be filled in.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), raw.as_ptr(), ffi::PyBUF_FULL_RO) } != 0 {
            // SAFETY: it was leaked above, and was not filled in.
            drop(unsafe { Box::from_raw(raw.as_ptr()) });
            return Err(PyErr::fetch(object.py()));
        }
        let buffer = Buffer(raw);
        match buffer.sides() > 0 && buffer.raw().shape.is_null() {
            true => Err(PyBufferError::new_err("the buffer has no shape")),
            false => Ok(buffer),
        }
    }

    fn raw(&self) -> &ffi::Py_buffer {
        // SAFETY: it is valid until this is dropped, and nothing writes it.
        unsafe { self.0.as_ref() }
    }

    fn sides(&self) -> usize {
        usize::try_from(self.raw().ndim).unwrap_or_default()
    }

    /// One number for each side; none if there is none of them.
    fn of_sides(&self, numbers: *const isize) -> Option<Vec<isize>> {
        if self.sides() == 0 {
            return Some(Vec::new());
        }
        // SAFETY: the protocol has as many numbers there as sides, or NULL.
        (!numbers.is_null()).then(|| unsafe { std::slice::from_raw_parts(numbers, self.sides()) }.to_vec())
    }

    pub(crate) fn data(&self) -> *mut u8 {
        self.raw().buf.cast()
    }

    pub(crate) fn item_size(&self) -> usize {
        usize::try_from(self.raw().itemsize).unwrap_or_default()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.raw().readonly != 0
    }

    pub(crate) fn format(&self) -> String {
        if self.raw().format.is_null() {
            return "B".into();
        }
        // SAFETY: it is a text that lives as long as the buffer.
        unsafe { CStr::from_ptr(self.raw().format) }.to_string_lossy().into_owned()
    }

    /// In elements.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let shape = self.of_sides(self.raw().shape).unwrap_or_default();
        shape.into_iter().map(|side| usize::try_from(side).unwrap_or_default()).collect()
    }

    /// In bytes; without them the array is in C order.
    pub(crate) fn strides(&self) -> Option<Vec<isize>> {
        self.of_sides(self.raw().strides)
    }

    /// True if it is of pointers to its rows.
    pub(crate) fn is_indirect(&self) -> bool {
        self.of_sides(self.raw().suboffsets).is_some_and(|all| all.iter().any(|offset| *offset >= 0))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Once the interpreter has ended, or is ending, the memory ends with the process.
        Python::try_attach(|_| {
            // SAFETY: it was filled in, and is given back once; then the box is freed.
            unsafe {
                ffi::PyBuffer_Release(self.0.as_ptr());
                drop(Box::from_raw(self.0.as_ptr()));
            }
        });
    }
}
