//! A whole round of a job: publish, fold, pull, with the server and each worker in a process of its own.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use slackline::{
    ElementType, ReadMode, Server, ServerOptions, Table, Worker, WorkerOptions, scheme::SchemeConfig,
};

use super::BenchError;
use super::arguments::Settings;
use super::carrier::Carrier;
use super::local::{Arrays, Kind};
use super::measure::{Latency, Progress, Timing};
use super::nodes::{INITIAL, LEASE_OF_CROWD, RATE, TIMEOUT};
use super::peer::{Client, Task, TaskRole};
use super::pin::cores;
use super::report::{Measured, duration};
use super::usage::Watch;
use crate::optimizer_name::OptimizerName;

/// Without a word about it, rounds move so many bytes in all, within limits.
const DEFAULT_BYTES: u64 = 8 << 30;
/// Rounds before the first that is timed: they touch all frames and slots for the first time.
const DEFAULT_WARMUP: u64 = 5;

/// The report of a server at the end.
#[derive(Debug, Serialize, Deserialize)]
struct Folded {
    versions: u64,
    /// The fold of one round, alone.
    alone: Option<Latency>,
}

pub(super) fn measure<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let Settings { workers, chunk, threads, borrow, .. } = *settings;
    let rounds = settings
        .iterations
        .unwrap_or_else(|| (DEFAULT_BYTES / (bytes * u64::from(workers)).max(1)).clamp(20, 20_000));
    let warmup = settings.warmup.unwrap_or(DEFAULT_WARMUP);
    let cores = if settings.pin { cores() } else { &[] };
    // Threads that fold would all sit on the server's one core.
    let server_core = if threads == 1 { cores.last().copied() } else { None };

    let folds = rounds.clamp(5, 20);
    let role = TaskRole::Server { asynchronous: false, workers, chunk, threads, folds, is_crowd: false };
    let task = settings.task(bytes, server_core, role);
    let (address, mut server) = task.start(None)?.ready()?;
    let mut peers = Vec::new();
    for worker in 0..usize::from(workers) {
        let core = if cores.is_empty() { None } else { Some(cores[worker % cores.len()]) };
        let role = TaskRole::Worker { borrow, warmup, rounds };
        let task = Task { address: Some(address.clone()), ..settings.task(bytes, core, role) };
        peers.push(task.start(None)?);
    }
    let mut all = Vec::new();
    for mut peer in peers {
        all.push(Latency::of(peer.hear::<Vec<f64>>()?));
        peer.end()?;
    }
    let folded: Folded = server.hear()?;
    server.end()?;
    if folded.versions != warmup + rounds {
        let what = format!("the server made {} versions of {} rounds", folded.versions, warmup + rounds);
        return Err(BenchError::Peer(what));
    }

    let slowest = all.iter().max_by(|a, b| a.p50.total_cmp(&b.p50)).copied();
    let latency = slowest.ok_or_else(|| BenchError::Peer("there was no worker".into()))?;
    let timing = Timing { iterations: rounds, batch: 1, latency, cpu_ns: None };
    let moved = if borrow { bytes * (u64::from(workers) + 2) } else { 2 * bytes };
    let mut measured = Measured::over(C::NAME, settings.op.name(), bytes, moved, timing)
        .with("workers", workers)
        .with("threads", threads)
        .with("chunk", chunk)
        .with("borrow", borrow)
        .with("pinned", settings.pin)
        .with("worker_latency_ns", serde_json::to_value(&all).unwrap_or_default());
    if let Some(alone) = folded.alone {
        let ratio = latency.p50 / alone.p50;
        let note = format!("apply alone {} (p50): a round takes {ratio:.2} of it", duration(alone.p50));
        measured = measured
            .with("apply_ns", serde_json::to_value(alone).unwrap_or_default())
            .with("round_over_apply", ratio)
            .note(note);
    }
    Ok(measured.note(match borrow {
        true => "slots borrowed, parameters read in place; bandwidth counts what the fold moves".into(),
        false => "the slowest worker's rounds; bandwidth counts its publish and its pull".into(),
    }))
}

