//! The coordinator of a run: has the library conduct the job, shows how it gets on, and brings the result home.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::{Duration, Instant};

use slackline::Role;
use slackline::internals::job::ErrorReport;
use slackline::internals::job::coordinated::{
    self, Caller, Coordinator, CoordinatorError, Gather, Gathered, Members, Parts, Wish, WorkerReport,
};
use slackline_lab::model::{self, Evaluation};

use super::evaluate::{Evaluator, Event};
use super::measure::{Measure, serve_metrics};
use super::plan::Plan;
use super::report::count_and_sum;
use super::show::{Display, RunProgress};
use super::signals::{self, Stop, checkpoint_requests};
use crate::failure::Failure;
use crate::metrics::{self, NodeMetrics};

/// Shortest time in which a child gives up to join.
const CHILD_TIMEOUT_MIN: Duration = Duration::from_secs(60);

/// Time for which messages of the members are still awaited after the parameters could not be read.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Result of a run.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The model is saved, if that was asked for.
    pub(super) saved: Result<(), Failure>,
    pub(super) evaluation: Evaluation,
    /// Evaluation of the first worker's parameters and their distance from the mean, if each worker has its own
    /// parameters.
    pub(super) local: Option<(Evaluation, f64)>,
    pub(super) versions: u64,
    /// Time until the accuracy that was aimed at was reached, counted as `wall`.
    pub(super) time_to_target: Option<Duration>,
    /// From the last worker joining to the last gradient folded in.
    pub(super) wall: Duration,
    /// Results of its processes.
    pub(super) job: coordinated::JobOutcome,
}

/// The caller of the library's coordinator.
struct Run<'a> {
    plan: &'a Plan,
    display: &'a mut Display,
    events: Receiver<Event>,
    metrics: Option<Measure>,
    /// Set once a user or a batch system asks for checkpoints now.
    wanted: Arc<AtomicBool>,
    /// The listener for a signal that asks this process to end, if it has to write a last checkpoint before it ends.
    stop: Option<Stop>,
    /// The workers have begun and not ended.
    is_training: bool,
    evaluation: Option<Evaluation>,
    /// Time at which the accuracy that is aimed at was reached.
    reached: Option<Instant>,
    last: Option<Result<Gathered, String>>,
}

/// Runs the plan to its end. Whatever happens, no process is left when it returns.
pub(super) fn run(plan: &Plan, display: &mut Display) -> Result<Outcome, Failure> {
    let wanted = checkpoint_requests()?;
    let stop = plan.checkpoint.is_some().then(Stop::listen).transpose()?;
    let (sender, events) = mpsc::sync_channel(256);
    let address = plan.metrics.address(Some(0))?;
    let node = NodeMetrics { role: metrics::NodeRole::Coordinator, ..NodeMetrics::default() };
    let (registry, _served) = serve_metrics(address, node)?;
    let metrics = registry.map(Measure::new);
    let (is_training, evaluation, reached, last) = (false, None, None, None);
    let run = Run { plan, display, events, metrics, wanted, stop, is_training, evaluation, reached, last };
    let mut job = Coordinator::open(plan.coordination(), run)?;
    if let Some(gpu) = &plan.gpu {
        job.use_gpu(gpu);
    }
    match conduct(plan, &mut job, sender) {
        Ok(outcome) => {
            job.leave();
            Ok(outcome)
        }
        Err(failure) => {
            job.abort(&failure.told().to_string());
            Err(failure)
        }
    }
}

