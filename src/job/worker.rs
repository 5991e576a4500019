//! The workers of a job.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::member::{Conversation, End, WaitError};
use super::messages::EndOnly;
use super::worker_loop::{ATTEMPT, LoopStep, WorkerLoop, is_passing};
use super::{Job, JobError, Role};
#[cfg(feature = "cuda")]
use crate::cuda::{GpuSlice, GpuStream};
use crate::diagnostic::Diagnostic as _;
use crate::mem::CallerMemory;
use crate::node::{self, ShardOptions, Step, Worker, WorkerOptions};
use crate::transport::mixed::Mixed;

/// A worker of a job, which connects again to servers that come back if the plan says so. The methods of [`Worker`]
/// tell its state.
pub struct JobWorker<'a> {
    job: &'a Job,
    work: WorkerLoop<EndOnly>,
}

/// The fate of a gradient at the end of [`JobStep::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Published {
    /// All servers have the gradient; under BAP it may still be on its way.
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
        let worker = self.connect(options)?;
        Ok(JobWorker {
            job: self,
            work: WorkerLoop::new(Arc::clone(&self.member), self.plan.clone(), worker),
        })
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
        let number = self.as_worker("connecting to servers")?;
        if self.plan.servers == 0 {
            return Err(JobError::NoServer);
        }
        let options = WorkerOptions { identity: Some(number), ..options };
        let connected = match self.plan.per_host {
            true => {
                // Held meanwhile: a host has one server.
                let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
                let memory = ShardOptions::default();
                self.member.connect_on_host(&self.plan, self.workers(), &mut host, memory, options)
            }
            false => self.member.connect(&self.plan, options),
        };
        connected.map_err(|error| self.give_up(error))
    }

    /// Connects a worker again after the loss of a server, once all servers are up again, at most the plan's timeout.
    /// It goes on at the clock at which the servers are.
    ///
    /// # Errors
    /// [`JobError::NotBack`] if they are not up in time, [`JobError::Failed`] if the job failed meanwhile.
    #[doc(hidden)]
    pub fn reconnect(&self, worker: &mut Worker<Mixed>) -> Result<(), JobError> {
        self.member.reconnect(&self.plan, worker).map_err(|error| self.not_back(error))
    }

    /// Says that this worker has finished, and waits until the job is over, at most `timeout`: false if it is not over
    /// by then, and the call can be repeated. Flush the worker first, and keep it until this has returned true: while
    /// it is in, the weight of the others' gradients does not change. Where a server is gone, rank 0 is given 2 s to
    /// say that the job is over.
    ///
    /// # Errors
    /// [`JobError::Failed`] if the job failed, [`JobError::Lost`] if rank 0 is gone. [`JobError::Node`] if a server is
    /// lost: [`reconnect`](Self::reconnect), and train on from the worker's clock, since a server that comes back
    /// waits for all workers and may lack this one's last gradients.
    #[doc(hidden)]
    pub fn finish(&self, worker: &mut Worker<Mixed>, timeout: Duration) -> Result<bool, JobError> {
        self.as_worker("finishing")?;
        // Rank 0 was given its moment to tell the cause of an error.
        self.member.attend(worker, timeout)?.map_or(Ok(false), |end| self.over(end))
    }

    /// Says that this worker has finished, and waits until the job is over, at most `timeout`: false if it is not over
    /// by then, and the call can be repeated. It is for workers without a server; the others call
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`JobError::Failed`] if the job failed, [`JobError::Lost`] if rank 0 is gone, [`JobError::OtherRole`] if this
    /// process is a server.
    pub fn end(&self, timeout: Duration) -> Result<bool, JobError> {
        self.as_worker("finishing")?;
        self.member.tell(EndOnly::finished);
        self.member.wait_for_the_end(timeout).map_or(Ok(false), |end| self.over(end))
    }

    /// True if the job has ended well, once all members have heard how it has ended.
    fn over(&self, end: End) -> Result<bool, JobError> {
        self.wait_for_the_others();
        end.into_result().map(|()| true)
    }

    /// Fails with the cause if the job has failed or rank 0 is gone: for callers of [`connect`](Self::connect),
    /// which learn from an error of the worker only that a server is gone.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), JobError> {
        self.member.end().map_or(Ok(()), End::into_result)
    }

    /// The cause of an error, for which rank 0 is given a moment: a server that is gone or silent may be so because the
    /// job has failed, and a process that reaches another by no transport may have been started with another plan.
    pub(super) fn cause(&self, error: impl Into<JobError>) -> JobError {
        let error = error.into();
        let may_be_told = match &error {
            JobError::Node(error) => is_passing(error),
            JobError::Wait(error) => matches!(error, WaitError::Path(_)),
            _ => false,
        };
        let wait = if may_be_told { ATTEMPT } else { Duration::ZERO };
        self.told_within(wait).unwrap_or(error)
    }

    /// The cause of an error with which this process gives up, once rank 0 has been told.
    pub(super) fn give_up(&self, error: impl Into<JobError>) -> JobError {
        let error = self.cause(error);
        self.fail(&error);
        error
    }

    /// The cause of servers that are not connected again in time.
    fn not_back(&self, error: JobError) -> JobError {
        // Several waits share this timeout, and the last error names only its own part of it.
        let waited = self.plan.timeout;
        match self.cause(error) {
            JobError::Wait(WaitError::Deadline { what, .. }) => {
                JobError::NotBack { waited, last: format!("waited for {what}"), retry_after: None }
            }
            JobError::Node(error) => {
                JobError::NotBack { waited, last: error.to_string(), retry_after: error.retry_after() }
            }
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

    /// The number of this worker.
    fn as_worker(&self, call: &'static str) -> Result<u32, JobError> {
        match self.role {
            Role::Worker(number) => Ok(number),
            Role::Server(_) => Err(self.other_role(call, "worker")),
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
    /// The plan's timeout passed, a server is lost permanently, or the job failed: [`JobError::Failed`] has the cause.
    pub fn next_step(&mut self) -> Result<Option<JobStep<'_>>, JobError> {
        while !self.work.begin().map_err(|error| self.failed(error))? {
            if self.attend()? {
                return Ok(None);
            }
        }
        Ok(Some(JobStep { step: self.work.step()?, job: self.job }))
    }

    /// Waits until all gradients are applied, and then for the end of the job, however long the others take. It is for
    /// plans without a number of clocks.
    ///
    /// Where the plan says [`reconnect`](super::JobPlan::reconnect), it connects again to a server that is lost
    /// meanwhile, and waits on.
    ///
    /// # Errors
    /// The gradients are not applied within the plan's timeout, a server is lost permanently, or the job failed:
    /// [`JobError::Failed`] has the cause.
    pub fn finish(mut self) -> Result<(), JobError> {
        let mut has_finished = false;
        loop {
            match self.work.flush() {
                // Rank 0 has ended the job while this worker came back to a server.
                Err(JobError::Wait(WaitError::Ended(end @ End::Dismissed))) if has_finished => {
                    return self.job.over(end).map(drop);
                }
                flushed => flushed.map_err(|error| self.failed(error))?,
            }
            if self.attend()? {
                return Ok(());
            }
            has_finished = true;
        }
    }

    /// Says that this worker has finished, and waits for the end of the job: false if a server was lost meanwhile that
    /// may come back.
    fn attend(&mut self) -> Result<bool, JobError> {
        let attended = self.work.attend().map_err(JobError::from);
        attended.map_err(|error| self.failed(error))?.map_or(Ok(false), |end| self.job.over(end))
    }

    /// Has this worker use memory of the caller's from now on: see [`Worker::use_memory`].
    ///
    /// # Errors
    /// As for [`Worker::use_memory`].
    pub fn use_memory(
        &mut self,
        parameters: Option<CallerMemory>,
        gradient: Option<CallerMemory>,
    ) -> Result<(), JobError> {
        Ok(self.work.worker.use_memory(parameters, gradient)?)
    }

    /// The cause of an error of the loop. It is reported to rank 0, unless it is the loss of a server.
    fn failed(&self, error: JobError) -> JobError {
        if self.work.is_lost() {
            return self.job.not_back(error);
        }
        self.job.give_up(error)
    }
}

impl Deref for JobWorker<'_> {
    type Target = Worker<Mixed>;

    fn deref(&self) -> &Worker<Mixed> {
        &self.work.worker
    }
}

/// One clock of a worker: the parameters to compute on, and the memory that the gradient is written into, by the
/// methods of [`Step`]. The methods that end a step, or ask whether to end it, are its own.
///
/// Dropping it abandons the clock; the next step begins it again.
#[must_use = "a step that is dropped is abandoned: call `publish`"]
pub struct JobStep<'a> {
    step: LoopStep<'a>,
    job: &'a Job,
}

