//! A worker of a job without servers: it moves its own parameters, and averages them with its group's.

use std::time::{Duration, Instant};

use slackline::Error;
use slackline::clock::Clock;
use slackline::job::rendezvous::MemberRole;
use slackline::kernel::{self, Fold, Gradient, Optimizer, Pass};
use slackline::mem::{HostMemory, VolatileSlice};
use slackline::node::{GroupError, GroupMember, GroupOptions, Publisher, PublisherOptions, ShardOptions};
use slackline::scheme::{Config, Groups, WorkerAction, WorkerEvent, WorkerScheme};
use slackline::table::ElementType;
use smallvec::SmallVec;

use super::Trouble;
use super::compute::Computer;
use super::messages::{Message, PathTaken, Report, SyncConfig, WorkConfig};
use super::seat::Seat;
use crate::metrics::{self, PeerMetrics, PeerState, Registry, WorkerMetrics};
use slackline::job::transports::flatten;
use slackline::transport::mixed::Mixed;

/// How often a worker brings up to date what it tells.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// How long a worker that has finished attends to its readers at a time.
const ATTEND: Duration = Duration::from_secs(1);

/// A worker that trains with others.
pub(super) struct Sync<'a> {
    seat: &'a Seat,
    computer: Computer,
    member: GroupMember<Mixed>,
    publisher: Publisher<Mixed>,
    scheme: Box<dyn WorkerScheme>,
    groups: Groups,
    steps: Steps,
    config: WorkConfig,
    timeout: Duration,
    metrics: Option<&'a Registry>,
    peers: Vec<PathTaken>,
    compute: Duration,
    clock: u64,
}

impl<'a> Sync<'a> {
    /// Meets the other workers.
    pub(super) fn meet(
        seat: &'a Seat,
        config: WorkConfig,
        computer: Computer,
        metrics: Option<&'a Registry>,
    ) -> Result<Sync<'a>, Trouble> {
        let timeout = Duration::from_secs_f64(config.timeout_s);
        let sync = config.sync.as_ref().ok_or("the coordinator does not say whom to average with")?;
        let Config::DsSync { group, partition } = config.scheme else {
            return Err("the coordinator tells a worker to average whose scheme has servers".into());
        };
        let groups = Groups::new(config.workers, group, partition)?;
        let initial = seat.values(computer.spec.parameters(), timeout)?;
        let options = GroupOptions {
            checksums: config.checksums,
            run: sync.run,
            lease: Duration::from_secs_f64(sync.lease_s),
        };
        let at = || seat.transports().listen_at(&sync.listen);
        let places = (at()?, at()?);
        let (rank, workers) = (config.worker, config.workers);
        let listener =
            GroupMember::listen(seat.transports().open(), &places.0, rank, workers, initial.len(), options)?;
        let memory = ShardOptions { checksums: config.checksums, ..ShardOptions::default() };
        let mut publisher = Publisher::new(
            seat.transports().open(),
            &places.1,
            sync.table.clone(),
            PublisherOptions { memory },
        )?;
        publish(&mut publisher, &initial, timeout)?;
        seat.announce(flatten(listener.address()));
        let (addresses, mut peers) =
            seat.reach(MemberRole::Worker, config.workers, config.require, timeout)?;
        peers.retain(|taken| taken.worker != Some(config.worker as u32));
        let mut member = listener.connect(&addresses, timeout)?;
        member.parameters_mut()?.copy_from_slice(&initial);
        seat.say(Message::Publishes(flatten(publisher.address())));
        seat.say(Message::Joined(peers.clone()));
        let steps = Steps::new(sync, config.learning_rate, initial.len())?;
        let scheme = config.scheme.worker();
        Ok(Sync {
            seat,
            computer,
            member,
            publisher,
            scheme,
            groups,
            steps,
            config,
            timeout,
            metrics,
            peers,
            compute: Duration::ZERO,
            clock: 0,
        })
    }

    /// Trains until all steps are done.
    pub(super) fn train(&mut self) -> Result<(), Trouble> {
        let (mut sum, mut count, mut reported) = (0.0, 0u32, Instant::now());
        self.scheme.handle_event(slackline::node::now(), WorkerEvent::Joined { clock: Clock(self.clock) });
        loop {
            let event = match self.scheme.poll_action() {
                Some(WorkerAction::Compute) if Some(self.clock) == self.config.steps => return Ok(()),
                Some(WorkerAction::Compute) => {
                    let begun = Instant::now();
                    let loss = self.step()?;
                    self.compute += begun.elapsed();
                    self.clock += 1;
                    (sum, count) = (sum + f64::from(loss), count + 1);
                    WorkerEvent::Published { magnitude: None }
                }
                Some(WorkerAction::Average { round }) => {
                    self.member.average_round(&self.groups, round, self.timeout).map_err(patient)?;
                    publish(&mut self.publisher, self.member.parameters()?, self.timeout)?;
                    WorkerEvent::Averaged { round }
                }
                other => return Err(format!("the scheme asks for {other:?} where there is no server").into()),
            };
            self.scheme.handle_event(slackline::node::now(), event);
            if count > 0 && reported.elapsed() >= REPORT_EVERY {
                self.tell(sum / f64::from(count));
                (sum, count, reported) = (0.0, 0, Instant::now());
            }
        }
    }

    /// A gradient, and a step of this worker's own optimiser.
    fn step(&mut self) -> Result<f32, Error> {
        let loss = self.computer.gradient(self.clock, self.member.parameters()?)?;
        self.steps.make(&self.computer.gradient, self.member.parameters_mut()?)?;
        Ok(loss)
    }

    /// Lets everybody read what this worker came to, until the process is ended.
    pub(super) fn attend(mut self) -> Result<(), Trouble> {
        loop {
            self.publisher.drive(|_| false, ATTEND)?;
        }
    }

    /// What it did.
    pub(super) fn report(&self) -> Report {
        let statistics = self.member.statistics();
        Report {
            clock: self.clock,
            clocks: self.clock,
            compute_s: self.compute.as_secs_f64(),
            wait_s: statistics.wait.as_secs_f64(),
            bytes_published: statistics.bytes,
            pull_retries: statistics.retries,
            rounds_skipped: statistics.skipped,
            rounds_restarted: statistics.restarts,
            ..Report::default()
        }
    }

    fn tell(&self, loss: f64) {
        self.seat.report(Report { loss: Some(loss), ..self.report() });
        let Some(metrics) = self.metrics else { return };
        let statistics = self.member.statistics();
        let worker = WorkerMetrics {
            clock: self.clock,
            compute: self.compute,
            wait: statistics.wait,
            bytes_published: statistics.bytes,
            pull_retries: statistics.retries,
            loss: Some(loss),
            ..WorkerMetrics::default()
        };
        let peer = |taken: &PathTaken| {
            let peer = taken.worker?;
            let absence = self.member.absence(peer as usize);
            let state = if absence.is_none() { PeerState::Up } else { PeerState::Lost };
            let (name, role, path) = (format!("worker {peer}"), metrics::Role::Worker, taken.path);
            Some(PeerMetrics { name, role, state, path, bytes_in: 0, bytes_out: 0 })
        };
        let peers = self.peers.iter().filter_map(peer).collect();
        metrics.update(|metrics| (metrics.worker, metrics.peers) = (Some(worker), peers));
    }
}

