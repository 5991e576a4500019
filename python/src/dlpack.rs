//! DLPack: tensors to and from other libraries, without a copy. The structures are those of DLPack 1.
#![allow(unsafe_code, reason = "pointers come from and go to other libraries")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::PyCapsule;

use crate::dtype::{self, Dtype};
use crate::errors::{Class, Failure};
use crate::lease::Lease;

/// Memory that a processor can read: pageable, or pinned for a GPU.
pub(crate) const CPU: i32 = 1;
const CPU_PINNED: i32 = 3;
/// Memory of a GPU, and memory that the driver moves between it and the host.
pub(crate) const CUDA: i32 = 2;
pub(crate) const CUDA_MANAGED: i32 = 13;

const MAJOR: u32 = 1;
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const VERSIONED: &CStr = c"dltensor_versioned";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
const PLAIN: &CStr = c"dltensor";
const USED_PLAIN: &CStr = c"used_dltensor";

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// In elements; NULL in tensors of older libraries: C order.
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

#[repr(C)]
struct ManagedPlain {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedPlain)>,
}

// ---------------------------------------------------------------------- tensors that go out

/// What a tensor that goes out keeps until it is deleted.
struct Outgoing<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    lease: Arc<Lease>,
}

/// What goes out.
pub(crate) struct Export<'a> {
    pub(crate) lease: &'a Arc<Lease>,
    pub(crate) offset: usize,
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: &'a [isize],
    pub(crate) is_read_only: bool,
    pub(crate) is_copied: bool,
}

impl Export<'_> {
    /// A capsule as consumers of DLPack 1 take it.
    pub(crate) fn versioned<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let flags =
            if self.is_read_only { READ_ONLY } else { 0 } | if self.is_copied { IS_COPIED } else { 0 };
        let outgoing = self.outgoing(|tensor| ManagedVersioned {
            major: MAJOR,
            minor: 1,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<ManagedVersioned>),
            flags,
            tensor,
        })?;
        // SAFETY: `capsule` is given the tensor with its deleter, once.
        unsafe { capsule(py, outgoing, VERSIONED) }
    }

    /// A capsule as consumers of older versions take it. They have no word for memory that is read-only.
    pub(crate) fn plain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let outgoing = self.outgoing(|tensor| ManagedPlain {
            tensor,
            context: std::ptr::null_mut(),
            deleter: Some(delete::<ManagedPlain>),
        })?;
        // SAFETY: as above.
        unsafe { capsule(py, outgoing, PLAIN) }
    }

    fn outgoing<M: Managed>(&self, managed: impl FnOnce(DlTensor) -> M) -> Result<NonNull<M>, Failure> {
        self.lease.begin_export()?;
        let shape: Vec<i64> = self.shape.iter().map(|side| *side as i64).collect();
        let tensor = DlTensor {
            data: self.lease.at(self.offset).cast(),
            device_type: CPU,
            device_id: 0,
            ndim: shape.len() as i32,
            code: self.dtype.code,
            bits: self.dtype.bits,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        };
        let strides = c_order(&shape);
        let outgoing = Outgoing { managed: managed(tensor), shape, strides, lease: Arc::clone(self.lease) };
        let outgoing = Box::into_raw(Box::new(outgoing));
        // SAFETY: it was leaked just above, and no other code knows of it; `delete` alone frees it.
        unsafe {
            let (shape, strides) = ((*outgoing).shape.as_mut_ptr(), (*outgoing).strides.as_mut_ptr());
            (*outgoing).managed.fill(outgoing.cast(), shape, strides);
            Ok(NonNull::new_unchecked(&raw mut (*outgoing).managed))
        }
    }
}

/// The strides of an array in C order, in elements.
fn c_order(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for index in (1..shape.len()).rev() {
        strides[index - 1] = strides[index] * shape[index].max(1);
    }
    strides
}

/// The two structures that a capsule can hold.
trait Managed: Sized {
    fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64);
    fn context(&self) -> *mut c_void;
    fn tensor(&self) -> &DlTensor;
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

