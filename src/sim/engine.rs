//! The run itself: its events, in order, until the end.

use super::agenda::{Agenda, AgendaEvent, Down, Up};
use super::distribution::Sampler;
use super::group::{GroupMembers, Nobody, Peers};
use super::judge::Judge;
use super::model::Model;
use super::network::{MessageDelivery, Passage, Wires};
use super::report::{ClusterReport, OfWorker};
use super::server::SimServer;
use super::worker::SimWorker;
use super::{COMPUTE, Cluster, DOWNTIME, LIFETIME, Problem, SimError, Until, nanos, seconds};
use crate::clock::{Clock, ClockTable, WorkerId};
use crate::scheme::{SchemeConfig, ServerScheme, WorkerEvent, WorkerScheme};

/// Most actions of a server's scheme at one instant, most refreshes of a worker's between two computations, and most
/// times that schemes are woken at one instant. More than any job has gradients to act on: a scheme that asks for so
/// many would never end.
pub(super) const ACTIONS_MAX: u32 = 1 << 20;

pub(super) struct SimEngine<'a> {
    pub(super) cluster: Cluster,
    pub(super) problem: Option<Box<dyn Problem>>,
    pub(super) agenda: Agenda,
    pub(super) server: SimServer,
    /// The workers' own state, instead of a server's model, where there is no server.
    pub(super) peers: Option<Peers<'a>>,
    pub(super) workers: Vec<SimWorker>,
    make: &'a mut dyn FnMut(WorkerId) -> Box<dyn WorkerScheme>,
    pub(super) wires: Wires,
    pub(super) judge: Judge,
    pub(super) record: Record,
    /// Bytes of a gradient, and of a copy.
    pub(super) bytes: u64,
    pub(super) slots: u64,
    pub(super) pushes: bool,
    pub(super) local_steps: u16,
    /// Clocks of a round, where workers average.
    period: u64,
    /// The instant at which a scheme was woken last, and how often that was at this instant.
    wakes: (u64, u32),
    pub(super) is_over: bool,
}

/// The record of a run.
pub(super) struct Record {
    pub(super) report: ClusterReport,
    /// The clock that each worker that is in has reached.
    pub(super) published: ClockTable,
    /// The time at which the next point of the loss curve is due.
    pub(super) next_point: u64,
}

