//! The workers' part: asks for copies, computes, publishes.

use std::collections::VecDeque;
use std::rc::Rc;

use super::agenda::{AgendaEvent, Down, Held, Up};
use super::distribution::Sampler;
use super::engine::{ACTIONS_MAX, SimEngine};
use super::model::{Payload, payload, values};
use super::server::Outstanding;
use super::{SimError, nanos};
use crate::clock::{Clock, Version, WorkerId};
use crate::scheme::{Bound, WorkerAction, WorkerEvent, WorkerScheme};
use crate::time::Instant;

pub(super) struct SimWorker {
    pub(super) scheme: Box<dyn WorkerScheme>,
    sampler: Sampler,
    pub(super) lifetime: Sampler,
    pub(super) downtime: Sampler,
    /// The factor by which its times are longer.
    pub(super) factor: f64,
    pub(super) incarnation: u32,
    pub(super) is_in: bool,
    pub(super) clock: u64,
    /// The first clock of its own that it does not know consumed.
    credited: u64,
    copy: Option<Held>,
    pushed: Option<Held>,
    pub(super) asked: Option<Bound>,
    /// How often it has asked since it computed last.
    refreshes: u32,
    /// The number of its last request.
    number: u64,
    /// The number of its last computation.
    attempt: u64,
    /// The time at which the running computation began.
    computing: Option<u64>,
    /// Done computing, and no slot is free.
    finished: Option<Outstanding>,
    /// Its gradients that may not be in its copy, where it reads its own writes.
    own: VecDeque<(u64, Payload)>,
    wake: Option<u64>,
    joined_at: u64,
    pub(super) computed_nanos: u64,
    pub(super) wasted_nanos: u64,
    pub(super) present_nanos: u64,
    pub(super) published: u64,
}

impl SimWorker {
    pub(super) fn new(scheme: Box<dyn WorkerScheme>, samplers: [Sampler; 3], factor: f64) -> SimWorker {
        let [sampler, lifetime, downtime] = samplers;
        SimWorker {
            scheme,
            sampler,
            lifetime,
            downtime,
            factor,
            incarnation: 0,
            is_in: false,
            clock: 0,
            credited: 0,
            copy: None,
            pushed: None,
            asked: None,
            refreshes: 0,
            number: 0,
            attempt: 0,
            computing: None,
            finished: None,
            own: VecDeque::new(),
            wake: None,
            joined_at: 0,
            computed_nanos: 0,
            wasted_nanos: 0,
            present_nanos: 0,
            published: 0,
        }
    }

    /// Begins another incarnation.
    pub(super) fn begin(&mut self, now: u64, clock: u64) {
        self.is_in = true;
        (self.clock, self.credited, self.joined_at) = (clock, clock, now);
    }

    /// Ends its incarnation, and with it all its state.
    pub(super) fn end(&mut self, now: u64) {
        if !self.is_in {
            return;
        }
        self.is_in = false;
        self.incarnation += 1;
        self.present_nanos += now - self.joined_at;
        self.wasted_nanos += self.computing.take().map_or(0, |since| now - since);
        (self.copy, self.pushed, self.asked, self.finished, self.wake) = (None, None, None, None, None);
        self.refreshes = 0;
        self.own.clear();
    }

    fn offers(&self, bound: Bound) -> bool {
        self.pushed.as_ref().is_some_and(|Held { snapshot, .. }| {
            bound.is_met_by(Version::new(snapshot.version), Clock::new(snapshot.smallest_clock))
        })
    }
}

