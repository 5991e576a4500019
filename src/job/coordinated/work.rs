//! A worker of a coordinated job with servers.

use std::time::{Duration, Instant};

use super::super::JobError;
use super::super::member::End;
use super::super::rendezvous::MemberRole;
use super::WorkerOrder;
use super::member::CoordinatedMember;
use super::orders::Message;
use super::reports::WorkerReport;
use crate::node::{Error, Step, Worker, WorkerOptions, now};
use crate::transport::mixed::Mixed;

/// The longest time that one attempt to connect to servers that came back may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The time between two looks of a finished worker at its connections.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The time between two updates of a worker's report.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(50);

/// The work of a worker of a coordinated job with servers.
pub struct ServerWork {
    member: CoordinatedMember,
    order: WorkerOrder,
    worker: Worker<Mixed>,
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
        let (addresses, taken) =
            self.reach(MemberRole::Server, order.servers, order.transport, order.timeout)?;
        let options = WorkerOptions {
            encoding: order.encoding,
            checksums: order.checksums,
            own_step: order.own_step,
            // Started again, it is the same worker to the servers.
            identity: u32::try_from(order.worker).ok(),
            ..WorkerOptions::new(order.scheme)
        };
        let worker = Worker::connect(self.member.transports.open(), &addresses, options, order.timeout)?;
        self.say(Message::Joined(taken));
        Ok(ServerWork { member: self.clone(), order, worker })
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
            // A server that came back with a checkpoint may lack this worker's last gradients: the others wait for
            // them.
            if let Some(end) = self.train(compute, observe)? {
                return Ok(end);
            }
            self.member.finish(WorkerReport::of(self.worker.clock(), self.worker.statistics()));
            if let Some(end) = self.attend()? {
                return Ok(end);
            }
        }
    }

    /// Trains until all clocks are done, through the loss of servers if they may come back, or until the job is over.
    fn train(&mut self, compute: Compute<'_>, observe: Observe<'_>) -> Result<Option<End>, JobError> {
        loop {
            match self.steps(compute, observe) {
                Ok(end) => return Ok(end),
                Err(error) if self.order.reconnect && error.is_loss() => {
                    tracing::warn!(%error, "connecting again");
                    self.reconnect(error)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The clock of the worker says which step it is at: it may begin late, and after a loss it goes on where the
    /// servers are.
    fn steps(&mut self, compute: Compute<'_>, observe: Observe<'_>) -> Result<Option<End>, Error> {
        let (worker, timeout) = (&mut self.worker, self.order.timeout);
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        while self.order.clocks.is_none_or(|clocks| worker.clock().get() < clocks) {
            let mut step = worker.step(timeout)?;
            match compute(&mut step)? {
                Some(loss) => {
                    step.publish(Some(loss), timeout)?;
                    (sum, count) = (sum + f64::from(loss), count + 1);
                }
                None => step.abandon()?,
            }
            // Cheap next to a step, but there may be thousands of steps between two reports.
            if reported.elapsed() >= REPORT_EVERY {
                let loss = (count > 0).then(|| sum / f64::from(count));
                let report = WorkerReport::of(worker.clock(), worker.statistics());
                self.member.report(WorkerReport { loss, ..report });
                observe(worker, loss);
                (sum, count, reported) = (0.0, 0, Instant::now());
                if let Some(end) = self.member.end() {
                    return Ok(Some(end));
                }
            }
        }
        worker.flush(timeout).map(|()| None)
    }

    /// Stays in until the job is over, or a server is lost and has come back (`None`): it waits for all workers that
    /// are in, also for one that has finished.
    fn attend(&mut self) -> Result<Option<End>, JobError> {
        loop {
            if let Some(end) = self.member.member.wait_for_the_end(LOOK_EVERY) {
                return Ok(Some(end));
            }
            match self.worker.poll(now()) {
                Ok(_) => {}
                Err(error) if self.order.reconnect => return self.reconnect(error).map(|()| None),
                // The coordinator decides what becomes of a job that has lost a server.
                Err(_) => loop {
                    if let Some(end) = self.member.member.wait_for_the_end(self.order.timeout) {
                        return Ok(Some(end));
                    }
                },
            }
        }
    }

    /// Connects again once all servers are up, wherever they are by then.
    fn reconnect(&mut self, lost: Error) -> Result<(), JobError> {
        let deadline = Instant::now() + self.order.timeout;
        let mut last = lost;
        while Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let WorkerOrder { servers, transport, .. } = self.order;
            let (addresses, taken) = self.member.reach(MemberRole::Server, servers, transport, left)?;
            // What is told of a server that has just died may not have been corrected yet.
            match self.worker.reconnect(&addresses, left.min(ATTEMPT)) {
                Ok(()) => {
                    self.member.say(Message::Joined(taken));
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }
}
