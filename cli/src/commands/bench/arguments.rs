//! Options of `slackline bench`, and the settings that follow from them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use slackline::{Secret, Verbs};

use super::BenchError;
use super::carrier::Carrier;
use super::load::{Load, LoadArgs};
use super::means::{DeviceArgs, Means};
use super::parse::{Sizes, at_least_one, chunk, listening, meeting, seconds, sizes};
use super::peer::{Task, TaskRole};
use super::remote::Remote;
use super::report::Measured;
use crate::optimizer_name::OptimizerName;

/// Measure what operations cost on this machine.
///
/// Each measurement warms up first. Operations of less than a microsecond are timed in batches, and percentiles are
/// then those of the batches' means; the report says how many make a batch. Bandwidth is the bytes that one operation
/// moves over the median time. Every size uses one pair of buffers again and again, as perftest does: up to the size
/// of the caches the numbers are those of warm caches.
///
/// write: over shared memory and RDMA latency is half a ping-pong, each side writing N bytes into the other's memory
/// and spinning on its own; over TCP it is from the post until the target has applied the write and said so. read,
/// fetch-add: post and poll. Bandwidth over TCP and RDMA is that of --queue-depth requests under way at once; over
/// RDMA all of them, as perftest counts it. publish: a worker's gradient into its slot, against a server that folds it
/// in (ASP, SGD) between two measurements. pull: a validated copy from an idle publisher. pinned-read: pin the newest
/// version in place, read one word, let go. round: publish, fold (SGD) and pull under BSP, with the workers and the
/// server in processes of their own; apply_ns is the fold alone, in the server. memcpy: private memory to shared, by
/// libc and past the caches. apply: a fold of K gradients; --bytes are those of the parameters. triad: STREAM's, over
/// three arrays of --bytes each.
///
/// The other process is started on this host, unless --peer names another one, where `slackline bench --listen` runs.
///
/// --peers measures one server with many workers (round, BSP), one publisher with many readers (pull), or one target of
/// many sides that post (write, read, fetch-add): how fast they join, the memory that each takes there, and their
/// operations. The peers of one process take turns, and the time of a round then includes the others' publishing.
/// --kill ends a part of them without a farewell.
///
/// CPU each is the processor time of one operation in this process, user and system, and not that of the other side.
/// Over tcp and verbs the counters of this host that have moved meanwhile are told, whatever moved them.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    /// Transport that carries the bytes.
    #[arg(long, value_enum, default_value = "shm")]
    transport: TransportName,
    /// Operation to measure.
    #[arg(long, value_enum, required_unless_present = "listen")]
    op: Option<Op>,
    /// write, read, fetch-add over tcp and verbs: requests under way at once where bandwidth is measured; by default
    /// 128 over verbs; 16 over tcp, and never more than 128 MiB hold.
    #[arg(long, visible_alias = "tx-depth", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    queue_depth: Option<u16>,
    /// write, read, fetch-add over tcp and verbs: requests of one post where bandwidth is measured, of which the last
    /// one is signalled; at most as many as are under way [default: a quarter of them, at most 32; over tcp 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    post_list: Option<u16>,
    /// write, read, fetch-add over tcp and verbs: connections side by side where bandwidth is measured, all to the same
    /// memory, each with --queue-depth requests under way [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    qp: Option<u16>,
    /// write, read, fetch-add over tcp and verbs: the other side does the same at the same time where bandwidth is
    /// measured, which is then the sum
    #[arg(long)]
    bidirectional: bool,
    /// Bytes of one operation, with an optional K, M or G (powers of 1024); several by commas or by repeating the
    /// option; `all` for the powers of two from 8 to 64M.
    #[arg(long, visible_alias = "sizes", value_name = "N", value_delimiter = ',', value_parser = sizes)]
    bytes: Vec<Sizes>,
    /// Operations to time; by default as many as a second or so holds.
    #[arg(long, value_name = "K", value_parser = at_least_one)]
    iterations: Option<u64>,
    /// Time operations for so long, instead of a given number of them; with --peers 5 by default.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "iterations")]
    duration: Option<Duration>,
    /// Operations before the first that is timed; by default a tenth of a second's.
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,
    /// round: worker processes.
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// publish, pull, pinned-read, round: bytes that are copied, folded and announced at a time; a multiple of 64.
    #[arg(long, value_parser = chunk)]
    chunk: Option<u64>,
    /// apply, triad, round: threads that fold. write, read, pull, memcpy over shm: threads among which this side cuts
    /// a copy of 8 MiB and more [default: by measurement, one for memcpy]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// apply: gradients to fold.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=1024))]
    k: Option<u16>,
    /// apply: how gradients move parameters.
    #[arg(long, value_enum)]
    optimizer: Option<OptimizerName>,
    /// round: workers compute in borrowed slots and read in place, touching nothing.
    #[arg(long)]
    borrow: bool,
    /// memcpy: from shared memory to private, as a pull does.
    #[arg(long)]
    from_shared: bool,
    /// Keep each process on a core of its own while cores last (round: worker W on core W modulo cores, the server on
    /// the last; others: this side on the first, the target on the last; threads that fold: one core each). On for
    /// round unless the server has several threads, off for the rest.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pin: Option<bool>,
    /// write, read, fetch-add, publish, pull: send a pattern, and compare what arrived with it after each size.
    #[arg(long)]
    validate: bool,
    /// Be the other side of measurements: wait for one client, do what it asks, and end. Beyond loopback both sides
    /// must know a secret. [default address: 0.0.0.0:18515]
    #[arg(
        long,
        help_heading = "Two hosts",
        value_name = "IP:PORT",
        num_args = 0..=1,
        default_missing_value = "0.0.0.0:18515",
        value_parser = listening,
        conflicts_with_all = [
            "peer", "op", "bytes", "iterations", "warmup", "queue_depth", "workers", "chunk", "threads", "k",
            "optimizer", "borrow", "from_shared", "validate", "json", "pin", "duration", "peers", "post_list", "qp",
            "bidirectional"
        ]
    )]
    listen: Option<SocketAddr>,
    /// With --listen: serve one client after the other until interrupted.
    #[arg(long, help_heading = "Two hosts", requires = "listen")]
    keep: bool,
    /// Measure with the process that listens there; its port is 18515 unless given.
    #[arg(long, help_heading = "Two hosts", value_name = "HOST[:PORT]", value_parser = meeting)]
    peer: Option<String>,
    /// File with the secret that both hosts share (mode 600) [default: the file that SLACKLINE_SECRET_FILE names, or
    /// SLACKLINE_SECRET itself]
    #[arg(long, help_heading = "Two hosts", value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// tcp: encrypt all that follows the handshake [default: SLACKLINE_TCP_ENCRYPT]
    #[arg(long)]
    encrypt: bool,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Write the result as JSON to FILE, or to standard output (and nothing else there) if it is `-`.
    #[arg(long, value_name = "FILE|-")]
    json: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum TransportName {
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA.
    Verbs,
}

