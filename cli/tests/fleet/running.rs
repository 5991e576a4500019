//! A process of a job whose processes run on several hosts.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

/// No wait that ends by itself takes longer, on a machine however busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A process of a job. Killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<(Instant, String)>,
    said: String,
}

impl Running {
    /// Of a child whose stderr is a pipe.
    pub(crate) fn new(mut child: Child) -> Running {
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
        self.wait_for_any(&[part])
    }

    /// Waits for a line on stderr that holds one of these; when it came.
    pub(crate) fn wait_for_any(&mut self, parts: &[&str]) -> Instant {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((when, line)) = self.lines.recv_timeout(left) else {
                panic!("{parts:?} never came: {}", self.said);
            };
            self.said.push_str(&line);
            self.said.push('\n');
            if parts.iter().any(|part| line.contains(part)) {
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

    /// All that it said: of a process that has ended the stream ends too, however late its reader gets a turn.
    fn heard(&mut self) -> String {
        let patience =
            if matches!(self.child.try_wait(), Ok(Some(_))) { PATIENCE } else { Duration::from_millis(500) };
        while let Ok((_, line)) = self.lines.recv_timeout(patience) {
            self.said.push_str(&format!("{line}\n"));
        }
        self.said.clone()
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
