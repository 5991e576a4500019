//! The main job over a network that delays and loses packets in both directions.
//!
//! Needs what the tests of [`hosts`](../hosts/index.html) need, and a kernel with netem (`sch_netem`):
//! `cargo xtask test netem`, which says so where there is none.

#[expect(dead_code, reason = "used by the tests of other jobs")]
mod fleet;
#[expect(dead_code, reason = "used by the tests of other jobs")]
#[path = "../../tests/network/namespaces.rs"]
mod namespaces;

use fleet::Fleet;
use fleet::running::paths;

#[test]
fn training_converges_over_a_network_that_delays_and_loses_packets() {
    for scheme in ["bsp", "ssp"] {
        let fleet = Fleet::new();
        for host in [0, 1, 2] {
            let netem = "qdisc add dev eth0 root netem delay 5ms loss 1%";
            if let Err(error) = fleet.hosts[host].try_run("tc", &netem.split(' ').collect::<Vec<_>>()) {
                panic!("{error}this kernel has no netem: load the module sch_netem, or use one that has it");
            }
        }
        fleet.job(&format!("--scheme {scheme} --epochs 20 --learning-rate 0.04")).succeeds();
        let json = fleet.json();
        assert_eq!((&json["evicted"], paths(&json)), (&0.into(), vec!["shm", "shm", "tcp", "tcp"]), "{json}");
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.93, "{json}");
    }
}
