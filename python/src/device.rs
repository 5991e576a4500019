//! Arrays of the caller's in memory of a GPU, by DLPack or CUDA's array interface.
#![allow(unsafe_code, reason = "the memory of other libraries is copied by the GPU")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

use slackline::gpu::{Gpu, GpuMemory, GpuSlice, GpuStream};

use crate::arguments::wrong_type;
use crate::dlpack::{self, Incoming};
use crate::dtype::{self, Dtype};
use crate::errors::{Class, Failure};
use crate::gpu::{self, Streams};
use crate::source::{c_strides, is_dense};

/// An array of the caller's, whole and in C order, in memory of a GPU. The GPU alone touches its bytes.
pub(crate) struct OnGpu {
    pub(crate) dtype: &'static Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) is_read_only: bool,
    pub(crate) ordinal: u32,
    /// The handle of the stream that its copies are ordered with.
    pub(crate) stream: usize,
    pointer: u64,
    owner: Arc<Kept>,
}

/// What an array on a GPU has said of itself.
struct Described {
    dtype: &'static Dtype,
    shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
    is_read_only: bool,
    pointer: u64,
}

const READING: &str = "reading an array";
const BEGINNING: &str = "beginning to publish";

impl OnGpu {
    /// Looks at an array; `None` if it is not in memory of a GPU.
    pub(crate) fn get(object: &Bound<'_, PyAny>, streams: &Streams) -> PyResult<Option<OnGpu>> {
        if let Some(device) = object.getattr_opt("__dlpack_device__")? {
            let (kind, ordinal): (i32, i32) = device.call0()?.extract()?;
            return match kind {
                dlpack::CUDA => Ok(Some(Self::from_dlpack(object, streams, ordinal as u32)?)),
                dlpack::CUDA_MANAGED => {
                    let remedy = "give memory of cudaMalloc, or of a tensor on the GPU";
                    Err(Failure::new(Class::LayoutMismatch, READING, "it is in managed memory", remedy)
                        .into())
                }
                _ => Ok(None),
            };
        }
        match object.getattr_opt("__cuda_array_interface__")? {
            Some(interface) => Ok(Some(Self::from_interface(object, &interface, streams)?)),
            None => Ok(None),
        }
    }

    /// Reads the argument `gpu_memory`: memory on that GPU for a publisher's frames.
    pub(crate) fn for_frames(object: &Bound<'_, PyAny>, gpu: Option<&gpu::Named>) -> PyResult<OnGpu> {
        let refused = |class, cause: &str, remedy: &str| Failure::new(class, BEGINNING, cause, remedy).into();
        let array = OnGpu::get(object, &Streams::new(None, gpu)?)?.ok_or_else(|| {
            let remedy = "give a tensor on a GPU, with DLPack or `__cuda_array_interface__`, as `gpu_memory`";
            wrong_type(object, remedy)
        })?;
        if array.is_read_only {
            let (cause, remedy) = ("`gpu_memory` is read-only", "give a tensor that can be written");
            return Err(refused(Class::LayoutMismatch, cause, remedy));
        }
        if gpu.is_none() {
            let (cause, remedy) =
                ("`gpu_memory` is of no use without `gpu`", "name its GPU: gpu=slackline.Gpu(0)");
            return Err(refused(Class::BadOption, cause, remedy));
        }
        Ok(array)
    }

    fn from_dlpack(object: &Bound<'_, PyAny>, streams: &Streams, ordinal: u32) -> PyResult<OnGpu> {
        let stream = streams.handle(object, ordinal, None)?;
        let mut tensor = Incoming::get(object, Some(stream))?;
        let described = Described {
            dtype: tensor.dtype,
            shape: std::mem::take(&mut tensor.shape),
            strides: std::mem::take(&mut tensor.strides),
            is_read_only: tensor.is_read_only,
            pointer: tensor.data.expose_provenance() as u64,
        };
        let device = tensor.device;
        let owner = Kept::new(KeptOwner::Tensor { _tensor: tensor });
        if device != (dlpack::CUDA, ordinal as i32) {
            let cause =
                format_args!("`__dlpack_device__` says GPU {ordinal}, and its tensor is on {device:?}");
            let remedy = "give a tensor that says where it is";
            return Err(Failure::new(Class::LayoutMismatch, READING, cause, remedy).into());
        }
        Ok(Self::of(described, ordinal, stream, owner)?)
    }

