//! Memory of GPUs: see [`slackline::gpu::Gpu`], [`slackline::gpu::GpuMemory`] and [`slackline::gpu::GpuStream`].

use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

use slackline::Step;
use slackline::gpu::{Gpu, GpuError, GpuMemory, GpuSlice, GpuStream};
use slackline::weights::Wanted;

use crate::error::{Failure, slackline_status};
use crate::fabric::Fabric;
use crate::handle::{Handle, Out, call, create, destroy, lend_text, opaque, value, with};
use crate::memory::{Release, slackline_release};
use crate::publisher::{Publishing, slackline_publisher};
use crate::reader::slackline_reader;
use crate::status::slackline_fresh;
use crate::step::with_step;
use crate::weights::slackline_snapshot;
use crate::worker::{Working, slackline_worker};

/// A GPU of this process, in the context that the CUDA runtime uses. Objects that are made with it keep it.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_gpu(Handle<Opened>);

/// A GPU, and its name as C reads it.
pub(crate) struct Opened {
    gpu: Gpu,
    name: CString,
}

opaque!(slackline_gpu: Opened);

/// Opens a GPU by its number, from 0 on, as CUDA counts (`CUDA_VISIBLE_DEVICES`). The NVIDIA driver, of CUDA 12.0
/// or later, is looked for at this call; `SLACKLINE_STATUS_UNSUPPORTED` says that it or the GPU is not there, and
/// the message why. If `require_gpudirect` is not 0, no payload of an object that is made with this handle is
/// staged through the memory of the host: where nothing else is left, making the object is
/// `SLACKLINE_STATUS_UNSUPPORTED`. The call takes the time that the driver takes. The handle is the caller's, to be
/// destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_gpu_open(
    ordinal: u32,
    require_gpudirect: u32,
    gpu: *mut *mut slackline_gpu,
) -> slackline_status {
    let open = || {
        let gpu = Gpu::open(ordinal)?;
        let name = CString::new(gpu.name()).unwrap_or_default();
        let gpu = if require_gpudirect == 0 { gpu } else { gpu.require_gpudirect() };
        Ok(Opened { gpu, name })
    };
    // SAFETY: the contract.
    unsafe { create(gpu, open) }
}

/// Lends the name of the model. It is valid until the handle is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_gpu_name(
    gpu: *const slackline_gpu,
    name: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(gpu, name, "name", |opened| &opened.name) }
}

/// Sets `bytes` to the number of payload bytes that connections have carried through blocks of host memory since the
/// GPU was opened, because the network does not reach its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_gpu_host_bytes_copied(
    gpu: *const slackline_gpu,
    bytes: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::new(bytes, "bytes")? };
        // SAFETY: the contract.
        out.set(unsafe { with(gpu, |opened| Ok(opened.gpu.host_bytes_copied()))? });
        Ok(())
    })
}

/// Lets go of the handle. The GPU is closed once no object and no copy uses it any more. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_gpu_destroy(gpu: *mut slackline_gpu) {
    // SAFETY: the contract.
    unsafe { destroy(gpu) };
}

/// A range of memory of a GPU, and the stream with which its copies are ordered.
///
/// The range stays allocated until `release` is called: once, also if the call that it is given to fails, when no copy
/// uses it any more. That a copy is over which nothing waits for is noticed by the next copy of that GPU the same way,
/// or when the GPU is closed: no program should wait for `release`. Neither `pointer` nor `bytes` need any alignment.
/// Where it is for the frames of a publisher, `gpu_memory` of its options says when `release` is called.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct slackline_gpu_range {
    /// The GPU that the memory is on. A call that is given the range uses the handle: threads open one each.
    pub gpu: *const slackline_gpu,
    /// The address of the first byte: of `cudaMalloc`, `cuMemCreate` or a tensor.
    pub pointer: u64,
    /// Length in bytes, at least 1.
    pub bytes: usize,
    /// A `cudaStream_t` or `CUstream` of the context that the CUDA runtime uses, which lives until the call returns;
    /// NULL is the default stream. The default stream of each thread is not taken.
    pub stream: *mut c_void,
    /// May be NULL.
    pub release: slackline_release,
    /// The argument of `release`.
    pub context: *mut c_void,
}

/// The default stream of whichever thread calls.
const PER_THREAD: usize = 2;

/// A range that was taken over: its `release` is called in any case.
pub(crate) struct Taken {
    range: slackline_gpu_range,
    owner: Release,
}

impl Taken {
    /// Takes a range over, unless it is NULL.
    ///
    /// # Safety
    ///
    /// `range` is NULL, or points at a range that is as its comment says.
    pub(crate) unsafe fn new(
        range: *const slackline_gpu_range,
        what: &str,
    ) -> Result<Option<Taken>, Failure> {
        // SAFETY: the caller's promise.
        let range = unsafe { value(range, what)? };
        Ok(range.map(|range| Taken { range, owner: Release::new(range.release, range.context) }))
    }

