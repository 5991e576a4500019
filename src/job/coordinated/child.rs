//! The processes that a coordinator starts itself.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::super::plan::Role;

/// The longest time in which a process that was asked to leave, or whose connection has ended, may end.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A process of the coordinator's own. It does not outlive this value.
pub(super) struct Process {
    role: Role,
    child: Child,
    /// The coordinator has killed it: its end is no cause of anything.
    killed: bool,
}

impl Process {
    /// Starts the process that is to have this role.
    pub(super) fn start(role: Role, mut command: Command) -> io::Result<Process> {
        Ok(Process { role, child: command.spawn()?, killed: false })
    }

    /// Ends the process now.
    pub(super) fn kill(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.killed = true;
            // An error means that it is gone already.
            let _ = self.child.kill();
        }
    }

    /// True if the process has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of the process as a predicate. The process has a moment to end, and is then killed. `None` if it was
    /// killed: the cause is then the reason for the kill.
    pub(super) fn wait(&mut self) -> Option<String> {
        let deadline = Instant::now() + LEAVE_WITHIN;
        while !self.has_ended() {
            match Instant::now() < deadline {
                true => std::thread::sleep(Duration::from_millis(1)),
                false => {
                    self.kill();
                    break;
                }
            }
        }
        match self.child.wait() {
            Ok(status) if self.killed && status.signal() == Some(Signal::KILL.as_raw()) => None,
            Ok(status) => Some(describe(status)),
            Err(error) => Some(format!("cannot be waited for: {error}")),
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
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("ended with code {code}"),
        (None, None) => "ended".into(),
    }
}
