//! Schemes at their limits, where they agree bit for bit.

use slackline::optim::Schedule;
use slackline::scheme::{Choice, Delivery, SchemeConfig, StepRule};
use slackline::sim::{
    Cluster, ClusterReport, Distribution, Factorisation, Logistic, Problem, Quadratic, Shape, Until,
};

use super::run;

const RATE: f32 = 0.1;

fn quadratic() -> Box<dyn Problem> {
    Box::new(Quadratic::new(37, 10.0, 1.0, 5))
}

fn logistic() -> Box<dyn Problem> {
    Box::new(Logistic::new(200, 21, 8, 1e-3, 5))
}

/// Workers that jitter, over a network that does.
fn learning(scheme: SchemeConfig, workers: usize, problem: Box<dyn Problem>, rounds: u64) -> Cluster {
    let mut cluster = Cluster::new(scheme, workers, 3);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.network.latency = Distribution::Exponential { mean: 0.2 };
    cluster.problem = Some(problem);
    cluster.learning_rate = RATE;
    cluster.until = Until::Versions(rounds);
    cluster
}

/// Mini-batch SGD by one loop: the gradients of all workers at the same parameters, added in order.
fn serial(problem: Box<dyn Problem>, workers: usize, rounds: u64) -> Vec<f32> {
    serial_at(|_| RATE, problem, workers, rounds)
}

/// The same, with a step size for each round.
fn serial_at(
    rate: impl Fn(u64) -> f32,
    mut problem: Box<dyn Problem>,
    workers: usize,
    rounds: u64,
) -> Vec<f32> {
    let mut parameters = problem.initial(3);
    let weight = 1.0 / workers as f32;
    for round in 0..rounds {
        let mut sum: Vec<f32> = Vec::new();
        for worker in 0..workers {
            let mut gradient = vec![0.0; parameters.len()];
            problem.gradient(worker, round, &parameters, &mut gradient);
            if worker == 0 {
                sum = gradient.iter().map(|gradient| weight * gradient).collect();
            } else {
                sum.iter_mut().zip(&gradient).for_each(|(sum, gradient)| *sum += weight * gradient);
            }
        }
        parameters.iter_mut().zip(&sum).for_each(|(parameter, sum)| *parameter -= rate(round) * sum);
    }
    parameters
}

#[test]
fn a_schedule_is_that_of_a_serial_loop_to_the_bit() {
    let half_of_it = |round: u64| RATE / (1u64 << (round / 7)) as f32;
    let expected = [serial_at(half_of_it, quadratic(), 3, 60)];
    for scheme in [
        SchemeConfig::Bsp,
        SchemeConfig::Dbw {
            delivery: Delivery::Pull,
            choice: Choice::Static { k: 3 },
            steps: StepRule::Constant,
        },
    ] {
        let mut cluster = learning(scheme, 3, quadratic(), 60);
        cluster.schedule = Schedule::Steps { every: 7, factor: 0.5 };
        assert_eq!(run(cluster).parameters, expected, "{scheme}");
    }
}

/// Without a server every worker has steps of its own to count.
#[test]
fn nothing_moves_after_the_end_of_a_cosine_without_a_server_either() {
    let after = |rounds| {
        let mut cluster = learning(of("ds-sync(2)"), 4, quadratic(), rounds);
        cluster.schedule = Schedule::Cosine { updates: 6 };
        run(cluster).parameters.concat()
    };
    let (during, at_the_end, later) = (after(4), after(8), after(12));
    let far = |one: &[f32], other: &[f32]| {
        one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
    };
    // What still moves is the rounding of means that are formed again.
    assert!(far(&at_the_end, &later) < 1e-6, "{}", far(&at_the_end, &later));
    assert!(far(&during, &at_the_end) > 1e-3, "{}", far(&during, &at_the_end));
}

#[test]
fn bsp_bap_and_delay_without_staleness_are_serial_sgd_to_the_bit() {
    for problem in [quadratic, logistic] {
        for workers in [1, 4, 5] {
            let expected = [serial(problem(), workers, 60)];
            let delay = SchemeConfig::Delay { staleness: 0, seed: 7 };
            for scheme in [SchemeConfig::Bsp, SchemeConfig::Bap { staleness: 0 }, delay] {
                let report = run(learning(scheme, workers, problem(), 60));
                assert_eq!(report.parameters, expected, "{scheme}, {workers} workers");
            }
        }
        for scheme in [SchemeConfig::Ssp { staleness: 0 }, SchemeConfig::Essp { staleness: 0 }] {
            let report = run(learning(scheme, 1, problem(), 60));
            assert_eq!(report.parameters, [serial(problem(), 1, 60)], "{scheme}, alone");
        }
    }
}