    /// The memory, and the stream, which is used within the call alone that was given the range.
    pub(crate) fn open(self) -> Result<(GpuMemory, GpuStream), Failure> {
        let Taken { range, owner } = self;
        let handle = range.stream.expose_provenance();
        if handle == PER_THREAD {
            let message =
                "the range's stream is the default stream of each thread: give a stream of its own, or NULL";
            return Err(Failure::bad_argument(message));
        }
        // SAFETY: the promise given to `new`.
        let gpu = unsafe { with(range.gpu, |opened| Ok(opened.gpu.clone()))? };
        // SAFETY: as above; the stream is used within the call, and every user of the memory keeps the owner.
        unsafe {
            let stream = GpuStream::of_caller(&gpu, handle)?;
            Ok((GpuMemory::of_caller(&gpu, range.pointer, range.bytes, owner)?, stream))
        }
    }
}

/// Takes a range over, and calls `with` on it.
///
/// # Safety
///
/// As for [`Taken::new`].
unsafe fn taken<R>(
    range: *const slackline_gpu_range,
    with_range: impl FnOnce(&GpuSlice, &GpuStream) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: the caller's promise.
    let taken = unsafe { Taken::new(range, "range")? }.ok_or_else(|| Failure::null("range"))?;
    let (memory, stream) = taken.open()?;
    with_range(&memory.whole(), &stream)
}

/// The transports with the GPU that options name, if they name one.
///
/// # Safety
///
/// `gpu` is NULL or as for [`with`].
pub(crate) unsafe fn on_gpu(fabric: Fabric, gpu: *const slackline_gpu) -> Result<Fabric, Failure> {
    if gpu.is_null() {
        return Ok(fabric);
    }
    // SAFETY: the caller's promise.
    unsafe { with(gpu, |opened| Ok(fabric.with_gpu(&opened.gpu))) }
}

/// The GPU that options name, if they name one.
///
/// # Safety
///
/// `gpu` is NULL or as for [`with`].
pub(crate) unsafe fn named(gpu: *const slackline_gpu) -> Result<Option<Gpu>, Failure> {
    if gpu.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { with(gpu, |opened| Ok(Some(opened.gpu.clone()))) }
}

/// Refuses options with a GPU where none is taken.
pub(crate) fn expect_none(gpu: *const slackline_gpu, what: &str) -> Result<(), Failure> {
    match gpu.is_null() {
        true => Ok(()),
        false => Err(Failure::bad_argument(format!("{what} cannot have a GPU: leave options->gpu NULL"))),
    }
}

/// Has the GPU copy a range into the next version, from the byte `offset` of the table on, behind the work that the
/// stream has now, and does not wait for it. The stream does not wait either: the range stays as it is until
/// `slackline_publisher_commit_when_copied` has told the version. The first call for a version waits as
/// `slackline_publisher_begin` does, and for the copies of the version before. `slackline_publisher_abort` gives the
/// version up. For publishers with `background` in their options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_copy_from_gpu(
    publisher: *mut slackline_publisher,
    offset: u64,
    range: *const slackline_gpu_range,
    timeout_ms: u64,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    // SAFETY: the contract.
    call(|| unsafe {
        taken(range, |from, stream| {
            with(publisher, |publishing| publishing.copy_from_gpu(offset, from, stream, timeout))
        })
    })
}

/// Publishes the version that `slackline_publisher_copy_from_gpu` and `slackline_publisher_begin` have begun once GPUs
/// have copied all of it, and waits for that; `version`, unless NULL, becomes its number. `SLACKLINE_STATUS_DEADLINE`
/// says that it is not copied yet: it will be published once it is, and the same call waits for that again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_publisher_commit_when_copied(
    publisher: *mut slackline_publisher,
    timeout_ms: u64,
    version: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::wanted(version, "version")? };
        let timeout = Duration::from_millis(timeout_ms);
        let commit = |publishing: &mut Publishing| publishing.commit_when_copied(timeout);
        // SAFETY: the contract.
        let version = unsafe { with(publisher, commit)? };
        out.into_iter().for_each(|out| out.set(version.get()));
        Ok(())
    })
}

/// Copies a version that is at most `max_staleness` versions behind the newest to a range of a GPU, which is as long as
/// a copy, behind the work that the stream has now. Later work of the stream sees this version, which `fresh`, unless
/// NULL, describes; `fresh->size` must be set. The GPU or an RDMA device copies straight out of the owner's memory;
/// over TCP, and by RDMA whose devices do not reach the GPU, it comes by way of blocks of host memory. For readers
/// with `gpu` in their options. After a failure the range may hold anything.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_reader_pull_to_gpu(
    reader: *mut slackline_reader,
    range: *const slackline_gpu_range,
    max_staleness: u64,
    timeout_ms: u64,
    fresh: *mut slackline_fresh,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    let wanted = Wanted::newest().max_staleness(max_staleness);
    // SAFETY: the contract.
    call(|| unsafe {
        taken(range, |into, stream| {
            crate::reader::read(reader, (wanted, false), fresh, |reader| {
                Ok(reader.pull_to_gpu(wanted, into, stream, timeout)?)
            })
        })
    })
}

