//! A GPU of this process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::driver::{Context, Driver};
use super::kernels::KernelModule;
use super::library::DriverLibrary;
use super::queue::GpuQueue;
use super::sys::{CAPTURE_MODE_RELAXED, Code};
use super::{GpuError, GpuSlice};
use crate::mem::ForkGuard;

/// The oldest driver: the one of CUDA 12.0, as 1000 times the major number and 10 times the minor one.
const OLDEST_DRIVER: i32 = 12000;

pub(super) fn expect_version(version: i32) -> Result<(), GpuError> {
    if version < OLDEST_DRIVER { Err(GpuError::OldDriver { version }) } else { Ok(()) }
}

/// A GPU. Clones are the same GPU, and `open` returns the same one again for its ordinal while a clone of it lives.
///
/// It uses the primary context of the device, as the CUDA runtime and PyTorch do. The context is current
/// on the calling thread only within calls of this library. Copies run on three streams of its own, one for each
/// direction and one for copies within its memory, and folds on a fourth, in the order of the calls: a copy that
/// waits for a busy stream of the caller's holds up the copies behind it. No call that begins a copy waits for it.
/// The driver itself may hold up a call: the first one for a table locks its memory, which takes seconds for many
/// gigabytes, and a stream takes a thousand commands or so before the next has to wait (1,021 on an H200).
///
/// The driver's library is opened by the first call, at run time; a program runs where there is none.
///
/// ```
/// use slackline::gpu::Gpu;
/// match Gpu::open(0) {
///     Ok(gpu) => println!("{}", gpu.name()),
///     Err(error) => println!("{error}"), // cannot open libcuda.so.1: ...
/// }
/// ```
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<GpuInner>,
    /// Nothing stages payloads of this handle and its clones.
    requires_gpudirect: bool,
}

pub(super) struct GpuInner {
    // Dropped in order of declaration: the queues first, as they use the context.
    pub(super) out: GpuQueue,
    pub(super) into: GpuQueue,
    pub(super) within: GpuQueue,
    pub(super) folds: GpuQueue,
    /// The kernels, once something was to be launched.
    module: Mutex<Option<Arc<KernelModule>>>,
    pub(super) primary: PrimaryContext,
    /// Bytes of payloads that went through blocks of host memory.
    pub(super) staged: AtomicU64,
    /// True if the writes of RDMA devices to its memory have to be made visible to it.
    pub(super) flushes: AtomicBool,
    name: String,
}

/// A device with its context, as the parts of a [`Gpu`] share it.
#[derive(Clone)]
pub(super) struct PrimaryContext(Arc<PrimaryInner>);

struct PrimaryInner {
    driver: Arc<dyn Driver>,
    ordinal: u32,
    device: i32,
    context: Context,
    born: ForkGuard,
}

impl PrimaryContext {
    fn open(driver: Arc<dyn Driver>, ordinal: u32) -> Result<PrimaryContext, GpuError> {
        let of = GpuError::of;
        expect_version(driver.version().map_err(|code| of("asking for the driver's version", code))?)?;
        let count = driver.device_count().map_err(|code| of("counting GPUs", code))?;
        let count = u32::try_from(count).unwrap_or(0);
        if ordinal >= count {
            return Err(GpuError::NoDevice { ordinal, count });
        }
        let opening = |code| GpuError::of_device("opening a GPU", ordinal, code);
        let device = driver.device(ordinal as i32).map_err(opening)?;
        let context = driver.retain_primary_context(device).map_err(opening)?;
        let born = ForkGuard::new();
        Ok(PrimaryContext(Arc::new(PrimaryInner { driver, ordinal, device, context, born })))
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    pub(super) fn device(&self) -> i32 {
        self.0.device
    }

    pub(super) fn context(&self) -> Context {
        self.0.context
    }

    #[cfg(test)]
    pub(super) fn driver(&self) -> &dyn Driver {
        &*self.0.driver
    }

    /// Calls the driver with the context current.
    pub(super) fn call<R>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&dyn Driver) -> Result<R, Code>,
    ) -> Result<R, GpuError> {
        self.within(|driver| call(driver).map_err(|code| self.error(operation, code)))
    }

    /// The same for several calls, each of which names itself in its error.
    pub(super) fn within<R>(
        &self,
        calls: impl FnOnce(&dyn Driver) -> Result<R, GpuError>,
    ) -> Result<R, GpuError> {
        if self.0.born.is_inherited() {
            return Err(GpuError::Forked);
        }
        let driver = &*self.0.driver;
        driver.push_context(self.0.context).map_err(|code| self.error("making the context current", code))?;
        // A program that captures a graph, in this thread or in another, is not disturbed by the calls.
        let mode = driver.exchange_capture_mode(CAPTURE_MODE_RELAXED);
        let result = mode.map_err(|code| self.error("leaving captures alone", code)).and_then(|mode| {
            let result = calls(driver);
            if let Err(Code(code)) = driver.exchange_capture_mode(mode) {
                tracing::warn!(code, "cannot restore the mode of captures of this thread");
            }
            result
        });
        // The driver cannot take the context away only where the process is at its end.
        if let Err(Code(code)) = driver.pop_context() {
            tracing::warn!(code, "cannot restore the CUDA context that was current");
        }
        result
    }

    /// True if both are of one driver, as all of a process are.
    pub(super) fn has_driver_of(&self, other: &PrimaryContext) -> bool {
        Arc::as_ptr(&self.0.driver).addr() == Arc::as_ptr(&other.0.driver).addr()
    }

    pub(super) fn error(&self, operation: &'static str, code: Code) -> GpuError {
        GpuError::of_device(operation, self.0.ordinal, code)
    }

    /// Gives something back. At the end of a process the driver may be gone already, and a forked child has none.
    pub(super) fn give_back(
        &self,
        operation: &'static str,
        call: impl FnOnce(&dyn Driver) -> Result<(), Code>,
    ) {
        match self.call(operation, call) {
            Ok(()) | Err(GpuError::Forked) => {}
            Err(GpuError::Driver { code, .. }) if Code(code) == Code::DEINITIALIZED => {}
            Err(error) => tracing::warn!(%error, "memory or handles of a GPU are not given back"),
        }
    }
}

