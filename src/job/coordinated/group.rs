//! A worker of a coordinated job without servers: it trains parameters of its own, averages them with its group's, and
//! publishes them for the coordinator.

use std::time::{Duration, Instant};

use super::super::JobError;
use super::super::group::{Advance, GroupTrainer};
use super::super::member::{Conversation, End};
use super::super::rendezvous::MemberRole;
use super::super::transports::flatten;
use super::WorkerOrder;
use super::member::{CoordinatedMember, Talk};
use super::orders::Message;
use super::reports::{PathTaken, WorkerReport};
use super::work::REPORT_EVERY;
use crate::kernel;
use crate::node::{Error, GroupError, GroupOptions, Publisher, PublisherOptions, ShardOptions};
use crate::table::Encoding;
use crate::transport::mixed::Mixed;

/// The time for which a worker that has finished attends to its readers at once.
const ATTEND: Duration = Duration::from_millis(100);

/// The work of a worker of a coordinated job without servers.
pub struct GroupWork {
    member: CoordinatedMember,
    order: WorkerOrder,
    trainer: GroupTrainer,
    publisher: Publisher<Mixed>,
    paths: Vec<PathTaken>,
}

/// The gradient of a clock on these parameters, and its loss.
type Compute<'a> = &'a mut dyn FnMut(u64, &[f32], &mut [f32]) -> Result<f32, Error>;

impl CoordinatedMember {
    /// Meets the other workers of a job without servers.
    ///
    /// # Errors
    /// The others do not come up within the timeout of `order`, no transport reaches one, or `order` names a scheme
    /// with servers.
    pub fn meet(&self, order: WorkerOrder) -> Result<GroupWork, JobError> {
        let Some(group) = order.group.clone() else {
            return Err(JobError::Order("the coordinator does not name the members to average with"));
        };
        let timeout = order.plan.timeout;
        let elements = group.table.shards(1).map_err(Error::from)?[0].end as usize / 4;
        let initial = self.values(elements, timeout)?;
        let transports = &self.member.transports;
        let address = transports.listen_at(&group.listen)?;
        let memory =
            ShardOptions { checksums: order.checksums, lease: order.lease, ..ShardOptions::default() };
        let options = PublisherOptions { memory, ..PublisherOptions::default() };
        let mut publisher = Publisher::new(transports.open(), &address, group.table, options)?;
        publish(&mut publisher, &initial, timeout)?;
        let options = GroupOptions { checksums: order.checksums, run: group.run, lease: order.lease };
        let (mut member, choices) =
            self.member.meet(&order.plan, &group.listen, order.workers, elements, options)?;
        member.parameters_mut()?.copy_from_slice(&initial);
        let mut paths = PathTaken::of(MemberRole::Worker, (0..).zip(choices));
        paths.retain(|taken| taken.worker != Some(self.role_rank()));
        self.say(Message::Publishes(flatten(publisher.address())));
        self.say(Message::Joined(paths.clone()));
        let (rate, schedule) = (order.learning_rate, group.schedule);
        let trainer = GroupTrainer::new(member, order.scheme, group.optimizer, rate, schedule)?;
        Ok(GroupWork { member: self.clone(), order, trainer, publisher, paths })
    }
}

impl GroupWork {
    /// Trains until all clocks of the order are done, and then lets other processes read the parameters until the
    /// job is over.
    ///
    /// `compute` is given the clock, the parameters and the memory for the gradient, and returns the loss. `observe` is
    /// called about twenty times a second, between two steps, with the mean loss since its last call.
    ///
    /// # Errors
    /// A round was longer than the timeout of the order, or the others took this worker for dead.
    pub fn run(
        &mut self,
        compute: Compute<'_>,
        observe: &mut dyn FnMut(&GroupWork, f64),
    ) -> Result<End, JobError> {
        self.member.report(WorkerReport::default());
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        while self.trainer.averages_next() || Some(self.trainer.clock().get()) != self.order.plan.clocks {
            match self.trainer.advance(&mut *compute, self.order.plan.timeout).map_err(late)? {
                Advance::Stepped { loss } => (sum, count) = (sum + f64::from(loss), count + 1),
                Advance::Averaged { .. } => {
                    let parameters = self.trainer.member().parameters()?;
                    publish(&mut self.publisher, parameters, self.order.plan.timeout)?;
                }
            }
            if count > 0 && reported.elapsed() >= REPORT_EVERY {
                let loss = sum / f64::from(count);
                self.member.report(WorkerReport { loss: Some(loss), ..self.report() });
                observe(self, loss);
                (sum, count, reported) = (0.0, 0, Instant::now());
                if let Some(end) = self.member.end() {
                    return Ok(end);
                }
            }
        }
        self.member.report(self.report());
        self.member.member.tell(Talk::finished);
        loop {
            self.publisher.drive(|_| false, ATTEND)?;
            if let Some(end) = self.member.end() {
                return Ok(end);
            }
        }
    }

    /// The training, with its counters.
    pub fn trainer(&self) -> &GroupTrainer {
        &self.trainer
    }

    /// The ways over which this worker reaches the others.
    pub fn paths(&self) -> &[PathTaken] {
        &self.paths
    }

    fn report(&self) -> WorkerReport {
        let statistics = self.trainer.member().statistics();
        WorkerReport {
            clock: self.trainer.clock().get(),
            clocks: self.trainer.clock().get(),
            compute_s: self.trainer.compute_time().as_secs_f64(),
            wait_s: statistics.wait.as_secs_f64(),
            bytes_published: statistics.bytes,
            pull_retries: statistics.retries,
            rounds_skipped: statistics.skipped,
            rounds_restarted: statistics.restarts,
            ..WorkerReport::default()
        }
    }
}

fn publish(publisher: &mut Publisher<Mixed>, parameters: &[f32], timeout: Duration) -> Result<(), Error> {
    publisher.publish_with(timeout, |frame| kernel::encode(parameters, frame, Encoding::F32))?;
    Ok(())
}

/// An average that is not there in time ends this worker: it has no other way to go on waiting.
fn late(error: Error) -> JobError {
    match error {
        Error::Group(GroupError::Deadline { round, waited, missing }) => {
            JobError::Late { round, waited, workers: missing }
        }
        error => error.into(),
    }
}
