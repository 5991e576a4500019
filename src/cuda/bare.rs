//! Calls of the driver with nothing of this library around them: the limits that its copies and folds are measured
//! against, and the means by which the programs that run on a GPU fill its memory and look at it.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::{DevicePointer, Driver, StreamHandle};
use super::kernels::Launch;
use super::sys::{Attribute, Code, HOST_REGISTER_DEVICEMAP, HOST_REGISTER_PORTABLE};
use super::{Gpu, GpuError, GpuFold, GpuKernels, GpuMemory, GpuSlice, GpuStream, Tickets};
use crate::mem::{HostMemory, PAGE_SIZE, VolatileSlice};
use crate::table::Encoding;

/// The default stream of the primary context, which is there for as long as the context.
const DEFAULT: StreamHandle = StreamHandle(0);

/// Looks at the word between two questions whether the stream has failed.
const LOOKS: u32 = 10_000;

/// Longest time that is waited.
const PATIENCE: Duration = Duration::from_secs(120);

/// A stream of a GPU, used straight through the driver, with page-locked host memory to copy from and to.
pub struct BareGpu {
    gpu: Gpu,
    stream: StreamHandle,
    /// The memory to copy from and to, and the page of the word by which the stream reports its progress.
    memory: [Arc<HostMemory>; 2],
    /// By which the stream writes the word; `None` where the device cannot, whose stream is asked instead.
    pointer: Option<DevicePointer>,
    written: u64,
    /// Folds that are under way, and how far the word must be for them to be over.
    folds: VecDeque<(u64, Launch)>,
}

impl BareGpu {
    /// The default stream. Locks `bytes` of host memory.
    ///
    /// # Errors
    /// There is no such memory, or the driver does not lock it.
    pub fn new(gpu: &Gpu, bytes: usize) -> Result<BareGpu, GpuError> {
        BareGpu::on(gpu, bytes, DEFAULT)
    }

