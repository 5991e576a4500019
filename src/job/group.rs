//! Jobs without a server: all processes are workers that average their parameters in groups.

use std::time::{Duration, Instant};

use super::choose::TransportChoice;
use super::member::{Conversation, JobMember};
use super::plan::deadline_after;
use super::transports::flatten;
use super::{Job, JobError, JobPlan, LocalOptimizer, MemberRole};
use crate::clock::Clock;
use crate::kernel::{Optimizer, Schedule};
use crate::node::{Error, GroupMember, GroupOptions, now};
use crate::scheme::{Groups, SchemeConfig, WorkerAction, WorkerEvent, WorkerScheme};
use crate::transport::mixed::Mixed;
use crate::transport::{Address, ConnectError, TransportKind};

impl Job {
    /// Meets all workers of a job without a server (`JobPlan::servers(0)`), each with `elements` parameters, within the
    /// plan's timeout. The rank of this member is the number of this worker.
    ///
    /// Call [`end`](Self::end) once [`GroupMember::leave`] has returned.
    ///
    /// # Errors
    /// The plan has servers ([`JobError::HasServers`]), a worker does not come up in time, `elements` or `options`
    /// differ between workers, or the job fails meanwhile. Rank 0 hears the error.
    pub fn group(&self, elements: usize, options: GroupOptions) -> Result<GroupMember<Mixed>, JobError> {
        if self.plan.servers > 0 {
            return Err(JobError::HasServers { servers: self.plan.servers });
        }
        let kinds = self.plan.transports();
        let met = self.member.meet(&self.plan, &kinds, self.workers(), elements, options);
        met.map(|(member, _choices)| member).map_err(|error| self.give_up(error))
    }
}

impl<C: Conversation> JobMember<C> {
    /// Meets all workers of a job without a server, each of which is reached over `kinds`, within the plan's timeout.
    /// Beside the member come the transports that were chosen, in order of the workers.
    pub(super) fn meet(
        &self,
        plan: &JobPlan,
        kinds: &[TransportKind],
        workers: usize,
        elements: usize,
        options: GroupOptions,
    ) -> Result<(GroupMember<Mixed>, Vec<TransportChoice>), JobError> {
        // Before the transports are opened: it opens the device, where RDMA is taken.
        let address = self.transports.listen_at(kinds)?;
        let (transports, rank) = (self.transports.open(), self.role_rank as usize);
        let listener = GroupMember::listen(transports, &address, rank, workers, elements, options)?;
        self.announce(flatten(listener.address()), None); // others write into host memory
        let deadline = deadline_after(plan.timeout);
        let mut choices = self.reach(MemberRole::Worker, workers, plan.transport, plan.timeout)?;
        let addresses: Vec<Address> = choices.iter().map(|choice| choice.address.clone()).collect();
        let instead = |error: &ConnectError| {
            let (other, (missing, _)) = (self.pass_over(plan, error)?, error.no_path()?);
            let choice = choices.iter_mut().find(|choice| choice.address == *missing)?;
            *choice = other;
            Some(choice.address.clone())
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let member = listener.connect_or(&addresses, left, instead)?;
        self.no_paths().forget_passing();
        // Of each pair one dials, and only that one finds out where no path leads by RDMA.
        for (choice, taken) in choices.iter_mut().zip(member.transports()) {
            let taken = taken.and_then(|name| name.parse().ok());
            if let Some(kind) = taken.filter(|kind| *kind != choice.kind) {
                (choice.kind, choice.reason) = (kind, "the other worker has connected over it".into());
            }
        }
        Ok((member, choices))
    }
}

/// The training of one worker by DS-Sync: steps of an optimiser of its own, and averages with the group of each round.
pub struct GroupTrainer {
    member: GroupMember<Mixed>,
    scheme: Box<dyn WorkerScheme>,
    groups: Groups,
    optimizer: LocalOptimizer,
    gradient: Vec<f32>,
    next: Option<WorkerAction>,
    clock: u64,
    compute: Duration,
}

/// One advance of a [`GroupTrainer`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advance {
    /// The parameters have made a step.
    Stepped {
        /// The loss before the step.
        loss: f32,
    },
    /// The parameters are their group's mean.
    Averaged {
        /// The number of the round.
        round: u64,
    },
}

