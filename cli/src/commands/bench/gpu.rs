//! Publish and pull of payloads that are in memory of a GPU.

use std::time::Duration;

use slackline::gpu::{Gpu, GpuMemory, GpuStream};
use slackline::internals::cuda::BareGpu;
use slackline::internals::mem::VolatileSlice;
use slackline::weights::{Publisher, PublisherOptions, Reader, ReaderOptions, Wanted};
use slackline::{Address, ElementType, Table, VersionTag, Worker, WorkerOptions, scheme::SchemeConfig};

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;
use super::measure::{calls, time};
use super::messages::{Ready, TIMEOUT, Task};
use super::nodes::{check_sum, gradient};
use super::pattern;
use super::settings::Settings;
use super::timing::Timing;

/// Between two looks of a publisher that has published all.
const STILL: Duration = Duration::from_millis(2);

/// Memory of a GPU for one payload, and the stream that copies are ordered with.
pub(super) struct OnGpu {
    bare: BareGpu,
    memory: GpuMemory,
    stream: GpuStream,
}

impl OnGpu {
    pub(super) fn new(gpu: &Gpu, bytes: u64) -> Result<OnGpu, BenchError> {
        let (bare, memory) = (BareGpu::new(gpu, bytes as usize)?, GpuMemory::allocate(gpu, bytes as usize)?);
        let stream = bare.stream()?;
        Ok(OnGpu { bare, memory, stream })
    }

    pub(super) fn memory(&self) -> &GpuMemory {
        &self.memory
    }

    /// Fills it with the pattern.
    pub(super) fn fill(&mut self) -> Result<(), BenchError> {
        let mut payload = vec![0; self.memory.bytes()];
        pattern::fill(VolatileSlice::from_mut(&mut payload));
        Ok(self.bare.write(&self.memory.whole(), &payload)?)
    }

    /// The first byte that is not the pattern's.
    pub(super) fn first_wrong(&mut self) -> Result<Option<u64>, BenchError> {
        let found = self.bare.read(&self.memory.whole())?;
        Ok(pattern::first_wrong(VolatileSlice::from_ref(&found)))
    }
}

/// A worker's gradient out of memory of a GPU into its slot.
pub(super) fn publish<C: Carrier>(
    settings: &Settings,
    carrier: &C,
    address: &Address,
    OnGpu { mut bare, memory, stream }: OnGpu,
) -> Result<Timing, BenchError> {
    let bytes = memory.bytes();
    let elements: Vec<u8> = (0..bytes / 4).flat_map(|index| gradient(index).to_le_bytes()).collect();
    bare.write(&memory.whole(), &elements)?;
    let options = WorkerOptions::new(SchemeConfig::Asp);
    let servers = std::slice::from_ref(address);
    let mut worker = Worker::connect(carrier.clone(), servers, options, TIMEOUT)?;
    let mut published = 0;
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        let mut took = Duration::ZERO;
        for _ in 0..count {
            worker.step(TIMEOUT)?.suspend();
            took += calls(1, || {
                Ok(worker.resume()?.publish_from_gpu(&memory.whole(), &stream, None, TIMEOUT)?)
            })?;
            worker.flush(TIMEOUT)?;
            published += 1;
        }
        Ok(took)
    })?;
    if settings.validate {
        check_sum(carrier, address, bytes as u64, published)?;
    }
    Ok(timing)
}

/// A version into memory of a GPU, validated.
pub(super) fn pull<C: Carrier>(
    settings: &Settings,
    carrier: &C,
    address: &Address,
    mut on_gpu: OnGpu,
) -> Result<Timing, BenchError> {
    let mut reader = Reader::connect(carrier.clone(), address, ReaderOptions::default(), TIMEOUT)?;
    let into = on_gpu.memory.whole();
    let timing = time(settings, &format!("of {} bytes", into.bytes()), |count| {
        calls(count, || Ok(reader.pull_to_gpu(Wanted::newest(), &into, &on_gpu.stream, TIMEOUT).map(drop)?))
    })?;
    if settings.validate {
        pattern::verdict(on_gpu.first_wrong()?, into.bytes() as u64, "in what was pulled")?;
    }
    Ok(timing)
}

/// A publisher whose frames are on a GPU, with one version.
pub(super) fn serve_publisher<C: Carrier>(
    task: &Task,
    options: PublisherOptions,
    client: &Client,
    mut on_gpu: OnGpu,
) -> Result<(), BenchError> {
    let table = Table::flat(task.bytes / 4, ElementType::F32)?;
    let (carrier, anywhere) = (C::open(&client.means)?, C::anywhere(client.host));
    let publisher = Publisher::new(carrier, &anywhere, table, options)?.into_background()?;
    on_gpu.fill()?;
    let mut draft = publisher.draft(TIMEOUT)?;
    draft.copy_from_gpu(0, &on_gpu.memory.whole(), &on_gpu.stream)?;
    draft.commit_when_copied(VersionTag::default()).wait(TIMEOUT)?;
    client.say(&Ready { address: publisher.address(), memory: client.means.memory.memory })?;
    while !client.is_done() {
        std::thread::sleep(STILL);
    }
    Ok(())
}
