//! The judge: lets pass what keeps its promises, whatever happens, and nothing else.

use slackline::Clock;
use slackline::scheme::{
    self, Choice, Damping, Delivery, SchemeConfig, ServerAction, ServerEvent, ServerScheme, Share, Shrink,
    StepRule, Strength, WaitFor, WorkerAction, WorkerEvent, WorkerScheme,
};
use slackline::{
    Instant,
    sim::{Cluster, Direction, Distribution, NetworkPartition, Quadratic, Random, SimError, Until},
};

use super::loosened::Loosened;

/// A job drawn from its seed: size, times, network, faults.
fn drawn(scheme: SchemeConfig, seed: u64) -> Cluster {
    let mut random = Random::new(seed);
    let workers = 1 + random.below(6) as usize;
    let mut cluster = Cluster::new(scheme, workers, seed);
    cluster.compute = match random.below(3) {
        0 => Distribution::Exponential { mean: 1.0 },
        1 => Distribution::Uniform { from: 0.25, to: 1.75 },
        _ => Distribution::Pareto { shape: 1.5, scale: 0.3 },
    };
    if random.below(3) == 0 {
        cluster.factors = vec![1.0, 3.0];
    }
    if random.below(2) == 0 {
        cluster.network.latency = Distribution::Exponential { mean: random.unit() };
        cluster.network.message_bytes = Some(1_000);
        cluster.network.worker_bandwidth = (random.below(2) == 0).then_some(5e3);
        cluster.network.server_bandwidth = (random.below(2) == 0).then_some(1e4);
    }
    if random.below(2) == 0 {
        cluster.faults.loss = 0.1;
        cluster.faults.replay = 0.2;
        let (from, direction) = (10.0 * random.unit(), [Direction::Up, Direction::Down][seed as usize % 2]);
        cluster.faults.partitions =
            vec![NetworkPartition { workers: 0..1, direction, from, until: from + 5.0 }];
    }
    if random.below(2) == 0 {
        cluster.faults.lifetime = Some(Distribution::Exponential { mean: 20.0 });
        cluster.faults.downtime = Some(Distribution::Exponential { mean: 3.0 });
        cluster.faults.detection = random.unit();
    }
    cluster.until = Until::Versions(100);
    cluster
}

#[test]
fn promises_are_kept_whatever_happens() {
    for seed in 0..1_000 {
        let staleness = seed % 5;
        for scheme in [
            SchemeConfig::Bsp,
            SchemeConfig::Asp,
            SchemeConfig::Ssp { staleness },
            SchemeConfig::Essp { staleness },
            SchemeConfig::Bap { staleness },
            SchemeConfig::Delay { staleness, seed },
        ] {
            if let Err(error) = drawn(scheme, seed).run() {
                panic!("{error}");
            }
        }
    }
}

/// Schemes that measure what they fold, on a problem.
#[test]
fn promises_are_kept_whatever_is_learnt() {
    for seed in 0..1_000 {
        let mut random = Random::new(!seed);
        let k = 1 + random.below(3) as u16;
        let delivery = [Delivery::Interrupt, Delivery::Wait, Delivery::Pull][seed as usize % 3];
        let strength = [Strength::Weak, Strength::Strong, Strength::Published][seed as usize % 3];
        let staleness = [None, Some(seed % 4)][seed as usize % 2];
        let shrink = [Shrink::Fixed, Shrink::WithK][seed as usize / 2 % 2];
        let (digits, authors) = (scheme::Partition::Digits, scheme::Partition::Authors);
        let (members, group, partition) =
            [(4, 2, digits), (9, 3, digits), (4, 2, authors), (4, 4, digits)][seed as usize % 4];
        for (scheme, members) in [
            (SchemeConfig::Vap { bound: random.unit() as f32 + 0.01, strength }, None),
            (
                SchemeConfig::Dbw {
                    delivery,
                    choice: Choice::Dynamic { window: 3, loss_growth: 1.01 },
                    steps: StepRule::Constant,
                },
                None,
            ),
            (
                SchemeConfig::Dbw {
                    delivery,
                    choice: Choice::Blind { window: 1 + k },
                    steps: StepRule::Constant,
                },
                None,
            ),
            (SchemeConfig::Dbw { delivery, choice: Choice::Static { k }, steps: StepRule::Constant }, None),
            (SchemeConfig::Abs { wait_for: WaitFor::LossRatio(k), staleness, shrink, local_steps: k }, None),
            (SchemeConfig::Abs { wait_for: WaitFor::Fixed(k), staleness, shrink, local_steps: 1 }, None),
            (SchemeConfig::DsSync { group, partition, period: 1 }, Some(members)),
            (SchemeConfig::DsSync { group: k + 1, partition: scheme::Partition::Uneven, period: 1 }, None),
        ] {
            let mut cluster = drawn(scheme, seed);
            cluster.workers = members.unwrap_or(cluster.workers.max(3));
            cluster.problem = Some(Box::new(Quadratic::new(4, 2.0, 1.0, seed)));
            if let Err(error) = cluster.run() {
                panic!("{error}");
            }
        }
    }
}