impl Drop for PrimaryInner {
    fn drop(&mut self) {
        if self.born.is_inherited() {
            return;
        }
        match self.driver.release_primary_context(self.device) {
            Ok(()) | Err(Code::DEINITIALIZED) => {}
            Err(Code(code)) => tracing::warn!(code, gpu = self.ordinal, "cannot release the primary context"),
        }
    }
}

impl Gpu {
    /// Opens the GPU of this ordinal, from 0 on, as CUDA counts (`CUDA_VISIBLE_DEVICES`).
    ///
    /// # Errors
    /// There is no driver of CUDA 12.0 or later, no such GPU, or the driver refuses it.
    pub fn open(ordinal: u32) -> Result<Gpu, GpuError> {
        Gpu::of(DriverLibrary::get()?, ordinal)
    }

    /// The one of this ordinal of a driver, which is open or is opened.
    fn of(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Gpu, GpuError> {
        static OPEN: Mutex<BTreeMap<(usize, u32), Weak<GpuInner>>> = Mutex::new(BTreeMap::new());
        let key = (Arc::as_ptr(&driver).addr(), ordinal);
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // An open GPU keeps its driver, so that no other driver has the same address.
        if let Some(inner) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(Gpu { inner, requires_gpudirect: false });
        }
        let gpu = Gpu::with_driver(driver, ordinal)?;
        open.insert(key, Arc::downgrade(&gpu.inner));
        Ok(gpu)
    }

    /// Another GPU of this process.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) fn sibling(&self, ordinal: u32) -> Result<Gpu, GpuError> {
        Gpu::of(self.inner.primary.0.driver.clone(), ordinal)
    }

    pub(super) fn with_driver(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Gpu, GpuError> {
        let primary = PrimaryContext::open(driver, ordinal)?;
        let name =
            primary.call("asking for the name of a GPU", |driver| driver.device_name(primary.device()))?;
        let queue = || GpuQueue::new(&primary);
        let (out, into, within, folds) = (queue()?, queue()?, queue()?, queue()?);
        tracing::debug!(gpu = ordinal, name, "opened a GPU");
        let (module, staged) = (Mutex::default(), AtomicU64::new(0));
        let inner = Arc::new(GpuInner {
            out,
            into,
            within,
            folds,
            module,
            primary,
            staged,
            flushes: AtomicBool::new(false),
            name,
        });
        Ok(Gpu { inner, requires_gpudirect: false })
    }

    /// The same for transports that reach its memory directly. A transport that would have to stage payloads through
    /// host memory does not listen or connect with this GPU, and says why
    /// ([`ConnectError::Staged`](crate::ConnectError::Staged)); a job passes it over.
    ///
    /// ```no_run
    /// # use slackline::gpu::Gpu;
    /// # use slackline::{Job, JobPlan};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Gpu::open(0)?.require_gpudirect();
    /// let job = Job::from_env(JobPlan::servers(1))?.with_gpu(&gpu);
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_gpudirect(self) -> Gpu {
        Gpu { requires_gpudirect: true, ..self }
    }

    /// True if payloads may not be staged.
    pub(crate) fn requires_gpudirect(&self) -> bool {
        self.requires_gpudirect
    }

    /// Number of GPUs that this process sees.
    ///
    /// # Errors
    /// There is no driver of CUDA 12.0 or later.
    pub fn count() -> Result<u32, GpuError> {
        let count =
            DriverLibrary::get()?.device_count().map_err(|code| GpuError::of("counting GPUs", code))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The ordinal by which it was opened.
    pub(crate) fn ordinal(&self) -> u32 {
        self.inner.primary.ordinal()
    }

    /// The name of the model.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Bytes of payloads that connections have carried through blocks of host memory since it was opened, because the
    /// network does not reach its memory. 0 where copy engines of GPUs alone move payloads.
    pub fn host_bytes_copied(&self) -> u64 {
        self.inner.staged.load(Relaxed)
    }

    pub(super) fn inner(&self) -> &GpuInner {
        &self.inner
    }

    /// The kernels, which the first call loads; the driver may have to compile them.
    pub(super) fn module(&self) -> Result<Arc<KernelModule>, GpuError> {
        let mut module = self.inner.module.lock().unwrap_or_else(PoisonError::into_inner);
        match &*module {
            Some(module) => Ok(module.clone()),
            None => Ok(module.insert(Arc::new(KernelModule::load(&self.inner.primary)?)).clone()),
        }
    }

    /// Checks that memory is of this GPU.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn expect(&self, memory: &GpuSlice) -> Result<(), GpuError> {
        let (own, other) = (&self.inner.primary, memory.primary());
        match own.context() == other.context() {
            true => Ok(()),
            false => {
                let (pointer, ordinal, found) = (memory.pointer(), own.ordinal(), other.ordinal());
                Err(GpuError::OtherDevice { pointer, ordinal, found })
            }
        }
    }

    /// True if both have the same streams for copies.
    pub(crate) fn is(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("ordinal", &self.ordinal()).field("name", &self.name()).finish()
    }
}
