//! A whole job in virtual time, and the judge beside it: any scheme's two halves, a server that is only numbers,
//! workers with random compute times that come and go. Everything follows from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use slackline::clock::{Clock, Version, WorkerId};
use slackline::scheme::{
    Bound, Choice, Config, GradientId, ServerAction, ServerEvent, ServerScheme, Share, Shrink, Statistics,
    Strength, WaitFor, WorkerAction, WorkerEvent, WorkerScheme,
};
use slackline::sim::Random;
use slackline::time::Instant;

/// One second of virtual time; computing takes about that.
pub(crate) const SECOND: u64 = 1_000_000_000;

/// How long computing takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compute {
    /// Exponential, mean one second.
    Exponential,
    /// Uniform around one second.
    Uniform { width: f64 },
    /// Uniform, and one worker three times as slow.
    Straggler { width: f64 },
}

impl Compute {
    fn nanos(self, random: &mut Random, worker: usize) -> u64 {
        let unit = random.unit();
        let seconds = match self {
            Compute::Exponential => -(1.0 - unit).ln(),
            Compute::Uniform { width } => 1.0 + width * (unit - 0.5),
            Compute::Straggler { width } => {
                (1.0 + width * (unit - 0.5)) * if worker == 1 { 3.0 } else { 1.0 }
            }
        };
        (seconds * SECOND as f64) as u64
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// Every worker that is in has completed so many clocks, and all it published has been consumed.
    Clocks(u64),
    /// The server has made so many versions.
    Versions(u64),
}

/// What to run.
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) server: Box<dyn ServerScheme>,
    pub(crate) worker: Box<dyn Fn() -> Box<dyn WorkerScheme>>,
    pub(crate) slots: usize,
    pub(crate) pushes: bool,
    pub(crate) until: Until,
    pub(crate) compute: Compute,
    pub(crate) fold_nanos: u64,
    pub(crate) latency_nanos: u64,
    /// Workers join at random times, some leave, some of these come back, and some come late.
    pub(crate) churn: bool,
    pub(crate) trace: bool,
    /// A gradient of clock `c` may be computed only on a copy whose smallest clock is at least `c - bound`.
    pub(crate) clock_bound: Option<u64>,
    /// A gradient may be folded only into one of the next so many versions after the one it was computed on.
    pub(crate) lag_bound: Option<u64>,
    /// That bound is for updates of so many, and falls in proportion, rounded up, as they grow.
    pub(crate) shrinks_from: Option<u16>,
    /// An update is made of exactly so many gradients, or of as many as there are workers.
    pub(crate) exactly: Option<usize>,
    /// What is in transit may be so large in clock 0.
    pub(crate) value_bound: Option<f32>,
    /// The bound holds for everybody's gradients that somebody has not seen, not only for a worker's own.
    pub(crate) strong: bool,
    /// Largest magnitudes of gradients are drawn from 1 to this.
    pub(crate) magnitude: Option<f32>,
    /// The server is told who has seen what.
    pub(crate) reports_reads: bool,
    /// Gradients of one worker may be folded in another order than theirs, and an update may be made of none.
    pub(crate) overtakes: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64, workers: usize, server: Box<dyn ServerScheme>) -> Plan {
        Plan {
            seed,
            workers,
            server,
            worker: Box::new(|| Config::Asp.worker()),
            slots: 2,
            pushes: false,
            until: Until::Clocks(10),
            compute: Compute::Exponential,
            fold_nanos: 0,
            latency_nanos: 0,
            churn: false,
            trace: false,
            clock_bound: None,
            lag_bound: None,
            shrinks_from: None,
            exactly: None,
            value_bound: None,
            strong: false,
            magnitude: None,
            reports_reads: false,
            overtakes: false,
        }
    }

    pub(crate) fn of(config: Config, seed: u64, workers: usize) -> Plan {
        Plan {
            worker: Box::new(move || config.worker()),
            slots: usize::from(config.slots()),
            pushes: config.pushes(),
            clock_bound: config.staleness(),
            lag_bound: match config {
                Config::Dbw { .. } => Some(0),
                Config::Abs { staleness, .. } => staleness,
                Config::Delay { staleness, .. } => Some(staleness),
                _ => None,
            },
            shrinks_from: match config {
                Config::Abs { wait_for, shrink: Shrink::WithK, .. } => Some(wait_for.k()),
                _ => None,
            },
            exactly: match config {
                Config::Dbw { choice: Choice::Static { k }, .. } => Some(usize::from(k)),
                Config::Abs { wait_for: WaitFor::Fixed(k), .. } => Some(usize::from(k)),
                _ => None,
            },
            value_bound: match config {
                Config::Vap { bound, .. } => Some(bound),
                _ => None,
            },
            strong: matches!(config, Config::Vap { strength: Strength::Strong, .. }),
            magnitude: config.measures_magnitude().then_some(1.0),
            reports_reads: config.reports_reads(),
            overtakes: matches!(config, Config::Delay { .. }),
            ..Plan::new(seed, workers, config.server(workers).unwrap())
        }
    }

    /// Runs it to its end, or says what went wrong.
    pub(crate) fn run(self) -> Result<Report, String> {
        let seed = self.seed;
        Job::new(self).run().map_err(|what| format!("seed {seed}: {what}"))
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Report {
    pub(crate) end_nanos: u64,
    pub(crate) versions: u64,
    /// How often a gradient was computed on a copy so many clocks behind.
    pub(crate) staleness: Vec<u64>,
    /// How often a gradient was folded so many versions after the one it was computed on.
    pub(crate) lag: Vec<u64>,
    pub(crate) interrupted: u64,
    pub(crate) dropped: u64,
    pub(crate) trace: Vec<(u64, &'static str, usize, u64)>,
}

pub(crate) fn mean(histogram: &[u64]) -> f64 {
    let sum: f64 = histogram.iter().zip(0u32..).map(|(count, at)| *count as f64 * f64::from(at)).sum();
    sum / histogram.iter().sum::<u64>() as f64
}

/// Of a clock, with room for rounding.
fn value_bound(bound: f32, clock: u64) -> f64 {
    f64::from(bound) / (clock as f64 + 1.0).sqrt() * (1.0 + 1e-6)
}

fn count(histogram: &mut Vec<u64>, at: u64) {
    let at = usize::try_from(at).unwrap();
    if histogram.len() <= at {
        histogram.resize(at + 1, 0);
    }
    histogram[at] += 1;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Join { worker: usize },
    Leave { worker: usize },
    Computed { worker: usize, attempt: u64 },
    Arrive { worker: usize, life: u64, clock: u64 },
    Consumed { worker: usize, life: u64 },
    Interrupt { worker: usize, life: u64, version: u64 },
    Folded,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Copy {
    version: u64,
    smallest_clock: u64,
}

struct Outstanding {
    clock: u64,
    base: u64,
    magnitude: f32,
    arrived: bool,
}

struct Worker {
    scheme: Box<dyn WorkerScheme>,
    life: u64,
    is_in: bool,
    clock: u64,
    /// The first clock that it has not seen consumed.
    consumed: u64,
    copy: Option<Copy>,
    /// The newest version that the server knows it to hold.
    seen: u64,
    last_magnitude: f32,
    pushed: Option<Copy>,
    asked: Option<Bound>,
    computing: Option<u64>,
    /// Done computing, without a free slot.
    waits_for_slot: bool,
    finished: bool,
    slots: VecDeque<Outstanding>,
}

impl Worker {
    /// One that is not in.
    fn new(scheme: Box<dyn WorkerScheme>) -> Worker {
        Worker {
            scheme,
            life: 0,
            is_in: false,
            clock: 0,
            consumed: 0,
            copy: None,
            seen: 0,
            last_magnitude: 0.0,
            pushed: None,
            asked: None,
            computing: None,
            waits_for_slot: false,
            finished: false,
            slots: VecDeque::new(),
        }
    }
}

struct Folding {
    shares: Vec<(Share, u64)>,
}

struct Job {
    plan: Plan,
    random: Random,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    workers: Vec<Worker>,
    /// What can be pulled.
    frame: Copy,
    folding: Option<Folding>,
    attempts: u64,
    /// Versions and the weighted magnitudes that went into them, as long as somebody has not seen them.
    unseen: Vec<(u64, f64)>,
    shares: Vec<Share>,
    report: Report,
}

impl Job {
    fn new(plan: Plan) -> Job {
        let random = Random::new(plan.seed);
        let rooms = plan.workers + if plan.churn { 2 } else { 0 };
        let workers = (0..rooms).map(|_| Worker::new((plan.worker)())).collect();
        let mut job = Job {
            random,
            plan,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            workers,
            frame: Copy { version: 0, smallest_clock: 0 },
            folding: None,
            attempts: 0,
            unseen: Vec::new(),
            shares: Vec::new(),
            report: Report::default(),
        };
        job.cast();
        job
    }

    /// Decides who comes and goes when. Worker 0 stays to the end.
    fn cast(&mut self) {
        for worker in 0..self.workers.len() {
            if !self.plan.churn {
                self.at(0, Event::Join { worker });
                continue;
            }
            let mut when = self.random.below(2 * SECOND);
            if worker >= self.plan.workers {
                when += self.random.below(20 * SECOND);
            }
            self.at(when, Event::Join { worker });
            while worker > 0 && self.random.below(2) == 0 {
                when += self.random.below(8 * SECOND);
                self.at(when, Event::Leave { worker });
                if self.random.below(3) == 0 {
                    break;
                }
                when += self.random.below(3 * SECOND);
                self.at(when, Event::Join { worker });
            }
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((when, self.order, event)));
    }

    fn note(&mut self, what: &'static str, worker: usize, value: u64) {
        if self.plan.trace {
            self.report.trace.push((self.now, what, worker, value));
        }
    }

    fn run(mut self) -> Result<Report, String> {
        while let Some(Reverse((when, _, event))) = self.events.pop() {
            self.now = when;
            self.step(event)?;
            for worker in 0..self.workers.len() {
                self.wake(worker)?;
            }
            if matches!(self.plan.until, Until::Versions(enough) if self.frame.version >= enough) {
                break;
            }
        }
        self.report.end_nanos = self.now;
        self.report.versions = self.frame.version;
        match self.plan.until {
            Until::Versions(enough) if self.frame.version < enough => {
                return Err(format!("stuck at version {}", self.frame.version));
            }
            Until::Versions(_) => {}
            Until::Clocks(enough) => {
                for (id, worker) in self.workers.iter().enumerate().filter(|(_, worker)| worker.is_in) {
                    if !worker.finished {
                        return Err(format!(
                            "worker {id} stuck at clock {} of {enough}, asking {:?}",
                            worker.clock, worker.asked
                        ));
                    }
                    if let Some(left) = worker.slots.front() {
                        return Err(format!("gradient {} of worker {id} was never consumed", left.clock));
                    }
                }
            }
        }
        Ok(self.report)
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Join { worker } => self.join(worker),
            Event::Leave { worker } => self.leave(worker),
            Event::Computed { worker, attempt } => {
                if self.workers[worker].computing == Some(attempt) {
                    self.publish(worker)?;
                }
                Ok(())
            }
            Event::Arrive { worker, life, clock } => {
                let member = &mut self.workers[worker];
                if !member.is_in || member.life != life {
                    return Ok(());
                }
                let slot = member.slots.iter_mut().find(|slot| slot.clock == clock).unwrap();
                slot.arrived = true;
                let base = Version(slot.base);
                let magnitude = self.plan.magnitude.map(|_| slot.magnitude);
                member.seen = member.seen.max(base.0);
                let gradient = GradientId { worker: WorkerId(worker as u16), clock: Clock(clock) };
                self.tell_server(ServerEvent::Arrived { gradient, base, loss: None, magnitude })
            }
            Event::Consumed { worker, life } => {
                if !self.workers[worker].is_in || self.workers[worker].life != life {
                    return Ok(());
                }
                let clock = Clock(self.workers[worker].consumed);
                self.tell_worker(worker, WorkerEvent::Consumed { clock })?;
                if self.workers[worker].waits_for_slot {
                    self.publish(worker)?;
                }
                Ok(())
            }
            Event::Interrupt { worker, life, version } => {
                let member = &mut self.workers[worker];
                if !member.is_in
                    || member.life != life
                    || member.computing.is_none()
                    || member.copy.is_some_and(|copy| copy.version >= version)
                {
                    return Ok(()); // Overtaken.
                }
                member.computing = None;
                member.waits_for_slot = false;
                self.report.interrupted += 1;
                self.tell_worker(worker, WorkerEvent::Interrupted)
            }
            Event::Folded => self.folded(),
        }
    }

    fn join(&mut self, id: usize) -> Result<(), String> {
        let clock = self.plan.server.smallest_clock();
        let worker = &mut self.workers[id];
        if worker.is_in {
            return Ok(());
        }
        *worker = Worker {
            life: worker.life + 1,
            is_in: true,
            clock: clock.0,
            consumed: clock.0 + u64::from(self.folding.is_some()), // A round under way may close without it.
            seen: self.frame.version,
            ..Worker::new((self.plan.worker)())
        };
        self.note("join", id, clock.0);
        self.tell_server(ServerEvent::Joined { worker: WorkerId(id as u16), clock })?;
        self.tell_worker(id, WorkerEvent::Joined { clock })?;
        self.tell_worker(id, WorkerEvent::Membership { workers: self.plan.workers })
    }

    fn leave(&mut self, id: usize) -> Result<(), String> {
        if !self.workers[id].is_in {
            return Ok(());
        }
        self.workers[id].is_in = false;
        self.workers[id].asked = None;
        self.workers[id].computing = None;
        self.workers[id].slots.clear();
        self.note("leave", id, 0);
        self.tell_server(ServerEvent::Left { worker: WorkerId(id as u16) })
    }

    fn publish(&mut self, id: usize) -> Result<(), String> {
        let worker = &mut self.workers[id];
        if worker.slots.len() >= self.plan.slots {
            worker.waits_for_slot = true;
            return Ok(());
        }
        worker.waits_for_slot = false;
        worker.computing = None;
        let spread = self.plan.magnitude.map(|most| 1.0 + (most - 1.0) * self.random.unit() as f32);
        let magnitude = spread.unwrap_or_default();
        worker.last_magnitude = magnitude;
        let (clock, life, base) = (worker.clock, worker.life, worker.copy.unwrap().version);
        worker.slots.push_back(Outstanding { clock, base, magnitude, arrived: false });
        worker.clock += 1;
        self.at(self.now + self.plan.latency_nanos, Event::Arrive { worker: id, life, clock });
        self.tell_worker(id, WorkerEvent::Published { magnitude: spread })
    }

    fn folded(&mut self) -> Result<(), String> {
        let folding = self.folding.take().unwrap();
        let shrunk = |bound: u64| match self.plan.shrinks_from {
            Some(k) => (bound * u64::from(k)).div_ceil(folding.shares.len() as u64).min(bound),
            None => bound,
        };
        let lag_bound = self.plan.lag_bound.map(shrunk);
        for (share, life) in folding.shares {
            let gradient = share.gradient;
            if let Some(base) = self.consume(gradient, life)? {
                let lag = self.frame.version - base;
                if lag_bound.is_some_and(|bound| lag > bound) {
                    return Err(format!("{gradient:?} was folded {lag} versions late"));
                }
                count(&mut self.report.lag, lag);
            }
            self.note("fold", usize::from(gradient.worker.0), gradient.clock.0);
        }
        self.frame.version += 1;
        let version = Version(self.frame.version);
        // A loss that falls, with a gradient that shrinks under noise that does not.
        let loss = 1.0 / (1.0 + self.frame.version as f64 / 10.0);
        let statistics = Statistics {
            mean_norm_squared: Some(loss * loss + 0.1),
            variance: Some(1.0),
            loss: Some(loss),
            learning_rate: Some(0.1),
        };
        self.tell_server(ServerEvent::Applied { version, statistics })
    }

    /// Frees the gradient's slot and returns the version it was computed on; `None` if its worker has left.
    fn consume(&mut self, gradient: GradientId, life: u64) -> Result<Option<u64>, String> {
        let id = usize::from(gradient.worker.0);
        let worker = &mut self.workers[id];
        if !worker.is_in || worker.life != life {
            return Ok(None);
        }
        let place = worker.slots.iter().position(|slot| slot.clock == gradient.clock.0 && slot.arrived);
        match place.filter(|place| *place == 0 || self.plan.overtakes) {
            Some(place) => {
                let slot = worker.slots.remove(place).unwrap();
                let first = worker.slots.front().map_or(worker.clock, |first| first.clock);
                worker.consumed = worker.consumed.max(first);
                self.at(self.now, Event::Consumed { worker: id, life });
                Ok(Some(slot.base))
            }
            _ => Err(format!("{gradient:?} consumed twice, out of order or before it came")),
        }
    }

    fn tell_server(&mut self, event: ServerEvent) -> Result<(), String> {
        self.plan.server.handle_event(Instant::from_nanos(self.now), event);
        self.judge_server()?;
        while self.folding.is_none() {
            let Some(action) = self.plan.server.poll_action(&mut self.shares) else { break };
            match action {
                ServerAction::Expect => self.judge_shares(false)?,
                ServerAction::Apply => {
                    self.judge_shares(true)?;
                    self.judge_update()?;
                    let life_of = |share: &Share| self.workers[usize::from(share.gradient.worker.0)].life;
                    let shares = self.shares.iter().map(|share| (*share, life_of(share))).collect();
                    self.folding = Some(Folding { shares });
                    self.at(self.now + self.plan.fold_nanos, Event::Folded);
                }
                ServerAction::Drop { gradient } => {
                    let life = self.workers[usize::from(gradient.worker.0)].life;
                    if self.consume(gradient, life)?.is_none() {
                        return Err(format!("{gradient:?} dropped after its worker left"));
                    }
                    self.report.dropped += 1;
                    self.note("drop", usize::from(gradient.worker.0), gradient.clock.0);
                }
                ServerAction::Interrupt { worker } => {
                    let (worker, version) = (usize::from(worker.0), self.frame.version);
                    let life = self.workers[worker].life;
                    self.at(self.now, Event::Interrupt { worker, life, version });
                }
                ServerAction::Push => {
                    let frame = self.frame;
                    for worker in self.workers.iter_mut().filter(|worker| worker.is_in) {
                        worker.pushed = Some(frame);
                    }
                    self.note("push", 0, frame.smallest_clock);
                }
                _ => return Err(format!("unknown action {action:?}")),
            }
            self.judge_server()?;
        }
        Ok(())
    }

    fn judge_server(&mut self) -> Result<(), String> {
        let smallest = self.plan.server.smallest_clock().0;
        if smallest < self.frame.smallest_clock {
            return Err(format!(
                "smallest clock moved back from {} to {smallest}",
                self.frame.smallest_clock
            ));
        }
        self.frame.smallest_clock = smallest;
        for (id, worker) in self.workers.iter().enumerate().filter(|(_, worker)| worker.is_in) {
            if smallest > worker.consumed {
                return Err(format!(
                    "smallest clock {smallest}, but worker {id} is consumed up to {}",
                    worker.consumed
                ));
            }
        }
        Ok(())
    }

    fn judge_shares(&self, arrived: bool) -> Result<(), String> {
        let key = |share: &Share| (share.gradient.worker, share.gradient.clock);
        if (self.shares.is_empty() && !self.plan.overtakes)
            || !self.shares.is_sorted_by(|a, b| key(a) < key(b))
        {
            return Err(format!("shares are empty, out of order or double: {:?}", self.shares));
        }
        for share in &self.shares {
            let worker = &self.workers[usize::from(share.gradient.worker.0)];
            let depth = if self.plan.overtakes { worker.slots.len() } else { 1 };
            let is = |slot: &Outstanding| slot.arrived && slot.clock == share.gradient.clock.0;
            let here = worker.slots.iter().take(depth).any(is);
            if !worker.is_in || (arrived && !here) {
                return Err(format!("{:?} handed out, and it is not there", share.gradient));
            }
        }
        Ok(())
    }

    /// What only some schemes promise of an update.
    fn judge_update(&mut self) -> Result<(), String> {
        let present = self.workers.iter().filter(|worker| worker.is_in).count();
        if let Some(k) = self.plan.exactly
            && self.shares.len() != k.min(present)
        {
            return Err(format!("{} gradients of {present} workers in one update", self.shares.len()));
        }
        if let (true, Some(bound)) = (self.plan.strong, self.plan.value_bound) {
            let members = self.workers.iter().filter(|worker| worker.is_in);
            let seen = members.map(|worker| worker.seen).min().unwrap_or(u64::MAX);
            self.unseen.retain(|(version, _)| *version > seen);
            let share = self.shares[0];
            let worker = &self.workers[usize::from(share.gradient.worker.0)];
            let magnitude = f64::from(worker.slots[0].magnitude * share.weight);
            let sum = self.unseen.iter().map(|(_, magnitude)| magnitude).sum::<f64>() + magnitude;
            if !self.unseen.is_empty() && sum > value_bound(bound, share.gradient.clock.0) {
                return Err(format!("{sum} is in transit to somebody after {:?}", share.gradient));
            }
            self.unseen.push((self.frame.version + 1, magnitude));
        }
        Ok(())
    }

    fn tell_worker(&mut self, id: usize, event: WorkerEvent) -> Result<(), String> {
        self.workers[id].scheme.handle_event(Instant::from_nanos(self.now), event);
        while let Some(action) = self.workers[id].scheme.poll_action() {
            match action {
                WorkerAction::Refresh { bound } => self.workers[id].asked = Some(bound),
                WorkerAction::Compute => self.compute(id)?,
                _ => return Err(format!("unknown action {action:?}")),
            }
        }
        Ok(())
    }

    fn compute(&mut self, id: usize) -> Result<(), String> {
        let worker = &mut self.workers[id];
        if worker.computing.is_some() || worker.asked.is_some() || worker.finished {
            return Err(format!("worker {id} computes before the last answer"));
        }
        let (clock, Some(copy)) = (worker.clock, worker.copy) else {
            return Err(format!("worker {id} computes without a copy"));
        };
        if matches!(self.plan.until, Until::Clocks(enough) if clock >= enough) {
            worker.finished = true;
            return Ok(());
        }
        let behind = clock.saturating_sub(copy.smallest_clock);
        if self.plan.clock_bound.is_some_and(|bound| behind > bound) {
            return Err(format!("worker {id} computes clock {clock} on a copy {behind} clocks behind"));
        }
        if let Some(bound) = self.plan.value_bound {
            let weight = 1.0 / self.plan.workers as f64;
            let own = worker.slots.iter().map(|slot| f64::from(slot.magnitude)).sum::<f64>();
            let sum = (own + f64::from(worker.last_magnitude)) * weight;
            if !worker.slots.is_empty() && sum > value_bound(bound, clock) {
                return Err(format!("worker {id} computes clock {clock} with {sum} of its own in transit"));
            }
        }
        count(&mut self.report.staleness, behind);
        self.attempts += 1;
        worker.computing = Some(self.attempts);
        let nanos = self.plan.compute.nanos(&mut self.random, id);
        self.at(self.now + nanos, Event::Computed { worker: id, attempt: self.attempts });
        self.note("compute", id, clock);
        Ok(())
    }

    /// Hands a worker the copy it asked for, once there is one.
    fn wake(&mut self, id: usize) -> Result<(), String> {
        let worker = &mut self.workers[id];
        let Some(bound) = worker.asked else { return Ok(()) };
        let source = if self.plan.pushes { worker.pushed } else { Some(self.frame) };
        let Some(copy) = source else { return Ok(()) };
        let (version, smallest_clock) = (Version(copy.version), Clock(copy.smallest_clock));
        if !bound.is_met_by(version, smallest_clock) {
            return Ok(());
        }
        if worker
            .copy
            .is_some_and(|old| old.version > copy.version || old.smallest_clock > copy.smallest_clock)
        {
            return Err(format!("worker {id} went back from {:?} to {copy:?}", worker.copy));
        }
        worker.copy = Some(copy);
        worker.asked = None;
        if self.plan.reports_reads {
            worker.seen = worker.seen.max(copy.version);
            self.tell_server(ServerEvent::Seen { worker: WorkerId(id as u16), version })?;
        }
        self.tell_worker(id, WorkerEvent::Holds { version, smallest_clock })
    }
}
