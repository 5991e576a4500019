//! Two sides that write into each other's memory by turns.
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

use slackline::internals::mem::{Access, LocalSlice, MemoryRegion, RemoteSlice, Streaming};
use slackline::internals::transport::{Connecting, Endpoint, Inline, Offer, Operation, WorkRequest};
use slackline::{Address, now};

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;

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
    data: MemoryRegion,
    /// The word of turns, where it is not the last word of the data.
    turns: MemoryRegion,
    bytes: usize,
}

/// One side.
pub(super) struct Side<C: Carrier> {
    pub(super) endpoint: C::Endpoint,
    /// The other's data.
    pub(super) remote: RemoteSlice,
    /// The local memory that writes send from and reads fill.
    pub(super) local: LocalSlice,
    /// The local word into which the other side writes its turns.
    turn: LocalSlice,
    remote_turn: RemoteSlice,
    batch: Vec<WorkRequest>,
}

fn is_own_flag(bytes: u64) -> bool {
    bytes <= 64 && bytes.is_multiple_of(8)
}

impl SideMemory {
    pub(super) fn new<C: Carrier>(carrier: &C, bytes: u64) -> Result<SideMemory, BenchError> {
        let access = if is_own_flag(bytes) { FLAG } else { FLAG | Access::RELAXED };
        let data = carrier.allocate(bytes.next_multiple_of(4096) as usize, access)?;
        let turns = carrier.allocate(4096, Access::REMOTE_WRITE)?;
        touch(&data.whole());
        touch(&turns.whole());
        Ok(SideMemory { data, turns, bytes: bytes as usize })
    }

    pub(super) fn data(&self) -> Result<LocalSlice, BenchError> {
        Ok(self.data.slice(0, self.bytes)?)
    }

    pub(super) fn grants(&self) -> Vec<LocalSlice> {
        vec![self.data.whole(), self.turns.whole()]
    }

    fn turn(&self) -> Result<LocalSlice, BenchError> {
        Ok(match is_own_flag(self.bytes as u64) {
            true => self.data.slice(self.bytes - 8, 8)?,
            false => self.turns.slice(0, 8)?,
        })
    }
}

/// Makes every page be there.
fn touch(slice: &LocalSlice) {
    let memory = slice.as_volatile();
    for at in (0..memory.len()).step_by(4096) {
        memory.subslice(at, 1).write(&[0]);
    }
}

impl<C: Carrier> Side<C> {
    pub(super) fn new(
        carrier: &C,
        endpoint: C::Endpoint,
        mine: &SideMemory,
        granted: &[RemoteSlice],
        bytes: u64,
    ) -> Result<Side<C>, BenchError> {
        let local = carrier.allocate(bytes.next_multiple_of(8) as usize, Access::LOCAL)?;
        touch(&local.whole());
        let local = local.slice(0, bytes as usize)?;
        let [data, turns] = granted else {
            return Err(BenchError::Peer(format!("it granted {} regions, and not two", granted.len())));
        };
        let remote = data.slice(0, bytes)?;
        let remote_turn = if is_own_flag(bytes) { data.slice(bytes - 8, 8)? } else { turns.slice(0, 8)? };
        let turn = mine.turn()?;
        let write = Operation::Write { local: local.clone(), remote, streaming: Streaming::ByLength };
        let word = Operation::WriteInline { data: Inline::word(0), remote: remote_turn };
        let batch = match bytes {
            8 => vec![WorkRequest::unsignalled(0, word)],
            _ if is_own_flag(bytes) => vec![WorkRequest::unsignalled(0, write)],
            _ => vec![WorkRequest::unsignalled(0, write), WorkRequest::unsignalled(0, word)],
        };
        Ok(Side { endpoint, remote, local, turn, remote_turn, batch })
    }

    /// Connects to the target at the other end.
    pub(super) fn connect(carrier: &C, address: &Address, bytes: u64) -> Result<Side<C>, BenchError> {
        let mine = SideMemory::new(carrier, bytes)?;
        let offer = Offer { message: Vec::new(), grants: mine.grants() };
        let mut connecting = carrier.connect(address, offer)?;
        let begun = Instant::now();
        loop {
            match connecting.poll(now()) {
                Poll::Ready(connected) => {
                    let (endpoint, received) = connected?;
                    return Side::new(carrier, endpoint, &mine, &received.grants, bytes);
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
        let own_flag = self.batch.len() == 1 && self.local.len() > 8;
        if own_flag {
            self.local.as_volatile().store_u64(self.local.len() - 8, turn);
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
