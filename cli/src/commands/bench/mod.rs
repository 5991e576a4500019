//! `slackline bench`: what an operation costs here and now.
//!
//! Whatever crosses a process boundary in use crosses one here: the bench starts itself again as the other side
//! ([`peer`]), which dies with it, or asks one that listens on another host ([`remote`]). Copies and kernels alone run
//! in this process. Many peers ([`load`]) are spread over processes that are started so, too.
//!
//! The options ([`arguments`]) become settings ([`settings`]), by which this side measures. It sends tasks
//! ([`messages`]), which the other side carries out ([`serve`]).

mod arguments;
mod carrier;
mod check;
mod client;
mod counters;
mod error;
mod gpu;
mod histogram;
mod line;
mod listen;
mod load;
mod load_process;
mod local;
mod means;
mod measure;
mod memory;
mod messages;
mod names;
mod nodes;
mod owner;
mod parse;
mod pattern;
mod payload;
mod peer;
mod pin;
mod remote;
mod report;
mod requester;
mod requests;
mod round;
mod serve;
mod settings;
mod side;
mod target;
mod timing;
mod usage;
mod worker;

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

pub(crate) use arguments::BenchArgs;
use carrier::Carrier;
use check::Request;
use counters::Counters;
use error::BenchError;
use names::Op;
use remote::Remote;
use report::{Measured, Results};
pub(crate) use report::{duration, rate, size};
pub(crate) use serve::PeerArgs;
use settings::Settings;
use slackline::internals::mem::set_copy_threads;
use slackline::{Shm, Tcp, TransportKind, Verbs};

use crate::failure::Failure;

/// Runs the measurements that were asked for and reports them.
pub(crate) fn run(args: BenchArgs) -> ExitCode {
    finish(try_run(args))
}

/// Runs as the other side of a measurement.
pub(crate) fn run_peer(args: PeerArgs) -> ExitCode {
    finish(serve::serve(args).map_err(Failure::from))
}

fn finish(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn try_run(args: BenchArgs) -> Result<(), Failure> {
    let (mut settings, json) = match args.check()? {
        Request::Measure(settings, json) => (*settings, json),
        Request::Listen { address, transport, means, keep } => {
            return Ok(listen::listen(address, transport, &means, keep)?);
        }
    };
    let mut results = Results::new(json.as_deref(), settings.sizes.len())?;
    // What cannot be had here is told here, and not by the other side.
    carrier::open(settings.transport, &settings.means)?;
    let mut remote = None;
    if let Some(host) = &settings.peer {
        let connected = Remote::connect(host, &settings.means)?;
        settings.means.peer = Some(connected.address.ip());
        remote = Some(Rc::new(connected));
    }
    if let Some(threads) = settings.copy_threads {
        set_copy_threads(threads.into());
    }
    for bytes in &settings.sizes {
        match measure(&settings, remote.as_ref(), *bytes) {
            Ok(measured) => results.add(measured),
            Err(error) => {
                // What failed first is told.
                let _written = results.finish();
                let error = match &remote {
                    Some(remote) => remote.explain(error),
                    None => error,
                };
                return Err(Failure::from(error).at(format!("{} of {bytes} bytes", settings.op.name())));
            }
        }
    }
    results.finish()
}

fn measure(settings: &Settings, remote: Option<&Rc<Remote>>, bytes: u64) -> Result<Measured, BenchError> {
    let before = Counters::look(settings.transport, Path::new("/"));
    let measured = match settings.transport {
        TransportKind::Shm => measure_one::<Shm>(settings, remote, bytes),
        TransportKind::Tcp => measure_one::<Tcp>(settings, remote, bytes),
        TransportKind::Verbs => measure_one::<Verbs>(settings, remote, bytes),
        other => Err(carrier::not_measured(other)),
    };
    let moved = Counters::look(settings.transport, Path::new("/")).since(&before);
    Ok(measured?.counted(&moved))
}

fn measure_one<C: Carrier>(
    settings: &Settings,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
) -> Result<Measured, BenchError> {
    if let Some(load) = &settings.load {
        return load::measure::<C>(settings, load, remote, bytes);
    }
    match settings.op {
        Op::Write | Op::Read | Op::FetchAdd => requests::measure::<C>(settings, remote, bytes),
        Op::Publish => nodes::publish::<C>(settings, remote, bytes),
        Op::Pull => nodes::pull::<C>(settings, remote, bytes),
        Op::PinnedRead => nodes::pinned_read::<C>(settings, remote, bytes),
        Op::Round => round::measure::<C>(settings, bytes),
        Op::Memcpy => local::memcpy(settings, bytes),
        Op::Apply => local::apply(settings, bytes),
        Op::Triad => local::triad(settings, bytes),
    }
}
