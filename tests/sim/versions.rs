//! Schemes that count versions, and those without a server, against what is known of them.

use slackline::scheme::{
    Choice, Damping, Delivery, Partition, SchemeConfig, Shrink, StepRule, Strength, WaitFor,
};
use slackline::sim::{Cluster, ClusterReport, Distribution, Evaluation, Problem, Quadratic, SimError, Until};

use super::{near, run};

fn exponential(scheme: SchemeConfig, workers: usize, versions: u64) -> ClusterReport {
    let mut cluster = Cluster::new(scheme, workers, 17);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.until = Until::Versions(versions);
    run(cluster)
}

fn abs(k: u16, staleness: Option<u64>) -> SchemeConfig {
    SchemeConfig::Abs { wait_for: WaitFor::Fixed(k), staleness, shrink: Shrink::Fixed, local_steps: 1 }
}

fn backup(k: u16, delivery: Delivery) -> SchemeConfig {
    SchemeConfig::Dbw { delivery, choice: Choice::Static { k }, steps: StepRule::Constant }
}

/// K-async: `M / K - 1` in the mean.
#[test]
fn without_a_bound_the_mean_staleness_follows_from_how_many_are_waited_for() {
    for (k, expected) in [(2, 8.99), (5, 3.0), (10, 1.0)] {
        let report = exponential(abs(k, None), 20, 10_000);
        near(&format!("k = {k}"), report.lag.mean().unwrap(), expected, 0.03);
        assert_eq!((report.counts.interrupted, report.counts.dropped), (0, 0));
    }
}

/// Exponential times have no memory: at each version each of the M workers is among the K that are folded with the
/// probability K/M, whatever it computes on. So what is `age` versions old is there in proportion to `(1 - K/M)^age`,
/// up to the bound of 2; those that are at the bound and not among the K begin again.
#[test]
fn nothing_above_the_bound_is_folded_and_the_too_stale_begin_again() {
    for k in [2, 5, 10] {
        let stays = 1.0 - f64::from(k) / 20.0;
        let (one, two) = (stays, stays * stays);
        let sum = 1.0 + one + two;
        let (lag, restarts) = ((one + 2.0 * two) / sum, 20.0 * stays * two / sum);
        let report = exponential(abs(k, Some(2)), 20, 10_000);
        assert_eq!(report.lag.max(), Some(2));
        near(&format!("k = {k}, mean"), report.lag.mean().unwrap(), lag, 0.03);
        near(&format!("k = {k}, restarts"), report.counts.interrupted as f64 / 1e4, restarts, 0.05);
    }
}

/// Push and interrupt over exponential times: the k-th of n fresh draws, `H_n - H_(n-k)`.
#[test]
fn backup_workers_take_as_long_as_the_kth_of_fresh_draws() {
    for (k, expected) in [(1, 0.0625), (8, 0.6629), (16, 3.3807)] {
        let report = exponential(backup(k, Delivery::Interrupt), 16, 10_000);
        near(&format!("k = {k}"), report.end / 1e4, expected, 0.02);
        assert!(report.waited_for.iter().all(|waited| waited.gradients == usize::from(k)));
        assert_eq!(report.lag.max(), Some(0));
        // All workers but k, at each version except the last one, of which no worker was told yet.
        let interrupted = (16 - u64::from(k)) * 9_999;
        assert!(report.counts.interrupted >= interrupted.saturating_sub(16), "{:?}", report.counts);
        let wasted: f64 = report.of_workers.iter().map(|worker| worker.wasted).sum();
        assert_eq!(wasted > 0.0, k < 16);
    }
}

/// The gradient that an interrupted worker would have computed never arrives; one that had left before is dropped.
#[test]
fn a_gradient_that_was_interrupted_or_came_late_does_not_count() {
    for delivery in [Delivery::Interrupt, Delivery::Wait, Delivery::Pull] {
        let mut cluster = Cluster::new(backup(3, delivery), 8, 5);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.network.latency = Distribution::Exponential { mean: 0.1 };
        cluster.problem = Some(Box::new(Quadratic::new(8, 4.0, 1.0, 1)));
        cluster.until = Until::Versions(500);
        let report = run(cluster);
        assert_eq!((report.lag.total(), report.lag.max()), (1_500, Some(0)), "{delivery:?}");
        assert!(report.counts.dropped > 0, "{delivery:?}");
        assert_eq!(report.counts.interrupted > 0, delivery == Delivery::Interrupt);
        let arrived = report.counts.uploads;
        assert!((1_500 + report.counts.dropped..=arrived).contains(&arrived), "{:?}", report.counts);
    }
}

#[test]
fn dbw_waits_for_more_as_the_gradient_shrinks() {
    let choice = Choice::Dynamic { window: 5, loss_growth: 1.01 };
    let mut cluster = Cluster::new(
        SchemeConfig::Dbw { delivery: Delivery::Interrupt, choice, steps: StepRule::Constant },
        16,
        1,
    );
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    let mut problem = Quadratic::new(64, 4.0, 8.0, 1);
    let target = 1e-3 * problem.evaluate(&problem.initial(1)).loss;
    cluster.problem = Some(Box::new(problem));
    cluster.learning_rate = 0.2;
    cluster.until = Until::Loss { target, within: 2_000.0 };
    let report = run(cluster);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let k: Vec<f64> = report.waited_for.iter().skip(1).map(|waited| waited.gradients as f64).collect();
    let (early, late) = (mean(&k[..k.len() / 4]), mean(&k[k.len() / 2..]));
    assert!(late > early, "{early}, {late}");
}

