//! `slackline.Worker` and its steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyIterator;

use slackline::internals::node::Backoff;
use slackline::{Address, Job, Mixed, View, Worker, WorkerOptions, now};

use crate::arguments::Addresses;
use crate::errors::Failure;
use crate::fabric::{self, SecretSource};
use crate::gpu::{self, PyGpu, Streams};
use crate::into::Targets;
use crate::lease::Lease;
use crate::memory::Memory;
use crate::names::Search;
use crate::owned::closed_by_block;
use crate::snapshot::{Facts, Snapshot, Storage, Tensors, mapping};
use crate::source::Given;
use crate::table::{Layout, TensorSpec};
use crate::view::ArrayView;
use crate::wait::{Deadline, idle as way_to_idle, in_slices, in_thread, timeout as seconds};
use crate::working::{Working, abandon, copied};

const STEPPING: &str = "waiting for parameters";
const PUBLISHING: &str = "publishing a gradient";
/// Before the gradient is on its way.
const BEFORE_PUBLISHING: &str = "waiting to publish a gradient";
const FLUSHING: &str = "waiting for the server to apply the last gradients";

const COPYING: &str = "copying parameters into arrays";

/// The time that rank 0 has to tell why a server is gone: the job may have failed.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The cause of the loss of a server, as far as rank 0 tells it; other errors stay as they are.
fn caused(py: Python<'_>, job: &Job, error: PyErr) -> PyErr {
    let is_loss = error.get_type(py).name().is_ok_and(|name| name == "PeerGone");
    let told = |slice: Duration| {
        job.check()?;
        std::thread::sleep(slice.min(Duration::from_millis(20)));
        Ok(None::<()>)
    };
    let waited = if is_loss { in_slices(py, Deadline::of(LAST_WORDS), told) } else { Ok(None) };
    waited.err().unwrap_or(error)
}

/// Reads parameters and publishes gradients, one step after the other.
///
/// `servers` are the addresses of the servers of all shards, in any order. Of several addresses of one server, with
/// commas between them, the first is taken. Waits, at most `timeout` seconds, for the servers to listen. The scheme is
/// theirs. `rank` names this worker: a worker that is started again with the same rank is the same worker, and no
/// gradient of it counts twice. `secret` (the job's) and `idle` are as for a Reader. With `gpu`, a Gpu, gradients on
/// that GPU are published straight out of its memory over shared memory, and by RDMA if the device reaches the GPU.
/// If it does not, and over TCP, they go by way of blocks of host memory.
#[pyclass(frozen, module = "slackline", name = "Worker")]
pub(crate) struct PyWorker {
    working: Arc<Working>,
    layout: Arc<Layout>,
    /// The job that this is a worker of, where it is.
    job: Option<Arc<Job>>,
    /// Rank 0 was told that this worker has finished, and it has begun no step since.
    has_finished: AtomicBool,
}

impl PyWorker {
    pub(crate) fn of(
        worker: Worker<Mixed>,
        job: Option<Arc<Job>>,
        gpu: Option<gpu::Named>,
    ) -> Result<PyWorker, Failure> {
        let layout = Layout::of(worker.table())?;
        Ok(PyWorker {
            working: Arc::new(Working::new(worker, gpu)?),
            layout,
            job,
            has_finished: AtomicBool::new(false),
        })
    }

    fn flush_until(&self, py: Python<'_>, deadline: Deadline) -> PyResult<()> {
        let closing = &self.working.closing;
        self.working.with(py, FLUSHING, Some(deadline), |worker| {
            closing.until(py, FLUSHING, deadline, |slice| worker.flush(slice))
        })
    }
}

