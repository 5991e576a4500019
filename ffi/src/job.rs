//! The job: see [`slackline::Job`].

use std::ffi::c_char;
use std::time::Duration;

use slackline::internals::job::member::WaitError;
use slackline::internals::job::rendezvous;
use slackline::{Job, JobError, Placement, RendezvousEndpoint, Role};

use crate::error::{Failure, channel_status, slackline_status};
use crate::gpu::named;
use crate::handle::{Handle, Out, call, create, destroy, opaque, slice, text, with};
use crate::options::{
    self, slackline_job_options, slackline_resume, slackline_server_options, slackline_tensor,
    slackline_worker_options,
};
use crate::server::{Serving, slackline_server};
use crate::sized::{set_default, sized};
use crate::worker::{Working, slackline_worker};

/// The part of a process in its job, for the parameter called `role`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum slackline_role {
    /// Holds the shard of its number: `slackline_job_server`, then `slackline_job_serve`.
    Server = 0,
    /// Computes gradients: `slackline_job_worker`, then `slackline_job_finish`.
    Worker = 1,
}

/// One process's part in a job of many processes that one launcher has started, torchrun, Slurm, Open MPI, MPICH or
/// `slackline launch`, or to which the program itself gives ranks. At rank 0 a thread keeps the rendezvous of the
/// job.
///
/// Thread-safety: one thread at a time, any thread. A call while another thread is in one is
/// `SLACKLINE_STATUS_OUT_OF_TURN` and does nothing; destroying it meanwhile is undefined.
pub struct slackline_job(Handle<Job>);

opaque!(slackline_job: Job);

/// Sets all options but `size`, which the caller has set, to their defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_options_init(options: *mut slackline_job_options) -> slackline_status {
    // SAFETY: the contract.
    unsafe { set_default(options) }
}

/// Joins the job in which a launcher has started this process; `SLACKLINE_STATUS_BAD_ARGUMENT` if none has. The job is
/// the caller's, to be destroyed after the objects that it made; on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_from_env(
    options: *const slackline_job_options,
    job: *mut *mut slackline_job,
) -> slackline_status {
    let join = || {
        let placed = || Ok(Placement::from_env().map_err(JobError::from)?.ok_or(JobError::NotLaunched)?);
        // SAFETY: the contract.
        unsafe { joined(options, placed) }
    };
    // SAFETY: the contract.
    unsafe { create(job, join) }
}

/// As `slackline_job_from_env`, for a program that gives ranks to its processes itself: this one is `rank`, which
/// counts from 0, of `world`. `rendezvous` is the HOST:PORT at which rank 0 listens for the others, the same
/// everywhere.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_join(
    options: *const slackline_job_options,
    rank: u32,
    world: u32,
    rendezvous: *const c_char,
    job: *mut *mut slackline_job,
) -> slackline_status {
    let join = || {
        let placed = || {
            // SAFETY: the contract.
            let rendezvous = unsafe { text(rendezvous, "rendezvous")? }.parse::<RendezvousEndpoint>();
            let rendezvous =
                rendezvous.map_err(|error| Failure::of(slackline_status::BadArgument, &error))?;
            Ok(Placement { rank, world, rendezvous: Some(rendezvous), ..Placement::default() })
        };
        // SAFETY: the contract.
        unsafe { joined(options, placed) }
    };
    // SAFETY: the contract.
    unsafe { create(job, join) }
}

/// Joins a job as the process that `placed` says, which is asked once the options are read.
///
/// # Safety
///
/// As for [`slackline_job_from_env`].
unsafe fn joined(
    options: *const slackline_job_options,
    placed: impl FnOnce() -> Result<Placement, Failure>,
) -> Result<Job, Failure> {
    // SAFETY: the contract.
    let options = unsafe { sized(options, "options")? };
    // SAFETY: the contract.
    let ((plan, secret), gpu) = unsafe { (options.translate()?, named(options.gpu)?) };
    let job = Job::join(plan, &placed()?, secret.read()?)?;
    Ok(match &gpu {
        Some(gpu) => job.with_gpu(gpu),
        None => job,
    })
}

