//! The messages between the coordinator and the other processes of a coordinated job.
//!
//! A message is one letter and a body: `J` and JSON, or `V` and values, which are little-endian `f32`s.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::super::error_report::ErrorReport;
use super::super::plan::{JobPlan, Resume};
use super::super::rendezvous::MAX_MESSAGE_BYTES;
use super::ComputeDevice;
use super::reports::{Origin, PathTaken, ServerReport, WorkerReport};
use crate::kernel::{Optimizer, Schedule};
use crate::node::NonFinite;
use crate::scheme;
use crate::table::{Encoding, Table};
use crate::transport::{Address, TransportKind};

/// A message of the coordinator.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    /// Serve a shard; its values follow.
    Serve(Box<ServerOrder>),
    /// Train.
    Work(Box<WorkerOrder>),
    /// Write a checkpoint now.
    Checkpoint,
    /// Write the last checkpoint, and say [`Message::Closed`].
    Close,
    /// There is nothing to do for this process: the reason and the remedy.
    Refuse(String),
    /// The job failed: the cause and the remedy.
    Abort(String),
    /// The job is over.
    Leave,
}

/// The order of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerOrder {
    /// The plan of the job.
    pub plan: JobPlan,
    /// The transports over which it is reached.
    pub listen: Vec<TransportKind>,
    /// The device that folds and holds the payloads.
    pub device: ComputeDevice,
    /// The table, of which it holds one shard.
    pub table: Table,
    /// The number of its shard, which the coordinator fills in.
    pub shard: u16,
    /// The scheme.
    pub scheme: scheme::SchemeConfig,
    /// The effect of a gradient's staleness on its weight.
    pub damping: scheme::Damping,
    /// Gradients add up: each is folded in with the weight 1.
    pub additive: bool,
    /// The number of workers, which the coordinator fills in.
    pub workers: usize,
    /// Workers and readers that it has memory for.
    pub peers: u16,
    /// The optimiser.
    pub optimizer: Optimizer,
    /// Step size.
    pub learning_rate: f32,
    /// How the step size falls.
    pub schedule: Schedule,
    /// Threads that fold.
    pub threads: usize,
    /// It sleeps while it waits, instead of looking again and again.
    pub sleeps: bool,
    /// Gradients and parameters carry checksums.
    pub checksums: bool,
    /// Its checkpoints, if it keeps any.
    pub checkpoint: Option<CheckpointOrder>,
    /// Measure norm and variance of gradients though the scheme has no use for them.
    pub moments: bool,
    /// The fate of gradients that hold a NaN or an infinity.
    pub non_finite: NonFinite,
    /// The longest silence of a worker.
    pub lease: Duration,
    /// Gradients to fold in; after them nothing moves any more. `None`: as many as there are.
    pub gradients: Option<u64>,
}

/// The folder in which servers keep their shards, and the number of versions between two checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointOrder {
    /// Bytes that need not be text: JSON keeps an `OsString` as it is, and refuses such a path.
    folder: OsString,
    /// Versions between two checkpoints.
    pub every: u64,
    /// Whether a server begins with the checkpoint that it finds.
    pub resume: Resume,
}

impl ServerOrder {
    /// The number of its shard, and the number of shards.
    pub(super) fn shard_numbers(&self) -> (u16, u16) {
        (self.shard, self.plan.servers as u16)
    }
}

impl CheckpointOrder {
    /// Checkpoints in this folder.
    pub fn new(folder: PathBuf, every: u64, resume: Resume) -> CheckpointOrder {
        CheckpointOrder { folder: folder.into_os_string(), every, resume }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        Path::new(&self.folder)
    }

    /// The file of one shard.
    pub fn file(&self, shard: u16, shards: u16) -> PathBuf {
        self.folder().join(format!("shard-{shard}-of-{shards}.safetensors"))
    }
}

/// The order of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerOrder {
    /// The plan of the job. Without a server, workers average among themselves; without a number of clocks, they go on
    /// until the job is over.
    pub plan: JobPlan,
    /// The number of workers.
    pub workers: usize,
    /// The number of this worker, which the coordinator fills in.
    pub worker: usize,
    /// The device that computes the gradients, and from which they are published.
    pub device: ComputeDevice,
    /// The scheme.
    pub scheme: scheme::SchemeConfig,
    /// The encoding of its gradients.
    pub encoding: Encoding,
    /// It sleeps while it waits, instead of looking again and again.
    pub sleeps: bool,
    /// Gradients and parameters carry checksums.
    pub checksums: bool,
    /// Step size: of the server, for steps on a worker's own copy, or of its own optimiser.
    pub learning_rate: f32,
    /// The longest silence of another process.
    pub lease: Duration,
    /// The effect of one gradient of its own on the parameters, where it is to see that at once.
    pub own_step: Option<f32>,
    /// The further order of a worker in a job without a server; its initial values follow.
    pub group: Option<GroupOrder>,
    /// The caller's own order for this worker, as text; the coordinator fills it in.
    pub program: String,
}

/// The order of a worker that trains parameters of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupOrder {
    /// The transports over which it is reached.
    pub listen: Vec<TransportKind>,
    /// The table.
    pub table: Table,
    /// Its optimiser.
    pub optimizer: Optimizer,
    /// How the step size falls.
    pub schedule: Schedule,
    /// The identity of the job for its workers: a number that no other job has.
    pub run: u64,
}

