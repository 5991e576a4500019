//! Options of `slackline train`.

use std::path::PathBuf;

use slackline::internals::job::coordinated::ComputeDevice;
use slackline::optim::Schedule;
use slackline::scheme::SchemeConfig;

use super::job_args::JobArgs;
use super::values::{
    EncodingName, Idle, NonFiniteName, RequiredTransport, device, scheme, straggler, transport,
};
use crate::checkpoint_args::CheckpointArgs;
use crate::failure::Failure;
use crate::model_args::ModelArgs;
use crate::optimizer_name::OptimizerName;
use crate::scheme_args::SchemeArgs;

/// Train a model, with one process per worker.
///
/// Starts the servers and the workers as processes of this host, shows the progress of the run, and ends with a table
/// of the workers. Without any option it trains a perceptron on the digits that come with the program.
///
/// Under a launcher (torchrun, srun, mpirun, mpiexec) every rank runs this command: rank 0 coordinates and holds the
/// first shard, the ranks after it the other shards, and the rest are workers.
#[derive(clap::Args, Debug)]
#[command(allow_negative_numbers = true, after_help = EXIT_CODES, after_long_help = EXAMPLES)]
pub(crate) struct TrainArgs {
    /// Scheme of synchronisation; `slackline help schemes` has all of them
    ///
    /// Under bsp all workers wait for each other, under asp none; under ssp, essp, bap and vap a worker waits when it
    /// is too far ahead. Under dbw and k-sync the first k gradients make an update, and late ones are dropped; under
    /// k-async, adasync and abs they count later (abs: up to a bound). ds-sync has no server, and delay is for tests.
    /// Settings may follow, as in 'abs(k=2, staleness=4)'.
    #[arg(long, help_heading = "Scheme", value_name = "SCHEME", value_parser = scheme, default_value = "ssp")]
    pub(super) scheme: String,

    #[command(flatten)]
    pub(super) settings: SchemeArgs,

    /// Workers see their own gradients before a server has folded them in
    #[arg(long, help_heading = "Scheme")]
    pub(super) read_my_writes: bool,

    /// Worker processes [default: 2, or all ranks of a launcher that are no servers]
    #[arg(long, help_heading = "Processes", value_name = "N")]
    pub(super) workers: Option<usize>,

    /// Server processes, each with a shard of the parameters [default: 1, or none for ds-sync]
    #[arg(long, help_heading = "Processes", value_name = "M")]
    pub(super) servers: Option<usize>,

    /// Threads that sum gradients, in each server
    #[arg(long, help_heading = "Processes", value_name = "N", default_value_t = 1)]
    pub(super) threads: usize,

    /// Device that folds and computes gradients: cpu, cuda, or cuda:N for the GPU of this number on each host
    ///
    /// With cuda the processes of a host take its GPUs by turns, by their local ranks. Parameters, gradients and the
    /// optimiser's states are in memory of the GPU then. It needs an NVIDIA driver of CUDA 12.0 or later; `slackline
    /// doctor` looks at the GPUs.
    #[arg(long, help_heading = "Processes", value_name = "DEVICE", value_parser = device, default_value = "cpu")]
    pub(super) device: ComputeDevice,

