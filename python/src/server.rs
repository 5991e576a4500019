//! `slackline.Server`: one shard of the parameters, and the thread that folds gradients into it.
#![allow(unsafe_code, reason = "initial values are copied out of arrays of other libraries")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pyo3::prelude::*;

use slackline::internals::mem::ForkGuard;
use slackline::internals::node::Backoff;
use slackline::optim::{AdamParameters, Optimizer};
use slackline::scheme::SchemeConfig;
use slackline::{Error, Idle, Mixed, Server, ServerOptions, ServerStatus, Table, now};

use crate::errors::{Class, Failure};
use crate::fabric::{self, SecretSource};
use crate::gpu::{self, PyGpu};
use crate::lease::Lease;
use crate::memory::Memory;
use crate::owned::closed_by_block;
use crate::snapshot::{Facts, Snapshot, Storage, Tensors};
use crate::table::{self, Layout, TensorSpec};
use crate::wait::{Deadline, detached, idle as way_to_idle, in_slices};

/// Reads the options that a server has, by the names that PyTorch gives them.
pub(crate) fn options(
    scheme: &str,
    workers: usize,
    learning_rate: f32,
    optimizer: &str,
    momentum: f32,
    weight_decay: f32,
) -> Result<ServerOptions, Failure> {
    let scheme: SchemeConfig = scheme.parse().map_err(Error::SchemeConfig)?;
    let adam = AdamParameters { weight_decay, ..AdamParameters::default() };
    let optimizer = match optimizer {
        "sgd" if momentum == 0.0 => Optimizer::Sgd { weight_decay },
        "sgd" => Optimizer::Momentum { momentum, weight_decay },
        "adam" | "adamw" if momentum != 0.0 => {
            let cause = format_args!("{optimizer:?} takes no momentum, and {momentum} was given");
            return Err(Failure::new(Class::BadOption, "starting", cause, "leave it out, or use sgd"));
        }
        "adam" => Optimizer::Adam(adam),
        "adamw" => Optimizer::AdamW(adam),
        other => {
            let cause = format_args!("there is no optimiser {other:?}");
            return Err(Failure::new(Class::BadOption, "starting", cause, "use sgd, adam or adamw"));
        }
    };
    let mut options = ServerOptions { optimizer, ..ServerOptions::new(scheme, workers, learning_rate) };
    // As many may read as of a server without workers.
    let workers = u16::try_from(workers).unwrap_or(u16::MAX);
    options.memory.peers = options.memory.peers.saturating_add(workers);
    Ok(options)
}

/// Makes the table and the initial values of a server of a mapping of names to float32 arrays.
pub(crate) fn initial(given: &Bound<'_, PyAny>) -> PyResult<(Table, Vec<f32>)> {
    let (table, arrays) = table::table(given, 1)?;
    let layout = Layout::of(&table)?;
    if layout.specs.iter().any(|spec| spec.dtype.name != "float32") {
        return Err(Failure::from(Error::NotF32).into());
    }
    let mut values = vec![0.0f32; (table.bytes() / 4) as usize];
    let begin = values.as_mut_ptr().cast::<u8>();
    for (array, spec) in arrays.iter().zip(&layout.specs) {
        let array = array.on_host("taking initial values")?;
        // SAFETY: the tensor lies in the table, whose size the vector has; the array is of another library.
        unsafe { array.copy_to(begin.add(spec.offset)) };
    }
    Ok((table, values))
}

/// A server that its thread and Python share.
struct Serving {
    server: Mutex<Option<Server<Mixed>>>,
    /// The error that has ended the thread.
    failure: Mutex<Option<Failure>>,
    stops: AtomicBool,
    /// True if the thread sleeps while there is nothing to do, and holds the server meanwhile.
    sleeps: bool,
    /// Calls of Python that want the server.
    calls: AtomicUsize,
    guard: ForkGuard,
}

/// The longest time for which a thread that sleeps keeps the server. A call ends it at the end of a sleep, which is
/// 20 ms long at most.
const KEEP: Duration = Duration::from_secs(1);

/// The pause in which a thread that sleeps lets a call have the server, which looks much more often.
const TURN: Duration = Duration::from_millis(1);

