//! The main job on three hosts, which are network namespaces: two workers share memory with the server, two reach it
//! over TCP.
//!
//! Slow, and needs `ip`, `nft`, and root or user namespaces: `cargo xtask test hosts`.

mod fleet;
#[path = "../../tests/network/namespaces.rs"]
mod namespaces;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use fleet::Fleet;
use fleet::running::paths;
use namespaces::Host;

/// The lease, and what a busy machine takes to act on it: before the timeout of any process.
const EVICTED_WITHIN: Duration = Duration::from_secs(3 + 12);

/// A lease by which no process is evicted while a test lasts.
const LONG_LEASE: &str = "--lease 600";

/// About seven seconds of training, most of them asleep, however fast the machine is.
const LONG: &str = "--model softmax --epochs 200 --jitter constant(0.003) --timeout 20";

#[test]
fn two_workers_by_shared_memory_and_two_by_tcp_learn_the_digits() {
    let fleet = Fleet::new();
    for scheme in ["bsp", "asp", "ssp", "essp"] {
        let said = fleet.job(&format!("--scheme {scheme} --seed 7")).succeeds();
        let json = fleet.json();
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
        assert_eq!((&json["scheme"], &json["evicted"]), (&scheme.into(), &0.into()), "{json}");
        assert_eq!(paths(&json), ["shm", "shm", "tcp", "tcp"], "{json}");
        assert_eq!(json["transport"], "shm+tcp");
        let reason = |worker: usize| json["workers"][worker]["paths"][0]["reason"].as_str().unwrap();
        assert_eq!(reason(0), "both are on one host");
        assert!(reason(3).contains("it listens at a port; no shm: ") && reason(3).contains("not one host"));
        assert!(said.contains("2 paths over shm (both are on one host)"), "{said}");
        assert!(said.contains("2 paths over tcp (it listens at a port"), "{said}");
        let clocks = |worker: usize| json["workers"][worker]["clocks"].as_u64().unwrap();
        assert!((1..4).all(|worker| clocks(worker) == clocks(0)), "all did all their work: {json}");
    }
}

#[test]
fn the_servers_see_one_worker_of_each_host_and_learn_what_they_do_of_all() {
    let fleet = Fleet::new();
    let options = "--scheme bsp --seed 7 --model softmax --epochs 20";
    fleet.job(options).succeeds();
    let flat = fleet.json();
    let said = fleet.job(&format!("{options} --per-host")).succeeds();
    let json = fleet.json();
    assert_eq!((&json["per_host"], &json["hosts"], &json["evicted"]), (&true.into(), &3.into(), &0.into()));
    // The second worker of the first host reaches the first one there, and no server.
    let reached = |worker: usize, role: &str| json["workers"][worker]["paths"][0][role].as_u64();
    assert_eq!([0, 1, 2, 3].map(|worker| reached(worker, "server")), [Some(0), None, Some(0), Some(0)]);
    assert_eq!(reached(1, "worker"), Some(0), "{json}");
    assert_eq!(paths(&json), ["shm", "shm", "tcp", "tcp"], "{json}");
    assert!(
        said.contains("2 paths over shm (both are on one host)") && said.contains("2 paths over tcp"),
        "{said}"
    );
    // Sums of four gradients in another order, 220 times.
    let [by_host, by_worker] = [&json, &flat].map(|json| json["final_loss"].as_f64().unwrap());
    assert!((by_host - by_worker).abs() < 1e-4, "{by_host} and {by_worker}");
    assert_eq!(json["server_status"][0]["folded"], flat["server_status"][0]["folded"], "{json}");
}

