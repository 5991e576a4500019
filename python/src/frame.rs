//! The memory of the next version, and the publisher that lends it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use slackline::gpu::{GpuError, Publishing as Copying};
use slackline::internals::mem::ForkGuard;
use slackline::weights::{BackgroundPublisher, Draft, Publication};
use slackline::{Error, Version, VersionTag};

use crate::device::OnGpu;
use crate::errors::{Class, Failure};
use crate::fabric::NamedFabric;
use crate::lease::Lease;
use crate::owned::Owned;
use crate::snapshot::{Storage, Tensors, mapping};
use crate::table::Layout;
use crate::view::ArrayView;
use crate::wait::{Closing, Deadline, in_slices};

pub(crate) const PUBLISHING: &str = "publishing a version";

/// A publisher, until it is closed.
pub(crate) struct Publishing {
    publisher: Owned<Arc<BackgroundPublisher<NamedFabric>>>,
    pub(crate) closing: Closing,
    /// The memory of the last frame, while something looks at it.
    frame: Mutex<Weak<Lease>>,
}

/// The longest time for which calls of other threads are waited for at the end: each looks every 100 ms.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

impl Publishing {
    pub(crate) fn new(publisher: BackgroundPublisher<NamedFabric>) -> Publishing {
        let publisher = Owned::new(Arc::new(publisher), ("the publisher is closed", "make a new one"));
        Publishing { publisher, closing: Closing::default(), frame: Mutex::default() }
    }

    /// The publisher. Fails if it is closed, or if this process was forked from its maker.
    pub(crate) fn get(&self, operation: &str) -> Result<Arc<BackgroundPublisher<NamedFabric>>, Failure> {
        self.publisher.ask(operation, Arc::clone)
    }

    /// Ends the publisher: its readers are told, once no frame is open. Calls in which other threads wait end first.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let publisher = self.publisher.take("closing a publisher")?;
        self.closing.begin();
        let Some(publisher) = publisher else { return Ok(()) };
        // A call that this one has interrupted, in a handler of a signal, ends after it.
        let deadline = Instant::now() + LEAVE_WITHIN;
        while Arc::strong_count(&publisher) > 1 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(publisher);
        Ok(())
    }

    /// Asks for the memory of the next version.
    pub(crate) fn draft(&self, py: Python<'_>, deadline: Deadline) -> PyResult<Drafting> {
        let publisher = self.get(PUBLISHING)?;
        // The time that was waited in all, and not the last slice's.
        let waited = deadline.timeout;
        let mut late = Error::Pinned { version: Version::default(), waited };
        let draft =
            self.closing.in_slices(py, PUBLISHING, deadline, |slice| match publisher.draft(slice) {
                Ok(draft) => Ok(Some(draft)),
                Err(Error::Pinned { version, .. }) => {
                    late = Error::Pinned { version, waited };
                    Ok(None)
                }
                Err(Error::Gpu(GpuError::NotCopied { cause, .. })) => {
                    late = GpuError::NotCopied { waited, cause }.into();
                    Ok(None)
                }
                Err(Error::OutOfTurn { .. }) => Err(self.is_occupied()),
                Err(error) => Err(error.into()),
            })?;
        let draft = draft.ok_or_else(|| Failure::from(late))?;
        Ok(Drafting { draft: Mutex::new(Some(draft)), guard: self.publisher.guard() })
    }

    /// The memory of the next version is lent by this frame.
    pub(crate) fn lends(&self, frame: &Frame) {
        *self.frame.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&frame.lease);
    }

    /// The failure of a call that comes while a version is in the making.
    fn is_occupied(&self) -> Failure {
        let frame = self.frame.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let Some(exports) = frame.and_then(|lease| lease.left()) else {
            let cause = "another frame is open, or another thread publishes";
            return Failure::out_of_turn(PUBLISHING, cause, "wait until that has ended");
        };
        let cause = format_args!("{exports} arrays still look at a frame that has ended");
        let remedy = "delete them; an exception that is kept holds the arrays of its functions, too";
        Failure::new(Class::OutOfTurn, PUBLISHING, cause, remedy)
    }
}

fn ended() -> Failure {
    Failure::out_of_turn(PUBLISHING, "the frame has ended", "ask for another one")
}

/// Waits until the GPU has copied a version, and it is published.
pub(crate) fn published(py: Python<'_>, mut copying: Copying, deadline: Deadline) -> PyResult<u64> {
    let mut late = None;
    let version = in_slices(py, deadline, |slice| match copying.wait(slice) {
        Ok(version) => Ok(Some(version.get())),
        Err(Error::Gpu(GpuError::NotCopied { cause, .. })) => {
            late = cause;
            Ok(None)
        }
        Err(error) => Err(error.into()),
    })?;
    let waited = deadline.timeout;
    version.ok_or_else(|| Failure::from(GpuError::NotCopied { waited, cause: late }).into())
}

