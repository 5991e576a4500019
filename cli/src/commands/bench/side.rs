//! Two sides that write into each other's memory, by turns where both payloads are in host memory.
//!
//! Each side grants the data, whose bytes may arrive in any order, and a word that says which turn it is, which arrives
//! behind them. Up to 64 bytes the last word of the data does that itself: as much lies within a cache line, so that
//! devices write it at once, and shared memory is written word by word in order.
//!
//! A device that keeps no order is asked for a proof before each word of turns, as it is before every word that
//! announces, and for none before a write of data: bandwidth is that of the writes alone.

use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use slackline::gpu::Gpu;
use slackline::internals::mem::{Access, LocalSlice, MemoryRegion, RemoteSlice, Streaming};
use slackline::internals::transport::{
    Connecting, Endpoint, GpuGrant, Incoming, Inline, Offer, Operation, WorkRequest,
};
use slackline::{Address, now};

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;
use super::payload::{Payload, touch};

/// Turns of the waiting loop between two checks that the other side still lives.
const SPINS: u32 = 4096;
/// A target to which nothing was sent for so long sleeps between looks.
const IDLE: Duration = Duration::from_millis(50);
const CONNECT: Duration = Duration::from_secs(10);

/// The turn after the last: from now on the data is no turn any more.
pub(super) const OVER: u64 = u64::MAX;

/// Rights on data whose last word says which turn it is. Other data announces nothing, and is relaxed, too.
const FLAG: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// The memory of a side that the other one reaches.
pub(super) struct SideMemory {
    pub(super) data: Payload,
    /// The word of turns, where it is not the last word of the data.
    turns: MemoryRegion,
    bytes: usize,
}

/// One side.
pub(super) struct Side<C: Carrier> {
    pub(super) endpoint: C::Endpoint,
    /// The other's data.
    pub(super) remote: RemoteSlice,
    /// The memory that writes send from and reads fill.
    pub(super) local: Payload,
    /// The local word into which the other side writes its turns.
    turn: LocalSlice,
    remote_turn: RemoteSlice,
    batch: Vec<WorkRequest>,
}

fn is_own_flag(bytes: u64) -> bool {
    bytes <= 64 && bytes.is_multiple_of(8)
}

impl SideMemory {
    /// The data is on this GPU, if one is named.
    pub(super) fn new<C: Carrier>(
        carrier: &C,
        bytes: u64,
        gpu: Option<&Gpu>,
    ) -> Result<SideMemory, BenchError> {
        let access = if is_own_flag(bytes) { FLAG } else { FLAG | Access::RELAXED };
        let data = Payload::new(carrier, bytes, access, gpu)?;
        let turns = carrier.allocate(4096, Access::REMOTE_WRITE)?;
        touch(&turns.whole());
        Ok(SideMemory { data, turns, bytes: bytes as usize })
    }

    /// Takes a peer in, and grants it both.
    pub(super) fn accept<I: Incoming>(&self, mut incoming: I) -> Result<I::Endpoint, BenchError> {
        if let Payload::Gpu(on_gpu) = &self.data {
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::RELAXED;
            let grant = GpuGrant { at: 0, memory: on_gpu.memory().clone(), access };
            incoming.grant_gpu(vec![grant]).map_err(|reason| BenchError::Peer(reason.into()))?;
        }
        Ok(incoming.accept(self.offer())?)
    }

    /// What of it is in host memory.
    fn offer(&self) -> Offer {
        let data = self.data.host().map(|data| data.region().whole());
        Offer { message: Vec::new(), grants: data.into_iter().chain([self.turns.whole()]).collect() }
    }

    fn turn(&self) -> Result<LocalSlice, BenchError> {
        Ok(match self.data.host().filter(|_| is_own_flag(self.bytes as u64)) {
            Some(data) => data.slice(self.bytes - 8, 8)?,
            None => self.turns.slice(0, 8)?,
        })
    }
}

