//! Options that a scheme cannot meet, found out before any process is started.

use slackline::internals::job::coordinated::ComputeDevice;
use slackline::optim::Optimizer;
use slackline::{
    Encoding,
    scheme::{Damping, SchemeConfig},
};

use super::args::TrainArgs;
use super::values::{Idle, NonFiniteName};
use crate::failure::Failure;
use crate::scheme_args;
use slackline_lab::model::ModelKind;

/// Whether this scheme does what the rest of the options ask for.
pub(super) fn check(
    args: &TrainArgs,
    scheme: SchemeConfig,
    optimizer: Optimizer,
    encoding: Encoding,
) -> Result<(), Failure> {
    let name = &args.scheme;
    let plain = matches!(optimizer, Optimizer::Sgd { .. });
    let refuse = |what: String, help| Err(Failure::usage(what).help(help));
    if scheme.local_steps() > 1 && !plain {
        let why = "steps on a worker's own copy are those of plain SGD, and the server's are to be the same";
        return refuse(format!("--local-steps {}: {why}", scheme.local_steps()), "use --optimizer sgd");
    }
    if args.read_my_writes && !plain {
        let why = "what a gradient does to the parameters is known to its worker for plain SGD alone";
        return refuse(format!("--read-my-writes: {why}"), "use --optimizer sgd, or leave it out");
    }
    if args.read_my_writes && !scheme.folds_all_in_order() {
        let why = "what a worker wrote is not always folded in, or not in order or with this weight";
        let help = "leave it out, or use bsp, asp, ssp, essp, bap or vap";
        return refuse(format!("--read-my-writes: under {name} {why}"), help);
    }
    scheme_args::check_steps(&scheme, args.optimizer, args.schedule, args.read_my_writes)?;
    let damped = Damping::from(args.settings.damping) != Damping::None;
    if args.read_my_writes && damped {
        let why = "with --damping the server folds in less of a gradient than its worker has taken off";
        return refuse(format!("--read-my-writes: {why}"), "leave out one of the two");
    }
    if damped && folds_only_fresh(scheme) {
        let why = "folds in no gradient that is a version behind, so that none would weigh less";
        return refuse(format!("--damping: {} {why}", args.scheme), "leave it out");
    }
    if args.settings.additive && scheme.has_server() && !scheme.adds_up() {
        let why = "leaves gradients out, or bounds what they weigh, so that they do not add up";
        return refuse(
            format!("--additive: {} {why}", args.scheme),
            "leave it out, or use bsp, asp, ssp, essp or bap",
        );
    }
    let sleeps = args.idle == Idle::Sleep;
    if scheme.has_server() {
        return Ok(());
    }
    let alone = |option: &str, why: &str| {
        Err(Failure::usage(format!("{option}: {name} has no server, {why}"))
            .help(format!("leave {option} out")))
    };
    if args.checkpoint.checkpoint.is_some() {
        return alone("--checkpoint", "and a worker that is lost does not come back to its group");
    }
    if args.restarts > 0 {
        return alone("--restarts", "and a worker that is lost does not come back to its group");
    }
    if args.settings.additive {
        return alone("--additive", "so no gradient has a weight");
    }
    if damped {
        return alone("--damping", "so no gradient has a weight");
    }
    if args.moments {
        return alone("--moments", "and what is folded is parameters");
    }
    if args.non_finite != NonFiniteName::Allow {
        return alone("--non-finite", "which would look at gradients");
    }
    if sleeps {
        return alone("--idle", "so no process waits for gradients");
    }
    if args.threads > 1 {
        return alone("--threads", "so no process sums gradients");
    }
    if encoding != Encoding::F32 {
        return alone("--encoding", "and what travels is parameters, which are not rounded");
    }
    Ok(())
}

/// True if each gradient that is folded in was computed on the version before.
fn folds_only_fresh(scheme: SchemeConfig) -> bool {
    use SchemeConfig::{Abs, Bap, Bsp, Dbw};
    matches!(scheme, Bsp | Dbw { .. } | Bap { staleness: 0 } | Abs { staleness: Some(0), .. })
}

/// Whether a GPU does what the rest of the options ask for, if the run is to use one.
pub(super) fn check_device(
    args: &TrainArgs,
    scheme: SchemeConfig,
    encoding: Encoding,
    kind: ModelKind,
) -> Result<(), Failure> {
    if args.device == ComputeDevice::Host {
        return Ok(());
    }
    let name = scheme.name();
    let refused = [
        (!scheme.has_server(), "--scheme", format!("{name} has no server, which would fold on a GPU")),
        (
            scheme.measures_magnitude(),
            "--scheme",
            format!("{name} has workers measure gradients, which are on the GPU"),
        ),
        (scheme.local_steps() > 1, "--local-steps", "there is no kernel for steps on an own copy".into()),
        (
            !matches!(kind, ModelKind::Softmax | ModelKind::Mlp),
            "--model",
            format!("there are no kernels for a {kind}; there are for softmax and mlp"),
        ),
        (encoding != Encoding::F32, "--encoding", "gradients are published from a GPU as f32".into()),
        (args.checksums == Some(true), "--checksums", "they are not computed of memory of a GPU".into()),
        (args.read_my_writes, "--read-my-writes", "a worker's own gradients are on the GPU".into()),
        (args.threads > 1, "--threads", "the GPU folds, and no thread".into()),
        (args.per_host, "--per-host", "the gradients of a host are summed in its own memory".into()),
    ];
    match refused.into_iter().find(|(is_asked_for, ..)| *is_asked_for) {
        None => Ok(()),
        Some((_, option, why)) => {
            Err(Failure::usage(format!("{option} with --device cuda: {why}"))
                .help("leave one of the two out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damping_is_refused_where_no_gradient_is_ever_stale() {
        let is_fresh = |text: &str| folds_only_fresh(text.parse().unwrap());
        assert_eq!(["bsp", "dbw", "dbw(2)", "bap(0)", "k-sync(2)"].map(is_fresh), [true; 5]);
        assert_eq!(["asp", "ssp(0)", "bap(1)", "vap", "abs(k=2, staleness=2)"].map(is_fresh), [false; 5]);
    }
}
