//! Many peers of one server or publisher (`bench --peers`), each with a connection of its own: the cost of each where
//! it joins, how fast they join and work, and what is left of that if some are killed.

use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::carrier::Carrier;
use super::error::BenchError;
use super::histogram::TimeHistogram;
use super::messages::{Course, Half, LoadMessage, LoadTask, Ready, Task, TaskRole};
use super::names::Op;
use super::peer::Peer;
use super::remote::Remote;
use super::report::{Measured, duration};
use super::settings::{Load, Settings};
use super::timing::{Latency, Timing};
use super::usage::Served;

/// Without a word about it, operations are timed for so long.
const DEFAULT_LENGTH: Duration = Duration::from_secs(5);
/// Operations of each peer before the first that is timed: memory is touched by it.
const DEFAULT_WARMUP: u64 = 1;

/// The number of peers of each process.
fn shares(load: Load) -> impl Iterator<Item = u16> {
    let (each, more) = (load.peers / load.processes, load.peers % load.processes);
    (0..load.processes).map(move |process| each + u16::from(process < more))
}

/// The processes that are killed, by chance.
fn victims(load: Load) -> Vec<u16> {
    let chance = RandomState::new();
    let mut all: Vec<u16> = (0..load.processes).collect();
    all.sort_by_key(|process| chance.hash_one(process));
    all.truncate(load.kill.into());
    all
}

/// One of the processes with peers.
struct LoadProcess {
    side: Peer,
    peers: u16,
    is_victim: bool,
}

/// The findings of all processes.
#[derive(Default)]
struct Findings {
    joining: TimeHistogram,
    /// Time from the sign to join until all had.
    joined_within: Duration,
    /// The time of each operation in each half of the course, and operations a second of all processes.
    halves: [TimeHistogram; 2],
    rates: [f64; 2],
    /// Operations a second in all of it.
    rate: f64,
    cpu_ns: u64,
    killed: u64,
}

pub(super) fn measure<C: Carrier>(
    settings: &Settings,
    load: &Load,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
) -> Result<Measured, BenchError> {
    let (chunk, threads) = (settings.chunk, settings.threads);
    let role = match settings.op {
        Op::Round => TaskRole::Server {
            asynchronous: false,
            workers: load.peers,
            chunk,
            threads,
            folds: 0,
            is_crowd: true,
        },
        Op::Pull => TaskRole::Publisher { chunk, crowd: Some(load.peers) },
        _ => TaskRole::Memory {
            pongs: false,
            checked: None,
            connections: load.peers,
            opposite: None,
            is_crowd: true,
        },
    };
    let (Ready { address, .. }, mut server) =
        Peer::start(&Task::of(settings, bytes, None, role), remote)?.ready()?;
    let victims = victims(*load);
    let mut processes = Vec::new();
    for (process, peers) in (0..).zip(shares(*load)) {
        let task = LoadTask {
            peers,
            op: settings.op,
            warmup: settings.warmup.unwrap_or(DEFAULT_WARMUP),
            course: course(settings),
            is_victim: victims.contains(&process),
            validate: settings.validate,
        };
        let task =
            Task { address: Some(address.clone()), ..Task::of(settings, bytes, None, TaskRole::Load(task)) };
        let process =
            LoadProcess { side: Peer::start(&task, None)?, peers, is_victim: victims.contains(&process) };
        processes.push(process);
    }
    let findings = conduct(processes)?;
    server.stop()?;
    let served: Served = server.hear()?;
    server.end()?;
    check(settings, load, &served, &findings)?;
    let carrier = C::open(&settings.means)?;
    let measured = report::<C>(settings, load, bytes, &served, &findings)?;
    Ok(carrier.describe(&settings.means, measured.validated(settings.validate)))
}

fn course(settings: &Settings) -> Course {
    settings
        .iterations
        .map_or_else(|| Course::Lasting(settings.duration.unwrap_or(DEFAULT_LENGTH)), Course::Turns)
}

