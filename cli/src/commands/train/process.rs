//! The processes that a run starts itself, as their coordinator sees them.

use std::fmt;
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use slackline::channel::Secret;

use super::Who;
use crate::failure::Failure;

/// How long a process that was asked to leave, or whose connection has ended, may take to be gone.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A process of this program. It does not outlive this value.
pub(super) struct Process {
    who: Who,
    child: Child,
}

impl Process {
    /// Starts a process that meets this one at `rendezvous` within `timeout`, or gives up.
    pub(super) fn start(
        who: Who,
        rendezvous: &str,
        secret: Option<&Secret>,
        metrics: Option<SocketAddr>,
        timeout: Duration,
    ) -> Result<Process, Failure> {
        let failed = |error| {
            Failure::failed(format!(
                "cannot start {who}: {error}; look at the limits on processes and open files (ulimit -u, -n)"
            ))
        };
        let own = std::env::current_exe().map_err(failed)?;
        let (role, place) = match who {
            Who::Server(place) => ("serve", place),
            Who::Worker(place) => ("work", place),
        };
        let mut command = Command::new(own);
        command.args([role, "--place", &place.to_string(), "--rendezvous", rendezvous, "--child"]);
        command.args(["--timeout", &timeout.as_secs_f64().to_string()]);
        if let Some(metrics) = metrics {
            command.args(["--metrics", &metrics.to_string()]);
        }
        // A command line can be read by everybody, an environment by its user alone.
        match secret {
            Some(secret) => command.env("SLACKLINE_SECRET", secret.expose()),
            None => command.env_remove("SLACKLINE_SECRET"),
        };
        command.env_remove("SLACKLINE_SECRET_FILE").stdin(Stdio::null()).stdout(Stdio::null());
        // Children are started by the main thread alone: they die with the thread that started them.
        Ok(Process { who, child: command.spawn().map_err(failed)? })
    }

    /// Ends the process now.
    pub(super) fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(describe(status)),
            Err(error) => Some(format!("cannot be waited for: {error}")),
        }
    }

    /// How it ended; it is given a moment for it, but no choice.
    pub(super) fn wait(&mut self) -> String {
        let deadline = Instant::now() + LEAVE_WITHIN;
        loop {
            if let Some(how) = self.ended() {
                return how;
            }
            if Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            self.kill();
            return match self.child.wait() {
                Ok(status) => describe(status),
                Err(error) => format!("cannot be waited for: {error}"),
            };
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Err(error) = self.child.wait() {
            eprintln!("warning: {} may be left behind: {error}", self.who);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".into(),
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Server(shard) => write!(f, "the server of shard {shard}"),
            Who::Worker(worker) => write!(f, "worker {worker}"),
        }
    }
}
