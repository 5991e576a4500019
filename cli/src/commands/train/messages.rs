//! What the coordinator and the other processes of a job tell each other, through the meeting point.
//!
//! A message is one letter and a body: `J` and JSON, or `V` and values, which are little-endian `f32`s.

use std::ffi::OsString;
use std::path::{Path as FilePath, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use slackline::clock::Clock;
use slackline::job::rendezvous::MAX_MESSAGE_BYTES;
use slackline::kernel::Optimizer;
use slackline::node::WorkerStatistics;
use slackline::scheme;
use slackline::table::{ElementType, Table};
use slackline::transport::Address;
use slackline::transport::TransportKind;
use slackline_lab::model::ModelKind;

use super::args::NonFiniteName;

/// What the coordinator tells a member.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Serve a shard; its values follow.
    Serve(Box<ServeConfig>),
    /// Train.
    Work(Box<WorkConfig>),
    /// Bring what there is to the disk now.
    Checkpoint,
    /// Bring what there is to the disk for the last time, and say [`Message::Closed`].
    Close,
    /// There is nothing to do for who came: why, and what to do.
    Refuse(String),
    /// The job failed: why, and what to do.
    Abort(String),
    /// The job is over.
    Leave,
}

/// What a server is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServeConfig {
    pub(super) listen: Vec<TransportKind>,
    pub(super) table: Table,
    pub(super) shard: (u16, u16),
    pub(super) scheme: scheme::Config,
    pub(super) damping: scheme::Damping,
    pub(super) workers: usize,
    pub(super) peers: u16,
    pub(super) optimizer: Optimizer,
    pub(super) learning_rate: f32,
    pub(super) threads: usize,
    /// It sleeps while it waits.
    pub(super) sleeps: bool,
    pub(super) checksums: bool,
    pub(super) checkpoint: Option<CheckpointConfig>,
    /// Measure norm and variance of gradients in any case.
    pub(super) moments: bool,
    /// What becomes of gradients that hold a NaN or an infinity.
    pub(super) non_finite: NonFiniteName,
    pub(super) lease_s: f64,
    /// Gradients to fold in; after them nothing moves any more. None: as many as there are.
    pub(super) gradients: Option<u64>,
}

/// Where a server keeps its shard, and how often.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct CheckpointConfig {
    /// Bytes that need not be text: JSON keeps an `OsString` as it is, and refuses such a path.
    folder: OsString,
    pub(super) every: u64,
    pub(super) resume: Resume,
}

/// Whether a server begins with the checkpoint that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Resume {
    /// No: one that is there belongs to another run, and must not be replaced.
    Never,
    /// Yes: there must be one.
    Always,
    /// In a later life: if there is one.
    IfThere,
}

impl CheckpointConfig {
    pub(super) fn new(folder: PathBuf, every: u64, resume: Resume) -> CheckpointConfig {
        CheckpointConfig { folder: folder.into_os_string(), every, resume }
    }

    pub(super) fn folder(&self) -> &FilePath {
        FilePath::new(&self.folder)
    }

    /// The file of one shard.
    pub(super) fn file(&self, shard: u16, shards: u16) -> PathBuf {
        self.folder().join(format!("shard-{shard}-of-{shards}.safetensors"))
    }
}

/// What a worker is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkConfig {
    pub(super) servers: usize,
    pub(super) require: Option<TransportKind>,
    /// Whether to wait for a server that is lost, and connect again.
    pub(super) reconnect: bool,
    pub(super) scheme: scheme::Config,
    pub(super) encoding: ElementType,
    pub(super) checksums: bool,
    pub(super) data: Option<OsString>,
    /// Kind, columns, classes and hidden units.
    pub(super) model: (ModelKind, usize, usize, usize),
    pub(super) rows: usize,
    pub(super) seed: u64,
    pub(super) worker: usize,
    pub(super) workers: usize,
    pub(super) batch: usize,
    /// Clocks after which it has finished; none if it goes on until the job is over.
    pub(super) steps: Option<u64>,
    /// The server's, for steps on the worker's own copy.
    pub(super) learning_rate: f32,
    pub(super) factor: f64,
    /// What one gradient of its own does to the parameters, where it is to see that at once.
    pub(super) own_step: Option<f32>,
    /// The law of the time that each step takes besides computing.
    pub(super) jitter: Option<String>,
    pub(super) timeout_s: f64,
    /// What else it needs where there are no servers; its initial values follow.
    pub(super) sync: Option<SyncConfig>,
}

