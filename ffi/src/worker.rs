//! The worker: see [`slackline::Worker`].

use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use std::time::Duration;

use slackline::{Address, Step, Worker, now};

use crate::error::{Failure, slackline_status};
use crate::fabric::{Fabric, fabric};
use crate::gpu::on_gpu;
use crate::handle::{Handle, Out, OutArray, call, create, destroy, lend_text, opaque, slice, with};
use crate::memory::{Release, caller_memory, slackline_release};
use crate::options::{self, slackline_tensor, slackline_worker_options};
use crate::sized::{SizedOut, set_default, sized};
use crate::status::{slackline_staleness, slackline_worker_status};
use crate::table::Tensors;

/// Reads parameters and publishes gradients. One clock is: begin, compute on the parameters, write the gradient,
/// publish. A thread of its own tells the servers that it lives, however long it computes.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_worker(Handle<Working>);

/// A worker, with its servers' table and scheme as C reads them.
pub(crate) struct Working {
    pub(crate) worker: Worker<Fabric>,
    /// The step of this clock, as far as C knows.
    pub(crate) open: Open,
    tensors: Tensors,
    scheme: CString,
}

/// Whether a step is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// No step is open: it was published or abandoned, or none was begun.
    No,
    Yes,
    /// A step is open, and the slots for its gradient are lent.
    WithSlots,
}

impl Working {
    pub(crate) fn new(worker: Worker<Fabric>) -> Result<Working, Failure> {
        let tensors = Tensors::of(worker.table())?;
        let scheme = CString::new(worker.scheme().to_string()).unwrap_or_default();
        Ok(Working { worker, open: Open::No, tensors, scheme })
    }

    /// The open step. A call on it may end it.
    pub(crate) fn resume(&mut self) -> Result<Step<'_, Fabric>, Failure> {
        if self.open == Open::No {
            let message = "cannot go on with a step: no step is open: begin one first";
            return Err(Failure::new(slackline_status::OutOfTurn, message));
        }
        Ok(self.worker.resume()?)
    }

    /// The open step, to be published or abandoned.
    pub(crate) fn finish(&mut self) -> Result<Step<'_, Fabric>, Failure> {
        self.resume()?.suspend();
        self.open = Open::No;
        Ok(self.worker.resume()?)
    }

    pub(crate) fn reconnect(
        &mut self,
        connect: impl FnOnce(&mut Worker<Fabric>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.open = Open::No;
        connect(&mut self.worker)
    }
}

opaque!(slackline_worker: Working);

/// # Safety
///
/// `addresses` is as for [`slice`], and each is as for [`handle::text`](crate::handle::text).
pub(crate) unsafe fn read_addresses(
    addresses: *const *const c_char,
    count: usize,
) -> Result<Vec<Address>, Failure> {
    // SAFETY: the caller's promise.
    let addresses = unsafe { slice(addresses, count, "the array of addresses")? };
    // SAFETY: the caller's promise.
    addresses.iter().map(|address| unsafe { options::address(*address) }).collect()
}

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_options_init(
    options: *mut slackline_worker_options,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Connects to the servers of all shards, given in any order. Where no process listens at an address it waits for
/// one; if none comes within `timeout_ms` that is `SLACKLINE_STATUS_SYSTEM`. `SLACKLINE_STATUS_DEADLINE` says that a
/// server accepted the connection and did not answer: its owner has to call progress or serve. After either, call
/// again. The worker is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_connect(
    addresses: *const *const c_char,
    address_count: usize,
    options: *const slackline_worker_options,
    timeout_ms: u64,
    worker: *mut *mut slackline_worker,
) -> slackline_status {
    let connect = || {
        // SAFETY: the contract.
        let options = unsafe { sized(options, "options")? };
        let gpu = options.gpu;
        // SAFETY: the contract.
        let (secret, options) = unsafe {
            (options::secret(options.secret, options.secret_file, options.encrypt)?, options.translate()?)
        };
        // SAFETY: the contract.
        let servers = unsafe { read_addresses(addresses, address_count)? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let fabric = unsafe { on_gpu(fabric(secret, &servers)?, gpu)? };
        let worker = Worker::connect(fabric, &servers, options, timeout)?;
        Working::new(worker)
    };
    // SAFETY: the contract.
    unsafe { create(worker, connect) }
}

/// Leaves all servers and connects again, to the servers of all shards in any order: after
/// `SLACKLINE_STATUS_SERVER_LOST` or `SLACKLINE_STATUS_EVICTED`, or whenever the servers have other addresses. It
/// keeps trying while a server is not there yet. The worker goes on at the clock at which the servers are; begin
/// tells it. A gradient whose publishing had not returned was applied once or not at all, and is never sent again.
/// After a failure every call is out of turn until this one succeeds. Memory of `slackline_worker_use_memory` to
/// which a GPU still copies for the connections before is left to it: the worker goes on in memory of its own, which
/// begin gives, until it is given memory again. A worker of a job calls `slackline_job_reconnect` instead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_reconnect(
    worker: *mut slackline_worker,
    addresses: *const *const c_char,
    address_count: usize,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let servers = unsafe { read_addresses(addresses, address_count)? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        unsafe {
            with(worker, |working| working.reconnect(|worker| Ok(worker.reconnect(&servers, timeout)?)))
        }
    })
}

