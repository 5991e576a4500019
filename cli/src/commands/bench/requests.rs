//! Single requests: write, read, fetch-add.

use std::rc::Rc;
use std::time::Duration;

use slackline::internals::job::coordinated::ComputeDevice;
use slackline::internals::transport::AtomicDomain;

use super::carrier::Carrier;
use super::error::BenchError;
use super::measure::{calls, time, time_batches, time_whole};
use super::memory::MemoryArgs;
use super::messages::{Flow, Flowing, Found, Ready, Streamed, Task, TaskRole};
use super::names::Op;
use super::pattern;
use super::peer::Peer;
use super::pin::{pair, pin_to};
use super::remote::Remote;
use super::report::{Measured, bandwidth, duration, rate};
use super::requester::{Requester, stream};
use super::settings::Settings;
use super::side::{OVER, Side};
use super::timing::Timing;

/// Bytes that may be under way at once over TCP, by default.
const UNDER_WAY: u64 = 128 << 20;

pub(super) fn measure<C: Carrier>(
    settings: &Settings,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
) -> Result<Measured, BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    let op = settings.op;
    let pongs = C::PONGS && op == Op::Write && settings.means.memory.memory == ComputeDevice::Host;
    let flow = flow::<C>(settings, bytes);
    let opposite = settings.bidirectional.then_some((op, flow));
    let checked = settings.validate.then_some(op);
    let role =
        TaskRole::Memory { pongs, checked, connections: settings.connections, opposite, is_crowd: false };
    let (ready, mut target) = Peer::start(&Task::of(settings, bytes, core, role), remote)?.ready()?;
    let Ready { address, memory: peer_memory } = ready;
    if op == Op::FetchAdd && peer_memory != ComputeDevice::Host {
        return Err(BenchError::usage(
            "--op fetch-add works on words of the host, and the other side's memory is on a GPU",
            "have its memory on the host",
        ));
    }
    let memory = MemoryArgs { peer_memory, ..settings.means.memory };
    // No processor looks at memory of a GPU for the next turn.
    let pongs = pongs && peer_memory == ComputeDevice::Host;
    let (carrier, gpu) = (C::open(&settings.means)?, memory.gpu()?);
    if op == Op::FetchAdd && carrier.capabilities().atomics == AtomicDomain::None {
        return Err(BenchError::NoAtomics);
    }
    let mut sides = Vec::new();
    for _ in 0..settings.connections {
        sides.push(Side::<C>::connect(&carrier, &address, bytes, gpu.as_ref())?);
    }
    let what = format!("of {bytes} bytes");
    // It leaves its count in the memory.
    let pong = if pongs { Some(ping_pong(settings, &what, &mut sides[0])?) } else { None };
    if op == Op::Write {
        // Some processors write zeros twice as fast as other bytes.
        sides.iter_mut().try_for_each(|side| side.local.fill())?;
    }

    let mut all: Vec<_> = sides.into_iter().map(|side| Requester::new(side, op, flow)).collect();
    let posted = time(settings, &what, |count| calls(count, || all[0].post_and_wait()))?;
    let mut measured = Measured::over(C::NAME, op.name(), bytes, bytes, pong.unwrap_or(posted));
    measured.bandwidth_bytes_per_s = rate(bytes, posted.latency.p50);
    measured.messages_per_s = Some(rate(1, posted.latency.p50));
    if C::WINDOW > 1 {
        measured = measure_flow(settings, bytes, flow, &mut all, (&carrier, &mut target), measured)?;
    }
    measured = match pong {
        Some(_) => measured
            .with("post_poll_ns", serde_json::to_value(posted.latency).unwrap_or_default())
            .note(format!(
                "latency is half a ping-pong; post and poll of one write {} (p50)",
                duration(posted.latency.p50)
            )),
        None if C::WINDOW > 1 || memory.names().is_some() => {
            measured.note("latency is from post to completion".into())
        }
        None => measured,
    };
    let posted: u64 = all.iter().map(|requester| requester.posted).sum();
    if settings.validate && op == Op::Read {
        for Requester { side, .. } in &mut all {
            pattern::verdict(side.local.first_wrong()?, bytes, "in what was read")?;
        }
    }
    drop(all);
    target.stop()?;
    if settings.validate {
        let found: Found = target.hear()?;
        pattern::verdict(found.wrong, bytes, "at the target")?;
        if op == Op::FetchAdd && found.word != posted {
            let what = format!("{posted} was added one by one, and {} is there", found.word);
            return Err(BenchError::Invalid(what));
        }
    }
    target.end()?;
    let measured = measured.validated(settings.validate).in_memory(memory.names());
    Ok(carrier.describe(&settings.means, measured))
}