#[test]
fn two_servers_on_two_hosts_hold_a_shard_each_and_all_workers_reach_both() {
    let fleet = Fleet::new();
    for scheme in ["bsp", "ssp"] {
        fleet.job_served_from(&[0, 1], &format!("--scheme {scheme} --seed 7")).succeeds();
        let json = fleet.json();
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");
        assert_eq!((&json["servers"], &json["evicted"]), (&2.into(), &0.into()), "{json}");
        assert_eq!(json["server_status"].as_array().map(Vec::len), Some(2), "{json}");
        // Two workers beside the first server, one beside the second, one beside none.
        for (worker, expected) in
            [["shm", "tcp"], ["shm", "tcp"], ["tcp", "shm"], ["tcp", "tcp"]].iter().enumerate()
        {
            let paths = json["workers"][worker]["paths"].as_array().unwrap();
            let taken: Vec<_> = paths.iter().map(|path| path["path"].as_str().unwrap()).collect();
            let servers: Vec<_> = paths.iter().map(|path| path["server"].as_u64().unwrap()).collect();
            assert_eq!((&taken[..], &servers[..]), (&expected[..], &[0, 1][..]), "worker {worker}: {json}");
        }
        let clocks = |worker: usize| json["workers"][worker]["clocks"].as_u64().unwrap();
        assert!((1..4).all(|worker| clocks(worker) == clocks(0)), "all did all their work: {json}");
    }
}

#[test]
fn the_path_that_is_required_is_taken_by_all_or_refused_by_name() {
    let fleet = Fleet::new();
    fleet.job("--require tcp --scheme bsp").succeeds();
    let json = fleet.json();
    assert_eq!(paths(&json), ["tcp"; 4], "{json}");
    assert_eq!(json["transport"], "tcp");
    assert!(json["final_accuracy"].as_f64().unwrap() >= 0.95, "{json}");

    let mut job = fleet.job("--require shm --timeout 10");
    for far in [job.workers.remove(3), job.workers.remove(2)] {
        let said = far.end(1);
        assert!(said.contains("cannot reach the server 0 on "), "{said}");
        assert!(said.contains(" over shm, which is required: no shm: "), "{said}");
        assert!(said.contains("are not one host (kernel, network and user)"), "{said}");
    }
    let said = job.coordinator.end(1);
    assert!(said.contains("could not join: cannot reach the server 0 on "), "{said}");
}

#[test]
fn a_host_that_is_cut_off_loses_its_worker_and_the_others_finish() {
    for scheme in ["bsp", "ssp"] {
        let fleet = Fleet::new();
        let mut job = fleet.job(&format!("--scheme {scheme} {LONG}"));
        job.coordinator.wait_for("2 paths over tcp");
        std::thread::sleep(Duration::from_millis(500));
        let cut = Instant::now();
        fleet.hosts.unplug(2);
        // The lease ends it, or the system's own limit for a connection, which is as long.
        let at_server = job.servers[0].wait_for_any(&["peer evicted", "peer left"]);
        let noticed = at_server.max(job.coordinator.wait_for("warning: worker 3 "));
        println!("{scheme}: cut off, noticed after {:?}", noticed - cut);
        assert!(noticed - cut <= EVICTED_WITHIN, "{scheme}: noticed after {:?}", noticed - cut);
        // It cannot be told anything, and does not wait for it.
        job.workers.pop().unwrap().end(1);
        let said = job.succeeds();
        assert!(said.contains("; evicted, 3 of 4 go on"), "{said}");
        let json = fleet.json();
        assert_eq!(json["evicted"], 1, "{json}");
        assert_eq!(json["workers"][3]["evicted"], true, "{json}");
        let clocks = |worker: usize| json["workers"][worker]["clocks"].as_u64().unwrap();
        assert!(clocks(0) == clocks(1) && clocks(0) == clocks(2), "survivors do all their work: {json}");
        assert!(clocks(3) < clocks(0), "cut off in the middle: {json}");
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.9, "{json}");
    }
}

#[test]
fn a_worker_that_is_killed_on_another_host_is_evicted_at_once() {
    for scheme in ["bsp", "ssp"] {
        let fleet = Fleet::new();
        let mut job = fleet.job(&format!("--scheme {scheme} {LONG_LEASE} {LONG}"));
        job.coordinator.wait_for("2 paths over tcp");
        std::thread::sleep(Duration::from_millis(500));
        let killed = job.workers.remove(2).kill();
        // Its connections say so: no process waits for the lease.
        let noticed = job.coordinator.wait_for("warning: worker 2 ");
        println!("{scheme}: killed, noticed after {:?}", noticed - killed);
        let said = job.succeeds();
        assert!(said.contains("; evicted, 3 of 4 go on"), "{said}");
        let json = fleet.json();
        assert_eq!((&json["evicted"], &json["workers"][2]["evicted"]), (&1.into(), &true.into()), "{json}");
    }
}

