//! Computations of the caller's that the library runs: the steps of a worker between two gradients.

use std::ffi::c_void;

use slackline::LocalSteps;

use crate::error::{Failure, slackline_status};
use crate::handle::{Handle, Out, call, create, destroy, opaque, slice, slice_mut, with};

/// Computes a gradient: writes the `len` values of it to `gradient`, which holds anything, and the loss to `loss`,
/// which is 0. `parameters` are as many, and `context` is the caller's own. `step` is the number of the step. It
/// returns 0; any other value gives up, and its gradient does not count. It returns without `longjmp` or an
/// exception.
pub type slackline_compute = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        step: u64,
        parameters: *const f32,
        gradient: *mut f32,
        len: usize,
        loss: *mut f32,
    ) -> u32,
>;

/// A computation that is there, with its context.
#[derive(Clone, Copy)]
pub(crate) struct Compute {
    compute: unsafe extern "C" fn(*mut c_void, u64, *const f32, *mut f32, usize, *mut f32) -> u32,
    context: *mut c_void,
}

impl Compute {
    /// # Safety
    ///
    /// `compute` keeps the contract of [`slackline_compute`], for as long as the result is used.
    pub(crate) unsafe fn new(compute: slackline_compute, context: *mut c_void) -> Result<Compute, Failure> {
        let compute = compute.ok_or_else(|| Failure::null("compute"))?;
        Ok(Compute { compute, context })
    }

    /// The loss, or `None` if it gave up.
    pub(crate) fn run(self, step: u64, parameters: &[f32], gradient: &mut [f32]) -> Option<f32> {
        let (len, mut loss) = (parameters.len().min(gradient.len()), 0.0);
        let (from, to) = (parameters.as_ptr(), gradient.as_mut_ptr());
        // SAFETY: the promise of the caller of `new`; both arrays have `len` values, and `loss` is a local.
        let gave_up = unsafe { (self.compute)(self.context, step, from, to, len, &raw mut loss) };
        (gave_up == 0).then_some(loss)
    }
}

/// Several steps of plain SGD on a worker's own copy of the parameters, which count as one gradient: the change of the
/// copy, divided by the size of a step, so that the server's step changes its parameters in the same way.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_local_steps(Handle<LocalSteps>);

opaque!(slackline_local_steps: LocalSteps);

/// Prepares to make `count` steps for each gradient, at least 1, at the `learning_rate` of the servers, which is above
/// 0 and does not fall by a schedule. It is the caller's, to be destroyed; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_local_steps_create(
    count: u64,
    learning_rate: f32,
    steps: *mut *mut slackline_local_steps,
) -> slackline_status {
    let make = || {
        if count == 0 {
            return Err(Failure::bad_argument("count is 0: each gradient takes at least 1 step"));
        }
        if !(learning_rate.is_finite() && learning_rate > 0.0) {
            let message =
                format!("learning_rate cannot be {learning_rate}: use the one of the servers, above 0");
            return Err(Failure::bad_argument(message));
        }
        Ok(LocalSteps::new(count, learning_rate))
    };
    // SAFETY: the contract.
    unsafe { create(steps, make) }
}

/// Makes the steps from `parameters` and writes their gradient to `gradient`, both of `len` values: memory that
/// `slackline_worker_parameters` and `slackline_worker_gradient` lend, or memory of the caller's. `compute` is called
/// for each step, numbered from 0, in this thread; it may call functions of the worker that change neither, such as
/// `slackline_worker_should_stop`. `loss`, unless NULL, becomes the mean of the losses.
///
/// Sets `done` to 1; or to 0 if `compute` gave up, in which case `gradient` holds nothing of use and the caller
/// abandons the step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_local_steps_gradient(
    steps: *mut slackline_local_steps,
    parameters: *const f32,
    gradient: *mut f32,
    len: usize,
    compute: slackline_compute,
    context: *mut c_void,
    loss: *mut f32,
    done: *mut u32,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (loss, done) = unsafe { (Out::wanted(loss, "loss")?, Out::new(done, "done")?) };
        // SAFETY: the contract.
        let (parameters, gradient) =
            unsafe { (slice(parameters, len, "parameters")?, slice_mut(gradient, len, "gradient")?) };
        // SAFETY: the contract.
        let compute = unsafe { Compute::new(compute, context)? };
        let run = |step: u64, parameters: &[f32], gradient: &mut [f32]| {
            Ok::<_, Failure>(compute.run(step, parameters, gradient))
        };
        // SAFETY: the contract.
        let mean = unsafe { with(steps, |steps| steps.gradient(parameters, gradient, run))? };
        done.set(mean.is_some().into());
        if let (Some(out), Some(mean)) = (loss, mean) {
            out.set(mean);
        }
        Ok(())
    })
}

/// Frees the memory of the steps. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_local_steps_destroy(steps: *mut slackline_local_steps) {
    // SAFETY: the contract.
    unsafe { destroy(steps) };
}
