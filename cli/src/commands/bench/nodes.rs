//! Measurements of single operations of nodes: publish, pull, pinned read.

use std::time::{Duration, Instant};

use slackline::internals::mem::{Access, VolatileSlice};
use slackline::{
    Address, ElementType, Publisher, PublisherOptions, ReadMode, Reader, ReaderOptions, Table, Worker,
    WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::BenchError;
use super::arguments::Settings;
use super::carrier::Carrier;
use super::measure::{calls, time};
use super::pattern;
use super::peer::{Client, Peer, Task, TaskRole};
use super::pin::{pair, pin_to};
use super::report::Measured;
use super::usage::Watch;

pub(super) const TIMEOUT: Duration = Duration::from_secs(60);
/// The lease of an owner with a crowd of peers. At ten heartbeats in the default lease a thousand peers would say 3,300
/// times a second that they live, which is more than an emulated device carries beside the measurement.
pub(super) const LEASE_OF_CROWD: Duration = Duration::from_secs(30);

/// The value that every parameter of the server begins with, and the learning rate that scales a gradient.
pub(super) const INITIAL: f32 = 1.0;
pub(super) const RATE: f32 = 1e-3;
/// Gradients are the same again after so many elements, so that what they add up to is soon worked out.
const PERIOD: usize = 64;
/// Longest time that a server may take to show a gradient after it has taken it.
const SHOW: Duration = Duration::from_secs(5);

/// Starts the other side.
fn start(settings: &Settings, bytes: u64, role: TaskRole) -> Result<(Address, Peer), BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    settings.task(bytes, core, role).start(settings.remote.as_ref())?.ready()
}

/// A worker's gradient into its slot. The server folds it while it lands and goes on after; the next one begins only
/// when it is done.
pub(super) fn publish<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let role = TaskRole::Server {
        asynchronous: true,
        workers: 1,
        chunk: settings.chunk,
        threads: 1,
        folds: 0,
        is_crowd: false,
    };
    let (address, server) = start(settings, bytes, role)?;
    let carrier = C::open(&settings.means)?;
    // Read in place where that is possible: only the gradient is copied.
    let read = if carrier.capabilities().in_place { ReadMode::InPlace } else { ReadMode::Copy };
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
    Ok(carrier.describe(&settings.means, settings.validated(measured)))
}

fn gradient(index: usize) -> f32 {
    1e-3 * (1 + index % PERIOD) as f32
}

/// Whether the server has added up so many gradients, each whole.
fn check_sum<C: Carrier>(carrier: &C, at: &Address, bytes: u64, published: u64) -> Result<(), BenchError> {
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
pub(super) fn pull<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (address, publisher) =
        start(settings, bytes, TaskRole::Publisher { chunk: settings.chunk, crowd: None })?;
    let carrier = C::open(&settings.means)?;
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
    Ok(carrier.describe(&settings.means, settings.validated(measured)))
}

/// Pin, read one word, let go.
pub(super) fn pinned_read<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (address, publisher) =
        start(settings, bytes, TaskRole::Publisher { chunk: settings.chunk, crowd: None })?;
    let mut reader = Reader::connect(C::open(&settings.means)?, &address, ReaderOptions::default(), TIMEOUT)?;
    let mut word = [0; 8];
    let width = word.len().min(bytes as usize);
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        calls(count, || {
            let frame = reader.pin(Bound::NONE, TIMEOUT)?;
            frame.bytes().subslice(0, width).read(&mut word[..width]);
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

/// A publisher with one version, and what its readers cost it if they are a crowd.
pub(super) fn serve_publisher<C: Carrier>(
    task: &Task,
    chunk: u64,
    crowd: Option<u16>,
    client: &Client,
) -> Result<(), BenchError> {
    let table = Table::flat(task.bytes / 4, ElementType::F32)?;
    let mut options = PublisherOptions::default();
    options.memory.chunk_bytes = chunk;
    options.memory.peers = options.memory.peers.max(crowd.unwrap_or(0));
    options.memory.lease = crowd.map_or(options.memory.lease, |_| LEASE_OF_CROWD);
    let (carrier, anywhere) = (C::open(&client.means)?, C::anywhere(client.host));
    let mut publisher = Publisher::new(carrier, &anywhere, table, options)?;
    let mut payload = vec![0; task.bytes as usize];
    pattern::fill(VolatileSlice::from_mut(&mut payload));
    // Every page of the frame that is read is there.
    publisher.publish(&payload, TIMEOUT)?;
    let watch = crowd.map(|readers| Watch::begin(readers.into())).transpose()?;
    client.say(&publisher.address())?;
    let over = |publisher: &Publisher<C>| {
        if let Some(watch) = &watch {
            watch.look(publisher.joined());
        }
        client.is_done()
    };
    while !publisher.drive(over, TIMEOUT)? {}
    let Some(watch) = watch else { return Ok(()) };
    client.say(&watch.end(publisher.joined(), 0)?)
}