impl Serving {
    /// Serves until it is closed, or fails: its peers then receive the same farewell.
    fn serve(&self) {
        let served = catch_unwind(AssertUnwindSafe(|| self.work()));
        let panicked =
            |_| Err(Failure::new(Class::Error, "serving", "the thread panicked", "please report it"));
        if let Err(failure) = served.unwrap_or_else(panicked) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            drop(self.lock().take());
        }
    }

    fn work(&self) -> Result<(), Failure> {
        let mut backoff = Backoff::new();
        while !self.stops.load(Ordering::Relaxed) {
            let polled = match &mut *self.lock() {
                Some(server) => self.turn(server),
                None => return Ok(()),
            };
            if self.sleeps && self.calls.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(TURN);
            }
            match polled? {
                true => backoff.reset(),
                false => backoff.wait(),
            }
        }
        Ok(())
    }

    /// One turn of the thread; false if it is to stand back.
    fn turn(&self, server: &mut Server<Mixed>) -> Result<bool, Error> {
        if !self.sleeps {
            return server.poll(now());
        }
        let is_called = |_: &_| self.stops.load(Ordering::Relaxed) || self.calls.load(Ordering::Relaxed) > 0;
        server.drive(is_called, KEEP).map(|_is_called| true)
    }

    /// Held by no thread that waits for the interpreter.
    fn lock(&self) -> MutexGuard<'_, Option<Server<Mixed>>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call<R>(
        &self,
        operation: &str,
        with: impl FnOnce(&mut Server<Mixed>) -> Result<R, Error>,
    ) -> Result<R, Failure> {
        crate::fork::check(self.guard, operation)?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut locked = self.lock();
        self.calls.fetch_sub(1, Ordering::Relaxed);
        match &mut *locked {
            Some(server) => Ok(with(server)?),
            None => {
                let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let closed = || Failure::out_of_turn(operation, "the server is closed", "make a new one");
                Err(failure.unwrap_or_else(closed))
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its connections are the parent's.
        if self.guard.is_inherited() {
            std::mem::forget(self.server.get_mut().map_or(None, Option::take));
        }
    }
}

/// Holds the parameters, and folds workers' gradients into them as a scheme says. A thread of the library serves the
/// workers, also while Python is busy.
///
/// `initial` is a mapping of names to float32 arrays, the parameters of version 0. `scheme` is its text: "bsp", "asp",
/// "ssp(2)", ... `workers` is their number: nothing is applied before that many have joined. `optimizer` is "sgd",
/// "adam" or "adamw", with the formulas of torch.optim; each takes `weight_decay`, and "sgd" alone `momentum`.
/// `address`, `transport` and `secret` are as for a Publisher. Readers may connect, too. `idle` is "poll", or "sleep":
/// then workers wake the server, it takes less of a processor while there is nothing to do, and calls of this object
/// take up to 20 ms. With `gpu`, a Gpu, the parameters, the optimiser's states and the gradients are in its memory, and
/// it folds them; workers and readers over shared memory have a GPU then, too.
///
/// A server that cannot go on ends like a closed one: its workers and readers get PeerGone, and calls of it raise
/// the cause.
#[pyclass(frozen, module = "slackline", name = "Server")]
pub(crate) struct PyServer {
    serving: Arc<Serving>,
    thread: Mutex<Option<JoinHandle<()>>>,
    layout: Arc<Layout>,
    address: String,
    epoch: u64,
}

impl PyServer {
    fn stop(&self) {
        if self.serving.guard.is_inherited() {
            return;
        }
        self.serving.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic there was reported when it happened.
            drop(thread.join());
        }
    }
}

