//! Single requests: write, read, fetch-add.

use std::time::Duration;

use slackline::mem::Streaming;
use slackline::transport::{Endpoint, Operation, PostError, WorkRequest};

use super::BenchError;
use super::arguments::{Op, Settings};
use super::carrier::Carrier;
use super::measure::{Timing, calls, time, time_batches};
use super::peer::{Role, Task};
use super::pin::{pair, pin_to};
use super::pong::Side;
use super::report::{Measured, rate};

/// Bytes that may be under way at once, by default.
const UNDER_WAY: u64 = 128 << 20;

pub(super) fn measure<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    let task = Task { transport: settings.transport, address: None, core, bytes, role: Role::Memory };
    let (address, target) = task.start()?.ready()?;
    let mut side = Side::<C>::connect(&address, bytes)?;
    let what = format!("of {bytes} bytes");

    let (local, remote, streaming) = (side.local.clone(), side.remote, Streaming::ByLength);
    let operation = match settings.op {
        Op::Read => Operation::Read { local, remote, streaming },
        Op::FetchAdd => Operation::FetchAdd { local, remote, add: 1 },
        _ => Operation::Write { local, remote, streaming },
    };
    let request = [WorkRequest::signalled(1, operation)];
    if settings.op == Op::Write {
        // The target takes what lands in its memory for a turn: none so far.
        side.local.as_volatile().write(&vec![0; bytes as usize]);
    }
    let posted = time(settings, &what, |count| calls(count, || post_and_poll(&mut side, &request)))?;
    let name = settings.op.name();
    let measured = if C::WINDOW > 1 {
        let measured = Measured::over(C::NAME, name, bytes, bytes, posted);
        let window = settings.queue_depth.map_or(C::WINDOW.min(UNDER_WAY / bytes).max(1), u64::from);
        let streamed = time_batches(settings, &format!("{what}, many at once"), 4 * window, |count| {
            stream(&mut side, &request, count, window)
        })?;
        let mut measured = measured.with("queue_depth", window);
        measured.bandwidth_bytes_per_s = rate(bytes, streamed.latency.p50);
        measured.note(format!("latency is from post to completion; bandwidth of {window} under way at once"))
    } else if settings.op == Op::Write {
        let pong = ping_pong(settings, &what, &mut side)?;
        let mut measured = Measured::over(C::NAME, name, bytes, bytes, pong);
        measured.bandwidth_bytes_per_s = rate(bytes, posted.latency.p50);
        let post = super::report::duration(posted.latency.p50);
        measured
            .with("post_poll_ns", serde_json::to_value(posted.latency).unwrap_or_default())
            .note(format!("latency is half a ping-pong; post and poll of one write {post} (p50)"))
    } else {
        Measured::over(C::NAME, name, bytes, bytes, posted)
    };
    drop(side);
    target.end()?;
    Ok(measured)
}

#[inline]
fn post_and_poll<C: Carrier>(side: &mut Side<C>, request: &[WorkRequest]) -> Result<(), BenchError> {
    side.endpoint.post(request)?;
    wait(side)
}

#[inline]
fn wait<C: Carrier>(side: &mut Side<C>) -> Result<(), BenchError> {
    loop {
        if let Some(completion) = side.endpoint.poll() {
            return Ok(completion.result?);
        }
        std::hint::spin_loop();
    }
}

/// So many requests, `window` of them under way at once.
fn stream<C: Carrier>(
    side: &mut Side<C>,
    request: &[WorkRequest],
    count: u64,
    window: u64,
) -> Result<Duration, BenchError> {
    let (mut posted, mut done) = (0, 0);
    calls(1, || {
        while done < count {
            if posted < count && posted - done < window {
                match side.endpoint.post(request) {
                    Ok(()) => {
                        posted += 1;
                        continue;
                    }
                    Err(PostError::QueueFull { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            wait(side)?;
            done += 1;
        }
        Ok(())
    })
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
    Ok(Timing { latency: timing.latency.halved(), ..timing })
}
