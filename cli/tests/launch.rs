//! `slackline launch` starts the processes of a job on this host.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn launch(processes: &str, script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["launch", "-n", processes, "--", "sh", "-c", script]);
    command.env("SLACKLINE_SECRET_FILE", "/nowhere").output().expect("start slackline")
}

#[test]
fn each_process_is_told_its_rank_the_size_and_where_to_meet() {
    let output =
        launch("3", "echo $SLACKLINE_RANK/$SLACKLINE_WORLD_SIZE $SLACKLINE_RENDEZVOUS $SLACKLINE_SECRET");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 3, "{text}");
    let shared = lines[0].split_once(' ').unwrap().1;
    assert!(shared.starts_with("127.0.0.1:") && shared.len() > 40, "{shared}");
    for (rank, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{rank}/3 {shared}"));
    }
}

#[test]
fn a_job_of_one_rank_starts_its_own_processes() {
    let output = launch("1", &format!("{} train --epochs 1", env!("CARGO_BIN_EXE_slackline")));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_secret_of_the_job_replaces_one_in_a_file() {
    let output = launch("1", "test -z \"$SLACKLINE_SECRET_FILE\"");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_process_that_fails_is_named_and_the_others_end_as_they_do() {
    let output = launch("3", "test $SLACKLINE_RANK -ne 1 || exit 7; sleep 0.2; echo done");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "done\ndone\n");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("rank 1 ended with exit status: 7"), "{text}");
}

#[test]
fn a_program_that_is_not_there_is_a_wrong_usage() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    let output = command.args(["launch", "-n", "2", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("cannot start `/no/such/program`"));
}

#[test]
fn no_process_reads_what_is_typed() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
    command.args(["launch", "-n", "2", "--", "sh", "-c", "cat; echo done"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // An error means that no process can read it.
    let _unread = child.stdin.take().unwrap().write_all(b"typed\n");
    assert_eq!(child.wait_with_output().unwrap().stdout, b"done\ndone\n");
}

/// The state of a process by one letter, unless it has ended.
fn state(process: &str) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let state = status.rsplit_once(") ")?.1.chars().next();
    state.filter(|state| !matches!(state, 'Z' | 'X'))
}

fn children(child: &Child) -> Vec<String> {
    let id = child.id();
    let list = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let children: Vec<_> = list.split_whitespace().map(str::to_owned).collect();
    assert_eq!(children.len(), 2, "{list}");
    children
}

/// Waits until the state of all these processes is as it should be.
fn until(processes: &[String], is_so: impl Fn(Option<char>) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !processes.iter().all(|process| is_so(state(process))) {
        let states: Vec<_> = processes.iter().map(|process| state(process)).collect();
        assert!(Instant::now() < deadline, "{states:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn no_process_outlives_the_launcher_even_if_that_is_killed() {
    let (mut child, _lines) = start("echo up; exec sleep 1000");
    let sleeping = children(&child);
    send(&child, Signal::KILL);
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    until(&sleeping, |state| state.is_none());
}

#[test]
fn processes_stop_and_go_on_with_the_launcher() {
    let (mut child, _lines) = start("echo up; exec sleep 1000");
    let mut all = children(&child);
    all.push(child.id().to_string());
    send(&child, Signal::TSTP);
    until(&all, |state| state == Some('T'));
    send(&child, Signal::CONT);
    until(&all, |state| state == Some('S'));
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

#[test]
fn the_signal_to_quit_is_passed_on_as_others_that_end() {
    let (mut child, lines) = start("trap 'echo quit; exit 0' QUIT; echo up; while :; do sleep 0.05; done");
    send(&child, Signal::QUIT);
    assert_eq!(lines.collect::<Vec<_>>(), ["quit", "quit"]);
    assert!(child.wait().unwrap().success(), "all processes ended with 0");
}

#[test]
fn a_signal_that_it_is_started_to_ignore_ends_no_process() {
    // As `nohup` starts it.
    let (mut child, _lines) = start_by("--ignore-signal=HUP", "echo up; exec sleep 1000");
    let sleeping = children(&child);
    send(&child, Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(sleeping.iter().all(|process| state(process).is_some()), "they go on");
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

/// Starts two processes that run a script, and waits until both have said that they are up.
fn start(script: &str) -> (Child, impl Iterator<Item = String>) {
    // Where a script's `&` has started the tests, some signals are ignored.
    start_by("--default-signal", script)
}

/// As [`start`], with an option of `env` about signals.
fn start_by(signals: &str, script: &str) -> (Child, impl Iterator<Item = String>) {
    let mut command = Command::new("env");
    command.args([signals, env!("CARGO_BIN_EXE_slackline"), "launch", "-n", "2", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..2 {
        assert_eq!(lines.next().as_deref(), Some("up"));
    }
    (child, lines)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_signal_that_asks_for_a_checkpoint_is_passed_on_and_ends_nothing() {
    let script = "trap 'echo asked' USR1; trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let (mut child, mut lines) = start(script);
    for _ in 0..2 {
        send(&child, Signal::USR1);
        assert_eq!((lines.next().as_deref(), lines.next().as_deref()), (Some("asked"), Some("asked")));
    }
    send(&child, Signal::TERM);
    assert!(child.wait().unwrap().success(), "all processes ended with 0");
}

#[test]
fn a_signal_is_passed_on_once_and_a_second_one_kills() {
    // Each process says that it is up, and ends with the number of signals that it has heard once it is told to.
    let script = "n=0; trap 'n=$((n+1)); sleep 0.3; echo heard $n; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let (mut child, lines) = start(script);
    send(&child, Signal::TERM);
    assert_eq!(lines.collect::<Vec<_>>(), ["heard 1", "heard 1"]);
    assert!(child.wait().unwrap().success(), "all processes ended with 0");
    let (mut child, mut lines) = start("trap 'echo again' TERM; echo up; while :; do sleep 0.05; done");
    send(&child, Signal::TERM);
    assert_eq!(lines.next().as_deref(), Some("again"));
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    // The pipe ends with the last process that holds it.
    assert!(lines.count() <= 1);
}

#[test]
fn a_second_signal_kills_what_the_processes_have_started_too() {
    // As a program that writes a checkpoint under a shell that started it.
    let started = "(trap '' TERM; sleep 3; echo survived) &";
    let script = format!("{started} trap 'echo again' TERM; echo up; while :; do sleep 0.05; done");
    let (mut child, mut lines) = start(&script);
    send(&child, Signal::TERM);
    assert_eq!(lines.next().as_deref(), Some("again"));
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    assert!(lines.all(|line| line != "survived"));
}
