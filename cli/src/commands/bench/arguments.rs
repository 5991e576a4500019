//! Options of `slackline bench`, and the settings that follow from them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use slackline::{MeetingPoint, Secret, Verbs};

use super::BenchError;
use super::carrier::Carrier;
use super::means::{DeviceArgs, Means};
use super::peer::{Task, TaskRole};
use super::remote::{PORT, Remote};
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    queue_depth: Option<u16>,
    /// Bytes of one operation, with an optional K, M or G (powers of 1024); several by commas or by repeating the
    /// option; `all` for the powers of two from 8 to 64M.
    #[arg(long, visible_alias = "sizes", value_name = "N", value_delimiter = ',', value_parser = sizes)]
    bytes: Vec<Sizes>,
    /// Operations to time; by default as many as a second or so holds.
    #[arg(long, value_name = "K", value_parser = at_least_one)]
    iterations: Option<u64>,
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
            "optimizer", "borrow", "from_shared", "validate", "json", "pin"
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
}

/// Operations that can be measured with another host and that `--validate` can check.
const OF_THREADS: [Op; 7] = [Op::Apply, Op::Triad, Op::Round, Op::Write, Op::Read, Op::Pull, Op::Memcpy];
const OF_TWO: [Op; 5] = [Op::Write, Op::Read, Op::FetchAdd, Op::Publish, Op::Pull];

impl Settings {
    /// A task for the other side.
    pub(super) fn task(&self, bytes: u64, core: Option<usize>, role: TaskRole) -> Task {
        // Another host has other cores.
        let core = core.filter(|_| self.remote.is_none());
        let device = self.means.device.clone();
        let secret = self.means.secret.clone();
        Task { transport: self.transport, address: None, core, bytes, device, secret, role }
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
        let means =
            Means { secret: self.secret()?, device: self.device, queue_depth: self.queue_depth, peer: None };
        if let Some(address) = self.listen {
            return Ok(Request::Listen { address, transport: self.transport, means, keep: self.keep });
        }
        let op = self.op.ok_or_else(|| BenchError::usage("--op is missing", "say what to measure"))?;
        if self.transport != TransportName::Shm && (op == Op::PinnedRead || self.borrow) {
            let help = "leave --borrow out, or use --transport shm";
            return Err(BenchError::usage("only shared memory is read in place", help));
        }
        if self.transport == TransportName::Shm && self.queue_depth.is_some() {
            let what = "--queue-depth means nothing over shm, where a request is done when it is posted";
            return Err(BenchError::usage(what, "leave it out"));
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
        only("--workers", self.workers.is_some(), &[Op::Round])?;
        only("--chunk", self.chunk.is_some(), &[Op::Publish, Op::Pull, Op::PinnedRead, Op::Round])?;
        only("--threads", self.threads.is_some(), &OF_THREADS)?;
        only("--k", self.k.is_some(), &[Op::Apply])?;
        only("--optimizer", self.optimizer.is_some(), &[Op::Apply])?;
        only("--borrow", self.borrow, &[Op::Round])?;
        only("--from-shared", self.from_shared, &[Op::Memcpy])?;
        only("--validate", self.validate, &OF_TWO)?;
        only("--peer", self.peer.is_some(), &OF_TWO)?;
        let mut sizes: Vec<u64> = self.bytes.into_iter().flat_map(Sizes::list).collect();
        if sizes.is_empty() {
            sizes = op.default_sizes().to_vec();
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
            warmup: self.warmup,
            workers: self.workers.unwrap_or(1),
            chunk: self.chunk.unwrap_or(1 << 20),
            threads,
            copy_threads: self.threads.filter(|_| matches!(op, Op::Write | Op::Read | Op::Pull)),
            k: self.k.unwrap_or(4),
            optimizer: self.optimizer.unwrap_or(OptimizerName::Sgd),
            borrow: self.borrow,
            from_shared: self.from_shared,
            pin: self.pin.unwrap_or(op == Op::Round),
        };
        Ok(Request::Measure(Box::new(settings), self.json))
    }
}

/// One size, or the sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    One(u64),
    All,
}

impl Sizes {
    fn list(self) -> Vec<u64> {
        match self {
            Sizes::One(bytes) => vec![bytes],
            Sizes::All => (3..=26).map(|power| 1 << power).collect(),
        }
    }
}

fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes::All);
    }
    size(text).map(Sizes::One).ok_or_else(|| {
        "write a number of bytes above 0, with an optional K, M or G, as in 64K; or `all`".into()
    })
}

fn chunk(text: &str) -> Result<u64, String> {
    let bytes = size(text).filter(|bytes| bytes.is_multiple_of(64));
    bytes.ok_or_else(|| "write a multiple of 64 bytes, with an optional K, M or G, as in 256K".into())
}

fn listening(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::UNSPECIFIED, port).into());
    }
    let address = text.parse().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, PORT)));
    address.map_err(|_| {
        "write an address of this host and a port, as in 10.0.0.1:18515 or [fd00::1]:18515".into()
    })
}

fn meeting(text: &str) -> Result<String, String> {
    let with_port = if text.parse::<std::net::Ipv6Addr>().is_ok() {
        format!("[{text}]:{PORT}")
    } else if text.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']')) {
        text.to_owned()
    } else {
        format!("{text}:{PORT}")
    };
    match with_port.parse::<MeetingPoint>() {
        Ok(point) => Ok(point.to_string()),
        Err(reason) => Err(format!("{reason}: write a name or address, and a port, as in node1:18515")),
    }
}

fn at_least_one(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "write a whole number of at least 1".into())
}

fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'k', 'm', 'g']);
    let shift = match text.get(digits.len()..)?.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    let count: u64 = digits.parse().ok()?;
    count.checked_mul(1 << shift).filter(|bytes| (1..=1 << 46).contains(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_suffixes_and_rubbish_is_refused() {
        assert_eq!(
            ["1", "64K", "2m", "1G"].map(size),
            [Some(1), Some(64 << 10), Some(2 << 20), Some(1 << 30)]
        );
        for text in ["", "K", "0", "-1", "1KK", "1T", "1.5M", "99999999999G"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(Sizes::All.list().len(), 24);
    }

    #[test]
    fn hosts_and_addresses_have_a_port_of_their_own() {
        for (text, wanted) in [
            ("node1", "node1:18515"),
            ("node1:7", "node1:7"),
            ("10.0.0.1", "10.0.0.1:18515"),
            ("fd00::1", "[fd00::1]:18515"),
            ("[fd00::1]:7", "[fd00::1]:7"),
        ] {
            assert_eq!(meeting(text).as_deref(), Ok(wanted));
        }
        assert!(meeting("node1:x").is_err() && meeting("a b").is_err() && meeting("").is_err());
        assert_eq!(listening("7").unwrap().to_string(), "0.0.0.0:7");
        assert_eq!(listening("::1").unwrap().to_string(), "[::1]:18515");
        assert!(listening("node1:7").is_err());
    }
}