/// The forms of schemes that are not among those above, on a problem.
#[test]
fn promises_are_kept_in_the_rarer_forms_too() {
    for seed in 0..300 {
        let mut random = Random::new(!seed);
        let k = 1 + random.below(3) as u16;
        let delivery = [Delivery::Interrupt, Delivery::Wait, Delivery::Pull][seed as usize % 3];
        let shorter = [StepRule::Proportional, StepRule::Knee { gradients: k }][seed as usize / 3 % 2];
        let dynamic = Choice::Dynamic { window: 3, loss_growth: 1.01 };
        let dbw = |choice, steps| SchemeConfig::Dbw { delivery, choice, steps };
        let wait_for = WaitFor::LossOverTime { k, millis: 2_500 };
        let (staleness, shrink) = ([None, Some(seed % 4)][seed as usize % 2], Shrink::WithK);
        let ds_sync = |group, partition, period| SchemeConfig::DsSync { group, partition, period };
        let (near, shuffled) = (scheme::Partition::Near { inside: k }, scheme::Partition::Random { seed });
        for (scheme, members) in [
            (dbw(Choice::Published, StepRule::Constant), None),
            (dbw(Choice::Published, shorter), None),
            (dbw(dynamic, shorter), None),
            (dbw(Choice::Static { k }, shorter), None),
            (SchemeConfig::Abs { wait_for, staleness, shrink, local_steps: 1 }, None),
            (ds_sync(2, near, 1), Some([4, 8][seed as usize % 2])),
            (ds_sync(1 + k, shuffled, k), None),
            (ds_sync(2, scheme::Partition::Digits, 1 + k), Some(4)),
        ] {
            let mut cluster = drawn(scheme, seed);
            cluster.workers = members.unwrap_or(cluster.workers.max(3));
            cluster.problem = Some(Box::new(Quadratic::new(4, 2.0, 1.0, seed)));
            if let Err(error) = cluster.run() {
                panic!("{error}");
            }
        }
    }
}

#[test]
fn promises_are_kept_where_gradients_count_whole_or_less_when_stale() {
    for seed in 0..200 {
        let staleness = seed % 5;
        for scheme in [
            SchemeConfig::Bsp,
            SchemeConfig::Asp,
            SchemeConfig::Ssp { staleness },
            SchemeConfig::Essp { staleness },
            SchemeConfig::Bap { staleness },
        ] {
            for (damping, additive) in
                [(Damping::None, true), (Damping::Inverse, false), (Damping::Inverse, true)]
            {
                if let Err(error) = (Cluster { damping, additive, ..drawn(scheme, seed) }).run() {
                    panic!("{error}");
                }
            }
        }
    }
}

/// Does something to the shares of an update.
type Spoil = fn(&mut Vec<Share>);

/// A server that does something wrong.
struct Wrong {
    inner: Box<dyn ServerScheme>,
    how: Spoil,
    ahead: u64,
}

impl ServerScheme for Wrong {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        self.inner.handle_event(now, event);
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        let action = self.inner.poll_action(shares)?;
        (self.how)(shares);
        Some(action)
    }

    fn smallest_clock(&self) -> Clock {
        Clock::new(self.inner.smallest_clock().get() + self.ahead)
    }
}

fn jittery(scheme: SchemeConfig, seed: u64) -> Cluster {
    let mut cluster = Cluster::new(scheme, 4, seed);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.until = Until::Clocks(20);
    cluster
}

#[test]
fn a_bound_loosened_by_one_is_caught() {
    for scheme in [
        SchemeConfig::Bsp,
        SchemeConfig::Ssp { staleness: 2 },
        SchemeConfig::Essp { staleness: 2 },
        SchemeConfig::Bap { staleness: 2 },
    ] {
        let caught = (0..50).filter(|seed| {
            let server = scheme.server(4).unwrap();
            let error = jittery(scheme, *seed).run_with(server, &mut |_| Box::new(Loosened(scheme.worker())));
            match error {
                Err(SimError::Broken { seed: named, what, .. }) => {
                    assert_eq!(named, *seed);
                    assert!(what.contains("and the bound is"), "{what}");
                    true
                }
                _ => false,
            }
        });
        assert!(caught.count() >= 40, "{scheme}");
    }
}

