//! The rules of each scheme, one event after the other. Whole jobs in virtual time are `tests/sim`.

#[path = "scheme/limits.rs"]
mod limits;

use std::collections::BTreeSet;

use slackline::internals::clock::WorkerId;
use slackline::scheme::{
    Bound, GradientId, SchemeConfig, ServerAction, ServerEvent, ServerScheme, Share, Statistics,
    WorkerAction, WorkerEvent,
};
use slackline::{Clock, Version};
use slackline::{Instant, sim::Random};

const NOW: Instant = Instant::ORIGIN;

fn four(staleness: u64) -> [SchemeConfig; 4] {
    [SchemeConfig::Bsp, SchemeConfig::Asp, SchemeConfig::Ssp { staleness }, SchemeConfig::Essp { staleness }]
}

/// All that have a server, in a form that jobs of any size can run.
fn all(staleness: u64) -> Vec<SchemeConfig> {
    let more = [
        "bap(2)",
        "vap(2)",
        "vap(2, strength=strong)",
        "vap(2, strength=published)",
        "dbw",
        "dbw(delivery=wait)",
        "dbw(delivery=pull, choice=blind)",
        "dbw(1)",
        "abs(k=1, staleness=2)",
        "k-async(1)",
        "k-sync(1)",
        "delay(3)",
    ];
    four(staleness).into_iter().chain(more.map(|text| text.parse().unwrap())).collect()
}

fn gradient(worker: u32, clock: u64) -> GradientId {
    GradientId { worker: WorkerId(worker), clock: Clock::new(clock) }
}

fn arrived(worker: u32, clock: u64) -> ServerEvent {
    ServerEvent::Arrived {
        gradient: gradient(worker, clock),
        base: Version::new(0),
        loss: None,
        magnitude: None,
    }
}

fn applied(version: u64) -> ServerEvent {
    ServerEvent::Applied { version: Version::new(version), statistics: Statistics::default() }
}

fn joined(worker: u32, clock: u64) -> ServerEvent {
    ServerEvent::Joined { worker: WorkerId(worker), clock: Clock::new(clock), returns: false }
}

fn left(worker: u32) -> ServerEvent {
    ServerEvent::Left { worker: WorkerId(worker) }
}

/// The action that was asked for, and (worker, clock, weight) of each share beside it.
type Answer = (ServerAction, Vec<(u32, u64, f32)>);

/// A server told some events, and all it answers until it wants something applied.
struct Bench {
    server: Box<dyn ServerScheme>,
    shares: Vec<Share>,
}

impl Bench {
    fn new(config: SchemeConfig, workers: usize) -> Bench {
        Bench::at(config, workers, 0)
    }

    fn at(config: SchemeConfig, workers: usize, clock: u64) -> Bench {
        Bench {
            server: config.server_at(workers, Clock::new(clock), Version::new(0)).unwrap(),
            shares: Vec::new(),
        }
    }

    fn tell(&mut self, events: &[ServerEvent]) -> &mut Bench {
        events.iter().for_each(|event| self.server.handle_event(NOW, *event));
        self
    }

    fn poll(&mut self) -> Option<Answer> {
        self.shares.clear();
        let action = self.server.poll_action(&mut self.shares)?;
        let named = |share: &Share| (share.gradient.worker.0, share.gradient.clock.get(), share.weight);
        Some((action, self.shares.iter().map(named).collect()))
    }

    fn smallest(&self) -> u64 {
        self.server.smallest_clock().get()
    }
}

/// FlexPS's SSP model, run as an oracle: a reader that leads the slowest by `lead` is blocked iff `lead > s`, and
/// goes on after exactly `lead - s` ticks of the slowest.
#[test]
fn a_reader_is_blocked_iff_it_leads_by_more_than_the_bound() {
    for staleness in 0..=3 {
        for lead in 0..=5u64 {
            let config = SchemeConfig::Ssp { staleness };
            let mut bench = Bench::new(config, 2);
            bench.tell(&[joined(0, 0), joined(1, lead)]);
            let mut reader = config.worker();
            reader.handle_event(NOW, WorkerEvent::Joined { clock: Clock::new(lead) });
            let Some(WorkerAction::Refresh { bound }) = reader.poll_action() else {
                panic!("a reader without a copy must ask for one")
            };
            let mut ticks = 0;
            while !bound.is_met_by(Version::new(ticks), Clock::new(bench.smallest())) {
                bench.tell(&[arrived(0, ticks)]);
                assert!(matches!(bench.poll(), Some((ServerAction::Apply, _))));
                ticks += 1;
                bench.tell(&[applied(ticks)]);
            }
            assert_eq!(ticks, lead.saturating_sub(staleness), "s = {staleness}, lead {lead}");
        }
    }
}