fn publish(publisher: &mut Publisher<Mixed>, parameters: &[f32], timeout: Duration) -> Result<(), Error> {
    publisher.publish_with(timeout, |frame| kernel::encode(parameters, frame, ElementType::F32))?;
    Ok(())
}

/// An average that is not there in time, to somebody who has no other way to go on waiting.
fn patient(error: Error) -> Trouble {
    match error {
        Error::Group(GroupError::Deadline { round, waited, missing }) => format!(
            "round {round} did not end within {waited:?}: workers {missing:?} are alive and late; \
             use a longer --timeout"
        )
        .into(),
        error => error.into(),
    }
}

/// An optimiser whose state never leaves this process.
struct Steps {
    optimizer: Optimizer,
    learning_rate: f32,
    step: u64,
    /// The parameters before and after, the gradient, and each state before and after, one after the other.
    memory: HostMemory,
    bytes: usize,
}

impl Steps {
    fn new(sync: &SyncConfig, learning_rate: f32, elements: usize) -> Result<Steps, Trouble> {
        let optimizer = sync.optimizer;
        let bytes = 4 * elements;
        let memory = HostMemory::anonymous(bytes * (3 + 2 * optimizer.states()))?;
        Ok(Steps { optimizer, learning_rate, step: 0, memory, bytes })
    }

    fn part(&self, index: usize) -> VolatileSlice<'_> {
        self.memory.as_volatile().subslice(index * self.bytes, self.bytes)
    }

    fn make(&mut self, gradient: &[f32], parameters: &mut [f32]) -> Result<(), Error> {
        self.step += 1;
        kernel::encode(parameters, self.part(0), ElementType::F32);
        kernel::encode(gradient, self.part(2), ElementType::F32);
        let odd = (self.step % 2) as usize;
        let state = |state| Pass { from: self.part(3 + 2 * state + odd), to: self.part(4 + 2 * state - odd) };
        let states: SmallVec<[_; 2]> = (0..self.optimizer.states()).map(state).collect();
        let fold = Fold {
            gradients: &[Gradient { elements: self.part(2), weight: 1.0 }],
            encoding: ElementType::F32,
            optimizer: self.optimizer,
            learning_rate: self.learning_rate,
            step: self.step,
            parameters: Pass { from: self.part(0), to: self.part(1) },
            states: &states,
            streaming: false,
        };
        fold.run()?;
        kernel::decode(self.part(1), ElementType::F32, parameters);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_too_long_for_the_others_is_told_of_an_option() {
        let late = GroupError::Deadline { round: 3, waited: Duration::from_secs(2), missing: vec![1] };
        let told = patient(late.into()).to_string();
        assert_eq!(
            told,
            "round 3 did not end within 2s: workers [1] are alive and late; use a longer --timeout"
        );
    }
}