/// Blind to what gradients are worth, over exponential times: one gradient at a time is the most per second.
#[test]
fn a_blind_choice_over_exponential_times_ends_with_one() {
    let choice = Choice::Blind { window: 5 };
    let report = exponential(
        SchemeConfig::Dbw { delivery: Delivery::Interrupt, choice, steps: StepRule::Constant },
        8,
        2_000,
    );
    let folded = report.lag.total();
    assert!(folded < 2 * report.versions, "{folded} gradients in {} versions", report.versions);
}

#[test]
fn damping_tames_stale_gradients() {
    let last = |damping| {
        let mut cluster = Cluster::new(abs(1, None), 32, 1);
        cluster.compute = Distribution::Uniform { from: 0.9, to: 1.1 };
        cluster.problem = Some(Box::new(Quadratic::new(16, 2.0, 0.01, 1)));
        cluster.learning_rate = 0.25;
        cluster.damping = damping;
        cluster.until = Until::Versions(3_000);
        run(cluster).curve.last().unwrap().loss
    };
    assert!(last(Damping::Inverse) < 1e-2);
    let undamped = last(Damping::None);
    assert!(undamped.is_nan() || undamped > 1e2, "32 workers at full steps diverge: {undamped}");
}

/// One scheme promises, and another, looser by one, or that knows no bound, runs; the judge says what broke.
#[test]
fn every_bound_loosened_by_one_is_caught() {
    let delay = |staleness| SchemeConfig::Delay { staleness, seed: 1 };
    let vap = |bound, strength| SchemeConfig::Vap { bound, strength };
    let growing = |shrink| SchemeConfig::Abs {
        wait_for: WaitFor::LossRatio(2),
        staleness: Some(4),
        shrink,
        local_steps: 1,
    };
    let shorter = SchemeConfig::Dbw {
        delivery: Delivery::Interrupt,
        choice: Choice::Static { k: 3 },
        steps: StepRule::Proportional,
    };
    let behind = "clocks behind, and the bound is";
    let pairs = [
        (SchemeConfig::Ssp { staleness: 2 }, SchemeConfig::Ssp { staleness: 3 }, behind),
        (SchemeConfig::Essp { staleness: 2 }, SchemeConfig::Essp { staleness: 3 }, behind),
        (SchemeConfig::Bap { staleness: 1 }, SchemeConfig::Bap { staleness: 2 }, "and the bound is 1"),
        (abs(2, Some(1)), abs(2, Some(2)), "2 versions late, and the bound is 1"),
        (growing(Shrink::WithK), growing(Shrink::Fixed), "versions late, and the bound is"),
        (abs(3, None), abs(4, None), "made of 4 gradients, not 3..=3"),
        (backup(3, Delivery::Interrupt), backup(4, Delivery::Interrupt), "made of 4 gradients, not 3..=3"),
        (backup(3, Delivery::Interrupt), abs(3, Some(1)), "1 versions late, and the bound is 0"),
        (shorter, backup(3, Delivery::Interrupt), "where each counts 0.125"),
        (delay(2), delay(3), "3 versions late, and the bound is 2"),
        // Requests follow gradients, so only a worker that does not ask has any in transit.
        (vap(0.1, Strength::Weak), SchemeConfig::Ssp { staleness: 3 }, "in transit and"),
        (vap(2.0, Strength::Strong), vap(2.05, Strength::Strong), "that not all have seen"),
        (vap(0.5, Strength::Published), vap(0.505, Strength::Published), "that not all have seen"),
        (vap(0.5, Strength::Published), SchemeConfig::Asp, "that not all have seen"),
    ];
    for (promised, kept, says) in pairs {
        let mut cluster = Cluster::new(promised, 8, 1);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.network.latency = Distribution::Exponential { mean: 0.2 };
        cluster.problem = Some(Box::new(Quadratic::new(8, 2.0, 1.0, 1)));
        cluster.until = Until::Versions(1_000);
        match cluster.run_with(kept.server(8).unwrap(), &mut |_| kept.worker()) {
            Err(SimError::Broken { what, .. }) => {
                assert!(what.contains(says), "{kept} for {promised}: {what}")
            }
            other => panic!("{promised}, run as {kept}: {:?}", other.map(|report| report.counts)),
        }
    }
}

#[test]
fn groups_that_do_not_agree_are_caught() {
    let scheme = SchemeConfig::DsSync { group: 2, partition: Partition::Digits, period: 1 };
    let cluster = Cluster::new(scheme, 4, 1);
    let error = cluster.run_in_groups(&|worker, _| vec![worker, (worker + 1) % 4], &mut |_| scheme.worker());
    assert!(matches!(error, Err(SimError::Broken { .. })));
}

