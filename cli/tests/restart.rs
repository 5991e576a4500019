//! Processes of a run that are killed and come back: training goes on where it was, and nothing is applied twice.
//!
//! Only processes that a test itself started are ever signalled.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use slackline::checkpoint::Checkpoint;
use tempfile::TempDir;

mod common;
use common::{Run, kill};

/// Largest accuracy by which a disturbed run may end below an undisturbed one of the same seed.
const ACCURACY: f64 = 0.01;

/// A run that sleeps most of the time, and takes about four seconds however fast the machine is.
fn arguments<'a>(scheme: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let job = ["train", "--model", "softmax", "--epochs", "80", "--timeout", "20", "--json", "-"];
    let slow = ["--jitter", "constant(0.002)", "--scheme", scheme];
    [&job[..], &slow, more].concat()
}

fn end(run: Run) -> (Value, String) {
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    (serde_json::from_str(&json).expect("stdout holds JSON"), said)
}

/// Waits until each server of the run has written a checkpoint.
fn wait_for_checkpoints(folder: &str, servers: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    for shard in 0..servers {
        let file = Path::new(folder).join(format!("shard-{shard}-of-{servers}.safetensors"));
        while Checkpoint::read(&file).is_err() {
            assert!(Instant::now() < deadline, "{} is not written", file.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn accuracy(json: &Value) -> f64 {
    json["final_accuracy"].as_f64().unwrap()
}

#[test]
fn a_killed_server_resumes_from_its_checkpoint_and_training_ends_the_same() {
    for (scheme, servers, transport) in [("ssp", 1, "auto"), ("bsp", 2, "auto"), ("ssp", 2, "tcp")] {
        let folder = TempDir::new().unwrap();
        let folder = folder.path().to_str().unwrap();
        let count = servers.to_string();
        let job = arguments(scheme, &["--servers", &count, "--transport", transport]);
        let (undisturbed, _) = end(Run::of(&job));
        let keep = ["--checkpoint", folder, "--checkpoint-every", "50", "--restarts", "3"];
        let run = Run::of(&[&job[..], &keep].concat());
        run.wait_for("epoch");
        wait_for_checkpoints(folder, servers);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(500));
            kill(run.server(0), Signal::KILL);
            run.wait_for("warning: the server of shard 0 was killed by signal 9; start");
            run.wait_for("shard 0 goes on from its checkpoint at version");
        }
        let (json, said) = end(run);
        assert_eq!(json["server_restarts"][0], 2, "{said}");
        assert_eq!(json["evicted"], 0, "{said}");
        assert!(json["lost_updates"].is_u64());
        let (with, without) = (accuracy(&json), accuracy(&undisturbed));
        assert!(with > without - ACCURACY, "{with} against {without}: {said}");
    }
}

/// Whichever server is killed, the others begin again with it or it with them; no process is left behind.
#[test]
fn a_killed_server_of_two_of_which_one_decides_comes_back() {
    for (killed, transport) in [(0, "auto"), (1, "tcp")] {
        let folder = TempDir::new().unwrap();
        let folder = folder.path().to_str().unwrap();
        let job = arguments("dbw(k=2)", &["--servers", "2", "--transport", transport]);
        let keep = ["--checkpoint", folder, "--checkpoint-every", "50", "--restarts", "3"];
        let run = Run::of(&[&job[..], &keep].concat());
        run.wait_for("epoch");
        wait_for_checkpoints(folder, 2);
        kill(run.server(killed), Signal::KILL);
        run.wait_for(&format!("warning: the server of shard {killed} was killed by signal 9; start"));
        run.wait_for(&format!("shard {killed} goes on from its checkpoint at version"));
        let (json, said) = end(run);
        assert!(json["server_restarts"][killed].as_u64() >= Some(1), "{said}");
        assert!(accuracy(&json) >= 0.9, "{json}");
    }
}

#[test]
fn a_killed_worker_is_restarted_and_no_gradient_of_it_is_applied_twice() {
    for (scheme, transport) in [("bsp", "auto"), ("ssp", "tcp"), ("asp", "auto"), ("essp", "tcp")] {
        let job = arguments(scheme, &["--restarts", "5", "--transport", transport]);
        let run = Run::of(&job);
        run.wait_for("epoch");
        for restart in 1..=2 {
            std::thread::sleep(Duration::from_millis(400));
            kill(run.worker(1), Signal::KILL);
            run.wait_for(&format!("warning: worker 1 was killed by signal 9; start {restart} of 5 again"));
        }
        let (json, said) = end(run);
        let workers = json["workers"].as_array().unwrap();
        assert_eq!((&workers[0]["restarts"], &workers[1]["restarts"]), (&0.into(), &2.into()), "{said}");
        assert_eq!(json["evicted"], 0, "{said}");
        let clocks = |worker: usize, what: &str| workers[worker][what].as_u64().unwrap();
        assert_eq!(clocks(0, "clock"), clocks(1, "clock"), "both came to the end: {json}");
        // A version folds at least one gradient, or with bsp one of each, and there is one of each worker and clock:
        // were old ones applied again, there would be more versions. A worker that was ahead begins where the others
        // are: within the bound it may come to a clock twice, with another gradient.
        let clocks = clocks(0, "clock");
        let most = match scheme {
            "bsp" => Some(clocks),
            "asp" => None,
            _ => Some(2 * (clocks + 4)),
        };
        let versions = json["versions"].as_u64().unwrap();
        assert!(most.is_none_or(|most| versions <= most), "{versions} versions of {clocks} clocks: {said}");
        assert!(accuracy(&json) >= 0.9, "{json}");
    }
}

#[test]
fn a_job_goes_on_from_the_checkpoints_of_an_earlier_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    let job = |epochs, more: &[&'static str]| {
        let options = ["--scheme", "bsp", "--servers", "2", "--epochs", epochs, "--json", "-"];
        let mut arguments = vec!["train", "--checkpoint", path];
        arguments.extend(options.iter().chain(more));
        Run::of(&arguments)
    };
    let (first, _) = end(job("10", &[]));
    let (code, _, said) = job("20", &[]).end();
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("an earlier run left shard-0-of-2.safetensors there"), "{said}");
    let (second, _) = end(job("20", &["--resume"]));
    // The same number again, and not from the beginning.
    assert_eq!(second["versions"].as_u64(), first["versions"].as_u64().map(|versions| 2 * versions));
    assert!(second["final_loss"].as_f64() < first["final_loss"].as_f64());
    // Bit for bit what one run of that length comes to.
    let whole =
        end(Run::of(&["train", "--scheme", "bsp", "--servers", "2", "--epochs", "20", "--json", "-"]));
    assert_eq!(whole.0["final_loss"], second["final_loss"]);
}

