//! The draws of a seed: the job, the hostility of the network, and the faults with their times.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::class::Class;
use super::net::{NetRules, TransportShape};
use super::random::FabricRandom;
use crate::node::DeltaOptions;
use crate::scheme::{AnyScheme, Choice, Delivery, SchemeConfig, Shrink, StepRule, Strength, WaitFor};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// Something breaks, or is repaired. Nodes have the numbers of [`Plan`].
#[derive(Clone, Copy, Debug)]
pub(super) enum PlannedFault {
    /// A node vanishes; its peers hear of it within so many nanoseconds.
    Crash { node: usize, notice_max: u64 },
    /// A node that vanished begins a new incarnation.
    Return { node: usize },
    /// A node does not run for a while.
    Freeze { node: usize, nanos: u64 },
    /// Nothing goes from one node to another for a while; the other way it may.
    Stall { from: usize, to: usize, nanos: u64 },
    /// The connections between two nodes break.
    Cut { one: usize, other: usize },
    /// A peer keeps the newest frame of an owner pinned for a while.
    Pin { node: usize, nanos: u64 },
    /// There are no faults from here on, and all stalled nodes continue.
    Calm,
}

/// The faults that a plan may have.
#[derive(Clone, Copy, Debug)]
pub(super) enum FaultKinds {
    None,
    Only(Class),
    /// All draws of the seed.
    Drawn,
}

impl FaultKinds {
    /// True if a class is among them: so many times out of a thousand where the seed draws.
    fn have(self, class: Class, permille: u64, random: &mut FabricRandom) -> bool {
        match self {
            FaultKinds::None => false,
            FaultKinds::Only(one) => one == class,
            FaultKinds::Drawn => random.permille(permille),
        }
    }
}

/// One run. Its nodes are numbered: servers (or a publisher) first, then workers, then readers, then relays.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scheme: AnyScheme,
    pub(super) servers: usize,
    pub(super) workers: usize,
    pub(super) readers: usize,
    /// Relays of a publisher's versions: the first reads from the publisher, each other one from the one before it or
    /// from the publisher.
    pub(super) relays: usize,
    /// f32 parameters of the whole table.
    pub(super) elements: u64,
    pub(super) frames: u8,
    pub(super) checksums: bool,
    /// The differences that a publisher keeps.
    pub(super) deltas: Option<DeltaOptions>,
    pub(super) lease: Duration,
    /// The number of workers that must have joined before anything is applied: in a server's first incarnation,
    /// and in its later ones.
    pub(super) quorum: [usize; 2],
    /// The clock that all workers are to reach.
    pub(super) goal: u64,
    /// The least and the most time that a gradient takes.
    pub(super) compute: (u64, u64),
    /// The worker that takes several times as long for each.
    pub(super) slow: Option<usize>,
    /// The worker that breaks the protocol. It is not expected to get anywhere, and vanishes in the end.
    pub(super) liar: Option<usize>,
    pub(super) distribution: NetRules,
    /// The faults, in order of time.
    pub(super) faults: Vec<(u64, PlannedFault)>,
    /// A run that has not ended by then does not converge.
    pub(super) limit: u64,
}

/// No run has more workers, so a scheme that waits for more of them is not started.
pub const WORKERS_MAX: usize = 4;

/// The purpose of the plan's stream of random numbers, as opposed to the network's.
const PLAN: u64 = 1;

/// The purpose of the stream for the faults of members and owners, so that a new kind of fault leaves the others
/// unchanged.
const LIES: u64 = 3;

/// The purpose of the stream for the differences between versions.
const DELTAS: u64 = 4;

/// The purpose of the stream for the bytes that copies read at a time.
const BATCHES: u64 = 6;

/// The purpose of the stream for relays.
const RELAYS: u64 = 5;

/// Everything must be done so long after the last fault.
const CONVERGES_WITHIN: u64 = 20_000 * MILLISECOND;