/// What a worker is told that trains its own parameters.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SyncConfig {
    pub(super) listen: Vec<TransportKind>,
    pub(super) table: Table,
    pub(super) optimizer: Optimizer,
    pub(super) lease_s: f64,
    /// Names the job.
    pub(super) run: u64,
}

/// What a member tells the coordinator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// How a server is getting on.
    Status(Status),
    /// The checkpoint that a server goes on from, or none if it begins with the initial values. Said by servers that
    /// keep checkpoints.
    Began(Option<Origin>),
    /// Checkpoints could not be written: how many since the last such message, and why the last could not.
    CheckpointFailed {
        /// How many.
        count: u64,
        /// Why.
        error: String,
    },
    /// A server has written its last checkpoint, or has said why it could not; the newest version on the disk.
    Closed(Option<u64>),
    /// A worker is connected to all servers, or to all other workers, and how.
    Joined(Vec<PathTaken>),
    /// Where a worker's own parameters can be read.
    Publishes(Vec<Address>),
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

/// The checkpoint that a server goes on from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) version: u64,
    pub(super) clock: u64,
    /// Why it is not the newest file, if it is the one before.
    pub(super) instead_of: Option<String>,
}

/// How a worker reaches one server, or another worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathTaken {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) server: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) worker: Option<u32>,
    pub(super) path: TransportKind,
    pub(super) reason: String,
}

/// How a server is getting on.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) version: u64,
    /// Workers that left or were evicted.
    pub(super) left: u64,
    /// The newest version that is on disk.
    pub(super) checkpointed: Option<u64>,
    /// Versions that were lost with this server's earlier life.
    pub(super) lost_updates: Option<u64>,
    /// Gradients that were folded in.
    pub(super) folded: u64,
    /// Gradients that came too late, and were not folded in.
    pub(super) dropped: u64,
    /// Gradients that were announced, and void because their worker left first.
    pub(super) voided: u64,
    /// Gradients that held a NaN or an infinity.
    pub(super) non_finite: u64,
    /// The first version with a parameter that is NaN or infinite.
    pub(super) diverged: Option<u64>,
    /// Times that it asked a worker to abandon what it computes.
    pub(super) interrupts: u64,
    /// Gradients in the newest version.
    pub(super) gradients: u64,
    /// Gradients that the next version waits for, and versions that they may be behind by now.
    pub(super) waits_for: Option<u64>,
    pub(super) staleness_bound: Option<u64>,
    /// What was measured of gradients last: squared norm of their mean, and variance of one.
    pub(super) mean_norm_squared: Option<f64>,
    pub(super) variance: Option<f64>,
}

/// How a worker is getting on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Mean loss since the last report; none if there was no gradient, or it is not finite.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) loss: Option<f64>,
    /// Where it is in the job.
    pub(super) clock: u64,
    /// Gradients that it has published.
    pub(super) clocks: u64,
    pub(super) compute_s: f64,
    pub(super) wait_s: f64,
    pub(super) bytes_published: u64,
    pub(super) bytes_pulled: u64,
    pub(super) pull_retries: u64,
    /// Computations that it abandoned because a server asked for that.
    pub(super) interrupts: u64,
    /// Rounds of averaging that had no mean, and those that began anew, because somebody was lost.
    pub(super) rounds_skipped: u64,
    pub(super) rounds_restarted: u64,
    pub(super) staleness_histogram: Vec<u64>,
}

impl Report {
    /// With what the same worker did in its earlier lives.
    pub(super) fn after(mut self, earlier: &Report) -> Report {
        self.clocks += earlier.clocks;
        self.compute_s += earlier.compute_s;
        self.wait_s += earlier.wait_s;
        self.bytes_published += earlier.bytes_published;
        self.bytes_pulled += earlier.bytes_pulled;
        self.pull_retries += earlier.pull_retries;
        self.interrupts += earlier.interrupts;
        let both = self.staleness_histogram.len().max(earlier.staleness_histogram.len());
        self.staleness_histogram.resize(both, 0);
        for (count, before) in self.staleness_histogram.iter_mut().zip(&earlier.staleness_histogram) {
            *count += before;
        }
        self
    }
}