/// Lends the table of the servers, `count` tensors with their names and shapes. Valid, and unchanging, until this
/// worker is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_table(
    worker: *const slackline_worker,
    tensors: *mut *const slackline_tensor,
    count: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(tensors, count, "tensors")? };
        // The array is memory of its own behind the worker: other calls that borrow the worker do not touch it.
        let lend = |working: &mut Working| {
            let tensors = working.tensors.as_slice();
            Ok((tensors.as_ptr(), tensors.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(worker, lend)? });
        Ok(())
    })
}

/// Lends the name of the scheme that the servers and this worker keep, with its settings, as the field `scheme` takes
/// it. Valid until this worker is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_scheme(
    worker: *const slackline_worker,
    scheme: *mut *const c_char,
) -> slackline_status {
    // SAFETY: the contract.
    unsafe { lend_text(worker, scheme, "scheme", |working| &working.scheme) }
}

/// Writes the present state to `status`. `status->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_get_status(
    worker: *const slackline_worker,
    status: *mut slackline_worker_status,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { SizedOut::new(status, "status")? };
        // SAFETY: the contract.
        out.set(unsafe { with(worker, |working| Ok(slackline_worker_status::of(&working.worker)))? });
        Ok(())
    })
}

/// Writes to `staleness` how stale the parameters were on which this worker computed its gradients since it connected
/// first. `staleness->size` must be set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_get_staleness(
    worker: *const slackline_worker,
    staleness: *mut slackline_staleness,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { SizedOut::new(staleness, "staleness")? };
        // SAFETY: the contract.
        out.set(unsafe { with(worker, |working| Ok(slackline_staleness::of(&working.worker)))? });
        Ok(())
    })
}

/// Drives a gradient forward that is on its way, without waiting: it is called between pieces of a computation, for
/// gradients that `slackline_worker_publish` with a `timeout_ms` of 0 began to publish.
/// `progressed`, unless NULL, becomes 1 if it got anywhere and 0 if not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_progress(
    worker: *mut slackline_worker,
    progressed: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { Out::wanted(progressed, "progressed")? };
        // SAFETY: the contract.
        let progress = unsafe { with(worker, |working| Ok(working.worker.poll(now())?))? };
        out.into_iter().for_each(|out| out.set(progress.into()));
        Ok(())
    })
}

/// Has the worker copy parameters into memory of the caller's from now on, and take gradients out of it, where it
/// lies; either may be NULL. There are `parameter_bytes` from `parameters` on, as many as the table has, and
/// `gradient_bytes` from `gradient` on, as many as a gradient has in its encoding. Both are multiples of 8 and do not
/// overlap, and over RDMA they are registered with the device. The parameters that the worker holds are copied there
/// now. It is an error while a step is open.
///
/// The memory stays valid until `release` (which may be NULL) is called with `context`: when other memory was given,
/// or the worker was destroyed, and no request uses either any more. Until then no other code reads or writes the
/// parameters but while a step is open, nor the gradient from the moment when it is published until that has ended.
/// After a failure `release` was called, and the worker has the memory that it had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_use_memory(
    worker: *mut slackline_worker,
    parameters: *mut c_void,
    parameter_bytes: usize,
    gradient: *mut c_void,
    gradient_bytes: usize,
    release: slackline_release,
    context: *mut c_void,
) -> slackline_status {
    let owner = Arc::new(Release::new(release, context));
    call(|| {
        // SAFETY: the contract.
        let parameters = unsafe { caller_memory(parameters, parameter_bytes, Arc::clone(&owner)) };
        // SAFETY: the contract.
        let gradient = unsafe { caller_memory(gradient, gradient_bytes, owner) };
        let take = |working: &mut Working| match working.open {
            Open::No => Ok(working.worker.use_memory(parameters, gradient)?),
            Open::Yes | Open::WithSlots => Err(Failure::new(
                slackline_status::OutOfTurn,
                "cannot take other memory now: a step is open; publish or abandon it first",
            )),
        };
        // SAFETY: the contract.
        unsafe { with(worker, take) }
    })
}

/// Waits until every server has folded in, or dropped, all published gradients of this worker: call it before you
/// destroy a worker whose last gradients count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_flush(
    worker: *mut slackline_worker,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        unsafe { with(worker, |working| Ok(working.worker.flush(timeout)?)) }
    })
}

/// Leaves the job. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_destroy(worker: *mut slackline_worker) {
    // SAFETY: the contract.
    unsafe { destroy(worker) };
}
