//! The schemes that count versions, values or groups.

use slackline::scheme::{
    Damping, Groups, Partition, SchemeConfig, ServerAction, ServerEvent, ServerScheme, Share, WorkerAction,
    WorkerEvent, damped,
};
use slackline::{Clock, Version};

use slackline::sim::Random;

use super::{NOW, applied, arrived, gradient, joined};

fn config(text: &str) -> SchemeConfig {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
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
        (16, 4, Partition::Near { inside: 3 }),
        (27, 3, Partition::Near { inside: 2 }),
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

/// With `k` equal groups at random the squared distance from the mean shrinks to `(k - 1) / (N - 1)` of itself in
/// expectation: two workers are in one group with probability `(N / k - 1) / (N - 1)`.
#[test]
fn random_groups_are_a_partition_and_agree_as_fast_as_chance_has_it() {
    for (workers, group, left) in [(4, 2, 1.0 / 3.0), (16, 4, 1.0 / 5.0), (15, 5, 1.0 / 7.0)] {
        let groups = Groups::new(workers, group, Partition::Random { seed: 9 }).unwrap();
        let other = Groups::new(workers, group, Partition::Random { seed: 10 }).unwrap();
        let (mut sum, mut same, rounds) = (0.0, 0, 4000);
        for round in 0..rounds {
            let members = |rank| groups.members(rank, round).collect::<Vec<_>>();
            let mut random = Random::stream(5, round, 0);
            let models: Vec<f64> = (0..workers).map(|_| random.normal()).collect();
            let mean = models.iter().sum::<f64>() / workers as f64;
            let apart = |models: &[f64]| models.iter().map(|model| (model - mean).powi(2)).sum::<f64>();
            let averaged: Vec<f64> = (0..workers)
                .map(|rank| {
                    let own = members(rank);
                    assert!(own.contains(&rank) && own.is_sorted() && own.len() == usize::from(group));
                    assert!(own.iter().all(|member| members(*member) == own));
                    own.iter().map(|member| models[*member]).sum::<f64>() / own.len() as f64
                })
                .collect();
            sum += apart(&averaged) / apart(&models);
            same += usize::from(other.members(0, round).eq(members(0)));
        }
        let found = sum / rounds as f64;
        assert!(
            (found / left - 1.0).abs() < 0.05,
            "{workers} in groups of {group}: {found}, expected {left}"
        );
        assert!(same < rounds as usize / 2, "{workers} in groups of {group}: seeds make no difference");
    }
}

#[test]
fn dbw_takes_shorter_steps_with_fewer_gradients_where_its_rule_says_so() {
    for (rule, weight) in
        [("constant", 0.5), ("proportional", 0.25), ("knee, knee=4", 0.25), ("knee, knee=2", 0.5)]
    {
        let mut server = config(&format!("dbw(k=2, steps={rule})")).server(4).unwrap();
        (0..4).for_each(|worker| server.handle_event(NOW, joined(worker, 0)));
        (0..2).for_each(|worker| server.handle_event(NOW, arrived(worker, 0)));
        let mut shares: Vec<Share> = Vec::new();
        assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply), "{rule}");
        assert_eq!(shares.iter().map(|share| share.weight).collect::<Vec<_>>(), [weight; 2], "{rule}");
    }
}

#[test]
fn under_dbw_no_gradient_is_dropped_before_an_earlier_one_of_its_worker() {
    let mut server = config("dbw(k=3)").server(4).unwrap();
    let mut shares: Vec<Share> = Vec::new();
    (0..4).for_each(|worker| server.handle_event(NOW, joined(worker, 0)));
    (0..3).for_each(|worker| server.handle_event(NOW, arrived(worker, 0)));
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
    server.handle_event(NOW, applied(1));
    // The last worker lies: it takes its second gradient for one of a version before that of its first.
    for (clock, base) in [(0, 1), (1, 0)] {
        let (gradient, base) = (gradient(3, clock), Version::new(base));
        server.handle_event(NOW, ServerEvent::Arrived { gradient, base, loss: None, magnitude: None });
    }
    while let Some(action) = server.poll_action(&mut shares) {
        assert!(matches!(action, ServerAction::Interrupt { .. }), "{action:?}");
    }
    assert_eq!(server.smallest_clock(), Clock::new(0), "its first gradient is not in");
}