#[pymethods]
impl PyWorker {
    #[new]
    #[pyo3(signature = (servers, *, rank=None, idle="poll", timeout=30.0, secret=None, gpu=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        servers: Addresses,
        rank: Option<u32>,
        idle: &str,
        timeout: f64,
        secret: Option<SecretSource>,
        gpu: Option<&Bound<'_, PyGpu>>,
    ) -> PyResult<PyWorker> {
        let gpu = gpu::named(gpu);
        let transport_gpu = gpu.clone();
        let timeout = seconds(timeout)?;
        let searches = servers.0.iter().map(|server| Search::of(server)).collect::<Result<Vec<_>, _>>()?;
        let idle = way_to_idle(idle)?;
        let options =
            WorkerOptions { identity: rank, waits_for_server: true, idle, ..WorkerOptions::default() };
        let worker = in_thread(py, "connecting", move |is_given_up| {
            let deadline = Instant::now() + timeout;
            let mut addresses = Vec::with_capacity(searches.len());
            for mut search in searches {
                addresses.push(search.until(deadline, is_given_up)?.swap_remove(0));
            }
            let fabric =
                fabric::fabric(secret, &Address::Several(addresses.clone()), transport_gpu.as_ref())?;
            let left = deadline.saturating_duration_since(Instant::now());
            Ok(Worker::connect(fabric, &addresses, options, left)?)
        })?;
        Ok(PyWorker::of(worker, None, gpu)?)
    }

    /// Waits, as the scheme says and at most `timeout` seconds, for the parameters of the next clock: a context
    /// manager. Leaving its block without `publish` abandons the step, and the next one begins the same clock again.
    ///
    /// `into` is a mapping of all names to writable arrays in C order, which the parameters are copied into; tensors of
    /// a GPU among them are written by it, as by `Reader.pull`, and `stream` is as for `Publisher.publish`.
    ///
    /// Raises DeadlineError (call again), PeerGone if a server is lost, OutOfTurn while a step is open, LayoutMismatch
    /// if `into` does not fit.
    #[pyo3(signature = (into=None, *, timeout=30.0, stream=None))]
    fn step(
        &self,
        py: Python<'_>,
        into: Option<&Bound<'_, PyAny>>,
        timeout: f64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Step> {
        let deadline = Deadline::after(timeout)?;
        let streams = Streams::new(stream, self.working.gpu.as_ref())?;
        let targets = into.map(|into| Targets::of(&self.layout, into, COPYING, &streams)).transpose()?;
        let closing = &self.working.closing;
        let view = self.working.with(py, STEPPING, Some(deadline), |worker| {
            if self.working.is_in_step.load(Ordering::Acquire) {
                return Err(Failure::out_of_turn(STEPPING, "a step is open", "leave its block first").into());
            }
            abandon(worker)?;
            self.has_finished.store(false, Ordering::Relaxed);
            let view = closing.until(py, STEPPING, deadline, |slice| Ok(worker.step(slice)?.suspend()))?;
            if let Some(targets) = &targets {
                py.detach(|| self.working.copy_parameters(worker, targets))?;
            }
            self.working.is_in_step.store(true, Ordering::Release);
            Ok(view)
        })?;
        let lend = |memory: &Arc<Memory>| {
            let lease = Lease::new(memory.pointer(), self.working.bytes, Arc::clone(memory));
            Arc::new(lease.for_a_while("its step has ended", || {}))
        };
        let (parameters, gradient) = (lend(&self.working.parameters), lend(&self.working.gradient));
        let tensors = |lease: &Arc<Lease>, is_read_only| Tensors {
            layout: Arc::clone(&self.layout),
            storage: Storage::Whole(Arc::clone(lease)),
            is_read_only,
        };
        let facts = Facts::of_server(view.version.get(), 0, view.staleness());
        Ok(Step {
            parameters: Py::new(py, Snapshot { tensors: tensors(&parameters, true), facts, read: None })?,
            gradient: Py::new(py, Gradient { tensors: tensors(&gradient, false) })?,
            leases: [parameters, gradient],
            view,
            layout: Arc::clone(&self.layout),
            working: Arc::clone(&self.working),
            is_open: AtomicBool::new(true),
            should_stop: AtomicBool::new(false),
        })
    }

    /// Waits until every server has folded in, or dropped, all published gradients of this worker.
    ///
    /// It waits at most `timeout` seconds, and then raises DeadlineError; the gradients are on their way all the same.
    /// PeerGone says that a server is gone.
    #[pyo3(signature = (*, timeout=30.0))]
    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.flush_until(py, Deadline::after(timeout)?)
    }

    /// Says that this worker of a job has finished, and waits until the job is over. Raises OutOfTurn for a worker that
    /// is of no job, JobFailed if the job failed.
    #[pyo3(signature = (*, timeout=30.0))]
    fn finish(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        const FINISHING: &str = "finishing a job";
        let none = || Failure::out_of_turn(FINISHING, "this worker is of no job", "close it");
        let (deadline, job) = (Deadline::after(timeout)?, self.job.as_ref().ok_or_else(none)?);
        // The servers may have left since, at the end of the job.
        if !self.has_finished.load(Ordering::Relaxed) {
            self.flush_until(py, deadline).map_err(|error| caused(py, job, error))?;
            self.has_finished.store(true, Ordering::Relaxed);
        }
        let closing = &self.working.closing;
        self.working.with(py, FINISHING, Some(deadline), |worker| {
            let over = |slice| Ok(job.finish(worker, slice)?.then_some(()));
            let over = closing.in_slices(py, FINISHING, deadline, over)?;
            over.ok_or_else(|| {
                let cause = "the other processes of the job have not finished";
                let remedy = "a worker may be slow or gone, or the timeout too short";
                Failure::late(FINISHING, deadline.timeout, cause, remedy).into()
            })
        })
    }

    /// The clock that it is at: its next gradient belongs to it.
    #[getter]
    fn clock(&self, py: Python<'_>) -> PyResult<u64> {
        self.working.with(py, "asking for the clock", None, |worker| Ok(worker.clock().get()))
    }

    /// Name, element type and shape of each tensor.
    #[getter]
    fn metadata(&self) -> Vec<TensorSpec> {
        self.layout.metadata()
    }

    /// Leaves the servers. Gradients that were not applied are discarded: flush first. Calls of other threads that wait
    /// end with OutOfTurn. Raises OutOfTurn in a handler of a signal that has interrupted a call of this worker.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        const CLOSING: &str = "closing a worker";
        crate::fork::check(self.working.guard, CLOSING)?;
        self.working.closing.begin();
        let worker = self.working.worker.wait(py, CLOSING, None).map(|mut worker| worker.take());
        if worker.is_err() {
            self.working.closing.give_up();
        }
        let worker = worker?;
        py.detach(|| drop(worker));
        Ok(())
    }
}

