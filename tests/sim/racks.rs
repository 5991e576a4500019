//! Averages on the links of racks, held to a fluid model by hand: a link is a pipe, and what flows through it is shared
//! so that the least of all rates is as large as it can be, then the next, and so on.

use slackline::scheme::{Partition, SchemeConfig};
use slackline::sim::{Cluster, ClusterReport, Collective, Distribution, Racks, Until};

use super::{near, run};

/// Racks of two, whose links carry 100 bytes/s; those of workers have no limit.
fn two_racks() -> Racks {
    Racks { size: 2, uplink: 100.0, links: Vec::new(), others: Vec::new(), average: Collective::Ring }
}

/// Four workers that compute for a second, and then average in groups by the digits of their ranks.
fn four(group: u16, bytes: u64, racks: Racks) -> Cluster {
    let scheme = SchemeConfig::DsSync { group, partition: Partition::Digits, period: 1 };
    let mut cluster = Cluster::new(scheme, 4, 1);
    cluster.network.message_bytes = Some(bytes);
    cluster.network.racks = Some(racks);
    cluster
}

fn until(mut cluster: Cluster, until: Until) -> ClusterReport {
    cluster.until = until;
    run(cluster)
}

/// The time at which a worker had its last mean, if the end of the run cuts off the gradient that it computes since.
fn averaged(report: &ClusterReport, worker: usize) -> f64 {
    report.end - report.of_workers[worker].wasted
}

/// In round 0 the pairs {0, 1} and {2, 3} average within their racks, which takes no time: at 1.5 s, when the slower of
/// each is done. In round 1 pair A = {0, 2} begins at 2.5 s, and pair B = {1, 3} at 3 s. A ring of two has a flow each
/// way, of 2 (2 - 1) / 2 times the message, 180 bytes; each pair has one flow up and one down in each rack.
///
/// From 2.5 s to 3 s A is alone at 100 bytes/s: 130 bytes are left. Then both go at 50 bytes/s: A is done 2.6 s later,
/// at 5.6 s, when B has 180 - 130 = 50 bytes left. Alone at 100 bytes/s it takes 0.5 s more: 6.1 s.
#[test]
fn pairs_share_the_links_of_racks_for_as_long_as_both_are_on_them() {
    let mut cluster = four(2, 180, two_racks());
    cluster.factors = vec![1.0, 1.5, 1.0, 1.5];
    let report = until(cluster, Until::Versions(2));
    near("pair A", averaged(&report, 0), 5.6, 1e-6);
    near("pair B", report.end, 6.1, 1e-6);
}

/// Worker 2 has a link of 20 bytes/s, the others of 1 MB/s. Round 0 of {2, 3} carries 160 bytes at 20 bytes/s, from 1 s
/// to 9 s. Both pairs of round 1 begin at 10 s, when {2, 3} have their second gradients. The link of worker 2
/// holds pair A at 20 bytes/s; that leaves B 80 of the racks' 100 bytes/s, and not the half. B is done 160 / 80 = 2 s
/// later, at 12 s, and A after 160 / 20 = 8 s, at 18 s.
#[test]
fn a_pair_leaves_to_others_what_a_link_of_its_own_keeps_it_from() {
    let slow = || four(2, 160, Racks { links: vec![1e6, 1e6, 20.0, 1e6], ..two_racks() });
    let early = until(slow(), Until::Seconds(12.5));
    near("pair B", averaged(&early, 1), 12.0, 1e-6);
    near("pair A", until(slow(), Until::Versions(2)).end, 18.0, 1e-6);
}

/// A ring of all four has the flows 0 to 1, 1 to 2, 2 to 3 and 3 to 0, of 2 (4 - 1) / 4 times 100 bytes: 150. One goes
/// up from each rack. An endless flow from rack 0 to rack 1 takes half of the way of 1 to 2, and so the ring goes at 50
/// bytes/s and takes 3 s, without the other flow 1.5 s; both from 1 s on. In a hierarchy each rack of two first carries
/// (2 - 1) / 2 of 100 bytes on its workers' links of 1000 bytes/s, which takes 0.05 s; then two rings of two across
/// carry 50 bytes each at 50 bytes/s, 1 s; then each rack gathers, 0.05 s.
#[test]
fn others_flows_slow_a_ring_and_a_hierarchy_crosses_racks_with_less() {
    let contended = until(four(4, 100, Racks { others: vec![(0, 1)], ..two_racks() }), Until::Versions(1));
    near("beside another flow", contended.end, 4.0, 1e-6);
    near("alone", until(four(4, 100, two_racks()), Until::Versions(1)).end, 2.5, 1e-6);
    let mut hierarchy = four(4, 100, Racks { average: Collective::Hierarchical, ..two_racks() });
    hierarchy.network.worker_bandwidth = Some(1000.0);
    near("in a hierarchy", until(hierarchy, Until::Versions(1)).end, 2.1, 1e-6);
}

#[test]
fn in_one_rack_an_average_takes_as_long_as_without_racks() {
    let time = |racks| {
        let scheme = SchemeConfig::DsSync { group: 4, partition: Partition::Digits, period: 1 };
        let mut cluster = Cluster::new(scheme, 16, 1);
        cluster.network.latency = Distribution::Constant { seconds: 20e-6 };
        cluster.network.worker_bandwidth = Some(1.25e9);
        cluster.network.message_bytes = Some(100_000_000);
        cluster.network.racks = racks;
        until(cluster, Until::Versions(5)).end
    };
    let rack = Racks { size: 16, ..two_racks() };
    // Six messages of 20 us and 1.5 times 80 ms beside each second.
    near("without racks", time(None), 5.0 * 1.12012, 1e-6);
    near("in one rack", time(Some(rack)), 5.0 * 1.12012, 1e-6);
}

#[test]
fn racks_that_cannot_be_are_refused_with_a_remedy() {
    let empty = Racks { size: 0, ..two_racks() };
    let beyond = Racks { others: vec![(0, 2)], ..two_racks() };
    let still = Racks { uplink: 0.0, ..two_racks() };
    for (racks, remedy) in [(empty, "1 or more"), (beyond, "count from 0"), (still, "above 0")] {
        let error = four(2, 100, racks).run().unwrap_err().to_string();
        assert!(error.contains(remedy), "{error}");
    }
    let mut served = Cluster::new(SchemeConfig::Bsp, 4, 1);
    served.network.racks = Some(two_racks());
    let error = served.run().unwrap_err().to_string();
    assert!(error.contains("use ds-sync"), "{error}");
}