/// From the first process that is started to the result.
fn conduct(
    plan: &Plan,
    job: &mut Coordinator<Run<'_>>,
    sender: SyncSender<Event>,
) -> Result<Outcome, Failure> {
    job.start()?;
    if !plan.job.is_local() || plan.require.is_some() {
        let (run, members) = job.parts();
        paths(&members).iter().for_each(|line| run.display.tell(line));
    }
    let parts = if plan.servers > 0 { Parts::Shards } else { Parts::Copies };
    let gather = Gather::new(job.addresses(), job.transports(), parts, plan.spec.parameters());
    let evaluator = Evaluator::start(gather, plan, sender)?;
    let begun = Instant::now();
    job.parts().0.is_training = true;
    job.follow()?;
    let (run, members) = job.parts();
    run.is_training = false;
    run.display.show(&run.progress(&members), true);
    let wall = begun.elapsed();
    evaluator.finish();
    let Gathered { parameters, versions, local } = bring_home(plan, job)?;
    job.hear_servers_out(versions)?;
    let versions = match job.has_all_gradients() {
        true => job.parts().1.server_reports().next().map_or(versions, |report| report.version),
        false => versions,
    };
    if parameters.iter().any(|value| !value.is_finite()) {
        return Err(plan.diverged(versions));
    }
    let evaluation = plan.spec.evaluate(&parameters, &plan.task.test);
    let local = local.map(|(local, distance)| (plan.spec.evaluate(&local, &plan.task.test), distance));
    let time_to_target = job.parts().0.reached.map(|at| at.saturating_duration_since(begun));
    // First, since it is what took the time: a process that is asked to end has little time for checkpoints.
    let save = |path| model::save(path, &plan.spec, &parameters);
    let saved = plan.save.as_deref().map_or(Ok(()), save);
    let saved = saved.map_err(|error| Failure::failed(format!("--save {error}")));
    job.close(plan.timeout);
    let job = job.outcome();
    Ok(Outcome { saved, evaluation, local, versions, time_to_target, wall, job })
}

fn bring_home(plan: &Plan, job: &mut Coordinator<Run<'_>>) -> Result<Gathered, Failure> {
    let deadline = Instant::now() + plan.timeout;
    loop {
        match job.parts().0.last.take() {
            Some(Ok(last)) => return Ok(last),
            Some(Err(error)) => {
                // Most likely a server is gone, and its process will tell why.
                job.hear_out(LAST_WORDS)?;
                return Err(Failure::failed(format!("cannot read the parameters: {error}")));
            }
            None => {}
        }
        if Instant::now() >= deadline {
            let who = if plan.servers == 0 { "workers" } else { "servers" };
            return Err(Failure::failed(format!(
                "waited {:?} for the {who} to hand over the parameters",
                plan.timeout
            ))
            .help("use a longer --timeout"));
        }
        job.turn()?;
    }
}

/// The ways that were taken, with their numbers.
fn paths(members: &Members<'_>) -> Vec<String> {
    let mut ways: Vec<(String, usize)> = Vec::new();
    for taken in members.paths() {
        let way = format!("{} ({})", taken.path, taken.reason);
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, count)) => *count += 1,
            None => ways.push((way, 1)),
        }
    }
    let s = |count| if count == 1 { "" } else { "s" };
    ways.into_iter().map(|(way, count)| format!("{count} path{} over {way}", s(count))).collect()
}

