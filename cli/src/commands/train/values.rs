//! Values of options: their names, their forms and their bounds.

use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use slackline::internals::job::coordinated::ComputeDevice;
use slackline::scheme::{SchemeConfig, SchemeConfigError};
use slackline::{NonFinite, TransportKind};

use crate::device_name;
use crate::failure::Failure;

/// Behaviour of processes while they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Idle {
    /// Poll without pause: events are seen at once, and a processor is busy with that
    Poll,
    /// Sleep until another process wakes them
    Sleep,
}

/// Treatment of gradients that hold a NaN or an infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NonFiniteName {
    /// They are folded in, and end the run, as the parameters are not finite from then on
    Allow,
    /// They are left out
    Drop,
    /// They are left out, and the worker that sent one is evicted
    Refuse,
}

impl From<NonFiniteName> for NonFinite {
    fn from(name: NonFiniteName) -> NonFinite {
        match name {
            NonFiniteName::Allow => NonFinite::Allow,
            NonFiniteName::Drop => NonFinite::Drop,
            NonFiniteName::Refuse => NonFinite::Refuse,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum EncodingName {
    F32,
    Bf16,
    F16,
}

/// The only transport that processes may use; none if each pair takes its best. It has a name of its own because clap
/// takes what is called an `Option` for an argument that may be left out.
pub(super) type RequiredTransport = Option<TransportKind>;

pub(super) fn transport() -> impl TypedValueParser<Value = RequiredTransport> {
    let value = |name: &'static str, help: &'static str| PossibleValue::new(name).help(help);
    let values = [
        value(
            "auto",
            "The best that a pair of processes has: shared memory on one host, RDMA between hosts that have it, TCP \
             otherwise",
        ),
        value("shm", "Shared memory"),
        value(
            "verbs",
            "RDMA (InfiniBand, RoCE); on each host SLACKLINE_RDMA_DEVICE (NAME or NAME:PORT, several with commas to \
             stripe over), SLACKLINE_RDMA_PORT, SLACKLINE_RDMA_GID_INDEX and SLACKLINE_RDMA_MTU overrule what is \
             chosen",
        )
        .alias("rdma"),
        value("tcp", "TCP"),
    ];
    PossibleValuesParser::new(values).try_map(|name| match name.as_str() {
        "auto" => Ok(None),
        "rdma" => Ok(Some(TransportKind::Verbs)),
        name => name.parse().map(Some),
    })
}

/// Reads a device: `cpu`, `cuda` or `cuda:N`.
pub(super) fn device(text: &str) -> Result<ComputeDevice, String> {
    device_name::parse(text, "cpu")
}

/// Kept as text: options may add to its settings.
pub(super) fn scheme(text: &str) -> Result<String, SchemeConfigError> {
    text.parse::<SchemeConfig>().map(|_| text.to_owned())
}

pub(super) fn straggler(text: &str) -> Result<(usize, f64), String> {
    let form = || "write WORKER=FACTOR, such as 0=4 for a worker 0 that is four times slower".to_owned();
    let (worker, factor) = text.split_once('=').ok_or_else(form)?;
    match (worker.trim().parse(), factor.trim().parse()) {
        (Ok(worker), Ok(factor)) => Ok((worker, factor)),
        _ => Err(form()),
    }
}

/// A time that a person may have to wait.
pub(super) fn timeout(seconds: f64) -> Result<Duration, Failure> {
    let usable = Some(seconds).filter(|seconds| (0.001..=1e6).contains(seconds)).map(Duration::from_secs_f64);
    usable.ok_or_else(|| {
        Failure::usage(format!("--timeout cannot be {seconds}")).help("use 0.001 to 1000000 seconds")
    })
}

/// Returns the longest time for which a process may be silent. A few heartbeats must fit into it.
pub(super) fn lease(seconds: f64) -> Result<Duration, Failure> {
    let usable =
        Some(seconds).filter(|seconds| (0.1..=86_400.0).contains(seconds)).map(Duration::from_secs_f64);
    usable.ok_or_else(|| {
        Failure::usage(format!("--lease cannot be {seconds}")).help("use 0.1 to 86400 seconds")
    })
}

pub(super) fn target(accuracy: Option<f32>) -> Result<Option<f32>, Failure> {
    match accuracy {
        Some(accuracy) if !(accuracy > 0.0 && accuracy <= 1.0) => {
            Err(Failure::usage(format!("--target-accuracy cannot be {accuracy}"))
                .help("use a part of the test examples above 0 and up to 1, such as 0.95"))
        }
        accuracy => Ok(accuracy),
    }
}
