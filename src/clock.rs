//! The numbers that staleness is made of: versions, clocks, workers and the table of the workers' clocks.
//!
//! Pure: no bytes, keys, threads or wall clocks.

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Names one worker of a server. Small and dense: a server with room for `n` workers uses `0..n`. A real server has
/// peers of 16 bits; a simulated one may have more workers than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId(pub u32);

impl WorkerId {
    /// Where the worker stands in a list of all.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The peer of a real server that this worker is; `None`: no server has one of this number.
    pub(crate) fn peer(self) -> Option<u16> {
        u16::try_from(self.0).ok()
    }
}

impl From<u16> for WorkerId {
    fn from(peer: u16) -> WorkerId {
        WorkerId(peer.into())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.0)
    }
}

/// Number of iterations that a worker has completed; starts at 0, only grows.
///
/// The gradient that a worker computes while its clock is `c` *belongs to clock* `c`; publishing it makes the
/// clock `c + 1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Clock(u64);

impl Clock {
    /// The clock of a worker that has completed `iterations`.
    pub const fn new(iterations: u64) -> Clock {
        Clock(iterations)
    }

    /// The number of iterations.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The clock after this one.
    pub const fn next(self) -> Clock {
        Clock::new(self.0.saturating_add(1))
    }

    /// The smallest clock that every worker must have reached so that a reader at this clock keeps a bound of
    /// `staleness`: `max(0, clock - staleness)`.
    #[doc(hidden)]
    pub const fn needed(self, staleness: u64) -> Clock {
        Clock::new(self.0.saturating_sub(staleness))
    }
}

/// Number of updates applied to a shard; starts at 0 (the initial parameters), only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version(u64);

impl Version {
    /// The version of a shard to which so many `updates` are applied.
    pub const fn new(updates: u64) -> Version {
        Version(updates)
    }

    /// The number of updates.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The version after this one.
    #[doc(hidden)]
    pub const fn next(self) -> Version {
        Version::new(self.0 + 1)
    }

    /// Returns how many versions `self` is behind `latest`; zero if it is not behind.
    #[doc(hidden)]
    pub const fn behind(self, latest: Version) -> u64 {
        latest.0.saturating_sub(self.0)
    }
}

/// The user's own words about a version, which travel with it: the trainer's step and a short text, such as a digest or
/// a name. The library does not look into them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VersionTag {
    /// A number, such as the step of the optimiser.
    pub step: u64,
    /// Bytes of any meaning.
    pub label: [u8; 32],
}

impl VersionTag {
    /// A tag that is a step alone.
    pub const fn step(step: u64) -> VersionTag {
        VersionTag { step, label: [0; 32] }
    }
}

/// The clock that each worker has reached, and the smallest of them.
///
/// The smallest clock never moves back: a worker that joins later starts at it (see [`ClockTable::join`]).
///
/// ```
/// use slackline::internals::clock::{ClockTable, WorkerId};
/// use slackline::Clock;
/// let mut table = ClockTable::default();
/// table.join(WorkerId(0));
/// table.join(WorkerId(1));
/// table.advance(WorkerId(0), Clock::new(3));
/// assert_eq!(table.smallest(), Clock::new(0));
/// table.advance(WorkerId(1), Clock::new(2));
/// assert_eq!(table.smallest(), Clock::new(2));
/// table.leave(WorkerId(1));
/// assert_eq!(table.smallest(), Clock::new(3));
/// ```
///
/// Beside the clocks it counts how many workers stand at each: workers that wait for each other stand at few, so a
/// step costs the logarithm of a small number, and no memory is asked for once the table has seen its widest spread.
#[derive(Clone, Debug, Default)]
pub struct ClockTable {
    clocks: Vec<Option<Clock>>,
    /// The number of workers that stand at each clock; no entry is zero.
    standing: BTreeMap<Clock, usize>,
    workers: usize,
    smallest: Clock,
}

impl ClockTable {
    /// An empty table whose smallest clock is `smallest`: of a job that goes on from there.
    pub fn at(smallest: Clock) -> ClockTable {
        ClockTable { smallest, ..ClockTable::default() }
    }

    /// Takes a worker in and returns the clock it starts at: the smallest of all.
    pub fn join(&mut self, worker: WorkerId) -> Clock {
        self.join_at(worker, self.smallest)
    }

    /// Takes a worker in at `clock`, or at the smallest clock if that is greater, and returns where it starts. In an
    /// empty table the smallest clock moves up to it.
    pub fn join_at(&mut self, worker: WorkerId, clock: Clock) -> Clock {
        let index = worker.index();
        if self.clocks.len() <= index {
            self.clocks.resize(index + 1, None);
        }
        let start = clock.max(self.smallest);
        self.set(index, Some(start));
        start
    }

