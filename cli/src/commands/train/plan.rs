//! From arguments to a plan: everything that can be found wrong before a process is started is found here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slackline::gpu::Gpu;
use slackline::internals::job::coordinated::{
    CheckpointOrder, ComputeDevice, Coordination, GroupOrder, ServerOrder, WorkerOrder,
};
use slackline::optim::{Optimizer, Schedule};
use slackline::{ElementType, Encoding, JobPlan, Table, TransportKind, scheme, sim::Distribution};
use slackline_lab::compute::Pace;
use slackline_lab::data::{Task, TaskKind};
use slackline_lab::model::{Batches, ModelSpec, Shards};
use slackline_lab::program::Program;

use super::args::TrainArgs;
use super::fit;
use super::job::Job;
use super::values::{self, EncodingName, Idle, NonFiniteName};
use crate::failure::Failure;
use crate::memory;
use crate::model_args;
use crate::output;
use crate::scheme_args;

/// Most peers of each server: workers, and the one reader that evaluates. The other servers may come to them.
const PEERS: u16 = 256;

/// Most workers of one run.
const WORKERS_MAX: usize = PEERS as usize - 1;

/// Most servers of one run: more than any host has use for, few enough to start.
const SERVERS_MAX: usize = 64;

/// A run that can be started.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) scheme: scheme::SchemeConfig,
    pub(super) job: Job,
    pub(super) workers: usize,
    pub(super) servers: usize,
    /// One worker of each host stands for all workers there.
    pub(super) per_host: bool,
    pub(super) threads: usize,
    pub(super) device: ComputeDevice,
    /// The GPU of this process, where servers have their payloads on theirs.
    pub(super) gpu: Option<Gpu>,
    /// Servers sleep while they wait.
    pub(super) sleeps: bool,
    pub(super) checkpoint: Option<CheckpointOrder>,
    /// A checkpoint that cannot be written ends the run.
    pub(super) strict_checkpoints: bool,
    /// Most times that a lost process is started again.
    pub(super) restarts: u32,
    pub(super) metrics: crate::metrics::MetricsArgs,
    /// The only way that processes may reach each other.
    pub(super) require: Option<TransportKind>,
    pub(super) checksums: bool,
    /// By how much each worker is slowed down: 1 for those that are not.
    pub(super) factors: Vec<f64>,
    pub(super) timeout: Duration,
    pub(super) spec: ModelSpec,
    pub(super) table: Table,
    pub(super) data: Option<PathBuf>,
    pub(super) task: Arc<Task>,
    pub(super) shards: Shards,
    pub(super) initial: Arc<[f32]>,
    pub(super) seed: u64,
    pub(super) epochs: u32,
    pub(super) batch: usize,
    /// Gradients of each worker.
    pub(super) steps: u64,
    /// Gradients of all workers together, where that is what ends the run.
    pub(super) gradients: Option<u64>,
    /// The accuracy that ends the run.
    pub(super) target: Option<f32>,
    pub(super) damping: scheme::Damping,
    /// Gradients add up, instead of their mean being taken.
    pub(super) additive: bool,
    /// Workers see what they wrote: what one gradient of their own does to the parameters.
    pub(super) own_step: Option<f32>,
    /// The distribution of the time that each step takes besides computing.
    pub(super) jitter: Option<Distribution>,
    pub(super) optimizer: Optimizer,
    pub(super) optimizer_name: &'static str,
    pub(super) learning_rate: f32,
    pub(super) schedule: Schedule,
    pub(super) encoding: Encoding,
    pub(super) moments: bool,
    pub(super) non_finite: NonFiniteName,
    /// Longest time for which a process may be silent.
    pub(super) lease: Duration,
    pub(super) save: Option<PathBuf>,
    pub(super) json: Option<PathBuf>,
}