/// Tells the part of this process, one of `enum slackline_role`, with its shard or the number of the worker, and the
/// number of workers in the job. Each may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_role(
    job: *const slackline_job,
    role: *mut u32,
    number: *mut u32,
    workers: *mut u64,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        let (role, number, workers) = unsafe {
            (Out::wanted(role, "role")?, Out::wanted(number, "number")?, Out::wanted(workers, "workers")?)
        };
        // SAFETY: the contract.
        let (own, count) = unsafe { with(job, |job| Ok((job.role(), job.workers())))? };
        let (own_role, own_number) = match own {
            Role::Server(shard) => (slackline_role::Server, shard),
            Role::Worker(worker) => (slackline_role::Worker, worker),
        };
        role.into_iter().for_each(|out| out.set(own_role as u32));
        number.into_iter().for_each(|out| out.set(own_number));
        workers.into_iter().for_each(|out| out.set(count as u64));
        Ok(())
    })
}

/// Begins to serve this process's shard of a table, and tells the workers where. `initial` holds the `initial_len`
/// values of the whole table as version 0 and is copied. Of the options `workers`, `shard`, `shards`, `secret`,
/// `secret_file`, `encrypt` and `resume` are not looked at: they are the job's. The server is the caller's, to be
/// destroyed; on failure it is NULL. A job has no use for a process whose server cannot be made: it fails, too, with
/// the cause in its message, also where that is a setting of the options (`SLACKLINE_STATUS_BAD_ARGUMENT`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_server(
    job: *const slackline_job,
    tensors: *const slackline_tensor,
    tensor_count: usize,
    initial: *const f32,
    initial_len: usize,
    options: *const slackline_server_options,
    server: *mut *mut slackline_server,
) -> slackline_status {
    let read = |job: &Job| -> Result<_, Failure> {
        // SAFETY: the contract.
        let (table, initial, mut options) = unsafe {
            let table = options::table(tensors, tensor_count)?;
            let initial = slice(initial, initial_len, "the array of initial values")?;
            (table, initial, sized(options, "options")?)
        };
        if let Role::Server(shard) = job.role() {
            // The file of a checkpoint has the shard in its name.
            (options.shard, options.shards) = (shard as u16, job.servers() as u16);
            options.resume = slackline_resume::Never as u64;
        }
        // SAFETY: the contract.
        Ok((table, initial, unsafe { options.translate()? }))
    };
    let start = |job: &mut Job| {
        let (table, initial, options) =
            read(job).inspect_err(|failure| job.give_up_serving(&failure.message))?;
        Ok(Serving::new(job.server(table, initial, options)?.0))
    };
    // SAFETY: the contract.
    unsafe { create(server, || with(job, start)) }
}

/// Serves until the job is over, and writes the last checkpoint if `checkpoint_folder` is set. After `timeout_ms` that
/// is `SLACKLINE_STATUS_DEADLINE`: call it again, well within the lease. A server that connects to the one that
/// decides for it takes up to 2 s for each attempt, also where that is longer. `SLACKLINE_STATUS_JOB_FAILED` says
/// that the job has failed; the message has the cause.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_serve(
    job: *const slackline_job,
    server: *mut slackline_server,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        // SAFETY: the contract.
        let is_over =
            unsafe { with(job, |job| with(server, |serving| Ok(job.drive(&mut serving.server, timeout)?)))? };
        over(is_over, "serving until the job is over", timeout)
    })
}

/// Connects this process to the servers of the job, once all of them are up. Of the options `secret`, `secret_file`
/// and `encrypt` are not looked at: they are the job's. The worker is the caller's, to be destroyed before the job is;
/// on failure it is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_worker(
    job: *const slackline_job,
    options: *const slackline_worker_options,
    worker: *mut *mut slackline_worker,
) -> slackline_status {
    let connect = || {
        // SAFETY: the contract.
        let options = unsafe { sized(options, "options")?.translate()? };
        // SAFETY: the contract.
        unsafe { with(job, |job| Working::new(job.connect(options)?)) }
    };
    // SAFETY: the contract.
    unsafe { create(worker, connect) }
}

/// Connects a worker again after `SLACKLINE_STATUS_SERVER_LOST` or `SLACKLINE_STATUS_EVICTED`, once all servers are up
/// again. It goes on at the clock at which the servers are; begin tells it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_reconnect(
    job: *const slackline_job,
    worker: *mut slackline_worker,
) -> slackline_status {
    call(|| {
        // SAFETY: the contract.
        unsafe {
            with(job, |job| with(worker, |working| working.reconnect(|worker| Ok(job.reconnect(worker)?))))
        }
    })
}

