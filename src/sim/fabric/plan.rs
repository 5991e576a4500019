//! What a seed draws: the job, how hostile the network is, and what breaks when.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::net::Law;
use super::random::Random;
use crate::scheme::{Choice, Config, Delivery, Shrink, Strength, WaitFor};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// Something breaks, or is mended. Places are those of [`Plan`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// A node vanishes; its peers hear of it within so many nanoseconds.
    Crash { place: usize, notice_max: u64 },
    /// A node that vanished begins a new life.
    Return { place: usize },
    /// A node does not run for a while.
    Freeze { place: usize, nanos: u64 },
    /// Nothing goes from one node to another for a while; the other way it may.
    Stall { from: usize, to: usize, nanos: u64 },
    /// The connections between two nodes break.
    Cut { one: usize, other: usize },
    /// Nothing breaks from here on, and all that stalled goes on.
    Calm,
}

/// One run. Places: servers (or a publisher) first, then workers, then readers.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scheme: Config,
    pub(super) servers: usize,
    pub(super) workers: usize,
    pub(super) readers: usize,
    /// f32 parameters of the whole table.
    pub(super) elements: u64,
    pub(super) frames: u8,
    pub(super) checksums: bool,
    pub(super) lease: Duration,
    /// How many workers must have joined a server's first life before anything is applied, and its later ones.
    pub(super) quorum: [usize; 2],
    /// The clock that everybody is to reach.
    pub(super) goal: u64,
    /// How long a gradient takes.
    pub(super) compute: (u64, u64),
    /// The worker that takes several times as long for each.
    pub(super) slow: Option<usize>,
    pub(super) law: Law,
    /// In order of time.
    pub(super) faults: Vec<(u64, Fault)>,
    /// A run that has not ended by then does not converge.
    pub(super) limit: u64,
}

/// No run has more workers, so whoever waits for more of them is not started.
pub const WORKERS_MAX: usize = 4;

/// What the plan's stream of random numbers is for, as opposed to the network's.
const PLAN: u64 = 1;

/// Everything must be done so long after the last fault.
const CONVERGES_WITHIN: u64 = 20_000 * MILLISECOND;

impl Plan {
    pub(super) fn draw(seed: u64, scheme: Option<Config>, breaks: bool) -> Plan {
        let mut random = Random::new(seed, PLAN);
        let drawn = draw_scheme(&mut random);
        // One publisher and its readers, instead of servers and workers.
        let publishes = random.permille(120) && scheme.is_none();
        let scheme = scheme.unwrap_or(drawn);
        let has_two = random.permille(300) && !scheme.counts_versions() && !publishes;
        let servers = if has_two { 2 } else { 1 };
        // Whoever waits for more gradients than there are workers is not started.
        let most = WORKERS_MAX as u64;
        let least = awaited(&scheme).clamp(2, most);
        let workers = if publishes { 0 } else { random.between(least, most) as usize };
        let readers = if publishes { random.between(1, 3) } else { u64::from(random.permille(400)) } as usize;
        let lease = random.between(60, 150) * MILLISECOND;
        let law = draw_law(&mut random, lease);
        let goal = random.between(3, 10);
        let compute_max = random.pick(&[20, 200, 1_000, 4_000]) * MICROSECOND;
        // About as long as the job takes, so that faults hit it while it runs.
        let span = goal * (compute_max + 6 * law.latency.1 + law.spread) + 5 * MILLISECOND;
        let mut plan = Plan {
            scheme,
            servers,
            workers,
            readers,
            elements: 16 * servers as u64 * random.between(2, 6) + random.between(0, 15),
            frames: random.between(2, 4) as u8,
            checksums: random.permille(200),
            lease: Duration::from_nanos(lease),
            quorum: [workers; 2],
            goal,
            compute: (compute_max / 20, compute_max),
            slow: random.permille(250).then(|| random.between(0, 3) as usize),
            law,
            faults: Vec::new(),
            limit: CONVERGES_WITHIN,
        };
        if breaks {
            plan.draw_faults(&mut random, span, lease);
        }
        plan
    }

    /// Whether its owner is a publisher.
    pub(super) fn publishes(&self) -> bool {
        self.workers == 0
    }

    /// How many nodes there are.
    pub(super) fn places(&self) -> usize {
        self.servers + self.workers + self.readers
    }

