//! Single requests: write, read, fetch-add.

use std::time::Duration;

use slackline::internals::mem::Streaming;
use slackline::internals::transport::{AtomicDomain, Endpoint, Operation, PostError, WorkRequest};

use super::arguments::{Op, Settings};
use super::carrier::Carrier;
use super::measure::{Timing, calls, time, time_batches, time_whole};
use super::peer::TaskRole;
use super::pin::{pair, pin_to};
use super::pong::{Found, OVER, Side};
use super::report::{Measured, duration, rate};
use super::{BenchError, pattern};

/// Bytes that may be under way at once over TCP, by default.
const UNDER_WAY: u64 = 128 << 20;

/// Looks for a completion before the core is offered to others, where many requests are under way.
const PATIENT_POLLS: u32 = 64;

pub(super) fn measure<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    let (op, pongs) = (settings.op, C::PONGS && settings.op == Op::Write);
    let role = TaskRole::Memory { pongs, checked: settings.validate.then_some(op) };
    let (address, mut target) = settings.task(bytes, core, role).start(settings.remote.as_ref())?.ready()?;
    let carrier = C::open(&settings.means)?;
    if op == Op::FetchAdd && carrier.capabilities().atomics == AtomicDomain::None {
        return Err(BenchError::NoAtomics);
    }
    let mut side = Side::<C>::connect(&carrier, &address, bytes)?;
    let what = format!("of {bytes} bytes");
    // It leaves its count in the memory.
    let pong = if pongs { Some(ping_pong(settings, &what, &mut side)?) } else { None };
    if op == Op::Write {
        // Some processors write zeros twice as fast as other bytes.
        pattern::fill(side.local.as_volatile());
    }

    let window = settings.means.queue_depth.map_or_else(|| default_window::<C>(bytes), u64::from);
    let mut requester = Requester::new(side, op, window);
    let posted = time(settings, &what, |count| calls(count, || requester.post_and_wait()))?;
    let mut measured = Measured::over(C::NAME, op.name(), bytes, bytes, pong.unwrap_or(posted));
    measured.bandwidth_bytes_per_s = rate(bytes, posted.latency.p50);
    if C::WINDOW > 1 {
        let what = format!("{what}, many at once");
        let nanos = if C::SIGNAL_EVERY > 1 {
            time_whole(settings, |count| requester.stream(count))?
        } else {
            time_batches(settings, &what, 4 * window, |count| requester.stream(count))?.latency.p50
        };
        measured.bandwidth_bytes_per_s = rate(bytes, nanos);
        measured = measured
            .with("queue_depth", window)
            .note(format!("bandwidth is that of {window} under way at once"));
    }
    measured = match pong {
        Some(_) => measured
            .with("post_poll_ns", serde_json::to_value(posted.latency).unwrap_or_default())
            .note(format!(
                "latency is half a ping-pong; post and poll of one write {} (p50)",
                duration(posted.latency.p50)
            )),
        None if C::WINDOW > 1 => measured.note("latency is from post to completion".into()),
        None => measured,
    };
    let Requester { side, posted, .. } = requester;
    if settings.validate && op == Op::Read {
        pattern::verdict(pattern::first_wrong(side.local.as_volatile()), bytes, "in what was read")?;
    }
    drop(side);
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
    Ok(carrier.describe(&settings.means, settings.validated(measured)))
}

fn default_window<C: Carrier>(bytes: u64) -> u64 {
    // TCP buffers what is under way; devices take it where it lies.
    if C::PONGS { C::WINDOW } else { C::WINDOW.min(UNDER_WAY / bytes).max(1) }
}

/// The side that posts one kind of request again and again.
struct Requester<C: Carrier> {
    side: Side<C>,
    /// So many at a time when many are under way; the last one is signalled.
    chain: Vec<WorkRequest>,
    window: u64,
    /// Requests so far.
    posted: u64,
}

impl<C: Carrier> Requester<C> {
    fn new(side: Side<C>, op: Op, window: u64) -> Requester<C> {
        let (local, remote, streaming) = (side.local.clone(), side.remote, Streaming::ByLength);
        let operation = match op {
            Op::Read => Operation::Read { local, remote, streaming },
            Op::FetchAdd => Operation::FetchAdd { local, remote, add: 1 },
            _ => Operation::Write { local, remote, streaming },
        };
        let length = C::SIGNAL_EVERY.min(window / 4).max(1);
        let mut chain: Vec<WorkRequest> =
            (1..length).map(|_| WorkRequest::unsignalled(0, operation.clone())).collect();
        chain.push(WorkRequest::signalled(1, operation));
        Requester { side, chain, window, posted: 0 }
    }

    #[inline]
    fn post_and_wait(&mut self) -> Result<(), BenchError> {
        self.side.endpoint.post(&self.chain[self.chain.len() - 1..])?;
        self.posted += 1;
        self.wait()
    }

    #[inline]
    fn wait(&mut self) -> Result<(), BenchError> {
        loop {
            // Without a pause between two looks, as perftest does: an emulated processor leaves its loop for one.
            if let Some(completion) = self.side.endpoint.poll() {
                return Ok(completion.result?);
            }
        }
    }

    /// Waits with the queue full, which need not be seen at once: a software device may want this core for its work.
    fn wait_long(&mut self) -> Result<(), BenchError> {
        loop {
            for _ in 0..PATIENT_POLLS {
                if let Some(completion) = self.side.endpoint.poll() {
                    return Ok(completion.result?);
                }
            }
            std::thread::yield_now();
        }
    }

    /// So many requests, as many under way at once as the window has room for.
    fn stream(&mut self, count: u64) -> Result<Duration, BenchError> {
        let length = self.chain.len() as u64;
        let (mut posted, mut done) = (0, 0);
        let took = calls(1, || {
            while done < count {
                let next = length.min(count - posted);
                if next > 0 && posted - done + next <= self.window {
                    match self.side.endpoint.post(&self.chain[(length - next) as usize..]) {
                        Ok(()) => {
                            posted += next;
                            continue;
                        }
                        Err(PostError::QueueFull { .. }) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                self.wait_long()?;
                // Of each chain the last one is heard of; only the last chain can be shorter.
                done = count.min(done + length);
            }
            Ok(())
        });
        self.posted += posted;
        took
    }
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