impl Plan {
    pub(super) fn draw(seed: u64, scheme: Option<AnyScheme>, faults: FaultKinds) -> Plan {
        let mut random = FabricRandom::new(seed, PLAN);
        let drawn = draw_scheme(&mut random);
        // One publisher and its readers, instead of servers and workers.
        let publishes = random.permille(120) && scheme.is_none();
        let scheme = scheme.unwrap_or_else(|| drawn.into());
        let has_two = random.permille(300) && !publishes;
        let servers = if has_two { 2 } else { 1 };
        // A scheme that waits for more gradients than there are workers is not started.
        let most = WORKERS_MAX as u64;
        let least = awaited(&scheme).clamp(2, most);
        let workers = if publishes { 0 } else { random.between(least, most) as usize };
        let readers = if publishes { random.between(1, 3) } else { u64::from(random.permille(400)) } as usize;
        let lease = random.between(60, 150) * MILLISECOND;
        let distribution = draw_distribution(&mut random, lease);
        let goal = random.between(3, 10);
        let compute_max = random.pick(&[20, 200, 1_000, 4_000]) * MICROSECOND;
        // About as long as the job takes, so that faults hit it while it runs.
        let span = goal * (compute_max + 6 * distribution.latency.1 + distribution.spread) + 5 * MILLISECOND;
        let mut plan = Plan {
            scheme,
            servers,
            workers,
            readers,
            relays: if publishes { FabricRandom::new(seed, RELAYS).pick(&[0, 1, 2, 2]) } else { 0 },
            elements: 16 * servers as u64 * random.between(2, 6) + random.between(0, 15),
            frames: random.between(2, 4) as u8,
            checksums: random.permille(200),
            deltas: publishes.then(|| draw_deltas(&mut FabricRandom::new(seed, DELTAS))).flatten(),
            lease: Duration::from_nanos(lease),
            quorum: [workers; 2],
            goal,
            compute: (compute_max / 20, compute_max),
            slow: random.permille(250).then(|| random.between(0, 3) as usize),
            liar: None,
            distribution,
            faults: Vec::new(),
            limit: CONVERGES_WITHIN,
        };
        // A payload has a few chunks of 64 bytes: so few at a time that a copy stops between two batches.
        plan.distribution.batch = FabricRandom::new(seed, BATCHES).pick(&[64, 128, u64::MAX]);
        if !matches!(faults, FaultKinds::None) {
            plan.draw_faults(faults, &mut random, &mut FabricRandom::new(seed, LIES), span, lease);
        }
        plan
    }

    /// Whether its owner is a publisher.
    pub(super) fn publishes(&self) -> bool {
        self.workers == 0
    }

    /// Returns the number of nodes.
    pub(super) fn nodes(&self) -> usize {
        self.servers + self.workers + self.readers + self.relays
    }

    /// Whether a node serves others: a server, a publisher or a relay.
    pub(super) fn is_owner(&self, node: usize) -> bool {
        node < self.servers || node >= self.servers + self.workers + self.readers
    }

    /// Returns the number of peers that an owner has room for.
    pub(super) fn peers(&self) -> usize {
        4 * self.workers + 16
    }