/// Leads all processes through their course; kills those that are to be killed in the middle of it.
fn conduct(mut processes: Vec<LoadProcess>) -> Result<Findings, BenchError> {
    let mut findings = Findings::default();
    for LoadProcess { side, .. } in &mut processes {
        let LoadMessage::Ready = side.hear()? else { return Err(out_of_turn()) };
    }
    let begun = Instant::now();
    for LoadProcess { side, .. } in &mut processes {
        side.go()?;
    }
    for LoadProcess { side, .. } in &mut processes {
        let LoadMessage::Joined(took) = side.hear()? else { return Err(out_of_turn()) };
        findings.joining.merge(&took);
    }
    findings.joined_within = begun.elapsed();
    for LoadProcess { side, .. } in &mut processes {
        side.go()?;
    }
    for LoadProcess { side, .. } in &mut processes {
        let LoadMessage::Half = side.hear()? else { return Err(out_of_turn()) };
    }
    let (victims, others): (Vec<_>, Vec<_>) = processes.into_iter().partition(|process| process.is_victim);
    for LoadProcess { side, peers, .. } in victims {
        side.kill()?;
        findings.killed += u64::from(peers);
    }
    for LoadProcess { mut side, .. } in others {
        let LoadMessage::Over { halves, cpu_ns } = side.hear()? else { return Err(out_of_turn()) };
        findings.add(&halves, cpu_ns);
        side.end()?;
    }
    Ok(findings)
}

fn out_of_turn() -> BenchError {
    BenchError::Peer("it said what was not due".into())
}

impl Findings {
    fn add(&mut self, halves: &[Half; 2], cpu_ns: u64) {
        self.cpu_ns += cpu_ns;
        for (index, half) in halves.iter().enumerate() {
            self.halves[index].merge(&half.operations);
            self.rates[index] += rate(half.operations.count(), half.seconds);
        }
        let count = halves.iter().map(|half| half.operations.count()).sum();
        self.rate += rate(count, halves.iter().map(|half| half.seconds).sum());
    }

    fn all(&self) -> TimeHistogram {
        let mut all = self.halves[0].clone();
        all.merge(&self.halves[1]);
        all
    }
}

/// Operations a second; 0 where there were none.
fn rate(count: u64, seconds: f64) -> f64 {
    if count == 0 { 0.0 } else { count as f64 / seconds.max(1e-9) }
}

/// Whether all peers were there, and each gradient was folded in.
fn check(settings: &Settings, load: &Load, served: &Served, findings: &Findings) -> Result<(), BenchError> {
    if served.joined != u64::from(load.peers) {
        return Err(BenchError::Peer(format!("{} of {} peers have joined", served.joined, load.peers)));
    }
    let warmup = settings.warmup.unwrap_or(DEFAULT_WARMUP) * u64::from(load.peers);
    let published = warmup + findings.all().count();
    // Those that were killed have published, too.
    let is_well = match load.kill {
        0 => served.folded == published,
        _ => served.folded >= published,
    };
    if settings.op == Op::Round && !is_well {
        let what = format!("the server folded {} gradients in, of {published} published", served.folded);
        return Err(BenchError::Invalid(what));
    }
    Ok(())
}