closed_by_block!(PyWorker);

/// The memory of a gradient: a mapping of names to writable arrays.
#[pyclass(frozen, mapping, module = "slackline")]
pub(crate) struct Gradient {
    tensors: Tensors,
}

mapping!(Gradient);

/// One clock of a worker: see `Worker.step`. Its views raise once it has ended.
///
/// Arrays of numpy or torch that look at the parameters or the gradient may be kept: the memory is the worker's own,
/// and the same in each step. Between steps the library writes the parameters and reads the gradient; keep off them
/// then.
#[pyclass(frozen, module = "slackline")]
pub(crate) struct Step {
    parameters: Py<Snapshot>,
    gradient: Py<Gradient>,
    leases: [Arc<Lease>; 2],
    view: View,
    layout: Arc<Layout>,
    working: Arc<Working>,
    is_open: AtomicBool,
    /// The last answer of a server to the question whether the step is to be abandoned.
    should_stop: AtomicBool,
}

impl Step {
    /// Ends the step for Python; false if it had ended.
    fn end(&self) -> bool {
        for lease in &self.leases {
            lease.end();
        }
        let was_open = self.is_open.swap(false, Ordering::AcqRel);
        if was_open {
            self.working.is_in_step.store(false, Ordering::Release);
        }
        was_open
    }

    fn expect_open(&self, operation: &str) -> Result<(), Failure> {
        match self.is_open.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(ended(operation)),
        }
    }
}

fn ended(operation: &str) -> Failure {
    Failure::out_of_turn(operation, "this step has ended", "begin the next one")
}

#[pymethods]
impl Step {
    /// The parameters: a mapping of names to read-only arrays.
    #[getter]
    fn parameters(&self, py: Python<'_>) -> Py<Snapshot> {
        self.parameters.clone_ref(py)
    }

    /// The memory for the gradient: a mapping of names to writable arrays, which keep their last content.
    #[getter]
    fn gradient(&self, py: Python<'_>) -> Py<Gradient> {
        self.gradient.clone_ref(py)
    }

    /// The clock that the gradient belongs to.
    #[getter]
    fn clock(&self) -> u64 {
        self.view.clock.get()
    }

    /// The version of the parameters.
    #[getter]
    fn version(&self) -> u64 {
        self.view.version.get()
    }

    /// The number of clocks by which the parameters are stale.
    #[getter]
    fn staleness(&self) -> u64 {
        self.view.staleness()
    }