    fn from_interface(
        object: &Bound<'_, PyAny>,
        interface: &Bound<'_, PyAny>,
        streams: &Streams,
    ) -> PyResult<OnGpu> {
        let optional = |key: &str| interface.call_method1("get", (key,));
        if !optional("mask")?.is_none() {
            let remedy = "give one without a mask";
            return Err(Failure::new(Class::LayoutMismatch, READING, "it has a mask", remedy).into());
        }
        let typestr: String = interface.get_item("typestr")?.extract()?;
        let dtype = Dtype::from_typestr(&typestr).ok_or_else(|| dtype::unknown(&typestr))?;
        let shape: Vec<usize> = interface.get_item("shape")?.extract()?;
        let (pointer, is_read_only): (u64, bool) = interface.get_item("data")?.extract()?;
        let strides: Option<Vec<isize>> = optional("strides")?.extract()?;
        let strides = strides.unwrap_or_else(|| c_strides(&shape, dtype.bytes()));
        let ordinal = streams.ordinal();
        let stream = streams.handle(object, ordinal, optional("stream")?.extract()?)?;
        let (_object, _interface) = (object.clone().unbind(), interface.clone().unbind());
        let owner = Kept::new(KeptOwner::Object { _object, _interface });
        Ok(Self::of(Described { dtype, shape, strides, is_read_only, pointer }, ordinal, stream, owner)?)
    }

    fn of(described: Described, ordinal: u32, stream: usize, owner: Arc<Kept>) -> Result<OnGpu, Failure> {
        let Described { dtype, shape, strides, is_read_only, pointer } = described;
        if !is_dense(&shape, &strides, dtype.bytes()) {
            let (cause, remedy) = ("it is not in C order without gaps", "give a contiguous copy of it");
            return Err(Failure::new(Class::LayoutMismatch, READING, cause, remedy));
        }
        Ok(OnGpu { dtype, shape, is_read_only, ordinal, stream, pointer, owner })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }

    /// Its GPU, and the stream that its copies are ordered with. Called without the interpreter: a GPU that is opened
    /// takes its time.
    pub(crate) fn stream(&self) -> Result<(Gpu, GpuStream), Failure> {
        let gpu = gpu::open(self.ordinal)?;
        // SAFETY: the caller's stream, which the pages say is to live until the call has returned; it is not 2. The
        // value is of that call alone: the library uses a stream only within its calls.
        let stream = unsafe { GpuStream::of_caller(&gpu, self.stream)? };
        Ok((gpu, stream))
    }

    /// Its memory, which is kept until the last copy from or to it is over.
    pub(crate) fn memory(&self, gpu: &Gpu) -> Result<GpuSlice, Failure> {
        Ok(self.of_caller(gpu)?.whole())
    }

    /// Its memory for frames, which is kept until the last reader has let go of it. They are written behind the work
    /// that the stream has now.
    pub(crate) fn frames(&self) -> Result<GpuMemory, Failure> {
        let (gpu, stream) = self.stream()?;
        let memory = self.of_caller(&gpu)?;
        stream.hold_copies()?;
        Ok(memory)
    }

    fn of_caller(&self, gpu: &Gpu) -> Result<GpuMemory, Failure> {
        // SAFETY: what the array came with keeps the range allocated. Its copies are ordered with the stream that the
        // caller has named. A copy from it is waited for by the call that it was given to, or, after the deadline of
        // that, the pages have the caller leave the array alone, as they do while frames are in it.
        Ok(unsafe { GpuMemory::of_caller(gpu, self.pointer, self.bytes(), Arc::clone(&self.owner))? })
    }
}

/// Keeps the memory of an array. The last one to hold it may be any thread of the library, at any time, and it takes
/// the interpreter to let go of what keeps it: that is left to a thread that has it.
struct Kept(Option<KeptOwner>);

enum KeptOwner {
    Tensor {
        _tensor: Incoming,
    },
    /// An object, and its array interface, which alone may keep the memory.
    Object {
        _object: Py<PyAny>,
        _interface: Py<PyAny>,
    },
}

/// What is to be let go of.
static RELEASED: Mutex<Vec<KeptOwner>> = Mutex::new(Vec::new());
/// True while the interpreter is asked to let go of it.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

impl Kept {
    fn new(owner: KeptOwner) -> Arc<Kept> {
        Arc::new(Kept(Some(owner)))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        RELEASED.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
        // SAFETY: both may be called by any thread without the interpreter. Once that is ending nothing is let go of:
        // the memory ends with the process.
        unsafe {
            if pyo3::ffi::Py_IsInitialized() != 0
                && !IS_ASKED.swap(true, Ordering::AcqRel)
                && pyo3::ffi::Py_AddPendingCall(Some(let_go), std::ptr::null_mut()) != 0
            {
                // It has no room: the next call that is given such an array lets go.
                IS_ASKED.store(false, Ordering::Release);
            }
        }
    }
}

/// Called by the interpreter in its main thread.
extern "C" fn let_go(_: *mut c_void) -> c_int {
    IS_ASKED.store(false, Ordering::Release);
    Python::attach(release);
    0
}

/// Lets go of arrays whose copies are over, without a lock: that runs code of their libraries.
pub(crate) fn release(_py: Python<'_>) {
    let released = std::mem::take(&mut *RELEASED.lock().unwrap_or_else(PoisonError::into_inner));
    drop(released);
}