impl TransportName {
    pub(super) fn name(self) -> &'static str {
        match self {
            TransportName::Shm => "shm",
            TransportName::Tcp => "tcp",
            TransportName::Verbs => "verbs",
        }
    }

    /// Opens what can be missing, only to see whether it is.
    pub(super) fn open(self, means: &Means) -> Result<(), BenchError> {
        if self == TransportName::Verbs { <Verbs as Carrier>::open(means).map(drop) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Op {
    Write,
    Read,
    FetchAdd,
    Publish,
    Pull,
    PinnedRead,
    Round,
    Memcpy,
    Apply,
    Triad,
}

impl Op {
    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Write => "write",
            Op::Read => "read",
            Op::FetchAdd => "fetch-add",
            Op::Publish => "publish",
            Op::Pull => "pull",
            Op::PinnedRead => "pinned-read",
            Op::Round => "round",
            Op::Memcpy => "memcpy",
            Op::Apply => "apply",
            Op::Triad => "triad",
        }
    }

    fn default_sizes(self) -> &'static [u64] {
        match self {
            Op::Write | Op::Read => &[8, 64 << 10, 1 << 20],
            Op::FetchAdd => &[8],
            Op::Publish | Op::Pull | Op::PinnedRead | Op::Memcpy => &[64 << 10, 1 << 20, 64 << 20],
            Op::Round => &[100_000_000],
            Op::Apply | Op::Triad => &[400_000_000],
        }
    }

    /// Whether the bytes are an array of f32.
    fn is_of_floats(self) -> bool {
        matches!(self, Op::Publish | Op::Pull | Op::PinnedRead | Op::Round | Op::Apply | Op::Triad)
    }
}

/// The request that the options make, once they are checked.
pub(super) enum Request {
    /// A request to measure, with the file for its JSON (or `-`) if any is wanted.
    Measure(Box<Settings>, Option<String>),
    /// A request to be the other side for another host.
    Listen { address: SocketAddr, transport: TransportName, means: Means, keep: bool },
}