    fn draw_faults(
        &mut self,
        faults: FaultKinds,
        random: &mut FabricRandom,
        lies: &mut FabricRandom,
        span: u64,
        lease: u64,
    ) {
        let mut calm = 0;
        if faults.have(Class::Liars, 250, lies) {
            self.draw_liar(lies);
            calm = span;
        }
        // A liar is dead in the end in any case.
        let mut dead_for_good = usize::from(self.liar.is_some());
        if faults.have(Class::Failures, 1000, lies) {
            calm = calm.max(self.draw_failures(random, span, lease, &mut dead_for_good));
        }
        if faults.have(Class::SlowRegistration, 150, lies) {
            (self.distribution.registering, self.distribution.registration) =
                (lies.pick(&[100, 500]), (lease / 20, 2 * lease));
            calm = calm.max(span);
        }
        let is_zombie = faults.have(Class::Zombies, 250, lies);
        if is_zombie {
            (self.distribution.shape, self.distribution.at_once) =
                (TransportShape::Mapped, lies.pick(&[500, 1000]));
            calm = calm.max(self.draw_zombies(lies, span, lease));
        }
        if faults.have(Class::FrozenThreads, 330, lies) && !is_zombie {
            self.distribution.shape = TransportShape::Threads;
            self.distribution.thaw = (0, lies.pick(&[0, 100 * MICROSECOND, 3 * MILLISECOND]));
            calm = calm.max(self.draw_freezes(lies, span, lease));
        }
        if let Some(liar) = self.liar {
            self.faults
                .push((calm, PlannedFault::Crash { node: self.servers + liar, notice_max: MILLISECOND }));
        }
        self.faults.push((calm + MILLISECOND, PlannedFault::Calm));
        self.faults.sort_by_key(|(at, _)| *at);
        self.limit = calm + CONVERGES_WITHIN;
        let left = self.workers - dead_for_good;
        let least = awaited(&self.scheme).min(left.max(1) as u64);
        self.quorum = [left, random.between(least, left.max(1) as u64) as usize];
    }

    /// Makes a worker the liar: one worker more, or one of the most that there may be, if the scheme can do without
    /// it.
    fn draw_liar(&mut self, lies: &mut FabricRandom) {
        let workers = (self.workers + 1).min(WORKERS_MAX);
        if self.publishes() || workers <= awaited(&self.scheme) as usize {
            return;
        }
        (self.workers, self.quorum) = (workers, [workers; 2]);
        let liar = lies.between(0, workers as u64 - 1) as usize;
        self.liar = Some(liar);
        (self.distribution.liar, self.distribution.lying) =
            (Some(self.servers + liar), lies.pick(&[50, 200, 500]));
    }

    /// Draws owners that stand still for longer than the lease, and peers for about as long. Returns the time at
    /// which all of it has ended.
    fn draw_freezes(&mut self, lies: &mut FabricRandom, span: u64, lease: u64) -> u64 {
        let mut calm = 0;
        let last = self.nodes() as u64 - 1;
        for index in 0..lies.between(1, 3) {
            let last = if index == 0 { self.servers as u64 - 1 } else { last };
            let (at, node) = (lies.between(0, span), lies.between(0, last) as usize);
            let nanos = lies.between(lease / 2, 3 * lease);
            self.faults.push((at, PlannedFault::Freeze { node, nanos }));
            calm = calm.max(at + nanos);
        }
        calm
    }

    /// Draws a worker that is taken for dead while a fold of its gradient waits for a pinned frame; another one comes
    /// meanwhile and may get its index before the first one wakes. Returns the time at which all of it has ended.
    fn draw_zombies(&mut self, lies: &mut FabricRandom, span: u64, lease: u64) -> u64 {
        if self.publishes() || self.workers < 2 {
            return self.draw_freezes(lies, span, lease);
        }
        self.readers = self.readers.max(1);
        self.frames = if lies.permille(700) { 2 } else { self.frames };
        let mut calm = 0;
        for _ in 0..lies.between(1, 2) {
            let at = lies.between(0, span);
            let worker = lies.between(0, self.workers as u64 - 1) as usize;
            let other = (worker + lies.between(1, self.workers as u64 - 1) as usize) % self.workers;
            let (zombie, successor) = (self.servers + worker, self.servers + other);
            let (reader, pinned) = (self.servers + self.workers, 4 * lease);
            self.faults.push((at, PlannedFault::Pin { node: reader, nanos: pinned }));
            let stopped = at + lies.between(MILLISECOND, 20 * MILLISECOND);
            let nanos = lease + lies.between(40 * MILLISECOND, 2 * lease);
            self.faults.push((stopped, PlannedFault::Freeze { node: zombie, nanos }));
            // About when the worker is evicted, so that its index is free when the other one comes again.
            let gone = stopped + lease - lies.between(0, 30 * MILLISECOND);
            self.faults.push((gone, PlannedFault::Cut { one: successor, other: 0 }));
            calm = calm.max(at + pinned).max(stopped + nanos).max(gone);
        }
        calm
    }

