//! Every scheme trains the digits with four real workers, and does what it is for.

use std::net::Ipv4Addr;
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::Value;
use slackline::RendezvousEndpoint;
use slackline_lab::data;
use slackline_lab::model::load;
use tempfile::TempDir;

mod common;
use common::{Run, kill};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.arg("train").args(arguments).env_remove("RUST_LOG");
    command.output().expect("the program starts")
}

fn train(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--workers", "4", "--json", "-"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON value")
}

fn accuracy(json: &Value) -> f64 {
    json["final_accuracy"].as_f64().unwrap()
}

#[test]
fn every_scheme_learns_the_digits() {
    let sgd = &["--optimizer", "sgd"][..];
    for (scheme, more) in [
        ("bsp", &[][..]),
        ("asp", &[]),
        ("ssp(3)", &[]),
        ("essp(3)", &[]),
        ("ssp(3)", &["--read-my-writes", "--optimizer", "sgd"]),
        ("bap(3)", &[]),
        ("vap", &[]),
        ("vap(strength=strong)", &[]),
        ("dbw", &[]),
        ("dbw(delivery=wait)", &[]),
        ("dbw(delivery=pull)", &[]),
        ("dbw(k=3)", &[]),
        ("dbw(choice=blind)", &[]),
        ("abs", &[]),
        ("abs(k=2, staleness=2)", &["--damping", "inverse"]),
        ("abs(k=2, local-steps=4)", sgd),
        ("k-async(2)", &[]),
        ("k-sync(3)", &[]),
        ("adasync", &[]),
        ("delay(2)", &[]),
        ("dbw", &["--servers", "2"]),
        ("dbw(delivery=wait)", &["--servers", "3", "--transport", "tcp"]),
        ("abs(k=2, staleness=2)", &["--servers", "2"]),
        ("vap(strength=strong)", &["--servers", "2", "--transport", "tcp"]),
        ("ds-sync(2)", &[]),
        ("ds-sync(group=4)", &["--optimizer", "adam"]),
        ("ds-sync(partition=authors)", &["--transport", "tcp"]),
    ] {
        let json = train(&[&["--scheme", scheme, "--epochs", "30", "--seed", "3"], more].concat());
        assert!(accuracy(&json) >= 0.9, "{scheme}: {json}");
        if let Some(status) = json["server_status"].get(0) {
            // 30 epochs of 11 steps, by four workers; four local steps make one gradient.
            assert!(status["folded"].as_u64().unwrap() >= 1320 / 4, "{scheme}: {json}");
        }
    }
}

#[test]
fn backup_workers_and_bounded_staleness_do_not_wait_for_one_that_is_slow() {
    let slow = ["--jitter", "constant(0.005)", "--straggler", "0=20", "--target-accuracy", "0.9"];
    for scheme in ["dbw(k=3)", "abs(k=3, staleness=2, rule=fixed)"] {
        let json = train(&[&["--scheme", scheme], &slow[..]].concat());
        assert!(json["time_to_target_s"].as_f64().is_some(), "{scheme}: {json}");
        let clocks = |worker: usize| json["workers"][worker]["clocks"].as_u64().unwrap();
        assert!(2 * clocks(0) < clocks(1), "{scheme}: {json}");
        assert!(json["server_status"][0]["interrupts"].as_u64().unwrap() > 0, "{scheme}: {json}");
        assert!(json["workers"][0]["interrupts"].as_u64().unwrap() > 0, "{scheme}: {json}");
    }
}

#[test]
fn what_is_saved_of_workers_without_a_server_is_their_mean() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("mean.safetensors");
    let json =
        train(&["--scheme", "ds-sync", "--group", "2", "--epochs", "5", "--save", path.to_str().unwrap()]);
    let (spec, parameters) = load(&path).unwrap();
    let evaluation = spec.evaluate(&parameters, &data::digits().test);
    assert!((f64::from(evaluation.accuracy.unwrap()) - accuracy(&json)).abs() < 1e-6, "{json}");
    assert!(json["local"]["distance_from_mean"].as_f64().unwrap() > 0.0, "{json}");
    assert_eq!((&json["servers"], &json["versions"]), (&0.into(), &55.into()), "{json}");
}

#[test]
fn a_worker_that_comes_to_a_group_that_has_begun_is_refused_with_the_reason() {
    let meet = RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap().to_string();
    let meet = ["--rendezvous", &meet];
    let job =
        ["train", "--coordinate", "--scheme", "ds-sync", "--workers", "2", "--jitter", "constant(0.01)"];
    let coordinator = Run::of(&[&job[..], &meet].concat());
    let work = || Run::of(&[&["work"][..], &meet].concat());
    let (lost, _stays) = (work(), work());
    coordinator.wait_for("epoch");
    kill(lost.pid(), Signal::KILL);
    coordinator.wait_for("warning: worker ");
    let (code, _, said) = work().end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: the group of this job has begun and takes no member in"), "{said}");
    assert!(said.contains("; wait for the next job"), "{said}");
    assert_eq!(coordinator.end().0, Some(0));
}

#[test]
fn a_worker_of_a_group_that_is_killed_is_left_out_and_the_others_finish() {
    let run = Run::of(&[
        "train",
        "--scheme",
        "ds-sync",
        "--workers",
        "4",
        "--epochs",
        "40",
        "--jitter",
        "constant(0.01)",
        "--json",
        "-",
    ]);
    run.wait_for("epoch");
    kill(run.worker(2), Signal::KILL);
    let (code, json, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: worker 2 was killed by signal 9"), "{said}");
    let json: Value = serde_json::from_str(&json).expect("stdout holds JSON");
    assert_eq!(json["evicted"], 1, "{json}");
    for worker in [0, 1, 3] {
        assert_eq!(json["workers"][worker]["clocks"], 440, "{json}");
    }
    assert!(accuracy(&json) >= 0.9, "{json}");
}