impl Report {
    /// Of a worker at this clock.
    pub(super) fn of(clock: Clock, statistics: &WorkerStatistics) -> Report {
        Report {
            loss: None,
            clock: clock.0,
            clocks: statistics.clocks,
            compute_s: statistics.compute.as_secs_f64(),
            wait_s: statistics.wait.as_secs_f64(),
            bytes_published: statistics.bytes_published,
            bytes_pulled: statistics.bytes_pulled,
            pull_retries: statistics.pull_retries,
            interrupts: statistics.abandoned,
            rounds_skipped: 0,
            rounds_restarted: 0,
            staleness_histogram: statistics.staleness.counts().to_vec(),
        }
    }
}

/// Values in one message: a message less its letter, in whole values.
pub(super) const VALUES_PER_MESSAGE: usize = (MAX_MESSAGE_BYTES - 1) / 4;

/// A body of JSON as a message.
pub(super) fn json(body: &impl Serialize) -> Vec<u8> {
    let mut message = vec![b'J'];
    // Plain data with names as keys: there is nothing that JSON cannot hold.
    serde_json::to_writer(&mut message, body).expect("messages always serialise");
    message
}

/// Values as a message, at most [`VALUES_PER_MESSAGE`].
pub(super) fn values(values: &[f32]) -> Vec<u8> {
    let mut message = Vec::with_capacity(1 + 4 * values.len());
    message.push(b'V');
    message.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    message
}

/// What a message holds.
#[derive(Debug, PartialEq)]
pub(super) enum Body<M> {
    Json(M),
    Values(Vec<f32>),
}

/// Reads a message; rubbish is an error.
pub(super) fn read<M: DeserializeOwned>(message: &[u8]) -> Result<Body<M>, String> {
    match message.split_first() {
        Some((b'J', body)) => serde_json::from_slice(body).map(Body::Json).map_err(|error| error.to_string()),
        Some((b'V', body)) => match body.as_chunks() {
            (values, []) => Ok(Body::Values(values.iter().map(|value| f32::from_le_bytes(*value)).collect())),
            _ => Err("values that are cut short".into()),
        },
        _ => Err("a message of an unknown kind".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_rubbish_is_an_error() {
        let report = Report { clocks: 3, staleness_histogram: vec![1, 2], ..Report::default() };
        let message = json(&Message::Progress(report.clone()));
        match read::<Message>(&message) {
            Ok(Body::Json(Message::Progress(read))) => assert_eq!(read, report),
            other => panic!("{other:?}"),
        }
        let numbers = [0.0, -1.5, f32::MAX];
        assert_eq!(read::<Report>(&values(&numbers)), Ok(Body::Values(numbers.to_vec())));
        assert!(values(&vec![0.0; VALUES_PER_MESSAGE]).len() <= MAX_MESSAGE_BYTES);
        for rubbish in [&b""[..], b"J", b"J{", b"V123", b"X", b"J{\"leave\":3}"] {
            assert!(read::<Message>(rubbish).is_err(), "{rubbish:?}");
        }
    }

    #[test]
    fn a_folder_whose_name_is_no_text_arrives_as_it_was_sent() {
        use std::os::unix::ffi::OsStringExt;
        let folder = PathBuf::from(OsString::from_vec(b"/tmp/\xFF\xFEck".to_vec()));
        let config = CheckpointConfig::new(folder.clone(), 5, Resume::IfThere);
        let Ok(Body::Json(read)) = read::<CheckpointConfig>(&json(&config)) else { panic!() };
        assert_eq!((read.folder(), read.resume), (&*folder, Resume::IfThere));
    }

    #[test]
    fn a_loss_that_is_not_finite_is_told_as_none() {
        let message = json(&Report { loss: Some(f64::NAN), ..Report::default() });
        let Ok(Body::Json(report)) = read::<Report>(&message) else { panic!() };
        assert_eq!(report.loss, None);
    }
}
