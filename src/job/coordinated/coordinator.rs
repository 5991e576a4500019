//! The coordinator: keeps the rendezvous, starts processes or waits for them, and follows them to the end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::super::choose::{PathError, TransportChoice, choose};
use super::super::error_report::ErrorReport;
use super::super::plan::{Resume, Role};
use super::super::rendezvous::{Host, Hub, HubEvent, Member, MemberId};
use super::super::roster::Roster;
use super::super::transports::Transports;
use super::caller::{Caller, CoordinatorError, Wish};
use super::causes::Loss;
use super::entries::{Members, ProcessState, ServerEntry, WorkerEntry};
use super::orders::{Body, Message, Order, VALUES_PER_MESSAGE, json, read, values};
use super::reports::{ServerReport, WorkerReport};
use super::{Coordination, JobOutcome, LEASES};
use crate::transport::mixed::Mixed;
use crate::transport::{Address, TransportKind};

/// The time for which the coordinator waits for its members at once.
const TICK: Duration = Duration::from_millis(10);

/// Bytes of initial values on their way to one server.
const ON_THE_WAY: usize = 8 << 20;

/// The longest time for which survivors are listened to once a server is lost: they notice within a fraction of it.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// The addresses at which the parameters are read: of the servers, by shard, or of the workers' own copies.
pub type Addresses = Arc<Mutex<Vec<Address>>>;

/// The coordinator of a job. When it is dropped, no process that it started is left.
///
/// [`open`](Self::open) it, [`start`](Self::start) the job, [`follow`](Self::follow) it until its workers have
/// finished, read the parameters with a [`Gather`](super::Gather) while it takes [turns](Self::turn),
/// [`close`](Self::close) the servers' checkpoints, and [`leave`](Self::leave); or [`abort`](Self::abort), which tells
/// every process why. It belongs to one thread: processes that it starts may be made to end with that thread.
pub struct Coordinator<C: Caller> {
    pub(super) plan: Coordination,
    pub(super) caller: C,
    pub(super) hub: Hub,
    pub(super) roster: Roster,
    pub(super) addresses: Addresses,
    pub(super) transports: Transports,
    shards: Vec<std::ops::Range<u64>>,
    pub(super) servers: Vec<ServerEntry>,
    pub(super) workers: Vec<WorkerEntry>,
    /// The caller needs no more of the job.
    is_enough: bool,
    /// The servers were asked for their last checkpoints.
    pub(super) is_closing: bool,
}

impl<C: Caller> Coordinator<C> {
    /// Opens the rendezvous of a job.
    ///
    /// # Errors
    /// No process can be met at the address, RDMA is required and missing, or the table cannot be cut into so many
    /// shards.
    pub fn open(plan: Coordination, mut caller: C) -> Result<Coordinator<C>, C::Error> {
        let transports = Transports::new(plan.secret.clone(), Some(plan.listen.ip()), 0);
        let (servers, workers) = (plan.servers(), plan.workers());
        let roster = Roster::new(servers, workers, Instant::now());
        let opened = (|| {
            if plan.worker.plan.transport == Some(TransportKind::Verbs) {
                transports.rdma()?;
            }
            let shards = match &plan.server {
                Some(order) => order.table.shards(plan.servers())?,
                None => Vec::new(),
            };
            let silence = plan.worker.lease.saturating_mul(LEASES);
            Ok((roster.listen(plan.listen, plan.secret.clone(), silence)?, shards))
        })();
        let (hub, shards) = opened.map_err(|error| caller.explain(error))?;
        Ok(Coordinator {
            plan,
            caller,
            hub,
            roster,
            addresses: Arc::default(),
            transports,
            shards,
            servers: (0..servers).map(|_| ServerEntry::default()).collect(),
            workers: (0..workers).map(|_| WorkerEntry::default()).collect(),
            is_enough: false,
            is_closing: false,
        })
    }

    /// The caller, and the members as they are now.
    pub fn parts(&mut self) -> (&mut C, Members<'_>) {
        (&mut self.caller, Members { roster: &self.roster, servers: &self.servers, workers: &self.workers })
    }

    /// The addresses at which the parameters are read, which change when a server comes back.
    pub fn addresses(&self) -> Addresses {
        Arc::clone(&self.addresses)
    }

    /// The transports of this process.
    pub fn transports(&self) -> Mixed {
        self.transports.open()
    }