fn of(text: &str) -> SchemeConfig {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Times and a network that jitter change when things happen, and nothing else.
#[test]
fn schemes_that_wait_for_all_are_bsp_to_the_bit() {
    let dbw = ["dbw(4)", "dbw(delivery=wait, k=4)", "dbw(delivery=pull, k=4)"];
    let others = ["k-async(4)", "k-sync(4)", "abs(k=4, staleness=2)", "delay(0)", "bap(0)"];
    for problem in [quadratic, logistic] {
        let learnt = |scheme| run(learning(scheme, 4, problem(), 60));
        let bsp = learnt(SchemeConfig::Bsp);
        let last = bsp.curve.last().unwrap();
        for text in dbw.into_iter().chain(others) {
            let report = learnt(of(text));
            assert_eq!(report.parameters, bsp.parameters, "{text}");
            let end = report.curve.last().unwrap();
            assert_eq!((end.loss, end.accuracy), (last.loss, last.accuracy), "{text}");
        }
    }
}

/// Both fold the first three gradients of a version, and begin the fourth again. With a network between, the worker
/// that is told first may differ.
#[test]
fn k_sync_is_dbw_with_interrupts_to_the_bit() {
    let learnt = |text| {
        let mut cluster = learning(of(text), 4, logistic(), 60);
        cluster.network.latency = Distribution::Constant { seconds: 0.0 };
        run(cluster)
    };
    let (dbw, k_sync) = (learnt("dbw(3)"), learnt("k-sync(3)"));
    assert_eq!(dbw.parameters, k_sync.parameters);
    assert!(dbw.counts.interrupted > 0 && dbw.parameters != [serial(logistic(), 4, 60)]);
}

/// Asserts that all parameters are those of BSP but for rounding, after so many rounds of four workers on `logistic`.
fn assert_near_bsp(report: &ClusterReport, rounds: u64) {
    let serial = serial(logistic(), 4, rounds);
    for parameters in &report.parameters {
        let off = parameters.iter().zip(&serial).map(|(one, other)| (one - other).abs());
        assert!(off.fold(0.0, f32::max) < 1e-6, "{}", report.scheme);
    }
    let bsp = run(learning(SchemeConfig::Bsp, 4, logistic(), rounds));
    let [end, expected] = [report, &bsp].map(|report| report.curve.last().unwrap().loss);
    super::near(&report.scheme, end, expected, 1e-7);
}

/// Each gradient is a step of its own, of a quarter: in step they make that of BSP, but for rounding. Where times or
/// messages jitter a worker may also see gradients of its own clock (the best-effort part of a read), and it is BSP no
/// more.
#[test]
fn ssp_and_essp_without_staleness_and_in_step_are_bsp_but_for_rounding() {
    for scheme in [SchemeConfig::Ssp { staleness: 0 }, SchemeConfig::Essp { staleness: 0 }] {
        let mut cluster = learning(scheme, 4, logistic(), 4 * 50);
        cluster.compute = Distribution::Constant { seconds: 1.0 };
        cluster.network.latency = Distribution::Constant { seconds: 0.0 };
        assert_near_bsp(&run(cluster), 50);
    }
}

/// Alone and reading its own writes, a worker sees what the server will make of them, however stale its copy is.
#[test]
fn a_worker_that_reads_its_own_writes_is_serial_however_stale_its_copies() {
    for staleness in [2, 5] {
        let scheme = SchemeConfig::Ssp { staleness };
        let mut cluster = learning(scheme, 1, logistic(), 60);
        cluster.network.latency = Distribution::Constant { seconds: 0.7 };
        cluster.read_my_writes = true;
        let report = run(cluster);
        assert!(report.lag.max() > Some(0), "{scheme}: copies were stale");
        assert_eq!(report.parameters, [serial(logistic(), 1, 60)], "{scheme}");
    }
}

#[test]
fn every_problem_is_learnt() {
    let shape = Shape::default();
    let problems: [(Box<dyn Problem>, f32, f64); 3] = [
        (Box::new(Quadratic::new(50, 10.0, 0.1, 1)), 0.2, 0.01),
        (Box::new(Logistic::new(500, 20, 16, 1e-3, 1)), 0.5, 0.8),
        (Box::new(Factorisation::new(shape, 1)), 4.0, 0.25),
    ];
    for (problem, rate, part) in problems {
        let mut cluster = learning(SchemeConfig::Ssp { staleness: 2 }, 4, problem, 6_000);
        cluster.learning_rate = rate;
        let curve = run(cluster).curve;
        let (first, last) = (curve[0], curve[curve.len() - 1]);
        assert!(last.loss < part * first.loss, "from {first:?} to {last:?}");
        assert!(last.accuracy.is_none_or(|accuracy| accuracy > 0.75), "{last:?}");
    }
}

#[test]
fn gradients_are_those_of_the_losses() {
    let problems: [Box<dyn Problem>; 3] =
        [quadratic(), logistic(), Box::new(Factorisation::new(Shape::default(), 2))];
    for mut problem in problems {
        let at = problem.initial(1);
        let mut gradient = vec![0.0; at.len()];
        problem.gradient(2, 9, &at, &mut gradient);
        for index in [0, 7, 20] {
            let mut loss = |step: f32| {
                let mut there = at.clone();
                there[index] += step;
                f64::from(problem.gradient(2, 9, &there, &mut vec![0.0; at.len()]))
            };
            let slope = (loss(0.01) - loss(-0.01)) / 0.02;
            assert!((slope - f64::from(gradient[index])).abs() < 2e-3, "{slope}, {}", gradient[index]);
        }
    }
}

/// Averaging the parameters after a step from the same ones is averaging gradients, but for rounding.
#[test]
fn one_group_of_all_is_averaging_of_parameters() {
    let report = run(learning(of("ds-sync(4)"), 4, logistic(), 50));
    assert_eq!((report.versions, report.counts.averages), (50, 50));
    assert!(report.parameters.iter().all(|parameters| *parameters == report.parameters[0]));
    assert_eq!(report.curve.last().unwrap().disagreement, Some(0.0));
    assert_near_bsp(&report, 50);
}

/// In groups of the test's own.
fn averaged(cluster: Cluster, members: &dyn Fn(usize, u64) -> Vec<usize>) -> ClusterReport {
    let report = cluster.run_in_groups(members, &mut |_| of("ds-sync(2)").worker());
    report.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_straggler_holds_up_its_own_pair_at_once_and_the_rest_later() {
    let mut cluster = Cluster::new(SchemeConfig::Bsp, 4, 1);
    cluster.factors = vec![1.0, 1.0, 1.0, 3.0];
    cluster.until = Until::Seconds(10.5);
    // Pairs that never change: only one of them is slow.
    let report = averaged(cluster, &|worker, _| vec![worker & !1, worker | 1]);
    let clocks: Vec<u64> = report.of_workers.iter().map(|worker| worker.clocks).collect();
    assert_eq!(clocks, [10, 10, 4, 3]);
}

/// Workers crash and come back; those that are left average on.
#[test]
fn groups_go_on_without_those_who_crash() {
    for seed in 0..20 {
        let mut cluster = learning(SchemeConfig::Bsp, 4, quadratic(), 40);
        cluster.seed = seed;
        cluster.faults.lifetime = Some(Distribution::Exponential { mean: 20.0 });
        cluster.faults.downtime = Some(Distribution::Exponential { mean: 5.0 });
        cluster.faults.detection = 0.5;
        let digits = |worker: usize, round: u64| match round % 2 {
            0 => vec![worker & !1, worker | 1],
            _ => vec![worker & !2, worker | 2],
        };
        let report = averaged(cluster, &digits);
        assert!(report.versions >= 40 && report.counts.crashes > 0, "seed {seed}");
    }
}

/// A name of 16 bits would make one of two workers that are 65,536 apart.
#[test]
fn more_workers_than_the_peers_of_a_real_server_each_make_their_own_clocks() {
    let workers = 66_000;
    let mut cluster = Cluster::new(SchemeConfig::Ssp { staleness: 1 }, workers, 1);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.until = Until::Clocks(2);
    let report = run(cluster);
    assert_eq!(report.of_workers.len(), workers);
    assert!(report.of_workers.iter().all(|worker| worker.clocks >= 2));
    assert_eq!(report.gradients, report.of_workers.iter().map(|worker| worker.clocks).sum::<u64>());
}

/// Four is a power of two, so that a quarter of a gradient and a quarter of the step size round alike.
#[test]
fn updates_that_add_up_are_means_at_a_step_size_divided_by_the_workers() {
    for scheme in ["bsp", "asp", "ssp(2)", "essp(2)", "bap(2)"] {
        let ended = |additive, rate| {
            let mut cluster = learning(of(scheme), 4, logistic(), 200);
            (cluster.additive, cluster.learning_rate, cluster.read_my_writes) = (additive, rate, true);
            run(cluster).parameters
        };
        let sums = ended(true, 0.125);
        assert_eq!(sums, ended(false, 0.5), "{scheme}");
        assert_ne!(sums, ended(false, 0.125), "{scheme}");
    }
}