impl SimEngine<'_> {
    /// Tells a worker's scheme of an event and carries out its actions.
    pub(super) fn tell_worker(&mut self, id: usize, event: WorkerEvent) -> Result<(), SimError> {
        let now = Instant::from_nanos(self.agenda.now());
        self.workers[id].scheme.handle_event(now, event);
        self.drive_worker(id)
    }

    fn drive_worker(&mut self, id: usize) -> Result<(), SimError> {
        let now = Instant::from_nanos(self.agenda.now());
        loop {
            if let Some(action) = self.workers[id].scheme.poll_action() {
                match action {
                    WorkerAction::Refresh { bound } => self.refresh(id, bound)?,
                    WorkerAction::Compute => self.compute(id)?,
                    WorkerAction::Average { round } => self.average(id, round)?,
                    WorkerAction::Fail { reason } => return Err(self.cluster.scheme.failure(reason).into()),
                }
                continue;
            }
            let worker = &mut self.workers[id];
            let Some(bound) = worker.asked else { break };
            if !worker.offers(bound) {
                break;
            }
            let Some(copy) = worker.pushed.clone() else { break };
            self.take(id, copy)?;
        }
        let worker = &mut self.workers[id];
        if let Some(at) = worker.scheme.poll_timeout()
            && worker.wake.is_none_or(|wake| at.as_nanos() < wake)
        {
            let at = at.max(now).as_nanos();
            worker.wake = Some(at);
            self.agenda
                .put(at, AgendaEvent::WakeWorker { worker: id as u32, incarnation: worker.incarnation });
        }
        Ok(())
    }

    pub(super) fn wake_worker(&mut self, id: usize, incarnation: u32) -> Result<(), SimError> {
        let now = Instant::from_nanos(self.agenda.now());
        let worker = &mut self.workers[id];
        if !worker.is_in || worker.incarnation != incarnation {
            return Ok(());
        }
        if worker.wake.is_some_and(|wake| wake <= now.as_nanos()) {
            worker.wake = None;
        }
        if worker.scheme.poll_timeout().is_some_and(|at| at <= now) {
            worker.scheme.handle_timeout(now);
        }
        self.drive_worker(id)
    }

    fn refresh(&mut self, id: usize, bound: Bound) -> Result<(), SimError> {
        let worker = &mut self.workers[id];
        worker.asked = Some(bound);
        worker.refreshes += 1;
        if worker.refreshes > ACTIONS_MAX {
            let what = format!("worker {id} asks for more than {ACTIONS_MAX} copies and computes on none");
            return Err(self.broken(what));
        }
        if !self.pushes {
            worker.number += 1;
            let number = worker.number;
            self.send_up(id, 0, Up::Request { number, bound });
        }
        Ok(())
    }

    /// Gives a worker the copy that it asked for; its scheme is not asked for the next action.
    fn take(&mut self, id: usize, copy: Held) -> Result<(), SimError> {
        let worker = &mut self.workers[id];
        let (version, smallest_clock) = (copy.snapshot.version, copy.snapshot.smallest_clock);
        let went_back = worker.copy.as_ref().is_some_and(|old| {
            old.snapshot.version > version || old.snapshot.smallest_clock > smallest_clock
        });
        if went_back {
            return Err(self.broken(format!("worker {id} went back to version {version}")));
        }
        worker.own.retain(|(clock, _)| *clock >= copy.consumed);
        worker.copy = Some(copy);
        worker.asked = None;
        let event =
            WorkerEvent::Holds { version: Version::new(version), smallest_clock: Clock::new(smallest_clock) };
        worker.scheme.handle_event(Instant::from_nanos(self.agenda.now()), event);
        if self.cluster.scheme.needs().reports_reads {
            self.send_up(id, 0, Up::Seen { version });
        }
        Ok(())
    }

    fn compute(&mut self, id: usize) -> Result<(), SimError> {
        let now = self.agenda.now();
        let worker = &self.workers[id];
        if worker.computing.is_some() || worker.finished.is_some() || worker.asked.is_some() {
            return Err(self.broken(format!("worker {id} computes before the last answer")));
        }
        let clock = worker.clock;
        if self.peers.is_none() {
            let Some(Held { snapshot, .. }) = &worker.copy else {
                return Err(self.broken(format!("worker {id} computes without a copy")));
            };
            self.judge.computes(id, clock, snapshot).map_err(|what| self.broken(what))?;
            if let Some(transit) = &mut self.judge.transit {
                transit.computes(id, clock, worker.credited).map_err(|what| self.broken(what))?;
            }
            self.record.report.staleness.add(snapshot.smallest_clock as i64 - 1 - clock as i64);
            self.record.note(6, snapshot.version, clock);
        }
        let worker = &mut self.workers[id];
        let drawn: f64 = (0..self.local_steps).map(|_| worker.sampler.draw(&self.cluster.compute)).sum();
        worker.attempt += 1;
        worker.refreshes = 0;
        worker.computing = Some(now);
        let event = AgendaEvent::Computed { worker: id as u32, attempt: worker.attempt };
        // However short, it takes time: else it might be repeated for ever at one instant.
        self.agenda.put(now.saturating_add(nanos(drawn * worker.factor).max(1)), event);
        Ok(())
    }

    pub(super) fn computed(&mut self, id: usize, attempt: u64) -> Result<(), SimError> {
        let now = self.agenda.now();
        let worker = &mut self.workers[id];
        if worker.attempt != attempt {
            return Ok(());
        }
        let Some(since) = worker.computing.take() else { return Ok(()) }; // Abandoned.
        worker.computed_nanos += now - since;
        let gradient = self.gradient(id);
        self.workers[id].finished = Some(gradient);
        self.publish(id)
    }

    /// Computes the gradient of a worker.
    fn gradient(&mut self, id: usize) -> Outstanding {
        let worker = &self.workers[id];
        let clock = worker.clock;
        let base = worker.copy.as_ref().map_or(0, |copy| copy.snapshot.version);
        let mut gradient = Outstanding { clock, base, loss: None, magnitude: None, payload: None };
        let view = self.view(id);
        let Some(problem) = &mut self.problem else { return gradient };
        let mut sum = vec![0.0; view.len()];
        if self.local_steps == 1 {
            gradient.loss = Some(problem.gradient(id, clock, &view, &mut sum));
        } else {
            let rate = self.cluster.learning_rate;
            let mut local = view.to_vec();
            let mut losses = 0.0;
            for step in 0..u64::from(self.local_steps) {
                losses += problem.gradient(id, clock * u64::from(self.local_steps) + step, &local, &mut sum);
                local.iter_mut().zip(&sum).for_each(|(local, gradient)| *local -= rate * gradient);
            }
            gradient.loss = Some(losses / f32::from(self.local_steps));
            for ((sum, base), local) in sum.iter_mut().zip(view.iter()).zip(&local) {
                *sum = (base - local) / rate;
            }
        }
        if self.cluster.scheme.needs().measures_magnitude {
            gradient.magnitude = Some(sum.iter().fold(0.0, |most, element| most.max(element.abs())));
        }
        gradient.payload = Some(payload(&sum));
        gradient
    }

    /// The parameters that a worker computes on: its copy, with its own updates since, as the server will apply them.
    fn view(&self, id: usize) -> Rc<[f32]> {
        let worker = &self.workers[id];
        if let Some(own) = self.peers.as_ref().and_then(|peers| peers.model_values(id)) {
            return own.into();
        }
        let Some(copy) = &worker.copy else { return Rc::from([]) };
        if worker.own.is_empty() {
            return Rc::clone(&copy.snapshot.values);
        }
        let mut view = copy.snapshot.values.to_vec();
        let weight = if self.cluster.additive { 1.0 } else { 1.0 / self.server.members as f32 };
        let rate = self.cluster.learning_rate;
        for (_, own) in &worker.own {
            view.iter_mut().zip(values(own)).for_each(|(view, own)| *view -= rate * (weight * own));
        }
        view.into()
    }

    /// Publishes a finished gradient, if there is a free slot.
    fn publish(&mut self, id: usize) -> Result<(), SimError> {
        let worker = &mut self.workers[id];
        if self.peers.is_none() && worker.clock - worker.credited >= self.slots {
            return Ok(());
        }
        let Some(gradient) = worker.finished.take() else { return Ok(()) };
        if self.peers.is_some() {
            self.step_locally(id, gradient.payload)?;
            return self.published(id, gradient.magnitude);
        }
        if self.cluster.read_my_writes {
            worker.own.extend(gradient.payload.clone().map(|payload| (gradient.clock, payload)));
        }
        let (clock, magnitude) = (gradient.clock, gradient.magnitude);
        if let Some(transit) = &mut self.judge.transit {
            transit.published(id, clock, magnitude, 1.0 / self.server.members as f64);
        }
        self.server.accounts[id].gradients.push_back(gradient);
        self.send_up(id, self.bytes, Up::Gradient { clock });
        self.published(id, magnitude)
    }

    fn published(&mut self, id: usize, magnitude: Option<f32>) -> Result<(), SimError> {
        let worker = &mut self.workers[id];
        worker.clock += 1;
        worker.published += 1;
        let clock = Clock::new(worker.clock);
        self.record.report.gradients += 1;
        self.record.published.advance(WorkerId(id as u32), clock);
        self.tell_worker(id, WorkerEvent::Published { magnitude })
    }

    /// A message is at a worker.
    pub(super) fn receive_down(
        &mut self,
        id: usize,
        incarnation: u32,
        message: Down,
    ) -> Result<(), SimError> {
        let now = self.agenda.now();
        let worker = &mut self.workers[id];
        if !worker.is_in || worker.incarnation != incarnation {
            return Ok(());
        }
        match message {
            Down::Copy { number, copy } => {
                if worker.asked.is_none() || worker.number != number {
                    self.record.report.counts.replayed += 1;
                    return Ok(());
                }
                self.record.report.counts.downloads += 1;
                self.record.report.counts.carry(1, self.bytes);
                self.take(id, copy)?;
                self.drive_worker(id)
            }
            Down::Pushed { copy } => {
                let order = |held: &Held| (held.snapshot.version, held.snapshot.smallest_clock);
                if worker.pushed.as_ref().is_some_and(|old| order(old) >= order(&copy)) {
                    self.record.report.counts.replayed += 1;
                    return Ok(());
                }
                worker.pushed = Some(copy);
                let counts = &mut self.record.report.counts;
                (counts.downloads, counts.pushed) = (counts.downloads + 1, counts.pushed + 1);
                counts.carry(1, self.bytes);
                self.pushed(id);
                self.drive_worker(id)
            }
            Down::Consumed { clock } => {
                if clock <= worker.credited {
                    self.record.report.counts.replayed += 1;
                    return Ok(());
                }
                worker.credited = clock;
                self.tell_worker(id, WorkerEvent::Consumed { clock: Clock::new(clock) })?;
                self.publish(id)
            }
            Down::Interrupt { version } => {
                let computes = worker.computing.is_some() || worker.finished.is_some();
                if !computes || worker.copy.as_ref().is_some_and(|copy| copy.snapshot.version >= version) {
                    return Ok(()); // Overtaken.
                }
                worker.wasted_nanos += worker.computing.take().map_or(0, |since| now - since);
                worker.finished = None;
                self.record.report.counts.interrupted += 1;
                self.record.note(7, id as u64, version);
                self.tell_worker(id, WorkerEvent::Interrupted)
            }
        }
    }
}