#[test]
fn ds_sync_makes_as_many_steps_as_its_period_between_two_averages() {
    let mut worker = config("ds-sync(group=2, period=3)").worker();
    worker.handle_event(NOW, WorkerEvent::Joined { clock: Clock::new(0) });
    for round in 0..4 {
        for _ in 0..3 {
            assert_eq!(worker.poll_action(), Some(WorkerAction::Compute));
            worker.handle_event(NOW, WorkerEvent::Published { magnitude: None });
        }
        assert_eq!(worker.poll_action(), Some(WorkerAction::Average { round }));
        worker.handle_event(NOW, WorkerEvent::Averaged { round });
    }
}

#[test]
fn ds_sync_steps_and_averages_by_turns() {
    let mut worker = config("ds-sync").worker();
    worker.handle_event(NOW, WorkerEvent::Joined { clock: Clock::new(5) });
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
    let mut server = damped(SchemeConfig::Asp.server(2).unwrap(), Damping::Inverse, Version::new(0));
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

fn computed(worker: u32, clock: u64, base: u64, magnitude: f32) -> ServerEvent {
    let (gradient, base) = (super::gradient(worker, clock), Version::new(base));
    ServerEvent::Arrived { gradient, base, loss: None, magnitude: Some(magnitude) }
}

/// The first gradient of an incarnation is none that the scheme learns the newest version from.
#[test]
fn a_server_knows_the_version_that_its_incarnation_begins_with() {
    let mut shares = Vec::new();
    for text in ["dbw(1)", "delay(0)", "abs(k=1, staleness=0)"] {
        for (base, expected) in
            [(4, ServerAction::Drop { gradient: super::gradient(0, 0) }), (5, ServerAction::Apply)]
        {
            let mut server = config(text).server_at(1, Clock::new(0), Version::new(5)).unwrap();
            server.handle_event(NOW, joined(0, 0));
            server.handle_event(NOW, computed(0, 0, base, 1.0));
            assert_eq!(server.poll_action(&mut shares), Some(expected), "{text} on version {base}");
        }
    }
    let mut server = damped(SchemeConfig::Asp.server(1).unwrap(), Damping::Inverse, Version::new(5));
    server.handle_event(NOW, joined(0, 0));
    server.handle_event(NOW, computed(0, 0, 3, 1.0));
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
    assert_eq!(shares[0].weight, 0.5);
}

#[test]
fn strong_vap_takes_no_base_for_the_newest_version() {
    let mut server = config("vap(1, strength=strong)").server_at(2, Clock::new(0), Version::new(5)).unwrap();
    let mut shares = Vec::new();
    for event in [joined(0, 0), computed(0, 0, u64::MAX, 1.0), joined(1, 0)] {
        server.handle_event(NOW, event);
    }
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
    server.handle_event(NOW, applied(6));
    server.handle_event(NOW, computed(0, 1, 6, 2.0));
    assert_eq!(server.poll_action(&mut shares), None, "the other worker has not seen version 6");
    server.handle_event(
        NOW,
        ServerEvent::Seen { worker: slackline::internals::clock::WorkerId(1), version: Version::new(6) },
    );
    assert_eq!(server.poll_action(&mut shares), Some(ServerAction::Apply));
}

/// A worker that waits for its own gradient asks for newer versions, and a gradient that is consumed ends the wait even
/// if no newer version ever comes.
#[test]
fn a_strong_vap_worker_that_waits_goes_on_once_its_own_is_consumed() {
    let mut worker = config("vap(1, strength=strong)").worker();
    let newest = Some(WorkerAction::Refresh { bound: slackline::scheme::Bound::NONE });
    worker.handle_event(NOW, WorkerEvent::Joined { clock: Clock::new(0) });
    worker.handle_event(NOW, WorkerEvent::Membership { workers: 1 });
    assert_eq!(worker.poll_action(), newest);
    worker.handle_event(NOW, WorkerEvent::Holds { version: Version::new(4), smallest_clock: Clock::new(0) });
    assert_eq!(worker.poll_action(), Some(WorkerAction::Compute));
    worker.handle_event(NOW, WorkerEvent::Published { magnitude: Some(0.8) });
    for version in [5, 6] {
        let bound = slackline::scheme::Bound::version(Version::new(version));
        assert_eq!(worker.poll_action(), Some(WorkerAction::Refresh { bound }));
        assert_eq!(worker.poll_action(), None);
        worker.handle_event(
            NOW,
            WorkerEvent::Holds { version: Version::new(version), smallest_clock: Clock::new(1) },
        );
    }
    assert!(worker.poll_action().is_some());
    worker.handle_event(NOW, WorkerEvent::Consumed { clock: Clock::new(1) });
    assert_eq!(worker.poll_action(), newest);
}

/// Two workers, whose second updates are small beside their first: what counts is the sum of a worker's own.
#[test]
fn published_vap_holds_back_the_worker_whose_sum_is_too_large_and_no_other() {
    let mut server =
        config("vap(4, strength=published)").server_at(2, Clock::new(0), Version::new(0)).unwrap();
    let mut shares = Vec::new();
    let mut poll = |server: &mut Box<dyn ServerScheme>| {
        shares.clear();
        let action = server.poll_action(&mut shares);
        action.map(|action| (action, shares[0].gradient.worker.0))
    };
    let weighed = |worker: u32, clock: u64, largest: f64| ServerEvent::Weighed {
        gradient: super::gradient(worker, clock),
        largest,
    };
    for event in [joined(0, 0), joined(1, 0), computed(0, 0, 0, 9.0), computed(1, 0, 0, 9.0)] {
        server.handle_event(NOW, event);
    }
    // One update alone, of each.
    for worker in [0, 1] {
        assert_eq!(poll(&mut server), Some((ServerAction::Apply, worker)));
        server.handle_event(NOW, applied(u64::from(worker) + 1));
    }
    let seen = |worker: u32, version: u64| ServerEvent::Seen {
        worker: slackline::internals::clock::WorkerId(worker),
        version: Version::new(version),
    };
    for event in [seen(0, 1), computed(0, 1, 1, 9.0), seen(1, 2), computed(1, 1, 2, 9.0)] {
        server.handle_event(NOW, event);
    }
    // All have seen version 1, so that worker 0 has nothing in transit; version 2 is worker 1's.
    assert_eq!(poll(&mut server), Some((ServerAction::Apply, 0)));
    server.handle_event(NOW, applied(3));
    let since = Version::new(1);
    assert_eq!(poll(&mut server), Some((ServerAction::Weigh { since }, 1)));
    assert_eq!(poll(&mut server), None, "it was asked");
    // The bound of update 4 is 4 / sqrt(4).
    server.handle_event(NOW, weighed(1, 1, 2.01));
    assert_eq!(poll(&mut server), None);
    server.handle_event(NOW, seen(0, 2));
    assert_eq!(poll(&mut server), Some((ServerAction::Apply, 1)), "version 2 is seen by all");
    server.handle_event(NOW, applied(4));
    server.handle_event(NOW, seen(1, 4));
    server.handle_event(NOW, computed(1, 2, 4, 9.0));
    assert_eq!(poll(&mut server), Some((ServerAction::Weigh { since: Version::new(2) }, 1)));
    server.handle_event(NOW, weighed(1, 2, 4.0 / 5f64.sqrt()));
    assert_eq!(poll(&mut server), Some((ServerAction::Apply, 1)), "opposite updates add up to little");
}
