//! One process with many peers (`bench --peers`): each of them has a connection of its own, and they take turns.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use slackline::internals::mem::{Access, LocalSlice};
use slackline::internals::transport::AtomicDomain;
use slackline::{
    Address, ReadMode, Reader, ReaderOptions, Worker, WorkerOptions,
    scheme::{Bound, SchemeConfig},
};

use super::arguments::Op;
use super::carrier::Carrier;
use super::histogram::TimeHistogram;
use super::nodes::TIMEOUT;
use super::peer::{Client, Task};
use super::pong::Side;
use super::requester::{Flow, Requester};
use super::usage::{cpu_time, raise_open_files};
use super::{BenchError, pattern};

/// The task of such a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct LoadTask {
    pub(super) peers: u16,
    /// The operation of each: workers do rounds, readers pull, others post single requests.
    pub(super) op: Op,
    /// Turns before the first that is timed.
    pub(super) warmup: u64,
    pub(super) course: Course,
    /// Whether it goes on until it is killed.
    pub(super) is_victim: bool,
    /// Whether what was pulled last is compared with what was published.
    pub(super) validate: bool,
}

/// The end of the turns that are timed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Course {
    Turns(u64),
    Lasting(Duration),
}

impl Course {
    /// The part of it that is over.
    fn part(self, turns: u64, passed: Duration) -> f64 {
        match self {
            Course::Turns(all) => turns as f64 / all as f64,
            Course::Lasting(length) => passed.as_secs_f64() / length.as_secs_f64(),
        }
    }
}

/// The messages of such a process, in this order. It waits for a sign to go on after the first and the second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum LoadMessage {
    /// It can connect.
    Ready,
    /// All its peers have joined; how long each took.
    Joined(TimeHistogram),
    /// Half of the course is over.
    Half,
    /// All of it is, and its peers have left.
    Over { halves: [Half; 2], cpu_ns: u64 },
}

/// One half of the course.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Half {
    pub(super) seconds: f64,
    /// The time that each operation took.
    pub(super) operations: TimeHistogram,
}

pub(super) fn run<C: Carrier>(task: &Task, load: LoadTask, client: &Client) -> Result<(), BenchError> {
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
                let side = Side::connect(carrier, address, bytes)?;
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