#[pymethods]
impl PyServer {
    #[new]
    #[pyo3(signature = (initial, *, scheme="bsp", workers=1, learning_rate=0.1, optimizer="sgd", momentum=0.0,
        weight_decay=0.0, address=None, transport="auto", secret=None, idle="poll", gpu=None))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        initial: &Bound<'_, PyAny>,
        scheme: &str,
        workers: usize,
        learning_rate: f32,
        optimizer: &str,
        momentum: f32,
        weight_decay: f32,
        address: Option<&str>,
        transport: &str,
        secret: Option<SecretSource>,
        idle: &str,
        gpu: Option<&Bound<'_, PyGpu>>,
    ) -> PyResult<PyServer> {
        let gpu = gpu::named(gpu);
        let mut options = options(scheme, workers, learning_rate, optimizer, momentum, weight_decay)?;
        options.memory.idle = way_to_idle(idle)?;
        let sleeps = options.memory.idle == Idle::Sleep;
        let (table, values) = self::initial(initial)?;
        let layout = Layout::of(&table)?;
        let address = fabric::listen_address(py, address, transport)?;
        py.detach(|| {
            let fabric = fabric::fabric(secret, &address, gpu.as_ref())?;
            let server = Server::new(fabric, &address, table, &values, options)?;
            let (address, epoch) = (server.address().to_string(), server.epoch());
            let serving = Arc::new(Serving {
                server: Mutex::new(Some(server)),
                failure: Mutex::new(None),
                stops: AtomicBool::new(false),
                sleeps,
                calls: AtomicUsize::new(0),
                guard: ForkGuard::new(),
            });
            let shared = Arc::clone(&serving);
            let thread = std::thread::Builder::new().name("slackline".into()).spawn(move || shared.serve());
            let thread = thread.map_err(|source| Error::Thread { what: "a server", source })?;
            Ok(PyServer { serving, thread: Mutex::new(Some(thread)), layout, address, epoch })
        })
        .map_err(|failure: Failure| failure.into())
    }

    /// The address at which workers and readers reach this server.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// This incarnation of the server.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Name, element type and shape of each tensor.
    #[getter]
    fn metadata(&self) -> Vec<TensorSpec> {
        self.layout.metadata()
    }

    /// The counters of the server as of now.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Status> {
        Ok(Status(py.detach(|| self.serving.call("asking a server", |server| Ok(server.status())))?))
    }

    /// A copy of the newest parameters.
    fn parameters(&self, py: Python<'_>) -> PyResult<Snapshot> {
        let (values, version) = py.detach(|| {
            self.serving.call("copying the parameters", |server| {
                Ok((server.parameters()?, server.status().version.get()))
            })
        })?;
        let storage = Storage::Whole(Arc::new(lend_values(&values)?));
        let tensors = Tensors { layout: Arc::clone(&self.layout), storage, is_read_only: true };
        Ok(Snapshot { tensors, facts: Facts::of_server(version, self.epoch, 0), read: None })
    }

    /// Waits until so many workers have left since the server began, at most `timeout` seconds: then DeadlineError.
    #[pyo3(signature = (*, left, timeout=30.0))]
    fn wait(&self, py: Python<'_>, left: u64, timeout: f64) -> PyResult<()> {
        const WAITING: &str = "waiting for workers to leave";
        let deadline = Deadline::after(timeout)?;
        let mut gone = 0;
        let done = in_slices(py, deadline, |slice| {
            let slice = Deadline::of(slice);
            loop {
                gone = self.serving.call(WAITING, |server| Ok(server.status().left))?;
                if gone >= left {
                    return Ok(Some(()));
                }
                if slice.left().is_zero() {
                    return Ok(None);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        })?;
        done.ok_or_else(|| {
            let cause = format_args!("{gone} of {left} workers have left");
            let remedy = "a worker may be slow, or the timeout too short";
            Failure::late(WAITING, deadline.timeout, cause, remedy).into()
        })
    }

    /// Ends the server; its workers and readers are told.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        crate::fork::check(self.serving.guard, "closing a server")?;
        py.detach(|| {
            self.stop();
            drop(self.serving.lock().take());
        });
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<Server at {}: {} tensors>", self.address, self.layout.specs.len())
    }
}

closed_by_block!(PyServer);

impl Drop for PyServer {
    fn drop(&mut self) {
        detached(|| self.stop());
    }
}

/// Copies values into memory that Python can look at.
pub(crate) fn lend_values(values: &[f32]) -> Result<Lease, Failure> {
    let bytes = size_of_val(values);
    let memory = Memory::new(bytes)?;
    // SAFETY: the new memory has so many bytes and belongs to no other code.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), memory.pointer(), bytes) };
    Ok(Lease::new(memory.pointer(), bytes, memory))
}

/// The counters of a server.
#[pyclass(frozen, module = "slackline", name = "ServerStatus")]
pub(crate) struct Status(pub(crate) ServerStatus);

#[pymethods]
impl Status {
    /// The newest version.
    #[getter]
    fn version(&self) -> u64 {
        self.0.version.get()
    }

    /// All gradients of clocks before this one are in it.
    #[getter]
    fn smallest_clock(&self) -> u64 {
        self.0.smallest_clock.get()
    }

    /// Workers that are in.
    #[getter]
    fn workers(&self) -> usize {
        self.0.workers
    }

    /// Workers that ever joined.
    #[getter]
    fn joined(&self) -> u64 {
        self.0.joined
    }

    /// Workers that left or were evicted.
    #[getter]
    fn left(&self) -> u64 {
        self.0.left
    }

    /// Gradients that were folded in.
    #[getter]
    fn folded(&self) -> u64 {
        self.0.folded
    }

    /// Gradients that were consumed without being folded in.
    #[getter]
    fn dropped(&self) -> u64 {
        self.0.dropped
    }

    /// Mean of the losses that came with the gradients of the newest version, where they did.
    #[getter]
    fn loss(&self) -> Option<f64> {
        self.0.loss
    }

    fn __repr__(&self) -> String {
        let ServerStatus { version, workers, folded, dropped, .. } = self.0;
        format!(
            "<ServerStatus version {} workers {workers} folded {folded} dropped {dropped}>",
            version.get()
        )
    }
}
