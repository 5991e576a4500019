//! Nothing is lost in silence: checkpoints that cannot be written or read, what is taken up, runs that diverge.
//!
//! Only processes that a test itself started are ever signalled.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use slackline::checkpoint::Checkpoint;
use tempfile::TempDir;

mod common;
use common::{Run, kill};

/// A run that sleeps most of the time, and takes about four seconds however fast the machine is; it writes checkpoints
/// on request alone.
fn slow<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let job = ["train", "--model", "softmax", "--timeout", "20", "--json", "-", "--checkpoint", folder];
    let slow = ["--jitter", "constant(0.002)"];
    let mut arguments = [&job[..], &slow, more].concat();
    for (option, value) in [("--epochs", "80"), ("--checkpoint-every", "1000000")] {
        if !more.contains(&option) {
            arguments.extend([option, value]);
        }
    }
    arguments
}

/// A run of a moment.
fn short<'a>(folder: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let job = ["train", "--model", "softmax", "--json", "-", "--checkpoint", folder];
    let epochs: &[&str] = if more.contains(&"--epochs") { &[] } else { &["--epochs", "3"] };
    [&job[..], epochs, more].concat()
}

fn end(run: Run, code: i32) -> (Value, String) {
    let (found, json, said) = run.end();
    assert_eq!(found, Some(code), "{said}");
    (serde_json::from_str(&json).unwrap_or_default(), said)
}

fn version(folder: &TempDir) -> Option<u64> {
    Checkpoint::read(folder.path().join(SHARD)).ok().map(|checkpoint| checkpoint.version().get())
}

const SHARD: &str = "shard-0-of-1.safetensors";

/// Gives the name of the record that says who owns the checkpoint to a folder.
fn let_no_checkpoint_be_written(folder: &TempDir) {
    let record = folder.path().join(format!("{SHARD}.owner"));
    fs::remove_file(&record).unwrap();
    fs::create_dir(&record).unwrap();
}

#[test]
fn a_folder_that_takes_no_checkpoint_is_refused_before_training() {
    let (_, said) = end(Run::of(&short("/proc", &[])), 2);
    assert!(said.contains("error: --checkpoint /proc/shard-0-of-1.safetensors: "), "{said}");
    assert!(said.contains("help: check the folder, its permissions and the space left"), "{said}");
    let (_, said) = end(Run::of(&["train", "--checkpoint-every", "5"]), 2);
    assert!(said.contains("--checkpoint <FOLDER>"), "it needs a folder: {said}");
}

#[test]
fn checkpoints_that_fail_are_warned_of_and_counted_and_end_a_strict_run() {
    for strict in [false, true] {
        let folder = TempDir::new().unwrap();
        let more: &[&str] = if strict { &["--strict-checkpoints"] } else { &[] };
        let run = Run::of(&slow(folder.path().to_str().unwrap(), more));
        run.wait_for("epoch");
        let_no_checkpoint_be_written(&folder);
        kill(run.pid(), Signal::USR1);
        run.wait_for("warning: shard 0: ");
        let (json, said) = end(run, i32::from(strict));
        assert!(said.contains("the checkpoint cannot be written: Is a directory"), "{said}");
        if strict {
            assert!(said.contains("error: shard 0: ") && said.contains("; check the folder"), "{said}");
            continue;
        }
        // The one that was asked for, and the last.
        assert_eq!(json["checkpoints_failed"], 2, "{json}");
        let error = json["checkpoint_error"].as_str().unwrap();
        assert!(error.contains("Is a directory"), "{error}");
        assert!(said.contains("warning: 2 checkpoints could not be written: shard 0: "), "{said}");
    }
}

#[test]
fn a_last_checkpoint_that_fails_is_told_though_the_run_is_over() {
    let folder = TempDir::new().unwrap();
    let run = Run::of(&slow(folder.path().to_str().unwrap(), &["--epochs", "20"]));
    run.wait_for("epoch");
    let_no_checkpoint_be_written(&folder);
    let (json, said) = end(run, 0);
    assert_eq!(json["checkpoints_failed"], 1, "{json}");
    assert!(said.contains("warning: 1 checkpoint could not be written: shard 0: "), "{said}");
}

#[test]
fn a_resume_with_nothing_to_resume_from_is_an_error_that_says_what_is_there() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    let missing = folder.path().join("missing");
    let (_, said) = end(Run::of(&short(missing.to_str().unwrap(), &["--resume"])), 2);
    assert!(said.contains("error: --resume: there is no folder "), "{said}");
    assert!(said.contains("help: leave --resume out to begin from the initial values"), "{said}");
    assert!(!missing.exists(), "it is not made");
    let (_, said) = end(Run::of(&short(path, &["--resume"])), 2);
    assert!(said.contains("needs shard-0-of-1.safetensors, and holds no checkpoint at all"), "{said}");
    end(Run::of(&short(path, &[])), 0);
    let (_, said) = end(Run::of(&short(path, &["--resume", "--servers", "2"])), 2);
    let needs =
        "needs shard-0-of-2.safetensors, shard-1-of-2.safetensors, and holds shard-0-of-1.safetensors";
    assert!(said.contains(needs), "{said}");
    assert!(said.contains("help: use the number of servers that wrote the checkpoints"), "{said}");
}

