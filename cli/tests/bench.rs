//! `slackline bench` from outside: every operation runs, its JSON has what is promised, wrong calls are explained.

use serde_json::Value;

#[path = "common/listening.rs"]
mod listening;

use listening::{Listening, bench, json};

fn check(value: &Value, op: &str, bytes: u64, iterations: u64) {
    assert_eq!(value["op"], op);
    assert_eq!(value["transport"], "shm");
    assert_eq!(value["bytes"], bytes);
    // Whole batches are timed.
    assert!(value["iterations"].as_u64().unwrap() >= iterations, "{value}");
    assert!(value["bandwidth_bytes_per_s"].as_f64().unwrap() > 0.0, "{value}");
    let latency = ["min", "p50", "p99", "p999", "max"].map(|key| value["latency_ns"][key].as_f64().unwrap());
    assert!(latency[0] >= 0.0 && latency.is_sorted(), "{latency:?}");
    assert!(!value["machine"]["cpu"].as_str().unwrap().is_empty());
    assert!(!value["machine"]["kernel"].as_str().unwrap().is_empty());
}

const FEW: [&str; 4] = ["--iterations", "12", "--warmup", "3"];

#[test]
fn every_operation_reports_what_is_promised() {
    let ops = [
        ("write", "4096"),
        ("read", "4096"),
        ("fetch-add", "8"),
        ("publish", "8192"),
        ("pull", "8192"),
        ("pinned-read", "8192"),
        ("round", "8192"),
        ("memcpy", "8192"),
        ("apply", "8192"),
        ("triad", "8192"),
    ];
    for (op, bytes) in ops {
        let value = json(&[&["--op", op, "--bytes", bytes], &FEW[..]].concat());
        check(&value, op, bytes.parse().unwrap(), 12);
    }
}

