//! `slackline train --per-host`: one worker of the host stands for all workers there, and the model is the same.
//!
//! Several hosts are in `hosts.rs`.

mod common;

use std::net::Ipv4Addr;
use std::path::Path;

use common::{Run, kill};
use rustix::process::Signal;
use serde_json::{Value, json};
use slackline::RendezvousEndpoint;

/// A mean of two halves each gradient, which rounds nothing, and a sum of two has no order: the result is exact.
const TWO_WORKERS: &str = "--scheme bsp --workers 2 --servers 2 --epochs 3 --seed 7";

/// Some seconds of training, most of them asleep, with a lease by which no process is evicted.
const LONG: &str = "train --per-host --scheme bsp --workers 3 --model softmax --epochs 200 --jitter constant(0.003) \
                    --lease 600 --json -";

fn run(options: &str) -> Run {
    Run::of(&options.split(' ').collect::<Vec<_>>())
}

/// The JSON of a run that goes well, and what it said.
fn succeeds(run: Run) -> (Value, String) {
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    (serde_json::from_str(&json).expect("stdout holds JSON"), said)
}

/// The JSON of `train` with these options, and the parameters that it saved.
fn train(folder: &Path, options: &str) -> (Value, Vec<u8>) {
    let saved = folder.join("saved");
    let json = succeeds(run(&format!("train {options} --json - --save {}", saved.display()))).0;
    (json, std::fs::read(&saved).unwrap())
}

/// The server, or the first worker of its host, to which each path of a worker leads, and its transport.
fn paths(json: &Value, worker: usize) -> Vec<(Value, Value, Value)> {
    let paths = json["workers"][worker]["paths"].as_array().expect("paths");
    paths.iter().map(|path| (path["server"].clone(), path["worker"].clone(), path["path"].clone())).collect()
}

#[test]
fn two_workers_learn_bit_for_bit_the_same_by_one_sum_of_their_host() {
    let folder = tempfile::tempdir().unwrap();
    let (flat, expected) = train(folder.path(), TWO_WORKERS);
    assert_eq!((&flat["per_host"], &flat["hosts"]), (&false.into(), &Value::Null), "{flat}");
    for more in ["", " --transport tcp", " --idle sleep --checksums true"] {
        let (json, parameters) = train(folder.path(), &format!("{TWO_WORKERS} --per-host{more}"));
        assert!(parameters == expected, "{more}: {json}");
        assert_eq!((&json["per_host"], &json["hosts"]), (&true.into(), &1.into()), "{json}");
        let upstream = if more.contains("tcp") { "tcp" } else { "shm" };
        let to_servers = [0, 1].map(|shard| (json!(shard), Value::Null, json!(upstream)));
        assert_eq!(paths(&json, 0), to_servers, "{json}");
        assert_eq!(paths(&json, 1), [(Value::Null, json!(0), json!("shm"))], "{json}");
        // Each sum counts as the gradients that are in it.
        for shard in [0, 1] {
            let [of_sums, of_gradients] = [&json, &flat].map(|json| &json["server_status"][shard]["folded"]);
            assert_eq!(of_sums, of_gradients, "{json}");
        }
    }
}

#[test]
fn ranks_of_a_launcher_learn_the_same_by_one_sum_of_their_host() {
    let folder = tempfile::tempdir().unwrap();
    let expected = train(folder.path(), TWO_WORKERS).1;
    let meet = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
    let saved = folder.path().join("launched");
    let start = |rank: usize| {
        let options = TWO_WORKERS.replace("--workers 2 ", "");
        let ranks = format!("--rank {rank} --world-size 4 --rendezvous {meet} --save {}", saved.display());
        run(&format!("train --per-host {options} {ranks} --json -"))
    };
    let [first, others @ ..] = [0, 1, 2, 3].map(start);
    let (json, said) = succeeds(first);
    for other in others {
        assert_eq!(other.end().0, Some(0), "{said}");
    }
    assert_eq!((&json["per_host"], &json["hosts"], &json["evicted"]), (&true.into(), &1.into(), &0.into()));
    assert!(std::fs::read(&saved).unwrap() == expected, "{json}");
    assert!(said.contains("3 paths over shm (both are on one host)"), "{said}");
}