    /// Transport; auto chooses the best for each pair of processes, and any other fails if it is unavailable
    #[arg(
        long,
        visible_alias = "require",
        help_heading = "Processes",
        value_parser = transport(),
        default_value = "auto"
    )]
    pub(super) transport: RequiredTransport,

    /// Behaviour of servers and workers while they wait for each other
    #[arg(long, help_heading = "Processes", value_enum, default_value_t = Idle::Poll)]
    pub(super) idle: Idle,

    /// Whether gradients and parameters carry checksums, one more pass over each [default: where they may go over TCP]
    #[arg(long, help_heading = "Processes", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(super) checksums: Option<bool>,

    /// Have one worker of each host stand for all workers there: the servers get one sum of gradients from each host
    ///
    /// A thread of the host's first worker sums their gradients over shared memory. It needs bsp; --transport is that
    /// between it and the servers.
    #[arg(long, help_heading = "Processes")]
    pub(super) per_host: bool,

    #[command(flatten)]
    pub(super) checkpoint: CheckpointArgs,

    /// Most times that a lost process is started again (a server only with --checkpoint)
    #[arg(long, help_heading = "Restarts", value_name = "N", default_value_t = 0)]
    pub(super) restarts: u32,

    /// Start no process: all servers and workers are started elsewhere, by `slackline serve` and `slackline work`
    #[arg(long, help_heading = "Job")]
    pub(super) coordinate: bool,

    #[command(flatten)]
    pub(super) job: JobArgs,

    #[command(flatten)]
    pub(super) metrics: crate::metrics::MetricsArgs,

    /// Let a worker take FACTOR times the processor time of each step, workers counted from 0; may be repeated
    #[arg(
        long,
        visible_alias = "factor",
        help_heading = "Processes",
        value_name = "WORKER=FACTOR",
        value_parser = straggler
    )]
    pub(super) straggler: Vec<(usize, f64)>,

    /// Time that each step takes besides computing, in seconds, drawn from a distribution: constant(0.01), exp(0.01),
    /// shifted-exp(SHIFT, MEAN), pareto(SHAPE, SCALE), uniform(FROM, TO), trace:FILE, or a number for a constant; a
    /// straggler's is multiplied by its FACTOR
    #[arg(long, help_heading = "Processes", value_name = "DIST")]
    pub(super) jitter: Option<String>,

    /// Give up a wait after this many seconds
    #[arg(long, help_heading = "Processes", value_name = "SECONDS", default_value_t = 60.0)]
    pub(super) timeout: f64,

    /// Seconds for which a process may be silent before the others go on without it
    #[arg(long, help_heading = "Processes", value_name = "SECONDS", default_value_t = 3.0)]
    pub(super) lease: f64,

    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// Times that all examples are seen
    #[arg(long, help_heading = "Training", value_name = "N", default_value_t = 40)]
    pub(super) epochs: u32,

    /// Examples per gradient, of each worker
    #[arg(long, help_heading = "Training", value_name = "EXAMPLES", default_value_t = 32)]
    pub(super) batch: usize,

    /// Optimizer that applies gradients to the parameters
    #[arg(long, help_heading = "Training", value_enum, default_value_t = OptimizerName::Momentum)]
    pub(super) optimizer: OptimizerName,

    /// Step size [default: 0.5 for sgd, 0.02 for momentum, 0.002 for adam and adamw]
    ///
    /// Of a factorisation the defaults are 2, 0.2 and 0.02.
    #[arg(long, help_heading = "Training", value_name = "RATE")]
    pub(super) learning_rate: Option<f32>,

    /// How the step size falls: constant, steps(EVERY, FACTOR), inverse-root(UPDATES) or cosine(UPDATES)
    ///
    /// Updates are versions, one of which holds a gradient of every worker under bsp, and one gradient under ssp.
    #[arg(long, help_heading = "Training", value_name = "SCHEDULE", default_value_t = Schedule::Constant)]
    pub(super) schedule: Schedule,

    /// Treatment of gradients that hold a NaN or an infinity; they are counted in any case
    #[arg(long, help_heading = "Training", value_enum, default_value_t = NonFiniteName::Allow)]
    pub(super) non_finite: NonFiniteName,

    /// End the run once this part of the test examples, above 0 and up to 1, is classified correctly; tell the time
    #[arg(long, help_heading = "Training", value_name = "PART")]
    pub(super) target_accuracy: Option<f32>,

    /// Type of the elements of gradients on their way to servers
    #[arg(long, help_heading = "Training", value_enum, default_value_t = EncodingName::F32)]
    pub(super) encoding: EncodingName,

    /// Measure norm and variance of the gradients that are folded, for --metrics and --json, which dbw does anyway
    #[arg(long, help_heading = "Output")]
    pub(super) moments: bool,

    /// Save the trained model as safetensors
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(super) save: Option<PathBuf>,

    /// Write the results as JSON; - for stdout, which then holds nothing else
    #[arg(long, help_heading = "Output", value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

impl TrainArgs {
    /// The scheme, with all its settings.
    pub(super) fn scheme(&self) -> Result<SchemeConfig, Failure> {
        self.settings.config(&self.scheme)
    }

    pub(super) fn has_servers(&self) -> Result<bool, Failure> {
        Ok(self.scheme()?.has_server())
    }

    /// Returns the number of servers.
    pub(super) fn servers(&self) -> Result<usize, Failure> {
        match (self.servers, self.has_servers()?) {
            (Some(servers), false) => Err(Failure::usage(format!(
                "--servers {servers}: {} has none, its workers average among themselves",
                self.scheme
            ))
            .help("leave --servers out")),
            (None, false) => Ok(0),
            (servers, true) => Ok(servers.unwrap_or(1)),
        }
    }
}

const EXIT_CODES: &str = "Exit codes: 0 trained, 1 the run failed, 2 options or files that cannot be used.
Environment: RUST_LOG=warn (or info, debug) shows the log of all processes.";

const EXAMPLES: &str = "Examples:
  slackline train
      the digits, two workers, SSP; about a second
  slackline train --scheme bsp --workers 4 --straggler 0=4
      how long lock step waits for a worker that is four times slower; compare ssp and essp
  slackline train --data train-images-idx3-ubyte --epochs 5 --save mnist.safetensors
      MNIST, packed with gzip or not, with the labels and the t10k files beside it
  slackline train --model factorisation --hidden 8 --penalty 0.01 --data ratings.csv
      factors of a matrix of ratings: user, film and rating in each line; without --data, of a built-in matrix
  slackline train --load mnist.safetensors --data train-images-idx3-ubyte --learning-rate 0.01
      train the saved model further
  slackline train --scheme bsp --device cuda
      servers fold and workers compute on GPUs of this host
  slackline train --json - | jq .final_accuracy
  srun -n 5 slackline train --scheme bsp
      a server and four workers, wherever Slurm puts them; likewise mpirun -n 5, torchrun --nproc-per-node 5 --no-python
  slackline train --coordinate --rendezvous 10.0.0.1:7000 --secret-file job.secret --workers 2
      meet at this host; then `slackline serve` and twice `slackline work`, each on its host, with the same
      --rendezvous and --secret-file

Exit codes: 0 trained (a warning tells of workers that were lost on the way), 1 the run failed,
2 options or files that cannot be used.

Environment: RUST_LOG=warn (or info, debug) shows the log of all processes.";
