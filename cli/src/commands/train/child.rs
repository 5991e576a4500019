//! What server and worker processes have in common: they end with their coordinator, and tell it what went wrong.

use std::io::{self, Read};
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::messages::{Message, send};

/// Anything that makes a process give up.
pub(super) type Trouble = Box<dyn std::error::Error>;

/// Runs a process: `body`, and its error as a message.
pub(super) fn run(body: impl FnOnce() -> Result<(), Trouble>) -> ExitCode {
    // The end of stdin says the same, but a process that is stuck does not read it.
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        eprintln!("warning: this process may outlive its coordinator if it hangs: {error}");
    }
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let message = Message::Failed { message: error.to_string() };
            // If the coordinator is gone, so is the reason to say anything.
            let _ = send(io::stdout(), &message);
            ExitCode::FAILURE
        }
    }
}

/// Calls `then` once the coordinator has closed this process's stdin, or is gone.
pub(super) fn at_end_of(
    mut input: impl Read + Send + 'static,
    then: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let wait = move || {
        let mut byte = [0];
        loop {
            match input.read(&mut byte) {
                Ok(1..) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => break,
            }
        }
        then();
    };
    std::thread::Builder::new().name("coordinator".into()).spawn(wait).map(drop)
}