/// A message of a member.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// The counters of a server.
    Status(ServerReport),
    /// The numbers of the workers that are in at a server, or at the proxy of a host: sent once it serves, also if the
    /// list is empty, and again whenever the list changes.
    Workers(Vec<u32>),
    /// The checkpoint that a server goes on from, or none if it begins with the initial values. Said by servers that
    /// keep checkpoints.
    Began(Option<Origin>),
    /// Checkpoints could not be written since the last such message.
    CheckpointFailed {
        /// The number of these checkpoints.
        count: u64,
        /// The error of the last of them.
        error: String,
    },
    /// A server has written its last checkpoint, or has said why it could not; the newest version on the disk.
    Closed(Option<u64>),
    /// A worker is connected to all servers, to all other workers or to the proxy of its host, with the paths taken.
    Joined(Vec<PathTaken>),
    /// The addresses at which a worker's own parameters can be read.
    Publishes(Vec<Address>),
    /// The counters of a worker; sent at least ten times a second, also during a computation.
    Progress(WorkerReport),
    /// All gradients of a worker are folded in.
    Finished(WorkerReport),
    /// A process gives up, and why.
    Failed(ErrorReport),
}

/// Values in one message: a message less its letter, in whole values.
pub(super) const VALUES_PER_MESSAGE: usize = (MAX_MESSAGE_BYTES - 1) / 4;

/// A body of JSON as a message.
pub(super) fn json(body: &impl Serialize) -> Vec<u8> {
    let mut message = vec![b'J'];
    // Plain data with names as keys: JSON can hold all of it.
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

/// The content of a message.
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

/// Decodes arbitrary `bytes` as a message of a member and as an order, and does the first steps of their readers with
/// the result.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_message(bytes: &[u8]) {
    match read::<Message>(bytes) {
        Ok(Body::Json(message)) => {
            if let Message::Progress(report) | Message::Finished(report) = &message {
                let both = report.clone().after(report);
                let _all = both.clone().after(&both);
            }
            assert!(read::<Message>(&json(&message)).is_ok(), "{message:?}");
        }
        Ok(Body::Values(read)) => assert_eq!(values(&read), bytes),
        Err(_) => {}
    }
    if let Ok(Body::Json(Order::Serve(order))) = read::<Order>(bytes) {
        let (shard, shards) = order.shard_numbers();
        let _file = order.checkpoint.map(|checkpoint| checkpoint.file(shard, shards));
    }
}

/// Messages and orders of most kinds.
#[cfg(any(test, fuzzing))]
pub(crate) fn message_samples() -> Vec<Vec<u8>> {
    let report = WorkerReport { clocks: 3, staleness_histogram: vec![1, 2], ..WorkerReport::default() };
    let origin = Origin { version: 7, clock: 8, instead_of: Some("damaged".into()) };
    let messages = [
        Message::Status(ServerReport { lost_updates: Some(4), ..ServerReport::default() }),
        Message::Workers(vec![0, 2]),
        Message::Began(Some(origin)),
        Message::CheckpointFailed { count: 2, error: "no space".into() },
        Message::Closed(Some(5)),
        Message::Publishes(vec![Address::Abstract("x".into())]),
        Message::Progress(report.clone()),
        Message::Finished(report),
        Message::Failed(ErrorReport::of_cause("why")),
    ];
    let orders = [Order::Checkpoint, Order::Close, Order::Abort("why".into()), Order::Leave];
    let of_values = values(&[0.0, -1.5]);
    messages.iter().map(json).chain(orders.iter().map(json)).chain([of_values]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_rubbish_is_an_error() {
        let report = WorkerReport { clocks: 3, staleness_histogram: vec![1, 2], ..WorkerReport::default() };
        let message = json(&Message::Progress(report.clone()));
        match read::<Message>(&message) {
            Ok(Body::Json(Message::Progress(read))) => assert_eq!(read, report),
            other => panic!("{other:?}"),
        }
        let numbers = [0.0, -1.5, f32::MAX];
        assert_eq!(read::<WorkerReport>(&values(&numbers)), Ok(Body::Values(numbers.to_vec())));
        assert!(values(&vec![0.0; VALUES_PER_MESSAGE]).len() <= MAX_MESSAGE_BYTES);
        for rubbish in [&b""[..], b"J", b"J{", b"V123", b"X", b"J{\"leave\":3}"] {
            assert!(read::<Message>(rubbish).is_err(), "{rubbish:?}");
        }
    }

    #[test]
    fn a_folder_whose_name_is_no_text_arrives_as_it_was_sent() {
        use std::os::unix::ffi::OsStringExt;
        let folder = PathBuf::from(OsString::from_vec(b"/tmp/\xFF\xFEck".to_vec()));
        let order = CheckpointOrder::new(folder, 5, Resume::IfThere);
        assert_eq!(read::<CheckpointOrder>(&json(&order)), Ok(Body::Json(order)));
    }

    #[test]
    fn a_loss_that_is_not_finite_is_told_as_none() {
        let message = json(&WorkerReport { loss: Some(f64::NAN), ..WorkerReport::default() });
        let Ok(Body::Json(report)) = read::<WorkerReport>(&message) else { panic!() };
        assert_eq!(report.loss, None);
    }
}