    /// The same on a stream that waits for no other, the default one neither.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn on_another_stream(gpu: &Gpu, bytes: usize) -> Result<BareGpu, GpuError> {
        let stream = gpu.inner().primary.call("making a stream", |driver| driver.create_stream())?;
        BareGpu::on(gpu, bytes, stream)
    }

    fn on(gpu: &Gpu, bytes: usize, stream: StreamHandle) -> Result<BareGpu, GpuError> {
        let memory = |bytes| {
            HostMemory::anonymous(bytes).map_err(|error| GpuError::Host { reason: error.to_string() })
        };
        let (host, word) = (memory(bytes.next_multiple_of(PAGE_SIZE))?, memory(PAGE_SIZE)?);
        let primary = &gpu.inner().primary;
        let flags = HOST_REGISTER_PORTABLE | HOST_REGISTER_DEVICEMAP;
        // Memory that is registered before an error stays so: this is for programs that end then.
        let pointer = primary.call("locking host memory", |driver| {
            let (begin, length) = (host.as_volatile().as_ptr(), host.as_volatile().len());
            // SAFETY: both are unregistered before they are freed.
            unsafe { driver.register_host(begin, length, flags) }?;
            let has_words =
                driver.attribute(Attribute::CAN_USE_64_BIT_STREAM_MEM_OPS, primary.device())? != 0;
            let word = word.as_volatile().as_ptr();
            // SAFETY: as above.
            has_words.then(|| unsafe { driver.register_host(word, PAGE_SIZE, flags) }).transpose()
        })?;
        let memory = [Arc::new(host), Arc::new(word)];
        Ok(BareGpu { gpu: gpu.clone(), stream, memory, pointer, written: 0, folds: VecDeque::new() })
    }

    /// The stream, for calls of the library that are ordered with it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn stream(&self) -> Result<GpuStream, GpuError> {
        // SAFETY: the default stream, which is there for as long as the context, or one that lives as long as this
        // value: the caller of this hidden call keeps it.
        unsafe { GpuStream::of_caller(&self.gpu, self.stream.0) }
    }

    /// A dma-buf of the pages to which an RDMA device would register this memory, and their length.
    ///
    /// # Errors
    /// The driver exports none.
    pub fn dma_buf(&self, memory: &GpuMemory) -> Result<(OwnedFd, usize), GpuError> {
        let pages = memory.whole().pages()?;
        let pages = pages.first().ok_or(GpuError::Empty)?;
        Ok((memory.dma_buf(pages)?, pages.bytes))
    }

    /// A part of memory of this library's own, as if it were the caller's.
    ///
    /// # Errors
    /// As [`GpuMemory::of_caller`].
    pub fn imported(&self, memory: &GpuMemory, offset: usize, bytes: usize) -> Result<GpuMemory, GpuError> {
        let pointer = memory.pointer() + offset as u64;
        // SAFETY: the owner is the memory itself.
        unsafe { GpuMemory::of_caller(&self.gpu, pointer, bytes, memory.clone()) }
    }

    /// Memory as allocators of callers map it: two pieces of at least `bytes`, one right behind the other. It is never
    /// given back: this is for programs that end.
    ///
    /// # Errors
    /// The GPU is out of memory, or the driver refuses.
    pub fn two_pieces(&self, bytes: usize) -> Result<GpuMemory, GpuError> {
        let primary = &self.gpu.inner().primary;
        let allocated = primary.call("allocating memory of a GPU in two pieces", |driver| {
            driver.allocate_two_pieces(primary.device(), bytes)
        });
        let (pointer, length) = allocated?;
        // SAFETY: it is never freed.
        unsafe { GpuMemory::of_caller(&self.gpu, pointer, 2 * length, ()) }
    }

    /// Memory of `cuMemAlloc`, as callers allocate it, which other processes can open. It is never given back: this is
    /// for programs that end.
    ///
    /// # Errors
    /// The GPU is out of memory, or the driver refuses.
    pub fn classic(&self, bytes: usize) -> Result<GpuMemory, GpuError> {
        let primary = &self.gpu.inner().primary;
        let pointer =
            primary.call("allocating memory by cuMemAlloc", |driver| driver.allocate_classic(bytes))?;
        // SAFETY: it is never freed.
        unsafe { GpuMemory::of_caller(&self.gpu, pointer, bytes, ()) }
    }

    /// Copies `from` to host memory; the time until its end was seen.
    ///
    /// # Errors
    /// The host memory is shorter, or the driver does not copy.
    pub fn to_host(&mut self, from: &GpuSlice) -> Result<Duration, GpuError> {
        let (begin, stream) = (self.host_range(from)?.cast_mut().cast(), self.stream);
        // SAFETY: both ranges are kept until the end was seen, and nothing else uses the host's.
        self.timed(|driver| unsafe { driver.copy_to_host(begin, from.pointer(), from.bytes(), stream) })
    }

    /// Copies host memory to `into`; the time until its end was seen.
    ///
    /// # Errors
    /// As [`to_host`](Self::to_host).
    pub fn from_host(&mut self, into: &GpuSlice) -> Result<Duration, GpuError> {
        let (begin, stream) = (self.host_range(into)?.cast(), self.stream);
        // SAFETY: as above; the caller of this hidden call uses `into` for nothing else.
        self.timed(|driver| unsafe { driver.copy_from_host(into.pointer(), begin, into.bytes(), stream) })
    }

    /// Copies `from` to `into`, which is as long; the time until its end was seen.
    ///
    /// # Errors
    /// The lengths differ, or the driver does not copy.
    pub fn within(&mut self, from: &GpuSlice, into: &GpuSlice) -> Result<Duration, GpuError> {
        if from.bytes() != into.bytes() {
            return Err(GpuError::Empty);
        }
        let (to, bytes, stream) = (into.pointer(), into.bytes(), self.stream);
        // SAFETY: as above.
        self.timed(|driver| unsafe { driver.copy_within(to, from.pointer(), bytes, stream) })
    }

    /// Fills `into` with `bytes`, which are as long.
    ///
    /// # Errors
    /// As [`to_host`](Self::to_host).
    pub fn write(&mut self, into: &GpuSlice, bytes: &[u8]) -> Result<(), GpuError> {
        self.host_range(into)?;
        self.host().subslice(0, bytes.len().min(into.bytes())).write(bytes);
        self.from_host(into).map(drop)
    }

    /// The bytes of `from`.
    ///
    /// # Errors
    /// As [`to_host`](Self::to_host).
    pub fn read(&mut self, from: &GpuSlice) -> Result<Vec<u8>, GpuError> {
        self.to_host(from)?;
        let mut bytes = vec![0; from.bytes()];
        self.host().subslice(0, bytes.len()).read(&mut bytes);
        Ok(bytes)
    }

    /// Puts a fold on the stream, as a kernel of the caller's, and does not wait for it.
    ///
    /// # Errors
    /// As [`GpuKernels::launch`].
    pub fn launch(&mut self, kernels: &GpuKernels, fold: GpuFold) -> Result<(), GpuError> {
        self.issue(kernels.prepare(fold)?)
    }

    /// The same of a fold whose arrays lie at an address that the GPU has no memory at: its kernel faults, and after it
    /// no call of this process on the GPU succeeds.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_fault(&mut self, kernels: &GpuKernels, fold: GpuFold) -> Result<(), GpuError> {
        self.issue(kernels.prepare(fold)?.pointing_nowhere())
    }

    pub(super) fn issue(&mut self, launch: Launch) -> Result<(), GpuError> {
        let (primary, stream) = (self.gpu.inner().primary.clone(), self.stream);
        primary.call("launching a fold", |driver| launch.issue(driver, stream))?;
        self.folds.push_back((self.written + 1, launch));
        Ok(())
    }

    /// Converts the f32 elements of `from` to `into` by the library's kernel, behind the stream's work, and does not
    /// wait for it.
    ///
    /// # Errors
    /// `into` has not room for as many elements, or the driver refuses.
    pub fn encode(
        &self,
        from: &GpuSlice,
        into: &GpuSlice,
        encoding: Encoding,
        under_way: &mut Tickets,
    ) -> Result<(), GpuError> {
        self.stream()?.encode_within(from, into, encoding, under_way)
    }

    /// Waits for all work of the stream; returns the time until its end was seen.
    ///
    /// # Errors
    /// Work of the process on the GPU failed, or is not done after two minutes.
    pub fn finish(&mut self) -> Result<Duration, GpuError> {
        self.timed(|_| Ok(()))
    }

    /// The host memory to copy from and to.
    pub(super) fn host(&self) -> VolatileSlice<'_> {
        self.memory[0].as_volatile()
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    fn word(&self) -> VolatileSlice<'_> {
        self.memory[1].as_volatile()
    }

    /// The begin of the host memory, which is as long as `other` at least.
    fn host_range(&self, other: &GpuSlice) -> Result<*const u8, GpuError> {
        match other.bytes() <= self.host().len() {
            true => Ok(self.host().as_ptr().cast_const()),
            false => Err(GpuError::Host { reason: "more is to be copied than was locked".into() }),
        }
    }

    fn timed(&mut self, issue: impl FnOnce(&dyn Driver) -> Result<(), Code>) -> Result<Duration, GpuError> {
        let (primary, stream) = (self.gpu.inner().primary.clone(), self.stream);
        let number = self.written + 1;
        let pointer = self.pointer;
        let begun = primary.call("copying", |driver| {
            // The context is current already: bare code does not pay for that.
            let begun = Instant::now();
            issue(driver)?;
            if let Some(pointer) = pointer {
                // SAFETY: the word stays registered until the stream is idle.
                unsafe { driver.write_word(stream, pointer, number) }?;
            }
            Ok(begun)
        })?;
        self.written = number;
        let is_idle = || primary.call("waiting for a copy", |driver| driver.is_idle(stream));
        let mut looks = 0_u32;
        loop {
            let is_done = match self.pointer {
                Some(_) => self.word().load_u64(0) >= number,
                None => is_idle()?,
            };
            if is_done {
                break;
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                // A fault is told by the stream, and writes no word.
                is_idle()?;
                if begun.elapsed() > PATIENCE {
                    return Err(GpuError::NotCopied { waited: begun.elapsed(), cause: None });
                }
            }
            std::hint::spin_loop();
        }
        let took = begun.elapsed();
        self.folds.retain(|(end, _)| *end > number);
        Ok(took)
    }
}

impl Drop for BareGpu {
    fn drop(&mut self) {
        self.end_publishing();
        if let Err(GpuError::NotCopied { .. }) = self.finish() {
            // The memory must not be freed under the copies.
            std::mem::forget((self.memory.clone(), std::mem::take(&mut self.folds)));
            return;
        }
        let primary = &self.gpu.inner().primary;
        let (host, word) = (self.host().as_ptr(), self.word().as_ptr());
        // SAFETY: the stream is idle, or has failed and copies no more.
        primary.give_back("unregistering host memory", |driver| unsafe { driver.unregister_host(host) });
        if self.pointer.is_some() {
            // SAFETY: as above.
            primary.give_back("unregistering host memory", |driver| unsafe { driver.unregister_host(word) });
        }
        if self.stream != DEFAULT {
            primary.give_back("ending a stream", |driver| driver.destroy_stream(self.stream));
        }
    }
}
