//! `slackline bench --peers` from outside: many workers of one server and many readers of one publisher, some of them
//! killed.

use serde_json::Value;

#[path = "common/listening.rs"]
mod listening;

use listening::{Listening, bench, json};

/// Checks what every such measurement promises.
fn check(value: &Value, op: &str, transport: &str, peers: u64) {
    assert_eq!((&value["op"], &value["transport"]), (&op.into(), &transport.into()), "{value}");
    assert_eq!(value["peers"], peers, "{value}");
    for key in ["joins_per_s", "operations_per_s", "cpu_ns_per_operation", "server_cpu_ns_per_operation"] {
        assert!(value[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {value}");
    }
    for times in ["latency_ns", "joining_ns"] {
        let percentiles = ["min", "p50", "p99", "p999", "max"].map(|key| value[times][key].as_f64().unwrap());
        assert!(percentiles[0] > 0.0 && percentiles.is_sorted(), "{times}: {value}");
    }
    // Each has a connection of its own there, and a page at least.
    let (joined, most) = (&value["resident_bytes_per_peer"], &value["most_resident_bytes_per_peer"]);
    assert!(joined.as_u64().unwrap() >= 4096 && most.as_u64() >= joined.as_u64(), "{value}");
    assert!(value["pinned_bytes_per_peer"].is_u64(), "{value}");
}

#[test]
fn many_workers_of_few_processes_do_as_many_rounds_as_they_are_told() {
    for transport in ["shm", "tcp"] {
        let peers = ["--transport", transport, "--op", "round", "--peers", "11", "--processes", "3"];
        let value = json(&[&peers[..], &["--bytes", "4K", "--iterations", "6", "--warmup", "2"]].concat());
        check(&value, "round", transport, 11);
        // A server that folded in more gradients or fewer fails the measurement.
        assert_eq!((&value["iterations"], &value["processes"]), (&66.into(), &3.into()), "{value}");
        let together = value["operations_per_s"].as_f64().unwrap() / value["rounds_per_s"].as_f64().unwrap();
        assert!((together - 11.0).abs() < 1e-6, "{value}");
        assert!(value.get("killed_peers").is_none(), "{value}");
    }
}

#[test]
fn many_readers_pull_what_was_published_for_as_long_as_they_are_told() {
    for transport in ["shm", "tcp"] {
        let peers = ["--transport", transport, "--op", "pull", "--peers", "9", "--processes", "2"];
        let value = json(&[&peers[..], &["--bytes", "4K", "--duration", "0.2", "--validate"]].concat());
        check(&value, "pull", transport, 9);
        assert!(value["validated"] == true && value["iterations"].as_u64().unwrap() >= 9, "{value}");
    }
}

#[test]
fn a_random_part_of_the_peers_is_killed_and_the_others_go_on_to_the_end() {
    for (transport, op) in [("shm", "round"), ("tcp", "round"), ("tcp", "pull")] {
        let peers =
            ["--transport", transport, "--op", op, "--peers", "10", "--processes", "5", "--kill", "2"];
        let value = json(&[&peers[..], &["--bytes", "4K", "--iterations", "20"]].concat());
        check(&value, op, transport, 10);
        assert_eq!((&value["killed_processes"], &value["killed_peers"]), (&2.into(), &4.into()), "{value}");
        // Those of the six others, all of them.
        assert_eq!(value["iterations"], 120, "{value}");
        for half in ["before", "after"] {
            assert!(value[half]["operations_per_s"].as_f64().unwrap() > 0.0, "{value}");
            assert!(value[half]["latency_ns"]["p99"].as_f64().unwrap() > 0.0, "{value}");
        }
    }
}

#[test]
fn many_sides_write_read_and_add_to_one_target_at_once() {
    for (transport, op) in [("shm", "fetch-add"), ("tcp", "write"), ("tcp", "read")] {
        let peers = ["--transport", transport, "--op", op, "--peers", "7", "--processes", "2"];
        let value = json(&[&peers[..], &["--bytes", "8", "--iterations", "5"]].concat());
        check(&value, op, transport, 7);
        assert_eq!(value["iterations"], 35, "{value}");
    }
}

#[test]
fn the_server_of_many_peers_may_be_on_another_host() {
    let host = Listening::begin("tcp", &["--keep"]);
    for op in ["round", "pull", "write"] {
        let peers = ["--transport", "tcp", "--peer", &host.address, "--op", op, "--peers", "6"];
        let value = json(&[&peers[..], &["--bytes", "4K", "--iterations", "4", "--processes", "2"]].concat());
        check(&value, op, "tcp", 6);
    }
}

#[test]
fn people_read_what_a_peer_costs_and_what_was_killed() {
    let output = bench(&[
        "--transport",
        "shm",
        "--op",
        "round",
        "--peers",
        "4",
        "--processes",
        "4",
        "--kill",
        "1",
        "--bytes",
        "4K",
        "--iterations",
        "4",
    ]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for says in ["4 peers in 4 processes", "joined ", "memory there for each peer", "1 peers killed"] {
        assert!(table.contains(says), "{says}: {table}");
    }
}

#[test]
fn wrong_calls_with_many_peers_exit_with_2_and_name_the_remedy() {
    let cases: [(&[&str], &str, &str); 13] = [
        (&["--op", "apply", "--peers", "2"], "--peers", "--op round, pull, write"),
        (&["--op", "round", "--peers", "0"], "--peers", "1..=32768"),
        (&["--op", "round", "--peers", "1025"], "--peers", "at most 1024"),
        (&["--op", "round", "--processes", "2"], "--peers", "--peers"),
        (&["--op", "round", "--peers", "2", "--processes", "3"], "--processes", "at most as many"),
        (&["--op", "round", "--peers", "4", "--processes", "2", "--kill", "2"], "--kill", "more --processes"),
        (&["--op", "round", "--peers", "2", "--workers", "2"], "--workers", "leave it out"),
        (&["--op", "round", "--peers", "2", "--borrow"], "--borrow", "leave it out"),
        (&["--op", "round", "--peers", "2", "--pin"], "--pin", "taskset"),
        (&["--op", "read", "--transport", "tcp", "--peers", "2", "--qp", "2"], "--qp", "leave it out"),
        (&["--op", "write", "--peers", "2", "--validate"], "--validate", "--op pull"),
        (&["--op", "pull", "--peers", "2", "--threads", "2"], "--threads", "--op round"),
        (&["--op", "round", "--duration", "1"], "--duration", "--peers"),
    ];
    for (arguments, option, remedy) in cases {
        let output = bench(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(option) && stderr.contains(remedy), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}
