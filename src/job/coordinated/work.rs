//! A worker of a coordinated job with servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::JobError;
use super::super::member::End;
use super::super::worker_loop::WorkerLoop;
use super::WorkerOrder;
use super::member::{CoordinatedMember, Talk};
use super::reports::WorkerReport;
use crate::node::{Error, Idle, Step, Worker, WorkerOptions};
use crate::transport::mixed::Mixed;

/// The time between two updates of a worker's report.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(50);

/// The work of a worker of a coordinated job with servers.
pub struct ServerWork {
    member: CoordinatedMember,
    work: WorkerLoop<Talk>,
}

/// The computation of one clock: it encodes or borrows the gradient of the step and returns the loss, or `None` to
/// abandon the clock because [`Step::should_stop`] says so.
type Compute<'a> = &'a mut dyn FnMut(&mut Step<'_, Mixed>) -> Result<Option<f32>, Error>;

/// The reader of a worker's counters, with the mean loss since the last call if there was a gradient.
type Observe<'a> = &'a mut dyn FnMut(&Worker<Mixed>, Option<f64>);

impl CoordinatedMember {
    /// Connects a worker to the servers of its job, once all of them are up.
    ///
    /// # Errors
    /// The servers do not come up within the timeout of `order`, or no transport reaches one.
    pub fn connect(&self, order: WorkerOrder) -> Result<ServerWork, JobError> {
        let options = WorkerOptions {
            encoding: order.encoding,
            checksums: order.checksums,
            own_step: order.own_step,
            idle: if order.sleeps { Idle::Sleep } else { Idle::Poll },
            // Started again, it is the same worker to the servers.
            identity: u32::try_from(order.worker).ok(),
            ..WorkerOptions::new(order.scheme)
        };
        let worker = self.member.connect(&order.plan, options)?;
        let work = WorkerLoop::new(Arc::clone(&self.member), order.plan, worker);
        Ok(ServerWork { member: self.clone(), work })
    }
}

impl ServerWork {
    /// Trains until all clocks of the order are done, and then stays until the job is over: while it is in, the others'
    /// gradients keep their weight. If the order says so, it connects again to servers that were lost and come back,
    /// and goes on at the clock at which they are.
    ///
    /// `compute` encodes or borrows the gradient of a step and returns the loss, or `None` to abandon the clock, as
    /// [`Step::should_stop`] asks for. `observe` is called about twenty times a second, between two steps, with the
    /// mean loss since its last call if there was a gradient.
    ///
    /// # Errors
    /// A wait was longer than the timeout of the order, or a server is lost that is not waited for.
    pub fn run(&mut self, compute: Compute<'_>, observe: Observe<'_>) -> Result<End, JobError> {
        self.member.report(WorkerReport::default());
        loop {
            if let Some(end) = self.train(compute, observe)? {
                return Ok(end);
            }
            self.member.report(self.report());
            match self.work.attend() {
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                // The coordinator decides what becomes of a job that has lost a server.
                Err(_) => return Ok(self.member.wait_for_the_end()),
            }
        }
    }

    /// Trains until all clocks are done, or until the job is over.
    fn train(&mut self, compute: Compute<'_>, observe: Observe<'_>) -> Result<Option<End>, JobError> {
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        while self.work.begin()? {
            let mut step = self.work.step()?;
            match compute(&mut step.step) {
                Ok(Some(loss)) => {
                    if step.publish(Some(loss))? {
                        (sum, count) = (sum + f64::from(loss), count + 1);
                    }
                }
                Ok(None) => step.abandon()?,
                Err(error) => step.fail(error)?,
            }
            // Cheap next to a step, but there may be thousands of steps between two reports.
            if reported.elapsed() >= REPORT_EVERY {
                let loss = (count > 0).then(|| sum / f64::from(count));
                self.member.report(WorkerReport { loss, ..self.report() });
                observe(&self.work.worker, loss);
                (sum, count, reported) = (0.0, 0, Instant::now());
                if let Some(end) = self.member.end() {
                    return Ok(Some(end));
                }
            }
        }
        Ok(None)
    }

    fn report(&self) -> WorkerReport {
        WorkerReport::of(self.work.worker.clock(), self.work.worker.statistics())
    }
}
