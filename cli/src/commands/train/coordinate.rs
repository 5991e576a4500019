//! The coordinator: starts the processes, follows them, and brings the result home.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use slackline::transport::Address;
use slackline_cli::model::Evaluation;

use super::evaluate::{Evaluator, Final};
use super::messages::{Message, Report, ServeConfig, Status, WorkConfig};
use super::plan::{PEERS, Plan};
use super::process::Process;
use super::show::{Display, Glance};
use super::{Event, Who};
use crate::failure::Failure;

/// How often the display is brought up to date.
const TICK: Duration = Duration::from_millis(50);

/// Workers report ten times a second; one silent for so long, and evicted by the servers, is stopped or hangs.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// How long survivors are listened to once a server is lost: they notice within a fraction of it.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a run came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) parameters: Vec<f32>,
    pub(super) evaluation: Evaluation,
    pub(super) versions: u64,
    /// From the last worker joining to the last gradient folded in.
    pub(super) wall: Duration,
    pub(super) workers: Vec<WorkerOutcome>,
}

/// What a worker came to.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerOutcome {
    /// The last that it said of itself.
    pub(super) report: Report,
    /// Why it did not finish, if it did not.
    pub(super) lost: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Starting,
    Running,
    Finished,
    Lost { announced: bool },
}

struct Place {
    process: Process,
    state: State,
    outcome: WorkerOutcome,
    heard: Instant,
}

struct Coordinator<'a> {
    plan: &'a Plan,
    display: &'a mut Display,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    addresses: Vec<Address>,
    servers: Vec<Process>,
    listening: usize,
    statuses: Vec<Status>,
    workers: Vec<Place>,
    evaluation: Option<Evaluation>,
    last: Option<Final>,
}

/// Runs the plan to its end. Whatever happens, no process is left when it returns.
pub(super) fn run(plan: &Plan, display: &mut Display) -> Result<Outcome, Failure> {
    let (sender, events) = mpsc::sync_channel(256);
    let mut coordinator = Coordinator {
        plan,
        display,
        events,
        sender,
        addresses: (0..plan.servers).map(|_| Address::random()).collect(),
        servers: Vec::new(),
        listening: 0,
        statuses: vec![Status::default(); plan.servers],
        workers: Vec::new(),
        evaluation: None,
        last: None,
    };
    coordinator.start_servers()?;
    coordinator.start_workers()?;
    let evaluator = Evaluator::start(
        coordinator.addresses.clone(),
        plan.spec.clone(),
        plan.split.clone(),
        plan.timeout,
        coordinator.sender.clone(),
    )?;
    let begun = Instant::now();
    coordinator.follow()?;
    let wall = begun.elapsed();
    evaluator.finish();
    let Final { parameters, versions } = coordinator.bring_home()?;
    if parameters.iter().any(|value| !value.is_finite()) {
        return Err(Failure::failed(format!(
            "the run diverged: parameters are not finite after {versions} versions; use a smaller \
             --learning-rate than {}",
            plan.learning_rate
        )));
    }
    let evaluation = plan.spec.evaluate(&parameters, &plan.split.test);
    let workers = coordinator.workers.iter().map(|place| place.outcome.clone()).collect();
    coordinator.leave();
    Ok(Outcome { parameters, evaluation, versions, wall, workers })
}

