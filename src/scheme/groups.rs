//! The members of each average, round by round: DS-Sync's shuffles, and its worker's half.
//!
//! From Wang et al., arXiv 2007.03298: workers make full optimiser steps of their own and then average their
//! *parameters* within a small group that changes from round to round, so that after a few rounds every worker's
//! parameters have reached every other worker. There is no server.

use serde::{Deserialize, Serialize};

use super::delay::mix;
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
    /// As `Digits`, for ranks that are counted rack by rack and groups as large as a rack: `inside` rounds within racks
    /// (digit 0) go before each round across (digit 1, and then the further ones by turns). After
    /// `(inside + 1) (m - 1)` rounds every worker has the mean of all. Ours, after the idea of the paper's second
    /// version to spare the links that are the bottleneck.
    Near {
        /// Rounds within racks for each across, at least 1.
        inside: u16,
    },
    /// Any number of workers: in each round they are shuffled and cut into groups, of which the last may lack some.
    /// Disagreement shrinks in expectation.
    Random {
        /// The seed that the shuffles follow from, with the number of the round.
        seed: u64,
    },
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
    /// Digits of a rank.
    digits: u32,
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
        let (mut digits, mut reached) = (1, group);
        while reached < workers {
            (digits, reached) = (digits + 1, reached.saturating_mul(group));
        }
        match partition {
            Partition::Near { inside: 0 } => refused("inside", 0, "1 round within racks, or more"),
            Partition::Digits | Partition::Near { .. } if reached != workers => {
                let remedy = "a number of workers that is a power of the group, or partition=uneven";
                refused("group", group as u64, remedy)
            }
            Partition::Authors if (workers, group) != (4, 2) => {
                refused("group", group as u64, "4 workers in groups of 2, or partition=digits")
            }
            _ => Ok(Groups { workers, group, digits, partition }),
        }
    }

    /// Rounds until each worker's parameters have reached every other. Then the groups repeat, save random ones, of
    /// which this is the least number that could do.
    pub fn rounds(&self) -> u32 {
        match self.partition {
            Partition::Near { inside } if self.digits > 1 => (u32::from(inside) + 1) * (self.digits - 1),
            _ => self.digits,
        }
    }

    /// The digit in which the members of a group differ in this round.
    fn digit(&self, round: u64) -> u32 {
        match self.partition {
            Partition::Near { inside } if self.digits > 1 => {
                let (turn, at) = (round / (u64::from(inside) + 1), round % (u64::from(inside) + 1));
                let across = 1 + (turn % u64::from(self.digits - 1)) as u32;
                if at == u64::from(inside) { across } else { 0 }
            }
            _ => (round % u64::from(self.digits)) as u32,
        }
    }

    /// Lists the members of the group of `rank` in this round, in order of ranks; `rank` itself among them.
    pub fn members(&self, rank: usize, round: u64) -> impl Iterator<Item = usize> + use<> {
        let digit = self.digit(round);
        let shuffled = match self.partition {
            Partition::Random { seed } => {
                Some(shuffled_group(self.workers, self.group, rank, mix(mix(0, seed), round)))
            }
            _ => None,
        };
        let (first, step) = match (self.partition, digit) {
            (Partition::Authors, 1) => (rank.min(3 - rank.min(3)), 3 - 2 * rank.min(3 - rank.min(3))),
            _ => {
                let stride = self.group.pow(digit);
                (rank - rank / stride % self.group * stride, stride)
            }
        };
        let (workers, count) = (self.workers, if shuffled.is_some() { 0 } else { self.group });
        let regular =
            (0..count).map(move |digit| first + digit * step).filter(move |member| *member < workers);
        shuffled.into_iter().flatten().chain(regular)
    }
}

/// The group of `rank` once all are shuffled and cut into groups, in order of ranks.
fn shuffled_group(workers: usize, group: usize, rank: usize, mut state: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..workers).collect();
    for last in (1..workers).rev() {
        state = mix(state, last as u64);
        // Fisher and Yates; the product's upper half is uniform but for 2^-32.
        let drawn = (u128::from(state) * (last as u128 + 1)) >> 64;
        order.swap(last, drawn as usize);
    }
    let own = order.chunks(group).find(|group| group.contains(&rank));
    let mut own = own.map_or_else(|| vec![rank], <[usize]>::to_vec);
    own.sort_unstable();
    own
}

/// Makes steps, a `period` of them, and averages, by turns.
#[derive(Debug)]
pub(super) struct Averager {
    period: u16,
    /// Steps since the last average.
    steps: u16,
    round: u64,
    turn: MemberTurn,
}

impl Averager {
    pub(super) fn new(period: u16) -> Averager {
        Averager { period, steps: 0, round: 0, turn: MemberTurn::Out }
    }

    /// Begins a round.
    fn begin(&mut self, round: u64) {
        (self.round, self.steps, self.turn) = (round, 0, MemberTurn::ComputeIsDue);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum MemberTurn {
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
                self.begin(clock.get());
            }
            WorkerEvent::Published { .. } if self.turn == MemberTurn::Computing => {
                self.steps += 1;
                self.turn = match self.steps < self.period {
                    true => MemberTurn::ComputeIsDue,
                    false => MemberTurn::AverageIsDue,
                };
            }
            WorkerEvent::Interrupted if self.turn == MemberTurn::Computing => {
                self.turn = MemberTurn::ComputeIsDue
            }
            WorkerEvent::Averaged { round } if self.turn == MemberTurn::Averaging && round == self.round => {
                self.begin(self.round.saturating_add(1));
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