impl<C: Carrier> Side<C> {
    pub(super) fn new(
        endpoint: C::Endpoint,
        mine: &SideMemory,
        granted: &[RemoteSlice],
        local: Payload,
    ) -> Result<Side<C>, BenchError> {
        let bytes = mine.bytes as u64;
        let [data, turns] = granted else {
            return Err(BenchError::Peer(format!("it granted {} regions, and not two", granted.len())));
        };
        let remote = data.slice(0, bytes)?;
        let remote_turn = if is_own_flag(bytes) { data.slice(bytes - 8, 8)? } else { turns.slice(0, 8)? };
        let turn = mine.turn()?;
        let write = local.slice().write(remote, Streaming::ByLength);
        let word = Operation::WriteInline { data: Inline::word(0), remote: remote_turn };
        let batch = match bytes {
            8 => vec![WorkRequest::unsignalled(0, word)],
            _ if is_own_flag(bytes) => vec![WorkRequest::unsignalled(0, write)],
            _ => vec![WorkRequest::unsignalled(0, write), WorkRequest::unsignalled(0, word)],
        };
        Ok(Side { endpoint, remote, local, turn, remote_turn, batch })
    }

    /// Connects to the target at the other end. What is written and read here is on this GPU, if one is named; what
    /// the other side reaches never is.
    pub(super) fn connect(
        carrier: &C,
        address: &Address,
        bytes: u64,
        gpu: Option<&Gpu>,
    ) -> Result<Side<C>, BenchError> {
        let mine = SideMemory::new(carrier, bytes, None)?;
        let mut connecting = carrier.connect(address, mine.offer())?;
        let begun = Instant::now();
        loop {
            match connecting.poll(now()) {
                Poll::Ready(connected) => {
                    let (endpoint, received) = connected?;
                    let local = Payload::new(carrier, bytes, Access::LOCAL, gpu)?;
                    return Side::new(endpoint, &mine, &received.grants, local);
                }
                Poll::Pending if begun.elapsed() > CONNECT => {
                    return Err(BenchError::Peer(format!("it did not answer within {CONNECT:?}")));
                }
                Poll::Pending => std::thread::yield_now(),
            }
        }
    }

    /// Writes all of it, and that it is turn `turn`.
    #[inline]
    pub(super) fn send(&mut self, turn: u64) -> Result<(), BenchError> {
        let flag = self.local.host().filter(|local| self.batch.len() == 1 && local.len() > 8);
        if let Some(local) = flag {
            local.as_volatile().store_u64(local.len() - 8, turn);
        } else if let Some(request) = self.batch.last_mut() {
            request.operation = Operation::WriteInline { data: Inline::word(turn), remote: self.remote_turn };
        }
        Ok(self.endpoint.post(&self.batch)?)
    }

    /// Waits until the other has sent turn `turn`.
    #[inline]
    pub(super) fn wait(&mut self, turn: u64) -> Result<(), BenchError> {
        loop {
            if self.spin(turn) {
                return Ok(());
            }
            self.endpoint.check()?;
            // Where there are fewer cores than processes, the other side needs this one.
            std::thread::yield_now();
        }
    }

    /// True if the other has sent turn `turn` before long.
    #[inline]
    fn spin(&self, turn: u64) -> bool {
        let word = self.turn.as_volatile();
        for _ in 0..SPINS {
            if word.load(0, Ordering::Acquire) >= turn {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Answers every turn up to the last, or until the client is done or gone.
    pub(super) fn answer(&mut self, client: &Client) -> Result<(), BenchError> {
        let mut turn = 1;
        let mut last = Instant::now();
        loop {
            if self.spin(turn) {
                if self.turn.as_volatile().load(0, Ordering::Acquire) == OVER {
                    return self.send(OVER);
                }
                self.send(turn)?;
                turn += 1;
                last = Instant::now();
                continue;
            }
            if client.is_done() || self.endpoint.check().is_err() {
                return Ok(());
            }
            if last.elapsed() > IDLE {
                std::thread::sleep(Duration::from_micros(100));
            } else {
                std::thread::yield_now();
            }
        }
    }
}
