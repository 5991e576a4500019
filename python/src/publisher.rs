//! `slackline.Publisher`.
#![allow(unsafe_code, reason = "arrays are copied into the frame, which peers read")]

use std::sync::Arc;

use pyo3::prelude::*;

use slackline::weights::{DeltaOptions, Publisher, PublisherOptions, ReaderStatus};
use slackline::{Address, Error, Named, ShardOptions, Version, VersionTag};

use crate::arguments::Label;
use crate::device::OnGpu;
use crate::errors::{Class, Failure};
use crate::fabric::{self, NamedFabric, SecretSource};
use crate::frame::{self, Drafting, Frame, PUBLISHING, Publishing};
use crate::gpu::{self, PyGpu, Streams};
use crate::owned::closed_by_block;
use crate::source::Given;
use crate::table::{self, Layout, TensorSpec};
use crate::wait::{Deadline, idle as way_to_idle, time};

/// Each tensor's consumer may ask for this alignment (DLPack).
const ALIGN: u64 = 256;

/// Publishes versions of a table, whole, to any number of readers. A thread of the library serves the readers, also
/// while Python is busy.
///
/// `table` is a mapping of names to arrays (their names, element types and shapes count, not their values) or a
/// sequence of TensorSpec. `address` is "@NAME" or a path for shared memory, "HOST:PORT" for TCP, "verbs:HOST:PORT"
/// for RDMA, or several with commas between them; without one a new address of `transport` ("auto", "shm", "tcp") is
/// made. `frames` is the number of versions that can be held at once: readers + 2 never make the publisher wait for a
/// pin. `readers` is the most readers at a time. `lease` is the time in seconds after which a silent reader is taken
/// for dead. `secret` is bytes or the path of a file; without it the environment's is taken.
///
/// `deltas` is the number of newest versions of which the publisher keeps the difference from the version before
/// (0 to 255), for readers that hold one of them: over TCP and RDMA they then read the differences alone, and have the
/// same bytes. It takes a pass over two versions with each that is published, and `deltas` times `delta_bytes` of
/// memory. A version that differs by more than `delta_bytes` (without it a sixteenth of the table, and 4,096 at least)
/// is read whole. With `checksums` each version has a checksum, one more pass over it, for readers with `checksums`.
///
/// `idle` is "sleep": then the thread looks for readers that come or are lost each 20 ms once it has had nothing to do
/// for 100 ms; a newcomer wakes it, but to one of Tables, where it waits for the next look. With "poll" it looks each
/// millisecond, which takes about ten times the processor time. Readers that are in notice no difference.
///
/// With `gpu`, a Gpu, the frames are in its memory: over shared memory, TCP, and RDMA if the device reaches the GPU. If
/// it does not, they are in host memory. Tensors of that GPU alone are published then, and readers over shared memory
/// have a GPU, too. It excludes `deltas` and `checksums`.
///
/// With `gpu_memory`, a tensor on that GPU (DLPack or `__cuda_array_interface__`, in C order), the frames are in it. It
/// has exactly the bytes of `frames` versions: a version is the sum of its tensors, each rounded up to a multiple of
/// 256, rounded up to a multiple of 4096. It is cleared, behind the work of torch's current stream (for other tensors
/// of the stream that they name, or of the default stream), and is left alone from then on; it is kept until the last
/// reader has released it. The constructor waits until it is cleared, without looking for signals, and raises
/// DeadlineError after 30 seconds. Over shared memory it is of cudaMalloc, which torch's is without expandable
/// segments, else Unsupported.
///
/// Raises LayoutMismatch if the table cannot be, Refused if an address beyond this host has no secret, BadOption if the
/// address is of another host, its folder is missing or the rights do not suffice, and PeerGone if another process
/// listens there or the name of its host is not found.
#[pyclass(frozen, module = "slackline", name = "Publisher")]
pub(crate) struct PyPublisher {
    publishing: Publishing,
    layout: Arc<Layout>,
    address: String,
    epoch: u64,
    /// The GPU that the frames are on, if they are on one.
    gpu: Option<gpu::Named>,
}

