//! From options to a cluster.

use slackline::optim::Schedule;
use slackline::scheme::{Damping, SchemeConfig};
use slackline::sim::{
    Cluster, ClusterReport, Factorisation, Faults, Logistic, Network, Problem, Quadratic, Shape, Until,
};
use slackline_lab::data;
use slackline_lab::model::{BatchesError, HIDDEN_DEFAULT, ModelKind, ModelSpec, Shards};
use slackline_lab::problem::{Digits, DigitsError};

use super::args::{ProblemName, SimArgs};
use super::{errors, parse};
use crate::failure::Failure;
use crate::optimizer_name::OptimizerName;

const BATCH_DEFAULT: usize = 32;

/// Clocks, or versions, of a run that was given no end.
const LENGTH_DEFAULT: u64 = 100;

/// Builds the cluster that `args` describe, with this scheme, which fits their workers.
pub(super) fn cluster(args: &SimArgs, scheme: SchemeConfig, until: Until) -> Result<Cluster, Failure> {
    let mut cluster = Cluster::new(scheme, args.workers, args.seed);
    cluster.damping = args.settings.damping.into();
    cluster.additive = args.settings.additive;
    cluster.compute = args.compute.clone();
    cluster.factors = factors(args)?;
    cluster.changes = args.change.clone();
    cluster.network = Network {
        latency: args.latency.clone(),
        worker_bandwidth: args.bandwidth,
        server_bandwidth: args.server_bandwidth,
        message_bytes: args.message_bytes.map(|bytes| bytes.round() as u64),
        racks: None,
    };
    cluster.faults = Faults {
        crashes: args.crash.clone(),
        lifetime: args.lifetime.clone(),
        downtime: args.downtime.clone(),
        detection: args.detection,
        loss: args.loss,
        retransmission: args.retransmission,
        replay: args.replay,
        partitions: args.cut.clone(),
    };
    cluster.read_my_writes = args.read_my_writes;
    cluster.until = until;
    cluster.problem = problem(args)?;
    cluster.optimizer = args.optimizer.optimizer();
    cluster.learning_rate = args.learning_rate.unwrap_or(learning_rate(args.optimizer, args.problem));
    cluster.schedule = args.schedule;
    cluster.check().map_err(|error| errors::of_simulation(&error))?;
    if args.problem == ProblemName::None {
        let of_problem = [
            ("--batch", args.batch.is_some()),
            ("--learning-rate", args.learning_rate.is_some()),
            ("--optimizer", args.optimizer != OptimizerName::Sgd),
            ("--schedule", args.schedule != Schedule::Constant),
            ("--damping", cluster.damping != Damping::None),
            ("--additive", cluster.additive),
            ("--read-my-writes", cluster.read_my_writes),
        ];
        let remedy = "leave it out, or use --problem quadratic or another one";
        refuse(&of_problem, "time alone is simulated, which it does not change", remedy)?;
    }
    Ok(cluster)
}

/// Refuses what only a server has where none of `schemes` has one.
pub(super) fn check_server(args: &SimArgs, schemes: &[SchemeConfig]) -> Result<(), Failure> {
    if schemes.iter().any(SchemeConfig::has_server) {
        return Ok(());
    }
    let of_server =
        [("--server-bandwidth", args.server_bandwidth.is_some()), ("--replay", args.replay > 0.0)];
    refuse(&of_server, "ds-sync has no server", "leave it out, or use another scheme")
}

/// Refuses the first of these options that is given.
fn refuse(options: &[(&str, bool)], why: &str, remedy: &str) -> Result<(), Failure> {
    match options.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::usage(format!("{option}: {why}")).help(remedy)),
        None => Ok(()),
    }
}

/// Returns the condition for the end of a run; runs of all `schemes` can reach it.
pub(super) fn until(args: &SimArgs, schemes: &[SchemeConfig]) -> Until {
    let gradient = args.compute.typical();
    if let Some(target) = args.target_loss {
        let within = args.within.unwrap_or(1e4 * gradient);
        return Until::Loss { target, within };
    }
    let interrupts = schemes.iter().any(SchemeConfig::interrupts);
    match (args.clocks, args.versions, args.seconds) {
        (Some(clocks), ..) => Until::Clocks(clocks),
        (_, Some(versions), _) => Until::Versions(versions),
        (_, _, Some(seconds)) => Until::Seconds(seconds),
        _ if !interrupts => Until::Clocks(LENGTH_DEFAULT),
        _ if schemes.len() == 1 => Until::Versions(LENGTH_DEFAULT),
        // Versions of one scheme are not those of another.
        _ => Until::Seconds(LENGTH_DEFAULT as f64 * gradient),
    }
}

