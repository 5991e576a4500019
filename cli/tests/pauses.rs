//! Processes of a run that are paused (SIGSTOP) for longer than the lease, and go on.
//!
//! Only processes that a test itself started are ever signalled.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

mod common;
use common::{Run, kill};

/// Longer than the lease of three seconds, with what a busy machine takes to act on it.
const LONGER: Duration = Duration::from_millis(4500);

/// Shorter than that.
const SHORTER: Duration = Duration::from_millis(1500);

/// What a busy machine may make of that, well within the lease, too.
const SHORT_ENOUGH: Duration = Duration::from_secs(2);

/// Calls `body` for each transport, side by side: it sleeps most of the time.
fn by_each_transport(body: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        for transport in ["shm", "tcp"] {
            let body = &body;
            scope.spawn(move || body(transport));
        }
    });
}

/// A run that sleeps most of the time, and takes six seconds without pauses however fast the machine is.
fn start(scheme: &str, workers: &str, transport: &str, more: &[&str]) -> Run {
    let job = ["train", "--model", "softmax", "--epochs", "120", "--timeout", "30", "--json", "-"];
    let slow = ["--jitter", "constant(0.002)"];
    let run = ["--scheme", scheme, "--workers", workers, "--transport", transport];
    let run = Run::of(&[&job[..], &slow, &run, more].concat());
    run.wait_for("epoch");
    run
}

/// Pauses processes for at least this time, and returns how long it was.
fn pause(processes: &[u32], time: Duration) -> Duration {
    let begun = Instant::now();
    processes.iter().for_each(|process| kill(*process, Signal::STOP));
    std::thread::sleep(time);
    processes.iter().for_each(|process| kill(*process, Signal::CONT));
    begun.elapsed()
}

/// Pauses a worker until the run goes on without it. The others wait for it within an epoch of where it stopped: once
/// they are an epoch further it was let go, however long a busy machine has taken to notice that it is silent. A run
/// that starts it again may have ended it meanwhile.
fn pause_until_it_is_let_go(run: &Run, worker: usize) {
    let epoch_after = |stopped: Instant| loop {
        let (came, line) = run.line("epoch ");
        let epoch = line.split(' ').nth(1).and_then(|number| number.parse::<f64>().ok());
        if came > stopped {
            return epoch.expect("a number after `epoch`");
        }
    };
    let process = Pid::from_raw(run.worker(worker) as i32).expect("no process has the number 0");
    kill_process(process, Signal::STOP).expect("the process is there");
    let stopped = Instant::now();
    let first = epoch_after(stopped);
    while epoch_after(stopped) < first + 1.0 {}
    let _ended_already = kill_process(process, Signal::CONT);
}

fn end(run: Run) -> (Value, String) {
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    (serde_json::from_str(&json).expect("stdout holds JSON"), said)
}

/// Asserts that all workers made all their clocks, in their first incarnations.
fn lost_nobody(run: Run) {
    let json = evicted_nobody(run);
    let workers = json["workers"].as_array().unwrap();
    assert!(workers.iter().all(|worker| worker["clock"] == workers[0]["clock"]), "{json}");
}

/// Asserts that all workers came to the end in their first incarnations. Under a scheme that counts versions they have
/// made as many clocks as it took.
fn evicted_nobody(run: Run) -> Value {
    let (json, said) = end(run);
    assert_eq!(json["evicted"], 0, "{said}");
    assert!(json["workers"].as_array().unwrap().iter().all(|worker| worker["restarts"] == 0), "{said}");
    assert!(json["final_accuracy"].as_f64().unwrap() >= 0.9, "{json}");
    json
}

#[test]
fn a_paused_server_loses_none_of_its_workers() {
    by_each_transport(|transport| {
        let run = start("ssp", "3", transport, &[]);
        pause(&[run.server(0)], LONGER);
        lost_nobody(run);
    });
}

#[test]
fn a_paused_server_of_two_loses_none_of_its_workers() {
    by_each_transport(|transport| {
        let paused = |scheme, server| {
            let run = start(scheme, "2", transport, &["--servers", "2"]);
            pause(&[run.server(server)], LONGER);
            run
        };
        std::thread::scope(|scope| {
            scope.spawn(|| lost_nobody(paused("bsp", 1)));
            // One server decides, and the other follows it.
            scope.spawn(|| evicted_nobody(paused("dbw(k=2)", 0)));
            scope.spawn(|| evicted_nobody(paused("dbw(k=2)", 1)));
        });
    });
}

