//! Trains a linear model with one server and any number of workers, on one host or many.
//!
//! ```sh
//! slackline launch -n 3 -- target/release/examples/parameter_server
//! torchrun --no-python --nproc-per-node 3 target/release/examples/parameter_server
//! ```
//!
//! All processes run this one program; the launcher tells each which part it has.

use std::error::Error;

use slackline::{ElementType, Job, JobPlan, Role, ServerOptions, Table, WorkerOptions, scheme::SchemeConfig};

const COLUMNS: usize = 16;
const BATCH: usize = 32;
const CLOCKS: u64 = 300;
const LEARNING_RATE: f32 = 0.05;

/// The scheme: a worker is at most two clocks ahead of the slowest.
const SCHEME: SchemeConfig = SchemeConfig::Ssp { staleness: 2 };

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let job = Job::from_env(JobPlan::servers(1).clocks(CLOCKS))?;
    match job.role() {
        Role::Server(_) => {
            let table = Table::builder().tensor("weight", &[COLUMNS as u64], ElementType::F32).build()?;
            let options = ServerOptions::new(SCHEME, job.workers(), LEARNING_RATE);
            let served = job.serve(table, &[0.0; COLUMNS], options)?;
            let off = |(column, weight): (usize, &f32)| (weight - truth(column)).abs();
            let error = served.parameters.iter().enumerate().map(off).fold(0.0, f32::max);
            println!("{} versions, largest error {error:.4}", served.status.version.get());
        }
        Role::Worker(number) => {
            let mut worker = job.worker(WorkerOptions::default())?;
            let mut seed = u64::from(number) + 1;
            while let Some(mut step) = worker.next_step()? {
                let (weights, gradient) = step.borrow()?; // both at once, and nothing is copied
                let loss = least_squares(weights, gradient, &mut seed);
                step.publish(Some(loss))?;
            }
            println!("worker {number}: {} clocks", worker.clock().get());
        }
    }
    Ok(())
}

/// The weight that training should find.
fn truth(column: usize) -> f32 {
    column as f32 / COLUMNS as f32 - 0.5
}

/// Writes the gradient of the mean squared error over a batch of random examples, and returns half that error.
fn least_squares(weights: &[f32], gradient: &mut [f32], seed: &mut u64) -> f32 {
    gradient.fill(0.0);
    let mut loss = 0.0;
    for _ in 0..BATCH {
        let example: [f32; COLUMNS] = std::array::from_fn(|_| random(seed));
        let error: f32 = (0..COLUMNS).map(|column| (weights[column] - truth(column)) * example[column]).sum();
        loss += error * error / (2 * BATCH) as f32;
        for (gradient, value) in gradient.iter_mut().zip(example) {
            *gradient += error * value / BATCH as f32;
        }
    }
    loss
}

/// The next number between -1 and 1 of a xorshift generator.
fn random(seed: &mut u64) -> f32 {
    for (left, shift) in [(true, 13), (false, 7), (true, 17)] {
        *seed ^= if left { *seed << shift } else { *seed >> shift };
    }
    (*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}
