//! Between two guests: the coordinator in the first, servers and workers wherever a test wants them.

use std::time::Duration;

use serde_json::Value;

use super::rig::Guest::{Here, There};
use super::rig::{Faults, Job, NOTICED_WITHIN, QUICK, SLOW, until};
use crate::common::Run;
use crate::running::paths;

/// The loss that two workers in lock step come to, by shared memory.
fn undisturbed(epochs: u32) -> Value {
    let arguments = format!("train --json - {QUICK} --scheme bsp --epochs {epochs} --transport shm");
    let (code, json, said) = Run::of(&arguments.split(' ').collect::<Vec<_>>()).end();
    assert_eq!(code, Some(0), "{said}");
    serde_json::from_str::<Value>(&json).expect("stdout holds JSON")["final_loss"].clone()
}

/// Two workers in the other guest train by both schemes, for so many epochs each.
fn learns(bsp: u32, ssp: u32) {
    for (scheme, epochs, least) in [("bsp", bsp, 0.9), ("ssp", ssp, 0.93)] {
        let options = format!("{QUICK} --scheme {scheme} --epochs {epochs}");
        let (_, json) = Job::new(Here, [There, There], &options).succeeds();
        println!("{scheme}: {} in {} s", json["final_accuracy"], json["wall_s"]);
        assert_eq!((paths(&json), &json["evicted"]), (vec!["verbs", "verbs"], &0.into()), "{json}");
        assert!(json["final_accuracy"].as_f64().unwrap() >= least, "{json}");
        if scheme == "bsp" {
            assert_eq!(json["final_loss"], undisturbed(epochs), "bit for bit");
        }
    }
}

#[test]
fn two_workers_in_the_other_guest_learn_what_they_learn_in_one() {
    learns(12, 20);
}

#[test]
fn training_comes_to_the_same_on_a_network_that_loses_and_reorders_packets() {
    let before = [Here, There].map(|guest| guest.retries());
    let _faults = Faults::new("loss 2% delay 1ms reorder 25% 50%");
    learns(6, 20);
    let after = [Here, There].map(|guest| guest.retries());
    println!("the devices sent again: {before:?} before, {after:?} after");
    assert!(after[1] > before[1] + 10, "the workers' device has sent again: {before:?}, {after:?}");
}

#[test]
fn a_worker_killed_in_the_other_guest_is_evicted_and_leaves_nothing_behind() {
    let before = [Here, There].map(|guest| guest.objects());
    for scheme in ["bsp", "ssp"] {
        let mut job = Job::new(Here, [Here, There], &format!("{SLOW} --scheme {scheme} --epochs 12"));
        std::thread::sleep(Duration::from_millis(500));
        let during = Here.objects();
        assert!(There.objects()[0] > before[1][0], "queue pairs are counted");
        let killed = job.workers.remove(1).kill();
        let noticed =
            job.server.wait_for("reason=the peer ").max(job.coordinator.wait_for("warning: worker 1 "))
                - killed;
        println!("{scheme}: a killed worker was noticed after {noticed:?}");
        assert!(noticed <= NOTICED_WITHIN, "{scheme}: noticed after {noticed:?}");
        until("what served it is given back, and all that it held", || {
            There.objects() == before[1] && Here.objects().iter().zip(&during).all(|(now, then)| now < then)
        });
        let (said, json) = job.succeeds();
        assert!(said.contains("; evicted, 1 of 2 go on"), "{said}");
        assert_eq!((&json["evicted"], &json["workers"][1]["evicted"]), (&1.into(), &true.into()), "{json}");
        until("all is given back", || [Here, There].map(|guest| guest.objects()) == before);
    }
}

#[test]
fn a_server_killed_in_the_other_guest_is_reported_and_leaves_nothing_behind() {
    let before = [Here, There].map(|guest| guest.objects());
    let job = Job::new(There, [Here, Here], &format!("{SLOW} --scheme ssp --epochs 12"));
    std::thread::sleep(Duration::from_millis(500));
    let during = [Here, There].map(|guest| guest.objects());
    assert!(during[0][0] > before[0][0] && during[1][0] > before[1][0], "queue pairs are counted");
    let Job { mut coordinator, server, workers, .. } = job;
    let killed = server.kill();
    let noticed = coordinator.wait_for("error: lost shard 0 of 1: its server ") - killed;
    println!("a killed server ended the job after {noticed:?}");
    assert!(noticed <= NOTICED_WITHIN, "noticed after {noticed:?}");
    let said = coordinator.end(1);
    assert!(said.contains(": lost shard 0 of 1 at verbs:"), "a worker told, too: {said}");
    workers.into_iter().for_each(|worker| drop(worker.end(1)));
    until("all is given back", || [Here, There].map(|guest| guest.objects()) == before);
}
