//! Jobs over RDMA, on a host that has a device: `cargo xtask softroce job`.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use slackline::{Verbs, VerbsOptions};

#[path = "../examples/custom_scheme.rs"]
#[expect(dead_code, reason = "its own main program trains over shared memory")]
mod custom_scheme;
#[path = "../examples/parameter_server.rs"]
mod parameter_server;
#[path = "job/processes.rs"]
mod processes;
#[path = "job/program.rs"]
mod program;

use processes::{Processes, all_succeeded};

/// One job at a time: a guest has two processors for the processes of both, and for its device.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_process_runs_the_program_of_its_job() {
    program::run();
}

#[test]
fn a_program_of_a_user_trains_by_rdma() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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

#[test]
fn a_scheme_of_a_user_trains_by_rdma() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let open = || Verbs::open(VerbsOptions::default()).expect("a device");
    let parameters = custom_scheme::train(open, "verbs:127.0.0.1:0".parse().unwrap()).unwrap();
    // 60 clocks of two workers, whose gradients p - 1 weigh a half each at a step size of 0.1: (1 - 0.05)^120 is left.
    assert!(parameters.iter().all(|value| (value - 1.0).abs() < 0.02), "{parameters:?}");
}
