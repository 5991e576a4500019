//! The opening gate and the members: the common part of the server halves.

use crate::clock::{Clock, ClockTable, WorkerId};

/// The progress of a worker that is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct GateMember {
    /// The clock it began at.
    pub(super) start: Clock,
    /// The clock of its next gradient to arrive.
    pub(super) next: Clock,
}

/// The members, and whether as many different workers have joined as the job expects.
///
/// The gate opens once that many different workers have joined, and stays open. A worker that joined and left again has
/// had its turn: a job does not wait for ever for a worker that died in its first minute. Workers are told apart by
/// whether they return and not by their ids, since another worker may have had the id.
#[derive(Debug)]
pub(super) struct GateMembers {
    expected: usize,
    /// The rows of all workers, by id.
    rows: Vec<Option<GateMember>>,
    seen: usize,
    present: usize,
}

impl GateMembers {
    pub(super) fn new(expected: usize) -> GateMembers {
        GateMembers { expected, rows: Vec::new(), seen: 0, present: 0 }
    }

    /// True once as many have joined as the job expects: the gate is open.
    pub(super) fn complete(&self) -> bool {
        self.seen >= self.expected
    }

    /// Returns the number of members.
    pub(super) fn len(&self) -> usize {
        self.present
    }

    /// Takes a worker in; false if it is in already.
    pub(super) fn join(&mut self, worker: WorkerId, clock: Clock, returns: bool) -> bool {
        let index = worker.index();
        if self.rows.len() <= index {
            self.rows.resize(index + 1, None);
        }
        let row = &mut self.rows[index];
        if row.is_some() {
            return false;
        }
        self.seen += usize::from(!returns);
        *row = Some(GateMember { start: clock, next: clock });
        self.present += 1;
        true
    }

    /// Takes a worker in as `join` does, and keeps `table`, which holds the members once the gate is open.
    pub(super) fn join_into(
        &mut self,
        worker: WorkerId,
        clock: Clock,
        returns: bool,
        table: &mut ClockTable,
    ) -> bool {
        let was_open = self.complete();
        let is_new = self.join(worker, clock, returns);
        if is_new && was_open {
            table.join_at(worker, clock);
        } else if is_new && self.complete() {
            self.begin(table);
        }
        is_new
    }

    /// Takes a worker out and says where it stood; `None` if it was not in.
    pub(super) fn leave(&mut self, worker: WorkerId) -> Option<GateMember> {
        let member = self.rows.get_mut(worker.index())?.take()?;
        self.present -= 1;
        Some(member)
    }

    /// Notes the arrival of a gradient and says where its worker stood before it; `None` if the worker is not in or
    /// this is not its next gradient.
    pub(super) fn arrive(&mut self, worker: WorkerId, clock: Clock) -> Option<GateMember> {
        let member = self.rows.get_mut(worker.index())?.as_mut()?;
        if member.next != clock {
            return None;
        }
        let before = *member;
        member.next = clock.next();
        Some(before)
    }

    pub(super) fn contains(&self, worker: WorkerId) -> bool {
        self.rows.get(worker.index()).is_some_and(Option::is_some)
    }

    /// Takes all members into a table, at the clocks at which they began.
    pub(super) fn begin(&self, table: &mut ClockTable) {
        let mut starts: Vec<_> = self.iter().map(|(worker, member)| (member.start, worker)).collect();
        // The workers furthest behind first: the table never moves back.
        starts.sort_unstable();
        for (start, worker) in starts {
            table.join_at(worker, start);
        }
    }

    /// Lists the members, in order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WorkerId, GateMember)> + '_ {
        self.rows.iter().zip(0u32..).filter_map(|(row, id)| Some((WorkerId(id), (*row)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_comes_twice_opens_the_gate_only_once() {
        let mut members = GateMembers::new(2);
        assert!(members.join(WorkerId(3), Clock::new(0), false));
        assert!(!members.join(WorkerId(3), Clock::new(0), false));
        assert!(members.leave(WorkerId(3)).is_some());
        assert!(members.leave(WorkerId(3)).is_none());
        assert!(members.join(WorkerId(1), Clock::new(0), true));
        assert!(!members.complete());
        assert!(members.join(WorkerId(0), Clock::new(0), false));
        assert!(members.complete());
        members.leave(WorkerId(0));
        assert!(members.complete());
        assert_eq!(members.len(), 1);
    }

    #[test]
    fn a_worker_with_the_id_of_one_that_has_left_is_another_one() {
        let mut members = GateMembers::new(2);
        members.join(WorkerId(0), Clock::new(0), false);
        members.leave(WorkerId(0));
        members.join(WorkerId(0), Clock::new(0), false);
        assert!(members.complete());
    }

    #[test]
    fn only_the_next_gradient_of_a_member_arrives() {
        let mut members = GateMembers::new(1);
        assert!(members.arrive(WorkerId(0), Clock::new(0)).is_none());
        members.join(WorkerId(0), Clock::new(5), false);
        assert!(members.arrive(WorkerId(0), Clock::new(6)).is_none());
        assert!(members.arrive(WorkerId(0), Clock::new(5)).is_some());
        assert!(members.arrive(WorkerId(0), Clock::new(5)).is_none());
    }
}
