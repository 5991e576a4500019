//! The other side of a measurement, as the process that measures sees it: this program again, in a process of its own.
//!
//! On this host it is told its task in an argument, says on its standard output when it is ready and later what it has
//! measured, one JSON value a line, and ends when its standard input does. It dies with the process that started it.
//! On another host a user has started it, and the two processes say the same over the line of a [`Remote`].

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;

use serde::de::DeserializeOwned;
use slackline::Secret;

use super::error::BenchError;
use super::line::ToClient;
use super::messages::{Ready, Task};
use super::remote::Remote;

/// A process with a task.
pub(super) enum Peer {
    /// Of this host.
    Process(Process),
    /// Of another one.
    Remote { remote: Rc<Remote>, is_told: bool },
}

/// Killed when dropped.
pub(super) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Peer {
    /// Gives a task to the process on the other host if there is one, else to a new one on this.
    pub(super) fn start(task: &Task, remote: Option<&Rc<Remote>>) -> Result<Peer, BenchError> {
        if let Some(remote) = remote {
            remote.give(task)?;
            return Ok(Peer::Remote { remote: Rc::clone(remote), is_told: false });
        }
        let program = std::env::current_exe().map_err(BenchError::system("find this program's own file"))?;
        let text = serde_json::to_string(task).map_err(|error| BenchError::Peer(error.to_string()))?;
        let mut child = Command::new(program)
            .args(["bench-peer", &text])
            .envs(task.secret.iter().flat_map(Secret::variables))
            .env_remove("SLACKLINE_SECRET_FILE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::system("start another process"))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().map(BufReader::new));
        Ok(Peer::Process(Process { child, stdin, stdout }))
    }

    /// Waits until it says that it is ready, and where.
    pub(super) fn ready(mut self) -> Result<(Ready, Peer), BenchError> {
        Ok((self.hear()?, self))
    }

    /// The next value that it says.
    pub(super) fn hear<V: DeserializeOwned>(&mut self) -> Result<V, BenchError> {
        let process = match self {
            Peer::Process(process) => process,
            Peer::Remote { remote, .. } => {
                let value = match remote.hear()? {
                    ToClient::Said(value) => value,
                    ToClient::Done => return Err(BenchError::Peer("it ended early".into())),
                };
                let wrong = |error| {
                    BenchError::Peer(format!(
                        "it said what was not asked ({error}): use one version on both sides"
                    ))
                };
                return serde_json::from_value(value).map_err(wrong);
            }
        };
        let mut line = String::new();
        if let Some(stdout) = &mut process.stdout {
            stdout.read_line(&mut line).map_err(BenchError::system("read from the other process"))?;
        }
        if line.is_empty() {
            return Err(BenchError::Peer("it ended early; its own message stands above".into()));
        }
        serde_json::from_str(&line).map_err(|error| BenchError::Peer(format!("it said {line:?}: {error}")))
    }

    /// Lets it go on where it waits for that (`Client::wait_for_go`).
    pub(super) fn go(&mut self) -> Result<(), BenchError> {
        match self {
            Peer::Process(process) => {
                let stdin =
                    process.stdin.as_mut().ok_or_else(|| BenchError::Peer("it was told to end".into()))?;
                let written = stdin.write_all(b"\n").and_then(|()| stdin.flush());
                written.map_err(BenchError::system("let the other process go on"))
            }
            Peer::Remote { remote, .. } => remote.go(),
        }
    }

    /// Asks it to end. It may have something to say yet.
    pub(super) fn stop(&mut self) -> Result<(), BenchError> {
        match self {
            Peer::Process(process) => drop(process.stdin.take()),
            Peer::Remote { is_told: true, .. } => {}
            Peer::Remote { remote, is_told } => {
                *is_told = true;
                remote.end()?;
            }
        }
        Ok(())
    }

    /// Kills a process of this host, which has to be in the middle of its task.
    pub(super) fn kill(mut self) -> Result<(), BenchError> {
        let Peer::Process(process) = &mut self else {
            return Err(BenchError::Peer("a process of another host cannot be killed from here".into()));
        };
        process.child.kill().map_err(BenchError::system("kill another process"))?;
        let status = process.child.wait().map_err(BenchError::system("wait for the other process"))?;
        match status.signal() {
            Some(_) => Ok(()),
            None => Err(BenchError::Peer(format!("it had ended before it was killed: {status}"))),
        }
    }

    /// Asks it to end, and waits until it has.
    pub(super) fn end(mut self) -> Result<(), BenchError> {
        self.stop()?;
        match &mut self {
            Peer::Process(process) => {
                let status =
                    process.child.wait().map_err(BenchError::system("wait for the other process"))?;
                if status.success() { Ok(()) } else { Err(BenchError::Peer(status.to_string())) }
            }
            Peer::Remote { remote, .. } => match remote.hear()? {
                ToClient::Done => Ok(()),
                ToClient::Said(value) => {
                    Err(BenchError::Peer(format!("it said what was not asked: {value}")))
                }
            },
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A measurement that drops this without `end` has failed already, and reports its own error.
        let _dead_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}