/// Settings of the measurements, checked and with defaults in place.
pub(super) struct Settings {
    pub(super) transport: TransportName,
    pub(super) op: Op,
    pub(super) means: Means,
    /// The host of the other side, with its port, unless it is this one.
    pub(super) peer: Option<String>,
    /// The process that listens there, once it has answered.
    pub(super) remote: Option<Rc<Remote>>,
    pub(super) validate: bool,
    pub(super) sizes: Vec<u64>,
    pub(super) iterations: Option<u64>,
    /// The time that each measurement is to take, if it is not a number of operations.
    pub(super) duration: Option<Duration>,
    pub(super) warmup: Option<u64>,
    pub(super) workers: u16,
    pub(super) chunk: u64,
    pub(super) threads: u16,
    /// Threads among which this process cuts its long copies, if it is not to measure how many pay.
    pub(super) copy_threads: Option<u16>,
    pub(super) k: u16,
    pub(super) optimizer: OptimizerName,
    pub(super) borrow: bool,
    pub(super) from_shared: bool,
    pub(super) pin: bool,
    /// Requests of one post where many are under way.
    pub(super) post_list: Option<u16>,
    pub(super) connections: u16,
    pub(super) bidirectional: bool,
    /// Many peers, if there are to be.
    pub(super) load: Option<Load>,
}

/// Operations that `--threads` means something to; those that many peers can do at once; single requests; and those
/// that can be measured with another host and that `--validate` can check.
const OF_THREADS: [Op; 7] = [Op::Apply, Op::Triad, Op::Round, Op::Write, Op::Read, Op::Pull, Op::Memcpy];
const OF_MANY: [Op; 5] = [Op::Round, Op::Pull, Op::Write, Op::Read, Op::FetchAdd];
const OF_REQUESTS: [Op; 3] = [Op::Write, Op::Read, Op::FetchAdd];
const OF_TWO: [Op; 5] = [Op::Write, Op::Read, Op::FetchAdd, Op::Publish, Op::Pull];

/// Bytes of parameters where there are many peers, unless the user says how many.
const LOAD_BYTES: u64 = 64 << 10;

impl Settings {
    /// A task for the other side.
    pub(super) fn task(&self, bytes: u64, core: Option<usize>, role: TaskRole) -> Task {
        // Another host has other cores.
        let core = core.filter(|_| self.remote.is_none());
        let device = self.means.device.clone();
        let secret = self.means.secret.clone();
        let queue_depth = self.means.queue_depth;
        Task { transport: self.transport, address: None, core, bytes, device, queue_depth, secret, role }
    }

    /// Says in the result that it was validated, if it was.
    pub(super) fn validated(&self, measured: Measured) -> Measured {
        if self.validate {
            measured.with("validated", true).note("what arrived is what was sent".into())
        } else {
            measured
        }
    }
}

impl BenchArgs {
    fn secret(&self) -> Result<Option<Secret>, BenchError> {
        let is_local = self.listen.is_none() && self.peer.is_none();
        if is_local && self.secret_file.is_some() {
            let help = "leave it out, or use --listen or --peer";
            return Err(BenchError::usage("--secret-file is for two hosts", help));
        }
        let secret = match &self.secret_file {
            Some(file) => Secret::from_file(file).map(Some),
            None if is_local => Secret::random().map(Some),
            None => Secret::from_environment(),
        };
        Ok(Secret::demanding(secret?, self.encrypt)?)
    }

    /// Refuses what does not go together with many peers.
    fn check_of_many(&self, op: Op) -> Result<(), BenchError> {
        let wrong = [
            ("--post-list", self.post_list.is_some(), "leave it out: each peer has one request under way"),
            ("--qp", self.qp.is_some(), "leave it out: each peer has one connection"),
            ("--bidirectional", self.bidirectional, "leave it out"),
            ("--validate", self.validate && op != Op::Pull, "leave it out, or use --op pull"),
            ("--workers", self.workers.is_some(), "leave it out: --peers says how many there are"),
            ("--borrow", self.borrow, "leave it out"),
            ("--pin", self.pin == Some(true), "leave it out, or use taskset for all of them"),
            ("--threads", self.threads.is_some() && op != Op::Round, "leave it out, or use --op round"),
        ];
        match wrong.into_iter().find(|(_, given, _)| *given) {
            Some((option, _, help)) => {
                Err(BenchError::usage(format!("{option} does not go with --peers here"), help))
            }
            None => Ok(()),
        }
    }