impl Caller for Run<'_> {
    type Error = Failure;

    fn explain(&mut self, error: CoordinatorError) -> Failure {
        match error {
            CoordinatorError::Command(_) => Failure::refused(&error),
            CoordinatorError::Diverged { version } => self.plan.diverged(version),
            CoordinatorError::Waited { waited, what, missing } => {
                Failure::failed(format!("waited {waited:?} for {what}{missing}"))
                    .help("use a longer --timeout")
            }
            CoordinatorError::LostServer { shard, shards, how, resumable } => {
                let remedy = match resumable {
                    true => "start the run again with --resume to go on from its checkpoints",
                    false => "start the run again, with --load if there is a saved model to go on from",
                };
                Failure::failed(format!("lost shard {shard} of {shards}: its server {how}")).help(remedy)
            }
            CoordinatorError::Stopped { newest, resumable } => {
                let signal = self.stop.as_ref().and_then(Stop::asked).unwrap_or_default();
                let remedy = match resumable {
                    true => "start the run again with --resume to go on from there",
                    false => "start the run again without --resume",
                };
                let name = signals::name(signal);
                Failure::stopped(signal, format!("stopped by {name}: {newest}")).help(remedy)
            }
            error => Failure::of(&error),
        }
    }

    fn command(&mut self, role: Role, rendezvous: SocketAddr) -> Result<Option<Command>, ErrorReport> {
        let plan = self.plan;
        if !plan.job.starts(role, plan.servers) {
            return Ok(None);
        }
        let own = std::env::current_exe().map_err(|error| {
            let remedy = Some("look at the limits on open files (ulimit -n)".to_owned());
            ErrorReport { remedy, ..ErrorReport::of_cause(format!("cannot start {role}: {error}")) }
        })?;
        let metrics = plan.metrics.address(Some(plan.job.metrics_offset(plan.servers, role)));
        let metrics = metrics.map_err(|failure| failure.told())?;
        let (name, rank) = match role {
            Role::Server(rank) => ("serve", rank),
            Role::Worker(rank) => ("work", rank),
        };
        // This process waits no longer than the plan says, and tells which members are missing: a child must not give
        // up before.
        let timeout = plan.timeout.max(CHILD_TIMEOUT_MIN).as_secs_f64();
        let mut command = Command::new(own);
        command.args([name, "--role-rank", &rank.to_string(), "--rendezvous", &rendezvous.to_string()]);
        command.args(["--child", "--timeout", &timeout.to_string()]);
        if let Some(metrics) = metrics {
            command.args(["--metrics", &metrics.to_string()]);
        }
        // A command line can be read by every user, an environment by its own user alone.
        match &plan.job.secret {
            Some(secret) => command.envs(secret.variables()),
            None => command.env_remove("SLACKLINE_SECRET"),
        };
        command.env_remove("SLACKLINE_SECRET_FILE").stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Some(command))
    }

    fn tell(&mut self, line: &str) {
        self.display.tell(line);
    }

    fn warn(&mut self, line: &str) {
        self.display.warn(line);
    }

    fn turn(&mut self, members: &Members<'_>) -> Result<Wish, Failure> {
        while let Ok(event) = self.events.try_recv() {
            match event {
                Event::Judged(evaluation, at) => {
                    self.evaluation = Some(evaluation);
                    if self.plan.target.is_some_and(|target| evaluation.accuracy >= Some(target)) {
                        self.reached.get_or_insert(at);
                    }
                }
                Event::Final(last) => self.last = Some(last),
            }
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.update(members);
        }
        if self.is_training {
            self.display.show(&self.progress(members), false);
        }
        Ok(match () {
            () if self.stop.as_ref().and_then(Stop::asked).is_some() => Wish::Stop,
            () if self.wanted.swap(false, Ordering::Relaxed) => Wish::Checkpoint,
            () if self.reached.is_some() => Wish::Enough,
            () => Wish::GoOn,
        })
    }
}

impl Run<'_> {
    fn progress(&self, members: &Members<'_>) -> RunProgress {
        let reports = || members.worker_reports();
        let servers = || members.server_reports();
        let losses: Vec<f64> = reports().filter_map(|report| report.loss).collect();
        let add = |(all, sum, most): (u128, u128, usize), report: &WorkerReport| {
            let histogram = &report.staleness_histogram;
            let (count, of_these) = count_and_sum(histogram);
            let largest = histogram.iter().rposition(|count| *count > 0).unwrap_or(0);
            (all + count, sum + of_these, most.max(largest))
        };
        let (count, sum, most) = reports().fold((0, 0, 0), add);
        RunProgress {
            done: match self.plan.gradients {
                Some(_) => servers().map(|server| server.folded).min().unwrap_or(0),
                None => reports().map(|report| report.clock).fold(0, u64::saturating_add),
            },
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            evaluation: self.evaluation,
            version: match self.plan.servers {
                0 => reports().map(|report| report.clock).min().unwrap_or(0),
                _ => servers().map(|server| server.version).min().unwrap_or(0),
            },
            gradients: match self.plan.gradients {
                Some(_) => servers().next().map(|server| server.gradients),
                None => None,
            },
            staleness: (count > 0 && self.plan.gradients.is_none())
                .then(|| (sum as f64 / count as f64, most as u64)),
        }
    }
}
