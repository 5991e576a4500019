//! One process with many peers (`bench --peers`): each of them has a connection of its own, and they take turns.

use std::time::{Duration, Instant};

use slackline::internals::mem::{Access, LocalSlice};
use slackline::internals::transport::AtomicDomain;
use slackline::weights::{Reader, ReaderOptions};
use slackline::{
    Address, ReadMode, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;
use super::histogram::TimeHistogram;
use super::messages::{Flow, Half, LoadMessage, LoadTask, TIMEOUT, Task};
use super::names::Op;
use super::pattern;
use super::requester::Requester;
use super::side::Side;
use super::usage::{cpu_time, raise_open_files};

pub(super) fn serve<C: Carrier>(task: &Task, load: LoadTask, client: &Client) -> Result<(), BenchError> {
    raise_open_files()?;
    let (carrier, address) = (C::open(&client.means)?, task.address()?);
    let mut crowd = Crowd::new(&carrier, load.op, task.bytes)?;
    client.say(&LoadMessage::Ready)?;
    client.wait_for_go()?;
    let mut joining = TimeHistogram::default();
    for _ in 0..load.peers {
        let begun = Instant::now();
        crowd.join(&carrier, address, task.bytes)?;
        joining.add(begun.elapsed());
    }
    client.say(&LoadMessage::Joined(joining))?;
    client.wait_for_go()?;
    crowd.prepare()?;
    for _ in 0..load.warmup {
        crowd.turn(|_| {})?;
    }
    let mut halves = [Half::default(), Half::default()];
    let (begun, cpu, mut turns) = (Instant::now(), cpu_time(), 0);
    for (index, half) in halves.iter_mut().enumerate() {
        let (until, half_begun) = (0.5 * (index + 1) as f64, Instant::now());
        let goes_on = load.is_victim && index == 1;
        while goes_on || load.course.part(turns, begun.elapsed()) < until {
            crowd.turn(|took| half.operations.add(took))?;
            turns += 1;
        }
        half.seconds = half_begun.elapsed().as_secs_f64();
        if index == 0 {
            client.say(&LoadMessage::Half)?;
        }
    }
    let cpu_ns = u64::try_from((cpu_time() - cpu).as_nanos()).unwrap_or(u64::MAX);
    if let (true, Crowd::Readers(_, into)) = (load.validate, &crowd) {
        pattern::verdict(pattern::first_wrong(into.as_volatile()), task.bytes, "in what was pulled")?;
    }
    // Others may do one turn more, and are not to wait for these.
    drop(crowd);
    client.say(&LoadMessage::Over { halves, cpu_ns })
}

/// The peers of this process.
enum Crowd<C: Carrier> {
    Workers(Vec<Worker<C>>),
    /// Readers, and the memory into which they copy by turns.
    Readers(Vec<Reader<C>>, LocalSlice),
    /// Sides that post single requests.
    Requesters(Vec<Requester<C>>, Op),
}

impl<C: Carrier> Crowd<C> {
    fn new(carrier: &C, op: Op, bytes: u64) -> Result<Crowd<C>, BenchError> {
        Ok(match op {
            Op::Round => Crowd::Workers(Vec::new()),
            Op::Pull => Crowd::Readers(Vec::new(), carrier.allocate(bytes as usize, Access::LOCAL)?.whole()),
            Op::FetchAdd if carrier.capabilities().atomics == AtomicDomain::None => {
                return Err(BenchError::NoAtomics);
            }
            _ => Crowd::Requesters(Vec::new(), op),
        })
    }

    /// Lets one more join.
    fn join(&mut self, carrier: &C, address: &Address, bytes: u64) -> Result<(), BenchError> {
        match self {
            Crowd::Workers(workers) => {
                let options = WorkerOptions { read: ReadMode::Copy, ..WorkerOptions::new(SchemeConfig::Bsp) };
                let servers = std::slice::from_ref(address);
                workers.push(Worker::connect(carrier.clone(), servers, options, TIMEOUT)?);
            }
            Crowd::Readers(readers, _) => {
                readers.push(Reader::connect(carrier.clone(), address, ReaderOptions::default(), TIMEOUT)?);
            }
            Crowd::Requesters(requesters, op) => {
                let side = Side::connect(carrier, address, bytes, None)?;
                requesters.push(Requester::new(side, *op, Flow { window: 1, list: 1 }));
            }
        }
        Ok(())
    }

    /// Brings the first parameters.
    fn prepare(&mut self) -> Result<(), BenchError> {
        if let Crowd::Workers(workers) = self {
            for worker in workers {
                let mut step = worker.step(TIMEOUT)?;
                step.gradient()?.fill(1e-3);
                step.suspend();
            }
        }
        Ok(())
    }

    /// One operation of each, and how long it took. Workers publish one after the other, and then pull; requests are
    /// all posted, and then waited for.
    fn turn(&mut self, mut took: impl FnMut(Duration)) -> Result<(), BenchError> {
        match self {
            Crowd::Workers(workers) => {
                let mut begun = Vec::with_capacity(workers.len());
                for worker in workers.iter_mut() {
                    begun.push(Instant::now());
                    worker.resume()?.publish(None, TIMEOUT)?;
                }
                for (worker, begun) in workers.iter_mut().zip(begun) {
                    worker.step(TIMEOUT)?.suspend();
                    took(begun.elapsed());
                }
            }
            Crowd::Readers(readers, into) => {
                for reader in readers {
                    let begun = Instant::now();
                    reader.pull(into, Bound::NONE, TIMEOUT)?;
                    took(begun.elapsed());
                }
            }
            Crowd::Requesters(requesters, _) => {
                let mut begun = Vec::with_capacity(requesters.len());
                for requester in requesters.iter_mut() {
                    begun.push(Instant::now());
                    requester.post()?;
                }
                for (requester, begun) in requesters.iter_mut().zip(begun) {
                    requester.wait()?;
                    took(begun.elapsed());
                }
            }
        }
        Ok(())
    }
}