/// A problem in which each worker makes one step of its own, and then none.
struct Scattered;

impl Problem for Scattered {
    fn parameters(&self) -> usize {
        3
    }

    fn initial(&self, _seed: u64) -> Vec<f32> {
        vec![0.0; 3]
    }

    fn gradient(&mut self, worker: usize, step: u64, _parameters: &[f32], gradient: &mut [f32]) -> f32 {
        let index = worker as f32;
        gradient.copy_from_slice(&[-index, -index * index, 1.0]);
        if step > 0 {
            gradient.fill(0.0);
        }
        0.0
    }

    fn evaluate(&mut self, _parameters: &[f32]) -> Evaluation {
        Evaluation { loss: 0.0, accuracy: None }
    }
}

#[test]
fn groups_that_shuffle_have_the_exact_mean_after_as_many_rounds_as_digits() {
    for (workers, group, rounds) in [(4u16, 2, 2), (16, 4, 2), (8, 2, 3), (9, 3, 2), (16, 16, 1)] {
        let cluster = |rounds| {
            let scheme = SchemeConfig::DsSync { group, partition: Partition::Digits, period: 1 };
            let mut cluster = Cluster::new(scheme, workers.into(), 1);
            cluster.compute = Distribution::Exponential { mean: 1.0 };
            cluster.problem = Some(Box::new(Scattered));
            cluster.learning_rate = 1.0;
            cluster.until = Until::Versions(rounds);
            cluster
        };
        let report = run(cluster(rounds));
        let mean = |power: i32| {
            (0..workers).map(|worker| f64::from(worker).powi(power)).sum::<f64>() / f64::from(workers)
        };
        for parameters in &report.parameters {
            for (found, expected) in parameters.iter().zip([mean(1), mean(2), -1.0]) {
                let off = (f64::from(*found) - expected).abs();
                assert!(off <= 1e-6 * expected.abs(), "{workers} in groups of {group}: {found}, {expected}");
            }
        }
        assert!(report.curve.last().unwrap().disagreement.unwrap() < 1e-4);
        if rounds > 1 {
            let disagreement = run(cluster(rounds - 1)).curve.last().unwrap().disagreement.unwrap();
            assert!(disagreement > 0.1, "{workers} in groups of {group}: one round before, {disagreement}");
        }
    }
}

/// `2 (g - 1)` messages after each other and `2 (g - 1) / g` of the parameters over each link.
#[test]
fn averaging_costs_what_a_ring_does() {
    for group in [2u16, 4, 16] {
        let mut cluster =
            Cluster::new(SchemeConfig::DsSync { group, partition: Partition::Digits, period: 1 }, 16, 1);
        cluster.network.latency = Distribution::Constant { seconds: 0.01 };
        cluster.network.worker_bandwidth = Some(1e7);
        cluster.network.message_bytes = Some(1_000_000);
        cluster.until = Until::Versions(10);
        let steps = 2.0 * (f64::from(group) - 1.0);
        let expected = 10.0 * (1.0 + 0.01 * steps + 0.1 * steps / f64::from(group));
        near(&format!("groups of {group}"), run(cluster).end, expected, 1e-6);
    }
}

#[test]
fn local_steps_take_their_time_and_add_up() {
    let scheme = SchemeConfig::Abs {
        wait_for: WaitFor::Fixed(4),
        staleness: None,
        shrink: Shrink::Fixed,
        local_steps: 5,
    };
    let mut cluster = Cluster::new(scheme, 4, 1);
    cluster.problem = Some(Box::new(Quadratic::new(8, 1.0, 0.0, 1)));
    cluster.until = Until::Versions(3);
    let report = run(cluster);
    assert_eq!(report.end, 15.0);
    // Without noise all workers make the same 15 steps, each of which leaves 0.9 of the way.
    let first = report.curve[0].loss;
    near("loss", report.curve.last().unwrap().loss / first, 0.9f64.powi(30), 1e-3);
}

#[test]
fn delayed_updates_are_as_late_as_they_say() {
    for staleness in [0, 4, 10] {
        let report = exponential(SchemeConfig::Delay { staleness, seed: 3 }, 4, 4_000);
        assert_eq!(report.lag.max(), Some(staleness as i64));
        let mean = report.lag.mean().unwrap();
        assert!((mean - staleness as f64 / 2.0).abs() < 0.1, "{mean}");
    }
}

/// Weak: a worker with much in transit waits. Strong: so does the server, for all to have seen.
#[test]
fn bounded_values_wait_the_longer_the_smaller_the_bound() {
    for strength in [Strength::Weak, Strength::Strong, Strength::Published] {
        let end = |bound| {
            let mut cluster = Cluster::new(SchemeConfig::Vap { bound, strength }, 4, 1);
            cluster.compute = Distribution::Exponential { mean: 1.0 };
            cluster.network.latency = Distribution::Constant { seconds: 0.5 };
            cluster.problem = Some(Box::new(Quadratic::new(8, 2.0, 1.0, 1)));
            cluster.until = Until::Versions(400);
            run(cluster).end
        };
        assert!(end(0.01) > 1.1 * end(100.0), "{strength:?}");
    }
}
