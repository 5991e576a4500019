//! One tensor in memory that is lent: what Python reads and writes, without a copy.
#![allow(unsafe_code, reason = "the buffer protocol hands out pointers")]

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyMemoryView, PyTuple};
use pyo3::{IntoPyObjectExt, ffi};
use sha2::{Digest, Sha256};

use slackline::internals::mem::{Streaming, VolatileSlice};

use crate::dlpack::{self, Export};
use crate::dtype;
use crate::errors::{Class, Failure};
use crate::gpu::Streams;
use crate::lease::Lease;
use crate::source::Given;
use crate::table::Spec;

/// One tensor where it lies. It has the buffer protocol and DLPack, so that `numpy.asarray(view)`, `memoryview(view)`
/// and `torch.from_dlpack(view)` copy nothing.
///
/// Element types that numpy does not know (bfloat16, the 8-bit floats) are unsigned integers of the same size to the
/// buffer protocol and to numpy; DLPack has them by name.
///
/// A view of a pin, a frame or a step raises OutOfTurn once that has ended.
#[pyclass(frozen, module = "slackline")]
pub(crate) struct ArrayView {
    lease: Arc<Lease>,
    /// Where it begins in the lease.
    offset: usize,
    spec: Arc<Spec>,
    is_read_only: bool,
}

const WRITING: &str = "writing elements";

/// Bytes that are copied out and digested at a time: they stay in a cache.
const PART_BYTES: usize = 64 << 10;

impl ArrayView {
    pub(crate) fn new(lease: Arc<Lease>, offset: usize, spec: Arc<Spec>, is_read_only: bool) -> ArrayView {
        assert!(spec.bytes() <= lease.bytes() - offset, "a tensor lies inside of its memory");
        ArrayView { lease, offset, spec, is_read_only }
    }

    fn export(&self) -> Export<'_> {
        Export {
            lease: &self.lease,
            offset: self.offset,
            dtype: self.spec.dtype,
            shape: &self.spec.shape,
            is_read_only: self.is_read_only,
            is_copied: false,
        }
    }

    /// A copy in memory of its own, for `copy=True`.
    fn copied(&self) -> Result<ArrayView, Failure> {
        let memory = crate::memory::Memory::new(self.spec.bytes())?;
        self.lease.begin_export()?;
        // SAFETY: the view lies in its lease, which is valid and, as an export is counted, not let go; the new memory
        // is as long and of no other code. If the view is written meanwhile, some of its bytes are copied.
        unsafe {
            let from = VolatileSlice::new(self.lease.at(self.offset), self.spec.bytes(), false);
            let into = VolatileSlice::new(memory.pointer(), self.spec.bytes(), true);
            into.copy_from(from, Streaming::ByLength);
        }
        self.lease.end_export();
        let lease = Lease::new(memory.pointer(), self.spec.bytes(), memory);
        Ok(ArrayView { lease: Arc::new(lease), offset: 0, spec: Arc::clone(&self.spec), is_read_only: false })
    }

    /// What numpy assigns to the bits of elements of a type that it lacks: those of an array of that type.
    fn bits_of<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let dtype = self.spec.dtype;
        let raw = dtype.raw().ok_or_else(|| dtype::unknown(dtype.name))?;
        let py = values.py();
        let refuse = |what: String, cause: Option<PyErr>| {
            let (name, raw) = (dtype.name, raw.name);
            let problem = format_args!("numpy has no {name}, and {what} was given");
            let remedy = match dtype.is_packed() {
                true => format!("give the bytes of the elements, as {raw}"),
                false => format!("give an array of {name}, of ml_dtypes or torch, or of its bits as {raw}"),
            };
            let refused: PyErr = Failure::new(Class::LayoutMismatch, WRITING, problem, &remedy).into();
            refused.set_cause(py, cause);
            Err(refused)
        };
        let array = match Given::get(values, &Streams::new(None, None)?) {
            Ok(Given::Host(array)) if array.dtype == raw => return Ok(values.clone()),
            Ok(Given::Host(array)) if array.dtype == dtype => array,
            Ok(Given::Host(array)) => return refuse(format!("an array of {}", array.dtype.name), None),
            Ok(Given::Gpu(_)) => return refuse("an array of a GPU".into(), None),
            // It is no array, or one of a type that no table has, or cannot be looked at: the cause tells which.
            Err(error) if error.is_instance_of::<PyValueError>(py) => {
                return refuse(format!("a value of type {}", values.get_type().name()?), Some(error));
            }
            Err(error) => return Err(error),
        };
        let spec = Arc::new(Spec::new(self.spec.name.clone(), raw, &array.shape, 0));
        let bits = ArrayView { lease: Arc::new(array.into_dense()?), offset: 0, spec, is_read_only: true };
        Self::numpy(&Bound::new(py, bits)?)
    }

    /// The element type and the shape of a view, which its buffer cannot tell where numpy has no such type.
    pub(crate) fn spec_of(object: &Bound<'_, PyAny>) -> Option<Arc<Spec>> {
        object.cast::<ArrayView>().ok().map(|view| Arc::clone(&view.get().spec))
    }

    /// The SHA-256 of its bytes.
    pub(crate) fn digest(&self) -> Result<[u8; 32], Failure> {
        self.lease.begin_export()?;
        // SAFETY: the view lies in its lease, which is valid and, as an export is counted, not let go. Code of Python
        // may write it meanwhile: then it is the digest of some bytes.
        let bytes = unsafe { VolatileSlice::new(self.lease.at(self.offset), self.spec.bytes(), false) };
        let (mut part, mut hasher) = (vec![0; PART_BYTES], Sha256::new());
        for start in (0..bytes.len()).step_by(PART_BYTES) {
            let part = &mut part[..PART_BYTES.min(bytes.len() - start)];
            bytes.subslice(start, part.len()).read(part);
            hasher.update(&*part);
        }
        self.lease.end_export();
        Ok(hasher.finalize().into())
    }
}

