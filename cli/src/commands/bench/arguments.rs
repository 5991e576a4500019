//! Options of `slackline bench`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use slackline::TransportKind;

use super::means::DeviceArgs;
use super::memory::MemoryArgs;
use super::names::Op;
use super::parse::{Sizes, chunk, iterations, listening, meeting, seconds, sizes, transport, warmup};
use crate::optimizer_name::OptimizerName;

/// Measure the cost of operations on this machine.
///
/// Each measurement warms up first. Operations of less than a microsecond are timed in batches, and percentiles are
/// then percentiles of the batches' means; the report has the length of a batch. Bandwidth is the bytes that one
/// operation moves over the median time. Every size uses one pair of buffers again and again, as perftest does: up to
/// the size of the caches the caches are warm.
///
/// write: over shared memory and RDMA latency is half a ping-pong, each side writing N bytes into the other's memory
/// and spinning on its own; over TCP, and where --memory has one of them on a GPU, it is from the post until the write
/// is complete, over TCP when the target has applied it and said so. read, fetch-add: post and poll. Bandwidth over TCP
/// and RDMA is measured with --queue-depth requests under way at once; over RDMA with all of them, as perftest counts
/// it. publish: a worker's gradient into its slot, against a server that folds it in (ASP, SGD) between two
/// measurements. pull: a validated copy from an idle publisher. pinned-read: pin the newest version in place, read
/// one word, release it. round: publish, fold (SGD) and pull under BSP, with the workers and the server in processes
/// of their own; apply_ns is the fold by itself, in the server. memcpy: private memory to shared, by libc and past
/// the caches. apply: a fold of K gradients; --bytes is the size of the parameters. triad: STREAM's, over three
/// arrays of --bytes each.
///
/// The other process is started on this host, unless --peer names another one, where `slackline bench --listen` runs,
/// with the same --transport.
///
/// --peers measures one server with many workers (round, BSP), one publisher with many readers (pull), or one target of
/// many sides that post (write, read, fetch-add): how fast they join, the memory that each needs there, and their
/// operations. The peers of one process take turns, and the time of a round then includes the others' publishing.
/// --kill ends a part of them without a farewell.
///
/// CPU each is the processor time of one operation in this process, user and system, without the other side. Over tcp
/// and verbs the report has the counters of this host that have moved meanwhile, also if other programs moved them.
///
/// The row of each size is printed when it is measured. If one fails, the results before it are kept.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct BenchArgs {
    /// Transport that carries the bytes.
    #[arg(long, value_parser = transport(), default_value = "shm")]
    pub(super) transport: TransportKind,
    /// Operation to measure.
    #[arg(long, value_enum, required_unless_present = "listen")]
    pub(super) op: Option<Op>,
    /// write, read, fetch-add over tcp and verbs: requests under way at once where bandwidth is measured; by default
    /// 128 over verbs; 16 over tcp, and never more than 128 MiB hold. Any operation over verbs: each queue has
    /// room for N requests at least.
    #[arg(long, visible_alias = "tx-depth", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) queue_depth: Option<u16>,
    /// write, read, fetch-add over tcp and verbs: requests of one post where bandwidth is measured, of which the last
    /// one is signalled; at most as many as are under way [default: a quarter of them, at most 32; over tcp 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) post_list: Option<u16>,
    /// write, read, fetch-add over tcp and verbs: connections side by side where bandwidth is measured, all to the same
    /// memory, each with --queue-depth requests under way [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) qp: Option<u16>,
    /// write, read, fetch-add over tcp and verbs: the other side does the same at the same time where bandwidth is
    /// measured, which is then the sum
    #[arg(long)]
    pub(super) bidirectional: bool,
    /// Bytes of one operation, with an optional K, M or G (powers of 1024); several by commas or by repeating the
    /// option; `all` for the powers of two from 8 to 64M [default: 8,64K,1M for write and read, 8 for
    /// fetch-add, 100000000 for round, 400000000 for apply and triad, 64K,1M,64M for the rest; with --peers 64K]
    #[arg(long, visible_alias = "sizes", value_name = "N", value_delimiter = ',', value_parser = sizes)]
    pub(super) bytes: Vec<Sizes>,
    /// Operations to time; by default as many as a second or so holds.
    #[arg(long, value_name = "K", value_parser = iterations)]
    pub(super) iterations: Option<u64>,
    /// Time operations for SECONDS, instead of a given number of them; with --peers 5 by default.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "iterations")]
    pub(super) duration: Option<Duration>,
    /// Operations before the first that is timed; by default a tenth of a second's.
    #[arg(long, value_name = "N", value_parser = warmup)]
    pub(super) warmup: Option<u64>,
    /// round: worker processes [default: 1]
    #[arg(long, value_name = "W", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) workers: Option<u16>,
    /// publish, pull, pinned-read, round: bytes that are copied, folded and announced at a time; a multiple of 64
    /// [default: 1M]
    #[arg(long, value_parser = chunk)]
    pub(super) chunk: Option<u64>,
    /// apply, triad, round: threads that fold. write, read, pull, memcpy over shm: threads among which this side cuts
    /// a copy of 8 MiB and more [default: by measurement, one for memcpy]
    #[arg(long, value_name = "T", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) threads: Option<u16>,
    /// apply: gradients to fold [default: 4]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) k: Option<u16>,
    /// apply: how gradients move parameters [default: sgd]
    #[arg(long, value_enum)]
    pub(super) optimizer: Option<OptimizerName>,
    /// round: workers compute in borrowed slots and read in place, touching nothing.
    #[arg(long)]
    pub(super) borrow: bool,
    /// memcpy: from shared memory to private, as a pull does.
    #[arg(long)]
    pub(super) from_shared: bool,
    /// Keep each process on a core of its own while cores last (round: worker W on core W modulo cores, the server on
    /// the last; others: this side on the first, the target on the last; threads that fold: one core each). On for
    /// round unless the server has several threads, off for the rest.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(super) pin: Option<bool>,
    /// write, read, fetch-add, publish, pull: send a pattern, and compare the bytes that arrived after each size.
    #[arg(long)]
    pub(super) validate: bool,
    /// Be the other side of measurements: wait for one client, serve it, and end. Beyond loopback both sides
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
    pub(super) listen: Option<SocketAddr>,
    /// With --listen: serve one client after the other until interrupted.
    #[arg(long, help_heading = "Two hosts", requires = "listen")]
    pub(super) keep: bool,
    /// Measure with the process that listens there; its port is 18515 unless given.
    #[arg(long, help_heading = "Two hosts", value_name = "HOST[:PORT]", value_parser = meeting)]
    pub(super) peer: Option<String>,
    /// File with the secret that both hosts share (mode 600) [default: the file that SLACKLINE_SECRET_FILE names, or
    /// SLACKLINE_SECRET itself]
    #[arg(long, help_heading = "Two hosts", value_name = "FILE")]
    pub(super) secret_file: Option<PathBuf>,
    /// tcp: encrypt all bytes after the handshake [default: SLACKLINE_TCP_ENCRYPT]
    #[arg(long)]
    pub(super) encrypt: bool,
    #[command(flatten)]
    pub(super) load: LoadArgs,
    #[command(flatten)]
    pub(super) memory: MemoryArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Write the result as JSON to FILE, or to standard output (and nothing else there) if it is `-`.
    #[arg(long, value_name = "FILE|-")]
    pub(super) json: Option<PathBuf>,
}

const EXIT_CODES: &str = "Exit codes: 0 measured, 1 a measurement failed, 2 wrong options.";

/// Many peers.
#[derive(clap::Args, Debug)]
pub(super) struct LoadArgs {
    /// N peers at once, each with a connection of its own: workers of one server (round), readers of one publisher
    /// (pull), or sides that post one request after the other to one target (write, read, fetch-add: incast).
    #[arg(long, help_heading = "Many peers", value_name = "N",
          value_parser = clap::value_parser!(u16).range(1..=32_768))]
    pub(super) peers: Option<u16>,
    /// With --peers: the processes of this host among which they are shared out [default: 1].
    #[arg(long, help_heading = "Many peers", value_name = "P", requires = "peers",
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(super) processes: Option<u16>,
    /// With --peers: kill K of the processes in the middle, chosen at random; the others go on.
    #[arg(long, help_heading = "Many peers", value_name = "K", requires = "peers")]
    pub(super) kill: Option<u16>,
}
