//! The worker: see [`slackline::Worker`].

use std::ffi::c_char;
use std::time::Duration;

use slackline::{Step, Worker};

use crate::error::{Failure, slackline_status};
use crate::fabric::{Fabric, fabric};
use crate::handle::{Handle, Opaque, Out, call, destroy, give, slice, value, with};
use crate::options::{self, slackline_view, slackline_worker_options};
use crate::sized::{SizedOut, sized};

/// Reads parameters and publishes gradients. One clock is: begin, compute on the parameters, write the gradient,
/// publish. A thread of its own tells the servers that it lives, however long it computes.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_worker(Handle<Worker<Fabric>>);

impl Opaque for slackline_worker {
    type Value = Worker<Fabric>;
    fn wrap(handle: Handle<Worker<Fabric>>) -> Self {
        slackline_worker(handle)
    }
    fn handle(&self) -> &Handle<Worker<Fabric>> {
        &self.0
    }
}

/// Lends the open step of the worker to `operation`. It stays open: the state of a C program's step is in the worker.
///
/// # Safety
///
/// As for [`with`].
unsafe fn with_step<R>(
    worker: *const slackline_worker,
    operation: impl FnOnce(&mut Step<'_, Fabric>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let in_step = |worker: &mut Worker<Fabric>| {
        let mut step = worker.resume()?;
        let result = operation(&mut step);
        step.suspend();
        result
    };
    // SAFETY: the contract.
    unsafe { with(worker, in_step) }
}

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_options_init(
    options: *mut slackline_worker_options,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        unsafe { SizedOut::new(options, "options")? }.set(slackline_worker_options::default());
        Ok(())
    })
}

/// Connects to the servers of all shards, given in any order. Where no process listens at an address it waits for one;
/// if none comes within `timeout_ms` that is `SLACKLINE_STATUS_SYSTEM`. `SLACKLINE_STATUS_DEADLINE` says that a server
/// accepted the connection and did not answer: its owner has to call progress or serve. After either, call again. The
/// worker is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_connect(
    addresses: *const *const c_char,
    address_count: usize,
    options: *const slackline_worker_options,
    timeout_ms: u64,
    worker: *mut *mut slackline_worker,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { Out::new(worker, "worker")? };
        place.set(std::ptr::null_mut());
        // SAFETY: the contract.
        let options = unsafe { sized(options, "options")? };
        // SAFETY: the contract.
        let (secret, options) =
            unsafe { (options::secret(options.secret, options.secret_file)?, options.translate()?) };
        let mut servers = Vec::new();
        // SAFETY: the contract.
        for address in unsafe { slice(addresses, address_count, "the array of addresses")? } {
            // SAFETY: the contract.
            servers.push(unsafe { options::address(*address)? });
        }
        let timeout = Duration::from_millis(timeout_ms);
        place.set(give(Worker::connect(fabric(secret, &servers)?, &servers, options, timeout)?));
        Ok(())
    })
}

/// Brings the parameters for the next gradient, waiting as the scheme says. `view`, unless NULL, is told what they are;
/// `view->size` must be set. After `SLACKLINE_STATUS_DEADLINE` it may be called again and goes on where it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_begin(
    worker: *mut slackline_worker,
    view: *mut slackline_view,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { SizedOut::wanted(view, "view")? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let view = unsafe { with(worker, |worker| Ok(worker.step(timeout)?.suspend()))? };
        if let Some(place) = place {
            place.set(slackline_view {
                size: size_of::<slackline_view>(),
                clock: view.clock.0,
                version: view.version.0,
                smallest_clock: view.smallest_clock.0,
                staleness: view.staleness(),
                behind: view.behind,
                retries: view.retries,
            });
        }
        Ok(())
    })
}

/// The parameters that `slackline_worker_begin` brought, as one flat array of the whole table; `len` is how many.
/// Valid, and unchanging, until the next begin, publish, flush or destroy of this worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_parameters(
    worker: *const slackline_worker,
    parameters: *mut *const f32,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (place, len) = unsafe { (Out::new(parameters, "parameters")?, Out::new(len, "len")?) };
        // The array is memory of its own behind the worker: other calls that borrow the worker do not touch it.
        let lend = |step: &mut Step<'_, Fabric>| {
            let parameters = step.parameters()?;
            let whole = (step.worker().table().bytes() / 4) as usize;
            Ok((parameters.as_ptr(), parameters.len().min(whole)))
        };
        // SAFETY: the contract.
        let (pointer, count) = unsafe { with_step(worker, lend)? };
        place.set(pointer);
        len.set(count);
        Ok(())
    })
}

/// Where to write the gradient of the whole table, if it travels as f32; `len` is how many values. It holds what was
/// written there last. Call it after begin. Valid until the next begin, publish, flush or destroy of this worker.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_gradient(
    worker: *mut slackline_worker,
    gradient: *mut *mut f32,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (place, len) = unsafe { (Out::new(gradient, "gradient")?, Out::new(len, "len")?) };
        let lend = |step: &mut Step<'_, Fabric>| {
            let whole = (step.worker().table().bytes() / 4) as usize;
            let gradient = step.gradient()?;
            Ok((gradient.as_mut_ptr(), gradient.len().min(whole)))
        };
        // SAFETY: the contract.
        let (pointer, count) = unsafe { with_step(worker, lend)? };
        place.set(pointer);
        len.set(count);
        Ok(())
    })
}

/// Rounds a gradient of the whole table, `len` values, to the worker's encoding, ready to be published: instead of
/// writing to `slackline_worker_gradient`. It is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_encode(
    worker: *mut slackline_worker,
    gradient: *const f32,
    len: usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let gradient = unsafe { slice(gradient, len, "gradient")? };
        // SAFETY: the contract.
        unsafe { with_step(worker, |step| Ok(step.encode(gradient)?)) }
    })
}

/// Publishes the gradient, waiting for free slots. `loss` is told to the servers, unless NULL. When it returns
/// `SLACKLINE_STATUS_OK`, every server has the gradient whole. After `SLACKLINE_STATUS_DEADLINE` it is still on its
/// way: the next begin finishes it, and publishing again before that is out of turn.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_publish(
    worker: *mut slackline_worker,
    loss: *const f32,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let loss = unsafe { value(loss, "loss")? };
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        unsafe { with(worker, |worker| Ok(worker.resume()?.publish(loss, timeout)?)) }
    })
}

/// Sets `stop` to 1 if a server has asked that this worker abandon what it computes, because newer parameters are worth
/// more (schemes "dbw" and "abs"), and to 0 if not. Never waits and costs next to nothing over shared memory, so that
/// it can be asked in the midst of a computation; over TCP and RDMA a request is heard of with the second question
/// after it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_should_stop(
    worker: *mut slackline_worker,
    stop: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let place = unsafe { Out::new(stop, "stop")? };
        // SAFETY: the contract.
        place.set(unsafe { with_step(worker, |step| Ok(step.should_stop()?))? }.into());
        Ok(())
    })
}

/// Abandons the computation of this clock: nothing of it is published, and the next begin brings parameters for the
/// same clock that are no older than the servers asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_abandon(worker: *mut slackline_worker) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe { with(worker, |worker| Ok(worker.resume()?.abandon()?)) })
}

/// Waits until every server has folded in, or dropped, all that this worker has published: call it before a worker
/// whose last gradients count is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_flush(
    worker: *mut slackline_worker,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        unsafe { with(worker, |worker| Ok(worker.flush(timeout)?)) }
    })
}

/// Leaves the job. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_destroy(worker: *mut slackline_worker) {
    // SAFETY: the contract.
    unsafe { destroy(worker) };
}
