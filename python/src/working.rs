//! A worker that the objects of Python share, and the memory that it computes in.
#![allow(
    unsafe_code,
    reason = "parameters and gradients are copied into and out of arrays of other libraries"
)]

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use slackline::gpu::{GpuError, GpuMemory};
use slackline::internals::mem::ForkGuard;
use slackline::internals::node::Backoff;
use slackline::{Error, Mixed, Worker, now};

use crate::errors::Failure;
use crate::gpu;
use crate::into::Targets;
use crate::memory::Memory;
use crate::source::Given;
use crate::table::Layout;
use crate::turns::Turns;
use crate::wait::{Closing, Deadline};

/// A worker that steps share, with the memory that it computes in.
pub(crate) struct Working {
    pub(crate) worker: Turns<Option<Worker<Mixed>>>,
    /// Calls that wait are to end.
    pub(crate) closing: Closing,
    pub(crate) parameters: Arc<Memory>,
    pub(crate) gradient: Arc<Memory>,
    pub(crate) bytes: usize,
    /// True while a step is open in Python.
    pub(crate) is_in_step: AtomicBool,
    /// The GPU that the transport has.
    pub(crate) gpu: Option<gpu::Named>,
    /// Memory of it for a whole gradient.
    staging: Mutex<Option<GpuMemory>>,
    pub(crate) guard: ForkGuard,
}

impl Working {
    pub(crate) fn new(mut worker: Worker<Mixed>, gpu: Option<gpu::Named>) -> Result<Working, Failure> {
        let bytes = worker.table().bytes() as usize;
        let (parameters, gradient) = (Arc::new(Memory::new(bytes)?), Arc::new(Memory::new(bytes)?));
        worker.use_memory(Some(parameters.lend(bytes)), Some(gradient.lend(bytes)))?;
        let (worker, closing) = (Turns::new(Some(worker)), Closing::default());
        let (is_in_step, staging) = (AtomicBool::new(false), Mutex::new(None));
        let guard = ForkGuard::new();
        Ok(Working { worker, closing, parameters, gradient, bytes, is_in_step, gpu, staging, guard })
    }

    /// Copies the parameters of the step that is open into arrays.
    pub(crate) fn copy_parameters(
        &self,
        worker: &mut Worker<Mixed>,
        targets: &Targets,
    ) -> Result<(), Failure> {
        // SAFETY: the memory of the parameters has the bytes of the table, and no code writes it in a step.
        unsafe { targets.fill_from(self.parameters.pointer(), self.bytes) };
        let mut step = worker.resume()?;
        for (array, offset) in targets.on_gpu() {
            let (gpu, stream) = array.stream()?;
            step.copy_parameters_to_gpu(offset as u64, &array.memory(&gpu)?, &stream)?;
        }
        step.suspend();
        Ok(())
    }

    /// Copies the gradient of the step that is open out of arrays, or has a GPU do so.
    pub(crate) fn copy_gradient(
        &self,
        worker: &mut Worker<Mixed>,
        arrays: &[Given],
        layout: &Layout,
    ) -> Result<(), Failure> {
        let mut step = worker.resume()?;
        for (array, spec) in arrays.iter().zip(&layout.specs) {
            match array {
                // SAFETY: the memory of the gradient has the bytes of the table; the array is of another library.
                Given::Host(array) => unsafe { array.copy_to(self.gradient.pointer().add(spec.offset)) },
                Given::Gpu(array) if array.bytes() == 0 => {}
                Given::Gpu(array) => {
                    let (gpu, stream) = array.stream()?;
                    step.copy_gradient_from_gpu(spec.offset as u64, &array.memory(&gpu)?, &stream)?;
                }
            }
        }
        step.suspend();
        Ok(())
    }

    /// Begins to publish a gradient straight out of the worker's GPU; false if the arrays are not all on it, or do not
    /// have one stream.
    pub(crate) fn publish_from_gpu(
        &self,
        worker: &mut Worker<Mixed>,
        arrays: &[Given],
        layout: &Layout,
        loss: Option<f32>,
    ) -> Result<bool, Failure> {
        let (Some(gpu), Some(Given::Gpu(first))) = (&self.gpu, arrays.first()) else { return Ok(false) };
        let (ordinal, handle) = (gpu.ordinal, first.stream);
        let is_there = |array: &Given| match array {
            Given::Gpu(array) => (array.ordinal, array.stream) == (ordinal, handle),
            Given::Host(_) => false,
        };
        if !arrays.iter().all(is_there) {
            return Ok(false);
        }
        let (gpu, stream) = first.stream()?;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let staging = match &*staging {
            Some(memory) => memory.clone(),
            None => {
                let memory = staging.insert(GpuMemory::allocate(&gpu, self.bytes)?).clone();
                // Between the tensors of a table there may be bytes that are of none.
                stream.clear(&memory.whole())?;
                memory
            }
        };
        for (array, spec) in arrays.iter().zip(&layout.specs) {
            let Given::Gpu(array) = array else { continue };
            if array.bytes() == 0 {
                continue;
            }
            let into = staging.slice(spec.offset, array.bytes()).map_err(Error::from)?;
            stream.copy(&array.memory(&gpu)?, &into)?;
        }
        let step = worker.resume()?;
        match step.publish_from_gpu(&staging.whole(), &stream, loss, Duration::ZERO) {
            // It is on its way.
            Ok(()) | Err(Error::Deadline { .. } | Error::Gpu(GpuError::NotCopied { .. })) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Calls `with` on the worker, when other threads have left it.
    pub(crate) fn with<R>(
        &self,
        py: Python<'_>,
        operation: &'static str,
        deadline: Option<Deadline>,
        with: impl FnOnce(&mut Worker<Mixed>) -> PyResult<R>,
    ) -> PyResult<R> {
        crate::fork::check(self.guard, operation)?;
        match &mut *self.worker.wait(py, operation, deadline)? {
            Some(worker) => with(worker),
            None => Err(closed(operation).into()),
        }
    }

    /// The same at once, and without the interpreter's help; `None` if another thread is in a call of the worker.
    pub(crate) fn at_once<R>(
        &self,
        operation: &'static str,
        with: impl FnOnce(&mut Worker<Mixed>) -> Result<R, Failure>,
    ) -> Result<Option<R>, Failure> {
        crate::fork::check(self.guard, operation)?;
        let Some(mut worker) = self.worker.take() else { return Ok(None) };
        with(worker.as_mut().ok_or_else(|| closed(operation))?).map(Some)
    }
}

fn closed(operation: &str) -> Failure {
    Failure::out_of_turn(operation, "the worker is closed", "make a new one")
}

/// Gives up the step that is open, if one is.
pub(crate) fn abandon(worker: &mut Worker<Mixed>) -> Result<(), Failure> {
    match worker.resume() {
        Ok(step) => Ok(step.abandon()?),
        Err(_) => Ok(()),
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        // In a forked child its threads are not there, and its connections are the parent's.
        if self.guard.is_inherited() {
            std::mem::forget(self.worker.get_mut().take());
        }
    }
}

/// Waits so long at most until GPUs have copied what the step that is open was given.
pub(crate) fn copied(worker: &mut Worker<Mixed>, slice: Duration) -> Result<Option<()>, Failure> {
    let (deadline, mut backoff) = (Instant::now() + slice, Backoff::new());
    loop {
        let mut step = worker.resume()?;
        let is_copied = step.is_copied();
        step.suspend();
        match is_copied? {
            true => return Ok(Some(())),
            false if Instant::now() >= deadline => return Ok(None),
            false if worker.poll(now())? => backoff.reset(),
            false => backoff.wait(),
        }
    }
}