macro_rules! managed {
    ($type:ty) => {
        impl Managed for $type {
            fn fill(&mut self, context: *mut c_void, shape: *mut i64, strides: *mut i64) {
                (self.context, self.tensor.shape, self.tensor.strides) = (context, shape, strides);
            }

            fn context(&self) -> *mut c_void {
                self.context
            }

            fn tensor(&self) -> &DlTensor {
                &self.tensor
            }

            fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
                self.deleter
            }
        }
    };
}

managed!(ManagedVersioned);
managed!(ManagedPlain);

/// Deletes a tensor that went out. Its consumer may call it on any thread, without the interpreter.
///
/// # Safety
/// `managed` is the tensor of a capsule of this module, and this is the only call for it.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: its context is the box that `outgoing` leaked, which nothing else frees.
    let outgoing = unsafe { Box::from_raw((*managed).context().cast::<Outgoing<M>>()) };
    outgoing.lease.end_export();
}

/// Puts a tensor into a capsule, which deletes it unless a consumer has taken it over.
///
/// # Safety
/// `managed` is valid, has a deleter, and is given to this capsule alone.
unsafe fn capsule<'py, M: Managed>(
    py: Python<'py>,
    managed: NonNull<M>,
    name: &'static CStr,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name lives for ever; `drop_capsule` reads the pointer back as what it is here. Where no capsule was
    // made, nothing else deletes the tensor.
    unsafe {
        let raw = pyo3::ffi::PyCapsule_New(managed.as_ptr().cast(), name.as_ptr(), Some(drop_capsule));
        if raw.is_null() {
            delete(managed.as_ptr());
        }
        Bound::from_owned_ptr_or_err(py, raw)
    }
}

/// The destructor of a capsule that went out.
///
/// # Safety
/// The interpreter calls it with a capsule of [`capsule`].
unsafe extern "C" fn drop_capsule(raw: *mut pyo3::ffi::PyObject) {
    // SAFETY: a capsule that still has its first name has not been taken over: its tensor is ours to delete, and has
    // the type that goes with the name.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(raw, VERSIONED.as_ptr()) == 1 {
            let managed = pyo3::ffi::PyCapsule_GetPointer(raw, VERSIONED.as_ptr());
            delete(managed.cast::<ManagedVersioned>());
        } else if pyo3::ffi::PyCapsule_IsValid(raw, PLAIN.as_ptr()) == 1 {
            let managed = pyo3::ffi::PyCapsule_GetPointer(raw, PLAIN.as_ptr());
            delete(managed.cast::<ManagedPlain>());
        }
    }
}

// ---------------------------------------------------------------------- tensors that come in

/// A tensor of another library, which is deleted when this is dropped.
pub(crate) struct Incoming {
    managed: Kind,
    /// Kind and number of its device.
    pub(crate) device: (i32, i32),
    pub(crate) data: *mut u8,
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: Vec<usize>,
    /// In bytes.
    pub(crate) strides: Vec<isize>,
    pub(crate) is_read_only: bool,
}

enum Kind {
    Versioned(NonNull<ManagedVersioned>),
    Plain(NonNull<ManagedPlain>),
}

// SAFETY: a tensor belongs to its consumer, which may use and delete it on any thread.
unsafe impl Send for Incoming {}
// SAFETY: as above; through a shared reference it is only read.
unsafe impl Sync for Incoming {}

impl Drop for Incoming {
    fn drop(&mut self) {
        fn call<M: Managed>(managed: NonNull<M>) {
            // SAFETY: the capsule was renamed, so that it is ours to delete, once.
            unsafe {
                if let Some(deleter) = managed.as_ref().deleter() {
                    deleter(managed.as_ptr());
                }
            }
        }
        // The deleter of another library may need the interpreter. Once that has ended, or is ending, the memory ends
        // with the process.
        Python::try_attach(|_| match self.managed {
            Kind::Versioned(managed) => call(managed),
            Kind::Plain(managed) => call(managed),
        });
    }
}