    /// Checks that the options go together, and fills in the defaults.
    pub(super) fn check(self) -> Result<Request, BenchError> {
        self.device.check(self.transport)?;
        for (option, given) in [("--listen", self.listen.is_some()), ("--peer", self.peer.is_some())] {
            if given && self.transport == TransportName::Shm {
                let what = format!("{option}: shared memory does not leave its host");
                return Err(BenchError::usage(what, "use --transport verbs or tcp"));
            }
        }
        if self.encrypt && self.transport != TransportName::Tcp {
            let (what, help) = match self.transport {
                TransportName::Shm => (
                    "--encrypt: shared memory does not leave its host",
                    "leave it out, or use --transport tcp",
                ),
                _ => (
                    "--encrypt: data by RDMA cannot be encrypted here",
                    "use --transport tcp, or IPsec or MACsec on the link",
                ),
            };
            return Err(BenchError::usage(what, help));
        }
        let means = Means {
            secret: self.secret()?,
            device: self.device.clone(),
            queue_depth: self.queue_depth,
            peer: None,
        };
        if let Some(address) = self.listen {
            return Ok(Request::Listen { address, transport: self.transport, means, keep: self.keep });
        }
        let op = self.op.ok_or_else(|| BenchError::usage("--op is missing", "say what to measure"))?;
        if self.transport != TransportName::Shm && (op == Op::PinnedRead || self.borrow) {
            let help = "leave --borrow out, or use --transport shm";
            return Err(BenchError::usage("only shared memory is read in place", help));
        }
        let streams = [
            ("--queue-depth", self.queue_depth.is_some()),
            ("--post-list", self.post_list.is_some()),
            ("--qp", self.qp.is_some()),
            ("--bidirectional", self.bidirectional),
        ];
        if let (TransportName::Shm, Some((option, _))) =
            (self.transport, streams.iter().find(|(_, given)| *given))
        {
            let what = format!("{option} means nothing over shm, where a request is done when it is posted");
            return Err(BenchError::usage(what, "leave it out, or use --transport verbs or tcp"));
        }
        let only = |option: &str, given: bool, ops: &[Op]| {
            if !given || ops.contains(&op) {
                return Ok(());
            }
            let names: Vec<&str> = ops.iter().map(|op| op.name()).collect();
            let names = names.join(", ");
            let what = format!("{option} means nothing to `{}`, but to --op {names}", op.name());
            Err(BenchError::usage(what, "leave it out, or use such an --op"))
        };
        for (option, given) in &streams[1..] {
            only(option, *given, &OF_REQUESTS)?;
        }
        only("--workers", self.workers.is_some(), &[Op::Round])?;
        only("--chunk", self.chunk.is_some(), &[Op::Publish, Op::Pull, Op::PinnedRead, Op::Round])?;
        only("--threads", self.threads.is_some(), &OF_THREADS)?;
        only("--k", self.k.is_some(), &[Op::Apply])?;
        only("--optimizer", self.optimizer.is_some(), &[Op::Apply])?;
        only("--borrow", self.borrow, &[Op::Round])?;
        only("--from-shared", self.from_shared, &[Op::Memcpy])?;
        only("--validate", self.validate, &OF_TWO)?;
        let load = self.load.check()?;
        only("--peers", load.is_some(), &OF_MANY)?;
        match &load {
            Some(_) => self.check_of_many(op)?,
            None if op == Op::Round && self.duration.is_some() => {
                let what = "--duration: the workers of a round do a number of them that all know before";
                return Err(BenchError::usage(what, "give --iterations, or use --peers"));
            }
            None => only("--peer", self.peer.is_some(), &OF_TWO)?,
        }
        let mut sizes: Vec<u64> = self.bytes.into_iter().flat_map(Sizes::list).collect();
        if sizes.is_empty() {
            sizes = match load {
                Some(_) if op != Op::FetchAdd => vec![LOAD_BYTES],
                _ => op.default_sizes().to_vec(),
            };
        }
        for bytes in &sizes {
            if op == Op::FetchAdd && *bytes != 8 {
                let what = format!("--bytes {bytes}: fetch-add works on one word");
                return Err(BenchError::usage(what, "leave it out, or give 8"));
            }
            if op.is_of_floats() && !bytes.is_multiple_of(4) {
                let what = format!("--bytes {bytes}: `{}` works on f32", op.name());
                return Err(BenchError::usage(what, "give a multiple of 4"));
            }
        }
        let threads = self.threads.unwrap_or(1);
        let settings = Settings {
            transport: self.transport,
            op,
            means,
            peer: self.peer,
            remote: None,
            validate: self.validate,
            sizes,
            iterations: self.iterations,
            duration: self.duration,
            warmup: self.warmup,
            workers: self.workers.unwrap_or(1),
            chunk: self.chunk.unwrap_or(1 << 20),
            threads,
            copy_threads: self.threads.filter(|_| matches!(op, Op::Write | Op::Read | Op::Pull)),
            k: self.k.unwrap_or(4),
            optimizer: self.optimizer.unwrap_or(OptimizerName::Sgd),
            borrow: self.borrow,
            from_shared: self.from_shared,
            pin: self.pin.unwrap_or(op == Op::Round && load.is_none()),
            post_list: self.post_list,
            connections: self.qp.unwrap_or(1),
            bidirectional: self.bidirectional,
            load,
        };
        Ok(Request::Measure(Box::new(settings), self.json))
    }
}
