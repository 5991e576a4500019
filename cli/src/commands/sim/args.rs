//! Options of `slackline sim`.

use std::path::PathBuf;

use clap::ValueEnum;
use slackline::optim::Schedule;
use slackline::scheme::SchemeConfig;
use slackline::sim::fabric::Class;
use slackline::sim::{Change, Crash, Distribution, MAX_WORKERS, NetworkPartition};
use slackline_lab::model::Shards;

use super::parse::{Factor, change, crash, cut, random_time, scaled};
use crate::failure::Failure;
use crate::optimizer_name::OptimizerName;
use crate::scheme_args::SchemeArgs;

/// Simulate a job in virtual time.
///
/// The schemes are the same code as in `slackline train`, and the gradients come from a small problem (--problem), or
/// there are none, to simulate only time. Time is computed, not measured: the same options give the same run, to the
/// last bit, on the same kind of machine. The last bits depend on the vectors of the processor and on the logarithm
/// of the system.
#[derive(clap::Args, Clone, Debug)]
#[command(allow_negative_numbers = true, after_help = EXIT_CODES, after_long_help = EXAMPLES)]
pub(crate) struct SimArgs {
    /// Run these schemes side by side, such as 'bsp,ssp(4),dbw(delivery=wait)'
    #[arg(long, help_heading = "What to run", value_name = "SCHEMES", conflicts_with_all = ["scheme", "sweep"])]
    pub(super) compare: Option<String>,

    /// Run every value of an option, on all cores; repeated: every combination
    #[arg(long, help_heading = "What to run", value_name = "OPTION=VALUE,...")]
    pub(super) sweep: Vec<String>,

    /// Show a result of the literature and ours beside it; `list` names them, `all` runs them all
    #[arg(long, help_heading = "What to run", value_name = "NAME")]
    #[arg(group = "seeded", conflicts_with_all = ["compare", "sweep", "scheme"], conflicts_with_all = JOB)]
    pub(super) reproduce: Option<String>,

    /// With --reproduce: run it on real processes, whose steps sleep, and set the simulator's figures beside theirs;
    /// `all-schemes` for NAME times all schemes there, each at its best step size
    #[arg(long, help_heading = "What to run", requires = "reproduce", conflicts_with_all = ["plot", "seeds"])]
    pub(super) real: bool,

    /// With --real: only the few runs that CI has time for
    #[arg(long, help_heading = "What to run", requires = "real")]
    pub(super) quick: bool,

    /// With --reproduce: run it so often again, with seeds that no other run has, and count how often each claim holds;
    /// a claim that held at first and does not in nine of ten runs is a failure. With --docs each run is recorded at
    /// its end, and the same command goes on where it was stopped
    #[arg(
        long,
        help_heading = "What to run",
        value_name = "N",
        requires = "reproduce",
        hide_short_help = true,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    #[arg(conflicts_with_all = ["plot", "real"])]
    pub(super) again: Option<u64>,

    /// Run the real nodes and their memory protocol over a simulated network as hostile as can be, and hold every
    /// copy against the promises; job and faults are drawn from the seed, and so is the scheme unless it is given
    #[arg(long, group = "seeded", help_heading = "What to run")]
    #[arg(conflicts_with_all = ["compare", "sweep", "reproduce", "plot"], conflicts_with_all = JOB)]
    pub(super) fabric: bool,

    /// Number of seeds to run, from --seed on; with --fabric, or with --reproduce instead of the result's own number
    #[arg(long, help_heading = "What to run", value_name = "N", requires = "seeded")]
    pub(super) seeds: Option<u64>,

    /// With --fabric: no node crashes, stalls or is cut off; there are only delays, pieces and repetitions
    #[arg(long, help_heading = "What to run", requires = "fabric")]
    pub(super) spare_nodes: bool,

    /// With --fabric: only one class of faults: failures, liars, frozen-threads, zombies or slow-registration
    #[arg(long, help_heading = "What to run", value_name = "CLASS", requires = "fabric")]
    #[arg(conflicts_with = "spare_nodes")]
    pub(super) only: Option<Class>,