#[test]
fn ssp_uses_its_copy_until_the_bound_forbids_it() {
    let mut reader = SchemeConfig::Ssp { staleness: 2 }.worker();
    reader.handle_event(NOW, WorkerEvent::Joined { clock: Clock::new(0) });
    assert_eq!(reader.poll_action(), Some(WorkerAction::Refresh { bound: Bound::NONE }));
    assert_eq!(reader.poll_action(), None);
    reader.handle_event(NOW, WorkerEvent::Holds { version: Version::new(0), smallest_clock: Clock::new(0) });
    for _ in 0..3 {
        assert_eq!(reader.poll_action(), Some(WorkerAction::Compute));
        assert_eq!(reader.poll_action(), None);
        reader.handle_event(NOW, WorkerEvent::Published { magnitude: None });
    }
    let refresh = Some(WorkerAction::Refresh { bound: Bound::clock(Clock::new(1)) });
    assert_eq!(reader.poll_action(), refresh);
    reader.handle_event(NOW, WorkerEvent::Holds { version: Version::new(9), smallest_clock: Clock::new(0) });
    assert_eq!(reader.poll_action(), refresh, "a copy too old is not an answer");
    reader.handle_event(NOW, WorkerEvent::Holds { version: Version::new(9), smallest_clock: Clock::new(1) });
    assert_eq!(reader.poll_action(), Some(WorkerAction::Compute));
    reader.handle_event(NOW, WorkerEvent::Interrupted);
    assert_eq!(reader.poll_action(), refresh, "an interrupted clock begins again");
}

#[test]
fn bsp_folds_a_round_at_once_ordered_and_weighted() {
    let mut bench = Bench::new(SchemeConfig::Bsp, 2);
    bench.tell(&[joined(1, 0), arrived(1, 0)]);
    assert_eq!(bench.poll(), None, "the gate is closed");
    bench.tell(&[joined(0, 0)]);
    assert_eq!(bench.poll(), Some((ServerAction::Expect, vec![(0, 0, 0.5), (1, 0, 0.5)])));
    assert_eq!(bench.poll(), None);
    bench.tell(&[joined(7, 0)]);
    let third = 1.0 / 3.0;
    let all = vec![(0, 0, third), (1, 0, third), (7, 0, third)];
    assert_eq!(bench.poll(), Some((ServerAction::Expect, all.clone())));
    bench.tell(&[arrived(7, 0), arrived(0, 0)]);
    assert_eq!(bench.poll(), Some((ServerAction::Apply, all)));
    assert_eq!(bench.smallest(), 0, "not before it is applied");
    bench.tell(&[joined(2, 0), applied(1)]);
    assert_eq!(bench.smallest(), 1);
    bench.tell(&[arrived(2, 0)]);
    assert_eq!(bench.poll(), Some((ServerAction::Drop { gradient: gradient(2, 0) }, vec![])), "too late");
    bench.tell(&[arrived(0, 1), arrived(7, 1), left(1), left(2)]);
    assert_eq!(bench.poll(), Some((ServerAction::Apply, vec![(0, 1, 0.5), (7, 1, 0.5)])));
}

#[test]
fn bsp_skips_rounds_that_nobody_is_in_but_none_that_somebody_is() {
    let mut bench = Bench::new(SchemeConfig::Bsp, 1);
    bench.tell(&[joined(0, 0), joined(1, 5), arrived(0, 0)]);
    assert_eq!(bench.poll(), Some((ServerAction::Apply, vec![(0, 0, 1.0)])), "worker 1 begins later");
    bench.tell(&[left(0)]);
    assert_eq!(bench.smallest(), 0, "the round is still being folded");
    bench.tell(&[applied(1)]);
    assert_eq!(bench.smallest(), 5);
    assert_eq!(bench.poll(), Some((ServerAction::Expect, vec![(1, 5, 1.0)])));
}

#[test]
fn a_late_gradient_of_a_leaver_is_void() {
    let mut bench = Bench::new(SchemeConfig::Bsp, 1);
    bench.tell(&[joined(0, 0), arrived(0, 0)]);
    assert!(matches!(bench.poll(), Some((ServerAction::Apply, _))));
    bench.tell(&[joined(1, 0), arrived(1, 0), left(1)]);
    assert_eq!(bench.poll(), None);
}