impl<'a> Deref for JobStep<'a> {
    type Target = Step<'a, Mixed>;

    fn deref(&self) -> &Step<'a, Mixed> {
        &self.step.step
    }
}

impl<'a> DerefMut for JobStep<'a> {
    fn deref_mut(&mut self) -> &mut Step<'a, Mixed> {
        &mut self.step.step
    }
}

impl JobStep<'_> {
    /// Returns true if a server asks this worker to abandon the step, as DBW and ABS do. It never waits.
    ///
    /// The loss of a server is no error here: [`publish`](Self::publish) or the next step finds it.
    pub fn should_stop(&mut self) -> bool {
        self.step.step.should_stop().unwrap_or(true)
    }

    /// Publishes the gradient and waits until every server has it whole, at most the plan's timeout; under BAP it waits
    /// for the gradient of the step before, as [`Step::publish_in_background`] does. `loss` is the mean loss of the
    /// batch, for the schemes that ask for it.
    ///
    /// # Errors
    /// The timeout passed, or a server is lost and the plan does not say
    /// [`reconnect`](super::JobPlan::reconnect): [`JobError::Failed`] has the cause if rank 0 told it. Rank 0 hears
    /// any other.
    pub fn publish(self, loss: Option<f32>) -> Result<Published, JobError> {
        published(self.job, self.step.publish(loss))
    }

    /// Publishes the gradient that is in `from`, the whole of it in the worker's encoding, straight out of memory of
    /// the job's GPU ([`Job::with_gpu`]), behind the work that `stream` has now. It waits as [`publish`](Self::publish)
    /// does; the memory may change then. The stream does not wait.
    ///
    /// # Errors
    /// As [`publish`](Self::publish) and [`Step::publish_from_gpu`].
    #[cfg(feature = "cuda")]
    pub fn publish_from_gpu(
        self,
        from: &GpuSlice,
        stream: &GpuStream,
        loss: Option<f32>,
    ) -> Result<Published, JobError> {
        published(self.job, self.step.publish_from_gpu(from, stream, loss))
    }
}

