//! Jobs whose processes run C programs.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

use slackline::TransportKind;
use slackline::scheme::SchemeConfig;
use slackline::sim::{Cluster, Distribution, Quadratic, Until};

#[path = "job/programs.rs"]
mod programs;

use programs::{all_trained, are_the_truth, has_trained, run, run_with_a_server_here};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An example as a program, compiled once.
fn example(name: &'static str) -> PathBuf {
    static PROGRAMS: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    PROGRAMS.lock().unwrap().entry(name).or_insert_with(|| programs::compile(name, folder)).clone()
}

#[test]
fn a_job_of_c_programs_trains_over_each_transport() {
    let program = example("parameter_server");
    for transport in ["shm", "tcp"] {
        has_trained(&run(&program, HOST, 3, &[transport]));
    }
}

#[test]
fn workers_in_c_train_with_a_server_in_rust_over_each_transport() {
    let program = example("parameter_server");
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let (weights, workers) = run_with_a_server_here(&program, HOST, transport);
        all_trained(&workers);
        are_the_truth(&weights);
    }
}

#[test]
fn a_job_of_c_programs_that_fails_tells_each_of_them_why() {
    let program = example("parameter_server");
    let outputs = run(&program, HOST, 3, &["pigeon"]);
    for output in outputs {
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text, "error: `pigeon` is no transport; use shm, verbs or tcp\n");
    }
    let mut command = Command::new(&program);
    let alone = command.env_remove("SLACKLINE_RANK").output().unwrap();
    assert!(String::from_utf8_lossy(&alone.stderr).contains("no launcher has started this process"));
}

#[test]
fn a_job_of_c_programs_without_the_rdma_that_it_requires_says_so() {
    let program = example("parameter_server");
    // No host has this device, and so the server cannot listen.
    let outputs = run(
        Path::new("/usr/bin/env"),
        HOST,
        3,
        &["SLACKLINE_RDMA_DEVICE=none", program.to_str().unwrap(), "verbs"],
    );
    let told = |output: &Output| {
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("RDMA")
    };
    assert!(outputs.iter().all(told), "{outputs:?}");
}

#[test]
fn c_programs_without_a_server_average_over_each_transport() {
    let program = example("groups");
    for transport in ["shm", "tcp"] {
        let outputs = run(&program, HOST, 4, &[transport]);
        assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
        for (rank, output) in outputs.iter().enumerate() {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.starts_with(&format!("worker {rank} ends at ")), "{text}");
        }
    }
}

#[test]
fn a_c_program_publishes_weights_to_others() {
    let output = Command::new(example("publish_weights")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("a reader copied ")).count(), 2, "{text}");
}

#[test]
fn a_scheme_written_in_c_trains_in_a_job() {
    let outputs = run(&example("custom_scheme"), HOST, 3, &[]);
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let text = String::from_utf8_lossy(&outputs[0].stdout);
    let weight = text.strip_prefix("trained to ").and_then(|text| text.split(' ').next());
    let weight: f32 = weight.unwrap_or_default().parse().unwrap_or_else(|_| panic!("{text}"));
    assert!((weight - 1.0).abs() < 0.05, "{text}");
}

#[test]
fn a_simulation_from_c_is_the_one_from_rust() {
    let output = Command::new(example("simulate")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = ["bsp", "bap(4)", "ssp(4)", "essp(4)"].map(|scheme| {
        let mut cluster = Cluster::new(scheme.parse::<SchemeConfig>().unwrap(), 8, 1);
        cluster.compute = Distribution::Exponential { mean: 1.0 };
        cluster.problem = Some(Box::new(Quadratic::new(100, 10.0, 1.0, 1)));
        cluster.until = Until::Loss { target: 0.1, within: 10_000.0 };
        let report = cluster.run().unwrap();
        let reached = report.reached.unwrap();
        format!("{scheme:8} {reached:6.1} s, {} versions, {} gradients\n", report.versions, report.gradients)
    });
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected.concat());
}
