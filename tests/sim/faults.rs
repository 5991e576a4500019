//! Faults of workers and networks, with results that are computed by hand.

use slackline::scheme::{self, SchemeConfig};
use slackline::sim::{Cluster, Crash, Direction, Distribution, NetworkPartition, Quadratic, Until};

use super::{near, run};

fn in_step(workers: usize) -> Cluster {
    let mut cluster = Cluster::new(SchemeConfig::Bsp, workers, 1);
    cluster.until = Until::Versions(10);
    cluster
}

#[test]
fn a_partition_holds_up_one_direction_until_it_ends() {
    for direction in [Direction::Up, Direction::Down] {
        let mut cluster = in_step(2);
        cluster.faults.partitions =
            vec![NetworkPartition { workers: 0..1, direction, from: 5.2, until: 15.5 }];
        let report = run(cluster);
        // What is held up on the way up is the sixth gradient, on the way down the copy to compute the seventh on:
        // either way the seventh round ends at 16.5.
        assert_eq!(report.end, 16.5 + 3.0, "{direction:?}");
        assert_eq!(report.of_workers[1].computing, 10.0);
    }
}

#[test]
fn a_round_goes_on_without_a_worker_once_its_crash_is_noticed() {
    let mut cluster = in_step(3);
    cluster.faults.crashes = vec![Crash { worker: 2, at: 3.5, back: None }];
    cluster.faults.detection = 2.0;
    let report = run(cluster);
    // The fourth round waits for the one that crashed until 5.5.
    assert_eq!((report.end, report.counts.crashes), (5.5 + 6.0, 1));
    assert_eq!((report.of_workers[2].clocks, report.of_workers[2].wasted), (3, 0.5));
}

#[test]
fn a_worker_that_comes_back_joins_the_round_that_runs() {
    let mut cluster = in_step(3);
    cluster.faults.crashes = vec![Crash { worker: 2, at: 3.5, back: Some(7.2) }];
    cluster.faults.detection = 2.0;
    let report = run(cluster);
    // Round six began at 6.5; the one that comes back at 7.2 needs until 8.2.
    assert_eq!(report.end, 8.2 + 4.0);
    assert_eq!(report.of_workers[2].clocks, 3 + 5);
}

#[test]
fn a_message_that_comes_twice_counts_once() {
    for scheme in [SchemeConfig::Bsp, SchemeConfig::Ssp { staleness: 2 }, SchemeConfig::Essp { staleness: 2 }]
    {
        let parameters = |replay| {
            let mut cluster = Cluster::new(scheme, 4, 1);
            cluster.compute = Distribution::Exponential { mean: 1.0 };
            cluster.problem = Some(Box::new(Quadratic::new(16, 4.0, 1.0, 1)));
            cluster.faults.replay = replay;
            let report = run(cluster);
            assert_eq!(report.counts.replayed > 0, replay > 0.0, "{scheme}");
            report.parameters
        };
        assert_eq!(parameters(0.0), parameters(0.3), "{scheme}");
    }
}

#[test]
fn what_is_lost_is_sent_again_and_takes_longer() {
    let end = |loss| {
        let mut cluster = in_step(4);
        cluster.faults.loss = loss;
        cluster.faults.retransmission = 0.5;
        let report = run(cluster);
        assert_eq!(report.counts.lost > 0, loss > 0.0);
        assert_eq!(report.end % 0.5, 0.0, "every loss costs half a second");
        report.end
    };
    assert_eq!(end(0.0), 10.0);
    assert!(end(0.2) > 11.0);
}

#[test]
fn a_job_whose_last_worker_is_gone_is_stuck() {
    let mut cluster = in_step(1);
    cluster.faults.crashes = vec![Crash { worker: 0, at: 3.5, back: None }];
    let error = cluster.run().unwrap_err().to_string();
    assert!(error.contains("no worker is in, and none will come"), "{error}");
}

#[test]
fn an_incarnation_takes_time_however_short_it_is() {
    let mut cluster = in_step(1);
    cluster.faults.lifetime = Some(Distribution::Exponential { mean: 1e-12 });
    cluster.faults.downtime = Some(Distribution::Constant { seconds: 0.0 });
    cluster.until = Until::Seconds(1e-6);
    let crashes = run(cluster).counts.crashes;
    assert!((1..=1_000).contains(&crashes), "{crashes}");
}

#[test]
fn what_a_dead_incarnation_sent_holds_up_nothing_of_the_next() {
    let mut cluster = Cluster::new(SchemeConfig::Bsp, 1, 1);
    cluster.network.latency = Distribution::Constant { seconds: 1.0 };
    cluster.network.worker_bandwidth = Some(1e4);
    cluster.network.server_bandwidth = Some(1e9);
    cluster.network.message_bytes = Some(1_000_000);
    cluster.until = Until::Versions(1);
    // The first copy is there at 102, its gradient is sent at 103 and begins to arrive, for 100 s, at 104.
    cluster.faults.crashes = vec![Crash { worker: 0, at: 103.5, back: Some(103.6) }];
    // Ask, copy, compute, gradient: each message a latency, those with bytes 100 s more.
    near("end", run(cluster).end, 103.6 + 1.0 + 101.0 + 1.0 + 101.0, 1e-6);
}

#[test]
fn who_comes_back_to_a_group_that_has_begun_keeps_its_own_parameters() {
    let groups = SchemeConfig::DsSync { group: 3, partition: scheme::Partition::Digits, period: 1 };
    let mut cluster = Cluster::new(groups, 3, 1);
    cluster.problem = Some(Box::new(Quadratic::new(8, 2.0, 1.0, 1)));
    cluster.network.latency = Distribution::Constant { seconds: 10.0 };
    cluster.until = Until::Versions(1);
    // The others begin without it at 1.5 and have their mean at 21.5; it is back at 2 and has made a step at 3.
    cluster.faults.crashes = vec![Crash { worker: 2, at: 0.5, back: Some(2.0) }];
    cluster.faults.detection = 1.0;
    let report = run(cluster);
    assert_eq!((report.end, report.counts.averages), (21.5, 1));
    let [one, other, late] = &report.parameters[..] else { panic!("three workers") };
    assert_eq!(one, other);
    assert_ne!(one, late, "the mean is not of its parameters");
}

/// Worker 2 is away from 84.5 to 86.5, and begins where the others are.
#[test]
fn who_comes_back_to_groups_begins_at_their_round_whatever_its_period() {
    let end = |period, back| {
        let groups = SchemeConfig::DsSync { group: 2, partition: scheme::Partition::Digits, period };
        let mut cluster = Cluster::new(groups, 4, 1);
        cluster.until = Until::Clocks(160);
        cluster.faults.crashes = vec![Crash { worker: 2, at: 84.5, back }];
        run(cluster).end
    };
    assert_eq!([1, 8].map(|period| end(period, None)), [160.0; 2]);
    for period in [1, 8] {
        let end = end(period, Some(86.5));
        assert!((160.0..=160.0 + f64::from(period)).contains(&end), "period {period}: {end}");
    }
}
