//! The server's part: takes gradients in, folds them, hands copies out.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::agenda::{AgendaEvent, Down, Held, Up};
use super::engine::{ACTIONS_MAX, SimEngine};
use super::model::{Model, ModelSnapshot, Payload};
use super::report::{Point, WaitedFor};
use super::updates::{Updates, moved};
use super::{SimError, Until, nanos, seconds};
use crate::clock::{Clock, Version, WorkerId};
use crate::scheme::{
    Bound, GradientId, ServerAction, ServerEvent, ServerScheme, Share, Statistics, WorkerEvent,
};
use crate::time::Instant;

pub(super) struct SimServer {
    pub(super) scheme: Box<dyn ServerScheme>,
    pub(super) version: u64,
    pub(super) smallest_clock: u64,
    /// The newest version, once a worker has asked for it.
    snapshot: Option<Rc<ModelSnapshot>>,
    /// None on time alone.
    pub(super) model: Option<Model>,
    /// Kept for a scheme that weighs them.
    pub(super) updates: Updates,
    pub(super) accounts: Vec<Account>,
    pub(super) members: usize,
    /// The requests that wait for a smallest clock, and perhaps for a version besides.
    by_clock: BTreeMap<u64, Vec<Waiter>>,
    /// The requests that wait for a version only.
    by_version: BTreeMap<u64, Vec<Waiter>>,
    /// The time at which its scheme is woken next.
    wake: Option<u64>,
    shares: Vec<Share>,
}

/// A request that waits for a version.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    worker: u32,
    incarnation: u32,
    number: u64,
    bound: Bound,
}

/// The server's record of a worker.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) is_in: bool,
    has_joined: bool,
    pub(super) incarnation: u32,
    /// The clock of its next gradient to arrive.
    arrived: u64,
    /// The clock of its next gradient to be consumed.
    consumed: u64,
    /// Gradients that are published and not consumed.
    pub(super) gradients: VecDeque<Outstanding>,
    /// The last request that has come.
    request: u64,
    /// A push is on its way.
    is_pushing: bool,
    wants_push: bool,
    /// Version and smallest clock of the last push.
    shown: Option<(u64, u64)>,
}

/// A gradient between its worker and its fold.
#[derive(Clone, Debug)]
pub(super) struct Outstanding {
    pub(super) clock: u64,
    pub(super) base: u64,
    pub(super) loss: Option<f32>,
    pub(super) magnitude: Option<f32>,
    /// None on time alone.
    pub(super) payload: Option<Payload>,
}

impl SimServer {
    pub(super) fn new(scheme: Box<dyn ServerScheme>, model: Option<Model>, workers: usize) -> SimServer {
        SimServer {
            scheme,
            version: 0,
            smallest_clock: 0,
            snapshot: None,
            model,
            updates: Updates::default(),
            accounts: (0..workers).map(|_| Account::default()).collect(),
            members: 0,
            by_clock: BTreeMap::new(),
            by_version: BTreeMap::new(),
            wake: None,
            shares: Vec::new(),
        }
    }

    fn snapshot(&mut self) -> Rc<ModelSnapshot> {
        let (version, smallest_clock, model) = (self.version, self.smallest_clock, &self.model);
        let values = || model.as_ref().map_or_else(|| Rc::from([]), |model| model.values().into());
        let old = self.snapshot.take();
        let new = match old {
            Some(old) if old.version == version && old.smallest_clock == smallest_clock => old,
            Some(old) if old.version == version => {
                Rc::new(ModelSnapshot { version, smallest_clock, values: Rc::clone(&old.values) })
            }
            _ => Rc::new(ModelSnapshot { version, smallest_clock, values: values() }),
        };
        Rc::clone(self.snapshot.insert(new))
    }

    fn copy_for(&mut self, worker: usize) -> Held {
        Held { snapshot: self.snapshot(), consumed: self.accounts[worker].consumed }
    }
}