fn factors(args: &SimArgs) -> Result<Vec<f64>, Failure> {
    let mut factors = vec![None; args.workers];
    for given in &args.factor {
        let written = parse::written(&given.workers);
        let wrong = |what: String| Failure::usage(format!("--factor {written}={}: {what}", given.factor));
        let chosen = factors.get_mut(given.workers.clone()).ok_or_else(|| {
            let (last, most) = (given.workers.end - 1, args.workers.saturating_sub(1));
            wrong(format!("there is no worker {last}")).help(format!("workers are numbered 0 to {most}"))
        })?;
        if chosen.iter().any(Option::is_some) {
            return Err(wrong("a worker was given a factor before".into()).help("give one per worker"));
        }
        chosen.fill(Some(given.factor));
    }
    Ok(factors.into_iter().map(|factor| factor.unwrap_or(1.0)).collect())
}

fn problem(args: &SimArgs) -> Result<Option<Box<dyn Problem>>, Failure> {
    let (batch, seed) = (args.batch.unwrap_or(BATCH_DEFAULT), args.seed);
    if batch == 0 {
        return Err(Failure::usage("--batch cannot be 0").help("use 1 or more examples"));
    }
    use ProblemName::{ConvNet, Mlp, Softmax};
    if !args.hidden.is_empty() && !matches!(args.problem, Mlp | ConvNet) {
        return Err(Failure::usage("--hidden: only mlp and convnet have hidden units")
            .help("leave it out, or use --problem mlp"));
    }
    if !matches!(args.problem, Softmax | Mlp | ConvNet) {
        let of_labels = [("--data", args.data.is_some()), ("--shards", args.shards != Shards::Iid)];
        let remedy = "leave it out, or use --problem softmax, mlp or convnet";
        refuse(&of_labels, "this problem has no examples with labels", remedy)?;
    }
    Ok(Some(match args.problem {
        ProblemName::None => return Ok(None),
        // The variance of one example, over the batch.
        ProblemName::Quadratic => Box::new(Quadratic::new(64, 10.0, 64.0 / batch as f64, seed)),
        Softmax => Box::new(examples(args, ModelKind::Softmax, batch)?),
        Mlp => Box::new(examples(args, ModelKind::Mlp, batch)?),
        ConvNet => Box::new(examples(args, ModelKind::ConvNet, batch)?),
        ProblemName::Factorisation => Box::new(Factorisation::new(Shape { batch, ..Shape::default() }, seed)),
        ProblemName::Logistic => Box::new(Logistic::new(2000, 20, batch, 1e-4, seed)),
    }))
}

/// A model on examples with labels.
fn examples(args: &SimArgs, kind: ModelKind, batch: usize) -> Result<Digits, Failure> {
    let split = match &args.data {
        Some(path) => data::load(path).map_err(|error| Failure::refused(&error).after("--data"))?,
        None => data::digits(),
    };
    let hidden = if args.hidden.is_empty() { &[HIDDEN_DEFAULT][..] } else { &args.hidden };
    let spec = ModelSpec::new(kind, split.train.columns, split.train.classes, hidden);
    let spec = spec.map_err(|error| Failure::refused(&error))?;
    let digits = Digits::of(split.into(), spec, args.shards, args.workers, batch, args.seed);
    digits.map_err(|error| match error {
        DigitsError::Batches(BatchesError::Shards(_)) => Failure::refused(&error).at("--shards"),
        _ => Failure::refused(&error).at("--batch"),
    })
}

/// A step size that suits the optimiser and the problem, with staleness too.
fn learning_rate(optimizer: OptimizerName, problem: ProblemName) -> f32 {
    let sgd = match problem {
        ProblemName::None | ProblemName::Quadratic => 0.1,
        ProblemName::Softmax | ProblemName::Logistic => 0.5,
        ProblemName::Mlp | ProblemName::ConvNet => 0.2,
        ProblemName::Factorisation => 8.0,
    };
    match optimizer {
        OptimizerName::Sgd => sgd,
        OptimizerName::Momentum => 0.05 * sgd,
        OptimizerName::Adam | OptimizerName::AdamW => 0.002,
    }
}

/// Runs the cluster to its end.
pub(super) fn simulate(cluster: Cluster) -> Result<ClusterReport, Failure> {
    cluster.run().map_err(|error| errors::of_simulation(&error))
}
