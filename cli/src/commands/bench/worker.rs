//! One worker, which does rounds and says how long each took.

use std::time::{Duration, Instant};

use slackline::{ReadMode, Worker, WorkerOptions, scheme::SchemeConfig};

use super::carrier::Carrier;
use super::client::Client;
use super::error::BenchError;
use super::measure::{Progress, SAMPLES_AHEAD};
use super::messages::{TIMEOUT, Task, TaskRole};

pub(super) fn serve<C: Carrier>(task: &Task, client: &Client) -> Result<(), BenchError> {
    let TaskRole::Worker { borrow, warmup, rounds } = task.role else {
        return Err(BenchError::Peer("not a worker's task".into()));
    };
    let read = if borrow { ReadMode::InPlace } else { ReadMode::Copy };
    let options = WorkerOptions { read, ..WorkerOptions::new(SchemeConfig::Bsp) };
    let (carrier, servers) = (C::open(&client.means)?, std::slice::from_ref(task.address()?));
    let mut worker = Worker::connect(carrier, servers, options, TIMEOUT)?;
    let mut step = worker.step(TIMEOUT)?;
    if !borrow {
        step.gradient()?.fill(1e-3);
    }
    step.suspend();
    let mut progress = Progress::new("round".into());
    let mut samples = Vec::with_capacity(rounds.min(SAMPLES_AHEAD) as usize);
    for round in 0..warmup + rounds {
        let took = one_round(&mut worker, borrow)?;
        if round >= warmup {
            samples.push(took.as_nanos() as f64);
        }
        progress.tick("round", round + 1, warmup + rounds);
    }
    drop(worker);
    client.say(&samples)
}

fn one_round<C: Carrier>(worker: &mut Worker<C>, borrow: bool) -> Result<Duration, BenchError> {
    let begun = Instant::now();
    let mut step = worker.resume()?;
    if borrow {
        drop(step.borrow_slots(TIMEOUT)?);
        step.publish_slots(None, TIMEOUT)?;
    } else {
        step.publish(None, TIMEOUT)?;
    }
    worker.step(TIMEOUT)?.suspend();
    Ok(begun.elapsed())
}
