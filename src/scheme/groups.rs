//! The members of each average, round by round: DS-Sync's shuffles, and its worker's half.
//!
//! From Wang et al., arXiv 2007.03298: workers make full optimiser steps of their own and then average their
//! *parameters* within a small group that changes from round to round, so that after a few rounds every worker's
//! parameters have reached every other worker. There is no server.

use serde::{Deserialize, Serialize};

use super::{SchemeConfigError, WorkerAction, WorkerEvent, WorkerScheme};
use crate::time::Instant;

/// The rule that splits workers into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Partition {
    /// With `group^m` workers, ranks written with `m` digits: in round `t` a group has all digits in common save
    /// digit `t mod m`. After `m` rounds every worker has the mean of all. The paper's rule as generalised from its
    /// code.
    Digits,
    /// The two partitions of the authors' code, of 4 workers: `{0, 1}, {2, 3}`, then `{0, 3}, {1, 2}`.
    Authors,
    /// Any number of workers: the digits of the next power, with groups that lack the ranks that do not exist. The
    /// mean of each group is over the members that are there. A round keeps the mean of all only where its groups are
    /// full; disagreement shrinks all the same. Not in the paper.
    Uneven,
}

/// The groups of a job: a pure function of its size.
///
/// ```
/// use slackline::scheme::{Groups, Partition};
/// let groups = Groups::new(8, 2, Partition::Digits)?;
/// assert_eq!(groups.rounds(), 3);
/// assert!(groups.members(5, 0).eq([4, 5]));
/// assert!(groups.members(5, 1).eq([5, 7]));
/// assert!(groups.members(5, 2).eq([1, 5]));
/// assert!(groups.members(5, 3).eq([4, 5]));
/// # Ok::<(), slackline::scheme::SchemeConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    workers: usize,
    group: usize,
    rounds: u32,
    partition: Partition,
}

impl Groups {
    /// Makes the groups of `workers`, with `group` of them in each. An error where the partition cannot be made of so
    /// many.
    pub fn new(workers: usize, group: u16, partition: Partition) -> Result<Groups, SchemeConfigError> {
        let refused = |setting, value, remedy| {
            Err(SchemeConfigError::Workers { scheme: "ds-sync", setting, value, workers, remedy })
        };
        let group = usize::from(group);
        if group < 2 {
            return refused("group", group as u64, "groups of at least 2");
        }
        let (mut rounds, mut reached) = (1, group);
        while reached < workers {
            (rounds, reached) = (rounds + 1, reached.saturating_mul(group));
        }
        match partition {
            Partition::Digits if reached != workers => {
                let remedy = "a number of workers that is a power of the group, or partition=uneven";
                refused("group", group as u64, remedy)
            }
            Partition::Authors if (workers, group) != (4, 2) => {
                refused("group", group as u64, "4 workers in groups of 2, or partition=digits")
            }
            _ => Ok(Groups { workers, group, rounds, partition }),
        }
    }

    /// Rounds until the groups repeat.
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Lists the members of the group of `rank` in this round, in order of ranks; `rank` itself among them.
    pub fn members(&self, rank: usize, round: u64) -> impl Iterator<Item = usize> + use<> {
        let round = (round % u64::from(self.rounds)) as u32;
        let (first, step) = match (self.partition, round) {
            (Partition::Authors, 1) => (rank.min(3 - rank.min(3)), 3 - 2 * rank.min(3 - rank.min(3))),
            _ => {
                let stride = self.group.pow(round);
                (rank - rank / stride % self.group * stride, stride)
            }
        };
        let workers = self.workers;
        (0..self.group).map(move |digit| first + digit * step).filter(move |member| *member < workers)
    }
}

/// Steps and averages by turns.
#[derive(Debug, Default)]
pub(super) struct Averager {
    round: u64,
    turn: MemberTurn,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum MemberTurn {
    #[default]
    Out,
    ComputeIsDue,
    Computing,
    AverageIsDue,
    Averaging,
}

impl WorkerScheme for Averager {
    fn handle_event(&mut self, _now: Instant, event: WorkerEvent) {
        match event {
            WorkerEvent::Joined { clock } => {
                *self = Averager { round: clock.get(), turn: MemberTurn::ComputeIsDue };
            }
            WorkerEvent::Published { .. } if self.turn == MemberTurn::Computing => {
                self.turn = MemberTurn::AverageIsDue
            }
            WorkerEvent::Interrupted if self.turn == MemberTurn::Computing => {
                self.turn = MemberTurn::ComputeIsDue
            }
            WorkerEvent::Averaged { round } if self.turn == MemberTurn::Averaging && round == self.round => {
                *self = Averager { round: self.round.saturating_add(1), turn: MemberTurn::ComputeIsDue };
            }
            _ => {}
        }
    }

    fn poll_action(&mut self) -> Option<WorkerAction> {
        match self.turn {
            MemberTurn::ComputeIsDue => {
                self.turn = MemberTurn::Computing;
                Some(WorkerAction::Compute)
            }
            MemberTurn::AverageIsDue => {
                self.turn = MemberTurn::Averaging;
                Some(WorkerAction::Average { round: self.round })
            }
            MemberTurn::Out | MemberTurn::Computing | MemberTurn::Averaging => None,
        }
    }
}