impl Incoming {
    /// Fails unless a processor can read the tensor.
    pub(crate) fn expect_on_host(&self) -> Result<(), Failure> {
        let (device, _) = self.device;
        if [CPU, CPU_PINNED].contains(&device) {
            return Ok(());
        }
        let cause = format_args!("the array is on device {device}");
        let remedy = "copy it to the memory of the host first";
        Err(Failure::new(Class::LayoutMismatch, "reading an array", cause, remedy))
    }

    /// Takes the tensor of an object that has `__dlpack__`. If `stream` is given, one of a GPU, its work comes behind
    /// what the library of the tensor has under way there.
    pub(crate) fn get(object: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Incoming> {
        let py = object.py();
        let arguments = pyo3::types::PyDict::new(py);
        if let Some(stream) = stream {
            arguments.set_item("stream", stream)?;
        }
        let call = || object.call_method("__dlpack__", (), Some(&arguments));
        arguments.set_item("max_version", (MAJOR, 1))?;
        let capsule = match call() {
            // Older libraries know no versions.
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
                arguments.del_item("max_version")?;
                call()?
            }
            other => other?,
        };
        let capsule = capsule.cast::<PyCapsule>().map_err(PyErr::from)?;
        // Of several threads that were given one capsule, one takes its tensor, without a GIL too.
        with_critical_section(capsule, || Self::of_capsule(capsule))
    }

    fn of_capsule(capsule: &Bound<'_, PyCapsule>) -> PyResult<Incoming> {
        let is_named = |name: &CStr| {
            // SAFETY: asks for a name alone.
            unsafe { pyo3::ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 1 }
        };
        if is_named(VERSIONED) {
            let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersioned>();
            // SAFETY: that is what a capsule of this name holds. Its first fields are the same in all versions.
            let (major, flags) = unsafe { (managed.as_ref().major, managed.as_ref().flags) };
            if major != MAJOR {
                let message = format!("a tensor of DLPack {major} was given, and this library knows 1");
                return Err(PyBufferError::new_err(message));
            }
            Self::take(capsule, managed, Kind::Versioned(managed), USED_VERSIONED, flags & READ_ONLY != 0)
        } else {
            let managed = capsule.pointer_checked(Some(PLAIN))?.cast::<ManagedPlain>();
            Self::take(capsule, managed, Kind::Plain(managed), USED_PLAIN, false)
        }
    }

    fn take<M: Managed>(
        capsule: &Bound<'_, PyCapsule>,
        managed: NonNull<M>,
        kind: Kind,
        used: &'static CStr,
        is_read_only: bool,
    ) -> PyResult<Incoming> {
        // SAFETY: the capsule holds a valid tensor of this type, as its name says.
        let tensor = unsafe { managed.as_ref().tensor() };
        // Elements that share bytes come as arrays of their bytes.
        let dtype = Dtype::from_dlpack(tensor.code, tensor.bits);
        let dtype = dtype.filter(|dtype| tensor.lanes == 1 && !dtype.is_packed());
        let dtype =
            dtype.ok_or_else(|| dtype::unknown(format_args!("{} with {} bits", tensor.code, tensor.bits)))?;
        let sides = usize::try_from(tensor.ndim).unwrap_or_default();
        // SAFETY: a tensor has as many sides as it says, and as many strides unless they are NULL.
        let (shape, strides) = unsafe {
            let shape = if sides == 0 { &[] } else { std::slice::from_raw_parts(tensor.shape, sides) };
            let strides = match tensor.strides.is_null() || sides == 0 {
                true => c_order(shape),
                false => std::slice::from_raw_parts(tensor.strides, sides).to_vec(),
            };
            (shape.to_vec(), strides)
        };
        let data = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        // SAFETY: the name lives for ever. From here on the tensor is ours.
        if unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        let bytes = dtype.bytes() as isize;
        Ok(Incoming {
            managed: kind,
            device: (tensor.device_type, tensor.device_id),
            data,
            dtype,
            shape: shape.iter().map(|side| usize::try_from(*side).unwrap_or_default()).collect(),
            strides: strides.iter().map(|stride| *stride as isize * bytes).collect(),
            is_read_only,
        })
    }
}
