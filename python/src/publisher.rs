//! `slackline.Publisher` and its frames.
#![allow(unsafe_code, reason = "arrays are copied into the frame, which peers read")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};

use slackline::{Error, Publisher, PublisherOptions, ShardOptions};

use crate::background::Publishing;
use crate::errors::Failure;
use crate::fabric::{self, SecretSource};
use crate::lease::Lease;
use crate::snapshot::{Place, Tensors, mapping};
use crate::table::{self, Layout, TensorSpec};
use crate::view::ArrayView;
use crate::wait::{in_slices, timeout as seconds};

const PUBLISHING: &str = "publishing a version";

/// Publishes versions of a table, whole, to any number of readers. A thread of the library serves the readers, whatever
/// Python does meanwhile.
///
/// `table` is a mapping of names to arrays (their names, element types and shapes count, not their values) or a sequence
/// of TensorSpec. `address` is "@NAME" or a path for shared memory, "HOST:PORT" for TCP, "verbs:HOST:PORT" for RDMA, or
/// several with commas between them; without one a new address of `transport` ("auto", "shm", "tcp") is made. `frames`
/// is the number of versions that can be held at once: readers + 2 never make the publisher wait for a pin. `readers` is
/// the most readers at a time. `lease` is the time in seconds after which a silent reader is taken for dead. `secret` is
/// bytes or the path of a file; without it the environment's is taken.
///
/// Raises LayoutMismatch if the table cannot be, Refused if an address beyond this host has no secret, PeerGone if the
/// address cannot be listened at.
#[pyclass(frozen, module = "slackline", name = "Publisher")]
pub(crate) struct PyPublisher {
    publishing: Arc<Publishing>,
    layout: Arc<Layout>,
    address: String,
    epoch: u64,
}

/// The begun frame of the next version.
fn begin(py: Python<'_>, publishing: &Publishing, timeout: Duration) -> PyResult<(*mut u8, usize)> {
    publishing.begin_filling(PUBLISHING)?;
    let begun = in_slices(py, timeout, |slice| publishing.begin(PUBLISHING, slice));
    let version = || publishing.call(PUBLISHING, |publisher| Ok(publisher.version().next()));
    let begun = begun.and_then(|begun| match begun {
        Some(begun) => Ok(begun),
        None => Err(Failure::from(Error::Pinned { version: version()?, waited: timeout }).into()),
    });
    let (address, bytes) = begun.inspect_err(|_| publishing.abort())?;
    Ok((std::ptr::with_exposed_provenance_mut(address), bytes))
}

