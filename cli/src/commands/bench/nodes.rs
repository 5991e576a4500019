//! Measurements of single operations of nodes: publish, pull, pinned read.

use std::rc::Rc;
use std::time::{Duration, Instant};

use slackline::internals::mem::Access;
use slackline::weights::{Reader, ReaderOptions};
use slackline::{
    Address, ReadMode, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::carrier::Carrier;
use super::error::BenchError;
use super::gpu::{self, OnGpu};
use super::measure::{calls, time};
use super::memory::MemoryArgs;
use super::messages::{INITIAL, RATE, Ready, TIMEOUT, Task, TaskRole};
use super::pattern;
use super::peer::Peer;
use super::pin::{pair, pin_to};
use super::remote::Remote;
use super::report::Measured;
use super::settings::Settings;

/// Gradients are the same again after so many elements, so that what they add up to is soon worked out.
const PERIOD: usize = 64;
/// Longest time that a server may take to show a gradient after it has taken it.
const SHOW: Duration = Duration::from_secs(5);

/// Starts the other side.
fn start(
    settings: &Settings,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
    role: TaskRole,
) -> Result<(Ready, Peer), BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    Peer::start(&Task::of(settings, bytes, core, role), remote)?.ready()
}

/// A worker's gradient into its slot. The server folds it while it lands and goes on after; the next one begins only
/// when it is done.
pub(super) fn publish<C: Carrier>(
    settings: &Settings,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
) -> Result<Measured, BenchError> {
    let role = TaskRole::Server {
        asynchronous: true,
        workers: 1,
        chunk: settings.chunk,
        threads: 1,
        folds: 0,
        is_crowd: false,
    };
    let (Ready { address, memory: peer_memory }, server) = start(settings, remote, bytes, role)?;
    let memory = MemoryArgs { peer_memory, ..settings.means.memory };
    let carrier = C::open(&settings.means)?;
    if let Some(gpu) = memory.gpu()? {
        let timing = gpu::publish(settings, &carrier, &address, OnGpu::new(&gpu, bytes)?)?;
        server.end()?;
        let measured = Measured::over(C::NAME, settings.op.name(), bytes, bytes, timing);
        let measured = measured.validated(settings.validate).in_memory(memory.names());
        return Ok(carrier.describe(&settings.means, measured));
    }
    // Read in place where that is possible: only the gradient is copied.
    let in_place = carrier.capabilities().in_place && memory.names().is_none();
    let read = if in_place { ReadMode::InPlace } else { ReadMode::Copy };
    let options = WorkerOptions { read, ..WorkerOptions::new(SchemeConfig::Asp) };
    let servers = std::slice::from_ref(&address);
    let mut worker = Worker::connect(carrier.clone(), servers, options, TIMEOUT)?;
    let mut step = worker.step(TIMEOUT)?;
    for (index, element) in step.gradient()?.iter_mut().enumerate() {
        *element = gradient(index);
    }
    step.suspend();
    let mut published = 0;
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        let mut took = Duration::ZERO;
        for _ in 0..count {
            worker.step(TIMEOUT)?.suspend();
            took += calls(1, || Ok(worker.resume()?.publish(None, TIMEOUT)?))?;
            worker.flush(TIMEOUT)?;
            published += 1;
        }
        Ok(took)
    })?;
    if settings.validate {
        check_sum(&carrier, &address, bytes, published)?;
    }
    drop(worker);
    server.end()?;
    let measured = Measured::over(C::NAME, settings.op.name(), bytes, bytes, timing);
    let measured = measured.validated(settings.validate).in_memory(memory.names());
    Ok(carrier.describe(&settings.means, measured))
}

pub(super) fn gradient(index: usize) -> f32 {
    1e-3 * (1 + index % PERIOD) as f32
}

