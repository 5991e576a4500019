//! Jobs over RDMA, on a host that has a device: `cargo xtask softroce job`.

use std::net::IpAddr;

#[path = "../examples/parameter_server.rs"]
mod parameter_server;
#[path = "job/processes.rs"]
mod processes;
#[path = "job/program.rs"]
mod program;

use processes::{Processes, all_succeeded};

#[test]
fn a_process_runs_the_program_of_its_job() {
    program::run();
}

#[test]
fn a_program_of_a_user_trains_by_rdma() {
    let host: IpAddr = std::env::var("SLACKLINE_RIG_ADDRESS").expect("the rig says").parse().unwrap();
    let variables = [("TRANSPORT", "verbs"), ("SERVERS", "2")];
    let ended = Processes::start(host, "pull_to_one", 4, &variables).end();
    all_succeeded(&ended);
    // Lock step: p' = p - 0.1 (p - 1), 50 times from 0.
    let expected = format!("50 versions to {:.6}", 1.0 - 0.9f64.powi(50));
    for (shard, ended) in ended[..2].iter().enumerate() {
        assert!(ended.stdout.contains(&format!("shard {shard}: {expected}")), "{ended:#?}, not {expected}");
    }
}
