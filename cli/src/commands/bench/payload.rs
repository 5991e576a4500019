//! The payload of one side of single requests: in host memory, or on a GPU.

use slackline::gpu::Gpu;
use slackline::internals::mem::{Access, LocalSlice};
use slackline::internals::transport::PayloadSlice;

use super::carrier::Carrier;
use super::error::BenchError;
use super::gpu::OnGpu;
use super::pattern;

/// What is written from, read into, or granted.
pub(super) enum Payload {
    Host(LocalSlice),
    Gpu(OnGpu),
}

impl Payload {
    /// `bytes` on this GPU, or in host memory with these rights, of which every page is there.
    pub(super) fn new<C: Carrier>(
        carrier: &C,
        bytes: u64,
        access: Access,
        gpu: Option<&Gpu>,
    ) -> Result<Payload, BenchError> {
        if let Some(gpu) = gpu {
            return Ok(Payload::Gpu(OnGpu::new(gpu, bytes)?));
        }
        let pages = carrier.allocate(bytes.next_multiple_of(4096) as usize, access)?;
        touch(&pages.whole());
        Ok(Payload::Host(pages.slice(0, bytes as usize)?))
    }

    /// The host's memory, if it is there.
    pub(super) fn host(&self) -> Option<&LocalSlice> {
        match self {
            Payload::Host(slice) => Some(slice),
            Payload::Gpu(_) => None,
        }
    }

    pub(super) fn slice(&self) -> PayloadSlice {
        match self {
            Payload::Host(slice) => slice.clone().into(),
            Payload::Gpu(on_gpu) => on_gpu.memory().whole().into(),
        }
    }

    /// Fills it with the pattern.
    pub(super) fn fill(&mut self) -> Result<(), BenchError> {
        match self {
            Payload::Host(slice) => pattern::fill(slice.as_volatile()),
            Payload::Gpu(on_gpu) => on_gpu.fill()?,
        }
        Ok(())
    }

    /// The first byte that is not the pattern's.
    pub(super) fn first_wrong(&mut self) -> Result<Option<u64>, BenchError> {
        match self {
            Payload::Host(slice) => Ok(pattern::first_wrong(slice.as_volatile())),
            Payload::Gpu(on_gpu) => on_gpu.first_wrong(),
        }
    }
}

/// Makes every page be there.
pub(super) fn touch(slice: &LocalSlice) {
    let memory = slice.as_volatile();
    for at in (0..memory.len()).step_by(4096) {
        memory.subslice(at, 1).write(&[0]);
    }
}
