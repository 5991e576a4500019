//! `slackline.Gpu`, and the streams of the caller's that copies are ordered with.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use slackline::gpu::{Gpu, GpuError};

use crate::errors::{Class, Failure};

/// A GPU of this process, by its number as CUDA counts (`CUDA_VISIBLE_DEVICES`), for the argument `gpu` of a Publisher,
/// a Reader, a Server, a Worker or a Job: their payloads are in its memory then. The payloads of a publisher or a
/// server that is reached by RDMA are there if its RDMA device reaches the GPU. Tensors on a GPU are taken and filled
/// without it, too; payloads are in the memory of the host then.
///
/// It uses the context that PyTorch uses, and stays open until the process ends. With `require_gpudirect` no payload is
/// staged through the memory of the host: where nothing else is left, listening and connecting raise Unsupported.
///
/// Raises Unsupported if there is no such GPU, or no NVIDIA driver R525 or later.
#[pyclass(frozen, module = "slackline", name = "Gpu")]
pub(crate) struct PyGpu {
    pub(crate) gpu: Gpu,
    ordinal: u32,
}

#[pymethods]
impl PyGpu {
    #[new]
    #[pyo3(signature = (ordinal=0, *, require_gpudirect=false))]
    fn new(py: Python<'_>, ordinal: u32, require_gpudirect: bool) -> PyResult<PyGpu> {
        let gpu = py.detach(|| open(ordinal)).map_err(Failure::from)?;
        let gpu = if require_gpudirect { gpu.require_gpudirect() } else { gpu };
        Ok(PyGpu { gpu, ordinal })
    }

    /// The name of the model.
    #[getter]
    fn name(&self) -> &str {
        self.gpu.name()
    }

    /// The number by which it was opened.
    #[getter]
    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Bytes of payloads that connections have carried through blocks of host memory since it was opened, because the
    /// network does not reach its memory.
    #[getter]
    fn host_bytes_copied(&self) -> u64 {
        self.gpu.host_bytes_copied()
    }

    fn __repr__(&self) -> String {
        format!("<Gpu {}: {}>", self.ordinal, self.gpu.name())
    }
}

/// A GPU that an argument names, and its number.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) gpu: Gpu,
    pub(crate) ordinal: u32,
}

/// Reads the argument `gpu`.
pub(crate) fn named(gpu: Option<&Bound<'_, PyGpu>>) -> Option<Named> {
    gpu.map(|gpu| Named { gpu: gpu.get().gpu.clone(), ordinal: gpu.get().ordinal })
}

/// Opens the GPU of this number, once: all later calls use its streams and the memory that copies have locked.
pub(crate) fn open(ordinal: u32) -> Result<Gpu, GpuError> {
    static OPEN: Mutex<BTreeMap<u32, Gpu>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = open.get(&ordinal) {
        return Ok(gpu.clone());
    }
    let gpu = Gpu::open(ordinal)?;
    open.insert(ordinal, gpu.clone());
    Ok(gpu)
}

/// How a call finds the stream that the copies of an array are ordered with.
pub(crate) struct Streams {
    given: Option<usize>,
    /// The GPU of an array that does not say on which it is.
    ordinal: u32,
}

/// The default stream of a device as DLPack and CUDA's array interface name it; to CUDA it is 0, too.
const LEGACY: usize = 1;
/// The default stream of whichever thread calls.
const PER_THREAD: usize = 2;

impl Streams {
    /// Reads the argument `stream` of a call: a handle, or an object with one as `cuda_stream`.
    pub(crate) fn new(stream: Option<&Bound<'_, PyAny>>, gpu: Option<&Named>) -> PyResult<Streams> {
        let handle = |stream: &Bound<'_, PyAny>| -> PyResult<usize> {
            let handle = match stream.getattr_opt("cuda_stream")? {
                Some(handle) => handle.extract(),
                None => stream.extract(),
            };
            handle.map_err(|_| {
                let cause = format_args!("{} is no stream", stream.get_type());
                refused(cause, "give a handle, or an object with `cuda_stream`, as torch's have").into()
            })
        };
        let given = stream.map(handle).transpose()?;
        Ok(Streams { given, ordinal: gpu.map_or(0, |gpu| gpu.ordinal) })
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// The handle for an array on a GPU: the given stream, else torch's current stream for a tensor of torch, else the
    /// stream that the array names itself, else the default stream.
    pub(crate) fn handle(
        &self,
        array: &Bound<'_, PyAny>,
        ordinal: u32,
        named: Option<usize>,
    ) -> PyResult<usize> {
        let current = match self.given {
            Some(given) => Some(given),
            None => torchs_current(array, ordinal)?.or(named),
        };
        match current.unwrap_or(LEGACY) {
            0 => Ok(LEGACY),
            PER_THREAD => {
                let remedy = "give a stream of its own, or the default stream, which is 1";
                Err(refused("the default stream of each thread (2) is not taken", remedy).into())
            }
            handle => Ok(handle),
        }
    }
}

/// The current stream of torch, if the array is a tensor of torch.
fn torchs_current(array: &Bound<'_, PyAny>, ordinal: u32) -> PyResult<Option<usize>> {
    let torch = array.py().import("sys")?.getattr("modules")?.call_method1("get", ("torch",))?;
    if torch.is_none() || !array.is_instance(&torch.getattr("Tensor")?)? {
        return Ok(None);
    }
    let current = torch.getattr("cuda")?.call_method1("current_stream", (ordinal,))?;
    Ok(Some(current.getattr("cuda_stream")?.extract()?))
}

fn refused(cause: impl std::fmt::Display, remedy: &str) -> Failure {
    Failure::new(Class::BadOption, "choosing a stream", cause, remedy)
}
