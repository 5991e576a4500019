//! `slackline bench` over RDMA, from outside. Needs an RDMA device, of whatever kind: `cargo xtask softroce` makes a
//! software one in a virtual machine. Without one every test here fails, and those in `apart` do where there is no
//! second one with a network between them.

#[path = "common/listening.rs"]
mod listening;

use listening::{Listening, bench, json, json_by, slackline};
use serde_json::Value;
use std::io::Write;
use std::process::Command;

const FEW: [&str; 4] = ["--iterations", "20", "--warmup", "3"];
const OPS: [(&str, &str); 5] = [
    ("write", "8,13,64,4096,70000"),
    ("read", "8,13,70000"),
    ("fetch-add", "8"),
    ("publish", "70000"),
    ("pull", "70000"),
];

fn check(value: &Value, op: &str) {
    let all = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    for one in &all {
        assert_eq!((&one["op"], &one["transport"]), (&op.into(), &"verbs".into()), "{one}");
        assert_eq!(one["validated"], true, "{one}");
        assert!(one["bandwidth_bytes_per_s"].as_f64().unwrap() > 0.0, "{one}");
        assert!(one["latency_ns"]["p50"].as_f64().unwrap() > 0.0, "{one}");
        assert!(!one["device"].as_str().unwrap().is_empty() && !one["gid"].as_str().unwrap().is_empty());
        assert!(one["port"].as_u64().unwrap() >= 1 && one["mtu"].as_u64().unwrap() >= 256, "{one}");
    }
}

#[test]
fn every_operation_arrives_whole_at_a_process_of_its_own() {
    for (op, bytes) in OPS {
        let arguments = ["--transport", "verbs", "--op", op, "--bytes", bytes, "--validate"];
        let value = json(&[&arguments[..], &FEW[..]].concat());
        check(&value, op);
        // The device has counted what it sent.
        let one = value.get(0).unwrap_or(&value);
        assert!(one["counters"].as_object().is_some_and(|counters| !counters.is_empty()), "{one}");
        assert!(
            ["driver", "known", "setting", "assumed"].contains(&one["in_order_says"].as_str().unwrap()),
            "{one}"
        );
    }
}

#[test]
fn several_queue_pairs_both_ways_at_once_arrive_whole_at_a_process() {
    // Those of all queue pairs add up in one word.
    let arguments =
        ["--transport", "verbs", "--op", "fetch-add", "--qp", "3", "--bidirectional", "--validate"];
    let value = json(&[&arguments[..], &["--post-list", "4", "--tx-depth", "16"], &FEW[..]].concat());
    check(&value, "fetch-add");
    assert_eq!((&value["connections"], &value["post_list"]), (&3.into(), &4.into()), "{value}");
    assert!(value["bandwidth_back_bytes_per_s"].as_f64().unwrap() > 0.0, "{value}");
}

#[test]
fn every_operation_arrives_whole_at_a_process_that_listens() {
    let host = Listening::begin("verbs", &["--keep"]);
    for (op, bytes) in OPS {
        let arguments = ["--transport", "verbs", "--peer", &host.address, "--op", op, "--bytes", bytes];
        check(&json(&[&arguments[..], &["--validate"], &FEW[..]].concat()), op);
    }
}

#[test]
fn every_operation_arrives_whole_over_two_devices_side_by_side() {
    let device = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name}: this takes two devices"));
    let both = ["SLACKLINE_RIG_DEVICE", "SLACKLINE_RIG_DEVICE_2"].map(device).join(",");
    for (op, bytes) in OPS {
        let arguments =
            ["--transport", "verbs", "--device", &both, "--op", op, "--bytes", bytes, "--validate"];
        let value = json(&[&arguments[..], &FEW[..]].concat());
        check(&value, op);
        let one = value.get(0).unwrap_or(&value);
        assert_eq!(one["rails"], both.replace(',', ":1,") + ":1", "{one}");
    }
}

#[test]
fn queues_packets_and_inline_data_are_as_they_were_asked_for() {
    for (depth, inline) in [("1", "0"), ("7", "16"), ("300", "64")] {
        let means = ["--queue-depth", depth, "--inline", inline, "--mtu", "256", "--port", "1"];
        let arguments = ["--transport", "verbs", "--op", "write", "--bytes", "8,48,5000", "--validate"];
        let value = json(&[&arguments[..], &means[..], &FEW[..]].concat());
        check(&value, "write");
        assert_eq!(
            (&value[0]["queue_depth"], &value[0]["mtu"]),
            (&depth.parse::<u64>().unwrap().into(), &256.into())
        );
        assert_eq!((&value[0]["in_order"], &value[0]["relaxed_ordering"]), (&true.into(), &true.into()));
        let settings = value[0]["settings"].as_array().unwrap();
        let setting = |name: &str| settings.iter().find(|setting| setting["setting"] == name).unwrap();
        assert_eq!((&setting("MTU")["value"], &setting("MTU")["set_by"]), (&256.into(), &"--mtu".into()));
        assert!(setting("service level")["value"].is_number(), "{value}");
    }
}

