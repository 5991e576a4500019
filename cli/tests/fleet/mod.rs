//! A job whose processes run on three hosts: the coordinator, the first server and two workers on the first, a worker
//! each on the others; further servers where a test wants them.

pub(crate) mod running;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::namespaces::{Host, Hosts};
use running::Running;

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
            fs::write(&path, format!("{name}, known to each process that has this file")).unwrap();
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
        let serve = |(role_rank, host): (usize, &usize)| {
            self.start(*host, &["serve", "--role-rank", &role_rank.to_string()], secret)
        };
        let servers = hosts.iter().enumerate().map(serve).collect();
        let work = |(role_rank, host): (usize, &usize)| self.work(role_rank, *host, secret);
        let workers = WORKERS.iter().enumerate().map(work).collect();
        Job { coordinator, servers, workers }
    }

    /// Starts one worker.
    pub(crate) fn work(&self, role_rank: usize, host: usize, secret: Option<&str>) -> Running {
        self.start(host, &["work", "--role-rank", &role_rank.to_string()], secret)
    }

    /// Returns the result of the last job that succeeded.
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
