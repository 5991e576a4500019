//! A job whose processes run on three hosts: the coordinator, the first server and two workers on the first, a worker
//! each on the others; further servers where a test wants them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::namespaces::{Host, Hosts};

/// No wait that ends by itself takes longer, on a machine however busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The port where they meet.
const PORT: u16 = 7000;

/// The hosts of the four workers.
const WORKERS: [usize; 4] = [0, 0, 1, 2];

pub(crate) struct Fleet {
    pub(crate) hosts: Hosts,
    folder: TempDir,
}

/// All processes of a job.
pub(crate) struct Job {
    pub(crate) coordinator: Running,
    pub(crate) servers: Vec<Running>,
    pub(crate) workers: Vec<Running>,
}

impl Fleet {
    pub(crate) fn new() -> Fleet {
        Fleet { hosts: Hosts::new(3), folder: TempDir::new().unwrap() }
    }

    /// A file with a secret.
    fn secret(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        // Once: others may be reading it.
        if !path.exists() {
            fs::write(&path, format!("{name}, known to whoever was given this file")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        path
    }

    /// Starts the program on a host, and tells it where to meet.
    pub(crate) fn start(&self, host: usize, arguments: &[&str], secret: Option<&str>) -> Running {
        let mut command = Host::command(env!("CARGO_BIN_EXE_slackline"));
        let meet = format!("{}:{PORT}", self.hosts[0].address());
        command.args(arguments).args(["--rendezvous", &meet]).env("RUST_LOG", "slackline=info");
        command.env_remove("SLACKLINE_SECRET_FILE").env_remove("SLACKLINE_SECRET").env("NO_COLOR", "1");
        if let Some(secret) = secret {
            command.arg("--secret-file").arg(self.secret(secret));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // It lives as long as this thread.
        Running::new(self.hosts[host].within(|| command.spawn()).expect("setpriv of util-linux"))
    }

    /// Starts the coordinator of four workers.
    pub(crate) fn coordinate(&self, options: &str, secret: Option<&str>) -> Running {
        let json = self.folder.path().join("json");
        let fixed = ["train", "--coordinate", "--workers", "4", "--json", json.to_str().unwrap()];
        let options = options.split(' ').filter(|option| !option.is_empty());
        self.start(0, &fixed.into_iter().chain(options).collect::<Vec<_>>(), secret)
    }

    /// Starts a whole job with one server, beside the coordinator.
    pub(crate) fn job(&self, options: &str) -> Job {
        self.job_served_from(&[0], options)
    }

    /// Starts a whole job with a server on each of these hosts.
    pub(crate) fn job_served_from(&self, hosts: &[usize], options: &str) -> Job {
        let secret = Some("one secret");
        let coordinator = self.coordinate(&format!("--servers {} {options}", hosts.len()), secret);
        let serve = |(place, host): (usize, &usize)| {
            self.start(*host, &["serve", "--place", &place.to_string()], secret)
        };
        let servers = hosts.iter().enumerate().map(serve).collect();
        let work = |(place, host): (usize, &usize)| self.work(place, *host, secret);
        let workers = WORKERS.iter().enumerate().map(work).collect();
        Job { coordinator, servers, workers }
    }

    /// Starts one worker.
    pub(crate) fn work(&self, place: usize, host: usize, secret: Option<&str>) -> Running {
        self.start(host, &["work", "--place", &place.to_string()], secret)
    }

    /// What the last job that succeeded came to.
    pub(crate) fn json(&self) -> Value {
        let text = fs::read(self.folder.path().join("json")).expect("the coordinator wrote it");
        serde_json::from_slice(&text).expect("JSON")
    }
}

impl Job {
    /// Waits for the end of all, which must be a good one, and tells what the coordinator said.
    pub(crate) fn succeeds(self) -> String {
        let said = self.coordinator.end(0);
        self.servers.into_iter().for_each(|server| drop(server.end(0)));
        self.workers.into_iter().for_each(|worker| drop(worker.end(0)));
        said
    }
}

/// A process of a job. Killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<(Instant, String)>,
    said: String,
}

impl Running {
    fn new(mut child: Child) -> Running {
        let (sender, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().expect("it is a pipe"));
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    break;
                }
            }
        });
        Running { child, lines, said: String::new() }
    }

    /// Waits for a line on stderr that holds this; when it came.
    pub(crate) fn wait_for(&mut self, part: &str) -> Instant {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((when, line)) = self.lines.recv_timeout(left) else {
                panic!("`{part}` never came: {}", self.said);
            };
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains(part) {
                return when;
            }
        }
    }

    /// Ends it, without a word from it.
    pub(crate) fn kill(mut self) -> Instant {
        self.child.kill().expect("it is there");
        let when = Instant::now();
        self.child.wait().expect("it ends");
        when
    }

    /// Waits for its end, which must be with this code; what it said.
    pub(crate) fn end(mut self, code: i32) -> String {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break status,
                None => assert!(Instant::now() < deadline, "it does not end: {}", self.heard()),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let said = self.heard();
        assert_eq!(status.code(), Some(code), "{said}");
        said
    }

    /// All that it said until now.
    fn heard(&mut self) -> String {
        loop {
            match self.lines.recv_timeout(Duration::from_millis(500)) {
                Ok((_, line)) => self.said.push_str(&format!("{line}\n")),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return self.said.clone(),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// The paths that the workers took, after a look at what each says of them.
pub(crate) fn paths(json: &Value) -> Vec<&str> {
    let workers = json["workers"].as_array().expect("workers");
    let mut taken = Vec::new();
    for worker in workers {
        let paths = worker["paths"].as_array().expect("paths");
        assert_eq!(paths.len(), 1, "one server, one path: {json}");
        assert!(!paths[0]["reason"].as_str().expect("a reason").is_empty(), "{json}");
        taken.push(paths[0]["path"].as_str().expect("a path"));
    }
    taken
}
