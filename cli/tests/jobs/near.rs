//! In one guest: coordinator, server and workers reach each other through one device. Left to themselves they would
//! take one each of the two that there are, which do not reach each other.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::rig::{CALM, Guest, NOTICED_WITHIN, QUICK, SLOW, environment, until};
use crate::common::{Run, kill};
use crate::running::paths;

/// Longer than the lease of three seconds, with the time that an emulated machine takes to act on it.
const PAUSE: Duration = Duration::from_millis(4500);

fn train(options: &str) -> Run {
    let arguments = format!("train --json - {options}");
    let device = [("SLACKLINE_RDMA_DEVICE", &*environment("SLACKLINE_RIG_DEVICE"))];
    Run::with(&device, &arguments.split(' ').collect::<Vec<_>>())
}

fn succeeds(run: Run) -> Value {
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    serde_json::from_str(&json).expect("stdout holds JSON")
}

#[test]
fn two_workers_learn_the_digits_and_by_bsp_the_same_as_by_shared_memory() {
    let before = Guest::Here.objects();
    for (scheme, job) in [("bsp", &*format!("{QUICK} --epochs 12")), ("ssp", CALM)] {
        let json = succeeds(train(&format!("{job} --scheme {scheme} --transport verbs")));
        println!("{scheme}: {} in {} s", json["final_accuracy"], json["wall_s"]);
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
        assert_eq!((&json["transport"], paths(&json)), (&"verbs".into(), vec!["verbs", "verbs"]), "{json}");
        assert_eq!(json["evicted"], 0, "{json}");
        if scheme == "bsp" {
            let shared = succeeds(train(&format!("{job} --scheme bsp --transport shm")));
            assert_eq!(json["final_loss"], shared["final_loss"], "bit for bit");
        }
    }
    until("what the device was asked for is given back", || Guest::Here.objects() == before);
}

#[test]
fn a_server_that_sleeps_until_its_workers_wake_it_learns_the_same() {
    for (scheme, job) in [("bsp", &*format!("{QUICK} --epochs 12")), ("essp", CALM)] {
        let options = format!("{job} --scheme {scheme}");
        let json = succeeds(train(&format!("{options} --transport verbs --idle sleep")));
        println!("{scheme}: {} in {} s", json["final_accuracy"], json["wall_s"]);
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
        if scheme == "bsp" {
            let shared = succeeds(train(&format!("{options} --transport shm")));
            assert_eq!(json["final_loss"], shared["final_loss"], "bit for bit");
        }
    }
}

#[test]
fn two_workers_without_a_server_learn_the_digits() {
    let json = succeeds(train(&format!("{QUICK} --scheme ds-sync --epochs 12 --transport verbs")));
    println!("ds-sync: {} in {} s", json["final_accuracy"], json["wall_s"]);
    assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
    for worker in json["workers"].as_array().unwrap() {
        for path in worker["paths"].as_array().unwrap() {
            assert_eq!(path["path"], "verbs", "{json}");
        }
    }
}

#[test]
fn a_killed_worker_is_evicted_and_its_device_objects_are_freed() {
    let before = Guest::Here.objects();
    for scheme in ["bsp", "ssp"] {
        let run = train(&format!("{SLOW} --scheme {scheme} --epochs 12 --transport verbs"));
        run.wait_for("epoch");
        let during = Guest::Here.objects();
        let killed = Instant::now();
        kill(run.worker(1), Signal::KILL);
        let noticed = run.wait_for("warning: worker 1 was killed by signal 9; evicted") - killed;
        println!("{scheme}: a killed worker was noticed after {noticed:?}");
        assert!(noticed <= NOTICED_WITHIN, "{scheme}: noticed after {noticed:?}");
        until("the queue pairs and regions of both sides are given back", || {
            Guest::Here.objects().iter().zip(&during).all(|(now, then)| now < then)
        });
        let json = succeeds(run);
        assert_eq!(json["evicted"], 1, "{json}");
        until("all is given back", || Guest::Here.objects() == before);
    }
}

#[test]
fn a_killed_server_is_reported_by_its_workers_and_device_objects_are_freed() {
    let before = Guest::Here.objects();
    let run = train(&format!("{SLOW} --scheme ssp --epochs 12 --transport verbs"));
    run.wait_for("epoch");
    assert!(Guest::Here.objects()[0] > before[0], "queue pairs are counted");
    let killed = Instant::now();
    kill(run.server(0), Signal::KILL);
    let (code, _, said) = run.end();
    println!("a killed server ended the job after {:?}", killed.elapsed());
    assert!(killed.elapsed() <= NOTICED_WITHIN, "noticed after {:?}", killed.elapsed());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: lost shard 0 of 1: its server was killed by signal 9 (worker "), "{said}");
    assert!(said.contains(": lost shard 0 of 1 at verbs:"), "{said}");
    until("all is given back", || Guest::Here.objects() == before);
}

/// Pauses a process for longer than the lease.
fn pause(process: u32) {
    kill(process, Signal::STOP);
    std::thread::sleep(PAUSE);
    kill(process, Signal::CONT);
}

#[test]
fn a_paused_server_loses_none_of_its_workers_by_rdma() {
    let run = train(&format!("{SLOW} --scheme ssp --epochs 12 --transport verbs"));
    run.wait_for("epoch");
    pause(run.server(0));
    let json = succeeds(run);
    assert_eq!(json["evicted"], 0, "{json}");
    assert_eq!(json["workers"][0]["clock"], json["workers"][1]["clock"], "{json}");
}

#[test]
fn a_paused_coordinator_loses_none_of_its_workers_by_rdma() {
    let run = train(&format!("{SLOW} --scheme ssp --epochs 12 --transport verbs"));
    run.wait_for("epoch");
    pause(run.pid());
    let json = succeeds(run);
    assert_eq!(json["evicted"], 0, "{json}");
    assert_eq!(json["workers"][0]["clock"], json["workers"][1]["clock"], "{json}");
}

#[test]
fn a_paused_worker_or_member_is_evicted_by_rdma_and_the_others_finish() {
    for scheme in ["ssp", "ds-sync(group=3)"] {
        let run = train(&format!("{SLOW} --scheme {scheme} --workers 3 --epochs 12 --transport verbs"));
        run.wait_for("epoch");
        pause(run.worker(1));
        let json = succeeds(run);
        assert_eq!(json["evicted"], 1, "{json}");
        assert_eq!(json["workers"][1]["evicted"], true, "{json}");
        assert_eq!(json["workers"][0]["clock"], json["workers"][2]["clock"], "{json}");
    }
}