#[test]
fn a_worker_that_joins_again_does_not_trust_its_old_copy() {
    let mut reader = SchemeConfig::Ssp { staleness: 9 }.worker();
    for _ in 0..2 {
        reader.handle_event(NOW, WorkerEvent::Joined { clock: Clock::new(0) });
        assert_eq!(reader.poll_action(), Some(WorkerAction::Refresh { bound: Bound::NONE }));
        reader.handle_event(
            NOW,
            WorkerEvent::Holds { version: Version::new(7), smallest_clock: Clock::new(7) },
        );
        assert_eq!(reader.poll_action(), Some(WorkerAction::Compute));
    }
}

#[test]
fn asp_folds_in_order_of_arrival_and_expects_only_when_alone() {
    let mut bench = Bench::new(SchemeConfig::Asp, 2);
    bench.tell(&[joined(0, 0), arrived(0, 0)]);
    assert_eq!(bench.poll(), None, "the gate is closed");
    bench.tell(&[joined(1, 0), arrived(1, 0)]);
    assert_eq!(bench.poll(), Some((ServerAction::Apply, vec![(0, 0, 0.5)])));
    assert_eq!(bench.poll(), None, "one at a time");
    bench.tell(&[applied(1)]);
    assert_eq!(bench.poll(), Some((ServerAction::Apply, vec![(1, 0, 0.5)])));
    bench.tell(&[left(0), applied(2)]);
    assert_eq!(bench.poll(), Some((ServerAction::Expect, vec![(1, 1, 1.0)])));
    assert_eq!(bench.poll(), None);
    bench.tell(&[arrived(1, 1)]);
    assert_eq!(bench.poll(), Some((ServerAction::Apply, vec![(1, 1, 1.0)])));
}

#[test]
fn essp_pushes_when_a_clock_is_complete_and_for_newcomers_and_leavers() {
    let mut bench = Bench::new(SchemeConfig::Essp { staleness: 1 }, 2);
    let push = Some((ServerAction::Push, vec![]));
    bench.tell(&[joined(0, 0), joined(1, 0)]);
    assert_eq!(bench.poll(), push, "for newcomers, once");
    assert_eq!(bench.poll(), None);
    bench.tell(&[arrived(0, 0)]).poll();
    bench.tell(&[applied(1)]);
    assert_eq!(bench.poll(), None, "the clock is not complete");
    bench.tell(&[arrived(1, 0)]).poll();
    bench.tell(&[applied(2)]);
    assert_eq!(bench.poll(), push);
    bench.tell(&[arrived(0, 1)]).poll();
    bench.tell(&[applied(3)]);
    assert_eq!(bench.poll(), None);
    bench.tell(&[left(1)]);
    assert_eq!(bench.poll(), push, "no worker holds clock 1 back any more");
    assert_eq!(bench.smallest(), 2);
}

#[test]
fn a_worker_that_leaves_during_its_fold_and_returns_inherits_no_clock() {
    let mut bench = Bench::new(SchemeConfig::Asp, 1);
    bench.tell(&[joined(0, 0), arrived(0, 0)]);
    assert!(matches!(bench.poll(), Some((ServerAction::Apply, _))));
    bench.tell(&[left(0), joined(0, 0), applied(1)]);
    assert_eq!(bench.smallest(), 0, "its new incarnation has published nothing");
}

#[test]
fn a_job_resumed_at_a_later_clock_begins_there() {
    for config in four(1) {
        let mut bench = Bench::new(config, 2);
        bench.tell(&[joined(0, 100)]);
        assert_eq!(bench.smallest(), 0, "{config}: the gate is closed");
        bench.tell(&[joined(1, 99)]);
        assert_eq!(bench.smallest(), 99, "{config}");
    }
}

#[test]
fn a_server_resumed_at_a_clock_begins_there_and_moves_up_to_a_lone_worker() {
    for config in four(1) {
        let mut bench = Bench::at(config, 1, 90);
        assert_eq!(bench.smallest(), 90, "{config}");
        bench.tell(&[joined(0, 100)]);
        assert_eq!(bench.smallest(), 100, "{config}: no worker is in that could be waited for");
        bench.tell(&[arrived(0, 100)]);
        while let Some((action, shares)) = bench.poll() {
            if action == ServerAction::Apply {
                assert_eq!(shares, [(0, 100, 1.0)], "{config}");
                bench.tell(&[applied(1)]);
            }
        }
        assert_eq!(bench.smallest(), 101, "{config}");
    }
}

