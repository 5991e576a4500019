//! `slackline train`: real processes, a real model, real data.
//!
//! ```text
//! train ──┬── serve   one per shard          joins at the rendezvous that train keeps, is told what to do,
//!         ├── work    one per worker         tells how it is getting on, and ends with the job
//!         └── a thread with readers          evaluates, and brings the result home
//! ```
//!
//! On one host `train` starts the others itself; under a launcher every rank runs `train` and finds its part, and with
//! `--coordinate` people start `serve` and `work` wherever they like. The rest is the same in all three.

mod args;
mod coordinate;
mod evaluate;
mod fit;
mod job;
mod job_args;
mod launch;
mod measure;
mod member;
mod part;
mod plan;
mod report;
mod show;
mod signals;
mod values;

use std::process::ExitCode;

pub(crate) use args::TrainArgs;
pub(crate) use member::{ServeArgs, WorkArgs, serve, work};

use crate::failure::Failure;
use crate::output;
use launch::ProcessPart;
use plan::Plan;
use show::Display;

/// Runs `slackline train`.
pub(crate) fn run(args: TrainArgs) -> ExitCode {
    // Heard from here on: a batch system may ask for a checkpoint while names are looked up or data is read.
    let part = signals::checkpoint_requests().and_then(|_| launch::part(&args));
    let coordinated = match part {
        Ok(ProcessPart::Coordinate(job)) => Plan::new(args, job).and_then(|plan| train(&plan)),
        Ok(ProcessPart::Take(part)) => return part.take(&args.job),
        Err(failure) => Err(failure),
    };
    match coordinated {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn train(plan: &Plan) -> Result<(), Failure> {
    let mut display = Display::new(plan);
    let s = |count| if count == 1 { "" } else { "s" };
    display.tell(&format!(
        "{} on {} {} of {}: {}, {} worker{}{}, {}, {} epoch{}",
        plan.spec,
        plan.task.train.examples().count(),
        plan.examples_name(),
        plan.data_name(),
        plan.scheme,
        plan.workers,
        s(plan.workers),
        if plan.per_host { ", per host" } else { "" },
        match plan.servers {
            0 => "no server".to_owned(),
            servers => format!("{servers} server{}", s(servers)),
        },
        plan.epochs,
        s(plan.epochs as usize)
    ));
    let outcome = coordinate::run(plan, &mut display)?;
    drop(display);
    let (table, json) = (report::text(plan, &outcome), report::json(plan, &outcome));
    // What cannot be written keeps nothing else back; the error is the first.
    outcome.saved.and(output::give(&table, &json, plan.json.as_deref()))?;
    match &outcome.job.checkpoint_error {
        Some(error) if plan.strict_checkpoints => Err(Failure::failed(error)),
        _ => Ok(()),
    }
}