#[test]
fn writes_of_every_shape_play_their_ping_pong() {
    let sizes = [1, 4, 8, 16, 64, 65, 4096, 4100];
    let list = sizes.map(|bytes: u64| bytes.to_string()).join(",");
    let value = json(&[&["--op", "write", "--bytes", &list], &FEW[..]].concat());
    let all = value.as_array().unwrap();
    assert_eq!(all.len(), sizes.len());
    for (one, bytes) in all.iter().zip(sizes) {
        check(one, "write", bytes, 12);
        assert!(one["post_poll_ns"]["p50"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn encrypted_tcp_is_measured_and_nothing_else_is_encrypted() {
    let tcp = ["--transport", "tcp", "--op", "write", "--bytes", "1M", "--validate"];
    let value = json(&[&tcp[..], &["--encrypt"], &FEW[..]].concat());
    assert_eq!((&value["transport"], &value["encrypted"]), (&"tcp".into(), &true.into()), "{value}");
    assert!(json(&[&tcp[..], &FEW[..]].concat()).get("encrypted").is_none());
    for (transport, why) in [("shm", "does not leave its host"), ("verbs", "IPsec or MACsec")] {
        let output = bench(&["--transport", transport, "--op", "write", "--encrypt"]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(why), "{text}");
    }
}

#[test]
fn sizes_may_be_repeated_and_have_suffixes() {
    let sizes = ["--bytes", "1K", "--bytes", "2K,4K", "--sizes", "8"];
    let value = json(&[&["--op", "memcpy", "--from-shared"], &sizes[..], &FEW[..]].concat());
    let bytes: Vec<u64> =
        value.as_array().unwrap().iter().map(|one| one["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [1024, 2048, 4096, 8]);
    for one in value.as_array().unwrap() {
        assert!(one["libc_bytes_per_s"].as_f64().unwrap() > 0.0);
        assert!(one["streaming_bytes_per_s"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn rounds_run_with_several_workers_threads_and_borrowed_slots() {
    for borrow in [false, true] {
        let mut arguments = vec!["--op", "round", "--bytes", "40000", "--workers", "3", "--threads", "2"];
        arguments.extend(["--chunk", "4K", "--iterations", "6", "--warmup", "1"]);
        if borrow {
            arguments.push("--borrow");
        }
        let value = json(&arguments);
        check(&value, "round", 40_000, 6);
        assert_eq!(value["worker_latency_ns"].as_array().unwrap().len(), 3);
        assert_eq!(value["borrow"], borrow);
        assert!(value["round_over_apply"].as_f64().unwrap() > 0.0);
        assert!(value["apply_ns"]["p50"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn folds_count_the_bytes_that_they_move() {
    for (optimizer, per_parameter) in [("sgd", 20), ("momentum", 28), ("adam", 36), ("adamw", 36)] {
        let arguments = ["--op", "apply", "--k", "3", "--threads", "2", "--optimizer", optimizer];
        let value = json(&[&arguments[..], &["--bytes", "20000"], &FEW[..]].concat());
        check(&value, "apply", 20_000, 12);
        assert_eq!(value["bytes_moved"], 5_000 * per_parameter, "{optimizer}");
        let (best, median) = (value["best_bytes_per_s"].as_f64(), value["bandwidth_bytes_per_s"].as_f64());
        assert!(best >= median, "{value}");
    }
}

#[test]
fn requests_go_over_several_connections_in_lists_and_both_ways_at_once() {
    for (op, bytes) in [("write", "70000"), ("read", "4096"), ("fetch-add", "8")] {
        let way = ["--transport", "tcp", "--op", op, "--bytes", bytes, "--validate", "--iterations", "100"];
        let value = json(&[&way[..], &["--qp", "3", "--tx-depth", "8", "--post-list", "4"]].concat());
        let flow = ["connections", "queue_depth", "post_list"].map(|key| value[key].as_u64().unwrap());
        // Fetch-adds of all connections add up in one word, which --validate looks at.
        assert_eq!((flow, &value["validated"]), ([3, 8, 4], &true.into()), "{value}");
        assert!(value.get("bandwidth_back_bytes_per_s").is_none(), "{value}");

        let value = json(&[&way[..], &["--bidirectional", "--qp", "2"]].concat());
        let rate = |key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key}: {value}"));
        let (there, back) = (rate("bandwidth_there_bytes_per_s"), rate("bandwidth_back_bytes_per_s"));
        assert!(there > 0.0 && back > 0.0 && there + back == rate("bandwidth_bytes_per_s"), "{value}");
    }
}

#[test]
fn a_measurement_takes_as_long_as_it_is_told_and_tells_its_processor_time() {
    for way in [&["--op", "memcpy"][..], &["--op", "read", "--transport", "tcp"], &["--op", "pull"]] {
        let begun = std::time::Instant::now();
        let value = json(&[way, &["--bytes", "4K", "--duration", "0.3", "--warmup", "1"]].concat());
        assert!(begun.elapsed().as_secs_f64() >= 0.3, "{value}");
        assert!(value["iterations"].as_u64().unwrap() > 1, "{value}");
        assert!(value["cpu_ns_per_operation"].as_f64().unwrap() > 0.0, "{value}");
    }
}

#[test]
fn people_get_a_table_and_the_file_gets_the_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let target = file.to_str().unwrap();
    let output = bench(&[&["--op", "read", "--bytes", "64", "--json", target, "--pin"], &FEW[..]].concat());
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.starts_with("op ") && table.contains("read"), "{table}");
    check(&serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap(), "read", 64, 12);
}

#[test]
fn a_table_that_cannot_be_printed_keeps_no_measurement_back() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["bench", "--op", "memcpy", "--bytes", "64,128", "--json"]).arg(&file).args(FEW);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("stdout"), "the cause is told");
    let kept: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!(kept.as_array().map(Vec::len), Some(2), "{kept}");
}

#[test]
fn wrong_calls_exit_with_2_and_name_the_option_and_the_remedy() {
    let cases: [(&[&str], &str, &str); 43] = [
        (&[], "--op", "--help"),
        (&["--op", "wriet"], "--op", "write"),
        (&["--op", "write", "--bytes", "1T"], "--bytes", "K, M or G"),
        (&["--op", "write", "--bytes", "0"], "--bytes", "above 0"),
        (&["--op", "write", "--iterations", "0"], "--iterations", "at least 1"),
        (&["--op", "write", "--workers", "2"], "--workers", "--op round"),
        (&["--op", "round", "--workers", "0"], "--workers", "1..=1024"),
        (&["--op", "round", "--chunk", "100"], "--chunk", "multiple of 64"),
        (&["--op", "fetch-add", "--bytes", "16"], "--bytes", "give 8"),
        (&["--op", "pull", "--bytes", "6"], "--bytes", "multiple of 4"),
        (&["--op", "write", "--borrow"], "--borrow", "--op round"),
        (&["--op", "read", "--from-shared"], "--from-shared", "--op memcpy"),
        (&["--op", "write", "--transport", "pigeon"], "--transport", "shm"),
        (&["--op", "write", "--device", "rxe0"], "--device", "--transport verbs"),
        (&["--op", "write", "--transport", "tcp", "--port", "1"], "--port", "--transport verbs"),
        (&["--op", "write", "--gid-index", "1"], "--gid-index", "--transport verbs"),
        (&["--op", "write", "--mtu", "4096"], "--mtu", "--transport verbs"),
        (&["--op", "write", "--inline", "64"], "--inline", "--transport verbs"),
        (&["--op", "write", "--qp", "2"], "--qp", "--transport verbs or tcp"),
        (&["--op", "write", "--bidirectional"], "--bidirectional", "--transport verbs or tcp"),
        (&["--op", "pull", "--transport", "tcp", "--qp", "2"], "--qp", "--op write"),
        (&["--op", "pull", "--transport", "tcp", "--post-list", "2"], "--post-list", "--op write"),
        (&["--op", "read", "--transport", "tcp", "--tx-depth", "0"], "--queue-depth", "1..=1024"),
        (&["--op", "read", "--duration", "1", "--iterations", "2"], "--iterations", "--help"),
        (&["--op", "read", "--duration", "0"], "--duration", "seconds above 0"),
        (&["--op", "apply", "--validate"], "--validate", "--op write"),
        (&["--listen"], "--listen", "--transport verbs or tcp"),
        (&["--op", "read", "--peer", "127.0.0.1"], "--peer", "--transport verbs or tcp"),
        (&["--op", "round", "--transport", "tcp", "--peer", "127.0.0.1"], "--peer", "--op write"),
        (&["--op", "read", "--transport", "tcp", "--peer", "node1:x"], "--peer", "node1:18515"),
        (&["--op", "read", "--transport", "tcp", "--peer", "192.0.2.1"], "--peer", "--secret-file"),
        (&["--transport", "tcp", "--listen"], "--listen", "--secret-file"),
        (&["--transport", "tcp", "--listen", "127.0.0.1:0", "--op", "write"], "--op", "--listen"),
        (&["--op", "write", "--secret-file", "x"], "--secret-file", "--peer"),
        (&["--op", "memcpy", "--transport", "tcp"], "--transport tcp", "leave it out"),
        (&["--op", "apply", "--transport", "verbs"], "--transport verbs", "leave it out"),
        (&["--op", "triad", "--transport", "tcp", "--encrypt"], "--transport tcp", "leave it out"),
        (&["--op", "pull", "--transport", "tcp", "--queue-depth", "2"], "--queue-depth", "--op write"),
        (
            &["--op", "read", "--transport", "tcp", "--peers", "2", "--queue-depth", "2"],
            "--queue-depth",
            "one request",
        ),
        (&["--op", "memcpy", "--iterations", "18446744073709551615"], "--iterations", "at most 1000000000"),
        (&["--op", "round", "--iterations", "18446744073709551615"], "--iterations", "at most 1000000000"),
        (&["--op", "round", "--warmup", "18446744073709551615"], "--warmup", "at most 1000000000"),
        (&["--op", "read", "--json", "/no/such/folder/bench.json"], "/no/such/folder", "mkdir -p"),
    ];
    for (arguments, option, remedy) in cases {
        let output = bench(arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(option) && stderr.contains(remedy), "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn what_the_system_refuses_exits_with_1_and_says_what_to_do() {
    let output = bench(&["--op", "memcpy", "--bytes", "60000G"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("ask for less"), "{stderr}");
}

#[test]
fn sizes_that_were_measured_are_kept_where_a_later_one_fails() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let way = [&["--op", "memcpy", "--bytes", "64,70368744177664"], &FEW[..]].concat();
    let output = bench(&[&way[..], &["--json", file.to_str().unwrap()]].concat());
    let (table, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(table.lines().any(|line| line.starts_with("memcpy") && line.contains(" 64 ")), "{table}");
    assert!(stderr.starts_with("error: memcpy of 70368744177664 bytes: "), "{stderr}");
    let kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!((kept.as_array().map(Vec::len), &kept[0]["bytes"]), (Some(1), &64.into()), "{kept}");
    let output = bench(&[&way[..], &["--json", "-"]].concat());
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &printed[0]["bytes"]), (Some(1), &64.into()), "{printed}");
}

#[test]
fn what_cannot_be_found_or_listened_at_is_named_with_the_remedy() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (arguments, named, remedy) in [
        (&["--listen", &taken][..], &*taken, "a free port"),
        (&["--op", "read", "--peer", "no-such-host.invalid"], "no-such-host.invalid", "HOST:PORT"),
    ] {
        let output = bench(&[&["--transport", "tcp"], arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(named) && stderr.contains("\nhelp: ") && stderr.contains(remedy), "{stderr}");
    }
}

#[test]
fn the_help_says_the_default_of_each_option() {
    let output = bench(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for default in
        ["[default: as in the environment, else 0]", "[default: 1M]", "[default: sgd]", "[default: 4]"]
    {
        assert!(words.contains(default), "{default}: {words}");
    }
}

#[test]
fn a_machine_without_that_rdma_device_says_so() {
    for arguments in [&["--op", "write"][..], &["--listen", "127.0.0.1:0"][..]] {
        let device = ["--transport", "verbs", "--device", "no-such-device"];
        let output = bench(&[&device, arguments].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("RDMA") || stderr.contains("libibverbs"), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.matches("error: ").count() == 1, "{stderr}");
        assert!(stderr.lines().count() <= 2, "an error, and what to do: {stderr}");
    }
}

#[test]
fn what_arrives_is_compared_with_what_was_sent() {
    for (transport, op, bytes) in [
        ("shm", "write", "8,4100"),
        ("shm", "read", "13,70000"),
        ("shm", "fetch-add", "8"),
        ("shm", "publish", "70000"),
        ("shm", "pull", "70000"),
        ("tcp", "write", "3,70000"),
        ("tcp", "publish", "70000"),
    ] {
        let arguments = ["--transport", transport, "--op", op, "--bytes", bytes, "--validate"];
        let value = json(&[&arguments[..], &FEW[..]].concat());
        let first = value.get(0).unwrap_or(&value);
        assert_eq!(first["validated"], true, "{value}");
    }
}

#[test]
fn two_processes_that_were_started_apart_measure_what_one_starts_itself() {
    let host = Listening::begin("tcp", &["--keep"]);
    let ops = [
        ("write", "8,4096"),
        ("read", "4096,70000"),
        ("fetch-add", "8"),
        ("publish", "8192"),
        ("pull", "8192"),
    ];
    let way = ["--transport", "tcp", "--peer", &host.address, "--op", "write", "--bytes", "4K"];
    let value = json(&[&way[..], &["--bidirectional", "--validate"], &FEW[..]].concat());
    assert!(value["bandwidth_back_bytes_per_s"].as_f64().unwrap() > 0.0, "{value}");
    for (op, bytes) in ops {
        let way = ["--transport", "tcp", "--peer", &host.address, "--validate"];
        let value = json(&[&way[..], &["--op", op, "--bytes", bytes], &FEW[..]].concat());
        let first = value.get(0).unwrap_or(&value);
        assert_eq!((&first["op"], &first["transport"]), (&op.into(), &"tcp".into()), "{value}");
        assert_eq!(first["validated"], true);
    }
}

#[test]
fn a_listener_ends_after_one_client_and_says_what_went_wrong() {
    let host = Listening::begin("tcp", &[]);
    let way = ["--transport", "tcp", "--peer", &host.address, "--op", "write"];
    json(&[&way[..], &["--bytes", "64,128"], &FEW[..]].concat());
    let (said, wrong, code) = host.end();
    assert!(code == Some(0) && said.contains("2 measurements"), "{code:?}: {said}{wrong}");

    let host = Listening::begin("tcp", &[]);
    let way = ["--transport", "tcp", "--peer", &host.address, "--op", "write", "--bytes", "60000G"];
    let output = bench(&way);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("ask for less"), "{stderr}");
    let (_, wrong, code) = host.end();
    assert!(code == Some(1) && wrong.contains("ask for less"), "{code:?}: {wrong}");
}

#[test]
fn nobody_listening_is_told_with_what_to_do() {
    // The port of a connection's other end: no process can listen there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = bench(&["--transport", "tcp", "--op", "read", "--peer", &address]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("--listen"), "{stderr}");
}
