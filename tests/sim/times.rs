//! Times that clocks, rounds and computations take.

use slackline::scheme::{Partition, SchemeConfig};
use slackline::sim::{Change, Cluster, Distribution, Network, Quadratic, Until};

use super::{near, run};

fn exponential(scheme: SchemeConfig, workers: usize, clocks: u64) -> Cluster {
    let mut cluster = Cluster::new(scheme, workers, 11);
    cluster.compute = Distribution::Exponential { mean: 1.0 };
    cluster.until = Until::Clocks(clocks);
    cluster
}

/// The largest of `n` exponential times is the harmonic number `H_n` in the mean.
#[test]
fn a_clock_of_bsp_takes_as_long_as_the_slowest() {
    for (workers, expected) in [(4, 2.083), (8, 2.7179), (16, 3.381)] {
        let report = run(exponential(SchemeConfig::Bsp, workers, 20_000));
        near(&format!("{workers} workers"), report.mean_time_per_clock, expected, 0.02);
        let waiting: f64 = report.of_workers.iter().map(|worker| worker.waiting).sum();
        near("time not computing", waiting / workers as f64 / 20_000.0, expected - 1.0, 0.03);
    }
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    for scheme in [
        SchemeConfig::Bsp,
        SchemeConfig::Asp,
        SchemeConfig::Ssp { staleness: 2 },
        SchemeConfig::Essp { staleness: 2 },
    ] {
        let hash = |seed, learns| {
            let mut cluster = exponential(scheme, 6, 50);
            cluster.seed = seed;
            cluster.network.latency = Distribution::Exponential { mean: 0.1 };
            cluster.faults.loss = 0.05;
            cluster.faults.replay = 0.1;
            if learns {
                cluster.problem = Some(Box::new(Quadratic::new(8, 4.0, 1.0, 1)));
            }
            run(cluster).trace_hash
        };
        assert_eq!(hash(1, false), hash(1, false), "{scheme}");
        assert_eq!(hash(1, false), hash(1, true), "{scheme}: learning takes no time");
        assert_ne!(hash(1, false), hash(2, false), "{scheme}");
    }
}

#[test]
fn staleness_does_not_hide_a_worker_that_is_always_slow() {
    for staleness in [0, 1, 4, 16] {
        let mut cluster = exponential(SchemeConfig::Ssp { staleness }, 4, 3_000);
        cluster.compute = Distribution::Uniform { from: 0.9, to: 1.1 };
        cluster.factors = vec![1.0, 3.0];
        near(&format!("s = {staleness}"), run(cluster).mean_time_per_clock, 3.0, 0.01);
    }
}

#[test]
fn essp_reads_fresh_copies_where_ssp_reads_any_that_are_allowed() {
    for staleness in [4u64, 8] {
        let histogram = |scheme| {
            let mut cluster = exponential(scheme, 8, 300);
            cluster.compute = Distribution::Uniform { from: 0.95, to: 1.05 };
            run(cluster).staleness
        };
        let (ssp, essp) =
            (histogram(SchemeConfig::Ssp { staleness }), histogram(SchemeConfig::Essp { staleness }));
        let oldest = -1 - staleness as i64;
        assert_eq!((ssp.min(), ssp.max()), (Some(oldest), Some(-1)));
        for clock in oldest..-1 {
            assert!(ssp.part(clock..=clock) > 0.3 / (staleness + 1) as f64, "{ssp:?}");
        }
        assert!(essp.part(-2..=-1) > 0.8, "{essp:?}");
        assert!(essp.mean() > ssp.mean());
    }
}

/// `N` gradients of 1 MB come at once over a link of 10 MB/s, and `N` copies leave over it.
#[test]
fn a_round_of_bsp_grows_with_those_who_come_at_once() {
    for workers in [1, 4, 16, 64] {
        let mut cluster = Cluster::new(SchemeConfig::Bsp, workers, 1);
        cluster.network = Network {
            latency: Distribution::Constant { seconds: 0.01 },
            worker_bandwidth: Some(1e7),
            server_bandwidth: Some(1e7),
            message_bytes: Some(1_000_000),
            racks: None,
        };
        cluster.until = Until::Versions(50);
        // The last copy has left after 0.1 s for each worker; it takes a latency, then 1 s of computing, then another
        // latency and 0.1 s for the gradient: those of the others came while that one was computed. The first request
        // takes a latency too, later ones were there before.
        let round = 1.12 + 0.1 * workers as f64;
        near(&format!("{workers} workers"), run(cluster).end, 0.01 + 50.0 * round, 1e-6);
    }
}