impl PyPublisher {
    /// Begins to serve a table; `fabric` opens its transports.
    pub(crate) fn begin(
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        address: &Address,
        options: PublisherOptions,
        (gpu, frames): (Option<gpu::Named>, Option<OnGpu>),
        fabric: impl FnOnce() -> Result<NamedFabric, Failure> + Send,
    ) -> PyResult<PyPublisher> {
        let (table, _arrays) = table::table(table, ALIGN)?;
        let layout = Layout::of(&table)?;
        let publisher = py.detach(|| -> Result<_, Failure> {
            let gpu_memory = frames.map(|frames| frames.frames()).transpose()?;
            let options = PublisherOptions { gpu_memory, ..options };
            Ok(Publisher::new(fabric()?, address, table, options)?.into_background()?)
        })?;
        let (address, epoch) = (publisher.address().to_string(), publisher.epoch());
        Ok(PyPublisher { publishing: Publishing::new(publisher), layout, address, epoch, gpu })
    }

    /// The next version, with these arrays copied into it, or by GPUs that are still at it.
    fn filled(&self, py: Python<'_>, arrays: Vec<Given>, deadline: Deadline) -> PyResult<Drafting> {
        let drafting = self.publishing.draft(py, deadline)?;
        py.detach(|| -> Result<(), Failure> {
            for (array, spec) in arrays.iter().zip(&self.layout.specs) {
                match array {
                    Given::Gpu(array) => drafting.copy_from_gpu(spec.offset, array)?,
                    Given::Host(array) => {
                        let (frame, _bytes) = drafting.extent()?;
                        // SAFETY: the frame is ours until the commit, no reader takes it for whole before, and the
                        // tensor lies inside of it; an array of the caller's lies apart, as no array of a frame
                        // outlives its frame.
                        unsafe { array.copy_to(frame.add(spec.offset)) };
                    }
                }
            }
            Ok(())
        })?;
        Ok(drafting)
    }
}

#[pymethods]
impl PyPublisher {
    #[new]
    #[pyo3(signature = (table, *, address=None, transport="auto", frames=3, readers=64, lease=3.0, begin_at=0,
        secret=None, branches=2, deltas=0, delta_bytes=None, checksums=false, idle="sleep", gpu=None,
        gpu_memory=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        address: Option<&str>,
        transport: &str,
        frames: u8,
        readers: u16,
        lease: f64,
        begin_at: u64,
        secret: Option<SecretSource>,
        branches: u16,
        deltas: u8,
        delta_bytes: Option<u64>,
        checksums: bool,
        idle: &str,
        gpu: Option<&Bound<'_, PyGpu>>,
        gpu_memory: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyPublisher> {
        let gpu = gpu::named(gpu);
        let lent = gpu_memory.map(|memory| OnGpu::for_frames(memory, gpu.as_ref())).transpose()?;
        let address = fabric::listen_address(py, address, transport)?;
        let memory = ShardOptions {
            frames,
            peers: readers,
            lease: time("lease", lease)?,
            checksums,
            idle: way_to_idle(idle)?,
            ..ShardOptions::default()
        };
        let (begin_at, deltas) = (Version::new(begin_at), differences(deltas, delta_bytes)?);
        let options = PublisherOptions { memory, begin_at, deltas, branches, ..PublisherOptions::default() };
        PyPublisher::begin(py, table, &address, options, (gpu.clone(), lent), || {
            Ok(Named::new(fabric::fabric(secret, &address, gpu.as_ref())?, ""))
        })
    }