/// Bandwidth: many requests under way at once, over all connections, and from the other side, too, if that is wanted.
fn measure_flow<C: Carrier>(
    settings: &Settings,
    bytes: u64,
    flow: Flow,
    all: &mut [Requester<C>],
    (carrier, target): (&C, &mut Peer),
    mut measured: Measured,
) -> Result<Measured, BenchError> {
    let connections = all.len() as u64;
    if settings.bidirectional {
        target.go()?;
        let Flowing = target.hear()?;
    }
    let timing = if C::SIGNAL_EVERY > 1 || settings.bidirectional {
        time_whole(settings, |count| stream(all, count))?
    } else {
        let what = format!("of {bytes} bytes, many at once");
        time_batches(settings, &what, 4 * flow.window * connections, |count| stream(all, count))?.whole()
    };
    if settings.validate && settings.op != Op::Read {
        // The target looks at its memory once it is told to stop, and a side that streams ends its connections.
        all.iter_mut().try_for_each(|requester| requester.prove(carrier))?;
    }
    measured.bandwidth_bytes_per_s = rate(bytes, timing.nanos);
    measured.messages_per_s = Some(rate(1, timing.nanos));
    measured.cpu_ns_per_operation = Some(timing.cpu_ns);
    let over =
        if connections > 1 { format!(", over each of {connections} connections") } else { String::new() };
    measured = measured
        .with("queue_depth", flow.window)
        .with("post_list", flow.list)
        .with("connections", connections)
        .note(format!("bandwidth is that of {} under way at once{over}", flow.window));
    if settings.bidirectional {
        target.stop()?;
        let Streamed { count, nanos } = target.hear()?;
        let (ours, theirs) = (measured.bandwidth_bytes_per_s, rate(count * bytes, nanos));
        measured.bandwidth_bytes_per_s = ours + theirs;
        measured.messages_per_s = measured.messages_per_s.map(|ours| ours + rate(count, nanos));
        measured = measured
            .with("bandwidth_there_bytes_per_s", ours)
            .with("bandwidth_back_bytes_per_s", theirs)
            .note(format!("both directions at once: {} there, {} back", bandwidth(ours), bandwidth(theirs)));
    }
    Ok(measured)
}

/// The flow that the options ask for.
fn flow<C: Carrier>(settings: &Settings, bytes: u64) -> Flow {
    let window = settings.means.queue_depth.map_or_else(|| default_window::<C>(bytes), u64::from);
    let list = settings.post_list.map_or(C::SIGNAL_EVERY.min(window / 4), u64::from);
    Flow { window, list: list.clamp(1, window) }
}

fn default_window<C: Carrier>(bytes: u64) -> u64 {
    // TCP buffers what is under way; devices take it where it lies.
    if C::PONGS { C::WINDOW } else { C::WINDOW.min(UNDER_WAY / bytes).max(1) }
}

fn ping_pong<C: Carrier>(settings: &Settings, what: &str, side: &mut Side<C>) -> Result<Timing, BenchError> {
    let mut turn = 0;
    let many = |count: u64| -> Result<Duration, BenchError> {
        calls(count, || {
            turn += 1;
            side.send(turn)?;
            side.wait(turn)
        })
    };
    let timing = time(settings, &format!("ping-pong {what}"), many)?;
    // From now on what lands there is no turn.
    side.send(OVER)?;
    side.wait(OVER)?;
    Ok(Timing { latency: timing.latency.halved(), ..timing })
}