    /// Draws nodes that vanish or stand still, directions that stall, connections that break. Returns the time at
    /// which all of it has ended.
    fn draw_failures(
        &mut self,
        random: &mut FabricRandom,
        span: u64,
        lease: u64,
        dead_for_good: &mut usize,
    ) -> u64 {
        let last = self.nodes() as u64 - 1;
        let awaited = awaited(&self.scheme) as usize;
        let liar = self.liar.map(|liar| self.servers + liar);
        let mut down_until = vec![0; self.nodes()];
        let mut calm = 0;
        for _ in 0..random.between(0, 8) {
            let at = random.between(0, span);
            let node = random.between(0, last) as usize;
            let other = random.between(0, last) as usize;
            // Mostly a moment; now and then longer than a node is allowed to be silent.
            let short = random.between(100 * MICROSECOND, 10 * MILLISECOND);
            let nanos = if random.permille(300) { random.between(lease / 2, lease * 2) } else { short };
            let end = match random.between(0, 9) {
                0..=2 => {
                    if at < down_until[node] {
                        continue;
                    }
                    let notice_max = if random.permille(500) { lease } else { MILLISECOND };
                    self.faults.push((at, PlannedFault::Crash { node, notice_max }));
                    let is_worker = node >= self.servers && node < self.servers + self.workers;
                    let can_miss = *dead_for_good + 1 + awaited <= self.workers && liar != Some(node);
                    if is_worker && can_miss && random.permille(250) {
                        *dead_for_good += 1;
                        down_until[node] = u64::MAX;
                        at
                    } else {
                        self.faults.push((at + nanos, PlannedFault::Return { node }));
                        down_until[node] = at + nanos;
                        at + nanos
                    }
                }
                3 | 4 => {
                    self.faults.push((at, PlannedFault::Freeze { node, nanos }));
                    at + nanos
                }
                5 | 6 => {
                    self.faults.push((at, PlannedFault::Stall { from: node, to: other, nanos }));
                    at + nanos
                }
                7 => {
                    self.faults.push((at, PlannedFault::Stall { from: node, to: other, nanos }));
                    self.faults.push((at, PlannedFault::Stall { from: other, to: node, nanos }));
                    at + nanos
                }
                _ => {
                    self.faults.push((at, PlannedFault::Cut { one: node, other }));
                    at
                }
            };
            calm = calm.max(end);
        }
        calm
    }
}

fn draw_scheme(random: &mut FabricRandom) -> SchemeConfig {
    let staleness = random.between(0, 4);
    let k = random.between(1, 4) as u16;
    let wait_for = random.pick(&[WaitFor::Fixed(k), WaitFor::LossRatio(k)]);
    let shrink = random.pick(&[Shrink::Fixed, Shrink::WithK]);
    let delivery = random.pick(&[Delivery::Interrupt, Delivery::Wait, Delivery::Pull]);
    let dynamic = Choice::Dynamic { window: 3, loss_growth: 1.01 };
    let choice = random.pick(&[dynamic, Choice::Static { k }, Choice::Blind { window: 3 }]);
    // One gradient at a time, several, and as many as there are slots.
    let bound = random.pick(&[1e-3, 1e3, 1e5, 1e9]);
    let strength = random.pick(&[Strength::Weak, Strength::Strong]);
    let abs = |staleness| SchemeConfig::Abs { wait_for, staleness, shrink, local_steps: 1 };
    random.pick(&[
        SchemeConfig::Bsp,
        SchemeConfig::Asp,
        SchemeConfig::Ssp { staleness },
        SchemeConfig::Essp { staleness },
        SchemeConfig::Bap { staleness },
        SchemeConfig::Vap { bound, strength },
        SchemeConfig::Dbw { delivery, choice, steps: StepRule::Constant },
        abs(Some(staleness)),
        abs(None),
        SchemeConfig::Delay { staleness, seed: u64::from(k) },
    ])
}

