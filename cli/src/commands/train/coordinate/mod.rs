//! The coordinator: keeps the meeting point, starts processes or waits for them, follows them, and brings the result
//! home.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slackline::job::choose::{Choice, PathError, choose};
use slackline::job::rendezvous::{Host, Hub, HubEvent, HubOptions, Member, MemberId, MemberRole};
use slackline::job::transports::Transports;
use slackline::time::Silence;
use slackline::transport::Address;
use slackline::transport::TransportKind;
use slackline_lab::model::Evaluation;

use super::evaluate::{Evaluator, Final, Judged, Places};
use super::job::{checkpoint_requests, serve_metrics};
use super::messages::{
    Body, Message, Order, PathTaken, Report, Resume, ServeConfig, Status, SyncConfig, VALUES_PER_MESSAGE,
    WorkConfig, json, read, values,
};
use super::plan::{PEERS, Plan};
use super::process::Process;
use super::show::{Display, Glance};
use super::stop::Stop;
use super::{Event, Who};
use crate::failure::Failure;
use crate::metrics::{self, NodeMetrics, Registry};
use checkpoints::Disk;

mod causes;
mod checkpoints;
mod end;
mod losses;
mod measure;
mod start;

pub(super) use causes::Loss;

/// How long the coordinator waits for its members at a time.
const TICK: Duration = Duration::from_millis(10);

/// Bytes of initial values on their way to one server.
const ON_THE_WAY: usize = 8 << 20;

/// Workers report ten times a second; one silent for so long, and evicted by the servers, is stopped or hangs.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// How long survivors are listened to once a server is lost: they notice within a fraction of it.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a run came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) parameters: Vec<f32>,
    pub(super) evaluation: Evaluation,
    /// Where each worker has its own parameters: how good the first one's are, and how far from the mean.
    pub(super) local: Option<(Evaluation, f64)>,
    pub(super) versions: u64,
    /// The version that it began at.
    pub(super) began: u64,
    /// When the accuracy that was aimed at was there, counted as `wall`.
    pub(super) time_to_target: Option<Duration>,
    /// From the last worker joining to the last gradient folded in.
    pub(super) wall: Duration,
    pub(super) workers: Vec<WorkerOutcome>,
    /// How often each server was started again.
    pub(super) restarts: Vec<u32>,
    /// Updates that were lost with servers, as far as any worker has seen them.
    pub(super) lost_updates: u64,
    /// Checkpoints that could not be written, and why the last could not.
    pub(super) checkpoints_failed: u64,
    pub(super) checkpoint_error: Option<String>,
    /// The last that each server said of itself.
    pub(super) servers: Vec<Status>,
}

/// What a worker came to.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerOutcome {
    /// The last that it said of itself.
    pub(super) report: Report,
    /// Why it did not finish, if it did not.
    pub(super) lost: Option<Loss>,
    /// How it reached the servers.
    pub(super) paths: Vec<PathTaken>,
    /// How often it came back.
    pub(super) restarts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Starting,
    Running,
    Finished,
    Lost { announced: bool },
}

/// A worker.
struct Place {
    /// Its process, if it is this one's child.
    process: Option<Process>,
    member: Option<MemberId>,
    /// Initial values that were told to it, where there are no servers; and where its own parameters can be read.
    told: usize,
    address: Option<Address>,
    /// How often it was started again, and how often it came back, whoever started it.
    restarts: u32,
    returns: u32,
    /// What it did in its earlier lives.
    earlier: Report,
    state: State,
    outcome: WorkerOutcome,
    /// How often it was heard of, and for how long it has not been while this process listened.
    heard: u64,
    silence: Silence,
}

/// A server.
struct Shard {
    process: Option<Process>,
    member: Option<MemberId>,
    /// Initial values that were told to it.
    told: usize,
    address: Option<Address>,
    status: Status,
    restarts: u32,
    lost_updates: Option<u64>,
    disk: Disk,
    /// Since when it is gone, if it may come back.
    gone: Option<Instant>,
}

