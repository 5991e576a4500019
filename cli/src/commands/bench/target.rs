//! The target of requests: others write and read its memory, and it judges what arrived.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use slackline::internals::mem::Access;
use slackline::internals::transport::{Endpoint, Incoming, Listener};
use slackline::now;

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;
use super::messages::{Flow, Flowing, Found, Ready, Streamed, Task, TaskRole};
use super::names::Op;
use super::payload::Payload;
use super::requester::{Requester, stream};
use super::side::{Side, SideMemory};
use super::usage::Watch;

/// Time between two looks of a target that has nothing to answer.
const STILL: Duration = Duration::from_millis(2);

/// Runs the target. It answers every turn of a ping-pong if there is one, streams to the client if it is to, and keeps
/// still until the client is done or gone. Then it says what it streamed and found, and what its peers cost it, if that
/// is wanted.
pub(super) fn serve<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    let TaskRole::Memory { pongs, checked, connections, opposite, is_crowd } = task.role else {
        return Err(BenchError::Peer("not a task of memory".into()));
    };
    let (carrier, bytes) = (C::open(&client.means.of_owner())?, task.bytes);
    let gpu = client.means.memory.gpu()?;
    if gpu.is_some() && carrier.gpu().is_none() {
        return Err(BenchError::usage(
            "no RDMA device reaches memory of the GPU of the side that is written and read",
            "see `slackline doctor`; or have its memory on the host, or use --transport tcp",
        ));
    }
    if gpu.is_some() && is_crowd {
        return Err(BenchError::usage(
            "--peers does not go with memory of a GPU of the side that is written and read",
            "have its memory on the host",
        ));
    }
    let mut listener = carrier.listen(&C::anywhere(client.host))?;
    let mut mine = SideMemory::new(&carrier, bytes, gpu.as_ref())?;
    if checked == Some(Op::Read) {
        mine.data.fill()?;
    }
    let watch = if is_crowd { Some(Watch::begin(connections.into())?) } else { None };
    client.say(&Ready { address: listener.address(), memory: client.means.memory.memory })?;
    let mut sides = Vec::new();
    while sides.len() < usize::from(connections) {
        let Some(incoming) = listener.poll(now()) else {
            if client.is_done() {
                return Ok(());
            }
            std::thread::yield_now();
            continue;
        };
        let grants = incoming.received().grants.clone();
        let endpoint = mine.accept(incoming)?;
        let local = Payload::new(&carrier, bytes, Access::LOCAL, None)?;
        sides.push(Side::<C>::new(endpoint, &mine, &grants, local)?);
    }
    if let Some(watch) = &watch {
        watch.look(connections.into());
    }
    // The client plays where it has heard that the memory is the host's.
    if let (true, Some(first)) = (pongs && gpu.is_none(), sides.first_mut()) {
        first.answer(client)?;
    }
    if let Some((op, flow)) = opposite {
        stream_back(sides, op, flow, client)?;
    } else {
        // Spinning here would only keep the thread that moves the bytes off the core.
        while !client.is_done() && sides.iter_mut().filter_map(|side| side.endpoint.check().ok()).count() > 0
        {
            std::thread::sleep(STILL);
        }
    }
    if checked.is_some() {
        let wrong = if checked == Some(Op::Write) { mine.data.first_wrong()? } else { None };
        let word = mine.data.host().filter(|data| data.len() >= 8);
        let word = word.map_or(0, |data| data.as_volatile().load(0, Ordering::Acquire));
        client.say(&Found { wrong, word })?;
    }
    match watch {
        Some(watch) => client.say(&watch.end(connections.into(), 0)?),
        None => Ok(()),
    }
}

/// Streams to the client from its sign until it wants no more. The first requests are its warm-up: behind them it tells
/// the client, which measures meanwhile, however short that is. Requests that are counted there are in any case: a
/// client that has measured before this process had its next turn on a processor waits for them.
fn stream_back<C: Carrier>(
    sides: Vec<Side<C>>,
    op: Op,
    flow: Flow,
    client: &Client,
) -> Result<(), BenchError> {
    let mut all: Vec<_> = sides.into_iter().map(|side| Requester::new(side, op, flow)).collect();
    client.wait_for_go()?;
    let several = 4 * flow.window * all.len() as u64;
    stream(&mut all, several)?;
    client.say(&Flowing)?;
    let (mut count, begun) = (0, Instant::now());
    while count == 0 || !client.is_done() {
        stream(&mut all, several)?;
        count += several;
    }
    client.say(&Streamed { count, nanos: begun.elapsed().as_nanos() as f64 })
}
