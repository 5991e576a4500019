//! The messages between the process that measures and the other side: the task that it is given, and what it answers.
//!
//! A server and a publisher that serve a crowd say what is in [`Served`](super::usage::Served), too.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use slackline::internals::job::coordinated::ComputeDevice;
use slackline::{Address, Secret, TransportKind};

use super::error::BenchError;
use super::histogram::TimeHistogram;
use super::means::DeviceArgs;
use super::memory::MemoryArgs;
use super::names::Op;
use super::settings::Settings;
use super::timing::Latency;

/// The longest time that one side waits for another.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// The value that every parameter of the server begins with, and the learning rate that scales a gradient.
pub(super) const INITIAL: f32 = 1.0;
pub(super) const RATE: f32 = 1e-3;

/// The task of the other side: its role, and the settings for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) transport: TransportKind,
    /// The address to connect to, for roles that connect.
    pub(super) address: Option<Address>,
    pub(super) core: Option<usize>,
    pub(super) bytes: u64,
    /// For one on the same host: another one has its own.
    pub(super) device: DeviceArgs,
    pub(super) memory: MemoryArgs,
    pub(super) queue_depth: Option<u16>,
    /// The same: another one has the file. It travels in the environment, which other users cannot read.
    #[serde(skip)]
    pub(super) secret: Option<Secret>,
    pub(super) role: TaskRole,
}

impl Task {
    /// Returns a task with what the other side has to know of the settings.
    pub(super) fn of(settings: &Settings, bytes: u64, core: Option<usize>, role: TaskRole) -> Task {
        // Another host has other cores.
        let core = core.filter(|_| settings.peer.is_none());
        let device = settings.means.device.clone();
        let secret = settings.means.secret.clone();
        let (queue_depth, transport) = (settings.means.queue_depth, settings.transport);
        let (memory, address) = (settings.means.memory.of_peer(), None);
        Task { transport, address, core, bytes, device, memory, queue_depth, secret, role }
    }

    pub(super) fn address(&self) -> Result<&Address, BenchError> {
        self.address.as_ref().ok_or_else(|| {
            BenchError::usage("this task needs an address", "run the same slackline on both sides")
        })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum TaskRole {
    /// Memory to write and read over so many connections, the other end of a ping-pong if there is one first, and the
    /// judge of what arrived if that is to be checked. It may stream in the opposite direction, too. If its peers are
    /// a crowd, it says in the end what they cost it.
    Memory {
        pongs: bool,
        checked: Option<Op>,
        connections: u16,
        opposite: Option<(Op, Flow)>,
        is_crowd: bool,
    },
    /// A publisher that publishes nothing after its first version. If it is to expect many readers, it says in the end
    /// what they cost it.
    Publisher { chunk: u64, crowd: Option<u16> },
    /// A server; afterwards it measures its fold alone, if so many times are asked for. If its workers are a crowd, it
    /// says in the end what they cost it.
    Server { asynchronous: bool, workers: u16, chunk: u64, threads: u16, folds: u64, is_crowd: bool },
    /// A worker that does rounds and says how long each took.
    Worker { borrow: bool, warmup: u64, rounds: u64 },
    /// Many workers or readers.
    Load(LoadTask),
}

/// The flow of requests where many are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Flow {
    /// Requests under way at once, of each connection.
    pub(super) window: u64,
    /// Requests of one post; the last of them is signalled.
    pub(super) list: u64,
}

/// The task of a process with many peers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LoadTask {
    pub(super) peers: u16,
    /// The operation of each: workers do rounds, readers pull, others post single requests.
    pub(super) op: Op,
    /// Turns before the first that is timed.
    pub(super) warmup: u64,
    pub(super) course: Course,
    /// Whether it goes on until it is killed.
    pub(super) is_victim: bool,
    /// Whether what was pulled last is compared with what was published.
    pub(super) validate: bool,
}

/// The end of the turns that are timed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Course {
    Turns(u64),
    Lasting(Duration),
}

impl Course {
    /// The part of it that is over.
    pub(super) fn part(self, turns: u64, passed: Duration) -> f64 {
        match self {
            Course::Turns(all) => turns as f64 / all as f64,
            Course::Lasting(length) => passed.as_secs_f64() / length.as_secs_f64(),
        }
    }
}

/// The first message of the other side: it is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) address: Address,
    /// The memory of its payloads. On another host it is as that was told.
    pub(super) memory: ComputeDevice,
}

/// The content that a target found in its memory in the end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found {
    /// The first byte that is not as it should be.
    pub(super) wrong: Option<u64>,
    /// The first word.
    pub(super) word: u64,
}

/// The sign that the stream from the target to the client flows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Flowing;

/// The stream that went from the target to the client meanwhile.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Streamed {
    pub(super) count: u64,
    pub(super) nanos: f64,
}

/// The report of a server at the end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Folded {
    pub(super) versions: u64,
    /// The fold of one round, alone.
    pub(super) alone: Option<Latency>,
}

/// The messages of a process with many peers, in this order. It waits for a sign to go on after the first and the
/// second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LoadMessage {
    /// It can connect.
    Ready,
    /// All its peers have joined; how long each took.
    Joined(TimeHistogram),
    /// Half of the course is over.
    Half,
    /// All of it is, and its peers have left.
    Over { halves: [Half; 2], cpu_ns: u64 },
}

/// One half of the course.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Half {
    pub(super) seconds: f64,
    /// The time that each operation took.
    pub(super) operations: TimeHistogram,
}
