//! Single requests: write, read, fetch-add.

use std::time::Duration;

use slackline::mem::Streaming;
use slackline::transport::{Address, Endpoint, Operation, WorkRequest};

use super::BenchError;
use super::arguments::{Op, Settings};
use super::measure::{Timing, calls, time};
use super::peer::{Role, Task};
use super::pin::{pair, pin_to};
use super::pong::Side;
use super::report::{Measured, rate};

pub(super) fn measure(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    let task = Task { address: Address::random().to_string(), core, bytes, role: Role::Memory };
    let target = task.start()?.ready()?;
    let mut side = Side::connect(&task)?;
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
    let measured = match settings.op {
        Op::Write => {
            let pong = ping_pong(settings, &what, &mut side)?;
            let mut measured = Measured::new(settings.op.name(), bytes, bytes, pong);
            measured.bandwidth_bytes_per_s = rate(bytes, posted.latency.p50);
            let post = super::report::duration(posted.latency.p50);
            measured
                .with("post_poll_ns", serde_json::to_value(posted.latency).unwrap_or_default())
                .note(format!("latency is half a ping-pong; post and poll of one write {post} (p50)"))
        }
        op => Measured::new(op.name(), bytes, bytes, posted),
    };
    drop(side);
    target.end()?;
    Ok(measured)
}

#[inline]
fn post_and_poll(side: &mut Side, request: &[WorkRequest]) -> Result<(), BenchError> {
    side.endpoint.post(request)?;
    loop {
        if let Some(completion) = side.endpoint.poll() {
            return Ok(completion.result?);
        }
        std::hint::spin_loop();
    }
}

fn ping_pong(settings: &Settings, what: &str, side: &mut Side) -> Result<Timing, BenchError> {
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
