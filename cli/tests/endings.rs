//! Jobs that fail: every process says why, once, in a line that a person reads to its end.

use std::net::Ipv4Addr;

use rustix::process::Signal;
use slackline::RendezvousEndpoint;

mod common;
use common::{Run, kill};

/// A rendezvous of its own for a test.
fn rendezvous() -> String {
    RendezvousEndpoint::free(Ipv4Addr::LOCALHOST.into()).unwrap().to_string()
}

#[test]
fn every_process_of_a_job_that_fails_is_told_the_cause() {
    let meet = rendezvous();
    let start = |arguments: &[&str]| Run::of(&[arguments, &["--rendezvous", &meet]].concat());
    let coordinator = start(&["train", "--coordinate", "--workers", "2", "--timeout", "10"]);
    let others = [start(&["serve"]), start(&["work"])];
    let cause = "waited 10s for the workers to join: worker 1";
    let (code, _, said) = coordinator.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&format!("error: {cause}\nhelp: use a longer --timeout")), "{said}");
    for other in others {
        let (code, _, said) = other.end();
        assert_eq!(code, Some(1), "{said}");
        let told = format!("error: the job failed: {cause}; use a longer --timeout");
        assert!(said.contains(&told), "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
    }
}

#[test]
fn workers_of_a_lost_server_are_told_how_the_job_ended() {
    let meet = rendezvous();
    let start = |arguments: &[&str]| Run::of(&[arguments, &["--rendezvous", &meet]].concat());
    let job = ["train", "--coordinate", "--workers", "2", "--model", "softmax", "--jitter", "constant(0.05)"];
    let coordinator = start(&job);
    let server = start(&["serve"]);
    let workers = [start(&["work"]), start(&["work"])];
    coordinator.wait_for("epoch");
    kill(server.pid(), Signal::KILL);
    let (code, _, said) = coordinator.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: lost shard 0 of 1: "), "{said}");
    for worker in workers {
        let (code, _, said) = worker.end();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("lost shard 0 of 1"), "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
        assert!(!said.contains("cannot talk to rank 0"), "{said}");
    }
}

#[test]
fn an_evicted_worker_that_wakes_is_told_so_and_why() {
    let meet = rendezvous();
    let start = |arguments: &[&str]| Run::of(&[arguments, &["--rendezvous", &meet]].concat());
    let job = ["train", "--coordinate", "--workers", "2", "--model", "softmax", "--epochs", "10"];
    let coordinator = start(&[&job[..], &["--jitter", "constant(0.05)"]].concat());
    let _server = start(&["serve"]);
    let workers = [0, 1].map(|role_rank: usize| start(&["work", "--role-rank", &role_rank.to_string()]));
    coordinator.wait_for("epoch");
    kill(workers[1].pid(), Signal::STOP);
    coordinator.wait_for("warning: worker 1 was silent for 5 s; evicted, 1 of 2 go on");
    kill(workers[1].pid(), Signal::CONT);
    let [_stays, worker] = workers;
    let (code, _, said) = worker.end();
    assert_eq!(code, Some(1), "{said}");
    // By its server, or by rank 0, which it hears first.
    assert!(said.contains("evicted") && said.contains("it was silent for "), "{said}");
    assert!(!said.contains("broke the protocol") && !said.contains("cannot talk to rank 0"), "{said}");
    assert_eq!(said.matches("error: ").count(), 1, "{said}");
    assert_eq!(coordinator.end().0, Some(0));
}

#[test]
fn many_losses_for_one_cause_are_one_short_line() {
    // Under BSP there is a version once each worker has published a gradient, so none is still joining.
    let job = ["train", "--scheme", "bsp", "--workers", "12", "--model", "softmax", "--timeout", "12"];
    let run = Run::of(&[&job[..], &["--epochs", "1000", "--jitter", "constant(0.02)"]].concat());
    run.wait_for("epoch");
    kill(run.server(0), Signal::STOP);
    let (code, _, said) = run.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error: all workers are lost: "), "{said}");
    // Workers wait for room for a gradient, or for parameters. On a busy machine some are told of before, in warnings.
    let error = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_default();
    let causes = error.matches("did not end within 12s").count();
    assert!((1..=2).contains(&causes), "{said}");
    assert!(!said.contains("cannot talk to rank 0"), "{said}");
    assert!(said.lines().all(|line| line.len() < 400), "{said}");
}

#[test]
fn the_table_of_many_workers_is_bounded_and_says_how_many_are_left_out() {
    let (code, table, said) =
        Run::of(&["train", "--workers", "20", "--epochs", "1", "--model", "softmax"]).end();
    assert_eq!(code, Some(0), "{said}");
    assert!(table.contains("\nand 4 more workers (--json FILE has them all)\n"), "{table}");
    assert!(table.lines().count() <= 25, "{table}");
}

#[test]
fn a_process_that_waits_says_for_whom_and_one_too_many_what_to_do() {
    let meet = rendezvous();
    let start = |arguments: &[&str]| Run::of(&[arguments, &["--rendezvous", &meet]].concat());
    let job = ["train", "--coordinate", "--workers", "1", "--model", "softmax", "--jitter", "0.1"];
    let coordinator = start(&job);
    coordinator
        .wait_for(&format!("waiting at {meet} for the servers to listen: the server of shard 0, worker 0"));
    let server = start(&["serve"]);
    server.wait_for(&format!("joined the job at {meet} as server 0; waiting for it to begin"));
    let worker = start(&["work"]);
    worker.wait_for(&format!("joined the job at {meet} as worker 0"));
    // It asks until its deadline, before which a busy coordinator may not have come to it.
    let is_told = |timeout| {
        let (code, _, said) = start(&["work", "--timeout", timeout]).end();
        assert_eq!(code, Some(1), "{said}");
        said.contains("the job has ranks for 1 workers\nhelp: start no more processes")
    };
    assert!(["1", "5", "25"].into_iter().any(is_told), "it is not told that there is no free rank");
}