impl GroupTrainer {
    /// A trainer at clock 0, which trains the parameters of `member`. Its step size falls by `schedule` with the number
    /// of its own steps.
    ///
    /// # Errors
    /// The scheme is not DS-Sync or cannot run with so many members, the step size or a constant of the optimiser is
    /// out of its range, or the system has no memory for the states of the optimiser.
    pub fn new(
        member: GroupMember<Mixed>,
        scheme: SchemeConfig,
        optimizer: Optimizer,
        learning_rate: f32,
        schedule: Schedule,
    ) -> Result<GroupTrainer, Error> {
        let SchemeConfig::DsSync { group, partition, .. } = scheme else {
            return Err(Error::Scheme {
                scheme: scheme.into(),
                reason: "has servers; use ds-sync in a group",
            });
        };
        member.has_made_no_round()?;
        let groups = Groups::new(member.members(), group, partition)?;
        let elements = member.parameters()?.len();
        let mut scheme = scheme.worker();
        scheme.handle_event(now(), WorkerEvent::Joined { clock: Clock::new(0) });
        let next = scheme.poll_action();
        Ok(GroupTrainer {
            member,
            scheme,
            groups,
            optimizer: LocalOptimizer::new(optimizer, learning_rate, elements)?.scheduled(schedule),
            gradient: vec![0.0; elements],
            next,
            clock: 0,
            compute: Duration::ZERO,
        })
    }

    /// Makes a step or an average, whichever is next. `compute` is given the clock, the parameters and the memory for
    /// the gradient, and returns the loss; it is not called where an average is next.
    ///
    /// # Errors
    /// The errors of `compute`; the average does not end within `timeout`, after which the call can be repeated; or
    /// this member is cut off.
    pub fn advance(
        &mut self,
        compute: impl FnOnce(u64, &[f32], &mut [f32]) -> Result<f32, Error>,
        timeout: Duration,
    ) -> Result<Advance, Error> {
        let (event, advance) = match self.next {
            Some(WorkerAction::Compute) => {
                let begun = Instant::now();
                let loss = compute(self.clock, self.member.parameters()?, &mut self.gradient)?;
                self.optimizer.step(&self.gradient, self.member.parameters_mut()?)?;
                self.compute += begun.elapsed();
                self.clock += 1;
                (WorkerEvent::Published { magnitude: None }, Advance::Stepped { loss })
            }
            Some(WorkerAction::Average { round }) => {
                self.member.average_round(&self.groups, round, timeout)?;
                (WorkerEvent::Averaged { round }, Advance::Averaged { round })
            }
            Some(WorkerAction::Refresh { .. } | WorkerAction::Fail { .. }) | None => {
                let reason = "the scheme asks for what a group does not do";
                return Err(Error::OutOfTurn { operation: "advance", reason });
            }
        };
        self.scheme.handle_event(now(), event);
        self.next = self.scheme.poll_action();
        Ok(advance)
    }

    /// True if an average is next: a worker that has made all its steps makes it before it leaves.
    #[doc(hidden)]
    pub fn averages_next(&self) -> bool {
        matches!(self.next, Some(WorkerAction::Average { .. }))
    }

    /// The number of steps made.
    pub fn clock(&self) -> Clock {
        Clock::new(self.clock)
    }

    /// The time spent on steps.
    #[doc(hidden)]
    pub fn compute_time(&self) -> Duration {
        self.compute
    }

    /// The member of the group, with the parameters and the counters.
    #[doc(hidden)]
    pub fn member(&self) -> &GroupMember<Mixed> {
        &self.member
    }

    /// The same, for a caller that sets the parameters itself between two advances.
    #[doc(hidden)]
    pub fn member_mut(&mut self) -> &mut GroupMember<Mixed> {
        &mut self.member
    }

    /// Ends the training and hands the member back, to leave the group.
    pub fn into_member(self) -> GroupMember<Mixed> {
        self.member
    }
}