#[test]
fn people_are_told_that_one_worker_stands_for_its_host() {
    let (code, table, said) = run("train --per-host --scheme bsp --epochs 1 --workers 3").end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(": bsp, 3 workers, per host, 1 server, 1 epoch"), "{said}");
    assert!(table.contains("\nthe servers saw one worker of each host, 1 in all\n"), "{table}");
}

#[test]
fn a_run_that_is_good_enough_ends_well_for_all_workers_of_a_host() {
    let meet = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap();
    let start = |rank: usize| {
        let aim = "--epochs 100000 --target-accuracy 0.8";
        let ranks = format!("--rank {rank} --world-size 4 --rendezvous {meet}");
        run(&format!("train --per-host --scheme bsp --model softmax {aim} {ranks}"))
    };
    for rank in [0, 1, 2, 3].map(start) {
        let (code, _, said) = rank.end();
        assert_eq!(code, Some(0), "{said}");
    }
}

/// They join all at once, when the last of them is there, and the coordinator starts no more than 32 at a time.
#[test]
fn a_host_may_have_more_workers_than_are_started_at_a_time() {
    let options = "--workers 34 --epochs 1 --model softmax --idle sleep --timeout 100";
    let json = succeeds(run(&format!("train --per-host --scheme bsp {options} --json -"))).0;
    assert_eq!((&json["hosts"], &json["evicted"]), (&1.into(), &0.into()), "{json}");
}

#[test]
fn a_worker_that_is_killed_or_hangs_takes_no_other_worker_of_its_host_along() {
    for (signal, how) in [(Signal::KILL, "was killed by signal 9"), (Signal::STOP, "was silent for 5 s")] {
        let run = run(&LONG.replace("--lease 600", "--lease 3"));
        run.wait_for("epoch");
        kill(run.worker(1), signal);
        let (json, said) = succeeds(run);
        assert!(said.contains(&format!("warning: worker 1 {how}; evicted, 2 of 3 go on")), "{said}");
        let evicted = [0, 1, 2].map(|worker| json["workers"][worker]["evicted"] == true);
        assert_eq!(evicted, [false, true, false], "{json}");
        assert_eq!(json["workers"][0]["clocks"], json["workers"][2]["clocks"], "{json}");
    }
}

#[test]
fn the_loss_of_the_worker_that_serves_its_host_is_named_as_the_cause() {
    let run = run(LONG);
    run.wait_for("epoch");
    kill(run.worker(0), Signal::KILL);
    let (code, json, said) = run.end();
    assert_eq!((code, json.as_str()), (Some(1), ""), "{said}");
    assert!(said.contains("error: all workers are lost: "), "{said}");
    for part in ["worker 0 was killed by signal 9", "workers 1 and 2: lost shard 0 of 1 at @slackline-"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn what_does_not_go_with_one_worker_of_each_host_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = format!("--scheme bsp --checkpoint {}", folder.path().display());
    for (options, error, help) in [
        (&*checkpoint, "--checkpoint: a plan with per_host cannot", "leave one"),
        ("--scheme bsp --restarts 2", "--restarts: a plan with per_host cannot", "leave one"),
        ("--scheme ds-sync", "--scheme: a plan with per_host needs a server", "use --scheme bsp"),
        ("--epochs 1", "--scheme: scheme ssp(3) folds each gradient by itself", "use --scheme bsp"),
        ("--scheme dbw", "--scheme: scheme dbw chooses among the gradients", "use --scheme bsp"),
        ("--scheme bsp --device cuda", "--per-host with --device cuda: the gradients of a host", "leave one"),
    ] {
        let (code, json, said) = run(&format!("train --per-host {options}")).end();
        assert_eq!((code, json.as_str()), (Some(2), ""), "{options}: {said}");
        let lines: Vec<_> = said.lines().collect();
        let [first, last] = lines[..] else { panic!("{options}: {said}") };
        assert!(first.starts_with("error: --per-host with ") && first.contains(error), "{options}: {said}");
        assert!(last.starts_with("help: ") && last.contains(help), "{options}: {said}");
    }
}
