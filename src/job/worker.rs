//! The workers of a job.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::member::{End, WaitError};
use super::messages::{FromMember, encode};
use super::rendezvous::MemberRole;
use super::{Job, JobError, Role};
use crate::clock::Clock;
use crate::node::{Error, Step, View, Worker, WorkerOptions, WorkerStatistics, now};
use crate::transport::Address;
use crate::transport::mixed::Mixed;

/// The longest time that one attempt to connect to a server may take: the server may be about to announce a new
/// address.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The longest time for which a worker that has finished does not look after its connections.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A worker of a job, which connects again to servers that come back if the plan says so.
pub struct JobWorker<'a> {
    job: &'a Job,
    worker: Worker<Mixed>,
    /// The loss of a server that the next step has to recover from.
    lost: Option<Error>,
}

/// The fate of a gradient at the end of [`JobStep::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// All servers have the gradient.
    Delivered,
    /// A server was lost meanwhile: each shard has the gradient once or not at all. The next step connects again.
    Unknown,
}

impl Job {
    /// Connects this worker to the servers, as [`connect`](Self::connect) does. The worker that it returns connects
    /// again by itself and knows the plan's number of clocks.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub fn worker(&self, options: WorkerOptions) -> Result<JobWorker<'_>, JobError> {
        Ok(JobWorker { job: self, worker: self.connect(options)?, lost: None })
    }

    /// Connects this worker to the servers, once all of them are up, at most the plan's timeout.
    ///
    /// The identity in `options` is the number of this worker, so that a gradient counts once even if the process is
    /// started again.
    ///
    /// # Errors
    /// The servers do not come up in time, refuse the worker, or the job fails meanwhile; [`JobError::OtherRole`] if
    /// this process is a server. Rank 0 hears the error.
    #[doc(hidden)]
    pub fn connect(&self, options: WorkerOptions) -> Result<Worker<Mixed>, JobError> {
        let Role::Worker(number) = self.role else {
            return Err(self.other_role("Job::worker", "worker"));
        };
        if self.plan.servers == 0 {
            return Err(JobError::NoServer);
        }
        let options = WorkerOptions { identity: Some(number), ..options };
        let connect = |addresses: &[Address], left| {
            Worker::connect(self.member.transports.open(), addresses, options.clone(), left)
        };
        self.with_servers(connect).inspect_err(|error| self.fail(error))
    }

    /// Connects a worker again after the loss of a server, once all servers are up again, at most the plan's timeout.
    /// It goes on at the clock at which the servers are.
    ///
    /// # Errors
    /// [`JobError::NotBack`] if they are not up in time, [`JobError::Failed`] if the job failed meanwhile.
    #[doc(hidden)]
    pub fn reconnect(&self, worker: &mut Worker<Mixed>) -> Result<(), JobError> {
        let reconnect = |addresses: &[Address], left| worker.reconnect(addresses, left);
        match self.with_servers(reconnect) {
            Err(JobError::Wait(WaitError::Deadline { waited, what })) => {
                Err(JobError::NotBack { waited, last: format!("waited for {what}") })
            }
            Err(JobError::Node(error)) => {
                Err(JobError::NotBack { waited: self.plan.timeout, last: error.to_string() })
            }
            result => result,
        }
    }

    /// Waits until all servers are up and connects to them by `connect`, which is given their addresses and the time
    /// that is left. Tries again while servers may still be replaced.
    fn with_servers<R>(
        &self,
        mut connect: impl FnMut(&[Address], Duration) -> Result<R, Error>,
    ) -> Result<R, JobError> {
        let deadline = Instant::now() + self.plan.timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let addresses = self.reach(MemberRole::Server, self.plan.servers as usize, left);
            let addresses = addresses.map_err(|error| self.told_instead(error))?;
            // The address of a server that has just died may not have been replaced yet.
            let attempt = if self.plan.reconnect { left.min(ATTEMPT) } else { left };
            match connect(&addresses, attempt) {
                Ok(connected) => return Ok(connected),
                Err(error) if self.plan.reconnect && is_passing(&error) && Instant::now() < deadline => {
                    tracing::debug!(%error, "connecting again");
                }
                Err(error) => return Err(self.cause(error)),
            }
        }
    }

    /// Says that this worker has finished, and waits until the job is over, at most `timeout`: false if it is not over
    /// by then, and the call can be repeated. Flush the worker first, and keep it until this has returned true: while
    /// it is in, the weight of the others' gradients does not change.
    ///
    /// # Errors
    /// [`JobError::Failed`] if the job failed, [`JobError::Lost`] if rank 0 is gone. [`Error::ServerLost`] if a server
    /// is lost: [`reconnect`](Self::reconnect), and train on from the worker's clock, since a server that comes back
    /// waits for all workers and may lack this one's last gradients.
    #[doc(hidden)]
    pub fn finish(&self, worker: &mut Worker<Mixed>, timeout: Duration) -> Result<bool, JobError> {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if self.end(left.min(LOOK_EVERY))? {
                return Ok(true);
            }
            worker.poll(now()).map_err(|error| self.cause(error))?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Says that this worker has finished, and waits until the job is over, at most `timeout`: false if it is not over
    /// by then, and the call can be repeated. It is for workers without a server; the others call
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`JobError::Failed`] if the job failed, [`JobError::Lost`] if rank 0 is gone, [`JobError::OtherRole`] if this
    /// process is a server.
    pub fn end(&self, timeout: Duration) -> Result<bool, JobError> {
        let Role::Worker(_) = self.role else { return Err(self.other_role("Job::finish", "worker")) };
        if !self.finished.swap(true, Ordering::Relaxed) {
            self.member.send(encode(&FromMember::Finished));
        }
        let Some(end) = self.member.wait_for_the_end(timeout) else { return Ok(false) };
        self.wait_for_the_others();
        end.into_result().map(|()| true)
    }

    /// Fails with the cause if the job has failed or rank 0 is gone: for callers of [`connect`](Self::connect),
    /// which learn from an error of the worker only that a server is gone.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), JobError> {
        self.member.end().map_or(Ok(()), End::into_result)
    }

    /// The addresses of all `count` members of a role, once all of them are up.
    pub(super) fn reach(
        &self,
        role: MemberRole,
        count: usize,
        timeout: Duration,
    ) -> Result<Vec<Address>, JobError> {
        let choices = self.member.reach(role, count, self.plan.transport, timeout)?;
        Ok(choices.into_iter().map(|choice| choice.address).collect())
    }

    /// The cause of an error: a server that is gone or silent may be so because the job has failed, and rank 0 is given
    /// a moment to say so.
    pub(super) fn cause(&self, error: Error) -> JobError {
        let wait = if is_passing(&error) { ATTEMPT } else { Duration::ZERO };
        self.told_within(wait).unwrap_or_else(|| error.into())
    }

    /// The cause of an error of [`reach`](Self::reach): a process that reaches another by no transport may have been
    /// started with another plan, and rank 0 is given a moment to say so.
    pub(super) fn told_instead(&self, error: JobError) -> JobError {
        match error {
            JobError::Wait(WaitError::Path(_)) => self.told_within(ATTEMPT).unwrap_or(error),
            error => error,
        }
    }

    /// The cause of the job's failure, if rank 0 tells it in this time.
    fn told_within(&self, wait: Duration) -> Option<JobError> {
        match self.member.wait_for_the_end(wait) {
            Some(End::Told(why)) => Some(JobError::Failed(why)),
            _ => None,
        }
    }

    pub(super) fn other_role(&self, call: &'static str, wanted: &'static str) -> JobError {
        JobError::OtherRole { role: self.role.to_string(), call, wanted }
    }
}

