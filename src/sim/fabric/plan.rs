//! What a seed draws: the job, how hostile the network is, and what breaks when.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::net::Law;
use super::random::Random;
use crate::scheme::Config;

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
    pub(super) law: Law,
    /// In order of time.
    pub(super) faults: Vec<(u64, Fault)>,
    /// A run that has not ended by then does not converge.
    pub(super) limit: u64,
}

/// What the plan's stream of random numbers is for, as opposed to the network's.
const PLAN: u64 = 1;

/// Everything must be done so long after the last fault.
const CONVERGES_WITHIN: u64 = 20_000 * MILLISECOND;

impl Plan {
    pub(super) fn draw(seed: u64, scheme: Option<Config>, breaks: bool) -> Plan {
        let mut random = Random::new(seed, PLAN);
        let staleness = random.between(0, 4);
        let schemes = [
            Config::Bsp,
            Config::Asp,
            Config::Ssp { staleness },
            Config::Essp { staleness },
            Config::Bap { staleness },
        ];
        let drawn = random.pick(&schemes);
        // One publisher and its readers, instead of servers and workers.
        let publishes = random.permille(120) && scheme.is_none();
        let scheme = scheme.unwrap_or(drawn);
        let has_two = random.permille(300) && !scheme.counts_versions() && !publishes;
        let servers = if has_two { 2 } else { 1 };
        let workers = if publishes { 0 } else { random.between(2, 4) as usize };
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

    fn draw_faults(&mut self, random: &mut Random, span: u64, lease: u64) {
        let last = self.places() as u64 - 1;
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
                    if is_worker && dead_for_good + 2 <= self.workers && random.permille(250) {
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
        self.quorum = [left, random.between(1, left.max(1) as u64) as usize];
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
