//! The processes that a coordinator starts itself.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use super::super::plan::Role;

/// The longest time in which a process that was asked to leave, or whose connection has ended, may end.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A process of the coordinator's own. It does not outlive this value.
pub(super) struct Process {
    role: Role,
    child: Child,
}

impl Process {
    /// Starts the process that is to have this role.
    pub(super) fn start(role: Role, mut command: Command) -> io::Result<Process> {
        Ok(Process { role, child: command.spawn()? })
    }

    /// Ends the process now.
    pub(super) fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
    }

    /// The end of the process as a predicate, if it has ended.
    pub(super) fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(describe(status)),
            Err(error) => Some(format!("cannot be waited for: {error}")),
        }
    }

    /// The end of the process as a predicate; it is given a moment for it, but no choice.
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
            tracing::warn!(role = %self.role, %error, "may be left behind");
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