struct Coordinator<'a> {
    plan: &'a Plan,
    display: &'a mut Display,
    hub: Hub,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    /// Where the evaluator finds the servers.
    places: Places,
    metrics: Option<Registry>,
    /// What this process reads the parameters over.
    transports: Transports,
    measured: Instant,
    /// Somebody wants checkpoints now.
    wanted: Arc<AtomicBool>,
    /// Where a last checkpoint is to be written before this process ends: the signal that it was asked to end by.
    stop: Option<Stop>,
    /// Names this job among those of its workers.
    run: u64,
    servers: Vec<Shard>,
    workers: Vec<Place>,
    evaluation: Option<Evaluation>,
    /// When the accuracy that is aimed at was there.
    reached: Option<Instant>,
    last: Option<Final>,
}

/// Runs the plan to its end. Whatever happens, no process is left when it returns.
pub(super) fn run(plan: &Plan, display: &mut Display) -> Result<Outcome, Failure> {
    let wanted = checkpoint_requests()?;
    let stop = plan.checkpoint.is_some().then(Stop::listen).transpose()?;
    let transports = Transports::new(plan.job.secret.clone(), Some(plan.job.listen.ip()), 0);
    if plan.require == Some(TransportKind::Verbs) {
        transports.rdma().map_err(Failure::failed)?;
    }
    let (sender, events) = mpsc::sync_channel(256);
    let places = vec![
        (MemberRole::Server, plan.servers as u32),
        (MemberRole::Worker, plan.workers as u32),
        (MemberRole::Reader, 0),
    ];
    let options = HubOptions { secret: plan.job.secret.clone(), places };
    let hub = Hub::listen(plan.job.listen, options).map_err(Failure::failed)?;
    let address = plan.metrics.address(Some(0)).map_err(Failure::usage)?;
    let node = NodeMetrics { role: metrics::Role::Coordinator, ..NodeMetrics::default() };
    let (metrics, _served) = serve_metrics(address, node)?;
    let server = || Shard {
        process: None,
        member: None,
        told: 0,
        address: None,
        status: Status::default(),
        restarts: 0,
        lost_updates: None,
        disk: Disk::default(),
        gone: None,
    };
    let worker = || Place {
        process: None,
        member: None,
        told: 0,
        address: None,
        restarts: 0,
        returns: 0,
        earlier: Report::default(),
        state: State::Starting,
        outcome: WorkerOutcome::default(),
        heard: 0,
        silence: Silence::default(),
    };
    let mut coordinator = Coordinator {
        transports,
        plan,
        display,
        hub,
        events,
        sender,
        places: Arc::default(),
        metrics,
        measured: Instant::now(),
        wanted,
        stop,
        run: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64),
        servers: (0..plan.servers).map(|_| server()).collect(),
        workers: (0..plan.workers).map(|_| worker()).collect(),
        evaluation: None,
        reached: None,
        last: None,
    };
    match coordinator.conduct() {
        Ok(outcome) => {
            coordinator.leave();
            Ok(outcome)
        }
        Err(failure) => {
            coordinator.abort(&failure);
            Err(failure)
        }
    }
}

