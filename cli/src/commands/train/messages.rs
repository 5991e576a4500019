//! What the coordinator and its processes tell each other: lines of JSON, to a process on its stdin, from it on its
//! stdout. A process leaves when its stdin ends, so none outlives its coordinator.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slackline::kernel::Optimizer;
use slackline::node::WorkerStatistics;
use slackline::scheme;
use slackline::table::{ElementType, Table};
use slackline_cli::model::ModelKind;

/// Longer lines are no message of ours: the longest has a histogram of 256 counts.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// What a server is told. The values of its shard follow as bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServeConfig {
    pub(super) address: String,
    pub(super) table: Table,
    pub(super) shard: (u16, u16),
    pub(super) scheme: scheme::Config,
    pub(super) workers: usize,
    pub(super) peers: u16,
    pub(super) optimizer: Optimizer,
    pub(super) learning_rate: f32,
    pub(super) threads: usize,
}

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkConfig {
    pub(super) addresses: Vec<String>,
    pub(super) scheme: scheme::Config,
    pub(super) encoding: ElementType,
    pub(super) data: Option<OsString>,
    /// Kind, columns, classes and hidden units.
    pub(super) model: (ModelKind, usize, usize, usize),
    pub(super) rows: usize,
    pub(super) seed: u64,
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) batch: usize,
    pub(super) steps: u64,
    pub(super) factor: f64,
    pub(super) timeout_s: f64,
}

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// A server can be connected to.
    Listening,
    /// How a server is getting on.
    Status(Status),
    /// A worker is connected to all servers.
    Joined,
    /// How a worker is getting on; said at least ten times a second, whatever it computes.
    Progress(Report),
    /// All gradients of a worker are folded in.
    Finished(Report),
    /// A process gives up.
    Failed {
        /// Why.
        message: String,
    },
}

/// How a server is getting on.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) version: u64,
    /// Workers that left or were evicted.
    pub(super) left: u64,
}

/// How a worker is getting on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Mean loss since the last report; none if there was no gradient, or it is not finite.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) loss: Option<f64>,
    pub(super) clocks: u64,
    pub(super) compute_s: f64,
    pub(super) wait_s: f64,
    pub(super) bytes_published: u64,
    pub(super) bytes_pulled: u64,
    pub(super) pull_retries: u64,
    pub(super) staleness_histogram: Vec<u64>,
}

impl From<&WorkerStatistics> for Report {
    fn from(statistics: &WorkerStatistics) -> Report {
        Report {
            loss: None,
            clocks: statistics.clocks,
            compute_s: statistics.compute.as_secs_f64(),
            wait_s: statistics.wait.as_secs_f64(),
            bytes_published: statistics.bytes_published,
            bytes_pulled: statistics.bytes_pulled,
            pull_retries: statistics.pull_retries,
            staleness_histogram: statistics.staleness.counts().to_vec(),
        }
    }
}

/// Writes one line.
pub(super) fn send(mut to: impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads one line; `None` at the end. Rubbish is an error, and never more than a line of it is held.
pub(super) fn receive<M: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<M>> {
    let mut line = Vec::new();
    if from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        let what = if line.len() as u64 == LINE_BYTES_MAX { "a line without end" } else { "half a line" };
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_rubbish_is_an_error() {
        let mut bytes = Vec::new();
        let report = Report { clocks: 3, staleness_histogram: vec![1, 2], ..Report::default() };
        send(&mut bytes, &Message::Progress(report.clone())).unwrap();
        let mut from = &bytes[..];
        assert!(matches!(receive(&mut from).unwrap(), Some(Message::Progress(back)) if back == report));
        assert!(receive::<Message>(&mut from).unwrap().is_none());
        for rubbish in [&b"hello\n"[..], b"{\"progress\":{}}\n", b"\"joined\"", &[0xff; 2 << 20]] {
            assert!(receive::<Message>(&mut &rubbish[..]).is_err());
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_is_none() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Report { loss: Some(f64::NAN), ..Report::default() }).unwrap();
        assert_eq!(receive::<Report>(&mut &bytes[..]).unwrap().unwrap().loss, None);
    }
}