fn report<C: Carrier>(
    settings: &Settings,
    load: &Load,
    bytes: u64,
    served: &Served,
    findings: &Findings,
) -> Result<Measured, BenchError> {
    let all = findings.all();
    let latency = all.latency().ok_or_else(|| BenchError::Peer("there was no operation".into()))?;
    let cpu = findings.cpu_ns as f64 / all.count() as f64;
    let timing = Timing { iterations: all.count(), batch: 1, latency, cpu_ns: Some(cpu) };
    // Those whose operations are counted.
    let others = u64::from(load.peers).saturating_sub(findings.killed);
    let (unit, together, moved, turns) = match settings.op {
        // A round is one of all workers.
        Op::Round => ("rounds", others as f64, 2 * bytes, "those of one process publish by turns"),
        Op::Pull => ("pulls", 1.0, bytes, "those of one process pull by turns"),
        _ => ("requests", 1.0, bytes, "each has one request under way"),
    };
    let each = |now: u64, before: u64| now.saturating_sub(before) / u64::from(load.peers);
    let resident = each(served.all.resident, served.before.resident);
    let most = each(served.most_resident, served.before.resident);
    let pinned = each(served.all.pinned, served.before.pinned);
    let joins = rate(load.peers.into(), findings.joined_within.as_secs_f64());
    let joining = findings.joining.latency();
    let server_cpu = served.cpu_ns as f64 / all.count() as f64;
    let mut measured = Measured::over(C::NAME, settings.op.name(), bytes, moved, timing)
        .with("peers", load.peers)
        .with("processes", load.processes)
        .with("joins_per_s", joins)
        .with("joining_ns", serde_json::to_value(joining).unwrap_or_default())
        .with("operations_per_s", findings.rate)
        .with("resident_bytes_per_peer", resident)
        .with("most_resident_bytes_per_peer", most)
        .with("pinned_bytes_per_peer", pinned)
        .with("server_cpu_ns_per_operation", server_cpu)
        .note(format!("{} peers in {} processes; {turns}", load.peers, load.processes))
        .note(format!(
            "joined {joins:.0} a second, each within {} (p50) to {} (longest)",
            duration(joining.map_or(0.0, |joining| joining.p50)),
            duration(joining.map_or(0.0, |joining| joining.max))
        ))
        .note(format!(
            "{:.1} {unit} a second; processor time of each peer's: {} here, {} where it is served",
            findings.rate / together,
            duration(cpu),
            duration(server_cpu)
        ))
        .note(format!(
            "memory there for each peer: {} once joined, {} at most; pinned {}",
            kibibytes(resident),
            kibibytes(most),
            kibibytes(pinned)
        ));
    measured.bandwidth_bytes_per_s = findings.rate * moved as f64;
    measured.messages_per_s =
        matches!(settings.op, Op::Write | Op::Read | Op::FetchAdd).then_some(findings.rate);
    if settings.op == Op::Round {
        measured = measured.with("rounds_per_s", findings.rate / together);
    }
    if load.kill == 0 {
        return Ok(measured);
    }
    let half = |index: usize| -> Value {
        json!({ "operations_per_s": findings.rates[index], "latency_ns": findings.halves[index].latency() })
    };
    let longest = findings.halves[1].latency().map_or(0.0, |latency: Latency| latency.max);
    let note = format!(
        "{} peers killed in the middle: the others did {:.1} {unit} a second before, {:.1} after; longest {}",
        findings.killed,
        findings.rates[0] / together,
        findings.rates[1] / together,
        duration(longest)
    );
    Ok(measured
        .with("killed_processes", load.kill)
        .with("killed_peers", findings.killed)
        .with("before", half(0))
        .with("after", half(1))
        .note(note))
}

fn kibibytes(bytes: u64) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_process_and_victims_are_drawn_among_them() {
        for (peers, processes, kill) in [(1000, 7, 3), (7, 7, 6), (5, 1, 0)] {
            let load = Load { peers, processes, kill };
            let shares: Vec<u16> = shares(load).collect();
            assert_eq!((shares.len(), shares.iter().sum()), (processes.into(), peers));
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1);
            let victims = victims(load);
            assert_eq!(victims.len(), usize::from(kill));
            assert!(victims.iter().all(|victim| *victim < processes));
        }
        let drawn: std::collections::BTreeSet<_> =
            (0..100).map(|_| victims(Load { peers: 100, processes: 100, kill: 1 })).collect();
        assert!(drawn.len() > 10, "they are drawn by chance");
    }
}