impl SimEngine<'_> {
    /// Takes a worker in and returns the clock it begins at.
    pub(super) fn admit(&mut self, worker: usize, incarnation: u32) -> u64 {
        let mut clock = self.server.scheme.smallest_clock().get();
        if let Some(peers) = &mut self.peers {
            let accounts = &self.server.accounts;
            let blank = self.problem.as_ref().map(|problem| {
                let zeros = vec![0.0; problem.parameters()];
                Model::new(&zeros, &self.cluster)
            });
            clock = peers.enter(worker, |other| accounts[other].is_in, blank);
        }
        let account = &mut self.server.accounts[worker];
        let (request, returns) = (account.request, account.has_joined);
        *account = Account {
            is_in: true,
            has_joined: true,
            incarnation,
            arrived: clock,
            consumed: clock,
            request,
            ..Account::default()
        };
        self.server.members += 1;
        self.judge.joined(worker, clock, self.server.version);
        self.server.updates.joined(worker, self.server.version);
        self.wires.connect(worker);
        self.tell_server(ServerEvent::Joined {
            worker: WorkerId(worker as u32),
            clock: Clock::new(clock),
            returns,
        });
        clock
    }

    /// The server learns that a worker is gone.
    pub(super) fn notice(&mut self, worker: usize, incarnation: u32) -> Result<(), SimError> {
        let account = &mut self.server.accounts[worker];
        if !account.is_in || account.incarnation != incarnation {
            return Ok(());
        }
        account.is_in = false;
        account.gradients.clear();
        self.server.members -= 1;
        self.judge.left(worker);
        self.server.updates.left(worker);
        self.record.published.leave(WorkerId(worker as u32));
        if let Some(peers) = &mut self.peers {
            peers.leave(worker);
        }
        self.gather_all()?;
        self.tell_server(ServerEvent::Left { worker: WorkerId(worker as u32) });
        self.drive_server()?;
        self.tell_membership(worker)
    }

    /// Tells all workers but `except` how many workers there are.
    pub(super) fn tell_membership(&mut self, except: usize) -> Result<(), SimError> {
        let workers = self.server.members;
        for other in (0..self.workers.len()).filter(|other| *other != except) {
            if self.workers[other].is_in {
                self.tell_worker(other, WorkerEvent::Membership { workers })?;
            }
        }
        Ok(())
    }

    pub(super) fn tell_server(&mut self, event: ServerEvent) {
        self.server.scheme.handle_event(Instant::from_nanos(self.agenda.now()), event);
    }

    /// A message is at the server.
    pub(super) fn receive_up(
        &mut self,
        worker: usize,
        incarnation: u32,
        message: Up,
    ) -> Result<(), SimError> {
        let account = &mut self.server.accounts[worker];
        if !account.is_in || account.incarnation != incarnation {
            return Ok(());
        }
        match message {
            Up::Gradient { clock } => {
                if clock < account.arrived {
                    self.record.report.counts.replayed += 1;
                    return Ok(());
                }
                account.arrived = clock + 1;
                let gradient = GradientId { worker: WorkerId(worker as u32), clock: Clock::new(clock) };
                let found = account.gradients.iter().find(|gradient| gradient.clock == clock);
                let Some(Outstanding { base, loss, magnitude, .. }) = found.cloned() else { return Ok(()) };
                self.record.report.counts.uploads += 1;
                self.record.report.counts.carry(1, self.bytes);
                self.tell_server(ServerEvent::Arrived {
                    gradient,
                    base: Version::new(base),
                    loss,
                    magnitude,
                });
                self.drive_server()
            }
            Up::Request { number, bound } => {
                if number <= account.request {
                    self.record.report.counts.replayed += 1;
                    return Ok(());
                }
                account.request = number;
                self.answer(Waiter { worker: worker as u32, incarnation, number, bound });
                Ok(())
            }
            Up::Seen { version } => {
                if let Some(transit) = &mut self.judge.transit {
                    transit.saw(worker, version);
                }
                self.server.updates.saw(worker, version);
                let worker = WorkerId(worker as u32);
                self.tell_server(ServerEvent::Seen { worker, version: Version::new(version) });
                self.drive_server()
            }
        }
    }

    /// Sends a copy to a worker that asked, or lets the request wait for its version.
    fn answer(&mut self, waiter: Waiter) {
        let Waiter { worker, incarnation, number, bound } = waiter;
        let server = &mut self.server;
        let account = &server.accounts[worker as usize];
        if !account.is_in || account.incarnation != incarnation || account.request != number {
            return; // Gone, or it has asked for another since.
        }
        if bound.smallest_clock.get() > server.smallest_clock {
            server.by_clock.entry(bound.smallest_clock.get()).or_default().push(waiter);
        } else if bound.version.get() > server.version {
            server.by_version.entry(bound.version.get()).or_default().push(waiter);
        } else {
            let copy = server.copy_for(worker as usize);
            self.send_down(worker as usize, self.bytes, Down::Copy { number, copy });
        }
    }

    /// Answers the requests that need not wait any more.
    fn release(&mut self) {
        loop {
            let server = &mut self.server;
            let by_clock =
                server.by_clock.first_entry().filter(|entry| *entry.key() <= server.smallest_clock);
            let ready = match by_clock {
                Some(entry) => entry.remove(),
                None => {
                    let version = server.version;
                    let Some(entry) = server.by_version.first_entry().filter(|entry| *entry.key() <= version)
                    else {
                        return;
                    };
                    entry.remove()
                }
            };
            ready.into_iter().for_each(|waiter| self.answer(waiter));
        }
    }

    /// Carries out the actions of the server's scheme, until there are no more.
    pub(super) fn drive_server(&mut self) -> Result<(), SimError> {
        let mut shares = std::mem::take(&mut self.server.shares);
        let mut actions = 0;
        while !self.is_over {
            self.look_at_clock()?;
            shares.clear();
            let Some(action) = self.server.scheme.poll_action(&mut shares) else { break };
            match action {
                ServerAction::Expect => {}
                ServerAction::Apply => self.apply(&shares)?,
                ServerAction::Weigh { since } => self.weigh(since.get(), &shares)?,
                ServerAction::Drop { gradient } => {
                    self.judge.drops(gradient).map_err(|what| self.broken(what))?;
                    self.consume(gradient)?;
                    self.record.report.counts.dropped += 1;
                    self.record.note(5, u64::from(gradient.worker.0), gradient.clock.get());
                }
                ServerAction::Interrupt { worker } => {
                    let (worker, version) = (worker.index(), self.server.version);
                    if self.server.accounts.get(worker).is_some_and(|account| account.is_in) {
                        self.send_down(worker, 0, Down::Interrupt { version });
                    }
                }
                ServerAction::Push => (0..self.workers.len()).for_each(|worker| self.push(worker)),
                ServerAction::Fail { reason } => return Err(self.cluster.scheme.failure(reason).into()),
            }
            actions += 1;
            if actions > ACTIONS_MAX {
                let what = format!("the server asks for more than {ACTIONS_MAX} actions at one instant");
                return Err(self.broken(what));
            }
        }
        self.server.shares = shares;
        self.look_at_clock()?;
        self.release();
        if let Some(at) = self.server.scheme.poll_timeout().map(Instant::as_nanos)
            && self.server.wake.is_none_or(|wake| at < wake)
        {
            self.server.wake = Some(at);
            self.agenda.put(at, AgendaEvent::WakeServer);
        }
        Ok(())
    }

    pub(super) fn wake_server(&mut self) -> Result<(), SimError> {
        let now = Instant::from_nanos(self.agenda.now());
        if self.server.wake.is_some_and(|wake| wake <= now.as_nanos()) {
            self.server.wake = None;
        }
        if self.server.scheme.poll_timeout().is_some_and(|at| at <= now) {
            self.server.scheme.handle_timeout(now);
        }
        self.drive_server()
    }

    fn look_at_clock(&mut self) -> Result<(), SimError> {
        let smallest = self.server.scheme.smallest_clock().get();
        self.judge.smallest_clock(smallest).map_err(|what| self.broken(what))?;
        self.server.smallest_clock = smallest;
        Ok(())
    }

    /// Makes a version.
    fn apply(&mut self, shares: &[Share]) -> Result<(), SimError> {
        self.judge.folds(shares, self.server.members).map_err(|what| self.broken(what))?;
        let mut inputs: Vec<(Payload, f32)> = Vec::new();
        let (mut losses, mut measured) = (0.0, 0u32);
        for share in shares {
            let gradient = self.consume(share.gradient)?;
            self.judge
                .adds(share.gradient, gradient.base, self.server.version, shares.len())
                .map_err(|what| self.broken(what))?;
            if let Some(transit) = &mut self.judge.transit {
                let magnitude = gradient.magnitude.map_or(f64::INFINITY, f64::from) * f64::from(share.weight);
                transit
                    .folds(gradient.clock, self.server.version + 1, magnitude)
                    .map_err(|what| self.broken(what))?;
            }
            self.record.report.lag.add((self.server.version - gradient.base) as i64);
            self.record.note(4, u64::from(share.gradient.worker.0), share.gradient.clock.get());
            if let Some(loss) = gradient.loss {
                (losses, measured) = (losses + f64::from(loss), measured + 1);
            }
            inputs.extend(gradient.payload.map(|payload| (payload, share.weight)));
        }
        let version = self.server.version + 1;
        let mut statistics = Statistics {
            loss: (measured > 0).then(|| losses / f64::from(measured)),
            learning_rate: {
                let rate = self.cluster.schedule.rate(self.cluster.learning_rate, version - 1);
                self.cluster.optimizer.step_of_sgd(rate)
            },
            ..Statistics::default()
        };
        let needs = self.cluster.scheme.needs();
        if let Some(model) = &mut self.server.model {
            let before = needs.weighs_updates.then(|| model.values());
            let moments = model
                .fold(version, &inputs, needs.measures_moments)
                .map_err(|source| SimError::Fold { version, source })?;
            (statistics.mean_norm_squared, statistics.variance) = moments.statistics();
            if let Some(before) = before {
                let update = moved(&before, &model.values());
                self.server.updates.made(version, shares, &update);
                self.judge.moves(version, shares, &update).map_err(|what| self.broken(what))?;
            }
        }
        self.server.version = version;
        self.count_gradients(version, shares.len());
        self.tell_server(ServerEvent::Applied { version: Version::new(version), statistics });
        self.look_at_clock()?;
        self.measure(false);
        self.is_over |= matches!(self.cluster.until, Until::Versions(enough) if version >= enough);
        Ok(())
    }

    fn count_gradients(&mut self, version: u64, gradients: usize) {
        let report = &mut self.record.report;
        if report.waited_for.last().is_none_or(|last| last.gradients != gradients) {
            let time = seconds(self.agenda.now());
            report.waited_for.push(WaitedFor { time, version, gradients });
        }
    }

    /// Takes a point of the loss curve, if one is due or it must be.
    pub(super) fn measure(&mut self, must: bool) {
        let now = self.agenda.now();
        let is_taken =
            self.record.report.curve.last().is_some_and(|last| last.version == self.server.version);
        if is_taken || (!must && now < self.record.next_point) {
            return;
        }
        let accounts = &self.server.accounts;
        let mean = self.peers.as_ref().and_then(|peers| peers.mean(|worker| accounts[worker].is_in));
        let disagreement = mean.as_ref().map(|(_, spread)| *spread);
        let served = || self.server.model.as_ref().map(Model::values);
        let Some(parameters) = mean.map(|(mean, _)| mean).or_else(served) else { return };
        let Some(problem) = &mut self.problem else { return };
        let every = nanos(self.cluster.evaluate_every.unwrap_or(self.cluster.compute.typical())).max(1);
        self.record.next_point = (now / every + 1).saturating_mul(every);
        let evaluation = problem.evaluate(&parameters);
        let (version, clock) = (self.server.version, self.server.smallest_clock);
        let point = Point {
            time: seconds(now),
            version,
            clock,
            loss: evaluation.loss,
            accuracy: evaluation.accuracy,
            disagreement,
        };
        self.record.report.curve.push(point);
        if let Until::Loss { target, .. } = self.cluster.until
            && evaluation.loss <= target
            && self.record.report.reached.is_none()
        {
            self.record.report.reached = Some(seconds(now));
            self.is_over = true;
        }
    }

    /// Takes a gradient out of its worker's slot.
    fn consume(&mut self, gradient: GradientId) -> Result<Outstanding, SimError> {
        let worker = gradient.worker.index();
        let account = self.server.accounts.get_mut(worker).filter(|account| account.is_in);
        let taken = account.and_then(|account| {
            let named =
                |next: &Outstanding| next.clock == gradient.clock.get() && next.clock < account.arrived;
            let index = account.gradients.iter().position(named)?;
            let next = account.gradients.remove(index)?;
            let consumed = account.gradients.front().map_or(next.clock + 1, |front| front.clock);
            let before = account.consumed;
            account.consumed = before.max(consumed);
            Some((index, next, before))
        });
        let Some((index, next, before)) = taken else {
            return Err(self.broken(format!("{gradient:?} is consumed twice, or before it came")));
        };
        self.judge.takes(gradient, index).map_err(|what| self.broken(what))?;
        let consumed = self.server.accounts[worker].consumed;
        if consumed > before {
            self.judge.consumed(worker, consumed);
            self.send_down(worker, 0, Down::Consumed { clock: consumed });
        }
        Ok(next)
    }

    /// Pushes the newest version to a worker, now or when the last push has arrived.
    fn push(&mut self, worker: usize) {
        let newest = Some((self.server.version, self.server.smallest_clock));
        let account = &mut self.server.accounts[worker];
        if !account.is_in || account.shown == newest {
            return;
        }
        account.wants_push = account.is_pushing;
        if account.is_pushing {
            return;
        }
        account.is_pushing = true;
        account.shown = newest;
        let copy = self.server.copy_for(worker);
        self.send_down(worker, self.bytes, Down::Pushed { copy });
    }

    /// A push has arrived.
    pub(super) fn pushed(&mut self, worker: usize) {
        let account = &mut self.server.accounts[worker];
        account.is_pushing = false;
        if account.wants_push {
            self.push(worker);
        }
    }
}
