//! The other side of a measurement: it carries out the task that it is given, in a process that was started for that
//! (`slackline bench-peer`) or for a client of the listening side.

use slackline::{Secret, Shm, Tcp, TransportKind, Verbs};

use super::carrier::{Carrier, not_measured};
use super::client::Client;
use super::error::BenchError;
use super::messages::{Task, TaskRole};
use super::pin::pin_to;
use super::{load_process, owner, target, worker};

/// The other side of a measurement.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    /// A task.
    task: String,
}

/// Carries out what the process that started this one wants.
pub(super) fn serve(args: PeerArgs) -> Result<(), BenchError> {
    let parent_gone = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    parent_gone
        .map_err(std::io::Error::from)
        .map_err(BenchError::system("die with the process that started this"))?;
    let task: Task = serde_json::from_str(&args.task).map_err(|error| {
        BenchError::usage(format!("cannot read the task: {error}"), "bench-peer is for `bench` alone")
    })?;
    // Before it is pinned: its thread only waits.
    let secret = Secret::from_environment()?;
    let client = Client::parent(&task, secret);
    if let Some(core) = task.core {
        pin_to(core);
    }
    carry_out(&task, &client)
}

/// Carries a task out.
pub(super) fn carry_out(task: &Task, client: &Client) -> Result<(), BenchError> {
    match task.transport {
        TransportKind::Shm => serve_over::<Shm>(task, client),
        TransportKind::Tcp => serve_over::<Tcp>(task, client),
        TransportKind::Verbs => serve_over::<Verbs>(task, client),
        other => Err(not_measured(other)),
    }
}

fn serve_over<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    match task.role {
        TaskRole::Memory { .. } => target::serve::<C>(task, client),
        TaskRole::Publisher { chunk, crowd } => owner::serve_publisher::<C>(task, chunk, crowd, client),
        TaskRole::Server { .. } => owner::serve_server::<C>(task, client),
        TaskRole::Worker { .. } => worker::serve::<C>(task, client),
        TaskRole::Load(load) => load_process::serve::<C>(task, load, client),
    }
}