#[test]
fn a_paused_coordinator_loses_nobody_and_brings_the_result_home() {
    by_each_transport(|transport| {
        for (scheme, servers) in [("ssp", true), ("ds-sync(group=2)", false)] {
            let run = start(scheme, "2", transport, &[]);
            assert_eq!(run.children("serve").is_empty(), !servers);
            // Longer, too, than the coordinator lets a worker be silent.
            pause(&[run.pid()], 2 * LONGER);
            lost_nobody(run);
        }
    });
}

#[test]
fn a_run_of_which_all_processes_are_paused_goes_on() {
    by_each_transport(|transport| {
        for scheme in ["ssp", "ds-sync(group=2)"] {
            let run = start(scheme, "2", transport, &[]);
            let all = [&[run.pid()][..], &run.children("serve"), &run.children("work")].concat();
            pause(&all, 2 * LONGER);
            lost_nobody(run);
        }
    });
}

#[test]
fn processes_that_are_paused_for_less_than_the_lease_are_not_missed() {
    by_each_transport(|transport| {
        for scheme in ["ssp", "ds-sync(group=2)"] {
            // One that a busy machine has made longer may be missed: another run has to show it then.
            let is_shown = |_attempt| {
                let run = start(scheme, "2", transport, &[]);
                let is_short = |process| pause(&[process], SHORTER) < SHORT_ENOUGH;
                let are_short = is_short(run.worker(1))
                    && run.children("serve").first().is_none_or(|server| is_short(*server))
                    && is_short(run.pid());
                if are_short {
                    lost_nobody(run);
                }
                are_short
            };
            assert!((0..5).any(is_shown), "five times a pause was longer than {SHORT_ENOUGH:?}");
        }
    });
}

#[test]
fn a_paused_worker_is_let_go_and_the_others_finish() {
    by_each_transport(|transport| {
        let run = start("ssp", "3", transport, &[]);
        pause_until_it_is_let_go(&run, 1);
        let (json, said) = end(run);
        assert_eq!(json["evicted"], 1, "{said}");
        assert_eq!(json["workers"][1]["evicted"], true, "{said}");
        assert_eq!(json["workers"][0]["clock"], json["workers"][2]["clock"], "{said}");
    });
}

#[test]
fn a_paused_worker_is_started_again_where_there_are_restarts() {
    by_each_transport(|transport| {
        let run = start("ssp", "2", transport, &["--restarts", "3"]);
        pause_until_it_is_let_go(&run, 1);
        let (json, said) = end(run);
        assert_eq!(json["evicted"], 0, "{said}");
        assert_eq!(json["workers"][1]["restarts"], 1, "{said}");
        assert_eq!(json["workers"][0]["clock"], json["workers"][1]["clock"], "{said}");
    });
}

#[test]
fn a_paused_worker_connects_again_where_there_are_checkpoints() {
    by_each_transport(|transport| {
        let folder = TempDir::new().unwrap();
        let keep = ["--checkpoint", folder.path().to_str().unwrap()];
        let run = start("bsp", "2", transport, &keep);
        pause_until_it_is_let_go(&run, 1);
        let (json, said) = end(run);
        assert_eq!(json["evicted"], 0, "{said}");
        let workers = json["workers"].as_array().unwrap();
        assert_eq!(
            (&workers[1]["restarts"], &workers[1]["clock"]),
            (&0.into(), &workers[0]["clock"]),
            "{said}"
        );
        // Each round of the lock step is one version, and none that was applied is lost.
        assert_eq!(json["versions"], workers[0]["clock"], "{said}");
    });
}

#[test]
fn a_paused_group_member_is_left_out_and_the_others_finish() {
    by_each_transport(|transport| {
        let run = start("ds-sync(group=3)", "3", transport, &[]);
        pause_until_it_is_let_go(&run, 1);
        let (json, said) = end(run);
        assert_eq!(json["evicted"], 1, "{said}");
        assert_eq!(json["workers"][1]["evicted"], true, "{said}");
        assert_eq!(json["workers"][0]["clock"], json["workers"][2]["clock"], "{said}");
    });
}