    /// Takes a worker out. The smallest clock may grow by it; returns true if it did.
    pub fn leave(&mut self, worker: WorkerId) -> bool {
        let index = worker.index();
        index < self.clocks.len() && self.set(index, None)
    }

    /// Notes that `worker` has reached `clock`; ignored for a worker that is not in, or that would move back.
    /// Returns true if the smallest clock moved.
    pub fn advance(&mut self, worker: WorkerId, clock: Clock) -> bool {
        let index = worker.index();
        match self.clocks.get(index) {
            Some(Some(reached)) if *reached < clock => self.set(index, Some(clock)),
            _ => false,
        }
    }

    fn set(&mut self, index: usize, clock: Option<Clock>) -> bool {
        // In before out: a map that never runs empty keeps its memory.
        if let Some(clock) = clock {
            *self.standing.entry(clock).or_default() += 1;
            self.workers += 1;
        }
        if let Some(old) = std::mem::replace(&mut self.clocks[index], clock) {
            self.workers -= 1;
            if let Some(count) = self.standing.get_mut(&old) {
                *count -= 1;
                if *count == 0 {
                    self.standing.remove(&old);
                }
            }
        }
        let before = self.smallest;
        if let Some((smallest, _)) = self.standing.first_key_value() {
            self.smallest = before.max(*smallest);
        }
        self.smallest != before
    }

    /// Returns the smallest clock over the workers that are in. While no worker is in, it stays where it was.
    pub fn smallest(&self) -> Clock {
        self.smallest
    }

    /// The clock of one worker, if it is in.
    pub fn get(&self, worker: WorkerId) -> Option<Clock> {
        self.clocks.get(worker.index()).copied().flatten()
    }

    /// The workers that are in, in order of their ids, with their clocks.
    pub fn iter(&self) -> impl Iterator<Item = (WorkerId, Clock)> + '_ {
        self.clocks.iter().enumerate().filter_map(|(id, clock)| Some((WorkerId(id as u32), (*clock)?)))
    }

    /// Returns how many workers are in.
    pub fn len(&self) -> usize {
        self.workers
    }

    /// True if no worker is in.
    pub fn is_empty(&self) -> bool {
        self.workers == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_joiner_starts_at_the_smallest_clock_and_never_pulls_it_back() {
        let mut table = ClockTable::default();
        table.join(WorkerId(0));
        table.advance(WorkerId(0), Clock::new(7));
        assert_eq!(table.join(WorkerId(1)), Clock::new(7));
        assert_eq!(table.smallest(), Clock::new(7));
    }

    #[test]
    fn a_leaver_frees_those_who_waited_for_it() {
        let mut table = ClockTable::default();
        table.join(WorkerId(0));
        table.join(WorkerId(1));
        table.advance(WorkerId(0), Clock::new(4));
        assert_eq!(table.smallest(), Clock::new(0));
        table.leave(WorkerId(1));
        assert_eq!(table.smallest(), Clock::new(4));
        table.leave(WorkerId(0));
        assert_eq!(table.smallest(), Clock::new(4));
    }

    #[test]
    fn a_clock_that_moves_back_is_ignored() {
        let mut table = ClockTable::default();
        table.join(WorkerId(0));
        assert!(table.advance(WorkerId(0), Clock::new(4)));
        assert!(!table.advance(WorkerId(0), Clock::new(3)));
        assert!(!table.advance(WorkerId(9), Clock::new(3)));
        assert_eq!(table.get(WorkerId(0)), Some(Clock::new(4)));
    }

    proptest::proptest! {
        #[test]
        fn the_table_agrees_with_one_that_looks_at_everybody(
            steps in proptest::collection::vec((0u8..4, 0u32..6, 0u64..40), 0..200),
        ) {
            let mut table = ClockTable::default();
            let mut naive = [None::<Clock>; 6];
            let mut smallest = Clock::new(0);
            for (step, worker, clock) in steps {
                let (id, entry) = (WorkerId(worker), &mut naive[worker as usize]);
                let clock = Clock::new(clock);
                match step {
                    0 => *entry = Some(table.join(id)),
                    1 => *entry = Some(table.join_at(id, clock)),
                    2 => {
                        table.leave(id);
                        *entry = None;
                    }
                    _ => {
                        table.advance(id, clock);
                        *entry = entry.map(|reached| reached.max(clock));
                    }
                }
                smallest = naive.iter().flatten().min().map_or(smallest, |least| smallest.max(*least));
                assert_eq!(table.smallest(), smallest);
                assert_eq!(table.len(), naive.iter().flatten().count());
                assert_eq!(table.get(id), naive[worker as usize]);
            }
        }
    }
}
