//! A run of the program as tests meet it: what it says, its processes, its end.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// No run that ends by itself takes longer, on a machine however busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A run of the program, ended when this is dropped.
pub(crate) struct Run {
    child: Child,
    /// The lines of stderr, and the time at which each came.
    lines: mpsc::Receiver<(Instant, String)>,
    said: Mutex<String>,
    stdout: JoinHandle<String>,
}

impl Run {
    /// Begins `slackline` with these arguments.
    pub(crate) fn of(arguments: &[&str]) -> Run {
        Run::with(&[], arguments)
    }

    /// The same, which finds these in its environment.
    pub(crate) fn with(environment: &[(&str, &str)], arguments: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slackline"));
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("RUST_LOG");
        let mut child = command.spawn().expect("the program starts");
        let (sender, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        let mut stdout = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        Run { child, lines, said: Mutex::default(), stdout }
    }

    /// Waits for a line on stderr that begins so; when it came.
    pub(crate) fn wait_for(&self, beginning: &str) -> Instant {
        self.line(beginning).0
    }

    /// Waits for a line on stderr that begins so; the time at which it came, and the line.
    pub(crate) fn line(&self, beginning: &str) -> (Instant, String) {
        let deadline = Instant::now() + PATIENCE;
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((when, line)) = self.lines.recv_timeout(left) else {
                panic!("`{beginning}` never came: {said}");
            };
            said.push_str(&format!("{line}\n"));
            if line.starts_with(beginning) {
                return (when, line);
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes of one role, in the order in which they were started.
    pub(crate) fn children(&self, role: &str) -> Vec<u32> {
        let mut children = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten() {
            let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            children.extend(list.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()));
        }
        children.retain(|pid| is_ours(*pid, role));
        children
    }

    pub(crate) fn worker(&self, worker: usize) -> u32 {
        self.at("work", worker)
    }

    pub(crate) fn server(&self, shard: usize) -> u32 {
        self.at("serve", shard)
    }

    /// The process with this rank within its role, once it is there: one that was started again is another process, and
    /// has the arguments of the process that starts it for a moment.
    fn at(&self, role: &str, role_rank: usize) -> u32 {
        let is_there = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|byte| *byte == 0).collect();
            words.windows(2).any(|pair| pair == [&b"--role-rank"[..], role_rank.to_string().as_bytes()])
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = self.children(role).into_iter().find(is_there) {
                return found;
            }
            assert!(Instant::now() < deadline, "no process of {role} has rank {role_rank}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end: exit code, stdout, stderr.
    pub(crate) fn end(mut self) -> (Option<i32>, String, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "the run does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = std::mem::take(&mut *self.said.lock().unwrap());
        // Its children held the other ends too: both pipes end when all are gone.
        while let Ok((_, line)) = self.lines.recv_timeout(PATIENCE) {
            said.push_str(&format!("{line}\n"));
        }
        (
            status.code(),
            std::mem::replace(&mut self.stdout, std::thread::spawn(String::new)).join().unwrap(),
            said,
        )
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process that this test started.
pub(crate) fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).expect("the process is there");
}

/// Whether a process is this program in a role.
pub(crate) fn is_ours(pid: u32, role: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).collect();
    let own = env!("CARGO_BIN_EXE_slackline");
    let is_own =
        words.first().is_some_and(|word| Path::new(&*String::from_utf8_lossy(word)) == Path::new(own));
    is_own && words.get(1) == Some(&role.as_bytes())
}
