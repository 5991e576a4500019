//! The schemes that count versions, values or groups: their bounds whatever happens, what a bound loosened by one does,
//! and the limits in which they are something simpler.

use slackline::clock::{Clock, Version};
use slackline::scheme::{
    Choice, Config, Damping, Delivery, Groups, Partition, ServerAction, ServerEvent, Share, Shrink, Strength,
    WaitFor, WorkerAction, WorkerEvent, damped,
};

use slackline::sim::Random;

use super::job::{Plan, Report, Until, mean};
use super::{NOW, applied, arrived, drawn, joined, near, seconds};

fn config(text: &str) -> Config {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// A thousand jobs of each, with and without workers that come and go. Every bound is judged at every event.
fn holds_whatever_happens(scheme: impl Fn(&mut Random, u16) -> Config) {
    for seed in 0..1_000 {
        for churn in [false, true] {
            let workers = drawn(Config::Bsp, seed, churn).workers as u16;
            let config = scheme(&mut Random::new(seed), workers);
            let plan = drawn(config, seed, churn);
            let until = Until::Versions(1 + seed % 40);
            let magnitude = plan.magnitude.map(|_| 1.0 + (seed % 3) as f32);
            let report = Plan { until, magnitude, ..plan }.run();
            report.unwrap_or_else(|what| panic!("{config}, churn {churn}: {what}"));
        }
    }
}

#[test]
fn dbw_keeps_its_promises_while_workers_come_and_go() {
    holds_whatever_happens(|random, workers| {
        let delivery = [Delivery::Interrupt, Delivery::Wait, Delivery::Pull][random.below(3) as usize];
        let choice = match random.below(3) {
            0 => Choice::Static { k: 1 + random.below(u64::from(workers)) as u16 },
            1 => Choice::Dynamic { window: 1 + random.below(5) as u16, loss_growth: 1.01 },
            _ => Choice::Blind { window: 1 + random.below(5) as u16 },
        };
        Config::Dbw { delivery, choice }
    });
}

#[test]
fn abs_keeps_its_promises_while_workers_come_and_go() {
    holds_whatever_happens(|random, workers| {
        let k = 1 + random.below(u64::from(workers)) as u16;
        let wait_for = if random.below(2) == 0 { WaitFor::Fixed(k) } else { WaitFor::LossRatio(k) };
        let staleness = [None, Some(0), Some(1), Some(3)][random.below(4) as usize];
        let shrink = if random.below(2) == 0 { Shrink::Fixed } else { Shrink::WithK };
        Config::Abs { wait_for, staleness, shrink, local_steps: 1 }
    });
}

#[test]
fn weak_vap_keeps_its_promises_while_workers_come_and_go() {
    holds_whatever_happens(|random, _| Config::Vap {
        bound: 0.1 * random.below(50) as f32 + 0.01,
        strength: Strength::Weak,
    });
}

/// Server and workers wait for each other here; that every job comes to its end says that they never do so for ever.
#[test]
fn strong_vap_keeps_its_promises_and_never_stands_still() {
    holds_whatever_happens(|random, _| Config::Vap {
        bound: 0.1 * random.below(50) as f32 + 0.01,
        strength: Strength::Strong,
    });
}

#[test]
fn delays_keep_their_promises_while_workers_come_and_go() {
    holds_whatever_happens(|random, _| Config::Delay { staleness: random.below(6), seed: random.below(9) });
}

/// The judge holds `promised`, and `run` is what runs.
fn caught(promised: &str, run: &str, complaint: &str) {
    let (promised, run) = (config(promised), config(run));
    let caught = (0..50)
        .filter_map(|seed| {
            let until = Until::Versions(200);
            let loosened = Plan {
                until,
                latency_nanos: super::SECOND / 3,
                server: run.server(6).unwrap(),
                worker: Box::new(move || run.worker()),
                slots: usize::from(run.slots()),
                ..Plan::of(promised, seed, 6)
            };
            loosened.run().err()
        })
        .filter(|what| what.contains(complaint))
        .count();
    assert!(caught >= 40, "{run} for {promised}: caught {caught} of 50");
}

#[test]
fn bounds_loosened_by_one_are_caught() {
    caught("abs(k=2, staleness=1, rule=fixed)", "abs(k=2, staleness=2, rule=fixed)", "versions late");
    caught("k-async(3)", "k-async(4)", "in one update");
    caught("dbw(3)", "dbw(4)", "in one update");
    caught("dbw(3)", "dbw(2)", "in one update");
    caught("dbw(3)", "abs(k=3, staleness=1, rule=fixed)", "versions late");
    caught("delay(2)", "delay(3)", "versions late");
    let shrinks = "abs(k=2, staleness=4, rule=loss-ratio, shrink=with-k)";
    caught(shrinks, "abs(k=2, staleness=4, rule=loss-ratio, shrink=fixed)", "versions late");
    // One gradient weighs a sixth: in clock 1 there is room for a second one from `sqrt(2) / 3 = 0.4714` on.
    caught("vap(0.471)", "vap(0.472)", "of its own in transit");
    caught("vap(2, strength=strong)", "vap(2.17, strength=strong)", "in transit to somebody");
}

fn versions(text: &str, workers: usize, versions: u64) -> Report {
    let until = Until::Versions(versions);
    let plan = Plan { until, ..Plan::of(config(text), 17, workers) };
    plan.run().unwrap_or_else(|what| panic!("{text}: {what}"))
}

/// Li et al.'s scheme over exponential times: the mean clock takes what the recurrence says.
#[test]
fn bap_hides_jitter_as_the_recurrence_says() {
    for (staleness, expected) in [(0, 2.083), (1, 1.515), (2, 1.337), (4, 1.199)] {
        let text = format!("bap({staleness})");
        let clocks = 40_000;
        near(&text, seconds(&versions(&text, 4, clocks)) / clocks as f64, expected, 0.02);
    }
}

fn trace_of(text: &str, seed: u64) -> Report {
    let plan = Plan { trace: true, until: Until::Clocks(12), ..drawn(config(text), seed, false) };
    plan.run().unwrap_or_else(|what| panic!("{text}: {what}"))
}

#[test]
fn at_their_limits_the_schemes_are_bsp() {
    for seed in 0..200 {
        let mut bsp = trace_of("bsp", seed);
        let workers = drawn(Config::Bsp, seed, false).workers;
        // Everything happens at the same time and in the same order; only what is no fold may differ.
        let mut folds = |text: &str| {
            let mut report = trace_of(text, seed);
            for report in [&mut bsp, &mut report] {
                report.trace.retain(|(_, what, ..)| *what != "push");
            }
            assert_eq!(report.trace, bsp.trace, "{text}, seed {seed}");
            assert_eq!((report.end_nanos, report.versions), (bsp.end_nanos, bsp.versions), "{text}");
        };
        folds("bap(0)");
        folds("delay(0)");
        for limit in ["dbw", "dbw(delivery=wait, k=N)", "dbw(delivery=pull, k=N)", "k-async(N)", "k-sync(N)"]
        {
            let text = limit.replace('N', &workers.to_string());
            // What learns waits for all only at the beginning.
            folds(if limit == "dbw" { "dbw(choice=blind, window=99)" } else { &text });
        }
    }
}

/// Push and interrupt over exponential times: the k-th of n fresh draws, H_n - H_(n-k).
#[test]
fn static_backup_workers_take_the_time_of_the_kth_of_all() {
    for scheme in ["dbw", "k-sync"] {
        for (k, expected) in [(1, 0.0625), (8, 0.6629), (16, 3.3807)] {
            let text = format!("{scheme}({k})");
            let report = versions(&text, 16, 20_000);
            near(&text, seconds(&report) / report.versions as f64, expected, 0.02);
            let restarts = (16 - k) as f64 * 2e4 + 1.0;
            near(&format!("{text}, interrupted"), report.interrupted as f64 + 1.0, restarts, 0.01);
        }
    }
}

#[test]
fn k_async_is_m_over_k_less_one_stale() {
    for (k, expected) in [(2, 8.99), (5, 3.0), (10, 1.0)] {
        let text = format!("k-async({k})");
        near(&text, mean(&versions(&text, 20, 20_000).lag), expected, 0.03);
    }
}

/// Nothing above the bound is folded (the judge sees to it); the means are those of an event simulation of the rule.
#[test]
fn abs_restarts_as_many_workers_as_an_event_simulation_of_the_rule() {
    for (k, lag, restarts) in [(2, 0.92, 5.4), (5, 0.81, 3.6), (10, 0.57, 1.4)] {
        let text = format!("abs(k={k}, staleness=2, rule=fixed, shrink=fixed)");
        let report = versions(&text, 20, 20_000);
        near(&format!("{text}, lag"), mean(&report.lag), lag, 0.03);
        near(&text, report.interrupted as f64 / report.versions as f64, restarts, 0.05);
    }
}

#[test]
fn delays_are_half_the_bound_on_average() {
    for (staleness, expected) in [(0, 1.0), (4, 3.0), (10, 6.0)] {
        let text = format!("delay({staleness}, seed=5)");
        let report = versions(&text, 4, 5_000);
        near(&text, mean(&report.lag) + 1.0, expected, 0.02);
        assert_eq!(report.lag.len() as u64, staleness + 1, "{text}");
        assert_eq!(report.dropped, 0, "{text}");
    }
}

/// Blind to what gradients are worth, exponential times: one gradient at a time is the most per second.
#[test]
fn a_blind_choice_over_exponential_times_ends_with_one() {
    let report = versions("dbw(choice=blind)", 8, 2_000);
    let folded: u64 = report.lag.iter().sum();
    assert!(folded < 2 * report.versions, "{folded} gradients in {} versions", report.versions);
}

#[test]
fn a_few_averages_with_no_steps_between_give_everybody_the_mean_of_all() {
    for (workers, group, partition) in [
        (4, 2, Partition::Digits),
        (16, 4, Partition::Digits),
        (8, 2, Partition::Digits),
        (27, 3, Partition::Digits),
        (4, 4, Partition::Digits),
        (4, 2, Partition::Authors),
        (8, 2, Partition::Uneven),
    ] {
        let what = format!("{workers} in groups of {group}, {partition:?}");
        let groups = Groups::new(workers, group, partition).unwrap();
        let begin = |seed| {
            let mut random = Random::new(seed);
            (0..workers).map(|_| random.unit()).collect::<Vec<f64>>()
        };
        let mean = begin(3).iter().sum::<f64>() / workers as f64;
        let average = |models: &[f64], round| -> Vec<f64> {
            (0..workers)
                .map(|rank| {
                    let members: Vec<_> = groups.members(rank, round).collect();
                    assert!(members.contains(&rank) && members.is_sorted(), "{what}: {members:?}");
                    for member in &members {
                        assert!(groups.members(*member, round).eq(members.iter().copied()), "{what}");
                    }
                    members.iter().map(|member| models[*member]).sum::<f64>() / members.len() as f64
                })
                .collect()
        };
        let off = |models: &[f64]| models.iter().map(|model| (model - mean).abs()).fold(0.0, f64::max);
        let mut models = begin(3);
        for round in 0..u64::from(groups.rounds()) {
            assert!(off(&models) > 1e-3, "{what}: the mean of all after {round} rounds");
            models = average(&models, round + 7 * u64::from(groups.rounds()));
            assert!((models.iter().sum::<f64>() / workers as f64 - mean).abs() < 1e-15, "{what}");
        }
        assert!(off(&models) < 1e-15, "{what}: {models:?}");
        if groups.rounds() > 1 {
            // The same groups each time, and it is not the mean.
            let mut stuck = begin(3);
            (0..8).for_each(|_| stuck = average(&stuck, 0));
            assert!(off(&stuck) > 1e-3, "{what}");
        }
    }
}

#[test]
fn uneven_groups_are_a_partition_and_agreement_grows() {
    for workers in 1..40 {
        for group in 2..6 {
            let groups = Groups::new(workers, group, Partition::Uneven).unwrap();
            let mut random = Random::new(5);
            let mut models: Vec<f64> = (0..workers).map(|_| random.unit()).collect();
            for round in 0..40 * u64::from(groups.rounds()) {
                let members = |rank| groups.members(rank, round).collect::<Vec<_>>();
                models = (0..workers)
                    .map(|rank| {
                        let own = members(rank);
                        assert!(own.contains(&rank) && own.is_sorted() && own.len() <= usize::from(group));
                        assert!(own.iter().all(|member| members(*member) == own));
                        own.iter().map(|member| models[*member]).sum::<f64>() / own.len() as f64
                    })
                    .collect();
            }
            let spread = models.iter().fold(0.0_f64, |most, model| most.max((model - models[0]).abs()));
            assert!(spread < 1e-6, "{workers} in groups of {group}: {spread}");
        }
    }
}

#[test]
fn ds_sync_steps_and_averages_by_turns() {
    let mut worker = config("ds-sync").worker();
    worker.handle_event(NOW, WorkerEvent::Joined { clock: Clock(5) });
    for round in 5..9 {
        assert_eq!(worker.poll_action(), Some(WorkerAction::Compute));
        assert_eq!(worker.poll_action(), None);
        worker.handle_event(NOW, WorkerEvent::Averaged { round });
        worker.handle_event(NOW, WorkerEvent::Published { magnitude: None });
        assert_eq!(worker.poll_action(), Some(WorkerAction::Average { round }));
        assert_eq!(worker.poll_action(), None);
        worker.handle_event(NOW, WorkerEvent::Averaged { round: round + 1 });
        assert_eq!(worker.poll_action(), None, "not its round");
        worker.handle_event(NOW, WorkerEvent::Averaged { round });
    }
}

#[test]
fn damping_divides_by_the_versions_between() {
    let mut server = damped(Config::Asp.server(2).unwrap(), Damping::Inverse, Version(0));
    let mut shares: Vec<Share> = Vec::new();
    let mut weight = |version: u64, events: &[ServerEvent]| {
        events.iter().for_each(|event| server.handle_event(NOW, *event));
        assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
        server.handle_event(NOW, applied(version));
        shares[0].weight
    };
    assert_eq!(weight(1, &[joined(0, 0), joined(1, 0), arrived(0, 0)]), 0.5);
    assert_eq!(weight(2, &[arrived(0, 1)]), 0.5, "one behind is as good as none");
    assert_eq!(weight(3, &[arrived(1, 0)]), 0.25);
    assert_eq!(weight(4, &[arrived(1, 1)]), 0.5 / 3.0);
    assert_eq!([0, 1, 2, 4].map(|age| Damping::Inverse.factor(age)), [1.0, 1.0, 0.5, 0.25]);
    assert_eq!(Damping::None.factor(9), 1.0);
}

fn computed(worker: u16, clock: u64, base: u64, magnitude: f32) -> ServerEvent {
    let (gradient, base) = (super::gradient(worker, clock), Version(base));
    ServerEvent::Arrived { gradient, base, loss: None, magnitude: Some(magnitude) }
}

/// The first gradient of a life is none that the scheme learns the newest version from.
#[test]
fn a_server_knows_the_version_that_its_life_begins_with() {
    let mut shares = Vec::new();
    for text in ["dbw(1)", "delay(0)", "abs(k=1, staleness=0)"] {
        for (base, expected) in
            [(4, ServerAction::Drop { gradient: super::gradient(0, 0) }), (5, ServerAction::Apply)]
        {
            let mut server = config(text).server_at(1, Clock(0), Version(5)).unwrap();
            server.handle_event(NOW, joined(0, 0));
            server.handle_event(NOW, computed(0, 0, base, 1.0));
            assert_eq!(server.poll_action(&mut shares), Some(expected), "{text} on version {base}");
        }
    }
    let mut server = damped(Config::Asp.server(1).unwrap(), Damping::Inverse, Version(5));
    server.handle_event(NOW, joined(0, 0));
    server.handle_event(NOW, computed(0, 0, 3, 1.0));
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
    assert_eq!(shares[0].weight, 0.5);
}

#[test]
fn strong_vap_takes_no_base_for_the_newest_version() {
    let mut server = config("vap(1, strength=strong)").server_at(2, Clock(0), Version(5)).unwrap();
    let mut shares = Vec::new();
    for event in [joined(0, 0), computed(0, 0, u64::MAX, 1.0), joined(1, 0)] {
        server.handle_event(NOW, event);
    }
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
    server.handle_event(NOW, applied(6));
    server.handle_event(NOW, computed(0, 1, 6, 2.0));
    assert_eq!(server.poll_action(&mut shares), None, "the other worker has not seen version 6");
    server
        .handle_event(NOW, ServerEvent::Seen { worker: slackline::clock::WorkerId(1), version: Version(6) });
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
}

/// A worker that waits for its own gradient asks for newer versions, and a gradient that is consumed ends the wait even
/// if no newer version ever comes.
#[test]
fn a_strong_vap_worker_that_waits_goes_on_once_its_own_is_consumed() {
    let mut worker = config("vap(1, strength=strong)").worker();
    let newest = Some(WorkerAction::Refresh { bound: slackline::scheme::Bound::NONE });
    worker.handle_event(NOW, WorkerEvent::Joined { clock: Clock(0) });
    worker.handle_event(NOW, WorkerEvent::Membership { workers: 1 });
    assert_eq!(worker.poll_action(), newest);
    worker.handle_event(NOW, WorkerEvent::Holds { version: Version(4), smallest_clock: Clock(0) });
    assert_eq!(worker.poll_action(), Some(WorkerAction::Compute));
    worker.handle_event(NOW, WorkerEvent::Published { magnitude: Some(0.8) });
    for version in [5, 6] {
        let bound = slackline::scheme::Bound::version(Version(version));
        assert_eq!(worker.poll_action(), Some(WorkerAction::Refresh { bound }));
        assert_eq!(worker.poll_action(), None);
        worker.handle_event(NOW, WorkerEvent::Holds { version: Version(version), smallest_clock: Clock(1) });
    }
    assert!(worker.poll_action().is_some());
    worker.handle_event(NOW, WorkerEvent::Consumed { clock: Clock(1) });
    assert_eq!(worker.poll_action(), newest);
}