/// The memory of the next version, until it is published or given up.
pub(crate) struct Drafting {
    draft: Mutex<Option<Draft<NamedFabric>>>,
    guard: ForkGuard,
}

impl Drafting {
    fn lock(&self) -> MutexGuard<'_, Option<Draft<NamedFabric>>> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it lies. It stays there for as long as the draft. Fails if that is on a GPU.
    pub(crate) fn extent(&self) -> Result<(*mut u8, usize), Failure> {
        let on_gpu = |_| {
            let remedy = "publish tensors of that GPU, or make a publisher without gpu=";
            let cause = "the publisher's frames are in memory of a GPU";
            Failure::new(Class::Unsupported, PUBLISHING, cause, remedy)
        };
        let mut draft = self.lock();
        let draft = draft.as_mut().ok_or_else(ended)?;
        let memory = draft.memory().map_err(on_gpu)?;
        Ok((memory.as_ptr(), memory.len()))
    }

    /// Has the GPU copy an array into it, from the byte `offset` on.
    pub(crate) fn copy_from_gpu(&self, offset: usize, array: &OnGpu) -> Result<(), Failure> {
        if array.bytes() == 0 {
            return Ok(());
        }
        let (gpu, stream) = array.stream()?;
        let from = array.memory(&gpu)?;
        Ok(self.lock().as_mut().ok_or_else(ended)?.copy_from_gpu(offset as u64, &from, &stream)?)
    }

    fn take(&self) -> Result<Draft<NamedFabric>, Failure> {
        crate::fork::check(self.guard, PUBLISHING)?;
        self.lock().take().ok_or_else(ended)
    }

    pub(crate) fn commit(&self, tag: VersionTag) -> Result<u64, Failure> {
        Ok(self.take()?.commit(tag)?.get())
    }

    /// Publishes it once the GPU has copied all of it.
    pub(crate) fn commit_when_copied(&self, tag: VersionTag) -> Result<Copying, Failure> {
        Ok(self.take()?.commit_when_copied(tag))
    }

    /// The same as `commit`, with a record of it.
    pub(crate) fn commit_recorded(&self, tag: VersionTag) -> Result<Publication, Failure> {
        Ok(self.take()?.commit_recorded(tag)?)
    }

    fn give_up(&self) {
        let draft = self.lock().take();
        match self.guard.is_inherited() {
            true => std::mem::forget(draft),
            false => drop(draft),
        }
    }
}

impl Drop for Drafting {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The memory of the next version, while it is written: a mapping of names to writable arrays, and a context manager.
/// See `Publisher.frame`.
#[pyclass(frozen, mapping, module = "slackline")]
pub(crate) struct Frame {
    tensors: Tensors,
    lease: Arc<Lease>,
    drafting: Arc<Drafting>,
    tag: VersionTag,
    is_recorded: bool,
    published: Mutex<Published>,
}

/// The version as which a frame was published.
#[derive(Debug, Default)]
struct Published {
    version: Option<u64>,
    publication: Option<Publication>,
}

impl Frame {
    pub(crate) fn new(
        layout: Arc<Layout>,
        drafting: Drafting,
        tag: VersionTag,
        is_recorded: bool,
    ) -> Result<Frame, Failure> {
        let drafting = Arc::new(drafting);
        let (pointer, bytes) = drafting.extent()?;
        let (owner, ending) = (Arc::clone(&drafting), Arc::clone(&drafting));
        let lease = Lease::new(pointer, bytes, owner);
        let lease = Arc::new(lease.for_a_while("the frame has ended", move || ending.give_up()));
        let tensors = Tensors { layout, storage: Storage::Whole(Arc::clone(&lease)), is_read_only: false };
        Ok(Frame { tensors, lease, drafting, tag, is_recorded, published: Mutex::default() })
    }

    fn published(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self) -> Result<Published, Failure> {
        if !self.is_recorded {
            return Ok(Published { version: Some(self.drafting.commit(self.tag)?), publication: None });
        }
        let publication = self.drafting.commit_recorded(self.tag)?;
        Ok(Published { version: Some(publication.version.get()), publication: Some(publication) })
    }
}

#[pymethods]
impl Frame {
    /// The version that this frame was published as, once it was.
    #[getter]
    fn version(&self) -> Option<u64> {
        self.published().version
    }

    /// The record of the version, a line of JSON without its end, once it was published, if a record was asked for.
    #[getter]
    fn publication(&self) -> Option<String> {
        self.published().publication.as_ref().map(Publication::to_string)
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
        let published = py.detach(|| self.publish())?;
        *self.published() = published;
        Ok(())
    }
}

mapping!(Frame);

impl Drop for Frame {
    fn drop(&mut self) {
        self.lease.end();
    }
}
