//! `slackline bench`: what an operation costs here and now.
//!
//! Whatever crosses a process boundary in use crosses one here: the bench starts itself again as the other side
//! ([`peer`]), which dies with it. Copies and kernels alone run in this process.

mod arguments;
mod carrier;
mod local;
mod measure;
mod nodes;
mod peer;
mod pin;
mod pong;
mod report;
mod requests;
mod round;

use std::process::ExitCode;

pub(crate) use arguments::Args;
use arguments::{Op, Settings, TransportName};
use carrier::Carrier;
pub(crate) use peer::PeerArgs;
use report::Measured;
pub(crate) use report::{duration, rate, size};
use slackline::transport::shm::Shm;
use slackline::transport::tcp::Tcp;

/// A measurement was called wrongly, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Node(#[from] slackline::Error),
    #[error(transparent)]
    Register(#[from] slackline::transport::RegisterError),
    #[error(transparent)]
    Connect(#[from] slackline::transport::ConnectError),
    #[error(transparent)]
    Post(#[from] slackline::transport::PostError),
    #[error("the target is gone: {0}; its own message stands above")]
    Disconnected(#[from] slackline::transport::Disconnected),
    #[error("a request failed: {0}")]
    Completion(#[from] slackline::transport::CompletionError),
    #[error(transparent)]
    Memory(#[from] slackline::mem::MemoryError),
    #[error(transparent)]
    Range(#[from] slackline::mem::OutOfBounds),
    #[error(transparent)]
    Table(#[from] slackline::table::TableError),
    #[error(transparent)]
    Fold(#[from] slackline::kernel::FoldError),
    #[error("cannot {operation}: {source}")]
    System { operation: &'static str, source: std::io::Error },
    #[error("the other process failed: {0}")]
    Peer(String),
}

impl BenchError {
    fn system(operation: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
        move |source| BenchError::System { operation, source }
    }

    fn exit_code(&self) -> ExitCode {
        ExitCode::from(if matches!(self, BenchError::Usage(_)) { 2 } else { 1 })
    }
}

/// Runs the measurements that were asked for and reports them.
pub(crate) fn run(args: Args) -> ExitCode {
    finish(try_run(args))
}

/// Runs as the other side of a measurement.
pub(crate) fn run_peer(args: PeerArgs) -> ExitCode {
    finish(peer::serve(args))
}

fn finish(result: Result<(), BenchError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("slackline bench: {error}");
            error.exit_code()
        }
    }
}

fn try_run(args: Args) -> Result<(), BenchError> {
    let (settings, json) = args.check()?;
    let mut all = Vec::with_capacity(settings.sizes.len());
    for bytes in &settings.sizes {
        all.push(match settings.transport {
            TransportName::Shm => measure_one::<Shm>(&settings, *bytes)?,
            TransportName::Tcp => measure_one::<Tcp>(&settings, *bytes)?,
        });
    }
    report::write(&all, json.as_deref())
}

fn measure_one<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    match settings.op {
        Op::Write | Op::Read | Op::FetchAdd => requests::measure::<C>(settings, bytes),
        Op::Publish => nodes::publish::<C>(settings, bytes),
        Op::Pull => nodes::pull::<C>(settings, bytes),
        Op::PinnedRead => nodes::pinned_read::<C>(settings, bytes),
        Op::Round => round::measure::<C>(settings, bytes),
        Op::Memcpy => local::memcpy(settings, bytes),
        Op::Apply => local::apply(settings, bytes),
        Op::Triad => local::triad(settings, bytes),
    }
}