    /// Publishes `tensors`, a mapping of all names of the table to arrays, as the next version, and returns its
    /// number. The arrays are copied, without a word to the interpreter; they may be of any library that has the
    /// buffer protocol, DLPack or numpy's array interface, and need not be contiguous.
    ///
    /// Waits, at most `timeout` seconds, only if readers pin all other frames: then FramesPinned. Raises LayoutMismatch
    /// if the arrays do not fit the table. After an error the version before is still the newest.
    ///
    /// `step` (below 2**64) and `label` (at most 32 bytes) travel with the version.
    ///
    /// Tensors of a GPU (DLPack or `__cuda_array_interface__`, in C order) are copied by it, behind the work that a
    /// stream has at the time of the call; `publish` waits for that, and then the tensors may change. The stream is
    /// `stream` (a handle, or an object with `cuda_stream`), else torch's current stream for tensors of torch, else the
    /// stream that the array names, else the default stream. If that takes longer than `timeout`, a DeadlineError: then
    /// the version is published as soon as it is copied, and the tensors are to be left alone until then. While it is
    /// copied the next version has to wait, and is a DeadlineError with nothing published if that takes too long.
    #[pyo3(signature = (tensors, *, step=0, label=None, timeout=30.0, stream=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn publish(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyAny>,
        step: u64,
        label: Option<Label>,
        timeout: f64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let (tag, deadline) = (tag(step, label.as_ref())?, Deadline::after(timeout)?);
        let streams = Streams::new(stream, self.gpu.as_ref())?;
        let arrays = self.layout.arrays(tensors, PUBLISHING, &streams)?;
        let is_copied = !arrays.iter().any(|array| matches!(array, Given::Gpu(_)));
        let drafting = self.filled(py, arrays, deadline)?;
        if is_copied {
            return Ok(py.detach(|| drafting.commit(tag))?);
        }
        let copying = drafting.commit_when_copied(tag)?;
        let published = frame::published(py, copying, deadline);
        crate::device::release(py);
        published
    }

    /// As `publish`, and returns the record of the version, a line of JSON without its end: by it and the readers'
    /// certificates, `check` and the program `slackline check` judge the reads. It computes the SHA-256 of all
    /// tensors before the version is published.
    #[pyo3(signature = (tensors, *, step=0, label=None, timeout=30.0))]
    fn publish_recorded(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyAny>,
        step: u64,
        label: Option<Label>,
        timeout: f64,
    ) -> PyResult<String> {
        let (tag, deadline) = (tag(step, label.as_ref())?, Deadline::after(timeout)?);
        let arrays = self.layout.arrays(tensors, PUBLISHING, &Streams::new(None, None)?)?;
        for array in &arrays {
            array.on_host("recording a version")?;
        }
        let drafting = self.filled(py, arrays, deadline)?;
        Ok(py.detach(|| drafting.commit_recorded(tag))?.to_string())
    }

    /// Lends the memory of the next version: a mapping of names to writable arrays, and a context manager. Leaving the
    /// block publishes the content; an exception drops it, and the version before stays the newest. The memory
    /// holds some old version at first. If it is `recorded`, the frame has a `publication` then, as of
    /// `publish_recorded`.
    ///
    /// An array that looks at the frame and is still alive at the end of the block is a BufferError, and nothing is
    /// published: it could be written while readers read. Waits and raises as `publish` does.
    #[pyo3(signature = (*, step=0, label=None, recorded=false, timeout=30.0))]
    fn frame(
        &self,
        py: Python<'_>,
        step: u64,
        label: Option<Label>,
        recorded: bool,
        timeout: f64,
    ) -> PyResult<Frame> {
        let tag = tag(step, label.as_ref())?;
        let drafting = self.publishing.draft(py, Deadline::after(timeout)?)?;
        let frame = Frame::new(Arc::clone(&self.layout), drafting, tag, recorded)?;
        self.publishing.lends(&frame);
        Ok(frame)
    }

    /// Waits until so many readers (without a number: the readers that are connected when the call begins, without
    /// readers that leave or are lost meanwhile) hold `version` or a newer one, and returns the status of all
    /// readers. A version that a reader has pinned counts from the moment of the pin; `ReaderStatus.holds` names it
    /// once the block of the pin has ended, and names a copied version at once. Raises DeadlineError after `timeout`
    /// seconds.
    #[pyo3(signature = (version, *, readers=None, timeout=30.0))]
    fn wait(
        &self,
        py: Python<'_>,
        version: u64,
        readers: Option<usize>,
        timeout: f64,
    ) -> PyResult<Vec<PyReaderStatus>> {
        const WAITING: &str = "waiting for readers to hold a version";
        let (deadline, publisher) = (Deadline::after(timeout)?, self.publishing.get(WAITING)?);
        let version = Version::new(version);
        let first = py.detach(|| publisher.readers());
        let is_first = |reader: &&ReaderStatus| first.iter().any(|other| other.is_of_same(reader));
        let holds = |reader: &&ReaderStatus| reader.has(version);
        let (mut wanted, mut holding) = (0, 0);
        let closing = &self.publishing.closing;
        let statuses = closing.in_slices(py, WAITING, deadline, |slice| {
            let held = publisher.wait_until(slice, |statuses| {
                let all = statuses.iter();
                (wanted, holding) = match readers {
                    Some(number) => (number, all.filter(holds).count()),
                    None => {
                        (all.clone().filter(is_first).count(), all.filter(is_first).filter(holds).count())
                    }
                };
                holding >= wanted
            });
            held.map_err(Failure::from)
        })?;
        let late =
            || Failure::from(Error::NotHeld { version, readers: wanted, holding, waited: deadline.timeout });
        Ok(statuses.ok_or_else(late)?.into_iter().map(PyReaderStatus).collect())
    }

    /// The connected readers, each with the version that it holds.
    #[getter]
    fn readers(&self, py: Python<'_>) -> PyResult<Vec<PyReaderStatus>> {
        let publisher = self.publishing.get("asking for the readers")?;
        Ok(py.detach(|| publisher.readers()).into_iter().map(PyReaderStatus).collect())
    }

    /// The address at which readers reach this publisher.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The newest version; 0, which is all zeros, before the first is published.
    #[getter]
    fn version(&self, py: Python<'_>) -> PyResult<u64> {
        let publisher = self.publishing.get("asking for the version")?;
        Ok(py.detach(|| publisher.version().get()))
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

    /// Ends the publisher; its readers are told, and calls in which other threads wait raise OutOfTurn. So does the end
    /// of the block of a frame that is open: it is not published. Until that block has ended, and no array looks at the
    /// frame any more, its memory and the address stay taken, and readers are not told.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.publishing.close())?)
    }

    fn __repr__(&self) -> String {
        format!("<Publisher at {}: {} tensors>", self.address, self.layout.specs.len())
    }
}

