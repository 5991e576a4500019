//! What nodes do, one at a time: publish, pull, pinned read.

use std::time::Duration;

use slackline::mem::Access;
use slackline::node::{Publisher, PublisherOptions, ReadMode, Reader, ReaderOptions, Worker, WorkerOptions};
use slackline::scheme::{Bound, Config};
use slackline::table::{ElementType, Table};
use slackline::transport::Address;

use super::BenchError;
use super::arguments::Settings;
use super::carrier::Carrier;
use super::measure::{calls, time};
use super::peer::{Peer, Role, Stop, Task, say};
use super::pin::{pair, pin_to};
use super::report::Measured;

pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the other side.
fn start(settings: &Settings, bytes: u64, role: Role) -> Result<(Address, Peer), BenchError> {
    let (own_core, core) = pair(settings.pin);
    if let Some(core) = own_core {
        pin_to(core);
    }
    Task { transport: settings.transport, address: None, core, bytes, role }.start()?.ready()
}

/// A worker's gradient into its slot. The server folds it while it lands and goes on after; the next one begins only
/// when it is done.
pub(super) fn publish<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let role = Role::Server { asynchronous: true, workers: 1, chunk: settings.chunk, threads: 1, folds: 0 };
    let (address, server) = start(settings, bytes, role)?;
    let carrier = C::default();
    // Read in place where that is possible: only the gradient is copied.
    let read = if carrier.capabilities().in_place { ReadMode::InPlace } else { ReadMode::Copy };
    let options = WorkerOptions { read, ..WorkerOptions::new(Config::Asp) };
    let mut worker = Worker::connect(carrier, &[address], options, TIMEOUT)?;
    worker.gradient()?.fill(1e-3);
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        let mut took = Duration::ZERO;
        for _ in 0..count {
            worker.begin(TIMEOUT)?;
            took += calls(1, || Ok(worker.publish(None, TIMEOUT)?))?;
            worker.flush(TIMEOUT)?;
        }
        Ok(took)
    })?;
    drop(worker);
    server.end()?;
    Ok(Measured::over(C::NAME, settings.op.name(), bytes, bytes, timing))
}

/// A copy of a version, validated.
pub(super) fn pull<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (address, publisher) = start(settings, bytes, Role::Publisher { chunk: settings.chunk })?;
    let carrier = C::default();
    let mut reader = Reader::connect(carrier.clone(), &address, ReaderOptions::default(), TIMEOUT)?;
    let into = carrier.allocate(bytes as usize, Access::LOCAL)?.whole();
    let mut retries = 0;
    let timing = time(settings, &format!("of {bytes} bytes"), |count| {
        calls(count, || {
            retries += reader.pull(&into, Bound::NONE, TIMEOUT)?.retries;
            Ok(())
        })
    })?;
    drop(reader);
    publisher.end()?;
    Ok(Measured::over(C::NAME, settings.op.name(), bytes, bytes, timing).with("retries", retries))
}

/// Pin, read one word, let go.
pub(super) fn pinned_read<C: Carrier>(settings: &Settings, bytes: u64) -> Result<Measured, BenchError> {
    let (address, publisher) = start(settings, bytes, Role::Publisher { chunk: settings.chunk })?;
    let mut reader = Reader::connect(C::default(), &address, ReaderOptions::default(), TIMEOUT)?;
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

/// A publisher with one version.
pub(super) fn serve_publisher<C: Carrier>(task: &Task, chunk: u64, stop: &Stop) -> Result<(), BenchError> {
    let table = Table::flat(task.bytes / 4, ElementType::F32)?;
    let mut options = PublisherOptions::default();
    options.memory.chunk_bytes = chunk;
    let mut publisher = Publisher::new(C::default(), &C::anywhere(), table, options)?;
    // Every page of the frame that is read is there.
    publisher.publish(&vec![1; task.bytes as usize], TIMEOUT)?;
    say(&publisher.address())?;
    while !publisher.drive(|_| stop.is_wanted(), TIMEOUT)? {}
    Ok(())
}
