//! Schemes that the library does not have, in as few lines as show that its interface carries them.

use std::collections::VecDeque;

use slackline::clock::{Clock, ClockTable, Version, WorkerId};
use slackline::scheme::{
    Bound, GradientId, ServerAction, ServerEvent, ServerScheme, Share, WorkerAction, WorkerEvent,
    WorkerScheme,
};
use slackline::time::Instant;

/// Bounded asynchronous parallel: whole clocks in order, over a fixed set of workers.
pub(crate) struct BapServer {
    next: Vec<u64>,
    version: u64,
    folding: bool,
}

impl BapServer {
    pub(crate) fn new(workers: usize) -> BapServer {
        BapServer { next: vec![0; workers], version: 0, folding: false }
    }
}

impl ServerScheme for BapServer {
    fn handle_event(&mut self, _now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Arrived { gradient, .. } => self.next[usize::from(gradient.worker.0)] += 1,
            ServerEvent::Applied { version, .. } => {
                self.version = version.0;
                self.folding = false;
            }
            _ => {}
        }
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if self.folding || self.next.iter().any(|next| *next <= self.version) {
            return None;
        }
        self.folding = true;
        fill(shares, (0..self.next.len()).map(|worker| id(worker, self.version)).collect());
        Some(ServerAction::Apply)
    }

    fn smallest_clock(&self) -> Clock {
        Clock(self.version)
    }
}

/// The first `k` of each version; with `cap`, the first `k` that are at most so many versions behind.
///
/// `cap` 0 is static backup workers, push and interrupt; no cap is K-async; in between lies bounded staleness with
/// forced restarts.
pub(crate) struct FirstK {
    k: usize,
    cap: u64,
    folded: ClockTable,
    version: u64,
    /// A lower bound on the version each worker computes on.
    bases: Vec<u64>,
    admitted: Vec<(GradientId, u64)>,
    taken: Vec<GradientId>,
    actions: VecDeque<ServerAction>,
}

impl FirstK {
    pub(crate) fn new(workers: usize, k: usize, cap: u64) -> FirstK {
        FirstK {
            k,
            cap,
            folded: ClockTable::default(),
            version: 0,
            bases: vec![0; workers],
            admitted: Vec::new(),
            taken: Vec::new(),
            actions: VecDeque::new(),
        }
    }

    fn drop_one(&mut self, gradient: GradientId) {
        self.folded.advance(gradient.worker, gradient.clock.next());
        self.actions.push_back(ServerAction::Drop { gradient });
        self.bases[usize::from(gradient.worker.0)] = self.version;
    }
}

impl ServerScheme for FirstK {
    fn handle_event(&mut self, _now: Instant, event: ServerEvent) {
        match event {
            ServerEvent::Joined { worker, .. } => {
                self.folded.join(worker);
            }
            ServerEvent::Arrived { gradient, base, .. } => {
                if self.version - base.0 > self.cap {
                    self.drop_one(gradient);
                } else {
                    self.admitted.push((gradient, base.0));
                }
            }
            ServerEvent::Applied { version, .. } => {
                self.version = version.0;
                for gradient in std::mem::take(&mut self.taken) {
                    self.folded.advance(gradient.worker, gradient.clock.next());
                    self.bases[usize::from(gradient.worker.0)] = self.version;
                }
                let stale = |base: u64| version.0 - base > self.cap;
                let late: Vec<_> =
                    self.admitted.iter().filter(|(_, base)| stale(*base)).map(|(late, _)| *late).collect();
                self.admitted.retain(|(_, base)| version.0 - base <= self.cap);
                late.into_iter().for_each(|gradient| self.drop_one(gradient));
                for (worker, base) in (0u16..).zip(&mut self.bases) {
                    let waits = self.admitted.iter().any(|(gradient, _)| gradient.worker.0 == worker);
                    if !waits && version.0 - *base > self.cap {
                        *base = version.0;
                        self.actions.push_back(ServerAction::Interrupt { worker: WorkerId(worker) });
                    }
                }
            }
            _ => {}
        }
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        if !self.taken.is_empty() || self.admitted.len() < self.k {
            return None;
        }
        self.taken = self.admitted.drain(..self.k).map(|(gradient, _)| gradient).collect();
        self.taken.sort_unstable();
        fill(shares, self.taken.clone());
        Some(ServerAction::Apply)
    }

    fn smallest_clock(&self) -> Clock {
        self.folded.smallest()
    }
}

fn id(worker: usize, clock: u64) -> GradientId {
    GradientId { worker: WorkerId(worker as u16), clock: Clock(clock) }
}

fn fill(shares: &mut Vec<Share>, gradients: Vec<GradientId>) {
    let weight = 1.0 / gradients.len() as f32;
    shares.clear();
    shares.extend(gradients.into_iter().map(|gradient| Share { gradient, weight }));
}

/// When a sketched worker goes on.
#[derive(Clone, Copy)]
pub(crate) enum Rule {
    /// On a version at most so many behind its clock.
    Behind(u64),
    /// On a version after the one it has used.
    NextVersion,
    /// Once the server has consumed what it published.
    OwnConsumed,
}

pub(crate) struct Sketch {
    rule: Rule,
    clock: Clock,
    version: Option<Version>,
    consumed: Clock,
    action: Option<WorkerAction>,
    waits: bool,
}

impl Sketch {
    pub(crate) fn new(rule: Rule) -> Sketch {
        Sketch { rule, clock: Clock(0), version: None, consumed: Clock(0), action: None, waits: false }
    }

    fn begin(&mut self) {
        let bound = match self.rule {
            Rule::Behind(s) => Bound::version(Version(self.clock.0.saturating_sub(s))),
            Rule::NextVersion => self.version.map_or(Bound::NONE, |used| Bound::version(used.next())),
            Rule::OwnConsumed => {
                self.waits = self.consumed < self.clock;
                if self.waits {
                    return;
                }
                Bound::NONE
            }
        };
        self.action = Some(WorkerAction::Refresh { bound });
    }
}

impl WorkerScheme for Sketch {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => {
                (self.clock, self.consumed) = (clock, clock);
                self.begin();
            }
            WorkerEvent::Holds { version, .. } => {
                self.version = Some(version);
                self.action = Some(WorkerAction::Compute);
            }
            WorkerEvent::Published { .. } => {
                self.clock = self.clock.next();
                self.begin();
            }
            WorkerEvent::Interrupted => self.begin(),
            WorkerEvent::Consumed { clock } => {
                self.consumed = clock;
                if self.waits {
                    self.begin();
                }
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        self.action.take()
    }
}

/// DS-Sync: a local step, then an average over the group of the round. No server.
#[derive(Default)]
pub(crate) struct DsSync {
    round: u64,
    action: Option<WorkerAction>,
}

impl DsSync {
    /// The members of `rank`'s group in `round`, of `base^digits` workers: all digits equal but the round's.
    pub(crate) fn group(rank: usize, round: u64, base: usize, digits: u32) -> Vec<usize> {
        let place = base.pow((round % u64::from(digits)) as u32);
        let first = rank - rank / place % base * place;
        (0..base).map(|digit| first + digit * place).collect()
    }
}

impl WorkerScheme for DsSync {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => {
                self.round = clock.0;
                self.action = Some(WorkerAction::Compute);
            }
            WorkerEvent::Published { .. } => self.action = Some(WorkerAction::Average { round: self.round }),
            WorkerEvent::Averaged { round } if round == self.round => {
                self.round += 1;
                self.action = Some(WorkerAction::Compute);
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        self.action.take()
    }
}