    /// Follows the job until every worker has finished or is lost, all gradients are folded in that the order of the
    /// servers names, or the caller says [`Wish::Enough`].
    ///
    /// # Errors
    /// All workers are lost, a server is lost permanently, or the caller gives up.
    pub fn follow(&mut self) -> Result<(), C::Error> {
        loop {
            self.turn()?;
            self.let_go_of_the_silent(crate::node::now());
            self.announce_losses(false);
            if !self.workers.iter().any(WorkerEntry::is_open) {
                break;
            }
            if self.is_enough || self.has_all_gradients() {
                // They go on until they are told to leave, and it counts for nothing.
                let running = self.workers.iter_mut().filter(|entry| entry.state == ProcessState::Running);
                running.for_each(|entry| entry.state = ProcessState::Finished);
                break;
            }
        }
        if !self.workers.iter().any(|entry| entry.state == ProcessState::Finished) {
            // If all died of a lost server, that loss is the cause to report.
            self.hear_out(LAST_WORDS / 4)?;
            return Err(self.all_lost());
        }
        // Servers notice within a moment which workers are gone; it is no reason to stay if they do not.
        let deadline = Instant::now() + LAST_WORDS;
        while self.announce_losses(false) > 0 && Instant::now() < deadline {
            self.turn()?;
        }
        self.announce_losses(true);
        Ok(())
    }

    /// True once the servers have folded in all gradients that their order names.
    pub fn has_all_gradients(&self) -> bool {
        let gradients = self.plan.server.as_ref().and_then(|order| order.gradients);
        gradients.is_some_and(|all| self.servers.iter().all(|entry| entry.report.folded >= all))
    }

    /// Waits a moment for servers to report the version `versions`: a run that is shorter than the time between two
    /// reports is known by that.
    ///
    /// # Errors
    /// As for [`turn`](Self::turn).
    pub fn hear_servers_out(&mut self, versions: u64) -> Result<(), C::Error> {
        let deadline = Instant::now() + LAST_WORDS;
        let is_behind = |entry: &ServerEntry| entry.report.version < versions;
        while !self.has_all_gradients() && self.servers.iter().any(is_behind) && Instant::now() < deadline {
            self.turn()?;
        }
        Ok(())
    }

    /// The result of the job so far.
    pub fn outcome(&self) -> JobOutcome {
        let (checkpoints_failed, checkpoint_error) = self.failed_checkpoints();
        let lost_updates = self.servers.iter().filter_map(|entry| entry.lost_updates);
        let reaches_servers = |entry: &&WorkerEntry| entry.paths.iter().any(|path| path.server.is_some());
        let hosts = || self.workers.iter().filter(reaches_servers).count();
        JobOutcome {
            workers: self.workers.iter().map(WorkerEntry::outcome).collect(),
            hosts: self.plan.worker.plan.per_host.then(hosts),
            servers: self.servers.iter().map(|entry| entry.report).collect(),
            restarts: self.servers.iter().map(|entry| entry.restarts).collect(),
            lost_updates: lost_updates.fold(0, u64::saturating_add),
            began: self.first_version(),
            checkpoints_failed,
            checkpoint_error,
        }
    }

    /// Takes the events that there are, waiting a moment for the first.
    ///
    /// # Errors
    /// A server is lost permanently or has failed, or the caller gives up.
    pub fn turn(&mut self) -> Result<(), C::Error> {
        self.tell_values();
        self.hub.wait(TICK);
        // Asked first: a signal that stops this process may have reached its servers as well, which are then not lost.
        let members = Members { roster: &self.roster, servers: &self.servers, workers: &self.workers };
        match self.caller.turn(&members)? {
            Wish::GoOn => {}
            Wish::Enough => self.is_enough = true,
            Wish::Checkpoint => self.ask_for_checkpoints(),
            Wish::Stop => return Err(self.stopped()),
        }
        while let Some((who, event)) = self.roster.poll(&mut self.hub) {
            self.meet(who, event)?;
        }
        self.reap()
    }

    /// Tells servers (workers, where there are none) their initial values, as fast as they take them.
    fn tell_values(&mut self) {
        let initial = &self.plan.initial;
        for (role, member) in self.roster.here() {
            match role {
                Role::Server(shard) => {
                    let range = &self.shards[shard as usize];
                    let own = &initial[range.start as usize / 4..range.end as usize / 4];
                    tell(&mut self.hub, member, own, &mut self.servers[shard as usize].told);
                }
                Role::Worker(worker) if self.plan.server.is_none() => {
                    tell(&mut self.hub, member, initial, &mut self.workers[worker as usize].told);
                }
                Role::Worker(_) => {}
            }
        }
    }