impl Coordinator<'_> {
    /// From the first process that is started to the result.
    fn conduct(&mut self) -> Result<Outcome, Failure> {
        let plan = self.plan;
        self.start_servers()?;
        self.start_workers()?;
        self.tell_paths();
        let evaluator =
            Evaluator::start(Arc::clone(&self.places), plan, self.transports.open(), self.sender.clone())?;
        let begun = Instant::now();
        self.follow()?;
        let wall = begun.elapsed();
        evaluator.finish();
        let Final { parameters, versions, local } = self.bring_home()?;
        let versions = match self.has_all_gradients() {
            true => self.servers[0].status.version,
            false => versions,
        };
        if parameters.iter().any(|value| !value.is_finite()) {
            return Err(plan.diverged(versions));
        }
        let evaluation = plan.spec.evaluate(&parameters, &plan.split.test);
        let local = local.map(|(local, distance)| (plan.spec.evaluate(&local, &plan.split.test), distance));
        let time_to_target = self.reached.map(|at| at.saturating_duration_since(begun));
        self.close_servers(plan.timeout);
        let outcome = |place: &Place| WorkerOutcome { restarts: place.returns, ..place.outcome.clone() };
        let workers = self.workers.iter().map(outcome).collect();
        let restarts = self.servers.iter().map(|shard| shard.restarts).collect();
        let lost_updates = self.servers.iter().filter_map(|shard| shard.lost_updates).sum();
        let servers = self.servers.iter().map(|shard| shard.status).collect();
        let (checkpoints_failed, checkpoint_error) = self.failed_checkpoints();
        Ok(Outcome {
            parameters,
            evaluation,
            local,
            versions,
            began: self.first_version(),
            time_to_target,
            wall,
            workers,
            restarts,
            lost_updates,
            checkpoints_failed,
            checkpoint_error,
            servers,
        })
    }

    fn serve_order(&self, shard: usize, returns: bool) -> Order {
        let plan = self.plan;
        let mut checkpoint = plan.checkpoint.clone();
        if let Some(checkpoint) = checkpoint.as_mut().filter(|_| returns) {
            checkpoint.resume = Resume::IfThere;
        }
        // A server that returns does not wait for workers that are gone for good.
        let is_in = |place: &&Place| !matches!(place.state, State::Lost { .. });
        let workers = if returns { self.workers.iter().filter(is_in).count().max(1) } else { plan.workers };
        Order::Serve(Box::new(ServeConfig {
            listen: plan.job.listen_over(plan.require),
            table: plan.table.clone(),
            shard: (shard as u16, plan.servers as u16),
            scheme: plan.scheme,
            damping: plan.damping,
            workers,
            peers: PEERS,
            optimizer: plan.optimizer,
            learning_rate: plan.learning_rate,
            threads: plan.threads,
            sleeps: plan.sleeps,
            checksums: plan.checksums,
            checkpoint,
            moments: plan.moments,
            non_finite: plan.non_finite,
            lease_s: plan.lease.as_secs_f64(),
            gradients: plan.gradients,
        }))
    }

    fn work_order(&self, worker: usize) -> Order {
        let (plan, spec) = (self.plan, &self.plan.spec);
        Order::Work(Box::new(WorkConfig {
            servers: plan.servers,
            require: plan.require,
            reconnect: plan.checkpoint.is_some(),
            scheme: plan.scheme,
            encoding: plan.encoding,
            checksums: plan.checksums,
            data: plan.data.as_ref().map(|path| path.clone().into_os_string()),
            model: (spec.kind(), spec.columns(), spec.classes(), spec.hidden()),
            rows: plan.split.train.rows(),
            seed: plan.seed,
            worker,
            workers: plan.workers,
            batch: plan.batch,
            steps: plan.gradients.is_none().then_some(plan.steps),
            learning_rate: plan.learning_rate,
            factor: plan.factors[worker],
            own_step: plan.own_step,
            jitter: plan.jitter.as_ref().map(ToString::to_string),
            timeout_s: plan.timeout.as_secs_f64(),
            sync: (plan.servers == 0).then(|| SyncConfig {
                listen: plan.job.listen_over(plan.require),
                table: plan.table.clone(),
                optimizer: plan.optimizer,
                lease_s: plan.lease.as_secs_f64(),
                run: self.run,
            }),
        }))
    }

    /// Says which ways were taken, where it is not the only one there is.
    fn tell_paths(&mut self) {
        if self.plan.job.is_local() && self.plan.require.is_none() {
            return;
        }
        let mut ways: Vec<(String, usize)> = Vec::new();
        for taken in self.workers.iter().flat_map(|place| &place.outcome.paths) {
            let way = format!("{} ({})", taken.path, taken.reason);
            match ways.iter_mut().find(|(known, _)| *known == way) {
                Some((_, count)) => *count += 1,
                None => ways.push((way, 1)),
            }
        }
        for (way, count) in ways {
            let s = if count == 1 { "" } else { "s" };
            self.display.tell(&format!("{count} path{s} over {way}"));
        }
    }

    fn wait_for(&mut self, what: &str, until: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        let deadline = Instant::now() + self.plan.timeout;
        if !self.plan.job.is_local() && !until(self) {
            self.display.tell(&format!("waiting at {} for {what}{}", self.hub.address(), self.missing()));
        }
        while !until(self) {
            if Instant::now() >= deadline {
                let waited = self.plan.timeout;
                let missing = self.missing();
                return Err(Failure::failed(format!(
                    "waited {waited:?} for {what}{missing}; use a longer --timeout"
                )));
            }
            self.step()?;
            // One that had joined and is lost, maybe for want of those who are missing, is no reason to wait no longer.
            if self.workers.iter().any(never_joined) {
                // The others may fail for a cause of their own, and have it to tell.
                self.listen_on(LAST_WORDS, |run| {
                    run.workers.iter().all(|place| place.state != State::Starting || never_joined(place))
                })?;
                if self.workers.iter().any(never_joined) {
                    return Err(self.lost_at_start());
                }
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
            if self.reached.is_some() || self.has_all_gradients() {
                // They go on until they are told to leave, and it counts for nothing.
                let running = self.workers.iter_mut().filter(|place| place.state == State::Running);
                running.for_each(|place| place.state = State::Finished);
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

    /// True once the server has folded in all that this run is to have.
    fn has_all_gradients(&self) -> bool {
        self.plan.gradients.is_some_and(|all| self.servers.iter().all(|shard| shard.status.folded >= all))
    }

    fn bring_home(&mut self) -> Result<Final, Failure> {
        let deadline = Instant::now() + self.plan.timeout;
        loop {
            if let Some(last) = self.last.take() {
                self.hear_servers_out(last.versions)?;
                return Ok(last);
            }
            if Instant::now() >= deadline {
                let who = if self.plan.servers == 0 { "workers" } else { "servers" };
                return Err(Failure::failed(format!(
                    "waited {:?} for the {who} to hand over the parameters; use a longer --timeout",
                    self.plan.timeout
                )));
            }
            self.step()?;
        }
    }

    /// Waits a moment for servers to tell of all that they have done: what a run shorter than the time between two
    /// reports is known by.
    fn hear_servers_out(&mut self, versions: u64) -> Result<(), Failure> {
        let deadline = Instant::now() + LAST_WORDS;
        let is_behind = |shard: &Shard| shard.status.version < versions;
        while !self.has_all_gradients() && self.servers.iter().any(is_behind) && Instant::now() < deadline {
            self.step()?;
        }
        Ok(())
    }

    /// Takes what has happened, waiting a moment for it.
    fn step(&mut self) -> Result<(), Failure> {
        self.tell_values();
        self.hub.wait(TICK);
        if let Some(signal) = self.stop.as_ref().and_then(Stop::asked) {
            return Err(self.stopped(signal));
        }
        while let Some(event) = self.hub.poll() {
            self.meet(event)?;
        }
        while let Ok(event) = self.events.try_recv() {
            self.handle(event)?;
        }
        if self.wanted.swap(false, Ordering::Relaxed) {
            self.ask_for_checkpoints();
        }
        self.measure();
        self.reap()
    }

    /// Tells servers (workers, where there are none) their initial values, as fast as they take them.
    fn tell_values(&mut self) {
        let initial = &self.plan.initial;
        for (shard, range) in self.servers.iter_mut().zip(&self.plan.shards) {
            let own = &initial[range.start as usize / 4..range.end as usize / 4];
            tell(&mut self.hub, shard.member, own, &mut shard.told);
        }
        for place in self.workers.iter_mut().filter(|_| self.plan.servers == 0) {
            tell(&mut self.hub, place.member, initial, &mut place.told);
        }
    }

    fn meet(&mut self, event: HubEvent) -> Result<(), Failure> {
        match event {
            // A group that has lost a member goes on without it, for good.
            HubEvent::Joined(member) if member.generation > 0 && self.plan.servers == 0 => {
                let why = "the group of this job has begun and takes nobody in, nor back; wait for the next job, \
                           and start all its workers together";
                self.hub.say(member.id, &json(&Order::Refuse(why.into())));
                self.hub.dismiss(member.id);
            }
            HubEvent::Joined(member) => {
                let order = match who(&member) {
                    Who::Server(shard) => {
                        let server = &mut self.servers[shard];
                        (server.member, server.told, server.gone) = (Some(member.id), 0, None);
                        self.serve_order(shard, member.generation > 0)
                    }
                    Who::Worker(worker) => {
                        let place = &mut self.workers[worker];
                        (place.member, place.heard) = (Some(member.id), place.heard + 1);
                        if member.generation > 0 {
                            self.take_back(worker);
                        }
                        self.work_order(worker)
                    }
                };
                self.hub.say(member.id, &json(&order));
                self.tell_values();
            }
            HubEvent::Announced(member) => {
                if let Who::Server(shard) = who(&member) {
                    self.learn_address(shard, &member);
                }
            }
            HubEvent::Said(id, message) => {
                let member = self.hub.members().find(|member| member.id == id).map(who);
                match (member, read(&message)) {
                    (None, _) => {}
                    (Some(who), Ok(Body::Json(message))) => self.said(who, id, message)?,
                    (Some(Who::Server(shard)), _) => {
                        return Err(self.lost_server(shard, Some("said something that is no message")));
                    }
                    (Some(Who::Worker(worker)), _) => {
                        let lost = &mut self.workers[worker].outcome.lost;
                        lost.get_or_insert(Loss::ended("said something that is no message"));
                        self.let_go(worker);
                    }
                }
            }
            HubEvent::Left { member, reason } => match who(&member) {
                Who::Server(shard) if self.servers[shard].member == Some(member.id) => {
                    self.servers[shard].member = None;
                    self.lose_server(shard, &reason)?;
                }
                Who::Worker(worker) if self.workers[worker].member == Some(member.id) => {
                    self.workers[worker].member = None;
                    if self.workers[worker].address.take().is_some() {
                        self.tell_places();
                    }
                    self.close(worker, &reason);
                }
                Who::Server(_) | Who::Worker(_) => {}
            },
        }
        Ok(())
    }

    /// Where this process reaches a server.
    fn learn_address(&mut self, shard: usize, server: &Member) {
        match self.choose(server) {
            Ok(choice) => self.servers[shard].address = Some(choice.address),
            // Workers may reach it all the same, but nobody could bring the result home.
            Err(error) => tracing::warn!(%error, "cannot reach a server"),
        }
        let addresses: Option<Vec<_>> = self.servers.iter().map(|shard| shard.address.clone()).collect();
        if let Some(addresses) = addresses {
            *self.places.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        }
    }

    /// How this process reads what a member holds: by RDMA only if nothing else is allowed.
    fn choose(&self, member: &Member) -> Result<Choice, PathError> {
        let rdma = || match self.plan.require {
            Some(TransportKind::Verbs) => self.transports.rdma(),
            _ => Err("a coordinator takes it only where it is required".into()),
        };
        choose(&Host::own(), member, self.plan.require, &rdma)
    }

    /// Where this process reads a worker's own parameters.
    fn learn_place(&mut self, worker: usize, id: MemberId, addresses: Vec<Address>) {
        let member = self.hub.members().find(|member| member.id == id).cloned();
        let Some(member) = member.map(|member| Member { addresses, ..member }) else { return };
        match self.choose(&member) {
            Ok(choice) => self.workers[worker].address = Some(choice.address),
            Err(error) => tracing::warn!(%error, "cannot reach a worker"),
        }
        self.tell_places();
    }

    /// Tells the evaluator whose own parameters there are.
    fn tell_places(&self) {
        let addresses = self.workers.iter().filter_map(|place| place.address.clone()).collect();
        *self.places.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    fn said(&mut self, who: Who, id: MemberId, message: Message) -> Result<(), Failure> {
        match (who, message) {
            (Who::Server(shard), Message::Status(status)) => {
                self.hear_server(shard, status);
                if let Some(version) = status.diverged {
                    return Err(self.plan.diverged(version));
                }
            }
            (Who::Server(shard), Message::Began(origin)) => self.hear_origin(shard, origin),
            (Who::Server(shard), Message::CheckpointFailed { count, error }) => {
                self.hear_failure(shard, count, &error);
                self.strict_checkpoints()?;
            }
            (Who::Server(shard), Message::Closed(newest)) => self.hear_close(shard, newest),
            (Who::Server(_), Message::Failed { message }) => {
                return Err(Failure::failed(format!("{who} failed: {message}")));
            }
            (Who::Server(_), other) => {
                return Err(Failure::failed(format!("{who} said what only workers say: {other:?}")));
            }
            (Who::Worker(worker), Message::Publishes(addresses)) => self.learn_place(worker, id, addresses),
            (Who::Worker(worker), message) => {
                if matches!(message, Message::Failed { .. }) {
                    // It waits for this before it ends.
                    self.hub.dismiss(id);
                }
                self.hear(worker, message);
            }
        }
        Ok(())
    }

    fn hear_server(&mut self, shard: usize, status: Status) {
        // It goes on counting, and nothing changes any more.
        if self.has_all_gradients() {
            return;
        }
        let known = std::mem::replace(&mut self.servers[shard].status, status).lost_updates;
        if let Some(lost) = status.lost_updates.filter(|lost| known.is_none_or(|known| known < *lost)) {
            *self.servers[shard].lost_updates.get_or_insert_default() += lost - known.unwrap_or(0);
            self.tell_lost_updates(shard, lost);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Judged(Judged { evaluation, at }) => {
                self.evaluation = Some(evaluation);
                if self.plan.target.is_some_and(|target| evaluation.accuracy >= target) {
                    self.reached.get_or_insert(at);
                }
            }
            Event::Final(Ok(last)) => self.last = Some(last),
            Event::Final(Err(error)) => {
                // Most likely a server is gone, and its process will tell why.
                self.listen_on(LAST_WORDS / 4, |_| false)?;
                return Err(Failure::failed(format!("cannot read the parameters: {error}")));
            }
        }
        Ok(())
    }

    fn hear(&mut self, worker: usize, message: Message) {
        let place = &mut self.workers[worker];
        place.heard += 1;
        match (place.state, message) {
            (State::Starting | State::Running, Message::Joined(paths)) => {
                place.state = State::Running;
                place.outcome.paths = paths;
            }
            (State::Running, Message::Progress(report)) => {
                let loss = report.loss.or(place.outcome.report.loss);
                place.outcome.report = Report { loss, ..report.after(&place.earlier) };
            }
            (State::Running, Message::Finished(report)) => {
                let loss = place.outcome.report.loss;
                place.outcome.report = Report { loss, ..report.after(&place.earlier) };
                place.state = State::Finished;
            }
            (_, Message::Failed { message }) => place.outcome.lost = Some(Loss::Said(message)),
            // What a life that is over had said before.
            (State::Lost { .. }, _) => {}
            // The reporting thread may speak once more after the end.
            (State::Finished, _) => {}
            (_, other) => {
                place.outcome.lost = Some(Loss::ended(format!("said what it should not: {other:?}")));
                self.let_go(worker);
            }
        }
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
            done: match self.plan.gradients {
                Some(_) => self.servers.iter().map(|shard| shard.status.folded).min().unwrap_or(0),
                None => reports().map(|report| report.clock).sum(),
            },
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            evaluation: self.evaluation,
            version: match self.plan.servers {
                0 => reports().map(|report| report.clock).min().unwrap_or(0),
                _ => self.servers.iter().map(|shard| shard.status.version).min().unwrap_or(0),
            },
            gradients: match self.plan.gradients {
                Some(_) => self.servers.first().map(|shard| shard.status.gradients),
                None => None,
            },
            staleness: (count > 0 && self.plan.gradients.is_none())
                .then(|| (sum as f64 / count as f64, most)),
        }
    }
}

fn never_joined(place: &Place) -> bool {
    place.outcome.lost.is_some() && place.outcome.paths.is_empty()
}

/// Tells a member more of its initial values.
fn tell(hub: &mut Hub, member: Option<MemberId>, all: &[f32], told: &mut usize) {
    let Some(member) = member else { return };
    while *told < all.len() && hub.backlog(member) < ON_THE_WAY {
        let piece = &all[*told..all.len().min(*told + VALUES_PER_MESSAGE)];
        hub.say(member, &values(piece));
        *told += piece.len();
    }
}

fn who(member: &Member) -> Who {
    match member.role {
        MemberRole::Server => Who::Server(member.place as usize),
        // Readers have no places in this job.
        MemberRole::Worker | MemberRole::Reader => Who::Worker(member.place as usize),
    }
}
