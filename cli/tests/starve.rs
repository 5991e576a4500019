//! A run on a machine that is far too busy for it: more processes than processors, beside threads that never rest. It
//! is slow, and that is all: no process that lives is evicted, and the run ends as any other.
//!
//! As a step of `cargo xtask test` it is small. At full size, with all that is worth telling:
//!
//! ```text
//! SLACKLINE_STARVE="workers=198 loops=8 runs=10" cargo test --release -p slackline-cli --test starve -- --nocapture
//! ```
//!
//! `nice=19` starts the run with that niceness, while the loops have none; `transport=shm` or `tcp` runs that one only.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use serde_json::Value;

/// No run of the full size takes as long, on however few processors.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Size {
    workers: usize,
    /// Threads that never rest.
    loops: usize,
    runs: usize,
    nice: u8,
    transport: Option<String>,
}

/// The small size, unless `SLACKLINE_STARVE` says otherwise.
fn size() -> Size {
    let mut size = Size { workers: 40, loops: 4, runs: 1, nice: 0, transport: None };
    for word in std::env::var("SLACKLINE_STARVE").unwrap_or_default().split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let number = || value.parse().unwrap_or_else(|_| panic!("`{word}`: {name} is a number"));
        match name {
            "workers" => size.workers = number(),
            "loops" => size.loops = number(),
            "runs" => size.runs = number(),
            "nice" => size.nice = number() as u8,
            "transport" => size.transport = Some(value.to_owned()),
            _ => panic!("`{word}`: it is workers=, loops=, runs=, nice= or transport="),
        }
    }
    size
}

/// Runs `body` beside so many threads that never rest.
fn beside<R>(loops: usize, body: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        // Also where it panics: the scope waits for the loops.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// One run; what went wrong, if anything did.
fn train(size: &Size, transport: &str) -> Result<String, String> {
    let mut command = match size.nice {
        0 => Command::new(env!("CARGO_BIN_EXE_slackline")),
        nice => {
            let mut command = Command::new("nice");
            command.args(["-n", &nice.to_string(), env!("CARGO_BIN_EXE_slackline")]);
            command
        }
    };
    let workers = size.workers.to_string();
    command.args(["train", "--model", "softmax", "--batch", "4", "--epochs", "10", "--scheme", "ssp"]);
    command.args(["--workers", &workers, "--transport", transport, "--timeout", "300", "--json", "-"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG");
    let begun = Instant::now();
    let mut child = command.spawn().expect("the program starts");
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (said, hear) = mpsc::channel();
    std::thread::spawn(move || {
        let wrong = std::thread::spawn(move || std::io::read_to_string(stderr));
        let right = std::io::read_to_string(stdout);
        let _heard = said.send((right.unwrap(), wrong.join().unwrap().unwrap()));
    });
    let Ok((json, said)) = hear.recv_timeout(PATIENCE) else {
        // Its processes end with it.
        child.kill().unwrap();
        child.wait().unwrap();
        return Err(format!("no end within {PATIENCE:?}"));
    };
    let (code, took) = (child.wait().unwrap().code(), begun.elapsed().as_secs());
    if code != Some(0) {
        return Err(format!("exit code {code:?} after {took} s: {said}"));
    }
    let json: Value = serde_json::from_str(&json).expect("stdout holds JSON");
    match json["evicted"].as_u64() {
        Some(0) => Ok(format!("exit code 0, none of {workers} evicted, {took} s")),
        evicted => Err(format!("{evicted:?} of {workers} evicted, {took} s: {said}")),
    }
}

/// As many runs as there are to be, one after the other; one test at a time.
fn loses_nobody(transport: &str) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let size = size();
    if size.transport.as_ref().is_some_and(|only| only != transport) {
        println!("{transport}: left out, as SLACKLINE_STARVE says");
        return;
    }
    let runs = beside(size.loops, || {
        let run = |number: usize| {
            let came = train(&size, transport);
            let text = came.as_ref().unwrap_or_else(|wrong| wrong);
            println!("{transport}, run {} of {}, {} loops: {text}", number + 1, size.runs, size.loops);
            came
        };
        (0..size.runs).map(run).collect::<Vec<_>>()
    });
    let wrong: Vec<_> = runs.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{} of {} runs failed: {}", wrong.len(), size.runs, wrong.join("\n"));
}

#[test]
fn a_starved_run_over_shared_memory_loses_nobody() {
    loses_nobody("shm");
}

#[test]
fn a_starved_run_over_tcp_loses_nobody() {
    loses_nobody("tcp");
}
