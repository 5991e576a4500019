//! The check that the options go together, and the settings that follow from them.

use std::net::SocketAddr;
use std::path::PathBuf;

use slackline::internals::kernel::MAX_GRADIENTS;
use slackline::{Secret, TransportKind};

use super::arguments::{BenchArgs, LoadArgs};
use super::error::BenchError;
use super::means::Means;
use super::names::Op;
use super::parse::Sizes;
use super::settings::{Load, Settings};
use crate::optimizer_name::OptimizerName;

/// Operations that `--threads` means something to; those that many peers can do at once; single requests; those of one
/// process alone; and those that can be measured with another host and that `--validate` can check.
const OF_THREADS: [Op; 7] = [Op::Apply, Op::Triad, Op::Round, Op::Write, Op::Read, Op::Pull, Op::Memcpy];
const OF_MANY: [Op; 5] = [Op::Round, Op::Pull, Op::Write, Op::Read, Op::FetchAdd];
const OF_REQUESTS: [Op; 3] = [Op::Write, Op::Read, Op::FetchAdd];
const OF_ONE: [Op; 3] = [Op::Memcpy, Op::Apply, Op::Triad];
const OF_TWO: [Op; 5] = [Op::Write, Op::Read, Op::FetchAdd, Op::Publish, Op::Pull];

/// Bytes of parameters where there are many peers, unless the user says how many.
const LOAD_BYTES: u64 = 64 << 10;

/// The request that the options make, once they are checked.
pub(super) enum Request {
    /// A request to measure, with the file for its JSON (or `-`) if any is wanted.
    Measure(Box<Settings>, Option<PathBuf>),
    /// A request to be the other side for another host.
    Listen { address: SocketAddr, transport: TransportKind, means: Means, keep: bool },
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
        let has_queues = self.transport == TransportKind::Verbs;
        let wrong = [
            (
                "--queue-depth",
                self.queue_depth.is_some() && !has_queues,
                "leave it out: each peer has one request under way",
            ),
            ("--post-list", self.post_list.is_some(), "leave it out: each peer has one request under way"),
            ("--qp", self.qp.is_some(), "leave it out: each peer has one connection"),
            ("--bidirectional", self.bidirectional, "leave it out"),
            ("--validate", self.validate && op != Op::Pull, "leave it out, or use --op pull"),
            ("--workers", self.workers.is_some(), "leave it out: --peers says how many there are"),
            ("--borrow", self.borrow, "leave it out"),
            ("--pin", self.pin == Some(true), "leave it out, or use taskset for all of them"),
            ("--threads", self.threads.is_some() && op != Op::Round, "leave it out, or use --op round"),
        ];
        if let Some((option, _, help)) = wrong.into_iter().find(|(_, given, _)| *given) {
            return Err(BenchError::usage(format!("{option} does not go with --peers here"), help));
        }
        match self.load.peers {
            Some(peers) if op == Op::Round && usize::from(peers) > MAX_GRADIENTS => {
                let what = format!(
                    "--peers {peers}: a round folds a gradient of each at once, at most {MAX_GRADIENTS} of them"
                );
                Err(BenchError::usage(what, "give fewer"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the options go together, and fills in the defaults.
    pub(super) fn check(self) -> Result<Request, BenchError> {
        self.device.check(self.transport)?;
        self.memory.check(self.op, self.load.peers.is_some(), self.bidirectional)?;
        for (option, given) in [("--listen", self.listen.is_some()), ("--peer", self.peer.is_some())] {
            if given && self.transport == TransportKind::Shm {
                let what = format!("{option}: shared memory does not leave its host");
                return Err(BenchError::usage(what, "use --transport verbs or tcp"));
            }
        }
        if self.encrypt && self.transport != TransportKind::Tcp {
            let (what, help) = match self.transport {
                TransportKind::Shm => (
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
            memory: self.memory,
            queue_depth: self.queue_depth,
            ..Means::default()
        };
        if let Some(address) = self.listen {
            return Ok(Request::Listen { address, transport: self.transport, means, keep: self.keep });
        }
        let op = self.op.ok_or_else(|| BenchError::usage("--op is missing", "say what to measure"))?;
        if self.transport != TransportKind::Shm && OF_ONE.contains(&op) {
            let what = format!("--transport {}: `{}` has no other side", self.transport, op.name());
            return Err(BenchError::usage(what, "leave it out"));
        }
        if self.transport != TransportKind::Shm && (op == Op::PinnedRead || self.borrow) {
            let help = "leave --borrow out, or use --transport shm";
            return Err(BenchError::usage("only shared memory is read in place", help));
        }
        let streams = [
            ("--queue-depth", self.queue_depth.is_some()),
            ("--post-list", self.post_list.is_some()),
            ("--qp", self.qp.is_some()),
            ("--bidirectional", self.bidirectional),
        ];
        if let (TransportKind::Shm, Some((option, _))) =
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
        // Over verbs the first of them is the room of each queue, too.
        let first = usize::from(self.transport == TransportKind::Verbs);
        for (option, given) in &streams[first..] {
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

impl LoadArgs {
    /// Checks that these options go together; none if there are not to be many peers.
    fn check(&self) -> Result<Option<Load>, BenchError> {
        let Some(peers) = self.peers else { return Ok(None) };
        let (processes, kill) = (self.processes.unwrap_or(1), self.kill.unwrap_or(0));
        if processes > peers {
            let what = format!("--processes {processes}: there are {peers} peers");
            return Err(BenchError::usage(what, "give at most as many processes as --peers"));
        }
        if kill >= processes {
            let what =
                format!("--kill {kill}: there are {processes} processes, and one at least is to go on");
            return Err(BenchError::usage(what, "give fewer, or more --processes"));
        }
        Ok(Some(Load { peers, processes, kill }))
    }
}
