//! Options that a scheme cannot meet, found out before any process is started.

use slackline::{
    Encoding, Optimizer,
    scheme::{Damping, SchemeConfig},
};

use super::args::TrainArgs;
use super::values::Idle;
use crate::failure::Failure;
use crate::scheme_args;

/// Whether this scheme does what the rest of the options ask for.
pub(super) fn check(
    args: &TrainArgs,
    scheme: SchemeConfig,
    optimizer: Optimizer,
    encoding: Encoding,
) -> Result<(), Failure> {
    let name = scheme.name();
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
    if args.checkpoint.is_some() {
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
