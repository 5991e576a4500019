//! Jobs of C programs over RDMA, on a host that has a device: `cargo xtask softroce job-c`.

use std::net::IpAddr;

use slackline::TransportKind;

#[path = "job/programs.rs"]
mod programs;

use programs::{all_trained, are_the_truth, compile, has_trained, run, run_with_a_server_here};

fn host() -> IpAddr {
    std::env::var("SLACKLINE_RIG_ADDRESS").expect("the rig says").parse().unwrap()
}

#[test]
fn a_job_of_c_programs_trains_by_rdma() {
    // The target directory cannot be written in a guest.
    let folder = tempfile::tempdir().unwrap();
    has_trained(&run(&compile("parameter_server", folder.path()), host(), 3, &["verbs"]));
}

#[test]
fn workers_in_c_train_with_a_server_in_rust_by_rdma() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("parameter_server", folder.path());
    let (weights, workers) = run_with_a_server_here(&program, host(), TransportKind::Verbs);
    all_trained(&workers);
    are_the_truth(&weights);
}