#[pymethods]
impl PyPublisher {
    #[new]
    #[pyo3(signature = (table, *, address=None, transport="auto", frames=3, readers=64, lease=3.0, secret=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        address: Option<&str>,
        transport: &str,
        frames: u8,
        readers: u16,
        lease: f64,
        secret: Option<SecretSource>,
    ) -> PyResult<PyPublisher> {
        let (table, _arrays) = table::table(table)?;
        let layout = Layout::of(&table)?;
        let address = fabric::listen_address(address, transport)?;
        let memory = ShardOptions { frames, peers: readers, lease: seconds(lease)?, ..ShardOptions::default() };
        let (publishing, address, epoch) = py.detach(|| -> Result<_, Failure> {
            let fabric = fabric::fabric(secret, &address)?;
            let publisher = Publisher::new(fabric, &address, table, PublisherOptions { memory })?;
            let (address, epoch) = (publisher.address().to_string(), publisher.epoch());
            Ok((Publishing::start(publisher)?, address, epoch))
        })?;
        Ok(PyPublisher { publishing, layout, address, epoch })
    }

    /// Publishes `tensors`, a mapping of all names of the table to arrays, as the next version, and returns its number.
    /// The arrays are copied, without a word to the interpreter; they may be of any library that has the buffer protocol,
    /// DLPack or numpy's array interface, and need not be contiguous.
    ///
    /// Waits, at most `timeout` seconds, only if readers pin all other frames: then FramesPinned. Raises LayoutMismatch
    /// if the arrays do not fit the table. After any error the version before is still the newest.
    #[pyo3(signature = (tensors, *, timeout=30.0))]
    fn publish(&self, py: Python<'_>, tensors: &Bound<'_, PyAny>, timeout: f64) -> PyResult<u64> {
        let timeout = seconds(timeout)?;
        let arrays = self.layout.arrays(tensors, PUBLISHING)?;
        let (frame, bytes) = begin(py, &self.publishing, timeout)?;
        let frame = Lease::new(frame, bytes, Arc::clone(&self.publishing));
        let version = py.detach(|| {
            for (array, spec) in arrays.iter().zip(&self.layout.specs) {
                // SAFETY: the frame is ours until the commit, no reader takes it for whole before, and the tensor lies
                // inside of it; an array of the caller's lies apart, as no view of a frame outlives its frame.
                unsafe { array.copy_to(frame.at(spec.offset)) };
            }
            self.publishing.commit(PUBLISHING)
        })?;
        Ok(version.get())
    }

    /// Lends the memory of the next version: a mapping of names to writable arrays, and a context manager. Leaving the
    /// block publishes what was written; an exception drops it, and the version before stays the newest. The memory holds
    /// some old version at first.
    ///
    /// An array that looks at the frame and is still alive at the end of the block is a BufferError, and nothing is
    /// published: it could be written while readers read. Waits and raises as `publish` does.
    #[pyo3(signature = (*, timeout=30.0))]
    fn frame(&self, py: Python<'_>, timeout: f64) -> PyResult<Frame> {
        let (pointer, bytes) = begin(py, &self.publishing, seconds(timeout)?)?;
        let (owner, abort) = (Arc::clone(&self.publishing), Arc::clone(&self.publishing));
        let lease = Lease::new(pointer, bytes, owner);
        let lease = Arc::new(lease.for_a_while("the frame has ended", move || abort.abort()));
        Ok(Frame {
            tensors: Tensors {
                layout: Arc::clone(&self.layout),
                place: Place::Whole(Arc::clone(&lease)),
                is_read_only: false,
            },
            lease,
            publishing: Arc::clone(&self.publishing),
            version: Mutex::new(None),
        })
    }

    /// The address at which readers reach this publisher.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The newest version; 0, which is all zeros, before the first is published.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        let version = || self.publishing.call("asking for the version", |publisher| Ok(publisher.version()));
        Ok(py.detach(version)?.get())
    }

    /// This incarnation of the publisher.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Name, element type and shape of each tensor.
    #[getter]
    fn metadata(&self) -> Vec<TensorSpec> {
        self.layout.metadata()
    }

    /// Ends the publisher; its readers are told. Raises OutOfTurn while a frame is open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.publishing.close())?)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<Publisher at {}: {} tensors>", self.address, self.layout.specs.len())
    }
}

impl Drop for PyPublisher {
    fn drop(&mut self) {
        // A frame may outlive this object: the memory stays, and the thread does not.
        self.publishing.stop();
    }
}

/// The memory of the next version, while it is written: see `Publisher.frame`.
#[pyclass(frozen, mapping, module = "slackline")]
pub(crate) struct Frame {
    tensors: Tensors,
    lease: Arc<Lease>,
    publishing: Arc<Publishing>,
    version: Mutex<Option<u64>>,
}

#[pymethods]
impl Frame {
    /// The version that this frame was published as, once it was.
    #[getter]
    fn version(&self) -> Option<u64> {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if !class.is_none() {
            self.lease.end();
            return Ok(());
        }
        self.lease.check()?;
        if let Err(exports) = self.lease.end_unless_exported() {
            self.lease.end();
            return Err(PyBufferError::new_err(format!(
                "{exports} arrays still look at the frame, and could write it while readers read: nothing was \
                 published; delete them before the end of the block, or write by frame[name][...] = values"
            )));
        }
        let version = py.detach(|| self.publishing.commit(PUBLISHING))?;
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = Some(version.get());
        Ok(())
    }
}

mapping!(Frame);

impl Drop for Frame {
    fn drop(&mut self) {
        // Does nothing if the block has ended.
        if self.version().is_none() {
            self.lease.end();
        }
    }
}
