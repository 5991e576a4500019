//! The processes of a run, as their coordinator sees them.

use std::fmt;
use std::io::{self, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::messages::{Message, receive, send};
use super::{Event, Who};
use crate::failure::Failure;

/// How long a process that was asked to leave, or whose stdout has ended, may take to be gone.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// A process of this program. It does not outlive this value.
pub(super) struct Process {
    who: Who,
    child: Child,
    /// Open as long as the process should stay.
    stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts a process and tells it what to do; what it says comes as events.
    pub(super) fn start(
        who: Who,
        config: &impl Serialize,
        values: &[f32],
        events: SyncSender<Event>,
    ) -> Result<Process, Failure> {
        let failed = |error| {
            Failure::failed(format!(
                "cannot start {who}: {error}; look at the limits on processes and open files (ulimit -u, -n)"
            ))
        };
        let own = std::env::current_exe().map_err(failed)?;
        let role = if matches!(who, Who::Server(_)) { "serve" } else { "work" };
        // Children are started by the main thread alone: they die with the thread that started them.
        let mut child = Command::new(own)
            .arg(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut process = Process { who, child, stdin };
        if let Some(stdout) = stdout {
            std::thread::Builder::new()
                .name(format!("listen to {who}"))
                .spawn(move || listen(who, BufReader::new(stdout), &events))
                .map_err(failed)?;
        }
        match process.tell(config, values) {
            // It is dead already; the end of its stdout will say so.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            result => result.map_err(failed)?,
        }
        Ok(process)
    }

    fn tell(&mut self, config: &impl Serialize, values: &[f32]) -> io::Result<()> {
        let Some(stdin) = &mut self.stdin else { return Ok(()) };
        send(&mut *stdin, config)?;
        let mut piece = Vec::with_capacity(1 << 16);
        for values in values.chunks(1 << 14) {
            piece.clear();
            piece.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            stdin.write_all(&piece)?;
        }
        stdin.flush()
    }

    /// Asks the process to leave, by the end of its stdin.
    pub(super) fn dismiss(&mut self) {
        self.stdin = None;
    }

    /// Ends the process now.
    pub(super) fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
    }

    /// How it ended; it is given a moment for it, but no choice.
    pub(super) fn wait(&mut self) -> String {
        self.dismiss();
        let deadline = Instant::now() + LEAVE_WITHIN;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return describe(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Ok(None) => {
                    self.kill();
                    return match self.child.wait() {
                        Ok(status) => describe(status),
                        Err(error) => format!("cannot be waited for: {error}"),
                    };
                }
                Err(error) => return format!("cannot be waited for: {error}"),
            }
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

/// Passes on what a process says.
fn listen(who: Who, mut from: BufReader<impl io::Read>, events: &SyncSender<Event>) {
    loop {
        let (event, last) = match receive::<Message>(&mut from) {
            Ok(Some(message)) => (Event::Said(who, message), false),
            Ok(None) => (Event::Closed(who, None), true),
            Err(error) => (Event::Closed(who, Some(error.to_string())), true),
        };
        if events.send(event).is_err() || last {
            return;
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
