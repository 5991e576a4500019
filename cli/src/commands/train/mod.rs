//! `slackline train`: real processes, a real model, real data.
//!
//! ```text
//! train ──┬── serve   one per shard          stdin: configuration, initial values; its end means "leave"
//!         ├── work    one per worker         stdout: one JSON message a line
//!         └── a thread with readers          evaluates, and brings the result home
//! ```

mod args;
mod child;
mod coordinate;
mod evaluate;
mod messages;
mod plan;
mod process;
mod report;
mod serve;
mod show;
mod work;

use std::io::{self, Write};
use std::process::ExitCode;

use slackline_cli::model::{self, Evaluation};

pub(crate) use args::Args;
pub(crate) use serve::serve;
pub(crate) use work::work;

use crate::failure::Failure;
use crate::output;
use coordinate::Outcome;
use evaluate::Final;
use messages::Message;
use plan::Plan;
use show::Display;

/// One of the processes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Who {
    /// By its shard.
    Server(usize),
    /// By its number.
    Worker(usize),
}

/// What the coordinator is told.
#[derive(Debug)]
enum Event {
    Said(Who, Message),
    /// The process's stdout has ended, or what came cannot be understood.
    Closed(Who, Option<String>),
    Evaluated(Evaluation),
    Final(Result<Final, String>),
}

/// Runs `slackline train`.
pub(crate) fn run(args: Args) -> ExitCode {
    match Plan::new(args).and_then(|plan| train(&plan)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn train(plan: &Plan) -> Result<(), Failure> {
    let mut display = Display::new(plan);
    let s = |count| if count == 1 { "" } else { "s" };
    display.tell(&format!(
        "{} on {} examples of {}: {}, {} worker{}, {} server{}, {} epoch{}",
        plan.spec,
        plan.split.train.rows(),
        plan.data_name(),
        plan.scheme,
        plan.workers,
        s(plan.workers),
        plan.servers,
        s(plan.servers),
        plan.epochs,
        s(plan.epochs as usize)
    ));
    let outcome = coordinate::run(plan, &mut display)?;
    drop(display);
    keep(plan, &outcome)
}

/// Writes everything that was asked for; the model first, since it is what took the time.
fn keep(plan: &Plan, outcome: &Outcome) -> Result<(), Failure> {
    if let Some(path) = &plan.save {
        model::save(path, &plan.spec, &outcome.parameters)
            .map_err(|error| Failure::failed(format!("--save {error}")))?;
    }
    let table = report::text(plan, outcome);
    let stdout_failed = |error| Failure::failed(format!("cannot write to stdout: {error}"));
    if plan.json_on_stdout() {
        eprint!("{table}");
        return io::stdout().write_all(report::json(plan, outcome).as_bytes()).map_err(stdout_failed);
    }
    if let Some(path) = &plan.json {
        output::replace(path, report::json(plan, outcome).as_bytes()).map_err(|error| {
            let what = "cannot be written; check the folder, its permissions and the space left";
            Failure::failed(format!("--json {}: {error}: {what}", path.display()))
        })?;
    }
    io::stdout().write_all(table.as_bytes()).map_err(stdout_failed)
}
