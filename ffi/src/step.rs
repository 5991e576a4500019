//! One clock of a worker: see [`slackline::Step`].

use std::ffi::c_void;
use std::time::Duration;

use slackline::Step;

use crate::error::{Failure, slackline_status};
use crate::fabric::Fabric;
use crate::handle::{Out, OutArray, call, slice, value, with};
use crate::sized::SizedOut;
use crate::status::slackline_view;
use crate::worker::{Open, Working, slackline_worker};

/// Lends the open step of the worker to `operation`. It stays open: the state of a C program's step is in the worker.
///
/// # Safety
///
/// As for [`with`].
pub(crate) unsafe fn with_step<R>(
    worker: *const slackline_worker,
    operation: impl FnOnce(&mut Step<'_, Fabric>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let in_step = |working: &mut Working| {
        let mut step = working.resume()?;
        let result = operation(&mut step);
        step.suspend();
        result
    };
    // SAFETY: the contract.
    unsafe { with(worker, in_step) }
}

/// The whole of a foreign function that lends an array of the open step.
///
/// # Safety
///
/// As for [`with`] and [`OutArray::new`]. The array is lent for as long as its comment says.
unsafe fn lend_of_step<P>(
    worker: *const slackline_worker,
    (array, len): (*mut P, *mut usize),
    what: &str,
    lend: impl FnOnce(&mut Step<'_, Fabric>) -> Result<(P, usize), Failure>,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(array, len, what)? };
        // SAFETY: the contract.
        out.set(unsafe { with_step(worker, lend)? });
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
        let out = unsafe { SizedOut::wanted(view, "view")? };
        let timeout = Duration::from_millis(timeout_ms);
        let begin = |working: &mut Working| {
            working.open = Open::No;
            let view = working.worker.step(timeout)?.suspend();
            working.open = Open::Yes;
            Ok(view)
        };
        // SAFETY: the contract.
        let view = unsafe { with(worker, begin)? };
        if let Some(out) = out {
            out.set(slackline_view {
                size: size_of::<slackline_view>(),
                clock: view.clock.get(),
                version: view.version.get(),
                smallest_clock: view.smallest_clock.get(),
                staleness: view.staleness(),
                behind: view.behind,
                retries: view.retries,
            });
        }
        Ok(())
    })
}

/// The parameters that `slackline_worker_begin` brought, as one flat array of the whole table; `len` is how many.
/// Valid, and unchanging, until the next begin, publish or abandon of this worker, flush, reconnect (that of its job,
/// too), or destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_parameters(
    worker: *const slackline_worker,
    parameters: *mut *const f32,
    len: *mut usize,
) -> slackline_status {
    // The array is memory of its own behind the worker: other calls that borrow the worker do not touch it.
    let lend = |step: &mut Step<'_, Fabric>| {
        let parameters = step.parameters()?;
        let whole = (step.worker().table().bytes() / 4) as usize;
        Ok((parameters.as_ptr(), parameters.len().min(whole)))
    };
    // SAFETY: the contract.
    unsafe { lend_of_step(worker, (parameters, len), "parameters", lend) }
}

/// Lends the memory for the gradient of the whole table, if gradients travel as f32; `len` is the number of values.
/// The memory holds what was written there last; under "bap" successive steps use two memories by turns. Call it after
/// begin. Valid until the next begin, publish or abandon of this worker, flush, reconnect (that of its job, too), or
/// destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_gradient(
    worker: *mut slackline_worker,
    gradient: *mut *mut f32,
    len: *mut usize,
) -> slackline_status {
    let lend = |step: &mut Step<'_, Fabric>| {
        let whole = (step.worker().table().bytes() / 4) as usize;
        let gradient = step.gradient()?;
        Ok((gradient.as_mut_ptr(), gradient.len().min(whole)))
    };
    // SAFETY: the contract.
    unsafe { lend_of_step(worker, (gradient, len), "gradient", lend) }
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
///
/// Under "bap" it does not wait for the gradient: `SLACKLINE_STATUS_OK` says that it is on its way, and the next step
/// begins meanwhile. One gradient at a time is on its way, so that the call waits for the gradient of the step before.
/// `SLACKLINE_STATUS_DEADLINE` says that this one is still on its way; nothing of the present step is published then,
/// and the next begin is of the same clock. `slackline_worker_flush` waits for the last one. A worker with `own_step`,
/// or with memory of the caller's for its gradients, waits as under the other schemes.
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
        unsafe { with(worker, |working| Ok(working.finish()?.publish_in_background(loss, timeout)?)) }
    })
}