impl Record {
    /// Lets something take part in the hash.
    pub(super) fn note(&mut self, what: u64, one: u64, other: u64) {
        let hash = &mut self.report.trace_hash;
        for word in [what, one, other] {
            *hash = (*hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
}

impl<'a> SimEngine<'a> {
    pub(super) fn new(
        mut cluster: Cluster,
        server: Option<Box<dyn ServerScheme>>,
        groups: Option<GroupMembers<'a>>,
        make: &'a mut dyn FnMut(WorkerId) -> Box<dyn WorkerScheme>,
    ) -> SimEngine<'a> {
        let problem = cluster.problem.take();
        let (workers, seed, scheme) = (cluster.workers, cluster.seed, cluster.scheme.clone());
        let needs = scheme.needs();
        let model = || {
            let initial = problem.as_ref()?.initial(seed);
            Some(Model::new(&initial, &cluster))
        };
        let peers = groups.map(|members| {
            Peers::new(members, std::iter::repeat_with(model).take(workers).flatten().collect(), workers)
        });
        let model = if peers.is_none() { model() } else { None };
        let parameters = problem.as_ref().map_or(0, |problem| problem.parameters() as u64);
        let constant = super::Distribution::Constant { seconds: 0.0 };
        let faults = &cluster.faults;
        let lifetime = faults.lifetime.as_ref().unwrap_or(&constant);
        let downtime = faults.downtime.as_ref().unwrap_or(&constant);
        let members = (0..workers)
            .map(|index| {
                let sampler =
                    |distribution, purpose| Sampler::new(distribution, seed, purpose, index, workers);
                let samplers = [
                    sampler(&cluster.compute, COMPUTE),
                    sampler(lifetime, LIFETIME),
                    sampler(downtime, DOWNTIME),
                ];
                let factor = cluster.factors.get(index).copied().unwrap_or(1.0);
                SimWorker::new(make(WorkerId(index as u32)), samplers, factor)
            })
            .collect();
        let judge = Judge::new(&cluster);
        let report = ClusterReport { scheme: scheme.to_string(), workers, seed, ..ClusterReport::default() };
        SimEngine {
            wires: Wires::new(&cluster.network, &cluster.faults, workers, seed),
            bytes: cluster.network.message_bytes.unwrap_or(4 * parameters),
            cluster,
            problem,
            agenda: Agenda::default(),
            server: SimServer::new(server.unwrap_or(Box::new(Nobody)), model, workers),
            peers,
            workers: members,
            make,
            judge,
            record: Record { report, published: ClockTable::default(), next_point: 0 },
            slots: u64::from(needs.slots),
            pushes: needs.pushes,
            local_steps: scheme.built_in().map_or(1, |scheme| scheme.local_steps().max(1)),
            period: match scheme.built_in() {
                Some(SchemeConfig::DsSync { period, .. }) => period.max(1).into(),
                _ => 1,
            },
            wakes: (0, 0),
            is_over: false,
        }
    }

    pub(super) fn run(mut self) -> Result<ClusterReport, SimError> {
        let end = match self.cluster.until {
            Until::Seconds(limit) | Until::Loss { within: limit, .. } => nanos(limit),
            Until::Clocks(_) | Until::Versions(_) => u64::MAX,
        };
        self.begin()?;
        while !self.is_over {
            let Some(event) = self.agenda.next(end) else {
                if self.agenda.is_empty() {
                    return Err(self.stuck());
                }
                self.agenda.skip_to(end);
                break;
            };
            self.step(event)?;
            if let Until::Clocks(enough) = self.cluster.until {
                let published = &self.record.published;
                self.is_over |= !published.is_empty() && published.smallest().get() >= enough;
            }
        }
        self.measure(true);
        Ok(self.report())
    }

    /// Lets all workers join before any of them does anything.
    fn begin(&mut self) -> Result<(), SimError> {
        for index in 0..self.cluster.changes.len() {
            self.agenda.put(nanos(self.cluster.changes[index].at), AgendaEvent::Change { index });
        }
        for crash in &self.cluster.faults.crashes {
            let (worker, back) = (crash.worker as u32, crash.back.map(nanos));
            self.agenda.put(nanos(crash.at), AgendaEvent::Crash { worker, incarnation: None, back });
        }
        for worker in 0..self.workers.len() {
            self.enter(worker);
        }
        self.measure(false);
        self.drive_server()?;
        for worker in 0..self.workers.len() {
            match self.cluster.starts.get(worker).copied().map(nanos) {
                None | Some(0) => self.tell_joined(worker)?,
                Some(at) => {
                    let incarnation = self.workers[worker].incarnation;
                    self.agenda.put(at, AgendaEvent::Start { worker: worker as u32, incarnation });
                }
            }
        }
        Ok(())
    }

    /// Tells a worker that it is in.
    fn tell_joined(&mut self, id: usize) -> Result<(), SimError> {
        // In groups its scheme counts rounds.
        let (clock, workers) = (Clock::new(self.workers[id].clock / self.period), self.server.members);
        self.tell_worker(id, WorkerEvent::Membership { workers })?;
        self.tell_worker(id, WorkerEvent::Joined { clock })
    }

    fn step(&mut self, event: AgendaEvent) -> Result<(), SimError> {
        let now = self.agenda.now();
        match event {
            AgendaEvent::Start { worker, incarnation } => {
                let id = worker as usize;
                let own = &self.workers[id];
                if own.is_in && own.incarnation == incarnation { self.tell_joined(id) } else { Ok(()) }
            }
            AgendaEvent::Join { worker } => self.join(worker as usize),
            AgendaEvent::Crash { worker, incarnation, back } => {
                self.crash(worker as usize, incarnation, back);
                Ok(())
            }
            AgendaEvent::Noticed { worker, incarnation } => self.notice(worker as usize, incarnation),
            AgendaEvent::Computed { worker, attempt } => {
                self.record.note(1, now, u64::from(worker));
                self.computed(worker as usize, attempt)
            }
            AgendaEvent::Reached { worker, incarnation, last, message } => {
                // A message of a dead incarnation came over a connection that is no more.
                if self.server.accounts[worker as usize].incarnation != incarnation {
                    return Ok(());
                }
                let bytes = self.bytes_of(&message);
                let delivery = self.wires.take_in(now, last, worker as usize, bytes);
                self.deliver_up(worker, incarnation, delivery, message);
                Ok(())
            }
            AgendaEvent::Up { worker, incarnation, message } => {
                self.record.note(2, now, u64::from(worker));
                self.receive_up(worker as usize, incarnation, message)
            }
            AgendaEvent::Down { worker, incarnation, message } => {
                self.record.note(3, now, u64::from(worker));
                self.receive_down(worker as usize, incarnation, message)
            }
            AgendaEvent::Averaged { round, first } => self.averaged(round, first as usize),
            AgendaEvent::Flows { number } => {
                self.advance_flows(number);
                Ok(())
            }
            AgendaEvent::Change { index } => {
                let change = self.cluster.changes[index].clone();
                self.workers[change.workers].iter_mut().for_each(|worker| worker.factor *= change.factor);
                Ok(())
            }
            AgendaEvent::WakeServer => {
                self.count_wake(now)?;
                self.wake_server()
            }
            AgendaEvent::WakeWorker { worker, incarnation } => {
                self.count_wake(now)?;
                self.wake_worker(worker as usize, incarnation)
            }
        }
    }

    /// A scheme whose time to be woken does not move on keeps time itself from moving on.
    fn count_wake(&mut self, now: u64) -> Result<(), SimError> {
        let (at, count) = self.wakes;
        self.wakes = (now, if at == now { count + 1 } else { 1 });
        if self.wakes.1 > ACTIONS_MAX {
            let what = format!("it asks to be woken more than {ACTIONS_MAX} times at one instant");
            return Err(self.broken(what));
        }
        Ok(())
    }

    /// Takes a worker in; only the server is told yet.
    fn enter(&mut self, id: usize) {
        let now = self.agenda.now();
        let clock = self.admit(id, self.workers[id].incarnation) * self.period;
        let worker = &mut self.workers[id];
        worker.begin(now, clock);
        self.record.published.join_at(WorkerId(id as u32), Clock::new(clock));
        if let Some(distribution) = &self.cluster.faults.lifetime {
            // As with computing, an incarnation that took no time might be repeated for ever at one instant.
            let at = now.saturating_add(nanos(worker.lifetime.draw(distribution)).max(1));
            let incarnation = Some(worker.incarnation);
            let back = self.cluster.faults.downtime.as_ref();
            let back = back.map(|distribution| at.saturating_add(nanos(worker.downtime.draw(distribution))));
            self.agenda.put(at, AgendaEvent::Crash { worker: id as u32, incarnation, back });
        }
    }

    fn join(&mut self, id: usize) -> Result<(), SimError> {
        if self.workers[id].is_in {
            return Ok(());
        }
        // A worker that comes again has surely gone.
        self.notice(id, self.server.accounts[id].incarnation)?;
        self.workers[id].scheme = (self.make)(WorkerId(id as u32));
        self.enter(id);
        self.gather_all()?;
        self.drive_server()?;
        self.tell_membership(id)?;
        self.tell_joined(id)
    }

    fn crash(&mut self, id: usize, incarnation: Option<u32>, back: Option<u64>) {
        let now = self.agenda.now();
        let worker = &mut self.workers[id];
        if !worker.is_in || incarnation.is_some_and(|incarnation| incarnation != worker.incarnation) {
            return;
        }
        let (incarnation, id) = (worker.incarnation, id as u32);
        worker.end(now);
        self.record.report.counts.crashes += 1;
        let noticed = now.saturating_add(nanos(self.cluster.faults.detection));
        self.agenda.put(noticed, AgendaEvent::Noticed { worker: id, incarnation });
        if let Some(back) = back {
            self.agenda.put(back, AgendaEvent::Join { worker: id });
        }
    }

    pub(super) fn send_up(&mut self, worker: usize, bytes: u64, message: Up) {
        let incarnation = self.workers[worker].incarnation;
        match self.wires.send_up(self.agenda.now(), worker, bytes) {
            Passage::Arrives(delivery) => self.deliver_up(worker as u32, incarnation, delivery, message),
            Passage::Reaches { first, last } => {
                self.agenda
                    .put(first, AgendaEvent::Reached { worker: worker as u32, incarnation, last, message });
            }
        }
    }

    fn deliver_up(&mut self, worker: u32, incarnation: u32, delivery: MessageDelivery, message: Up) {
        if let Some(again) = delivery.again {
            self.agenda.put(again, AgendaEvent::Up { worker, incarnation, message: message.clone() });
        }
        self.agenda.put(delivery.at, AgendaEvent::Up { worker, incarnation, message });
    }

    pub(super) fn send_down(&mut self, worker: usize, bytes: u64, message: Down) {
        let incarnation = self.server.accounts[worker].incarnation;
        let delivery = self.wires.send_down(self.agenda.now(), worker, bytes);
        let worker = worker as u32;
        if let Some(again) = delivery.again {
            self.agenda.put(again, AgendaEvent::Down { worker, incarnation, message: message.clone() });
        }
        self.agenda.put(delivery.at, AgendaEvent::Down { worker, incarnation, message });
    }

    fn bytes_of(&self, message: &Up) -> u64 {
        if matches!(message, Up::Gradient { .. }) { self.bytes } else { 0 }
    }

    pub(super) fn broken(&self, what: String) -> SimError {
        let (scheme, seed) = (self.cluster.scheme.to_string(), self.cluster.seed);
        SimError::Broken { scheme, seed, seconds: seconds(self.agenda.now()), what }
    }

    fn stuck(&self) -> SimError {
        let waiting = self.workers.iter().enumerate().find(|(_, worker)| worker.is_in);
        let what = waiting.map_or_else(
            || "no worker is in, and none will come".to_owned(),
            |(id, worker)| {
                format!("worker {id} is at clock {} and asks for {:?}", worker.clock, worker.asked)
            },
        );
        let (scheme, seed) = (self.cluster.scheme.to_string(), self.cluster.seed);
        SimError::Stuck { scheme, seed, seconds: seconds(self.agenda.now()), what }
    }

    fn report(mut self) -> ClusterReport {
        let now = self.agenda.now();
        let mut report = self.record.report;
        report.end = seconds(now);
        report.versions = self.server.version;
        let workers = self.workers.len();
        report.parameters = match (&self.peers, &self.server.model) {
            (Some(peers), _) => (0..workers).filter_map(|id| peers.model_values(id)).collect(),
            (None, model) => model.iter().map(Model::values).collect(),
        };
        report.mean_time_per_clock = report.end * workers as f64 / report.gradients.max(1) as f64;
        report.counts.lost = self.wires.lost;
        report.counts.events = self.agenda.count();
        for worker in &mut self.workers {
            worker.end(now);
            let (computing, wasted) = (seconds(worker.computed_nanos), seconds(worker.wasted_nanos));
            let busy = worker.computed_nanos + worker.wasted_nanos;
            let waiting = seconds(worker.present_nanos.saturating_sub(busy));
            report.of_workers.push(OfWorker { clocks: worker.published, computing, wasted, waiting });
        }
        report
    }
}