/// How much later than the cable is put back the hosts may reach each other again. The system asks for an address once
/// a second: if the third question is in vain, two seconds after the cable was pulled out, it drops what waits for the
/// answer, and TCP sends that again only after more than the default lease.
const LATE: Duration = Duration::from_millis(1300);

/// How much later than asked the cable may be put back: before the third question.
const PLUGGED_LATE: Duration = Duration::from_millis(900);

/// Pulls the cable of one host out for so many seconds in the middle of a job, which must lose no worker.
fn pull_a_cable_for(seconds: u64, options: &str) {
    for scheme in ["bsp", "ssp"] {
        let is_judged = (0..5).any(|_| pull_a_cable_in(scheme, Duration::from_secs(seconds), options));
        assert!(is_judged, "{scheme}: the hosts reached each other too late, each time");
    }
}

/// False if the hosts did not reach each other in time after the cable was back: that says nothing of the job.
fn pull_a_cable_in(scheme: &str, outage: Duration, options: &str) -> bool {
    let fleet = Fleet::new();
    let mut job = fleet.job(&format!("--scheme {scheme} {options} {LONG}"));
    job.coordinator.wait_for("2 paths over tcp");
    std::thread::sleep(Duration::from_millis(500));
    let pulled = Instant::now();
    fleet.hosts.unplug(2);
    std::thread::sleep(outage);
    fleet.hosts.plug(2);
    let plugged = pulled.elapsed();
    wait_until_reached(&fleet.hosts[2], &fleet.hosts[0]);
    let was_out = pulled.elapsed();
    println!("{scheme}: the cable was out for {plugged:?}, and the hosts apart for {was_out:?}");
    if plugged > outage + PLUGGED_LATE || was_out > outage + LATE {
        return false;
    }
    job.succeeds();
    let json = fleet.json();
    assert_eq!(json["evicted"], 0, "{json}");
    let clocks = |worker: usize| json["workers"][worker]["clocks"].as_u64().unwrap();
    assert!((1..4).all(|worker| clocks(worker) == clocks(0)), "all did all their work: {json}");
    true
}

/// Waits until datagrams of one host reach the other.
fn wait_until_reached(from: &Host, to: &Host) {
    let socket = |host: &Host| host.within(|| UdpSocket::bind((host.address(), 0)).unwrap());
    let (sender, receiver) = (socket(from), socket(to));
    receiver.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let begun = Instant::now();
    while receiver.recv(&mut [0]).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the hosts do not reach each other");
        // One that fails is followed by another.
        let _sent = sender.send_to(&[0], receiver.local_addr().unwrap());
    }
}

#[test]
fn a_cable_that_is_out_for_a_second_costs_nobody_the_job() {
    pull_a_cable_for(1, "");
}

/// By itself TCP gives a peer up after three seconds in which it acknowledges nothing.
#[test]
fn a_cable_that_is_out_for_five_seconds_costs_no_worker_with_a_longer_lease() {
    pull_a_cable_for(5, "--lease 20");
}

#[test]
fn a_worker_restarted_on_its_own_or_another_host_goes_on_with_the_others() {
    for scheme in ["bsp", "ssp"] {
        let fleet = Fleet::new();
        let secret = Some("one secret");
        let mut job = fleet.job(&format!("--scheme {scheme} {LONG}"));
        job.coordinator.wait_for("2 paths over tcp");
        std::thread::sleep(Duration::from_millis(500));
        // One is killed, and started again where it was.
        job.workers.remove(2).kill();
        job.coordinator.wait_for("warning: worker 2 ");
        let again = fleet.work(2, 1, secret);
        job.coordinator.wait_for("worker 2 is back");
        // One loses its host, and is started again on that of another.
        fleet.hosts.unplug(2);
        job.coordinator.wait_for("warning: worker 3 ");
        job.workers.pop().unwrap().end(1);
        let elsewhere = fleet.work(3, 1, secret);
        job.coordinator.wait_for("worker 3 is back");
        job.workers.extend([again, elsewhere]);
        job.succeeds();
        let json = fleet.json();
        assert_eq!((&json["evicted"], paths(&json)), (&0.into(), vec!["shm", "shm", "tcp", "tcp"]), "{json}");
        let of = |worker: usize, what: &str| json["workers"][worker][what].as_u64().unwrap();
        assert_eq!((of(0, "restarts"), of(2, "restarts"), of(3, "restarts")), (0, 1, 1), "{json}");
        assert!((1..4).all(|worker| of(worker, "clock") == of(0, "clock")), "all came to the end: {json}");
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.9, "{json}");
    }
}

