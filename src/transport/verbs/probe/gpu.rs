//! Tries whether the first device reads and writes memory of a GPU, and whether the GPU sees the written data, and
//! measures the times.

use std::time::{Duration, Instant};

use super::{Loopback, PATIENCE};
use crate::cuda::{Gpu, GpuCopy, GpuError, GpuMemory, GpuSlice, Tickets};
use crate::mem::{
    Access, DeviceKeys, HostMemory, LocalSlice, MemoryRegion, OutOfBounds, RemoteSlice, Streaming,
};
use crate::transport::verbs::Verbs;
use crate::transport::verbs::grants::GrantedMemory;
use crate::transport::{Inline, Operation, WorkRequest};

const NO_GPU: &str = "the transport has no GPU";

/// Bytes of a version in the litmus test.
const VERSION_BYTES: usize = 64 << 10;

/// Transfers between a device and memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuTransfers {
    /// Time of a WRITE from memory of the GPU to memory of the GPU.
    pub write: Duration,
    /// The same for a READ.
    pub read: Duration,
    /// True if all bytes arrived unchanged.
    pub are_intact: bool,
    /// Versions that were written and announced, one after the other, and read by the GPU once the processor had seen
    /// the word.
    pub versions: u64,
    /// The number of versions that were not whole.
    pub torn: u64,
}

/// The connection, and memory of the GPU at both of its ends.
struct GpuLoopback<'a> {
    loopback: Loopback,
    gpu: &'a Gpu,
    mine: GpuMemory,
    target: GpuMemory,
    host: LocalSlice,
}

impl Verbs {
    /// Makes the first device write `bytes` from the GPU of this transport to the same GPU, and read them, and then
    /// write versions of 64 KiB, each announced by a word, for the time `litmus`.
    ///
    /// # Errors
    /// The device does not reach the GPU, or a transfer fails; the text says which.
    #[doc(hidden)]
    pub fn try_gpu(&self, bytes: usize, litmus: Duration) -> Result<GpuTransfers, String> {
        let own = self.gpu.as_ref().ok_or(NO_GPU)?;
        let (gpu, bytes) = (&own.gpu, bytes.max(VERSION_BYTES));
        let allocate = || GpuMemory::allocate(gpu, bytes).map_err(of_gpu);
        let (mine, target) = (allocate()?, allocate()?);
        self.register_tensor(&mine)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::RELAXED;
        let granted = GrantedMemory::Gpu { memory: target.clone(), access, gpu: own.clone() };
        let words = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mut loopback = Loopback::new(&self.shared, words, vec![granted])?;
        loopback.data.takes_gpu = true;
        let memory = HostMemory::anonymous(bytes).map_err(|error| error.to_string())?;
        let host = MemoryRegion::new(memory, Access::LOCAL, DeviceKeys::NONE, ()).whole();
        GpuLoopback { loopback, gpu, mine, target, host }.try_all(litmus)
    }
}

/// Transfers of one length between the first device's own host memory and memory of the GPU, or of the host, to
/// measure their times.
pub struct MeasuredTransfers {
    loopback: Loopback,
    on_gpu: GpuSlice,
    on_host: LocalSlice,
}

impl Verbs {
    /// Registers memory of the GPU in the same way as the first request that names it. Does nothing if it is already
    /// registered.
    ///
    /// # Errors
    /// The device does not reach the GPU, or does not register the memory; the text says which.
    #[doc(hidden)]
    pub fn register_tensor(&self, memory: &GpuMemory) -> Result<(), String> {
        let own = self.gpu.as_ref().ok_or(NO_GPU)?;
        let registrations = own.registrations.as_ref().ok_or_else(|| own.path.to_string())?;
        match registrations.reach(&self.shared, &own.gpu, &memory.whole()).map_err(of_gpu)? {
            reached if reached == memory.bytes() => Ok(()),
            _ => Err("the device does not register the memory; the log has the reason".into()),
        }
    }

    /// Makes a connection of the first device with itself, for transfers of this GPU memory and of an equal amount of
    /// host memory.
    ///
    /// # Errors
    /// As for [`register_tensor`](Self::register_tensor), or the connection or the memory cannot be made.
    #[doc(hidden)]
    pub fn transfers_to_measure(&self, memory: &GpuMemory) -> Result<MeasuredTransfers, String> {
        self.register_tensor(memory)?;
        let registered = |access: Access| {
            let host = HostMemory::anonymous(memory.bytes()).map_err(|error| error.to_string())?;
            self.shared.register(host, access).map(|region| region.whole()).map_err(|error| error.to_string())
        };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::RELAXED;
        let (target, on_host) = (registered(access)?, registered(Access::LOCAL)?);
        let granted = vec![GrantedMemory::Host(target)];
        let mut loopback = Loopback::new(&self.shared, Access::REMOTE_READ | Access::REMOTE_WRITE, granted)?;
        loopback.data.takes_gpu = true;
        Ok(MeasuredTransfers { loopback, on_gpu: memory.whole(), on_host })
    }
}

impl MeasuredTransfers {
    /// Carries out a WRITE or a READ of the whole memory, and returns its time.
    ///
    /// # Errors
    /// The device does not complete the transfer.
    pub fn carry(&mut self, is_write: bool, is_on_gpu: bool) -> Result<Duration, String> {
        let (remote, streaming) = (self.loopback.remote[1], Streaming::ByLength);
        let (on_gpu, on_host) = (self.on_gpu.clone(), self.on_host.clone());
        let operation = match (is_write, is_on_gpu) {
            (true, true) => Operation::WriteFromGpu { local: on_gpu, remote },
            (true, false) => Operation::Write { local: on_host, remote, streaming },
            (false, true) => Operation::ReadToGpu { local: on_gpu, remote },
            (false, false) => Operation::Read { local: on_host, remote, streaming },
        };
        let begun = Instant::now();
        self.loopback.run(operation)?;
        Ok(begun.elapsed())
    }
}