impl Plan {
    pub(super) fn new(args: TrainArgs, job: Job) -> Result<Plan, Failure> {
        let workers = job.workers(&args)?;
        let require = args.transport;
        let may_use_tcp = require == Some(TransportKind::Tcp) || (require.is_none() && !job.is_local());
        let checksums = args.checksums.unwrap_or(may_use_tcp && args.device == ComputeDevice::Host);
        let scheme = args.scheme()?;
        let servers = args.servers()?;
        between("--workers", workers, WORKERS_MAX)?;
        scheme.check(workers).map_err(|error| scheme_args::refused(&error))?;
        if scheme.has_server() {
            between("--servers", servers, SERVERS_MAX)?;
        }
        between("--threads", args.threads, 1024)?;
        between("--epochs", args.epochs as usize, u32::MAX as usize)?;
        between("--batch", args.batch, usize::MAX)?;
        let factors = factors(&args, workers)?;
        let timeout = values::timeout(args.timeout)?;
        let lease = values::lease(args.lease)?;
        let (optimizer, optimizer_name) = (args.optimizer.optimizer(), args.optimizer.name());
        let (kind, loaded) = args.model.kind()?;
        let default_rate = model_args::learning_rate(args.optimizer, kind);
        let learning_rate = args.learning_rate.unwrap_or(default_rate);
        if !learning_rate.is_finite() || learning_rate <= 0.0 {
            return Err(Failure::usage(format!("--learning-rate cannot be {learning_rate}"))
                .help(format!("use a number above 0, such as {default_rate}")));
        }
        let encoding = match args.encoding {
            EncodingName::F32 => Encoding::F32,
            EncodingName::Bf16 => Encoding::Bf16,
            EncodingName::F16 => Encoding::F16,
        };
        fit::check(&args, scheme, optimizer, encoding)?;
        fit::check_device(&args, scheme, encoding, kind)?;
        // What one gradient of its own does: each counts whole, or for one of all.
        let share = if args.settings.additive { 1.0 } else { 1.0 / workers as f32 };
        let own_step = args.read_my_writes.then_some(learning_rate * share);
        let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
        let (data, load) = (("--data", args.model.data.as_deref()), ("--load", args.model.load.as_deref()));
        output::check_apart(("--save", args.save.as_deref()), &[data])?;
        output::check_apart(("--json", json), &[data, load, ("--save", args.save.as_deref())])?;
        let checkpoint = args.checkpoint.order(servers, job.is_local())?;
        args.model.check(kind, args.target_accuracy.is_some())?;
        let task = Task::load(kind.task(), args.model.data.as_deref());
        let task = task.map_err(|error| Failure::refused(&error).after("--data"))?;
        let groups = task.train.examples().groups();
        let batches = Batches::new(args.model.seed, 0, workers, groups.len(), args.batch)
            .map_err(|error| Failure::refused(&error).at("--batch"))?;
        // Whatever the shards, workers make as many gradients.
        args.model
            .shards
            .deal(groups, workers, args.model.seed)
            .map_err(|error| Failure::refused(&error).at("--shards"))?;
        let steps = u64::from(args.epochs) * batches.steps_per_epoch() as u64;
        let jitter = args.jitter.as_deref().map(str::parse::<Distribution>).transpose();
        let jitter = jitter.map_err(|error| Failure::refused(&error).at("--jitter"))?;
        let target = values::target(args.target_accuracy)?;
        // Under these schemes no worker has a fixed part to do: one that ended after its own steps would keep the
        // others waiting.
        let together = scheme.counts_versions() || matches!(scheme, scheme::SchemeConfig::Abs { .. });
        let local_steps = u64::from(scheme.local_steps());
        let gradients = together.then(|| (steps * workers as u64).div_ceil(local_steps));
        let (spec, loaded) = args.model.spec(kind, loaded, task.train.examples().shape())?;
        let table = table(&spec)?;
        table.shards(servers.max(1)).map_err(|error| Failure::refused(&error).at("--servers"))?;
        // The gradient, the parameters, and those that are evaluated.
        memory::probe(3 * spec.parameters(), &spec)?;
        // The first process of its host.
        let gpu = args.device.open(0).map_err(|error| Failure::of(&error).at("--device"))?;
        let initial = loaded.unwrap_or_else(|| spec.initialise(args.model.seed)).into();
        let plan = Plan {
            scheme,
            job,
            workers,
            servers,
            per_host: args.per_host,
            threads: args.threads,
            device: args.device,
            gpu,
            sleeps: args.idle == Idle::Sleep,
            checkpoint,
            strict_checkpoints: args.checkpoint.strict_checkpoints,
            restarts: args.restarts,
            metrics: args.metrics,
            require,
            checksums,
            factors,
            timeout,
            spec,
            table,
            data: args.model.data,
            task: Arc::new(task),
            shards: args.model.shards,
            initial,
            seed: args.model.seed,
            epochs: args.epochs,
            batch: args.batch,
            steps,
            gradients,
            target,
            damping: args.settings.damping.into(),
            additive: args.settings.additive,
            jitter,
            own_step,
            optimizer,
            optimizer_name,
            learning_rate,
            schedule: args.schedule,
            encoding,
            moments: args.moments,
            non_finite: args.non_finite,
            lease,
            save: args.save,
            json: args.json,
        };
        plan.check_per_host()?;
        plan.check_memory()?;
        Ok(plan)
    }

    /// Asks whether one worker of each host can stand for the others, where that is asked for.
    fn check_per_host(&self) -> Result<(), Failure> {
        let (beside, help) = match self {
            Plan { checkpoint: Some(_), .. } => ("--checkpoint", "leave one of the two out"),
            Plan { restarts: 1.., .. } => ("--restarts", "leave one of the two out"),
            _ => ("--scheme", "use --scheme bsp"),
        };
        let checked = self.coordination().check_per_host();
        checked.map_err(|error| Failure::refused(&error).at(format!("--per-host with {beside}")).help(help))
    }

    /// Asks whether there is room for all processes together, where this host is to hold all of them.
    fn check_memory(&self) -> Result<(), Failure> {
        if !self.job.is_local() {
            return Ok(());
        }
        let fewer =
            if self.own_step.is_some() { "less staleness, or fewer workers" } else { "fewer workers" };
        memory::check(
            self.coordination().memory(),
            format_args!("{} with {} workers", self.spec, self.workers),
            &format!("use {fewer}, hidden units or columns"),
        )
    }