impl JobWorker<'_> {
    /// Waits as the scheme says for parameters, and begins the next clock on them. `None` once the worker has run all
    /// clocks of the plan and the job is over.
    ///
    /// If a server was lost and the plan says [`reconnect`](super::JobPlan::reconnect), it waits for the server to come
    /// back, and goes on at the clock at which the servers are.
    ///
    /// # Errors
    /// The plan's timeout passed, a server is lost for good, or the job failed: [`JobError::Failed`] has the cause.
    pub fn next_step(&mut self) -> Result<Option<JobStep<'_>>, JobError> {
        loop {
            self.recover()?;
            if self.job.plan.clocks.is_some_and(|clocks| self.worker.clock().get() >= clocks) {
                match self.worker.flush(self.job.plan.timeout) {
                    Ok(()) => {
                        if self.wait_for_the_end()? {
                            return Ok(None);
                        }
                    }
                    Err(error) => self.lose(error)?,
                }
                continue;
            }
            // The borrow of a step cannot leave a loop that may need the worker again: the step is resumed below.
            match self.worker.step(self.job.plan.timeout).map(Step::suspend) {
                Ok(_view) => break,
                Err(error) => self.lose(error)?,
            }
        }
        let step = self.worker.resume()?;
        Ok(Some(JobStep { step, job: self.job, lost: &mut self.lost }))
    }

    /// Waits until all gradients are applied, and then for the end of the job, as [`Job::finish`] does, however long
    /// the others take. It is for plans without a number of clocks.
    ///
    /// # Errors
    /// As for [`Job::finish`], or the gradients are not applied within the plan's timeout.
    pub fn finish(mut self) -> Result<(), JobError> {
        self.recover()?;
        self.worker.flush(self.job.plan.timeout).map_err(|error| self.job.cause(error))?;
        while !self.job.finish(&mut self.worker, self.job.plan.timeout)? {}
        Ok(())
    }

    /// The number of gradients that this worker has published.
    pub fn clock(&self) -> Clock {
        self.worker.clock()
    }

    /// The counters of this worker.
    pub fn statistics(&self) -> &WorkerStatistics {
        self.worker.statistics()
    }

    /// Waits for the end of the job, and looks after the connections meanwhile: false if a server is lost and may come
    /// back.
    fn wait_for_the_end(&mut self) -> Result<bool, JobError> {
        loop {
            if self.job.end(LOOK_EVERY)? {
                return Ok(true);
            }
            if let Err(error) = self.worker.poll(now()) {
                self.lose(error)?;
                return Ok(false);
            }
        }
    }

    /// Keeps the loss of a server for [`recover`](Self::recover), or gives up.
    fn lose(&mut self, error: Error) -> Result<(), JobError> {
        if !self.job.plan.reconnect || !error.is_loss() {
            let error = self.job.cause(error);
            self.job.fail(&error);
            return Err(error);
        }
        self.lost = Some(error);
        Ok(())
    }

    /// Connects again after a loss.
    fn recover(&mut self) -> Result<(), JobError> {
        let Some(lost) = self.lost.take() else { return Ok(()) };
        tracing::warn!(error = %lost, "connecting again");
        self.job.reconnect(&mut self.worker)
    }
}