    pub(super) fn meet(&mut self, who: Role, event: HubEvent) -> Result<(), C::Error> {
        match (who, event) {
            // A group that has lost a member continues without it to the end.
            (_, HubEvent::Joined(member)) if member.generation > 0 && self.plan.server.is_none() => {
                let why = "the group of this job has begun and takes no member in, nor back; wait for the next job, \
                           and start all its workers together";
                self.hub.say(member.id, &json(&Order::Refuse(why.into())));
                self.hub.dismiss(member.id);
                self.roster.forget(who, Instant::now());
            }
            (_, HubEvent::Joined(member)) => self.welcome(who, &member),
            (Role::Server(shard), HubEvent::Announced(member)) => self.learn_address(shard as usize, &member),
            (Role::Worker(_), HubEvent::Announced(_)) => {}
            (_, HubEvent::Said(id, message)) => match (who, read(&message)) {
                (_, Ok(Body::Json(message))) => self.said(who, id, message)?,
                (Role::Server(shard), _) => {
                    // Nothing else that it says is read: it would be judged again with each message.
                    let why = "it said something that is no message; run the same slackline everywhere";
                    self.hub.say(id, &json(&Order::Abort(why.into())));
                    self.hub.dismiss(id);
                    self.roster.forget(who, Instant::now());
                    return Err(self.lost_server(shard as usize, Some("said something that is no message")));
                }
                (Role::Worker(worker), _) => {
                    let worker = worker as usize;
                    let lost = &mut self.workers[worker].lost;
                    lost.get_or_insert(Loss::ended("said something that is no message"));
                    self.let_go(worker);
                }
            },
            (Role::Server(shard), HubEvent::Left { reason, .. }) => {
                self.lose_server(shard as usize, &reason)?;
            }
            (Role::Worker(worker), HubEvent::Left { reason, .. }) => {
                let worker = worker as usize;
                if self.workers[worker].address.take().is_some() {
                    self.tell_addresses();
                }
                self.close_worker(worker, &reason);
            }
        }
        Ok(())
    }

    /// Tells a member that has joined its order.
    fn welcome(&mut self, who: Role, member: &Member) {
        let returns = member.generation > 0;
        let order = match who {
            Role::Server(shard) => {
                let server = &mut self.servers[shard as usize];
                server.told = 0;
                server.disk.begin_again();
                self.serve_order(shard as usize, returns)
            }
            Role::Worker(worker) => {
                self.workers[worker as usize].heard += 1;
                if returns {
                    self.take_back(worker as usize);
                }
                self.work_order(worker as usize)
            }
        };
        self.hub.say(member.id, &json(&order));
        self.tell_values();
    }

    pub(super) fn serve_order(&self, shard: usize, returns: bool) -> Order {
        let plan = &self.plan;
        let Some(mut order) = plan.server.clone() else {
            return Order::Refuse("this job has no server; start workers only".into());
        };
        // A checkpoint that it finds is of this run only if an incarnation of it has begun, and found no other file.
        let has_begun = self.servers[shard].disk.first.is_some();
        if let Some(checkpoint) = order.checkpoint.as_mut().filter(|_| returns && has_begun) {
            checkpoint.resume = Resume::IfThere;
        }
        // A server that returns does not wait for workers that are lost permanently.
        let is_here = |worker: usize| self.roster.member(Role::Worker(worker as u32)).is_some();
        let may_come = |(worker, entry): &(usize, &WorkerEntry)| match entry.state {
            ProcessState::Starting | ProcessState::Running => true,
            ProcessState::Finished => is_here(*worker),
            ProcessState::Lost { .. } => false,
        };
        let left = || self.workers.iter().enumerate().filter(may_come).count();
        order.workers = if returns { left().max(1) } else { plan.workers() };
        order.shard = shard as u16;
        Order::Serve(Box::new(order))
    }

    fn work_order(&self, worker: usize) -> Order {
        let (workers, program) = (self.plan.workers(), self.plan.programs[worker].clone());
        Order::Work(Box::new(super::WorkerOrder { workers, worker, program, ..self.plan.worker.clone() }))
    }

    /// Learns where this process reaches a server.
    fn learn_address(&mut self, shard: usize, server: &Member) {
        match self.choose(server) {
            Ok(choice) => self.servers[shard].address = Some(choice.address),
            // Workers may reach it all the same, but no process could read the result.
            Err(error) => self.caller.warn(&format!("this process cannot reach server {shard}: {error}")),
        }
        let addresses: Option<Vec<_>> = self.servers.iter().map(|entry| entry.address.clone()).collect();
        if let Some(addresses) = addresses {
            *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
        }
    }

    /// Chooses the way over which this process reads a member's memory: RDMA only if nothing else is allowed.
    fn choose(&self, member: &Member) -> Result<TransportChoice, PathError> {
        let require = self.plan.worker.plan.transport;
        let rdma = || match require {
            Some(TransportKind::Verbs) => self.transports.rdma().map_err(|error| error.to_string()),
            _ => Err("a coordinator takes it only where it is required".into()),
        };
        choose(&Host::own(), member, require, &rdma, &|gpu| self.transports.maps(gpu))
    }