#[test]
fn a_change_on_the_way_slows_those_whom_it_names() {
    let mut cluster = Cluster::new(SchemeConfig::Asp, 4, 1);
    cluster.changes = vec![Change { at: 99.5, workers: 2..4, factor: 5.0 }];
    cluster.until = Until::Seconds(200.25);
    let clocks: Vec<u64> = run(cluster).of_workers.iter().map(|worker| worker.clocks).collect();
    assert_eq!(clocks, [200, 200, 120, 120]);
}

/// Mean time per clock under exponential times: the recurrence `f[c,i] = max(f[c-1,i], max_j f[c-1-s,j]) + x[c,i]`.
#[test]
fn bap_takes_as_long_as_its_recurrence_says() {
    let table = [
        (4, [2.083, 1.515, 1.337, 1.199, 1.109, 1.058]),
        (8, [2.7179, 1.793, 1.509, 1.296, 1.161, 1.084]),
        (16, [3.381, 2.080, 1.687, 1.394, 1.212, 1.110]),
    ];
    for (workers, row) in table {
        for (staleness, expected) in [0, 1, 2, 4, 8, 16].into_iter().zip(row) {
            let report = run(exponential(SchemeConfig::Bap { staleness }, workers, 10_000));
            near(&format!("{workers} workers, s = {staleness}"), report.mean_time_per_clock, expected, 0.02);
        }
    }
}

#[test]
fn a_computation_takes_time_however_short_it_is() {
    let too_short: [fn(&mut Cluster); 3] = [
        |cluster| cluster.compute = Distribution::Constant { seconds: 1e-10 },
        |cluster| cluster.factors = vec![1e-12; 2],
        |cluster| cluster.changes = vec![Change { at: 0.0, workers: 0..2, factor: f64::MIN_POSITIVE }],
    ];
    for shorten in too_short {
        let mut cluster = Cluster::new(SchemeConfig::Asp, 2, 1);
        shorten(&mut cluster);
        cluster.until = Until::Seconds(1e-6);
        let report = run(cluster);
        assert!(report.end <= 1e-6 && report.gradients > 0 && report.gradients <= 2_000, "{report:?}");
    }
}

#[test]
fn a_target_is_looked_for_though_times_have_no_mean() {
    let mut cluster = Cluster::new(SchemeConfig::Asp, 4, 1);
    cluster.compute = Distribution::Pareto { shape: 1.0, scale: 0.5 };
    cluster.problem = Some(Box::new(Quadratic::new(8, 2.0, 0.0, 1)));
    cluster.until = Until::Loss { target: 1e-3, within: 1e4 };
    let report = run(cluster);
    assert!(report.reached.is_some_and(|at| at < 1e3), "{:?}", report.reached);
    assert!(report.curve.len() > 10);
}

#[test]
fn a_thousand_workers_average_as_one_group() {
    let mut cluster =
        Cluster::new(SchemeConfig::DsSync { group: 1000, partition: Partition::Digits, period: 1 }, 1000, 1);
    cluster.until = Until::Versions(2);
    let report = run(cluster);
    assert_eq!((report.end, report.counts.averages), (2.0, 2));
}

/// One worker begins a clock and a half late. When another one begins clock `c`, at second `c`, it has completed those
/// before `c - 2`: what is read is of clock `c - 3`. The late one reads what holds all but its own last gradient, which
/// it has only just sent. Nothing brings even workers together again.
#[test]
fn even_workers_that_begin_apart_stay_apart() {
    let mut cluster = Cluster::new(SchemeConfig::Essp { staleness: 4 }, 8, 1);
    cluster.starts = vec![1.5];
    cluster.until = Until::Clocks(200);
    let report = run(cluster);
    let apart = report.staleness.part(-3..=-3);
    assert!((0.86..=0.89).contains(&apart), "seven of eight workers: {apart}");
    near("the late worker waits for no other", report.staleness.part(-2..=-2), 1.0 / 8.0, 0.1);
    assert_eq!(report.end, 201.5);
}