pub(super) fn serve_server<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    let TaskRole::Server { asynchronous, workers, chunk, threads, folds, is_crowd } = task.role else {
        return Err(BenchError::Peer("not a server's task".into()));
    };
    let elements = task.bytes / 4;
    let table = Table::flat(elements, ElementType::F32)?;
    let scheme = if asynchronous { SchemeConfig::Asp } else { SchemeConfig::Bsp };
    let mut options = ServerOptions::new(scheme, usize::from(workers), RATE);
    options.threads = usize::from(threads);
    options.memory.chunk_bytes = chunk;
    options.memory.peers = options.memory.peers.max(workers);
    if is_crowd {
        options.memory.lease = LEASE_OF_CROWD;
    }
    let (carrier, anywhere) = (C::open(&client.means)?, C::anywhere(client.host));
    let mut server = Server::new(carrier, &anywhere, table, &vec![INITIAL; elements as usize], options)?;
    let mut alone = Alone::new(folds, usize::from(workers), usize::from(threads), task.bytes as usize)?;
    alone.measure(folds.div_ceil(2))?;
    let watch = if is_crowd { Some(Watch::begin(workers.into())?) } else { None };
    client.say(&server.address())?;
    let over = |server: &Server<C>| {
        let status = server.status();
        if let Some(watch) = &watch {
            watch.look(status.joined);
        }
        status.left >= u64::from(workers) || client.is_done()
    };
    while !server.drive(over, TIMEOUT)? {}
    if let Some(watch) = watch {
        let status = server.status();
        return client.say(&watch.end(status.joined, status.folded)?);
    }
    let versions = server.status().version.get();
    drop(server);
    if client.is_done() || folds == 0 {
        return Ok(());
    }
    alone.measure(folds / 2)?;
    client.say(&Folded { versions, alone: alone.latency() })
}

/// The fold of one round and nothing else, over memory of the same kind: half of its samples from before the rounds,
/// half from after, since machines change their mind in between.
struct Alone {
    arrays: Option<Arrays>,
    threads: usize,
    samples: Vec<f64>,
}

impl Alone {
    fn new(folds: u64, k: usize, threads: usize, bytes: usize) -> Result<Alone, BenchError> {
        let kind = Kind::Fold { optimizer: OptimizerName::Sgd.optimizer(), k, shared: true };
        let arrays = if folds == 0 { None } else { Some(Arrays::new(kind, bytes)?) };
        Ok(Alone { arrays, threads, samples: Vec::new() })
    }

    fn measure(&mut self, folds: u64) -> Result<(), BenchError> {
        let Some(arrays) = &self.arrays else { return Ok(()) };
        // The first two are for warmth.
        for fold in 0..folds + 2 {
            let took = arrays.run(self.threads, &[])?;
            if fold >= 2 {
                self.samples.push(took.as_nanos() as f64);
            }
        }
        Ok(())
    }

    fn latency(self) -> Option<Latency> {
        (!self.samples.is_empty()).then(|| Latency::of(self.samples))
    }
}

pub(super) fn serve_worker<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    let TaskRole::Worker { borrow, warmup, rounds } = task.role else {
        return Err(BenchError::Peer("not a worker's task".into()));
    };
    let read = if borrow { ReadMode::InPlace } else { ReadMode::Copy };
    let options = WorkerOptions { read, ..WorkerOptions::new(SchemeConfig::Bsp) };
    let (carrier, servers) = (C::open(&client.means)?, std::slice::from_ref(task.address()?));
    let mut worker = Worker::connect(carrier, servers, options, TIMEOUT)?;
    let mut step = worker.step(TIMEOUT)?;
    if !borrow {
        step.gradient()?.fill(1e-3);
    }
    step.suspend();
    let mut progress = Progress::new("round".into());
    let mut samples = Vec::with_capacity(rounds as usize);
    for round in 0..warmup + rounds {
        let took = one_round(&mut worker, borrow)?;
        if round >= warmup {
            samples.push(took.as_nanos() as f64);
        }
        progress.tick("round", round + 1, warmup + rounds);
    }
    drop(worker);
    client.say(&samples)
}

fn one_round<C: Carrier>(worker: &mut Worker<C>, borrow: bool) -> Result<Duration, BenchError> {
    let begun = Instant::now();
    let mut step = worker.resume()?;
    if borrow {
        drop(step.borrow_slots(TIMEOUT)?);
        step.publish_slots(None, TIMEOUT)?;
    } else {
        step.publish(None, TIMEOUT)?;
    }
    worker.step(TIMEOUT)?.suspend();
    Ok(begun.elapsed())
}
