//! One kind of request, posted again and again: one at a time, or as many under way at once as queues hold, over one
//! connection or several.

use std::time::Duration;

use slackline::internals::mem::{Access, Streaming};
use slackline::internals::transport::{Endpoint, Operation, PayloadSlice, PostError, WorkRequest};

use super::carrier::Carrier;
use super::error::BenchError;
use super::measure::calls;
use super::messages::Flow;
use super::names::Op;
use super::side::Side;

/// Looks for a completion before the core is offered to others, where many requests are under way.
const PATIENT_POLLS: u32 = 64;

/// The side of one connection that posts.
pub(super) struct Requester<C: Carrier> {
    pub(super) side: Side<C>,
    chain: Vec<WorkRequest>,
    window: u64,
    /// Requests so far.
    pub(super) posted: u64,
    /// Those of a stream: wanted, under way or done, and done.
    wanted: u64,
    sent: u64,
    done: u64,
}

impl<C: Carrier> Requester<C> {
    pub(super) fn new(side: Side<C>, op: Op, flow: Flow) -> Requester<C> {
        let (local, remote, streaming) = (side.local.slice(), side.remote, Streaming::ByLength);
        let operation = match (op, local) {
            (Op::FetchAdd, PayloadSlice::Host(local)) => Operation::FetchAdd { local, remote, add: 1 },
            (Op::Read, local) => local.read(remote, streaming),
            (_, local) => local.write(remote, streaming),
        };
        let mut chain: Vec<WorkRequest> =
            (1..flow.list).map(|_| WorkRequest::unsignalled(0, operation.clone())).collect();
        chain.push(WorkRequest::signalled(1, operation));
        Requester { side, chain, window: flow.window, posted: 0, wanted: 0, sent: 0, done: 0 }
    }

    #[inline]
    pub(super) fn post_and_wait(&mut self) -> Result<(), BenchError> {
        self.post()?;
        self.wait()
    }

    #[inline]
    pub(super) fn post(&mut self) -> Result<(), BenchError> {
        self.side.endpoint.post(&self.chain[self.chain.len() - 1..])?;
        self.posted += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn wait(&mut self) -> Result<(), BenchError> {
        loop {
            // Without a pause between two looks, as perftest does: an emulated processor leaves its loop for one.
            if let Some(completion) = self.side.endpoint.poll() {
                return Ok(completion.result?);
            }
        }
    }

    /// Has all that was written before proved to be there: what the other side's processor sees when a write is
    /// complete is the device's to say, and a READ behind it is answered once it is in memory.
    pub(super) fn prove(&mut self, carrier: &C) -> Result<(), BenchError> {
        let remote = self.side.remote;
        let into = carrier.allocate(8, Access::LOCAL)?;
        let first = remote.len.min(8);
        let (local, remote) = (into.slice(0, first as usize)?, remote.slice(0, first)?);
        let read = Operation::Read { local, remote, streaming: Streaming::ByLength };
        self.side.endpoint.post(&[WorkRequest::signalled(2, read)])?;
        self.wait()
    }

    /// Posts what there is room for, and looks for one completion. Whether there was anything to do.
    fn advance(&mut self) -> Result<bool, BenchError> {
        let length = self.chain.len() as u64;
        let mut has_moved = false;
        loop {
            let next = length.min(self.wanted - self.sent);
            if next == 0 || self.sent - self.done + next > self.window {
                break;
            }
            match self.side.endpoint.post(&self.chain[(length - next) as usize..]) {
                Ok(()) => {
                    self.sent += next;
                    self.posted += next;
                    has_moved = true;
                }
                Err(PostError::QueueFull { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(completion) = self.side.endpoint.poll() {
            completion.result?;
            // Of each list the last one is heard of; only the last list can be shorter.
            self.done = self.wanted.min(self.done + length);
            has_moved = true;
        }
        Ok(has_moved)
    }
}

/// So many requests, shared out among the connections, as many under way at once as their windows have room for.
pub(super) fn stream<C: Carrier>(all: &mut [Requester<C>], count: u64) -> Result<Duration, BenchError> {
    let connections = all.len() as u64;
    for (index, requester) in (0..).zip(all.iter_mut()) {
        requester.wanted = count / connections + u64::from(index < count % connections);
        (requester.sent, requester.done) = (0, 0);
    }
    calls(1, || {
        let mut in_vain = 0;
        loop {
            let mut has_moved = false;
            for requester in all.iter_mut().filter(|requester| requester.done < requester.wanted) {
                has_moved |= requester.advance()?;
            }
            if all.iter().all(|requester| requester.done == requester.wanted) {
                return Ok(());
            }
            in_vain = if has_moved { 0 } else { in_vain + 1 };
            // It need not be seen at once: a software device may want this core for its work.
            if in_vain == PATIENT_POLLS {
                in_vain = 0;
                std::thread::yield_now();
            }
        }
    })
}