/// Has the GPU copy the bytes of a snapshot from `offset` on to a range, behind the work that the stream has now. Later
/// work of the stream waits for the copy. It returns at once, and the snapshot may be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_snapshot_copy_to_gpu(
    snapshot: *const slackline_snapshot,
    offset: u64,
    range: *const slackline_gpu_range,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe {
        taken(range, |into, stream| {
            with(snapshot, |held| {
                held.snapshot.copy_to_gpu(offset, into, stream).map_err(Failure::of_own_range)
            })
        })
    })
}

/// Has the GPU copy the parameters of the open step, from the byte `offset` of the table on, to a range, behind the
/// work that the stream has now. Later work of the stream waits for the copy. It returns at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_copy_parameters_to_gpu(
    worker: *mut slackline_worker,
    offset: u64,
    range: *const slackline_gpu_range,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe {
        taken(range, |into, stream| {
            with_step(worker, |step: &mut Step<'_, Fabric>| {
                step.copy_parameters_to_gpu(offset, into, stream).map_err(Failure::of_own_range)
            })
        })
    })
}

/// Has the GPU copy a range into the gradient of the open step, from the byte `offset` on of the whole gradient in the
/// worker's encoding, behind the work that the stream has now, and does not wait for it. The stream does not wait
/// either: the range stays as it is until `slackline_worker_publish` has returned, which waits for the copy, and
/// abandons the step if it is not done by its timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_copy_gradient_from_gpu(
    worker: *mut slackline_worker,
    offset: u64,
    range: *const slackline_gpu_range,
) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe {
        taken(range, |from, stream| {
            with_step(worker, |step: &mut Step<'_, Fabric>| {
                step.copy_gradient_from_gpu(offset, from, stream).map_err(Failure::of_own_range)
            })
        })
    })
}

/// Publishes the gradient that is in a range, the whole of it in the worker's encoding, straight out of memory of the
/// GPU, behind the work that the stream has now; otherwise as `slackline_worker_publish` under schemes other than
/// "bap". When it returns `SLACKLINE_STATUS_OK` the range may change; the stream does not wait. For workers with `gpu`
/// in their options, or in the options of their job.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_publish_from_gpu(
    worker: *mut slackline_worker,
    range: *const slackline_gpu_range,
    loss: *const f32,
    timeout_ms: u64,
) -> slackline_status {
    let timeout = Duration::from_millis(timeout_ms);
    // SAFETY: the contract.
    call(|| unsafe {
        taken(range, |from, stream| {
            let loss = value(loss, "loss")?;
            let publish = |working: &mut Working| {
                // A step that this cannot be the gradient of stays open.
                let step = working.resume()?;
                let fits = step.expect_gradient(from.bytes());
                step.suspend();
                fits?;
                Ok(working.finish()?.publish_from_gpu(from, stream, loss, timeout)?)
            };
            with(worker, publish)
        })
    })
}

impl From<GpuError> for Failure {
    fn from(error: GpuError) -> Failure {
        Failure::of(gpu_status(&error), &error)
    }
}

pub(crate) fn gpu_status(error: &GpuError) -> slackline_status {
    use slackline_status as Status;
    match error {
        GpuError::NoDriver { .. }
        | GpuError::OldDriver { .. }
        | GpuError::StubDriver
        | GpuError::NoSymbol { .. }
        | GpuError::NoDevice { .. }
        | GpuError::NotDirect { .. }
        | GpuError::OnGpu { .. } => Status::Unsupported,
        GpuError::NotOnDevice { .. }
        | GpuError::OtherDevice { .. }
        | GpuError::BeyondAllocation { .. }
        | GpuError::OtherContext { .. }
        | GpuError::Empty => Status::BadArgument,
        GpuError::Capturing | GpuError::Forked => Status::OutOfTurn,
        GpuError::NotCopied { .. } => Status::Deadline,
        GpuError::OutOfMemory { .. } | GpuError::Host { .. } => Status::Memory,
        GpuError::Faulted { .. } | GpuError::Driver { .. } => Status::System,
        _ => Status::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_is_unsupported_and_other_memory_an_argument() {
        let reason = "no such file".into();
        assert_eq!(Failure::from(GpuError::NoDriver { reason }).status, slackline_status::Unsupported);
        assert_eq!(Failure::from(GpuError::Empty).status, slackline_status::BadArgument);
        let late = slackline::Error::from(GpuError::NotCopied { waited: Duration::ZERO, cause: None });
        assert_eq!(Failure::from(late).status, slackline_status::Deadline);
        let capturing = slackline::Error::from(GpuError::Capturing);
        assert_eq!(Failure::from(capturing).status, slackline_status::OutOfTurn);
    }
}