    /// True if a server asks this worker to abandon the step, as DBW and ABS do. It never waits: while another thread
    /// is in a call of the worker, it returns the last answer. Raises OutOfTurn once the step has ended.
    #[getter]
    fn should_stop(&self) -> PyResult<bool> {
        let asked = self.working.at_once(STEPPING, |worker| {
            self.expect_open(STEPPING)?;
            let mut step = worker.resume()?;
            let stop = step.should_stop();
            step.suspend();
            Ok(stop?)
        })?;
        match asked {
            Some(stop) => self.should_stop.store(stop, Ordering::Relaxed),
            None => self.expect_open(STEPPING)?,
        }
        Ok(self.should_stop.load(Ordering::Relaxed))
    }

    /// Publishes the gradient, and ends the step: when it returns, every server has the gradient whole. `loss` is told
    /// to the servers. After a DeadlineError whose `operation` is "publishing a gradient" the gradient is still on its
    /// way, and the next step finishes it; after one of another operation the step is still open. Under "bap", too, it
    /// waits for this gradient: the arrays of a step are the same memory in each.
    ///
    /// `gradient` is a mapping of all names to float32 arrays, which are copied into the memory for the gradient first;
    /// tensors of a GPU among them by that GPU, as by `Publisher.publish`, and `stream` is as there. They may change
    /// once it returns. After the DeadlineError of a copy that took longer than `timeout` the step is still open.
    #[pyo3(signature = (loss=None, gradient=None, *, timeout=30.0, stream=None))]
    fn publish(
        &self,
        py: Python<'_>,
        loss: Option<f32>,
        gradient: Option<&Bound<'_, PyAny>>,
        timeout: f64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let deadline = Deadline::after(timeout)?;
        let streams = Streams::new(stream, self.working.gpu.as_ref())?;
        let arrays =
            gradient.map(|gradient| self.layout.arrays(gradient, PUBLISHING, &streams)).transpose()?;
        let closing = &self.working.closing;
        let published = self.working.with(py, BEFORE_PUBLISHING, Some(deadline), |worker| {
            self.expect_open(PUBLISHING)?;
            let (working, layout) = (&self.working, &self.layout);
            let mut is_on_its_way = false;
            let wait_for_copies = |worker: &mut Worker<Mixed>| -> PyResult<()> {
                let copied = closing.in_slices(py, PUBLISHING, deadline, |slice| copied(worker, slice))?;
                Ok(copied.ok_or_else(|| Failure::from(worker.not_copied(deadline.timeout)))?)
            };
            // A GPU may still copy what an earlier call that has ended at its deadline was given.
            if arrays.iter().flatten().any(|array| matches!(array, Given::Host(_))) {
                wait_for_copies(worker)?;
            }
            if let Some(arrays) = &arrays {
                is_on_its_way = py.detach(|| -> Result<bool, Failure> {
                    let is_on_its_way = working.publish_from_gpu(worker, arrays, layout, loss)?;
                    if !is_on_its_way {
                        working.copy_gradient(worker, arrays, layout)?;
                    }
                    Ok(is_on_its_way)
                })?;
            }
            if !is_on_its_way {
                wait_for_copies(worker)?;
            }
            // Not before: another thread would begin the next step, and this gradient would be taken for that one's.
            if !self.end() {
                return Err(ended(PUBLISHING).into());
            }
            if !is_on_its_way {
                worker.resume().map_err(Failure::from)?.start_publish(loss).map_err(Failure::from)?;
            }
            let published = closing.in_slices(py, PUBLISHING, deadline, |slice| {
                let (deadline, mut backoff) = (Instant::now() + slice, Backoff::new());
                while worker.is_publishing() {
                    match worker.poll(now())? {
                        true => backoff.reset(),
                        false if Instant::now() >= deadline => return Ok(None),
                        false => backoff.wait(),
                    }
                }
                Ok(Some(()))
            })?;
            published.ok_or_else(|| {
                let late = worker.deadline(PUBLISHING, deadline.timeout);
                Failure::from(worker.name_copies(late, deadline.timeout)).into()
            })
        });
        drop(arrays);
        crate::device::release(py);
        published
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
        if !self.is_open.load(Ordering::Acquire) {
            return Ok(());
        }
        let abandoned = self.working.with(py, STEPPING, None, |worker| match self.end() {
            true => Ok(abandon(worker)?),
            false => Ok(()),
        });
        // The next step abandons one that is not abandoned here.
        self.end();
        match abandoned {
            // The exception of the block comes first.
            Err(_) if !class.is_none() => Ok(()),
            abandoned => abandoned,
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        // The next step abandons it: another thread may be in a call of the worker, and this one cannot wait for it.
        self.end();
    }
}