    /// Returns the job that the library is to conduct.
    pub(super) fn coordination(&self) -> Coordination {
        let listen = self.job.listen_over(self.require);
        let plan = JobPlan::servers(self.servers as u32).timeout(self.timeout).per_host(self.per_host);
        let plan = self.require.into_iter().fold(plan, JobPlan::transport);
        let clocks = self.gradients.is_none().then_some(self.steps);
        let plan = clocks.into_iter().fold(plan, JobPlan::clocks).reconnect(self.checkpoint.is_some());
        let server = (self.servers > 0).then(|| ServerOrder {
            plan: plan.clone(),
            listen: listen.clone(),
            device: self.device,
            table: self.table.clone(),
            shard: 0,
            scheme: self.scheme,
            damping: self.damping,
            additive: self.additive,
            workers: self.workers,
            peers: PEERS + self.servers as u16,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            schedule: self.schedule,
            threads: self.threads,
            sleeps: self.sleeps,
            checksums: self.checksums,
            checkpoint: self.checkpoint.clone(),
            moments: self.moments,
            non_finite: self.non_finite.into(),
            lease: self.lease,
            gradients: self.gradients,
        });
        let run = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let group = (self.servers == 0).then(|| GroupOrder {
            listen,
            table: self.table.clone(),
            optimizer: self.optimizer,
            schedule: self.schedule,
            run,
        });
        let worker = WorkerOrder {
            plan,
            workers: self.workers,
            worker: 0,
            device: self.device,
            scheme: self.scheme,
            encoding: self.encoding,
            sleeps: self.sleeps,
            checksums: self.checksums,
            learning_rate: self.learning_rate,
            own_step: self.own_step,
            lease: self.lease,
            group,
            program: String::new(),
        };
        Coordination {
            listen: self.job.listen,
            secret: self.job.secret.clone(),
            server,
            worker,
            programs: self.factors.iter().map(|factor| self.program(*factor).to_text()).collect(),
            initial: Arc::clone(&self.initial),
            restarts: self.restarts,
            strict_checkpoints: self.strict_checkpoints,
            awaits_others: !self.job.is_local(),
        }
    }

    /// The program of a worker that is slowed down by this factor.
    fn program(&self, factor: f64) -> Program {
        let jitter = self.jitter.as_ref().map(ToString::to_string);
        let data = self.data.as_deref();
        Program::new(
            data,
            &self.spec,
            self.task.train.examples(),
            self.shards,
            self.seed,
            self.batch,
            factor,
            jitter,
        )
    }

    /// The end of a run whose parameters are not finite any more.
    pub(super) fn diverged(&self, version: u64) -> Failure {
        let rate = self.learning_rate;
        Failure::failed(format!("the run diverged: parameters are not finite after {version} versions"))
            .help(format!("use a smaller --learning-rate than {rate}"))
    }

    /// Returns the name of the data that the run trains on, for people.
    pub(super) fn data_name(&self) -> String {
        self.data
            .as_ref()
            .map_or_else(|| format!("the {}", self.built_in()), |path| path.display().to_string())
    }

    /// Returns the name of the data that come with the program, for the model of the run.
    pub(super) fn built_in(&self) -> &'static str {
        match self.spec.kind().task() {
            TaskKind::Classes => "digits",
            TaskKind::Values => "matrix",
        }
    }

    /// Returns what the examples of the run are called.
    pub(super) fn examples_name(&self) -> &'static str {
        match self.spec.kind().task() {
            TaskKind::Classes => "examples",
            TaskKind::Values => "entries",
        }
    }
}

fn between(option: &str, value: usize, most: usize) -> Result<(), Failure> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    let range = if most >= u32::MAX as usize { "1 or more".into() } else { format!("1 to {most}") };
    Err(Failure::usage(format!("{option} cannot be {value}")).help(format!("use {range}")))
}

fn factors(args: &TrainArgs, workers: usize) -> Result<Vec<f64>, Failure> {
    let mut factors = vec![None; workers];
    for &(worker, factor) in &args.straggler {
        let last = workers - 1;
        let wrong = |why: String| Failure::usage(format!("--straggler {worker}={factor}: {why}"));
        let given = factors.get_mut(worker).ok_or_else(|| {
            wrong(format!("there is no worker {worker}")).help(format!("workers are numbered 0 to {last}"))
        })?;
        if !Pace::FACTORS.contains(&factor) {
            return Err(wrong(format!("a factor cannot be {factor}"))
                .help(format!("use 1 (full speed) to {}", Pace::FACTORS.end())));
        }
        if given.replace(factor).is_some() {
            return Err(
                wrong(format!("worker {worker} was given a factor before")).help("give one per worker")
            );
        }
    }
    Ok(factors.into_iter().map(|factor| factor.unwrap_or(1.0)).collect())
}

fn table(spec: &ModelSpec) -> Result<Table, Failure> {
    let mut table = Table::builder();
    for tensor in spec.tensors() {
        let shape: Vec<u64> = tensor.shape.iter().map(|side| *side as u64).collect();
        table = table.tensor(tensor.name, &shape, ElementType::F32);
    }
    table.build().map_err(|error| Failure::refused(&error))
}