    /// Scheme, which says when workers wait and for which others [default: ssp]
    ///
    /// One of bsp, asp, ssp, essp, bap, vap, dbw, abs, k-async, k-sync, adasync, ds-sync, delay; settings may stand in
    /// parentheses, as in 'ssp(3)'. `slackline help schemes` has all of them.
    #[arg(long, help_heading = "Scheme", value_name = "NAME")]
    pub(super) scheme: Option<String>,

    #[command(flatten)]
    pub(super) settings: SchemeArgs,

    /// Workers see their own gradients before the server has folded them in
    #[arg(long, help_heading = "Scheme")]
    pub(super) read_my_writes: bool,

    /// Workers
    #[arg(long, help_heading = "Workers", value_name = "N", default_value_t = 8)]
    pub(super) workers: usize,

    /// Seconds to compute a gradient: a number, or a distribution such as exp(1)
    ///
    /// Distributions are constant(S), exp(MEAN), shifted-exp(SHIFT, MEAN), pareto(SHAPE, SCALE), uniform(FROM, TO) and
    /// trace:FILE.
    #[arg(long, help_heading = "Workers", value_name = "DIST", default_value = "exp(1)", value_parser = random_time)]
    pub(super) compute: Distribution,

    /// Make workers, such as 3 or 0-7, FACTOR times slower; may be repeated
    #[arg(long, visible_alias = "straggler", help_heading = "Workers", value_name = "WORKERS=FACTOR")]
    pub(super) factor: Vec<Factor>,

    /// Make workers FACTOR times slower from TIME on; may be repeated
    #[arg(long, help_heading = "Workers", value_name = "TIME:WORKERS=FACTOR", value_parser = change)]
    pub(super) change: Vec<Change>,

    /// Latency of a message in seconds, one way: a number or a distribution
    #[arg(long, help_heading = "Network", value_name = "DIST", default_value = "0", value_parser = random_time)]
    pub(super) latency: Distribution,

    /// Bytes per second of each worker's link, such as 125M [default: no limit]
    #[arg(long, help_heading = "Network", value_name = "RATE", value_parser = scaled)]
    pub(super) bandwidth: Option<f64>,

    /// Bytes per second of the server's link, where all messages queue; refused if ds-sync is the only scheme
    /// [default: no limit]
    #[arg(long, help_heading = "Network", value_name = "RATE", value_parser = scaled)]
    pub(super) server_bandwidth: Option<f64>,

    /// Bytes of a gradient and of a copy of the parameters, such as 100M [default: 4 for each parameter of the
    /// problem]
    #[arg(long, help_heading = "Network", value_name = "BYTES", value_parser = scaled)]
    pub(super) message_bytes: Option<f64>,

    /// Probability that a message is lost and sent again
    #[arg(long, help_heading = "Faults", value_name = "PROBABILITY", default_value_t = 0.0)]
    pub(super) loss: f64,

    /// Seconds after which a message that --loss has lost is sent again
    #[arg(long, help_heading = "Faults", value_name = "SECONDS", default_value_t = 0.2)]
    pub(super) retransmission: f64,

    /// Probability that a message comes twice; refused if ds-sync is the only scheme
    #[arg(long, help_heading = "Faults", value_name = "PROBABILITY", default_value_t = 0.0)]
    pub(super) replay: f64,

    /// Crash a worker, forever or until a second time: 2@30, 2@30-45; may be repeated
    #[arg(long, help_heading = "Faults", value_name = "WORKER@TIME", value_parser = crash)]
    pub(super) crash: Vec<Crash>,

    /// Crash every worker again and again: seconds from each start to the next crash
    #[arg(long, help_heading = "Faults", value_name = "DIST", value_parser = random_time)]
    pub(super) lifetime: Option<Distribution>,

    /// Seconds from such a crash until the worker is back [default: never]
    #[arg(long, help_heading = "Faults", value_name = "DIST", value_parser = random_time, requires = "lifetime")]
    pub(super) downtime: Option<Distribution>,

    /// Seconds from a crash (--crash, --lifetime) until the others know
    #[arg(long, help_heading = "Faults", value_name = "SECONDS", default_value_t = 0.0)]
    pub(super) detection: f64,