#[pymethods]
impl ArrayView {
    /// The name of the tensor.
    #[getter]
    fn name(&self) -> &str {
        &self.spec.name
    }

    /// The name of the element type, such as "float32" or "bfloat16".
    #[getter]
    fn dtype(&self) -> &str {
        self.spec.dtype.name
    }

    /// The shape in elements, outermost dimension first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.spec.shape)
    }

    /// The size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.spec.bytes()
    }

    /// True if it cannot be written.
    #[getter]
    fn readonly(&self) -> bool {
        self.is_read_only
    }

    /// A numpy array of this memory, which is read-only if the view is. Raises OutOfTurn once its pin, frame or step
    /// has ended. Types that numpy does not know come as uint8 or uint16: `.view(ml_dtypes.bfloat16)` names them.
    pub(crate) fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // numpy takes an object that refuses its buffer for a scalar: a memoryview raises.
        slf.py().import("numpy")?.call_method1("asarray", (PyMemoryView::from(slf)?,))
    }

    /// An array as numpy asks for it where the buffer protocol has failed: raises OutOfTurn once the view has ended.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options =
            [("dtype", dtype.into_bound_py_any(slf.py())?), ("copy", copy.into_bound_py_any(slf.py())?)];
        let (numpy, options) = (slf.py().import("numpy")?, options.into_py_dict(slf.py())?);
        numpy.call_method("array", (PyMemoryView::from(slf)?,), Some(&options))
    }

    /// A torch tensor of this memory. torch has no read-only tensors: writing one of a snapshot changes that snapshot,
    /// and writing one of a pin is a fault of the program (the memory is mapped read-only, and the process is killed).
    ///
    /// The reader's next pull reads the whole version, also where it is the same one or where there are differences:
    /// what was pulled may have been written. With `read_only` the caller promises that it is not, nor by what is given
    /// the tensor, and the next pull may begin from it.
    #[pyo3(signature = (*, read_only=false))]
    pub(crate) fn torch<'py>(slf: &Bound<'py, Self>, read_only: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        slf.get().lease.check()?;
        if !read_only {
            slf.get().lease.is_lent_to_write();
        }
        let capsule = slf.get().export().plain(py)?;
        py.import("torch.utils.dlpack")?.call_method1("from_dlpack", (capsule,))
    }

    /// Writes elements: `view[...] = values`, as numpy does, which it needs. Where numpy has no such type (bfloat16,
    /// the 8-bit floats), the values are an array of the view's type (of ml_dtypes or torch), or of its bits as
    /// unsigned integers; anything else is LayoutMismatch, and so are the elements of a view of such another type.
    /// Raises ValueError if the view is read-only.
    fn __setitem__(slf: &Bound<'_, Self>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let own = slf.get().spec.dtype;
        if let Some(given) = Self::spec_of(value).map(|spec| spec.dtype)
            && !own.takes(given)
            && !(own.is_native && given.is_native)
        {
            let cause = format_args!(
                "numpy cannot turn {} into {}, and a view of it was given",
                given.name, own.name
            );
            let remedy = "convert it first, by ml_dtypes or torch";
            return Err(Failure::new(Class::LayoutMismatch, WRITING, cause, remedy).into());
        }
        let array = Self::numpy(slf)?;
        match own.is_native {
            true => array.set_item(key, value),
            false => array.set_item(key, slf.get().bits_of(value)?),
        }
    }

    fn __repr__(&self) -> String {
        let access = if self.is_read_only { "read-only" } else { "writable" };
        format!("<ArrayView {:?} {} {:?} {access}>", self.spec.name, self.spec.dtype.name, self.spec.shape)
    }

    /// A DLPack capsule: of DLPack 1, with the flag for read-only memory, where `max_version` allows that, and else of
    /// the older form. The older form cannot say that memory is read-only, so that for such memory it is a BufferError
    /// unless `copy` is true. Some consumers, torch among them, do not heed the flag: to the reader's next pull the
    /// memory may have been written, as after `torch()`.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("memory of the host has no streams: give None"));
        }
        if dl_device.is_some_and(|device| device != (dlpack::CPU, 0)) {
            return Err(PyBufferError::new_err("this memory is the host's, and is not copied to a device"));
        }
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        if copy == Some(true) {
            let copied = self.copied()?;
            let export = Export { is_copied: true, ..copied.export() };
            return if is_versioned { export.versioned(py) } else { export.plain(py) };
        }
        if is_versioned {
            self.lease.is_lent_to_write();
            return self.export().versioned(py);
        }
        if self.is_read_only {
            let message = "this memory is read-only, which DLPack says only from version 1 on: ask for \
                           max_version=(1, 0), or for a copy";
            return Err(PyBufferError::new_err(message));
        }
        self.export().plain(py)
    }

    /// The device: (1, 0), the memory of the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    /// # Safety
    /// The interpreter calls it with a buffer to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let view = slf.get();
        let asks_for = |flag: c_int| flags & flag == flag;
        if view.is_read_only && asks_for(ffi::PyBUF_WRITABLE) {
            return Err(PyBufferError::new_err("this memory is read-only"));
        }
        if asks_for(ffi::PyBUF_F_CONTIGUOUS) && view.spec.lent_shape.len() > 1 {
            return Err(PyBufferError::new_err("this memory is in C order"));
        }
        view.lease.begin_export()?;
        let spec = &view.spec;
        let if_asked = |flag, pointer: *const isize| {
            if asks_for(flag) { pointer.cast_mut() } else { std::ptr::null_mut() }
        };
        // SAFETY: the interpreter lends the buffer to be filled. Shape, strides and format live as long as the view, of
        // which the buffer holds a reference; no code writes through these pointers.
        unsafe {
            (*buffer).buf = view.lease.at(view.offset).cast();
            (*buffer).len = spec.bytes() as isize;
            (*buffer).itemsize = spec.dtype.bytes() as isize;
            (*buffer).readonly = c_int::from(view.is_read_only);
            (*buffer).ndim = spec.lent_shape.len() as c_int;
            (*buffer).format = match asks_for(ffi::PyBUF_FORMAT) {
                true => spec.dtype.format.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            };
            (*buffer).shape = if_asked(ffi::PyBUF_ND, spec.lent_shape.as_ptr());
            (*buffer).strides = if_asked(ffi::PyBUF_STRIDES, spec.lent_strides.as_ptr());
            (*buffer).suboffsets = std::ptr::null_mut();
            (*buffer).internal = std::ptr::null_mut();
            (*buffer).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    /// # Safety
    /// The interpreter calls it once for each buffer that was filled.
    unsafe fn __releasebuffer__(&self, _buffer: *mut ffi::Py_buffer) {
        self.lease.end_export();
    }
}