/// The parameters of one shard in its server's own memory, `len` values: nothing is copied. Only for workers that are
/// connected with `SLACKLINE_READ_IN_PLACE`, which is over shared memory. To be read only; the server leaves them as
/// they are until the next begin, publish or abandon of this worker, reconnect (that of its job, too), or destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_in_place(
    worker: *const slackline_worker,
    shard: u16,
    parameters: *mut *const f32,
    len: *mut usize,
) -> slackline_status {
    let lend = |step: &mut Step<'_, Fabric>| {
        let memory = step.in_place(usize::from(shard))?;
        Ok((memory.as_ptr().cast_const().cast(), memory.len() / size_of::<f32>()))
    };
    // SAFETY: the contract.
    unsafe { lend_of_step(worker, (parameters, len), "parameters", lend) }
}

/// Lends memory for the gradient of one shard in its server's own memory, `len` bytes in the worker's encoding: a
/// worker that computes straight into it and calls `slackline_worker_publish_slots` copies nothing. Only over shared
/// memory; elsewhere it is `SLACKLINE_STATUS_UNSUPPORTED`. Waits for a free slot at every server. The memory holds
/// some old gradient. Valid until the next begin, publish or abandon of this worker, reconnect (that of its job, too),
/// or destroy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_slot(
    worker: *mut slackline_worker,
    shard: u16,
    timeout_ms: u64,
    gradient: *mut *mut c_void,
    len: *mut usize,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let out = unsafe { OutArray::new(gradient, len, "gradient")? };
        let timeout = Duration::from_millis(timeout_ms);
        let lend = |working: &mut Working| {
            let mut step = working.resume()?;
            let slot = step.borrow_slots(timeout).map(|mut slots| slots.nth(usize::from(shard)));
            step.suspend();
            let slot = slot?;
            working.open = Open::WithSlots;
            let slot = slot.ok_or_else(|| {
                Failure::bad_argument(format!("there is no shard {shard}: they count from 0, one per server"))
            })?;
            // The memory is the server's, mapped for as long as the worker is connected.
            Ok((slot.as_volatile().as_ptr().cast(), slot.len()))
        };
        // SAFETY: the contract.
        out.set(unsafe { with(worker, lend)? });
        Ok(())
    })
}

/// Publishes what was written to the slots that `slackline_worker_slot` lent, of all servers; otherwise as
/// `slackline_worker_publish` under the other schemes, under "bap", too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_publish_slots(
    worker: *mut slackline_worker,
    loss: *const f32,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let loss = unsafe { value(loss, "loss")? };
        let timeout = Duration::from_millis(timeout_ms);
        let publish = |working: &mut Working| {
            if working.open == Open::Yes {
                let message =
                    "cannot publish slots: none was lent for this step; call slackline_worker_slot first";
                return Err(Failure::new(slackline_status::OutOfTurn, message));
            }
            Ok(working.finish()?.publish_slots(loss, timeout)?)
        };
        // SAFETY: the contract.
        unsafe { with(worker, publish) }
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
        let out = unsafe { Out::new(stop, "stop")? };
        // SAFETY: the contract.
        out.set(unsafe { with_step(worker, |step| Ok(step.should_stop()?))? }.into());
        Ok(())
    })
}

/// Abandons the computation of this clock: nothing of it is published, and the next begin brings parameters for the
/// same clock that are no older than the servers asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_worker_abandon(worker: *mut slackline_worker) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe { with(worker, |working| Ok(working.finish()?.abandon()?)) })
}