    /// Hold up all messages from workers (up) or to them (down) for a while; may be repeated
    #[arg(long, help_heading = "Faults", value_name = "WORKERS:up@FROM-UNTIL", value_parser = cut)]
    pub(super) cut: Vec<NetworkPartition>,

    /// Problem to learn
    #[arg(long, help_heading = "Problem", value_enum, default_value_t = ProblemName::None)]
    pub(super) problem: ProblemName,

    /// Examples per gradient, of each worker [default: 32]
    #[arg(long, help_heading = "Problem", value_name = "EXAMPLES")]
    pub(super) batch: Option<usize>,

    /// Hidden units of mlp and convnet, of several layers with commas: 128,64 [default: 64]
    #[arg(long, help_heading = "Problem", value_name = "UNITS", value_delimiter = ',')]
    pub(super) hidden: Vec<usize>,

    /// CSV, LIBSVM, IDX or CIFAR-10 file of examples, also gzipped [default: the built-in digits]
    #[arg(long, help_heading = "Problem", value_name = "FILE")]
    pub(super) data: Option<PathBuf>,

    /// How examples are dealt out to workers: iid, sorted (by label) or dirichlet(A), the more uneven the smaller A
    #[arg(long, help_heading = "Problem", value_name = "SHARDS", default_value_t = Shards::Iid)]
    pub(super) shards: Shards,

    /// Optimizer that applies gradients to the parameters
    #[arg(long, help_heading = "Problem", value_enum, default_value_t = OptimizerName::Sgd)]
    pub(super) optimizer: OptimizerName,

    /// Step size [default: one that suits the problem and the optimizer]
    #[arg(long, help_heading = "Problem", value_name = "RATE")]
    pub(super) learning_rate: Option<f32>,

    /// How the step size falls: constant, steps(EVERY, FACTOR), inverse-root(UPDATES) or cosine(UPDATES)
    ///
    /// Updates are versions; without a server, the steps of each worker.
    #[arg(long, help_heading = "Problem", value_name = "SCHEDULE", default_value_t = Schedule::Constant)]
    pub(super) schedule: Schedule,

    /// Decides everything that is random
    #[arg(long, help_heading = "Problem", value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,

    /// Stop once every worker has completed N clocks [default: 100]
    #[arg(long, help_heading = "End", value_name = "N", group = "end")]
    pub(super) clocks: Option<u64>,

    /// Stop at this version [default for schemes that interrupt workers: 100]
    #[arg(long, help_heading = "End", value_name = "N", group = "end")]
    pub(super) versions: Option<u64>,

    /// Stop at this virtual time [default with --compare, if a scheme interrupts workers: 100 gradients long]
    #[arg(long, help_heading = "End", value_name = "SECONDS", group = "end")]
    pub(super) seconds: Option<f64>,

    /// Stop once the loss is this small
    #[arg(long, help_heading = "End", value_name = "LOSS", group = "end")]
    pub(super) target_loss: Option<f64>,

    /// Virtual time after which the target is given up [default: 10000 times --compute]
    #[arg(long, help_heading = "End", value_name = "SECONDS", requires = "target_loss")]
    pub(super) within: Option<f64>,

    /// Write the results as JSON; - for stdout, which then holds nothing else
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Draw the results as SVG
    #[arg(long, help_heading = "Output", value_name = "FILE", conflicts_with = "sweep")]
    pub(super) plot: Option<PathBuf>,

    /// With --reproduce: write the page, its plots and its records into this folder; other results stay as they are
    #[arg(long, help_heading = "Output", value_name = "FOLDER", requires = "reproduce")]
    pub(super) docs: Option<PathBuf>,
}

impl SimArgs {
    /// The scheme of a single run.
    pub(super) fn config(&self) -> Result<SchemeConfig, Failure> {
        self.config_of(self.scheme.as_deref().unwrap_or("ssp"))
    }

    /// The scheme of this text, fit for the workers there are.
    pub(super) fn config_of(&self, text: &str) -> Result<SchemeConfig, Failure> {
        // Before memory is reserved for each.
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(Failure::usage(format!("--workers cannot be {}", self.workers))
                .help(format!("use 1 to {MAX_WORKERS}")));
        }
        self.settings.config_for(text, self.workers)
    }
}