impl GpuLoopback<'_> {
    fn try_all(mut self, litmus: Duration) -> Result<GpuTransfers, String> {
        let (bytes, remote) = (self.mine.bytes(), self.loopback.remote[1]);
        let pattern = |round: usize| -> Vec<u8> {
            (0..bytes).map(|index| (index * 7 + round * 31 + index / 251) as u8).collect()
        };
        self.fill(&self.mine, &pattern(1))?;
        // The first transfer sets the device up.
        self.transfer(true, remote)?;
        let write = self.transfer(true, remote)?;
        let is_written = self.holds(&self.target, &pattern(1))?;
        self.fill(&self.target, &pattern(2))?;
        self.transfer(false, remote)?;
        let read = self.transfer(false, remote)?;
        let are_intact = is_written && self.holds(&self.mine, &pattern(2))?;
        let (begun, mut versions, mut torn) = (Instant::now(), 0, 0);
        while begun.elapsed() < litmus || versions == 0 {
            versions += 1;
            torn += u64::from(!self.announce(versions, remote)?);
        }
        Ok(GpuTransfers { write, read, are_intact, versions, torn })
    }

    /// Carries out a WRITE or a READ of the whole memory, and returns the time until it is complete. Once this
    /// returns, a WRITE has also arrived.
    fn transfer(&mut self, writes: bool, remote: RemoteSlice) -> Result<Duration, String> {
        let local = self.mine.whole();
        let begun = Instant::now();
        self.loopback.run(match writes {
            true => Operation::WriteFromGpu { local, remote },
            false => Operation::ReadToGpu { local, remote },
        })?;
        let took = begun.elapsed();
        if writes {
            self.arrive(remote)?;
        }
        self.gpu.see_rdma_writes().map_err(of_gpu)?;
        Ok(took)
    }

    /// Waits until the written data is in memory. A WRITE may be complete before that; a READ of the same memory that
    /// is posted behind the WRITE is executed after it.
    fn arrive(&mut self, remote: RemoteSlice) -> Result<(), String> {
        let (local, remote) =
            (self.loopback.local.slice(0, 8).map_err(outside)?, remote.slice(0, 8).map_err(outside)?);
        self.loopback.run(Operation::Read { local, remote, streaming: Streaming::Never })
    }

    /// Writes a version and its word; true if the GPU sees the whole version once the processor has seen the word.
    fn announce(&mut self, version: u64, remote: RemoteSlice) -> Result<bool, String> {
        let bytes = vec![version as u8; VERSION_BYTES];
        self.fill(&self.mine, &bytes)?;
        let local = self.mine.slice(0, VERSION_BYTES).map_err(outside)?;
        let remote = remote.slice(0, VERSION_BYTES as u64).map_err(outside)?;
        let word = self.loopback.remote[0].slice(0, 8).map_err(outside)?;
        let batch = [
            WorkRequest::unsignalled(1, Operation::WriteFromGpu { local, remote }),
            WorkRequest::signalled(2, Operation::WriteInline { data: Inline::word(version), remote: word }),
        ];
        self.loopback.data.post(&batch).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        while self.loopback.target.as_volatile().load_u64(0) != version {
            if begun.elapsed() > PATIENCE {
                return Err(format!("no word within {PATIENCE:?}"));
            }
            std::hint::spin_loop();
        }
        self.gpu.see_rdma_writes().map_err(of_gpu)?;
        let is_whole = self.holds(&self.target, &bytes)?;
        self.loopback.complete()?;
        Ok(is_whole)
    }

    /// Makes the GPU copy these bytes to the start of its memory.
    fn fill(&self, memory: &GpuMemory, bytes: &[u8]) -> Result<(), String> {
        self.host.as_volatile().subslice(0, bytes.len()).write(bytes);
        let (from, into) = self.ranges(memory, bytes.len())?;
        self.copy(GpuCopy::FromHost { from, into })
    }

    /// Makes the GPU copy the start of its memory to the host, and compares it with these bytes.
    fn holds(&self, memory: &GpuMemory, bytes: &[u8]) -> Result<bool, String> {
        let (into, from) = self.ranges(memory, bytes.len())?;
        self.copy(GpuCopy::ToHost { from, into })?;
        let mut found = vec![0; bytes.len()];
        self.host.as_volatile().subslice(0, bytes.len()).read(&mut found);
        Ok(found == bytes)
    }

    fn ranges(&self, memory: &GpuMemory, bytes: usize) -> Result<(LocalSlice, GpuSlice), String> {
        Ok((self.host.slice(0, bytes).map_err(outside)?, memory.slice(0, bytes).map_err(outside)?))
    }

    fn copy(&self, copy: GpuCopy) -> Result<(), String> {
        let (mut copies, begun) = (Tickets::default(), Instant::now());
        self.gpu.copy(copy, &mut copies).map_err(of_gpu)?;
        while !copies.are_done().map_err(of_gpu)? {
            if begun.elapsed() > PATIENCE {
                return Err(format!("no copy within {PATIENCE:?}"));
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn of_gpu(error: GpuError) -> String {
    error.to_string()
}

fn outside(error: OutOfBounds) -> String {
    error.to_string()
}