/// Whether the server has added up so many gradients, each whole.
pub(super) fn check_sum<C: Carrier>(
    carrier: &C,
    at: &Address,
    bytes: u64,
    published: u64,
) -> Result<(), BenchError> {
    let mut wanted = [INITIAL; PERIOD];
    for _ in 0..published {
        for (index, element) in wanted.iter_mut().enumerate() {
            *element -= RATE * gradient(index);
        }
    }
    let mut reader = Reader::connect(carrier.clone(), at, ReaderOptions::default(), TIMEOUT)?;
    let into = carrier.allocate(bytes as usize, Access::LOCAL)?.whole();
    let begun = Instant::now();
    loop {
        reader.pull(&into, Bound::NONE, TIMEOUT)?;
        let mut found = vec![0; bytes as usize];
        into.as_volatile().read(&mut found);
        let differs = |(index, element): (usize, &[u8])| element != wanted[index % PERIOD].to_le_bytes();
        let Some(at) = found.chunks(4).enumerate().position(differs) else { return Ok(()) };
        if begun.elapsed() > SHOW {
            let location = "in the server's sum of gradients";
            return pattern::verdict(Some(4 * at as u64), bytes, location);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A copy of a version, validated.
pub(super) fn pull<C: Carrier>(
    settings: &Settings,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
) -> Result<Measured, BenchError> {
    let role = TaskRole::Publisher { chunk: settings.chunk, crowd: None };
    let (Ready { address, memory: peer_memory }, publisher) = start(settings, remote, bytes, role)?;
    let memory = MemoryArgs { peer_memory, ..settings.means.memory };
    let carrier = C::open(&settings.means)?;
    if let Some(gpu) = memory.gpu()? {
        let timing = gpu::pull(settings, &carrier, &address, OnGpu::new(&gpu, bytes)?)?;
        publisher.end()?;
        let measured = Measured::over(C::NAME, settings.op.name(), bytes, bytes, timing);
        let measured = measured.validated(settings.validate).in_memory(memory.names());
        return Ok(carrier.describe(&settings.means, measured));
    }
    let mut reader = Reader::connect(carrier.clone(), &address, ReaderOptions::default(), TIMEOUT)?;
    let into = carrier.allocate(bytes as usize, Access::LOCAL)?.whole();
    let mut retries = 0;
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        calls(count, || {
            retries += reader.pull(&into, Bound::NONE, TIMEOUT)?.retries;
            Ok(())
        })
    })?;
    if settings.validate {
        pattern::verdict(pattern::first_wrong(into.as_volatile()), bytes, "in what was pulled")?;
    }
    drop(reader);
    publisher.end()?;
    let measured = Measured::over(C::NAME, settings.op.name(), bytes, bytes, timing).with("retries", retries);
    let measured = measured.validated(settings.validate).in_memory(memory.names());
    Ok(carrier.describe(&settings.means, measured))
}

/// Pin, read one word, let go.
pub(super) fn pinned_read<C: Carrier>(
    settings: &Settings,
    remote: Option<&Rc<Remote>>,
    bytes: u64,
) -> Result<Measured, BenchError> {
    let role = TaskRole::Publisher { chunk: settings.chunk, crowd: None };
    let (Ready { address, .. }, publisher) = start(settings, remote, bytes, role)?;
    let mut reader = Reader::connect(C::open(&settings.means)?, &address, ReaderOptions::default(), TIMEOUT)?;
    let mut word = [0; 8];
    let width = word.len().min(bytes as usize);
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        calls(count, || {
            let frame = reader.pin(Bound::NONE, TIMEOUT)?;
            frame.bytes()?.subslice(0, width).read(&mut word[..width]);
            std::hint::black_box(&word);
            Ok(())
        })
    })?;
    drop(reader);
    publisher.end()?;
    let measured = Measured::new(settings.op.name(), bytes, width as u64, timing);
    Ok(measured
        .with("bytes_copied", width)
        .note(format!("{width} bytes of {bytes} are read, nothing is copied")))
}