#[test]
fn a_run_that_resumes_names_its_checkpoint_and_says_if_it_is_the_one_before() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    end(Run::of(&short(path, &[])), 0);
    let first = version(&folder).unwrap();
    let (_, said) = end(Run::of(&short(path, &["--resume", "--epochs", "6"])), 0);
    assert!(
        said.contains(&format!("shard 0 goes on from its checkpoint at version {first} (clock ")),
        "{said}"
    );
    assert!(version(&folder).unwrap() > first);
    fs::write(folder.path().join(SHARD), "half").unwrap();
    let (_, said) = end(Run::of(&short(path, &["--resume", "--epochs", "6"])), 0);
    let warning = format!(
        "warning: {path}/{SHARD}: a damaged checkpoint: it ends too early; shard 0 takes the checkpoint before it"
    );
    assert!(said.contains(&warning), "{said}");
    assert!(
        said.contains(&format!("shard 0 goes on from its checkpoint at version {first} (clock ")),
        "{said}"
    );
}

#[test]
fn checkpoints_that_a_server_finds_damaged_are_a_run_that_failed() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    end(Run::of(&short(path, &[])), 0);
    for file in fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()) {
        fs::write(file, "half").unwrap();
    }
    let (_, said) = end(Run::of(&short(path, &["--resume"])), 1);
    assert!(said.contains("a damaged checkpoint: it ends too early"), "{said}");
}

#[test]
fn a_request_for_a_checkpoint_ends_no_process_that_is_only_beginning() {
    let folder = TempDir::new().unwrap();
    // It reads its options until this test writes a secret.
    let pipe = folder.path().join("secret");
    assert!(Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap().success());
    let run = Run::of(&["train", "--secret-file", pipe.to_str().unwrap()]);
    let (opened, is_open) = mpsc::channel();
    std::thread::spawn(move || opened.send(fs::OpenOptions::new().write(true).open(pipe)));
    let pipe = is_open.recv_timeout(Duration::from_secs(60)).expect("it reads the secret").unwrap();
    kill(run.pid(), Signal::USR1);
    drop(pipe);
    let (_, said) = end(run, 2);
    assert!(said.contains("error: the secret from "), "{said}");
}

#[test]
fn a_model_is_saved_before_the_last_checkpoints_are_waited_for() {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model.safetensors");
    let more = ["--epochs", "20", "--save", model.to_str().unwrap()];
    let run = Run::of(&slow(folder.path().to_str().unwrap(), &more));
    run.wait_for("epoch");
    // No checkpoint is written meanwhile.
    let record = fs::File::open(folder.path().join(format!("{SHARD}.owner"))).unwrap();
    record.lock().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !model.exists() {
        assert!(Instant::now() < deadline, "there is no model");
        std::thread::sleep(Duration::from_millis(10));
    }
    record.unlock().unwrap();
    let (json, said) = end(run, 0);
    assert_eq!(json["checkpoints_failed"], 0, "{said}");
    assert!(version(&folder).is_some());
}

#[test]
fn a_server_that_dies_before_its_first_checkpoint_says_that_there_was_none() {
    let folder = TempDir::new().unwrap();
    let run = Run::of(&slow(folder.path().to_str().unwrap(), &["--restarts", "1"]));
    run.wait_for("epoch");
    kill(run.server(0), Signal::KILL);
    run.wait_for("warning: shard 0 begins again from the initial values: no checkpoint of it was written");
    let (_, said) = end(run, 0);
    assert!(!said.contains("from its checkpoint"), "{said}");
    assert!(said.contains("after the initial values are lost"), "{said}");
}

#[test]
fn interrupt_and_terminate_write_a_last_checkpoint_and_end_by_the_signal() {
    for (signal, name, everybody) in
        [(Signal::INT, "SIGINT", true), (Signal::TERM, "SIGTERM", false), (Signal::INT, "SIGINT", false)]
    {
        let folder = TempDir::new().unwrap();
        let run = Run::of(&slow(folder.path().to_str().unwrap(), &["--restarts", "3"]));
        run.wait_for("epoch");
        let server = run.server(0);
        kill(run.pid(), signal);
        if everybody {
            // As a terminal does.
            kill(server, signal);
        }
        let (code, json, said) = run.end();
        assert_eq!((code, json.as_str()), (None, ""), "ended by the signal: {said}");
        let version = version(&folder).expect("a checkpoint is written");
        let error =
            format!("error: stopped by {name}: the newest checkpoint of shard 0 is of version {version}");
        assert!(version > 0 && said.contains(&error), "{said}");
        assert!(said.contains("help: start the run again with --resume"), "{said}");
    }
}