    /// Learns where this process reads a worker's own parameters.
    fn learn_copy(&mut self, worker: usize, id: MemberId, addresses: Vec<Address>) {
        let member = self.hub.members().find(|member| member.id == id).cloned();
        let Some(member) = member.map(|member| Member { addresses, ..member }) else { return };
        match self.choose(&member) {
            Ok(choice) => self.workers[worker].address = Some(choice.address),
            Err(error) => tracing::warn!(%error, "cannot reach a worker"),
        }
        self.tell_addresses();
    }

    /// Publishes the addresses of the workers' own parameters to readers.
    fn tell_addresses(&self) {
        let addresses = self.workers.iter().filter_map(|entry| entry.address.clone()).collect();
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }

    fn said(&mut self, who: Role, id: MemberId, message: Message) -> Result<(), C::Error> {
        match (who, message) {
            (Role::Server(shard), Message::Status(report)) => {
                self.hear_server(shard as usize, report);
                if let Some(version) = report.diverged {
                    return Err(self.caller.explain(CoordinatorError::Diverged { version }));
                }
            }
            (Role::Server(shard), Message::Workers(workers)) => {
                self.servers[shard as usize].workers = workers
            }
            (Role::Server(shard), Message::Began(origin)) => self.hear_origin(shard as usize, origin),
            (Role::Server(shard), Message::CheckpointFailed { count, error }) => {
                self.hear_failure(shard as usize, count, &error);
                self.strict_checkpoints()?;
            }
            (Role::Server(shard), Message::Closed(newest)) => self.hear_close(shard as usize, newest),
            (Role::Server(_), Message::Failed(error)) => {
                // It writes no checkpoint any more.
                self.roster.forget(who, Instant::now());
                return Err(self.caller.explain(CoordinatorError::Server { server: who, error }));
            }
            (Role::Server(_), other) => {
                let error = ErrorReport::of_cause(format!("it said what only workers say: {other:?}"));
                return Err(self.caller.explain(CoordinatorError::Server { server: who, error }));
            }
            (Role::Worker(worker), Message::Publishes(addresses)) => {
                self.learn_copy(worker as usize, id, addresses);
            }
            (Role::Worker(worker), Message::Workers(workers)) if self.plan.worker.plan.per_host => {
                self.workers[worker as usize].serves = workers;
            }
            (Role::Worker(worker), message) => {
                if matches!(message, Message::Failed(_)) {
                    // It waits for this before it ends.
                    self.hub.dismiss(id);
                }
                self.hear(worker as usize, message);
            }
        }
        Ok(())
    }

    pub(super) fn hear_server(&mut self, shard: usize, report: ServerReport) {
        // It goes on counting, and nothing changes any more.
        if self.has_all_gradients() {
            return;
        }
        self.servers[shard].disk.hear_written(report.checkpointed);
        let known = std::mem::replace(&mut self.servers[shard].report, report).lost_updates;
        if let Some(lost) = report.lost_updates.filter(|lost| known.is_none_or(|known| known < *lost)) {
            let all = self.servers[shard].lost_updates.get_or_insert_default();
            *all = all.saturating_add(lost - known.unwrap_or(0));
            self.tell_lost_updates(shard, lost);
        }
    }

    fn hear(&mut self, worker: usize, message: Message) {
        let entry = &mut self.workers[worker];
        entry.heard += 1;
        match (entry.state, message) {
            (ProcessState::Starting | ProcessState::Running, Message::Joined(paths)) => {
                entry.state = ProcessState::Running;
                entry.paths = paths;
            }
            (ProcessState::Running, Message::Progress(report)) => {
                let loss = report.loss.or(entry.report.loss);
                entry.report = WorkerReport { loss, ..report.after(&entry.earlier) };
            }
            (ProcessState::Running, Message::Finished(report)) => {
                let loss = entry.report.loss;
                entry.report = WorkerReport { loss, ..report.after(&entry.earlier) };
                entry.state = ProcessState::Finished;
            }
            (_, Message::Failed(error)) => entry.lost = Some(Loss::Said(error)),
            // Messages of an incarnation that is over.
            (ProcessState::Lost { .. }, _) => {}
            // The reporting thread may speak once more after the end.
            (ProcessState::Finished, _) => {}
            (_, other) => {
                entry.lost = Some(Loss::ended(format!("said what it should not: {other:?}")));
                self.let_go(worker);
            }
        }
    }
}

/// Tells a member more of its initial values.
fn tell(hub: &mut Hub, member: MemberId, all: &[f32], told: &mut usize) {
    while *told < all.len() && hub.backlog(member) < ON_THE_WAY {
        let piece = &all[*told..all.len().min(*told + VALUES_PER_MESSAGE)];
        hub.say(member, &values(piece));
        *told += piece.len();
    }
}