fn published(job: &Job, published: Result<bool, node::Error>) -> Result<Published, JobError> {
    match published {
        Ok(true) => Ok(Published::Delivered),
        Ok(false) => Ok(Published::Unknown),
        Err(error) => Err(job.give_up(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::job::env::Placement;
    use crate::job::member::JobMember;
    use crate::job::messages::{FromCoordinator, FromMember, encode};
    use crate::job::rendezvous::{Host, Hub, HubEvent, HubOptions, Introduction, MemberRole};
    use crate::job::{ErrorReport, JobPlan};
    use crate::node::{GroupOptions, Server, ServerOptions};
    use crate::scheme::SchemeConfig;
    use crate::table::{ElementType, Table};
    use crate::transport::Address;

    const PATIENCE: Duration = Duration::from_secs(60);
    /// The time for which a worker of these tests waits in vain.
    const SHORT: Duration = Duration::from_millis(500);

    /// Serves the parameters of a job of so many workers.
    fn serve(point: &str, workers: usize, is_over: impl Fn(&Server<Mixed>) -> bool) {
        let introduction = Introduction::new(MemberRole::Server, Host::own());
        let member = JobMember::join(point, introduction, None, EndOnly::default(), PATIENCE).unwrap();
        let (address, table) = (Address::random(), Table::flat(1, ElementType::F32).unwrap());
        let options = ServerOptions::new(SchemeConfig::Asp, workers, 0.5);
        let mut server = Server::new(Mixed::default(), &address, table, &[4.0], options).unwrap();
        member.announce(vec![address], None);
        server.drive(is_over, PATIENCE).unwrap();
    }

    /// Joins as the one worker beside the one server, or as the second of two.
    fn join(point: &str, plan: JobPlan) -> Job {
        let rendezvous = Some(point.parse().unwrap());
        let placement = Placement { rank: 1, world: 2, rendezvous, ..Placement::default() };
        Job::join(plan, &placement, None).unwrap()
    }

    /// The messages to rank 0 of a worker that gives up in `part`, and the error there.
    fn heard(plan: JobPlan, part: impl FnOnce(Job) -> JobError + Send) -> (Vec<String>, String) {
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let (point, is_over) = (hub.address().to_string(), AtomicBool::new(false));
        let mut told = Vec::new();
        let error = std::thread::scope(|scope| {
            if plan.servers > 0 {
                // Its second worker never comes: no gradient is applied.
                scope.spawn(|| serve(&point, 2, |_| is_over.load(Ordering::Relaxed)));
            }
            let working = scope.spawn(|| part(join(&point, plan)));
            let (deadline, mut has_left) = (Instant::now() + PATIENCE, false);
            while !has_left {
                assert!(Instant::now() < deadline, "the worker does not leave: {told:?}");
                while let Some(event) = hub.poll() {
                    match event {
                        HubEvent::Said(_, message) => {
                            if let Ok(FromMember::Failed(why)) = postcard::from_bytes(&message) {
                                told.push(why);
                            }
                        }
                        // Its server stays until it is told to end.
                        HubEvent::Left { .. } => has_left = true,
                        _ => {}
                    }
                }
                hub.wait(Duration::from_millis(1));
            }
            is_over.store(true, Ordering::Relaxed);
            ErrorReport::of(&working.join().unwrap()).to_string()
        });
        (told, error)
    }

    /// This worker with another timeout.
    fn with_timeout(worker: JobWorker<'_>, timeout: Duration) -> JobWorker<'_> {
        let JobWorker { job, work } = worker;
        let plan = job.plan.clone().timeout(timeout);
        JobWorker { job, work: WorkerLoop::new(Arc::clone(&job.member), plan, work.worker) }
    }

    #[test]
    fn rank_0_hears_why_a_worker_cannot_publish() {
        let until_there_is_no_slot = |job: Job| {
            let mut worker = job.worker(WorkerOptions::new(SchemeConfig::Asp)).unwrap();
            loop {
                assert!(worker.work.begin().unwrap(), "a plan without end");
                worker = with_timeout(worker, SHORT);
                let step = JobStep { step: worker.work.step().unwrap(), job: &job };
                if let Err(error) = step.publish(None) {
                    return error;
                }
                worker = with_timeout(worker, PATIENCE);
            }
        };
        let (told, error) = heard(JobPlan::servers(1).timeout(PATIENCE), until_there_is_no_slot);
        assert_eq!(told, [error]);
    }

    #[test]
    fn rank_0_hears_why_a_worker_cannot_finish() {
        let finish = |job: Job| {
            let mut worker = job.worker(WorkerOptions::new(SchemeConfig::Asp)).unwrap();
            let step = worker.next_step().unwrap().expect("a plan without end");
            step.publish(None).unwrap();
            with_timeout(worker, SHORT).finish().unwrap_err()
        };
        let (told, error) = heard(JobPlan::servers(1).timeout(PATIENCE), finish);
        assert_eq!(told, [error]);
    }

    #[test]
    fn rank_0_hears_why_a_worker_cannot_meet_its_group() {
        let meet = |job: Job| {
            let options = GroupOptions { lease: Duration::ZERO, ..GroupOptions::default() };
            job.group(1, options).err().expect("no member can be silent for no time")
        };
        let (told, error) = heard(JobPlan::servers(0).timeout(PATIENCE), meet);
        assert_eq!(told, [error]);
    }

    #[test]
    fn a_worker_that_has_finished_connects_again_to_a_server_that_comes_back() {
        let mut hub = Hub::listen("127.0.0.1:0".parse().unwrap(), HubOptions::default()).unwrap();
        let point = hub.address().to_string();
        let [has_finished, is_back, is_over] = [(); 3].map(|()| AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                serve(&point, 1, |_| has_finished.load(Ordering::Relaxed));
                serve(&point, 1, |server| {
                    is_back.fetch_or(server.status().joined == 1, Ordering::Relaxed);
                    is_over.load(Ordering::Relaxed)
                });
            });
            let working = scope.spawn(|| {
                let job = join(&point, JobPlan::servers(1).reconnect(true).timeout(PATIENCE));
                let mut worker = job.worker(WorkerOptions::new(SchemeConfig::Asp)).unwrap();
                let step = worker.next_step().unwrap().expect("a plan without end");
                step.publish(None).unwrap();
                worker.finish()
            });
            let deadline = Instant::now() + PATIENCE;
            while !working.is_finished() {
                assert!(Instant::now() < deadline, "the worker does not end");
                while let Some(event) = hub.poll() {
                    let HubEvent::Said(_, message) = event else { continue };
                    let is_end = postcard::from_bytes(&message) == Ok(FromMember::Finished);
                    has_finished.fetch_or(is_end, Ordering::Relaxed);
                }
                if is_back.swap(false, Ordering::Relaxed) {
                    let members: Vec<_> = hub.members().map(|member| member.id).collect();
                    members.into_iter().for_each(|member| hub.say(member, &encode(&FromCoordinator::Over)));
                }
                hub.wait(Duration::from_millis(1));
            }
            is_over.store(true, Ordering::Relaxed);
            working.join().unwrap().unwrap();
        });
    }

    #[test]
    fn servers_that_are_not_back_were_waited_for_as_long_as_the_plan_says() {
        let not_back = |job: Job| {
            let rest = Duration::from_millis(1);
            let error = WaitError::Deadline { waited: rest, what: "all servers to be up".into() };
            match job.not_back(error.into()) {
                JobError::NotBack { waited, .. } if waited == PATIENCE => JobError::NoServer,
                error => panic!("{error}"),
            }
        };
        heard(JobPlan::servers(0).timeout(PATIENCE), not_back);
    }
}
