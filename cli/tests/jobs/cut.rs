//! Two guests that are parted in the middle of a job, for longer than it takes to notice that.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::rig::Guest::{Here, There};
use super::rig::{Faults, Job, NOTICED_WITHIN, SLOW, environment};

const CUT: Duration = Duration::from_secs(15);

#[test]
fn devices_that_are_parted_tell_in_time_and_connect_again_once_they_can() {
    let folder = tempfile::TempDir::new().unwrap();
    let checkpoint = format!("--checkpoint {}", folder.path().display());
    let mut job = Job::new(Here, [Here, There], &format!("{SLOW} --scheme ssp --epochs 32 {checkpoint}"));
    std::thread::sleep(Duration::from_secs(1));
    let faults = Faults::new("loss 100%");
    let cut = Instant::now();
    // By the device's own word, not by that of the server that lets it go.
    let at_worker = job.workers[1].wait_for("the peer's device does not answer");
    let at_server = job.server.wait_for("reason=the peer ");
    for (side, noticed) in [("worker", at_worker - cut), ("server", at_server - cut)] {
        println!("the {side} told after {noticed:?}");
        assert!(noticed <= NOTICED_WITHIN, "the {side} told after {noticed:?}");
    }
    std::thread::sleep(CUT.saturating_sub(cut.elapsed()));
    drop(faults);
    let healed = Instant::now();
    println!("connected again {:?} after", job.workers[1].wait_for("connected again") - healed);
    let (said, json) = job.succeeds();
    assert!(!said.contains("warning: worker 1"), "the process lived through it: {said}");
    assert_eq!(json["evicted"], 0, "{json}");
    let clock = |worker: usize| json["workers"][worker]["clock"].as_u64().unwrap();
    assert_eq!(clock(0), clock(1), "both came to the end: {json}");
    assert!(json["final_accuracy"].as_f64().unwrap() >= 0.8, "{json}");
}

#[test]
fn hosts_that_are_parted_lose_the_worker_and_take_it_back() {
    let mut job = Job::new(Here, [Here, There], &format!("{SLOW} --scheme bsp --epochs 36"));
    std::thread::sleep(Duration::from_secs(1));
    // Each guest drops what it would send, and undoes that on its own: the other guest could not tell it to.
    let netdev = environment("SLACKLINE_RIG_NETDEV");
    let script = format!(
        "read -r up _ </proc/uptime; echo $up; tc qdisc add dev {netdev} root netem loss 100% && sleep {} \
         && tc qdisc delete dev {netdev} root",
        CUT.as_secs()
    );
    let [mut there, mut here] = [There, Here].map(|guest| {
        let mut command = guest.command("sh");
        command.args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("a shell")
    });
    let mut first = String::new();
    BufReader::new(here.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let cut = Instant::now();
    let noticed = job.server.wait_for("reason=the peer ").max(job.coordinator.wait_for("warning: worker 1 "));
    println!("the others told after {:?}", noticed - cut);
    assert!(noticed - cut <= NOTICED_WITHIN, "the others told after {:?}", noticed - cut);
    assert!(here.wait().unwrap().success() && there.wait().unwrap().success());
    let mut up = String::new();
    BufReader::new(there.stdout.take().unwrap()).read_line(&mut up).unwrap();
    let said = job.workers.remove(1).end(1);
    let ended: f64 = said.lines().find_map(|line| line.strip_prefix("ended at ")).unwrap().parse().unwrap();
    // This guest may have begun to drop packets so long before the other one that the worker ended before that did.
    let noticed = Duration::from_secs_f64((ended - up.trim().parse::<f64>().unwrap()).max(0.0));
    println!("the worker ended after {noticed:?}: {said}");
    assert!(noticed <= NOTICED_WITHIN, "the worker ended after {noticed:?}");
    assert!(said.contains("error: "), "{said}");
    job.workers.push(Job::work(1, There));
    job.coordinator.wait_for("worker 1 is back");
    let (_, json) = job.succeeds();
    assert_eq!((&json["evicted"], &json["workers"][1]["restarts"]), (&0.into(), &1.into()), "{json}");
    let clock = |worker: usize| json["workers"][worker]["clock"].as_u64().unwrap();
    assert_eq!(clock(0), clock(1), "both came to the end: {json}");
    assert!(json["final_accuracy"].as_f64().unwrap() >= 0.8, "{json}");
}