/// One clock of a worker: the parameters to compute on, and the memory that the gradient is written into.
///
/// Dropping it abandons the clock; the next step begins it again.
#[must_use = "a step that is dropped is abandoned: call `publish`"]
pub struct JobStep<'a> {
    step: Step<'a, Mixed>,
    job: &'a Job,
    lost: &'a mut Option<Error>,
}

impl JobStep<'_> {
    /// The clock and the version of the parameters.
    pub fn view(&self) -> View {
        self.step.view()
    }

    /// The parameters and the memory for the gradient, both of the whole table, in the order of its tensors. Nothing is
    /// copied: the parameters lie where they were pulled to, and the gradient is published from where it lies.
    ///
    /// # Errors
    /// The worker encodes gradients to 16 bits ([`encode`](Self::encode) does that), or reads in place.
    pub fn borrow(&mut self) -> Result<(&[f32], &mut [f32]), JobError> {
        Ok(self.step.borrow()?)
    }

    /// The parameters of the whole table.
    ///
    /// # Errors
    /// The worker reads in place.
    pub fn parameters(&self) -> Result<&[f32], JobError> {
        Ok(self.step.parameters()?)
    }

    /// Rounds a gradient of the whole table to the encoding of the worker, ready to be published.
    ///
    /// # Errors
    /// The gradient has another length than the table.
    pub fn encode(&mut self, gradient: &[f32]) -> Result<(), JobError> {
        Ok(self.step.encode(gradient)?)
    }

    /// Returns true if a server asks this worker to abandon the step, as DBW and ABS do. It never waits.
    ///
    /// The loss of a server is no error here: [`publish`](Self::publish) or the next step finds it.
    pub fn should_stop(&mut self) -> bool {
        self.step.should_stop().unwrap_or(true)
    }

    /// Publishes the gradient and waits until every server has it whole, at most the plan's timeout. `loss` is the mean
    /// loss of the batch, for the schemes that ask for it.
    ///
    /// # Errors
    /// The timeout passed, or a server is lost and the plan does not say
    /// [`reconnect`](super::JobPlan::reconnect): [`JobError::Failed`] has the cause if rank 0 told it.
    pub fn publish(self, loss: Option<f32>) -> Result<Published, JobError> {
        match self.step.publish(loss, self.job.plan.timeout) {
            Ok(()) => Ok(Published::Delivered),
            Err(error) if self.job.plan.reconnect && error.is_loss() => {
                *self.lost = Some(error);
                Ok(Published::Unknown)
            }
            Err(error) => Err(self.job.cause(error)),
        }
    }
}

/// True if the error may pass once a server is replaced, or comes of the end of the job.
fn is_passing(error: &Error) -> bool {
    error.is_loss() || matches!(error, Error::Deadline { .. } | Error::Connect(_))
}
