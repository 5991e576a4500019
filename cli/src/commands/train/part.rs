//! A process's part in a job: it joins, does what the coordinator says, and ends with the job.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slackline::gpu::Gpu;
use slackline::internals::job::coordinated::{
    ComputeDevice, CoordinatedMember, GpuBuffers, MemberOptions, ServeEnd, WorkerOrder,
};
use slackline::internals::job::member::{End, WaitError};
use slackline::internals::job::{ErrorReport, MemberRole as Role};
use slackline::{Error, JobError};
use slackline_lab::program::Program;
use slackline_lab::stderr;

use super::job_args::JobArgs;
use super::measure::serve_metrics;
use super::signals::{self, Stop, checkpoint_requests};
use crate::failure::Failure;
use crate::metrics::{self, MetricsServer, NodeMetrics, Registry};

/// Anything that makes a process give up.
pub(super) type Trouble = Box<dyn std::error::Error>;

/// A part in a job.
pub(super) struct Part {
    pub(super) role: Role,
    pub(super) role_rank: Option<u32>,
    /// The address at which the processes of the job meet.
    pub(super) address: String,
    pub(super) rank: Option<u32>,
    /// Its rank on its host, if a launcher tells it.
    pub(super) local_rank: Option<u32>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) timeout: Duration,
    /// Another process, which started this one, tells the user what goes wrong.
    pub(super) quiet: bool,
}

/// The part once it is taken.
struct Taken {
    member: CoordinatedMember,
    local_rank: Option<u32>,
    registry: Option<Registry>,
    _served: Option<MetricsServer>,
    quiet: bool,
    /// A thread has begun to end this process: it tells the user why, and no other does.
    ending: Arc<AtomicBool>,
}

impl Part {
    /// Takes part until the job is over.
    pub(super) fn take(self, args: &JobArgs) -> ExitCode {
        let role = self.role;
        let taken = match self.join(args) {
            Ok(taken) => taken,
            // No other process could tell.
            Err(failure) => return failure.report(),
        };
        let result = match role {
            Role::Server => taken.serve(),
            Role::Worker | Role::Reader => taken.work(),
        };
        match result {
            Ok(end) => taken.end(end),
            Err(error) => taken.give_up(&error),
        }
    }

    fn join(self, args: &JobArgs) -> Result<Taken, Failure> {
        let Part { role, role_rank, address, rank, local_rank, metrics, timeout, quiet } = self;
        // Every process of a job may be sent the signal, and it is no reason to die.
        let checkpoint = checkpoint_requests()?;
        let secret = args.secret.secret()?;
        let node = match role {
            Role::Server => metrics::NodeRole::Server,
            Role::Worker | Role::Reader => metrics::NodeRole::Worker,
        };
        let node = NodeMetrics { role: node, rank: rank.unwrap_or_default(), ..NodeMetrics::default() };
        let (registry, _served) = serve_metrics(metrics, node)?;
        let options = MemberOptions { role, role_rank, rank, secret, checkpoint, timeout };
        let member = CoordinatedMember::join(&address, options).map_err(|error| Failure::of(&error))?;
        if !quiet {
            let role_rank = member.role_rank();
            stderr::tell(format_args!(
                "joined the job at {address} as {role} {role_rank}; waiting for it to begin"
            ));
        }
        Ok(Taken { member, local_rank, registry, _served, quiet, ending: Arc::default() })
    }
}

impl Taken {
    /// Serves a shard.
    fn serve(&self) -> Result<End, Trouble> {
        let order = self.member.server_order()?;
        let serves_from_gpu = order.plan.serves_from_gpus();
        self.open_gpu(order.device, 0, serves_from_gpu)?;
        let stop = order.checkpoint.is_some().then(Stop::listen).transpose();
        let stop = stop.map_err(|failure| failure.to_string())?;
        let asked = || stop.as_ref().and_then(Stop::asked);
        let ended = self.member.serve(
            order,
            |server| {
                if let Some(registry) = &self.registry {
                    registry.update(|metrics| metrics.of_server(server));
                }
            },
            || asked().is_some(),
        );
        let ServeEnd { end, checkpoint_error } = ended?;
        if let Some(error) = checkpoint_error {
            stderr::tell(format_args!("warning: the last checkpoint is not written: {error}"));
        }
        if let Some(end) = end {
            return Ok(end);
        }
        let signal = asked().unwrap_or_default();
        // As a parent expects it of a process that a signal asked to end.
        signal_hook::low_level::emulate_default_handler(signal)?;
        Err(format!("stopped by {}", signals::name(signal)).into())
    }