#[test]
fn whoever_joins_ahead_of_the_others_holds_nobody_back_until_they_come() {
    for config in four(1) {
        let mut bench = Bench::at(config, 2, 90);
        bench.tell(&[joined(0, 100), joined(1, 90)]);
        assert_eq!(bench.smallest(), 90, "{config}");
        for clock in 90..100 {
            bench.tell(&[arrived(1, clock)]);
            while let Some((action, shares)) = bench.poll() {
                if action == ServerAction::Apply {
                    assert_eq!((shares[0].0, shares[0].1, shares.len()), (1, clock, 1), "{config}");
                    bench.tell(&[applied(clock)]);
                }
            }
            assert_eq!(bench.smallest(), clock + 1, "{config}");
        }
        bench.tell(&[arrived(1, 100)]);
        while let Some((action, _)) = bench.poll() {
            if action == ServerAction::Apply {
                bench.tell(&[applied(101)]);
            }
        }
        assert_eq!(bench.smallest(), 100, "{config}: from here on the first counts");
    }
}

/// A driver gone mad: any event at any time. Nothing may panic, no gradient may be folded or dropped twice or before it
/// came, no clock may move back.
#[test]
fn nonsense_is_ignored() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let every = all(seed % 3);
        let config = every[random.below(every.len() as u64) as usize];
        let mut bench = Bench::new(config, 1 + random.below(3) as usize);
        let (mut smallest, mut waits) = (0, false);
        // Workers that are in, and of their sessions the gradients that have come and are not yet consumed.
        let (mut members, mut open, mut seen) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for step in 0..200 {
            let worker = random.below(5) as u32;
            let clock = [random.below(6), random.below(6), random.below(6), u64::MAX - random.below(2)]
                [random.below(4) as usize];
            let number = [None, Some(0.5), Some(f32::NAN), Some(f32::INFINITY)][random.below(4) as usize];
            let version = Version::new([0, clock, random.below(6)][random.below(3) as usize]);
            let event = match random.below(11) {
                0 => ServerEvent::Joined {
                    worker: WorkerId(worker),
                    clock: Clock::new(clock.min(6)),
                    returns: random.below(2) == 0,
                },
                1 => left(worker),
                2 | 3 => applied(clock),
                4 => ServerEvent::Seen { worker: WorkerId(worker), version },
                5 => {
                    let largest = f64::from(number.unwrap_or(0.0));
                    ServerEvent::Weighed { gradient: gradient(worker, clock), largest }
                }
                _ => ServerEvent::Arrived {
                    gradient: gradient(worker, clock),
                    base: version,
                    loss: number,
                    magnitude: number,
                },
            };
            waits &= !matches!(event, ServerEvent::Applied { .. });
            match event {
                ServerEvent::Joined { .. } if members.insert(worker) => {
                    open.retain(|(other, _)| *other != worker);
                    seen.retain(|(other, _)| *other != worker);
                }
                ServerEvent::Left { .. } => {
                    members.remove(&worker);
                    open.retain(|(other, _)| *other != worker);
                }
                ServerEvent::Arrived { .. } if members.contains(&worker) && seen.insert((worker, clock)) => {
                    open.insert((worker, clock));
                }
                _ => {}
            }
            bench.tell(&[event]);
            for _ in 0..50 {
                let Some((action, shares)) = bench.poll() else { break };
                let consumed: Vec<_> = match &action {
                    ServerAction::Apply => {
                        shares.iter().map(|(worker, clock, _)| (*worker, *clock)).collect()
                    }
                    ServerAction::Drop { gradient } => vec![(gradient.worker.0, gradient.clock.get())],
                    _ => Vec::new(),
                };
                for gradient in consumed {
                    let is_open = open.remove(&gradient);
                    assert!(
                        is_open,
                        "{config}, seed {seed}, step {step}: {gradient:?} again, or never there"
                    );
                }
                assert!(!(waits && action == ServerAction::Apply), "{config}, seed {seed}, step {step}");
                waits |= action == ServerAction::Apply;
            }
            assert!(bench.smallest() >= smallest, "{config}, seed {seed}, step {step}");
            smallest = bench.smallest();
        }
        let mut reader = config.worker();
        for _ in 0..200 {
            let clock = Clock::new(if random.below(9) == 0 { u64::MAX } else { random.below(6) });
            reader.handle_event(
                NOW,
                match random.below(8) {
                    0 => WorkerEvent::Joined { clock },
                    1 => WorkerEvent::Interrupted,
                    2 => WorkerEvent::Consumed { clock },
                    3 => WorkerEvent::Averaged { round: clock.get() },
                    4 => {
                        let magnitude = [None, Some(0.5), Some(f32::NAN), Some(f32::INFINITY)];
                        WorkerEvent::Published { magnitude: magnitude[random.below(4) as usize] }
                    }
                    5 => WorkerEvent::Membership { workers: clock.get() as usize },
                    _ => WorkerEvent::Holds { version: Version::new(clock.get()), smallest_clock: clock },
                },
            );
            let first = reader.poll_action();
            assert!(first.is_none() || reader.poll_action().is_none(), "{config}, seed {seed}: asked twice");
        }
    }
}