#[test]
fn a_server_that_comes_again_is_found_again_by_workers_on_other_hosts() {
    let fleet = Fleet::new();
    let secret = Some("one secret");
    let folder = tempfile::TempDir::new().unwrap();
    let checkpoints = format!("--checkpoint {} --checkpoint-every 20", folder.path().display());
    let mut job = fleet.job(&format!("--scheme ssp {LONG} {checkpoints}"));
    job.coordinator.wait_for("2 paths over tcp");
    std::thread::sleep(Duration::from_millis(1000));
    job.servers.remove(0).kill();
    job.coordinator.wait_for("waiting for it to be started again");
    job.servers.push(fleet.start(0, &["serve"], secret));
    job.succeeds();
    let json = fleet.json();
    assert_eq!((&json["evicted"], paths(&json)), (&0.into(), vec!["shm", "shm", "tcp", "tcp"]), "{json}");
    assert_eq!(json["server_restarts"][0], 1, "{json}");
    assert!(json["final_accuracy"].as_f64().unwrap() >= 0.9, "{json}");
}

#[test]
fn without_a_secret_nobody_comes_in_from_another_host() {
    let fleet = Fleet::new();
    let said = fleet.coordinate("--timeout 30", None).end(1);
    assert!(said.contains("without a secret only loopback addresses are served"), "{said}");
    let coordinator = fleet.coordinate("--timeout 10", Some("one secret"));
    for role in ["serve", "work"] {
        let said = fleet.start(1, &[role, "--timeout", "10"], None).end(1);
        assert!(said.contains("without a secret only loopback is let in"), "{said}");
        assert!(said.contains("give all processes of the job one secret"), "{said}");
    }
    let said = coordinator.end(1);
    assert!(said.contains("error: waited 10s for the servers"), "by the timeout: {said}");
}

#[test]
fn a_worker_with_another_secret_is_told_so_and_the_job_ends_by_its_timeout() {
    let fleet = Fleet::new();
    let secret = Some("one secret");
    let coordinator = fleet.coordinate("--timeout 15", secret);
    let mut others = vec![fleet.start(0, &["serve"], secret)];
    others.extend([0, 0, 1].map(|host| fleet.start(host, &["work"], secret)));
    let said = fleet.start(2, &["work"], Some("another secret")).end(1);
    assert!(said.contains("the two sides do not know the same secret"), "{said}");
    let said = coordinator.end(1);
    assert!(said.contains("error: waited 15s for the workers to join"), "{said}");
    assert!(said.contains("help: use a longer --timeout"), "{said}");
    for other in others {
        other.end(1);
    }
}

#[test]
fn training_converges_over_a_cable_that_loses_packets() {
    for scheme in ["bsp", "ssp"] {
        let fleet = Fleet::new();
        for host in [1, 2] {
            // Two in a hundred, of those that come in.
            for rule in [
                "add table inet loss",
                "add chain inet loss incoming { type filter hook input priority 0 ; }",
                "add rule inet loss incoming iifname eth0 numgen random mod 100 < 2 counter drop",
            ] {
                fleet.hosts[host].run("nft", &rule.split(' ').collect::<Vec<_>>());
            }
        }
        fleet.job(&format!("--scheme {scheme} --epochs 20 --learning-rate 0.04")).succeeds();
        let json = fleet.json();
        assert_eq!((&json["evicted"], paths(&json)), (&0.into(), vec!["shm", "shm", "tcp", "tcp"]), "{json}");
        assert!(json["final_accuracy"].as_f64().unwrap() >= 0.93, "{json}");
        for host in [1, 2] {
            let list = fleet.hosts[host].run("nft", &["list", "table", "inet", "loss"]);
            assert!(list.contains("counter packets ") && !list.contains("counter packets 0 "), "{list}");
        }
    }
}
