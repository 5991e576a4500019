//! `slackline train --device` and `bench --memory` as a user meets them, on machines with a GPU and without.

use std::process::{Command, Output};

use serde_json::Value;
use slackline::gpu::Gpu;

fn run(arguments: &[&str]) -> Output {
    run_command("train", arguments)
}

fn run_command(command: &str, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_slackline"));
    // The loader tells which libraries it looks for.
    program.arg(command).args(arguments).env_remove("RUST_LOG").env("LD_DEBUG", "libs");
    program.output().expect("the program starts")
}

/// What the program said, without the lines of the loader.
fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_own =
        |line: &&str| !line.trim_start().starts_with(|c: char| c.is_ascii_digit()) && !line.is_empty();
    text.lines().filter(is_own).map(str::to_owned).collect()
}

fn looks_for_the_driver(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("libcuda")
}

#[test]
fn training_on_a_gpu_trains_there_or_says_why_not_and_what_to_do() {
    let output = run(&["--scheme", "bsp", "--epochs", "2", "--device", "cuda", "--json", "-"]);
    let said = said(&output);
    assert!(looks_for_the_driver(&output));
    match Gpu::open(0) {
        Ok(gpu) => {
            assert!(output.status.success(), "{said:?}");
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["device"], gpu.name());
        }
        Err(error) => {
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{said:?}");
            let [cause, help] = &said[..] else { panic!("{said:?}") };
            let cause = cause.strip_prefix("error: --device: ").expect("the cause").to_owned();
            let help = help.strip_prefix("help: ").expect("the remedy");
            assert_eq!(format!("{cause}; {help}"), error.to_string());
        }
    }
}

#[test]
fn without_a_device_no_driver_is_looked_for() {
    for device in [&[][..], &["--device", "cpu"]] {
        let output = run(&[&["--epochs", "1", "--json", "-"], device].concat());
        assert!(output.status.success(), "{:?}", said(&output));
        assert!(!looks_for_the_driver(&output), "{device:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report.get("device"), None);
    }
}

#[test]
fn what_a_gpu_does_not_do_is_refused_by_name_before_one_is_opened() {
    for (options, option) in [
        (&["--scheme", "ds-sync"][..], "--scheme"),
        (&["--scheme", "vap(bound=1)"], "--scheme"),
        (&["--scheme", "k-sync(1, local-steps=2)", "--optimizer", "sgd"], "--local-steps"),
        (&["--model", "convnet"], "--model"),
        (&["--model", "factorisation"], "--model"),
        (&["--encoding", "bf16"], "--encoding"),
        (&["--checksums"], "--checksums"),
        (&["--read-my-writes", "--optimizer", "sgd"], "--read-my-writes"),
        (&["--threads", "2"], "--threads"),
    ] {
        let output = run(&[&["--device", "cuda:0"], options].concat());
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said:?}");
        assert!(said[0].starts_with(&format!("error: {option} with --device cuda: ")), "{said:?}");
        assert!(said[1] == "help: leave one of the two out" && !looks_for_the_driver(&output), "{said:?}");
    }
    for device in ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda0"] {
        let output = run(&["--device", device]);
        assert_eq!(output.status.code(), Some(2), "{device}");
        assert!(said(&output).join(" ").contains("write cpu, cuda, or cuda:N"), "{device}");
    }
}

#[test]
fn payloads_on_a_gpu_are_measured_or_it_is_said_why_not() {
    let few = ["--bytes", "64K", "--iterations", "12", "--warmup", "3", "--validate", "--json", "-"];
    let ops = ["pull", "publish", "write", "read"];
    for (transport, op) in ops.into_iter().flat_map(|op| [("shm", op), ("tcp", op)]) {
        for memory in [["cuda", "cuda"], ["cuda", "host"], ["host", "cuda"]] {
            let [own, peer] = memory;
            let way = ["--transport", transport, "--op", op, "--memory", own, "--peer-memory", peer];
            let output = run_command("bench", &[&way[..], &few].concat());
            let said = said(&output);
            let gpu = Gpu::open(0);
            assert!(gpu.is_err() || output.status.success(), "{memory:?}: {said:?}");
            match gpu {
                Ok(_) => {
                    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
                    assert_eq!((&report["memory"], &report["peer_memory"]), (&own.into(), &peer.into()));
                }
                Err(error) => {
                    assert_eq!(output.status.code(), Some(1), "{memory:?}: {said:?}");
                    let cause = error.to_string();
                    assert!(cause.starts_with(said[0].trim_start_matches("error: ")), "{said:?}");
                    assert!(said[1].starts_with("help: "), "{said:?}");
                }
            }
        }
    }
    let output = run_command("bench", &["--op", "pull", "--bytes", "64K", "--iterations", "9"]);
    assert!(output.status.success() && !looks_for_the_driver(&output), "{:?}", said(&output));
    for (options, why) in [
        (&["--op", "fetch-add", "--memory", "cuda"][..], "only to --op write, read, publish and pull"),
        (
            &["--op", "read", "--transport", "tcp", "--bidirectional", "--memory", "cuda"],
            "does not go with --bidirectional",
        ),
        (&["--op", "pull", "--peers", "4", "--memory", "cuda:1"], "does not go with --peers"),
    ] {
        let output = run_command("bench", options);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {said:?}");
        assert!(said[0].contains(why) && !looks_for_the_driver(&output), "{said:?}");
    }
}