#[test]
fn a_run_that_ends_by_its_gradients_counts_them_in_all_its_lives() {
    let folder = TempDir::new().unwrap();
    let folder = folder.path().to_str().unwrap();
    let keep = ["--checkpoint", folder, "--checkpoint-every", "50", "--restarts", "3"];
    let job = arguments("dbw(k=2)", &keep);
    let run = Run::of(&job);
    run.wait_for("epoch");
    wait_for_checkpoints(folder, 1);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(500));
        kill(run.server(0), Signal::KILL);
        run.wait_for("warning: the server of shard 0 was killed by signal 9; start");
        run.wait_for("shard 0 goes on from its checkpoint at version");
    }
    let (json, said) = end(run);
    // 80 epochs of 22 steps, by two workers, both in each version; more come in until the job is over.
    let folded = |json: &Value| json["server_status"][0]["folded"].as_u64().unwrap();
    let versions = |json: &Value| json["versions"].as_u64().unwrap();
    assert_eq!(folded(&json), 2 * versions(&json), "{said}");
    assert!((3520..3520 + 400).contains(&folded(&json)), "{json}: {said}");
    // There is nothing left to do: it ends at the version that the last checkpoint has, or soon after.
    let kept = Checkpoint::read(Path::new(folder).join("shard-0-of-1.safetensors")).unwrap().version().get();
    let (again, said) = end(Run::of(&[&job[..], &["--resume"]].concat()));
    assert!((kept..kept + 200).contains(&versions(&again)), "from {kept}: {again}: {said}");
    assert!(accuracy(&again) >= 0.9, "{again}");
}

#[test]
fn a_signal_to_the_run_or_to_a_server_writes_a_checkpoint_and_ends_nobody() {
    let folder = TempDir::new().unwrap();
    let keep = ["--checkpoint", folder.path().to_str().unwrap(), "--checkpoint-every", "1000000"];
    let run = Run::of(&arguments("ssp", &[&keep[..], &["--servers", "2"]].concat()));
    run.wait_for("epoch");
    let version = |shard: u32| {
        let file = folder.path().join(format!("shard-{shard}-of-2.safetensors"));
        Checkpoint::read(file).map_or(0, |checkpoint| checkpoint.version().get())
    };
    let newer = |shard: u32, than: u64| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while version(shard) <= than {
            assert!(Instant::now() < deadline, "shard {shard} is not written");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!((version(0), version(1)), (0, 0), "no checkpoint was asked for yet");
    kill(run.pid(), Signal::USR1);
    run.wait_for("checkpoints are written, as was asked for");
    newer(0, 0);
    newer(1, 0);
    let before = version(1);
    kill(run.worker(0), Signal::USR1);
    kill(run.server(1), Signal::USR1);
    newer(1, before);
    let (json, said) = end(run);
    assert_eq!((&json["evicted"], &json["server_restarts"][1]), (&0.into(), &0.into()), "{said}");
}

#[test]
fn without_a_checkpoint_a_lost_server_is_the_end() {
    let run = Run::of(&arguments("ssp", &["--restarts", "3"]));
    run.wait_for("epoch");
    kill(run.server(0), Signal::KILL);
    let (code, _, said) = run.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: lost shard 0 of 1"), "{said}");
}