#[test]
fn a_server_that_is_terminated_writes_a_last_checkpoint_and_goes_on_from_it() {
    let folder = TempDir::new().unwrap();
    let run = Run::of(&slow(folder.path().to_str().unwrap(), &["--restarts", "1"]));
    run.wait_for("epoch");
    kill(run.server(0), Signal::TERM);
    run.wait_for("warning: the server of shard 0 was killed by signal 15; start 1 of 1 again");
    run.wait_for("shard 0 goes on from its checkpoint at version");
    let (json, said) = end(run, 0);
    assert_eq!((&json["evicted"], &json["checkpoints_failed"]), (&0.into(), &0.into()), "{said}");
}

#[test]
fn a_lost_server_with_checkpoints_is_an_end_whose_remedy_is_to_resume() {
    let folder = TempDir::new().unwrap();
    let run =
        Run::of(&slow(folder.path().to_str().unwrap(), &["--checkpoint-every", "20", "--epochs", "400"]));
    run.wait_for("epoch");
    let deadline = Instant::now() + Duration::from_secs(60);
    while version(&folder).is_none() {
        assert!(Instant::now() < deadline, "there is no checkpoint");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The server tells the coordinator ten times a second.
    std::thread::sleep(Duration::from_secs(2));
    kill(run.server(0), Signal::KILL);
    let (_, said) = end(run, 1);
    assert!(said.contains("help: start the run again with --resume"), "{said}");
}

#[test]
fn a_folder_whose_name_is_no_text_holds_checkpoints_too() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(OsString::from_vec(b"\xFF\xFE".to_vec()));
    for more in [None, Some("--resume")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
        command.args(["train", "--model", "softmax", "--epochs", "3", "--checkpoint"]).arg(&path).args(more);
        let output = command.env_remove("RUST_LOG").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(Path::exists(&path.join(SHARD)));
    }
}

#[test]
fn a_run_that_diverges_ends_when_it_does() {
    let job = ["train", "--model", "softmax", "--optimizer", "sgd", "--learning-rate", "1e38"];
    let (_, said) = end(Run::of(&[&job[..], &["--epochs", "1000000"]].concat()), 1);
    assert!(said.contains("error: the run diverged: parameters are not finite after "), "{said}");
    assert!(said.contains("help: use a smaller --learning-rate than "), "{said}");
}

#[test]
fn a_worker_that_is_stopped_for_less_than_the_lease_stays_in() {
    let (_, said) = end(Run::of(&["train", "--lease", "0"]), 2);
    assert!(said.contains("--lease cannot be 0") && said.contains("help: "), "{said}");
    let folder = TempDir::new().unwrap();
    let run = Run::of(&slow(folder.path().to_str().unwrap(), &["--lease", "60"]));
    run.wait_for("epoch");
    kill(run.worker(1), Signal::STOP);
    // Longer than the usual lease.
    std::thread::sleep(Duration::from_secs(5));
    kill(run.worker(1), Signal::CONT);
    let (json, said) = end(run, 0);
    assert_eq!(json["evicted"], 0, "{said}");
}

#[test]
fn a_secret_that_is_no_text_is_refused_and_does_not_count_as_none() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["work", "--rendezvous", "127.0.0.1:1", "--timeout", "1"]);
    command.env("SLACKLINE_SECRET", OsString::from_vec(b"\xFFsixteen bytes of no text".to_vec()));
    let output = command.env_remove("SLACKLINE_SECRET_FILE").env_remove("RUST_LOG").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("error: the secret in SLACKLINE_SECRET is no UTF-8 text"), "{said}");
    assert!(said.contains("help: use text, or name a file of mode 600"), "{said}");
}

#[test]
fn a_server_that_comes_back_does_not_wait_for_workers_that_have_finished() {
    let folder = TempDir::new().unwrap();
    let keep =
        ["--checkpoint", folder.path().to_str().unwrap(), "--checkpoint-every", "5", "--restarts", "1"];
    // Worker 0 finishes after some two seconds, worker 1 five times as late.
    let slow = ["--jitter", "constant(0.02)", "--straggler", "1=5", "--timeout", "20", "--json", "-"];
    let job = ["train", "--model", "softmax", "--epochs", "4", "--scheme", "asp", "--workers", "2"];
    let run = Run::of(&[&job[..], &slow, &keep].concat());
    run.wait_for("epoch");
    std::thread::sleep(Duration::from_millis(3500));
    kill(run.server(0), Signal::KILL);
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["evicted"], 0, "{said}");
    assert_eq!(json["workers"][0]["clock"], json["workers"][1]["clock"], "{said}");
}
