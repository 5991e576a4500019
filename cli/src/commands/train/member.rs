//! `slackline serve` and `slackline work`: both join a job, do what its coordinator says, and end with it.

use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};
use slackline::Placement;
use slackline::internals::job::MemberRole as Role;
use slackline::internals::job::env;
use slackline_lab::stderr;

use super::job_args::JobArgs;
use super::part::Part;
use super::values;
use crate::failure::Failure;
use crate::member_help::{EXIT_CODES, SERVE_EXAMPLES, WORK_EXAMPLES};
use crate::metrics;

/// Serve a shard of a job's parameters.
///
/// Joins the job that `slackline train` coordinates, and follows its orders until the job is over: it needs no option
/// but the rendezvous. A server that was killed may be started again; with checkpoints it continues from the last one.
/// On SIGUSR1 it writes a checkpoint at once, and the job goes on.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES, after_long_help = SERVE_EXAMPLES)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(super) member: MemberArgs,
}

/// Compute gradients for a job.
///
/// Joins the job that `slackline train` coordinates, and follows its orders until the job is over: it needs no option
/// but the rendezvous. A worker that was killed may be started again; it continues at the clock of the others.
#[derive(clap::Args, Debug)]
#[command(after_help = EXIT_CODES, after_long_help = WORK_EXAMPLES)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    pub(super) member: MemberArgs,
}

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct MemberArgs {
    #[command(flatten)]
    pub(super) job: JobArgs,

    /// Number of the shard or of the worker, from 0 [default: the first that is free]
    #[arg(long, help_heading = "Job", value_name = "N")]
    pub(super) role_rank: Option<u32>,

    #[command(flatten)]
    pub(super) metrics: metrics::MetricsArgs,

    /// Give up waiting for the job to begin after this many seconds
    #[arg(long, help_heading = "Job", value_name = "SECONDS", default_value_t = 60.0)]
    pub(super) timeout: f64,

    /// Started by `train`, which tells what goes wrong.
    #[arg(long, hide = true)]
    pub(super) child: bool,
}

/// Runs `slackline serve`.
pub(crate) fn serve(args: ServeArgs) -> ExitCode {
    run(&args.member, Role::Server)
}

/// Runs `slackline work`.
pub(crate) fn work(args: WorkArgs) -> ExitCode {
    run(&args.member, Role::Worker)
}

fn run(args: &MemberArgs, role: Role) -> ExitCode {
    if args.child {
        // The end of its connection says the same, but a process that is stuck does not see it.
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            stderr::tell(format_args!(
                "warning: this process may outlive its coordinator if it hangs: {error}"
            ));
        }
    }
    let timeout = match values::timeout(args.timeout) {
        Ok(timeout) => timeout,
        Err(failure) => return failure.report(),
    };
    let part = rendezvous(&args.job).and_then(|(address, placement)| {
        let local_rank = placement.as_ref().and_then(|placement| placement.local_rank);
        let metrics = args.metrics.address(local_rank)?;
        let rank = placement.map(|placement| placement.rank);
        let (role_rank, quiet) = (args.role_rank, args.child);
        Ok(Part { role, role_rank, address, rank, local_rank, metrics, timeout, quiet })
    });
    match part {
        Ok(part) => part.take(&args.job),
        Err(failure) => failure.report(),
    }
}

/// Returns the rendezvous, and the placement of this process if a launcher tells it.
fn rendezvous(args: &JobArgs) -> Result<(String, Option<Placement>), Failure> {
    let told = args.rank.flags().rendezvous(env::environment()).map_err(|error| Failure::refused(&error))?;
    // A process that is told where to meet needs no rank.
    let placement = match env::placement(&args.rank.flags(), env::environment()) {
        Err(_) if told.is_some() => None,
        placement => placement.map_err(|error| Failure::refused(&error))?,
    };
    let placement = placement.filter(|placement| placement.world > 1);
    if let Some(told) = told {
        return Ok((told.to_string(), placement));
    }
    if placement.as_ref().is_some_and(|placement| placement.rank == 0) {
        return Err(Failure::usage("this is rank 0, which the others meet")
            .help("run `slackline train --coordinate` as rank 0"));
    }
    let rendezvous = placement.as_ref().and_then(|placement| placement.rendezvous.clone());
    let rendezvous = rendezvous.ok_or_else(|| {
        Failure::usage("nothing says where to meet")
            .help("use --rendezvous HOST:PORT of `slackline train`, or start all with one launcher")
    })?;
    Ok((rendezvous.to_string(), placement))
}
