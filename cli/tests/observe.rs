//! A job that is watched while it runs: every node serves its metrics, and `top` shows them.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use slackline::RendezvousEndpoint;
use slackline_cli::metrics;

mod common;
use common::Run;

const PATIENCE: Duration = Duration::from_secs(180);

/// Returns consecutive ports, one for each process of this test, at which no process listens yet.
fn ports(count: u16) -> Vec<String> {
    let host = Ipv4Addr::LOCALHOST;
    let some = |_attempt| {
        let RendezvousEndpoint { port: first, .. } = RendezvousEndpoint::free(host.into()).unwrap();
        first..first + count
    };
    // Those of the other tests, whose processes may not listen yet, are not free.
    static GIVEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |port| !given.contains(&port) && TcpListener::bind((host, port)).is_ok();
    let are_free = |ports: &Range<u16>| ports.clone().all(is_free);
    let ports = (0..100).map(some).find(are_free).expect("there are free ports side by side");
    given.extend(ports.clone());
    ports.map(|port| format!("{host}:{port}")).collect()
}

fn scrape(address: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream
        .write_all(
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_owned())
}

/// The value of a metric of a node, once it is told.
fn value(address: &str, name: &str) -> f64 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let samples = scrape(address).and_then(|text| metrics::parse(&text).ok());
        if let Some(value) = samples.and_then(|samples| samples.value(name).filter(|value| *value > 0.0)) {
            return value;
        }
        assert!(Instant::now() < deadline, "{address} never tells {name}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn processes_that_are_awaited_do_not_count_as_lost() {
    let nodes = ports(2);
    let run = Run::of(&["train", "--coordinate", "--rendezvous", &nodes[0], "--metrics", &nodes[1]]);
    assert_eq!(value(&nodes[1], "slackline_peer_state"), 1.0);
    let text = scrape(&nodes[1]).expect("the coordinator answers");
    assert_eq!(text.matches("state=\"joining\"").count(), 3, "{text}");
    assert!(!text.contains("state=\"lost\""), "{text}");
    drop(run);
}

#[test]
fn ranks_whose_launcher_does_not_count_them_by_host_serve_metrics_apart() {
    let nodes = ports(4);
    let output = Command::new(env!("CARGO_BIN_EXE_slackline"))
        .args(["launch", "-n", "3", "--", env!("CARGO_BIN_EXE_slackline"), "train", "--epochs", "1"])
        .args(["--metrics", &nodes[0]])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn every_process_of_a_job_serves_its_metrics_and_top_shows_them() {
    let nodes = ports(4);
    // Much longer than it is looked at.
    let mut job = vec!["train", "--model", "softmax", "--epochs", "5000", "--metrics", &nodes[0]];
    job.extend(["--jitter", "constant(0.002)", "--transport", "tcp"]);
    let run = Run::of(&job);
    run.wait_for("epoch");
    assert!(value(&nodes[1], "slackline_version") > 0.0, "the server");
    for worker in &nodes[2..4] {
        assert!(value(worker, "slackline_clock") > 0.0, "a worker");
    }
    // The coordinator judges the model, and reads it for that.
    let deadline = Instant::now() + PATIENCE;
    while !scrape(&nodes[1]).is_some_and(|text| text.contains("role=\"reader\"")) {
        assert!(Instant::now() < deadline, "the server never tells of a reader");
        std::thread::sleep(Duration::from_millis(50));
    }
    let text = scrape(&nodes[0]).expect("the coordinator answers");
    assert!(text.contains("worker 1") && text.contains("server 0"), "{text}");
    let text = scrape(&nodes[2]).expect("a worker answers");
    assert!(text.contains("path=\"tcp\""), "{text}");

    let top = Command::new(env!("CARGO_BIN_EXE_slackline"))
        .args(["top", "--once", "--json", "--interval", "1"])
        .args(&nodes)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&top.stdout);
    assert!(top.status.success(), "{said}{}", String::from_utf8_lossy(&top.stderr));
    let shown: Value = serde_json::from_str(said.trim()).expect("one line of JSON");
    assert!(said.contains("coordinator") && said.contains("worker") && said.contains("server"), "{shown}");
    drop(run);
}