/// Options of a single simulated job; commands with jobs of their own take none of them.
const JOB: [&str; 32] = [
    "read_my_writes",
    "damping",
    "additive",
    "workers",
    "compute",
    "factor",
    "change",
    "latency",
    "bandwidth",
    "server_bandwidth",
    "message_bytes",
    "loss",
    "retransmission",
    "replay",
    "crash",
    "lifetime",
    "downtime",
    "detection",
    "cut",
    "problem",
    "batch",
    "hidden",
    "data",
    "shards",
    "optimizer",
    "learning_rate",
    "schedule",
    "clocks",
    "versions",
    "seconds",
    "target_loss",
    "within",
];

const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 a promise was broken or the run failed, 2 options or files that cannot be used.";

const EXAMPLES: &str = "Examples:
  slackline sim
      eight workers with exponential times under ssp(3); a few milliseconds
  slackline sim --compare 'bsp,bap(4),ssp(4),essp(4)' --problem softmax --seconds 300 --plot compare.svg
      what staleness buys under jitter: loss against time, time per clock, staleness
  slackline sim --compare 'bsp,dbw,abs' --factor 0=5 --problem mlp --target-loss 0.1
      how each scheme does with one worker that is five times slower
  slackline sim --sweep workers=4,16,64 --sweep 'scheme=bsp,ssp(3),ssp(16)' --json grid.json
      a grid, on all cores
  slackline sim --scheme ssp --workers 10000
      ten thousand workers, only time
  slackline sim --scheme bsp --workers 32 --server-bandwidth 1250M --message-bytes 100M --latency 20e-6
      in-cast: 32 gradients of 100 MB on one link of 10 Gbit/s
  slackline sim --fabric --seeds 1000
      the real nodes under a thousand seeds of faults; a seed that breaks a promise is printed, with a command to run it
  slackline sim --reproduce bap
      a table of the literature, and ours beside it; `--reproduce list` has the others

Exit codes: 0 done, 1 a promise was broken or the run failed, 2 options or files that cannot be used.";

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(crate) enum ProblemName {
    /// Nothing: only time
    None,
    /// A bowl of 64 parameters whose bottom is known; gradients carry noise
    Quadratic,
    /// Softmax regression on the digits, or on --data
    Softmax,
    /// A perceptron, likewise
    Mlp,
    /// Two convolutions with batch normalisation and pooling, then a perceptron, likewise
    #[value(name = "convnet")]
    ConvNet,
    /// A 60 x 40 matrix of rank 4, from some of its entries
    Factorisation,
    /// Logistic regression on 2000 synthetic examples
    Logistic,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_brings_its_own_jobs_takes_no_option_of_a_job() {
        let command = <SimArgs as clap::Args>::augment_args(clap::Command::new("sim"));
        let conflicts = |with: &str| -> Vec<String> {
            let with = command.get_arguments().find(|argument| argument.get_id() == with).unwrap();
            command
                .get_arg_conflicts_with(with)
                .iter()
                .map(|argument| argument.get_id().to_string())
                .collect()
        };
        // Settings go with the scheme: they are refused where there is none.
        let settings = <SchemeArgs as clap::Args>::augment_args(clap::Command::new("settings"));
        let is_setting = |id: &str| {
            !["damping", "additive"].contains(&id)
                && settings.get_arguments().any(|argument| argument.get_id() == id)
        };
        let ours =
            ["fabric", "reproduce", "seed", "seeds", "spare_nodes", "only", "scheme", "json", "plot", "docs"];
        let ours = [&ours[..], &["real", "quick", "again"]].concat();
        let (fabric, reproduce) = (conflicts("fabric"), conflicts("reproduce"));
        for argument in command.get_arguments() {
            let id = argument.get_id().to_string();
            if !is_setting(&id) && !ours.contains(&id.as_str()) {
                assert!(fabric.contains(&id) && reproduce.contains(&id), "--{id}");
            }
        }
    }
}