#[test]
fn a_device_that_is_not_there_is_told_beside_those_that_are() {
    let output = bench(&["--transport", "verbs", "--op", "write", "--device", "no-such-device"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no-such-device") && stderr.contains("it has"), "{stderr}");
}

#[test]
fn many_workers_join_at_a_process_that_listens_and_some_are_killed() {
    let host = Listening::begin("verbs", &[]);
    let arguments = ["--transport", "verbs", "--peer", &host.address, "--op", "round", "--peers", "4"];
    let more = ["--processes", "2", "--kill", "1", "--bytes", "4K", "--iterations", "4"];
    let value = json(&[&arguments[..], &more].concat());
    assert_eq!((&value["killed_peers"], &value["iterations"]), (&2.into(), &8.into()), "{value}");
    // Its page and its slot are registered there for each of them.
    assert!(value["pinned_bytes_per_peer"].as_u64().unwrap() >= 4096, "{value}");
}

/// Between two guests.
mod apart {
    use super::*;

    fn environment(name: &str) -> String {
        std::env::var(name)
            .unwrap_or_else(|_| panic!("{name}: run this by `cargo xtask softroce measure-apart`"))
    }

    /// Begins to listen in the other guest.
    fn there(more: &[&str]) -> Listening {
        let mut command = Command::new(environment("SLACKLINE_RIG_RUN"));
        command.arg(slackline().get_program()).env("SLACKLINE_SECRET", SECRET);
        Listening::by(command, "verbs", &format!("{}:0", environment("SLACKLINE_RIG_PEER")), more)
    }

    const SECRET: &str = "known to both guests";

    #[test]
    fn what_is_written_read_and_added_in_the_other_guest_arrives_whole() {
        let host = there(&["--keep"]);
        for (op, bytes) in [("write", "8,13,4096,70000"), ("read", "8,13,70000"), ("fetch-add", "8")] {
            let mut command = slackline();
            command.env("SLACKLINE_SECRET", SECRET);
            let arguments = ["--transport", "verbs", "--peer", &host.address, "--op", op, "--bytes", bytes];
            let value = json_by(command, &[&arguments[..], &["--validate"], &FEW[..]].concat());
            check(&value, op);
            let one = value.as_array().map_or(&value, |all| &all[0]);
            assert_eq!(one["gid"], environment("SLACKLINE_RIG_ADDRESS"), "{one}");
        }
    }

    #[test]
    fn a_thousand_workers_do_rounds_with_a_server_in_the_other_guest() {
        let host = there(&[]);
        let mut command = slackline();
        command.env("SLACKLINE_SECRET", SECRET);
        let arguments =
            ["--transport", "verbs", "--peer", &host.address, "--op", "round", "--peers", WORKERS];
        let more =
            ["--processes", "10", "--kill", "1", "--bytes", "4K", "--iterations", "4", "--queue-depth", "16"];
        let output = command.arg("bench").args(arguments).args(more).args(["--json", "-"]).output();
        let output = output.expect("the program starts");
        let here = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{here}\nthere: {:?}", host.end());
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        let number = |key: &str| value[key].as_f64().unwrap();
        // For the table of `cargo xtask softroce`: libtest keeps what `println!` says of a test that passes.
        let mut stdout = std::io::stdout().lock();
        writeln!(
            stdout,
            "\nMEASURED {WORKERS} workers of 10 processes, one of them killed: {:.1} joined a second, {:.2} rounds \
             a second (p99 {:.2} s), {:.0} KiB resident and {:.0} KiB pinned at the server for each",
            number("joins_per_s"),
            number("rounds_per_s"),
            value["latency_ns"]["p99"].as_f64().unwrap() / 1e9,
            number("resident_bytes_per_peer") / 1024.0,
            number("pinned_bytes_per_peer") / 1024.0
        )
        .unwrap();
        let killed = WORKERS.parse::<u64>().unwrap() / 10;
        assert_eq!((&value["killed_peers"], &value["iterations"]), (&killed.into(), &(36 * killed).into()));
    }

    /// They take two guests, whose processors and devices are emulated, about a minute. `SLACKLINE_WORKERS=200` at the
    /// time of the build takes less.
    const WORKERS: &str = match option_env!("SLACKLINE_WORKERS") {
        Some(workers) => workers,
        None => "1000",
    };

    #[test]
    fn who_does_not_know_the_secret_of_the_other_guest_measures_nothing() {
        let host = there(&["--keep"]);
        let peer = ["--transport", "verbs", "--peer", &host.address, "--op", "write"];
        let output =
            slackline().env("SLACKLINE_SECRET", "what is not known there").arg("bench").args(peer).output();
        let output = output.expect("the program starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("secret") && output.stdout.is_empty(), "{stderr}");
    }
}