impl Coordinator<'_> {
    fn start_servers(&mut self) -> Result<(), Failure> {
        let plan = self.plan;
        for (shard, range) in plan.shards.iter().enumerate() {
            let config = ServeConfig {
                address: self.addresses[shard].to_string(),
                table: plan.table.clone(),
                shard: (shard as u16, plan.servers as u16),
                scheme: plan.scheme,
                workers: plan.workers,
                peers: PEERS,
                optimizer: plan.optimizer,
                learning_rate: plan.learning_rate,
                threads: plan.threads,
            };
            let values = &plan.initial[range.start as usize / 4..range.end as usize / 4];
            let process = Process::start(Who::Server(shard), &config, values, self.sender.clone())?;
            self.servers.push(process);
        }
        self.wait_for("the servers to listen", |run| run.listening == plan.servers)
    }

    fn start_workers(&mut self) -> Result<(), Failure> {
        let plan = self.plan;
        for (worker, factor) in plan.factors.iter().enumerate() {
            let spec = &plan.spec;
            let config = WorkConfig {
                addresses: self.addresses.iter().map(Address::to_string).collect(),
                scheme: plan.scheme,
                encoding: plan.encoding,
                data: plan.data.as_ref().map(|path| path.clone().into_os_string()),
                model: (spec.kind(), spec.columns(), spec.classes(), spec.hidden()),
                rows: plan.split.train.rows(),
                seed: plan.seed,
                worker,
                workers: plan.workers,
                batch: plan.batch,
                steps: plan.steps,
                factor: *factor,
                timeout_s: plan.timeout.as_secs_f64(),
            };
            let process = Process::start(Who::Worker(worker), &config, &[], self.sender.clone())?;
            let (state, outcome, heard) = (State::Starting, WorkerOutcome::default(), Instant::now());
            self.workers.push(Place { process, state, outcome, heard });
        }
        self.wait_for("the workers to join", |run| {
            run.workers.iter().all(|place| place.state != State::Starting)
        })
    }

    fn wait_for(&mut self, what: &str, until: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + self.plan.timeout;
        while !until(self) {
            if Instant::now() >= deadline {
                let waited = self.plan.timeout;
                return Err(Failure::failed(format!("waited {waited:?} for {what}; use a longer --timeout")));
            }
            self.step()?;
            let lost = self.workers.iter().position(|place| place.outcome.lost.is_some());
            if let Some(worker) = lost {
                return Err(self.lost_worker_at_start(worker));
            }
        }
        Ok(())
    }

    /// Until every worker has finished or is lost.
    fn follow(&mut self) -> Result<(), Failure> {
        loop {
            self.step()?;
            self.let_go_of_the_silent();
            self.announce_losses(false);
            self.display.show(&self.glance(), false);
            let running = |place: &Place| matches!(place.state, State::Starting | State::Running);
            if !self.workers.iter().any(running) {
                break;
            }
        }
        if !self.workers.iter().any(|place| place.state == State::Finished) {
            // Where they all died of a lost server, that is what to tell.
            self.listen_on(LAST_WORDS / 4, |_| false)?;
            return Err(self.all_lost());
        }
        // Servers notice within a moment who is gone; it is no reason to stay if they do not.
        let deadline = Instant::now() + LAST_WORDS;
        while self.announce_losses(false) > 0 && Instant::now() < deadline {
            self.step()?;
        }
        self.announce_losses(true);
        self.display.show(&self.glance(), true);
        Ok(())
    }

    fn bring_home(&mut self) -> Result<Final, Failure> {
        let deadline = Instant::now() + self.plan.timeout;
        loop {
            if let Some(last) = self.last.take() {
                return Ok(last);
            }
            if Instant::now() >= deadline {
                return Err(Failure::failed("the servers do not hand over the parameters in time"));
            }
            self.step()?;
        }
    }

    /// Ends all processes in good order: workers before their servers.
    fn leave(mut self) {
        self.workers.iter_mut().for_each(|place| place.process.dismiss());
        self.workers.iter_mut().for_each(|place| drop(place.process.wait()));
        self.servers.iter_mut().for_each(Process::dismiss);
        self.servers.iter_mut().for_each(|server| drop(server.wait()));
    }

    /// Takes what has happened, waiting a moment for it.
    fn step(&mut self) -> Result<(), Failure> {
        let mut wait = TICK;
        loop {
            match self.events.recv_timeout(wait) {
                Ok(event) => self.handle(event)?,
                // This side keeps a sender: it cannot be disconnected.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
            }
            wait = Duration::ZERO;
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Evaluated(evaluation) => self.evaluation = Some(evaluation),
            Event::Final(Ok(last)) => self.last = Some(last),
            Event::Final(Err(error)) => {
                // Most likely a server is gone, and its process will tell why.
                self.listen_on(LAST_WORDS / 4, |_| false)?;
                return Err(Failure::failed(format!("cannot read the parameters: {error}")));
            }
            Event::Said(Who::Server(shard), message) => match message {
                Message::Listening => self.listening += 1,
                Message::Status(status) => self.statuses[shard] = status,
                Message::Failed { message } => {
                    return Err(Failure::failed(format!("{} failed: {message}", Who::Server(shard))));
                }
                other => {
                    let what = format!("{} said what only workers say: {other:?}", Who::Server(shard));
                    return Err(Failure::failed(what));
                }
            },
            Event::Said(Who::Worker(worker), message) => self.hear(worker, message),
            Event::Closed(Who::Server(shard), error) => return Err(self.lost_server(shard, error)),
            Event::Closed(Who::Worker(worker), error) => self.close(worker, error),
        }
        Ok(())
    }

    fn hear(&mut self, worker: usize, message: Message) {
        let place = &mut self.workers[worker];
        place.heard = Instant::now();
        match (place.state, message) {
            (State::Starting, Message::Joined) => place.state = State::Running,
            (State::Running, Message::Progress(report)) => {
                let loss = report.loss.or(place.outcome.report.loss);
                place.outcome.report = Report { loss, ..report };
            }
            (State::Running, Message::Finished(report)) => {
                let loss = place.outcome.report.loss;
                place.outcome.report = Report { loss, ..report };
                place.state = State::Finished;
            }
            (_, Message::Failed { message }) => place.outcome.lost = Some(message),
            // The reporting thread may speak once more after the end.
            (State::Finished | State::Lost { .. }, _) => {}
            (_, other) => {
                place.outcome.lost = Some(format!("said what it should not: {other:?}"));
                place.process.kill();
            }
        }
    }

    /// A worker's stdout has ended, or cannot be understood.
    fn close(&mut self, worker: usize, error: Option<String>) {
        let place = &mut self.workers[worker];
        if let Some(error) = error {
            place.outcome.lost.get_or_insert(format!("said something that is no message: {error}"));
            place.process.kill();
        }
        let how = place.process.wait();
        place.outcome.lost.get_or_insert(how);
        // A worker that has finished stays until it is told to leave, but its gradients are in already.
        place.state = if place.state == State::Finished {
            place.outcome.lost = None;
            State::Finished
        } else {
            State::Lost { announced: false }
        };
    }

    /// Workers that are neither heard of nor counted by the servers are ended: nobody can wait for them.
    fn let_go_of_the_silent(&mut self) {
        let left = self.statuses.iter().map(|status| status.left).min().unwrap_or(0);
        let lost = self.workers.iter().filter(|place| matches!(place.state, State::Lost { .. })).count();
        if left <= lost as u64 {
            return;
        }
        for place in self.workers.iter_mut().filter(|place| place.state == State::Running) {
            if place.heard.elapsed() > SILENT_FOR && place.outcome.lost.is_none() {
                place.outcome.lost = Some("was silent, and the servers evicted it".into());
                place.process.kill();
            }
        }
    }

    /// Tells of lost workers once the servers have let them go. How many are still to be told of.
    fn announce_losses(&mut self, regardless: bool) -> usize {
        let left = self.statuses.iter().map(|status| status.left).min().unwrap_or(0);
        let lost =
            self.workers.iter().filter(|place| matches!(place.state, State::Lost { .. })).count() as u64;
        let remaining = self.plan.workers - lost as usize;
        let mut waiting = 0;
        for (worker, place) in self.workers.iter_mut().enumerate() {
            if place.state != (State::Lost { announced: false }) {
                continue;
            }
            if left < lost && !regardless {
                waiting += 1;
                continue;
            }
            place.state = State::Lost { announced: true };
            let why = place.outcome.lost.as_deref().unwrap_or("ended");
            self.display
                .warn(&format!("worker {worker} {why}; evicted, {remaining} of {} go on", self.plan.workers));
        }
        waiting
    }

    fn lost_worker_at_start(&self, worker: usize) -> Failure {
        let why = self.workers[worker].outcome.lost.as_deref().unwrap_or("ended");
        Failure::failed(format!("worker {worker} could not join: {why}"))
    }

    fn all_lost(&self) -> Failure {
        let places = || self.workers.iter().enumerate();
        let why = places().filter_map(|(worker, place)| Some((worker, place.outcome.lost.as_deref()?)));
        let why: Vec<_> = why.map(|(worker, why)| format!("worker {worker}: {why}")).collect();
        Failure::failed(format!("all workers are lost: {}", why.join(", ").replace("; ", ", ")))
    }

    /// A run without one of its shards cannot go on. What the workers saw of it is told with it.
    fn lost_server(&mut self, shard: usize, error: Option<String>) -> Failure {
        let how = self.servers[shard].wait();
        let how = error.map_or(how, |error| format!("said something that is no message: {error}"));
        let told = |run: &Self| {
            let done = |place: &Place| place.state == State::Finished || place.outcome.lost.is_some();
            run.workers.iter().all(done)
        };
        // A second server that is gone adds nothing.
        let _ = self.listen_on(LAST_WORDS, told);
        let mut message = format!("lost shard {shard} of {}: its server {how}", self.plan.servers);
        let said = self.workers.iter().enumerate().find_map(|(worker, place)| {
            Some((worker, place.outcome.lost.as_deref().filter(|said| said.starts_with("lost shard"))?))
        });
        if let Some((worker, said)) = said {
            let said = said.rsplit_once("; ").map_or(said, |(said, _)| said);
            message.push_str(&format!(" (worker {worker}: {said})"));
        }
        message.push_str("; start the run again, with --load if there is a saved model to go on from");
        Failure::failed(message)
    }

    /// Takes events for a while, or until `until`.
    fn listen_on(&mut self, time: Duration, until: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + time;
        while !until(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                // Those of other servers would come back here.
                Ok(Event::Closed(Who::Server(shard), error)) => return Err(self.lost_server(shard, error)),
                Ok(Event::Final(_)) => {}
                Ok(event) => self.handle(event)?,
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn glance(&self) -> Glance {
        let reports = || self.workers.iter().map(|place| &place.outcome.report);
        let losses: Vec<f64> = reports().filter_map(|report| report.loss).collect();
        let counts = |report: &Report| -> (u64, u64, u64) {
            let histogram = report.staleness_histogram.iter().zip(0..);
            let sum = histogram.clone().map(|(count, staleness)| count * staleness).sum();
            let count = report.staleness_histogram.iter().sum();
            (sum, count, histogram.filter(|(count, _)| **count > 0).map(|(_, s)| s).max().unwrap_or(0))
        };
        let (sum, count, most) = reports()
            .map(counts)
            .fold((0, 0, 0), |(a, b, c), (sum, count, most)| (a + sum, b + count, c.max(most)));
        Glance {
            done: reports().map(|report| report.clocks).sum(),
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            evaluation: self.evaluation,
            version: self.statuses.iter().map(|status| status.version).min().unwrap_or(0),
            staleness: (count > 0).then(|| (sum as f64 / count as f64, most)),
        }
    }
}
