//! `slackline bench`: what an operation costs here and now.
//!
//! Whatever crosses a process boundary in use crosses one here: the bench starts itself again as the other side
//! ([`peer`]), which dies with it, or asks one that listens on another host ([`remote`]). Copies and kernels alone run
//! in this process. Many peers ([`load`]) are spread over processes that are started so, too.

mod arguments;
mod carrier;
mod counters;
mod histogram;
mod load;
mod load_process;
mod local;
mod means;
mod measure;
mod nodes;
mod parse;
mod pattern;
mod peer;
mod pin;
mod pong;
mod remote;
mod report;
mod requester;
mod requests;
mod round;
mod usage;

use slackline::Diagnostic;
use std::borrow::Cow;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

pub(crate) use arguments::BenchArgs;
use arguments::{Op, Request, Settings, TransportName};
use carrier::Carrier;
use counters::Counters;
pub(crate) use peer::PeerArgs;
use remote::Remote;
use report::Measured;
pub(crate) use report::{duration, rate, size};
use slackline::internals::mem::set_copy_threads;
use slackline::{Shm, Tcp, Verbs};

use crate::failure::Failure;

/// A measurement was called wrongly, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{what}: {help}")]
    Usage { what: String, help: &'static str },
    #[error(transparent)]
    Secret(#[from] slackline::SecretError),
    #[error(transparent)]
    Node(#[from] slackline::Error),
    #[error(transparent)]
    Open(#[from] slackline::OpenError),
    /// A variable of RDMA that is not usable, and the remedy.
    #[error(transparent)]
    Setting(#[from] slackline::internals::job::transports::SettingError),
    #[error("the atomics of this RDMA device do not work; there is nothing to measure")]
    NoAtomics,
    #[error("validation failed: {0}")]
    Invalid(String),
    #[error(transparent)]
    Register(#[from] slackline::internals::transport::RegisterError),
    #[error(transparent)]
    Connect(#[from] slackline::ConnectError),
    #[error(transparent)]
    Post(#[from] slackline::internals::transport::PostError),
    #[error("the target is gone: {0}; it says why itself")]
    Disconnected(#[from] slackline::internals::transport::Disconnected),
    #[error("a request failed: {0}")]
    Completion(#[from] slackline::internals::transport::CompletionError),
    #[error(transparent)]
    Memory(#[from] slackline::internals::mem::MemoryError),
    #[error(transparent)]
    Range(#[from] slackline::internals::mem::OutOfBounds),
    #[error(transparent)]
    Table(#[from] slackline::TableError),
    #[error(transparent)]
    Fold(#[from] slackline::internals::kernel::FoldError),
    #[error("cannot {operation}: {source}")]
    System { operation: &'static str, source: std::io::Error },
    #[error("the other process failed: {0}")]
    Peer(String),
    /// The same in the words of that process, on another host.
    #[error("the other process failed: {0}")]
    Remote(String),
    #[error("{_0}; {}", self.remedy().unwrap_or_default())]
    Unreachable(String),
}

impl Diagnostic for BenchError {
    fn operation(&self) -> &'static str {
        "measuring"
    }

    fn remedy(&self) -> Option<Cow<'_, str>> {
        match self {
            BenchError::Usage { help, .. } => Some((*help).into()),
            BenchError::Secret(error) => error.remedy(),
            BenchError::Node(error) => error.remedy(),
            BenchError::Open(error) => error.remedy(),
            BenchError::Setting(error) => error.remedy(),
            BenchError::Register(error) => error.remedy(),
            BenchError::Connect(error) => error.remedy(),
            BenchError::Memory(error) => error.remedy(),
            BenchError::Table(error) => error.remedy(),
            BenchError::NoAtomics => Some("there is nothing to measure".into()),
            BenchError::Unreachable(_) => {
                Some("start `slackline bench --transport ... --listen` there first".into())
            }
            BenchError::Disconnected(_) => Some("it says why itself".into()),
            _ => None,
        }
    }
}

impl BenchError {
    fn usage(what: impl Into<String>, help: &'static str) -> BenchError {
        BenchError::Usage { what: what.into(), help }
    }

    fn system(operation: &'static str) -> impl FnOnce(std::io::Error) -> BenchError {
        move |source| BenchError::System { operation, source }
    }
}

/// Runs the measurements that were asked for and reports them.
pub(crate) fn run(args: BenchArgs) -> ExitCode {
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
            let failure = match &error {
                BenchError::Usage { .. } | BenchError::Secret(_) | BenchError::Setting(_) => {
                    Failure::refused(&error)
                }
                error => Failure::of(error),
            };
            failure.report()
        }
    }
}

fn try_run(args: BenchArgs) -> Result<(), BenchError> {
    let (mut settings, json) = match args.check()? {
        Request::Measure(settings, json) => (*settings, json),
        Request::Listen { address, transport, means, keep } => {
            return remote::listen(address, transport, &means, keep);
        }
    };
    // What cannot be had here is told here, and not by the other side.
    settings.transport.open(&settings.means)?;
    if let Some(host) = &settings.peer {
        let remote = Remote::connect(host, &settings.means)?;
        settings.means.peer = Some(remote.address.ip());
        settings.remote = Some(Rc::new(remote));
    }
    if let Some(threads) = settings.copy_threads {
        set_copy_threads(threads.into());
    }
    let measure = |bytes: &u64| {
        let before = Counters::look(settings.transport, Path::new("/"));
        let measured = match settings.transport {
            TransportName::Shm => measure_one::<Shm>(&settings, *bytes),
            TransportName::Tcp => measure_one::<Tcp>(&settings, *bytes),
            TransportName::Verbs => measure_one::<Verbs>(&settings, *bytes),
        };
        let moved = Counters::look(settings.transport, Path::new("/")).since(&before);
        Ok(measured?.counted(&moved))
    };
    let all: Result<Vec<Measured>, BenchError> = settings.sizes.iter().map(measure).collect();
    let all = all.map_err(|error| match &settings.remote {
        Some(remote) => remote.explain(error),
        None => error,
    });
    report::write(&all?, json.as_deref())
}

fn measure_one<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    if let Some(load) = &settings.load {
        return load::measure::<C>(settings, load, bytes);
    }
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