closed_by_block!(PyPublisher);

/// Reads how many differences are kept, and how long one may be.
pub(crate) fn differences(history: u8, most_bytes: Option<u64>) -> Result<Option<DeltaOptions>, Failure> {
    if history == 0 && most_bytes.is_some() {
        let (cause, remedy) =
            ("`delta_bytes` is of no use without `deltas`", "say how many are kept: deltas=8");
        return Err(Failure::new(Class::BadOption, "keeping differences", cause, remedy));
    }
    Ok((history > 0).then_some(DeltaOptions { history, most_bytes }))
}

/// Reads the words of the user about a version.
fn tag(step: u64, label: Option<&Label>) -> Result<VersionTag, Failure> {
    let (mut tag, label) = (VersionTag::step(step), label.map_or(&[][..], |Label(bytes)| bytes));
    let Some(bytes) = tag.label.get_mut(..label.len()) else {
        let cause = format_args!("a label of {} bytes is too long", label.len());
        return Err(Failure::new(Class::BadOption, PUBLISHING, cause, "use at most 32"));
    };
    bytes.copy_from_slice(label);
    Ok(tag)
}

/// A publisher's knowledge of one of its readers.
#[pyclass(frozen, module = "slackline", name = "ReaderStatus")]
pub(crate) struct PyReaderStatus(pub(crate) ReaderStatus);

#[pymethods]
impl PyReaderStatus {
    /// The number of the reader among the connected ones.
    #[getter]
    fn peer(&self) -> u16 {
        self.0.peer
    }

    /// The newest version that it has copied, or had pinned until its pin ended, if there is one.
    #[getter]
    fn holds(&self) -> Option<u64> {
        self.0.holds.map(Version::get)
    }

    /// The version whose frame it pins now, if it does: it reads it in place, or copies it.
    #[getter]
    fn pins(&self) -> Option<u64> {
        self.0.pins.map(Version::get)
    }

    /// The number of versions by which its newest one, as a copy or in place, is behind the newest of all.
    #[getter]
    fn behind(&self) -> u64 {
        self.0.behind
    }

    fn __repr__(&self) -> String {
        let ReaderStatus { peer, holds, pins, behind, .. } = self.0;
        let show =
            |version: Option<Version>| version.map_or("none".into(), |version| version.get().to_string());
        format!("<ReaderStatus {peer}: holds {}, pins {}, behind {behind}>", show(holds), show(pins))
    }
}