/// Says that this worker has finished, and waits until all others have. Flush the worker first, and destroy it
/// afterwards; in a job without servers, leave the group first, and `worker` is NULL. `SLACKLINE_STATUS_SERVER_LOST`:
/// call `slackline_job_reconnect`, and train on from the clock that begin tells. After `timeout_ms` that is
/// `SLACKLINE_STATUS_DEADLINE`: call it again. `SLACKLINE_STATUS_JOB_FAILED` says that the job has failed; the message
/// has the cause.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_finish(
    job: *const slackline_job,
    worker: *mut slackline_worker,
    timeout_ms: u64,
) -> slackline_status {
    call(|| {
        let timeout = Duration::from_millis(timeout_ms);
        let finish = |job: &mut Job| match worker.is_null() {
            true => Ok(job.end(timeout)?),
            // SAFETY: the contract.
            false => unsafe { with(worker, |working| Ok(job.finish(&mut working.worker, timeout)?)) },
        };
        // SAFETY: the contract.
        let is_over = unsafe { with(job, finish)? };
        over(is_over, "waiting for the end of the job", timeout)
    })
}

/// Answers `SLACKLINE_STATUS_JOB_FAILED`, with the cause in the message, if the job has failed: a worker hears of that
/// as `SLACKLINE_STATUS_SERVER_LOST`. Never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_check(job: *const slackline_job) -> slackline_status {
    // SAFETY: the contract.
    call(|| unsafe { with(job, |job| Ok(job.check()?)) })
}

fn over(is_over: bool, operation: &str, timeout: Duration) -> Result<(), Failure> {
    match is_over {
        true => Ok(()),
        false => {
            let message = format!("{operation} did not end within {timeout:?}; call again");
            Err(Failure::new(slackline_status::Deadline, message))
        }
    }
}

/// Leaves the job; at rank 0 it ends the job. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slackline_job_destroy(job: *mut slackline_job) {
    // SAFETY: the contract.
    unsafe { destroy(job) };
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Failure {
        use slackline_status as Status;
        let status = match &error {
            JobError::Node(error) => return Failure::of_node(error),
            JobError::Launch(_)
            | JobError::Secret(_)
            | JobError::NotLaunched
            | JobError::NoWorker { .. }
            | JobError::NoSuchRank { .. }
            | JobError::NoServer
            | JobError::HasServers { .. }
            | JobError::OtherServers { .. }
            | JobError::PerHost { .. }
            | JobError::TooLarge { .. }
            | JobError::Resume(_)
            | JobError::InitialValues { .. } => Status::BadArgument,
            JobError::OtherRole { .. } => Status::OutOfTurn,
            JobError::Rendezvous(
                rendezvous::RendezvousError::NeedsSecret { .. } | rendezvous::RendezvousError::Refused { .. },
            ) => Status::Refused,
            JobError::Rendezvous(rendezvous::RendezvousError::Channel { source, .. }) => {
                channel_status(source)
            }
            JobError::Rendezvous(
                rendezvous::RendezvousError::OnlyHere { .. } | rendezvous::RendezvousError::TooLong { .. },
            ) => Status::BadArgument,
            JobError::Rendezvous(rendezvous::RendezvousError::Protocol { .. }) | JobError::Order(_) => {
                Status::Protocol
            }
            JobError::Rendezvous(rendezvous::RendezvousError::Timeout { .. }) => Status::Deadline,
            JobError::Rendezvous(_) => Status::System,
            JobError::Wait(WaitError::Path(_)) => Status::Unsupported,
            // It ended well, and no further call would find it otherwise.
            JobError::Wait(WaitError::Ended(_)) => Status::JobFailed,
            JobError::Wait(_) | JobError::Late { .. } => Status::Deadline,
            JobError::Failed(_) | JobError::Lost(_) => Status::JobFailed,
            JobError::Refused(_) => Status::Refused,
            JobError::NoRdma(_) | JobError::NotBuilt(_) => Status::Unsupported,
            JobError::NotBack { .. } => Status::ServerLost,
            _ => Status::Internal,
        };
        Failure::of(status, &error)
    }
}