/// Few of them, some of which do not fit, so that readers come too late for one or find none.
fn draw_deltas(random: &mut FabricRandom) -> Option<DeltaOptions> {
    let history = random.between(1, 4) as u8;
    let most_bytes = Some(random.pick(&[16, 64, 4096]));
    random.permille(600).then_some(DeltaOptions { history, most_bytes })
}

/// Returns the fewest workers that a scheme takes.
fn awaited(scheme: &AnyScheme) -> u64 {
    match scheme.built_in() {
        Some(SchemeConfig::Dbw { choice: Choice::Static { k }, .. }) => u64::from(k),
        Some(SchemeConfig::Abs { wait_for, .. }) => u64::from(wait_for.k()),
        _ => 1,
    }
}

fn draw_distribution(random: &mut FabricRandom, lease: u64) -> NetRules {
    let latency = random.pick(&[2, 10, 40]) * MICROSECOND;
    let notice = random.pick(&[100 * MICROSECOND, 5 * MILLISECOND, lease]);
    NetRules {
        latency: (latency / 4, latency),
        straggling: random.pick(&[0, 10, 100]),
        straggle: (latency, random.pick(&[100, 3_000]) * MICROSECOND),
        parts_max: random.between(1, 8),
        spread: random.pick(&[1, 50, 500]) * MICROSECOND,
        lines: random.permille(300),
        repeated: random.pick(&[0, 50, 300]),
        full: random.pick(&[0, 20]),
        queue_depth: random.pick(&[24, 32, 64]),
        yields_permille: random.pick(&[0, 100, 500]),
        notice: (10 * MICROSECOND, notice),
        late: random.pick(&[0, 500, 1000]),
        same_keys: random.permille(600),
        ..NetRules::plain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_comes_back_is_never_the_only_honest_one() {
        let mut returns = 0;
        for seed in 0..2000 {
            let plan = Plan::draw(seed, None, FaultKinds::Drawn);
            let is_worker = |node| (plan.servers..plan.servers + plan.workers).contains(&node);
            let is_return =
                |fault: &PlannedFault| matches!(fault, PlannedFault::Return { node } if is_worker(*node));
            if plan.faults.iter().any(|(_, fault)| is_return(fault)) {
                returns += 1;
                assert!(plan.workers - usize::from(plan.liar.is_some()) >= 2, "seed {seed}: {plan:?}");
            }
        }
        assert!(returns > 200, "{returns} of 2000 plans have a worker that comes back");
    }

    #[test]
    fn a_class_that_is_asked_for_is_had_and_no_other() {
        for (class, seed) in Class::ALL.into_iter().flat_map(|class| (0..100).map(move |seed| (class, seed)))
        {
            let plan = Plan::draw(seed, Some(SchemeConfig::Bsp.into()), FaultKinds::Only(class));
            let has = |is: fn(&PlannedFault) -> bool| plan.faults.iter().any(|(_, fault)| is(fault));
            let case = format!("{class}, seed {seed}");
            assert_eq!(plan.liar.is_some(), class == Class::Liars, "{case}");
            assert_eq!(plan.distribution.registering > 0, class == Class::SlowRegistration, "{case}");
            assert_eq!(plan.distribution.shape == TransportShape::Mapped, class == Class::Zombies, "{case}");
            assert_eq!(
                plan.distribution.shape == TransportShape::Threads,
                class == Class::FrozenThreads,
                "{case}"
            );
            assert_eq!(
                has(|fault| matches!(fault, PlannedFault::Pin { .. })),
                class == Class::Zombies,
                "{case}"
            );
            let stalls =
                has(|fault| matches!(fault, PlannedFault::Stall { .. } | PlannedFault::Return { .. }));
            assert!(!stalls || class == Class::Failures, "{case}");
        }
    }
}
