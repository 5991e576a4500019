//! `slackline bench --listen` as tests meet it: where it listens, and how it ends.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

/// The other side of measurements; ended when this is dropped.
pub(crate) struct Listening {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) address: String,
}

impl Listening {
    /// Begins to listen on any port of the loopback interface.
    pub(crate) fn begin(transport: &str, more: &[&str]) -> Listening {
        Listening::by(slackline(), transport, "127.0.0.1:0", more)
    }

    /// Begins to listen at an address; `command` runs the program where that address is.
    pub(crate) fn by(mut command: Command, transport: &str, address: &str, more: &[&str]) -> Listening {
        command.args(["bench", "--transport", transport, "--listen", address]).args(more);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening at ").and_then(|rest| rest.split(' ').next());
        let Some(address) = address.map(str::to_owned) else {
            let said = child.wait_with_output().unwrap();
            panic!("it does not listen: {line}{}", String::from_utf8_lossy(&said.stderr));
        };
        Listening { child, stdout, address }
    }

    /// Waits for its end; what it said after where it listens, what it said on stderr, and its exit code.
    pub(crate) fn end(mut self) -> (String, String, Option<i32>) {
        let (mut said, mut wrong) = (String::new(), String::new());
        self.stdout.read_to_string(&mut said).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut wrong).unwrap();
        let code = self.child.wait().unwrap().code();
        (said, wrong, code)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _over_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

pub(crate) fn slackline() -> Command {
    Command::new(env!("CARGO_BIN_EXE_slackline"))
}

pub(crate) fn bench(arguments: &[&str]) -> Output {
    slackline().arg("bench").args(arguments).output().expect("the program starts")
}

pub(crate) fn json(arguments: &[&str]) -> Value {
    json_by(slackline(), arguments)
}

/// The same by a command that runs the program.
pub(crate) fn json_by(mut command: Command, arguments: &[&str]) -> Value {
    let output = command.arg("bench").args(arguments).args(["--json", "-"]).output();
    let output = output.expect("the program starts");
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    // All of standard output is one JSON value.
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {stdout}"))
}