#[test]
fn a_server_that_folds_what_it_may_not_or_lies_about_its_clock_is_caught() {
    let wrongs: [(Spoil, u64, &str); 7] = [
        (|shares| shares.reverse(), 0, "out of order"),
        (|shares| shares.extend_from_within(..), 0, "out of order or double"),
        (|shares| shares.iter_mut().for_each(|share| share.weight = f32::NAN), 0, "with weight NaN"),
        (
            |shares| shares.iter_mut().for_each(|share| share.gradient.clock = share.gradient.clock.next()),
            0,
            "before it came",
        ),
        (|shares| shares.truncate(3), 0, "is made of 3 gradients, not 4..=4"),
        (|shares| shares.iter_mut().for_each(|share| share.weight *= 0.5), 0, "where each counts 0.25"),
        (|_| {}, 1, "a worker's is"),
    ];
    for (how, ahead, says) in wrongs {
        let scheme = SchemeConfig::Bsp;
        let server = Box::new(Wrong { inner: scheme.server(4).unwrap(), how, ahead });
        match jittery(scheme, 1).run_with(server, &mut |_| scheme.worker()) {
            Err(SimError::Broken { what, .. }) => assert!(what.contains(says), "{what}: expected {says}"),
            other => panic!("{says}: {other:?}"),
        }
    }
}

/// A server that consumes what it should fold.
struct Dropping(Box<dyn ServerScheme>);

impl ServerScheme for Dropping {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        self.0.handle_event(now, event);
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        match self.0.poll_action(shares)? {
            ServerAction::Apply => {
                shares.first().map(|share| ServerAction::Drop { gradient: share.gradient })
            }
            other => Some(other),
        }
    }

    fn smallest_clock(&self) -> Clock {
        self.0.smallest_clock()
    }
}

#[test]
fn a_gradient_that_is_dropped_where_all_are_folded_is_caught() {
    let texts = ["bsp", "asp", "ssp(2)", "essp(2)", "bap(2)", "vap(1)", "k-async(2)", "delay(2)"];
    for scheme in texts.map(|text| text.parse::<SchemeConfig>().unwrap()) {
        let server = Box::new(Dropping(scheme.server(4).unwrap()));
        match jittery(scheme, 1).run_with(server, &mut |_| scheme.worker()) {
            Err(SimError::Broken { what, .. }) => assert!(what.contains("every gradient is to be"), "{what}"),
            other => panic!("{scheme}: {other:?}"),
        }
    }
}

/// One that never wants anything.
struct Waits;

impl WorkerScheme for Waits {
    fn handle_event(&mut self, _now: Instant, _event: WorkerEvent) {}

    fn poll_action(&mut self) -> Option<WorkerAction> {
        None
    }
}

#[test]
fn a_scheme_that_waits_for_ever_is_found_out() {
    let server = SchemeConfig::Bsp.server(4).unwrap();
    let error = jittery(SchemeConfig::Bsp, 7).run_with(server, &mut |_| Box::new(Waits)).unwrap_err();
    assert!(matches!(error, SimError::Stuck { seed: 7, .. }), "{error}");
}

/// One whose time to be woken has always passed.
struct Restless<S>(S);

impl ServerScheme for Restless<Box<dyn ServerScheme>> {
    fn handle_event(&mut self, now: Instant, event: ServerEvent) {
        self.0.handle_event(now, event);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(Instant::from_nanos(0))
    }

    fn poll_action(&mut self, shares: &mut Vec<Share>) -> Option<ServerAction> {
        self.0.poll_action(shares)
    }

    fn smallest_clock(&self) -> Clock {
        self.0.smallest_clock()
    }
}

impl WorkerScheme for Restless<Box<dyn WorkerScheme>> {
    fn handle_event(&mut self, now: Instant, event: WorkerEvent) {
        self.0.handle_event(now, event);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(Instant::from_nanos(0))
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        self.0.poll_action()
    }
}

#[test]
fn a_scheme_that_is_to_be_woken_without_end_is_found_out() {
    let scheme = SchemeConfig::Bsp;
    let server = || scheme.server(4).unwrap();
    let at_server = jittery(scheme, 1).run_with(Box::new(Restless(server())), &mut |_| scheme.worker());
    let at_worker = jittery(scheme, 1).run_with(server(), &mut |_| Box::new(Restless(scheme.worker())));
    for outcome in [at_server, at_worker] {
        match outcome {
            Err(SimError::Broken { what, .. }) => assert!(what.contains("asks to be woken"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}