    /// Trains as a worker.
    fn work(&self) -> Result<End, Trouble> {
        let order = self.member.worker_order()?;
        if let Some(gpu) = self.open_gpu(order.device, order.plan.server_count(), false)? {
            return self.work_on(&gpu, order);
        }
        let mut computer = Program::computer(&order.program, order.worker, order.workers)?;
        if order.group.is_some() {
            let mut work = self.member.meet(order)?;
            self.end_with_the_job()?;
            let mut compute = |clock, parameters: &[f32], gradient: &mut [f32]| {
                Ok(computer.gradient(clock, parameters, gradient))
            };
            return Ok(work.run(&mut compute, &mut |work, loss| {
                if let Some(registry) = &self.registry {
                    registry.update(|metrics| metrics.of_group(work, loss));
                }
            })?);
        }
        let mut work = self.member.connect(order)?;
        self.end_with_the_job()?;
        Ok(work.run(
            &mut |batch, parameters, gradient, stop| match stop {
                Some(stop) => computer.gradient_unless(batch, parameters, gradient, stop),
                None => Ok(Some(computer.gradient(batch, parameters, gradient))),
            },
            &mut |worker, loss| {
                if let Some(registry) = &self.registry {
                    registry.update(|metrics| metrics.of_worker(worker, loss));
                }
            },
        )?)
    }

    /// The same with gradients that a GPU computes.
    fn work_on(&self, gpu: &Gpu, order: WorkerOrder) -> Result<End, Trouble> {
        let mut computer = Program::gpu_computer(&order.program, order.worker, order.workers, gpu)?;
        let (parameters, gradient) = (computer.parameters(), computer.gradient());
        let buffers = GpuBuffers { parameters, gradient, stream: computer.stream().clone() };
        let mut work = self.member.connect(order)?;
        self.end_with_the_job()?;
        Ok(work.run_on_gpu(
            &buffers,
            &mut |batch, stop| computer.gradient_unless(batch, stop),
            &mut |worker, loss| {
                if let Some(registry) = &self.registry {
                    registry.update(|metrics| metrics.of_worker(worker, loss));
                }
            },
        )?)
    }

    /// Opens the GPU of this process, if the job is on GPUs, and names it to the job. Where no launcher counts the
    /// processes of a host, `before` of them come before the first of this role. `serves`: what this process serves is
    /// on the GPU.
    fn open_gpu(&self, device: ComputeDevice, before: u32, serves: bool) -> Result<Option<Gpu>, Trouble> {
        let index = self.local_rank.unwrap_or_else(|| before + self.member.role_rank());
        let gpu = device.open(index).map_err(|error| JobError::from(Error::from(error)))?;
        gpu.iter().for_each(|gpu| self.member.use_gpu(gpu, serves));
        Ok(gpu)
    }

    /// Ends this process with the job, also in the middle of a step. Nothing is lost by that: servers drop what was not
    /// announced.
    fn end_with_the_job(&self) -> Result<(), JobError> {
        let (ending, quiet) = (Arc::clone(&self.ending), self.quiet);
        self.member.when_over(move |end| {
            // The main thread ends this process, with this end or an error of its own.
            if !ending.swap(true, Ordering::SeqCst) {
                std::process::exit(tell(end, quiet));
            }
        })
    }

    /// Ends this process as its job has ended.
    fn end(&self, end: End) -> ExitCode {
        self.be_the_end();
        ExitCode::from(tell(end, self.quiet) as u8)
    }

    /// Tells the coordinator why this process gives up, and the user, unless the coordinator does.
    fn give_up(&self, error: &Trouble) -> ExitCode {
        let own = words(error);
        self.be_the_end();
        let lost = match error.downcast_ref() {
            Some(JobError::Node(error)) if error.is_loss() => Some(error),
            _ => None,
        };
        let lost_server = matches!(lost, Some(Error::ServerLost { .. }));
        let end = self.member.give_up(ErrorReport { lost_server, ..own.told() });
        if self.quiet {
            return ExitCode::FAILURE;
        }
        match end {
            // The worker that serves this host has left before this one has heard that the job is over.
            Some(End::Dismissed) if lost.is_some() => ExitCode::SUCCESS,
            Some(End::Told(why) | End::Refused(why)) if lost.is_some() => Failure::failed(why).report(),
            _ => own.report(),
        }
    }

    /// Goes on only if no other thread ends this process.
    fn be_the_end(&self) {
        if self.ending.swap(true, Ordering::SeqCst) {
            loop {
                std::thread::park();
            }
        }
    }
}

/// Tells the user how the job has ended, unless another process does. Returns the exit code.
fn tell(end: End, quiet: bool) -> i32 {
    match end {
        End::Dismissed => 0,
        End::Told(why) | End::Refused(why) | End::Lost(why) => {
            if !quiet {
                stderr::tell(Failure::failed(why));
            }
            1
        }
    }
}

/// An error in the words of this command's options.
fn words(error: &Trouble) -> Failure {
    match error.downcast_ref() {
        Some(JobError::Wait(WaitError::Deadline { what, waited })) => {
            Failure::failed(format!("waited {waited:?} for {what}")).help("use a longer --timeout")
        }
        Some(JobError::Late { round, waited, workers }) => Failure::failed(format!(
            "round {round} did not end within {waited:?}: workers {workers:?} are alive and late"
        ))
        .help("use a longer --timeout"),
        Some(error) => Failure::of(error),
        None => Failure::failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_too_long_for_the_others_is_told_of_an_option() {
        let late = JobError::Late { round: 3, waited: Duration::from_secs(2), workers: vec![1] };
        assert_eq!(
            words(&late.into()).told().to_string(),
            "round 3 did not end within 2s: workers [1] are alive and late; use a longer --timeout"
        );
    }
}