    /// How many peers an owner has room for.
    pub(super) fn peers(&self) -> usize {
        4 * self.workers + 16
    }

    fn draw_faults(&mut self, random: &mut Random, span: u64, lease: u64) {
        let last = self.places() as u64 - 1;
        let awaited = awaited(&self.scheme) as usize;
        let mut dead_for_good = 0;
        let mut down_until = vec![0; self.places()];
        let mut calm = 0;
        for _ in 0..random.between(0, 8) {
            let at = random.between(0, span);
            let place = random.between(0, last) as usize;
            let other = random.between(0, last) as usize;
            // Mostly a moment; now and then longer than anybody is allowed to be silent.
            let short = random.between(100 * MICROSECOND, 10 * MILLISECOND);
            let nanos = if random.permille(300) { random.between(lease / 2, lease * 2) } else { short };
            let end = match random.between(0, 9) {
                0..=2 => {
                    if at < down_until[place] {
                        continue;
                    }
                    let notice_max = if random.permille(500) { lease } else { MILLISECOND };
                    self.faults.push((at, Fault::Crash { place, notice_max }));
                    let is_worker = place >= self.servers && place < self.servers + self.workers;
                    let can_miss = dead_for_good + 1 + awaited <= self.workers;
                    if is_worker && can_miss && random.permille(250) {
                        dead_for_good += 1;
                        down_until[place] = u64::MAX;
                        at
                    } else {
                        self.faults.push((at + nanos, Fault::Return { place }));
                        down_until[place] = at + nanos;
                        at + nanos
                    }
                }
                3 | 4 => {
                    self.faults.push((at, Fault::Freeze { place, nanos }));
                    at + nanos
                }
                5 | 6 => {
                    self.faults.push((at, Fault::Stall { from: place, to: other, nanos }));
                    at + nanos
                }
                7 => {
                    self.faults.push((at, Fault::Stall { from: place, to: other, nanos }));
                    self.faults.push((at, Fault::Stall { from: other, to: place, nanos }));
                    at + nanos
                }
                _ => {
                    self.faults.push((at, Fault::Cut { one: place, other }));
                    at
                }
            };
            calm = calm.max(end);
        }
        self.faults.push((calm + MILLISECOND, Fault::Calm));
        self.faults.sort_by_key(|(at, _)| *at);
        self.limit = calm + CONVERGES_WITHIN;
        let left = self.workers - dead_for_good;
        let least = awaited.min(left.max(1)) as u64;
        self.quorum = [left, random.between(least, left.max(1) as u64) as usize];
    }
}

fn draw_scheme(random: &mut Random) -> Config {
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
    let abs = |staleness| Config::Abs { wait_for, staleness, shrink, local_steps: 1 };
    random.pick(&[
        Config::Bsp,
        Config::Asp,
        Config::Ssp { staleness },
        Config::Essp { staleness },
        Config::Bap { staleness },
        Config::Vap { bound, strength },
        Config::Dbw { delivery, choice },
        abs(Some(staleness)),
        abs(None),
        Config::Delay { staleness, seed: u64::from(k) },
    ])
}

/// How many workers a scheme takes at least.
fn awaited(scheme: &Config) -> u64 {
    match scheme {
        Config::Dbw { choice: Choice::Static { k }, .. } => u64::from(*k),
        Config::Abs { wait_for, .. } => u64::from(wait_for.k()),
        _ => 1,
    }
}

fn draw_law(random: &mut Random, lease: u64) -> Law {
    let latency = random.pick(&[2, 10, 40]) * MICROSECOND;
    let notice = random.pick(&[100 * MICROSECOND, 5 * MILLISECOND, lease]);
    Law {
        latency: (latency / 4, latency),
        straggling: random.pick(&[0, 10, 100]),
        straggle: (latency, random.pick(&[100, 3_000]) * MICROSECOND),
        parts_max: random.between(1, 8),
        spread: random.pick(&[1, 50, 500]) * MICROSECOND,
        lines: random.permille(300),
        repeated: random.pick(&[0, 50, 300]),
        full: random.pick(&[0, 20]),
        queue_depth: random.pick(&[24, 32, 64]),
        breathers: random.pick(&[0, 100, 500]),
        notice: (10 * MICROSECOND, notice),
        late: random.pick(&[0, 500, 1000]),
        same_keys: random.permille(600),
    }
}
