//! A whole round of a job: publish, fold, pull, with the server and each worker in a process of its own.

use super::carrier::Carrier;
use super::error::BenchError;
use super::messages::{Folded, Ready, Task, TaskRole};
use super::peer::Peer;
use super::pin::cores;
use super::report::{Measured, duration};
use super::settings::Settings;
use super::timing::{Latency, Timing};

/// Without a word about it, rounds move so many bytes in all, within limits.
const DEFAULT_BYTES: u64 = 8 << 30;
/// Rounds before the first that is timed: they touch all frames and slots for the first time.
const DEFAULT_WARMUP: u64 = 5;

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
    let task = Task::of(settings, bytes, server_core, role);
    let (Ready { address, .. }, mut server) = Peer::start(&task, None)?.ready()?;
    let mut peers = Vec::new();
    for worker in 0..usize::from(workers) {
        let core = if cores.is_empty() { None } else { Some(cores[worker % cores.len()]) };
        let role = TaskRole::Worker { borrow, warmup, rounds };
        let task = Task { address: Some(address.clone()), ..Task::of(settings, bytes, core, role) };
        peers.push(Peer::start(&task, None)?);
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
